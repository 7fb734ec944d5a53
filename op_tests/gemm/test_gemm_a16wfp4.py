"""gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4 as callers see them: reference, torch route, layouts,
refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
import rfops.gemm.mxfp4_op as shared
from rfops import cli
from rfops.dispatch.declare import E8M0, FP4
from rfops.dispatch.layout import Shuffled
from rfops.gemm import a8wfp4, a16wfp4, afp4wfp4
from rfops.quantization.mxfp8 import FP8
from support.mxfp4_problems import OPS, assert_correct, call, random_problem, run

pytestmark = pytest.mark.requires_gfx950
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NAMES = sorted(OPS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1, 32), (5, 130, 96), (33, 257, 1024)])
def test_the_reference(shape: tuple[int, int, int], name: str) -> None:
    problem = random_problem(*shape, bias=torch.float32).of(name)
    assert_correct(OPS[name].reference(*problem.args(torch.bfloat16)), problem)


@pytest.mark.parametrize("rounding", ["even", "up", "down"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_torch(name: str, dtype: torch.dtype, rounding: str) -> None:
    """Shuffled or raw, with and without a bias, of all dtypes."""
    problem = random_problem(7, 48, 224, bias=dtype, rounding=rounding).of(name)
    got = run("torch", problem, dtype=dtype)
    assert_correct(got, problem)
    assert torch.equal(run("torch", problem.shuffled(), dtype=dtype), got)
    plain = problem.with_(bias=None)
    assert_correct(run("torch", plain, dtype=dtype), plain)


@pytest.mark.parametrize("name", NAMES)
def test_torch_takes_any_strides(name: str) -> None:
    problem = random_problem(7, 48, 224).of(name)
    turned = {n: getattr(problem, n) for n in ("x", "w", "x_scale", "w_scale")}
    turned = {n: t.T.contiguous().T for n, t in turned.items() if t is not None}
    assert torch.equal(run("torch", problem.with_(**turned)), run("torch", problem))


def test_torch_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows of both than one piece holds."""
    problem = random_problem(30, 70, 224, bias=torch.float32)
    whole = run("torch", problem)
    monkeypatch.setattr(shared, "_CHUNK", 1 << 11)
    assert torch.equal(run("torch", problem), whole)


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_op(name: str, is_shuffled: bool, dtype: torch.dtype) -> None:
    if is_shuffled:
        problem = random_problem(9, 160, 256, x_dtype=torch.float16).of(name).shuffled()
    else:
        problem = random_problem(9, 160, 256, bias=torch.bfloat16).of(name)
    got = call(problem, dtype)
    assert got.dtype == dtype
    assert_correct(got, problem)
    out = torch.full_like(got, math.nan)
    assert call(problem, dtype, out=out) is out and torch.equal(out, got)


def test_both_ops_are_one() -> None:
    problem = random_problem(6, 64, 160, x_dtype=torch.float16, rounding="up")
    assert torch.equal(call(problem), call(problem.quantised()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_native_dtype", [False, True])
def test_dtypes_of_bytes(name: str, is_native_dtype: bool) -> None:
    """uint8, and torch's own types where it has them; by the check and by the plan."""
    problem = random_problem(3, 32, 64).of(name)
    wanted = call(problem)
    fp4, e8m0 = (FP4, E8M0) if is_native_dtype else (torch.uint8, torch.uint8)
    changes: dict[str, Any] = {"w": problem.w.view(fp4), "w_scale": problem.w_scale.view(e8m0)}
    if problem.x_scale is not None:
        changes |= {"x_scale": problem.x_scale.view(e8m0)}
    if problem.x.dtype == torch.uint8:
        changes |= {"x": problem.x.view(fp4)}
    for one in (problem.with_(**changes), problem.with_(**changes).shuffled()):
        for _ in range(2):
            assert torch.equal(call(one), wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n"), [(0, 16), (5, 0), (0, 0)])
def test_empty(m: int, n: int, name: str) -> None:
    problem = random_problem(m, n, 64).of(name)
    assert call(problem).shape == (m, n)
    assert call(problem.shuffled()).shape == (m, n)


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_the_extremes_of_scales(name: str) -> None:
    """255 is NaN in the rows it stands for; 0 and 254 are 2^-127 and 2^127."""
    problem = random_problem(4, 32, 96)
    problem.w_scale[3, 1], problem.w_scale[5], problem.w_scale[6] = 255, 0, 254
    problem.x *= 2.0**-20  # what 2^127 makes of it is a number in fp32
    problem.x[2, 40] = math.inf
    problem = problem.of(name)
    for one in (problem, problem.shuffled()):
        got = call(one, torch.float32)
        assert got[2].isnan().all() and got[:, 3].isnan().all()
        assert got.isnan().sum() == 32 + 4 - 1
        assert (got[:2, 5].abs() < 1e-34).all() and (got[:2, 6].abs() > 1e28).all()


def test_paddings_of_shuffled_scales_mean_nothing() -> None:
    """aiter leaves there what it finds; 32 rows are enough."""
    problem = random_problem(5, 48, 96).quantised().shuffled()
    wanted = call(problem)
    for name, rows in (("x_scale", 5), ("w_scale", 48)):
        raw = rfops.unshuffle_scale(getattr(problem, name), rows, 3)
        wide = torch.full((64, 8), 255, dtype=torch.uint8)
        wide[:rows, :3] = raw.view(torch.uint8)
        data = rfops.shuffle_scale(wide).data[:64].contiguous()
        problem = problem.with_(**{name: Shuffled(data, "32x8")})
    assert torch.equal(call(problem), wanted)


REFUSED = {
    "K=48": ({"x": lambda t: t[:, :48], "w": lambda t: t[:, :24]},
             "K must be a positive multiple of 32, got K=48; pad x and w with zeros"),
    "K=0": ({"x": lambda t: t[:, :0], "w": lambda t: t[:, :0]}, "K must be a positive multiple"),
    "x of fp32": ({"x": lambda t: t.float()}, "x must be bfloat16 or float16, got"),
    "w of K bytes": ({"w": lambda t: t.repeat(1, 2)}, r"w must be a \[N, K/2=32\] tensor, got"),
    "w of fp32": ({"w": lambda t: t.float()}, "w must be uint8.*quantise it with"),
    "w_scale of fp32": ({"w_scale": lambda t: t.float()}, "w_scale must be uint8"),
    "too few scales": ({"w_scale": lambda t: t[:, :1]},
                       r"w_scale must be a \[32, 2\] tensor, raw, got \[32, 1\]"),
    "scales of fewer rows": ({"w_scale": lambda t: t[:31]}, r"w_scale must be a \[32, 2\] tensor"),
    "shuffled N=20": ({"w": lambda t: Shuffled(t[:20], "16x16"), "w_scale": lambda t: t[:20]},
                      "N must be a multiple of 16 where w is shuffled, got N=20; pad w"),
    "raw scales as shuffled": ({"w_scale": lambda t: Shuffled(t, "32x8")},
                               r"w_scale must be a \[32 or more, 8\] tensor, 32x8, got \[32, 2\]"),
    "shuffled scales as raw": ({"w_scale": lambda t: rfops.shuffle_scale(t).data},
                               r"w_scale must be a \[32, 2\] tensor, raw, got \[256, 8\]"),
    "not contiguous": ({"w": lambda t: Shuffled(t.T.contiguous().T, "16x16")},
                       r"w must be contiguous where it is shuffled, got strides \[1, 32\]"),
    "another layout": ({"w": lambda t: Shuffled(t, "32x8")}, "w_layout must be raw or 16x16"),
    "bias": ({"bias": lambda t: torch.ones(31)}, r"bias must be a \[N=32\] tensor"),
    "rounding": ({"rounding": lambda t: "ceil"}, "rounding must be even, up or down, got 'ceil'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    changes, message = REFUSED[case]
    problem = random_problem(5, 32, 64)
    changed = problem.with_(**{n: make(getattr(problem, n)) for n, make in changes.items()})  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match=f"^gemm_a16wfp4: {message}"):
        call(changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": lambda t: t[:, :24], "w": lambda t: t[:, :24]},
            "K must be a positive multiple of 32",
        ),
        ({"w": lambda t: t[:, :16]}, r"w must be a \[N, K/2=32\] tensor, got \[32, 16\]"),
        ({"x": lambda t: t[:, :0], "w": lambda t: t[:, :0]}, "K must be a positive multiple"),
        ({"x_scale": lambda t: t[:4]}, r"x_scale must be a \[5, 2\] tensor, raw, got \[4, 2\]"),
        ({"x": lambda t: Shuffled(t, "16x16")}, r"x must be a \[M, K/2\] tensor, got Shuffled"),
    ],
)
def test_refusals_of_afp4wfp4(changes: dict[str, Any], message: str) -> None:
    problem = random_problem(5, 32, 64).quantised()
    changed = problem.with_(**{n: make(getattr(problem, n)) for n, make in changes.items()})
    with pytest.raises(ValueError, match=f"^gemm_afp4wfp4: {message}"):
        call(changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": lambda t: t.view(torch.uint8)}, "x must be float8_e4m3fn, got .*rfops.quant_mxfp8"),
        ({"x": lambda t: t.to(torch.float8_e4m3fnuz)}, "x must be float8_e4m3fn, got"),
        ({"w": lambda t: t[:, :16]}, r"w must be a \[N, K/2=32\] tensor, got \[32, 16\]"),
        ({"x_scale": lambda t: t[:4]}, r"x_scale must be a \[5, 2\] tensor, raw, got \[4, 2\]"),
    ],
)
def test_refusals_of_a8wfp4(changes: dict[str, Any], message: str) -> None:
    problem = random_problem(5, 32, 64).of("gemm_a8wfp4")
    changed = problem.with_(**{n: make(getattr(problem, n)) for n, make in changes.items()})
    args = changed.x, changed.w, changed.x_scale, changed.w_scale
    with pytest.raises(ValueError, match=f"^gemm_a8wfp4: {message}"):
        a8wfp4.gemm_a8wfp4(*args)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_that_change_are_checked_again(name: str) -> None:
    """A call like an earlier one but for its sizes: its plan, or the refusal."""
    plans = OPS[name].plans
    first, second = (random_problem(m, 32, 64).of(name) for m in (5, 6))
    call(first)
    before = plans.misses
    assert_correct(call(second), second)
    assert_correct(call(second), second)
    assert plans.misses <= before + 1
    with pytest.raises(ValueError, match=r"w_scale must be a \[32, 2\] tensor, raw, got \[32, 3\]"):
        call(second.with_(w_scale=torch.zeros(32, 3, dtype=torch.uint8)))


@pytest.mark.parametrize("name", NAMES)
def test_under_torch_compile(name: str) -> None:
    problem = random_problem(6, 32, 64, bias=torch.float32).of(name).shuffled()
    function = torch.compile(lambda x: call(problem.with_(x=x)), fullgraph=True)
    assert torch.equal(function(problem.x), call(problem))


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str) -> None:
    problem = random_problem(3, 32, 64, bias=torch.bfloat16).of(name)
    if problem.x_scale is not None:  # torch's tools do arithmetic that e8m0 has not
        problem = problem.with_(x_scale=problem.x_scale.view(torch.uint8))
    op = getattr(torch.ops.rfops, name).default
    config = [""] * OPS[name].takes_config
    tests = ["test_autograd_registration", "test_faketensor", "test_schema"]
    if problem.x.dtype == FP8:  # torch compares no float8
        tests.remove("test_schema")
    torch.library.opcheck(op, (*problem.args(torch.bfloat16), *config), test_utils=tests)


@pytest.mark.parametrize("name", NAMES)
def test_commands_know_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert OPS[name].asked == ("M", "N", "K")
    for words, said in (
        (f"why {name} --m 4 --n 64 --k 256", "m=4 n=64 k=256"),
        (f"profile {name} --m 4 --n 32 --k 64", "M=4 N=32 K=64"),
        (f"bench {name} --shape 4 32 64", "m=4 n=32 k=64"),
        (f"bench {name} --shape 4 32 64 w_layout=16x16 w_scale_layout=32x8", "m=4 n=32 k=64"),
    ):
        assert cli.main(words.split()) == 0 and said in capsys.readouterr().out, words
    assert cli.main(f"why {name} --m 4 --n 32 --k 48".split()) == 1
    assert "K must be a positive multiple of 32, got K=48" in capsys.readouterr().err


@pytest.mark.parametrize(
    "public", [a8wfp4.gemm_a8wfp4, a16wfp4.gemm_a16wfp4, afp4wfp4.gemm_afp4wfp4]
)
def test_supports(public: Any) -> None:
    for arch in ("gfx942", "gfx950", "sm_90"):
        assert public.supports(arch=arch) and public.supports(arch=arch, shape=(4, 2112, 7168))
    assert not public.supports(arch="gfx950", shape=(4, 20, 64), w_layout="16x16")
    assert not public.supports(arch="gfx950", shape=(4, 32, 48))
