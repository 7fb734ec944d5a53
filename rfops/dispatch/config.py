"""Base of a kernel's config dataclass, which declares the values that its fields may have:

@dataclass(frozen=True)
class StreamConfig(CheckedConfig):
    tiles: int
    waves: int = 4

    ALLOWED: ClassVar[Allowed] = {"tiles": (1, 2, 4), "waves": up_to(16)}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from .guards import check_config_ints, either

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
            if values is not None and value not in values:
                raise ValueError(f"{self}: {name} must be {_text(values)}, got {value}")


def up_to(most: int) -> range:
    return range(1, most + 1)


def powers(least: int, most: int) -> tuple[int, ...]:
    """Return the powers of two from `least` to `most`."""
    return tuple([1 << i for i in range(31) if least <= 1 << i <= most])


def _text(values: Collection[int]) -> str:
    first, last = min(values), max(values)
    if isinstance(values, range):
        return f"{first} or more" if last == MAX_INT else f"{first} to {last}"
    if len(values) > 3 and values == powers(first, last):
        return f"a power of two from {first} to {last}"
    return either([str(value) for value in values])
