"""What callers of fused_moe say of its experts beside the op's own arguments: which are here, and
what becomes of each choice's row. In torch, around one call of the op.

    ids       topk_ids by number of all experts -> those of w1, -1 for others (expert parallelism)
    on input  out[t] = sum over j of expert e_j(p[t, j] * x[t])
    rows      out[t, j] = p[t, j] * expert e_j(x[t]), not combined

For the last two each choice is a token of its own with one expert: x is copied K times. Expert rows
are rounded to x's dtype as within the op, and summed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, check_flag, describe
from rfops.jit.errors import show

Experts = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""The op of x [M, D], topk_weights and topk_ids [M, K], and out."""


def local_ids(ids: Tensor, expert_map: Tensor) -> Tensor:
    """Numbers of the experts that are here, int32 of ids' shape: expert_map's of an id, -1 for an
    id outside of it. Raises ValueError for a map that is no int32 [all experts]."""
    is_map = isinstance(expert_map, Tensor) and expert_map.dim() == 1 and expert_map.numel()
    if not is_map or expert_map.dtype != torch.int32 or expert_map.device != ids.device:
        Guard("fused_moe").fail(
            "expert_map",
            "int32 [all experts] on the device of topk_ids",
            describe(expert_map),
            "give each expert its number in w1, or -1",
        )
    last_id = expert_map.numel() - 1
    is_known = (ids >= 0) & (ids <= last_id)
    return torch.where(is_known, expert_map[ids.clamp(0, last_id)], -1)


def map_of_mask(mask: Tensor) -> Tensor:
    """[all experts] int32: the number of those with a 1 among themselves, -1 of others."""
    is_here = mask.reshape(-1) > 0
    return torch.where(is_here, is_here.cumsum(0, dtype=torch.int32) - 1, -1).to(torch.int32)


def by_choices(
    experts: Experts,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    on_input: bool,
    combine: bool,
    num_shared: int,
    out: Tensor | None,
) -> Tensor:
    """[M, D], or [M, K, D] where not combine, of experts that take each choice as a token.

    on_input: x is multiplied by the weight, in fp32, and an expert's row is not. out : as returned.
    Raises ValueError for shared experts, which have no choice, and for an out that does not fit.
    """
    on_input = check_flag("fused_moe", "apply_router_weight_on_input", on_input)
    combine = check_flag("fused_moe", "combine", combine)
    if num_shared and (on_input or not combine):
        name = "apply_router_weight_on_input" if on_input else "combine"
        actual = f"{on_input if on_input else combine} with num_shared={num_shared}"
        expected = f"{not on_input if on_input else True} with shared experts"
        way_out = "call fused_moe for the shared ones by themselves, and add"
        Guard("fused_moe").fail(name, expected, actual, way_out)
    for name, tensor in (("x", x), ("topk_weights", topk_weights)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 2:
            Guard("fused_moe").fail(name, "a matrix", describe(tensor), "as for fused_moe")
    (m, k), d = topk_ids.shape, x.shape[1]
    if out is not None and (
        out.shape != ((m, d) if combine else (m, k, d)) or out.dtype != x.dtype
    ):
        shape = [m, d] if combine else [m, k, d]
        Guard("fused_moe").fail("out", f"{show(shape)} of x's dtype", describe(out), "pass that")
    rows = x.unsqueeze(1).expand(m, k, d)
    weights = topk_weights
    if on_input:
        rows = (rows * topk_weights.unsqueeze(-1)).to(x.dtype)
        weights = torch.ones_like(topk_weights)
    target = out if out is not None and not combine and out.is_contiguous() else None
    flat = None if target is None else target.view(m * k, d)
    results = experts(rows.reshape(m * k, d), weights.reshape(-1, 1), topk_ids.reshape(-1, 1), flat)
    results = results.view(m, k, d)
    if not combine:
        return results if out is None else results if target is not None else out.copy_(results)
    total = results.sum(1, dtype=torch.float32).to(x.dtype)
    return total if out is None else out.copy_(total)
