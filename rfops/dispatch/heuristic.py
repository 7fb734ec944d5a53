"""What choices among a kernel's variants share: variants in columns, sizes made coarse, and what
`rfops build` prepares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

VALU_CYCLES = 4  # an instruction of the vector ALU, of a wave of 64
MFMA_CYCLES = 32  # one scaled MFMA of 16 x 16 x 128
_BITS = 4  # of a size that count: steps of 6 to 12 %

Config = TypeVar("Config")


class Columns(Generic[Config]):
    """Variants; a time model knows a list of them by the object."""

    def __init__(self, candidates: Sequence[Config]) -> None:
        self.candidates = tuple(candidates)

    def __iter__(self) -> Iterator[Config]:
        return iter(self.candidates)


def prebuilt(op: str, kernel: str, **axes: Iterable[Any]) -> Callable[[str], list[Any]]:
    """What `rfops build` prepares: the distinct variants of the op's first set of shapes, with each
    of these values."""

    def variants(_arch: str) -> list[Any]:
        from .op import ops  # by then it is declared

        kernel_ = ops()[op].kernels[kernel]
        shapes = next(iter(ops()[op].shapes.values()))
        shapes = [
            {**s, **dict(zip(axes, v, strict=True))}
            for s in shapes
            for v in itertools.product(*axes.values())
        ]
        calls = [
            c
            for c in (ops()[op].call_of(**s) for s in shapes)
            if kernel_.unsupported_reason(c) is None
        ]
        all_defines = [kernel_.defines(c, kernel_.default(c)) or {} for c in calls]
        return [dict(pairs) for pairs in dict.fromkeys(tuple(d.items()) for d in all_defines)]

    return variants


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


def coarse_middle(size: int, step: int) -> int:
    """The middle of the sizes that share `coarse(size, step)`."""
    end = coarse(size, step) // step
    shift = (end - 1).bit_length() - _BITS
    return (end - (1 << shift >> 1) if shift > 0 else end) * step
