"""Tuned tables: configs/<family>.csv, one row a shape, one header for all rows of a family.

A row's key is op, arch, cu_num and the op's sizes; a size the op has not stays empty. What it says:
`use_hip` 1 takes the HIP kernel `backend`, 0 takes Triton, in `config` (empty: the kernel's own
heuristic). Figures are for people: `us` of the HIP kernel, `triton_us`, `speedup` of HIP over
Triton. `origin` says what they are worth: measured (source: the device and versions), published
(source: where) or estimated (source: by what).

Two rows of one key that decide differently are a conflict. The better origin holds (measured, then
estimated, then published), then the later line; it is logged once, `rfops doctor` lists it, and no
file is ever written back. A row of the user's own file (RFOPS_CONFIGS) replaces the shipped one of
its key, whatever the origins. A file that cannot be read is a ConfigError that names file, line and
column, raised when the first call needs the table, not by an import.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from rfops.jit import ConfigError, log, paths, settings

ORIGINS = ("measured", "estimated", "published")  # best first
KEY_COLUMNS = ("op", "arch", "cu_num", "m", "n", "k", "e", "a_div", "has_weight")
FIGURES = ("us", "triton_us", "speedup")
COLUMNS = (*KEY_COLUMNS, "backend", "config", "use_hip", *FIGURES, "origin", "source")
_ARCH = re.compile(r"gfx\d\w+|sm_\d+")


@dataclass(frozen=True)
class Key:
    """How rows of one op are found by its sizes: `m` by its bucket, `exact` ones equal, `any_of`
    equal or empty in the row (any), `at_least` not above the call's (empty: any)."""

    backends: tuple[str, ...]  # HIP kernels a row may name, besides triton
    exact: tuple[str, ...] = ("n", "k")
    any_of: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("m", *self.exact, *self.any_of, *self.at_least)


FAMILIES: dict[str, Mapping[str, Key]] = {
    "mxfp8": {
        "gemm_mxfp8": Key(("gemv", "mfma")),
        # m is the number of routed rows, e the least number of experts the row holds for
        "grouped_gemm_mxfp8": Key(("moe",), any_of=("a_div", "has_weight"), at_least=("e",)),
    }
}
FAMILY_OF = {op: family for family, ops in FAMILIES.items() for op in ops}


def declare(op: str, names: Sequence[str], backends: Sequence[str]) -> None:
    """A table of its own, <op>.csv, for an op that no family has; of its sizes M comes first."""
    if op not in FAMILY_OF:
        assert names[0] == "m", f"{op}: the first size of a table is M, not {names[0]}"
        FAMILIES[op] = {op: Key(tuple(backends), exact=tuple(names[1:]))}
        FAMILY_OF[op] = op


def key_columns(family: str) -> tuple[str, ...]:
    """By which a row of the family is found."""
    names = dict.fromkeys(name for key in FAMILIES[family].values() for name in key.sizes)
    if names.keys() == set(KEY_COLUMNS[3:]):
        return KEY_COLUMNS
    return (*KEY_COLUMNS[:3], *names)


def columns(family: str) -> tuple[str, ...]:
    return (*key_columns(family), *COLUMNS[len(KEY_COLUMNS) :])


def names_of(op: str) -> tuple[str, ...]:
    """The sizes of an op's tuned rows."""
    family = FAMILY_OF[op]
    return tuple(name for name in key_columns(family) if name in FAMILIES[family][op].sizes)


class Query(NamedTuple):
    """What a call asks the table."""

    op: str
    arch: str
    cu_num: int
    sizes: tuple[tuple[str, int], ...]  # in the order of KEY_COLUMNS

    @classmethod
    def of(cls, op: str, arch: str, cu_num: int, **sizes: int) -> Query:
        return cls(op, arch, cu_num, tuple((c, int(sizes[c])) for c in names_of(op) if c in sizes))

    def __str__(self) -> str:
        shape = " ".join(f"{name}={value}" for name, value in self.sizes)
        return f"{self.op} {shape} on {self.arch} with {self.cu_num} CUs"


@dataclass(frozen=True)
class Row:
    op: str
    arch: str
    cu_num: int
    sizes: tuple[tuple[str, int | None], ...]
    backend: str
    config: str
    use_hip: bool
    figures: tuple[tuple[str, float], ...]
    origin: str
    source: str
    file: Path
    line: int

    @property
    def key(self) -> tuple[object, ...]:
        return self.op, self.arch, self.cu_num, self.sizes

    @property
    def m(self) -> int:
        return int(dict(self.sizes)["m"] or 0)

    @property
    def decision(self) -> tuple[object, ...]:
        return self.backend, self.config, self.use_hip

    @property
    def place(self) -> str:
        return f"{self.file.name}:{self.line}"

    def __str__(self) -> str:
        shape = " ".join(f"{name}={value}" for name, value in self.sizes if value is not None)
        figures = ", ".join(f"{name} {value:g}" for name, value in self.figures)
        choice = f"{self.backend} {self.config or '(its heuristic)'}, use_hip {self.use_hip:d}"
        return (
            f"{self.place}: {self.arch} cu_num={self.cu_num} {shape}: {choice}"
            f"{', ' + figures if figures else ''}; {self.origin}, {self.source}"
        )


class Match(NamedTuple):
    """The row that a query gets, and by which rule."""

    row: Row
    rule: str  # exact row, nearest M bucket, nearest cu_num


class Table:
    """The rows of a family after conflicts, indexed; `conflicts` says how each was resolved."""

    def __init__(self, files: Mapping[Path, list[Row]], keys: Mapping[str, Key]) -> None:
        kept: dict[tuple[object, ...], Row] = {}
        conflicts: list[str] = []
        for rows in files.values():  # the shipped file, then the user's
            own: dict[tuple[object, ...], Row] = {}
            for row in rows:
                other = own.get(row.key)
                own[row.key] = row if other is None else _resolve(other, row, conflicts)
            kept.update(own)
        self.rows = tuple(kept.values())
        self.conflicts = tuple(conflicts)
        self._keys = keys
        self._index: dict[tuple[object, ...], list[Row]] = {}
        for row in self.rows:
            self._index.setdefault(self._place(row.op, row.arch, dict(row.sizes)), []).append(row)

    def _place(self, op: str, arch: str, sizes: Mapping[str, int | None]) -> tuple[object, ...]:
        return op, arch, *map(sizes.__getitem__, self._keys[op].exact)

    def exact_sizes(self, op: str, arch: str) -> frozenset[tuple[object, ...]]:
        """The exact sizes that an op has rows for on an architecture, whatever its M."""
        return frozenset(place[2:] for place in self._index if place[:2] == (op, arch))

    def find(self, query: Query) -> Match | None:
        """The row whose m is the bucket of the query's, of the nearest cu_num that has one.

        The bucket of M is the least m of a row with M <= m < 2 M: tiles for m rows serve those
        below, but not half of them.
        """
        sizes = dict(query.sizes)
        rows = self._index.get(self._place(query.op, query.arch, sizes))
        if rows is None:
            return None
        m = sizes["m"]
        fits = [r for r in rows if m <= r.m < 2 * m and self._matches(dict(r.sizes), query)]
        if not fits:
            return None
        row = min(fits, key=lambda r: (abs(r.cu_num - query.cu_num), r.cu_num, r.m, _width(r)))
        if row.cu_num != query.cu_num:
            return Match(row, "nearest cu_num")
        return Match(row, "exact row" if row.m == m else "nearest M bucket")

    def _matches(self, row: Mapping[str, int | None], query: Query) -> bool:
        sizes, key = dict(query.sizes), self._keys[query.op]
        return all(row[name] in (None, sizes[name]) for name in key.any_of) and all(
            (row[name] or 0) <= sizes[name] for name in key.at_least
        )

    def origins(self) -> Counter[str]:
        return Counter(row.origin for row in self.rows)


def _width(row: Row) -> tuple[int, int]:
    """Order of rows that fit alike: most sizes given, then most experts."""
    sizes = dict(row.sizes)
    return sum(value is None for value in sizes.values()), -(sizes.get("e") or 0)


def _resolve(old: Row, new: Row, conflicts: list[str]) -> Row:
    """The row that holds of two of one key, `new` being the later line."""
    better = ORIGINS.index(new.origin) <= ORIGINS.index(old.origin)
    held, dropped = (new, old) if better else (old, new)
    if held.decision != dropped.decision:
        rule = "the later line" if held.origin == dropped.origin else "the better origin"
        conflicts.append(
            f"{held.file}: line {dropped.line} ({dropped.origin}) and line {held.line} "
            f"({held.origin}) decide differently for {held.op} {dict(held.sizes)}; "
            f"line {held.line} holds, by {rule}"
        )
    return held


def load(family: str) -> Table:
    """The family's table with the user's rows on top; read once. Raises ConfigError."""
    return _load(family, settings.path("RFOPS_CONFIGS"))


@functools.lru_cache(maxsize=16)
def _load(family: str, overlay: Path | None) -> Table:
    if overlay is not None and not overlay.is_dir():
        raise ConfigError(f"RFOPS_CONFIGS={overlay}: expected a folder of tuned tables")
    folders = [paths.CONFIGS] if overlay is None else [paths.CONFIGS, overlay]
    files = [folder / f"{family}.csv" for folder in folders]
    table = Table({f: list(read(f, family)) for f in files if f.is_file()}, FAMILIES[family])
    for conflict in table.conflicts:
        log.get().warning("tuned table: %s", conflict)
    return table


@functools.cache
def shipped(family: str) -> tuple[Row, ...]:
    """Every row that came with rfops, also those that others replace. Raises ConfigError."""
    file = paths.CONFIGS / f"{family}.csv"
    return tuple(read(file, family)) if file.is_file() else ()


# ---------------------------------------------------------------- one file


class _Line(NamedTuple):
    """A line of a file with its cells by column."""

    file: Path
    number: int
    cells: Mapping[str, str]

    def fail(self, column: str, expected: str) -> NoReturn:
        raise ConfigError(
            f"{self.file}, line {self.number}, column {column:.80}: expected {expected}, "
            f"got {self.cells.get(column, '')!r:.200}"
        )

    def one_of(self, column: str, values: tuple[str, ...]) -> str:
        if self.cells[column] not in values:
            self.fail(column, f"one of {', '.join(values)}")
        return self.cells[column]

    def integer(self, column: str, least: int = 1) -> int:
        text = self.cells[column]
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
            self.fail(column, f"a whole number, {least} or more")
        return int(text)

    def figure(self, column: str) -> float:
        try:
            value = float(self.cells[column])
        except ValueError:
            self.fail(column, "a number or nothing")
        if not 0 < value < float("inf"):
            self.fail(column, "a positive number")
        return value


def read(file: Path, family: str) -> Iterator[Row]:
    """The rows of one file, every cell checked. Raises ConfigError."""
    for line in _lines(file, columns(family)):
        yield _row(line, family)


def _lines(file: Path, columns: tuple[str, ...]) -> Iterator[_Line]:
    number = 1
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            wrong = sorted(set(columns).symmetric_difference(header))
            if wrong or len(header) != len(columns):
                column = wrong[0] if wrong else "header"
                at = _Line(file, 1, {column: ",".join(header)[:80]})
                at.fail(column, f"the header {','.join(columns)}")
            for cells in reader:
                number = reader.line_num
                if not cells:
                    continue  # an empty line, as editors leave at the end
                if len(cells) != len(header):
                    column = header[min(len(cells), len(header) - 1)]
                    expected = f"{len(header)} cells in the line, it has {len(cells)}"
                    _Line(file, number, {}).fail(column, expected)
                yield _Line(file, number, dict(zip(header, cells, strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file}, after line {number}: cannot be read: {error}") from error


def _row(line: _Line, family: str) -> Row:
    op = line.one_of("op", tuple(FAMILIES[family]))
    key = FAMILIES[family][op]
    if not _ARCH.fullmatch(line.cells["arch"]):
        line.fail("arch", "gfx950, gfx942, sm_90 or the like")
    for column in set(key_columns(family)[3:]) - set(key.sizes):
        if line.cells[column]:
            line.fail(column, f"nothing: {op} has no such size")
    if not line.cells["source"]:
        line.fail("source", "where the row comes from")
    return Row(
        op=op,
        arch=line.cells["arch"],
        cu_num=line.integer("cu_num"),
        sizes=tuple((c, _size(line, key, c)) for c in names_of(op)),
        backend=line.one_of("backend", (*key.backends, "triton")),
        config=line.cells["config"].strip(),
        use_hip=_use_hip(line),
        figures=tuple((c, line.figure(c)) for c in FIGURES if line.cells[c]),
        origin=line.one_of("origin", ORIGINS),
        source=line.cells["source"],
        file=line.file,
        line=line.number,
    )


def _size(line: _Line, key: Key, column: str) -> int | None:
    if not line.cells[column] and column in (*key.any_of, *key.at_least):
        return None
    return line.integer(column, least=0 if column == "has_weight" else 1)


def _use_hip(line: _Line) -> bool:
    use_hip = line.one_of("use_hip", ("0", "1")) == "1"
    if use_hip and line.cells["backend"] == "triton":
        line.fail("use_hip", "0 in a row of Triton")
    return use_hip
