"""grouped_topk: a token's best experts among those of its best groups, as DeepSeek-V3 routes.

s = sigmoid(logits), softmax(logits) or sqrt(softplus(logits)),  key = s + bias
group g's score = the sum of its two largest keys; without a bias the largest
ids[t] = the top_k largest keys in the topk_groups best groups,  weights[t, j] = s[t, ids[t, j]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.problem import grid

from .kernels.topk.choosing import choose
from .kernels.topk.kernels import Choose, Hip, Torch

__all__ = ["grouped_topk", "grouped_topk_ref"]

OP = Choose(
    "grouped_topk",
    """
    logits: bf16|f16|f32[M, E] strided
    bias: bf16|f16|f32[E]?
    top_k: K >= 1
    num_groups: int >= 1
    topk_groups: int >= 1
    renormalize: bool
    score: sigmoid|softmax|sqrtsoftplus
    scale: float
    -> weights: f32[M, K]
    -> ids: i32[M, K]
    """,
    sizes="M E K",
    positive="E",
    kernels=(Hip(), Torch()),
    coarse={"M": 0},
    max_bytes=None,
    usual={"scale": 1.0},
    shapes={
        # DeepSeek-V3 and Kimi K2
        "published": grid(
            "E K num_groups topk_groups",
            [(256, 8, 8, 4), (384, 8, 1, 1)],
            M=(1, 64, 2048, 8192),
            bias=(True,),
            renormalize=(True,),
            scale=(2.5,),
        ),
    },
    hints={
        "logits": "convert them first",
        "bias": "pass one number for each expert, or None",
        "E": "pass one expert at least",
    },
)


def grouped_topk(
    logits: torch.Tensor,
    top_k: int,
    num_groups: int = 1,
    topk_groups: int = 1,
    bias: torch.Tensor | None = None,
    renormalize: bool = True,
    *,
    score: str = "sigmoid",
    scale: float = 1.0,
    weights: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top_k experts of each token among those of its topk_groups best groups, the best first.

    Parameters
    ----------
    logits : [M, E] bfloat16, float16 or float32, any strides. NaN counts as the least number, an
        infinity as the largest or least: ids are always top_k different ints from 0 to E - 1.
    top_k : of E.
    num_groups, topk_groups : E / num_groups neighbouring experts are a group.
    bias : [E] bfloat16, float16 or float32, or None, added to the scores for the choice alone
        (DeepSeek-V3's correction). With it a group counts by the sum of its two best experts,
        without by its best.
    renormalize : the weights of a token add up to `scale`.
    score : "sigmoid", "softmax" or "sqrtsoftplus" of the logits; softplus(x) = log(1 + exp(x)).
    scale : what weights are multiplied by in the end.
    weights, ids : [M, top_k] float32 and int32, written in place where given.

    Returns weights and ids. Of equal experts, and groups, the lowest comes first. Deterministic.
    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V3 Technical Report (arXiv:2412.19437), 2.1.2: sigmoid scores, a bias for the
    choice alone, groups.
    """
    call: Callable[..., Any] = OP.traced if is_dynamo_compiling() else OP.call
    results: tuple[torch.Tensor, torch.Tensor] = call(
        logits, bias, top_k, num_groups, topk_groups, renormalize, score, scale, weights, ids
    )
    return results


grouped_topk.supports = OP.supports  # type: ignore[attr-defined]


def grouped_topk_ref(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = True,
    score: str = "sigmoid",
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`grouped_topk` in plain fp32 torch, on any device, of logits [M, E] and bias [E].

    Returns weights and ids, [M, top_k] float32 and int32. Raises torch's RuntimeError for what does
    not fit, such as more groups than experts.

    Source: DeepSeek-V3 Technical Report (arXiv:2412.19437), 2.1.2.
    """
    return choose(
        logits,
        bias,
        top_k,
        num_groups=num_groups,
        topk_groups=topk_groups,
        renormalize=renormalize,
        score=score,
        scale=scale,
    )


OP.reference = grouped_topk_ref
