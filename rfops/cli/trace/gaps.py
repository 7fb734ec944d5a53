"""Where a GPU stood still, why, and what a graph would change.

A gap is a time in which nothing of a device ran, between two activities. Its cause is read from
the call that launched what ended it:

    graph    both sides came from one graph launch
    host     the launch was still to come when the gap began: the GPU waited for the host
    queue    the launch had been made: the GPU's own time to begin it, or an event that it waits for
    unknown  the trace has no such call

What a graph replay would close: gaps of `host` and `queue` with no call between their two
launches that cannot be captured (a synchronisation, a blocking copy, an allocation by the driver).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from statistics import median

import msgspec

from rfops.cli.trace.read import Activity, HostCall, Trace

# Calls of CUDA's and HIP's runtime that a capture refuses, and that make a stream run dry.
NO_CAPTURE = re.compile(
    r"Synchronize|^(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|HostAlloc|HostRegister)(?!.*Async)"
    r"|^(cuda|hip|cu)Mem(cpy|set)(?!.*Async)|(Event|Stream)Query|ModuleLoad|ModuleUnload"
)
NO_CALL = "(no call in the trace: Python, or another thread)"


class KernelRow(msgspec.Struct):
    """The calls and the total time of one kernel, copy or fill of a trace."""

    name: str
    kind: str
    calls: int
    us: float
    share: float  # of all activities' time


class Cause(msgspec.Struct):
    """Number, total and longest time of the gaps that have one cause."""

    gaps: int = 0
    us: float = 0.0
    longest: float = 0.0

    def add(self, us: float) -> None:
        """Count one more gap of `us` microseconds."""
        self.gaps, self.us, self.longest = self.gaps + 1, self.us + us, max(self.longest, us)


class Graph(msgspec.Struct):
    """What capturing would change: `closable` gaps lie in `stretches` without a call that cannot
    be captured, `saved` is their time less what gaps within a graph take (`inside`: their median
    in this trace, 0 where it has none); `blocked` names the calls that keep the others."""

    closable: Cause
    stretches: int
    inside: float
    saved: float
    blocked: dict[str, Cause]


class Report(msgspec.Struct):
    """Of one GPU; times in us, `span` from its first activity to the end of its last."""

    device: str
    name: str
    source: str
    span: float
    busy: float
    idle: float
    kernels: list[KernelRow]
    causes: dict[str, Cause]
    host: dict[str, float]  # while the GPU waited for it: innermost call -> us
    graph: Graph
    left_out: int


class Gap(msgspec.Struct):
    """A time in which the GPU has no activity, with the activities around it; times in us."""

    start: float
    end: float
    previous: Activity
    following: Activity

    @property
    def us(self) -> float:
        """The length of the gap in us."""
        return self.end - self.start


def reports(trace: Trace) -> list[Report]:
    """Return one report per GPU of the trace."""
    host = Host(trace.calls)
    by_device: dict[str, list[Activity]] = defaultdict(list)
    for activity in trace.activities:
        by_device[activity.device].append(activity)
    return [_report(trace, device, by_device[device], host) for device in sorted(by_device)]


def gaps_of(activities: list[Activity]) -> list[Gap]:
    """Of one device, in order of time; activities by start. Streams count as one."""
    gaps, previous = [], activities[0]
    for activity in activities[1:]:
        if activity.start > previous.end:
            gaps.append(Gap(previous.end, activity.start, previous, activity))
        if activity.end > previous.end:
            previous = activity
    return gaps


class Host:
    """The host's calls: who launched what, and what a thread was in at a time."""

    def __init__(self, calls: list[HostCall]) -> None:
        self.launches = {c.correlation: c for c in calls if c.runtime and c.correlation}
        threads: dict[str, list[HostCall]] = defaultdict(list)
        for call in calls:
            threads[call.thread].append(call)
        self._innermost = {name: _innermost(its_calls) for name, its_calls in threads.items()}
        self._blocking: dict[str, tuple[list[float], list[str]]] = {}
        for name, its_calls in threads.items():
            ends = sorted(
                (c.end, c.name) for c in its_calls if c.runtime and NO_CAPTURE.search(c.name)
            )
            self._blocking[name] = [e for e, _ in ends], [n for _, n in ends]

    def launch(self, activity: Activity) -> HostCall | None:
        """Return the host call that launched an activity, or None if the trace has none."""
        return self.launches.get(activity.correlation or -1)

    def doing(self, thread: str, start: float, end: float) -> dict[str, float]:
        """us by the innermost call that the thread was in."""
        starts, stretches_ = self._innermost[thread]
        us_by_name: dict[str, float] = defaultdict(float)
        index = max(bisect_right(starts, start) - 1, 0)
        for piece_start, piece_end, name in stretches_[index : bisect_left(starts, end)]:
            us_by_name[name] += max(0.0, min(end, piece_end) - max(start, piece_start))
        us_by_name[NO_CALL] += max(0.0, end - start - sum(us_by_name.values()))
        return us_by_name

    def blocker(self, previous_call: HostCall, next_call: HostCall) -> str | None:
        """A call between two launches that a capture refuses; or that they are of two threads."""
        if previous_call.thread != next_call.thread:
            return "(launched by two threads)"
        ends, names = self._blocking[previous_call.thread]
        index = bisect_right(ends, previous_call.start)
        return names[index] if index < len(ends) and ends[index] <= next_call.end else None


def _innermost(calls: list[HostCall]) -> tuple[list[float], list[tuple[float, float, str]]]:
    """A thread's time in pieces, each with the innermost call it lies in; and their starts."""
    stretches_: list[tuple[float, float, str]] = []
    stack: list[HostCall] = []
    time_from = 0.0

    def upto(time: float) -> None:
        nonlocal time_from
        if stack and time > time_from:
            stretches_.append((time_from, time, stack[-1].name))
        time_from = max(time_from, time)

    for call in sorted(calls, key=lambda c: (c.start, -c.end)):
        while stack and stack[-1].end <= call.start:
            upto(stack[-1].end)
            stack.pop()
        upto(call.start)
        time_from = call.start
        stack.append(call)
    while stack:
        upto(stack[-1].end)
        stack.pop()
    return [p[0] for p in stretches_], stretches_


def _report(trace: Trace, device: str, activities: list[Activity], host: Host) -> Report:
    span = max(a.end for a in activities) - activities[0].start
    causes: dict[str, Cause] = defaultdict(Cause)
    waited_us: dict[str, float] = defaultdict(float)
    gaps = gaps_of(activities)
    for gap in gaps:
        cause = cause_of(gap, host)
        causes[cause].add(gap.us)
        launch = host.launch(gap.following)
        if cause == "host" and launch:
            for name, us in host.doing(launch.thread, gap.start, min(gap.end, launch.end)).items():
                waited_us[name] += us
    idle = sum(gap.us for gap in gaps)
    return Report(
        device=device,
        name=trace.devices.get(device, ""),
        source=trace.source,
        span=span,
        busy=span - idle,
        idle=idle,
        kernels=_kernels(activities),
        causes=dict(causes),
        host={n: us for n, us in sorted(waited_us.items(), key=lambda item: -item[1]) if us > 0},
        graph=_graph(gaps, host),
        left_out=trace.left_out,
    )


def cause_of(gap: Gap, host: Host) -> str:
    """Return why the GPU was idle: within a graph, for the host's launch, or in the queue after
    it."""
    launch = host.launch(gap.following)
    if launch is None:
        return "unknown"
    if gap.previous.correlation == gap.following.correlation:
        return "graph"
    return "host" if launch.end > gap.start else "queue"


def _kernels(activities: list[Activity]) -> list[KernelRow]:
    rows: dict[tuple[str, str], KernelRow] = {}
    for a in activities:
        row = rows.setdefault((a.name, a.kind), KernelRow(a.name, a.kind, 0, 0.0, 0.0))
        row.calls, row.us = row.calls + 1, row.us + a.end - a.start
    total = sum(row.us for row in rows.values()) or 1.0
    for row in rows.values():
        row.share = row.us / total
    return sorted(rows.values(), key=lambda row: -row.us)


def _graph(gaps: list[Gap], host: Host) -> Graph:
    closable, blocked = Cause(), dict[str, Cause]()
    inside_us, stretches, open_stretch = [], 0, False
    for gap in gaps:
        cause = cause_of(gap, host)
        if cause == "graph":
            inside_us.append(gap.us)
            continue
        previous_launch, next_launch = host.launch(gap.previous), host.launch(gap.following)
        name = (
            host.blocker(previous_launch, next_launch)
            if previous_launch and next_launch
            else "(no launch in the trace)"
        )
        if name:
            blocked.setdefault(name, Cause()).add(gap.us)
        else:
            closable.add(gap.us)
            stretches += not open_stretch
        open_stretch = name is None
    typical = median(inside_us) if inside_us else 0.0
    saved = max(0.0, closable.us - typical * closable.gaps)
    return Graph(closable, stretches, typical, saved, blocked)
