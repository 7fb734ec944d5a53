"""aiter.flash_attn_varlen_func in plain torch, so that an engine's prefill runs before rfops' MLA
decode. rfops has no kernel of it: it is right and slow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard
from rfops.jit.errors import show

# Arguments beside those below, and values of them that change no result, as None does.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_seqlen_q": (0,),
    "dropout_p": (0.0,),
    "logits_soft_cap": (0.0,),
    "window_size": ((-1, -1), (-1, -1, 0)),
    "deterministic": (False, True),
    "return_attn_probs": (False,),
    "how_v3_bf16_cvt": (0, 1, 2),
}


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    out: Tensor | None = None,
    **extra_arguments: Any,
) -> Any:
    """Return attention [total_q, heads, D_v] of ragged sequences, and its log-sum-exp
    [heads, total_q] in fp32 with return_lse.

    q [total_q, heads, D], k [total_k, kv_heads, D], v [total_k, kv_heads, D_v]; sequence b has rows
    cu_seqlens[b] .. cu_seqlens[b + 1] - 1. A causal mask ends at the last key of each sequence.
    softmax_scale is D^-0.5 without. Raises ValueError for other arguments of aiter's that change
    the result: dropout, windows, biases, caps, block tables.
    """
    for name, value in extra_arguments.items():
        if value is not None and value not in _NEUTRAL.get(name, ()):
            Guard("flash_attn_varlen_func").fail(name, "neutral", show(value), "use torch's SDPA")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    result = q.new_empty(*q.shape[:2], v.shape[-1]) if out is None else out
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32, device=q.device)
    group = q.shape[1] // k.shape[1]
    q_ends, k_ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(q_ends) - 1):
        rows, keys = slice(*q_ends[b : b + 2]), slice(*k_ends[b : b + 2])
        heads_k, heads_v = (t[keys].float().repeat_interleave(group, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[rows].float(), heads_k) * scale
        if causal:
            offset = scores.shape[2] - scores.shape[1]
            scores += torch.full_like(scores[0], -torch.inf).triu(1 + offset)
        lse[:, rows] = scores.logsumexp(-1)
        weights = scores.softmax(-1).nan_to_num(0.0)  # a row that sees no key is zeros
        result[rows] = torch.einsum("hqk,khd->qhd", weights, heads_v).to(result.dtype)
    return (result, lse) if return_lse else result
