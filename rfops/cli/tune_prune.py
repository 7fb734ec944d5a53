"""`rfops tune OP --prune --out FOLDER`: drops rows of a table that an op does as well without.

Each row of this chip and of this kind of times (measured on a GPU, estimated on the virtual one) is
timed beside the choice by the op's time model, in layouts that are usual; where that takes at most
2 % longer, the row goes. What is done is in the file: an interrupted run may be repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch

from rfops.cli import model_fit, model_timings, tune_model
from rfops.cli.bench import describe
from rfops.cli.regret import choice_of
from rfops.cli.tuned_file import File
from rfops.dispatch import routing
from rfops.dispatch.op import Op
from rfops.dispatch.problem import call_on

MARGIN = 1.02


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
    dropped = 0
    for _, row in mine.iterrows():
        is_needed, verdict = judge(op, row, device)
        if not is_needed:
            file.drop(row)
            dropped += 1
        sizes = " ".join(f"{name}={row[name]}" for name in op.tuned.sizes)
        print(f"{'kept' if is_needed else 'dropped'}  {sizes}: {verdict}", flush=True)
    print(f"{file.path}: {dropped} of {len(mine)} rows dropped")
    return 0


def judge(op: Op, row: Mapping[str, str], device: torch.device) -> tuple[bool, str]:
    """Whether a row is needed, and why."""
    assert op.tuned is not None
    sizes = {name: int(row[column]) for name, column in zip(op.table, op.tuned.sizes, strict=True)}
    c = call_on(op, sizes, device)
    kernel = op.kernels[row["kernel"]]
    config = op.parse_config(kernel, row["config"])
    named = kernel.name, kernel.default(c) if config is None else config
    fallback = choice_of(op, c)
    if fallback is None or fallback == named:
        return fallback is None, "is the op's own choice" if fallback else "no kernel takes it"
    timings = list(tune_model.times_of(op, c, [named, fallback]))
    failed = [time for time in timings if isinstance(time, str)]
    if failed:
        return True, failed[0]
    times = {time[:2]: time[2] for time in timings if not isinstance(time, str)}
    text = f"{fallback[0]} {routing.config_text(fallback[1])}".rstrip()
    verdict = f"{times[named]:.2f} us, without it {times[fallback]:.2f} us by {text}"
    return times[fallback] > MARGIN * times[named], verdict
