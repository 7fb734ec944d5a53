"""One self-contained page of HTML about timed launches: what each takes and why, what to change.

A summary of all kernels, worst first, and a roofline; of each launch its time, advice, memory,
units, instructions, stalls, a timeline that zooms, and its source beside the annotated code. No
network: style and script are in the page. Without script it shows all but the timelines. Figures
are estimates, and the page says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rfops.vgpu.page import launch, roofline
from rfops.vgpu.page.elements import Column, table
from rfops.vgpu.report import Kernel, Report, plural, readable

MAX_PAGE_SLICES = 60_000  # of all timelines
_FOLDER = Path(__file__).parent


def style() -> str:
    return (_FOLDER / "page.css").read_text(encoding="utf-8")


def page(report: Report, title: str) -> str:
    """The whole page as text."""
    launches = sorted(report.followed, key=lambda followed: -followed.time.us)
    max_slices = MAX_PAGE_SLICES // max(len(launches), 3)
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_head(report))}</p>',
        *_failures(report),
        _kernels(report),
    ]
    if report.left_out:
        sections.append(
            f"<p>Below are {len(launches)} launches; {report.left_out} different ones are left "
            "out.</p>"
        )
    sections += [
        launch.section(number, followed, max_slices, is_open=number == 1)
        for number, followed in enumerate(launches, 1)
    ]
    sections.append(roofline.roofline(launches))
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    launches = sum(kernel.launches for kernel in report.kernels.values())
    us = sum(kernel.us for kernel in report.kernels.values())
    return (
        f"{plural(launches, 'launch')}, {us:.2f} us. Estimated by the virtual GPU's timing mode, "
        "not measured; intervals say how far off it may be."
    )


def _kernels(report: Report) -> str:
    """The index: all kernels, worst first, each with a link to its longest launch below."""
    kernels = report.by_time
    total = sum(kernel.us for kernel in kernels) or 1.0
    launches = sorted(report.followed, key=lambda followed: -followed.time.us)
    links: dict[str, int] = {}
    for number, followed in enumerate(launches, 1):
        links.setdefault(followed.time.kernel, number)
    columns = (
        Column("us", is_number=True),
        Column("interval", is_number=True),
        Column("share", is_number=True),
        Column("launches", is_number=True),
        Column("kernel"),
        Column("GPU model"),
        Column("bound"),
        Column("its waves wait for"),
    )
    rows = [_kernel_cells(k, k.us / total, links.get(k.name)) for k in kernels]
    return f'<h3 id="kernels">Kernels</h3>\n{table(columns, rows)}'


def _kernel_cells(k: Kernel, fraction: float, link: int | None) -> Sequence[str]:
    name = escape(readable(k.name))
    return (
        f"{k.us:.2f}",
        f"{k.low:.2f} to {k.high:.2f}",
        f"{fraction:.1%}",
        str(k.launches),
        name if link is None else f'<a href="#launch{link}">{name}</a>',
        escape(k.gpu_model),
        k.bounds.most_common(1)[0][0] if k.bounds else "-",
        _reasons(k.stalls),
    )


def _reasons(stalls: Counter[str]) -> str:
    total = stalls.total() or 1
    return ", ".join(f"{name} {clk / total:.0%}" for name, clk in stalls.most_common(3))


def _failures(report: Report) -> list[str]:
    texts = [
        *(
            f"{f.kind}: {f.kernel} at {f.offset:#x} ({f.instruction}): {f.detail}"
            for f in report.findings
        ),
        *report.failed,
    ]
    if not texts:
        return []
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return [f"<h3>Found and failed</h3>\n<ul>{items}</ul>"]
