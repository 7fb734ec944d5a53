"""Published rows: reading them from a CSV file, and an even, repeatable sample of them.

A row is one time of one prebuilt kernel: columns op, gpu (gfx942, gfx950), cu, kernel (symbol), co
(path of the code object in the checkout), shape (`M=1 N=1024 K=3072`, for a MoE also words without
a value), splitK, us; `src` (the table it was taken from) may be missing."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = ("op", "gpu", "cu", "kernel", "co", "shape", "splitK", "us")
# The part that has so many compute units. MI350X and MI355X differ in their clock alone.
PARTS = {
    ("gfx942", 304): "MI300X",
    ("gfx942", 80): "MI308X",
    ("gfx942", 228): "MI300A",
    ("gfx950", 256): "MI355X",
}


@dataclass(frozen=True)
class Row:
    """A published time in us of one kernel at one shape, as a row of the user's tables."""

    op: str
    gpu: str
    cu: int
    kernel: str
    co: str
    shape: str
    split_k: int
    us: float
    src: str = ""
    sizes: dict[str, int] = field(default_factory=dict, compare=False)
    words: dict[str, str] = field(default_factory=dict, compare=False)  # `q=per_1x128`, `Silu=`
    doubt: str = ""  # why its time is not one to be held against

    @property
    def gpu_model(self) -> str:
        """The GPU model that the row's GPU and number of CUs stand for."""
        return PARTS[self.gpu, self.cu]

    @property
    def variant(self) -> tuple[str, int, str]:
        """What a kernel's rows have in common: code for one part."""
        return self.gpu, self.cu, self.kernel

    @property
    def problem(self) -> tuple[str, str, int, str]:
        """What rows have in common whose kernels compete."""
        return self.op, self.gpu, self.cu, self.shape

    @property
    def key(self) -> str:
        """Names the row in a JSON file."""
        values = (self.op, self.gpu, self.cu, self.co, self.kernel, self.shape, self.split_k)
        return "|".join(map(str, (*values, self.us, self.src)))


@dataclass
class Rows:
    """What a file holds: rows, what is wrong with lines, and of which kernels there is nothing."""

    rows: list[Row] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)


Parse = Callable[[dict[str, str]], "Row | None"]
Format = tuple[Sequence[str], Parse]  # columns that must be there; None: no such kernel here


def read(file: Path, formats: Sequence[Format]) -> Rows:
    """All lines of a file of one of these formats. Raises ValueError for one of another."""
    rows_read = Rows()
    with file.open(newline="", encoding="utf-8") as stream:
        lines = csv.DictReader(stream)
        names = lines.fieldnames or ()
        parse = next((parse for columns, parse in formats if {*columns} <= {*names}), None)
        if parse is None:
            known_columns = "; or ".join(", ".join(columns) for columns, _ in formats)
            raise ValueError(
                f"--rows {file}: expected a CSV file with columns {known_columns}; "
                f"got {', '.join(names)}"
            )
        for line in lines:
            try:
                row = parse(line)
            except (ValueError, TypeError) as error:  # None where a line is cut short
                rows_read.wrong.append(f"line {lines.line_num}: {error}")
                continue
            if row is None:
                rows_read.unknown[line.get("kernel") or line["bench"]] += 1
            else:
                rows_read.rows.append(row)
    return rows_read


def parse(line: dict[str, str]) -> Row:
    """One line. Raises ValueError."""
    empty = [name for name in COLUMNS if not line.get(name)]
    if empty:
        raise ValueError(f"{', '.join(empty)}: empty")
    sizes, options = sizes_of(line["shape"])
    row = Row(
        line["op"],
        line["gpu"],
        number("cu", line["cu"]),
        line["kernel"],
        line["co"],
        line["shape"],
        number("splitK", line["splitK"]),
        us_of(line["us"]),
        line.get("src") or "",
        sizes,
        options,
    )
    part_of(row.gpu, row.cu)
    return row


def part_of(gpu: str, cu: int) -> str:
    """Raises ValueError where there is none."""
    if (gpu, cu) not in PARTS:
        known_parts = ", ".join(f"{gpu} with {cu}" for gpu, cu in PARTS)
        raise ValueError(f"no part is {gpu} with {cu} compute units; known: {known_parts}")
    return PARTS[gpu, cu]


def sizes_of(shape: str) -> tuple[dict[str, int], dict[str, str]]:
    """Sizes and words of a shape's text."""
    sizes: dict[str, int] = {}
    options: dict[str, str] = {}
    for token in shape.split():
        name, _, value = token.partition("=")
        if value.isdigit():
            sizes[name] = int(value)
        else:
            options[name] = value
    return sizes, options


def number(name: str, text: str) -> int:
    """Return a column's whole number. Raises ValueError."""
    if not text.isdigit():
        raise ValueError(f"{name}: expected a whole number, got {text!r}")
    return int(text)


def us_of(text: str) -> float:
    """Return a column's time in microseconds. Raises ValueError unless it is above 0 and finite."""
    try:
        us = float(text)
    except ValueError:
        us = 0.0
    if not 0 < us < float("inf"):
        raise ValueError(f"us: expected microseconds above 0, got {text!r}")
    return us


def sample(rows: Sequence[Row], limit: int, seed: int) -> list[Row]:
    """At most `limit` rows (0: all), as evenly over the kernels as they have rows: one of each
    before a second of any. The same for the same rows, limit and seed."""
    kernels: dict[tuple[str, int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        kernels.setdefault(row.variant, []).append(row)
    chance = random.Random(seed)
    for kernel_rows in kernels.values():
        chance.shuffle(kernel_rows)
    order = [*kernels.values()]
    chance.shuffle(order)
    rounds = range(max(map(len, order), default=0))
    picked = [
        kernel_rows[round_idx]
        for round_idx in rounds
        for kernel_rows in order
        if round_idx < len(kernel_rows)
    ]
    return picked[:limit] if limit else picked
