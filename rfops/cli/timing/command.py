"""`rfops bench timing`: predicted times against published ones, kernel by kernel.

Predictions are the virtual GPU's model of time. The published rows come from CSV files of yours,
the prebuilt kernels from a checkout of yours: neither is part of rfops."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rfops.cli.timing import cells, own, pool, rows, score, simple
from rfops.cli.timing.rows import Row

Record = dict[str, Any]
Save = Callable[..., None]
WRITE_S = 5.0  # between two writes of the JSON file
FORMATS = (
    (rows.COLUMNS, rows.parse),
    (simple.SUITE_COLUMNS, simple.suite_row),
    (simple.STREAM_COLUMNS, simple.stream_row),
    (simple.POINT_COLUMNS, simple.point_row),
    (own.COLUMNS, own.parse),
)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of `rfops bench timing`."""
    parser = argparse.ArgumentParser(prog="rfops bench timing", description=__doc__)
    add = parser.add_argument
    add(
        "--rows",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE.csv",
        help="published times, of prebuilt kernels or of simple ones; or measured ones of selftest",
    )
    add(
        "--aiter",
        type=Path,
        metavar="DIR",
        help="a checkout of ROCm/aiter, for its code objects in hsa/",
    )
    add("--cells", action="store_true", help="HIP or Triton in the published cells of gemm_mxfp8")
    add("--micro", action="store_true", help="microkernels of ours for published constants")
    add("--limit", type=_count, default=0, help="rows, evenly over the kernels; default: all")
    add("--seed", type=_count, default=0, help="of the sample")
    add("--json", type=Path, metavar="OUT", help="write a record a row there")
    add(
        "--resume",
        action="store_true",
        help="keep what OUT has already: where the model is the same",
    )
    add("--jobs", type=_count, default=0, help="rows at once; default: one a core")
    add(
        "--seconds",
        type=float,
        default=120.0,
        help="a row that takes longer is skipped; default: %(default)g",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)


def main(arguments_: Sequence[str]) -> int:
    """Exit status: 0 where something was predicted. Raises ValueError."""
    options = arguments().parse_args(arguments_)
    check(options)
    earlier_records = earlier(options.json) if options.resume else {}
    sampled = rows.sample(read(options.rows), options.limit, options.seed)
    records = [record_of(row) for row in sampled]
    pairs = cells.published() if options.cells else []
    pair_records = [cell.record for cell in pairs]
    save = functools.partial(_write, options, records, pair_records)
    work = functools.partial(predicted, options.aiter)
    complete(sampled, records, work, earlier_records, options, save)
    complete(pairs, pair_records, cells.predict, earlier_records, options, save)
    scores = score.summary(records)
    constants = micros() if options.micro else []
    save(scores, constants)
    lines = [*(score.text(scores) if records else []), *(cells.text(pair_records) if pairs else [])]
    if lines:
        print("\n".join(lines))
    is_done = any("skipped" not in record for record in (*records, *pair_records))
    return 0 if is_done or constants else 1


def check(options: argparse.Namespace) -> None:
    """Raises ValueError."""
    if not options.rows and not options.cells and not options.micro:
        raise ValueError(
            "nothing to hold the model against: pass --rows FILE.csv, --cells or --micro"
        )
    if options.aiter and not (options.aiter / "hsa").is_dir():
        raise ValueError(
            f"--aiter {options.aiter}: expected a checkout of aiter, got no hsa/ in it"
        )
    if options.resume and not options.json:
        raise ValueError("--resume: expected --json OUT, the file to go on with")


def micros() -> list[Record]:
    """Of the microkernels, each told when it is done. Raises ToolchainNotFound."""
    from rfops.cli.timing import micro_cases

    print(micro_cases.HEAD)
    records = []
    for record in micro_cases.records():
        print(micro_cases.line(record), flush=True)
        records.append(record)
    print(micro_cases.summary(records))
    return records


def read(files: Sequence[Path]) -> list[Row]:
    """The rows of all files; what is wrong with others is printed. Raises ValueError."""
    rows_read: list[Row] = []
    for file in files:
        file_rows = rows.read(file, FORMATS)
        for line in file_rows.wrong:
            print(f"rfops: {file}, {line}", file=sys.stderr)
        if file_rows.unknown:
            names = ", ".join(f"{kernel} {count}" for kernel, count in file_rows.unknown.items())
            print(f"rfops: {file}: lines of kernels that are not here: {names}", file=sys.stderr)
        repeated = repeats(file_rows.rows)
        doubt = "one time is published for several shapes: not measured"
        rows_read += [
            replace(row, doubt=doubt) if row in repeated else row for row in file_rows.rows
        ]
    return rows_read


def repeats(rows_: Sequence[Row]) -> set[Row]:
    """Rows whose time, to the last digit, is another shape's as well: tables were filled up with
    them, and which shape was measured is not known."""
    shapes = {(row.op, row.gpu, row.cu, row.us, row.shape) for row in rows_}
    times = Counter(shape[:4] for shape in shapes)
    return {r for r in rows_ if times[r.op, r.gpu, r.cu, r.us] > 1 and _digits(r.us) > 2}


def _digits(us: float) -> int:
    return len(str(us).partition(".")[2])


def record_of(row: Row) -> Record:
    """Return a row's record before it is predicted; `skipped` says why it will not be."""
    record = {
        "key": row.key,
        "op": row.op,
        "part": row.gpu_model,
        "kernel": row.kernel,
        "shape": row.shape,
        "split_k": row.split_k,
        "published_us": row.us,
        "src": row.src,
    }
    return record | ({"skipped": row.doubt} if row.doubt else {})


def predicted(checkout: Path | None, row: Row) -> Record:
    """In a worker: torch is imported there."""
    from rfops.cli.timing import predict
    from rfops.cli.timing.launches import Skip

    try:
        prediction = predict.predict(checkout, row)
    except Skip as reason:
        return {"skipped": str(reason)}
    return {"predicted_us": prediction.pop("us"), **prediction}


def complete(
    items: Sequence[Any],
    records: Sequence[Record],
    work: pool.Work,
    earlier_records: dict[str, Record],
    options: argparse.Namespace,
    save: Save,
) -> None:
    """Adds to each item's record what is known of it, or what `work` finds, and tells of it."""
    for record in records:
        record |= earlier_records.get(record["key"], {})
    todo = [index for index, record in enumerate(records) if not DONE_KEYS & {*record}]
    jobs = options.jobs or len(os.sched_getaffinity(0))
    last_save = time.monotonic()
    results = pool.run(work, [items[index] for index in todo], jobs, options.seconds)
    for count, (position, result) in enumerate(results, 1):
        record = records[todo[position]]
        record |= result
        print(f"[{count}/{len(todo)}] {_line(record)}", flush=True)
        if time.monotonic() > last_save + WRITE_S:
            save()
            last_save = time.monotonic()


DONE_KEYS = {"skipped", "predicted_us", "speedup"}


def _line(record: Record) -> str:
    name = f"{record['part']} {score.readable_name(record['kernel'])} {record['shape']}"
    if "skipped" in record:
        return f"{name}: skipped: {record['skipped']}"
    if "speedup" in record:
        return f"{name}: speedup {record['speedup']:.2f}"
    return (
        f"{name}: published {record['published_us']:.4g} us, predicted "
        f"{record['predicted_us']:.4g} ({score.error(record):+.0%})"
    )


def earlier(file: Path) -> dict[str, Record]:
    """What a run before has found, by key. Raises ValueError."""
    if not file.exists():
        return {}
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        records = [*saved["rows"], *saved["cells"]]
        return {r["key"]: r for r in records if "skipped" not in r and DONE_KEYS & {*r}}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--json {file}: expected what this command writes: {error!r}") from error


def _write(
    options: argparse.Namespace,
    records: Sequence[Record],
    pairs: Sequence[Record],
    scores: Record | None = None,
    constants: Sequence[Record] = (),
) -> None:
    """Whole or not at all: a run may be stopped at any time."""
    if options.json is None:
        return
    content = {
        "rows_files": [f.name for f in options.rows],
        "limit": options.limit,
        "seed": options.seed,
        "summary": scores,
        "rows": records,
        "cells": pairs,
        "micro": [*constants],
    }
    temporary = options.json.with_name(f"{options.json.name}.part")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(options.json)
