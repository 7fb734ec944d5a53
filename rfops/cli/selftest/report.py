"""What `rfops selftest` found: lines as they come, and all of it as text, JSON or a page."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rfops.cli.timing import own
from rfops.vgpu.page import style
from rfops.vgpu.page.elements import Column, table

PASS, FAIL, NOT_HERE = "pass", "FAIL", "not here"
_TIME_COLUMNS = ("op", "shape", "kernel", "measured us", "estimated us", "published us", "source")


@dataclasses.dataclass
class Line:
    """One thing that was tried. `row`: of a time, the row of `rfops bench`."""

    section: str  # runtime, op, engine, time, tuned
    name: str
    state: str
    detail: str
    seconds: float = 0.0
    row: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.state:8}  {self.section:7}  {self.name}: {self.detail}"


@dataclasses.dataclass
class Report:
    """All lines, and what they were found on."""

    device: str
    doctor: dict[str, Any]
    lines: list[Line] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    unfinished: str = ""  # why it ended early

    @property
    def failed(self) -> list[Line]:
        return [line for line in self.lines if line.state == FAIL]

    def summary(self) -> str:
        """Counts, and how far off times are."""
        counts = Counter(line.state for line in self.lines)
        text = f"{counts[PASS]} passed, {counts[FAIL]} FAILED, {counts[NOT_HERE]} not here"
        return f"{text}; {self.seconds:.0f} s" + (f"; {self.unfinished}" * bool(self.unfinished))

    def times(self) -> list[dict[str, Any]]:
        """A row for each op and shape that was timed: measured, estimated and published us."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for line in self.lines:
            if line.row.get("us"):
                key = line.row["op"], line.row["shape"]
                row = rows.setdefault(key, dict.fromkeys(_TIME_COLUMNS, ""))
                row |= {name: line.row.get(name, "") for name in ("op", "shape", "source")}
                row["published us"] = line.row.get("published us", "")
                row[f"{line.row['kind']} us"] = line.row["us"]
                if line.row["kind"] == "measured" or not row["kernel"]:
                    row["kernel"] = line.row["kernel"]
        return list(rows.values())

    def ratios(self) -> list[str]:
        """Of times of the same calls: geometric means by pairs of their origins."""
        texts = []
        for numerator, denominator in (("measured", "estimated"), ("measured", "published")):
            pairs = [(row[f"{numerator} us"], row[f"{denominator} us"]) for row in self.times()]
            values = [float(a) / float(b) for a, b in pairs if a and b]
            if values:
                mean = geometric_mean(values)
                texts.append(
                    f"{numerator} over {denominator}: {mean:.2f} (geometric mean of {len(values)})"
                )
        return texts

    def text(self) -> str:
        """What is printed at the end."""
        sections = [f"# {self.device}", *map(str, self.lines)]
        return "\n".join([*sections, *self.conclusion()]) + "\n"

    def conclusion(self) -> list[str]:
        """The times, what failed once more, and the counts."""
        rows = [[_cell(row[name]) for name in _TIME_COLUMNS] for row in self.times()]
        lines = ["", *_columns([_TIME_COLUMNS, *rows]), *self.ratios()] if rows else []
        if self.failed:
            failed = [f"  {line.section} {line.name}: {line.detail}" for line in self.failed]
            lines += ["", "failed:", *failed]
        return [*lines, "", f"rfops selftest: {self.summary()}"]

    def json(self) -> str:
        """All of it."""
        content = dataclasses.asdict(self) | {"summary": self.summary(), "times": self.times()}
        return json.dumps(content, indent=1, default=str) + "\n"

    def csv(self) -> str:
        """Measured times alone, as `rfops bench timing --rows` reads them."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(own.COLUMNS)
        names = ("op", "kernel", "config", "arch", "cu_num", "call", "us")
        for row in (line.row for line in self.lines if line.row.get("kind") == "measured"):
            writer.writerow([row[name] for name in names])
        return stream.getvalue()

    def page(self) -> str:
        """All of it as one page of HTML, without scripts or network."""
        title = "rfops selftest"
        sections = [f"<h1>{title}</h1>", f'<p class="soft">{escape(self.device)}</p>']
        sections.append(f"<p><b>{escape(self.summary())}</b></p>")
        if self.failed:
            sections += ["<h2>Failed</h2>", _lines(self.failed)]
        rows = self.times()
        if rows:
            sections += ["<h2>Times</h2>", *(f"<p>{escape(text)}</p>" for text in self.ratios())]
            cells = [[_cell(row[name]) for name in _TIME_COLUMNS] for row in rows]
            sections.append(_table(_TIME_COLUMNS, cells))
        sections += ["<h2>All lines</h2>", _lines(self.lines)]
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
            + "\n".join(sections)
            + "\n</body>\n</html>\n"
        )

    def write(self, file: Path) -> None:
        """By its suffix: .json, .html, .csv for measured times alone, else text."""
        render = {".json": self.json, ".html": self.page, ".csv": self.csv}.get(
            file.suffix, self.text
        )
        file.write_text(render(), encoding="utf-8")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "-"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _lines(lines: Sequence[Line]) -> str:
    rows = [[o.state, o.section, o.name, o.detail, f"{o.seconds:.1f}"] for o in lines]
    return _table(("", "section", "what", "result", "s"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = [Column(escape(name), is_sortable=False) for name in head]
    return table(columns, [[escape(cell) for cell in row] for row in rows])
