"""`rfops tune OP --prune --out FOLDER`: drops rows of a table that an op does as well without.

Each row of this chip and of this kind of times (measured on a GPU, estimated on the virtual one) is
timed beside what the call takes without it: the nearest row, else the choice by the op's time
model. It is timed in the layouts that the op has; where that takes at most 2 % longer, as the
geometric mean over layouts, and in none more than 5 %, the row goes. Rows of many tokens come
first, as they are the nearest ones of fewer. What is done is in the file: an interrupted run may
be repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import torch

from rfops.cli import model_fit, model_timings, tune_model
from rfops.cli.bench import describe
from rfops.cli.tuned_file import File
from rfops.dispatch import routing, tuned_table
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.problem import call_on
from rfops.jit import paths

if TYPE_CHECKING:
    import pandas as pd

MARGIN, MAX_RATIO = 1.02, 1.05  # of the mean over layouts, and of each


def run(op: Op, folder: Path, device: torch.device, options: argparse.Namespace) -> int:
    """Raises ValueError, ConfigError."""
    model_fit.model_of(op)
    if options.executor:
        raise ValueError("--prune: rows are timed in this process, without --executor")
    assert op.tuned is not None, f"{op.name} has no table"
    file, origin = File(folder, op.tuned), model_timings.device_name(device)
    arch, cu_num = routing.chip(device)
    rows = file.rows()
    mine = rows[(rows.arch == arch) & (rows.cu_num == str(cu_num)) & (rows.origin == origin)]
    mine = mine[mine.kernel != ""]
    print(f"# {describe(device)}")
    print(f"{len(mine)} of {len(rows)} rows are {origin} on {arch} with {cu_num} CUs", flush=True)
    dropped, lead_column = 0, op.tuned.sizes[0]
    for _, row in mine.sort_values(
        lead_column, key=_numbers, ascending=False, kind="stable"
    ).iterrows():
        is_needed, verdict = judge(op, row, file, device)
        if not is_needed:
            file.drop(row)
            dropped += 1
        sizes = " ".join(f"{name}={row[name]}" for name in op.tuned.sizes)
        print(f"{'kept' if is_needed else 'dropped'}  {sizes}: {verdict}", flush=True)
    print(f"{file.path}: {dropped} of {len(mine)} rows dropped")
    return 0


def _numbers(cells: pd.Series[str]) -> pd.Series[int]:
    """Of cells as they are in a file."""
    return cells.replace("", "0").astype(int)


def judge(op: Op, row: Mapping[str, str], file: File, device: torch.device) -> tuple[bool, str]:
    """Whether a row is needed, and why."""
    assert op.tuned is not None
    pairs = zip(op.table, op.tuned.sizes, strict=True)
    sizes = op.sizes_of_row({name: int(row[column]) for name, column in pairs if row[column]})
    kernel, ratios, verdicts = op.kernels[row["kernel"]], list[float](), list[str]()
    for layout in op.layouts(sizes):
        c = call_on(op, {**sizes, **layout}, device)
        config = op.parse_config(kernel, row["config"])
        named = kernel.name, kernel.default(c) if config is None else config
        fallback = fallback_for(op, c, row, file)
        if fallback is None:
            return True, "no kernel takes it"
        text = f"{fallback[0]} {routing.config_text(fallback[1])}".rstrip()
        if fallback == named:
            ratios.append(1.0)
            verdicts.append(f"is what it takes without: {text}")
            continue
        timings = list(tune_model.times_of(op, c, [named, fallback]))
        failed = [time for time in timings if isinstance(time, str)]
        if failed:
            return True, failed[0]
        times = {time[:2]: time[2] for time in timings if not isinstance(time, str)}
        ratios.append(times[fallback] / times[named])
        verdicts.append(f"{times[named]:.2f} us, without it {times[fallback]:.2f} us by {text}")
    is_needed = geometric_mean(ratios) > MARGIN or max(ratios) > MAX_RATIO
    return is_needed, "; ".join(verdicts)


def fallback_for(op: Op, c: Call, row: Mapping[str, str], file: File) -> tune_model.Variant | None:
    """The kernel and the variant that a call takes where a file has this row no more; None: no
    kernel that can be timed."""
    assert op.tuned is not None
    shipped = paths.CONFIGS / file.path.name
    target_file = shipped if shipped.is_file() and shipped.samefile(file.path) else file.path
    files = dict.fromkeys([shipped, target_file])
    rows = {path: list(tuned_table.read(path, op.tuned.name)) for path in files if path.is_file()}
    key = file.key_of(row)
    rows[target_file] = [r for r in rows[target_file] if file.key_of(_cells(op.tuned, r)) != key]
    selector = routing.KernelSelector(op.tuned, c.arch, c.cu_num, tuned_table.Table(op.tuned, rows))
    try:
        decision = op.route(c, selector)
    except ValueError:  # there is none
        return None
    kernel = op.kernels[decision.backend]
    if kernel.Config is None and not kernel.is_hip:  # torch
        return None
    config = op.parse_config(kernel, decision.config, decision.row)
    return kernel.name, kernel.default(c) if config is None else config


def _cells(tuned: tuned_table.Tuned, row: tuned_table.Row) -> Mapping[str, Any]:
    """Of its key, by column."""
    return dict(zip(tuned.keys, (row.arch, row.cu_num, *row.sizes), strict=True))
