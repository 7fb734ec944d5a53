"""The callees of vLLM 0.33 and SGLang 0.5.23 on ROCm that rfops has an op for.

Each has what the op's route is asked for, under the original's names, and the arguments whose
shapes that depends on. Arguments that the drop-in has no counterpart for are in a table with the
values that change nothing; with another value the original is called, as with whatever the drop-in
refuses (rfops.compat). Left out: metadata for MLA, which has no work to take over, and what has no
op.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import layouts
from .binding import ANY_VALUE, Arguments
from .wrapper import Callee, Maker, RouteCall, compat

# ---------------------------------------------------------------- attention

# Of aiters from v0.1.20 on; splits and metadata say how work is shared out, and no result.
_MLA_NEUTRAL: Mapping[str, Any] = {
    "intra_batch_mode": ANY_VALUE,
    "g_kv_indptr": (None,),
    "cp_world_size": (1, None),
    "cp_rank": (0, None),
}


def mla_route(q: Any, kv_buffer: Any, qo_indptr: Any, max_seqlen_q: int) -> RouteCall:
    """The lengths in qo_indptr are not known to the host, so the kernels are asked for ragged
    queries: they refuse more work than 2^32 tokens to share out."""
    page, batch = kv_buffer.shape[1] if kv_buffer.dim() == 4 else 1, qo_indptr.shape[0] - 1
    device, name, sizes = mla_sizes(q, q.shape[0], kv_buffer, page, max(max_seqlen_q, 1))
    return device, name, {**sizes, "B": batch, "qo_indptr": True}


def mla_sizes(q: Any, tokens: int, kv: Any, page: int, length: int) -> RouteCall:
    """Return device, op and sizes of an MLA decode call over a paged cache."""
    pages = kv.shape[0]
    return (
        q.device,
        "mla_decode",
        {
            "B": tokens // length,
            "T": tokens,
            "H": q.shape[1],
            "S": pages,
            "P": pages,
            "page": page,
            "qo_len": length,
            "q_dtype": q.dtype,
            "kv_dtype": kv.dtype,
        },
    )


def _mla_arguments(arguments: Arguments) -> Arguments:
    """Indices as int32, and of tables that are sized for the largest batch those of this one."""
    batch = arguments["qo_indptr"].shape[0] - 1
    sizes = {"kv_indptr": batch + 1, "kv_last_page_lens": batch}
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_lens"):
        table = _as_int32(arguments[name])
        is_long = name in sizes and table.shape[0] > sizes[name]
        arguments[name] = table[: sizes[name]] if is_long else table
    return arguments


def _as_int32(table: Any) -> Any:
    return table.to(torch.int32) if table.dtype is torch.int64 else table


def _decode_arguments(arguments: Arguments) -> Arguments:
    for name in ("req_to_token", "b_seq_len"):
        arguments[name] = _as_int32(arguments[name])
    return arguments


def _decode_route(q: Any, k_buffer: Any, page_size: int = 1, is_mla: bool = False) -> RouteCall:
    if not is_mla or q.shape[-1] != 576:
        raise ValueError("attention of another kind than MLA")
    return mla_sizes(q, q.shape[0], k_buffer, page_size, 1)


# ---------------------------------------------------------------- experts and routing

# By the bytes of a weight and the values in each: the op and what it says of a weight's shape.
_MOE_OPS = {(2, 1): "fused_moe", (1, 1): "fused_moe_fp8", (1, 2): "fused_moe_mxfp4"}
# Of newer aiters and of SGLang's callers.
_MOE_NEUTRAL: Mapping[str, Any] = {
    "no_combine": (False, None),
    "output": (None,),
    "quant_dtype_a": (None,),
}


def moe_route(hidden_states: Any, w1: Any, w2: Any, topk_ids: Any) -> RouteCall:
    """Return device, op and sizes of an engine's fused MoE call."""
    return moe_sizes(hidden_states, w1, w2, topk_ids.shape[1])


def moe_sizes(x: Any, w1: Any, w2: Any, k: int) -> RouteCall:
    """The same, of a call with k experts a token."""
    (m, d), (experts, rows, columns) = x.shape, w1.shape
    name = _MOE_OPS.get((w1.element_size(), max(d // columns, 1)))
    if name is None:
        raise ValueError(f"weights {tuple(w1.shape)} of {w1.dtype} for rows of {d}")
    sizes = {"M": m, "D": d, "I": rows // 2, "E": experts, "K": k, "dtype": x.dtype}
    return x.device, name, sizes | {"x_dtype": x.dtype, "w1_dtype": w1.dtype, "w2_dtype": w2.dtype}


def _aiter_moe_route(
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_ids: Any,
    activation: Any = 0,
    bias1: Any = None,
    bias2: Any = None,
    swiglu_limit: float | None = None,
) -> RouteCall:
    if int(activation) or bias1 is not None or bias2 is not None or swiglu_limit:
        raise ValueError(
            "activation must be Silu without swiglu_limit, bias1 and bias2, which rfops has in "
            f"Triton alone, got {activation!r}"
        )
    orders = layouts.find_layout(w1), layouts.find_layout(w2)
    if orders[0] != orders[1] or orders[0] not in (layouts.RAW, layouts.SHUFFLED):
        raise ValueError(
            "w1 and w2 must be marked by is_shuffled, or be results of aiter's shuffle_weight: "
            f"the order of their elements is not known, got {orders[0]} and {orders[1]}"
        )
    return moe_route(hidden_states, w1, w2, topk_ids)


def _moe_arguments(arguments: Arguments) -> Arguments:
    """Weights without a mark in the order that was established."""
    from rfops.dispatch.layout import Shuffled

    for name in ("w1", "w2"):
        if (
            layouts.mark(arguments[name]) is None
            and layouts.find_layout(arguments[name]) == layouts.SHUFFLED
        ):
            arguments[name] = Shuffled(arguments[name], layouts.SHUFFLED)
    return arguments


def _softmax_route(topk_indices: Any, gating_output: Any, num_shared_experts: int = 0) -> RouteCall:
    return _topk(gating_output, topk_indices.shape[1], num_shared_experts)


def _gating_route(topk_indices: Any, gating_output: Any, num_shared_experts: int = 0) -> RouteCall:
    device, _, sizes = _softmax_route(topk_indices, gating_output, num_shared_experts)
    return device, "grouped_topk", sizes


def _fused_topk_route(gating_output: Any, topk: int) -> RouteCall:
    return _topk(gating_output, topk, 0)


def _topk(logits: Any, k: int, num_shared: int) -> RouteCall:
    m, experts = logits.shape
    sizes = {"M": m, "E": experts - num_shared, "K": k, "logits_dtype": logits.dtype}
    return logits.device, "topk_softmax", sizes


def _groups_route(
    gating_output: Any, topk_ids: Any, num_expert_group: int, topk_group: int
) -> RouteCall:
    (m, experts), k = gating_output.shape, topk_ids.shape[1]
    sizes = {
        "M": m,
        "E": experts,
        "K": k,
        "num_groups": num_expert_group,
        "topk_groups": topk_group,
        "logits_dtype": gating_output.dtype,
    }
    return gating_output.device, "grouped_topk", sizes


def _align_route(topk_ids: Any, block_size: int, num_experts: int) -> RouteCall:
    sizes = {"rows": topk_ids.numel(), "E": num_experts, "block_size": block_size}
    return topk_ids.device, "moe_align_block_size", sizes


# ---------------------------------------------------------------- linear layers


def _fp8_route(
    XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, dtype: Any = None, isBpreshuffled: bool = False
) -> RouteCall:
    return fp8_route(XQ, WQ, x_scale, dtype, bool(isBpreshuffled))


def _fp8_shuffled_route(XQ: Any, WQ: Any, x_scale: Any, dtype: Any = None) -> RouteCall:
    return fp8_route(XQ, WQ, x_scale, dtype, True)


def _fp8_triton_route(x: Any, w: Any, x_scale: Any, dtype: Any = None) -> RouteCall:
    return fp8_route(x, w, x_scale, dtype, False)


def fp8_route(x: Any, w: Any, x_scale: Any, dtype: Any, is_shuffled: bool) -> RouteCall:
    """Return device, op and sizes of an engine's call of an FP8 linear layer."""
    _check_mark(w, is_shuffled)
    if x_scale.element_size() != 4:
        raise ValueError("scales are not float32")
    sizes = {"M": x.shape[0], "N": w.shape[0], "K": x.shape[1]}
    sizes |= {"x_dtype": x.dtype, "w_dtype": w.dtype}
    sizes |= {} if dtype is None else {"dtype": dtype}
    return x.device, "gemm_a8w8_blockscale", sizes | weight_layout(w=is_shuffled)


def _check_mark(w: Any, is_shuffled: bool) -> None:
    """A function's name or argument says the order of its weights; a mark must not contradict."""
    marked_layout = layouts.mark(w)
    if marked_layout is not None and (marked_layout == layouts.SHUFFLED) != is_shuffled:
        expected = "shuffled" if is_shuffled else "raw"
        raise ValueError(
            f"weights must be {expected}, got a weight marked is_shuffled={not is_shuffled}"
        )


def _a4w4_route(A: Any, B: Any, dtype: Any = None, bpreshuffle: bool = True) -> RouteCall:
    _check_mark(B, bool(bpreshuffle))
    layout = weight_layout(w=bool(bpreshuffle), x_scale=True, w_scale=True)
    return _fp4(A, A.shape[:-1].numel(), B.shape[0], dtype, layout)


def _fp4_route(x: Any, w: Any, dtype: Any = None) -> RouteCall:
    _check_mark(w, False)
    return _fp4(x, x.shape[0], w.shape[0], dtype, {})


def _fp4_shuffled_route(x_fp4: Any, w_preshuf: Any, dtype: Any = None) -> RouteCall:
    layout = weight_layout(w=True, w_scale=True)
    return _fp4(x_fp4, x_fp4.shape[0], 16 * w_preshuf.shape[0], dtype, layout)


def _fp4(x: Any, m: int, n: int, dtype: Any, layout: dict[str, str]) -> RouteCall:
    sizes = {"M": m, "N": n, "K": 2 * x.shape[-1], **layout}
    return x.device, "gemm_afp4wfp4", sizes | ({} if dtype is None else {"dtype": dtype})


def weight_layout(w: bool = False, x_scale: bool = False, w_scale: bool = False) -> dict[str, str]:
    layouts_ = {
        "w_layout": "16x16" if w else "",
        "x_scale_layout": "shuffled" if x_scale else "",
        "w_scale_layout": "shuffled" if w_scale else "",
    }
    return {name: layout for name, layout in layouts_.items() if layout}


def _quant_route(x: Any, scaling_mode: str = "even") -> RouteCall:
    sizes = {"M": x.shape[0], "K": x.shape[1], "x_dtype": x.dtype, "rounding": scaling_mode}
    return x.device, "quant_mxfp4", sizes


def _group_quant_route(x: Any, quant_dtype: Any = torch.int8) -> RouteCall:
    if quant_dtype is torch.int8:
        raise ValueError("quant_dtype must be an FP8 dtype, got int8")
    sizes = {"M": x.shape[:-1].numel(), "K": x.shape[-1], "x_dtype": x.dtype, "block_rows": 1}
    return x.device, "quant_fp8_blockscale", sizes | {"dtype": quant_dtype}


# ---------------------------------------------------------------- ops of rows

# Wrapped are functions of which rfops makes no more launches than aiter: not those that add a
# residual into a new tensor, which rms_norm adds to in place.


def _norm_route(input: Any, weight: Any) -> RouteCall:
    sizes = {"M": input.shape[:-1].numel(), "K": input.shape[-1], "residual": False}
    return input.device, "rms_norm", sizes | {"x_dtype": input.dtype, "weight_dtype": weight.dtype}


def _norm_quant_route(
    inp1: Any,
    inp1_weight: Any,
    dtype_quant: Any = None,
    res1: Any = None,
    output_unquantized_inp1: bool = False,
    transpose_scale: bool = False,
) -> RouteCall:
    if res1 is not None or output_unquantized_inp1:
        raise ValueError("rfops needs a launch more for res1, and for output_unquantized_inp1")
    sizes = {"M": inp1.shape[0], "K": inp1.shape[1], "residual": False, "quant": "fp8_group"}
    sizes |= {"x_dtype": inp1.dtype, "weight_dtype": inp1_weight.dtype}
    sizes |= {} if dtype_quant is None else {"dtype": dtype_quant}
    return inp1.device, "rms_norm_quant", sizes | {"transpose_scale": bool(transpose_scale)}


def _silu_route(input: Any) -> RouteCall:
    return _activation(input, "silu")


def _activation(x: Any, activation: str, **extra_sizes: Any) -> RouteCall:
    """Return the question for an activation of gate and up in x [..., N]: of act_mul_quant where
    `extra_sizes` has `quant`, otherwise of act_mul."""
    sizes = {"M": x.shape[:-1].numel(), "N": x.shape[-1], "activation": activation}
    op = "act_mul_quant" if "quant" in extra_sizes else "act_mul"
    return x.device, op, sizes | {"x_dtype": x.dtype} | extra_sizes


def _clamp_route(
    inp: Any,
    activation: str = "silu",
    weights: Any = None,
    dtype_quant: Any = None,
    transpose_scale: bool = False,
    scale_dtype_fmt: str = "fp32",
) -> RouteCall:
    if weights is not None:
        raise ValueError("rfops multiplies by weights in torch")
    if dtype_quant is None:
        return _activation(inp, activation)
    if scale_dtype_fmt != "fp32":
        return _activation(inp, activation, quant="mxfp8", dtype=dtype_quant)
    extra_sizes = {"transpose_scale": bool(transpose_scale), "dtype": dtype_quant}
    return _activation(inp, activation, quant="fp8_group", **extra_sizes)


def _token_quant_route(out: Any, input: Any) -> RouteCall:
    return _rows_quant(input, out.dtype, "token")


def _tensor_quant_route(out: Any, input: Any) -> RouteCall:
    return _rows_quant(input, out.dtype, "tensor")


def _static_quant_route(out: Any, input: Any) -> RouteCall:
    device, name, sizes = _rows_quant(input, out.dtype, "tensor")
    return device, name, {**sizes, "static_scale": True}


def _new_token_quant_route(x: Any, quant_dtype: Any = torch.int8) -> RouteCall:
    return _rows_quant(x, quant_dtype, "token")


def _rows_quant(x: Any, dtype: Any, per: str) -> RouteCall:
    """Return the question for x [..., K] quantised to FP8 with a scale per token or per tensor.
    Raises ValueError for int8."""
    if dtype is torch.int8:
        raise ValueError("results must be FP8, got int8")
    sizes = {"M": x.shape[:-1].numel(), "K": x.shape[-1], "x_dtype": x.dtype, "per": per}
    return x.device, "quant_fp8", sizes | {"dtype": dtype}


# ---------------------------------------------------------------- the table

_TRITON = "aiter.ops.triton"
_BASIC = f"{_TRITON}.gemm.basic"  # where today's aiter has its GEMMs; the former names are aliases
_FP4_MODULES = (f"{_BASIC}.gemm_afp4wfp4",)


def _find_drop_in(module: str, name: str) -> Any:
    """Return what finds a function of the importable aiter (rfops.compat.aiter)."""
    return compat(name, f".aiter.{module}")


AITER = (
    Callee(
        "aiter.mla.mla_decode_fwd",
        "q kv_buffer",
        mla_route,
        sized="qo_indptr kv_indptr kv_last_page_lens",
        dtyped="kv_indices",
        neutral=_MLA_NEUTRAL,
        adapt=_mla_arguments,
    ),
    Callee(
        "aiter.fused_moe.fused_moe",
        "hidden_states w1 w2 topk_ids",
        _aiter_moe_route,
        neutral=_MOE_NEUTRAL,
        marked="w1 w2",
        adapt=_moe_arguments,
    ),
    Callee("aiter.topk_softmax", "gating_output topk_indices", _softmax_route),
    Callee("aiter.ops.topk.topk_gating", "gating_output topk_indices", _gating_route),
    Callee("aiter.fused_moe.fused_topk", "gating_output", _fused_topk_route),
    Callee("aiter.biased_grouped_topk", "gating_output topk_ids", _groups_route),
    Callee("aiter.grouped_topk", "gating_output topk_ids", _groups_route),
    Callee("aiter.gemm_a8w8_blockscale", "XQ WQ", _fp8_route, dtyped="x_scale", marked="WQ"),
    Callee(
        "aiter.gemm_a8w8_blockscale_bpreshuffle",
        "XQ WQ",
        _fp8_shuffled_route,
        dtyped="x_scale",
        marked="WQ",
    ),
    Callee(
        f"{_TRITON}.gemm_a8w8_blockscale.gemm_a8w8_blockscale",
        "x w",
        _fp8_triton_route,
        compat("gemm_a8w8_blockscale_triton"),
        dtyped="x_scale",
        marked="w",
        aliases=(f"{_BASIC}.gemm_a8w8_blockscale",),
    ),
    Maker("aiter.get_hip_quant", "x", _group_quant_route, compat("per_group_quant_hip")),
    Callee("aiter.gemm_a4w4", "A B", _a4w4_route, marked="B"),
    Callee(
        f"{_TRITON}.gemm_afp4wfp4.gemm_afp4wfp4",
        "x w",
        _fp4_route,
        marked="w",
        aliases=_FP4_MODULES,
    ),
    Callee(
        f"{_TRITON}.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle",
        "x_fp4 w_preshuf",
        _fp4_shuffled_route,
        aliases=_FP4_MODULES,
    ),
    Callee(f"{_TRITON}.quant.dynamic_mxfp4_quant", "x", _quant_route),
    Callee("aiter.rms_norm", "input weight", _norm_route, _find_drop_in("norms", "rms_norm")),
    Callee("aiter.rmsnorm2d_fwd", "input weight", _norm_route, _find_drop_in("norms", "rms_norm")),
    Callee(
        f"{_TRITON}.fused_fp8_quant.fused_rms_fp8_group_quant",
        "inp1 inp1_weight",
        _norm_quant_route,
        _find_drop_in("norms", "fused_rms_fp8_group_quant"),
        aliases=(f"{_TRITON}.quant.fused_fp8_quant",),
    ),
    Callee(
        "aiter.silu_and_mul", "input", _silu_route, _find_drop_in("activations", "silu_and_mul")
    ),
    Callee(
        f"{_TRITON}.fusions.fused_clamp_act_mul.fused_clamp_act_mul",
        "inp",
        _clamp_route,
        _find_drop_in("activations", "fused_clamp_act_mul"),
    ),
    Callee(
        "aiter.ops.quant.dynamic_per_token_scaled_quant",
        "out input",
        _token_quant_route,
        _find_drop_in("quant", "dynamic_per_token_scaled_quant"),
        aliases=("aiter",),
    ),
    Callee(
        "aiter.ops.quant.dynamic_per_tensor_quant",
        "out input",
        _tensor_quant_route,
        _find_drop_in("quant", "dynamic_per_tensor_quant"),
        aliases=("aiter",),
    ),
    Callee(
        "aiter.ops.quant.static_per_tensor_quant",
        "out input",
        _static_quant_route,
        _find_drop_in("quant", "static_per_tensor_quant"),
        aliases=("aiter",),
    ),
    Callee(
        "aiter.per_token_quant_hip",
        "x",
        _new_token_quant_route,
        _find_drop_in("quant", "per_token_quant_hip"),
    ),
)
VLLM = (
    Callee(
        "vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd",
        "q k_buffer",
        _decode_route,
        dtyped="req_to_token b_seq_len",
        adapt=_decode_arguments,
    ),
    Callee(
        "vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size",
        "topk_ids",
        _align_route,
    ),
)
