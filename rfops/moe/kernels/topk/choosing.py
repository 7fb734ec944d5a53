"""Tokens' best experts by their logits, as csrc/moe/top_k.h finds them: the formula
in torch, and what the HIP kernels that choose do not take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rfops.dispatch.kernel import Call

MAX_EXPERTS, MAX_TOP_K, MAX_GROUPS = 1024, 16, 32
IN_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}  # in csrc/
IN_BYTES = {name: dtype.itemsize for dtype, name in IN_TYPES.items()}
LARGEST = torch.finfo(torch.float32).max
# The scores of fp32 logits, and what csrc/moe/top_k.h calls them.
SCORES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
}
SCORINGS = {"softmax": "kSoftmax", "sigmoid": "kSigmoid", "sqrtsoftplus": "kSqrtSoftplus"}


def refuses_choosing(c: Call, max_experts: int = MAX_EXPERTS) -> str | None:
    """Return why the top-k kernels do not take these numbers of experts or groups; None if they
    do."""
    if c.E > max_experts or c.K > MAX_TOP_K:
        return f"{c.K} of {c.E} experts are more than {MAX_TOP_K} of {max_experts}"
    if c.values.get("num_groups", 1) > MAX_GROUPS:
        return f"{c.num_groups} groups are more than {MAX_GROUPS}"
    return None


def choice_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `choose` among a call's values."""
    names = ("num_groups", "topk_groups", "renormalize", "score", "scale", "round_scores")
    return {name: values[name] for name in names if name in values}


def choose(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    *,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = False,
    score: str = "softmax",
    scale: float = 1.0,
    round_scores: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula in plain fp32 torch, on any device and without synchronisation."""
    clean = torch.nan_to_num(logits.to(torch.float32), -LARGEST, LARGEST, -LARGEST)
    scores = SCORES[score](clean)
    if round_scores:
        scores = scores.to(logits.dtype).to(torch.float32)
    keys = scores if round_scores or score != "softmax" else clean
    if bias is not None:
        keys = torch.nan_to_num(scores + bias.to(torch.float32), -LARGEST, LARGEST, -LARGEST)
    if num_groups > 1:
        grouped = keys.unflatten(1, (num_groups, -1))
        num_per_group = min(2 if bias is not None else 1, grouped.shape[2])
        of_group = torch.nan_to_num(
            grouped.topk(num_per_group, -1).values.sum(-1), 0.0, LARGEST, -LARGEST
        )
        best = of_group.sort(dim=1, descending=True, stable=True).indices[:, :topk_groups]
        in_best_group = torch.zeros_like(of_group, dtype=torch.bool).scatter_(1, best, True)
        keys = grouped.masked_fill(~in_best_group[:, :, None], -torch.inf).flatten(1)
    ids = keys.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, ids)
    if renormalize:
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total > 0, total, torch.ones_like(total))
    return weights * scale, ids.to(torch.int32)
