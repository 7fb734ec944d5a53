"""`rfops tune OP --out FOLDER`, then RFOPS_CONFIGS=FOLDER: fills an op's tuned table.

For each shape it sweeps the variants of HIP kernels and of Triton, those first that the kernel's
own model ranks first, checks each result, and takes the quickest of either side. HIP gets the shape
(use_hip) unless Triton is more than 3 % quicker. On a GPU it times (origin measured); on the
virtual GPU it ranks by an estimate from counters and says estimated in every row. After each shape
the whole CSV is written aside and renamed in: an interrupt loses one shape at most, and a second
run goes on where the first ended. `--untuned` takes what RFOPS_RECORD_UNTUNED collected.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rfops.cli.bench import add_shapes, describe, shapes_of
from rfops.dispatch import cost, routing, tuned_table
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, on_device
from rfops.dispatch.tuned_table import FAMILY_OF, Query
from rfops.jit import settings

MARGIN = 1.03  # a HIP kernel gives up a shape only to a Triton that is quicker by more
Key = tuple[str, ...]
Failed = Callable[[str, bool], None]


def add_arguments(parser: argparse.ArgumentParser, op: Op) -> None:
    parser.add_argument("--out", type=Path, help="folder of the table; default: RFOPS_CONFIGS")
    add_shapes(parser, op)
    parser.add_argument("--untuned", type=Path, help="a file that RFOPS_RECORD_UNTUNED wrote")
    parser.add_argument("--top", type=int, help="variants a kernel; default: 24, 4 if virtual")
    parser.add_argument("--force", action="store_true", help="tune again what the file has")


def run(op: Op, options: argparse.Namespace) -> int:
    folder = options.out or settings.path("RFOPS_CONFIGS")
    if folder is None:
        raise ValueError("tune: pass --out FOLDER, or set RFOPS_CONFIGS")
    todo = untuned(options.untuned, op.name) if options.untuned else []
    if options.set or options.shape or not todo:
        todo += [op.call_of(**shape) for shape in shapes_of(op, options)]
    device = options.device or cost.default_device()
    try:
        return tune_all([(op, c) for c in todo], folder, device, options.top, options.force)
    except KeyboardInterrupt:
        print("rfops: interrupted; what is done is in the table, run it again to go on",
              file=sys.stderr)  # fmt: skip
        return 130


def untuned(file: Path, *names: str) -> list[Call]:
    """The calls of these ops that RFOPS_RECORD_UNTUNED collected. Raises ConfigError."""
    found = []
    for query in routing.read_untuned(file):
        if query.op in names:
            sizes = zip(ops()[query.op].table, (value for _, value in query.sizes), strict=True)
            found.append(ops()[query.op].call_of(query.arch, query.cu_num, **dict(sizes)))
    return found


# ---------------------------------------------------------------- one shape


@dataclass(frozen=True)
class Trial:
    """One variant that was right."""

    backend: str
    config: Any
    us: float
    origin: str


def trials(op: Op, c: Call, device: torch.device, count: int, failed: Failed) -> Iterator[Trial]:
    """Every variant to try; one that does not build or is wrong is reported and left out."""
    c = on_device(c, device)
    sets: list[Problem] = []
    for backend, kernel in op.kernels.items():
        if kernel.Config is None or kernel.refuses(c) is not None:
            continue
        sets = sets or cost.problems(op, c, device)
        for config in list(dict.fromkeys([kernel.default(c), *kernel.ranked(c)]))[:count]:
            label = f"{op.name} {c}: {backend} {config}"
            try:
                done = cost.measure(sets, backend, config)
            except AssertionError as error:
                failed(f"{label}: WRONG RESULT: {str(error)[:200]}", True)
            except Exception as error:  # a tile that does not fit has many ways to say so
                lines = str(error).splitlines() or [type(error).__name__]
                failed(f"{label}: does not run: {lines[0][:160]}", False)
            else:
                yield Trial(backend, config, done.us, done.kind)


def query_of(op: Op, c: Call) -> Query:
    pairs = zip(tuned_table.names_of(op.name), op.table_sizes(c), strict=True)
    return Query(op.name, c.arch, c.cu_num, tuple(pairs))


def row_of(query: Query, tried: Sequence[Trial], source: str) -> dict[str, Any]:
    """The table's row: the best HIP variant, or Triton's tile where no kernel takes the shape."""
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


class File:
    """A family's table in a folder, as an earlier run has left it. Raises ConfigError."""

    def __init__(self, folder: Path, family: str) -> None:
        self.path = folder / f"{family}.csv"
        self.keys, self.columns = tuned_table.key_columns(family), tuned_table.columns(family)
        self.rows: dict[Key, Mapping[str, Any]] = {}
        if self.path.is_file():
            list(tuned_table.read(self.path, family))  # every cell checked
            with self.path.open(newline="", encoding="utf-8") as stream:
                self.rows = {self.key_of(row): row for row in csv.DictReader(stream)}

    def key_of(self, row: Mapping[str, Any]) -> Key:
        return tuple(str(row.get(column, "")) for column in self.keys)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows[self.key_of(row)] = row
        self.write()

    def write(self) -> None:
        """Aside, synced, renamed in: a reader sees the old file or the new one."""
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, self.columns, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows.values())
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


# ---------------------------------------------------------------- the run


def tune_all(
    todo: Sequence[tuple[Op, Call]],
    folder: Path,
    device: torch.device,
    top: int | None = None,
    force: bool = False,
) -> int:
    """Tune what the folder's tables have not; 1 if a result was wrong or a shape has none."""
    virtual = device.type == "cpu"
    print(f"# {describe(device)}")
    if virtual:
        print("# nothing is timed: rows are estimates from counters, and say so")
    serious: list[str] = []

    def failed(text: str, is_serious: bool) -> None:
        serious.extend([text] if is_serious else [])
        print(f"  {text}", file=sys.stderr, flush=True)

    files: dict[str, File] = {}
    begin = time.monotonic()
    for number, (op, sizes) in enumerate(todo, start=1):
        family = FAMILY_OF[op.name]
        if family not in files:
            files[family] = File(folder, family)
        label = f"[{number}/{len(todo)}, {time.monotonic() - begin:.0f} s]"
        count = top or (4 if virtual else 24)
        print(f"{label} {_tune(op, on_device(sizes, device), files[family], count, force, failed)}",
              flush=True)  # fmt: skip
    for file in files.values():
        print(f"{file.path}: use it with RFOPS_CONFIGS={folder}")
    return 1 if serious else 0


def _tune(op: Op, c: Call, file: File, count: int, force: bool, failed: Failed) -> str:
    """What was done for a shape."""
    query = query_of(op, c)
    shape = " ".join(f"{name}={value}" for name, value in query.sizes)
    key = {"op": op.name, "arch": c.arch, "cu_num": c.cu_num, **dict(query.sizes)}
    if file.key_of(key) in file.rows and not force:
        return f"{op.name} {shape}: done before"
    tried = list(trials(op, c, c.device, count, failed))
    if not tried:
        failed(f"{op.name} {shape}: no kernel gave a result", True)
        return f"{op.name} {shape}: nothing"
    row = row_of(query, tried, describe(c.device))
    file.add(row)
    figures = [f"{name} {row[name]}" for name in tuned_table.FIGURES if row.get(name)]
    chosen = f"{row['backend']} {row['config']}, use_hip {row['use_hip']}"
    return (
        f"{op.name} {shape}: {chosen}; {', '.join(figures)}, {row['origin']}; {len(tried)} variants"
    )
