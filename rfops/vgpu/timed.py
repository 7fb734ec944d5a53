"""Timing mode of the virtual GPU: how long each launch would take on hardware, and why.

    with rfops.vgpu.timing(part="MI355X") as t:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    t.launches[-1].us, t.launches[-1].bound

A calibrated model (csrc/vgpu/timing/), and an estimate all the same: each time has its error band.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL, c_char_p, c_uint64
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

KINDS = ("profiler", "event", "graph")


@dataclass(frozen=True)
class TimedLaunch:
    """One launch. `figures` holds, among others:

    us, low, high : the time by the clock of `kind`, and its error band.
    clock_ghz, clocks, floor_us : the clock that power allows, clk of the body, the launch itself.
    bound, busy : what limits it, and the busy share of each unit.
    memory : bytes and hit rate of each level, and rows of HBM that reads opened, of the XCD that
        was looked at (rfops.vgpu.figures has them of the whole GPU); `sharing`, how many XCDs read
        a line of memory on average; `rates`, TB/s that each level delivers to the whole GPU.
    stalls, barrier_because : clk that waves waited, by reason; what the last wave at a barrier
        had waited for, by the clk that this cost the others.
    pcs : for each instruction its offset, text, source line, how often it was issued, its stalls,
        and, if it accesses memory, clk of LDS and of its bank conflicts, bytes, lines of 128 bytes.
    vmem_latency : clk from an instruction of vector memory's issue until it is done, on average.
    sampled : which part of the launch that is from.
    events : issues of the CU that is done last (clk, offset, SIMD, wave, clk stalled, reason),
        where asked for; `events_cu`, which one of XCD 0 that is.
    """

    figures: Mapping[str, Any]

    def json(self) -> str:
        """Return all figures as JSON text."""
        return json.dumps(dict(self.figures))

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        return dict(self.figures)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.figures[name]
        except KeyError:
            raise AttributeError(f"a timed launch has no figure {name!r}") from None


def records_of(text: bytes) -> list[dict[str, Any]]:
    """Records of the virtual GPU; names come from code objects and may be no UTF-8."""
    records: list[dict[str, Any]] = json.loads(text.decode("utf-8", "replace"))
    return records


@dataclass
class Timing:
    """The launches of a `timing()` block, in the order in which they ended."""

    launches: list[TimedLaunch] = field(default_factory=list)


@dataclass(eq=False)
class Block:
    """Somebody who wants launches timed. `options` count from the ones around it on if it follows
    them, else they are all."""

    options: str
    follows: bool = False
    add: Callable[[int, TimedLaunch], None] | None = None  # gets each launch and its number


class Mode:
    """Timing in one library. Blocks may nest: the innermost says how, a launch is in each."""

    def __init__(self, library: Path) -> None:
        self._library = CDLL(str(library))
        self._library.rfops_vgpu_timing.argtypes = [c_char_p]
        self._library.rfops_vgpu_timing.restype = c_char_p
        self._library.rfops_vgpu_timing_take.restype = c_char_p
        self._library.rfops_vgpu_modelled_ps.restype = c_uint64
        self._lock = threading.RLock()  # again, when the garbage collector ends a block in here
        self._blocks: list[Block] = []
        self._records: deque[dict[str, Any]] = deque()

    @contextmanager
    def on(self, block: Block) -> Iterator[None]:
        """Time the launches inside the `with` statement for `block`."""
        self.start(block)
        try:
            yield
        finally:
            self.stop(block)

    def start(self, block: Block) -> None:
        """Time launches for `block` from here on; earlier launches go to the blocks around it."""
        with self._lock:
            self.deliver()
            self._set([*self._blocks, block])
            self._blocks.append(block)

    def stop(self, block: Block) -> None:
        """Stop timing for `block`, after it got the launches that have ended."""
        with self._lock:
            self.deliver()
            self._blocks = [active for active in self._blocks if active is not block]
            self._set(self._blocks)

    def modelled_ps(self) -> int:
        """The sum over all launches timed so far, whole: differences of it are exact."""
        return int(self._library.rfops_vgpu_modelled_ps())

    def deliver(self) -> None:
        """Pass the launches that have ended to all active blocks."""
        with self._lock:
            self._records.extend(records_of(self._library.rfops_vgpu_timing_take()))
            while self._records:
                record = self._records.popleft()
                number, launch = record.pop("launch"), TimedLaunch(MappingProxyType(record))
                for block in self._blocks:
                    if block.add is not None:
                        block.add(number, launch)

    def _set(self, blocks: Sequence[Block]) -> None:
        options = "detail=0"
        for block in blocks:
            options = f"{options} {block.options}" if block.follows else block.options
        error = self._library.rfops_vgpu_timing(options.encode() if blocks else None)
        if error:
            raise ValueError(error.decode())


@cache
def mode(library: Path) -> Mode:
    """The one of this library."""
    return Mode(library)


@contextmanager
def collect(library: Path, options: str) -> Iterator[Timing]:
    """Time launches of this process, of all its threads, until the block ends."""
    timing = Timing()
    with mode(library).on(Block(options, add=lambda _, launch: timing.launches.append(launch))):
        yield timing
