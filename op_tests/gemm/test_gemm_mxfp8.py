"""gemm_mxfp8 against float64, in which products and scales of MX-FP8 are exact.

The tolerance is compare.py's; the longest chain of roundings has 16 in a half block (the products
are exact), one for each step of a wave, 6 across lanes, one for each other wave.
"""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rfops.cli.real_input import INSTALL, first_feed_forward, model_folder
from rfops.dispatch.compare import assert_within, tolerance
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig, mxfp8_gemv
from rfops.gemm.mxfp8 import OP, gemm_mxfp8, gemm_mxfp8_ref
from rfops.jit import Plans, paths
from rfops.jit.build.spec import module_spec
from rfops.quantization.mxfp8 import E8M0, dequant_mxfp8, quant_mxfp8
from support.calls import default_config
from support.mxfp8_problems import (
    ALL_SHAPES,
    Problem,
    assert_correct,
    bytes_of,
    depth,
    fp8,
    one_block,
    random_problem,
    some_rows,
    surround,
    valid,
)

pytestmark = pytest.mark.requires_gfx950
gemv_module = importlib.import_module("rfops.gemm.kernels.mxfp8.gemv")

ALL_M = list(range(1, 17))
SHAPE_M = [1, 4, 2, 3, 6, 5, 7, 16, 9, 64, 11, 8, 10, 12, 32]  # few rows for the largest shapes


def gemv(problem: Problem, config: GemvConfig | None = None, **kwargs: Any) -> torch.Tensor:
    """The op by its GEMV, whatever the route is: by default the variant that it takes itself."""
    config = config or default_config("gemv", len(problem.x), len(problem.w), problem.x.shape[1])
    return gemm_mxfp8(*problem.args, config=config, **kwargs)


# ---------------------------------------------------------------- values


@pytest.mark.thin(3)
@pytest.mark.parametrize("m", ALL_M)
def test_every_m(m: int, gfx950: torch.device) -> None:
    """K beyond a whole number of steps, N beyond a whole number of tiles; the route's kernel, and
    the GEMV."""
    problem = random_problem(m, 37, 2080).to(gfx950)
    actual = gemm_mxfp8(*problem.args)
    assert actual.dtype == torch.bfloat16
    assert_correct(actual, problem)
    config = default_config("gemv", m, 37, 2080)
    assert_correct(gemm_mxfp8(*problem.args, config=config), problem, config)


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("k", "n", "m"), [(*shape, m) for shape, m in zip(ALL_SHAPES, SHAPE_M, strict=True)]
)
def test_model_shapes(k: int, n: int, m: int, gfx950: torch.device) -> None:
    """Each shape once, with an M of its own; the rest of the grid is the sweep."""
    problem = random_problem(m, n, k).to(gfx950)
    assert_correct(gemm_mxfp8(*problem.args), problem)


SWEPT_M = (*ALL_M, 32, 64)


@pytest.mark.sweep
@pytest.mark.parametrize("m", SWEPT_M)
@pytest.mark.parametrize(("k", "n"), ALL_SHAPES)
def test_model_shapes_all_m(k: int, n: int, m: int, gfx950: torch.device) -> None:
    problem, product = some_rows(m, SWEPT_M, n, k)
    assert_correct(gemm_mxfp8(*problem.to(gfx950).args), problem, product=product)


@pytest.mark.parametrize("n", [1, 3, 17, 127])
@pytest.mark.parametrize("k", [32, 96, 1056, 6176])
def test_odd_sizes(k: int, n: int, gfx950: torch.device) -> None:
    problem = random_problem(3, n, k).to(gfx950)
    assert_correct(gemv(problem), problem)


@pytest.mark.thin(5)
@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize(("rows", "steps", "waves"), [(1, 1, 1), (4, 1, 3), (3, 2, 2), (2, 2, 8)])
def test_variants(lanes: int, rows: int, steps: int, waves: int, gfx950: torch.device) -> None:
    """Variants the heuristic does not choose here, among them several rounds along K."""
    config = GemvConfig(lanes, rows, steps, waves)
    problem = random_problem(3, 29, 4128).to(gfx950)
    assert_correct(gemm_mxfp8(*problem.args, config=config), problem, config)


def test_most_rows_with_most_rows_of_x(gfx950: torch.device) -> None:
    """More sums than lanes: a lane keeps several after the reduction."""
    config = GemvConfig(lanes=16, rows=4, steps=1, waves=2)
    problem = random_problem(16, 21, 544).to(gfx950)
    assert_correct(gemm_mxfp8(*problem.args, config=config), problem, config)


def test_scale_dtypes_agree(gfx950: torch.device) -> None:
    problem = random_problem(2, 10, 256).to(gfx950)
    x, w, x_scale, w_scale = problem.args
    typed = Problem(x, w, x_scale.view(E8M0), w_scale.view(E8M0))
    assert torch.equal(gemv(typed), gemv(problem))


def test_deterministic(gfx950: torch.device) -> None:
    problem = random_problem(5, 100, 6144).to(gfx950)
    first = gemv(problem)
    for _ in range(3):
        assert torch.equal(first.view(torch.int16), gemv(problem).view(torch.int16))


def test_reference_agrees_with_float64() -> None:
    problem = random_problem(4, 50, 1024)
    assert_correct(gemm_mxfp8_ref(*problem.args), problem, GemvConfig(64, 1, 32, 1))


# ---------------------------------------------------------------- e8m0 and e4m3 extremes


@pytest.mark.parametrize(
    ("x_byte", "w_byte", "x_code", "w_code", "expected"),
    [
        (0, 254, 0x38, 0x38, 32.0),  # 2^-127 * 2^127
        (0, 254, 0x7E, 0x7E, 32 * 448.0 * 448.0),
        (254, 0, 0x01, 0xFE, -32 * 448.0 * 2.0**-9),
        (254, 127, 0x01, 0x01, 32 * 2.0**109),  # 448 * 2^127 would not fit
        (254, 254, 0x00, 0x7E, 0.0),  # zero, not 0 * inf
        (254, 254, 0x38, 0x38, math.inf),
        (254, 254, 0xB8, 0x38, -math.inf),
        (0, 0, 0x7E, 0x7E, 0.0),
        (0, 121, 0x38, 0x38, 32 * 2.0**-133),  # a bf16 denormal
        (0, 127, 0x01, 0x01, 0.0),  # 32 * 2^-145: below the least bf16
        (255, 127, 0x00, 0x38, math.nan),
        (127, 255, 0x38, 0x00, math.nan),
        (255, 0, 0x00, 0x00, math.nan),
        (127, 127, 0x7F, 0x00, math.nan),
        (127, 127, 0x00, 0xFF, math.nan),
    ],
)
def test_extremes(
    x_byte: int, w_byte: int, x_code: int, w_code: int, expected: float, gfx950: torch.device
) -> None:
    problem = one_block(x_byte, w_byte, x_code, w_code).to(gfx950)
    exact = torch.tensor([[expected]])
    for actual in (gemv(problem).cpu(), gemm_mxfp8_ref(*problem.args).cpu()):
        torch.testing.assert_close(
            actual[:1, :1].float(), exact.bfloat16().float(), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("k", [96, 1088, 2080])
@pytest.mark.parametrize(
    "config", [None, GemvConfig(64, 1, 1, 1), GemvConfig(32, 2, 1, 2), GemvConfig(16, 4, 2, 1)]
)
def test_nan_stays_in_its_row_and_column(
    config: GemvConfig | None, k: int, gfx950: torch.device
) -> None:
    """NaN scales and NaN payloads. No lanes of a round divide K, and the first elements of a row
    follow the last of the row before: a lane that reads beyond K finds them."""
    problem = random_problem(6, 40, k)
    problem.x_scale[2, k // 32 - 1] = 255
    problem.w_scale[17, 0] = 255
    problem.x.view(torch.uint8)[4, :32] = 0x7F
    problem.w.view(torch.uint8)[25, :32] = 0xFF
    actual = gemv(problem.to(gfx950), config).cpu()
    expected = torch.zeros(6, 40, dtype=torch.bool)
    expected[[2, 4], :] = True
    expected[:, [17, 25]] = True
    assert torch.equal(actual.isnan(), expected)
    assert_correct(actual, problem, config)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(("m", "n", "k"), [(1, 5, 96), (3, 37, 2080), (16, 9, 800)])
def test_writes_its_output_and_reads_its_inputs_only(
    m: int, n: int, k: int, gfx950: torch.device
) -> None:
    """NaN around every input, a pattern around out, NaN inside it."""
    problem = random_problem(m, n, k).to(gfx950)
    nan = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=gfx950)
    out, buffer = surround(nan, 0xA5)
    assert gemv(problem.among_nan(), out=out) is out
    assert_correct(out, problem)
    outside = torch.cat([buffer[:4096], buffer[-4096:]])
    assert (outside == 0xA5).all(), "bytes beyond out were written"


@pytest.mark.parametrize(("m", "n"), [(0, 8), (4, 0), (0, 0)])
def test_empty(m: int, n: int, gfx950: torch.device) -> None:
    problem = random_problem(m, n, 64).to(gfx950)
    actual = gemm_mxfp8(*problem.args)
    assert actual.shape == (m, n) and actual.dtype == torch.bfloat16 and actual.device == gfx950


# ---------------------------------------------------------------- refusals


REFUSALS: dict[str, tuple[dict[str, object], str]] = {
    "x is a list": ({"x": [1.0]}, r"x must be a \[M, K\] tensor, got list \[1.0\]"),
    "x is sparse": ({"x": torch.zeros(2, 64).to_sparse()}, r"x must be .*pass a dense"),
    "x of 3 dimensions": ({"x": fp8(1, 2, 64)}, r"x must be a \[M, K\] tensor, got \[1, 2, 64\]"),
    "x is bf16": (
        {"x": torch.zeros(2, 64, dtype=torch.bfloat16)},
        r"x must be float8_e4m3fn, got \[2, 64\] bfloat16 on cpu; quantise it",
    ),
    "w of another fp8": (
        {"w": fp8(4, 64).view(torch.uint8).view(torch.float8_e4m3fnuz)},
        "w must be float8_e4m3fn, .*float8_e4m3fnuz",
    ),
    "K differs": ({"w": fp8(4, 96)}, r"w must be a \[N, K=64\] tensor, got \[4, 96\]"),
    "K not of 32": (
        {"x": fp8(2, 48), "w": fp8(4, 48)},
        "K must be a positive multiple of 32, got K=48; pad",
    ),
    "K is 0": (
        {"x": fp8(2, 0), "w": fp8(4, 0), "x_scale": bytes_of(2, 0), "w_scale": bytes_of(4, 0)},
        "K must be a positive multiple of 32, got K=0",
    ),
    "x_scale of the wrong K": (
        {"x_scale": bytes_of(2, 4)},
        r"x_scale must be a \[M=2, K/32=2\] tensor, got \[2, 4\]",
    ),
    "w_scale of the wrong N": ({"w_scale": bytes_of(5, 2)}, r"w_scale must be a \[N=4, K/32=2\]"),
    "w_scale is fp32": (
        {"w_scale": torch.zeros(4, 2)},
        "w_scale must be uint8 or float8_e8m0fnu, .*pass the e8m0 bytes",
    ),
    "dtype is fp64": (
        {"dtype": torch.float64},
        "dtype must be bfloat16, float16 or float32, got torch.float64; convert",
    ),
    "config is a number": ({"config": 3}, "config must be one of GemvConfig, .*got 3; pass"),
    "config is a list": ({"config": [3]}, r"config must be one of GemvConfig, .*got \[3\]; pass"),
    "config of a kernel for fewer rows": (
        {"x": fp8(17, 64), "x_scale": bytes_of(17, 2), "config": GemvConfig(64, 1, 1, 1)},
        "config must be of a kernel that takes M=17 N=4 K=64 on gfx950, got .*M=17 is not within",
    ),
    "config of a kernel that writes bf16": (
        {"dtype": torch.float32, "config": GemvConfig(64, 1, 1, 1)},
        "config must be of a kernel that takes .*writes bfloat16, not float32",
    ),
    "x on another device": (
        {"w": fp8(4, 64).to("meta")},
        r"w must be on cpu as x is, got \[4, 64\] float8_e4m3fn on meta; move it with",
    ),
    "all on a device without kernels": (
        {name: value.to("meta") for name, value in valid().items()},  # type: ignore[attr-defined]
        "x must be on a GPU .*on meta",
    ),
    "x not contiguous": ({"x": fp8(2, 128)[:, :64]}, r"x must be contiguous.*strides \[128, 1\]"),
    "w transposed": ({"w": fp8(64, 4).T}, r"w must be contiguous.*call .contiguous\(\)"),
    "w_scale transposed": ({"w_scale": bytes_of(2, 4).T}, "w_scale must be contiguous"),
    "w at an odd address": (
        {"w": fp8(4 * 64 + 8).view(-1)[8:].view(4, 64)},
        "w must be 16-byte aligned, got .*8 bytes beyond; call .clone",
    ),
    "out of another shape": (
        {"out": torch.zeros(4, 2, dtype=torch.bfloat16)},
        r"out must be a \[M=2, N=4\] tensor, got \[4, 2\]",
    ),
    "out of another dtype": ({"out": torch.zeros(2, 4)}, "out must be bfloat16, .*float32"),
    "out not contiguous": (
        {"out": torch.zeros(4, 2, dtype=torch.bfloat16).T},
        "out must be contiguous",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^gemm_mxfp8: {message}"):
        gemm_mxfp8(**valid(**changes))  # type: ignore[arg-type]


def test_out_must_not_overlap_an_input() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    w = memory[: 4 * 64].view(torch.float8_e4m3fn).view(4, 64)
    out = memory[240 : 240 + 16].view(torch.bfloat16).view(2, 4)
    with pytest.raises(ValueError, match=r"out must not overlap w, .*pass another out"):
        gemm_mxfp8(**valid(w=w, out=out))  # type: ignore[arg-type]


def test_config_of_a_kernel_for_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    with pytest.raises(ValueError, match=r"config must be .* on gfx942, .*only for gfx950; pass"):
        gemm_mxfp8(**valid(config=GemvConfig(64, 1, 1, 1)))  # type: ignore[arg-type]


def test_a_plan_does_not_hold_for_other_pointers(gfx950: torch.device) -> None:
    args = random_problem(2, 4, 64).to(gfx950).args
    gemm_mxfp8(*args)
    strided = torch.empty(2, 128, dtype=torch.uint8, device=gfx950).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="x must be contiguous"):
        gemm_mxfp8(strided[:, :64], *args[1:])
    offset = torch.empty(4 * 64 + 4, dtype=torch.uint8, device=gfx950).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="w must be 16-byte aligned"):
        gemm_mxfp8(args[0], offset[4:].view(4, 64), *args[2:])


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP, "plans", Plans(3))
    for n in range(6):
        problem = random_problem(0, n, 64)
        for _ in range(2):
            assert gemm_mxfp8(*problem.args).shape == (0, n)
    assert len(OP.plans) == 3


# ---------------------------------------------------------------- the compiled kernel


def largest_variant(m: int) -> GemvConfig:
    """Of those that the tuner tries, the one that needs the most registers."""
    candidates = gemv_module._variants(gemv_module._ALL_VALUES, m)
    return max(candidates, key=lambda c: (c.rows * c.steps, c.lanes == 64, c.waves))


@pytest.mark.thin(3)
@pytest.mark.parametrize("m", ALL_M)
def test_resources(m: int, gfx950: torch.device) -> None:
    """No spills, no scratch, and registers for two waves a SIMD at least."""
    config = largest_variant(m)
    resources = mxfp8_gemv.bind(device=gfx950, defines=config.defines(m)).resources
    assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch"] == 0
    assert resources["waves_per_simd"] >= 2, resources


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
def test_all_loads_are_in_flight_at_once(m: int, tmp_path: Path) -> None:
    """Each load of a round is issued before the first is waited for: payloads and scales of x and
    of w. Read from the assembly that ziglang's clang makes of the source."""
    config = largest_variant(m)
    spec = module_spec("mxfp8_gemv")
    assembly = tmp_path / "k.s"
    defines = [f"-DRFOPS_{name}={value}" for name, value in config.defines(m).items()]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "clang", "-x", "hip", "--cuda-device-only",
         "--offload-arch=gfx950", "-nogpuinc", "-nogpulib", "-std=c++20", "-O3", "-S",
         f"-I{paths.INCLUDE}", f"-I{paths.CSRC}",
         *spec.flags, *defines, str(spec.sources()[0]), "-o", str(assembly)],
        check=True,
    )  # fmt: skip
    lines = [line.split() for line in assembly.read_text().splitlines()]
    loads = [i for i, words in enumerate(lines) if words and words[0].startswith("buffer_load")]
    first = next(
        i
        for i, words in enumerate(lines)
        if i > loads[0] and words and words[0] == "s_waitcnt" and "vmcnt" in " ".join(words)
    )
    wide = [i for i in loads if lines[i][0] == "buffer_load_dwordx4" and i < first]
    assert len(wide) == config.steps * (m + config.rows)
    assert len(loads) == 2 * len(wide) and max(loads) < first


@pytest.mark.parametrize(("k", "n"), [*ALL_SHAPES, (32, 1), (96, 17), (28672, 8192)])
def test_heuristic_covers_the_shape(k: int, n: int) -> None:
    for m in ALL_M:
        config = default_config("gemv", m, n, k)
        assert config in gemv_module._variants(gemv_module._ALL_VALUES, m)
        one_round = config.lanes * 16 * config.steps * config.waves
        assert one_round < 2 * max(k, 1024), f"{config} leaves most lanes idle at K={k}"


# ---------------------------------------------------------------- real input


def test_real_linear(gfx950: torch.device) -> None:
    """MiniLM's first feed-forward linear on a real sentence: exact against the quantised tensors,
    and within the quantisation's own bound of the fp32 layer."""
    if model_folder() is None:
        pytest.skip(f"no real weights ({INSTALL}); random ones: test_model_shapes")
    layer = first_feed_forward()
    (x, x_scale), (w, w_scale) = quant_mxfp8(layer.x), quant_mxfp8(layer.weight)
    problem = Problem(x, w, x_scale, w_scale)
    actual = gemm_mxfp8(*problem.to(gfx950).args).cpu()
    assert_correct(actual, problem)

    def error_bound(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Of quant_mxfp8's default, element by element (its docstring)."""
        step = dequant_mxfp8(torch.full(values.shape, 2.0**-9).to(x.dtype), scale, torch.float64)
        return torch.maximum(values.abs().double() * 2.0**-4, step / 2)

    exact = layer.x.double() @ layer.weight.double().T
    dx, dw = error_bound(layer.x, x_scale), error_bound(layer.weight, w_scale)
    ax, aw = layer.x.double().abs(), layer.weight.double().abs()
    bound = ax @ dw.T + dx @ aw.T + dx @ dw.T
    total = (ax + dx) @ (aw + dw).T
    fp32 = tolerance(exact.abs() + bound, total, depth(*actual.shape, 384, None), torch.bfloat16)
    assert_within(actual, exact, bound + fp32)
    relative = (actual.double() - exact).norm() / exact.norm()
    print(f"{layer.name}: {len(layer.tokens)} tokens, relative error {relative:.4f}")
    assert relative < 5e-2
