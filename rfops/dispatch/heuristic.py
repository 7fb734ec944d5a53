"""What the kernels' heuristics share: one cost model, over all candidates at once, and sizes made
coarse.

    table = Columns(candidates)  # table.waves: an array of all candidates' waves
    best = table.best(Work(groups=..., waves=table.waves, ...).costs(ROWS["gfx950"]))

A search in Python takes milliseconds, which a shape that changes every call pays every call; so
costs are arrays (50 us), and sizes that hardly differ share one search.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np

from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, Arch

from .kernel import Call, Kernel

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
        remaining = np.arange(len(self.candidates))
        for cost in costs:
            remaining_cost = cost[remaining] if np.ndim(cost) else np.zeros(len(remaining))
            remaining = remaining[remaining_cost == remaining_cost.min()]
        return self.candidates[int(remaining[0])]

    def ranked(self, costs: Sequence[Any]) -> list[Config]:
        """All candidates in the order by which `best` is the first."""
        columns = np.broadcast_arrays(*costs, np.arange(len(self.candidates)))[:-1]
        return [self.candidates[index] for index in np.lexsort(columns[::-1])]


# Bytes that a CU has on their way: each takes its place in the 32 KiB of L1. An assumption, as what
# an L1 tracks is not published; at 8 TB/s a CU's share is 25 KB.
_IN_FLIGHT = 32 * 1024
_HIDDEN = 4  # of a wave's waits after the first, so many behind other waves' loads, but one
_LDS_BYTES_A_CLOCK = 128
VALU_CYCLES = 4  # an instruction of the vector ALU, of a wave of 64
MFMA_CYCLES = 32  # one scaled MFMA of 16 x 16 x 128


@dataclass
class Work:
    """What variants of a kernel ask of the chip: each an int, or an array of all candidates."""

    groups: Any  # workgroups
    waves: Any  # of a workgroup
    bytes: Any  # from memory, each once
    w_bytes: Any  # that a workgroup reads from memory
    x_bytes: Any  # that a workgroup reads, and finds in L2
    cycles: Any  # of a SIMD, a wave
    waits: Any  # of a wave, one after the other, for loads
    registers: Any
    lds_bytes: Any = 0  # of a workgroup, written once and read once
    more_us: Any = 0.0  # what comes after
    idle: Any = False  # whether some wave has nothing to do: these come last

    @functools.cached_property
    def per_cu(self) -> Any:
        """Workgroups of a CU at once, by registers."""
        return np.maximum(1, 4 * np.minimum(MAX_WAVES, REGISTERS // self.registers) // self.waves)

    def us(self, chip: Arch) -> Any:
        """Microseconds: dispatch, the first load's latency, the slowest of HBM, L2, the fullest
        CU's loads and its busiest SIMD, the sums' way through LDS. A wave's later turns hide most
        of their latency behind other waves' loads."""
        busiest, clocks = ceil(self.groups, chip.cus), 1e3 * chip.ghz
        by_cu = self.w_bytes * chip.latency_us + self.x_bytes * chip.l2_latency_us
        times = (
            self.bytes / chip.hbm_tb_s / 1e6,
            self.groups * (self.w_bytes + self.x_bytes) / chip.l2_tb_s / 1e6,
            busiest * by_cu / _IN_FLIGHT,
            ceil(busiest * self.waves, chip.simds) * self.cycles / clocks,
        )
        waits = self.waits * ceil(busiest, self.per_cu)
        us = chip.latency_us * (1 + (waits - 1) / _HIDDEN) + functools.reduce(np.maximum, times)
        us += self.groups * self.waves * chip.dispatch_cycles / chip.xcds / clocks
        return us + 2 * busiest * self.lds_bytes / _LDS_BYTES_A_CLOCK / clocks + self.more_us

    def costs(self, chip: Arch) -> tuple[Any, ...]:
        """Order of preference: least time; equal ones by fewest waves, then fewest registers."""
        return self.idle, self.us(chip), self.groups * self.waves, self.registers


class Ranked(Kernel):
    """A HIP kernel of gfx950 whose variants the cost model ranks, by `key`: what decides of a call,
    sizes made coarse."""

    is_ranked = True

    def key(self, c: Call) -> tuple[int, ...]:
        raise NotImplementedError

    space: Callable[..., Columns[Any]]  # of the key: the variants that fit the chip
    work: Callable[..., Work]  # of these and the key: what they ask of it

    def default(self, c: Call) -> Any:
        return self._best(self.key(c))

    @functools.lru_cache(maxsize=2048)  # noqa: B019 # kernels live as long as the process
    def _best(self, key: tuple[int, ...]) -> Any:
        table = self.space(*key)
        return table.best(self.work(table, *key).costs(ARCH_SPECS["gfx950"]))

    def candidates(self, c: Call) -> list[Any]:
        key = self.key(c)
        table = self.space(*key)
        return table.ranked(self.work(table, *key).costs(ARCH_SPECS["gfx950"]))


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
