"""fused_moe with MXFP4 and MX-FP8 weights by every kernel, against fp32 over the same roundings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.moe.fused_moe_mx import MXFP4, MXFP8, Format
from rfops.moe.kernels.mx.config import MxMoeConfig
from rfops.moe.kernels.mx.signatures import EXPERTS, moe_mx_experts_kernel
from rfops.quantization.shuffle import shuffle_weight
from support.moe_mx_problems import (
    CONFIGS,
    OPS,
    PLAIN,
    Problem,
    assert_near,
    call_of,
    random_problem,
    sums_config,
)

pytestmark = pytest.mark.requires_gfx950
BF16, F16 = torch.bfloat16, torch.float16
SHAPES = [
    # m, d, i, e, k, shared, dtype
    (5, 256, 256, 4, 2, 0, BF16),
    (33, 512, 256, 6, 3, 1, F16),
    (1, 1024, 512, 8, 2, 0, BF16),
    (40, 256, 768, 3, 3, 2, BF16),
]


def test_mxfp8_in_short() -> None:
    problem = random_problem(MXFP8, 9, 256, 256, 4, 2)
    assert_near(problem.shuffled().call(), problem.exact)


@pytest.mark.sweep
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values(fmt: Format, shape: Any, is_shuffled: bool) -> None:
    problem = random_problem(fmt, *shape)
    exact = problem.exact
    with rfops.vgpu.check() as checked:
        got = (problem.shuffled() if is_shuffled else problem).run("hip")
    assert_near(got, exact)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert_near(problem.run("torch"), exact)


@pytest.mark.sweep
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_triton(fmt: Format, is_shuffled: bool) -> None:
    """Weights widened to bf16; fp16 rows, a shared expert, ids outside, tails."""
    problem = random_problem(fmt, 9, 160, 96, 4, 2, 1, F16)
    problem.topk_ids[3, 1] = 7
    exact = problem.exact
    assert_near((problem.shuffled() if is_shuffled else problem).run("triton"), exact)


@pytest.mark.sweep
@pytest.mark.parametrize("sizes", [(96, 32), (288, 160), (160, 416), (1056, 288)])
def test_tails(fmt: Format, sizes: tuple[int, int]) -> None:
    """D and I that no step of 128 bytes divides; scales beyond a row are another row's."""
    d, i = sizes
    problem = random_problem(fmt, 21, d, i, 3, 2, num_shared=1)
    with rfops.vgpu.check() as checked:
        got = problem.run("hip")
    assert_near(got, problem.exact)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert torch.equal(problem.shuffled().run("hip"), got)
    mixed = problem.with_(w1=shuffle_weight(problem.w1), w2=shuffle_weight(problem.w2))
    assert torch.equal(mixed.run("hip"), got)


@pytest.mark.sweep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_variants(fmt: Format, config: MxMoeConfig) -> None:
    """Rows of one expert around its tiles: none, few, all; the same bits raw and shuffled."""
    problem = random_problem(fmt, 150, 1024, 512, 5, 2)
    ids = torch.tensor([[0, 1]] * 130 + [[1, 2]] * 19 + [[4, 4]], dtype=torch.int32)
    problem = problem.with_(topk_ids=ids)
    if OPS[fmt.word].kernels["hip"].unsupported_config_reason(call_of(problem), config):
        pytest.fail(f"{config} is not for this shape")
    got = problem.run("hip", config)
    assert_near(got, problem.exact)
    assert torch.equal(problem.shuffled().run("hip", config), got)


@pytest.mark.parametrize("rounding", ["even", "up", "down", "floor", "ceil"])
def test_h_is_quantised_bit_for_bit(fmt: Format, rounding: str) -> None:
    """w2 is the identity, so that out is h; gates of 64 and more, whose silu they are themselves,
    times powers of two and small odd ones: h is exact, with all ties and magnitudes."""
    if rounding not in fmt.bumps:
        with pytest.raises(ValueError, match="rounding must be"):
            random_problem(fmt, 1, 32, 32, 1, 1).with_(rounding=rounding).call()
        return
    d = i = 256
    generator = torch.Generator().manual_seed(5)

    def one_hot() -> tuple[torch.Tensor, torch.Tensor]:
        """[d, i]: row r has its 1 at r."""
        return fmt.quantise(torch.eye(d), "even")

    x = torch.zeros(16, d, dtype=BF16)
    x[:, 0], x[:, 32] = 1, 1
    w1 = torch.zeros(2 * i, d)
    w1[:i, 0] = 64.0
    w1[i:, 32] = torch.randint(-6, 7, (i,), generator=generator).float()
    # Of each row another power of two, and of each column: blocks of all magnitudes.
    x[:, 0] = 2.0 ** (torch.arange(16) % 7)
    q1, s1 = fmt.quantise(w1, "even")
    x[:, 32] = torch.tensor([1, 2, 3, 0.5] * 4, dtype=BF16)
    q2, s2 = one_hot()
    problem = Problem(
        fmt,
        x,
        q1[None],
        q2[None],
        s1[None],
        s2[None],
        torch.ones(16, 1),
        torch.zeros(16, 1, dtype=torch.int32),
        rounding=rounding,
    )
    rows = fmt.and_back(x, rounding, torch.float32)
    gate, up = (rows @ fmt.values(q1, s1, torch.float32).T).chunk(2, 1)
    h = (gate * up).to(BF16)
    assert torch.equal(h.float(), gate * up), "the test's h is exact"
    wanted = fmt.and_back(h, rounding, torch.float32)
    got = problem.run("hip", PLAIN)
    assert torch.equal(got.float(), wanted), f"{(got.float() != wanted).sum()} differ"


@pytest.mark.sweep
def test_counts(fmt: Format) -> None:
    """No row of an expert, one, all of them; all to one; every expert named twice by a token."""
    problem = random_problem(fmt, 37, 256, 256, 4, 2)
    mixed = torch.tensor([[0, 1]] * 36 + [[3, 1]], dtype=torch.int64)
    for ids in (torch.tensor([[2, 2]] * 37, dtype=torch.int32), mixed):
        changed = problem.with_(topk_ids=ids)
        assert_near(changed.run("hip", PLAIN), changed.exact)


@pytest.mark.thin(3)
@pytest.mark.parametrize("chosen", [6, 16])
def test_lists_of_many_tokens(chosen: int) -> None:
    """By several workgroups, of choices that lanes share evenly or not, one of them twice."""
    problem = random_problem(MXFP4, 300, 256, 32, 20, chosen)
    problem.topk_ids[:, 0] = problem.topk_ids[:, -1]
    problem.topk_ids[7] = -1
    problem.topk_ids = problem.topk_ids.long()
    assert_near(problem.run("hip", PLAIN), problem.exact)


@pytest.mark.sweep
def test_ids_outside_add_nothing(fmt: Format) -> None:
    """Negative, too large, and of shared experts, which only num_shared names; NaN beside them."""
    problem = random_problem(fmt, 20, 256, 256, 5, 3, num_shared=1)
    ids = problem.topk_ids.clone()
    for at, id in enumerate((-1, 4, 5, 2**31 - 1, -(2**31), 1000)):
        ids[at, at % 3] = id
    ids[7] = -1
    weights = problem.topk_weights.masked_fill((ids < 0) | (ids >= 4), math.nan)
    with rfops.vgpu.check() as checked:
        got = problem.with_(topk_ids=ids, topk_weights=weights).run("hip", PLAIN)
    assert_near(got, problem.with_(topk_ids=ids).exact)
    assert not checked.findings, "\n".join(map(str, checked.findings))


@pytest.mark.parametrize("kernel", ["hip", "torch"])
def test_a_row_that_is_no_number_is_its_own_alone(fmt: Format, kernel: str) -> None:
    problem = random_problem(fmt, 20, 256, 256, 4, 2)
    config = PLAIN if kernel == "hip" else None
    clean = problem.run(kernel, config)
    x = problem.x.clone()
    x[5], x[11, 3] = math.nan, math.inf
    got = problem.with_(x=x).run(kernel, config)
    others = [t for t in range(20) if t not in (5, 11)]
    assert torch.equal(got[others], clean[others])
    assert got[5].isnan().all() and got[11].isnan().all()


@pytest.mark.sweep
def test_strided_rows_and_memory_around(fmt: Format) -> None:
    problem = random_problem(fmt, 19, 256, 256, 4, 2)
    wanted = problem.run("hip", PLAIN)
    wide = torch.full((25, 512), math.nan, dtype=BF16)
    wide[2:21, 40:296] = problem.x
    assert torch.equal(problem.with_(x=wide[2:21, 40:296]).run("hip", PLAIN), wanted)
    memory = torch.full((19 * 256 + 256,), -7.0, dtype=BF16)
    out = memory[128 : 128 + 19 * 256].view(19, 256).fill_(math.nan)
    problem.run("hip", PLAIN, out)
    assert torch.equal(out, wanted)
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()
    columns = problem.x.T.contiguous().T
    with pytest.raises(ValueError, match="x does not lie in rows of 16 bytes"):
        problem.with_(x=columns).run("hip", PLAIN)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("columns", "rows", "slots", "ring"),
    [(0, 1, 0, 0), (16, 1, 0, 0), (0, 1, 0, 1), (32, 1, 3, 0), (32, 2, 3, 0)],
)
def test_counts_that_a_call_left_behind(columns: int, rows: int, slots: int, ring: int) -> None:
    """As one that failed between its launches would: whatever counts and lists say, no memory is
    touched that is not the call's, and the call after is right. Where a table of tiles is in LDS,
    an expert has several: if all experts had all tokens, they would not fit in the table."""
    d, i = (256, 256) if ring else (64, 32)
    tokens, waves, experts = (100, 2, 12) if slots else (40, 4, 4)
    problem = random_problem(MXFP4, tokens, d, i, experts + 1, 2, num_shared=1)
    exact, problem = problem.exact, problem.shuffled() if ring else problem
    c, out = call_of(problem), torch.full((tokens, d), math.nan, dtype=BF16)
    kernel = OPS["mxfp4"].kernels["hip"]
    config = MxMoeConfig(1, 4, 1, waves, 1, 2, columns, rows, slots=slots, ring=ring)
    launches = kernel.launches(c, config)
    given = [getattr(w, "data", w) if ring else w for w in problem.weights]
    args = out, problem.x, *given, problem.topk_weights, problem.topk_ids, None
    memory_of = dict(zip(launches.names, launches.tensors(*args), strict=True))
    lists, counts = memory_of["lists"], memory_of["counts"]
    for left in ([30, 30, 30, 30], [39, 2**30, 0, 7], [tokens, 2**32 - 1, tokens, tokens]):
        lists.fill_(2**31 - 1)
        counts[:experts] = torch.tensor(left * (experts // 4)).to(counts.dtype)
        if left[0] != 30:
            launches.launches = launches.launches[-2 if columns else -3 :]  # without prepare
        with rfops.vgpu.check() as checked:
            launches(*args)
        bad = [f for f in checked.findings if f.kind != "uninitialised"]  # of rows that none made
        assert not bad, "\n".join(map(str, bad))
        assert not counts.any()
    if slots:  # what gate and up leave of such counts holds the bound; down relies on its own
        memory_of["offsets"].view(torch.int32).fill_(tokens)
        launches.launches = launches.launches[-1:]
        with rfops.vgpu.check() as checked:
            launches(*args)
        bad = [f for f in checked.findings if f.kind != "uninitialised"]
        assert not bad, "\n".join(map(str, bad))
    assert_near(problem.run("hip", config), exact)


@pytest.mark.parametrize("slots", [0, 3])
def test_a_single_workgroup_clears_counts(slots: int) -> None:
    """32 columns are one workgroup's, which no other helps to leave counts of 0."""
    problem = random_problem(MXFP4, 20, 32, 64, 4, 2)
    c, out = call_of(problem), torch.full((20, 32), math.nan, dtype=BF16)
    kernel = OPS["mxfp4"].kernels["hip"]
    config = MxMoeConfig(1, 4, 1, 4, 1, 2, 32, 2 if slots else 1, slots=slots)
    launches = kernel.launches(c, config)
    args = out, problem.x, *problem.weights, problem.topk_weights, problem.topk_ids, None
    memory_of = dict(zip(launches.names, launches.tensors(*args), strict=True))
    for _ in range(2):
        launches(*args)
        assert not memory_of["counts"].any()
        assert_near(out, problem.exact)
        out.fill_(math.nan)


@pytest.mark.sweep
def test_the_same_in_any_order(fmt: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are filled by atomics, and results do not depend on it."""
    problem = random_problem(fmt, 300, 256, 256, 5, 2, num_shared=1)
    first = problem.run("hip", PLAIN)
    for schedule in ("random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        assert torch.equal(problem.run("hip", PLAIN), first)


FUSED = [
    # m, d, i, e, k, shared, dtype; columns, waves, tiles of rows
    ((5, 288, 160, 4, 2, 0, BF16), (16, 8, 1)),
    ((33, 512, 256, 6, 3, 1, F16), (32, 8, 2)),
    ((150, 256, 256, 3, 3, 2, BF16), (16, 16, 1)),
    ((40, 256, 768, 3, 3, 2, BF16), (16, 4, 2)),
    ((70, 256, 512, 5, 2, 1, BF16), (32, 4, 2)),
]


def test_rows_that_never_leave_the_chip() -> None:
    """Down and the sum in one kernel: a call's default, and the bits of two kernels."""
    problem = random_problem(MXFP4, 6, 256, 256, 4, 2, num_shared=1).shuffled()
    with rfops.vgpu.profile() as p:
        got = problem.run("hip")
    names = ["moe_mx_prepare", "moe_mx_experts", "moe_mx_down"]
    assert [launch.kernel for launch in p.launches] == names
    assert torch.equal(got, problem.run("hip", MxMoeConfig(1, 4, 1, 4, 1)))


@pytest.mark.sweep
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_fused_bits(fmt: Format, case: Any) -> None:
    """Tails, row tiles that an expert has none or part of, shared experts, ids outside."""
    shape, (columns, waves, rows) = case
    problem = random_problem(fmt, *shape)
    problem.topk_ids[1, 0], problem.topk_ids[3] = -1, 1
    plain = MxMoeConfig(1, 4, 1, 4, 1)
    fused = replace(plain, columns=columns, down_n=waves, rows=rows)
    wanted = problem.run("hip", plain)
    assert_near(wanted, problem.exact)
    for kind in (problem, problem.shuffled()):
        with rfops.vgpu.check() as checked:
            got = kind.run("hip", fused)
        assert torch.equal(got, wanted)
        assert not checked.findings, "\n".join(map(str, checked.findings))


SUMS = [
    # m, d, i, e, k, shared, dtype; columns, waves, slots, tiles of rows of a wave
    ((5, 288, 160, 4, 2, 0, BF16), (16, 2, 3)),
    ((33, 512, 256, 6, 3, 1, F16), (32, 3, 5)),
    ((150, 256, 256, 3, 3, 2, BF16), (32, 8, 4)),
    ((40, 256, 768, 3, 3, 2, BF16), (16, 5, 4)),
    ((70, 256, 2048, 5, 2, 1, BF16), (32, 2, 3)),
    ((300, 256, 512, 70, 4, 0, BF16), (32, 15, 4)),
    ((5, 288, 160, 4, 2, 0, BF16), (16, 2, 3, 2)),
    ((33, 512, 256, 6, 3, 1, F16), (32, 2, 5, 2)),
    ((150, 256, 768, 3, 3, 2, BF16), (16, 7, 4, 2)),
    ((70, 256, 1024, 5, 2, 1, BF16), (32, 2, 4, 2)),
    ((300, 256, 512, 70, 4, 0, BF16), (32, 5, 4, 2)),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("kernel", "i", "config"),
    [
        ("moe_mx_down_sums", 512, sums_config(32, 3, 4)),
        ("moe_mx_down_deep", 2048, sums_config(32, 2, 4, 2)),
    ],
)
def test_sums_that_never_leave_the_chip(
    kernel: str, i: int, config: MxMoeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down and the sum in one kernel for many tokens: ids outside, one expert twice, no rows of
    another; the same bits in any order, and those of two kernels where one row is all there is."""
    problem = random_problem(MXFP4, 70, 256, i, 6, 2, num_shared=1)
    problem.topk_ids[1, 0], problem.topk_ids[3] = -1, 1
    problem.topk_ids[problem.topk_ids == 4] = 2
    with rfops.vgpu.profile() as p:
        got = problem.run("hip", config)
    launch = p.launches[-1]
    assert len(p.launches) == 3 and launch.kernel == kernel
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    assert_near(got, problem.exact)
    monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", "random:1")
    assert torch.equal(problem.shuffled().run("hip", config), got)
    one = random_problem(MXFP4, 40, 256, i, 4, 1).shuffled()
    assert torch.equal(one.run("hip", config), one.run("hip", MxMoeConfig(1, 4, 1, 4, 1)))


@pytest.mark.sweep
@pytest.mark.parametrize("case", SUMS, ids=str)
def test_sums(fmt: Format, case: Any) -> None:
    """Tails, tiles of an expert that a wave has part of, more tiles than one, nobody's experts."""
    shape, config = case[0], sums_config(*case[1])
    problem = random_problem(fmt, *shape)
    problem.topk_ids[1, 0], problem.topk_ids[3] = -1, 1
    for kind in (problem, problem.with_(topk_ids=torch.full_like(problem.topk_ids, -1))):
        with rfops.vgpu.check() as checked:
            got = kind.run("hip", config)
        assert_near(got, kind.exact)
        assert not checked.findings, "\n".join(map(str, checked.findings))
        assert torch.equal(kind.shuffled().run("hip", config), got)


def test_down_waits_for_no_loads_before_the_next() -> None:
    """In its loop loads of the next rows go out before those of this one are waited for."""
    config = MxMoeConfig(1, 4, 1, 4, 1, 2, 16)
    problem = random_problem(MXFP4, 16, 256, 256, 40, 3).shuffled()
    with rfops.vgpu.timing() as t:
        problem.run("hip", config)
    down = t.launches[-1]
    waves = down.sampled["workgroups"] * config.down_n
    loop = [
        pc["text"] for pc in sorted(down.pcs, key=lambda pc: pc["offset"]) if pc["issued"] > waves
    ]
    loads = [i for i, text in enumerate(loop) if text.startswith("buffer_load_dwordx4")]
    waits = [i for i, text in enumerate(loop) if text.startswith("s_waitcnt") and _waits(text)]
    assert len(loads) == 8, "two items of a row tile and a tile of weights, two pieces each"
    assert waits[0] > loads[3], "\n".join(loop[: loads[3]])


def _waits(text: str) -> bool:
    """Whether an s_waitcnt is for vector memory."""
    word = int(text.split()[1], 0)
    return (word & 15 | word >> 14 << 4) < 63


@pytest.mark.thin(5)
@pytest.mark.parametrize(
    ("d", "columns", "m_tiles"), [(1024, 0, 4), (3072, 0, 8), (1024, 16, 8), (3072, 16, 4)]
)
def test_more_weights_on_their_way(d: int, columns: int, m_tiles: int) -> None:
    """The same bits and no spills, of hardly more steps than are on their way, too."""
    problem = random_problem(MXFP4, 70, d, 256, 3, 2).shuffled()
    config = MxMoeConfig(m_tiles, 4, 1, 4, 1, 2, columns)
    with rfops.vgpu.profile() as p:
        got = problem.run("hip", replace(config, ahead=3))
    assert torch.equal(got, problem.run("hip", config))
    launch = p.launches[1]
    assert launch.kernel == "moe_mx_experts"
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0


@pytest.mark.thin(13)
@pytest.mark.parametrize(("m_tiles", "up_n"), [(9, 3), (4, 3), (9, 4), (8, 3), (8, 4), (4, 4)])
@pytest.mark.parametrize("i", [512, 256])
def test_tiles_of_few_columns(m_tiles: int, up_n: int, i: int) -> None:
    """Waves that do not share out rows evenly, nine tiles of rows, tiles beyond the columns, a
    shared expert's tiles on every XCD: the same bits, checked, and no spills."""
    problem = random_problem(MXFP4, 330, 2048, i, 5, 3, 1)
    ids = torch.tensor([[0, 1, 2]] * 140 + [[1, 3, 0]] * 10 + [[-1, 3, 3]] * 180)
    problem = problem.with_(topk_ids=ids.to(torch.int32)).shuffled()
    config = MxMoeConfig(m_tiles, up_n, 1, 8, 1, 1, 16, ahead=3, slots=3)
    with rfops.vgpu.check() as checked, rfops.vgpu.profile() as p:
        got = problem.run("hip", config)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    launch = p.launches[1]
    assert launch.kernel == "moe_mx_experts"
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    wanted = problem.run("hip", MxMoeConfig(4, 4, 1, 8, 1, 1, 16, slots=3))
    assert torch.equal(got, wanted), f"{(got != wanted).sum()} differ"


@pytest.mark.thin(11)
@pytest.mark.parametrize(("columns", "n_waves"), [(16, 4), (0, 4), (16, 3)])
@pytest.mark.parametrize(
    "shape",
    [
        (141, 512, 256, 3, 2, 1),
        (3, 256, 256, 5, 2, 0),
        (330, 1024, 256, 4, 2, 1),
        (170, 512, 512, 3, 2, 2),
        (40, 768, 2048, 2, 1, 0),
        (100, 256, 1024, 40, 4, 0),
    ],
)
def test_weights_of_many_rows_once(shape: Any, columns: int, n_waves: int) -> None:
    """Gate and up by weights in LDS: the bits of registers, without spills; one step of K and more,
    nine or ten tiles of rows of a part, rows beyond it, parts of tiles; XCDs that share out columns
    of h, which four waves have enough of from 1024 on, or tiles; with 40 experts several slices of
    a workgroup, in order and in reverse."""
    problem = random_problem(MXFP4, *shape)
    problem.topk_ids[1, 0] = -1
    exact, problem = problem.exact, problem.shuffled()
    config = MxMoeConfig(4, 4, 1, 4, 1, 2, columns)
    with rfops.vgpu.check() as checked, rfops.vgpu.profile() as p:
        got = problem.run("hip", replace(config, ring=1, up_n=n_waves))
    assert not checked.findings, "\n".join(map(str, checked.findings))
    launch = p.launches[1]
    assert launch.kernel == "moe_mx_gate_up"
    assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    wanted = problem.run("hip", config)
    assert torch.equal(got, wanted), f"{(got != wanted).sum()} differ"
    assert_near(got, exact)


RAW = [
    (m_tiles, n, stage, each, chunk)
    for m_tiles, n in ((2, 8), (1, 4), (4, 4), (8, 4))
    for stage in (1, 2)
    for each in (5, 1)
    for chunk in (1, 4)
]


@pytest.mark.thin(33)
@pytest.mark.parametrize("case", RAW)
def test_raw_rows_with_a_tail_spill_nothing(fmt: Format, case: tuple[int, ...]) -> None:
    """Rows of weights as they are, K that no step divides: the most addresses there are."""
    m_tiles, n, stage, each, chunk = case
    defines = {
        **EXPERTS,
        "FORMAT": fmt.name,
        "M_TILES": m_tiles,
        "N_WAVES": n,
        "K_WAVES": 1,
        "TAIL": 1,
        "STAGE": stage,
        "EACH": each,
        "CHUNK": chunk,
        "SHUFFLED": 0,
        "SHUFFLED_SCALES": 0,
        "TILED_H": 0,
    }
    built = moe_mx_experts_kernel.build("gfx950", defines).meta.kernels["moe_mx_experts"]
    used = built.resources
    assert used["sgpr_spills"] == used["vgpr_spills"] == used["scratch"] == 0, used


@pytest.mark.parametrize("i", [256, 512])
def test_three_launches_for_few_tokens(i: int) -> None:
    for fmt in (MXFP4, MXFP8):
        for m in (1, 8):
            c = call_of(random_problem(fmt, m, 256, i, 2, 1)).with_sizes(D=7168, E=128, R=128)
            assert OPS[fmt.word].kernels["hip"].default(c).columns > 0


@pytest.mark.sweep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_what_hip_does(fmt: Format, config: MxMoeConfig) -> None:
    """Four launches, or three, without scratch or spills."""
    problem = random_problem(fmt, 20, 1024, 512, 3, 2).shuffled()
    with rfops.vgpu.profile() as p:
        problem.run("hip", config)
    names = ["moe_mx_prepare", "moe_mx_experts", "moe_mx_experts", "moe_add_pairs"]
    if config.columns:
        names[2:] = ["moe_mx_down"]
    assert [launch.kernel for launch in p.launches] == names
    for launch in p.launches:
        assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
