"""aiter.fused_moe and aiter.ops.topk: names whose meaning needs more than a drop-in's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rfops import compat
from rfops.dispatch.declare import DTYPES, MX_BLOCK
from rfops.dispatch.guards import Guard
from rfops.dispatch.layout import Shuffled
from rfops.jit.errors import show
from rfops.moe.grouped_topk import grouped_topk_ref
from rfops.moe.moe_dropins import ActivationType, QuantType
from rfops.quantization.mxfp4 import fp4_values

from .mx_types import e8m0_to_f32

_ACTIVATIONS: Mapping[int, Callable[[Tensor], Tensor]] = MappingProxyType(
    {ActivationType.Silu: functional.silu, ActivationType.Gelu: functional.gelu}
)


def return_false(*_args: Any, **_kwargs: Any) -> bool:
    """Return False: the answer to aiter's questions whether an optional backend, which rfops lacks,
    is available."""
    return False


def fused_moe(hidden_states: Tensor, w1: Any, w2: Any, *args: Any, **kwargs: Any) -> Tensor:
    """rfops.compat.fused_moe, which see; a weight that lost shuffle_weight's mark in a copy is
    known again by its bytes."""
    from rfops.plugins import layouts  # a room that may import this one

    if not isinstance(w1, Shuffled) and layouts.find_layout(w1) == layouts.SHUFFLED:
        w1, w2 = Shuffled(w1, layouts.SHUFFLED), Shuffled(w2, layouts.SHUFFLED)
    return compat.fused_moe(hidden_states, w1, w2, *args, **kwargs)


class GateMode(StrEnum):
    """aiter's layouts of gate and up rows in w1, by name and value; rfops computes SEPARATED."""

    SEPARATED = "separated"
    MOCK_GATE_ONLY = "mock_gate_only"
    GATE_ONLY = "gate_only"
    INTERLEAVE = "interleave"


def _values(x: Tensor, scale: Tensor | None, quant: int) -> Tensor:
    """Return x [..., rows, K] in fp32, times its scales in the layout of `quant`: per row, per
    1 x 32 e8m0, per 1 x 128 or 128 x 128."""
    if quant == QuantType.per_1x32 and x.dtype in DTYPES["fp4"] and scale is not None:
        x = fp4_values(x)
    values = x.float()
    if scale is None or quant == QuantType.No:
        return values
    if quant == QuantType.per_1x32:
        factors = e8m0_to_f32(scale)
        factors = factors.reshape(-1, factors.shape[-1])[: values.numel() // values.shape[-1]]
        return (values.view(-1, factors.shape[-1], MX_BLOCK) * factors.unsqueeze(-1)).view_as(
            values
        )
    if quant in (QuantType.per_128x128, QuantType.per_1x128):
        columns = values.shape[-1] // 128
        factors = scale.view(*values.shape[:-2], -1, columns).float()
        rows = values.shape[-2] // factors.shape[-2]
        return values * factors.repeat_interleave(rows, -2).repeat_interleave(128, -1)
    return values * scale.reshape(-1, 1).float()


def torch_moe_stage1(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weight: Tensor,
    topk_ids: Tensor,
    dtype: torch.dtype = torch.float16,
    activation: Any = ActivationType.Silu,
    quant_type: Any = QuantType.No,
    a1_scale: Tensor | None = None,
    w1_scale: Tensor | None = None,
    w1_bias: Tensor | None = None,
    doweight: bool = False,
    swiglu_limit: float | None = None,
    **_situ: Any,
) -> Tensor:
    """aiter's reference of the first linear and its activation: [M, top_k, I] of dtype, in fp32
    torch. Raises NotImplementedError for activations other than silu and gelu."""
    if int(activation) not in _ACTIVATIONS or swiglu_limit:
        raise NotImplementedError(f"torch_moe_stage1 has silu and gelu, got {activation!r}")
    x = _values(hidden_states, a1_scale, int(quant_type))
    out = torch.zeros(*topk_ids.shape, w1.shape[1])
    for e in topk_ids.unique().tolist():
        token, top_k_idx = (topk_ids == e).nonzero(as_tuple=True)
        scale = None if w1_scale is None else w1_scale.view(w1.shape[0], -1, w1_scale.shape[-1])[e]
        rows = x[token] @ _values(w1[e], scale, int(quant_type)).T
        rows = rows * topk_weight[token, top_k_idx, None] if doweight else rows
        out[token, top_k_idx] = rows if w1_bias is None else rows + w1_bias[e]
    gate, up = out.chunk(2, -1)
    return (_ACTIVATIONS[int(activation)](gate) * up).to(dtype)


def torch_moe_stage2(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    dtype: torch.dtype = torch.float16,
    quant_type: Any = QuantType.No,
    w2_scale: Tensor | None = None,
    a2_scale: Tensor | None = None,
    w2_bias: Tensor | None = None,
    doweight: bool = True,
) -> Tensor:
    """aiter's reference of the second linear, combined: [M, D] of dtype, in fp32 torch."""
    m, top_k = topk_ids.shape
    h = _values(hidden_states.reshape(m * top_k, -1), a2_scale, int(quant_type)).view(m, top_k, -1)
    out = torch.zeros(m, w2.shape[1])
    for e in topk_ids.unique().tolist():
        token, top_k_idx = (topk_ids == e).nonzero(as_tuple=True)
        scale = None if w2_scale is None else w2_scale.view(w2.shape[0], -1, w2_scale.shape[-1])[e]
        rows = h[token, top_k_idx] @ _values(w2[e], scale, int(quant_type)).T
        rows = rows if w2_bias is None else rows + w2_bias[e]
        out.index_add_(0, token, rows * topk_weights[token, top_k_idx, None] if doweight else rows)
    return out.to(dtype)


def topk_softmax_asm(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    need_renorm: bool,
) -> None:
    """aiter.topk_softmax of experts that are all routed."""
    compat.topk_softmax(
        topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm
    )


def topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor) -> None:
    """topk_weights and topk_indices [M, top_k] = the largest sigmoids of gating_output [M, E], not
    renormalised."""
    compat.topk_gating(topk_weights, topk_indices, gating_output, None, False, score_func="sigmoid")


def biased_grouped_topk_hip(
    gating_output: Tensor,
    correction_bias: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_grp: int,
    need_renorm: bool,
    routed_scaling_factor: float = 1.0,
) -> None:
    """aiter.biased_grouped_topk with another name of an argument."""
    compat.biased_grouped_topk(
        gating_output,
        correction_bias,
        topk_weights,
        topk_ids,
        num_expert_group,
        topk_grp,
        need_renorm,
        routed_scaling_factor,
    )


def moe_fused_gate(
    input: Tensor,
    bias: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    n_share_experts_fusion: int,
    routed_scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """aiter's gate of DeepSeek-V3, renormalised: topk_weights and topk_ids [M, topk], written and
    returned. Raises ValueError for fused shared experts."""
    if n_share_experts_fusion:
        Guard("moe_fused_gate").fail(
            "n_share_experts_fusion", "0", show(n_share_experts_fusion), "call the original"
        )
    compat.biased_grouped_topk(
        input,
        bias,
        topk_weights[:, :topk],
        topk_ids[:, :topk],
        num_expert_group,
        topk_group,
        True,
        routed_scaling_factor,
    )
    return topk_weights, topk_ids


def biased_grouped_topk_torch(
    gating_output: Tensor,
    correction_bias: Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int = 0,
    topk_group: int = 0,
    return_score: bool = False,
) -> tuple[Tensor, ...]:
    """aiter's reference of biased_grouped_topk: weights and ids [M, topk] by rfops' own, in fp32
    torch; with return_score the sigmoid of all logits too."""
    result = grouped_topk_ref(
        gating_output, correction_bias, topk, num_expert_group, topk_group, renormalize
    )
    return (*result, gating_output.float().sigmoid()) if return_score else result


def grouped_topk_torch(
    gating_output: Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int = 0,
    topk_group: int = 0,
    scoring_func: str = "softmax",
) -> tuple[Tensor, Tensor]:
    """aiter's reference of grouped_topk: the same without a bias."""
    return grouped_topk_ref(
        gating_output, None, topk, num_expert_group, topk_group, renormalize, scoring_func
    )
