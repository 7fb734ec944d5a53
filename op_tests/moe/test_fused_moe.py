"""fused_moe by every kernel and in both layouts of weights, against fp64."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.dispatch.layout import Shuffled
from rfops.moe import fused_moe_tables
from rfops.moe.fused_moe import OP, fused_moe, fused_moe_ref
from rfops.moe.kernels.bf16.hip import _KERNELS, FusedMoeHipConfig, _experts_defines
from rfops.moe.kernels.bf16.triton import FusedMoeTritonConfig
from support.moe_problems import (
    Problem,
    assert_correct,
    call_for,
    exact_of,
    random_problem,
    run,
)

ARCHS = ("gfx942", "gfx950")
F16, BF16 = torch.float16, torch.bfloat16
SMALL = FusedMoeTritonConfig(16, 32, 32, 8, 4, 2)  # what the virtual GPU runs quickly
KERNELS = [("hip", None), ("triton", SMALL), ("torch", None)]


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.fixture(params=KERNELS, ids=lambda k: k[0])
def kernel(request: pytest.FixtureRequest) -> tuple[str, Any]:
    made: tuple[str, Any] = request.param
    return made


def assert_by(kernel: tuple[str, Any], problem: Problem, is_table: bool = False) -> torch.Tensor:
    got = run(kernel[0], problem, is_table, kernel[1])
    assert_correct(got, problem, rounded_gate=kernel[0] == "torch")
    return got


@pytest.mark.thin(5)
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize(
    ("m", "d", "i", "e", "k", "shared", "dtype"),
    [
        (20, 64, 48, 5, 2, 0, F16),
        (33, 72, 40, 6, 3, 1, BF16),
        (1, 256, 64, 8, 2, 0, F16),
        (40, 96, 96, 4, 4, 2, F16),
    ],
)
def test_values(
    m: int,
    d: int,
    i: int,
    e: int,
    k: int,
    shared: int,
    dtype: torch.dtype,
    is_table: bool,
    arch: str,
    kernel: tuple[str, Any],
) -> None:
    assert_by(kernel, random_problem(m, d, i, e, min(k, e - shared), dtype, shared), is_table)


def test_a_table_of_one_expert(arch: str, kernel: tuple[str, Any]) -> None:
    assert_by(kernel, random_problem(9, 64, 32, 1, 1), is_table=True)


def test_counts(arch: str, kernel: tuple[str, Any]) -> None:
    """No row of an expert, one, all of them; all to one; every expert named twice by a token."""
    problem = random_problem(37, 64, 32, 4, 2)
    for ids in ([[1, 3]], [[2, 2]], [[0, 1]]):
        assert_by(kernel, problem.with_(topk_ids=torch.tensor(ids * 37, dtype=torch.int32)))
    mixed = torch.tensor([[0, 1]] * 36 + [[3, 1]], dtype=torch.int64)
    assert_by(kernel, problem.with_(topk_ids=mixed))


def test_ids_outside_add_nothing(arch: str, kernel: tuple[str, Any]) -> None:
    """Negative, too large, and of shared experts, which only num_shared names; NaN beside them."""
    problem = random_problem(20, 64, 32, 5, 3, num_shared=1)
    ids = problem.topk_ids.clone()
    for at, id in enumerate((-1, 4, 5, 2**31 - 1, -(2**31), 1000)):
        ids[at, at % 3] = id
    ids[7] = -1
    weights = problem.topk_weights.masked_fill((ids < 0) | (ids >= 4), math.nan)
    changed = problem.with_(topk_ids=ids, topk_weights=weights)
    with rfops.vgpu.check() as checked:
        got = run(kernel[0], changed, False, kernel[1])
    expected = exact_of(problem.with_(topk_ids=ids)).out
    if kernel[0] != "torch":
        assert not checked.findings, "\n".join(map(str, checked.findings))
    torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2)


def test_a_row_that_is_no_number_is_its_own_alone(arch: str, kernel: tuple[str, Any]) -> None:
    problem = random_problem(20, 64, 32, 4, 2)
    clean = assert_by(kernel, problem)
    x = problem.x.clone()
    x[5], x[11, 3] = math.nan, math.inf
    got = run(kernel[0], problem.with_(x=x), False, kernel[1])
    others = [t for t in range(20) if t not in (5, 11)]
    assert torch.equal(got[others], clean[others]) and got[5].isnan().all()


def test_strided_rows(arch: str, kernel: tuple[str, Any]) -> None:
    problem = random_problem(20, 64, 32, 4, 2)
    wanted = assert_by(kernel, problem)
    wide = torch.full((25, 160), math.nan, dtype=F16)
    wide[2:22, 40:104] = problem.x
    columns = problem.x.T.contiguous().T
    for x in (wide[2:22, 40:104], columns):
        if x is columns and kernel[0] == "hip":
            with pytest.raises(ValueError, match="x does not lie in rows of 16 bytes"):
                run(kernel[0], problem.with_(x=x), False, kernel[1])
            continue
        assert torch.equal(run(kernel[0], problem.with_(x=x), False, kernel[1]), wanted)


def test_writes_its_result_alone_and_the_same_twice(arch: str, kernel: tuple[str, Any]) -> None:
    problem = random_problem(19, 72, 40, 4, 2)
    memory = torch.full((19 * 72 + 256,), -7.0, dtype=F16)
    out = memory[128 : 128 + 19 * 72].view(19, 72).fill_(math.nan)
    run(kernel[0], problem, False, kernel[1], out)
    assert_correct(out, problem, rounded_gate=kernel[0] == "torch")
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()
    assert torch.equal(run(kernel[0], problem, False, kernel[1]), out)


# ---------------------------------------------------------------- HIP's


@pytest.mark.thin(5)
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("m", [31, 33, 256, 257, 300, 577])
def test_rows_around_a_tile(m: int, is_table: bool, arch: str) -> None:
    """Of an expert that has every token, one that has half, one that has one."""
    problem = random_problem(m, 72, 136, 4, 1, num_shared=1)
    ids = (torch.arange(m) % 2).int()[:, None]
    ids[m // 2] = 2
    problem = problem.with_(topk_ids=ids)
    with rfops.vgpu.check() as checked:
        got = run("hip", problem, is_table)
    assert_correct(got, problem)
    assert not checked.findings, "\n".join(map(str, checked.findings))


@pytest.mark.sweep
@pytest.mark.parametrize("m", [40, 600])
def test_more_tiles_than_workgroups(m: int, arch: str) -> None:
    """Whole rounds and a last one that is shared out by rows, of routed experts and shared ones."""
    problem = random_problem(m, 64, 2048, 18, 4, BF16, num_shared=2)
    with rfops.vgpu.check() as checked:
        got = run("hip", problem)
    assert_correct(got, problem)
    assert not checked.findings, "\n".join(map(str, checked.findings))


def test_the_same_in_any_order(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are filled by atomics, and results do not depend on it."""
    problem = random_problem(300, 64, 40, 5, 2, num_shared=1)
    first = run("hip", problem)
    for schedule in ("random:1", "random:2", "random:3"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        assert torch.equal(run("hip", problem), first)


def heights_of(arch: str) -> tuple[int, ...]:
    return (288,) if arch == "gfx950" else (128, 160, 256)


@pytest.mark.thin(2)
@pytest.mark.parametrize("height", [0, 1, -1])
@pytest.mark.parametrize("is_table", [False, True])
def test_what_hip_does(is_table: bool, height: int, arch: str) -> None:
    """Four launches; no scratch; matrix instructions of 32 rows where there is one at least."""
    problem = random_problem(300, 256, 128, 3, 2, num_shared=1)
    ids = torch.tensor([[0, 1]] * 270 + [[0, 0]] * 30, dtype=torch.int32)
    heights = heights_of(arch)
    rows = heights[height % len(heights)]
    with rfops.vgpu.profile() as p:
        run("hip", problem.with_(topk_ids=ids), is_table, FusedMoeHipConfig(rows))
    name = "moe_experts_pingpong" if arch == "gfx950" else "moe_experts"
    name += "_table" if is_table else ""
    assert [launch.kernel for launch in p.launches] == ["moe_lists", name, name, "moe_add"]
    for launch in p.launches:
        assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
        assert launch.lds_conflict_cycles == 0 or (arch == "gfx942" and is_table)
    all_rows = sum(-(-count // 32) * 32 for count in (300, 270, 300))
    flops = 2 * 32 * 32 * (8 if arch == "gfx942" else 16)
    flops = 2 * 16 * 16 * 32 if "pingpong" in name else flops
    for launch, n, k in ((p.launches[1], 256, 256), (p.launches[2], 256, 128)):
        assert sum(launch.mfma.values()) * flops == 2 * all_rows * n * k


@pytest.mark.sweep
@pytest.mark.parametrize(("experts", "is_table"), [(512, False), (64, True)])
@pytest.mark.parametrize("stage", [1, 2])
def test_no_spills_in_bfloat16(stage: int, experts: int, is_table: bool, arch: str) -> None:
    """Of as many experts as may be."""
    defines = _experts_defines(is_table, BF16, stage, experts, max(heights_of(arch)))
    found = _KERNELS[arch][is_table].bind(torch.device("cpu"), defines, arch).resources
    assert found["vgpr_spills"] == found["sgpr_spills"] == found["scratch"] == 0, (defines, found)


@pytest.mark.thin(11)
@pytest.mark.parametrize("seed", range(36))
def test_fuzz(seed: int, arch: str) -> None:
    """Sizes, ids and weights of any kind: no memory is touched that is not the call's, and what is
    in range is right."""
    r = random.Random(seed)
    e, shared = r.randint(1, 9), r.choice((0, 0, 1, 2))
    m, k, dtype = r.choice((1, 15, 33, 70, 150)), r.randint(1, 5), r.choice((F16, BF16))
    d, i = 8 * r.randint(1, 20), 8 * r.randint(1, 12)
    p = random_problem(m, d, i, e + shared, k, dtype, shared, seed)
    generator = torch.Generator().manual_seed(seed)
    wild = torch.randint(-(2**31), 2**31, (m, k), generator=generator)
    near = torch.randint(-2, e + shared + 2, (m, k), generator=generator)
    kinds = torch.rand(m, k, generator=generator)
    ids = torch.where(kinds < 0.1, wild, torch.where(kinds < 0.3, near, p.topk_ids.long()))
    ids = ids.to(r.choice((torch.int32, torch.int64)))
    is_there = (ids >= 0) & (ids < e)
    changed = p.with_(topk_ids=ids, topk_weights=p.topk_weights.masked_fill(~is_there, math.nan))
    memory = torch.full((m * d + 256,), -7.0, dtype=dtype)
    out = memory[128:-128].view(m, d).fill_(math.nan)
    is_table = r.random() < 0.4
    config = FusedMoeHipConfig(r.choice(heights_of(arch)))
    with rfops.vgpu.check() as checked:
        run("hip", changed, is_table, config, out)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()
    assert_correct(out, p.with_(topk_ids=ids.to(torch.int64)))


@pytest.mark.thin(4)
@pytest.mark.parametrize("is_table", [False, True])
def test_counts_that_a_call_left_behind(is_table: bool, arch: str) -> None:
    """As one that failed between its launches would: no list grows beyond its memory, and the call
    after the next is right."""
    problem = random_problem(40, 64, 32, 4, 2)
    memory = torch.full((40 * 64 + 256,), -7.0, dtype=F16)
    out = memory[128:-128].view(40, 64)
    op = fused_moe_tables.OP if is_table else OP
    c = call_for(problem, is_table)
    config = op.kernels["hip"].default(c)
    kernel = op.kernels["hip"]
    run, launches = kernel.variant(c, config)(*c.sizes.values()), kernel.launches(c, config)
    args = out, problem.x, *problem.weights(is_table), *problem.choice, None
    tensors = launches.tensors(*args)
    memory_of = dict(zip(launches.names, tensors, strict=True))
    lists, slots, counted = (memory_of[name] for name in ("lists", "slots", "counts"))
    counted[:4] = torch.tensor([39, 2**30, 0, 7], dtype=counted.dtype)
    launches.launches[0](*tensors)
    assert (slots < 40).all()
    for left in ([30, 30, 30, 30], [39, 2**30, 0, 7], [40, 2**32 - 1, 40, 40]):
        lists.fill_(2**31 - 1)  # lists that nobody wrote
        counted[:4] = torch.tensor(left).to(counted.dtype)
        with rfops.vgpu.check() as checked:  # each count fits, their sum does not
            run(*args)
        assert not checked.findings, "\n".join(map(str, checked.findings))
        assert not counted.any()
    run(*args)
    assert_correct(out, problem)
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()


# ---------------------------------------------------------------- the op


def test_both_layouts_give_the_same_of_any_size(arch: str) -> None:
    """Bit by bit: K no multiple of a step, N no multiple of a tile or of its half."""
    problem = random_problem(70, 136, 264, 3, 1, num_shared=1)
    with rfops.vgpu.check() as checked:
        by_table = run("hip", problem, True)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert torch.equal(run("hip", problem, False), by_table)
    assert_correct(by_table, problem)


def test_both_layouts_give_the_same(arch: str) -> None:
    problem = random_problem(9, 64, 32, 5, 2, num_shared=1)
    gate, up, down = problem.tables
    first = fused_moe(problem.x, problem.w1, problem.w2, *problem.choice, num_shared=1)
    again = fused_moe(problem.x, (gate, up), down, *problem.choice, num_shared=1)
    assert torch.equal(first, again)
    assert_correct(first, problem)
    out = torch.full_like(first, math.nan)
    made = fused_moe(problem.x, problem.w1, problem.w2, *problem.choice, num_shared=1, out=out)
    assert made is out and torch.equal(out, first)
    config = fused_moe(
        problem.x, problem.w1, problem.w2, *problem.choice, num_shared=1, config=SMALL
    )
    assert_correct(config, problem)


@pytest.mark.thin(2)
def test_shuffled_weights_give_the_same(arch: str) -> None:
    """Through LDS by registers and straight, and by torch; K no multiple of a step, N of a tile."""
    problem = random_problem(37, 80, 48, 5, 2, num_shared=1)
    shuffled = [rfops.shuffle_weight(w) for w in (problem.w1, problem.w2)]
    first = fused_moe(problem.x, problem.w1, problem.w2, *problem.choice, num_shared=1)
    with rfops.vgpu.check() as checked:
        again = fused_moe(problem.x, *shuffled, *problem.choice, num_shared=1)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert torch.equal(first, again)
    by_torch = torch.empty_like(first)
    call = call_for(problem)
    call.w_layout = "16x16"
    data = [w.data for w in shuffled]
    OP.prepare("torch", call)(by_torch, problem.x, *data, *problem.choice, None)
    assert_correct(by_torch, problem, rounded_gate=True)


def test_refusals_of_shuffled_weights() -> None:
    problem = random_problem(4, 72, 32, 3, 2)
    w1 = rfops.shuffle_weight(problem.w1)
    with pytest.raises(ValueError, match="w2 must be 16x16 as w1 is, got raw; shuffle both"):
        fused_moe(problem.x, w1, problem.w2, *problem.choice)
    w2 = Shuffled(problem.w2, "16x16")
    with pytest.raises(
        ValueError, match=r"D and I must be multiples of 16 where .* got D=72, I=32"
    ):
        fused_moe(problem.x, w1, w2, *problem.choice)


def test_references_agree_with_the_exact_result() -> None:
    problem = random_problem(9, 64, 32, 5, 2, num_shared=1)
    exact = exact_of(problem).out
    wide = problem.x.double(), problem.w1, problem.w2, *problem.choice, 1
    torch.testing.assert_close(fused_moe_ref(*wide), exact, rtol=1e-12, atol=1e-12)
    made = fused_moe_tables.fused_moe_tables_ref(problem.x, *problem.tables, *problem.choice, 1)
    torch.testing.assert_close(made.double(), exact, rtol=1e-4, atol=1e-5)


def test_empty() -> None:
    problem = random_problem(4, 64, 32, 5, 2)
    none = problem.x[:0], problem.w1, problem.w2, problem.topk_weights[:0], problem.topk_ids[:0]
    assert fused_moe(*none).shape == (0, 64)


@pytest.mark.requires_gfx950
def test_opcheck() -> None:
    problem = random_problem(4, 64, 32, 3, 2)
    more = (None, 2, 3, False, False, F16, "raw", "")
    args = (problem.x, problem.w1, problem.w2, *problem.choice, *more)
    torch.library.opcheck(torch.ops.rfops.fused_moe.default, args)


P = random_problem(4, 64, 32, 3, 2)
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "fp32 rows": ({"x": P.x.float()}, "x must be bfloat16 or float16, got .*; convert it"),
    "two dtypes": ({"w1": P.w1.bfloat16()}, "w1 must be torch.float16 as x is, got"),
    "another D": ({"x": P.x[:, :32]}, r"w1 must be a \[E, N, D=32\] tensor"),
    "gate alone": ({"w1": P.w1[:, :32].contiguous()}, "w1 must be of 2 . I = 64 rows an expert"),
    "another E": ({"w2": P.w2[:2].contiguous()}, r"w2 must be a \[E=3, D=64, I\] tensor"),
    "fp16 weights": ({"topk_weights": P.topk_weights.half()}, "topk_weights must be float32"),
    "float ids": ({"topk_ids": P.topk_ids.float()}, "topk_ids must be int32 or int64"),
    "ids of fewer": ({"topk_ids": P.topk_ids[:3].contiguous()}, "topk_ids must be a"),
    "many shared": ({"num_shared": 4}, "num_shared must be an int from 0 to 3, got 4"),
    "strided w1": ({"w1": P.w1.transpose(1, 2)}, "w1 must be a|w1 must be contiguous"),
    "a list of w2": ({"w2": P.tables[2]}, "w1 must be a pair of lists, gates and ups"),
    "out": ({"out": torch.zeros(4, 63, dtype=F16)}, r"out must be a \[M=4, D=64\] tensor"),
    "out over x": ({"out": P.x}, "out must not overlap x"),
    "a format": ({"quant": "mxfp5"}, "quant must be one of .*, got 'mxfp5'"),
    "no format": ({"w1_scale": P.w1}, "quant must be one of .* scales, got None"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    args = {
        "x": P.x,
        "w1": P.w1,
        "w2": P.w2,
        "topk_weights": P.topk_weights,
        "topk_ids": P.topk_ids,
        **changes,
    }
    with pytest.raises(ValueError, match=f"^fused_moe: {message}"):
        fused_moe(**args)


def test_refusals_of_tables() -> None:
    gate, up, down = P.tables
    for changes, message in (
        (((gate, up[:2]), down), "_tables: up must be E=3 tensors, got 2"),
        (
            ((gate, up), P.w2),
            r": w2 must be a list of \[I, D\] tensors where w1 is a pair of lists",
        ),
        (((gate, [*up[:2], up[0].T]), down), r"_tables: up\[2\] must be a \[D=64, I=32\] tensor"),
    ):
        with pytest.raises(ValueError, match=f"^fused_moe{message}"):
            fused_moe(P.x, *changes, *P.choice)


def test_supports() -> None:
    assert fused_moe.supports(arch="gfx942", dtype=F16)  # type: ignore[attr-defined]
    assert not fused_moe.supports(arch="gfx942", dtype=torch.float32)  # type: ignore[attr-defined]
    assert OP.supports(arch="sm_90", dtype=BF16, backend="triton")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FusedMoeHipConfig(320), "rows are 128, 160, 256 or 288"),
        (lambda: FusedMoeTritonConfig(24, 64, 64), "block_m must be a power of two"),
        (lambda: FusedMoeTritonConfig(512, 64, 64), "block_m must be a power of two from"),
        (lambda: FusedMoeTritonConfig(64, 64, 256), "block_k must be a power of two from"),
    ],
)
def test_configs_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_tiles_of_another_kernel_are_refused(arch: str) -> None:
    rows = 128 if arch == "gfx950" else 288
    with pytest.raises(ValueError, match=f"tiles have .* rows here, not {rows}"):
        fused_moe(P.x, P.w1, P.w2, *P.choice, config=FusedMoeHipConfig(rows))


# ---------------------------------------------------------------- the layer


@pytest.mark.thin(3)
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("shape", [(40, 128, 64, 6, 2, 1), (17, 264, 40, 33, 4, 0)])
def test_a_layer(shape: tuple[int, ...], is_table: bool, arch: str) -> None:
    """The router's choice in two launches, and its experts in four, or three where their rows need
    no lists; the same in any order."""
    m, d, i, e, k, shared = shape
    problem = random_problem(m, d, i, e, k, F16, shared)
    generator = torch.Generator().manual_seed(7)
    router = (torch.randn(e - shared, d, generator=generator) / math.sqrt(d)).half()
    gate, up, down = problem.tables
    weights = ((gate, up), down) if is_table else (problem.w1, problem.w2)
    with rfops.vgpu.check() as checked, rfops.vgpu.profile() as p:
        got = rfops.moe_layer(problem.x, router, *weights, k, num_shared=shared)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    names = [launch.kernel for launch in p.launches]
    needs_lists = is_table or d % 64 != 0
    count, third = (6, "moe_lists") if needs_lists else (5, "moe_listed")
    assert len(names) == count and names[:3] == ["a16w16_stream", "moe_topk", third]
    chosen_p, ids = rfops.moe_router(problem.x, router, k)
    chosen = problem.with_(topk_weights=chosen_p, topk_ids=ids)
    assert_correct(got, chosen)
    by_ids = fused_moe(problem.x, *weights, chosen_p, ids, num_shared=shared)
    assert torch.equal(got, by_ids)
    config = rfops.moe_layer(problem.x, router, *weights, k, num_shared=shared, config=SMALL)
    assert_correct(config, chosen)


def test_a_layer_whose_router_makes_the_lists(arch: str) -> None:
    """Many tokens of few experts: one launch chooses and lists."""
    problem = random_problem(520, 64, 32, 4, 2, F16, 0)
    router = (torch.randn(4, 64, generator=torch.Generator().manual_seed(7)) / 8).half()
    with rfops.vgpu.profile() as p:
        got = rfops.moe_layer(problem.x, router, problem.w1, problem.w2, 2)
    assert len(p.launches) == 4 and p.launches[0].kernel == "moe_router"
    chosen_p, ids = rfops.moe_router(problem.x, router, 2)
    assert_correct(got, problem.with_(topk_weights=chosen_p, topk_ids=ids))


@pytest.mark.parametrize("is_table", [False, True])
def test_a_layer_with_a_model_s_router(is_table: bool, arch: str) -> None:
    """DeepSeek-V3's scores, bias, groups and scale: the router's choice, and its experts."""
    m, d, i, e, k, shared = 17, 264, 40, 33, 4, 1
    problem = random_problem(m, d, i, e, k, F16, shared)
    generator = torch.Generator().manual_seed(7)
    router = (torch.randn(e - shared, d, generator=generator) / math.sqrt(d)).half()
    gate, up, down = problem.tables
    weights = ((gate, up), down) if is_table else (problem.w1, problem.w2)
    options: dict[str, Any] = {"num_groups": 8, "topk_groups": 4, "score": "sigmoid", "scale": 2.5}
    options |= {"renormalize": True, "round_scores": False}
    options["bias"] = torch.randn(e - shared, generator=generator) / 8
    got = rfops.moe_layer(problem.x, router, *weights, k, num_shared=shared, **options)
    chosen_p, ids = rfops.moe_router(problem.x, router, k, **options)
    assert torch.equal(chosen_p.sum(1).round(decimals=4), torch.full((m,), 2.5))
    assert_correct(got, problem.with_(topk_weights=chosen_p, topk_ids=ids))
    with pytest.raises(ValueError, match=r"^fused_moe: router_weight must be a \[R=33, D\] tensor"):
        rfops.moe_layer(problem.x, router, *weights, k, **options)


def test_refusals_of_a_layer() -> None:
    router = torch.zeros(3, 64, dtype=F16)
    for args, options, message in (
        ((P.x, router, P.w1, P.w2, 4), {}, "top_k must be at most 3, the experts that are not sh"),
        ((P.x, router, P.w1, P.w2, 2), {"num_shared": 1}, "routed must be R=3|router_weight must"),
        ((P.x, router.float(), P.w1, P.w2, 2), {}, "router_weight must be bfloat16 or float16"),
        ((P.x, None, P.w1, P.w2, 2), {}, "topk_weights and topk_ids must be tensors, both"),
    ):
        with pytest.raises(ValueError, match=f"^fused_moe: {message}"):
            rfops.moe_layer(*args, **options)


@pytest.mark.sweep
def test_a_full_layer_of_64_tokens(arch: str) -> None:
    """At the challenge's sizes, 8 experts and a shared one."""
    problem = random_problem(64, 7168, 2048, 9, 4, F16, 1)
    for is_table in (False, True):
        assert_correct(run("hip", problem, is_table), problem)
