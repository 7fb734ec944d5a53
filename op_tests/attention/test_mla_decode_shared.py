"""mla_decode's HIP kernel for many columns: every key counts, once, in a fixed order; and what
it does to get there. Which tokens a worker has is test_mla_decode_flow.py's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rfops
from rfops.attention import mla_decode_flow
from rfops.attention.mla_decode import OP
from rfops.attention.mla_decode_shared import MIN_TOKENS, SharedConfig
from rfops.attention.mla_terms import D_V
from rfops.dispatch.heuristic import coarse
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


def checked(
    p: Problem, workers: int, bound: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, which is right, and about which the checks find nothing."""
    with rfops.vgpu.check() as c:
        got = run("shared", p, SharedConfig(workers, MIN_TOKENS))
    assert_correct(got, p, bound)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    return got


# Columns of one wave, of some, of all, of two workgroups; tails of tiles; each form of a cache.
FEW: dict[str, dict[str, Any]] = {
    "all": {"lens": [40, 7], "heads": 128},
    "ragged": {"lens": [0, 33, 1, 130, 0], "heads": 36},
    "queries": {"lens": [70, 3, 0, 64], "heads": 33, "qo_len": 4},
    "fp8_pages": {"lens": [100, 33], "heads": 48, "fp8": True, "page": 16},
}
MORE: dict[str, dict[str, Any]] = {
    "one_wave": {"lens": [1, 16, 32], "heads": 40},
    "many_columns": {"lens": [40, 7], "heads": 128, "qo_len": 3},
    "not_causal": {"lens": [35, 3, 64], "heads": 40, "qo_len": 2, "causal": False},
    "unseen_tiles": {"lens": [50, 3, 33], "heads": 3, "qo_len": 40},
    "table": {"lens": [50, 0, 64, 65], "heads": 40, "page": 16, "table": True},
    "wide_scores": {"lens": [257], "heads": 64, "spread": 6.0},
    "fp8": {"lens": [100, 0, 33], "heads": 128, "fp8": True},
    "fp8_table": {"lens": [100, 33], "heads": 33, "fp8": True, "page": 64, "table": True},
    "fp8_q": {"lens": [90, 31], "heads": 40, "fp8": True, "q_fp8": True},
    "fp8_q_alone": {"lens": [90, 31], "heads": 40, "q_fp8": True},
}


@pytest.mark.thin(5)
@pytest.mark.parametrize("shape", FEW)
def test_values(arch: str, shape: str) -> None:
    """Against float64 of the inputs as they are; what is not named is NaN."""
    checked(problem(**FEW[shape], arch=arch), 1)


@pytest.mark.sweep
@pytest.mark.parametrize("shape", MORE)
def test_more_values(arch: str, shape: str) -> None:
    checked(problem(**MORE[shape], arch=arch), 1)


@pytest.mark.parametrize(("lens", "workers"), [([300], 2), ([1300, 40, 0, 300], 12)], ids=str)
def test_shared_out(arch: str, lens: list[int], workers: int, monkeypatch: Any) -> None:
    """To the same result whoever does it; to the same bits whoever is last."""
    p = problem(lens, 40, arch=arch)
    got = checked(p, workers)
    alone = run("shared", p, SharedConfig(1, MIN_TOKENS))
    assert torch.allclose(got[0].float(), alone[0].float(), rtol=2**-6, atol=4e-3)
    assert torch.allclose(got[1], alone[1], rtol=2e-5)
    for schedule in ("random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        again = run("shared", p, SharedConfig(workers, MIN_TOKENS))
        assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


# Parts of a sequence whose makers share the result out, by blocks, by quarters of them; of more the
# last one makes it, after a level of the tree.
PARTS: list[Any] = [
    *(([n * MIN_TOKENS], n) for n in (2, 3, 9, 33)),
    ([700, 40, 2000, 0, 900], 13),  # some go on to the next sequence
    *(
        pytest.param([n * MIN_TOKENS], n, marks=pytest.mark.sweep)
        for n in (4, 5, 7, 8, 16, 17, 32, 39, 40, 41, 64, 65)
    ),
    pytest.param([3000, 100, 5000, 1400], 70, marks=pytest.mark.sweep),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(("arch", "waits"), ARCH_WAITS, indirect=["arch"])
@pytest.mark.parametrize(("lens", "workers"), PARTS, ids=str)
def test_who_waits_and_who_goes(
    arch: str, waits: str, lens: list[int], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, whether parts wait for each other, or the last one finds nobody; and counts
    that are zero again. Rounding P and the result to bf16 is 1.04e-3 and 1.66e-3 where there are 20
    parts in float64, up to 2.6e-3 together in the worst head."""
    p = problem(lens, 40, arch=arch)
    first = checked(p, workers, 3e-3 if min(n for n in lens if n) >= 1000 else 4e-3)
    for turns, schedule in WAITS[waits]:
        monkeypatch.setattr(mla_decode_flow, "MAX_SPINS", turns)
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        for _ in range(2):
            again = run("shared", p, SharedConfig(workers, MIN_TOKENS))
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_as_the_other_kernel(arch: str) -> None:
    """A head's result does not depend on the columns beside it, and flow's is the same but for the
    order of sums."""
    p = problem([200, 31], 70, arch=arch)
    wide, _ = run("shared", p, SharedConfig(1, MIN_TOKENS))
    few = p.with_(q=p.q[:, 8:48].contiguous())
    assert torch.equal(run("shared", few, SharedConfig(1, MIN_TOKENS))[0], wide[:, 8:48])
    flow, _ = run("flow", p)
    assert torch.allclose(wide.float(), flow.float(), rtol=2**-6, atol=4e-3)


CUTS = sorted({0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 199})


@pytest.mark.parametrize(
    "form", [{}, pytest.param({"fp8": True, "page": 64}, marks=pytest.mark.sweep)], ids=str
)
def test_needles(arch: str, form: dict[str, Any]) -> None:
    """One token in each sequence, at every cut of tiles, pages and slots: its value, every bit."""
    p = problem([200] * len(CUTS), 40, arch=arch, **form)
    for b, token in enumerate(CUTS):
        p = needle(p, b, token)
    out, _ = run("shared", p, SharedConfig(8, MIN_TOKENS))
    for b, token in enumerate(CUTS):
        value = p.keys(b)[token, :D_V].to(BF16)
        assert torch.equal(out[b], value.expand_as(out[b])), f"token {token}"


def test_scores_that_rise(arch: str) -> None:
    """Token after token far above those before: the result is scaled again and again."""
    p = problem([100], 40, arch=arch)
    key = p.keys(0)[0]
    for token in range(100):
        p.set_row(0, token, key * (1 + token // 7 * 0.25))
    q = needle(p, 0, 0, 1.0)
    for scale in (p.sm_scale, -p.sm_scale, 0.0):
        checked(q.with_(sm_scale=scale), 1)


def test_half_of_the_keys_is_not_enough(arch: str) -> None:
    """What the tests above would see."""
    p = problem([400], 40, arch=arch)
    got = run("shared", p, SharedConfig(1, MIN_TOKENS))
    bounds = torch.tensor([0, 200], dtype=torch.int32)
    fewer = run("shared", p.with_(kv_indptr=bounds, lens=[200]), SharedConfig(1, MIN_TOKENS))
    assert_correct(got, p)
    with pytest.raises(AssertionError, match="relative L2"):
        assert_correct((fewer[0], got[1]), p)


# ---------------------------------------------------------------- what it does


@pytest.mark.parametrize("fp8", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_resources(arch: str, fp8: bool) -> None:
    """Nothing goes to memory but parts, no bank is waited for in the loop, and a workgroup reads
    its part of the cache once."""
    p = problem([1024, 777], 128, arch=arch, fp8=fp8)
    with rfops.vgpu.profile() as profile:
        run("shared", p, SharedConfig(2, MIN_TOKENS))
    (launch,) = profile.launches
    assert launch.vgpr_spills == launch.scratch_bytes_per_lane == 0
    assert launch.lds_conflict_cycles == 0
    least = (1024 + 777) * p.kv[0, 0].nbytes
    parts = 128 * 514 * 4 * 2 * 2  # of two workers, read again by who adds them up
    assert 128 * launch.global_read["lines_128B"] <= 1.02 * least + p.q.nbytes + parts


def test_a_result_is_scaled_only_where_scores_rise(arch: str) -> None:
    """Not at its first tile: there it is zeros, which matrix instructions have made."""
    p = problem([100], 40, arch=arch)
    with rfops.vgpu.profile() as profile:
        run("shared", p.with_(sm_scale=0.01), SharedConfig(1, MIN_TOKENS))
    (launch,) = profile.launches
    written = {name: n for name, n in launch.instructions.items() if "accvgpr_write" in name}
    assert not written, written


def test_parts_are_left_and_asked_for_once(arch: str) -> None:
    """Of two parts each leaves the half of its blocks that the other makes, and reads the other's:
    a block of 8 KiB and a wave at once, in whose code no wait is between loads."""
    # kItemCost of csrc/attention/mla_decode_shared.hip
    cost = {"gfx942": 16 * 12, "gfx950": 32 * 28}[arch]
    p = problem([2 * (cost + MIN_TOKENS)], 128, arch=arch)
    with rfops.vgpu.timing() as t:
        run("shared", p, SharedConfig(2, MIN_TOKENS))
    pcs = sorted(t.launches[0].pcs, key=lambda pc: pc["offset"])
    blocks = 4 * 4  # of the one that is timed, of four waves, half of eight

    def without_a_wait(name: str) -> list[int]:
        runs, now = [], 0
        for pc in pcs:
            if pc["text"].startswith(name) and pc["issued"] == blocks:
                now += 1
            elif now and ("s_waitcnt" in pc["text"] or pc["issued"] != blocks):
                runs.append(now)
                now = 0
        return runs

    assert (runs := without_a_wait("global_load_dwordx2")) == [8], runs
    assert (runs := without_a_wait("global_store_dwordx2")) == [8], runs


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"H": 32}, "32 columns: for one wave of four; flow takes up to 32"),
        ({"H": 128, "page": 3}, "pages of 3 tokens, not a power of two"),
    ],
)
def test_what_is_not_taken(arch: str, change: dict[str, Any], reason: str) -> None:
    c = OP.call_of(arch, **{"B": 2, "S": 32, **change})
    assert reason in str(OP.kernels["shared"].unsupported_reason(c))


def test_who_takes_what(arch: str) -> None:
    """Flow where one group of columns reads tokens, or few are there; shared of many. 4 sequences
    of 8,192 tokens with 128 heads: shared 46 us, flow 61 (estimated, MI300X)."""
    for heads, qo_len, tokens, kernel in (
        (16, 1, 2**20, "flow"),
        (12, 3, 2**20, "shared"),
        (128, 1, 2**18, "shared"),
        (128, 1, 2**17, "shared"),
        (128, 1, 2**11, "flow"),
        (64, 1, 2**13, "flow"),
        (64, 1, 2**19, "shared"),
        (128, 4, 2**16, "shared"),
    ):
        c = OP.call_of(arch, B=4, H=heads, S=tokens // 16, page=16, qo_len=qo_len)
        assert OP.route(c).backend == kernel, (heads, qo_len, tokens)
        config = OP.kernels[kernel].default(c)
        assert OP.config_of(OP.config_text(config)) == config
    for tokens, kernel in ((2**13, "flow"), (2**19, "shared")):  # that their makers share out
        assert OP.route(OP.call_of(arch, B=16, H=128, S=tokens)).backend == kernel, tokens


def test_a_kernel_that_no_call_chooses_has_a_default(arch: str) -> None:
    """Shared is not chosen for few tokens, and runs where it is asked for by name."""
    c = OP.call_of(arch, B=1, H=128, S=400)
    assert "shared" not in OP.time_model.rank(c) and OP.kernels["shared"].space(c) is None
    assert OP.kernels["shared"].default(c) == SharedConfig(c.cu_num, MIN_TOKENS)
    with pytest.raises(ValueError, match="shared: no variant takes B=1"):
        OP.kernels["shared"].default(OP.call_of(arch, B=1, H=16, S=400))


def test_a_plan_holds_for_all_of_its_tokens(arch: str) -> None:
    """New tokens in each step: between two counts at which plans end all get the same kernel."""
    made = {s: OP.order(OP.call_of(arch, B=4, H=128, S=s))[0] for s in range(5_000, 100_000, 77)}
    assert set(made.values()) == {"flow", "shared"}
    for s, kernel in made.items():
        assert OP.order(OP.call_of(arch, B=4, H=128, S=coarse(s, 1)))[0] == kernel, s


@pytest.mark.sweep
@pytest.mark.parametrize("fp8", [False, True])
def test_a_cache_beyond_4_gib(arch: str, fp8: bool) -> None:
    """Rows at its end; none of the others is touched."""
    p = problem([40], 40, arch=arch, fp8=fp8)
    rows = 2**32 // p.kv[0].nbytes + 1000
    far = torch.zeros(rows, 1, 1, 576, dtype=p.kv.dtype)
    far[-len(p.kv) :] = p.kv
    moved = p.with_(kv=far, kv_indices=p.kv_indices + rows - len(p.kv))
    wanted = run("shared", p, SharedConfig(1, MIN_TOKENS))
    for got, want in zip(run("shared", moved, SharedConfig(1, MIN_TOKENS)), wanted, strict=True):
        assert torch.equal(got, want)
