"""What changed between two profiles of a call: time, stalls, bytes, registers.

A profile is a list of records, one a launch: timing mode's figures, and under "counters" the
launch's counters. `rfops profile OP --timing --json` writes one, a line a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rfops.vgpu import figures
from rfops.vgpu.counting import LaunchRecord
from rfops.vgpu.timed import TimedLaunch

Record = dict[str, Any]
_NO_CHANGE = 0.005  # shares and ratios below it are shown as equal
_TOP = 6  # stall reasons of each side
_NOTHING = figures.Traffic("", 0.0, None, 0.0, None)


class Row(NamedTuple):
    name: str
    old: float | str
    new: float | str
    text: str = "{:.0f}"  # of a number


def record_of(launch: LaunchRecord) -> Record:
    """A launch's record, for a file."""
    timed = {name: value for name, value in launch.time.figures.items() if name != "events"}
    return {**timed, "counters": dict(launch.figures)}


def read(file: Path) -> list[Record]:
    """A profile that was written. Raises ValueError that says what the file lacks."""
    records = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: no record of JSON: {error}") from error
        if "counters" not in record or "stalls" not in record:
            raise ValueError(
                f"{file}, line {number}: expected a record of `rfops profile OP --timing --json`, "
                f"got one with {', '.join(list(record)[:5])}"
            )
        records.append(record)
    if not records:
        raise ValueError(f"{file}: no record; write it with `rfops profile OP --timing --json`")
    return records


def text(
    old_records: Sequence[Record], new_records: Sequence[Record], names: tuple[str, str]
) -> str:
    """Both profiles side by side: each launch if there are as many, else the sums alone."""
    total = [sum(record["us"] for record in records) for records in (old_records, new_records)]
    lines = [
        f"{names[1]} against {names[0]}: {total[1]:.2f} us against {total[0]:.2f}, "
        f"{_ratio(*total)}, estimated",
    ]
    if len(old_records) != len(new_records):
        lines.append(
            f"  {len(new_records)} launches against {len(old_records)}: not compared one by one"
        )
        return "\n".join(lines)
    for old, new in zip(old_records, new_records, strict=True):
        lines += _launch(old, new)
    return "\n".join(lines)


def _launch(old_record: Record, new_record: Record) -> Iterator[str]:
    kernel = new_record["kernel"]
    kernels = (
        kernel if kernel == old_record["kernel"] else f"{kernel} against {old_record['kernel']}"
    )
    cells = [("", "before", "after", "", kernels)]
    cells += [
        (row.name, _cell(row, row.old), _cell(row, row.new), _ratio(row.old, row.new), "")
        for row in rows(old_record, new_record)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, old, new, ratio, note in cells:
        yield (
            f"  {name:<{widths[0]}}  {old:>{widths[1]}}  {new:>{widths[2]}}  "
            f"{ratio:<{widths[3]}}  {note}"
        ).rstrip()


def rows(old_record: Record, new_record: Record) -> list[Row]:
    """What is compared of a launch; figures that are 0 in both are left out."""
    sides = old_record, new_record
    results = [
        Row("us", old_record["us"], new_record["us"], "{:.2f}"),
        Row("bound", old_record["bound"], new_record["bound"]),
        Row("clock, GHz", old_record["clock_ghz"], new_record["clock_ghz"], "{:.2f}"),
    ]
    results += [
        Row(f"{unit} busy", old_record["busy"].get(unit, 0.0), fraction, "{:.1%}")
        for unit, fraction in new_record["busy"].items()
    ]
    traffic = [{t.level: t for t in figures.traffic(TimedLaunch(r), r["counters"])} for r in sides]
    for level in traffic[1] | traffic[0]:
        old, new = (one.get(level, _NOTHING) for one in traffic)
        results.append(Row(f"{level}, bytes", old.bytes, new.bytes))
        results.append(Row(f"{level} hits", old.hit_rate or 0.0, new.hit_rate or 0.0, "{:.1%}"))
    results += _stalls(sides)
    for name, label in (
        ("lds_conflict_cycles", "LDS conflicts, clk"),
        ("wave_instructions", "instructions by waves"),
        ("workgroups", "workgroups"),
        ("vgpr", "VGPRs"),
        ("agpr", "AGPRs"),
        ("vgpr_spills", "VGPR spills"),
        ("lds_bytes_per_workgroup", "LDS a workgroup, bytes"),
        ("waves_per_simd", "waves a SIMD"),
    ):
        if all(name in record["counters"] for record in sides):  # a sample has not all
            results.append(
                Row(label, old_record["counters"][name], new_record["counters"][name], "{:.10g}")
            )
    return [row for row in results if row.old or row.new]


def _stalls(sides: tuple[Record, Record]) -> Iterator[Row]:
    """Clk that waves waited in the whole launch, by the largest reasons of either."""
    clk = [
        {reason: figures.scale(TimedLaunch(r)) * n for reason, n in r["stalls"].items()}
        for r in sides
    ]
    yield Row("waits, clk", sum(clk[0].values()), sum(clk[1].values()))
    reasons = {name: max(one.get(name, 0.0) for one in clk) for name in clk[0] | clk[1]}
    for reason in sorted(reasons, key=lambda name: -reasons[name])[:_TOP]:
        yield Row(f"  for {reason}", clk[0].get(reason, 0.0), clk[1].get(reason, 0.0))


def _cell(row: Row, value: float | str) -> str:
    return value if isinstance(value, str) else row.text.format(value)


def _ratio(old: float | str, new: float | str) -> str:
    if isinstance(old, str) or isinstance(new, str):
        return "" if old == new else "changed"
    if not old:
        return "new"
    ratio = new / old
    return "=" if abs(ratio - 1) < _NO_CHANGE else f"x {ratio:.2f}"
