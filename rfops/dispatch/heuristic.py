"""What the kernels' heuristics share: a cost over all candidates at once, and sizes made coarse.

    table = Columns(candidates)  # table.waves: an array of all candidates' waves
    best = table.best((time, rounds))  # least time; where these are equal, fewest rounds

A search in Python takes milliseconds, which a shape that changes every call pays every call; so
costs are arrays (50 us), and sizes that hardly differ share one search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

_BITS = 4  # of a size that count: steps of 6 to 12 %

Config = TypeVar("Config")


class Columns(Generic[Config]):
    """Candidates; attributes are their values as arrays, fetched once each."""

    def __init__(self, candidates: Sequence[Config]) -> None:
        self.candidates = tuple(candidates)

    def __getattr__(self, name: str) -> Any:
        column = np.array([getattr(candidate, name) for candidate in self.candidates])
        setattr(self, name, column)
        return column

    def __iter__(self) -> Iterator[Config]:
        return iter(self.candidates)

    def best(self, costs: Sequence[Any]) -> Config:
        """The cheapest by the first cost, among equals by the next; of equals in all the first."""
        left = np.arange(len(self.candidates))
        for cost in costs:
            of_left = cost[left] if np.ndim(cost) else np.zeros(len(left))
            left = left[of_left == of_left.min()]
        return self.candidates[int(left[0])]

    def ranked(self, costs: Sequence[Any]) -> list[Config]:
        """All candidates in the order by which `best` is the first."""
        every = np.broadcast_arrays(*costs, np.arange(len(self.candidates)))[:-1]
        return [self.candidates[at] for at in np.lexsort(every[::-1])]


@overload
def ceil(a: int, b: int) -> int: ...
@overload
def ceil(a: Any, b: Any) -> Any: ...
def ceil(a: Any, b: Any) -> Any:
    """a / b rounded up, of ints or arrays."""
    return -(-a // b)


def coarse(size: int, step: int) -> int:
    """The next larger multiple of `step` whose count of steps has four significant bits."""
    steps = -(-size // step)
    shift = steps.bit_length() - _BITS
    if shift > 0:
        steps = -(-steps >> shift) << shift
    return steps * step
