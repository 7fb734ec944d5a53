"""mla_decode's HIP kernel that has q, cache and weights in FP8: as test_mla_decode_shared.py, with
what weights of four bits cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
from rfops.attention.mla_decode import OP
from rfops.attention.mla_decode_shared import MIN_TOKENS, SharedConfig, SharedFp8Config
from rfops.attention.mla_terms import D_V
from support.mla_problems import BF16, Problem, exact, needle, problem, run

# Each weight is rounded by 2^-4 of it at most, 2.5e-2 in the mean. Of few tokens that is the error
# of a head's result; of many there is more in it than their noise.
ROUNDED = 2.0**-4


@pytest.fixture(autouse=True)
def _gfx950(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")


def fp8_problem(lens: list[int], heads: int, **form: Any) -> Problem:
    return problem(lens, heads, fp8=True, q_fp8=True, **form)


def run_fp8(p: Problem, workers: int) -> tuple[torch.Tensor, torch.Tensor]:
    return run("shared_fp8", p, SharedFp8Config(workers, MIN_TOKENS))


def relative_errors(got: torch.Tensor, p: Problem) -> torch.Tensor:
    out = exact(p)[0]
    assert not got.isnan().any(), "NaN in the result"
    return (got.double() - out).norm(dim=-1) / out.norm(dim=-1).clamp(min=1e-300)


def assert_correct(got: tuple[torch.Tensor, torch.Tensor], p: Problem, bound: float) -> None:
    """Each head's relative L2 error, and lse, which is of the weights as they were rounded."""
    relative = relative_errors(got[0], p)
    worst = divmod(int(relative.argmax()), relative.shape[1])
    assert relative.max() <= bound, f"head {worst}: relative L2 {relative[worst]:.2e} > {bound}"
    lse = exact(p)[1]
    none = lse == -math.inf
    assert torch.equal(got[1] == -math.inf, none)
    assert (got[0][none] == 0).all()
    apart = (got[1].double() - lse)[~none].abs().max()
    assert apart <= -math.log(1 - ROUNDED), f"lse is off by {apart:.2e}"


def checked(p: Problem, workers: int, bound: float = ROUNDED) -> tuple[torch.Tensor, torch.Tensor]:
    with rfops.vgpu.check() as c:
        got = run_fp8(p, workers)
    assert_correct(got, p, bound)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    return got


# Columns of some waves, of two workgroups; tails of tiles; each form of a cache. Ragged queries on
# pages are test_mla_ragged.py's.
FEW: dict[str, dict[str, Any]] = {
    "ragged": {"lens": [0, 65, 1, 130, 0], "heads": 36},
}
MORE: dict[str, dict[str, Any]] = {
    "queries": {"lens": [70, 3, 0, 64], "heads": 33, "qo_len": 4, "page": 16},
    "all": {"lens": [64, 7, 129], "heads": 128},
    "many_columns": {"lens": [40, 7], "heads": 128, "qo_len": 3},
    "not_causal": {"lens": [35, 3, 64], "heads": 40, "qo_len": 2, "causal": False},
    "unseen_tiles": {"lens": [50, 3, 133], "heads": 3, "qo_len": 40},
    "table": {"lens": [50, 0, 64, 65], "heads": 40, "page": 64, "table": True},
    "wide_scores": {"lens": [257], "heads": 64, "spread": 4.0},
}


@pytest.mark.parametrize("shape", FEW)
def test_values(shape: str) -> None:
    checked(fp8_problem(**FEW[shape]), 1)


@pytest.mark.sweep
@pytest.mark.parametrize("shape", MORE)
def test_more_values(shape: str) -> None:
    checked(fp8_problem(**MORE[shape]), 1)


def test_the_bar() -> None:
    """Of a thousand tokens each head is within 3e-2; half of them would be seen."""
    p = fp8_problem([1100], 40)
    got = checked(p, 1, 3e-2)
    fewer = p.with_(kv_indptr=torch.tensor([0, 550], dtype=torch.int32), lens=[550])
    assert relative_errors(run_fp8(fewer, 1)[0], p).min() > 0.2
    assert relative_errors(got[0], p).min() > 1e-3, "weights are not FP8"


def test_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bits whoever is last."""
    p = fp8_problem([1300, 40, 0, 300], 40)
    got = checked(p, 12)
    alone = run_fp8(p, 1)
    assert (got[0].double() - alone[0].double()).norm() <= 2 * 3e-2 * alone[0].double().norm()
    for schedule in ("random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        assert all(torch.equal(a, b) for a, b in zip(got, run_fp8(p, 12), strict=True))


CUTS = sorted({0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 95, 127, 128, 129, 191, 192, 199})


@pytest.mark.parametrize("form", [{}, pytest.param({"page": 64}, marks=pytest.mark.sweep)], ids=str)
def test_needles(form: dict[str, Any]) -> None:
    """One token in each sequence, at every cut of tiles, pages and slots: its value, every bit,
    though its weight is rounded."""
    p = fp8_problem([200] * len(CUTS), 40, **form)
    for b, token in enumerate(CUTS):
        p = needle(p, b, token)
    out, _ = run_fp8(p, 8)
    for b, token in enumerate(CUTS):
        value = p.keys(b)[token, :D_V].to(BF16)
        assert torch.equal(out[b], value.expand_as(out[b])), f"token {token}"


def test_scores_that_rise() -> None:
    """Token after token far above those before, or all alike: no weight is too large."""
    p = fp8_problem([150], 40)
    key = p.kv[p.rows(0)][0].float()
    for token in range(150):
        p.set_row(0, token, (key * (0.25 + token // 10 * 0.05)).clamp(-240, 240))
    q = needle(p, 0, 149, 1.0)
    for scale in (p.sm_scale, -p.sm_scale, 0.0):
        checked(q.with_(sm_scale=scale), 1)


def test_a_result_is_not_scaled_where_scores_are_apart() -> None:
    """By 2^30 within a sequence, from tile to tile: weights are brought to FP8's range by tile."""
    p = fp8_problem([300], 40, spread=4.0)
    with rfops.vgpu.profile() as profile:
        run_fp8(p, 1)
    (launch,) = profile.launches
    written = {name: n for name, n in launch.instructions.items() if "accvgpr_write" in name}
    assert not written, written


def test_resources() -> None:
    """Each product by an instruction of 64 along K; nothing goes to memory but parts, no bank is
    waited for, and a workgroup reads its part of the cache once."""
    p = fp8_problem([1024, 777], 128)
    with rfops.vgpu.profile() as profile:
        run_fp8(p, 2)
    (launch,) = profile.launches
    assert launch.vgpr_spills == launch.scratch_bytes_per_lane == 0
    assert launch.lds_conflict_cycles == 0
    turns = 4 * (1024 // 64 + 777 // 64 + 1 + len(p.lens))  # of four waves, one more each part
    parts = sum(n for name, n in launch.instructions.items() if "32x32x64_f8f6f4" in name)
    assert 1 <= parts / (turns * 34) <= 1.1, parts
    least = (1024 + 777) * 5 * 128  # lines that a row lies in
    written = 128 * 514 * 4 * 2 * 2  # of two workers, read again by who adds them up
    assert 128 * launch.global_read["lines_128B"] <= 1.02 * least + p.q.nbytes + written


def test_who_takes_it() -> None:
    """q and cache of FP8, unless the caller wants weights of bf16."""
    fp8 = torch.float8_e4m3fn
    shape = {"B": 64, "H": 128, "S": 2**18}
    c = OP.call_of("gfx950", **shape, q_dtype=fp8, kv_dtype=fp8)
    assert OP.route(c).backend == "shared_fp8"
    for arch, form, reason in (
        ("gfx950", {"kv_dtype": "fp8"}, "q is bfloat16"),
        ("gfx950", {"q_dtype": "fp8"}, "kv is bfloat16"),
        ("gfx942", {"q_dtype": "fp8", "kv_dtype": "fp8"}, "no kernel for gfx942, only for gfx950"),
    ):
        c = OP.call_of(arch, **shape, **form)
        assert reason in str(OP.kernels["shared_fp8"].unsupported_reason(c))
        assert OP.route(c).backend == "shared"


@pytest.mark.sweep
def test_weights_of_bf16_for_who_asks() -> None:
    """The other kernel takes q and cache of FP8 too."""
    p = fp8_problem([90], 40)
    wide = run("shared", p, SharedConfig(1, MIN_TOKENS))[0]
    assert relative_errors(wide, p).max() <= 4e-3
