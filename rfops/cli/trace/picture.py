"""A trace drawn: what each stream of a GPU ran when, and who took the time."""

from __future__ import annotations

from typing import Any

from rfops.cli.trace.gaps import Report
from rfops.cli.trace.read import Activity, Trace
from rfops.cli.trace.text import short

COLOURS = 9
_NARROWEST = 1 / 2000  # of the span: shorter gaps between activities of a name are not drawn


def draw(trace: Trace, reports: list[Report]) -> Any:
    """The figure: a row a GPU."""
    from matplotlib import pyplot

    lanes = [len(_streams(trace, report)) for report in reports]
    heights = [max(3.0, 1.5 + 0.4 * count) for count in lanes]
    figure, axes = pyplot.subplots(
        len(reports),
        2,
        figsize=(12, sum(heights)),
        squeeze=False,
        width_ratios=(2, 1),
        height_ratios=heights,
        layout="constrained",
    )
    for (stream_axes, share_axes), report in zip(axes, reports, strict=True):
        _lanes(stream_axes, trace, report)
        _draw_shares(share_axes, report)
    return figure


def _streams(trace: Trace, report: Report) -> dict[str, list[Activity]]:
    """Activities of each stream, in order of their start."""
    streams: dict[str, list[Activity]] = {}
    for a in trace.activities:
        if a.device == report.device:
            streams.setdefault(a.stream, []).append(a)
    return {name: streams[name] for name in sorted(streams, key=lambda n: (len(n), n))}


def _lanes(axes: Any, trace: Trace, report: Report) -> None:
    streams = _streams(trace, report)
    zero = min(activities[0].start for activities in streams.values())
    colours = {row.name: f"C{index}" for index, row in enumerate(report.kernels[:COLOURS])}
    for lane, activities in enumerate(streams.values()):
        segments = _pieces(activities, colours, _NARROWEST * (report.span or 1.0))
        axes.broken_barh(
            [((start - zero) / 1e3, (end - start) / 1e3) for start, end, _ in segments],
            (lane - 0.4, 0.8),
            facecolors=[colour for _, _, colour in segments],
        )
    axes.set_yticks(range(len(streams)), [f"stream {name}" for name in streams], fontsize=8)
    axes.invert_yaxis()
    title = f"GPU {report.device} {report.name}: busy {report.busy / (report.span or 1):.0%}"
    axes.set(xlabel="ms", title=title, xlim=(0, (report.span or 1.0) / 1e3))


def _pieces(
    activities: list[Activity], colours: dict[str, str], narrowest: float
) -> list[tuple[float, float, str]]:
    """Start, end and colour: those of a colour that nearly meet are one."""
    segments: list[tuple[float, float, str]] = []
    for a in sorted(activities, key=lambda a: a.start):
        colour = colours.get(a.name, "0.6")
        if segments and segments[-1][2] == colour and a.start - segments[-1][1] <= narrowest:
            segments[-1] = (segments[-1][0], max(segments[-1][1], a.end), colour)
        else:
            segments.append((a.start, a.end, colour))
    return segments


def _draw_shares(axes: Any, report: Report) -> None:
    rows = [(short(row.name, 36), row.us, f"C{index}") for index, row in enumerate(report.kernels)]
    rows = [*rows[:COLOURS], ("(idle)", report.idle, "0.85")][::-1]
    axes.barh(range(len(rows)), [us / 1e3 for _, us, _ in rows], color=[c for _, _, c in rows])
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7)
    for bar_idx, (_, us, _) in enumerate(rows):
        axes.text(us / 1e3, bar_idx, f" {us / 1e3:.3g}", va="center", fontsize=7)
    axes.margins(x=0.15)
    axes.set(xlabel="ms")
