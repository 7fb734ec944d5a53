"""mla_decode's HIP kernel: how it shares out tokens, and what it does to get there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops.attention import mla_decode_flow
from rfops.attention.mla_decode import OP
from rfops.attention.mla_decode_flow import CUT, MIN_TOKENS, SHORT_MIN_TOKENS, FlowConfig
from rfops.attention.mla_decode_shared import MIN_TOKENS as MIN_TOKENS_SHARED
from rfops.attention.mla_decode_shared import SharedConfig
from rfops.attention.mla_terms import D_V
from rfops.jit.arch import ARCH_SPECS
from support.mla_problems import (
    ARCH_WAITS,
    BF16,
    WAITS,
    Problem,
    assert_correct,
    needle,
    problem,
    run,
)

ARCHS = ("gfx942", "gfx950")


@pytest.fixture(params=ARCHS, autouse=True)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv("RFOPS_VGPU_ARCH", name)
    return name


FINE_CUT = 32  # kFineCut of mla_kv_splits.h
MAX_FLAT_SPLITS = 32  # kMaxSplits of mla_combine_all.h


def ranges_of(lens: list[int], workers: int, least: int, fp8: bool) -> tuple[int, int, int, int]:
    """What mla_kv_splits.h says of at most 64 sequences, but of equal ones that a tree would add
    up: what a sequence costs, the granule of cuts, all tokens and costs, and their ranges."""
    cut, tile, batch, tokens = min(CUT, least), 128 if fp8 else 64, len(lens), sum(lens)
    longest, spare = max(lens), workers - batch
    if spare < 0 or all(abs(n - lens[0]) <= cut // 4 for n in lens):
        return cut, cut, tokens + cut * batch, min(max(tokens // least, batch, 1), workers)
    if tokens > spare * 2 * tile or not spare:
        return 2 * tile, FINE_CUT, tokens + 2 * tile * batch, workers
    cost, of_longest = max(-(-tokens // spare), cut), longest // (MAX_FLAT_SPLITS - 1) + 1
    if longest > cost * MAX_FLAT_SPLITS and of_longest <= tile:
        cost = of_longest
    ranges = -(-tokens // cost) + batch
    return cost, FINE_CUT, ranges * cost, min(ranges, workers)


def shares(
    lens: list[int], workers: int, least: int, fp8: bool = False
) -> list[list[tuple[int, int, int]]]:
    """For each worker its sequences, with first and last token."""
    cost, cut, total, active = ranges_of(lens, workers, least, fp8)
    starts = list(itertools.accumulate((n + cost for n in lens), initial=0))[:-1]
    cuts = [w * (total // active) + min(w, total % active) for w in range(active + 1)]

    def token(at: int, start: int, length: int) -> int:
        return min(max(0, -(-(at - start - cost) // cut) * cut), length)

    found: list[list[tuple[int, int, int]]] = []
    for first, last in itertools.pairwise(cuts):
        parts = [
            (b, token(first, s, n), token(last, s, n))
            for b, (s, n) in enumerate(zip(starts, lens, strict=True))
        ]
        found.append([part for part in parts if part[1] < part[2]])
    return found


# Sequences that end within workers, ones of many workers, of two levels of the tree; empty ones.
SPLITS: list[tuple[list[int], int, int]] = [
    ([300], 1, MIN_TOKENS),
    ([300], 7, MIN_TOKENS),
    ([0, 700, 3, 0, 200, 0], 5, MIN_TOKENS),
    ([1300, 40], 40, MIN_TOKENS),
    ([100] * 70, 9, MIN_TOKENS),
    ([650, 0, 33, 90], 30, SHORT_MIN_TOKENS),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("lens", "workers", "least"), SPLITS, ids=lambda v: str(v)[:24])
def test_shared_out(arch: str, lens: list[int], workers: int, least: int, fp8: bool) -> None:
    """To the same result whoever does it, in a fixed order; nothing for the checks to find."""
    p = problem(lens, 4, arch=arch, fp8=fp8, qo_len=2)
    with rfops.vgpu.check() as c:
        got = run("flow", p, FlowConfig(workers, least))
    assert_correct(got, p)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    alone = run("flow", p, FlowConfig(1, MIN_TOKENS))
    assert torch.allclose(got[0].float(), alone[0].float(), rtol=2**-6, atol=4e-3)
    assert torch.allclose(got[1], alone[1], rtol=2e-5)


# Lengths, workers, and those that take part where lengths are equal.
EVEN: list[tuple[list[int], int, int]] = [
    ([300] * 3, 8, 6),
    ([300] * 5, 4, 4),  # more sequences than workers
    ([130, 129, 128, 130], 7, 4),  # nearly equal
    ([256] * 70, 150, 140),  # more than a wave looks at
]
UNEVEN: list[tuple[list[int], int]] = [
    ([50, 1800, 300], 8),
    ([0, 1900, 0, 300], 7),
    ([130] * 64 + [1900] * 2, 75),
]
KINDS: dict[str, tuple[type[FlowConfig], int, int]] = {
    "flow": (FlowConfig, MIN_TOKENS, 4),
    "shared": (SharedConfig, MIN_TOKENS_SHARED, 40),
}


def is_same(found: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, others, strict=True))


def check_even(arch: str, name: str, lens: list[int], workers: int, as_by: int) -> None:
    """`even` is right, and has the bits of a launch of `as_by` workers without it."""
    kind, least, heads = KINDS[name]
    p = problem(lens, heads, arch=arch)
    with rfops.vgpu.check() as c:
        found = run(name, p, kind(workers, least, 1))
    assert_correct(found, p)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    assert is_same(found, run(name, p, kind(as_by, least)))


@pytest.mark.thin(2)
@pytest.mark.parametrize(("lens", "workers", "taken"), EVEN, ids=lambda v: str(v)[:16])
@pytest.mark.parametrize("name", KINDS)
def test_sequences_in_as_many_parts(
    arch: str, name: str, lens: list[int], workers: int, taken: int
) -> None:
    """Of equal lengths `even` takes fewer workers, bit for bit as a launch of so many does."""
    check_even(arch, name, lens, workers, as_by=taken)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("lens", "workers"), UNEVEN, ids=lambda v: str(v)[:16])
@pytest.mark.parametrize("name", KINDS)
def test_lengths_that_differ_take_all_workers(
    arch: str, name: str, lens: list[int], workers: int
) -> None:
    """Of others it shares tokens out as without, bit for bit."""
    check_even(arch, name, lens, workers, as_by=workers)


def test_one_worker_per_sequence_is_for_equal_lengths(arch: str) -> None:
    """Where `least` is above the mean length; others take all workers."""
    equal, other = problem([200] * 3, 4, arch=arch), problem([100, 500, 100], 4, arch=arch)
    whole, cut = FlowConfig(8, 4 * MIN_TOKENS), FlowConfig(8, MIN_TOKENS)
    assert is_same(run("flow", equal, whole), run("flow", equal, FlowConfig(3, MIN_TOKENS)))
    assert not is_same(run("flow", equal, whole), run("flow", equal, cut))
    assert is_same(run("flow", other, whole), run("flow", other, cut))


def test_ranges_of_lengths_that_differ(arch: str) -> None:
    """Of few tokens they are as long as a sequence costs, which are `CUT` tokens and its own."""
    lens = [100, 400, 100]
    p, ranges = problem(lens, 4, arch=arch), -(-(sum(lens) + CUT * len(lens)) // CUT)
    found = run("flow", p, FlowConfig(40, MIN_TOKENS, 1))
    assert_correct(found, p)
    assert is_same(found, run("flow", p, FlowConfig(ranges, MIN_TOKENS, 1)))
    assert not is_same(found, run("flow", p, FlowConfig(ranges - 1, MIN_TOKENS, 1)))


# Whether the cache is FP8, lengths, workers; workers that have the same ranges, and some that have
# others.
SINGLE: dict[str, tuple[bool, list[int], int, int, int]] = {
    "shortest": (False, [90, 9, 0, 200], 16, 14, 13),  # 299 tokens in ranges of 32
    "longer": (False, [90, 9, 0, 200], 12, 12, 11),  # of 38, as 8 workers take 299
    "empty ones": (False, [100, 0, 400, 90], 40, 23, 22),
    "many sequences": (False, [40, 3] * 33, 130, 111, 110),  # 1,419 tokens, 45 and 44 workers
    "long sequence": (False, [20, 1300], 44, 40, 33),  # of 42: 31 parts, one more where one begins
    "equal": (False, [1900], 59, 50, 31),
    "fp8": (True, [20, 2100], 80, 50, 34),  # of 68, not of 67 that 34 workers fill
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", SINGLE)
def test_ranges_of_few_tokens(arch: str, name: str) -> None:
    """A sequence costs a range, so that none has parts of two, and a long one has 32 at most."""
    fp8, lens, workers, same, other = SINGLE[name]
    p = problem(lens, 4, arch=arch, fp8=fp8)
    with rfops.vgpu.check() as c:
        found = run("flow", p, FlowConfig(workers, SHORT_MIN_TOKENS))
    assert_correct(found, p, 4e-3)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    assert is_same(found, run("flow", p, FlowConfig(same, SHORT_MIN_TOKENS)))
    assert not is_same(found, run("flow", p, FlowConfig(other, SHORT_MIN_TOKENS)))


# Tiles of no wave, of one, of all, one more; queries that see no token of a part; another q.
SHORT_PARTS: dict[str, dict[str, Any]] = {
    "tails": {"lens": [1, 16, 17, 33, 49, 63, 64, 65, 0, 97, 127, 128, 129]},
    "unseen": {"lens": [3, 20, 64, 66], "heads": 5, "qo_len": 4},
    "pages": {"lens": [15, 48, 64, 100], "page": 16, "table": True, "spread": 6.0},
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("name", SHORT_PARTS)
def test_short_parts(arch: str, name: str, fp8: bool) -> None:
    """Of a tile a wave at most, alone and one of several: gfx950 has a way of its own."""
    form = SHORT_PARTS[name]
    p = problem(form["lens"], arch=arch, fp8=fp8, **{k: v for k, v in form.items() if k != "lens"})
    for workers in (1, 30):
        with rfops.vgpu.check() as c:
            got = run("flow", p, FlowConfig(workers, MIN_TOKENS))
        assert_correct(got, p)
        assert not c.findings, "\n".join(str(finding) for finding in c.findings)


@pytest.mark.thin(4)
@pytest.mark.parametrize("form", [{}, {"page": 16}, {"page": 64, "table": True}], ids=str)
def test_the_same_bits_again(
    arch: str, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where workgroups come in another order: whoever is last adds up in the same one."""
    p = problem([1300, 40, 200], arch=arch, **form)
    first = run("flow", p, FlowConfig(40, SHORT_MIN_TOKENS))  # whose builds test_mla_decode.py has
    assert_correct(first, p)
    for schedule in ("hardware", "random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        again = run("flow", p, FlowConfig(40, SHORT_MIN_TOKENS))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# Parts of a sequence that add up together, some after a level of the tree.
PARTS: list[tuple[list[int], int]] = [
    *(([CUT * n], n) for n in (2, 3, 4, 5, 8, 9, 15, 16, 17, 40, 64, 65)),
    ([300, 20, 1000, 500, 90], 11),  # some go on to the next sequence
]


@pytest.mark.thin(5)
@pytest.mark.parametrize(("arch", "waits"), ARCH_WAITS, indirect=["arch"])
@pytest.mark.parametrize(("lens", "workers"), PARTS, ids=lambda v: str(v))
def test_who_waits_and_who_goes(
    arch: str, waits: str, lens: list[int], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, whether parts wait for each other, or the last one finds nobody."""
    parts = [part for own in shares(lens, workers, MIN_TOKENS) for part in own]
    assert len(parts) == workers if len(lens) == 1 else len(parts) > workers
    p = problem(lens, 4, arch=arch, spread=6.0)
    found = []
    for turns, schedule in ((256, "hardware"), *WAITS[waits]):
        monkeypatch.setattr(mla_decode_flow, "MAX_SPINS", turns)
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        found += [run("flow", p, FlowConfig(workers, MIN_TOKENS)) for _ in range(2)]
    assert_correct(found[0], p)
    for got in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], got, strict=True))


@pytest.mark.parametrize(
    ("fp8", "least"), [(False, MIN_TOKENS), (True, MIN_TOKENS), (True, SHORT_MIN_TOKENS)]
)
def test_needles_at_the_cuts_of_workers(arch: str, fp8: bool, least: int) -> None:
    """Bit for bit, on both sides of each; the cuts are where this file says."""
    lens, workers = [500, 90, 333], 9
    p = problem(lens, arch=arch, fp8=fp8)
    parts = shares(lens, workers, least, fp8)
    assert len(parts) == workers and sum(b - a for part in parts for _, a, b in part) == sum(lens)
    cuts = sorted({(b, t) for part in parts for b, first, last in part for t in (first, last - 1)})
    for some in range(max(sum(b == at for b, _ in cuts) for at in range(3))):
        tokens = [[t for b, t in cuts if b == at] for at in range(3)]
        q, chosen = p, [own[min(some, len(own) - 1)] for own in tokens]
        for b, token in enumerate(chosen):
            q = needle(q, b, token)
        out, _ = run("flow", q, FlowConfig(workers, least))
        for b, token in enumerate(chosen):
            value = p.keys(b)[token, :D_V].to(BF16)
            assert torch.equal(out[b], value.expand_as(out[b])), f"sequence {b}, token {token}"


def test_two_needles_in_two_workers(arch: str) -> None:
    p = problem([400], arch=arch)
    parts = shares([400], 6, MIN_TOKENS)
    key = p.keys(0)[5].clone()
    key[:D_V] = torch.randint(-4, 5, (D_V,)).double()
    for ((_, first, _last),) in parts[1:]:
        two = p.with_(kv=p.kv.clone())
        two.set_row(0, 5, key)
        two.set_row(0, first, key)
        out, _ = run("flow", needle(two, 0, 5, 4.0), FlowConfig(6, MIN_TOKENS))
        assert torch.equal(out[0], key[:D_V].to(BF16).expand_as(out[0])), first


def test_scratch_that_others_left(arch: str) -> None:
    """Counts are zero again whatever came before, and parts may hold anything."""
    small, large = (problem(lens, arch=arch) for lens in ([200], [1300, 40]))
    wanted = [run("flow", p, FlowConfig(w, MIN_TOKENS)) for p, w in ((small, 5), (large, 40))]
    for _ in range(2):
        for p, w, want in ((large, 40, wanted[1]), (small, 5, wanted[0])):
            got = run("flow", p, FlowConfig(w, MIN_TOKENS))
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


LENGTHS = {
    "4 x 1k": ([1024] * 4, 1.25),
    "64 x 8k": ([8192] * 64, 1.1),
    "256 x 8k": ([8192] * 256, 1.1),
    "ragged": (
        torch.randint(1, 8193, (128,), generator=torch.Generator().manual_seed(0)).tolist(),
        1.1,
    ),
    "one long": ([131072], 1.1),
    "one long among short": ([131072, *[500] * 63], 1.1),
}


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_workers_are_even(arch: str, name: str, fp8: bool, figure: Callable[[str], None]) -> None:
    """The most that one has of tokens and items, over the mean of those that have some. What can
    be cut into equal parts is."""
    lens, bar = LENGTHS[name]
    if len(set(lens)) == 1 and sum(lens) % (ARCH_SPECS[arch].cus * CUT) == 0:
        bar = 1.0
    config = OP.kernels["flow"].default(OP.call_of(arch, B=len(lens), H=16, S=sum(lens)))
    plan = lens, config.workers, config.least, fp8
    found = [parts for parts in shares(*plan) if parts]
    costs = [sum(b - a + ranges_of(*plan)[0] for _, a, b in parts) for parts in found]
    uneven = max(costs) * len(costs) / sum(costs)
    figure(f"mla_decode {arch} {'fp8' if fp8 else 'bf16'} {name}: the busiest has {uneven:.3f}")
    assert uneven <= bar


# ---------------------------------------------------------------- what it does


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("name", "config"),
    [("flow", FlowConfig(4, MIN_TOKENS)), ("shared", SharedConfig(4, MIN_TOKENS_SHARED))],
)
def test_resources_of_ragged_queries(arch: str, name: str, config: FlowConfig) -> None:
    """Nothing is spilled to memory. Flow spills no registers; shared spills SGPRs, to VGPRs."""
    p = problem([1024, 777], 8, arch=arch, fp8=True, page=16, table=True, qo_lens=[2, 1])
    p = p if name == "flow" else problem([1024, 777], 40, arch=arch, qo_lens=[3, 1])
    with rfops.vgpu.profile() as profile:
        run(name, p, config)
    (launch,) = profile.launches
    assert launch.vgpr_spills == launch.scratch_bytes_per_lane == 0
    assert launch.sgpr_spills == 0 or name == "shared"


@pytest.mark.thin(9)
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("fp8", "q_fp8"), [(False, False), (True, False), (True, True)])
def test_resources(arch: str, fp8: bool, q_fp8: bool, page: int) -> None:
    """No spills, and the cache is read once."""
    p = problem([1024, 777], arch=arch, fp8=fp8, q_fp8=q_fp8, page=page)
    with rfops.vgpu.profile() as profile:
        run("flow", p, FlowConfig(4, MIN_TOKENS))
    (launch,) = profile.launches
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    assert launch.lds_conflict_cycles == 0
    least = (1024 + 777) * p.kv[0, 0].nbytes
    part = 16 * (3 * 512 + 4 * 8)  # sums of 24 bits; totals, of each of four waves
    parts = 5 * part  # of four workers, one of which has the end of one sequence and of the other
    assert 128 * launch.global_read["lines_128B"] <= 1.02 * least + p.q.nbytes + parts
    results = 2 * 16 * (2 * 512 + 4)
    counts = 4 * 8 * (2 * 5 + 2)  # of four waves: each part comes and leaves, the last makes zeros
    assert launch.global_write["bytes"] <= parts + results + counts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"page": 3}, "pages of 3 tokens, not a power of two"),
        ({"P": 2**28, "page": 16}, "2^32 or more"),
        ({"kv_dtype": torch.float8_e4m3fn}, "gfx942 has torch.float8_e4m3fnuz, kv is"),
        ({"q_dtype": torch.float8_e4m3fnuz}, "gfx950 has torch.float8_e4m3fn, q is"),
    ],
)
def test_what_is_not_taken(arch: str, change: dict[str, Any], reason: str) -> None:
    c = OP.call_of(arch, **{"B": 2, "H": 16, "S": 32, **change})
    said = OP.kernels["flow"].unsupported_reason(c)
    other = "gfx942" if reason.startswith("gfx950") else "gfx950"
    if reason.startswith("gfx") and arch == other:
        assert said is None
    else:
        assert reason in str(said)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ((0, 64), "workers is 1 to"),
        ((5000, 64), "workers is 1 to"),
        ((4, 48), "least is 32, or 64 or"),
        ((4, 64, 2), "even is 0 or 1"),
    ],
)
def test_configs_that_cannot_be(config: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlowConfig(*config)


def test_configs_as_text() -> None:
    config = FlowConfig(8, 64)
    assert OP.config_of(OP.config_text(config)) == config


def test_workers_for_more_columns(arch: str) -> None:
    """Groups of 16 columns share the CUs."""
    kernel = OP.kernels["flow"]
    for heads, qo_len, groups in ((16, 1, 1), (16, 2, 2), (128, 1, 8), (5, 3, 1)):
        c = OP.call_of(arch, B=4, H=heads, S=400, qo_len=qo_len)
        config = kernel.default(c)
        assert c.cu_num < (config.workers + ARCH_SPECS[arch].xcds) * groups
        assert config.workers * groups <= c.cu_num
    assert math.isclose(kernel.error, 2.0**-8)


@pytest.mark.sweep
def test_a_cache_beyond_4_gib(arch: str) -> None:
    """Rows at its end; none of the others is touched."""
    p = problem([40], arch=arch)
    rows = 2**32 // 1152 + 1000
    far = torch.zeros(rows, 1, 1, 576, dtype=BF16)
    far[-len(p.kv) :] = p.kv
    moved = Problem(p.q, far, p.kv_indptr, p.kv_indices + rows - len(p.kv), None, p.lens)
    for got, want in zip(run("flow", moved), run("flow", p), strict=True):
        assert torch.equal(got, want)
