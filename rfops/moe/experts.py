"""The experts of a mixture in torch: the formula of fused_moe and its plain kernel.

    h[t, e] = silu(x[t] Wg[e]) * (x[t] Wu[e]),  out[t] = sum over j of p[t, j] * (h[t, e_j] Wd[e_j])

Weights come in one of two layouts: stacked, w1 [E, 2I, D] (gate rows, then up rows) and
w2 [E, D, I]; or in tables of E matrices, gate and up [D, I] and down [I, D].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rfops.dispatch.heuristic import ceil


@dataclass(frozen=True)
class Weights:
    """The weights of all experts, in the orientation of `x @ gate` and `h @ down`."""

    gate: Sequence[Tensor]  # [D, I]
    up: Sequence[Tensor]  # [D, I]
    down: Sequence[Tensor]  # [I, D]

    @classmethod
    def stacked(cls, w1: Tensor, w2: Tensor) -> Weights:
        """Return the weights of two stacked tensors, w1 [E, D, 2I] and w2 [E, I, D], as views."""
        i = w2.shape[2]
        w1_t = w1.transpose(1, 2)
        return cls(w1_t[:, :, :i].unbind(), w1_t[:, :, i:].unbind(), w2.transpose(1, 2).unbind())

    @property
    def experts(self) -> int:
        """The number of experts."""
        return len(self.gate)


def layout_sizes(rows: int, block_size: int, num_experts: int, pad: bool) -> tuple[int, int]:
    """The most slots and blocks that moe_align_block_size needs for any routing of `rows` ids."""
    num_slots = min(rows * block_size, rows + num_experts * (block_size - 1))
    blocks = ceil(num_slots, block_size)
    return blocks * block_size if pad else num_slots, blocks


def with_shared(
    topk_weights: Tensor, topk_ids: Tensor, experts: int, num_shared: int
) -> tuple[Tensor, Tensor]:
    """Append columns of weight 1 for the last num_shared experts, which every token takes; routed
    ids that name a shared expert, or none, become -1."""
    routed = experts - num_shared
    # Compared before they are narrowed, because an id of 64 bits may wrap to a valid one.
    ids = torch.where((topk_ids >= 0) & (topk_ids < routed), topk_ids, -1).to(torch.int32)
    if num_shared == 0:
        return topk_weights, ids
    rows = ids.shape[0]
    shared_ids = torch.arange(routed, experts, dtype=torch.int32, device=ids.device)
    shared_weights = torch.ones((rows, num_shared), dtype=topk_weights.dtype, device=ids.device)
    return torch.cat([topk_weights, shared_weights], 1), torch.cat(
        [ids, shared_ids.expand(rows, -1)], 1
    )


def run_experts(
    out: Tensor,
    x: Tensor,
    weights: Weights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_shared: int,
    compute_dtype: torch.dtype | None = None,
    requantize: Callable[[Tensor], Tensor] = lambda h: h,
) -> None:
    """Write the layer's result to `out`: one product per expert, summed in fp32 in the order of
    experts. It waits for the device once, to read the number of rows of each expert.
    `compute_dtype` is the type of all arithmetic; `requantize` is applied to h."""
    total = torch.zeros(out.shape, dtype=compute_dtype or torch.float32, device=out.device)
    p, ids = with_shared(topk_weights, topk_ids, weights.experts, num_shared)
    flat = torch.where(ids < 0, weights.experts, ids).flatten().long()
    order = flat.argsort(stable=True)
    counts = torch.zeros(weights.experts + 1, dtype=torch.long, device=x.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    row_begin = 0
    for e, count in enumerate(counts[:-1].tolist()):
        if count == 0:
            continue
        assignments = order[row_begin : row_begin + count]
        row_begin += count
        rows = assignments // ids.shape[1]
        of_e = weights.gate[e], weights.up[e], weights.down[e]
        y = _expert(x[rows], *of_e, compute_dtype, requantize)
        y = y.to(total.dtype) * p.flatten()[assignments].to(total.dtype)[:, None]
        # A token that names an expert twice has two rows of it, which add in their order.
        total.index_add_(0, rows, y)
    out.copy_(total)


def _expert(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    compute_dtype: torch.dtype | None,
    requantize: Callable[[Tensor], Tensor],
) -> Tensor:
    if compute_dtype is not None:
        x, gate, up, down = (t.to(compute_dtype) for t in (x, gate, up, down))
    g, u = x @ gate, x @ up
    h = torch.nn.functional.silu(g.to(compute_dtype or torch.float32)) * u
    return requantize(h.to(x.dtype)) @ down


def experts_ref(
    x: Tensor, weights: Weights, topk_weights: Tensor, topk_ids: Tensor, num_shared: int
) -> Tensor:
    """The formula in fp32, on any device; in fp64 where x is fp64."""
    compute_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = torch.empty(x.shape, dtype=compute_dtype, device=x.device)
    run_experts(out, x, weights, topk_weights, topk_ids, num_shared, compute_dtype)
    return out
