"""Callers as they are: each passes what vLLM 0.33 or SGLang 0.5.23 passes, in their order."""

from __future__ import annotations

import logging
import math
import sys
import types
from typing import Any

import pytest
import torch

import rfops
from rfops import compat
from rfops.jit import log
from rfops.moe import moe_dropins
from rfops.moe.align_block_size import moe_align_block_size_ref
from rfops.moe.kernels.topk.choosing import choose
from support.moe_fp8_problems import assert_correct as assert_fp8_correct
from support.moe_fp8_problems import random_problem as random_fp8
from support.moe_problems import Problem, assert_correct, random_problem

pytestmark = pytest.mark.requires_gfx950
BF16, I32 = torch.bfloat16, torch.int32


# ---------------------------------------------------------------- experts


def vllm_fused_moe(p: Problem, w1: Any, w2: Any, ids: torch.Tensor, **changes: Any) -> torch.Tensor:
    """_rocm_aiter_fused_moe_impl: thirteen by position, the rest by name."""
    options: dict[str, Any] = {
        "expert_mask": None,
        "activation": compat.ActivationType(0),
        "quant": compat.QuantType(0),
        "doweight": False,
        "w1_scale": None,
        "w2_scale": None,
        "a1_scale": None,
        "a2_scale": None,
        "num_local_tokens": None,
        "dtype": None,
        "hidden_pad": 0,
        "intermediate_pad": 0,
        "bias1": None,
        "bias2": None,
        "moe_sorting_dispatch_policy": 0,
        "swiglu_limit": 0.0,
        **changes,
    }
    names = (
        "expert_mask",
        "activation",
        "quant",
        "doweight",
        "w1_scale",
        "w2_scale",
        "a1_scale",
        "a2_scale",
    )
    first = [options.pop(name) for name in names]
    return compat.fused_moe(p.x, w1, w2, p.topk_weights, ids, *first, **options)


def shuffled(w: torch.Tensor) -> torch.Tensor:
    """As vLLM keeps it: a parameter with a mark on it."""
    data = torch.nn.Parameter(rfops.shuffle_weight(w).data, requires_grad=False)
    data.is_shuffled = True  # type: ignore[attr-defined]
    return data


@pytest.fixture(scope="module")
def experts() -> Problem:
    return random_problem(20, 64, 48, 6, 2, BF16)


def test_fused_moe_as_vllm_calls_it(experts: Problem) -> None:
    p = experts
    actual = vllm_fused_moe(p, shuffled(p.w1), shuffled(p.w2), p.topk_ids, gate_mode="separated")
    assert_correct(actual, p)
    raw = vllm_fused_moe(p, p.w1, p.w2, p.topk_ids, dtype=torch.float32)
    assert raw.dtype == torch.float32 and torch.equal(raw.to(BF16), actual)


def test_fused_moe_of_some_experts(experts: Problem) -> None:
    """As vLLM with expert parallelism: its map is a mask, ids are those of all experts, with a
    number behind the last, which DeepEP's sink is."""
    p, here = experts, [1, 2, 5]
    mask = torch.zeros(7, dtype=I32)
    mask[here] = 1
    ids = p.topk_ids.clone()
    ids[3, 0], ids[4, 1] = 6, -1
    actual = vllm_fused_moe(p, p.w1[here], p.w2[here], ids, expert_mask=mask)
    local = torch.full((7,), -1, dtype=I32)
    local[here] = torch.arange(3, dtype=I32)
    own = torch.where((ids >= 0) & (ids < 6), local[ids.clamp(0, 6)], -1)
    assert_correct(actual, p.with_(w1=p.w1[here], w2=p.w2[here], topk_ids=own))


def test_fused_moe_of_some_tokens(experts: Problem) -> None:
    """num_local_tokens: behind it, ids are of no meaning and rows NaN."""
    p = experts
    x, ids = p.x.clone(), p.topk_ids.clone()
    x[13:], ids[13:] = math.nan, 2**30
    count = torch.tensor([13], dtype=I32)
    actual = vllm_fused_moe(p.with_(x=x), p.w1, p.w2, ids, num_local_tokens=count)
    assert (actual[13:] == 0).all()
    own = p.with_(x=p.x[:13], topk_weights=p.topk_weights[:13], topk_ids=p.topk_ids[:13])
    assert_correct(actual[:13], own)


def test_fused_moe_as_sglang_calls_it(experts: Problem) -> None:
    """AiterRunnerCore.run: all by name; weights of aiter's shuffle_weight carry its mark."""
    p = experts
    actual = compat.fused_moe(
        hidden_states=p.x,
        w1=shuffled(p.w1),
        w2=shuffled(p.w2),
        topk_weight=p.topk_weights,
        topk_ids=p.topk_ids,
        quant_type=compat.QuantType.No,
        activation=compat.ActivationType.Silu,
        w1_scale=None,
        w2_scale=None,
        a1_scale=None,
        a2_scale=None,
        bias1=None,
        bias2=None,
        expert_mask=None,
        doweight_stage1=False,
        hidden_pad=0,
        intermediate_pad=0,
        gate_mode="separated",
    )
    assert_correct(actual, p)


def test_fused_moe_with_weights_on_the_input(experts: Problem) -> None:
    """Llama 4's: one expert a token, whose weight multiplies the row."""
    p = experts.with_(
        topk_weights=experts.topk_weights[:, :1].contiguous(),
        topk_ids=experts.topk_ids[:, :1].contiguous(),
    )
    actual = vllm_fused_moe(p, p.w1, p.w2, p.topk_ids, doweight=True)
    own = p.with_(x=p.x * p.topk_weights.to(BF16), topk_weights=torch.ones_like(p.topk_weights))
    assert_correct(actual, own)


def test_fused_moe_with_weights_on_the_input_of_several_experts(experts: Problem) -> None:
    p = experts
    expected = rfops.fused_moe(p.x, p.w1, p.w2, *p.choice, apply_router_weight_on_input=True)
    assert torch.equal(vllm_fused_moe(p, p.w1, p.w2, p.topk_ids, doweight=True), expected)


def test_fused_moe_whose_rows_are_not_combined(experts: Problem) -> None:
    p = experts
    rows = vllm_fused_moe(p, p.w1, p.w2, p.topk_ids, no_combine=True)
    assert torch.equal(rows, rfops.fused_moe(p.x, p.w1, p.w2, *p.choice, combine=False))


GATINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gelu": ({"activation": compat.ActivationType.Gelu}, {"activation": "gelu"}),
    "swiglu": ({"activation": 2}, {"activation": "swiglu"}),
    "swiglu of a limit": (
        {"activation": 2, "swiglu_limit": 0.5},
        {"activation": "swiglu", "limit": 0.5},
    ),
    "silu of a limit": (
        {"swiglu_limit": 0.5},
        {"activation": "swiglu", "alpha": 1.0, "limit": 0.5, "beta": 0.0},
    ),
}


@pytest.mark.parametrize("case", GATINGS)
def test_fused_moe_of_other_activations_with_biases(case: str, experts: Problem) -> None:
    p, (theirs, own) = experts, GATINGS[case]
    (e, d, i), generator = p.w2.shape, torch.Generator().manual_seed(0)
    biases = {
        "bias1": torch.randn(e, 2 * i, generator=generator),
        "bias2": torch.randn(e, d, generator=generator),
    }
    expected = rfops.fused_moe(p.x, p.w1, p.w2, *p.choice, **biases, **own)
    actual = vllm_fused_moe(p, shuffled(p.w1), shuffled(p.w2), p.topk_ids, **biases, **theirs)
    assert torch.equal(actual, expected) and expected.float().norm() > 1


def test_fused_moe_of_padded_sizes(experts: Problem) -> None:
    """Zeros of weights behind D - 16 and I - 8, NaN of x."""
    p = experts
    (d, i), x, w1, w2 = p.w2.shape[1:], p.x.clone(), p.w1.clone(), p.w2.clone()
    w1[:, :, d - 16 :] = w1[:, i - 8 : i] = w1[:, 2 * i - 8 :] = 0
    w2[:, d - 16 :] = w2[:, :, i - 8 :] = 0
    own = p.with_(x=x.clone(), w1=w1, w2=w2)
    x[:, d - 16 :] = math.nan
    pads = {"hidden_pad": 16, "intermediate_pad": 8}
    actual = vllm_fused_moe(p.with_(x=x), w1, w2, p.topk_ids, **pads)  # type: ignore[arg-type]
    assert_correct(actual, own)
    assert not actual[:, d - 16 :].any()


def test_fused_moe_of_fp8_blocks_as_vllm_calls_it() -> None:
    """DeepSeek-V3: per_128x128, weights shuffled, scales of blocks."""
    p = random_fp8("gfx950", 20, 256, 128, 4, 2)
    weights = shuffled(p.w1), shuffled(p.w2)
    more = {"quant": compat.QuantType.per_128x128, "w1_scale": p.w1_scale, "w2_scale": p.w2_scale}
    actual = vllm_fused_moe(p, *weights, p.topk_ids, **more)  # type: ignore[arg-type]
    assert_fp8_correct(actual, p)


def test_fused_moe_of_mxfp4_as_vllm_calls_it() -> None:
    """per_1x32: weights of two a byte and all experts' scales, shuffled when they were loaded."""
    generator = torch.Generator().manual_seed(0)
    w1, w2 = (torch.randn(3, n, k, generator=generator) / 16 for n, k in ((512, 256), (256, 256)))
    (q1, s1), (q2, s2) = (rfops.quant_mxfp4(w.flatten(0, 1)) for w in (w1, w2))
    p = random_problem(5, 256, 256, 3, 2, BF16)
    raw = q1.view(3, 512, 128), q2.view(3, 256, 128)
    options: dict[str, Any] = {"quant": "mxfp4", "w1_scale": s1, "w2_scale": s2}
    expected = rfops.fused_moe(p.x, *raw, *p.choice, **options, rounding="up")  # as aiter rounds
    scales = [rfops.shuffle_scale(s).data for s in (s1, s2)]
    more = {"quant": compat.QuantType.per_1x32, "w1_scale": scales[0], "w2_scale": scales[1]}
    actual = vllm_fused_moe(p, *map(shuffled, raw), p.topk_ids, **more)  # type: ignore[arg-type]
    assert expected.float().norm() > 1
    torch.testing.assert_close(actual, expected, rtol=2**-6, atol=2**-6)
    even = rfops.fused_moe(p.x, *raw, *p.choice, **options)
    assert (actual.float() - even.float()).norm() > 0.01 * even.float().norm()


@pytest.mark.parametrize(("mode", "word"), [(0, "down"), (1, "up"), (2, "even"), (None, "up")])
def test_the_rounding_is_the_installed_aiters(
    mode: int | None, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("aiter.utility.mx_types")
    if mode is not None:
        module.MX_DEFAULT_ROUND_MODE = mode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiter.utility.mx_types", module)
    assert moe_dropins._aiter_rounding() == word


FUSED_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "situ": (
        {"activation": 3},
        "activation must be Silu, Gelu or Swiglu, got 3; call the original",
    ),
    "no activation": (
        {"activation": "silu"},
        "activation must be Silu, Gelu or Swiglu, got 'silu'",
    ),
    "per token": ({"quant": 2}, "quant_type must be No, per_1x32, per_1x128 or per_128x128, got 2"),
    "scales": ({"a1_scale": torch.ones(1)}, r"a1_scale must be None, got \[1\] float32"),
    "a2": ({"a2_scale": torch.ones(1)}, "a2_scale must be None"),
    "bias": ({"bias1": torch.ones(1)}, r"bias1 must be \[E="),
    "bias2": ({"bias2": torch.ones(1)}, r"bias2 must be \[E="),
    "padding": ({"hidden_pad": 4096}, r"hidden_pad must be from 0 to \d+, got 4096"),
    "padding of I": ({"intermediate_pad": -1}, r"intermediate_pad must be from 0 to \d+, got -1"),
    "limit": ({"activation": 1, "swiglu_limit": 7.0}, "swiglu_limit must be 0 for Gelu, got 7.0"),
    "interleaved": ({"gate_mode": "interleave"}, "gate_mode must be separated, got 'interleave'"),
    "beta": ({"beta": 1.0}, "beta must be None, got 1.0"),
    "shared": ({"shared_w1": torch.ones(1)}, "shared_w1 must be None"),
    "shared id": ({"shared_expert_id": 0}, "shared_expert_id must be -1, got 0"),
    "combine": ({"no_combine": 2}, "no_combine must be as if"),
    "unknown": ({"quant_dtype_a": "fp8"}, "quant_dtype_a must be as if it were not passed"),
}


@pytest.mark.parametrize("case", FUSED_REFUSALS)
def test_what_fused_moe_does_not_take(case: str, experts: Problem) -> None:
    changes, message = FUSED_REFUSALS[case]
    with pytest.raises(ValueError, match=f"^fused_moe: {message}"):
        vllm_fused_moe(experts, experts.w1, experts.w2, experts.topk_ids, **changes)


def test_what_tunes_is_ignored_and_that_is_said_once(
    experts: Problem, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = experts
    monkeypatch.setattr(log.get(), "propagate", True)
    moe_dropins._say_ignored.cache_clear()
    more = {"moe_sorting_dispatch_policy": 1, "block_size_M": 64, "splitk": 2}
    neutral = {"shared_w1": None, "shared_expert_id": -1, "no_combine": False, "beta": None}
    with caplog.at_level(logging.INFO, "rfops"):
        for _ in range(2):
            assert_correct(vllm_fused_moe(p, p.w1, p.w2, p.topk_ids, **more, **neutral), p)
    said = [r.getMessage() for r in caplog.records if "ignored" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith("fused_moe: block sizes and policies")


# ---------------------------------------------------------------- routing


def logits_of(m: int, e: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(m, e, generator=torch.Generator().manual_seed(m + e)).to(dtype)


def assert_chosen(actual: tuple[Any, Any], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(actual[1], expected[1])
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("renormalize", [False, True])
def test_topk_softmax_as_vllm_calls_it(renormalize: bool) -> None:
    """vllm_topk_softmax of fused_topk_router.py: seven by position, tensors of its own."""
    logits = logits_of(9, 60)
    weights, ids = torch.full((9, 4), math.nan), torch.full((9, 4), -7, dtype=I32)
    unused = torch.empty(9, 4, dtype=I32)
    assert compat.topk_softmax(weights, ids, unused, logits, renormalize, 0, "") is None
    assert_chosen((weights, ids), choose(logits, None, 4, renormalize=renormalize))


def test_topk_softmax_with_shared_experts() -> None:
    """Their logits are the last, and their sigmoids the last weights; ids are those of the rest."""
    logits = logits_of(9, 66)
    weights, ids = torch.full((9, 6), math.nan), torch.full((9, 4), -7, dtype=I32)
    compat.topk_softmax(weights, ids, torch.empty(9, 4, dtype=I32), logits, True, 2, "sigmoid")
    assert_chosen((weights[:, :4], ids), choose(logits[:, :64], None, 4, renormalize=True))
    torch.testing.assert_close(weights[:, 4:], logits[:, 64:].float().sigmoid())
    with pytest.raises(ValueError, match="shared_expert_scoring_func must be sigmoid, got ''"):
        compat.topk_softmax(weights, ids, None, logits, True, 2, "")


@pytest.mark.parametrize("given", [False, True])
def test_fused_topk_as_sglang_calls_it(given: bool) -> None:
    """fused_topk of topk.py; aiter's own has rows up to a multiple of 4."""
    logits, hidden = logits_of(9, 128), torch.empty(9, 32, dtype=BF16)
    own: dict[str, Any] = {}
    if given:
        own = {"topk_ids": torch.full((12, 8), -7, dtype=I32), "topk_weights": torch.ones(12, 8)}
    weights, ids = compat.fused_topk(hidden, logits, 8, True, **own)
    assert weights.shape == ids.shape == (9, 8)
    assert_chosen((weights, ids), choose(logits, None, 8, renormalize=True))
    if given:
        assert ids.data_ptr() == own["topk_ids"].data_ptr() and (own["topk_ids"][9:] == -7).all()
    with pytest.raises(ValueError, match="fused_topk: hidden_states must be of 9 rows, got 8 rows"):
        compat.fused_topk(hidden[:8], logits, 8, True)


@pytest.mark.parametrize("is_wide", [False, True])
def test_biased_grouped_topk_as_vllm_calls_it(is_wide: bool) -> None:
    """rocm_aiter_grouped_topk: with fused shared experts, results are columns of a wider buffer."""
    logits = logits_of(9, 64, torch.float32)
    bias = torch.randn(64, generator=torch.Generator().manual_seed(1))
    all_weights, all_ids = torch.full((9, 5), 7.0), torch.full((9, 5), 64, dtype=I32)
    weights, ids = (t.split([4, 1], dim=1)[0] for t in (all_weights, all_ids))
    if not is_wide:
        weights, ids = torch.full((9, 4), math.nan), torch.full((9, 4), -7, dtype=I32)
    given = compat.biased_grouped_topk(
        logits, bias, weights, ids, 8, 4, True, routed_scaling_factor=2.5
    )
    assert given is None
    options: dict[str, Any] = {"num_groups": 8, "topk_groups": 4, "renormalize": True}
    assert_chosen((weights, ids), choose(logits, bias, 4, score="sigmoid", scale=2.5, **options))
    assert (all_weights[:, 4] == 7).all() and (all_ids[:, 4] == 64).all()


def test_biased_grouped_topk_as_sglang_calls_it() -> None:
    """biased_grouped_topk_gpu: all by position, the bias of the logits' dtype."""
    logits, bias = logits_of(9, 64), logits_of(1, 64)[0]
    weights, ids = torch.full((9, 8), math.nan), torch.full((9, 8), -7, dtype=I32)
    compat.biased_grouped_topk(logits, bias, weights, ids, 1, 1, False, 1.0)
    assert_chosen((weights, ids), choose(logits, bias, 8, score="sigmoid"))


@pytest.mark.parametrize("is_softmax", [False, True])
def test_grouped_topk_as_vllm_calls_it(is_softmax: bool) -> None:
    logits = logits_of(9, 64)
    weights, ids = torch.full((9, 6), math.nan), torch.full((9, 6), -7, dtype=I32)
    compat.grouped_topk(logits, weights, ids, 8, 3, False, is_softmax, routed_scaling_factor=16.0)
    score = "softmax" if is_softmax else "sigmoid"
    expected = choose(logits, None, 6, num_groups=8, topk_groups=3, score=score, scale=16.0)
    assert_chosen((weights, ids), expected)


# ---------------------------------------------------------------- sorting


def sorted_ref(ids: torch.Tensor, block: int, experts: list[int]) -> tuple[list[int], list[int]]:
    """Of the experts that are here: j << 24 | token, padded, and each block's expert."""
    m, top_k = ids.shape
    rows, blocks = [], []
    for number, expert in enumerate(experts):
        own = [j << 24 | t for t in range(m) for j in range(top_k) if ids[t, j] == expert]
        count = -(-len(own) // block)
        rows += own + [top_k << 24 | m] * (count * block - len(own))
        blocks += [number] * count
    return rows, blocks


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("local", [None, 7])
def test_moe_sorting(masked: bool, local: int | None) -> None:
    """As aiter's fused_moe calls it."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.rand(11, 6, generator=generator).argsort(1)[:, :3].to(I32)
    weights = torch.rand(11, 3, generator=generator)
    here = [0, 2, 3] if masked else list(range(6))
    mask = torch.tensor([int(e in here) for e in range(6)], dtype=I32) if masked else None
    count = None if local is None else torch.tensor([local], dtype=I32)
    result = compat.moe_sorting(ids, weights, 6, 40, BF16, 4, mask, count, 0)
    sorted_ids, sorted_weights, expert_ids, num_valid, buffer = result
    assert sorted_ids.shape == sorted_weights.shape == (33 + 24 - 3,)
    assert expert_ids.shape == (14,) and sorted_ids.dtype == expert_ids.dtype == I32
    rows, blocks = sorted_ref(ids[:local], 4, here)
    rows = [3 << 24 | 11 if row >> 24 == 3 else row for row in rows]
    assert num_valid.tolist() == [len(rows), 11 if local is None else local]
    assert sorted_ids.tolist() == rows + [3 << 24 | 11] * (54 - len(rows))
    assert expert_ids[: len(blocks)].tolist() == blocks
    of_rows = [0.0 if r >> 24 == 3 else weights[r & 0xFFFFFF, r >> 24].item() for r in rows]
    assert sorted_weights[: len(rows)].tolist() == of_rows
    assert buffer.shape == (11, 40) and buffer.dtype == BF16 and (buffer == 0).all()


def test_moe_sorting_of_weights_without_padding() -> None:
    """ids are padded beyond num_local_tokens, as a test of aiter's pads them."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.rand(11, 6, generator=generator).argsort(1)[:, :3].to(I32)
    weights = torch.rand(7, 3, generator=generator)
    words = {"num_experts": 6, "model_dim": 8, "moebuf_dtype": BF16, "block_size": 4}
    count = torch.tensor([7], dtype=I32)
    full = torch.cat([weights, torch.full((4, 3), float("nan"))])
    expected = compat.moe_sorting(ids, full, num_local_tokens=count, **words)
    for actual, other in zip(
        compat.moe_sorting(ids, weights, num_local_tokens=count, **words), expected, strict=True
    ):
        used = slice(0, int(expected[3][0]))
        assert torch.equal(actual[used], other[used])


SORTING_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "weights": (
        {"topk_weights": torch.ones(3, 2)},
        r"topk_weights must be \[4, 2\] as topk_ids is, got \[3, 2\] float32",
    ),
    "local ids": ({"return_local_topk_ids": True}, "return_local_topk_ids must be False, got True"),
    "no sum": ({"accumulate": False}, "accumulate must be True, got False"),
    "flat": ({"flat": True}, "flat must be False, got True"),
    "aux": ({"output_aux": True}, "output_aux must be False, got True"),
}


@pytest.mark.parametrize("case", SORTING_REFUSALS)
def test_what_moe_sorting_does_not_take(case: str) -> None:
    changes, message = SORTING_REFUSALS[case]
    ids = torch.zeros(4, 2, dtype=I32)
    words: dict[str, Any] = {"topk_weights": torch.ones(4, 2), **changes}
    with pytest.raises(ValueError, match=f"^moe_sorting: {message}"):
        compat.moe_sorting(ids, num_experts=6, model_dim=8, moebuf_dtype=BF16, **words)


def test_defaults_that_rfops_does_not_compute() -> None:
    """aiter's, so that a caller who relies on them gets no other result."""
    weights, ids = torch.zeros(2, 2), torch.zeros(2, 2, dtype=I32)
    words: dict[str, Any] = {"score_func": "softmax"}
    compat.topk_gating(weights, ids, torch.randn(2, 8), torch.empty(0), **words)  # no bias
    assert torch.allclose(weights.sum(1), torch.ones(2))
    with pytest.raises(ValueError, match="quant_dtype must be an FP8 dtype, got torch"):
        compat.per_group_quant_hip(torch.randn(2, 128))


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_topk_gating_by_each_score(score: str) -> None:
    """With a bias, a factor and a shared expert, whose column follows those of the routed."""
    generator = torch.Generator().manual_seed(0)
    logits, bias = (torch.randn(n, 33, generator=generator) for n in (5, 1))
    weights, ids = torch.full((5, 5), math.nan), torch.full((5, 4), -7, dtype=I32)
    compat.topk_gating(weights, ids, logits, bias[0, :32], True, 1.5, score, 1)
    options: dict[str, Any] = {"renormalize": True, "score": score, "scale": 1.5}
    wanted, wanted_ids = choose(logits[:, :32], bias[0, :32], 4, **options)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights[:, :4], wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(weights[:, 4], logits[:, 32].sigmoid(), rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="score_func must be softmax or sigmoid or sqrtsoftplus"):
        compat.topk_gating(weights, ids, logits, score_func="tanh")


@pytest.mark.parametrize("ignore", [False, True])
def test_moe_align_block_size_as_vllm_calls_it(ignore: bool) -> None:
    ids = torch.randint(8, (13, 2), generator=torch.Generator().manual_seed(0), dtype=I32)
    experts = torch.tensor([-1, 0, -1, 1, 2, -1, 3, -1], dtype=I32)
    actual = compat.moe_align_block_size(ids, 4, 8, experts, True, ignore_invalid_experts=ignore)
    for own, expected in zip(
        actual, moe_align_block_size_ref(ids, 4, 8, experts, True, ignore), strict=True
    ):
        assert torch.equal(own, expected)
    with pytest.raises(ValueError, match="return_scatter_idx must be False, got True; call the"):
        compat.moe_align_block_size(ids, 4, 8, return_scatter_idx=True)
