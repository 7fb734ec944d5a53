"""Counters of the virtual GPU: what each launch did, for comparing kernels without a GPU.

    with rfops.vgpu.profile() as p:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    p.launches[0].as_dict()

Counts are exact for the machine code that ran. What they say of time on hardware is an estimate.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import CDLL, c_char_p, c_int
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rfops.vgpu.model import Estimate, estimate


@dataclass(frozen=True)
class LaunchRecord:
    """One launch. `figures` holds, among others:

    kernel, arch, grid, block, workgroups, waves : what was launched.
    wave_instructions, instructions, classes : executed by waves; by mnemonic; by class.
    mfma, mfma_cycles, mfma_flops : by shape; cycles of one matrix core, added up over waves.
    valu_flops : floating-point operations of active lanes, a fused multiply-add counts 2.
    global_read, global_write, scalar_read : instructions; bytes the lanes asked for; requests_64B,
        the 64-byte lines each instruction touched, added up; lines_64B and lines_128B, the
        different lines of the whole launch (requests above lines are re-reads). Atomics are writes.
    lds_*, scratch_* : bytes, and the LDS cycles that bank conflicts cost by the measured phases.
    exec_splits : how often EXEC became a part of what it was (divergence).
    vgpr, agpr, sgpr, *_spills, lds_bytes_per_workgroup, workgroups_per_cu, waves_per_simd,
        compute_units : registers and the occupancy they allow.
    """

    figures: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return dict(self.figures)

    def estimate(self) -> Estimate:
        """A rough estimate of the launch's time on hardware (rfops/vgpu/model.py says how)."""
        return estimate(self.figures)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.figures[name]
        except KeyError:
            raise AttributeError(f"a launch record has no figure {name!r}") from None


@dataclass
class Profile:
    """The launches of a `profile()` block, in the order in which they ended."""

    launches: list[LaunchRecord] = field(default_factory=list)


class Counting:
    """Counting in one library: on while anybody wants it, and each record goes to all who do.

    `modelled_ps` is the sum of the estimates of all launches counted so far, in whole picoseconds:
    differences of it are exact, so equal launches take equal time.
    """

    def __init__(self, library: Path) -> None:
        self._library = CDLL(str(library))
        self._library.rfops_vgpu_profile.argtypes = [c_int]
        self._library.rfops_vgpu_profile_take.restype = c_char_p
        self._lock = threading.RLock()  # again, when the garbage collector frees an event in here
        self._users = 0
        self._profiles: list[Profile] = []
        self._records: deque[LaunchRecord] = deque()
        self._modelled_ps = 0

    @contextmanager
    def on(self, profile: Profile | None = None) -> Iterator[None]:
        self.start(profile)
        try:
            yield
        finally:
            self.stop(profile)

    def start(self, profile: Profile | None = None) -> None:
        with self._lock:
            self._deliver()
            self._users += 1
            if profile is not None:
                self._profiles.append(profile)
            self._library.rfops_vgpu_profile(1)

    def stop(self, profile: Profile | None = None) -> None:
        with self._lock:
            if self._users == 1:
                self._library.rfops_vgpu_profile(0)
            self._deliver()
            self._users -= 1
            self._profiles = [other for other in self._profiles if other is not profile]

    def modelled_ps(self) -> int:
        with self._lock:
            self._deliver()
            return self._modelled_ps

    def _deliver(self) -> None:
        taken = json.loads(self._library.rfops_vgpu_profile_take())
        self._records.extend(LaunchRecord(MappingProxyType(record)) for record in taken)
        while self._records:
            record = self._records.popleft()
            self._modelled_ps += round(record.estimate().us * 1e6)
            for profile in self._profiles:
                profile.launches.append(record)


@cache
def counting(library: Path) -> Counting:
    """The one of this library, which every use of its counters goes through."""
    return Counting(library)


@contextmanager
def collect(library: Path) -> Iterator[Profile]:
    """Count launches of this process, of all its threads, until the block ends."""
    profile = Profile()
    with counting(library).on(profile):
        yield profile


def table(record: LaunchRecord) -> str:
    """A record as aligned text."""
    f = record.figures
    grid, block = ("x".join(map(str, f[name])) for name in ("grid", "block"))
    classes = ", ".join(f"{name} {count}" for name, count in f["classes"].items())
    top = sorted(f["instructions"].items(), key=lambda item: -item[1])[:8]
    rows = [
        ("kernel", f"{f['kernel']} on {f['arch']}, grid {grid} of {block}, {f['waves']} waves"),
        ("instructions", f"{f['wave_instructions']} by waves: {classes}"),
        ("most", ", ".join(f"{name} {count}" for name, count in top)),
        ("matrix", _matrix(f)),
        ("vector flops", f"{f['valu_flops']}"),
        ("read", _traffic(f["global_read"])),
        ("write", _traffic(f["global_write"])),
        ("scalar read", _traffic(f["scalar_read"])),
        ("LDS", f"{f['lds_read_bytes']} B read, {f['lds_write_bytes']} B written, "
                f"{f['lds_cycles']} cycles of which {f['lds_conflict_cycles']} conflicts"),
        ("registers", f"vgpr {f['vgpr']}, agpr {f['agpr']}, sgpr {f['sgpr']}, spills "
                      f"{f['vgpr_spills']}+{f['sgpr_spills']}, "
                      f"scratch {f['scratch_bytes_per_lane']} B a lane"),
        ("occupancy", f"{f['waves_per_simd']:g} waves a SIMD, {f['workgroups_per_cu']} workgroups "
                      f"a CU, {f['workgroups']} workgroups on {f['compute_units']} CUs"),
        ("divergence", f"{f['exec_splits']} times EXEC was split"),
        ("estimate", _estimate(record.estimate())),
    ]  # fmt: skip
    return "\n".join(f"  {name:13} {text}" for name, text in rows)


def _matrix(f: Mapping[str, Any]) -> str:
    if not f["mfma"]:
        return "none"
    shapes = ", ".join(f"{name} {count}" for name, count in f["mfma"].items())
    return f"{shapes}; {f['mfma_cycles']} matrix-core cycles, {f['mfma_flops']} flops"


def _estimate(e: Estimate) -> str:
    parts = ", ".join(f"{name} {us:.2f}" for name, us in e.parts.items())
    return f"{e.us:.1f} us on hardware, bound by {e.bound} ({parts}); a model, not measured"


def _traffic(t: Mapping[str, int]) -> str:
    return (
        f"{t['bytes']} B in {t['instructions']} instructions, {t['requests_64B']} line requests, "
        f"{t['lines_64B']} lines of 64 B ({t['lines_64B'] * 64} B)"
    )
