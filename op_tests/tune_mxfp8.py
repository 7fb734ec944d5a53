"""Fills the tuned table of the MX-FP8 family; also `rfops tune mxfp8`:

    python op_tests/tune_mxfp8.py --out my_tables [--cells published moe] [--untuned FILE]
    RFOPS_CONFIGS=my_tables python serve.py

For each cell it sweeps the HIP kernels' variants and Triton's tiles, those first that the kernel's
own model ranks first, checks each result against float64, and takes the quickest of either side.
HIP gets the cell (use_hip) unless Triton is more than 3 % quicker. On a GPU it times
(origin measured); on the virtual GPU it ranks by an estimate from counters and says estimated in
every row. After each cell the whole CSV is written aside and renamed in: an interrupt loses one
cell at most, and a second run goes on where the first ended. `--untuned` takes what
RFOPS_RECORD_UNTUNED collected.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mxfp8_cells import (
    GROUPS,
    Cell,
    Inputs,
    candidates,
    cells,
    describe,
    device_of,
    input_sets,
    measure,
    prepare,
    refuses,
)

from rfops import RfopsError, routing, tuned_table
from rfops.jit import settings
from rfops.tuned_table import COLUMNS, KEY_COLUMNS, Query

FAMILY = "mxfp8"
MARGIN = 1.03  # a HIP kernel gives up a cell only to a Triton that is quicker by more


@dataclass(frozen=True)
class Trial:
    """One variant that was right."""

    backend: str
    config: Any
    us: float
    origin: str


def trials(
    cell: Cell, device: torch.device, count: int, failed: Callable[[str, bool], None]
) -> Iterator[Trial]:
    """Every variant to try; one that does not build or is wrong is reported and left out."""
    arch, _ = routing.chip(device)
    inputs: list[Inputs] = []
    for backend in cell.backends:
        if refuses(cell, backend, arch) is not None:
            continue
        inputs = inputs or input_sets(cell, device)
        for config in candidates(cell, backend, arch, count):
            try:
                cost = measure(cell, prepare(cell, backend, device, config), inputs)
            except AssertionError as error:
                failed(f"{cell}: {backend} {config}: WRONG RESULT: {str(error)[:200]}", True)
            except Exception as error:  # a tile that does not fit has many ways to say so
                lines = str(error).splitlines() or [type(error).__name__]
                failed(f"{cell}: {backend} {config}: does not run: {lines[0][:160]}", False)
            else:
                yield Trial(backend, config, cost.us, cost.origin)


def row_of(query: Query, tried: list[Trial], source: str) -> dict[str, Any]:
    """The table's row: the best HIP variant, or Triton's tile where no kernel takes the cell."""
    hip, triton = (
        min((t for t in tried if (t.backend == "triton") is of), key=lambda t: t.us, default=None)
        for of in (False, True)
    )
    use_hip = hip is not None and (triton is None or hip.us <= triton.us * MARGIN)
    kept = hip if use_hip else triton
    assert kept is not None
    figures: dict[str, Any] = {"us": f"{hip.us:.3f}"} if hip else {}
    if triton:
        figures["triton_us"] = f"{triton.us:.3f}"
    if hip and triton:
        figures["speedup"] = f"{triton.us / hip.us:.3f}"
    return {
        "op": query.op, "arch": query.arch, "cu_num": query.cu_num, **dict(query.sizes),
        "backend": kept.backend, "config": routing.config_text(kept.config),
        "use_hip": int(use_hip), **figures, "origin": kept.origin, "source": source,
    }  # fmt: skip


# ---------------------------------------------------------------- the file


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(column, "")) for column in KEY_COLUMNS)


def read_rows(file: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """What an earlier run has written, by key. Raises ConfigError."""
    if not file.is_file():
        return {}
    list(tuned_table.read(file, FAMILY))  # every cell checked
    with file.open(newline="", encoding="utf-8") as stream:
        return {key_of(row): row for row in csv.DictReader(stream)}


def write_rows(file: Path, rows: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Aside, synced, renamed in: a reader sees the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def cell_of(query: Query) -> Cell:
    sizes = dict(query.sizes)
    shape = (sizes["m"], sizes["n"], sizes["k"])
    if "e" not in sizes:
        return Cell(*shape)
    return Cell(*shape, sizes["e"], sizes["a_div"], bool(sizes["has_weight"]))


# ---------------------------------------------------------------- the run


def tune(
    todo: list[Cell], file: Path, device: torch.device, count: int, force: bool = False
) -> int:
    """Tune what the file has not; how many results were wrong and cells had none."""
    arch, cu_num = routing.chip(device)
    source, rows = describe(device), read_rows(file)
    serious: list[str] = []

    def failed(text: str, is_serious: bool) -> None:
        if is_serious:
            serious.append(text)
        print(f"  {text}", file=sys.stderr, flush=True)

    begin = time.monotonic()
    for number, cell in enumerate(todo, start=1):
        query = cell.query(arch, cu_num)
        key = key_of({"op": query.op, "arch": arch, "cu_num": cu_num, **dict(query.sizes)})
        label = f"[{number}/{len(todo)}, {time.monotonic() - begin:.0f} s] {cell}"
        if key in rows and not force:
            print(f"{label}: done before", flush=True)
            continue
        tried = list(trials(cell, device, count, failed))
        if not tried:
            failed(f"{cell}: no kernel gave a result", True)
            continue
        rows[key] = row_of(query, tried, source)
        write_rows(file, rows)
        print(f"{label}: {_summary(rows[key], len(tried))}", flush=True)
    return len(serious)


def _summary(row: dict[str, Any], count: int) -> str:
    figures = [f"{name} {row[name]}" for name in ("us", "triton_us", "speedup") if row.get(name)]
    chosen = f"{row['backend']} {row['config']}, use_hip {row['use_hip']}"
    return f"{chosen}; {', '.join(figures)}, {row['origin']}; {count} variants"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tune_mxfp8", description=(__doc__ or "").splitlines()[0].rstrip(":")
    )
    parser.add_argument("--out", type=Path, help="folder of the table; default: RFOPS_CONFIGS")
    parser.add_argument("--cells", nargs="+", choices=GROUPS, help="default: published")
    parser.add_argument("--m", type=int, nargs="+", help="rows, or routed rows, instead of all")
    parser.add_argument("--shape", type=int, nargs=3, action="append", metavar=("M", "N", "K"))
    parser.add_argument("--untuned", type=Path, help="a file that RFOPS_RECORD_UNTUNED wrote")
    parser.add_argument("--top", type=int, help="variants a kernel; default: 24, 4 if virtual")
    parser.add_argument("--force", action="store_true", help="tune again what the file has")
    options = parser.parse_args(argv)

    folder = options.out or settings.path("RFOPS_CONFIGS")
    if folder is None:
        parser.error("--out FOLDER, or set RFOPS_CONFIGS")
    todo = [Cell(*shape) for shape in options.shape or ()]
    if options.untuned:
        todo += map(cell_of, routing.read_untuned(options.untuned))
    groups = options.cells or (() if todo else ("published",))
    for group in groups:
        todo += cells(group, tuple(options.m) if options.m else None)

    device = device_of()
    print(f"# {describe(device)}")
    if device.type == "cpu":
        print("# nothing is timed: rows are estimates from counters, and say so")
    count = options.top or (4 if device.type == "cpu" else 24)
    file = folder / f"{FAMILY}.csv"
    failures = tune(list(dict.fromkeys(todo)), file, device, count, options.force)
    print(f"{file}: use it with RFOPS_CONFIGS={folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RfopsError, ValueError) as error:
        sys.exit(f"tune_mxfp8: {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("tune_mxfp8: interrupted; what is done is in the table, run it again to go on")
