"""What compiled ops of several engines do, in torch: fp32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from rfops.quantization.fp8_blockscale import fp8_of_device


def rotate(x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool) -> Tensor:
    """RoPE of x [..., D], D elements rotated: fp32. cos and sin [..., D / 2] are broadcast; pairs
    are the halves' elements (neox) or neighbours."""
    x = x.float()
    first, second = x.chunk(2, -1) if is_neox else x.unflatten(-1, (-1, 2)).unbind(-1)
    parts = first * cos - second * sin, second * cos + first * sin
    return torch.cat(parts, -1) if is_neox else torch.stack(parts, -1).flatten(-2)


def write_rows(rows: Tensor, cache: Tensor, slots: Tensor, scale: Tensor | float) -> None:
    """cache [pages, page size, ...] at the slots that are not negative; in FP8 divided by scale."""
    is_used = slots >= 0
    page, entry = slots[is_used] // cache.shape[1], slots[is_used] % cache.shape[1]
    used = rows[: slots.shape[0]][is_used]
    if cache.element_size() == 1:
        fp8 = fp8_of_device(cache.device)
        limit = torch.finfo(fp8).max
        used = (used.float() / scale).clamp(-limit, limit).to(fp8).view(cache.dtype)
    cache[page, entry] = used.to(cache.dtype)
