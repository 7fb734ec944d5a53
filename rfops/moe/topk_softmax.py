"""topk_softmax: a token's best experts by the softmax of its logits, as Mixtral and Qwen route.

p = softmax(logits),  ids[t] = the top_k largest of p[t],  weights[t, j] = p[t, ids[t, j]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.problem import grid

from .kernels.topk.choosing import choose
from .kernels.topk.kernels import Choose, Hip, Torch

__all__ = ["topk_softmax", "topk_softmax_ref"]

OP = Choose(
    "topk_softmax",
    """
    logits: bf16|f16|f32[M, E] strided
    top_k: K >= 1
    renormalize: bool
    round_scores: bool
    -> weights: f32[M, K]
    -> ids: i32[M, K]
    """,
    sizes="M E K",
    positive="E",
    kernels=(Hip(), Torch()),
    coarse={"M": 0},
    max_bytes=None,
    shapes={
        "published": grid("E K", [(32, 4), (128, 8), (8, 2)], M=(1, 64, 2048, 8192)),
    },
    hints={"logits": "convert them first", "E": "pass one expert at least"},
)


def topk_softmax(
    logits: torch.Tensor,
    top_k: int,
    renormalize: bool = False,
    *,
    round_scores: bool = False,
    weights: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top_k experts of each token by the softmax of its logits, the best first.

    Parameters
    ----------
    logits : [M, E] bfloat16, float16 or float32, any strides. NaN counts as the least number, an
        infinity as the largest or least: ids are always top_k different ints from 0 to E - 1.
    top_k : of E.
    renormalize : the weights of a token add up to 1.
    round_scores : probabilities are rounded to the logits' dtype before they are compared, as torch
        does when it computes the softmax in that dtype; otherwise logits are compared.
    weights, ids : [M, top_k] float32 and int32, written in place where given.

    Returns weights and ids. Of equal experts the lowest id comes first. Deterministic. Raises
    ValueError for what does not fit, and what building the kernel raises.

    Source: top-k gating, Outrageously Large Neural Networks (arXiv:1701.06538), 2.1, without noise,
    the softmax taken first.
    """
    call: Callable[..., Any] = OP.traced if is_dynamo_compiling() else OP.call
    results: tuple[torch.Tensor, torch.Tensor] = call(
        logits, top_k, renormalize, round_scores, weights, ids
    )
    return results


topk_softmax.supports = OP.supports  # type: ignore[attr-defined]


def topk_softmax_ref(
    logits: torch.Tensor, top_k: int, renormalize: bool = False, round_scores: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """`topk_softmax` in plain fp32 torch, on any device, of logits [M, E].

    Returns weights and ids, [M, min(top_k, E)] float32 and int32. Raises torch's errors: IndexError
    for logits of one dimension.

    Source: Outrageously Large Neural Networks (arXiv:1701.06538), 2.1, without noise.
    """
    return choose(logits, None, top_k, renormalize=renormalize, round_scores=round_scores)


OP.reference = topk_softmax_ref
