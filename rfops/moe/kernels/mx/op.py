"""The kernels of fused_moe with MX weights, in the order in which they are tried."""

from __future__ import annotations

from rfops.dispatch.kernel import Kernel

from ...fused_moe_mx import Format, Torch
from .hip import HipMxMoe
from .triton import TritonMxMoe


def kernels_of(fmt: Format) -> tuple[Kernel, ...]:
    """Return the kernels of a format."""
    return HipMxMoe(fmt), TritonMxMoe(fmt), Torch(fmt)
