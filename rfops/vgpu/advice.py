"""Advice on a launch: rules with numbers, each about one cause of lost time.

A rule looks at timing mode's figures (and counters, where they are at hand) and answers with a text
that has its numbers, or nothing. Thresholds are of this project: a cause below them is worth less
than about a tenth of the time. op_tests/vgpu/timing/test_advice.py has a kernel that triggers each
rule and one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rfops.jit.arch import PART_CUS
from rfops.vgpu import figures
from rfops.vgpu.counting import LaunchRecord
from rfops.vgpu.source import described
from rfops.vgpu.timed import TimedLaunch
from rfops.vgpu.timed_text import readable

Row = Mapping[str, Any]


class Advice(NamedTuple):
    rule: str
    text: str
    weight: float  # share of the launch's time that it concerns, to order by
    offset: int | None = None  # of the instruction it is about


@dataclass(frozen=True)
class View:
    """What rules look at."""

    launch: TimedLaunch
    counters: Mapping[str, Any]  # empty: no counters

    @cached_property
    def stall_clk(self) -> int:
        return sum(self.launch.stalls.values()) or 1

    @cached_property
    def body_share(self) -> float:
        return figures.body_us(self.launch) / float(self.launch.us)

    def stalled(self, *reasons: str) -> float:
        """The share of all waiting that is for these reasons."""
        return float(sum(self.launch.stalls.get(r, 0) for r in reasons) / self.stall_clk)

    @cached_property
    def pcs(self) -> list[Row]:
        return list(self.launch.figures.get("pcs", ()))

    def hottest(self, *reasons: str) -> Row | None:
        """The instruction that waits longest for these reasons."""
        return _largest(self.pcs, lambda row: sum(row["stalls"].get(r, 0) for r in reasons))

    def location(self, row: Row | None) -> str:
        """` at 0x1c0 (ds_read_b128 ...), file:line`."""
        if row is None:
            return ""
        source = described(row, self.launch.kernel)
        line = f", {source}" if source else ""
        return f" at {row['offset']:#x} (`{readable(row['text'])}`{line})"

    @property
    def cus(self) -> int:
        return PART_CUS[self.launch.part]

    @property
    def groups(self) -> int:
        return int(self.launch.sampled["of"])


def advise(launch: TimedLaunch, counters: Mapping[str, Any] | None = None) -> list[Advice]:
    """What applies, the heaviest first."""
    view = View(launch, counters or {})
    results = [advice for rule in RULES if (advice := rule(view)) is not None]
    return sorted(results, key=lambda advice: -advice.weight)


def lines(record: LaunchRecord) -> list[str]:
    """As text, a line each."""
    results = advise(record.time, record.figures)
    return [f"  {'advice':14} {item.rule}: {item.text.replace('`', '')}" for item in results]


def _largest(rows: Iterable[Row], value: Callable[[Row], float]) -> Row | None:
    best = max(rows, key=value, default=None)
    return best if best is not None and value(best) > 0 else None


def _offset(row: Row | None) -> int | None:
    return None if row is None else int(row["offset"])


# ---------------------------------------------------------------- the launch


def launch_bound(v: View) -> Advice | None:
    fraction = 1 - v.body_share
    if fraction <= 0.5:
        return None
    return Advice(
        "launch bound",
        f"The launch itself is {v.launch.floor_us:.2f} of {v.launch.us:.2f} us ({fraction:.0%}): "
        "fuse the kernel with its neighbour, or give it more work.",
        fraction,
    )


def few_workgroups(v: View) -> Advice | None:
    idle = 1 - v.groups / v.cus
    if idle <= 0.25:
        return None
    return Advice(
        "few workgroups",
        f"{v.groups} workgroups leave {v.cus - v.groups} of {v.cus} compute units idle: smaller "
        "tiles, or a reduction that is split over workgroups.",
        idle * v.body_share,
    )


def last_round(v: View) -> Advice | None:
    num_slots = v.cus * v.launch.workgroups_per_cu
    full_rounds, remainder = divmod(v.groups, num_slots)
    if not full_rounds or full_rounds > 4 or not remainder or remainder > num_slots / 2:
        return None
    lost = (1 - remainder / num_slots) / (full_rounds + 1)
    return Advice(
        "last round",
        f"{v.groups} workgroups are {full_rounds} full rounds of {num_slots} and one of "
        f"{remainder}: {lost:.0%} of the slots stay empty. Another tile size, a split, or "
        "persistent workgroups fill them.",
        lost * v.body_share,
    )


def spills(v: View) -> Advice | None:
    count = v.counters.get("vgpr_spills", 0) + v.counters.get("scratch_bytes_per_lane", 0)
    if not count:
        return None
    c = v.counters
    return Advice(
        "spills",
        f"{c['vgpr_spills']} VGPRs are spilled, {c['scratch_bytes_per_lane']} B of scratch a lane: "
        "private arrays indexed by a variable, or more live values than registers. A smaller tile "
        "or fewer waves a workgroup (`__launch_bounds__`) leaves more registers.",
        0.5 * v.body_share,
    )


# ---------------------------------------------------------------- occupancy


def registers_limit(v: View) -> Advice | None:
    return _occupancy(v, "VGPRs", f"{_registers(v)} VGPRs a lane")


def lds_limit(v: View) -> Advice | None:
    return _occupancy(
        v, "LDS", f"{v.counters.get('lds_bytes_per_workgroup', 0)} B of LDS a workgroup"
    )


def _registers(v: View) -> int:
    return int(v.counters.get("vgpr", 0) + v.counters.get("agpr", 0))


def _occupancy(v: View, limit: str, cause: str) -> Advice | None:
    waits = v.stalled("vmcnt", "lgkmcnt", "dependency", "mfma_dependency")
    if not v.counters or v.counters["waves_per_simd"] > 2 or waits < 0.4:
        return None
    if figures.occupancy_limit(v.counters) != limit:
        return None
    return Advice(
        f"occupancy by {limit}",
        f"{cause} allow {v.counters['waves_per_simd']:g} waves a SIMD, and {waits:.0%} of the "
        "waiting is for results: nothing else is there to issue. Use less, or load further ahead.",
        0.5 * waits * v.body_share,
    )


# ---------------------------------------------------------------- LDS


def lds_conflicts(v: View) -> Advice | None:
    row = _largest(v.pcs, lambda r: r.get("conflict_clk", 0))
    conflicts = sum(r.get("conflict_clk", 0) for r in v.pcs)
    clk = sum(r.get("lds_clk", 0) for r in v.pcs)
    waits = v.stalled("lgkmcnt", "lds_unit")
    if row is None or conflicts < 0.2 * clk or max(waits, v.launch.busy["lds"]) < 0.1:
        return None
    ways = row["lds_clk"] / max(row["lds_clk"] - row["conflict_clk"], 1)
    return Advice(
        "LDS bank conflicts",
        f"{conflicts / clk:.0%} of the LDS cycles are bank conflicts, most of "
        f"them{v.location(row)}: {ways:.1f} times its cycles without. Pad the rows, or swizzle the "
        "columns by the row.",
        conflicts / clk * max(waits, v.launch.busy["lds"]) * v.body_share,
        _offset(row),
    )


# ---------------------------------------------------------------- global memory


def scattered_accesses(v: View) -> Advice | None:
    traffic = [v.counters[name] for name in ("global_read", "global_write") if v.counters]
    requested = 64 * sum(t["requests_64B"] for t in traffic)
    excess = requested - sum(t["bytes"] for t in traffic)
    row = _largest(v.pcs, lambda r: 128 * r.get("lines", 0) - r.get("bytes", 0))
    if row is None or not requested or excess < 0.4 * requested:
        return None
    return Advice(
        "scattered accesses",
        f"{excess / requested:.0%} of the bytes in the 64-byte segments that instructions touch "
        f"are not asked for. The widest spread{v.location(row)}: "
        f"{row['bytes'] / row['issued']:.0f} B of {row['lines'] / row['issued']:.0f} lines of "
        "128 B an instruction. Let neighbouring lanes access neighbouring bytes, or go through "
        "LDS.",
        excess / requested * _memory_share(v) * v.body_share,
        _offset(row),
    )


def _memory_share(v: View) -> float:
    """How much of the time memory decides."""
    busy: Mapping[str, float] = v.launch.busy
    return max(v.stalled("vmcnt", "vmem_queue"), busy["vmem"], busy["hbm"])


def narrow_accesses(v: View) -> Advice | None:
    rows = [r for r in v.pcs if r.get("bytes") and r["unit"] == "vmem"]
    issued = sum(r["issued"] for r in rows)
    lane_bytes = sum(r["bytes"] for r in rows) / max(64 * issued, 1)
    pressed = max(v.launch.busy["vmem"], v.stalled("vmem_queue"))
    if not rows or lane_bytes > 6 or pressed < 0.3:
        return None
    row = _largest(rows, lambda r: r["issued"])
    return Advice(
        "narrow accesses",
        f"Vector memory moves {lane_bytes:.1f} B a lane and instruction, and its queue is the "
        f"limit ({pressed:.0%}); most issued{v.location(row)}. A dwordx4 access moves 16 B a lane.",
        (1 - lane_bytes / 16) * pressed * v.body_share,
        _offset(row),
    )


def memory_latency(v: View) -> Advice | None:
    waits = v.stalled("vmcnt")
    if waits < 0.4 or max(v.launch.busy["hbm"], v.launch.busy["fabric"]) > 0.6:
        return None
    row = v.hottest("vmcnt")
    return Advice(
        "memory latency",
        f"{waits:.0%} of the waiting is for loads, most{v.location(row)}, while HBM is "
        f"{v.launch.busy['hbm']:.0%} busy: too little is in flight. Issue loads a step or more "
        f"ahead, or run more than {v.launch.waves_in_flight_per_cu:.0f} waves a CU.",
        waits * v.body_share,
        _offset(row),
    )


def repeated_reads(v: View) -> Advice | None:
    if "lines_64B" not in v.counters.get("global_read", ()):  # none, or of a sample
        return None
    read, distinct = figures.hbm_bytes(v.launch)[0], 64 * v.counters["global_read"]["lines_64B"]
    if not distinct or read < 1.25 * distinct or v.launch.busy["hbm"] < 0.3:
        return None
    return Advice(
        "repeated HBM reads",
        f"HBM delivers {figures.bytes_text(read)} for {figures.bytes_text(distinct)} of distinct "
        "lines: what is read again has left the caches. Order the workgroups so that those that "
        "share operands run at the same time, on one XCD.",
        (1 - distinct / read) * v.launch.busy["hbm"] * v.body_share,
    )


def shared_by_xcds(v: View) -> Advice | None:
    sharing, fabric = v.launch.sharing, v.launch.busy["fabric"]
    if sharing < 2 or fabric < 0.5:
        return None
    return Advice(
        "lines shared by XCDs",
        f"The fabric is {fabric:.0%} busy, and {sharing:.1f} XCDs read each line: give each XCD "
        "its own part (workgroup i runs on XCD i mod 8), so that a line enters one L2.",
        (1 - 1 / sharing) * fabric * v.body_share,
    )


def contended_lines(v: View) -> Advice | None:
    contention = v.launch.taken
    row = _largest((r for r in v.pcs if "atomic" in r["text"]), lambda r: r["issued"])
    if contention < 0.2 or row is None:
        return None
    return Advice(
        "atomics of several XCDs",
        f"{contention:.0%} of the writes go to lines that another XCD has written since, most of "
        f"them{v.location(row)}: the lines travel between the dies. Add within a workgroup or an "
        "XCD first, or give each XCD its own lines.",
        contention * _memory_share(v) * v.body_share,
        _offset(row),
    )


def hbm_roof(v: View) -> Advice | None:
    busy = v.launch.busy["hbm"]
    if busy < 0.8:
        return None
    return Advice(
        "HBM roof",
        f"HBM is {busy:.0%} busy: the kernel is at the roof of its bytes. Only fewer bytes help: "
        "narrower types, fusion, reuse.",
        busy * v.body_share,
    )


# ---------------------------------------------------------------- issue


def _waits(
    v: View, rule: str, reason: str, min_fraction: float, cause: str, remedy: str
) -> Advice | None:
    """Of a reason that at least this share of all waiting is for."""
    fraction = v.stalled(reason)
    if fraction < min_fraction:
        return None
    row = v.hottest(reason)
    text = f"{fraction:.0%} of the waiting is for {cause}, most{v.location(row)}: {remedy}"
    return Advice(rule, text, fraction * v.body_share, _offset(row))


def barriers(v: View) -> Advice | None:
    fraction = v.stalled("barrier")
    if fraction < 0.25:
        return None
    row = v.hottest("barrier")
    because = v.launch.barrier_because
    total = sum(because.values()) or 1
    reason, clk = max(because.items(), key=lambda item: item[1], default=("nothing", 0))
    return Advice(
        "barriers",
        f"{fraction:.0%} of the waiting is at barriers, most{v.location(row)}; the last wave there "
        f"had waited for {reason} ({clk / total:.0%}). Fewer waves a barrier, work of equal "
        "length, or a barrier that is split from what it guards.",
        fraction * v.body_share,
        _offset(row),
    )


def matrix_dependency(v: View) -> Advice | None:
    if v.launch.busy["mfma"] > 0.8:
        return None
    cause = "results of matrix instructions"
    remedy = "interleave independent accumulators, or move the reader away."
    return _waits(v, "dependent matrix instructions", "mfma_dependency", 0.15, cause, remedy)


def vector_dependency(v: View) -> Advice | None:
    cause = "the result of the instruction before"
    remedy = "chains of dependent operations; work on several values at a time."
    return _waits(v, "dependent instructions", "dependency", 0.3, cause, remedy)


def instruction_cache(v: View) -> Advice | None:
    fraction = v.stalled("instruction_cache")
    if fraction < 0.1:
        return None
    return Advice(
        "instruction cache",
        f"{fraction:.0%} of the waiting is for code: the loop and its prologue are larger than "
        "what waves find in the cache. Unroll less.",
        fraction * v.body_share,
    )


def vector_bound(v: View) -> Advice | None:
    busy = v.launch.busy["valu"]
    if busy < 0.6 or v.launch.busy["mfma"] > busy:
        return None
    instructions = v.counters.get("instructions", {})
    vector = {name: n for name, n in instructions.items() if _is_vector(name)}
    total = sum(vector.values()) or 1
    top = sorted(vector.items(), key=lambda item: -item[1])[:3]
    frequent = ", ".join(f"{name} {n / total:.0%}" for name, n in top)
    return Advice(
        "vector unit",
        f"The vector unit is {busy:.0%} busy{f': {frequent}' if frequent else ''}. Packed "
        "instructions (v_pk_*), conversions of several values at once, or address arithmetic moved "
        "to scalars and out of the loop.",
        busy * v.body_share,
    )


def _is_vector(name: str) -> bool:
    return name.startswith("v_") and not name.startswith(("v_mfma", "v_smfmac"))


def matrix_roof(v: View) -> Advice | None:
    busy = v.launch.busy["mfma"]
    if busy < 0.8:
        return None
    return Advice(
        "matrix roof",
        f"The matrix units are {busy:.0%} busy at {v.launch.clock_ghz:.2f} GHz: the kernel is at "
        "the roof of its flops. Only fewer of them, or narrower types, help.",
        busy * v.body_share,
    )


def flag_waits(v: View) -> Advice | None:
    cause = "a flag that another workgroup sets"
    remedy = "start those that are waited for first, or give them less."
    return _waits(v, "waits for other workgroups", "flag", 0.2, cause, remedy)


RULES: tuple[Callable[[View], Advice | None], ...] = (
    launch_bound,
    few_workgroups,
    last_round,
    spills,
    registers_limit,
    lds_limit,
    lds_conflicts,
    scattered_accesses,
    narrow_accesses,
    memory_latency,
    repeated_reads,
    shared_by_xcds,
    contended_lines,
    hbm_roof,
    barriers,
    matrix_dependency,
    vector_dependency,
    instruction_cache,
    vector_bound,
    matrix_roof,
    flag_waits,
)
