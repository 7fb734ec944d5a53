"""Tiles of the MX-FP8 Triton kernels: configs/mxfp8_triton.csv, read once.

The first row of an op and architecture whose m_max, n_max and k_max hold (empty: any) gives the
tile. `fill` is how many programs a compute unit should have: with fewer tiles than that, K is split
(dense only; 0 never splits). `origin` says where a row's figures come from.
"""

from __future__ import annotations

import contextlib
import csv
import re
from dataclasses import dataclass, field, replace
from functools import cache

from rfops.dispatch.guards import check_config_ints
from rfops.jit import ConfigError, paths
from rfops.jit.arch import ROWS
from rfops.quantization.mxfp8 import BLOCK

TABLE = paths.CONFIGS / "mxfp8_triton.csv"
OPS = ("dense", "grouped")
METHODS = ("scaled", "blocks", "exact", "expand")
KEY = ("op", "arch", "m_max", "n_max", "k_max")
NUMBERS = ("block_m", "block_n", "block_k", "group_m", "warps", "stages")
AMD_NUMBERS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
COLUMNS = (*KEY, "method", *NUMBERS, *AMD_NUMBERS, "fill", "us", "origin")
MAX_SPLITS = 16
_DECIMAL = r"[0-9]{1,9}(\.[0-9]{1,9})?"
MOST_EXPANDED = 2**30  # elements that method expand may take as a bf16 workspace; else the next row
# Compute units: what `fill` is counted in. Fixed numbers, so that a shape has one config.
OLDEST_NVIDIA = (8, 9)  # conversion from e4m3
SCALED_ARCHS = ("gfx950",)  # whose matrix instruction scales; elsewhere dot_scaled goes by bf16


@dataclass(frozen=True)
class TritonConfig:
    """A variant of rfops/triton/mxfp8_kernels.py; that file says what METHOD means."""

    method: str
    block_m: int
    block_n: int
    block_k: int
    group_m: int = 1
    warps: int = 4
    stages: int = 2
    waves_per_eu: int = 0  # AMD only, as the next two; 0: Triton's choice
    matrix_instr_nonkdim: int = 0
    kpack: int = 0
    splits: int = 1  # of K, at most; dense only
    origin: str = field(default="given", compare=False)

    def __post_init__(self) -> None:
        check_config_ints(self, "method", "origin")
        for name in ("block_m", "block_n", "block_k", "warps"):
            value = getattr(self, name)
            if value <= 0 or value & (value - 1):
                self._fail(name, "a power of two", value)
        if self.method not in METHODS:
            self._fail("method", f"one of {', '.join(METHODS)}", self.method)
        least = 4 * BLOCK if self.method == "scaled" else BLOCK
        if self.block_k < least:
            self._fail("block_k", f"at least {least} with method {self.method}", self.block_k)
        if self.block_m < 8 or self.block_n < 16:
            self._fail("block_m and block_n", "at least 8 and 16", (self.block_m, self.block_n))
        if not 1 <= self.splits <= MAX_SPLITS:
            self._fail("splits", f"1 to {MAX_SPLITS}", self.splits)

    def _fail(self, name: str, expected: str, got: object) -> None:
        raise ValueError(
            f"TritonConfig: {name} must be {expected}, got {got!s:.80}; "
            "see configs/mxfp8_triton.csv"
        )

    def refuses(self, op: str, arch: str) -> str | None:
        """None if this tile is one of that op and architecture, else the reason."""
        if self.method == "scaled" and arch not in SCALED_ARCHS:
            return f"method scaled is for {', '.join(SCALED_ARCHS)}, not {arch}: take blocks"
        if op == "grouped" and (self.method == "expand" or self.splits > 1):
            return "method expand and splits are for the dense product alone"
        return None

    def constants(self, k: int) -> dict[str, object]:
        """The compile-time constants that all kernels have."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "EVEN_K": k % self.block_k == 0,
            "GROUP_M": self.group_m,
        }

    def options(self, arch: str) -> dict[str, object]:
        """Triton's compile options; unset, fp fusion warns in 3.9 and changes in 3.10."""
        options: dict[str, object] = {
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": True,
        }
        if arch.startswith("gfx"):
            options |= {name: getattr(self, name) for name in AMD_NUMBERS if getattr(self, name)}
        return options


@dataclass(frozen=True)
class Row:
    op: str
    arch: str
    m_max: int | None
    n_max: int | None
    k_max: int | None
    config: TritonConfig
    fill: float

    def holds(self, m: int, n: int, k: int) -> bool:
        pairs = ((m, self.m_max), (n, self.n_max), (k, self.k_max))
        return all(limit is None or value <= limit for value, limit in pairs)


def rows_for(arch: str) -> str | None:
    """The architecture whose rows an architecture uses; None if it has none."""
    if arch in ROWS:
        return arch
    if arch.startswith("sm_"):
        number = int("".join(filter(str.isdigit, arch)))
        return "sm_90" if (number // 10, number % 10) >= OLDEST_NVIDIA else None
    return None


def find(op: str, arch: str, m: int, n: int, k: int) -> TritonConfig:
    """The table's tile for a shape, with K split as its `fill` asks."""
    known = rows_for(arch)
    assert known is not None, arch
    row = find_row(op, known, m, n, k)
    if op == "grouped":
        return row.config
    return replace(row.config, splits=splits_for(row.config, row.fill, ROWS[known].cus, m, n, k))


def find_row(op: str, arch: str, m: int, n: int, k: int) -> Row:
    """The first row that holds. Raises ConfigError if there is none."""
    for row in table():
        if row.op != op or row.arch != arch or not row.holds(m, n, k):
            continue
        if row.config.method != "expand" or (m + n) * k <= MOST_EXPANDED:
            return row
    raise ConfigError(f"{TABLE}: no row for {op}, {arch}, M={m}, N={n}, K={k}")


def splits_for(config: TritonConfig, fill: float, units: int, m: int, n: int, k: int) -> int:
    """How many parts of K bring `fill` programs to each unit, with two steps along K at least."""
    tiles = -(-m // config.block_m) * -(-n // config.block_n)
    wanted = int(fill * units) // max(tiles, 1)
    return max(1, min(wanted, MAX_SPLITS, k // (2 * config.block_k)))


def around(tile: TritonConfig) -> list[TritonConfig]:
    """A tile, then those that differ from it in one or two numbers by a factor of two."""
    changes = [
        {name: value}
        for name, least in (("block_n", 16), ("block_k", 128), ("warps", 1), ("splits", 1))
        for value in (2 * getattr(tile, name), getattr(tile, name) // 2)
        if value >= least
    ]
    changes += [{**changes[0], **other} for other in changes[2:4]]
    found = [tile]
    for change in changes:
        with contextlib.suppress(ValueError):
            found.append(replace(tile, **change))
    return found


@cache
def table() -> tuple[Row, ...]:
    """All rows of the CSV in order. Raises ConfigError that names file, line and column."""
    line = 0
    try:
        with TABLE.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ConfigError(f"{TABLE}, line 1: columns must be {','.join(COLUMNS)}")
            rows = []
            for values in reader:
                line = reader.line_num
                rows.append(_row(values, line))
            return tuple(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{TABLE}, after line {line}: cannot be read: {error}") from error


def _row(values: dict[str, str], line: int) -> Row:
    def number(name: str, pattern: str = r"[0-9]{1,9}") -> int | float | None:
        text = values[name]
        if text and not re.fullmatch(pattern, text):
            raise ConfigError(f"{TABLE}, line {line}, column {name}: a number, not {text!r:.80}")
        return (float(text) if "." in text else int(text)) if text else None

    whole = None not in values and None not in values.values()
    if not whole or values["op"] not in OPS or values["arch"] not in ROWS:
        raise ConfigError(
            f"{TABLE}, line {line}: op must be one of {', '.join(OPS)} and arch one of "
            f"{', '.join(ROWS)}, with {len(COLUMNS)} columns"
        )
    numbers = {name: number(name) or 0 for name in (*NUMBERS, *AMD_NUMBERS)}
    try:
        config = TritonConfig(method=values["method"], origin=values["origin"], **numbers)
    except ValueError as error:
        raise ConfigError(f"{TABLE}, line {line}: {error}") from None
    if not values["origin"]:
        raise ConfigError(f"{TABLE}, line {line}, column origin: where the row comes from")
    maxima = (number(name) for name in KEY[2:])
    number("us", _DECIMAL)
    return Row(values["op"], values["arch"], *maxima, config, number("fill", _DECIMAL) or 0)
