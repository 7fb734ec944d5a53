"""A rough model of a launch's time on hardware, from the virtual GPU's counters. An estimate: it
has not been calibrated against any GPU, and says which resource it takes to be the bound.

time = launch + dispatch + rounds * latency + the slowest of vector ALU, matrix cores, LDS, L2, HBM

It knows whole-chip limits and how evenly workgroups fill the CUs. It does not know instruction
scheduling, caches beyond "each line comes from HBM once, each request goes to L2", or power.
Compare kernels that do the same work with it; trust differences of a factor, not of ten percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rfops.jit.arch import ROWS

VALU_CYCLES, TRANS_CYCLES = 4, 16  # a wave of 64 on 16 lanes; a quarter of the rate


@dataclass(frozen=True)
class Estimate:
    """Microseconds, all estimated. `bound` names the largest of `parts`."""

    us: float
    bound: str
    parts: Mapping[str, float]


def estimate(figures: Mapping[str, Any]) -> Estimate:
    """The estimate for one launch record of `rfops.vgpu.profile()`."""
    chip, cus = ROWS[figures["arch"]], figures["compute_units"]
    groups, waves = figures["workgroups"], figures["waves"]
    if not groups:
        return Estimate(chip.launch_us, "launch", {})
    per_us = chip.ghz * 1e3  # cycles
    busiest = -(-groups // cus)  # workgroups of the fullest CU
    cu_share = busiest / groups  # of the whole work
    simd_share = cu_share / min(chip.simds, max(1, busiest * waves // groups))
    classes = figures["classes"]
    valu = classes.get("valu", 0) * VALU_CYCLES + classes.get("trans", 0) * TRANS_CYCLES
    read, write = figures["global_read"], figures["global_write"]
    requests = 64 * (read["requests_64B"] + write["requests_64B"])
    lines = 64 * (read["lines_64B"] + write["lines_64B"])
    parts = {
        "valu": valu * simd_share / per_us,
        "mfma": figures["mfma_cycles"] * simd_share / per_us,
        "lds": figures["lds_cycles"] * cu_share / per_us,
        "l2": requests / chip.l2_tb_s / 1e6,
        "hbm": lines / chip.hbm_tb_s / 1e6,
    }
    rounds = -(-busiest // max(1, figures["workgroups_per_cu"]))
    dispatch = waves * chip.dispatch_cycles / chip.xcds / per_us
    bound = max(parts, key=lambda name: parts[name])
    us = chip.launch_us + dispatch + rounds * chip.latency_us + parts[bound]
    return Estimate(us, bound, parts)
