"""gemm_a16w16 and batched_gemm_a16w16: values of every kernel against float64, operands as engines
have them, what they refuse, what torch sees."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
import rfops.vgpu
from rfops.dispatch.compare import assert_within, tolerance
from rfops.gemm.a16w16 import OP, gemm_a16w16, gemm_a16w16_ref
from rfops.gemm.batched_a16w16 import OP as BATCHED
from rfops.gemm.batched_a16w16 import batched_gemm_a16w16, batched_gemm_a16w16_ref
from rfops.gemm.kernels.a16w16.stream import StreamConfig
from rfops.gemm.kernels.a16w16.triton import TilesConfig

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ARCHS = ("gfx942", "gfx950")


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.fixture
def one_arch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what does not depend on the architecture."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")


def operands(
    b: int, m: int, n: int, k: int, *, columns: bool = False, dtype: torch.dtype = BF16
) -> tuple[torch.Tensor, torch.Tensor]:
    """x of [tokens, heads, k] as [heads, tokens, k]; w of [heads, n, k], or as it is of [heads, k,
    n]."""
    generator = torch.Generator().manual_seed(1_000_003 * b + 10_007 * m + 101 * n + k)
    x = torch.randn(m, b, k, generator=generator).to(dtype).transpose(0, 1)
    size = (b, k, n) if columns else (b, n, k)
    w = torch.randn(size, generator=generator).to(dtype)
    return x, w.mT if columns else w


def poisoned(b: int, m: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """[heads, tokens, n], which lies [tokens, heads, n]."""
    return torch.full((m, b, n), math.nan, dtype=dtype).transpose(0, 1)


def assert_correct(actual: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    """fp32 sums in any order: K roundings at most, one more for each of 16 waves and splits, each
    of half an ulp of the sum of |products|; then the rounding of the result."""
    exact, total = x.double() @ w.double().mT, x.double().abs() @ w.double().abs().mT
    assert_within(actual, exact, tolerance(exact, total, x.shape[-1] + 32, actual.dtype))


def check(sizes: tuple[int, int, int, int], config: Any = None, **options: Any) -> None:
    dtype = options.pop("out", BF16)
    x, w = operands(*sizes, **options)
    out = poisoned(*sizes[:3], dtype)
    assert batched_gemm_a16w16(x, w, dtype, out, config) is out
    assert_correct(out, x, w)


# ---------------------------------------------------------------- values

# (B, M, N, K), columns: gates of DeepSeek-V3, Qwen3, GPT-OSS; absorbed weights; tails of each size.
MODELS = [
    ((1, 1, 256, 7168), False),
    ((1, 16, 256, 7168), False),
    ((1, 5, 128, 4096), False),
    ((1, 64, 128, 2880), False),
    ((16, 16, 128, 512), False),
    ((16, 1, 512, 128), True),
    ((16, 70, 512, 128), True),
    ((3, 200, 128, 512), False),
]
ODD = [
    ((1, 1, 1, 8), False),
    ((2, 3, 41, 104), False),
    ((1, 17, 33, 1032), False),
    ((3, 1, 50, 40), True),
    ((2, 130, 66, 136), True),
    ((2, 2, 16, 1544), True),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(("sizes", "columns"), [*MODELS, *ODD])
def test_values(sizes: tuple[int, int, int, int], columns: bool, arch: str) -> None:
    """By the kernel that the op chooses, which is the HIP one."""
    assert BATCHED.route(
        BATCHED.call_of(arch, **dict(zip("BMNK", sizes, strict=True)))
    ).backend == ("stream")
    check(sizes, columns=columns)


CONFIGS = {
    "one wave": ((2, 5, 40, 104), StreamConfig(1, 1, 1), {}),
    "waves along K": ((1, 20, 40, 1000), StreamConfig(2, 2, 4, steps=2), {}),
    "waves along N": ((2, 40, 200, 136), StreamConfig(4, 2, 1, 4, 2), {}),
    "both": ((2, 33, 70, 392), StreamConfig(3, 1, 2, 2, 2), {}),
    "split": ((1, 70, 50, 1000), StreamConfig(2, 2, 2, steps=2, split=3), {}),
    "split, waves along N": ((2, 5, 50, 1000), StreamConfig(1, 1, 2, 2, 2, split=2), {}),
    "4 slices": ((2, 7, 41, 1000), StreamConfig(2, 2, 4, steps=2, slices=4), {}),
    "16 slices": ((2, 3, 41, 1400), StreamConfig(2, 2, 2, steps=1, slices=16), {}),
    "a line": ((2, 5, 41, 1000), StreamConfig(1, 2, 2, steps=4, lines=1, split=2), {}),
    "two lines": ((2, 5, 41, 1000), StreamConfig(1, 1, 2, 2, 4, lines=2), {}),
    "four lines": ((1, 33, 41, 1544), StreamConfig(3, 1, 1, steps=8, lines=4), {}),
    "columns by 2": ((2, 5, 40, 136), StreamConfig(1, 2, 2, 2), {"columns": True}),
    "columns by 4": ((2, 40, 72, 200), StreamConfig(2, 4, 1, steps=2), {"columns": True}),
    "columns by 8": ((2, 5, 136, 72), StreamConfig(1, 8, 2, split=2), {"columns": True}),
    "triton": ((2, 33, 41, 200), TilesConfig(16, 32, 64), {}),
    "triton, columns": ((2, 3, 41, 100), TilesConfig(16, 32, 64), {"columns": True}),
}
TYPES = {
    "bf16": {},
    "f16 to f32": {"dtype": F16, "out": F32},
    "bf16 to f32": {"out": F32},
    "f16": {"dtype": F16, "out": F16},
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", CONFIGS)
def test_configs(case: str, arch: str) -> None:
    sizes, config, options = CONFIGS[case]
    check(sizes, config, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("case", CONFIGS)
def test_configs_of_types(case: str, types: str, arch: str) -> None:
    sizes, config, options = CONFIGS[case]
    check(sizes, config, **options, **TYPES[types])


def test_f32_result_of_a_gate(arch: str) -> None:
    """What routing in fp32 asks for; x and w as 2-D views of wider rows."""
    rows = torch.randn(5, 3 * 520).to(BF16)[:, 520:1032]
    weights = torch.randn(24, 600).to(BF16)[:, :512]
    assert_correct(gemm_a16w16(rows, weights, F32), rows, weights)
    assert_correct(gemm_a16w16(rows, weights), rows, weights)


def test_weights_of_columns_without_a_copy(arch: str) -> None:
    x, w = torch.randn(3, 128).to(BF16), torch.randn(128, 48).to(BF16)
    out = torch.full((3, 48), math.nan, dtype=BF16)
    assert OP.kernels["stream"].unsupported_reason(OP.check((x, w.T, BF16, out, None))[0]) is None
    assert_correct(gemm_a16w16(x, w.T, out=out), x, w.T)


@pytest.mark.parametrize("which", ["x", "w", "out", "odd k"])
def test_any_strides(which: str, one_arch: None) -> None:
    """What the HIP kernel does not take goes to Triton: elements of x or out apart, both strides of
    w, an odd K."""
    k = 99 if which == "odd k" else 104
    x, w = operands(2, 3, 41, 2 * k)
    x, w = (x[:, :, ::2], w[:, :, :k]) if which == "x" else (x[:, :, :k], w[:, :, ::2])
    w = w if which == "w" else w.contiguous()
    out = torch.full((2, 3, 82), math.nan, dtype=BF16)[:, :, ::2] if which == "out" else None
    given = (x, w, BF16, out, None)
    assert BATCHED.kernels["stream"].unsupported_reason(BATCHED.check(given)[0])
    assert_correct(batched_gemm_a16w16(*given), x, w)


def test_expanded_operands(one_arch: None) -> None:
    """One row for all, one batch for all."""
    x, w = operands(3, 4, 24, 64)
    row, batch = x[:, :1].expand(-1, 4, -1), w[:1].expand(3, -1, -1)
    assert_correct(batched_gemm_a16w16(row, batch), row, batch)
    assert_correct(batched_gemm_a16w16(x, batch), x, batch)


def test_rows_and_columns_beyond_the_end_are_not_written(arch: str) -> None:
    """Out in the middle of a larger tensor, whose rows are no multiple of 8 bytes."""
    x, w = operands(2, 3, 41, 104)
    memory = torch.full((2, 7, 61), math.nan, dtype=BF16)
    out = memory[:, 2:5, 10:51]
    for config in (None, CONFIGS["4 slices"][1], CONFIGS["waves along N"][1]):
        memory.fill_(math.nan)
        assert_correct(batched_gemm_a16w16(x, w, out=out, config=config), x, w)
        assert memory.isnan().sum() == memory.numel() - out.numel()


def test_nothing_comes_from_beyond_an_operand(arch: str) -> None:
    """NaN behind each row of x and w, and behind the last row."""
    for columns in (False, True):
        x, w = operands(1, 5, 40, 104, columns=columns)
        wide_x, wide_w = (torch.full((1, 9, 160), math.nan, dtype=BF16) for _ in range(2))
        wide_w = torch.full((1, 160, 160), math.nan, dtype=BF16)
        wide_x[:, :5, :104] = x
        lies = wide_w.mT if columns else wide_w
        lies[:, :40, :104] = w
        assert_correct(batched_gemm_a16w16(wide_x[:, :5, :104], lies[:, :40, :104]), x, w)


@pytest.mark.parametrize("sizes", [(0, 3, 8, 8), (2, 0, 8, 8), (2, 3, 0, 8), (2, 3, 8, 0)])
def test_empty(sizes: tuple[int, int, int, int], one_arch: None) -> None:
    x, w = operands(*sizes)
    actual = batched_gemm_a16w16(x, w)
    assert actual.shape == sizes[:3] and not actual.any()


def test_a_sequence_of_calls(one_arch: None) -> None:
    """Sizes and strides in turns: plans do not keep what another call had; splits leave their
    counters zero."""
    for sizes in ((1, 3, 64, 2048), (1, 20, 64, 2048), (1, 3, 64, 2048), (2, 3, 48, 104)) * 2:
        for columns in (False, True):
            check(sizes, columns=columns)


def test_torch_backend_and_reference(one_arch: None) -> None:
    x, w = operands(2, 3, 41, 104)
    out = poisoned(2, 3, 41, F32)
    c, _ = BATCHED.check((x, w, F32, out, None))
    BATCHED.prepare("torch", c)(out, x, w)
    assert_correct(out, x, w)
    assert_correct(batched_gemm_a16w16_ref(x, w, F32), x, w)
    assert_correct(gemm_a16w16_ref(x[0], w[0], F32), x[0], w[0])


def test_same_bits_in_every_run(arch: str) -> None:
    x, w = operands(1, 20, 40, 2048)
    for config in (CONFIGS["split"][1], CONFIGS["waves along K"][1]):
        first = batched_gemm_a16w16(x, w, F32, config=config)
        assert torch.equal(first, batched_gemm_a16w16(x, w, F32, config=config))


@pytest.mark.parametrize("case", ["split", "16 slices", "four lines", "columns by 4"])
def test_nothing_to_find(case: str, arch: str) -> None:
    sizes, config, options = CONFIGS[case]
    with rfops.vgpu.check() as checked:
        check(sizes, config, **options)
    assert not checked.findings


@pytest.mark.parametrize(("sizes", "columns"), [MODELS[0], MODELS[1], MODELS[5]])
def test_no_spills_and_no_conflicts(
    sizes: tuple[int, int, int, int], columns: bool, arch: str
) -> None:
    """Each byte of w is read once: x is the rest."""
    x, w = operands(*sizes, columns=columns)
    with rfops.vgpu.profile() as profiled:
        batched_gemm_a16w16(x, w)
    (launch,) = profiled.launches
    figures = launch.as_dict()
    assert figures["vgpr_spills"] == figures["scratch_bytes_per_lane"] == 0
    x_lines = math.prod(launch.grid) * x.nbytes // x.shape[0] // 64
    assert launch.global_read["lines_64B"] <= w.nbytes // 64 + x_lines + 64 * math.prod(launch.grid)


# ---------------------------------------------------------------- refusals


def valid(**changes: object) -> dict[str, Any]:
    """B=2, M=3, N=40, K=104."""
    x, w = operands(2, 3, 40, 104)
    return {"x": x, "w": w, **changes}


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


REFUSALS: dict[str, tuple[dict[str, object], str]] = {
    "x is a list": ({"x": [1.0]}, r"x must be a \[B, M, K\] tensor, got list"),
    "x of 2 dimensions": ({"x": zeros(3, 104)}, r"x must be a \[B, M, K\] tensor, got \[3, 104\]"),
    "x of fp32": ({"x": zeros(2, 3, 104, dtype=F32)}, "x must be bfloat16 or float16, .*convert"),
    "w of another type": (
        {"w": zeros(2, 40, 104, dtype=F16)},
        r"w must be torch\.bfloat16 as x is, got torch\.float16; convert it first",
    ),
    "K differs": ({"w": zeros(2, 40, 96)}, r"w must be a \[B=2, N, K=104\] tensor"),
    "B differs": ({"w": zeros(3, 40, 104)}, r"w must be a \[B=2, N, K=104\] tensor"),
    "dtype is int8": ({"dtype": torch.int8}, "dtype must be bfloat16, float16 or float32"),
    "out of another shape": ({"out": zeros(2, 3, 41)}, r"out must be a \[B=2, M=3, N=40\] tensor"),
    "out of another dtype": (
        {"out": zeros(2, 3, 40, dtype=F32)},
        "out must be bfloat16, .*float32",
    ),
    "out expanded": (
        {"out": zeros(1, 3, 40).expand(2, -1, -1)},
        "out must be a tensor with each element in a place of its own, .*not expanded",
    ),
    "w elsewhere": ({"w": zeros(2, 40, 104).to("meta")}, "w must be on cpu as x is"),
    "config of no kind": ({"config": 3}, "config must be one of StreamConfig, TilesConfig"),
    "slices of columns": (
        {"w": zeros(2, 104, 40).mT, "config": StreamConfig(1, 1, 2, slices=4)},
        "config must be .*w is column-major, which slices, lines and n_tiles=1 do not take",
    ),
    "loads of columns": (
        {"w": zeros(2, 104, 40).mT, "config": StreamConfig(1, 2, 2, steps=8)},
        "config must be .*steps=8 of a column-major w are more than 63 loads",
    ),
    "K that stream does not take": (
        {"x": zeros(2, 3, 100), "w": zeros(2, 40, 100), "config": StreamConfig(1, 1, 2)},
        "config must be .*K=100 is not a multiple of 8",
    ),
    "LDS": (
        {"config": TilesConfig(256, 256, 256, stages=8)},
        "config must be .*bytes of LDS",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str, one_arch: None) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^batched_gemm_a16w16: {message}"):
        batched_gemm_a16w16(**valid(**changes))


def test_out_must_not_overlap_an_input(one_arch: None) -> None:
    memory = zeros(2 * 3 * 104)
    out = memory[: 2 * 3 * 40].view(2, 3, 40)
    with pytest.raises(ValueError, match=r"out must be apart from x, .*pass another out"):
        batched_gemm_a16w16(**valid(x=memory.view(2, 3, 104), out=out))
    rows = zeros(2, 3, 144)  # rows of x and of out in turns
    x, w = operands(2, 3, 40, 104)
    rows[:, :, :104] = x
    assert_correct(batched_gemm_a16w16(rows[:, :, :104], w, out=rows[:, :, 104:]), x, w)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((5, 1, 1), "m_tiles must be 1 to 4, got 5"),
        ((1, 3, 1), "n_tiles must be a power of two from 1 to 8, got 3"),
        ((1, 1, 4, 8), r"waves \* waves_n must be at most 16"),
        ((1, 1, 2, 2, 2, 4), "slices above 1 need waves_n=1 and split=1"),
        ((1, 1, 2, 1, 2, 4, 2), "slices above 1 need waves_n=1 and split=1"),
        ((1, 1, 1, 1, 6, 1, 1, 4), r"lines need slices=1 and steps a multiple of 2 \* lines"),
        ((4, 8, 1, 1, 6), "more than 63 loads in flight"),
        ((4, 8, 8, 1, 4), "VGPRs in each of 8 waves would spill"),
    ],
)
def test_configs_refuse(fields: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamConfig(*fields)


def test_limits_of_the_hip_kernel() -> None:
    """Each is told with its number; Triton or torch takes the call."""
    for changes, message in (
        ({"N": 2**19, "K": 2**12}, "rows of w are beyond signed 32-bit offsets"),
        ({"B": 2**10, "M": 2**10}, "may be more than 65535 tiles"),
    ):
        c = BATCHED.call_of(**{"B": 1, "M": 1, "N": 16, "K": 64, **changes})
        assert message in str(BATCHED.kernels["stream"].unsupported_reason(c))
        assert BATCHED.route(c).backend != "stream"


@pytest.mark.parametrize("arch_name", ARCHS)
def test_every_candidate_is_taken(arch_name: str) -> None:
    for op in (OP, BATCHED):
        for shapes in op.shapes.values():
            for shape in shapes:
                c = op.call_of(arch_name, **shape)
                for name in ("stream", "triton"):
                    kernel = op.kernels[name]
                    configs = list(kernel.candidates(c))
                    assert configs[0] == kernel.default(c) and len(set(configs)) == len(configs) > 5
                    assert all(kernel.unsupported_config_reason(c, f) is None for f in configs)


# ---------------------------------------------------------------- as torch's ops


def test_opcheck(one_arch: None) -> None:
    x, w = operands(2, 3, 40, 104)
    config = "triton block_m=16 block_n=32 block_k=64 warps=4 stages=2"
    torch.library.opcheck(torch.ops.rfops.batched_gemm_a16w16.default, (x, w, F32, config))
    out = zeros(3, 40)
    torch.library.opcheck(torch.ops.rfops.gemm_a16w16_out.default, (x[0], w[0], BF16, "", out))


def test_compile(one_arch: None) -> None:
    x, w = operands(1, 3, 40, 104)

    def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return gemm_a16w16(x, w, F32).softmax(-1)

    compiled = torch.compile(gate, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x[0], w[0]), gate(x[0], w[0]))
