"""gemm_a8w8_blockscale as callers see it: its reference, the torch route, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import rfops
import rfops.gemm.a8w8_blockscale as op_module
from rfops import cli
from rfops.gemm.a8w8_blockscale import OP, gemm_a8w8_blockscale, gemm_a8w8_blockscale_ref
from rfops.quantization.fp8_blockscale import FNUZ, OCP
from support.a8w8_problems import Problem, assert_correct, random_problem, run

pytestmark = pytest.mark.requires_gfx950


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("shape", [(1, 1, 128), (5, 130, 384), (33, 257, 1024)])
def test_the_reference(shape: tuple[int, int, int], arch: str) -> None:
    problem = random_problem(*shape, arch)
    assert_correct(gemm_a8w8_blockscale_ref(*problem.args), problem)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_torch_takes_any_strides(arch: str, dtype: torch.dtype) -> None:
    """Column-major operands and scales, as the challenge of 2025 has them."""
    problem = random_problem(7, 200, 512, arch)
    turned = Problem(*(tensor.T.contiguous().T for tensor in problem.args))
    out = torch.full((7, 200), math.nan, dtype=dtype)
    OP.prepare("torch", OP.check((*turned.args, dtype, "raw", out, None))[0])(out, *turned.args)
    assert_correct(out, problem)


def test_torch_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows of both than one piece holds."""
    monkeypatch.setattr(op_module, "_ROWS", 128)
    problem = random_problem(300, 700, 512, "gfx950")
    out = torch.full((300, 700), math.nan)
    op_module.run_torch(out, *problem.args)
    assert_correct(out, problem)


@pytest.mark.parametrize("kernel", ["torch", "stream", "staged", "triton"])
def test_special_scales(kernel: str) -> None:
    """An infinite scale of a finite sum gives infinity by every kernel; a NaN stays in its row."""
    problem = random_problem(6, 144, 256, "gfx950")
    problem.x_scale[1, 0], problem.x_scale[2, 1] = math.inf, -math.inf
    problem.x_scale[3, 0], problem.x_scale[4, 1] = 0.0, math.nan
    problem.w_scale[1, 1] = math.inf
    actual = run(kernel, problem, dtype=torch.float32)
    assert actual[1, :128].isinf().all() and actual[2, :128].isinf().all()
    assert actual[0, 128:].isinf().all() and actual[0, :128].isfinite().all()
    assert actual[3, :128].isfinite().all() and actual[4].isnan().all()
    assert_correct(actual, problem)


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0), (0, 0)])
def test_empty(m: int, n: int) -> None:
    problem = random_problem(m, n, 128, "gfx950")
    assert gemm_a8w8_blockscale(*problem.args).shape == (m, n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_op(dtype: torch.dtype) -> None:
    problem = random_problem(9, 150, 256, "gfx950")
    actual = rfops.gemm_a8w8_blockscale(*problem.args, dtype)
    assert actual.dtype == dtype
    assert_correct(actual, problem)
    out = torch.full_like(actual, math.nan)
    assert rfops.gemm_a8w8_blockscale(*problem.args, dtype, out) is out
    assert torch.equal(out, actual)


def _changed(**change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Problem], Problem]:
    def made(problem: Problem) -> Problem:
        return problem.with_(**{n: make(getattr(problem, n)) for n, make in change.items()})

    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _changed(x=lambda t: t.to(torch.float32).to(FNUZ)),
            "w must be torch.float8_e4m3fnuz as x is, got torch.float8_e4m3fn; quantise both",
        ),
        (_changed(x=lambda t: t.to(torch.float32)), "x must be float8_e4m3fn or float8_e4m3fnuz"),
        (
            _changed(x=lambda t: t[:, :100], w=lambda t: t[:, :100]),
            "K must be a positive multiple of 128, got K=100; pad x and w with zeros",
        ),
        (_changed(x=lambda t: t[:, :0], w=lambda t: t[:, :0]), "K must be a positive .* got K=0"),
        (_changed(w=lambda t: t[:, :128]), r"w must be a \[N, K=256\] tensor"),
        (_changed(x_scale=lambda t: t.to(torch.bfloat16)), "x_scale must be float32"),
        (_changed(x_scale=lambda t: t[:, :1]), r"x_scale must be a \[M=5, K/128=2\] tensor"),
        (_changed(w_scale=lambda t: t[:1]), r"w_scale must be a \[N/128=2, K/128=2\] tensor"),
    ],
)
def test_refusals(change: Callable[[Problem], Problem], message: str) -> None:
    problem = change(random_problem(5, 130, 256, "gfx950"))
    with pytest.raises(ValueError, match=f"^gemm_a8w8_blockscale: {message}"):
        gemm_a8w8_blockscale(*problem.args)


def test_out_must_fit() -> None:
    problem = random_problem(5, 130, 256, "gfx950")
    out = torch.empty(130, 5, dtype=torch.bfloat16).T
    with pytest.raises(ValueError, match="out must be contiguous"):
        gemm_a8w8_blockscale(*problem.args, out=out)
    with pytest.raises(ValueError, match="dtype must be bfloat16, float16 or float32"):
        gemm_a8w8_blockscale(*problem.args, torch.float64)


def test_sizes_alone_have_the_architectures_fp8() -> None:
    assert OP.call_of("gfx942", M=4, N=128, K=128).x_dtype == FNUZ
    assert OP.call_of("gfx950", M=4, N=128, K=128).w_dtype == OCP
    for arch in ("gfx942", "gfx950", "sm_90"):
        assert gemm_a8w8_blockscale.supports(arch=arch, shape=(4, 576, 7168))
    assert not gemm_a8w8_blockscale.supports(arch="gfx942", shape=(4, 576, 100))


@pytest.mark.parametrize("command", ["why", "profile"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_commands(command: str, arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [command, "gemm_a8w8_blockscale", "--m", "4", "--n", "128", "--k", "256"]
    assert cli.main([*arguments, "--arch", arch]) == 0
    text = capsys.readouterr().out
    assert "stream" in text and "torch" not in text.partition("not ")[0]


def test_shuffled_weights_are_a_type_of_their_own() -> None:
    """In aiter's order, taken by torch's route too, and by no op that does not know them."""
    problem = random_problem(3, 48, 256, "gfx950")
    w = rfops.shuffle_weight(problem.w)
    codes = problem.w.view(torch.uint8).view(3, 16, 8, 2, 16).permute(0, 2, 3, 1, 4)
    assert torch.equal(w.data.view(torch.uint8).flatten(), codes.flatten())
    out = torch.full((3, 48), math.nan)
    args = problem.x, w.data, problem.x_scale, problem.w_scale
    call = OP.check((*args, torch.float32, "16x16", out, None))[0]
    OP.prepare("torch", call)(out, *args)
    assert_correct(out, problem)
    assert_correct(gemm_a8w8_blockscale_ref(*args, torch.float32, "16x16"), problem)
    with pytest.raises(ValueError, match=r"shuffle_weight: w must be a \[..., 16 n, 16 k\] tensor"):
        rfops.shuffle_weight(problem.w[:15])
    with pytest.raises(ValueError, match="N must be a multiple of 16 where w is shuffled"):
        OP.check((problem.x, problem.w[:15], *args[2:], torch.float32, "16x16", None, None))
