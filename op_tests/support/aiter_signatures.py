"""Signatures of the functions that rfops has drop-ins for, with their defaults: facts read off the
source of aiter e404860 and vLLM 0.33.0. None of their code is here."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rfops.moe.moe_dropins import ActivationType, QuantType

# By the drop-in's name in rfops.compat; a default is an expression.
AITER = {
    "mla_decode_fwd": "q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, "
    "max_seqlen_q, page_size=1, nhead_kv=1, sm_scale=None, logit_cap=0.0, num_kv_splits=None, "
    "num_kv_splits_indptr=None, work_meta_data=None, work_indptr=None, work_info_set=None, "
    "reduce_indptr=None, reduce_final_map=None, reduce_partial_map=None, q_scale=None, "
    "kv_scale=None, intra_batch_mode=False, return_logits=False, return_lse=False, "
    "g_kv_indptr=None, cp_world_size=1, cp_rank=0, causal=True",
    "fused_moe": "hidden_states, w1, w2, topk_weight, topk_ids, expert_mask=None, "
    "activation=ActivationType.Silu, quant_type=QuantType.No, doweight_stage1=False, "
    "w1_scale=None, w2_scale=None, a1_scale=None, a2_scale=None, block_size_M=None, "
    "num_local_tokens=None, moe_sorting_dispatch_policy=0, dtype=None, hidden_pad=0, "
    "intermediate_pad=0, bias1=None, bias2=None, splitk=0, swiglu_limit=None, beta=None, "
    "linear_beta=None, gate_mode='separated', shared_w1=None, shared_w2=None, "
    "shared_w1_scale=None, shared_w2_scale=None, shared_expert_id=-1, stage2_scatter=None",
    "moe_sorting": "topk_ids, topk_weights, num_experts, model_dim, moebuf_dtype, block_size=32, "
    "expert_mask=None, num_local_tokens=None, dispatch_policy=0, return_local_topk_ids=False, "
    "accumulate=True, flat=False, output_aux=False",
    "topk_softmax": "topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm, "
    "num_shared_experts=0, shared_expert_scoring_func=''",
    "topk_gating": "topk_weights, topk_indices, gating_output, correction_bias=None, "
    "need_renorm=True, routed_scaling_factor=1.0, score_func='sqrtsoftplus'",
    "fused_topk": "hidden_states, gating_output, topk, renormalize, topk_ids=None, "
    "topk_weights=None",
    "biased_grouped_topk": "gating_output, correction_bias, topk_weights, topk_ids, "
    "num_expert_group, topk_group, need_renorm, routed_scaling_factor=1.0",
    "grouped_topk": "gating_output, topk_weights, topk_ids, num_expert_group, topk_group, "
    "need_renorm, is_softmax=True, routed_scaling_factor=1.0",
    "gemm_a8w8_blockscale": "XQ, WQ, x_scale, w_scale, dtype=bfloat16, isBpreshuffled=False",
    "gemm_a8w8_blockscale_bpreshuffle": "XQ, WQ, x_scale, w_scale, dtype=bfloat16, out=None",
    "gemm_a8w8_blockscale_triton": "x, w, x_scale, w_scale, dtype=bfloat16, y=None, config=None, "
    "skip_reduce=False, kernel_type='bandwidth_bound', backend=None",
    "per_group_quant_hip": "x, scale=None, quant_dtype=int8, group_size=128, "
    "transpose_scale=False, num_rows=None, num_rows_factor=1, scale_type=float32",
    "gemm_a4w4": "A, B, A_scale, B_scale, bias=None, dtype=bfloat16, alpha=1.0, beta=0.0, "
    "bpreshuffle=True, apreshuffle=False, global_A_scale=None, global_B_scale=None",
    "gemm_a16wfp4": "x, w, w_scales, atomic_add=False, dtype=bfloat16, y=None, config=None",
    "gemm_a16wfp4_preshuffle": "x, w, w_scales, prequant=True, dtype=bfloat16, y=None, "
    "config=None, skip_reduce=False",
    "gemm_afp4wfp4": "x, w, x_scales, w_scales, dtype=bfloat16, y=None, config=None, "
    "skip_reduce=False",
    "gemm_afp4wfp4_preshuffle": "x_fp4, w_preshuf, x_scales, w_scales, dtype=bfloat16, y=None, "
    "config=None, skip_reduce=False",
    "gemm_afp4wfp4_preshuffled_weight_scales": "x, w, x_scales, w_scales, dtype=bfloat16, y=None, "
    "config=None",
    "dynamic_mxfp4_quant": "x, scaling_mode='even'",
}
VLLM = {
    "decode_attention_fwd": "q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, "
    "num_kv_splits, sm_scale, page_size=1, logit_cap=0.0, k_scale=None, v_scale=None, is_mla=False",
    "moe_align_block_size": "topk_ids, block_size, num_experts, expert_map=None, "
    "pad_sorted_ids=False, ignore_invalid_experts=False, return_scatter_idx=False",
}
# Of aiter e404860 by dotted name; FP8 of the device, a default there, is None here.
IMPORTABLE: dict[str, str] = json.loads(
    Path(__file__).with_name("aiter_importable.json").read_text()
)
_WORDS = {
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "ActivationType": ActivationType,
    "QuantType": QuantType,
}


def original_of(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the callee's signature, whose calls go to `body`. name : a drop-in's, or of
    IMPORTABLE a dotted one or its last word, of which the first counts."""
    of_leaf = {key.rpartition(".")[2]: text for key, text in reversed(IMPORTABLE.items())}
    text = {**of_leaf, **IMPORTABLE, **AITER, **VLLM}[name]
    space: dict[str, Any] = dict(_WORDS)
    exec(f"def original({text}): return body(dict(locals()))", {**space, "body": body}, space)
    result: Callable[..., Any] = space["original"]
    return result


def parameters_of(name: str) -> list[inspect.Parameter]:
    return list(inspect.signature(original_of(name, dict)).parameters.values())
