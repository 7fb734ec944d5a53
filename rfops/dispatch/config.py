"""Base of a kernel's config dataclass, which declares the values that its fields may have:

@dataclass(frozen=True)
class StreamConfig(CheckedConfig):
    tiles: int
    waves: int = 4

    ALLOWED: ClassVar[Allowed] = {"tiles": (1, 2, 4), "waves": up_to(16)}
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import ClassVar

from .guards import check_config_ints, join_or

Allowed = Mapping[str, Collection[int]]
MAX_INT = 2**31 - 1
POSITIVE = range(1, MAX_INT + 1)
FLAG = (0, 1)


class CheckedConfig:
    """All fields are ints, and those that `ALLOWED` names have one of its values. Raises ValueError
    otherwise."""

    ALLOWED: ClassVar[Allowed] = {}

    def __post_init__(self) -> None:
        check_config_ints(self)
        for name, value in vars(self).items():
            values = self.ALLOWED.get(name)
            # As a plain int: a range looks for one of another type, as numpy's, number by number.
            if values is not None and operator.index(value) not in values:
                raise ValueError(f"{self}: {name} must be {_text(values)}, got {value}")


def up_to(maximum: int) -> range:
    """Return the range 1 to `most`, both included, of a field."""
    return range(1, maximum + 1)


def powers(minimum: int, maximum: int) -> tuple[int, ...]:
    """Return the powers of two from `least` to `most`."""
    return tuple([1 << i for i in range(31) if minimum <= 1 << i <= maximum])


def _text(values: Collection[int]) -> str:
    if isinstance(values, range):
        return f"{values[0]} or more" if values[-1] == MAX_INT else f"{values[0]} to {values[-1]}"
    lo, hi = min(values), max(values)
    if len(values) > 3 and values == powers(lo, hi):
        return f"a power of two from {lo} to {hi}"
    return join_or([str(value) for value in values])
