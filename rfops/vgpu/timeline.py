"""A timeline of one compute unit in the Trace Event format, for Perfetto and chrome://tracing.

    with rfops.vgpu.timing(events=rfops.vgpu.timeline.MOST_ISSUES) as t:
        ...
    Path("trace.json").write_text(json.dumps(rfops.vgpu.timeline.trace(t.launches)))

Launches follow each other. Of each: its time; the SIMDs, each with its waves in slots, what they
issued and what they waited for; the units; how many waves there are and wait. Issues of a wave to
one unit that follow each other are one slice, and so is a unit's work without a gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any, NamedTuple

from rfops.vgpu.timed import TimedLaunch
from rfops.vgpu.timed_text import source_path

MOST_ISSUES = 50_000  # of a launch: some 10 MB
_ISSUE_CLK = 4  # what an issue takes; a wait no longer than that is another wave's turn
_BUCKETS = 500  # of a launch's counters
_OF_A_SIMD = ("valu", "mfma")  # units; a CU has one of each of the others
_PIDS = 10  # of a launch: the CU, then its SIMDs

Slice = dict[str, Any]


class Issue(NamedTuple):
    """What the model took down, by clk of the launch's body."""

    clk: int
    offset: int
    simd: int
    wave: int
    stalled: int
    reason: str

    @property
    def waits_from(self) -> int:
        """The clock from which the wave waited to issue."""
        return self.clk - self.stalled


def trace(launches: Sequence[TimedLaunch], max_issues: int = MOST_ISSUES) -> dict[str, Any]:
    """The trace as JSON's objects, of `max_issues` issues a launch at most. Raises ValueError for a
    launch without events."""
    slices: list[Slice] = []
    start = 0.0
    for index, launch in enumerate(launches):
        if "events" not in launch.figures or "pcs" not in launch.figures:
            raise ValueError(
                f"trace: launch {index}, {launch.kernel}, has no events; time it with "
                "rfops.vgpu.timing(events=N, detail=True)"
            )
        slices += _Writer(launch, index, start, max_issues).build()
        start += launch.us
    # What is outside comes first of those that start at once; names first of all.
    slices.sort(key=lambda s: (s["ph"] != "M", s.get("ts", 0), -s.get("dur", 0)))
    return {
        "traceEvents": slices,
        "displayTimeUnit": "ns",
        "otherData": {
            "what": "estimated by a model, not measured; of XCD 0, the unit that is done last",
            "launches": [_launch_facts(launch, max_issues) for launch in launches],
        },
    }


def _launch_facts(launch: TimedLaunch, max_issues: int) -> dict[str, Any]:
    names = ("kernel", "part", "us", "low", "high", "clock_ghz", "clocks", "bound", "sampled")
    facts = {name: launch.figures[name] for name in names}
    issues = min(max_issues, len(launch.events))
    return {**facts, "issues": issues, "capped": issues == max_issues}


@dataclass
class _Writer:
    launch: TimedLaunch
    index: int
    start: float  # us
    max_issues: int
    slices: list[Slice] = field(default_factory=list)

    def build(self) -> list[Slice]:
        f = self.launch
        self.by_offset = {row["offset"]: row for row in f.pcs}
        issues = [Issue(*event) for event in f.events[: self.max_issues]]
        by_wave = groupby(sorted(issues, key=lambda i: (i.wave, i.clk)), key=lambda i: i.wave)
        waves = [list(wave) for _, wave in by_wave]
        self.cu = self.index * _PIDS + 1
        self._name(self.cu, f"launch {self.index}: {f.kernel} on {f.part}, CU {f.events_cu}")
        self._name(self.cu, "launch", 0)
        end = self.start + f.us
        args = {"bound": f.bound, "low_us": f.low, "high_us": f.high}
        self._add("launch", f.kernel, self.cu, 0, self._ts(us=self.start), self._ts(us=end), args)
        self._waves(waves)
        self._units(issues)
        self._counters(waves)
        return self.slices

    # ------------------------------------------------------------ how things are written

    def _ts(self, clk: float = 0, us: float | None = None) -> float:
        """us to the picosecond, so that slices that meet do so exactly."""
        body = self.start + self.launch.floor_us + clk / self.launch.clock_ghz / 1e3
        return round(body if us is None else us, 6)

    def _add(
        self, cat: str, name: str, pid: int, tid: int, ts: float, end: float, args: dict[str, Any]
    ) -> None:
        self.slices.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": ts,
                "dur": round(end - ts, 6),
                "args": args,
            }
        )

    def _clks(
        self, cat: str, name: str, thread: tuple[int, int], clk: tuple[int, int], **args: Any
    ) -> None:
        self._add(cat, name, *thread, self._ts(clk[0]), self._ts(clk[1]), args)

    def _name(self, pid: int, name: str, tid: int | None = None) -> None:
        kind_of_row, tids = ("process", {}) if tid is None else ("thread", {"tid": tid})
        sort = {"sort_index": pid if tid is None else tid}
        for kind, args in (("name", {"name": name}), ("sort_index", sort)):
            self.slices.append(
                {"ph": "M", "name": f"{kind_of_row}_{kind}", "pid": pid, **tids, "args": args}
            )

    def _location(self, issue: Issue) -> dict[str, Any]:
        row = self.by_offset[issue.offset]
        source = (
            {"source": source_path(row["source"], self.launch.kernel)} if "source" in row else {}
        )
        return {"offset": f"{issue.offset:#x}", "instruction": row["text"], **source}

    def _unit(self, issue: Issue) -> str:
        unit: str = self.by_offset[issue.offset]["unit"]
        return unit

    # ------------------------------------------------------------ waves

    def _waves(self, waves: Iterable[list[Issue]]) -> None:
        ends: dict[int, list[int]] = defaultdict(list)  # of a SIMD's slots, in clk
        for wave in sorted(waves, key=lambda w: w[0].waits_from):
            simd, start, end = wave[0].simd, wave[0].waits_from, wave[-1].clk + _ISSUE_CLK
            slot_ends = ends[simd]
            wave_slot = next(
                (i for i, free in enumerate(slot_ends) if free <= start), len(slot_ends)
            )
            pid = self.cu + 1 + simd
            if not slot_ends:
                self._name(pid, f"launch {self.index}: SIMD {simd}")
            if wave_slot == len(slot_ends):
                slot_ends.append(end)
                self._name(pid, f"slot {wave_slot}", wave_slot)
            slot_ends[wave_slot] = end
            thread = (pid, wave_slot)
            self._clks("wave", f"wave {wave[0].wave}", thread, (start, end), issued=len(wave))
            self._wave(wave, thread)

    def _wave(self, wave: list[Issue], thread: tuple[int, int]) -> None:
        """Its waits, and between them what it issued, by unit."""
        for run, following in _runs(wave, self._unit):
            first_issue = run[0]
            if first_issue.stalled > _ISSUE_CLK:
                clk = (first_issue.waits_from, first_issue.clk)
                self._clks(
                    "stall", first_issue.reason, thread, clk, before=self._location(first_issue)
                )
            end = run[-1].clk + _ISSUE_CLK
            if following:
                end = min(end, following.clk)
            clk, unit = (first_issue.clk, end), self._unit(first_issue)
            name = (
                f"{unit} x{len(run)}"
                if len(run) > 1
                else self._location(first_issue)["instruction"]
            )
            self._clks(
                "issue",
                name,
                thread,
                clk,
                issued=len(run),
                unit=unit,
                **self._location(first_issue),
            )

    # ------------------------------------------------------------ units

    def _units(self, issues: Iterable[Issue]) -> None:
        """Busy clk of the vector and matrix units; of the others, when something was issued."""
        work: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for issue in issues:
            unit = self._unit(issue)
            is_per_simd = unit in _OF_A_SIMD
            clk = self.by_offset[issue.offset]["unit_clk"] if is_per_simd else _ISSUE_CLK
            name = f"{unit} of SIMD {issue.simd}" if is_per_simd else f"{unit} issues"
            work[name].append((issue.clk, issue.clk + clk))
        for tid, (name, busy) in zip(count(1), sorted(work.items())):
            self._name(self.cu, name, tid)
            for start, end, merged in _merged(busy):
                unit = name.split()[0]
                self._clks("unit", unit, (self.cu, tid), (start, end), instructions=merged)

    # ------------------------------------------------------------ counters

    def _counters(self, waves: Sequence[list[Issue]]) -> None:
        end = max((wave[-1].clk + _ISSUE_CLK for wave in waves), default=0)
        width = max(4 * _ISSUE_CLK, -(-end // _BUCKETS))
        num_waves = [0.0] * (end // width + 2)  # the last one, after all, stays empty
        waiting: dict[str, list[float]] = {}
        for wave in waves:
            _add_to_buckets(num_waves, width, wave[0].waits_from, wave[-1].clk + _ISSUE_CLK)
            for issue in wave:
                if issue.stalled > _ISSUE_CLK:
                    by_bucket = waiting.setdefault(issue.reason, [0.0] * len(num_waves))
                    _add_to_buckets(by_bucket, width, issue.waits_from, issue.clk)
        for name, series in (("waves", {"waves": num_waves}), ("waiting waves", waiting)):
            last_values: dict[str, float] = {}
            for i in range(len(num_waves)):
                values = {kind: round(values[i], 3) for kind, values in sorted(series.items())}
                if values == last_values:
                    continue
                last_values = values
                self.slices.append(
                    {
                        "ph": "C",
                        "name": name,
                        "pid": self.cu,
                        "tid": 0,
                        "ts": self._ts(i * width),
                        "args": values,
                    }
                )


def _runs(wave: list[Issue], unit: Any) -> Iterator[tuple[list[Issue], Issue | None]]:
    """Issues to one unit without a stall between, and what follows them."""
    run: list[Issue] = []
    for issue in wave:
        if run and (issue.stalled > _ISSUE_CLK or unit(issue) != unit(run[0])):
            yield run, issue
            run = []
        run.append(issue)
    yield run, None


def _merged(busy: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Start, end, and of how many: those that meet, overlap or nearly meet."""
    start_, end_, merged = *busy[0], 0
    for start, end in sorted(busy):
        if start > end_ + _ISSUE_CLK:
            yield start_, end_, merged
            start_, end_, merged = start, end, 0
        end_, merged = max(end_, end), merged + 1
    yield start_, end_, merged


def _add_to_buckets(buckets: list[float], width: int, start: int, end: int) -> None:
    """Adds to each bucket the share of it that lies between."""
    for i in range(start // width, (end - 1) // width + 1):
        buckets[i] += (min(end, (i + 1) * width) - max(start, i * width)) / width
