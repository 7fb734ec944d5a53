"""The picture of `rfops bench --plot`: times beside floors and published times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
_HEIGHT = 0.26  # of a bar; a shape has three
# Column, what it is called where it lacks.
_SERIES = (("us", "not launched"), ("floor us", "no floor"), ("published us", "not published"))


def draw(op: str, rows: Sequence[Row]) -> Any:
    """A figure: a group of bars a shape, from zero on, each with its number in microseconds."""
    from matplotlib import pyplot

    height = 1.6 + 0.6 * len(rows)
    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    kinds = sorted({row["kind"] for row in rows if row.get("us")})
    for series_idx, (column, missing) in enumerate(_SERIES):
        label = f"this, {' and '.join(kinds) or 'no time'}" if column == "us" else column[:-3]
        bar_positions = [row_idx + _HEIGHT * (series_idx - 1) for row_idx in range(len(rows))]
        widths = [float(row.get(column) or 0) for row in rows]
        axes.barh(bar_positions, widths, 0.9 * _HEIGHT, label=label, color=f"C{series_idx}")
        if column == "us":
            _intervals(axes, bar_positions, rows)
        for position, width, row in zip(bar_positions, widths, rows, strict=True):
            end = max(width, float(row.get("high us") or 0) if column == "us" else 0.0)
            text = f" {width:.3g}" if width else f" {missing}"
            axes.text(
                end, position, text, va="center", fontsize=8, color="black" if width else "0.5"
            )
    axes.set_yticks(range(len(rows)), [row["shape"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=1)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set(xlabel="us", title=f"{op} on {gpus(rows)}")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="best")
    return figure


def gpus(rows: Sequence[Row]) -> str:
    """The GPU models that the times are of."""
    return ", ".join(sorted({row["gpu"] for row in rows if row.get("gpu")})) or "no GPU"


def _intervals(axes: Any, bar_positions: Sequence[float], rows: Sequence[Row]) -> None:
    timed = [
        (position, row)
        for position, row in zip(bar_positions, rows, strict=True)
        if row.get("high us")
    ]
    if not timed:
        return
    us, low, high = ([float(row[name]) for _, row in timed] for name in ("us", "low us", "high us"))
    lower_errors = [max(0.0, u - bound) for u, bound in zip(us, low, strict=True)]
    upper_errors = [max(0.0, bound - u) for u, bound in zip(us, high, strict=True)]
    axes.errorbar(
        us,
        [position for position, _ in timed],
        xerr=(lower_errors, upper_errors),
        fmt="none",
        ecolor="0.25",
        capsize=3,
    )
