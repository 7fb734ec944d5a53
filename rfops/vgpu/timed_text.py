"""What timing mode says of a launch, as text: why it takes that long, and at which instructions."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from pathlib import Path

from rfops.jit.paths import CSRC
from rfops.vgpu import figures
from rfops.vgpu.timed import TimedLaunch

NUM_MARKED = 5  # instructions of a listing, the most stalled


def table(launch: TimedLaunch) -> str:
    """A launch as aligned text."""
    f = launch.figures
    grid, block = ("x".join(map(str, f[name])) for name in ("grid", "block"))
    body = f["us"] - f["floor_us"]
    rows = [
        ("kernel", f"{f['kernel']} on {f['part']} ({f['arch']}), grid {grid} of {block}"),
        (
            "time",
            f"{f['us']:.2f} us ({f['low']:.2f} to {f['high']:.2f}), estimated: launch "
            f"{f['floor_us']:.2f}, body {body:.2f}; {'cold' if f['cold'] else 'warm'} caches",
        ),
        ("clock", f"{f['clock_ghz']:.2f} GHz, {f['clocks']:.0f} clk"),
        ("bound", f["bound"]),
        ("busy", ", ".join(f"{name} {fraction:.1%}" for name, fraction in f["busy"].items())),
        *levels(launch),
        (
            "waves",
            f"{f['waves_in_flight_per_cu']:.1f} in flight per CU, "
            f"room for {f['workgroups_per_cu']} workgroups",
        ),
        ("LDS conflicts", f"{f['lds_conflict_cycles']} cycles {sampled_scope(f['sampled'])}"),
        ("stalls", _fractions(f["stalls"], f["sampled"])),
        ("barriers for", _fractions(f["barrier_because"], f["sampled"])),
        ("taken from", sampled(f["sampled"])),
    ]
    return "\n".join(f"  {name:14} {text}" for name, text in rows)


def annotate(launch: TimedLaunch) -> str:
    """The kernel's listing with, beside each instruction, how often it was issued and what its
    waves waited for before it. `>`: the most stalled. Source lines where there are debug lines."""
    pcs = launch.pcs
    total = sum(sum(row["stalls"].values()) for row in pcs)
    top = sorted(pcs, key=lambda row: -sum(row["stalls"].values()))[:NUM_MARKED]
    marked_offsets = {row["offset"] for row in top if row["stalls"]}
    lines = [
        f"  {launch.kernel}: {total} clk that waves waited {sampled_scope(launch.sampled)}, "
        "and how often each instruction was issued there",
        f"    {'offset':>8} {'issued':>8} {'stalled':>9} {'share':>6}  instruction",
    ]
    source = ""
    for row in pcs:
        if row.get("source", source) != source:
            source = row["source"]
            lines.append(f"  ; {with_text(source_path(source, launch.kernel))}")
        stalled = sum(row["stalls"].values())
        percent = f"{stalled / total:.1%}" if stalled else ""
        mark = ">" if row["offset"] in marked_offsets else " "
        text = f"  {mark} {row['offset']:#8x} {row['issued']:8} {stalled or '':9} {percent:>6}"
        by_reason = ", ".join(f"{name} {clk}" for name, clk in sorted_stalls(row["stalls"]))
        lines.append(f"{text}  {readable(row['text']):44} {by_reason}".rstrip())
    return "\n".join(lines)


def levels(launch: TimedLaunch) -> list[tuple[str, str]]:
    """Bytes of the whole launch, rate and hits of each level of memory."""
    rows = []
    for level in figures.traffic(launch):
        text = f"{figures.bytes_text(level.bytes)}, {figures.rate_text(level.tb_s)}"
        if level.peak_share is not None:
            text += f" ({level.peak_share:.0%} of what it delivers)"
        if level.hit_rate is not None:
            text += f", {level.hit_rate:.1%} hits"
        rows.append((level.level, text))
    read, written = map(figures.bytes_text, figures.hbm_bytes(launch))
    name, text = rows.pop()
    return [*rows, (name, f"{text}: {read} read, {written} written back")]


def sampled_scope(s: Mapping[str, int]) -> str:
    """The part of the GPU that figures of a replay are of: one XCD, or less of it."""
    is_whole = not s["left_out_of_xcd"] and not s["left_out_instructions"]
    return f"{'on' if is_whole else 'in the replayed part of'} XCD 0 of {s['xcds']}"


def sampled(s: Mapping[str, int]) -> str:
    """Return which part of a launch was timed, as text."""
    left_out = f", {s['left_out_of_xcd']} of its middle left out" if s["left_out_of_xcd"] else ""
    if s["left_out_instructions"]:
        left_out += f", {s['left_out_instructions']} instructions at their ends too"
    return (
        f"{s['workgroups']} of {s['of']} workgroups, of one XCD of {s['xcds']}{left_out}: "
        f"{s['wave_instructions']} instructions by waves"
    )


def sorted_stalls(stalls: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (reason, cycles) of the stalls, most cycles first."""
    return sorted(stalls.items(), key=lambda item: -item[1])


def _fractions(stalls: Mapping[str, int], s: Mapping[str, int]) -> str:
    total = sum(stalls.values())
    if not total:
        return "none"
    fractions = ", ".join(f"{name} {clk / total:.1%}" for name, clk in sorted_stalls(stalls))
    return f"{fractions} of {total} clk, added up over waves {sampled_scope(s)}"


def readable(text: str) -> str:
    """`s_waitcnt 0xf70` as `s_waitcnt vmcnt(0)`, as both architectures count."""
    name, _, operand = text.partition(" ")
    if name != "s_waitcnt" or not operand[:1].isdigit():
        return text
    bits = int(operand, 0)
    counts = {
        "vmcnt": (bits & 15 | bits >> 10 & 48, 63),
        "expcnt": (bits >> 4 & 7, 7),
        "lgkmcnt": (bits >> 8 & 15, 15),
    }
    waits = (
        f"{counter}({count})" for counter, (count, max_count) in counts.items() if count < max_count
    )
    return f"{name} {' '.join(waits) or operand}"


# Where the engine compiled, and left nothing; or `.`, as its code objects call it.
_STAGE = re.compile(r"^(/.*/\.stage-[^/]+/|\./)")


def source_path(source: str, kernel: str) -> str:
    """The `file:line` of a debug line, on this machine if the file is a source of the kernel's.

    The engine's code objects name no folder of the machine that compiled: root is the folder of the
    kernel's own sources, rfops that of the library's.
    """
    name = _STAGE.sub("", source)
    root, _, relative = name.partition("/")
    folders = (CSRC,) if root == "rfops" else _roots(kernel) if root == "root" else ()
    candidates = (folder / relative for folder in folders)
    return next((str(f) for f in candidates if Path(str(f).rpartition(":")[0]).is_file()), name)


def _roots(kernel: str) -> tuple[Path, ...]:
    from rfops.jit.launch.bind import source_folders  # and torch with it

    return source_folders(kernel)


def with_text(source: str) -> str:
    """Return "file:line" followed by that line of the source, if the file is there."""
    path, _, line = source.rpartition(":")
    return f"{source}  {linecache.getline(path, int(line)).strip()}".rstrip()
