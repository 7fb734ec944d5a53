"""Source and annotated code, side by side."""

from __future__ import annotations

import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rfops.vgpu.page.elements import Column, bar, heading
from rfops.vgpu.source import file_of, line_of, locations, own_location
from rfops.vgpu.timed import TimedLaunch
from rfops.vgpu.timed_text import readable, sorted_stalls

NUM_HOT = 5  # instructions that are marked
_CONTEXT = 2  # source lines shown around those with instructions
Location = tuple[str, int]  # file and line


class Line(NamedTuple):
    """A source line that instructions are of, or from which they were inlined."""

    file: str
    number: int
    clk: int = 0  # that waves waited before its own instructions
    inclusive_clk: int = 0  # and before those of what it calls

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).rstrip("\n")


class Site(NamedTuple):
    """A line of the kernel's own file with a line that is inlined there."""

    outer: Line
    inner: Line
    clk: int

    @property
    def location(self) -> str:
        outer, inner = (
            f"{Path(line.file).name}:{line.number}" for line in (self.outer, self.inner)
        )
        return outer if self.outer[:2] == self.inner[:2] else f"{outer} in {inner}"


def row_id(launch: int, offset: int) -> str:
    return f"i{launch}-{offset:x}"


def line_ids(launch: int, lines: Sequence[Line]) -> dict[Location, str]:
    """Of each line an id in the page."""
    return {(line.file, line.number): f"s{launch}-{index}" for index, line in enumerate(lines)}


def with_code(text: str) -> str:
    """`...` as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)


def lines_of(launch: TimedLaunch) -> list[Line]:
    """By file and number; empty without debug lines."""
    own_clk: Counter[Location] = Counter()
    inclusive: Counter[Location] = Counter()
    for row in launch.pcs:
        clk = sum(row["stalls"].values())
        chain = _chain(row, launch.kernel)
        for location in dict.fromkeys(chain):
            inclusive[location] += clk
        if chain:
            own_clk[chain[0]] += clk
    return [
        Line(*location, own_clk[location], inclusive[location]) for location in sorted(inclusive)
    ]


def hottest_sites(launch: TimedLaunch, count: int) -> list[Site]:
    """Where waves wait longest: lines of the kernel's own file, with what is inlined there."""
    clk: Counter[tuple[Location, Location]] = Counter()
    for row in launch.pcs:
        outer = _location(own_location(row, launch.kernel))
        if outer is not None:
            inner = _chain(row, launch.kernel)[0]
            clk[outer, inner] += sum(row["stalls"].values())
    return [
        Site(Line(*outer), Line(*inner), n) for (outer, inner), n in clk.most_common(count) if n
    ]


def _chain(row: dict[str, Any], kernel: str) -> list[Location]:
    """The lines of an instruction, the innermost first."""
    return [p for text in locations(row, kernel) if (p := _location(text)) is not None]


def _location(text: str) -> Location | None:
    return (file_of(text), line_of(text)) if line_of(text) else None


def panes(number: int, launch: TimedLaunch) -> str:
    """The source on the left where it is known, the instructions on the right."""
    lines = lines_of(launch)
    ids = line_ids(number, lines)
    instructions = _instructions(number, launch, ids)
    if not lines:
        return f'<div class="panes alone">{instructions}</div>'
    return f'<div class="panes">{_source(lines, ids)}\n{instructions}</div>'


# ---------------------------------------------------------------- instructions


def _instructions(number: int, launch: TimedLaunch, ids: Mapping[Location, str]) -> str:
    pcs = launch.pcs
    total = sum(sum(row["stalls"].values()) for row in pcs) or 1
    top = sorted(pcs, key=lambda row: -sum(row["stalls"].values()))[:NUM_HOT]
    hot = {row["offset"] for row in top if row["stalls"]}
    rows = "\n".join(
        _instruction(number, launch, row, total, row["offset"] in hot, ids) for row in pcs
    )
    columns = (
        Column("offset", is_number=True),
        Column("issued", is_number=True),
        Column("clk waited", is_number=True),
        Column("share", is_number=True),
        Column("instruction", is_sortable=False),
        Column("for", is_sortable=False),
    )
    return (
        f'<div class="scroll code"><table>{heading(columns)}<tbody>\n{rows}\n</tbody></table></div>'
    )


def _instruction(
    number: int,
    launch: TimedLaunch,
    row: dict[str, Any],
    total: int,
    is_hot: bool,
    ids: Mapping[Location, str],
) -> str:
    clk = sum(row["stalls"].values())
    chain = " ".join(ids[location] for location in dict.fromkeys(_chain(row, launch.kernel)))
    line = f' data-line="{chain}"' if chain else ""
    mark = ' class="hot"' if is_hot else ""
    fraction = (
        f'<td class=n style="{bar(clk / total)}">{clk / total:.1%}</td>' if clk else "<td></td>"
    )
    reasons = ", ".join(f"{name} {n}" for name, n in sorted_stalls(row["stalls"]))
    return (
        f'<tr id="{row_id(number, row["offset"])}"{mark}{line}><td class=n>{row["offset"]:#x}</td>'
        f"<td class=n>{row['issued']}</td><td class=n>{clk or ''}</td>{fraction}"
        f"<td>{escape(readable(row['text']))}</td><td>{escape(reasons)}</td></tr>"
    )


# ---------------------------------------------------------------- source


def _source(lines: list[Line], ids: Mapping[Location, str]) -> str:
    total = sum(line.clk for line in lines) or 1
    by_file: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_file[line.file].append(line)
    hottest_first = sorted(
        by_file.items(), key=lambda item: -max(line.inclusive_clk for line in item[1])
    )
    rows = "\n".join(
        row for file, file_lines in hottest_first for row in _file(file, file_lines, total, ids)
    )
    columns = (
        Column("line", is_number=True, is_sortable=False),
        Column("clk waited", is_number=True, is_sortable=False),
        Column("with calls", is_number=True, is_sortable=False),
        Column("source", is_sortable=False),
    )
    return (
        f'<div class="scroll code source"><table>{heading(columns)}<tbody>\n{rows}\n'
        "</tbody></table></div>"
    )


def _file(file: str, lines: list[Line], total: int, ids: Mapping[Location, str]) -> Iterator[str]:
    yield f'<tr class="file"><td colspan="4">{escape(file)}</td></tr>'
    by_number = {line.number: line for line in lines}
    previous = 0
    for n in _shown(by_number):
        if previous and n > previous + 1:
            yield '<tr class="file"><td colspan="4">...</td></tr>'
        previous = n
        text = escape(linecache.getline(file, n).rstrip("\n"))
        line = by_number.get(n)
        if line is None:
            yield f"<tr><td class=n>{n}</td><td></td><td></td><td>{text}</td></tr>"
            continue
        fraction = line.inclusive_clk / total
        percent = f"{fraction:.1%}" if line.inclusive_clk else ""
        yield (
            f'<tr id="{ids[file, n]}"><td class=n>{n}</td><td class=n>{line.clk or ""}'
            f'</td><td class=n style="{bar(fraction)}">{percent}</td><td>{text}</td></tr>'
        )


def _shown(numbers: Iterable[int]) -> list[int]:
    """Lines with instructions, and those around them."""
    shown = {m for n in numbers for m in range(n - _CONTEXT, n + _CONTEXT + 1) if m > 0}
    return sorted(shown)
