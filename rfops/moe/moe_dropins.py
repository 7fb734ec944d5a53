"""Drop-ins for routing and experts with the names, argument orders and results of others: aiter's
`fused_moe`, `topk_softmax`, `fused_topk`, `biased_grouped_topk`, `grouped_topk` and `moe_sorting`,
vLLM's `moe_align_block_size`.

Tiles are rfops' own: what only tunes aiter's kernels is accepted and ignored, which is said once.
What would change the result is refused by its name, so that a caller can take the original.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Container, Mapping
from enum import IntEnum
from typing import Any, NoReturn

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, describe
from rfops.dispatch.layout import Shuffled
from rfops.jit import log
from rfops.jit.errors import show
from rfops.quantization.shuffle import SCALE, WEIGHT

from .align_block_size import Aligned
from .align_block_size import moe_align_block_size as _moe_align_block_size
from .fused_moe import fused_moe as _fused_moe
from .grouped_topk import grouped_topk as _grouped_topk
from .kernels.topk.choosing import SCORES
from .local_experts import local_ids, map_of_mask
from .topk_softmax import topk_softmax as _topk_softmax


class ActivationType(IntEnum):
    """aiter's, by name and number; its own are taken as well."""

    No, Silu, Gelu, Swiglu, Situv2 = -1, 0, 1, 2, 3


class QuantType(IntEnum):
    """aiter's, by name and number; its own are taken as well."""

    No, per_Tensor, per_Token, per_1x32, per_1x128, per_128x128 = 0, 1, 2, 3, 4, 5
    per_256x128, per_1024x128 = 6, 7


# rfops' word for each that it computes.
_QUANTS: Mapping[int, str | None] = {
    QuantType.No: None,
    QuantType.per_1x32: "mxfp4",
    QuantType.per_1x128: "fp8_blockscale",
    QuantType.per_128x128: "fp8_blockscale",
}
# Arguments of aiters newer than e404860, and the values that are taken beside None.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"no_combine": (False, True)}
# rfops' word for each activation that it computes, and its values without a limit and with one.
_ACTIVATIONS: Mapping[int, tuple[str, Mapping[str, float]]] = {
    ActivationType.Silu: ("silu", {"alpha": 1.0, "beta": 0.0}),
    ActivationType.Gelu: ("gelu", {}),
    ActivationType.Swiglu: ("swiglu", {"alpha": 1.702, "limit": 7.0, "beta": 1.0}),
}
# What a caller of fused_moe can do without the original, where rfops computes something else.
_WAYS_OUT: Mapping[str, str] = {
    "activation": "or take the engine's Triton experts",
    "swiglu_limit": "or take the engine's Triton experts",
    "beta": "or take the engine's Triton experts",
    "linear_beta": "or take the engine's Triton experts",
    "gate_mode": "or load w1 with all gate rows before all up rows",
    "quant_type": "or quantise weights to MXFP4, or to FP8 by 128 x 128",
    "a1_scale": "or pass hidden_states as they were before their quantisation",
    "a2_scale": "or leave it out: rfops quantises between the linears by block",
    "shared_w1": "or put them last in w1 and w2, for num_shared of rfops.fused_moe",
    "shared_expert_id": "or put them last in w1 and w2, for num_shared of rfops.fused_moe",
}
_ROUNDINGS = ("down", "up", "even")  # by the number of aiter's MxScaleRoundModeInt


def _refuse(op: str, argument: str, expected: str, value: Any) -> NoReturn:
    text = describe(value) if isinstance(value, Tensor) else show(value)
    way_out = _WAYS_OUT.get(argument) if op == "fused_moe" else None
    Guard(op).fail(
        argument, expected, text, ", ".join(filter(None, ("call the original", way_out)))
    )


def _is_one_of(value: Any, allowed: Container[int]) -> bool:
    """Return whether a value, an enum of aiter's or rfops' or an int, is among `allowed`."""
    return hasattr(value, "__int__") and int(value) in allowed


@functools.cache
def _say_ignored(op: str) -> None:
    log.get().info("%s: block sizes and policies are ignored, rfops takes its own tiles", op)


# ---------------------------------------------------------------- aiter: experts


def fused_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weight: Tensor,
    topk_ids: Tensor,
    expert_mask: Tensor | None = None,
    activation: Any = ActivationType.Silu,
    quant_type: Any = QuantType.No,
    doweight_stage1: bool = False,
    w1_scale: Tensor | None = None,
    w2_scale: Tensor | None = None,
    a1_scale: Tensor | None = None,
    a2_scale: Tensor | None = None,
    block_size_M: int | None = None,
    num_local_tokens: Tensor | None = None,
    moe_sorting_dispatch_policy: int = 0,
    dtype: torch.dtype | None = None,
    hidden_pad: int = 0,
    intermediate_pad: int = 0,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    splitk: int = 0,
    swiglu_limit: float | None = None,
    beta: float | None = None,
    linear_beta: float | None = None,
    gate_mode: str | None = "separated",
    shared_w1: Tensor | None = None,
    shared_w2: Tensor | None = None,
    shared_w1_scale: Tensor | None = None,
    shared_w2_scale: Tensor | None = None,
    shared_expert_id: int | None = -1,
    stage2_scatter: Any = None,
    **unused: Any,
) -> Tensor:
    """aiter.fused_moe.fused_moe: [M, D] of dtype, new.

    w1 [E, 2I, D], w2 [E, D, I], shuffled where they are Shuffled or `w1.is_shuffled` says so, which
    aiter's shuffle_weight, vLLM and SGLang set; a copy into a parameter loses it, and without it
    they are read as raw. Activations for MXFP4 weights are rounded as in the aiter that is
    installed: up, in e404860. Of quant_type No, per_1x32 (MXFP4, whose scales are always
    shuffled) and per_128x128 or per_1x128 (FP8 with scales of blocks). expert_mask [all experts] is
    1 for those that are here, whose order is that of w1. Tokens from num_local_tokens on have rows
    of zeros. doweight_stage1: as fused_moe's apply_router_weight_on_input; no_combine: rows
    [M, top_k, D]. hidden_pad and intermediate_pad: the last so many of D and I are zeros in the
    weights, and of no meaning in hidden_states. Gelu (by erf), Swiglu (GPT-OSS's, of a limit of
    7 unless swiglu_limit says another), Silu with a swiglu_limit and biases are computed by torch;
    x and h are rounded to the weights' format there too. Raises ValueError for what is not taken:
    other activations, scales of activations, newer arguments that change the result.
    """
    name = "fused_moe"
    if not _is_one_of(activation, _ACTIVATIONS):
        _refuse(name, "activation", "Silu, Gelu or Swiglu", activation)
    if not _is_one_of(quant_type, _QUANTS):
        _refuse(name, "quant_type", "No, per_1x32, per_1x128 or per_128x128", quant_type)
    neutral_args = {
        "a1_scale": a1_scale,
        "a2_scale": a2_scale,
        "beta": beta,
        "linear_beta": linear_beta,
        "shared_w1": shared_w1,
        "shared_w2": shared_w2,
        "shared_w1_scale": shared_w1_scale,
        "shared_w2_scale": shared_w2_scale,
        "stage2_scatter": stage2_scatter,
    }
    for argument, value in neutral_args.items():
        if value is not None:
            _refuse(name, argument, "None", value)
    if gate_mode not in (None, "", "separated"):
        _refuse(name, "gate_mode", "separated", gate_mode)
    if shared_expert_id not in (None, -1):
        _refuse(name, "shared_expert_id", "-1", shared_expert_id)
    word, words = _ACTIVATIONS[int(activation)]
    gating: dict[str, Any] = {"activation": word, **words}
    if swiglu_limit:
        if word == "gelu":
            _refuse(name, "swiglu_limit", "0 for Gelu", swiglu_limit)
        gating |= {"activation": "swiglu", "limit": float(swiglu_limit)}
    for argument, pad, size in (
        ("hidden_pad", hidden_pad, hidden_states.shape[-1]),
        ("intermediate_pad", intermediate_pad, w2.shape[-1]),
    ):
        if pad and not 0 < pad < size:
            _refuse(name, argument, f"from 0 to {size - 1}", pad)
    for argument, value in unused.items():
        if value is not None and value not in _NEUTRAL.get(argument, ()):
            _refuse(name, argument, "as if it were not passed", value)
    if block_size_M or splitk or moe_sorting_dispatch_policy:
        _say_ignored(name)
    x = hidden_states
    if hidden_pad:  # a NaN there would not vanish in zeros of the weights
        x = torch.nn.functional.pad(x[:, :-hidden_pad], (0, hidden_pad))
    ids = _local_ids(topk_ids, expert_mask, num_local_tokens)
    weights: list[Any] = [w1, w2]
    if isinstance(w1, Shuffled) or getattr(w1, "is_shuffled", False):
        weights = [w if isinstance(w, Shuffled) else Shuffled(w, WEIGHT) for w in weights]
    scales: list[Any] = [w1_scale, w2_scale]
    rounding = None
    if int(quant_type) == QuantType.per_1x32:
        scales = [scale if scale is None else Shuffled(scale, SCALE) for scale in scales]
        rounding = _aiter_rounding()
    out = _fused_moe(
        x,
        weights[0],
        weights[1],
        topk_weight,
        ids,
        quant=_QUANTS[int(quant_type)],
        w1_scale=scales[0],
        w2_scale=scales[1],
        rounding=rounding,
        apply_router_weight_on_input=doweight_stage1,
        combine=not unused.get("no_combine"),
        bias1=bias1,
        bias2=bias2,
        **gating,
    )
    return out if dtype is None else out.to(dtype)


def _aiter_rounding() -> str:
    """Return aiter's default rounding of MXFP4 scales: its constant where it is installed."""
    module = sys.modules.get("aiter.utility.mx_types")
    mode = int(getattr(module, "MX_DEFAULT_ROUND_MODE", 1))
    if mode >= len(_ROUNDINGS):
        _refuse("fused_moe", "aiter's MX_DEFAULT_ROUND_MODE", f"one of {_ROUNDINGS}", mode)
    return _ROUNDINGS[mode]


def _local_ids(ids: Tensor, mask: Tensor | None, num_tokens: Tensor | None) -> Tensor:
    """Numbers of the experts that are here, and -1 for others and for tokens that are not there."""
    if mask is not None:
        ids = local_ids(ids, map_of_mask(mask))
    if num_tokens is not None:
        row = torch.arange(ids.shape[0], dtype=torch.int32, device=ids.device)
        ids = torch.where((row < num_tokens)[:, None], ids, -1)
    return ids


def moe_sorting(
    topk_ids: Tensor,
    topk_weights: Tensor,
    num_experts: int,
    model_dim: int,
    moebuf_dtype: torch.dtype,
    block_size: int = 32,
    expert_mask: Tensor | None = None,
    num_local_tokens: Tensor | None = None,
    dispatch_policy: int = 0,
    return_local_topk_ids: bool = False,
    accumulate: bool = True,
    flat: bool = False,
    output_aux: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """aiter.fused_moe.moe_sorting: sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids [2]
    and moe_buf [M, model_dim] of zeros.

    A sorted id is j << 24 | token of topk_ids[token, j], padding is top_k << 24 | M; here it also
    fills what lies beyond num_valid_ids[0], where aiter writes nothing. num_valid_ids[1] is the
    number of tokens. Blocks are those of experts with a 1 in expert_mask, by their number among
    themselves. With num_local_tokens, topk_weights may lack rows that are beyond it.
    """
    m, top_k = topk_ids.shape
    missing_rows = m - topk_weights.shape[0]
    if num_local_tokens is not None and missing_rows > 0:  # ids are padded, weights need not be
        topk_weights = torch.nn.functional.pad(topk_weights, (0, 0, 0, missing_rows))
    if topk_weights.shape != topk_ids.shape:
        Guard("moe_sorting").fail(
            "topk_weights",
            f"{list(topk_ids.shape)} as topk_ids is",
            describe(topk_weights),
            "pass one weight for each id",
        )
    for argument, value, expected in (
        ("return_local_topk_ids", return_local_topk_ids, False),
        ("accumulate", accumulate, True),
        ("flat", flat, False),
        ("output_aux", output_aux, False),
    ):
        if bool(value) is not expected:
            _refuse("moe_sorting", argument, str(expected), value)
    if dispatch_policy:
        _say_ignored("moe_sorting")
    ids = _local_ids(topk_ids, None, num_local_tokens)
    experts = None if expert_mask is None else map_of_mask(expert_mask)
    aligned = _moe_align_block_size(ids, block_size, num_experts, experts, False, True)
    num_slots = topk_ids.numel() + num_experts * block_size - top_k
    rows = torch.full((num_slots,), m * top_k, dtype=torch.int32, device=ids.device)
    num_used = min(num_slots, aligned.sorted_token_ids.numel())
    rows[:num_used] = aligned.sorted_token_ids[:num_used]
    is_row = rows < m * top_k
    token, j = rows // max(top_k, 1), rows % max(top_k, 1)
    sorted_ids = torch.where(is_row, j << 24 | token, top_k << 24 | m)
    weights = torch.cat([topk_weights.reshape(-1), topk_weights.new_zeros(1)])[rows]
    blocks = -(-num_slots // block_size)
    expert_ids = aligned.expert_ids.new_zeros(blocks)
    expert_ids[: aligned.expert_ids.numel()] = aligned.expert_ids[:blocks]
    tokens = torch.full((1,), m, dtype=torch.int32, device=ids.device)
    if num_local_tokens is not None:
        tokens = num_local_tokens.reshape(1).to(torch.int32)
    num_valid = torch.cat([aligned.num_tokens_post_padded, tokens])
    moe_buf = torch.zeros((m, model_dim), dtype=moebuf_dtype, device=ids.device)
    return sorted_ids, weights, expert_ids, num_valid, moe_buf


# ---------------------------------------------------------------- aiter: routing


def topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor | None,
    gating_output: Tensor,
    need_renorm: bool,
    num_shared_experts: int = 0,
    shared_expert_scoring_func: str = "",
) -> None:
    """aiter.topk_softmax: topk_weights and topk_indices [M, top_k] are written, of any strides.

    With num_shared_experts the last columns of gating_output are theirs, and their sigmoid goes to
    the columns of topk_weights behind the first top_k. token_expert_indices is not written, as none
    of aiter's callers reads it.
    """
    name, top_k = "topk_softmax", topk_indices.shape[1]
    logits = gating_output
    if num_shared_experts:
        if shared_expert_scoring_func != "sigmoid":
            _refuse(name, "shared_expert_scoring_func", "sigmoid", shared_expert_scoring_func)
        logits = _write_shared(topk_weights, gating_output, top_k, num_shared_experts)
    results = _Results(topk_weights[:, :top_k], topk_indices)
    results.take(
        _topk_softmax(logits, top_k, need_renorm, weights=results.weights, ids=results.ids)
    )


def topk_gating(
    topk_weights: Tensor,
    topk_indices: Tensor,
    gating_output: Tensor,
    correction_bias: Tensor | None = None,
    need_renorm: bool = True,
    routed_scaling_factor: float = 1.0,
    score_func: str = "sqrtsoftplus",
    num_shared_experts: int = 0,
) -> None:
    """aiter.ops.topk.topk_gating: topk_weights and topk_indices [M, top_k] are written, of any
    strides: by score_func "softmax", "sigmoid" or "sqrtsoftplus", correction_bias [E] for the
    choice alone. Shared experts' columns get their sigmoid, as in topk_softmax."""
    if score_func not in SCORES:
        _refuse("topk_gating", "score_func", " or ".join(SCORES), score_func)
    top_k, logits = topk_indices.shape[1], gating_output
    if num_shared_experts:
        logits = _write_shared(topk_weights, gating_output, top_k, num_shared_experts)
    # aiter's callers pass an empty bias for none.
    bias = correction_bias if correction_bias is not None and correction_bias.numel() else None
    results = _Results(topk_weights[:, :top_k], topk_indices)
    results.take(
        _grouped_topk(
            logits,
            top_k,
            bias=bias,
            renormalize=need_renorm,
            score=score_func,
            scale=routed_scaling_factor,
            weights=results.weights,
            ids=results.ids,
        )
    )


def _write_shared(weights: Tensor, logits: Tensor, top_k: int, num_shared: int) -> Tensor:
    """Write the sigmoid of the last columns behind the first top_k; return the other columns."""
    routed = logits.shape[1] - num_shared
    weights[:, top_k : top_k + num_shared].copy_(logits[:, routed:].float().sigmoid())
    return logits[:, :routed]


def fused_topk(
    hidden_states: Tensor,
    gating_output: Tensor,
    topk: int,
    renormalize: bool,
    topk_ids: Tensor | None = None,
    topk_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """aiter.fused_moe.fused_topk: weights and ids [M, topk], in the tensors given, which may have
    more rows, or new."""
    rows = gating_output.shape[0]
    if hidden_states.shape[0] != rows:
        shown = f"{hidden_states.shape[0]} rows"
        Guard("fused_topk").fail("hidden_states", f"of {rows} rows", shown, "pass one a token")
    weights = None if topk_weights is None else topk_weights[:rows]
    ids = None if topk_ids is None else topk_ids[:rows]
    results = _Results(weights, ids)
    return results.take(
        _topk_softmax(gating_output, topk, renormalize, weights=results.weights, ids=results.ids)
    )


def biased_grouped_topk(
    gating_output: Tensor,
    correction_bias: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    routed_scaling_factor: float = 1.0,
) -> None:
    """aiter.biased_grouped_topk: DeepSeek-V3's choice by sigmoid and bias; topk_weights and
    topk_ids [M, top_k] are written, of any strides."""
    results = _Results(topk_weights, topk_ids)
    results.take(
        _grouped_topk(
            gating_output,
            topk_ids.shape[1],
            num_expert_group,
            topk_group,
            correction_bias,
            need_renorm,
            scale=routed_scaling_factor,
            weights=results.weights,
            ids=results.ids,
        )
    )


def grouped_topk(
    gating_output: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    is_softmax: bool = True,
    routed_scaling_factor: float = 1.0,
) -> None:
    """aiter.grouped_topk: the same without a bias, by softmax or sigmoid."""
    results = _Results(topk_weights, topk_ids)
    results.take(
        _grouped_topk(
            gating_output,
            topk_ids.shape[1],
            num_expert_group,
            topk_group,
            None,
            need_renorm,
            score="softmax" if is_softmax else "sigmoid",
            scale=routed_scaling_factor,
            weights=results.weights,
            ids=results.ids,
        )
    )


class _Results:
    """A caller's tensors for weights and ids: those that are contiguous are written by the kernel,
    others, as vLLM's columns of a wider tensor that shared experts follow in, by a copy."""

    def __init__(self, weights: Tensor | None, ids: Tensor | None) -> None:
        self.destinations = weights, ids
        self.weights, self.ids = (
            t if t is None or t.is_contiguous() else None for t in self.destinations
        )

    def take(self, computed: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        for destination, tensor in zip(self.destinations, computed, strict=True):
            if destination is not None and destination is not tensor:
                destination.copy_(tensor)
        weights, ids = self.destinations
        return computed[0] if weights is None else weights, computed[1] if ids is None else ids


# ---------------------------------------------------------------- vLLM


def moe_align_block_size(
    topk_ids: Tensor,
    block_size: int,
    num_experts: int,
    expert_map: Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
    return_scatter_idx: bool = False,
) -> Aligned:
    """vLLM's: sorted_token_ids, expert_ids and num_tokens_post_padded, new."""
    if return_scatter_idx:
        _refuse("moe_align_block_size", "return_scatter_idx", "False", return_scatter_idx)
    return _moe_align_block_size(
        topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts
    )
