"""batched_gemm_a16w8_blockscale as an op: what it refuses, what it supports, what torch sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rfops.gemm.a16w8_blockscale import FNUZ, OCP, OP, batched_gemm_a16w8_blockscale
from rfops.gemm.kernels.a16w8.config import BmmConfig, Config, RowsConfig, StagedConfig, TilesConfig
from rfops.jit import Plans, UnsupportedArch
from support.batched_gemm_a16w8_problems import (
    ARCHS,
    BF16,
    F16,
    F32,
    assert_correct,
    device_of,
    random_problem,
)
from support.calls import batched_route as route

supports = batched_gemm_a16w8_blockscale.supports  # type: ignore[attr-defined]


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """For what does not depend on the architecture."""
    return device_of(ARCHS[-1], monkeypatch)


# ---------------------------------------------------------------- refusals


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).to(dtype)


def valid(**changes: object) -> dict[str, object]:
    """Arguments of a valid call, B=2, M=3, N=130, K=200, with changes."""
    args: dict[str, object] = {
        "x": zeros(2, 3, 200),
        "w": zeros(2, 130, 200, dtype=OCP),
        "w_scale": torch.ones(2, 2, 2),
    }
    return {**args, **changes}


HUGE = 2**31
REFUSALS: dict[str, tuple[dict[str, object], str]] = {
    "x is a list": ({"x": [1.0]}, r"x must be a \[B, M, K\] tensor, got list"),
    "x is sparse": ({"x": zeros(2, 3, 200).to_sparse()}, "x must be .*pass a dense"),
    "x of 2 dimensions": ({"x": zeros(3, 200)}, r"x must be a \[B, M, K\] tensor, got \[3, 200\]"),
    "x is fp32": ({"x": torch.zeros(2, 3, 200)}, "x must be bfloat16 or float16, got .*float32"),
    "w is bf16": ({"w": zeros(2, 130, 200)}, "w must be float8_e4m3fn or .*bfloat16.*quantise"),
    "w of e5m2": (
        {"w": zeros(2, 130, 200, dtype=torch.float8_e5m2)},
        "w must be float8_e4m3fn or .*float8_e5m2",
    ),
    "B differs": (
        {"w": zeros(3, 130, 200, dtype=OCP)},
        r"w must be a \[B=2, N, K=200\] tensor, got \[3, 130, 200\]",
    ),
    "K differs": ({"w": zeros(2, 130, 100, dtype=OCP)}, r"w must be a \[B=2, N, K=200\]"),
    "too few scales": (
        {"w_scale": torch.ones(2, 1, 2)},
        r"w_scale must be a \[B=2, N/128=2, K/128=2\] tensor, got \[2, 1, 2\]",
    ),
    "scales are bf16": ({"w_scale": zeros(2, 2, 2)}, "w_scale must be float32.*pass one scale"),
    "dtype is int8": ({"dtype": torch.int8}, "dtype must be bfloat16, float16 or float32"),
    "out of another shape": (
        {"out": zeros(2, 3, 131)},
        r"out must be a \[B=2, M=3, N=130\] tensor, got \[2, 3, 131\]",
    ),
    "out of another dtype": ({"out": torch.zeros(2, 3, 130)}, "out must be bfloat16, .*float32"),
    "out expanded": (
        {"out": zeros(1, 3, 130).expand(2, -1, -1)},
        "out must be a tensor with each element in a place of its own, got .*strides",
    ),
    "w elsewhere": ({"w": zeros(2, 130, 200, dtype=OCP).to("meta")}, "w must be on cpu as x is"),
    "a batch of w of 2 GiB": (
        {
            "w": torch.empty(HUGE + 2**25, dtype=torch.uint8)
            .as_strided((2, 130, 200), (0, 2**24, 1))
            .view(OCP)
        },
        r"w must be smaller than 2 GiB a batch .*split it",
    ),
    "a result of 2 GiB a batch": (
        {
            "x": zeros(1, 1, 1).expand(1, 2**20, 1),
            "w": zeros(1, 1, 1, dtype=OCP).expand(1, 2**10, 1),
            "w_scale": torch.ones(1, 8, 1),
        },
        "the result must be smaller than 2 GiB a batch, got M=1048576, N=1024; split x",
    ),
    "config of no kind": ({"config": 3}, "config must be one of RowsConfig, .*, BmmConfig"),
    "rows for M of 17": (
        {"x": zeros(2, 17, 200), "config": RowsConfig(16, 128)},
        "config must be of a kernel that takes .*M=17 is above 16; pass another or none",
    ),
    "batches for M of 3": (
        {"config": RowsConfig(16, 128, batches=2)},
        "config must be .*batches=2 needs M=1",
    ),
    "staged for K of 200, or not NVIDIA's": (
        {"config": StagedConfig(16, 16, 32)},
        "config must be .*(K=200 is no multiple of its step, 32|is for NVIDIA's matrix unit)",
    ),
    "bmm for fp16": (
        {"x": zeros(2, 3, 200, dtype=F16), "config": BmmConfig()},
        "config must be .*dequantised weights may exceed float16's range",
    ),
    "bmm for a float32 result": (
        {"dtype": torch.float32, "config": BmmConfig()},
        r"config must be .*rounds its sums to bfloat16, and the result is torch\.float32",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^batched_gemm_a16w8_blockscale: {message}"):
        batched_gemm_a16w8_blockscale(**valid(**changes))  # type: ignore[arg-type]


def test_out_must_not_overlap_an_input() -> None:
    memory = zeros(2 * 3 * 200)
    x, out = memory.view(2, 3, 200), memory[: 2 * 3 * 130].view(2, 3, 130)
    with pytest.raises(ValueError, match=r"out must be apart from x, .*pass another out"):
        batched_gemm_a16w8_blockscale(**valid(x=x, out=out))  # type: ignore[arg-type]
    batched_gemm_a16w8_blockscale(**valid(out=torch.empty_like(out)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="apart from x"):  # by the plan, too
        batched_gemm_a16w8_blockscale(**valid(x=x, out=out))  # type: ignore[arg-type]


def test_out_beside_x_in_one_buffer(one_device: torch.device) -> None:
    """Rows of x and of out in turns: their extents overlap, they do not."""
    problem = random_problem(2, 3, 40, 100).to(one_device)
    rows = torch.zeros(2, 3, 140, dtype=BF16, device=one_device)
    rows[:, :, :100] = problem.x
    problem.x, out = rows[:, :, :100], rows[:, :, 100:]
    batched_gemm_a16w8_blockscale(*problem.args, out=out)
    assert_correct(out, problem)
    with pytest.raises(ValueError, match="apart from x"):
        batched_gemm_a16w8_blockscale(*problem.args, out=rows[:, :, 99:139])


def test_fnuz_is_gfx942s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    w = zeros(2, 130, 200, dtype=torch.uint8).view(FNUZ)
    with pytest.raises(ValueError, match=r"w must be float8_e4m3fn on gfx950, got .*fnuz.*convert"):
        batched_gemm_a16w8_blockscale(**valid(w=w))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowsConfig(48, 128), "tile_n must be a power of two, got 48"),
        (lambda: RowsConfig(256, 128), "tile_n must be at most 128, got 256"),
        (lambda: TilesConfig(16, 32, 256), "tile_k must be at most 128, got 256"),
        (lambda: TilesConfig(16, 32, 8), "tile_k must be at least 16, got 8"),
        (lambda: TilesConfig(16, 32, 64, x_left=2), "x_left must be 0 or 1, got 2"),
        (lambda: StagedConfig(8, 16, 32, warps_m=2), "tile_m must be at least 16, got 8"),
        (lambda: StagedConfig(16, 256, 32), "tile_n must be at most 128, got 256"),
        (lambda: StagedConfig(16, 32, 16), "tile_k must be at least 32, got 16"),
        (lambda: BmmConfig(0), "workspace_mib must be a positive integer, got 0"),
    ],
)
def test_configs_refuse(make: Callable[[], Config], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_other_architectures_are_refused() -> None:
    with pytest.raises(UnsupportedArch, match=r"no kernel for gfx90a; .*gfx942, gfx950, sm_89"):
        route(1, 1, 1, 1, "gfx90a")


def test_supports() -> None:
    for arch in ("gfx942", "gfx950", "sm_89", "sm_90", "sm_100"):
        assert supports(arch=arch, shape=(16, 8192, 8192, 8192))
        assert supports(arch=arch, dtype=F32)
        assert supports(arch=arch, w_dtype=FNUZ) == (arch == "gfx942")
    assert not supports(arch="gfx90a") and not supports(arch="sm_80")
    assert not supports(arch="gfx950", dtype=torch.int8)
    assert not supports(arch="gfx950", shape=(1, 1, 2**16, 2**15))
    assert batched_gemm_a16w8_blockscale.supports is supports  # type: ignore[attr-defined]


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP, "plans", Plans(3))
    for n in range(6):
        for _ in range(2):
            assert batched_gemm_a16w8_blockscale(*random_problem(0, 1, n, 4).args).shape[2] == n
    assert len(OP.plans) == 3


# ---------------------------------------------------------------- as torch's op


@pytest.mark.parametrize("w_dtype", [OCP, torch.uint8])
def test_registered_op(w_dtype: torch.dtype, one_device: torch.device) -> None:
    problem = random_problem(2, 3, 40, 100, w_dtype=OCP).to(one_device)
    w = problem.w.view(w_dtype)
    actual = torch.ops.rfops.batched_gemm_a16w8_blockscale(problem.x, w, problem.scale, BF16, "")
    assert_correct(actual, problem)
    assert torch.equal(actual, batched_gemm_a16w8_blockscale(problem.x, w, problem.scale))


@pytest.mark.parametrize("with_out", [False, True])
def test_opcheck(with_out: bool, one_device: torch.device) -> None:
    """torch's own tests of schema, fake and tracing; it cannot compare float8, hence bytes."""
    problem = random_problem(2, 3, 40, 100, w_dtype=OCP).to(one_device)
    args = (
        problem.x,
        problem.w.view(torch.uint8),
        problem.scale,
        BF16,
        "tiles tile_m=16 tile_n=32 tile_k=64",
    )
    ops = torch.ops.rfops
    if with_out:
        out = torch.zeros(2, 3, 40, dtype=BF16, device=one_device)
        torch.library.opcheck(ops.batched_gemm_a16w8_blockscale_out.default, (*args, out))
    else:
        torch.library.opcheck(ops.batched_gemm_a16w8_blockscale.default, args)


def test_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 200, dtype=F16)
        w, scale = torch.empty(2, 130, 200, dtype=OCP), torch.empty(2, 2, 2)
        actual = batched_gemm_a16w8_blockscale(x, w, scale, F32)
        assert actual.shape == (2, 3, 130) and actual.dtype == F32
        assert batched_gemm_a16w8_blockscale(x, w, scale, F32, actual) is actual


def test_compile(one_device: torch.device) -> None:
    problem = random_problem(2, 3, 40, 100).to(one_device)

    def layer(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return batched_gemm_a16w8_blockscale(x * 2, w, scale) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*problem.args), layer(*problem.args))
