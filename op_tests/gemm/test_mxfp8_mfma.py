"""The matrix-core kernel of gemm_mxfp8 against float64. What it does to get there, and what it
refuses: test_mxfp8_mfma_kernel.py.

Products and scales of MX-FP8 are exact; the longest chain of roundings has 32 in a block of a
matrix instruction, one for each block that a wave adds, one for each other wave and workgroup.
"""

from __future__ import annotations

import math

import pytest
import torch

import rfops
from rfops.dispatch import workspace
from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from rfops.gemm.kernels.mxfp8.mfma import MfmaConfig
from support.calls import default_config
from support.mxfp8_mfma import MODEL_M, VARIANTS, run
from support.mxfp8_problems import (
    ALL_SHAPES,
    MODEL_SHAPES,
    Problem,
    Product,
    exact_product,
    one_block,
    random_problem,
    some_rows,
    surround,
)

pytestmark = pytest.mark.requires_gfx950


def depth(config: MfmaConfig, k: int) -> int:
    tiles = math.ceil(k / 128)
    turns = math.ceil(tiles / (config.split * config.waves * config.steps))
    return 32 + 4 * turns * config.steps + config.waves + config.split


def assert_correct(
    actual: torch.Tensor,
    problem: Problem,
    config: MfmaConfig | None = None,
    product: Product | None = None,
) -> None:
    """Against float64, within the derived tolerance; NaN and infinities at the same places."""
    (m, k), n, dtype = problem.x.shape, problem.w.shape[0], actual.dtype
    config = config or default_config("mfma", m, n, k)
    exact, total = product or exact_product(problem)
    beyond = exact.abs() > torch.finfo(dtype).max * (1 + HALF_ULP[dtype])
    bound = tolerance(exact, total, depth(config, k), dtype)
    assert_within(actual, torch.where(beyond, exact.sign() * math.inf, exact), bound)


# ---------------------------------------------------------------- values


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *[(m, 37, 160) for m in (1, 3, 16, 17, 33, 64, 65, 130)],
        *[(m, 50, 2048) for m in (3, 33, 64, 65, 130)],
    ],
)
def test_rows(m: int, n: int, k: int, gfx950: torch.device) -> None:
    problem = random_problem(m, n, k).to(gfx950)
    assert_correct(run(problem), problem)


@pytest.mark.parametrize(
    ("k", "n"),
    [(32, 1), (32, 17), (96, 3), (96, 127), (128, 1), (128, 17), (160, 3), (6144, 1), (6144, 127)],
)
def test_odd_sizes(k: int, n: int, gfx950: torch.device) -> None:
    problem = random_problem(3, n, k).to(gfx950)
    assert_correct(run(problem), problem)


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", VARIANTS)
def test_variants(case: str, gfx950: torch.device) -> None:
    config, shape = VARIANTS[case]
    problem = random_problem(*shape).to(gfx950)
    assert_correct(run(problem, config), problem, config)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("k", "n", "m"), [(*s, m) for s, m in zip(MODEL_SHAPES["tp4"], (64, 8, 16, 33), strict=True)]
)
def test_model_shapes(k: int, n: int, m: int, gfx950: torch.device) -> None:
    problem = random_problem(m, n, k).to(gfx950)
    assert_correct(run(problem), problem)


SWEPT_M = (*MODEL_M, 3, 17, 48, 65, 130)


@pytest.mark.sweep
@pytest.mark.parametrize("m", SWEPT_M)
@pytest.mark.parametrize(("k", "n"), ALL_SHAPES)
def test_model_shapes_all_m(k: int, n: int, m: int, gfx950: torch.device) -> None:
    problem, product = some_rows(m, SWEPT_M, n, k)
    assert_correct(run(problem.to(gfx950)), problem, product=product)


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("n", [36, 35, 34])
@pytest.mark.parametrize("split", [1, 2])
def test_result_types(split: int, n: int, dtype: torch.dtype, gfx950: torch.device) -> None:
    """Rows that a lane stores at once and rows that it cannot."""
    config = MfmaConfig(1, 1, 2, 2, split)
    problem = random_problem(5, n, 1024).to(gfx950)
    problem.x_scale.sub_(8)  # within float16
    assert_correct(run(problem, config, dtype), problem, config)


def test_out_at_an_odd_address(gfx950: torch.device) -> None:
    problem = random_problem(3, 32, 256).to(gfx950)
    memory = torch.full((97,), math.nan, dtype=torch.bfloat16, device=gfx950)
    assert torch.equal(run(problem, out=memory[1:].view(3, 32)), run(problem))
    assert memory[0].isnan()


@pytest.mark.parametrize("split", [1, 3])
def test_scales_at_odd_addresses(split: int, gfx950: torch.device) -> None:
    """Byte by byte instead of four at a time, to the same bits."""
    config = MfmaConfig(2, 2, 2, 2, split)
    problem = random_problem(18, 50, 1536).to(gfx950)
    memory = torch.full((1 + 50 * 48,), 255, dtype=torch.uint8, device=gfx950)
    w_scale = memory[1:].view(50, 48).copy_(problem.w_scale)
    moved = Problem(problem.x, problem.w, problem.x_scale, w_scale)
    assert torch.equal(run(moved, config), run(problem, config))


@pytest.mark.parametrize("case", ["more waves than tiles", "split", "no row in either"])
def test_deterministic(case: str, gfx950: torch.device) -> None:
    config, shape = VARIANTS[case]
    problem = random_problem(*shape).to(gfx950)
    first = run(problem, config)
    for _ in range(2):
        assert torch.equal(first.view(torch.int16), run(problem, config).view(torch.int16))


# ---------------------------------------------------------------- e8m0 and e4m3 extremes


@pytest.mark.parametrize(
    ("x_byte", "w_byte", "x_code", "w_code", "expected"),
    [
        (0, 254, 0x38, 0x38, 32.0),  # 2^-127 * 2^127
        (0, 254, 0x7E, 0x7E, 32 * 448.0 * 448.0),
        (254, 0, 0x01, 0xFE, -32 * 448.0 * 2.0**-9),
        (254, 127, 0x01, 0x01, 32 * 2.0**109),
        (254, 254, 0x00, 0x7E, 0.0),  # zero, not 0 * inf
        (254, 254, 0xB8, 0x38, -math.inf),
        (0, 0, 0x7E, 0x7E, 0.0),
        (0, 121, 0x38, 0x38, 32 * 2.0**-133),  # a bf16 denormal
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
    """K = 64 ends in a tile: its blocks beyond are zeros with a scale that is not NaN."""
    actual = run(one_block(x_byte, w_byte, x_code, w_code).to(gfx950)).cpu()
    exact = torch.tensor([[expected]]).bfloat16()
    torch.testing.assert_close(actual[:1, :1], exact, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("k", [1088, 1024])
@pytest.mark.parametrize("m", [6, 38])
def test_nan_stays_in_its_row_and_column(m: int, k: int, gfx950: torch.device) -> None:
    """NaN scales and payloads, in blocks of every place within a tile: one scale each."""
    problem = random_problem(m, 40, k)
    for block in range(4):
        problem.x_scale[block, 8 + block] = 255
        problem.w_scale[17 + 5 * block, block] = 255
    problem.x.view(torch.uint8)[4, :32] = 0x7F
    problem.w.view(torch.uint8)[25, -1] = 0xFF
    actual = run(problem.to(gfx950)).cpu()
    expected = torch.zeros(m, 40, dtype=torch.bool)
    expected[:5, :] = True
    expected[:, [17, 22, 27, 32, 25]] = True
    assert torch.equal(actual.isnan(), expected)
    assert_correct(actual, problem)


def test_each_block_has_its_own_scale(gfx950: torch.device) -> None:
    """One block at a time has scales of 1, the others of 2^-40: any mix-up is off by far."""
    problem = random_problem(20, 20, 320)
    for block in range(10):
        problem.x_scale[:] = problem.w_scale[:] = 87
        problem.x_scale[:, block] = problem.w_scale[:, block] = 127
        assert_correct(run(problem.to(gfx950)), problem)


# ---------------------------------------------------------------- memory


@pytest.fixture
def poisoned_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """New, and full of NaN."""
    empty = torch.empty
    monkeypatch.setattr(workspace, "_arenas", {})
    monkeypatch.setattr(torch, "empty", lambda *args, **kw: empty(*args, **kw).fill_(255))


@pytest.mark.parametrize(
    ("m", "n", "k", "config"),
    [
        (1, 5, 96, None),
        (3, 37, 2080, None),
        (70, 9, 800, None),
        (18, 37, 800, MfmaConfig(1, 2, 2, 2, 3)),
        (18, 37, 1152, MfmaConfig(4, 4, 2, 2, 3)),
    ],
)
@pytest.mark.usefixtures("poisoned_workspace")
def test_writes_its_output_and_reads_its_inputs_only(
    m: int, n: int, k: int, config: MfmaConfig | None, gfx950: torch.device
) -> None:
    """NaN around every input, a pattern around out, NaN inside it and in the workspace."""
    problem = random_problem(m, n, k).to(gfx950)
    nan = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=gfx950)
    out, buffer = surround(nan, 0xA5)
    run(problem.among_nan(), config, out=out)
    assert_correct(out, problem, config)
    outside = torch.cat([buffer[:4096], buffer[-4096:]])
    assert (outside == 0xA5).all(), "bytes beyond out were written"


@pytest.mark.parametrize("case", VARIANTS)
def test_nothing_to_find_for_the_checks(case: str) -> None:
    """Races, accesses outside, missing waits, reads of what nobody wrote."""
    config, shape = VARIANTS[case]
    problem = random_problem(*shape)
    with rfops.vgpu.check() as c:
        actual = run(problem, config)
    assert_correct(actual, problem, config)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)


@pytest.mark.sweep
def test_w_beyond_2_gib(gfx950: torch.device) -> None:
    """Every byte of w that is not one of the last rows is zero, and never was touched."""
    k = 8192
    n = 2**31 // k + 21
    w = torch.zeros(n, k, dtype=torch.uint8, device=gfx950).view(torch.float8_e4m3fn)
    w_scale = torch.full((n, k // 32), 127, dtype=torch.uint8, device=gfx950)
    tail = random_problem(2, 20, k).to(gfx950)
    w[-20:], w_scale[-20:] = tail.w, tail.w_scale
    actual = run(Problem(tail.x, w, tail.x_scale, w_scale))
    assert (actual[:, :-20] == 0).all()
    assert_correct(actual[:, -20:].contiguous(), tail, default_config("mfma", 2, n, k))
