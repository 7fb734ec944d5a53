"""fused_moe for experts of few rows, of 16-bit weights."""

from __future__ import annotations

from typing import ClassVar

from ..listed import HipListed


class HipListed16Bit(HipListed):
    """HipListed of 16-bit weights."""

    # Those of HipListed, which `rfops ls` reads in a file that the op imports.
    module = "moe_listed"
    more_modules: ClassVar[tuple[str, ...]] = ("moe_add_pairs",)
