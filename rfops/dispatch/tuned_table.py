"""Tuned tables: configs/<name>.csv, one format for all, of an op or of a kernel's own defaults.

    arch, cu_num, a column for each size of the key, kernel, config, us, figures, origin, source

A call takes the row's `kernel` in the variant `config` (empty: the kernel's own choice); a row
without a kernel shows what others have published, and decides nothing. Figures are for people: `us`
of that kernel, and others as `triton_us=26.1 speedup=3.34`. `origin` says what they are worth:
measured (source: the device and versions), published (source: where), estimated (source: by what).

The key is declared with the table, "M+ N K E>= a_div?": what must hold between a row's size and
the call's. Of the rows that hold, and whose kernel takes the call, the nearest is taken: of this
architecture (else of the one that serves it), of the nearest cu_num, with the fewest empty cells,
and with the least sum of |log2(row / call)|. A file may lack a column whose cells may be empty: its
rows hold for any size of it, as those of files that were written before the key had it.

Two rows of one key that decide differently are a conflict. The better origin holds (measured, then
estimated, then published), then the later line; it is logged once, `rfops doctor` lists it, and no
file is ever written back. A row of the user's own file (RFOPS_CONFIGS) replaces the shipped one of
its key, whatever the origins, and with an empty cell under `?` those of any size of it; a call that
the user's row does not take gets the shipped row. A file that cannot be read is a ConfigError that
names file, line and column, raised when the first call needs the table, not by an import.
"""

from __future__ import annotations

import csv
import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rfops.jit import ConfigError, log, paths, settings
from rfops.jit.arch import ARCH_SPECS

VALUES = "kernel", "config", "us", "figures", "origin", "source"  # columns after the key
ORIGINS = ("measured", "estimated", "published")  # best first
Sizes = tuple[int | None, ...]  # a row's; None: any
# What must hold between a row's size and the call's, by the sign behind a name of the key; the last
# three take an empty cell for any size.
RULES: Mapping[str, Callable[[Any, int], bool]] = {
    "": lambda row, size: row == size,
    "+": lambda row, size: size <= row < 2 * size,  # tiles for its rows serve those, not half
    "~": lambda row, size: row < 2 * size and size < 2 * row,
    "?": lambda row, size: row is None or row == size,
    "<=": lambda row, size: row is None or size <= row,
    ">=": lambda row, size: row is None or size >= row,
}
OPTIONAL = frozenset(("?", "<=", ">="))  # rules of columns whose cells may be empty
_ARCH = re.compile(r"gfx\d\w+|sm_\d+")
_OLDEST_NVIDIA = 89  # e4m3 is a type of Triton's from 8.9 on
_MOST_GROUPS = 1024


def serving(arch: str) -> str | None:
    """The architecture whose facts and rows serve one that has none of its own: itself, sm_90 for
    NVIDIA's others; None if no kernel runs there."""
    if arch in ARCH_SPECS:
        return arch
    number = arch.removeprefix("sm_")
    is_known = arch.startswith("sm_") and number.isdigit() and int(number) >= _OLDEST_NVIDIA
    return "sm_90" if is_known else None


class Query(NamedTuple):
    """What a call asks a table."""

    op: str
    arch: str
    cu_num: int
    sizes: tuple[tuple[str, int], ...]  # in the order of the key


@dataclass(frozen=True)
class Row:
    """A line of a tuned table: for an architecture, a number of CUs and sizes, the kernel and its
    config; with figures, origin and place."""

    arch: str
    cu_num: int
    names: tuple[str, ...]  # of the sizes
    sizes: Sizes
    kernel: str
    config: str
    figures: tuple[tuple[str, float], ...]  # `us` first, where it is known
    origin: str
    source: str
    file: Path
    line: int

    @property
    def key(self) -> tuple[object, ...]:
        """Architecture, number of CUs and sizes, which identify the row in its table."""
        return self.arch, self.cu_num, self.sizes

    @property
    def decision(self) -> tuple[str, str]:
        """The kernel and its config as text."""
        return self.kernel, self.config

    @property
    def shape(self) -> str:
        """The sizes as text, "M=16 N=2304"; without those that any value matches."""
        pairs = zip(self.names, self.sizes, strict=True)
        return " ".join(f"{name}={value}" for name, value in pairs if value is not None)

    @property
    def place(self) -> str:
        """File and line, as messages cite the row."""
        return f"{self.file.name}:{self.line}"

    @property
    def setting(self) -> str:
        """Its kernel, with the config that it names."""
        return f"{self.kernel} {self.config}".rstrip()

    @property
    def is_own(self) -> bool:
        """Whether it is of the user's own table."""
        return self.file.parent != paths.CONFIGS

    def __str__(self) -> str:
        figures = "".join(f", {name} {value:g}" for name, value in self.figures)
        return (
            f"{self.place}: {self.arch} cu_num={self.cu_num} {self.shape}: {self.kernel} "
            f"{self.config or '(its own choice)'}{figures}; {self.origin}, {self.source}"
        )


class Match(NamedTuple):
    """The row that a call gets, and by which rule."""

    row: Row
    rule: str  # exact row, nearest row, nearest cu_num


@dataclass(frozen=True)
class Tuned:
    """A table that an op or a kernel has declared."""

    name: str
    names: tuple[str, ...]  # of the key, as calls know them
    rules: tuple[str, ...]
    kernels: tuple[str, ...]  # that a row may name; none: any

    @functools.cached_property
    def sizes(self) -> tuple[str, ...]:
        """The key's columns."""
        return tuple([name.lower() for name in self.names])

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return "arch", "cu_num", *self.sizes

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns in the order of the file."""
        return *self.keys, *VALUES

    @functools.cached_property
    def optional_columns(self) -> frozenset[str]:
        """Columns that a file may lack."""
        pairs = zip(self.sizes, self.rules, strict=True)
        return frozenset(column for column, rule in pairs if rule in OPTIONAL)

    def has_header(self, header: Collection[str]) -> bool:
        """Whether a file with these columns is of this table."""
        columns = {*self.columns}
        return columns - self.optional_columns <= {*header} <= columns

    def exact(self, sizes: Sizes) -> Sizes:
        """Those that must be equal."""
        return tuple([size for size, rule in zip(sizes, self.rules, strict=True) if not rule])

    def is_exact(self, row: Sizes, sizes: tuple[int, ...]) -> bool:
        """Whether the row is of this very shape, not of one near it."""
        pairs = zip(self.rules, row, sizes, strict=True)
        return all(row_size == size for rule, row_size, size in pairs if rule in ("+", "~"))

    def load(self) -> Table:
        """The table with the user's rows on top; read once. Raises ConfigError."""
        return _load(self.name, settings.path("RFOPS_CONFIGS"))

    def published(self, arch: str, sizes: tuple[int, ...]) -> Row | None:
        """Others' figures for these sizes that came with rfops, also if a row replaces them."""
        for row in _published(self.name):
            pairs = zip(self.rules, row.sizes, sizes, strict=True)
            if row.arch == arch and all(
                rule == ">=" or row_size in (None, s) for rule, row_size, s in pairs
            ):
                return row
        return None


TABLES: dict[str, Tuned] = {}  # all that were declared, by name


def declare(name: str, key: str, kernels: tuple[str, ...]) -> Tuned:
    """`key` names sizes with a rule's sign behind each: "M+ N K E>= a_div?"."""
    pairs = [re.fullmatch(r"(\w+)(\W*)", column) for column in key.split()]
    assert all(p and p[2] in RULES for p in pairs), f"{name}: {key!r} is no key"
    names, rules = zip(*(p.groups() for p in pairs if p), strict=True)
    TABLES[name] = Tuned(name, names, rules, kernels)
    return TABLES[name]


class Table:
    """A table's rows after conflicts; `conflicts` says how each was resolved."""

    def __init__(self, tuned: Tuned, files: Mapping[Path, list[Row]]) -> None:
        rows_by_key: dict[tuple[object, ...], Row] = {}
        replaced: list[Row] = []  # by a row of the user's, each for the calls that it does not take
        conflicts: list[str] = []
        for rows in files.values():  # the shipped file, then the user's
            file_rows: dict[tuple[object, ...], Row] = {}
            for row in rows:
                if row.kernel:
                    same_key = file_rows.get(row.key)
                    file_rows[row.key] = (
                        row if same_key is None else _resolve(same_key, row, conflicts)
                    )
            replaced += [rows_by_key[key] for key in file_rows if key in rows_by_key]
            rows_by_key.update(file_rows)
        self.tuned, self.rows, self.conflicts = tuned, tuple(rows_by_key.values()), tuple(conflicts)
        self._index: dict[tuple[str, Sizes], list[Row]] = {}
        for row in (*self.rows, *replaced):
            self._index.setdefault((row.arch, tuned.exact(row.sizes)), []).append(row)
        # Of a chip and all sizes but M, which changes from call to call: the rows that hold.
        self._groups: dict[tuple[object, ...], list[Row]] = {}
        signs = [index for index, rule in enumerate(tuned.rules) if rule == "+"]
        self._m = signs[0] if signs else 0

    def exact_sizes(self, arch: str) -> frozenset[Sizes]:
        """What must be equal in some row that an architecture may take."""
        return frozenset(
            exact for row_arch, exact in self._index if row_arch in (arch, serving(arch))
        )

    def find(
        self,
        arch: str,
        cu_num: int,
        sizes: tuple[int, ...],
        takes: Callable[[Row], bool] = lambda _row: True,
    ) -> Match | None:
        """The nearest row that holds and that `takes` the call, asked of few."""
        m = sizes[self._m]
        holds = RULES[self.tuned.rules[self._m]]
        matching = [row for row in self._group(arch, sizes) if holds(row.sizes[self._m], m)]

        def distance(row: Row) -> tuple[object, ...]:
            cus = abs(row.cu_num - cu_num), row.cu_num
            return row.arch != arch, *cus, *self._distance(row, sizes)

        for row in sorted(matching, key=distance) if len(matching) > 1 else matching:
            if takes(row):
                is_own = row.cu_num == cu_num
                is_exact = self.tuned.is_exact(row.sizes, sizes)
                rule = (
                    "nearest cu_num" if not is_own else "exact row" if is_exact else "nearest row"
                )
                return Match(row, rule)
        return None

    def _group(self, arch: str, sizes: tuple[int, ...]) -> list[Row]:
        """The rows that hold for these sizes with whatever M."""
        group_key = arch, *sizes[: self._m], *sizes[self._m + 1 :]
        rows = self._groups.get(group_key)
        if rows is None:
            exact, rows = self.tuned.exact(sizes), []
            for name in dict.fromkeys((arch, serving(arch) or arch)):
                rows += [r for r in self._index.get((name, exact), ()) if self._holds(r, sizes)]
            if len(self._groups) >= _MOST_GROUPS:
                self._groups.clear()
            self._groups[group_key] = rows
        return rows

    def _holds(self, row: Row, sizes: tuple[int, ...]) -> bool:
        triples = zip(self.tuned.rules, row.sizes, sizes, strict=True)
        return all(
            RULES[r](row_size, s)
            for index, (r, row_size, s) in enumerate(triples)
            if index != self._m
        )

    def _distance(self, row: Row, sizes: tuple[int, ...]) -> tuple[object, ...]:
        """Empty cells, which say less, then how far the sizes are. A user's row says with an empty
        cell under `?` that it holds for any size of it: shipped rows of one come after it."""
        triples = list(zip(self.tuned.rules, row.sizes, sizes, strict=True))
        empty = [rule for rule, row_size, _ in triples if row_size is None]
        num_vague = sum(rule != "?" for rule in empty) if row.is_own else len(empty)
        distances = (
            abs(math.log2(o / max(s, 1))) for r, o, s in triples if o and r not in ("", "?")
        )
        return num_vague, sum(distances), not row.is_own, len(empty)

    def origins(self) -> Counter[str]:
        """Return how many rows each origin has."""
        return Counter(row.origin for row in self.rows)


def _resolve(old: Row, new: Row, conflicts: list[str]) -> Row:
    """The row that holds of two of one key, `new` being the later line."""
    is_new_better = ORIGINS.index(new.origin) <= ORIGINS.index(old.origin)
    winner, dropped = (new, old) if is_new_better else (old, new)
    if winner.decision != dropped.decision:
        rule = "the later line" if winner.origin == dropped.origin else "the better origin"
        conflicts.append(
            f"{winner.file}: line {dropped.line} ({dropped.origin}) and line {winner.line} "
            f"({winner.origin}) decide differently for {winner.shape}; "
            f"line {winner.line} holds, by {rule}"
        )
    return winner


@functools.lru_cache(maxsize=64)
def _load(name: str, overlay: Path | None) -> Table:
    if overlay is not None and not overlay.is_dir():
        raise ConfigError(f"RFOPS_CONFIGS={overlay}: expected a folder of tuned tables")
    folders = [paths.CONFIGS] if overlay is None else [paths.CONFIGS, overlay]
    files = [folder / f"{name}.csv" for folder in folders]
    table = Table(TABLES[name], {f: list(read(f, name)) for f in files if f.is_file()})
    for conflict in table.conflicts:
        log.get().warning("tuned table: %s", conflict)
    return table


@functools.cache
def _published(name: str) -> tuple[Row, ...]:
    file = paths.CONFIGS / f"{name}.csv"
    rows = read(file, name) if file.is_file() else ()
    return tuple(row for row in rows if row.origin == "published" and row.figures)


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

    def integer(self, column: str, minimum: int = 1) -> int:
        text = self.cells[column]
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < minimum:
            self.fail(column, f"a whole number, {minimum} or more")
        return int(text)

    def size(self, column: str, rule: str) -> int | None:
        if not self.cells.get(column) and rule in OPTIONAL:
            return None
        return self.integer(column, minimum=0 if rule == "?" else 1)

    def figures(self) -> Iterator[tuple[str, float]]:
        pairs = [("us", "us", self.cells["us"])] if self.cells["us"] else []
        pairs += [
            ("figures", *pair_text.partition("=")[::2])
            for pair_text in self.cells["figures"].split()
        ]
        for column, name, text in pairs:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not name.isidentifier() or not 0 <= value < math.inf:
                format_hint = "" if column == "us" else ", each as name=value"
                self.fail(column, f"numbers of 0 or more{format_hint}, or nothing")
            yield name, value


def read(file: Path, name: str) -> Iterator[Row]:
    """The rows of one file of that table, every cell checked. Raises ConfigError."""
    tuned = TABLES[name]
    for line in _lines(file, tuned):
        if not _ARCH.fullmatch(line.cells["arch"]):
            line.fail("arch", "gfx950, gfx942, sm_90 or the like")
        if not line.cells["source"]:
            line.fail("source", "where the row comes from")
        sizes = [line.size(*pair) for pair in zip(tuned.sizes, tuned.rules, strict=True)]
        origin = line.one_of("origin", ORIGINS)
        kernel, config = line.cells["kernel"], line.cells["config"].strip()
        if tuned.kernels and (kernel or config or origin != "published"):
            line.one_of("kernel", tuned.kernels)
        yield Row(
            line.cells["arch"],
            line.integer("cu_num"),
            tuned.sizes,
            tuple(sizes),
            kernel,
            config,
            tuple(line.figures()),
            origin,
            line.cells["source"],
            file,
            line.number,
        )


def _lines(file: Path, tuned: Tuned) -> Iterator[_Line]:
    number = 1
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            if not tuned.has_header(header) or len({*header}) != len(header):
                columns = {*tuned.columns}
                required = columns - tuned.optional_columns
                differing = sorted((required - {*header}) | ({*header} - columns))
                differing += [name for name, count in Counter(header).items() if count > 1]
                column = differing[0] if differing else "header"
                header_line = _Line(file, 1, {column: ",".join(header)[:80]})
                header_line.fail(column, f"the header {','.join(tuned.columns)}")
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


def getter(indices: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """What picks these of a shape's sizes."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    return lambda sizes: tuple([sizes[index] for index in indices])
