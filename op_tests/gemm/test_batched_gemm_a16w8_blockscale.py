"""Values of batched_gemm_a16w8_blockscale against float64, in which its products are exact.

Where there is an NVIDIA GPU the tests run there, at full size; elsewhere on the virtual GPU.
"""

from __future__ import annotations

import importlib
import math
import re
import sys

import pytest
import torch

import rfops.vgpu
from rfops.dispatch.compare import assert_within
from rfops.gemm.a16w8_blockscale import (
    FNUZ,
    OCP,
    OP,
    batched_gemm_a16w8_blockscale,
    batched_gemm_a16w8_blockscale_ref,
)
from rfops.gemm.kernels.a16w8.config import (
    BmmConfig,
    Config,
    RowsConfig,
    Shape,
    StagedConfig,
    TilesConfig,
)
from rfops.jit import log
from rfops.jit.launch import launcher
from rfops.triton import launch
from support.batched_gemm_a16w8_problems import (
    ARCHS,
    BF16,
    F16,
    F32,
    NVIDIA,
    Problem,
    assert_correct,
    device_of,
    random_problem,
    run,
)

kernels = importlib.import_module("rfops.gemm.kernels.a16w8.triton")

PUBLISHED_NK = ((512, 128), (128, 512))  # DeepSeek-R1's absorbed weights


@pytest.fixture(params=ARCHS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Each architecture there is."""
    return device_of(request.param, monkeypatch)


on_nvidia = pytest.mark.skipif(
    not NVIDIA, reason="`staged` is for NVIDIA's matrix unit; here test_staged_builds compiles it"
)


@pytest.fixture(params=["gfx942", "gfx950"])
def virtual(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The virtual GPU, for CPU tensors, also where there is a GPU; its own 8-bit format."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return FNUZ if request.param == "gfx942" else OCP


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """For what does not depend on the architecture."""
    return device_of(ARCHS[-1], monkeypatch)


@pytest.fixture
def formats(device: torch.device) -> tuple[torch.dtype, ...]:
    """8-bit formats of the device."""
    fnuz = device.type == "cpu" and launch.arch_of(device) == "gfx942"
    return (OCP, FNUZ) if fnuz else (OCP,)


# ---------------------------------------------------------------- values

# B, M: each M with each (N, K); few batches on the virtual GPU where M is large.
GRID = [(128, 1), (2, 3), (3, 32), (1, 128), (1, 129)]
FULL_GRID = [(b, m) for b in (1, 16, 128) for m in (0, 1, 3, 32, 128, 129)]


@pytest.mark.thin(7)
@pytest.mark.parametrize(("b", "m"), FULL_GRID if NVIDIA else GRID)
@pytest.mark.parametrize(("n", "k"), PUBLISHED_NK)
def test_published_shapes(b: int, m: int, n: int, k: int, device: torch.device) -> None:
    problem = random_problem(b, m, n, k).to(device)
    assert_correct(run(problem), problem)


@pytest.mark.sweep
@pytest.mark.parametrize(("b", "m"), FULL_GRID)
@pytest.mark.parametrize(("n", "k"), [*PUBLISHED_NK, (257, 391), (1, 1)])
def test_published_shapes_all(b: int, m: int, n: int, k: int, device: torch.device) -> None:
    problem = random_problem(b, m, n, k, seed=1).to(device)
    assert_correct(run(problem), problem)


ODD = [
    (1, 1, 1, 1),
    (3, 2, 17, 5),
    (2, 1, 129, 127),
    (1, 5, 100, 129),
    (2, 17, 31, 300),
    (5, 1, 40, 33),
    (1, 33, 130, 64),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(("b", "m", "n", "k"), ODD)
def test_odd_sizes(b: int, m: int, n: int, k: int, device: torch.device) -> None:
    problem = random_problem(b, m, n, k).to(device)
    assert_correct(run(problem), problem)


@pytest.mark.thin(5)
@pytest.mark.parametrize(("x_dtype", "out_dtype"), [(BF16, F32), (F16, BF16), (F16, F16)])
@pytest.mark.parametrize("m", [1, 20])
def test_dtypes(
    m: int,
    x_dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: torch.device,
    formats: tuple[torch.dtype, ...],
) -> None:
    for w_dtype in formats:
        problem = random_problem(2, m, 40, 200, x_dtype, w_dtype).to(device)
        problem.scale /= 64  # float16 holds the result
        actual = run(problem, dtype=out_dtype)
        assert actual.dtype == out_dtype
        assert_correct(actual, problem)


# K and config of each kernel.
CODES: dict[str, tuple[int, Config]] = {
    "rows": (67, RowsConfig(16, 64)),
    "one block": (67, TilesConfig(16, 32, 128)),
    "tiles": (67, TilesConfig(16, 32, 32)),
    "tiles, x left": (67, TilesConfig(64, 32, 32, x_left=1)),
    "bmm": (67, BmmConfig()),
    "staged": (128, StagedConfig(16, 32, 32, warps_k=2, stages=2)),
    "staged, in turn": (512, StagedConfig(16, 32, 128, warps_n=2, stages=3)),
}


# Without what is refused: bmm of fp16 (test_refusals), staged elsewhere (test_staged_is_nvidias).
EVERY_CODE = [
    (case, x_dtype)
    for case, (_, config) in CODES.items()
    for x_dtype in (BF16, F16)
    if not (isinstance(config, BmmConfig) and x_dtype == F16)
    and (NVIDIA or not isinstance(config, StagedConfig))
]


@pytest.mark.thin(5)
@pytest.mark.parametrize(("case", "x_dtype"), EVERY_CODE)
def test_every_code(
    case: str, x_dtype: torch.dtype, device: torch.device, formats: tuple[torch.dtype, ...]
) -> None:
    """One code a row of w, NaN and subnormals among them, each at another place of K."""
    k, config = CODES[case]
    codes = torch.arange(256)
    w = torch.zeros(1, 256, k, dtype=torch.uint8)
    w[0, codes, 37 * codes % k] = codes.to(torch.uint8)
    for w_dtype in formats:
        ones = torch.ones(1, 3, k, dtype=x_dtype)
        problem = Problem(ones, w.view(w_dtype), torch.ones(1, 2, -(-k // 128))).to(device)
        want = problem.w[0, codes, 37 * codes % k].float().expand(1, 3, 256)
        dtype = BF16 if isinstance(config, BmmConfig) else F32  # all that it takes
        assert_within(run(problem, config, dtype), want, 0)


@pytest.mark.parametrize("x_dtype", [BF16, F16])
def test_results_are_rounded_once(x_dtype: torch.dtype, one_device: torch.device) -> None:
    """A float32 result has sums of float32, by whatever kernel takes it: torch.bmm's are bf16's."""
    problem = random_problem(2, 16, 32, 128, x_dtype).to(one_device)
    call, _ = OP.check((*problem.args, F32, None, None))
    taken = [name for name, kernel in OP.kernels.items() if kernel.unsupported_reason(call) is None]
    assert {"rows", "tiles"} <= set(taken) and "bmm" not in taken
    for name in taken:
        out = torch.full((2, 16, 32), math.nan, device=one_device)
        OP.prepare(name, call)(out, *problem.args)
        assert (out != out.bfloat16().float()).float().mean() > 0.5, f"{name} rounds to bfloat16"
        assert_correct(out, problem)


@pytest.mark.parametrize("m", [1, 20])
def test_nan_and_infinity_stay_in_their_places(m: int, one_device: torch.device) -> None:
    problem = random_problem(2, m, 30, 150)
    problem.w.view(torch.uint8)[0, 7, 140] = 0x80 if problem.w.dtype == FNUZ else 0x7F
    problem.x[1, 0, 3] = math.inf
    problem = problem.to(one_device)
    assert_correct(run(problem), problem)


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)])
def test_empty(shape: tuple[int, int, int, int], one_device: torch.device) -> None:
    problem = random_problem(*shape).to(one_device)
    actual = run(problem)
    assert torch.equal(actual, torch.zeros_like(actual))


# ---------------------------------------------------------------- strides


def strided(tensor: torch.Tensor, order: tuple[int, int, int], gap: int = 0) -> torch.Tensor:
    """The same values with dimensions in memory in that order, `gap` unused elements a row."""
    turned = tensor.permute(order).contiguous()
    room = torch.full((*turned.shape[:2], turned.shape[2] + gap), 3, dtype=torch.uint8)
    room = room.to(tensor.device).to(tensor.dtype)
    room[:, :, : turned.shape[2]] = turned
    back = [order.index(dim) for dim in range(3)]
    return room[:, :, : turned.shape[2]].permute(back)


ORDERS = [(1, 0, 2), (0, 2, 1), (2, 1, 0)]


@pytest.mark.parametrize(("order", "gap"), [*((order, 3) for order in ORDERS), (ORDERS[0], 16)])
@pytest.mark.parametrize("m", [1, 20])
def test_strided_x(m: int, order: tuple[int, int, int], gap: int, one_device: torch.device) -> None:
    """[M, B, K] is what MLA has; K need not be the last in memory."""
    problem = random_problem(3, m, 48, 200).to(one_device)
    problem.x = strided(problem.x, order, gap)
    assert_correct(run(problem), problem)


@pytest.mark.parametrize("config", [None, BmmConfig()])
def test_all_tensors_strided(config: Config | None, one_device: torch.device) -> None:
    problem = random_problem(3, 20, 140, 200).to(one_device)
    problem.w = strided(problem.w.view(torch.uint8), (1, 0, 2), 5).view(problem.w.dtype)
    problem.scale = strided(problem.scale, (2, 0, 1))
    problem.x = strided(problem.x, (1, 0, 2), 1)
    room = torch.full((20, 3, 150), math.nan, dtype=BF16, device=one_device)
    out = room[:, :, 4:144].transpose(0, 1)
    batched_gemm_a16w8_blockscale(*problem.args, out=out, config=config)
    assert_correct(out, problem, config)
    room[:, :, 4:144] = math.nan
    assert room.isnan().all()  # nothing beside out was written


def test_expanded_inputs(one_device: torch.device) -> None:
    problem = random_problem(1, 3, 48, 200).to(one_device)
    problem = Problem(*(tensor.expand(4, -1, -1) for tensor in problem.args))
    assert_correct(run(problem), problem)


def test_batches_beyond_2_gib(one_device: torch.device) -> None:
    """Offsets of a batch are 64-bit: the second lies more than 2^32 bytes behind the first."""
    problem = random_problem(2, 2, 16, 64).to(one_device)
    room = torch.empty((1 << 32) + (1 << 20), dtype=torch.uint8, device=one_device).view(
        problem.w.dtype
    )
    far = room.as_strided(problem.w.shape, (1 << 32, 64, 1))
    far.view(torch.uint8).copy_(problem.w.view(torch.uint8))
    problem.w = far
    for config in (None, TilesConfig(16, 16, 32), BmmConfig()):
        assert_correct(run(problem, config), problem, config)


# ---------------------------------------------------------------- configs

CONFIGS: dict[str, tuple[tuple[int, int, int, int], Config]] = {
    "rows, one of K": ((2, 1, 70, 200), RowsConfig(32, 256)),
    "rows, steps of K": ((2, 3, 70, 700), RowsConfig(16, 256, warps=2)),
    "rows, batches of a program": ((5, 1, 20, 60), RowsConfig(32, 64, batches=4)),
    "rows, 16 of them": ((1, 16, 20, 130), RowsConfig(4, 128)),
    "rows, whole scale blocks": ((1, 2, 256, 256), RowsConfig(128, 128)),
    "one block": ((2, 40, 300, 100), TilesConfig(16, 32, 128)),
    "one block, panels": ((2, 40, 300, 128), TilesConfig(32, 32, 128, panels=4, stages=2)),
    "one block, wide": ((1, 20, 300, 100), TilesConfig(16, 256, 128, panels=2, warps=8)),
    "one block, x left": ((2, 40, 300, 100), TilesConfig(64, 32, 128, x_left=1, panels=2)),
    "tiles, x left": ((2, 70, 140, 300), TilesConfig(64, 64, 128, x_left=1)),
    "tiles, x left, wide": ((1, 128, 300, 256), TilesConfig(64, 256, 64, x_left=1, warps=8)),
    "tiles": ((2, 70, 200, 300), TilesConfig(32, 64, 64, group_n=2)),
    "tiles, wide": ((1, 20, 400, 300), TilesConfig(16, 256, 64, warps=8)),
    "tiles, split": ((2, 20, 70, 700), TilesConfig(16, 32, 64, split_k=3)),
    "tiles, splits without work": ((1, 20, 70, 300), TilesConfig(16, 32, 64, split_k=4)),
    "bmm": ((3, 20, 70, 300), BmmConfig(1)),
}


@pytest.mark.thin(5)
@pytest.mark.parametrize("case", CONFIGS)
def test_configs(case: str, one_device: torch.device) -> None:
    """Variants that these shapes do not take by themselves; twice the same bits."""
    shape, config = CONFIGS[case]
    problem = random_problem(*shape).to(one_device)
    actual = run(problem, config)
    assert_correct(actual, problem, config)
    assert torch.equal(actual, run(problem, config))


# ---------------------------------------------------------------- shapes that change every call


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each time that the guards look at a call; plans are those that know families."""
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    recorded_calls: list[int] = []
    check = OP.check
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    monkeypatch.setattr(OP, "check", lambda args: recorded_calls.append(1) or check(args))
    return recorded_calls


@pytest.mark.parametrize("turned", [False, True])
def test_a_growing_sequence(turned: bool, one_device: torch.device, checks: list[int]) -> None:
    """x as a projection leaves it, or turned as MLA's: right each time, checked once."""
    shapes = [(3, m, 20, 130) for m in (2, 3, 5, 17, 18, 33)]
    shapes += [] if turned else [(2, 4, 129, 130), (1, 3, 7, 300), (4, 2, 256, 16)]
    for shape in shapes:
        problem = random_problem(*shape).to(one_device)
        if turned:
            problem.x = strided(problem.x, (1, 0, 2))
        assert_correct(run(problem), problem)
    assert len(checks) == 1 and len(OP.plans) == len(shapes)


def test_refusals_in_a_growing_sequence(one_device: torch.device, checks: list[int]) -> None:
    """What the guards refuse they still do when another shape has passed them."""
    good = random_problem(2, 3, 20, 130).to(one_device)
    run(good)
    run(random_problem(2, 4, 20, 130).to(one_device))
    assert len(checks) == 1
    x, w, scale = good.args
    memory = torch.zeros(2, 5, 130, dtype=BF16, device=one_device)
    for args, out, message in (
        ((x[:, :2, :129], w, scale), None, "w must be a"),
        ((x[:, :2], w[:, :16], scale[:, :, :1]), None, "w_scale must be a"),
        ((x[:, :2], w, scale.double()), None, "w_scale must be float32"),
        ((memory, w, scale), memory[:, :, :20], "out must be apart from x"),
        ((x[:, :1], w, scale), memory[:1, :1, :20].expand(2, 1, 20), "out must be a tensor with"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=f"{OP.name}: {message}"):
                batched_gemm_a16w8_blockscale(*args, out=out)


# ---------------------------------------------------------------- staged

STAGED: dict[str, tuple[tuple[int, int, int, int], StagedConfig]] = {
    "at once": ((2, 40, 140, 512), StagedConfig(32, 32, 128, warps_k=2, stages=2)),
    "at once, a step": ((3, 20, 70, 128), StagedConfig(8, 16, 32, warps_k=4, stages=1)),
    "at once, few of the stages": ((3, 20, 70, 128), StagedConfig(16, 64, 64, warps_n=4, stages=6)),
    "at once, four steps": ((2, 70, 300, 512), StagedConfig(64, 64, 128, 1, 2, 2)),
    "in turn": ((2, 33, 130, 1024), StagedConfig(32, 128, 128, warps_n=4, stages=3)),
    "in turn, a stage": ((1, 64, 64, 1152), StagedConfig(64, 64, 128, 1, 2, 4, stages=1)),
    "in turn, K over warps": ((1, 9, 50, 768), StagedConfig(16, 32, 64, 2, 1, 2, stages=3)),
}


@pytest.fixture
def no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `staged` leaves to `tiles` fails."""
    for name in ("_prepare_tiles", "_prepare_one_block"):
        monkeypatch.setattr(kernels, name, lambda *_args: pytest.fail)
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())


@on_nvidia
@pytest.mark.parametrize(("x_dtype", "dtype"), [(BF16, BF16), (BF16, F32), (F16, F16)])
@pytest.mark.parametrize("case", STAGED)
@pytest.mark.usefixtures("no_tiles")
def test_staged(case: str, x_dtype: torch.dtype, dtype: torch.dtype) -> None:
    shape, config = STAGED[case]
    problem = random_problem(*shape, x_dtype).to(torch.device("cuda"))
    problem.scale /= 64  # float16 holds the result
    actual = run(problem, config, dtype)
    assert_correct(actual, problem)
    assert torch.equal(actual, run(problem, config, dtype))


@on_nvidia
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.usefixtures("no_tiles")
def test_staged_strides(stages: int) -> None:
    """x as MLA has it, [M, B, K]; gaps between rows; the result with N not side by side."""
    problem = random_problem(3, 20, 140, 512).to(torch.device("cuda"))
    problem.x = strided(problem.x, (1, 0, 2), 16)
    problem.w = strided(problem.w.view(torch.uint8), (1, 0, 2), 32).view(OCP)
    problem.scale = strided(problem.scale, (2, 0, 1))
    out = torch.full((3, 140, 20), math.nan, dtype=BF16, device="cuda").mT
    config = StagedConfig(16, 32, 128, warps_k=2, stages=stages)
    batched_gemm_a16w8_blockscale(*problem.args, out=out, config=config)
    assert_correct(out, problem)


def test_staged_is_nvidias(virtual: torch.dtype) -> None:
    problem = random_problem(1, 20, 70, 128, w_dtype=virtual)
    with pytest.raises(ValueError, match=r"config must be .*for NVIDIA's matrix unit, and this is"):
        run(problem, StagedConfig(16, 32, 128))


def staged_by_tiles(problem: Problem) -> torch.Tensor:
    """What the launches of `staged` write, on any device."""
    shape = Shape(*problem.x.shape[:2], *problem.w.shape[1:])
    out = torch.full(shape[:3], math.nan, dtype=BF16, device=problem.x.device)
    kernels.Staged.prepare(out.device, shape, StagedConfig(16, 32, 128))(out, *problem.args)
    return out


def test_staged_leaves_other_strides_to_tiles(one_device: torch.device) -> None:
    """K that is not side by side, rows and tensors that begin at no multiple of 16 bytes."""
    plain = random_problem(3, 20, 70, 128).to(one_device)
    odd_rows, turned, off = (Problem(*plain.args) for _ in range(3))
    odd_rows.x = strided(plain.x, (0, 1, 2), 3)
    turned.x = strided(plain.x, (0, 2, 1))
    room = torch.zeros(plain.w.numel() + 1, dtype=torch.uint8, device=one_device)
    off.w = room[1:].view(plain.w.shape).view(plain.w.dtype)
    off.w.copy_(plain.w)
    for problem in (odd_rows, turned, off):
        assert not kernels._in_pieces_of_16(problem.x) or not kernels._in_pieces_of_16(problem.w)
        assert_correct(staged_by_tiles(problem), problem)


def test_staged_that_does_not_build_is_tiles(
    one_device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a Triton whose Gluon is another, say."""
    monkeypatch.setitem(sys.modules, "rfops.gemm.kernels.a16w8.staged", None)
    monkeypatch.setattr(log.get(), "propagate", True)
    problem = random_problem(3, 20, 70, 128).to(one_device)
    assert_correct(staged_by_tiles(problem), problem)
    assert "does not build, tiles runs instead" in caplog.text


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", STAGED)
@pytest.mark.parametrize("x_type", ["bf16", "fp16"])
def test_staged_builds(case: str, x_type: str) -> None:
    """For sm_90 by the Triton that is here: 16-byte copies alone, and mma.sync."""
    lacking = "this Triton compiles for no NVIDIA GPU; the same product by `tiles`: test_odd_sizes"
    pytest.importorskip("triton.backends.nvidia", reason=lacking)
    ptx = staged_ptx(*STAGED[case], x_type)
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{x_type.replace('fp', 'f')}" in ptx
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global.*", ptx)
    assert copies and all(", 0x10" in copy or ", 16" in copy for copy in copies), copies
    assert "ld.global.b8" not in ptx and "ld.global.b16" not in ptx


def staged_ptx(shape: tuple[int, int, int, int], config: StagedConfig, x_type: str) -> str:
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel = importlib.import_module("rfops.gemm.kernels.a16w8.staged").staged
    pointers = {"out": x_type, "x": x_type, "w": "fp8e4nv", "scale": "fp32"}
    names = kernel.arg_names
    constants = kernels.staged_constants(Shape(*shape), config)
    values = {"out_n": 1, "s_k": 1} | constants
    kinds = {n: f"*{pointers[n]}" if n in pointers else "i32" for n in names}
    kinds |= dict.fromkeys(values, "constexpr")
    aligned = [n for n in names if n in pointers or n in ("x_b", "x_m", "w_b", "w_n")]
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = GluonASTSource(kernel, kinds, values, attributes)
    target = GPUTarget("cuda", 90, 32)
    options = {"num_warps": config.warps, "enable_fp_fusion": True}
    return str(compile(source, target, options).asm["ptx"])


# ---------------------------------------------------------------- large grids


def test_more_batches_than_a_grid_takes(
    one_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    monkeypatch.setattr(kernels, "MAX_GRID", 2)
    problem = random_problem(7, 1, 20, 40).to(one_device)
    for config in (RowsConfig(16, 64, batches=2), TilesConfig(16, 16, 64), TilesConfig(16, 16, 32)):
        assert_correct(run(problem, config), problem)


def test_more_tiles_of_m_than_a_grid_takes(
    one_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    monkeypatch.setattr(kernels, "MAX_GRID", 2)
    problem = random_problem(1, 40, 20, 40).to(one_device)
    assert_correct(run(problem, TilesConfig(16, 32, 64)), problem)


def test_workspace_is_bounded() -> None:
    shape = Shape(16, 8192, 8192, 8192)
    assert BmmConfig().batches(shape) == 4  # 512 MiB
    assert BmmConfig(1).batches(shape) == 1  # one batch at least


# ---------------------------------------------------------------- the kernels as compiled


@pytest.mark.parametrize(("n", "k"), PUBLISHED_NK)
@pytest.mark.parametrize("m", [1, 16])
def test_weights_are_read_once(m: int, n: int, k: int, virtual: torch.dtype) -> None:
    """In 16-byte pieces, and no line of them twice; x is the same few lines for every program."""
    problem = random_problem(4, m, n, k, w_dtype=virtual)
    run(problem)  # compiled
    with rfops.vgpu.profile() as p:
        actual = run(problem)
    assert_correct(actual, problem)
    (launch,) = p.launches
    assert launch.as_dict()["vgpr_spills"] == launch.as_dict()["scratch_bytes_per_lane"] == 0
    wide = [count for name, count in launch.instructions.items() if name.endswith("_dwordx4")]
    assert sum(wide) * 64 * 16 >= problem.w.numel()
    programs = math.prod(launch.grid)
    x_lines = programs * m * k * 2 // 64
    lines = launch.global_read["lines_64B"]
    assert lines * 64 <= problem.w.numel() + 64 * (x_lines + 8 * programs), (lines, programs)


@pytest.mark.parametrize("m", [1, 20])
def test_nothing_to_find(m: int, virtual: torch.dtype) -> None:
    problem = random_problem(2, m, 100, 300, w_dtype=virtual)
    with rfops.vgpu.check() as c:
        actual = run(problem)
    assert_correct(actual, problem)
    assert not c.findings


@pytest.mark.skipif(
    not NVIDIA,
    reason="torch captures on GPUs alone; the virtual GPU's: test_vgpu_capture.py",
)
@pytest.mark.parametrize("config", [None, TilesConfig(16, 32, 64, split_k=3), BmmConfig()])
def test_graph(config: Config | None) -> None:
    problem = random_problem(4, 20, 256, 512).to(torch.device("cuda"))
    out = run(problem, config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batched_gemm_a16w8_blockscale(*problem.args, out=out, config=config)
    out.fill_(math.nan)
    graph.replay()
    assert_correct(out, problem, config)


def test_reference(one_device: torch.device) -> None:
    problem = random_problem(2, 3, 140, 300).to(one_device)
    assert_correct(batched_gemm_a16w8_blockscale_ref(*problem.args, F32), problem)
