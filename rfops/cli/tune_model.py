"""`rfops tune OP --model --out FOLDER`: the constants by which a call without a tuned row chooses.

Draws calls as models have them (Op.draw), times variants of every kernel, fits the op's time model
(model_fit.py), and writes FOLDER/<op>_model.csv with the regret of a choice by it, as
cross-validation has it. Times are kept in FOLDER/<op>_timings.csv: a second run goes on where the
first ended. Results are not checked: `rfops bench` and the tests do.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rfops import vgpu
from rfops.cli import executor, model_fit, model_timings
from rfops.cli.bench import describe
from rfops.cli.common import load_ops, loaded
from rfops.cli.executor.driver import Outcome, Run, Task
from rfops.cli.model_source import digests
from rfops.dispatch import routing, time_model
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, call_on
from rfops.dispatch.timing import time_graph

SHAPES = 90  # about as many as the shipped constants are fitted to
VARIANTS = 60  # of a call that are timed at most
_NEAR = 2.0  # variants that are predicted to take longer than the best by more are not timed
_SPREAD = 0.15  # of those that are timed, others all the same

Time = tuple[str, Any, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="store_true", help="fit the model of its kernels' times")
    parser.add_argument("--shapes", type=int, default=SHAPES, help=f"of --model; default {SHAPES}")
    parser.add_argument("--seed", type=int, default=1, help="of --model's shapes; default 1")


def calls(op: Op, count: int, seed: int) -> list[dict[str, Any]]:
    """So many different calls, the same for the same seed."""
    rng, found = random.Random(seed), dict[str, dict[str, Any]]()
    while len(found) < count:
        given = op.draw(rng)
        found.setdefault(model_timings.call_text(given), given)
    return list(found.values())


def pool(op: Op, c: Call, count: int, rng: random.Random) -> list[tuple[str, Any]]:
    """Variants worth timing: those that are predicted near the best, and a share of the others."""
    model = model_fit.model_of(op)
    found: list[tuple[float, str, Any]] = []
    for kernel in model.kernels:
        table = kernel.space(c)
        if table is None or kernel.unsupported_reason(c) is not None:
            continue
        us = model.predict([kernel], [table], c)[1]
        for config, predicted in zip(table, us, strict=True):
            if kernel.unsupported_config_reason(c, config) is None:
                found.append((float(predicted), kernel.name, config))
    found.sort(key=lambda one: one[0])
    best = found[0][0] if found else 0.0
    near = [one for one in found if one[0] <= _NEAR * best]
    taken = dict.fromkeys((name, config) for _, name, config in near[: int(count * (1 - _SPREAD))])
    others = [(name, config) for _, name, config in found if (name, config) not in taken]
    rng.shuffle(others)
    taken |= dict.fromkeys(others[: count - len(taken)])
    return list(taken)


def times_of(op: Op, c: Call, variants: Sequence[tuple[str, Any]]) -> Iterator[Time | str]:
    """Of each variant its time; or why it does not run."""
    problem = Problem(op, c, is_light=True)
    for name, config in variants:
        try:
            launch = problem.launch_by(problem.prepare(name, config))
            if c.device.type != "cpu":
                yield name, config, time_graph([launch]).us
                continue
            with vgpu.timing(results=False, detail=False) as timing:
                launch()
            yield name, config, sum(one.us for one in timing.launches)
        except Exception as error:  # a variant that does not fit has many ways to say so
            lines = str(error).splitlines() or [type(error).__name__]
            yield f"{op.name} {c}: {name} {config}: does not run: {lines[0][:160]}"


def time_task(
    name: str, given: Mapping[str, Any], device: str, count: int, files: Sequence[Path]
) -> tuple[list[Time], list[str]]:
    """In a worker: the times of a call's variants, and what failed."""
    for path in files:
        load_ops(path)
    op = ops()[name]
    c = call_on(op, given, torch.device(device))
    variants = pool(op, c, count, random.Random(model_timings.call_text(given)))
    done = list(times_of(op, c, variants))
    return [t for t in done if not isinstance(t, str)], [t for t in done if isinstance(t, str)]


# ---------------------------------------------------------------- the run


def interruptible(op: Op, folder: Path, device: torch.device, options: argparse.Namespace) -> int:
    try:
        return run(op, folder, device, options)
    except KeyboardInterrupt:
        print("rfops: interrupted; times are kept, run it again to go on", file=sys.stderr)
        return 130


def run(op: Op, folder: Path, device: torch.device, options: argparse.Namespace) -> int:
    """Raises ValueError, ConfigError."""
    model_fit.model_of(op)
    arch, cu_num = routing.chip(device)
    file = model_timings.path_of(op, folder)
    wanted = {model_timings.call_text(g): g for g in calls(op, options.shapes, options.seed)}
    known = _known(file, arch, cu_num)
    left = {text: given for text, given in wanted.items() if text not in known}
    print(f"# {describe(device)}")
    print(f"{len(wanted) - len(left)} of {len(wanted)} shapes were timed before", flush=True)
    origin = model_timings.device_name(device)

    def done(text: str, times: Sequence[Time], failures: Sequence[str], progress: str) -> None:
        for failure in failures:
            print(f"  {failure}", file=sys.stderr, flush=True)
        if times:
            model_timings.write(file, model_timings.rows_of(arch, cu_num, text, times, origin))
            best = min(times, key=lambda t: t[2])
            config = routing.config_text(best[1])
            print(
                f"{progress} {text}: {best[2]:.2f} us by {best[0]} {config}; {len(times)} variants"
            )
            sys.stdout.flush()

    _time_all(op, left, device, options, done)
    return write_model(op, file, folder, arch, cu_num, origin, describe(device))


def _known(file: Path, arch: str, cu_num: int) -> set[str]:
    if not file.is_file():
        return set()
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {r["call"] for r in rows if (r["arch"], r["cu_num"]) == (arch, str(cu_num))}


def _time_all(
    op: Op,
    left: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    options: argparse.Namespace,
    done: Any,
) -> None:
    count = options.top or VARIANTS
    begin = time.monotonic()
    if not options.executor:
        for number, (text, given) in enumerate(left.items(), start=1):
            times, failures = time_task(op.name, given, str(device), count, ())
            done(text, times, failures, f"[{number}/{len(left)}, {time.monotonic() - begin:.0f} s]")
        return
    tasks = [
        Task(text, "rfops.cli.tune_model:time_task", (op.name, given, device.type, count, loaded()))
        for text, given in left.items()
    ]

    def came(number: int, outcome: Outcome, progress: str) -> None:
        times, failures = outcome.result or ([], [])
        if outcome.error:
            failures = [*failures, f"{tasks[number].label}: {outcome.error}"]
        done(tasks[number].label, times, failures, progress)

    if tasks:
        workers = executor.pool(options, device.type != "cpu", tuple(op.modules))
        Run(workers, tasks, came, options.limit, lambda said: print(said, file=sys.stderr))()


def write_model(
    op: Op,
    timings: Path,
    folder: Path,
    arch: str,
    cu_num: int,
    origin: str,
    device: str,
) -> int:
    """Fit, and replace the rows of this chip."""
    model = model_fit.model_of(op)
    timed = model_timings.read(op, timings, arch, cu_num)
    samples = [model_fit.sample_of(op, one) for one in timed]
    if len(samples) < model_fit.FOLDS:
        wanted = f"at least {model_fit.FOLDS} shapes with times on {arch}"
        raise ValueError(f"{op.name}: {timings} must have {wanted}, got {len(samples)}")
    regret = model_fit.cross_validated(model, samples)
    fitted = model_fit.fit(model, samples)
    count = sum(len(sample.us) for sample in samples)
    source = f"{device}; {len(samples)} shapes, {count} times; {regret} by 5-fold cross-validation"
    found = digests(op, model)
    rows = []
    for (kernel, family), constants in sorted(fitted.items()):
        cells = arch, cu_num, kernel, family, *time_model.text_of(model, constants), origin
        rows.append([*cells, f"{source}; kernel {found[kernel]}, timing model {found['']}"])
    file = folder / f"{model.name}.csv"
    time_model.replace_rows(file, arch, cu_num, rows)
    print(f"{len(samples)} shapes, {count} times: {regret}")
    print(f"{file}: use it with RFOPS_CONFIGS={folder}")
    return 0
