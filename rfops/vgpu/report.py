"""What the processes of `rfops run` have left (csrc/vgpu/base/report.h): read, added up by kernel,
and told. A process that crashed or was killed leaves what it had done by then."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rfops.vgpu import timed_text
from rfops.vgpu.checking import Finding, read_finding
from rfops.vgpu.counting import LaunchRecord
from rfops.vgpu.source import described
from rfops.vgpu.timed import TimedLaunch

MOST_KERNELS = 20  # of a table
MAX_DETAILED = 5  # kernels whose time is told in full
_TOP = 3  # reasons of a table's row


@dataclass
class Kernel:
    """All launches of a kernel on a GPU model."""

    name: str
    gpu_model: str
    launches: int = 0
    us: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bounds: Counter[str] = field(default_factory=Counter)  # us
    stalls: Counter[str] = field(default_factory=Counter)  # clk
    work: Counter[str] = field(default_factory=Counter)
    longest: TimedLaunch | None = None  # of those with stalls by instruction

    def add_time(self, launch: TimedLaunch) -> None:
        """Add a launch's estimated time, its bound and its stalls."""
        self.us += launch.us
        self.low += launch.low
        self.high += launch.high
        self.bounds[launch.bound] += launch.us
        self.stalls.update(launch.stalls)
        if "pcs" in launch.figures and (self.longest is None or launch.us > self.longest.us):
            self.longest = launch

    def add_work(self, f: Mapping[str, Any]) -> None:
        """Add a launch's counters: waves, instructions, bytes, FLOPs."""
        self.work.update(
            {
                "waves": f["waves"],
                "instructions": f["wave_instructions"],
                "read": 64 * f["global_read"]["lines_64B"],
                "written": 64 * f["global_write"]["lines_64B"],
                "mfma": f["mfma_flops"],
                "valu": f["valu_flops"],
                "LDS": f["lds_cycles"],
                "conflicts": f["lds_conflict_cycles"],
                "spills": f["vgpr_spills"] + f["sgpr_spills"],
            }
        )


@dataclass
class Followed:
    """A launch whose issues are there, and what was counted of it."""

    time: TimedLaunch
    counters: Mapping[str, Any] | None = None


@dataclass
class Report:
    """What `rfops run` has seen in all processes: launches by kernel, findings, failures, followed
    launches."""

    processes: list[str] = field(default_factory=list)  # how they were called
    kernels: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)
    different: set[tuple[Any, ...]] = field(default_factory=set)  # launches, by kernel and size

    def kernel(self, name: str, gpu_model: str) -> Kernel:
        """Return the entry of a kernel on a GPU model, made on first use."""
        return self.kernels.setdefault((name, gpu_model), Kernel(name, gpu_model))

    def add(self, launch: TimedLaunch) -> Followed | None:
        """A launch's time; where it has issues, the launch to go on with."""
        self.kernel(launch.kernel, launch.part).add_time(launch)
        self.different.add((launch.kernel, launch.part, *launch.grid, *launch.block))
        if not launch.figures.get("events"):
            return None
        self.followed.append(Followed(launch))
        return self.followed[-1]

    @property
    def left_out(self) -> int:
        """Different launches without issues."""
        return max(0, len(self.different) - len(self.followed))

    @property
    def by_time(self) -> list[Kernel]:
        """The kernels, longest total time first."""
        return sorted(self.kernels.values(), key=lambda kernel: (-kernel.us, kernel.name))


def read(folder: Path) -> Report:
    """All that lies there."""
    report = Report()
    for file in sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime_ns):
        _Process(report).read(file)
    return report


def from_launches(launches: Sequence[LaunchRecord]) -> Report:
    """Of launches of this process that were counted and timed."""
    report = Report([""])
    for launch in launches:
        kernel = report.kernel(launch.time.kernel, launch.time.part)
        kernel.launches += 1
        kernel.add_work(launch.figures)
        followed = report.add(launch.time)
        if followed is not None:
            followed.counters = launch.figures
    return report


def times(file: Path) -> Iterator[tuple[str, float]]:
    """Kernel and estimated us of each launch of one process, in their order."""
    for record in _lines(file):
        if "timed" in record:
            yield record["timed"]["kernel"], record["timed"]["us"]


class _Process:
    """Of one process: its launches by number, until all is known of them."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._started: dict[int, str] = {}
        self._gpu_models: dict[int, str] = {}
        self._followed: dict[int, Followed] = {}
        self._command = "?"

    def read(self, file: Path) -> None:
        for record in _lines(file):
            if "process" in record:
                self._command = f"process {record['process']} ({record['command']})"
                self._report.processes.append(self._command)
            for name, add in (
                ("started", self._start),
                ("timed", self._time),
                ("counted", self._count),
                ("finding", self._find),
            ):
                if name in record:
                    add(record[name])
        for kernel in self._started.values():
            self._report.failed.append(f"{kernel}: not done when {self._command} ended")

    def _start(self, record: dict[str, Any]) -> None:
        self._started[record["launch"]] = record["kernel"]

    def _time(self, record: dict[str, Any]) -> None:
        number, launch = record.pop("launch"), TimedLaunch(MappingProxyType(record))
        self._gpu_models[number] = launch.part
        if record["error"]:
            return
        followed = self._report.add(launch)
        if followed is not None:
            self._followed[number] = followed

    def _count(self, record: dict[str, Any]) -> None:
        """The last that is told of a launch."""
        number = record["launch"]
        self._started.pop(number, None)
        kernel = self._report.kernel(record["kernel"], self._gpu_models.pop(number, ""))
        kernel.launches += 1
        kernel.add_work(record)
        if number in self._followed:
            self._followed.pop(number).counters = record
        if record["error"]:
            self._report.failed.append(record["error"])

    def _find(self, record: dict[str, Any]) -> None:
        self._report.findings.append(read_finding(record))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                return  # cut short when the process was killed


# ---------------------------------------------------------------------------------- text


def text(report: Report, *, show_reasons: bool, show_findings: bool) -> str:
    """Return the report as text. `show_reasons` adds, for each of the slowest kernels, what its
    waves wait for; `show_findings` adds what checking mode found."""
    kernels = report.by_time
    lines = [_head(report)]
    if kernels:
        lines += ["", *_times(kernels), "", *_work(kernels)]
    if show_reasons:
        for kernel in kernels[:MAX_DETAILED]:
            longest = kernel.longest
            if longest is not None:
                lines += ["", f"{readable(kernel.name)}: its longest launch"]
                lines += [timed_text.table(longest), *_instructions(longest)]
    if show_findings:
        lines += ["", *findings(report)]
    if report.failed:
        counts = Counter(report.failed)
        lines += ["", "failed:"]
        lines += [
            f"  {summary_line}{f' ({n} times)' if n > 1 else ''}"
            for summary_line, n in counts.items()
        ]
    return "\n".join(lines)


def _head(report: Report) -> str:
    launches = sum(kernel.launches for kernel in report.kernels.values())
    if not report.processes:
        return (
            "no kernel was launched on the virtual GPU: a program reaches it through "
            "libamdhip64.so, a Python with rfops through Triton or FlyDSL"
        )
    us = sum(kernel.us for kernel in report.kernels.values())
    gpu_models = ", ".join(sorted({k.gpu_model for k in report.kernels.values() if k.gpu_model}))
    kernels = plural(len(report.kernels), "kernel")
    scope = f"{plural(launches, 'launch')} in {plural(len(report.processes), 'process')}"
    return f"{kernels}, {scope}: {us:.2f} us on {gpu_models}, estimated, not measured"


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: "1 launch", "2 launches"."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun[-1] in 'hs' else 's'}"


def _times(kernels: Sequence[Kernel]) -> list[str]:
    total = sum(kernel.us for kernel in kernels) or 1.0
    rows = [("us", "low", "high", "share", "launches", "bound", "kernel; what its waves wait for")]
    for k in kernels[:MOST_KERNELS]:
        bound = k.bounds.most_common(1)[0][0] if k.bounds else "-"
        numbers = (f"{k.us:.2f}", f"{k.low:.2f}", f"{k.high:.2f}", f"{k.us / total:.1%}")
        description = f"{readable(k.name)}; {_reasons(k.stalls)}"
        rows.append((*numbers, str(k.launches), bound, description))
    return [*_aligned(rows), *_remaining_line(kernels)]


def _reasons(stalls: Counter[str]) -> str:
    total = stalls.total()
    top_reasons = (f"{name} {clk / total:.0%}" for name, clk in stalls.most_common(_TOP) if clk)
    return ", ".join(top_reasons) or "nothing"


def _work(kernels: Sequence[Kernel]) -> list[str]:
    columns = (
        "waves",
        "instructions",
        "read",
        "written",
        "mfma",
        "valu",
        "LDS",
        "conflicts",
        "spills",
    )
    units = (
        "waves",
        "wave-instr",
        "B read",
        "B written",
        "MFMA flop",
        "VALU flop",
        "LDS cycles",
        "conflicts",
        "spills",
    )
    rows: list[Sequence[str]] = [(*units, "kernel")]
    for k in kernels[:MOST_KERNELS]:
        rows.append((*(str(k.work[name]) for name in columns), readable(k.name)))
    return [*_aligned(rows), *_remaining_line(kernels)]


def _remaining_line(kernels: Sequence[Kernel]) -> list[str]:
    remaining = kernels[MOST_KERNELS:]
    us = sum(kernel.us for kernel in remaining)
    return [f"  and {plural(len(remaining), 'kernel')} more, {us:.2f} us"] if remaining else []


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Numbers to the right, the last two columns to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (
        [
            c.ljust(w) if column >= len(row) - 2 and not c.isdigit() else c.rjust(w)
            for column, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    )
    return [f"  {'  '.join(row)}".rstrip() for row in cells]


def _instructions(launch: TimedLaunch) -> list[str]:
    """Where most of the waiting is."""
    total = sum(sum(row["stalls"].values()) for row in launch.pcs) or 1
    rows = sorted(launch.pcs, key=lambda row: -sum(row["stalls"].values()))[:MAX_DETAILED]
    lines = []
    for row in rows:
        clk = sum(row["stalls"].values())
        if clk:
            source_line = described(row, launch.kernel)
            source = f"  {source_line}" if source_line else ""
            instruction = timed_text.readable(row["text"])
            lines.append(f"  {clk / total:6.1%} {row['offset']:#8x}  {instruction}{source}")
    return lines


def findings(report: Report) -> list[str]:
    """What the kernels did wrong, in lines."""
    count = len(report.findings)
    return [
        f"check: {plural(count, 'finding') if count else 'nothing found'}",
        *(f"  {_finding(finding)}" for finding in report.findings),
    ]


def _finding(f: Finding) -> str:
    location = f", {f.place}" if f.file else ""
    lane = f" lane {f.lane}" if f.lane is not None else ""
    times = f", {f.count} times" if f.count > 1 else ""
    group = ",".join(map(str, f.workgroup))
    return (
        f"{f.kind}: {readable(f.kernel)} at {f.offset:#x} ({f.instruction}){location}: {f.detail} "
        f"[workgroup {group} wave {f.wave}{lane}]{times}"
    )


def readable(name: str) -> str:
    """A C++ name as its author wrote it."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    demangled = library.__cxa_demangle(name.encode(), None, None, None)
    if not demangled:
        return name
    text_ = ctypes.string_at(demangled).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(demangled))
    return text_
