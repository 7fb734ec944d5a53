"""mla_decode: its formula by every kernel, honestly: no key may be dropped, doubled or invented."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
from rfops.attention.mla_decode import OP, mla_decode, mla_decode_ref
from rfops.attention.mla_decode_flow import MIN_TOKENS, FlowConfig
from rfops.attention.mla_terms import D_V
from rfops.dispatch.compare import assert_within, tolerance
from rfops.jit.launch import hip
from support.mla_problems import BF16, Problem, assert_correct, call, exact, needle, problem, run

pytestmark = pytest.mark.usefixtures("_arch")
KERNELS = [("gfx950", "torch"), ("gfx942", "flow"), ("gfx950", "flow"), ("gfx950", "triton")]


@pytest.fixture(params=KERNELS, ids="-".join)
def kernel(request: pytest.FixtureRequest) -> str:
    name: str = request.param[1]
    return name


@pytest.fixture
def arch(request: pytest.FixtureRequest) -> str:
    callspec = getattr(request.node, "callspec", None)
    params = {} if callspec is None else callspec.params
    name: str = params.get("kernel", ("gfx950",))[0]
    return name


@pytest.fixture
def _arch(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)


# ---------------------------------------------------------------- values

SHAPES: dict[str, dict[str, Any]] = {
    "one": {"lens": [1]},
    "tile": {"lens": [16, 32]},
    "ragged": {"lens": [0, 33, 1, 130, 0]},
    "few_heads": {"lens": [70, 17], "heads": 8},
    "one_head": {"lens": [40], "heads": 1},
    "odd_heads": {"lens": [40, 5], "heads": 5, "qo_len": 3},
    "two_queries": {"lens": [65, 2, 1], "heads": 8, "qo_len": 2},
    "four_queries": {"lens": [35, 3, 0, 64], "heads": 4, "qo_len": 4},
    "not_causal": {"lens": [35, 3, 64], "heads": 4, "qo_len": 4, "causal": False},
    "pages_of_16": {"lens": [50, 16, 0, 100], "page": 16},
    "pages_of_64": {"lens": [50, 64, 65], "page": 64},
    "table": {"lens": [50, 0, 64, 65], "page": 16, "table": True},
    "table_of_tokens": {"lens": [50, 7], "page": 1, "table": True},
    "wide_scores": {"lens": [257], "spread": 6.0},
    "fp8": {"lens": [100, 0, 33], "fp8": True},
    "fp8_pages": {"lens": [100, 33], "fp8": True, "page": 64},
    "fp8_table": {
        "lens": [100, 33],
        "fp8": True,
        "page": 16,
        "table": True,
        "qo_len": 2,
        "heads": 8,
    },
    "fp8_q": {"lens": [90, 31], "fp8": True, "q_fp8": True},
    "fp8_q_alone": {"lens": [90, 31], "q_fp8": True},
    "many_heads": {"lens": [40, 7], "heads": 128},
    "columns": {"lens": [40, 7], "heads": 12, "qo_len": 4},
}


@pytest.mark.thin(8)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(kernel: str, arch: str, shape: str) -> None:
    """Against float64 of the inputs as they are; what is not named is NaN."""
    p = problem(**SHAPES[shape], arch=arch)
    with rfops.vgpu.check() as c:
        got = run(kernel, p)
    assert_correct(got, p)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)


@pytest.mark.parametrize("fp8", [False, True])
def test_half_of_the_keys_is_not_enough(arch: str, fp8: bool) -> None:
    """The tests above would see it: what a looser check has passed."""
    p = problem([2048], arch=arch, fp8=fp8)
    got = run("torch", p)
    assert_correct(got, p)
    for kept in (1024, 2044):
        bounds = torch.tensor([0, kept], dtype=torch.int32)
        fewer = p.with_(kv_indptr=bounds, lens=[kept])
        with pytest.raises(AssertionError, match="relative L2"):
            assert_correct((run("torch", fewer)[0], got[1]), p)
        with pytest.raises(AssertionError, match="lse is off"):
            assert_correct((got[0], run("torch", fewer)[1]), p)


CUTS = sorted({0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 127, 128, 129, 191, 192, 199})


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "form", [{}, {"fp8": True}, {"page": 16}, {"fp8": True, "page": 64}], ids=str
)
def test_needles(kernel: str, arch: str, form: dict[str, Any]) -> None:
    """One token in each sequence, at every cut of tiles, pages and waves: its value, every bit."""
    p = problem([200] * len(CUTS), arch=arch, **form)
    for b, token in enumerate(CUTS):
        p = needle(p, b, token)
    out, _ = run(kernel, p)
    for b, token in enumerate(CUTS):
        value = p.keys(b)[token, :D_V].to(BF16)
        assert torch.equal(out[b], value.expand_as(out[b])), f"token {token}"


def test_two_needles(kernel: str, arch: str) -> None:
    """Equal keys far apart: the mean of their values, in every head."""
    p = problem([300], arch=arch)
    pages, places = p.rows(0)
    for other in (17, 130, 299):
        two = p.with_(kv=p.kv.clone())
        key = two.keys(0)[3].clone()
        key[:D_V] = torch.randint(-4, 5, (D_V,)).double()
        two.set_row(0, 3, key)
        two.set_row(0, other, key)
        got, lse = run(kernel, needle(two, 0, 3, 4.0))
        assert torch.equal(got[0], key[:D_V].to(BF16).expand_as(got[0])), other
        score = (needle(two, 0, 3, 4.0).q[0].double() @ key) * p.sm_scale
        assert torch.allclose(lse[0].double(), score + math.log(2), rtol=2e-5)
    assert len(pages) == len(places) == 300


def test_queries_one_by_one(kernel: str, arch: str) -> None:
    """qo_len queries of a sequence are calls of one query on what each sees."""
    lens, qo_len = [70, 3, 18], 4
    p = problem(lens, 4, arch=arch, qo_len=qo_len)
    out, lse = run(kernel, p)
    assert p.kv_indptr is not None
    for t in range(qo_len):
        seen = [max(0, n - (qo_len - 1 - t)) for n in lens]
        first = [int(a) for a in p.kv_indptr[:-1]]
        own = [p.kv_indices[a : a + n] for a, n in zip(first, seen, strict=True)]
        bounds = torch.tensor([0, *torch.tensor(seen).cumsum(0).tolist()], dtype=torch.int32)
        one = p.with_(
            q=p.q[t::qo_len].contiguous(),
            kv_indptr=bounds,
            kv_indices=torch.cat(own),
            lens=seen,
            qo_len=1,
        )
        alone, alone_lse = run(kernel, one)
        assert torch.allclose(out[t::qo_len].float(), alone.float(), rtol=2**-7, atol=2e-3)
        assert torch.allclose(lse[t::qo_len], alone_lse, rtol=2e-5)


@pytest.mark.parametrize("name", ["torch", "flow", "triton"])
def test_all_queries_see_all(name: str, arch: str) -> None:
    """Without causal the first query of a sequence sees its last token."""
    p = problem([35, 3, 64], 4, arch=arch, qo_len=4, causal=False)
    got = run(name, p)
    assert_correct(got, p)
    with pytest.raises(AssertionError, match="relative L2"):
        assert_correct(got, p.with_(causal=True))


def test_the_reference_is_the_formula(arch: str) -> None:
    for shape in ("ragged", "four_queries", "not_causal", "table", "fp8_q"):
        p = problem(**SHAPES[shape], arch=arch)
        lse = torch.full(p.q.shape[:2], math.nan)
        args = p.args(lse, torch.empty(0))[:-1]
        out = mla_decode_ref(*args, dtype=torch.float64)
        wanted, wanted_lse = exact(p)
        assert torch.allclose(out, wanted) and torch.allclose(lse.double(), wanted_lse)


def test_weights_that_kernels_lose(arch: str) -> None:
    """exp's results below 2^-126 are zeros: bench and tune allow for it."""
    q, kv = torch.zeros(1, 16, 576, dtype=BF16), torch.zeros(2, 1, 1, 576, dtype=BF16)
    q[..., -1], kv[1, ..., -1], kv[1, ..., 0] = 1.0, -87.5, 4.0  # a weight of 2^-126.2
    ends, pages = (torch.tensor([0, 2], dtype=torch.int32), torch.arange(2, dtype=torch.int32))
    got = rfops.mla_decode(q, kv, ends, pages, 1.0, config=FlowConfig(1, MIN_TOKENS))
    exact = mla_decode_ref(q, kv, ends, pages, 1.0, 1, dtype=torch.float64)
    assert got[0, 0, 0] == 0 and exact[0, 0, 0] > torch.finfo(BF16).smallest_normal
    bound = tolerance(exact, OP.sums(q, kv, ends, pages, 1.0, 1), 2.0**24 * 2.0**-8, BF16)
    assert_within(got, exact, bound)
    assert bound.max() < 1e-33


# ---------------------------------------------------------------- the op


@pytest.mark.thin(3)
@pytest.mark.parametrize("shape", ["ragged", "four_queries", "table", "fp8_q", "columns"])
def test_the_op(arch: str, shape: str) -> None:
    """With and without results that are given; warm; under torch.compile; its fake."""
    p = problem(**SHAPES[shape], arch=arch)
    wanted = call(p)
    lse = torch.full(p.q.shape[:2], math.nan)
    assert_correct((wanted, run("torch", p)[1]), p)
    for _ in range(2):
        out = torch.full_like(wanted, math.nan)
        assert call(p, out=out, lse=lse) is out
        assert_correct((out, lse), p)
    compiled = torch.compile(lambda q: call(p.with_(q=q)) * 2, backend="aot_eager")
    assert torch.equal(compiled(p.q), wanted * 2)
    if p.q_scale is not None:
        return  # opcheck multiplies q, which torch cannot in FP8
    torch.library.opcheck(torch.ops.rfops.mla_decode.default, [*p.args(None, wanted)[:-1], ""])
    torch.library.opcheck(
        torch.ops.rfops.mla_decode.default,
        [*p.args(lse, wanted)[:-1], ""],
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("heads", [16, 40])
def test_graph_capture(heads: int, gfx950: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a captured call replays with other lengths and contents. On the virtual GPU, which
    has no graphs, a warm call makes no HIP call but launches: none that allocates or waits."""
    p, other = problem([300, 40], heads), problem([40, 300], heads, seed=1)
    names = ("q", "kv", "kv_indptr", "kv_indices")
    given = {name: getattr(p, name).to(gfx950) for name in names}
    lse = torch.full(p.q.shape[:2], math.nan, device=gfx950)
    out = torch.full((2, heads, D_V), math.nan, dtype=BF16, device=gfx950)
    mla_decode(**given, sm_scale=p.sm_scale, out=out, lse=lse)
    assert_correct((out.cpu(), lse.cpu()), p)
    if gfx950.type == "cpu":
        monkeypatch.setattr(hip.Hip, "call", lambda _self, name, *_: pytest.fail(name))
        mla_decode(**given, sm_scale=p.sm_scale, out=out.fill_(math.nan), lse=lse)
        assert_correct((out, lse), p)
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mla_decode(**given, sm_scale=p.sm_scale, out=out, lse=lse)
    for name, tensor in given.items():
        tensor.copy_(getattr(other, name))
    for _ in range(2):  # counts are zero again
        out.fill_(math.nan)
        graph.replay()
        assert_correct((out.cpu(), lse.cpu()), other)


def test_nothing_to_do() -> None:
    for p in (problem([]), problem([], table=True), problem([0, 0])):
        lse = torch.full(p.q.shape[:2], math.nan)
        assert (call(p, lse=lse) == 0).all() and (lse == -math.inf).all()
    p = problem([3])
    assert call(p.with_(q=p.q[:, :0])).shape == (1, 0, D_V)


P = problem([20, 3], 4)
T = problem([20, 3], 4, page=16, table=True)
TABLE = torch.zeros(4, 4, dtype=torch.int32)  # of more sequences than q has


@pytest.mark.parametrize(
    ("p", "change", "message"),
    [
        (P, {"q": P.q.float()}, "q must be bfloat16 or float8_e4m3fn or float8_e4m3fnuz"),
        (P, {"q": P.q[..., :512]}, r"q must be a \[T, H, 576\] tensor, got \[2, 4, 512\]"),
        (P, {"q": P.q[:1]}, r"kv_indptr must be of batch \+ 1 = 2 elements, got 3"),
        (P, {"qo_len": 0}, "qo_len must be an int from 1"),
        (P, {"qo_len": 4}, r"q must be of batch \* qo_len = 0 \* 4 rows, got 2"),
        (P, {"kv": P.kv.squeeze(2)}, r"kv must be a \[P, page, 1, 576\] tensor"),
        (P, {"kv": P.kv.float()}, "kv must be bfloat16 or"),
        (P, {"kv": P.kv[:, :0]}, "kv must be of pages of 1 token or more, got 0"),
        (P, {"kv_indptr": None}, r"kv_indptr must be a \[ends\] tensor, got NoneType"),
        (P, {"kv_indptr": torch.zeros(3)}, "kv_indptr must be int32"),
        (P, {"kv_indptr": torch.zeros(3, dtype=torch.int64)}, "kv_indptr must be int32"),
        (P, {"kv_indices": P.kv_indices.long()}, "kv_indices must be int32"),
        (P, {"kv_lens": torch.zeros(3, dtype=torch.int32)}, r"kv_lens must be a \[batch=2\]"),
        (P, {"kv_scale": 2.0}, "kv_scale must be a tensor or None, got float"),
        (P, {"kv_scale": torch.ones(2)}, "kv_scale must be of 1 = 1"),
        (P, {"sm_scale": "much"}, "sm_scale must be a float, got 'much'"),
        (P, {"causal": 2}, "causal must be a bool, got 2"),
        (P, {"lse": torch.zeros(2, 5)}, r"lse must be a \[T=2, H=4\] tensor"),
        (P, {"out": torch.zeros(2, 4, 512)}, "out must be bfloat16"),
        (P, {"out": P.q.view(-1)[:4096].view(2, 4, 512)}, "out must not overlap q"),
        (P, {"config": 3}, "config must be one of SharedFp8Config, SharedConfig, FlowConfig, Mla"),
        (T, {"kv_indptr": P.kv_indptr, "kv_lens": None}, "kv_indptr must be None where kv_ind"),
        (T, {"kv_lens": None}, "kv_lens must be given with a block"),
        (T, {"kv_indptr": P.kv_indptr}, "kv_indptr must be None where kv_indices is a block table"),
        (T, {"kv_indices": TABLE[:1]}, "kv_indices must be of batch = 2 rows, got 1"),
        (T, {"kv_indices": TABLE}, "kv_indices must be of batch = 2 rows, got 4"),
        (T, {"kv_indices": TABLE[:1].view(-1)[:4].view(1, 4)}, "kv_indices must be of batch = 2"),
        (T, {"kv_indices": TABLE[:0]}, "kv_indices must be of batch = 2 rows, got 0"),
        (T, {"kv_indices": TABLE.view(-1)}, "kv_indptr must be a tensor where kv_indices is"),
        (T, {"kv_indices": TABLE.view(2, 8, 1)}, "kv_indptr must be a tensor where kv_indices is"),
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
        **change,
    }
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^mla_decode: {message}"):
            mla_decode(**given)


@pytest.mark.parametrize("rows", [0, 1, 4, 6])
def test_tables_of_other_rows(arch: str, rows: int) -> None:
    """Refused also behind a call of the same form that was right, whose plan is known."""
    p = problem([20, 3], 4, page=16, table=True)
    call(p)
    wrong = torch.zeros(rows, p.kv_indices.shape[1], dtype=torch.int32)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"kv_indices must be of batch = 2 rows, got {rows}"):
            call(p.with_(kv_indices=wrong))
