"""Timing mode of the virtual GPU: how long each launch would take on hardware, and why.

    with rfops.vgpu.timing(part="MI355X") as t:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    t.launches[-1].us, t.launches[-1].bound

A calibrated model (csrc/vgpu/timing/), and an estimate all the same: each time has its error band.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import CDLL, c_char_p
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
    memory : bytes and hit rate of each level, of the XCD that was looked at; `sharing`, how many
        XCDs read a line of memory on average.
    stalls, barrier_because : clk that waves waited, by reason; what the last wave at a barrier
        had waited for, by the clk that this cost the others.
    pcs : for each instruction its offset, text, how often it was issued, and its stalls.
    sampled : which part of the launch that is from.
    events : of one CU's issues (clk, offset, SIMD, wave, clk stalled, reason), where asked for.
    """

    figures: Mapping[str, Any]

    def json(self) -> str:
        return json.dumps(dict(self.figures))

    def as_dict(self) -> dict[str, Any]:
        return dict(self.figures)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.figures[name]
        except KeyError:
            raise AttributeError(f"a timed launch has no figure {name!r}") from None


@dataclass
class Timing:
    """The launches of a `timing()` block, in the order in which they ended."""

    launches: list[TimedLaunch] = field(default_factory=list)


class _Mode:
    """Timing in one library. Blocks may nest: the innermost says how, a launch is in each."""

    def __init__(self, library: Path) -> None:
        self._library = CDLL(str(library))
        self._library.rfops_vgpu_timing.argtypes = [c_char_p]
        self._library.rfops_vgpu_timing.restype = c_char_p
        self._library.rfops_vgpu_timing_take.restype = c_char_p
        self._lock = threading.RLock()
        self._blocks: list[tuple[Timing, str]] = []

    def start(self, timing: Timing, options: str) -> None:
        with self._lock:
            self._deliver()
            self._set(options)
            self._blocks.append((timing, options))

    def stop(self, timing: Timing) -> None:
        with self._lock:
            self._deliver()
            self._blocks = [block for block in self._blocks if block[0] is not timing]
            self._set(self._blocks[-1][1] if self._blocks else None)

    def _set(self, options: str | None) -> None:
        error = self._library.rfops_vgpu_timing(None if options is None else options.encode())
        if error:
            raise ValueError(error.decode())

    def _deliver(self) -> None:
        for record in json.loads(self._library.rfops_vgpu_timing_take()):
            for timing, _ in self._blocks:
                timing.launches.append(TimedLaunch(MappingProxyType(record)))


@cache
def _mode(library: Path) -> _Mode:
    return _Mode(library)


@contextmanager
def collect(library: Path, options: str) -> Iterator[Timing]:
    """Time launches of this process, of all its threads, until the block ends."""
    timing = Timing()
    mode = _mode(library)
    mode.start(timing, options)
    try:
        yield timing
    finally:
        mode.stop(timing)
