"""Drop-ins for mla_decode with the names, argument orders and results of others: aiter's
`mla_decode_fwd` and its metadata, vLLM's Triton `decode_attention_fwd` for MLA, FlashMLA's
`flash_mla_with_kvcache`.

How tokens are shared out is computed in the kernel: what callers made to say it, metadata and
numbers of splits, is accepted and ignored, which is said once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard
from rfops.jit import log
from rfops.jit.errors import show

from .mla_decode import mla_decode
from .mla_terms import D_QK, D_V


@functools.cache
def _say_ignored(name: str) -> None:
    log.get().info("%s: metadata and splits are ignored, the kernel shares tokens out", name)


def _refuse(name: str, argument: str, expected: str, value: Any) -> None:
    Guard(name).fail(argument, expected, show(value), "call the original")


def _refuse_others(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of newer versions that do not have their neutral value."""
    for argument, value in arguments.items():
        neutral = _NEUTRAL.get(argument)
        if value is not None and (neutral is None or value != neutral):
            expected = "None" if neutral is None else f"{neutral} or None"
            _refuse(name, argument, expected, value)


_NEUTRAL: Mapping[str, Any] = {
    "cp_world_size": 1,
    "cp_rank": 0,
    "topk": -1,
    "is_sparse": False,
    "is_fp8_kvcache": False,
}


def _as_int32(name: str, argument: str, tensor: Tensor, count: int | None = None) -> Tensor:
    """Indices, lengths or offsets as int32, of int64 by a copy; the first `count` of them."""
    if count is not None:
        if tensor.dim() != 1 or tensor.shape[0] < count:
            _refuse(name, argument, f"[{count}] or longer", list(tensor.shape))
        tensor = tensor[:count] if tensor.shape[0] > count else tensor
    return tensor.to(torch.int32) if tensor.dtype == torch.int64 else tensor


# ---------------------------------------------------------------- aiter


def mla_decode_fwd(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_lens: Tensor,
    max_seqlen_q: int,
    page_size: int = 1,
    nhead_kv: int = 1,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    num_kv_splits: int | None = None,
    num_kv_splits_indptr: Tensor | None = None,
    work_meta_data: Tensor | None = None,
    work_indptr: Tensor | None = None,
    work_info_set: Tensor | None = None,
    reduce_indptr: Tensor | None = None,
    reduce_final_map: Tensor | None = None,
    reduce_partial_map: Tensor | None = None,
    q_scale: Tensor | None = None,
    kv_scale: Tensor | None = None,
    intra_batch_mode: bool = False,
    return_logits: bool = False,
    return_lse: bool = False,
    causal: bool = True,
    **extra_arguments: Any,
) -> tuple[None, Tensor | None]:
    """aiter.mla.mla_decode_fwd: o [total_q, heads, 512] is written; (None, lse or None).

    Sequence b has rows qo_indptr[b] .. qo_indptr[b + 1] - 1 of q; other rows of o and lse are not
    written. A sequence of no page has no token, whatever its kv_last_page_lens says. Index tensors
    are int32 or int64, and kv_indptr and kv_last_page_lens may be longer than qo_indptr says.
    intra_batch_mode, metadata and splits change no result, and are ignored. Raises ValueError for
    what is not taken: a cap of logits, logits themselves, more than one KV head, context
    parallelism, and other arguments of newer aiters.
    """
    name = "mla_decode_fwd"
    if logit_cap > 0:
        _refuse(name, "logit_cap", "0 or less", logit_cap)
    if return_logits:
        _refuse(name, "return_logits", "False", return_logits)
    if nhead_kv != 1:
        _refuse(name, "nhead_kv", "1", nhead_kv)
    _refuse_others(name, extra_arguments)
    if work_meta_data is not None or num_kv_splits is not None:
        _say_ignored(name)
    kv = kv_buffer if kv_buffer.dim() == 4 else kv_buffer.view(-1, page_size, 1, D_QK)
    qo_indptr = _as_int32(name, "qo_indptr", qo_indptr)
    batch = qo_indptr.numel() - 1
    kv_indptr = _as_int32(name, "kv_indptr", kv_indptr, batch + 1)
    kv_indices = _as_int32(name, "kv_indices", kv_indices)
    lens = None
    if kv.shape[1] > 1:
        last_page_lens = _as_int32(name, "kv_last_page_lens", kv_last_page_lens, batch)
        pages = kv_indptr.diff()
        lens = ((pages - 1) * kv.shape[1] + last_page_lens) * (pages > 0)
        lens = lens.to(torch.int32)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
    scale = D_QK**-0.5 if sm_scale is None else sm_scale
    mla_decode(
        q,
        kv,
        kv_indptr,
        kv_indices,
        scale,
        qo_indptr=qo_indptr,
        max_qo_len=max_seqlen_q,
        causal=causal,
        kv_lens=lens,
        kv_scale=kv_scale,
        q_scale=q_scale,
        out=o,
        lse=lse,
    )
    return None, lse


def get_mla_metadata_info_v1(
    *_args: Any, is_sparse: Any = None, **_kwargs: Any
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """aiter's: shape and dtype of the six buffers that its metadata wants; nothing is kept there,
    so the least of each. Raises ValueError for sparse attention."""
    _refuse_others("get_mla_metadata_info_v1", {"is_sparse": is_sparse})
    one_int = ((1,), torch.int32)
    return (
        ((2,), torch.uint64),
        one_int,
        ((1, 8), torch.int32),
        one_int,
        ((1, 2), torch.int32),
        one_int,
    )


def get_mla_metadata_v1(*_args: Any, topk: Any = None, **_kwargs: Any) -> None:
    """aiter's: there is nothing to plan. Raises ValueError for sparse attention, whose top-k tokens
    mla_decode_fwd would not know."""
    _refuse_others("get_mla_metadata_v1", {"topk": topk})
    _say_ignored("get_mla_metadata_v1")


# ---------------------------------------------------------------- vLLM


def decode_attention_fwd(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    lse: Tensor,
    req_to_token: Tensor,
    b_seq_len: Tensor,
    attn_logits: Tensor | None,
    num_kv_splits: int,
    sm_scale: float,
    page_size: int = 1,
    logit_cap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    is_mla: bool = False,
) -> None:
    """vLLM's of its Triton MLA: o [batch, heads, 512] and lse [batch, heads] are written.

    k_buffer is the cache, [pages, page_size, 1, 576] or its rows; v_buffer and v_scale are not
    looked at, as values are its first 512; k_scale counts where it is FP8. lse may be of any dtype
    (TRITON_MLA's is q's), indices and lengths int32 or int64. attn_logits and num_kv_splits are
    ignored.
    """
    name = "decode_attention_fwd"
    if logit_cap > 0:
        _refuse(name, "logit_cap", "0 or less", logit_cap)
    if k_buffer.shape[-1] != D_QK or k_buffer.shape[-2] != 1:
        _refuse(name, "k_buffer", "of one head of 576", list(k_buffer.shape))
    kv = k_buffer.view(-1, page_size, 1, D_QK)
    scale = k_scale if kv.element_size() == 1 else None
    table = _as_int32(name, "req_to_token", req_to_token)
    lens = _as_int32(name, "b_seq_len", b_seq_len)
    is_written = lse.dtype is torch.float32 and lse.is_contiguous()
    lse_out = lse if is_written else torch.empty_like(lse, dtype=torch.float32).contiguous()
    mla_decode(q, kv, None, table, sm_scale, kv_lens=lens, kv_scale=scale, out=o, lse=lse_out)
    if lse_out is not lse:
        lse.copy_(lse_out)


# ---------------------------------------------------------------- FlashMLA


def get_mla_metadata(*_args: Any, **_kwargs: Any) -> tuple[None, None]:
    """FlashMLA's tile_scheduler_metadata and num_splits: there is nothing to plan."""
    return None, None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    **extra_arguments: Any,
) -> tuple[Tensor, Tensor]:
    """q [batch, seq, heads, 576], k_cache [pages, page_size, 1, 576], block_table [batch, width]:
    (out [batch, seq, heads, 512], lse [batch, heads, seq]). Newer arguments must be neutral."""
    name = "flash_mla_with_kvcache"
    _refuse_others(name, extra_arguments)
    if head_dim_v != D_V:
        _refuse(name, "head_dim_v", str(D_V), head_dim_v)
    if q.dim() != 4:
        _refuse(name, "q", "[batch, seq, heads, 576]", list(q.shape))
    batch, length, heads, _ = q.shape
    lse = torch.empty((batch * length, heads), dtype=torch.float32, device=q.device)
    out = mla_decode(
        q.flatten(0, 1),
        k_cache,
        None,
        _as_int32(name, "block_table", block_table),
        D_QK**-0.5 if softmax_scale is None else softmax_scale,
        qo_len=length,
        causal=causal,
        kv_lens=_as_int32(name, "cache_seqlens", cache_seqlens),
        lse=lse,
    )
    return out.view(batch, length, heads, D_V), lse.view(batch, length, heads).mT
