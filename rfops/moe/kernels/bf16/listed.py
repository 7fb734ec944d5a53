"""fused_moe for experts of few rows, of 16-bit weights: ranked beside `hip` by predicted time."""

from __future__ import annotations

from typing import Any, ClassVar

from rfops.dispatch.heuristic import Columns
from rfops.dispatch.kernel import Call

from ...terms import Traits
from ..fp8.stream import TILE
from ..listed import LINE, MANY_TILES, MAX_TOKENS, HipListed

_ONE = Columns([None])  # it has no variants


class HipListed16Bit(HipListed):
    """HipListed as a choice of the op's time model."""

    # Those of HipListed, which `rfops ls` reads in a file that the op imports.
    module = "moe_listed"
    more_modules: ClassVar[tuple[str, ...]] = ("moe_add_pairs",)

    def space(self, c: Call) -> Columns[Any] | None:
        elements = LINE * 8 // self.weight_bits
        fits = c.D % elements == c.I % elements == 0
        return _ONE if fits and not self.unsupported_arch_reason(c) else None

    def full_space(self, c: Call) -> Columns[Any] | None:  # type: ignore[override]
        return self.space(c)

    def family(self, _config: Any, _c: Call) -> str:
        return ""

    def traits(self, _config: Any, _c: Call) -> tuple[float, ...]:
        return Traits(rows=TILE * MANY_TILES[0], max_tokens=MAX_TOKENS)
