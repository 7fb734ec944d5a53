"""A trace drawn: what each stream ran, where the GPU was idle, and who took the time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from rfops.cli.trace.gaps import Report
from rfops.cli.trace.read import Trace


def check() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'rfops[plot]'")


def draw(file: Path, trace: Trace, reports: list[Report]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (12, 4.5 * len(reports))
    figure, axes = pyplot.subplots(len(reports), 2, figsize=size, squeeze=False,
        width_ratios=(3, 1), layout="constrained")  # fmt: skip
    for (left, right), report in zip(axes, reports, strict=True):
        _streams(left, trace, report)
        _shares(right, report)
    figure.savefig(file)
    pyplot.close(figure)


def _streams(axes: Any, trace: Trace, report: Report) -> None:
    activities = [a for a in trace.activities if a.device == report.device]
    zero = activities[0].start
    kernels = [row.name for row in report.kernels]
    colours = {name: f"C{at}" if at < 9 else "0.6" for at, name in enumerate(kernels)}
    streams = sorted({a.stream for a in activities})
    for at, stream in enumerate(streams):
        of = [a for a in activities if a.stream == stream]
        spans = [((a.start - zero) / 1e3, (a.end - a.start) / 1e3) for a in of]
        axes.broken_barh(spans, (at - 0.4, 0.8), facecolors=[colours[a.name] for a in of])
    axes.set_yticks(range(len(streams)), [f"stream {s}" for s in streams])
    title = f"GPU {report.device} {report.name}: busy {report.busy / (report.span or 1):.0%}"
    axes.set(xlabel="ms", title=title)


def _shares(axes: Any, report: Report) -> None:
    rows = report.kernels[:9][::-1]
    colours = [f"C{at}" for at in reversed(range(len(rows)))]
    bars = [(row.name[:28], row.us / 1e3, c) for row, c in zip(rows, colours, strict=True)]
    bars += [("(idle)", report.idle / 1e3, "0.85")]
    axes.barh([b[0] for b in bars], [b[1] for b in bars], color=[b[2] for b in bars])
    axes.tick_params(axis="y", labelsize=7)
    axes.set(xlabel="ms")
