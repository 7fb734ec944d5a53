"""A report of a trace as text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rfops.cli.trace.gaps import Cause, Report

CAUSES = {
    "host": "the host had not launched yet",
    "queue": "launched in time: the GPU's own start, or an event",
    "graph": "within one graph launch",
    "unknown": "no launch in the trace",
}


def table(report: Report, top: int) -> str:
    """Return the report as text, with at most `top` kernels."""
    sections = [_head(report), _kernels(report, top), _gaps(report), _host(report, top)]
    return "\n\n".join(filter(None, [*sections, _graph(report)])) + "\n"


def _head(report: Report) -> str:
    calls = sum(row.calls for row in report.kernels)
    text = (
        f"GPU {report.device} {report.name}".rstrip() + f" ({report.source}): {calls} activities "
        f"of {len(report.kernels)} names in {_ms(report.span)}; busy {_ms(report.busy)} "
        f"({_percent(report.busy, report)}), "
        f"idle {_ms(report.idle)} ({_percent(report.idle, report)})"
    )
    if report.left_out:
        text += f"\n{report.left_out} records without a time were left out"
    return text


def short(name: str, max_chars: int = 100) -> str:
    """A kernel's name without what torch's all begin with."""
    name = re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", name)
    return name if len(name) <= max_chars else name[: max_chars - 3] + "..."


def _kernels(report: Report, top: int) -> str:
    rows = [("calls", "total us", "mean us", "share", "kernel")]
    for row in report.kernels[:top]:
        name = short(row.name) if row.kind == "kernel" else f"[{row.kind}] {row.name}"
        mean = row.us / row.calls
        rows.append(
            (str(row.calls), f"{row.us:.1f}", f"{mean:.2f}", f"{row.share:.1%}", name[:100])
        )
    num_more = len(report.kernels) - top
    return _columns(rows) + (f"\n... and {num_more} more names (--top)" if num_more > 0 else "")


def _gaps(report: Report) -> str:
    if not report.causes:
        return "No gap: the GPU was never idle."
    rows = [("gaps", "total us", "mean us", "longest", "share", "idle, because")]
    for name, cause in sorted(report.causes.items(), key=lambda item: -item[1].us):
        rows.append((*_figures(cause, report), f"{name}: {CAUSES[name]}"))
    return _columns(rows)


def _host(report: Report, top: int) -> str:
    if not report.host:
        return ""
    rows = [("us", "share", "the host meanwhile, innermost call")]
    for name, us in list(report.host.items())[:top]:
        rows.append((f"{us:.1f}", _percent(us, report), name[:100]))
    return _columns(rows)


def _graph(report: Report) -> str:
    graph = report.graph
    if not graph.closable.gaps:
        text = "A graph would close no gap"
    else:
        than = f"less {graph.inside:.2f} us a gap, as in this trace's graphs"
        text = (
            f"A graph would close {graph.closable.gaps} gaps of {_ms(graph.closable.us)} in "
            f"{graph.stretches} stretches: at most {_ms(graph.saved)} "
            f"({_percent(graph.saved, report)}) saved{', ' + than if graph.inside else ''}"
        )
    if not graph.blocked:
        return text + "."
    rows = [("gaps", "total us", "mean us", "longest", "share", "not these, because of")]
    for name, cause in sorted(graph.blocked.items(), key=lambda item: -item[1].us):
        rows.append((*_figures(cause, report), name))
    return text + ".\n" + _columns(rows)


def _figures(cause: Cause, report: Report) -> tuple[str, str, str, str, str]:
    mean = f"{cause.us / cause.gaps:.2f}"
    percent = _percent(cause.us, report)
    return str(cause.gaps), f"{cause.us:.1f}", mean, f"{cause.longest:.1f}", percent


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f} ms" if us >= 1e3 else f"{us:.1f} us"


def _percent(us: float, report: Report) -> str:
    return f"{us / report.span:.1%}" if report.span else "-"


def _columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Figures to the right, the last column to the left."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([*(c.rjust(w) for c, w in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in rows
    )
