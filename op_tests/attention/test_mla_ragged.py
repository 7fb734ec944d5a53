"""mla_decode with qo_indptr: sequences of some number of queries each, also as prefill."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
from rfops.attention.mla_decode import OP, mla_decode, mla_decode_ref
from rfops.attention.mla_decode_flow import SHORT_MIN_TOKENS, FlowConfig
from rfops.attention.mla_decode_shared import MIN_TOKENS as MIN_TOKENS_SHARED
from rfops.attention.mla_decode_shared import SharedConfig, SharedFp8Config
from rfops.attention.mla_decode_triton import MlaTritonConfig
from rfops.attention.mla_terms import D_V
from support.mla_problems import BF16, Problem, assert_correct, call, exact, problem, run

# Several workers for an item, several items for a worker.
CONFIGS: dict[str, Any] = {
    "torch": None,
    "triton": MlaTritonConfig(32, 3),
    "flow": FlowConfig(5, SHORT_MIN_TOKENS),
    "shared": SharedConfig(5, MIN_TOKENS_SHARED),
    "shared_fp8": SharedFp8Config(5, MIN_TOKENS_SHARED),
}
KERNELS = [
    ("gfx950", "torch"),
    ("gfx950", "triton"),
    ("gfx942", "flow"),
    ("gfx950", "flow"),
    ("gfx942", "shared"),
    ("gfx950", "shared"),
]


@pytest.fixture(params=KERNELS, ids="-".join)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param[0])
    arch, name = request.param
    return arch, name


def heads_of(name: str) -> int:
    return 33 if name.startswith("shared") else 5


# Sequences without queries, without tokens, with fewer tokens than queries; more than 64.
MIXED = {"lens": [70, 3, 0, 64, 200, 130, 9], "qo_lens": [1, 4, 2, 0, 7, 20, 0]}
FORMS: dict[str, dict[str, Any]] = {
    "list": MIXED,
    "not_causal": {**MIXED, "causal": False},
    "fp8_table": {**MIXED, "fp8": True, "page": 16, "table": True},
    "prefill": {"lens": [40, 1, 77], "qo_lens": [40, 1, 77]},
}
# Left out: a table of single tokens and a list of FP8 pages, whose variants the forms above run.
MORE: dict[str, dict[str, Any]] = {
    "long": {"lens": [300, 140, 128, 128], "qo_lens": [1, 128, 0, 128]},
    "pages": {**MIXED, "page": 16, "causal": False},
    "many": {"lens": [*range(70)] * 2, "qo_lens": [n % 4 for n in range(140)]},
    "prefill_fp8": {"lens": [150, 31, 64], "qo_lens": [150, 31, 64], "fp8": True},
    "none": {"lens": [5, 70], "qo_lens": [0, 0]},
}


def checked(kernel: tuple[str, str], p: Problem, bound: float | None = None) -> None:
    """What is right, in rows of sequences alone, and about which the checks find nothing."""
    with rfops.vgpu.check() as c:
        got = run(kernel[1], p, CONFIGS[kernel[1]])
    assert_correct(got, p, bound)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)


@pytest.mark.thin(5)
@pytest.mark.parametrize("form", FORMS)
def test_values(kernel: tuple[str, str], form: str) -> None:
    """Against float64; rows before and behind those of sequences are not written."""
    checked(kernel, problem(**FORMS[form], heads=heads_of(kernel[1]), arch=kernel[0]))


@pytest.mark.sweep
@pytest.mark.parametrize("form", MORE)
def test_more_values(kernel: tuple[str, str], form: str) -> None:
    checked(kernel, problem(**MORE[form], heads=heads_of(kernel[1]), arch=kernel[0]))


@pytest.mark.requires_gfx950
def test_p_of_fp8() -> None:
    """Its P has three bits of a mantissa: 2^-4 of each weight, of 70 tokens at least together."""
    p = problem(**MIXED, heads=33, fp8=True, q_fp8=True, page=16)
    out, lse = run("shared_fp8", p, CONFIGS["shared_fp8"])
    wanted, wanted_lse = exact(p)
    rows = [row for b in range(7) for row in p.queries(b)]
    error = (out.double() - wanted)[rows].norm(dim=-1) / wanted[rows].norm(dim=-1).clamp(min=1e-30)
    assert error.max() <= 2**-4 and (lse.double() - wanted_lse)[rows].nan_to_num().abs().max() < 0.1
    assert out[~p.is_row].isnan().all() and lse[~p.is_row].isnan().all()


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ["shared", "flow"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_as_calls_of_single_queries(arch: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform lengths in both forms; and the same bits for any number of workgroups twice."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    p = problem([70, 3, 200], heads_of(name), arch=arch, qo_len=2)
    wanted = run(name, p, CONFIGS[name])
    starts = torch.arange(4, dtype=torch.int32) * 2
    got = run(name, p.with_(qo_indptr=starts), CONFIGS[name])
    assert torch.allclose(got[0].float(), wanted[0].float(), rtol=2**-6, atol=4e-3)
    assert torch.allclose(got[1], wanted[1], rtol=2e-5)
    again = run(name, p.with_(qo_indptr=starts), CONFIGS[name])
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@pytest.mark.requires_gfx950
@pytest.mark.thin(2)
@pytest.mark.parametrize("form", ["list", "fp8_table"])
def test_the_op(form: str) -> None:
    """With and without a hint, which may be wrong for HIP's; under torch.compile; the reference."""
    p = problem(**FORMS[form], heads=5)
    lse, out = torch.full(p.q.shape[:2], math.nan), torch.full((*p.q.shape[:2], D_V), math.nan)
    for hint in (None, 20, 7):
        out = torch.full_like(out, math.nan, dtype=BF16)
        assert call(p, out=out, lse=lse.fill_(math.nan), max_qo_len=hint) is out
        assert_correct((out, lse), p)
    compiled = torch.compile(lambda q: call(p.with_(q=q)) * 2, backend="aot_eager")
    assert torch.equal(compiled(p.q)[p.is_row], call(p)[p.is_row] * 2)
    own = torch.empty(p.q.shape[:2])
    reference = mla_decode_ref(*p.args(own, out)[:-1], dtype=torch.float64)
    wanted, wanted_lse = exact(p)
    assert torch.allclose(reference, wanted) and torch.allclose(own.double(), wanted_lse)


@pytest.mark.requires_gfx950
def test_other_lengths_by_one_plan() -> None:
    """What the second call has is read from its own tensors."""
    for lens, qo_lens in (([70, 9, 33], [1, 3, 2]), ([33, 70, 9], [3, 0, 3])):
        p = problem(lens, 5, qo_lens=qo_lens)
        lse, out = torch.full(p.q.shape[:2], math.nan), torch.full((*p.q.shape[:2], D_V), math.nan)
        assert_correct((call(p, out=out.to(BF16), lse=lse, max_qo_len=3), lse), p)


@pytest.mark.requires_gfx950
def test_rows_that_q_does_not_have() -> None:
    """Sequences whose queries lie behind q have none."""
    p = problem([70, 9, 33], 5, qo_lens=[1, 2, 4])
    short = p.with_(q=p.q[:4].contiguous(), lens=[70, 9, 0])
    wanted = run("torch", short)
    for name in ("torch", "flow", "triton"):
        got = run(name, short, CONFIGS[name])
        assert torch.allclose(got[0][1:4].float(), wanted[0][1:4].float(), rtol=2**-6, atol=4e-3)
        assert got[0][0].isnan().all() and got[0].shape[0] == 4


@pytest.mark.requires_gfx950
def test_without_sequences() -> None:
    p = problem([70], 5, qo_lens=[2])
    none = torch.zeros(1, dtype=torch.int32)
    out = torch.full((*p.q.shape[:2], D_V), 7.0, dtype=BF16)
    mla_decode(p.q, p.kv, none, p.kv_indices, 1.0, qo_indptr=none, out=out)
    assert (out == 7).all()


P = problem([20, 3], 4, qo_lens=[2, 1])
T = problem([20, 3], 4, qo_lens=[2, 1], page=16, table=True)


@pytest.mark.parametrize(
    ("p", "change", "message"),
    [
        (P, {"qo_indptr": P.qo_indptr[:2]}, r"qo_indptr must be a \[ends=3\] tensor"),
        (T, {"qo_indptr": T.qo_indptr[:2]}, r"kv_lens must be a \[batch=1\] tensor"),
        (P, {"qo_indptr": P.qo_indptr.long()}, "qo_indptr must be int32"),
        (P, {"qo_indptr": P.qo_indptr[:0]}, r"qo_indptr must be of batch \+ 1 elements, got 0"),
        (P, {"qo_indptr": [0, 2, 3]}, "qo_indptr must be a tensor or None, got list"),
        (P, {"qo_len": 2}, "qo_len must be left out beside qo_indptr, got 2"),
        (P, {"max_qo_len": 2.5}, "max_qo_len must be an int from 0"),
        (P, {"qo_indptr": None, "max_qo_len": 2}, "max_qo_len must be None without qo_indptr"),
    ],
)
def test_refusals(p: Problem, change: dict[str, Any], message: str) -> None:
    given = {
        "q": p.q,
        "kv": p.kv,
        "kv_indptr": p.kv_indptr,
        "kv_indices": p.kv_indices,
        "sm_scale": 1.0,
        "kv_lens": p.kv_lens,
        "qo_indptr": p.qo_indptr,
        **change,
    }
    with pytest.raises(ValueError, match=f"^mla_decode: {message}"):
        mla_decode(**given)


def test_what_a_kernel_cannot_share_out() -> None:
    """Items times tokens of 2^32 and more are Triton's."""
    sizes = {"B": 1, "H": 128, "T": 2**16, "S": 2**24, "qo_len": 2**16}
    c = OP.call_of("gfx950", **sizes, qo_indptr=True)
    for name in ("flow", "shared"):
        assert "2^32 or more to share out" in str(OP.kernels[name].unsupported_reason(c))
        few = OP.call_of("gfx950", **{**sizes, "qo_len": 16}, qo_indptr=True)
        assert OP.kernels[name].unsupported_reason(few) is None
