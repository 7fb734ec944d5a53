"""The HIP kernels of gemm_a8w8_blockscale against float64, and what they do to get there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch

import rfops
from rfops.gemm.a8w8_blockscale import OP, gemm_a8w8_blockscale
from rfops.gemm.kernels.a8w8.deep import DeepConfig
from rfops.gemm.kernels.a8w8.pingpong import PingPongConfig
from rfops.gemm.kernels.a8w8.staged import StagedConfig
from rfops.gemm.kernels.a8w8.stream import StreamConfig
from rfops.quantization.shuffle import shuffle_weight
from support.a8w8_problems import Problem, assert_correct, call_for, random_problem, run

CPU = torch.device("cpu")  # the virtual GPU, also where there is a real one: its counters, checks


class Variant(NamedTuple):
    arch: str
    kernel: str
    config: Any
    shape: tuple[int, int, int]


# Every kernel with variants and shapes that take every branch: one K-step, an odd number and more,
# whole tiles and ragged ones, parts of K of different lengths.
VARIANTS = [
    Variant("gfx942", "staged", StagedConfig(128, 128), (128, 128, 128)),
    Variant("gfx942", "staged", StagedConfig(128, 128), (130, 201, 384)),
    Variant("gfx942", "staged", StagedConfig(128, 64, 3), (70, 332, 896)),
    Variant("gfx942", "staged", StagedConfig(64, 64, 2), (65, 64, 256)),
    Variant("gfx942", "staged", StagedConfig(64, 128, 4, 1), (1, 130, 640)),
    Variant("gfx950", "staged", StagedConfig(128, 128), (129, 190, 384)),
    Variant("gfx950", "staged", StagedConfig(128, 64, 2), (70, 332, 640)),
    Variant("gfx942", "stream", StreamConfig(1, 1, 4, 2, 1, 4), (16, 16, 1024)),
    Variant("gfx942", "stream", StreamConfig(4, 2, 2, 3, 2, 2, 1), (50, 201, 1152)),
    Variant("gfx942", "stream", StreamConfig(2, 4, 2, 2, 3, 0), (17, 332, 1408)),
    Variant("gfx950", "stream", StreamConfig(1, 1, 4, 3, 1, 4), (3, 33, 640)),
    Variant("gfx950", "stream", StreamConfig(3, 2, 1, 4, 2, x_first=1), (33, 200, 1152)),
    Variant("gfx950", "stream", StreamConfig(1, 1, 1, 1, 1, 0), (1, 17, 128)),
    Variant("gfx950", "stream", StreamConfig(4, 1, 2, 2, 3, x_first=2), (50, 33, 1152)),
    Variant("gfx942", "stream", StreamConfig(2, 2, 2, 3, x_first=3), (19, 200, 1408)),
    Variant("gfx950", "pingpong", PingPongConfig(256, 256), (256, 256, 128)),
    Variant("gfx950", "pingpong", PingPongConfig(256, 256), (130, 401, 384)),
    Variant("gfx950", "pingpong", PingPongConfig(256, 128, 2), (70, 332, 896)),
    Variant("gfx950", "pingpong", PingPongConfig(128, 256, 3, 1), (1, 130, 640)),
    Variant("gfx950", "pingpong", PingPongConfig(256, 256, pow2=1), (257, 190, 640)),
    Variant("gfx942", "deep", DeepConfig(96, 128, 2), (130, 201, 1408)),
    Variant("gfx942", "deep", DeepConfig(96, 128), (96, 128, 1152)),
    Variant("gfx942", "deep", DeepConfig(64, 128, 3, 1), (1, 130, 640)),
    Variant("gfx942", "deep", DeepConfig(64, 128), (65, 64, 128)),
    Variant("gfx942", "deep", DeepConfig(64, 64, 2), (70, 76, 896)),
    Variant("gfx942", "deep", DeepConfig(80, 128, 2), (85, 150, 896)),
    Variant("gfx942", "deep", DeepConfig(48, 128), (97, 128, 384)),
    Variant("gfx942", "deep", DeepConfig(32, 128, 3), (33, 76, 1152)),
    Variant("gfx942", "deep", DeepConfig(48, 64, 2), (97, 130, 1664)),
    Variant("gfx942", "deep", DeepConfig(32, 64), (35, 64, 512)),
    Variant("gfx950", "deep", DeepConfig(96, 64), (67, 140, 896)),
    Variant("gfx950", "deep", DeepConfig(96, 128, 3), (130, 201, 1408)),
    Variant("gfx950", "deep", DeepConfig(80, 128), (85, 150, 640)),
    Variant("gfx950", "deep", DeepConfig(64, 64, 3), (70, 76, 1152)),
    Variant("gfx950", "deep", DeepConfig(48, 64), (97, 128, 384)),
    Variant("gfx950", "deep", DeepConfig(32, 64, 2), (1, 76, 384)),
]


# The quick tests share these and their builds: each kernel, with and without parts of K.
QUICK = [VARIANTS[i] for i in (1, 8, 16, 11, 18, 2, 19, 5, 20, 25, 33)]
CASES = [*QUICK, *(pytest.param(v, marks=pytest.mark.sweep) for v in VARIANTS if v not in QUICK)]


@pytest.fixture(params=CASES, ids=lambda v: f"{v.kernel}-{v.config}".replace(" ", ""))
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Variant:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param.arch)
    return request.param


def problem_of(v: Variant) -> Problem:
    problem = random_problem(*v.shape, v.arch)
    if not is_pow2(v):
        return problem
    x_scale, w_scale = (
        torch.exp2((2 * t).round().clamp(-3, 3)) for t in (problem.x_scale, problem.w_scale)
    )
    return problem.with_(x_scale=x_scale, w_scale=w_scale)


def is_pow2(v: Variant) -> bool:
    return bool(getattr(v.config, "pow2", 0))


# ---------------------------------------------------------------- values


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values(variant: Variant, dtype: torch.dtype) -> None:
    """By the variant of the result's dtype; nothing for the checks to find."""
    problem = problem_of(variant)
    with rfops.vgpu.check() as c:
        got = run(variant.kernel, problem, variant.config, dtype)
    assert_correct(got, problem)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)


@pytest.mark.thin(3)
def test_the_same_bits_again(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where waves go in another order."""
    problem = problem_of(variant)
    first = run(variant.kernel, problem, variant.config)
    for schedule in ("hardware", "random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        again = run(variant.kernel, problem, variant.config)
        assert torch.equal(first.view(torch.int16), again.view(torch.int16))


@pytest.mark.thin(3)
def test_scales_in_any_order(variant: Variant) -> None:
    problem = problem_of(variant)
    turned = problem.with_(
        x_scale=problem.x_scale.T.contiguous().T, w_scale=problem.w_scale.T.contiguous().T
    )
    got = run(variant.kernel, turned, variant.config)
    assert torch.equal(got, run(variant.kernel, problem, variant.config))


@pytest.mark.thin(3)
def test_rows_far_apart(variant: Variant) -> None:
    """Operands that are columns of larger tensors, between NaN."""
    problem = problem_of(variant)

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        rows, k = tensor.shape
        wide = torch.full((rows, k + 48), 0x80, dtype=torch.uint8).view(tensor.dtype)
        wide[:, 16 : 16 + k] = tensor
        return wide[:, 16 : 16 + k]

    moved = problem.with_(x=inside(problem.x), w=inside(problem.w))
    assert moved.x.stride(0) == problem.x.shape[1] + 48 or moved.x.shape[0] == 1
    got = run(variant.kernel, moved, variant.config)
    assert torch.equal(got, run(variant.kernel, problem, variant.config))


BOTH, X, W = ("x", "w"), ("x",), ("w",)
COLUMNS = [
    (arch, "staged", config, shape, names)
    for arch in ("gfx942", "gfx950")
    for config, shape, names in (
        (StagedConfig(128, 128), (128, 128, 128), BOTH),
        (StagedConfig(128, 128, 2), (132, 200, 640), BOTH),
        (StagedConfig(128, 64), (132, 201, 384), X),
        (StagedConfig(64, 128, 3), (70, 200, 384), W),
        (StagedConfig(64, 64, 2), (68, 76, 640), BOTH),
    )
] + [
    ("gfx950", "pingpong", PingPongConfig(256, 256), (132, 400, 384), BOTH),
    ("gfx950", "pingpong", PingPongConfig(256, 256), (257, 260, 128), W),
    ("gfx950", "pingpong", PingPongConfig(256, 128, 2), (68, 332, 640), BOTH),
    ("gfx950", "pingpong", PingPongConfig(128, 256, 3, 1), (4, 130, 640), X),
    ("gfx950", "pingpong", PingPongConfig(256, 256, pow2=1), (260, 188, 640), BOTH),
]


def column_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T.contiguous().T


@pytest.mark.thin(6)
@pytest.mark.parametrize(("arch", "kernel", "config", "shape", "names"), COLUMNS)
def test_column_major(
    arch: str,
    kernel: str,
    config: Any,
    shape: tuple[int, int, int],
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the same bits, turned round inside the kernel; also where columns are far apart."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    problem = problem_of(Variant(arch, kernel, config, shape))

    def far(tensor: torch.Tensor) -> torch.Tensor:
        rows, k = tensor.shape
        wide = torch.full((k, rows + 8), 0x80, dtype=torch.uint8).view(tensor.dtype)
        wide[:, 4 : 4 + rows] = tensor.T
        return wide[:, 4 : 4 + rows].T

    wanted = run(kernel, problem, config)
    for turn in (column_major, far):
        turned = problem.with_(**{name: turn(getattr(problem, name)) for name in names})
        with rfops.vgpu.check() as c, rfops.vgpu.profile() as p:
            got = run(kernel, turned, config)
        assert torch.equal(got, wanted)
        assert not c.findings, "\n".join(str(finding) for finding in c.findings)
        assert p.launches[0].lds_conflict_cycles == p.launches[0].vgpr_spills == 0
        assert p.launches[0].vgpr <= config.registers
        assert torch.equal(gemm_a8w8_blockscale(*turned.args, config=config), wanted)


@pytest.mark.thin(4)
@pytest.mark.parametrize(("arch", "kernel", "config", "shape", "names"), COLUMNS[3::3])
def test_columns_beyond_4_gib(
    arch: str,
    kernel: str,
    config: Any,
    shape: tuple[int, int, int],
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As far apart as the kernel takes them; just beyond that it refuses."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    problem = problem_of(Variant(arch, kernel, config, shape))
    column = (2**31 - 1) // 129 // 4 * 4
    far = problem.with_(**{n: far_apart(getattr(problem, n).T, column).T for n in names})
    assert torch.equal(run(kernel, far, config), run(kernel, problem, config))
    far = problem.with_(**{n: far_apart(getattr(problem, n).T, column + 4).T for n in names})
    reason = OP.kernels[kernel].unsupported_reason(call_for(far, torch.bfloat16))
    assert f"128 columns of {names[0]} are beyond signed 32-bit offsets" in str(reason)


def test_column_major_of_the_challenge_is_hips(monkeypatch: pytest.MonkeyPatch) -> None:
    """All four inputs; and no other M of the same family is taken by mistake."""
    for arch in ("gfx942", "gfx950"):
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
        for m, backend in ((64, "staged"), (68, "staged"), (66, "triton")):
            problem = random_problem(m, 64, 128, arch)
            turned = Problem(*(tensor.T.contiguous().T for tensor in problem.args))
            c = OP.check((*turned.args, torch.bfloat16, "raw", None, None))[0]
            assert OP.route(c).backend == backend
            assert_correct(gemm_a8w8_blockscale(*turned.args), problem)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_gaps_come_with_sizes(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns as far apart as there are rows, and with the same strides farther: one family, of
    which a kernel without gaps is not the other's."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    problem = random_problem(68, 64, 256, arch)
    x = column_major(problem.x)
    for m in (68, 64, 4, 68):
        own = problem.with_(x=x[:m], x_scale=problem.x_scale[:m].contiguous())
        assert own.x.stride() == (1, 68)
        assert_correct(gemm_a8w8_blockscale(*own.args, config=StagedConfig(64, 64)), own)


@pytest.mark.thin(3)
def test_shuffled_weights(variant: Variant) -> None:
    """To the same bits; w in sixteens of rows."""
    m, n, k = variant.shape
    problem = problem_of(variant._replace(shape=(m, -(-n // 16) * 16, k)))
    shuffled = problem.with_(w=shuffle_weight(problem.w).data)
    with rfops.vgpu.check() as c:
        with rfops.vgpu.profile() as p:
            got = run(variant.kernel, shuffled, variant.config, w_layout="16x16")
    assert p.launches[0].lds_conflict_cycles == 0
    assert torch.equal(got, run(variant.kernel, problem, variant.config))
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    op = gemm_a8w8_blockscale(
        problem.x, shuffle_weight(problem.w), *problem.args[2:], config=variant.config
    )
    assert torch.equal(got, op)


def test_special_scales(variant: Variant) -> None:
    """Zeros, infinities and NaN, each in the rows and columns that it belongs to."""
    problem = problem_of(variant)
    m, n, _ = variant.shape
    problem.x_scale[m // 2, -1] = 0.0
    problem.x_scale[m - 1, 0] = math.nan if is_pow2(variant) else math.inf
    problem.w_scale[-1, 0] = math.nan
    got = run(variant.kernel, problem, variant.config)
    expected = torch.zeros(m, n, dtype=torch.bool)
    expected[:, (n - 1) // 128 * 128 :] = True
    expected[m - 1] |= is_pow2(variant)
    assert torch.equal(got.isnan(), expected)
    assert_correct(got, problem)


def test_writes_its_result_alone(variant: Variant) -> None:
    """A result at an odd address between guards, in the order and alignment of a plain one."""
    problem = problem_of(variant)
    m, n, _ = variant.shape
    memory = torch.full((m * n + 257,), -7.0, dtype=torch.bfloat16)
    out = memory[129 : 129 + m * n].view(m, n).fill_(math.nan)
    run(variant.kernel, problem, variant.config, out=out)
    assert_correct(out, problem)
    assert (memory[:129] == -7).all() and (memory[129 + m * n :] == -7).all()


# ---------------------------------------------------------------- what it does


def test_resources(variant: Variant) -> None:
    problem = problem_of(variant)
    with rfops.vgpu.profile() as p:
        run(variant.kernel, problem, variant.config)
    (launch,) = p.launches
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    assert launch.lds_conflict_cycles == 0
    assert launch.waves_per_simd >= 2 or variant.kernel in ("stream", "deep")
    assert launch.vgpr <= variant.config.registers, "what the heuristic counts on"


def test_the_op_takes_a_config(variant: Variant) -> None:
    problem = problem_of(variant)
    got = gemm_a8w8_blockscale(*problem.args, config=variant.config)
    assert torch.equal(got, run(variant.kernel, problem, variant.config))


# ---------------------------------------------------------------- what is not taken


def test_other_layouts_are_refused(variant: Variant) -> None:
    problem = problem_of(variant)
    kernel = OP.kernels[variant.kernel]

    def reason(p: Problem) -> str | None:
        return kernel.unsupported_reason(call_for(p, torch.bfloat16))

    assert reason(problem) is None
    turned = problem.with_(w=problem.w.T.contiguous().T)
    wanted = "elements of w do not lie side by side along K"
    if variant.kernel not in ("stream", "deep"):
        turned = problem.with_(w=turned.w[: variant.shape[1] // 4 * 4 - 1])
        wanted = "columns of w do not begin and end at multiples of 4 bytes"
    assert wanted in str(reason(turned))
    rows, k = problem.w.shape
    odd = torch.empty(rows, k + 8, dtype=torch.uint8).view(problem.w.dtype)[:, :k]
    assert "rows of w do not begin at multiples of 16 bytes" in str(reason(problem.with_(w=odd)))
    call = call_for(problem, torch.bfloat16)
    other = {"gfx942": "gfx950", "gfx950": "gfx942"}[variant.arch]
    wrong = OP.call_of(other, M=4, N=64, K=256, x_dtype=problem.x.dtype, w_dtype=problem.w.dtype)
    assert str(kernel.unsupported_reason(wrong)).startswith(
        ("the matrix cores of", "no kernel for gfx9")
    )
    assert "beyond signed 32-bit offsets" in str(
        kernel.unsupported_reason(call.with_sizes(K=2**26))
    )


def test_a_split_beyond_k_is_refused(variant: Variant) -> None:
    if variant.config.split == 1:
        assert (
            OP.kernels[variant.kernel].unsupported_config_reason(
                call_for(problem_of(variant), torch.bfloat16), variant.config
            )
            is None
        )
        return
    problem = random_problem(8, 64, 128, variant.arch)
    with pytest.raises(ValueError, match="K=128 has fewer than"):
        run(variant.kernel, problem, variant.config)


def test_few_rows_alone_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = OP.kernels["stream"]
    for arch in ("gfx942", "gfx950"):
        for m, reason in ((64, None), (65, "M=65 is above 64")):
            c = OP.call_of(arch, M=m, N=256, K=1024)
            assert kernel.unsupported_reason(c) == reason
            assert (OP.route(c).backend == "stream") == (reason is None)
        assert OP.order(OP.call_of(arch, M=1, N=5120, K=8192))[0] == "stream"
    c = OP.call_of("gfx942", M=64, N=256, K=1024)
    assert (
        kernel.unsupported_config_reason(c, StreamConfig(3, 1, 1, 1))
        == "M=64 is above 3 tiles of 16"
    )
    large = StreamConfig(4, 2, 1, 8)
    assert "bytes of LDS, a CU has 65536" in str(kernel.unsupported_config_reason(c, large))
    assert (
        kernel.unsupported_config_reason(OP.call_of("gfx950", M=64, N=256, K=1024), large) is None
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StagedConfig(96, 128), "m x n must be one of 128 x 128, 128 x 64, 64 x 64, 64"),
        (
            lambda: DeepConfig(128, 128),
            "m x n must be one of 96 x 128, 80 x 128, 64 x 128, 48 x 128",
        ),
        (lambda: PingPongConfig(128, 128), "m x n must be one of 256 x 256, 256 x 128, 128 x 256"),
        (lambda: StagedConfig(128, 128, 17), "split must be 1 to 16, got 17"),
        (lambda: StagedConfig(128, 128, 1, 0), "group_m must be 1 to 16, got 0"),
        (lambda: PingPongConfig(256, 256, pow2=2), "pow2 must be 0 or 1, got 2"),
        (lambda: StreamConfig(5, 1, 1, 1), "m_tiles must be 1 to 4, got 5"),
        (lambda: StreamConfig(1, 3, 1, 1), "n_tiles must be 1, 2 or 4, got 3"),
        (lambda: StreamConfig(1, 1, 5, 1), "steps must be 1 to 4, got 5"),
        (lambda: StreamConfig(1, 1, 1, 17), "waves must be 1 to 16, got 17"),
        (lambda: StreamConfig(1, 1, 3, 1, 1, 2), "steps must be a multiple of lines, got 3"),
        (lambda: StreamConfig(1, 1, 1, 1, x_first=4), "x_first must be 0, 1, 2 or 3, got 4"),
        (lambda: StreamConfig(4, 4, 4, 1), "more than 63 loads in flight"),
        (lambda: StreamConfig(4, 1, 4, 16), "VGPRs in each of 16 waves would spill"),
    ],
)
def test_configs_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("size", "first"),
    [
        ((1024, 4096, 8192), (64, 128, 1)),  # 256 large tiles would be alone on their CUs
        ((1024, 9216, 4096), (128, 128, 1)),
        ((1024, 7168, 18432), (128, 128, 1)),  # not parts of K to fill the last CUs
        ((4096, 2112, 7168), (128, 128, 1)),
        ((4096, 5120, 25600), (128, 128, 1)),
        ((4096, 10240, 5120), (128, 128, 1)),
    ],
)
def test_many_rows_take_the_tiles_that_were_quickest(
    size: tuple[int, int, int], first: tuple[int, int, int]
) -> None:
    """The staged kernel's first candidate on MI300X is timing mode's quickest (the table has the
    times): large tiles where they fill the GPU in pairs."""
    call = OP.call_of("gfx942", M=size[0], N=size[1], K=size[2])
    config = OP.kernels["staged"].candidates(call)[0]
    assert (config.m, config.n, config.split) == first


@pytest.mark.parametrize("rows", [48, 64, 80, 96, 128])
def test_shared_decisions_have_as_many_tiles(rows: int) -> None:
    """Up to 1,024 rows: 777 chose as 832 do, which have one more tile of 80 rows."""
    for m in range(1, 1025):
        shared = OP.time_model.like(OP.call_of("gfx942", M=m, N=128, K=128)).M
        assert shared >= m and -(-shared // rows) == -(-m // rows), (m, shared)


@pytest.mark.parametrize("kernel", ["stream", "staged", "pingpong"])
def test_builds_ahead_take_gaps_too(kernel: str) -> None:
    """`rfops build` makes what a call with strided operands loads, beside the dense one."""
    variants = OP.kernels[kernel].compiled.variants("gfx950")
    dense = [{**v, "DENSE": 1} for v in variants if not v["DENSE"]]
    assert dense and dense == [v for v in variants if v["DENSE"]]


# ---------------------------------------------------------------- size


@pytest.mark.thin(3)
def test_operands_beyond_4_gib(variant: Variant) -> None:
    """Rows of w, as far apart as the kernel takes them, pass 2 and 4 GiB: offsets that wrap round
    would find other rows, or memory that was never touched. And just beyond that it refuses."""
    kernel = OP.kernels[variant.kernel]
    m, _, k = variant.shape
    row = (2**31 - 1 - k) // kernel.max_rows // 16 * 16
    n = 2**32 // row + kernel.max_rows + 22
    problem = problem_of(variant._replace(shape=(m, n, k)))
    w = far_apart(problem.w, row)
    assert w[-1].data_ptr() - w.data_ptr() > 2**32
    got = run(variant.kernel, problem.with_(w=w), variant.config)
    assert_correct(got, problem)
    too_far = call_for(problem.with_(w=far_apart(problem.w[:2], row + 16)), torch.bfloat16)
    wanted = f"{kernel.max_rows} rows of w are beyond signed 32-bit offsets"
    assert wanted in str(kernel.unsupported_reason(too_far))


def far_apart(tensor: torch.Tensor, row: int) -> torch.Tensor:
    """Its rows, `row` bytes from one to the next; what is between is never touched."""
    rows, k = tensor.shape
    memory = torch.empty((rows - 1) * row + k, dtype=torch.uint8).view(tensor.dtype)
    return memory.as_strided((rows, k), (row, 1)).copy_(tensor)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 512), (16, 7168, 256), (64, 1024, 1536)])
def test_few_rows_read_w_once(
    m: int, n: int, k: int, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the op chooses: bytes from memory are those of the tensors once, and of a split's parts;
    each of w's is asked for once, and matrix instructions are those of the tiles."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    problem = random_problem(m, n, k, arch)
    with rfops.vgpu.profile() as p:
        assert_correct(gemm_a8w8_blockscale(*problem.args), problem)
    (launch,) = p.launches
    kernel, _, config = OP.decide(OP.call_of(arch, M=m, N=n, K=k), None, None)
    assert kernel.name == "stream"
    config = config or kernel.default(OP.call_of(arch, M=m, N=n, K=k))
    least = sum(tensor.nbytes for tensor in problem.args[:3])  # w's scales are scalars' own
    tiles = n // 16 // config.n_tiles
    parts = tiles * config.split * config.words * 4 if config.split > 1 else 0
    assert least <= 128 * launch.global_read["lines_128B"] - parts <= 1.02 * least + 1024
    x_bytes = (m * k + -(-m // 16) * 16 * k // 128 * 4 * 4) * tiles
    x_bytes += 8 * m * k // 128 * 4 * (config.x_first > 0)  # 4 of each line in each XCD
    assert launch.global_read["bytes"] - parts <= n * k + x_bytes
    per_tile = {"gfx942": 4, "gfx950": 1}[arch]
    turns = config.steps * config.waves * config.split
    blocks = -(-k // 128 // turns) * turns
    assert sum(launch.mfma.values()) <= config.m_tiles * n // 16 * blocks * per_tile
    assert launch.lds_conflict_cycles == 0


@pytest.mark.thin(4)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("m", "n"), [(64, 1024), (40, 1040)])
def test_x_is_brought_to_l2(m: int, n: int, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of it once in each XCD, by a dword; the result has the same bits."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    problem, got = random_problem(m, n, 1536, arch), []
    for x_first in range(4):
        config = StreamConfig(-(-m // 16), 1, 1, 4, x_first=x_first)
        with rfops.vgpu.profile() as p:
            out = run("stream", problem, config)
        got.append((out, p.launches[0].global_read["bytes"]))
    for out, read in got[1:]:
        assert torch.equal(got[0][0], out)
        assert read - got[0][1] == 8 * problem.x.nbytes // 128 * 4


def test_configs_as_text(variant: Variant) -> None:
    """What tables and torch's ops hold: the choices of a variant, and all of them."""
    text = OP.config_text(variant.config)
    assert text.startswith(f"{variant.kernel} ") and "TILES" not in text
    assert OP.config_of(text) == variant.config
