"""Tuned configs of batched_gemm_a16w8_blockscale: configs/batched_gemm_a16w8_blockscale.csv.

A row is one shape on one architecture: the route and config it takes, and figures for people, in
microseconds: `us` of that config, `spread` of its samples (decile to decile, a share of us),
`bmm_us` of torch.bmm on weights dequantised beforehand, `published_us` of others. `origin` says
what the row is worth: measured (`source`: device, versions, date) or estimated (by what).

Rows of RFOPS_CONFIGS' file of the same name replace shipped ones of their key.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from rfops.dispatch.routing import parse_config
from rfops.jit import ConfigError, paths, settings
from rfops.jit.arch import ROWS

from .a16w8_routes import ROUTES, Config, Shape, family, refuses

FILE = "batched_gemm_a16w8_blockscale.csv"
KEY = ("arch", "b", "m", "n", "k")
FIGURES = ("us", "spread", "bmm_us", "published_us")
COLUMNS = (*KEY, "route", "config", *FIGURES, "origin", "source")
ORIGINS = ("measured", "estimated")


@dataclass(frozen=True)
class TableRow:
    arch: str
    shape: Shape
    route: str
    config: Config
    figures: tuple[tuple[str, float], ...]
    origin: str
    source: str
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.file.name}:{self.line}"

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.shape._asdict().items())
        figures = "".join(f", {name} {value:g}" for name, value in self.figures)
        return f"{self.place}: {self.arch} {sizes}{figures}; {self.origin}, {self.source}"


class Table:
    """Rows by architecture; one object for the files' sake, so that it can be a key."""

    def __init__(self, rows: dict[str, tuple[TableRow, ...]]) -> None:
        self._rows = rows

    def get(self, arch: str) -> tuple[TableRow, ...]:
        return self._rows.get(arch, ())


def find(shape: Shape, x_dtype: torch.dtype, arch: str) -> tuple[TableRow, str] | None:
    """The row that a shape takes, and the rule: `exact row`, or `nearest row`, whose m is the next
    one up below 2 M and whose other sizes are less than a factor of 2 away. Raises ConfigError."""
    rows = _rows_near(table(), family(arch) or arch, shape.b, shape.n, shape.k)
    near = [
        row for row in rows
        if shape.m <= row.shape.m < 2 * shape.m
        and refuses(shape, x_dtype, row.config, arch) is None
    ]  # fmt: skip
    if not near:
        return None
    row = min(near, key=lambda row: (row.shape != shape, _distance(row.shape, shape)))
    return row, "exact row" if row.shape == shape else "nearest row"


@functools.lru_cache(maxsize=1024)
def _rows_near(tables: Table, arch: str, b: int, n: int, k: int) -> tuple[TableRow, ...]:
    """Those of any M."""
    return tuple(row for row in tables.get(arch) if _is_near(row.shape, b, n, k))


def _is_near(row: Shape, b: int, n: int, k: int) -> bool:
    return all(one < 2 * two and two < 2 * one for one, two in ((row.b, b), (row.n, n), (row.k, k)))


def _distance(row: Shape, shape: Shape) -> float:
    return sum(abs(math.log2(a / c)) for a, c in zip(row, shape, strict=True))


def table() -> Table:
    """The shipped rows and the user's. Raises ConfigError that names file, line and column."""
    own = settings.path("RFOPS_CONFIGS")
    return _table(paths.CONFIGS / FILE, own / FILE if own is not None else None)


@functools.cache
def _table(shipped: Path, own: Path | None) -> Table:
    rows = {(row.arch, row.shape): row for row in read(shipped)}
    if own is not None and own.is_file():
        rows |= {(row.arch, row.shape): row for row in read(own)}
    return Table({arch: tuple(r for r in rows.values() if r.arch == arch) for arch in ROWS})


def read(file: Path) -> list[TableRow]:
    """A file's rows in order. Raises ConfigError."""
    rows: list[TableRow] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ConfigError(f"{file}, line 1: columns must be {','.join(COLUMNS)}")
            rows += (_row(file, reader.line_num, cells) for cells in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        line = rows[-1].line if rows else 0
        raise ConfigError(f"{file}, after line {line}: cannot be read: {error}") from error
    seen: dict[tuple[str, Shape], TableRow] = {}
    for row in rows:
        other = seen.setdefault((row.arch, row.shape), row)
        if other is not row:
            raise ConfigError(f"{file}, line {row.line}: same key as line {other.line}")
    return rows


def _row(file: Path, line: int, cells: dict[str, str]) -> TableRow:
    def wrong(column: str, expected: str) -> NoReturn:
        raise ConfigError(
            f"{file}, line {line}, column {column}: expected {expected}, got {cells[column]!r:.200}"
        )

    if None in cells or None in cells.values():
        raise ConfigError(f"{file}, line {line}: expected {len(COLUMNS)} columns")
    for column, known in (("arch", ROWS), ("route", ROUTES), ("origin", ORIGINS)):
        if cells[column] not in known:
            wrong(column, f"one of {', '.join(known)}")
    for column in KEY[1:]:
        if not re.fullmatch(r"0*[1-9][0-9]{0,17}", cells[column]):
            wrong(column, "a positive integer")
    figures = []
    for column in FIGURES:
        try:
            figures += [(column, float(cells[column]))] if cells[column] else []
        except ValueError:
            wrong(column, "a number or nothing")
        if figures and not 0 <= figures[-1][1] < math.inf:
            wrong(column, "a finite number, not negative")
    try:
        config = parse_config(ROUTES[cells["route"]], cells["config"])
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{file}, line {line}, column config: {error}") from error
    shape = Shape(*(int(cells[column]) for column in KEY[1:]))
    return TableRow(
        cells["arch"], shape, cells["route"], config, tuple(figures), cells["origin"],
        cells["source"], file, line,
    )  # fmt: skip
