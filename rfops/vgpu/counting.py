"""Counters of the virtual GPU: what each launch did, for comparing kernels without a GPU.

    with rfops.vgpu.profile() as p:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    p.launches[0].as_dict()

Counts are exact for the machine code that ran. The time beside them is timing mode's, an estimate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import CDLL, c_char_p, c_int
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rfops.vgpu import timed


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
    time: timed.TimedLaunch

    def as_dict(self) -> dict[str, Any]:
        """Return all figures of the launch."""
        return dict(self.figures)

    def estimate(self) -> timed.TimedLaunch:
        """The launch's time on hardware by timing mode: its `us`, from `low` to `high`, `bound` and
        more. As an enclosing `timing()` asks; else of a profiler, from cold caches."""
        return self.time

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
    """Counting in one library: on while anybody wants it, and each record goes to all who do. What
    is counted is timed as well."""

    def __init__(self, library: Path) -> None:
        self._library = CDLL(str(library))
        self._library.rfops_vgpu_profile.argtypes = [c_int]
        self._library.rfops_vgpu_profile_take.restype = c_char_p
        self._lock = threading.RLock()
        self._profiles: list[Profile] = []
        self._mode = timed.mode(library)
        self._times: dict[int, timed.TimedLaunch] = {}  # by the launch's number

    @contextmanager
    def on(self, profile: Profile) -> Iterator[None]:
        """Count the launches of the block into `profile`."""
        with self._mode.on(timed.Block("", follows=True, add=self._times.__setitem__)):
            self._start(profile)
            try:
                yield
            finally:
                self._stop(profile)

    def _start(self, profile: Profile) -> None:
        with self._lock:
            self._deliver()
            self._profiles.append(profile)
            self._library.rfops_vgpu_profile(1)

    def _stop(self, profile: Profile) -> None:
        with self._lock:
            if len(self._profiles) == 1:
                self._library.rfops_vgpu_profile(0)
            self._deliver()
            self._profiles = [active for active in self._profiles if active is not profile]
            if not self._profiles:
                self._times.clear()

    def _deliver(self) -> None:
        records = timed.records_of(self._library.rfops_vgpu_profile_take())
        self._mode.deliver()  # a launch's time is there before its counters
        for record in records:
            time = self._times.pop(record.pop("launch"), None)
            if time is None:  # of a block that has ended
                continue
            for profile in self._profiles:
                profile.launches.append(LaunchRecord(MappingProxyType(record), time))


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


# Figures of the code and the launch, whatever ran of it.
_STATIC = (
    "kernel", "arch", "grid", "block", "workgroups", "waves", "vgpr", "agpr", "sgpr", "vgpr_spills",
    "sgpr_spills", "scratch_bytes_per_lane", "lds_bytes_per_workgroup", "workgroups_per_cu",
    "waves_per_simd", "compute_units",
)  # fmt: skip
# Of these the ratios hold for the whole launch too, as all workgroups are assumed to behave alike.
_RATIOS = ("requests_64B", "bytes")


def of_sample(record: LaunchRecord) -> LaunchRecord:
    """A record of which only some workgroups ran (`timing(results=False)`), without the counters
    that need all of them."""
    f = record.figures
    sample = {name: f[name] for name in _STATIC}
    for name in ("global_read", "global_write"):
        sample[name] = {ratio: f[name][ratio] for ratio in _RATIOS}
    return LaunchRecord(MappingProxyType(sample), record.time)


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
        (
            "LDS",
            f"{f['lds_read_bytes']} B read, {f['lds_write_bytes']} B written, "
            f"{f['lds_cycles']} cycles of which {f['lds_conflict_cycles']} conflicts",
        ),
        (
            "registers",
            f"vgpr {f['vgpr']}, agpr {f['agpr']}, sgpr {f['sgpr']}, spills "
            f"{f['vgpr_spills']}+{f['sgpr_spills']}, "
            f"scratch {f['scratch_bytes_per_lane']} B a lane",
        ),
        (
            "occupancy",
            f"{f['waves_per_simd']:g} waves a SIMD, {f['workgroups_per_cu']} workgroups "
            f"a CU, {f['workgroups']} workgroups on {f['compute_units']} CUs",
        ),
        ("divergence", f"{f['exec_splits']} times EXEC was split"),
        ("estimate", _estimate(record.estimate())),
    ]
    return "\n".join(f"  {name:13} {text}" for name, text in rows)


def _matrix(f: Mapping[str, Any]) -> str:
    if not f["mfma"]:
        return "none"
    shapes = ", ".join(f"{name} {count}" for name, count in f["mfma"].items())
    return f"{shapes}; {f['mfma_cycles']} matrix-core cycles, {f['mfma_flops']} flops"


def _estimate(e: timed.TimedLaunch) -> str:
    return (
        f"{e.us:.2f} us ({e.low:.2f} to {e.high:.2f}) on {e.part}, bound by {e.bound}; a model's, "
        "not measured: --timing says why"
    )


def _traffic(t: Mapping[str, int]) -> str:
    return (
        f"{t['bytes']} B in {t['instructions']} instructions, {t['requests_64B']} line requests, "
        f"{t['lines_64B']} lines of 64 B ({t['lines_64B'] * 64} B)"
    )
