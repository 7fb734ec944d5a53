"""The HIP kernels of gemm_a16wfp4 and gemm_afp4wfp4 against float64, and what they do for it."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch

import rfops
from rfops.dispatch.kernel import Call
from rfops.gemm.kernels.mxfp4.deep import DeepConfig
from rfops.gemm.kernels.mxfp4.loop import LoopConfig
from rfops.gemm.kernels.mxfp4.stream import StreamConfig
from rfops.gemm.kernels.mxfp4.tiles import TilesConfig
from support.assembly import assembly, counted, loops, number
from support.mxfp4_problems import OPS, Problem, assert_correct, random_problem, run

pytestmark = pytest.mark.requires_gfx950
BF16 = torch.bfloat16


class Variant(NamedTuple):
    kernel: str
    config: Any
    shape: tuple[int, int, int]


# Every kernel with variants and shapes that take every branch: one turn and more, whole tiles and
# ragged ones, K that ends within a tile of 128 or a step of 256, parts of K of different lengths.
VARIANTS = [
    Variant("stream", StreamConfig(1, 1, 1, 1), (1, 17, 32)),
    Variant("stream", StreamConfig(1, 4, 1, 4, 3), (16, 64, 1536)),
    Variant("stream", StreamConfig(2, 1, 3, 3), (20, 70, 2592)),
    Variant("stream", StreamConfig(4, 2, 2, 4, 2), (50, 200, 4128)),
    Variant("stream", StreamConfig(3, 3, 2, 2), (33, 33, 512)),
    Variant("tiles", TilesConfig(1, 1, 1, 4), (5, 70, 96)),
    Variant("tiles", TilesConfig(4, 2, 2, 4), (64, 128, 512)),
    Variant("tiles", TilesConfig(2, 1, 3, 6, 2), (70, 201, 1056)),
    Variant("tiles", TilesConfig(8, 1, 1, 8, 3), (130, 140, 640)),
    Variant("deep", DeepConfig(96, 128), (70, 130, 800)),
    Variant("deep", DeepConfig(32, 128, 4, 4, 3), (40, 140, 3360)),
    Variant("deep", DeepConfig(192, 128, 8), (200, 260, 288)),
    Variant("deep", DeepConfig(64, 64), (70, 80, 768)),
    Variant("deep", DeepConfig(96, 128, 4, 2, 2), (70, 130, 1280)),
    Variant("deep", DeepConfig(32, 128, 4, 4, 3), (40, 140, 3328)),
    Variant("deep", DeepConfig(256, 128, 8), (260, 130, 512)),
    Variant("deep", DeepConfig(32, 128, 4, 4), (40, 130, 1280)),
    Variant("deep", DeepConfig(32, 128), (300, 270, 256)),
    Variant("deep", DeepConfig(64, 64, 4, 2, 2, starts=4), (70, 330, 2560)),
    Variant("deep", DeepConfig(64, 64, starts=12), (70, 330, 1280)),
    Variant("loop", LoopConfig(256, 256), (300, 270, 768)),
    Variant("loop", LoopConfig(256, 128), (257, 140, 288)),
    Variant("loop", LoopConfig(256, 128, 2), (70, 332, 1120)),
    Variant("loop", LoopConfig(128, 256), (129, 260, 512)),
    Variant("loop", LoopConfig(128, 128, 3, 1), (1, 130, 1024)),
]
NAMES = ["gemm_a16wfp4", "gemm_afp4wfp4"]
PREPARED = ("deep", "loop")  # whose x is quantised before
# The quick tests share these and their builds: each kernel, with and without parts of K.
QUICK = [VARIANTS[i] for i in (1, 7, 2, 9, 12, 24)]
CASES = [*QUICK, *(pytest.param(v, marks=pytest.mark.sweep) for v in VARIANTS if v not in QUICK)]
QUICK_MIXED = [v for v in QUICK if v.kernel not in PREPARED]  # of gemm_a8wfp4
MIXED = [
    *QUICK_MIXED,
    *(
        pytest.param(v, marks=pytest.mark.sweep)
        for v in VARIANTS
        if v not in QUICK and v.kernel not in PREPARED
    ),
]


@pytest.fixture(params=CASES, ids=lambda v: f"{v.kernel}-{v.config}".replace(" ", ""))
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param  # type: ignore[no-any-return]


def problem_of(v: Variant, name: str, sixteens: bool = False, **more: Any) -> Problem:
    m, n, k = v.shape
    problem = random_problem(m, -(-n // 16) * 16 if sixteens else n, k, **more)
    return problem.of(name)


def call_of(problem: Problem) -> Call:
    c, _ = OPS[problem.name].check((*problem.args(BF16), None, None))
    return c


def checked(v: Variant, problem: Problem, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Nothing for the checks to find."""
    with rfops.vgpu.check() as c:
        got = run(v.kernel, problem, v.config, dtype)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    return got


# ---------------------------------------------------------------- values


# What reads x and what stores the result know nothing of each other: not all of one by all of the
# other.
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gemm_a16wfp4", torch.bfloat16),
        ("gemm_afp4wfp4", torch.bfloat16),
        ("gemm_a16wfp4", torch.float16),
        ("gemm_afp4wfp4", torch.float32),
    ],
)
def test_values(variant: Variant, name: str, dtype: torch.dtype) -> None:
    """Raw and shuffled, to the same bits; a bias of each type."""
    is_tight = variant.config == LoopConfig(256, 256) and dtype == torch.float32
    problem = problem_of(variant, name, sixteens=True, bias=None if is_tight else dtype)
    got = checked(variant, problem, dtype)
    assert_correct(got, problem)
    assert torch.equal(checked(variant, problem.shuffled(), dtype), got)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_ragged(variant: Variant, name: str) -> None:
    problem = problem_of(variant, name)
    assert_correct(checked(variant, problem), problem)


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [(torch.bfloat16, "even"), (torch.float16, "up"), (torch.bfloat16, "down")],
)
def test_quantises_as_quant_mxfp4(variant: Variant, dtype: torch.dtype, rounding: str) -> None:
    """To the bits of the other op after it, for blocks of all sizes: each bit pattern of 16 as an
    element; infinities and NaN spoil their rows alone."""
    m, n, k = variant.shape
    bits = torch.randint(2**16, (m, k), generator=torch.Generator().manual_seed(k + m))
    x = bits.to(torch.uint16).view(dtype)
    quiet = torch.arange(m) % 4 < 3  # rows without infinities and NaN
    x[quiet] = torch.where(x[quiet].isfinite(), x[quiet], torch.ones((), dtype=dtype))
    problem = random_problem(m, n, k, rounding=rounding).with_(x=x)
    got = run(variant.kernel, problem, variant.config, torch.float32)
    wanted = run(variant.kernel, problem.quantised(), variant.config, torch.float32)
    assert torch.equal(got.isnan(), wanted.isnan()) and (got.isnan().any(1) >= ~quiet).all()
    assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_again(variant: Variant, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where waves go in another order."""
    problem = problem_of(variant, name)
    first = run(variant.kernel, problem, variant.config)
    for schedule in ("hardware", "random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        again = run(variant.kernel, problem, variant.config)
        assert torch.equal(first.view(torch.int16), again.view(torch.int16))


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_rows_far_apart(variant: Variant, name: str) -> None:
    """Operands that are columns of larger tensors, between NaN."""
    problem = problem_of(variant, name)

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        rows, columns = tensor.shape
        wide = torch.full((rows, columns + 48), 255, dtype=torch.uint8)
        wide = wide if tensor.itemsize == 1 else torch.full((rows, columns + 48), math.nan)
        wide = wide.to(tensor.dtype) if tensor.itemsize == 2 else wide.view(tensor.dtype)
        wide[:, 16 : 16 + columns] = tensor
        return wide[:, 16 : 16 + columns]

    names = [n for n in ("x", "w", "x_scale", "w_scale") if getattr(problem, n) is not None]
    moved = problem.with_(**{n: inside(getattr(problem, n)) for n in names})
    assert torch.equal(checked(variant, moved), run(variant.kernel, problem, variant.config))


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("v", MIXED, ids=lambda v: f"{v.kernel}-{v.config}".replace(" ", ""))
def test_x_of_8_bits(v: Variant, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """gemm_a8wfp4: raw and shuffled, to the same bits in any order of waves; a NaN scale and a NaN
    payload, each in its row; nothing spilled, no bank conflict."""
    problem = problem_of(v, "gemm_a8wfp4", sixteens=True, bias=dtype)
    with rfops.vgpu.profile() as p:
        got = run(v.kernel, problem, v.config, dtype)
    (launch,) = p.launches
    assert launch.vgpr_spills == launch.scratch_bytes_per_lane == launch.lds_conflict_cycles == 0
    assert_correct(got, problem)
    monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", "random:1")
    assert torch.equal(checked(v, problem.shuffled(), dtype), got)
    ragged = problem_of(v, "gemm_a8wfp4")
    m, n, k = ragged.sizes
    ragged.x_scale.view(torch.uint8)[m - 1, -1] = 255
    ragged.x.view(torch.uint8)[m // 2, k - 1] = 0x7F
    rows = torch.tensor([i in (m - 1, m // 2) for i in range(m)])
    assert torch.equal(checked(v, ragged).isnan(), rows[:, None].expand(m, n))


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_special_scales(variant: Variant, name: str) -> None:
    """255 is NaN in the rows and columns that it belongs to; paddings mean nothing."""
    problem = problem_of(variant, name, sixteens=True)
    m, n, _ = problem.sizes
    problem.w_scale[n - 1, -1] = 255
    expected = torch.zeros(m, n, dtype=torch.bool)
    expected[:, n - 1] = True
    if problem.x_scale is not None:
        problem.x_scale.view(torch.uint8)[m - 1, 0] = 255
        expected[m - 1] = True
    for one in (problem, problem.shuffled()):
        assert torch.equal(checked(variant, one).isnan(), expected)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_writes_its_result_alone(variant: Variant, name: str) -> None:
    """A result at an odd address between guards, in the order and alignment of a plain one."""
    problem = problem_of(variant, name)
    m, n, _ = problem.sizes
    memory = torch.full((m * n + 257,), -7.0, dtype=BF16)
    out = memory[129 : 129 + m * n].view(m, n).fill_(math.nan)
    run(variant.kernel, problem, variant.config, out=out)
    assert_correct(out, problem)
    assert (memory[:129] == -7).all() and (memory[129 + m * n :] == -7).all()


def test_loop_takes_tile_after_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer workgroups than tiles: of an odd number of K-steps and of an even one."""
    monkeypatch.setenv("RFOPS_VGPU_CUS", "8")
    for k in (768, 1024):
        problem = random_problem(700, 1100, k).quantised()
        variant = Variant("loop", LoopConfig(256, 256), problem.sizes)
        assert_correct(checked(variant, problem.with_(w=problem.w)), problem)


# ---------------------------------------------------------------- size


# Each kernel with each type of x.
FAR = [
    (kernel, config, (m, k), name)
    for kernel, config, m, k in (
        ("stream", StreamConfig(2, 1, 3, 3), 20, 288),
        ("tiles", TilesConfig(1, 1, 1, 4), 17, 96),
        ("deep", DeepConfig(64, 64), 70, 288),
        ("deep", DeepConfig(64, 64), 70, 512),
        ("loop", LoopConfig(256, 128), 70, 288),
    )
    for name in sorted(OPS)
    if kernel not in PREPARED or name != "gemm_a8wfp4"
]


@pytest.mark.sweep
@pytest.mark.parametrize(("kernel", "config", "size", "name"), FAR)
def test_operands_beyond_4_gib(kernel: str, config: Any, size: tuple[int, int], name: str) -> None:
    """Rows of w and of its scales, as far apart as the kernel takes them, pass 2 and 4 GiB: offsets
    that wrap round would find other rows, or memory that was never touched. And just beyond that
    it refuses."""
    m, k = size
    its = OPS[name].kernels[kernel]
    row = (2**31 - 1) // (its.max_rows + 1) // 16 * 16
    problem = random_problem(m, 2**32 // row + its.max_rows + 22, k).of(name)
    far = problem.with_(w=far_apart(problem.w, row), w_scale=far_apart(problem.w_scale, row))
    assert far.w[-1].data_ptr() - far.w.data_ptr() > 2**32
    assert_correct(run(kernel, far, config), problem)
    too_far = problem.with_(w=far_apart(problem.w, row + 16))
    wanted = f"{its.max_rows} rows of w are beyond signed 32-bit offsets"
    assert wanted in str(its.unsupported_reason(call_of(too_far)))


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(OPS))
def test_x_beyond_2_gib(name: str) -> None:
    """The same of x, of which a workgroup has only some rows; its scales too."""
    kernel, config = ("tiles", TilesConfig(1, 1, 1, 4))
    row = (2**31 - 1) // (OPS[name].kernels[kernel].max_rows + 1) // 16 * 16
    problem = random_problem(2**31 // row + 37, 40, 96).of(name)
    far = problem.with_(x=far_apart(problem.x, row))
    if problem.x_scale is not None:
        far = far.with_(x_scale=far_apart(problem.x_scale, row))
    assert far.x[-1].data_ptr() - far.x.data_ptr() > 2**31
    assert_correct(run(kernel, far, config), problem)


def far_apart(tensor: torch.Tensor, row: int) -> torch.Tensor:
    """Its rows, `row` bytes from one to the next; what is between is never touched."""
    (rows, columns), size = tensor.shape, tensor.itemsize
    memory = torch.empty((rows - 1) * row + columns * size, dtype=torch.uint8).view(tensor.dtype)
    return memory.as_strided((rows, columns), (row // size, 1)).copy_(tensor)


# ---------------------------------------------------------------- what it does


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_resources(variant: Variant, name: str) -> None:
    problem = problem_of(variant, name, sixteens=True, bias=torch.float32).shuffled()
    with rfops.vgpu.profile() as p:
        run(variant.kernel, problem, variant.config)
    assert all(one.lds_conflict_cycles == 0 for one in p.launches)
    main = p.launches[-1]
    if variant.kernel != "loop" or variant.config.split == 1:
        assert main.vgpr_spills == main.scratch_bytes_per_lane == 0
    assert len(p.launches) == (2 if variant.kernel in PREPARED and problem.x_scale is None else 1)


@pytest.mark.parametrize("name", NAMES)
def test_deep_reads_raw_scales(name: str) -> None:
    """K a multiple of 256 and rows of scales at multiples of 8 bytes: no launch shuffles them."""
    prepared, shuffles = (1, 1) if name == "gemm_a16wfp4" else (0, 2)
    problem, tail = (random_problem(70, 80, k).of(name) for k in (512, 288))
    wide = torch.zeros(80, 17, dtype=torch.uint8)
    wide[:, :16] = problem.w_scale
    odd = problem.with_(w_scale=wide[:, :16])
    for one, launches in ((problem, 1), (odd, 2), (tail, 1 + shuffles)):
        with rfops.vgpu.profile() as p:
            got = run("deep", one, DeepConfig(64, 64))
        assert_correct(got, one)
        assert len(p.launches) == prepared + launches
        main = p.launches[-1]
        assert main.vgpr_spills == main.scratch_bytes_per_lane == main.lds_conflict_cycles == 0


@pytest.mark.thin(5)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15])
@pytest.mark.parametrize("config", [DeepConfig(64, 64), DeepConfig(32, 128, 4, 4)])
def test_deep_sums_raw_scales_in_the_same_order(config: DeepConfig, steps: int) -> None:
    """Any number of K-steps, from any of them on: the bits that shuffled scales give. Tiles of 64
    start at six of them, tiles of 128 at three."""
    problem = random_problem(40, 336, 256 * steps).of("gemm_afp4wfp4")
    raw, shuffled = (run("deep", one, config) for one in (problem, problem.shuffled()))
    assert_correct(raw, problem)
    differs = (raw != shuffled).nonzero()
    assert not len(differs), (differs[0], raw[tuple(differs[0])], shuffled[tuple(differs[0])])


@pytest.mark.parametrize("steps", [16, 18, 20, 33])
def test_deep_reads_raw_scales_of_many_steps(steps: int) -> None:
    """From 16 K-steps on, tiles start where a group of scales does; splits begin between groups."""
    problem = random_problem(40, 336, 256 * steps).of("gemm_afp4wfp4")
    for config in (DeepConfig(64, 64), DeepConfig(64, 64, split=3)):
        assert_correct(run("deep", problem, config), problem)


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (config, steps)
        for config in (
            LoopConfig(128, 128),
            LoopConfig(256, 256),
            LoopConfig(256, 128),
            LoopConfig(128, 256),
            LoopConfig(256, 128, 2),
            LoopConfig(128, 128, 2),
        )
        for steps in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16)
        if steps >= config.split
    ],
)
def test_loop_sums_raw_scales_in_the_same_order(
    config: LoopConfig, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of K-steps, tile after tile: the bits that shuffled scales give, raw scales of
    one operand too; nothing spilled, no bank conflict; where LDS has room no launch shuffles
    them."""
    monkeypatch.setenv("RFOPS_VGPU_CUS", "8")
    problem = random_problem(300, 1104, 256 * steps).of("gemm_afp4wfp4")
    with rfops.vgpu.profile() as p:
        raw = run("loop", problem, config)
    assert len(p.launches) == (3 if config == LoopConfig(128, 128, 2) else 1)
    main = p.launches[-1]
    assert main.vgpr_spills == main.scratch_bytes_per_lane == main.lds_conflict_cycles == 0
    assert_correct(raw, problem)
    assert torch.equal(raw, run("loop", problem.shuffled(), config))
    for name in ("x_scale", "w_scale"):
        one = problem.shuffled().with_(**{name: getattr(problem, name)})
        assert torch.equal(raw, run("loop", one, config))


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("dtype", "bias"),
    [
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float32, None),  # without a bias alone
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_loop_has_room_for_raw_scales(dtype: torch.dtype, bias: torch.dtype | None) -> None:
    """256 x 256 with raw scales and each epilogue: registers and LDS are all in use."""
    problem = random_problem(300, 528, 1280, bias=bias).of("gemm_afp4wfp4")
    with rfops.vgpu.profile() as p:
        got = run("loop", problem, LoopConfig(256, 256), dtype)
    (main,) = p.launches
    assert main.vgpr_spills == main.scratch_bytes_per_lane == main.lds_conflict_cycles == 0
    assert_correct(got, problem)


def test_instructions_that_quantise() -> None:
    """VALU of a quantised tile of 16 x 128, of which packed and converting ones never run beside
    the matrix cores: at most 58."""
    c = OPS["gemm_a16wfp4"].call_of(M=16, N=2112, K=128)
    kernel = OPS["gemm_a16wfp4"].kernels["stream"]
    lines = assembly("mxfp4_stream", "gfx950", kernel.defines(c, StreamConfig(1, 1, 1, 1)) or {})
    first = next(i for i, line in enumerate(lines) if line.startswith("v_pk_maximum3"))
    last = next(i for i, line in enumerate(lines) if line.startswith("v_mfma"))
    counts = counted(lines[first - 2 : last])
    assert number(counts, "v_cvt_scalef32_pk_fp4_bf16") == 16
    assert number(counts, "v_") <= 45, counts


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((16, 2112, 2048), StreamConfig(1, 4, 2, 8)),
        ((4, 2880, 512), StreamConfig(1, 1, 1, 4)),
        ((64, 1024, 2048), StreamConfig(4, 2, 1, 16)),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_reads_each_line_once(shape: tuple[int, int, int], config: StreamConfig, name: str) -> None:
    """w and its scales are asked for once, x by each workgroup; lines as few as there are."""
    m, n, k = shape
    problem = problem_of(Variant("stream", config, shape), name).shuffled()
    with rfops.vgpu.profile() as p:
        run("stream", problem, config)
    (launch,) = p.launches
    w_bytes, x_row = n * k // 2, 2 * k if name == "gemm_a16wfp4" else k // 2
    scales = -(-n // 32) * 32 * k // 32 + (name != "gemm_a16wfp4") * -(-m // 32) * 32 * k // 32
    assert 128 * launch.global_read["lines_128B"] <= 1.02 * (w_bytes + m * x_row + scales) + 1024
    tiles = config.tiles(m, n)
    # A dword of shuffled scales serves two tiles of rows and two along K, and is asked for by each.
    most = w_bytes + tiles * m * x_row + 4 * (n + tiles * 64) * k // 32
    assert w_bytes + tiles * m * x_row <= launch.global_read["bytes"] <= 1.05 * most


@pytest.mark.thin(2)
@pytest.mark.parametrize(("m", "n"), [(256, 256), (256, 128), (128, 128)])
def test_the_loop(m: int, n: int) -> None:
    """From barrier to barrier, which is a K-step: what has to be, in slots that the matrix cores
    leave, three instructions each."""
    kernel = OPS["gemm_afp4wfp4"].kernels["loop"]
    layouts = {"w_layout": "16x16", "w_scale_layout": "32x8", "x_scale_layout": "32x8"}
    c = OPS["gemm_afp4wfp4"].call_of(M=4096, N=4096, K=4096, **layouts)
    lines = assembly("mxfp4_loop", "gfx950", kernel.defines(c, LoopConfig(m, n)) or {})
    barriers = [i for i, line in enumerate(lines) if line == "s_barrier"]
    steps = [lines[a:b] for a, b in itertools.pairwise(barriers)]
    tiles = m * n // 4 // 256
    whole = [counted(s) for s in steps if number(counted(s), "v_mfma") == 2 * tiles]
    assert len(whole) >= 2
    counts = min(whole, key=lambda counts: sum(counts.values()))  # no change of tiles in it
    assert counts["ds_read_b128"] == 2 * (m + n) // 32
    assert counts["ds_write_b128"] == counts["buffer_load_dwordx4"] == (m + n) // 32
    assert counts["buffer_load_dword"] == (m + n) // 64
    assert number(counts, r"v_(?!mfma)") <= 8, counts
    assert number(counts, r"v_pk_|v_accvgpr|scratch_|v_cvt|s_nop") == 0, counts
    assert sum(counts.values()) <= 2 * tiles * 4 + 40


@pytest.mark.thin(2)
@pytest.mark.parametrize(("m", "n", "waves"), [(64, 64, 4), (128, 64, 4), (128, 128, 8)])
def test_deep_keeps_loads_on_their_way(m: int, n: int, waves: int) -> None:
    """In the loops of waves that load x and of those that load w, of two steps each: no wait for
    the step that was loaded last, and little but what has to be."""
    kernel, config = OPS["gemm_afp4wfp4"].kernels["deep"], DeepConfig(m, n, waves)
    layouts = {"w_layout": "16x16", "w_scale_layout": "32x8", "x_scale_layout": "32x8"}
    c = OPS["gemm_afp4wfp4"].call_of(M=256, N=4096, K=4096, **layouts)
    found = loops(assembly("mxfp4_deep", "gfx950", kernel.defines(c, config) or {}))
    tiles, steps = m * n // waves // 256, 2
    loads = [counted(one)["buffer_load_dwordx4"] // steps for one in found]
    assert sorted(loads) == sorted([2 * m // 8 // waves, 2 * n // 8 // waves])
    for one, step_loads in zip(found, loads, strict=True):
        counts = counted(one)
        assert number(counts, "v_mfma") == steps * 2 * tiles
        assert counts["ds_write_b128"] == counts["buffer_load_dwordx4"]
        waits = [int(line.split("vmcnt(")[1].split(")")[0]) for line in one if "vmcnt(" in line]
        assert waits and min(waits) >= step_loads, waits
        assert number(counts, r"v_pk_|v_accvgpr|scratch_|v_cvt") == 0, counts
        assert sum(counts.values()) <= steps * (2 * tiles + 3 * step_loads + 60)


@pytest.mark.parametrize("k", [512, 768])
def test_deep_sums_alike_for_any_rows(k: int) -> None:
    """A row of out has the same bits whatever M is: the order of K depends on K and n alone."""
    problem = random_problem(140, 200, k).of("gemm_afp4wfp4")
    few = problem.with_(x=problem.x[:33], x_scale=problem.x_scale[:33])
    config = DeepConfig(64, 64)
    assert torch.equal(run("deep", problem, config)[:33], run("deep", few, config))


# ---------------------------------------------------------------- what is not taken


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", NAMES)
def test_other_layouts_are_refused(variant: Variant, name: str) -> None:
    problem = problem_of(variant, name)
    kernel = OPS[name].kernels[variant.kernel]

    def reason(p: Problem) -> str:
        return str(kernel.unsupported_reason(call_of(p)))

    assert kernel.unsupported_reason(call_of(problem)) is None
    if problem.sizes[2] > 32 and problem.sizes[1] > 1:
        turned = problem.with_(w=problem.w.T.contiguous().T)
        assert "elements of w do not lie side by side along K" in reason(turned)
    rows, columns = problem.w.shape
    odd = torch.empty(rows, columns + 8, dtype=torch.uint8)[:, :columns]
    assert "rows of w do not begin at multiples of 16 bytes" in reason(problem.with_(w=odd))
    c = call_of(problem)
    assert "beyond signed 32-bit offsets" in str(kernel.unsupported_reason(c.with_sizes(K=2**26)))
    wrong = OPS[name].call_of("gfx942", M=4, N=64, K=256)
    assert "no kernel for gfx942" in str(kernel.unsupported_reason(wrong))


@pytest.mark.parametrize(
    ("kind", "values", "match"),
    [
        (StreamConfig, (5, 1, 1, 1), "m_tiles must be 1 to 4, got 5"),
        (StreamConfig, (1, 1, 5, 1), "steps must be 1 to 4, got 5"),
        (StreamConfig, (4, 2, 4, 1), "loads in flight"),
        (StreamConfig, (4, 8, 1, 16), "bytes of LDS"),
        (StreamConfig, (4, 3, 2, 12), "would spill"),
        (TilesConfig, (9, 1, 1, 4), "m_tiles must be 1 to 8, got 9"),
        (TilesConfig, (8, 1, 6, 13), "waves must be 1 to 12, got 13"),
        (TilesConfig, (8, 4, 6, 4), "would spill|bytes of LDS"),
        (DeepConfig, (64, 64, 5), "waves is 4 or 8"),
        (DeepConfig, (64, 64, 4, 3), "ahead 2, or 4"),
        (DeepConfig, (128, 128, 8, 4), "or 4 with 4 waves"),
        (DeepConfig, (48, 64), "m is a multiple of 32 up to 256"),
        (DeepConfig, (64, 288), "n is a multiple of 32 up to 256"),
        (DeepConfig, (32, 32), "too small for 4 waves"),
        (DeepConfig, (256, 256, 8), "would spill"),
        (DeepConfig, (64, 64, 4, 2, 17), "split must be 1 to 16, got 17"),
        (DeepConfig, (64, 64, 4, 2, 1, 5), "starts must be 4, 8, 12 or 16, got 5"),
        (LoopConfig, (64, 256), "m x n must be one of .* got 64 x 256"),
        (TilesConfig, (8, 4, 3, 4), "would spill"),
        (LoopConfig, (256, 256, 2), "no split"),
        (LoopConfig, (128, 128, 9), "split must be 1 to 8, got 9"),
    ],
)
def test_configs_that_are_none(kind: type, values: tuple[int, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        kind(*values)


def test_configs_that_do_not_fit() -> None:
    problem = random_problem(40, 64, 128)
    kernels = OPS["gemm_a16wfp4"].kernels
    c = call_of(problem)
    assert "above 1 tiles" in str(
        kernels["stream"].unsupported_config_reason(c, StreamConfig(1, 1, 1, 1))
    )
    for name, config in (
        ("tiles", TilesConfig(1, 1, 1, 4, 2)),
        ("deep", DeepConfig(64, 64, split=2)),
        ("loop", LoopConfig(128, 128, 2)),
    ):
        assert "fewer than 2" in str(kernels[name].unsupported_config_reason(c, config))
    c = call_of(random_problem(40, 64, 288))
    assert "K=288 is no multiple" in str(
        kernels["loop"].unsupported_config_reason(c, LoopConfig(256, 256))
    )
    wide = random_problem(40, 64, 256, bias=torch.float32)
    c, _ = OPS["gemm_a16wfp4"].check((*wide.args(torch.float32), None, None))
    assert "a bias has no room" in str(
        kernels["loop"].unsupported_config_reason(c, LoopConfig(256, 256))
    )
    c, _ = OPS["gemm_a16wfp4"].check((*wide.args(BF16), None, None))
    assert kernels["loop"].unsupported_config_reason(c, LoopConfig(256, 256)) is None
    assert "M=65 is above 64" in str(kernels["stream"].unsupported_reason(c.with_sizes(M=65)))
