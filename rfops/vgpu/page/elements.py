"""Pieces of HTML that sections of the page share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

COLORS = {
    "vmcnt": "#d1495b",
    "lgkmcnt": "#e0a030",
    "mfma_dependency": "#9b6bd3",
    "barrier": "#4a7fa5",
    "dependency": "#5b8ff9",
    "valu_unit": "#2a9d8f",
    "mfma_unit": "#7a4fb0",
    "lds_unit": "#f08a4b",
    "salu_unit": "#84a94a",
    "vmem_queue": "#b5379e",
    "sleep": "#a0a7b4",
    "branch": "#3fa57b",
    "instruction_cache": "#9c6644",
    "issue": "#8390a6",
    "flag": "#c97b84",
    "valu": "#2a9d8f",
    "mfma": "#7a4fb0",
    "lds": "#f08a4b",
    "vmem": "#b5379e",
    "salu": "#84a94a",
    "smem": "#e0a030",
    "wait": "#5b8ff9",
}
_NUMBER, _SORTABLE = ' class="n"', ' data-sort=""'


class Column(NamedTuple):
    name: str
    is_number: bool = False
    is_sortable: bool = True


def color(name: str) -> str:
    return COLORS.get(name, "#8390a6")


def swatch(name: str) -> str:
    return f'<span class="swatch" style="background: {color(name)}"></span>'


def bar(fraction: float) -> str:
    """Style of a cell that is filled from the left."""
    stop = f"{100 * min(max(fraction, 0), 1):.2f}%"
    return f"background-image:linear-gradient(to right,var(--bar) {stop},transparent {stop})"


def meter(fraction: float | None) -> str:
    """A thin bar; empty where the share is not known."""
    if fraction is None:
        return ""
    return f'<div class="meter"><i style="width: {100 * min(max(fraction, 0), 1):.1f}%"></i></div>'


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Of cells that are HTML; a cell that begins with "<td" is taken as it is."""
    body = "\n".join(f"<tr>{_cells(columns, row)}</tr>" for row in rows)
    inner = f"{heading(columns)}<tbody>\n{body}\n</tbody>"
    return f'<div class="scroll {kind}"><table>{inner}</table></div>'


def heading(columns: Sequence[Column]) -> str:
    cells = (
        f"<th{_NUMBER * c.is_number}{_SORTABLE * c.is_sortable}>{c.name}</th>" for c in columns
    )
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def _cells(columns: Sequence[Column], row: Sequence[str]) -> str:
    return "".join(
        cell if cell.startswith("<td") else f"<td{_NUMBER * c.is_number}>{cell}</td>"
        for c, cell in zip(columns, row, strict=True)
    )
