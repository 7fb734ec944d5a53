"""Figures of a launch as a reader needs them: bytes of the whole GPU, rates, shares of the peak.

Timing mode replays the workgroups of one XCD (csrc/vgpu/README.md). Bytes of a launch are that
XCD's times the workgroups of the launch over those that were replayed: all XCDs are assumed to
behave alike. Where counters are at hand, `counted_bytes` has the distinct lines exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, PART_CUS, WAVE, waves_per_simd
from rfops.vgpu.timed import TimedLaunch

LINE_BYTES = 64  # of the counters' lines


class Traffic(NamedTuple):
    """What a level of memory delivers to the level above it, or takes from it, in a launch."""

    level: str  # "LDS", "L1", "scalar cache", "L2", "Infinity Cache", "HBM"
    bytes: float  # of the whole launch
    hit_rate: float | None  # of the level itself; None: it has no tags
    tb_s: float  # over the body of the launch
    peak_tb_s: float | None  # that timing mode lets the level deliver to the whole GPU

    @property
    def peak_share(self) -> float | None:
        return self.tb_s / self.peak_tb_s if self.peak_tb_s else None


def scale(launch: TimedLaunch) -> float:
    """Workgroups of the launch over those replayed; instructions beyond the trace limit too."""
    s = launch.sampled
    instructions = s["wave_instructions"]
    whole_share = (instructions + s["left_out_instructions"]) / max(instructions, 1)
    return float(s["of"] / max(s["workgroups"], 1) * whole_share)


def body_us(launch: TimedLaunch) -> float:
    """The time without the launch itself, in microseconds."""
    return float(max(launch.us - launch.floor_us, 1e-9))


def traffic(launch: TimedLaunch, counters: Mapping[str, Any] | None = None) -> list[Traffic]:
    """The levels that the launch uses, the nearest to the compute units first.

    `counters` are the launch's counters (`LaunchRecord.figures`); without them LDS is left out.
    """
    memory, rates = launch.memory, launch.rates
    factor, us = scale(launch), body_us(launch)

    def one(level: str, num_bytes: float, hit_rate: float | None, peak: float | None) -> Traffic:
        return Traffic(level, num_bytes, hit_rate, num_bytes / us / 1e6, peak)

    levels = []
    counters = counters or {}
    if lds_bytes := counters.get("lds_read_bytes", 0) + counters.get("lds_write_bytes", 0):
        levels.append(one("LDS", lds_bytes, None, lds_tb_s(launch)))
    for name, level, peak in (
        ("l1", "L1", rates["l1"]),
        ("scalar", "scalar cache", None),
        ("l2", "L2", rates["l2"]),
        ("mall", "Infinity Cache", rates["mall"]),
    ):
        row = memory[name]
        if row["bytes"]:
            levels.append(one(level, factor * row["bytes"], row["hit_rate"], peak))
    hbm_bytes = factor * (memory["hbm_read_bytes"] + memory["written_bytes"])
    return [*levels, one("HBM", hbm_bytes, None, rates["hbm"])]


def hbm_bytes(launch: TimedLaunch) -> tuple[float, float]:
    """Bytes that the whole launch reads from HBM and that its L2s write back."""
    factor = scale(launch)
    return factor * launch.memory["hbm_read_bytes"], factor * launch.memory["written_bytes"]


def counted_bytes(counters: Mapping[str, Any]) -> float:
    """Bytes of the distinct lines that the launch reads and writes: what HBM has to move at least
    with cold caches."""
    lines = counters["global_read"]["lines_64B"] + counters["global_write"]["lines_64B"]
    return float(LINE_BYTES * lines)


def flops(counters: Mapping[str, Any]) -> float:
    return float(counters["mfma_flops"] + counters["valu_flops"])


def lds_tb_s(launch: TimedLaunch) -> float:
    """What the LDS banks of all compute units deliver without conflicts."""
    banks = ARCH_SPECS[launch.arch].lds_banks
    return float(4 * banks * PART_CUS[launch.part] * launch.clock_ghz / 1e3)


def bytes_text(num_bytes: float) -> str:
    """`14.7 MB`; decimal units, as data sheets have them."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if num_bytes >= 0.9995 * factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def rate_text(tb_s: float) -> str:
    """`2.17 TB/s`, `41 GB/s`."""
    return f"{tb_s:.2f} TB/s" if tb_s >= 1 else f"{1e3 * tb_s:.3g} GB/s"


def occupancy_limit(counters: Mapping[str, Any]) -> str:
    """What keeps more waves from a SIMD: "VGPRs", "LDS", "workgroups" (the launch has no more), or
    "waves" (the hardware holds no more)."""
    arch = ARCH_SPECS[counters["arch"]]
    x, y, z = counters["block"]
    waves_of_group = -(-x * y * z // WAVE)
    by_registers = waves_per_simd(counters["vgpr"] + counters["agpr"])
    by_lds = MAX_WAVES
    if counters["lds_bytes_per_workgroup"]:
        groups = arch.lds_bytes // counters["lds_bytes_per_workgroup"]
        by_lds = groups * waves_of_group // arch.simds
    if counters["workgroups"] < counters["compute_units"] * counters["workgroups_per_cu"]:
        return "workgroups"
    limits = {"VGPRs": by_registers, "LDS": by_lds, "waves": MAX_WAVES}
    return min(limits, key=lambda name: limits[name])
