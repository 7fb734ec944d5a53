"""A trace drawn: how busy the GPU was over time, with what, and who took the time."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from rfops.cli.trace.gaps import Report
from rfops.cli.trace.read import Trace
from rfops.cli.trace.text import short

SLICES = 200
COLOURS = 9
OTHERS = "others"


def check() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'rfops[plot]'")


def draw(file: Path, trace: Trace, reports: list[Report]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (12, 4.5 * len(reports))
    figure, axes = pyplot.subplots(
        len(reports), 2, figsize=size, squeeze=False, width_ratios=(2, 1), layout="constrained"
    )
    for (left, right), report in zip(axes, reports, strict=True):
        _busy(left, trace, report)
        _shares(right, report)
    figure.savefig(file)
    pyplot.close(figure)


def _busy(axes: Any, trace: Trace, report: Report) -> None:
    """The share of each of 200 slices of time in which the device was busy, by kernel."""
    activities = [a for a in trace.activities if a.device == report.device]
    zero, width = activities[0].start, (report.span or 1.0) / SLICES
    names = [row.name for row in report.kernels[:COLOURS]]
    rows = {name: [0.0] * SLICES for name in [*names, OTHERS]}
    for a in activities:
        row = rows.get(a.name, rows[OTHERS])
        first, last = ((t - zero) / width for t in (a.start, a.end))
        for at in range(int(first), min(math.ceil(last), SLICES)):
            row[at] += max(0.0, min(last, at + 1) - max(first, at))
    edges = [at * width / 1e3 for at in range(SLICES)]
    colours = [f"C{at}" for at in range(len(names))] + ["0.6"]
    axes.stackplot(edges, *rows.values(), colors=colours, step="post")
    title = f"GPU {report.device} {report.name}: busy {report.busy / (report.span or 1):.0%}"
    axes.set(xlabel="ms", ylabel="busy, streams added", title=title, ylim=(0, None))


def _shares(axes: Any, report: Report) -> None:
    rows = [(short(row.name, 36), row.us, f"C{at}") for at, row in enumerate(report.kernels)]
    rows = [*rows[:COLOURS], ("(idle)", report.idle, "0.85")][::-1]
    axes.barh(range(len(rows)), [us / 1e3 for _, us, _ in rows], color=[c for _, _, c in rows])
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7)
    axes.set(xlabel="ms")
