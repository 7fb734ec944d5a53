"""Operators of vLLM 0.33's compiled extensions that tiny models of each kind call. Those of a wheel
are built for CUDA and those for ROCm are in no wheel: here rfops' ops compute them where there are
any, else torch in fp32, rounded once where the extension rounds once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rfops.attention.cache_dropins import (
    concat_and_cache_mla,
    concat_and_cache_mla_rope_fused,
    reshape_and_cache_flash,
    rotary_embedding,
)
from rfops.rowwise.dropins import (
    fused_add_rms_norm,
    rms_norm,
    silu_and_mul,
    silu_and_mul_per_block_quant,
    swigluoai_and_mul,
)

from .standins import CompiledOp
from .tally import RFOPS

# ---------------------------------------------------------------- experts


def _moe_sum(
    x: Tensor, output: Tensor, topk_ids: Tensor | None = None, expert_map: Tensor | None = None
) -> None:
    if expert_map is not None and topk_ids is not None:
        x = x.masked_fill((expert_map[topk_ids.long()] < 0)[..., None], 0)
    output.copy_(x.float().sum(1))


def _moe_align_block_size(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
    maybe_expert_map: Tensor | None = None,
    scatter_idx: Tensor | None = None,
) -> None:
    import rfops

    if maybe_expert_map is not None or scatter_idx is not None:
        raise NotImplementedError("moe_align_block_size: expert_map and scatter_idx must be None")
    results = rfops.moe_align_block_size(topk_ids.to(torch.int32), block_size, num_experts)
    for result, out in zip(
        results, (sorted_token_ids, experts_ids, num_tokens_post_pad), strict=True
    ):
        count = min(result.numel(), out.numel())
        out.flatten()[:count] = result.flatten()[:count].to(out.dtype)


def _topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    bias: Tensor | None = None,
    is_padding: Tensor | None = None,
) -> None:
    import rfops

    if bias is not None:
        raise NotImplementedError("topk_softmax: bias must be None")
    weights, ids = rfops.topk_softmax(gating_output, topk_indices.shape[1], renormalize)
    topk_weights.copy_(weights)
    topk_indices.copy_(ids)


# ---------------------------------------------------------------- FP8


def _per_token_group_fp8_quant(
    x: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    fp8_min: float,
    fp8_max: float,
    scale_ue8m0: bool,
    dummy_is_scale_transposed: bool = False,
    dummy_is_tma_aligned: bool = False,
) -> None:
    import rfops

    if group_size != 128 or scale_ue8m0:
        raise NotImplementedError("per_token_group_fp8_quant: groups of 128 with fp32 scales only")
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    payload, scale = rfops.quant_fp8_blockscale(rows, dtype=output_q.dtype)
    output_q.copy_(payload.view(output_q.shape))
    output_s.copy_(scale.view(output_s.shape))


# ---------------------------------------------------------------- the table

OPS = (
    CompiledOp("_C::silu_and_mul(Tensor! result, Tensor input) -> ()", silu_and_mul, RFOPS),
    CompiledOp(
        "_C::swigluoai_and_mul(Tensor! out, Tensor input, float alpha=1.702, float limit=7.0)"
        " -> ()",
        swigluoai_and_mul,
        RFOPS,
    ),
    CompiledOp(
        "_C::rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
        rms_norm,
        RFOPS,
    ),
    CompiledOp(
        "_C::fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon)"
        " -> ()",
        fused_add_rms_norm,
        RFOPS,
    ),
    CompiledOp(
        "_C::rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size,"
        " Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
        rotary_embedding,
        RFOPS,
    ),
    CompiledOp(
        "_C_cache_ops::concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache,"
        " Tensor slot_mapping, str kv_cache_dtype, Tensor scale, bool skip_scale=False) -> ()",
        concat_and_cache_mla,
        RFOPS,
    ),
    CompiledOp(
        "_C_cache_ops::concat_and_cache_mla_rope_fused(Tensor positions, Tensor! q_pe,"
        " Tensor! k_pe, Tensor kv_c, Tensor cos_sin_cache, bool is_neox, Tensor slot_mapping,"
        " Tensor! kv_cache, str kv_cache_dtype, Tensor kv_cache_scale) -> ()",
        concat_and_cache_mla_rope_fused,
        RFOPS,
    ),
    CompiledOp(
        "_C_cache_ops::reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache,"
        " Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale,"
        " Tensor v_scale) -> ()",
        reshape_and_cache_flash,
        RFOPS,
    ),
    CompiledOp(
        "_moe_C::moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None,"
        " Tensor? expert_map=None) -> ()",
        _moe_sum,
    ),
    CompiledOp(
        "_moe_C::moe_align_block_size(Tensor topk_ids, int num_experts, int block_size,"
        " Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad,"
        " Tensor? maybe_expert_map, Tensor(a!)? scatter_idx=None) -> ()",
        _moe_align_block_size,
        RFOPS,
    ),
    CompiledOp(
        "_moe_C::topk_softmax(Tensor! topk_weights, Tensor! topk_indices,"
        " Tensor! token_expert_indices, Tensor gating_output, bool renormalize, Tensor? bias=None,"
        " Tensor? is_padding=None) -> ()",
        _topk_softmax,
        RFOPS,
    ),
    CompiledOp(
        "_C::per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s,"
        " int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0,"
        " bool dummy_is_scale_transposed=False, bool dummy_is_tma_aligned=False) -> ()",
        _per_token_group_fp8_quant,
        RFOPS,
    ),
    CompiledOp(
        "_C::silu_and_mul_per_block_quant(Tensor! out, Tensor input, Tensor! scales,"
        " int group_size, Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()",
        silu_and_mul_per_block_quant,
        RFOPS,
    ),
)
