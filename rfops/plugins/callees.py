"""The callees of vLLM 0.33 and SGLang 0.5.23 on ROCm that rfops has an op for.

Each has a key, what differs from call to call and may change the answer, and what the op's route is
asked for, both under the original's names. What else a call says is the drop-in's to refuse by name
(rfops.compat). Left out: metadata for MLA, which has no work to take over, and what has no op.
"""

from __future__ import annotations

from typing import Any

from .around import Args, Callee, Given, Key, Maker, Words, compat

# ---------------------------------------------------------------- attention


def _mla_key(args: Args, words: Words) -> Key:
    q = args[0]
    return q.shape, q.dtype, args[1].dtype, args[7], len(words)


def mla_route(
    q: Any, kv_buffer: Any, o: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any,
    kv_last_page_lens: Any, max_seqlen_q: int, *more: Any, **others: Any,
) -> Given:  # fmt: skip
    page = kv_buffer.shape[1] if kv_buffer.dim() == 4 else 1
    return mla_given(q, q.shape[0], kv_buffer, page, max_seqlen_q)


def mla_given(q: Any, tokens: int, kv: Any, page: int, length: int) -> Given:
    pages = kv.shape[0]
    return q.device, "mla_decode", {
        "B": tokens // length, "T": tokens, "H": q.shape[1], "S": pages, "P": pages, "page": page,
        "qo_len": length, "q_dtype": q.dtype, "kv_dtype": kv.dtype,
    }  # fmt: skip


def _decode_key(args: Args, words: Words) -> Key:
    q = args[0]
    return q.shape, q.dtype, args[1].dtype, len(words)


def _decode_route(
    q: Any, k_buffer: Any, v_buffer: Any, o: Any, lse: Any, req_to_token: Any, b_seq_len: Any,
    attn_logits: Any, num_kv_splits: int, sm_scale: float, page_size: int = 1,
    logit_cap: float = 0.0, k_scale: Any = None, v_scale: Any = None, is_mla: bool = False,
) -> Given:  # fmt: skip
    if not is_mla or q.shape[-1] != 576:
        raise ValueError("attention of another kind than MLA")
    return mla_given(q, q.shape[0], k_buffer, page_size, 1)


# ---------------------------------------------------------------- experts and routing


def _moe_key(args: Args, words: Words) -> Key:
    if len(args) > 4:
        x, w1, ids = args[0], args[1], args[4]
    else:  # as SGLang calls it
        x, w1, ids = words["hidden_states"], words["w1"], words["topk_ids"]
    return x.shape, w1.shape, w1.dtype, ids.shape, len(args), len(words)


# By the bytes of a weight and the values in each: the op and what it says of a weight's shape.
_MOE_OPS = {(2, 1): "fused_moe", (1, 1): "fused_moe_fp8", (1, 2): "fused_moe_mxfp4"}


def moe_route(
    hidden_states: Any, w1: Any, w2: Any, topk_weight: Any, topk_ids: Any, *more: Any, **others: Any
) -> Given:
    x, (experts, rows, columns) = hidden_states, w1.shape
    (m, d), k = x.shape, topk_ids.shape[1]
    name = _MOE_OPS.get((w1.element_size(), max(d // columns, 1)))
    if name is None:
        raise ValueError(f"weights {tuple(w1.shape)} of {w1.dtype} for rows of {d}")
    given = {"M": m, "D": d, "I": rows // 2, "E": experts, "K": k, "dtype": x.dtype}
    return x.device, name, given | {"x_dtype": x.dtype, "w1_dtype": w1.dtype, "w2_dtype": w2.dtype}


def _softmax_key(args: Args, words: Words) -> Key:
    logits = args[3]
    return logits.shape, logits.dtype, args[1].shape, args[4:], len(words)


def _softmax_route(
    topk_weights: Any, topk_indices: Any, token_expert_indices: Any, gating_output: Any,
    need_renorm: bool, num_shared_experts: int = 0, shared_expert_scoring_func: str = "",
) -> Given:  # fmt: skip
    return _topk(gating_output, topk_indices.shape[1], num_shared_experts)


def _gating_key(args: Args, words: Words) -> Key:
    logits = args[2]
    return logits.shape, logits.dtype, args[1].shape, len(args), len(words)


def _gating_route(
    topk_weights: Any, topk_indices: Any, gating_output: Any, correction_bias: Any = None,
    need_renorm: bool = True, routed_scaling_factor: float = 1.0, score_func: str = "softmax",
    num_shared_experts: int = 0,
) -> Given:  # fmt: skip
    return _topk(gating_output, topk_indices.shape[1], num_shared_experts)


def _fused_topk_key(args: Args, words: Words) -> Key:
    logits = args[1]
    return logits.shape, logits.dtype, args[2], len(words)


def _fused_topk_route(
    hidden_states: Any, gating_output: Any, topk: int, renormalize: bool, topk_ids: Any = None,
    topk_weights: Any = None,
) -> Given:  # fmt: skip
    return _topk(gating_output, topk, 0)


def _topk(logits: Any, k: int, num_shared: int) -> Given:
    m, experts = logits.shape
    given = {"M": m, "E": experts - num_shared, "K": k, "logits_dtype": logits.dtype}
    return logits.device, "topk_softmax", given


def _biased_key(args: Args, words: Words) -> Key:
    logits = args[0]
    return logits.shape, logits.dtype, args[3].shape, args[4:], tuple(words.values())


def _grouped_key(args: Args, words: Words) -> Key:
    logits = args[0]
    return logits.shape, logits.dtype, args[2].shape, args[3:], tuple(words.values())


def _biased_route(
    gating_output: Any, correction_bias: Any, topk_weights: Any, topk_ids: Any,
    num_expert_group: int, topk_group: int, need_renorm: bool, routed_scaling_factor: float = 1.0,
) -> Given:  # fmt: skip
    return _groups(gating_output, topk_ids, num_expert_group, topk_group)


def _grouped_route(
    gating_output: Any, topk_weights: Any, topk_ids: Any, num_expert_group: int, topk_group: int,
    need_renorm: bool, is_softmax: bool = True, routed_scaling_factor: float = 1.0,
) -> Given:  # fmt: skip
    return _groups(gating_output, topk_ids, num_expert_group, topk_group)


def _groups(logits: Any, ids: Any, groups: int, chosen: int) -> Given:
    (m, experts), k = logits.shape, ids.shape[1]
    given = {"M": m, "E": experts, "K": k, "num_groups": groups, "topk_groups": chosen}
    return logits.device, "grouped_topk", given | {"logits_dtype": logits.dtype}


def _align_key(args: Args, words: Words) -> Key:
    ids = args[0]
    return ids.shape, ids.dtype, args[1], args[2], len(words)


def _align_route(
    topk_ids: Any, block_size: int, num_experts: int, expert_map: Any = None,
    pad_sorted_ids: bool = False, ignore_invalid_experts: bool = False, *,
    return_scatter_idx: bool = False,
) -> Given:  # fmt: skip
    given = {"rows": topk_ids.numel(), "E": num_experts, "block_size": block_size}
    return topk_ids.device, "moe_align_block_size", given


# ---------------------------------------------------------------- linear layers


def _linear_key(args: Args, words: Words) -> Key:
    x = args[0]
    return x.shape, x.dtype, args[1].shape, len(args), tuple(words)


def _fp8_route(
    XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, dtype: Any = None, isBpreshuffled: bool = False
) -> Given:
    if x_scale.element_size() != 4:
        raise ValueError("scales are not float32")
    given = {"M": XQ.shape[0], "N": WQ.shape[0], "K": XQ.shape[1]}
    given |= {"x_dtype": XQ.dtype, "w_dtype": WQ.dtype}
    given |= {} if dtype is None else {"dtype": dtype}
    return XQ.device, "gemm_a8w8_blockscale", given | _layout(w=isBpreshuffled)


def _fp8_shuffled_route(
    XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, dtype: Any = None, out: Any = None
) -> Given:
    return _fp8_route(XQ, WQ, x_scale, w_scale, dtype, True)


def _a4w4_route(
    A: Any, B: Any, A_scale: Any, B_scale: Any, bias: Any = None, dtype: Any = None, *more: Any,
    bpreshuffle: bool = True, **others: Any,
) -> Given:  # fmt: skip
    layouts = _layout(w=bpreshuffle, x_scale=True, w_scale=True)
    return _fp4(A, A.shape[:-1].numel(), B.shape[0], dtype, layouts)


def _fp4_route(
    x: Any, w: Any, x_scales: Any, w_scales: Any, dtype: Any = None, *more: Any, **others: Any
) -> Given:
    return _fp4(x, x.shape[0], w.shape[0], dtype, {})


def _fp4_shuffled_route(
    x: Any, w: Any, x_scales: Any, w_scales: Any, dtype: Any = None, *more: Any, **others: Any
) -> Given:
    return _fp4(x, x.shape[0], 16 * w.shape[0], dtype, _layout(w=True, w_scale=True))


def _fp4(x: Any, m: int, n: int, dtype: Any, layouts: dict[str, str]) -> Given:
    given = {"M": m, "N": n, "K": 2 * x.shape[-1], **layouts}
    return x.device, "gemm_afp4wfp4", given | ({} if dtype is None else {"dtype": dtype})


def _layout(w: bool = False, x_scale: bool = False, w_scale: bool = False) -> dict[str, str]:
    words = {"w_layout": "16x16" if w else "", "x_scale_layout": "shuffled" if x_scale else "",
             "w_scale_layout": "shuffled" if w_scale else ""}  # fmt: skip
    return {name: word for name, word in words.items() if word}


def _quant_key(args: Args, words: Words) -> Key:
    x = args[0]
    return x.shape, x.dtype, args[1:], len(words)


def _quant_route(x: Any, scaling_mode: str = "even") -> Given:
    given = {"M": x.shape[0], "K": x.shape[1], "x_dtype": x.dtype, "rounding": scaling_mode}
    return x.device, "quant_mxfp4", given


def _group_quant_key(args: Args, words: Words) -> Key:
    x = args[0]
    return x.shape, x.dtype, tuple(words.values())


def _group_quant_route(x: Any, *more: Any, quant_dtype: Any = None, **others: Any) -> Given:
    given = {"M": x.shape[:-1].numel(), "K": x.shape[-1], "x_dtype": x.dtype, "block_rows": 1}
    return x.device, "quant_fp8_blockscale", given | {"dtype": quant_dtype}


# ---------------------------------------------------------------- the table

_TRITON = "aiter.ops.triton"
AITER = (
    Callee("aiter.mla.mla_decode_fwd", "mla", _mla_key, mla_route),
    Callee("aiter.fused_moe.fused_moe", "moe", _moe_key, moe_route),
    Callee("aiter.topk_softmax", "topk", _softmax_key, _softmax_route),
    Callee("aiter.ops.topk.topk_gating", "topk", _gating_key, _gating_route),
    Callee("aiter.fused_moe.fused_topk", "topk", _fused_topk_key, _fused_topk_route),
    Callee("aiter.biased_grouped_topk", "topk", _biased_key, _biased_route),
    Callee("aiter.grouped_topk", "topk", _grouped_key, _grouped_route),
    Callee("aiter.gemm_a8w8_blockscale", "fp8", _linear_key, _fp8_route),
    Callee("aiter.gemm_a8w8_blockscale_bpreshuffle", "fp8", _linear_key, _fp8_shuffled_route),
    Callee(f"{_TRITON}.gemm_a8w8_blockscale.gemm_a8w8_blockscale", "fp8", _linear_key, _fp8_route),
    Maker("aiter.get_hip_quant", "fp8", _group_quant_key, _group_quant_route,
          compat("per_group_quant_hip")),
    Callee("aiter.gemm_a4w4", "mxfp4", _linear_key, _a4w4_route),
    Callee(f"{_TRITON}.gemm_afp4wfp4.gemm_afp4wfp4", "mxfp4", _linear_key, _fp4_route),
    Callee(f"{_TRITON}.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle", "mxfp4", _linear_key,
           _fp4_shuffled_route),
    Callee(f"{_TRITON}.quant.dynamic_mxfp4_quant", "mxfp4", _quant_key, _quant_route),
)  # fmt: skip
VLLM = (
    Callee("vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd", "mla",
           _decode_key, _decode_route),
    Callee("vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size", "moe",
           _align_key, _align_route),
)  # fmt: skip
GROUPS = tuple(dict.fromkeys(callee.group for callee in (*AITER, *VLLM)))
