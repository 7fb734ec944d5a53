"""fused_moe's kernel for experts of few rows, of 16-bit and of FP8 weights, against the formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.cli import tune
from rfops.dispatch.problem import call_on
from rfops.moe import fused_moe, fused_moe_fp8
from rfops.moe.kernels.bf16.hip import XCDS
from rfops.moe.kernels.listed import STRIP, WAVES
from rfops.quantization.shuffle import shuffle_weight
from support import moe_fp8_problems, moe_problems
from support.tables import Write

ARCHS = ("gfx942", "gfx950")
F16, BF16 = torch.float16, torch.bfloat16
CPU = torch.device("cpu")
FORMS = ("fp8", "16-bit")


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def problem_of(form: str, arch: str, *sizes: Any) -> Any:
    """Sizes are m, d, i, e, k, dtype and shared experts."""
    if form == "fp8":
        return moe_fp8_problems.random_problem(arch, *sizes)
    return moe_problems.random_problem(*sizes)


def run_of(form: str) -> tuple[Callable[..., torch.Tensor], Callable[..., None]]:
    """The kernel's result, and the check of a result."""
    if form == "fp8":
        run = moe_fp8_problems.run
        return lambda p, layout="raw": run("listed", p, None, None, layout), (
            moe_fp8_problems.assert_correct
        )
    return lambda p, layout="raw": moe_problems.run("listed", p), moe_problems.assert_correct


def profiled(form: str, p: Any) -> tuple[torch.Tensor, list[Any]]:
    with rfops.vgpu.profile() as profile:
        got = run_of(form)[0](p)
    return got, profile.launches


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("m", "d", "i", "e", "k", "shared"),
    [
        (1, 256, 128, 5, 2, 0),  # fewer lines of K than waves have
        (3, 1280, 384, 4, 2, 1),  # lines that waves share unevenly; more choices than experts
        (2, 256, 2048, 4, 2, 0),  # lines of h for loads of four; none is quantised by `down`
        (9, 256, 1536, 4, 2, 1),  # nor is it on gfx942; rows of h by token
        (17, 256, 896, 4, 2, 1),  # as many blocks of h as fit on gfx942, the last in part of a load
        (40, 256, 384, 5, 2, 0),  # passes of two tiles; an odd number of blocks of h
        (17, 384, 256, 9, 2, 0),  # a token beyond a tile
        (70, 640, 128, 3, 3, 1),  # every expert has all: a full pass and a second one
        (300, 256, 128, 40, 2, 0),  # a second token of some threads; tiles of one and of two
    ],
)
def test_values(form: str, m: int, d: int, i: int, e: int, k: int, shared: int, arch: str) -> None:
    """The same bits again, without scratch, spills or bank conflicts."""
    run, assert_correct = run_of(form)
    p = problem_of(form, arch, m, d, i, e, min(k, e - shared), BF16, shared)
    got, launches = profiled(form, p)
    assert_correct(got, p)
    assert torch.equal(run(p), got)
    for launch in launches:
        spilled = launch.vgpr_spills, launch.sgpr_spills, launch.scratch_bytes_per_lane
        assert spilled == (0, 0, 0), f"{launch.kernel}: {spilled}"
        assert launch.lds_conflict_cycles == 0, launch.kernel


@pytest.mark.parametrize("form", FORMS)
def test_ids_and_values_that_are_none(form: str, arch: str) -> None:
    """Ids outside, the same expert twice, NaN in a token and in weights of what nobody chose: each
    stays where it belongs, and no byte beside the call's is touched."""
    p = problem_of(form, arch, 20, 256, 128, 6, 2, BF16, 0)
    ids = p.topk_ids.clone()
    ids[0], ids[1, 0], ids[2, 1] = torch.tensor([7, -1]), -(2**31), 2**31 - 1
    ids[3], ids[4] = torch.tensor([2, 2]), torch.tensor([5, 5])
    weights = p.topk_weights.masked_fill((ids < 0) | (ids >= 6), math.nan)
    x = p.x.clone()
    x[19] = math.nan
    with rfops.vgpu.check() as checked:
        got = run_of(form)[0](p.with_(x=x, topk_ids=ids, topk_weights=weights))
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert got[19].isnan().all() and (got[0] == 0).all()
    clean = p.with_(topk_ids=ids.index_fill(0, torch.tensor([19]), -1))
    run_of(form)[1](got.index_fill(0, torch.tensor([19]), 0), clean)


@pytest.mark.parametrize("form", FORMS)
def test_few_choices_name_an_expert_more_than_once(form: str, arch: str) -> None:
    """With fewer choices than experts the first choice of an expert makes all of its rows."""
    p = problem_of(form, arch, 5, 256, 128, 30, 3, BF16, 2)
    ids = torch.tensor([[4, 9, 27], [9, 4, 9], [28, 1, 4], [27, -1, 9], [0, 0, 0]])
    p = p.with_(topk_ids=ids)
    run, assert_correct = run_of(form)
    assert_correct(run(p), p)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_in_any_order(form: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem_of(form, arch, 70, 256, 128, 5, 2)
    first = run_of(form)[0](p)
    monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", "random:1")
    assert torch.equal(run_of(form)[0](p), first)


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS)
def test_experts_by_xcd(form: str, arch: str) -> None:
    """Where x is more than stays in an L2: slots that are no multiple of XCDs."""
    p = problem_of(form, arch, 300, 7168, 128, 20, 10, BF16, 1)
    run, assert_correct = run_of(form)
    assert_correct(run(p), p)


def test_shuffled_weights_give_the_same(arch: str) -> None:
    p = problem_of("fp8", arch, 5, 512, 256, 4, 2, F16, 1)
    w1, w2 = (shuffle_weight(w).data for w in (p.w1, p.w2))
    run = run_of("fp8")[0]
    assert torch.equal(run(p.with_(w1=w1, w2=w2), "16x16"), run(p))
    q = problem_of("16-bit", arch, 5, 512, 256, 4, 2)
    pair = [shuffle_weight(w) for w in (q.w1, q.w2)]
    assert torch.equal(fused_moe.fused_moe(q.x, *pair, *q.choice), run_of("16-bit")[0](q))


@pytest.mark.parametrize(
    ("m", "d", "e", "k", "dtype", "shared"),
    [
        (20, 512, 12, 2, BF16, 0),  # K for one span of a wave; few rows
        (40, 1280, 27, 3, F16, 2),  # spans that waves share unevenly; shared experts: full passes
        (9, 256, 10, 2, BF16, 1),  # waves without a block
    ],
)
def test_up_quantises_x(
    m: int, d: int, e: int, k: int, dtype: torch.dtype, shared: int, arch: str
) -> None:
    """Of few rows of shuffled weights: as by a launch of its own, without spills and conflicts."""
    i = 256
    if m <= 16:  # where h has few blocks another kernel does
        i = 1024 if arch == "gfx942" else 1664
    p = problem_of("fp8", arch, m, d, i, e, k, dtype, shared)
    w1, w2 = (shuffle_weight(w).data for w in (p.w1, p.w2))
    shuffled, run = p.with_(w1=w1, w2=w2), moe_fp8_problems.run
    with rfops.vgpu.profile() as profile, rfops.vgpu.check() as checked:
        got = run("listed", shuffled, layout="16x16")
    assert not checked.findings, "\n".join(map(str, checked.findings))
    up = profile.launches[0]
    assert up.kernel == "moe_listed", [launch.kernel for launch in profile.launches]
    assert (up.vgpr_spills, up.sgpr_spills, up.scratch_bytes_per_lane) == (0, 0, 0)
    assert up.lds_conflict_cycles == 0
    moe_fp8_problems.assert_correct(got, p)
    assert torch.equal(run("listed", shuffled, layout="16x16"), got)
    if d <= 512:  # loads of raw weights bring as many lines: sums are in the same order
        assert torch.equal(run("listed", p), got)


@pytest.mark.parametrize(
    ("op", "m", "experts", "kernel"),
    [
        (fused_moe.OP, 1, 128, "listed"),
        (fused_moe.OP, 512, 128, "listed"),
        (fused_moe.OP, 512, 16, "hip"),  # 256 rows of an expert: four passes over its weights
        (fused_moe.OP, 513, 512, "hip"),
        (fused_moe_fp8.OP, 4, 128, "listed"),
        (fused_moe_fp8.OP, 17, 128, "listed"),
        (fused_moe_fp8.OP, 256, 128, "listed"),
        # Timing mode, MI355X: 91.3 us by `hip`, 94.7 by `listed`.
        (fused_moe_fp8.OP, 384, 128, {"gfx942": "listed", "gfx950": "hip"}),
        # MI355X: 92.2 us by `hip`, 104.4 by `listed`; MI300X: 126.7 and 119.1.
        (fused_moe_fp8.OP, 512, 127, {"gfx942": "listed", "gfx950": "hip"}),
    ],
)
def test_which_calls_take_it(
    op: Any, m: int, experts: int, kernel: str | dict[str, str], arch: str
) -> None:
    c = call_on(op, {"M": m, "D": 2048, "I": 384, "E": experts, "K": 8}, CPU)
    assert op.route(c).backend == (kernel if isinstance(kernel, str) else kernel[arch]), c


@pytest.mark.parametrize(
    ("m", "d", "i", "e", "k", "used"),
    [
        (64, 4096, 1792, 8, 2, 0.8),  # 64 workgroups of four strips on gfx950: 74.8 us, now 52.0
        (60, 2048, 256, 32, 8, 0.8),  # 256 of two: one of each CU of gfx950, 0.84 of gfx942's
        (65, 896, 512, 8, 8, 0.0),  # all 56 strips: there are no more
    ],
)
def test_few_experts_leave_few_cus_idle(
    m: int, d: int, i: int, e: int, k: int, used: float, arch: str
) -> None:
    """`down` has several strips for a wave only where workgroups suffice for the CUs."""
    c = call_on(fused_moe_fp8.OP, {"M": m, "D": d, "I": i, "E": e, "K": k}, CPU)
    step = fused_moe_fp8.OP.kernels["listed"].down(c, "h")
    assert isinstance(step.grid, tuple)
    groups, slots, _ = step.grid
    assert groups * slots >= used * c.cu_num
    if not used:
        assert (groups, slots) == (d // (WAVES * STRIP), e)


@pytest.mark.parametrize("op", [fused_moe.OP, fused_moe_fp8.OP], ids=["16-bit", "fp8"])
@pytest.mark.parametrize(
    ("m", "d", "i", "e"), [(192, 5120, 384, 160), (512, 7168, 256, 384), (384, 2048, 768, 128)]
)
def test_xcds_get_as_many_columns(op: Any, m: int, d: int, i: int, e: int, arch: str) -> None:
    """Workgroup n of `down` is of XCD n % 8. A last workgroup of fewer columns for each expert
    would be of the same XCDs each time."""
    c = call_on(op, {"M": m, "D": d, "I": i, "E": e, "K": 8}, CPU)
    step = op.kernels["listed"].down(c, "h")
    assert isinstance(step.grid, tuple)
    groups, slots, _ = step.grid
    all_strips = d // (WAVES * STRIP)
    strips = min(int(step.arguments["strips"]), all_strips)
    columns = [0] * XCDS
    for n in range(groups * slots):
        columns[n % XCDS] += min(strips, all_strips - n % groups * strips)
    assert max(columns) <= 1.01 * sum(columns) / XCDS, columns


def test_a_tuner_tries_it_and_a_row_may_name_it(arch: str, overlay: Write) -> None:
    """A table of `hip` alone would take calls from it that it is quicker for."""
    op = fused_moe.OP
    c = call_on(op, {"M": 4, "D": 256, "I": 128, "E": 8, "K": 2}, CPU)
    failures: list[str] = []
    found = list(tune.trials(op, c, CPU, 1, lambda text, _is_serious: failures.append(text)))
    assert {(t.backend, t.config) for t in found if t.backend == "listed"} == {("listed", None)}
    assert not failures
    row = tune.row_of(tune.query_of(op, c), [t for t in found if t.backend == "listed"], "a test")
    overlay(row, op=op.name)
    decision = op.route(c)
    assert (decision.backend, decision.config, decision.rule) == ("listed", "", "exact row")


def test_what_it_refuses(arch: str) -> None:
    listed = fused_moe.OP.kernels["listed"]
    for sizes, reason in (
        ({"M": 513}, "513 tokens: it takes up to 512"),
        ({"I": 96}, "D=256, I=96: no multiples of 64"),
    ):
        c = call_on(fused_moe.OP, {"M": 4, "D": 256, "I": 128, "E": 8, "K": 2, **sizes}, CPU)
        assert listed.unsupported_reason(c) == reason


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("m", [1, 40])
def test_no_expert_is_routed(m: int, form: str, arch: str) -> None:
    """All are shared, and ids choose none."""
    p = problem_of(form, arch, m, 256, 384, 2, 1, BF16, 1)
    p = p.with_(topk_ids=torch.full((m, 1), -1, dtype=torch.int32), num_shared=2)
    run, check = run_of(form)
    check(run(p), p)
    scales = p.scales if form == "fp8" else {}
    check(fused_moe.fused_moe(p.x, p.w1, p.w2, *p.choice, num_shared=2, **scales), p)


def test_a_row_has_no_config() -> None:
    kernel = fused_moe.OP.kernels["listed"]
    assert fused_moe.OP.parse_config(kernel, "") is None
    with pytest.raises(rfops.ConfigError, match="expected nothing, as listed has no variants"):
        fused_moe.OP.parse_config(kernel, "rows=64")
