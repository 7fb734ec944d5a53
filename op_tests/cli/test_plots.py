"""Pictures by their parts: what is drawn where, what is said of what lacks."""

from __future__ import annotations

from typing import Any

import pytest

from rfops.cli import bench_plot
from rfops.cli.trace import gaps, picture
from rfops.cli.trace.read import Activity, Trace

pytest.importorskip("matplotlib")

ROWS: list[dict[str, Any]] = [
    {
        "shape": "m=1",
        "us": 8.0,
        "low us": 6.0,
        "high us": 11.0,
        "kind": "estimated",
        "gpu": "MI355X",
        "floor us": 2.0,
        "published us": 7.5,
    },
    {"shape": "m=2", "us": 0.0, "kind": "not launched", "floor us": 0.0, "published us": ""},
]


def texts(axes: Any) -> list[str]:
    return [text.get_text().strip() for text in axes.texts]


def test_bars_of_a_bench() -> None:
    (axes,) = bench_plot.draw("gemm", ROWS).axes
    assert axes.get_title() == "gemm on MI355X" and axes.get_xlim()[0] == 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["m=1", "m=2"]
    assert [bar.get_width() for bar in axes.patches] == [8.0, 0.0, 2.0, 0.0, 7.5, 0.0]
    assert texts(axes) == ["8", "not launched", "2", "no floor", "7.5", "not published"]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["this, estimated", "floor", "published"]


def test_the_interval_of_a_time() -> None:
    (axes,) = bench_plot.draw("gemm", ROWS).axes
    (segments,) = (c.get_segments() for c in axes.collections)
    ((low, _), (high, _)) = segments[0]
    assert (low, high) == (6.0, 11.0) and len(segments) == 1
    (number,) = [text for text in axes.texts if text.get_text().strip() == "8"]
    assert number.get_position()[0] == 11.0, "behind the interval"


def test_several_kinds_and_gpus_are_named() -> None:
    rows = [ROWS[0], {**ROWS[0], "kind": "measured", "gpu": "NVIDIA H100"}]
    (axes,) = bench_plot.draw("gemm", rows).axes
    assert axes.get_title() == "gemm on MI355X, NVIDIA H100"
    assert axes.get_legend().get_texts()[0].get_text() == "this, estimated and measured"


def test_nothing_timed() -> None:
    (axes,) = bench_plot.draw("gemm", ROWS[1:]).axes
    assert axes.get_title() == "gemm on no GPU" and "not launched" in texts(axes)


def activity(name: str, stream: str, start: float, end: float) -> Activity:
    return Activity(name, "kernel", "0", stream, start, end, None)


def test_a_lane_a_stream() -> None:
    activities = [
        activity("gemm", "7", 1000, 2000),
        activity("gemm", "7", 2000.1, 3000),  # they meet, but for less than a pixel
        activity("add", "7", 3000, 3500),
        activity("gemm", "13", 2500, 5000),
    ]
    trace = Trace("torch.profiler", {"0": "MI300X"}, activities, [])
    reports = gaps.reports(trace)
    lanes, shares = picture.draw(trace, reports).axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["stream 7", "stream 13"]
    boxes = [[path.get_extents().bounds for path in lane.get_paths()] for lane in lanes.collections]
    starts = [[(round(x, 3), round(width, 3)) for x, _, width, _ in lane] for lane in boxes]
    assert starts == [[(0.0, 2.0), (2.0, 0.5)], [(1.5, 2.5)]]
    assert "MI300X" in lanes.get_title()
    assert texts(shares)[-1] == f"{reports[0].kernels[0].us / 1e3:.3g}"
