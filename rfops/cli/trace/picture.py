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
OTHER_KERNELS = "others"


def check() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'rfops[plot]'")


def draw(file: Path, trace: Trace, reports: list[Report]) -> None:
    """Write a picture of the trace: busy time over time, and each kernel's fraction."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (12, 4.5 * len(reports))
    figure, axes = pyplot.subplots(
        len(reports), 2, figsize=size, squeeze=False, width_ratios=(2, 1), layout="constrained"
    )
    for (busy_axes, share_axes), report in zip(axes, reports, strict=True):
        _busy(busy_axes, trace, report)
        _shares(share_axes, report)
    figure.savefig(file)
    pyplot.close(figure)


def _busy(axes: Any, trace: Trace, report: Report) -> None:
    """The share of each of 200 slices of time in which the device was busy, by kernel."""
    activities = [a for a in trace.activities if a.device == report.device]
    zero, width = activities[0].start, (report.span or 1.0) / SLICES
    names = [row.name for row in report.kernels[:COLOURS]]
    rows = {name: [0.0] * SLICES for name in [*names, OTHER_KERNELS]}
    for a in activities:
        row = rows.get(a.name, rows[OTHER_KERNELS])
        begin, end = ((t - zero) / width for t in (a.start, a.end))
        for slice_idx in range(int(begin), min(math.ceil(end), SLICES)):
            row[slice_idx] += max(0.0, min(end, slice_idx + 1) - max(begin, slice_idx))
    edges = [slice_idx * width / 1e3 for slice_idx in range(SLICES)]
    colours = [f"C{slice_idx}" for slice_idx in range(len(names))] + ["0.6"]
    axes.stackplot(edges, *rows.values(), colors=colours, step="post")
    title = f"GPU {report.device} {report.name}: busy {report.busy / (report.span or 1):.0%}"
    axes.set(xlabel="ms", ylabel="busy, streams added", title=title, ylim=(0, None))


def _shares(axes: Any, report: Report) -> None:
    rows = [(short(row.name, 36), row.us, f"C{index}") for index, row in enumerate(report.kernels)]
    rows = [*rows[:COLOURS], ("(idle)", report.idle, "0.85")][::-1]
    axes.barh(range(len(rows)), [us / 1e3 for _, us, _ in rows], color=[c for _, _, c in rows])
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7)
    axes.set(xlabel="ms")
