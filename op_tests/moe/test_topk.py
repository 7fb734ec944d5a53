"""topk_softmax and grouped_topk against fp64: ids equal, weights within the rounding of fp32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.moe import grouped_topk as grouped_module
from rfops.moe import topk_softmax as softmax_module
from rfops.moe.grouped_topk import grouped_topk, grouped_topk_ref
from rfops.moe.kernels.topk.kernels import FEW_TOKENS, choosing_defines, moe_topk_kernel
from rfops.moe.topk_softmax import topk_softmax, topk_softmax_ref

ARCHS = ("gfx942", "gfx950")
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
NEAR = 40 * 2.0**-24  # fp32: exp, its sum, a division, a sum of weights and another division


@pytest.fixture(params=ARCHS)
def device(request: pytest.FixtureRequest) -> torch.device:
    device: torch.device = request.getfixturevalue(request.param)
    return device


EXACT_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda row: row.softmax(0),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda row: row.exp().log1p().sqrt(),
}


def random_logits(
    m: int, e: int, dtype: torch.dtype = F32, seed: int = 0, apart: bool = True
) -> torch.Tensor:
    """Normal; of a token all different by 2^-6, or of few values, so that many are equal."""
    generator = torch.Generator().manual_seed(1009 * m + 7 * e + seed)
    if not apart:
        return torch.randint(-4, 5, (m, e), generator=generator).to(dtype)
    order = torch.rand(m, e, generator=generator).argsort(1).float()
    steps = (order - e / 2) * 2.0**-6
    return steps.to(dtype)


def assert_chosen(
    actual: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]
) -> None:
    (weights, ids), (wanted, wanted_ids) = ([t.cpu() for t in pair] for pair in (actual, expected))
    assert weights.dtype == F32 and ids.dtype == torch.int32 and ids.shape == wanted_ids.shape
    wrong = (ids != wanted_ids).nonzero()
    assert not len(wrong), (
        f"{len(wrong)} ids of {list(ids.shape)} differ, first at {wrong[0].tolist()}: got "
        f"{ids[tuple(wrong[0])]}, expected {wanted_ids[tuple(wrong[0])]}"
    )
    excess = (weights.double() - wanted.double()).abs() - NEAR * wanted.double()
    offset = int(excess.argmax()) if excess.numel() else 0
    assert not (excess > 0).any(), (
        f"weight {offset} of {list(ids.shape)}: "
        f"{weights.view(-1)[offset]!r}, {wanted.view(-1)[offset]!r}"
    )


def exact_softmax(logits: torch.Tensor, k: int, renormalize: bool) -> tuple[Any, Any]:
    """In fp64, by torch's own softmax and a stable sort."""
    p = logits.cpu().double().softmax(1)
    ids = logits.cpu().float().sort(dim=1, descending=True, stable=True).indices[:, :k]
    weights = p.gather(1, ids)
    return (weights / weights.sum(1, True) if renormalize else weights), ids.int()


def exact_grouped(
    logits: torch.Tensor,
    k: int,
    groups: int,
    taken: int,
    bias: torch.Tensor | None,
    renormalize: bool,
    score: str,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token, in fp64, with lists."""
    rows, selected = [], []
    for row in logits.cpu().double():
        scores = EXACT_SCORES[score](row)
        keys = scores if bias is None else scores + bias.cpu().double()
        each = len(keys) // groups
        best = [
            (-sum(sorted(part.tolist())[-(1 if bias is None else 2) :]), g)
            for g, part in enumerate(keys.split(each))
        ]
        open_groups = {g for _, g in sorted(best)[:taken]}
        pairs = [(-key, e) for e, key in enumerate(keys.tolist()) if e // each in open_groups]
        ids = [e for _, e in sorted(pairs)[:k]]
        weights = scores[ids]
        rows.append((weights / weights.sum() if renormalize else weights) * scale)
        selected.append(ids)
    return torch.stack(rows), torch.tensor(selected, dtype=torch.int32)


# ---------------------------------------------------------------- values


@pytest.mark.thin(5)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    ("m", "e", "k", "dtype"),
    [
        (1, 1, 1, F32),
        (300, 3, 2, F16),
        (65, 8, 8, BF16),
        (70, 33, 5, F32),
        (9, 64, 6, F16),
        (33, 129, 4, F32),
        (5, 256, 8, F32),
        (3, 385, 16, F32),
        (2, 512, 16, F32),
        (3, 1024, 8, F32),
        (3, 1000, 9, BF16),
    ],
)
def test_softmax(
    m: int, e: int, k: int, dtype: torch.dtype, renormalize: bool, device: torch.device
) -> None:
    logits = random_logits(m, e, dtype)
    expected = exact_softmax(logits, k, renormalize)
    assert_chosen(topk_softmax(logits.to(device), k, renormalize), expected)
    assert_chosen(topk_softmax_ref(logits, k, renormalize), expected)


@pytest.mark.thin(7)
@pytest.mark.parametrize(
    ("m", "e", "k", "groups", "taken"),
    [
        (9, 256, 8, 8, 4),
        (5, 384, 8, 1, 1),
        (7, 60, 6, 4, 2),
        (3, 512, 16, 32, 8),
        (4, 8, 2, 8, 3),
        (5, 160, 6, 2, 1),
        (3, 1023, 8, 3, 2),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("score", ["sigmoid", "softmax", "sqrtsoftplus"])
def test_groups(
    m: int,
    e: int,
    k: int,
    groups: int,
    taken: int,
    with_bias: bool,
    score: str,
    device: torch.device,
) -> None:
    logits = random_logits(m, e)
    bias = random_logits(1, e, seed=5)[0] * 3 if with_bias else None
    expected = exact_grouped(logits, k, groups, taken, bias, True, score, 2.5)
    moved = None if bias is None else bias.to(device)
    options: dict[str, Any] = {"score": score, "scale": 2.5}
    assert_chosen(grouped_topk(logits.to(device), k, groups, taken, moved, **options), expected)
    assert_chosen(grouped_topk_ref(logits, bias, k, groups, taken, True, score, 2.5), expected)


def test_runners_up_of_other_groups_are_not_chosen(device: torch.device) -> None:
    """The groups that are not chosen have more large keys than the one that is."""
    logits = random_logits(3, 256) / 8
    logits[:, 32:40] = 4.5
    logits[:, 77] = 5.0
    actual = grouped_topk(logits.to(device), 8, 8, 1)
    assert_chosen(actual, exact_grouped(logits, 8, 8, 1, None, True, "sigmoid", 1.0))


@pytest.mark.parametrize("score", ["sigmoid", "sqrtsoftplus"])
def test_scores_of_any_size(score: str, device: torch.device) -> None:
    """Of logits from -80 to 80, where exp leaves nothing of 1 + x, or of 1; every expert chosen."""
    logits = torch.tensor([[-80.0, -40.0, -17.0, -9.0, -1.0, -1e-3, 0.0, 1e-3, 1, 9, 17, 40, 80]])
    actual = grouped_topk(logits.to(device), 13, renormalize=False, score=score)
    exact = exact_grouped(logits, 13, 1, 1, None, False, score, 1.0)
    order = exact[1].long().argsort(1), actual[1].cpu().long().argsort(1)  # fp32 has equal ones
    weights = actual[0].cpu().gather(1, order[1]), exact[0].gather(1, order[0])
    torch.testing.assert_close(weights[0].double(), weights[1], rtol=NEAR, atol=0)


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_equal_experts_are_taken_by_their_id(dtype: torch.dtype, device: torch.device) -> None:
    """Of logits, of rounded scores, of biased ones and of groups."""
    for m, e in ((40, 32), (9, 200)):
        logits = random_logits(m, e, dtype, apart=False)
        assert_chosen(topk_softmax(logits.to(device), 6), exact_softmax(logits, 6, False))
        for rounds in (False, True):
            actual = topk_softmax(logits.to(device), 6, round_scores=rounds)
            assert_chosen(actual, topk_softmax_ref(logits, 6, False, rounds))
        bias = torch.zeros(e)
        actual = grouped_topk(logits.to(device), 6, 8, 3, bias.to(device))
        assert_chosen(actual, exact_grouped(logits, 6, 8, 3, bias, True, "sigmoid", 1.0))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_rounded_scores_are_torchs(dtype: torch.dtype, device: torch.device) -> None:
    """What torch.softmax gives in that dtype, whose order is not always that of the logits."""
    logits = torch.randn(200, 32, generator=torch.Generator().manual_seed(0)) / 100
    logits = logits.to(dtype)
    p = logits.softmax(1)
    ids = p.sort(dim=1, descending=True, stable=True).indices[:, :4]
    weights, actual = topk_softmax(logits.to(device), 4, round_scores=True)
    assert torch.equal(actual.cpu().long(), ids)
    assert torch.equal(weights.cpu(), p.gather(1, ids).float())
    by_logit = topk_softmax(logits.to(device), 4)[1]
    assert not torch.equal(by_logit.cpu().long(), ids), "else nothing is shown"


@pytest.mark.thin(3)
@pytest.mark.parametrize("e", [5, 64, 300])
def test_what_is_no_number_gives_ids_that_are_experts(e: int, device: torch.device) -> None:
    logits = random_logits(8, e)
    logits[0] = math.nan
    logits[1] = -math.inf
    logits[2] = math.inf
    logits[3, 1:] = math.nan
    logits[4, ::2] = math.inf
    logits[5, e // 2] = math.nan
    logits[6, e // 2] = -math.inf
    bias = torch.zeros(e)
    bias[0], bias[1], bias[2] = math.nan, math.inf, -math.inf
    options: list[Any] = [
        topk_softmax(logits.to(device), 4),
        topk_softmax(logits.to(device), 4, True, round_scores=True),
        grouped_topk(logits.to(device), 4, bias=bias.to(device)),
    ]
    if e % 5 == 0:
        options.append(grouped_topk(logits.to(device), 4, 5, 5, bias=bias.to(device)))
    for weights, ids in options:
        assert weights.isfinite().all()
        assert ((ids >= 0) & (ids < e)).all()
        assert all(len(set(row)) == 4 for row in ids.tolist())
    weights, ids = options[0]
    assert ids[3, 0] == 0 and weights[3, 0] == 1.0
    assert e // 2 not in ids[5].tolist() or e == 5
    assert_chosen(options[0], topk_softmax_ref(logits, 4))
    assert options[2][1][:, 0].eq(1).all(), "the expert of an infinite bias"


def test_any_strides_and_results_in_place(device: torch.device) -> None:
    wide = torch.full((50, 160), math.nan)
    views = {
        "columns": wide[:, 7:39],
        "every other": wide[:, ::5],
        "transposed": torch.full((32, 50), math.nan).T,
        "one row for all": torch.empty(32).expand(50, 32),
    }
    logits = random_logits(50, 32)
    for name, view in views.items():
        if name == "one row for all":
            view = logits[:1].expand(50, 32)
        else:
            view.copy_(logits)
        weights, ids = torch.full((50, 4), math.nan), torch.full((50, 4), -7, dtype=torch.int32)
        weights, ids = weights.to(device), ids.to(device)
        actual = topk_softmax(view.to(device), 4, weights=weights, ids=ids)
        assert actual[0] is weights and actual[1] is ids
        assert_chosen(actual, exact_softmax(view, 4, False))


def test_other_sizes_of_a_family(device: torch.device) -> None:
    for m in (1, 2, 63, 64, 65, 200, 7):
        logits = random_logits(m, 40)
        assert_chosen(topk_softmax(logits.to(device), 3), exact_softmax(logits, 3, False))
    for e, k in ((41, 3), (40, 5), (70, 3)):
        logits = random_logits(7, e)
        assert_chosen(topk_softmax(logits.to(device), k), exact_softmax(logits, k, False))


def test_workgroups_of_a_family_are_those_of_each_number_of_tokens(device: torch.device) -> None:
    """A token has a workgroup, beyond `FEW_TOKENS` a wave of four, whichever was first."""
    for e, sizes in ((96, (FEW_TOKENS, FEW_TOKENS + 1, 3)), (70, (259, 5))):
        for m in sizes:
            logits = random_logits(m, e)
            assert_chosen(topk_softmax(logits.to(device), 3), exact_softmax(logits, 3, False))
    threads = {
        (m, e): int(choosing_defines({"M": m, "E": e, "K": 8})["THREADS"])
        for m in (FEW_TOKENS, FEW_TOKENS + 1)
        for e in (16, 384, 512)
    }
    assert threads == {
        **{(FEW_TOKENS, 16): 256, (FEW_TOKENS, 384): 64, (FEW_TOKENS, 512): 64},
        **{(FEW_TOKENS + 1, 16): 256, (FEW_TOKENS + 1, 384): 256, (FEW_TOKENS + 1, 512): 256},
    }


def test_writes_its_results_alone(device: torch.device) -> None:
    logits = random_logits(37, 33).to(device)
    for k in (1, 5):
        memory = torch.full((37 * k + 64,), -7.0, device=device)
        whole = torch.full((37 * k + 64,), -7, dtype=torch.int32, device=device)
        weights, ids = (t[32 : 32 + 37 * k].view(37, k) for t in (memory, whole))
        assert_chosen(
            topk_softmax(logits, k, weights=weights, ids=ids), exact_softmax(logits, k, False)
        )
        for buffer in (memory, whole):
            assert (buffer[:32] == -7).all() and (buffer[-32:] == -7).all()


def test_scores_of_0_have_weights_of_0(device: torch.device) -> None:
    """exp(-200) is below fp32: their sum is 0, and nothing is divided by it."""
    logits = torch.full((3, 16), -200.0, device=device)
    for renormalize in (False, True):
        for weights, ids in (
            grouped_topk(logits, 2, 4, 2, renormalize=renormalize),
            grouped_topk_ref(logits, None, 2, 4, 2, renormalize),
        ):
            assert weights.tolist() == [[0.0, 0.0]] * 3, weights
            assert ids.tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("distance", [60.0, 80.0, 86.0])
def test_a_bias_chooses_scores_of_almost_0(distance: float, device: torch.device) -> None:
    """The chosen experts' softmax sums to e^-distance, which at 86 is near fp32's least."""
    logits = torch.tensor([[0.0] * 4 + [-distance] * 4], device=device)
    bias = torch.tensor([0.0] * 4 + [10.0] * 4, device=device)
    weights, ids = grouped_topk(logits, 2, bias=bias, renormalize=True, score="softmax")
    assert ids.tolist() == [[4, 5]] and weights.tolist() == [[0.5, 0.5]], weights


def test_empty(device: torch.device) -> None:
    weights, ids = topk_softmax(torch.empty(0, 8, device=device), 2)
    assert weights.shape == ids.shape == (0, 2)
    assert grouped_topk(torch.empty(0, 8, device=device), 2, 4, 2)[1].shape == (0, 2)


@pytest.mark.parametrize("arch", ARCHS)
def test_checker_finds_nothing(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    with rfops.vgpu.check() as checked:
        for e, k in ((3, 2), (33, 5), (256, 8), (500, 16)):
            topk_softmax(random_logits(37, e), k, True)
        grouped_topk(random_logits(9, 256), 8, 8, 4, torch.zeros(256))
    assert not checked.findings, "\n".join(map(str, checked.findings))


# ---------------------------------------------------------------- what it does


@pytest.mark.thin(3)
def test_resources(device: torch.device) -> None:
    for op, sizes in (
        (softmax_module.OP, {"E": 1024, "K": 16}),
        (softmax_module.OP, {"E": 32, "K": 4, "round_scores": True}),
        (grouped_module.OP, {"E": 256, "K": 8, "num_groups": 8, "topk_groups": 4, "bias": 1}),
        (grouped_module.OP, {"M": 300, "E": 384, "K": 8, "bias": 1}),
        (grouped_module.OP, {"E": 512, "K": 16, "num_groups": 32, "topk_groups": 9, "bias": 1}),
    ):
        kernel = op.kernels["hip"]
        c = op.call_of("gfx950", **{"M": 4, **sizes})
        resources = moe_topk_kernel.bind(device, kernel.defines(c, None)).resources
        assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch"] == 0
        assert resources["waves_per_simd"] >= 4


def test_routes() -> None:
    for arch in ARCHS:
        for e, k, backend in ((1024, 16, "hip"), (1025, 16, "torch"), (512, 17, "torch")):
            c = softmax_module.OP.call_of(arch, M=4, E=e, K=k)
            assert softmax_module.OP.route(c).backend == backend
        c = grouped_module.OP.call_of(arch, M=4, E=512, K=4, num_groups=64, topk_groups=4)
        assert grouped_module.OP.route(c).backend == "torch"
    logits = random_logits(3, 600)
    assert_chosen(topk_softmax(logits, 20), exact_softmax(logits, 20, False))
    grouped = grouped_topk(logits, 20, 60, 5, torch.zeros(600))
    assert_chosen(grouped, exact_grouped(logits, 20, 60, 5, torch.zeros(600), True, "sigmoid", 1.0))


def test_opcheck_and_compile() -> None:
    torch.library.opcheck(
        torch.ops.rfops.topk_softmax.default, (random_logits(6, 9), 2, True, False)
    )
    torch.library.opcheck(
        torch.ops.rfops.grouped_topk.default,
        (random_logits(6, 16), torch.zeros(16), 2, 4, 2, True, "sigmoid", 1.0),
    )

    def used(logits: torch.Tensor) -> torch.Tensor:
        return topk_softmax(logits, 2)[0] + 1

    compiled = torch.compile(used, backend="aot_eager", fullgraph=True, dynamic=True)
    for m in (4, 9):
        assert torch.equal(compiled(random_logits(m, 9)), used(random_logits(m, 9)))


LOGITS = torch.zeros(4, 12)
SOFTMAX_REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "a list": (([0.0], 1), r"logits must be a \[M, E\] tensor, got list"),
    "one dimension": ((torch.zeros(4), 1), r"logits must be a \[M, E\] tensor, got \[4\]"),
    "float64": ((LOGITS.double(), 1), "logits must be bfloat16 or float16 or float32, .*; convert"),
    "no experts": ((torch.zeros(4, 0), 1), "E must be positive, got E=0; pass one expert"),
    "top_k of 0": ((LOGITS, 0), "top_k must be an int from 1 to .*, got 0"),
    "more than E": ((LOGITS, 13), "top_k must be at most 12, the experts that may be chosen, got"),
    "a float": ((LOGITS, 2.0), "top_k must be an int from 1"),
    "no flag": ((LOGITS, 2, "yes"), "renormalize must be a bool, got 'yes'"),
    "on meta": ((LOGITS.to("meta"), 2), "logits must be on a GPU"),
}


@pytest.mark.parametrize("case", SOFTMAX_REFUSALS)
def test_softmax_refusals(case: str) -> None:
    args, message = SOFTMAX_REFUSALS[case]
    with pytest.raises(ValueError, match=f"^topk_softmax: {message}"):
        topk_softmax(*args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": torch.zeros(4, 3)},
            r"weights must be a \[M=4, top_k=2\] tensor, got",
        ),
        ({"ids": torch.zeros(4, 2)}, "ids must be int32, got"),
        ({"weights": torch.zeros(2, 4).T}, "weights must be contiguous"),
        ({"weights": LOGITS.view(-1)[:8].view(4, 2)}, "weights must not overlap logits"),
    ],
)
def test_refused_results(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^topk_softmax: {message}"):
        topk_softmax(LOGITS, 2, **options)


GROUPED_REFUSALS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "uneven groups": ((LOGITS, 2, 5, 2), {}, "num_groups must be a divisor of E=12, got 5"),
    "too many groups": ((LOGITS, 2, 3, 4), {}, "topk_groups must be at most num_groups=3, got 4"),
    "too few experts": ((LOGITS, 5, 6, 2), {}, "top_k must be at most 4, the experts that may"),
    "a short bias": ((LOGITS, 2, 1, 1, torch.zeros(3)), {}, r"bias must be a \[E=12\] tensor"),
    "another score": (
        (LOGITS, 2),
        {"score": "relu"},
        "score must be sigmoid, softmax or sqrtsoftplus, got 'r",
    ),
    "no scale": ((LOGITS, 2), {"scale": "much"}, "scale must be a float, got 'much'"),
}


@pytest.mark.parametrize("case", GROUPED_REFUSALS)
def test_grouped_refusals(case: str) -> None:
    args, options, message = GROUPED_REFUSALS[case]
    with pytest.raises(ValueError, match=f"^grouped_topk: {message}"):
        grouped_topk(*args, **options)


def test_supports() -> None:
    assert topk_softmax.supports(arch="gfx942", dtype=F16)  # type: ignore[attr-defined]
    assert not topk_softmax.supports(arch="gfx942", dtype=torch.int32)  # type: ignore[attr-defined]
    assert grouped_topk.supports(arch="sm_90", shape=(4, 16, 4))  # type: ignore[attr-defined]
    assert not grouped_topk.supports(arch="gfx950", shape=(4, 16, 17))  # type: ignore[attr-defined]
