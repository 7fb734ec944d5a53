"""`rfops tune OP --out FOLDER`, then RFOPS_CONFIGS=FOLDER: fills an op's tuned table.

For each shape it sweeps the variants of every kernel, those first that the kernel's own model ranks
first, checks each result, and takes the quickest. A HIP kernel keeps the shape unless another one
is more than 3 % quicker. On a GPU it times (origin measured); on the virtual GPU it takes
timing mode's time and says estimated in every row. Each row is merged into the CSV when its shape
is done: an interrupt loses one shape at most, a second run goes on where the first ended, and
several runs may fill one table at a time. `--untuned` takes what RFOPS_RECORD_UNTUNED collected.
`--defaults KERNEL` fills that kernel's own table instead: each row that the shapes hit gets the
variant with the least geometric mean over them, those done so far if it is interrupted. `--model`
(tune_model.py) fits what an op without a row chooses by, `--prune` (tune_prune.py) judges the rows
of a table again.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from rfops.cli import executor, tune_model, tune_prune
from rfops.cli.bench import add_shapes, describe, shapes_of
from rfops.cli.common import load_ops, loaded, with_ops
from rfops.cli.executor.driver import Outcome, Run, Task
from rfops.cli.tuned_file import File
from rfops.dispatch import cost, routing
from rfops.dispatch.kernel import Call, Kernel
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, call_on, on_device
from rfops.dispatch.tuned_table import Query
from rfops.jit import settings

MARGIN = 1.03  # a HIP kernel gives up a shape only to another that is quicker by more
FINALS = 6  # variants that are timed again on a GPU, in turn: a chip that is hot by now is slower
Failed = Callable[[str, bool], None]


def add_arguments(parser: argparse.ArgumentParser, op: Op) -> None:
    """Add the options of `rfops tune OP` to the parser."""
    parser.add_argument("--out", type=Path, help="folder of the table; default: RFOPS_CONFIGS")
    add_shapes(parser, op)
    parser.add_argument("--untuned", type=Path, help="a file that RFOPS_RECORD_UNTUNED wrote")
    parser.add_argument(
        "--top",
        type=int,
        help="variants a kernel; default: of those that a model ranks 4 (if virtual or with "
        "--prune) or 24, and all others",
    )
    parser.add_argument("--force", action="store_true", help="tune again what the file has")
    tuned_kernels = [name for name, kernel in op.kernels.items() if kernel.tuned]
    parser.add_argument(
        "--defaults", choices=tuned_kernels, help="fill this kernel's own table instead"
    )
    if op.time_model:
        tune_model.add_arguments(parser)
        parser.add_argument(
            "--prune",
            action="store_true",
            help="judge rows again: drop those that the op does as well without",
        )
    executor.add_arguments(parser)


def run(op: Op, options: argparse.Namespace) -> int:
    """Time the variants of each shape and write the fastest to the tuned table; return the exit
    status. Raises ValueError for options that do not go together."""
    folder = options.out or settings.path("RFOPS_CONFIGS")
    if folder is None:
        raise ValueError("tune: pass --out FOLDER, or set RFOPS_CONFIGS")
    device = options.device or cost.default_device()
    if op.time_model and options.model:
        return tune_model.interruptible(op, folder, device, options)
    if op.time_model and options.prune:
        return tune_prune.run(op, folder, device, options)
    todo = untuned(options.untuned, op.name) if options.untuned else []
    if options.set or options.shape or not todo:
        todo += [call_on(op, shape, device) for shape in shapes_of(op, options)]
    try:
        if options.defaults and options.executor:
            raise ValueError("--defaults: the table is filled in this process, without --executor")
        if options.executor:
            return tune_on(op, todo, folder, device, options)
        if options.defaults:
            return tune_defaults(op, options.defaults, todo, folder, device, options.top)
        return tune_all([(op, c) for c in todo], folder, device, options.top, options.force)
    except KeyboardInterrupt:
        print(
            "rfops: interrupted; what is done is in the table, run it again to go on",
            file=sys.stderr,
        )
        return 130


def untuned(file: Path, *names: str) -> list[Call]:
    """The calls of these ops that RFOPS_RECORD_UNTUNED collected. Raises ConfigError."""
    queries = []
    for query in routing.read_untuned(file):
        if query.op in names:
            op = ops()[query.op]
            assert op.tuned is not None, f"{op.name} has no table"
            given = dict(query.sizes)
            columns = zip(op.table, op.tuned.sizes, strict=True)
            # Files that were written before the key had a column lack its size.
            row_sizes = {name: given[column] for name, column in columns if column in given}
            queries.append(op.call_of(query.arch, query.cu_num, **op.sizes_of_row(row_sizes)))
    return queries


# ---------------------------------------------------------------- one shape


@dataclass(frozen=True)
class Trial:
    """One variant that was right."""

    backend: str
    config: Any
    us: float
    origin: str
    spread: float = 0.0


def trials(
    op: Op, c: Call, device: torch.device, top: int | None, failed: Failed, only_backend: str = ""
) -> Iterator[Trial]:
    """Every variant to try; one that does not build or is wrong is reported and left out."""
    c = on_device(c, device)
    sets: list[Problem] = []
    for backend, kernel in op.kernels.items():
        if (
            (kernel.Config is None and not kernel.is_ranked)
            or only_backend not in ("", backend)
            or kernel.unsupported_reason(c) is not None
        ):
            continue
        sets = sets or cost.problems(op, c, device)
        count = top or _default_top(op, kernel, device)
        variants = (
            v for v in kernel.candidates(c) if kernel.unsupported_config_reason(c, v) is None
        )
        configs = list(islice(dict.fromkeys([kernel.default(c), *variants]), count))
        if device.type != "cpu" and not kernel.is_hip:
            compile_ahead(op, c, backend, configs)
        measured: dict[Any, cost.Cost | None] = {}  # by what runs: some configs are one here
        for config in configs:
            settled = kernel.settled(c, config)
            if settled not in measured:
                measured[settled] = measure(sets, backend, settled, failed)
            cost_ = measured[settled]
            if cost_ is not None:
                yield Trial(backend, config, cost_.us, cost_.kind, cost_.spread)


def _default_top(op: Op, kernel: Kernel, device: torch.device) -> int | None:
    """How many variants of a kernel to time; all of those whose order says nothing."""
    if device.type == "cpu" and (op.time_model is not None or kernel.is_ranked):
        return 4
    return 24 if kernel.is_ranked else None


def measure(sets: Sequence[Problem], backend: str, config: Any, failed: Failed) -> cost.Cost | None:
    """Return the time of one variant, or None after `failed` was told that its result is wrong
    (True) or that it does not run (False)."""
    label = f"{sets[0].op.name} {sets[0].call}: {backend} {config}"
    try:
        return cost.measure(sets, backend, config)
    except AssertionError as error:
        failed(f"{label}: WRONG RESULT: {str(error)[:200]}", True)
    except Exception as error:  # a tile that does not fit has many ways to say so
        lines = str(error).splitlines() or [type(error).__name__]
        failed(f"{label}: does not run: {lines[0][:160]}", False)
    return None


def compile_ahead(op: Op, c: Call, backend: str, configs: Sequence[Any]) -> None:
    """Each variant launched once in processes beside this one: that leaves it in Triton's cache."""
    arguments = {**c.values, **c.sizes}
    jobs = [(op.name, arguments, c.device, backend, routing.config_text(v)) for v in configs]
    list(_processes().map(launch_once, jobs))


@functools.cache
def _processes() -> ProcessPoolExecutor:
    """For the whole run, on the cores that this process may use. They are forked from one that has
    imported everything, which takes seconds, and used no device."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "triton"])
    return ProcessPoolExecutor(max(len(os.sched_getaffinity(0)) - 1, 1), mp_context=context)


def launch_once(job: tuple[str, Mapping[str, Any], torch.device, str, str]) -> bool:
    """Whether it ran; where it did not, or the op is one of elsewhere, the tuner itself sees to
    it."""
    name, arguments, device, backend, text = job
    with_ops()
    try:
        op = ops()[name]
        problem = Problem(op, call_on(op, arguments, device))
        run = problem.prepare(backend, op.parse_config(op.kernels[backend], text))
        problem.launch_by(run)()
        if device.type == "cuda":
            torch.cuda.synchronize()
    except Exception:
        return False
    return True


def retimed(op: Op, c: Call, trials_: Sequence[Trial], failed: Failed) -> list[Trial]:
    """The best few, and the best of each kernel, by the median of three times."""
    sets = cost.problems(op, c, c.device)
    best = sorted(trials_, key=lambda trial: trial.us)[:FINALS]
    best = list(dict.fromkeys([*best, *of_each(trials_)]))
    times = {trial: [trial.us] for trial in best}
    for _ in range(2):
        for trial in best:
            cost_ = measure(
                sets, trial.backend, op.kernels[trial.backend].settled(c, trial.config), failed
            )
            times[trial] += [cost_.us] if cost_ else []
    return [replace(trial, us=statistics.median(times[trial])) for trial in best]


def of_each(trials_: Sequence[Trial]) -> list[Trial]:
    """The best of each kernel."""
    best: dict[str, Trial] = {}
    for trial in trials_:
        best_trial = best.setdefault(trial.backend, trial)
        best[trial.backend] = min(best_trial, trial, key=lambda t: t.us)
    return list(best.values())


def query_of(op: Op, c: Call) -> Query:
    """Return the query that looks the call up in the op's tuned table."""
    assert op.tuned is not None, f"{op.name} has no table"
    sizes = tuple(zip(op.tuned.sizes, op.table_sizes(c), strict=True))
    return Query(op.name, c.arch, c.cu_num, sizes)


def row_of(query: Query, trials_: Sequence[Trial], source: str) -> dict[str, Any]:
    """The table's row: the best HIP variant, or another kernel's where that is quicker."""
    kernels, best = ops()[query.op].kernels, of_each(trials_)
    selected = min(best, key=lambda t: t.us / (MARGIN if kernels[t.backend].is_hip else 1))
    figures = {f"{t.backend}_us": t.us for t in best if t is not selected}
    if selected.spread:
        figures["spread"] = selected.spread
    if kernels[selected.backend].is_hip and "triton_us" in figures:
        figures["speedup"] = figures["triton_us"] / selected.us
    return {
        "arch": query.arch,
        "cu_num": query.cu_num,
        **dict(query.sizes),
        **_choice(selected.backend, selected.config, selected.us, selected.origin, source),
        "figures": " ".join(f"{name}={value:.4g}" for name, value in figures.items()),
    }


def _choice(kernel: str, config: Any, us: float, origin: str, source: str) -> dict[str, str]:
    text = routing.config_text(config)
    return {"kernel": kernel, "config": text, "us": f"{us:.3f}", "origin": origin, "source": source}


# ---------------------------------------------------------------- the run


class _Failures:
    """What was said of variants that are left out; whether any result was wrong."""

    def __init__(self, device: torch.device) -> None:
        self.serious = False
        print(f"# {describe(device)}")
        if device.type == "cpu":
            print("# nothing is measured: rows are estimates by timing mode, and say so")

    def __call__(self, text: str, is_serious: bool) -> None:
        self.serious |= is_serious
        print(f"  {text}", file=sys.stderr, flush=True)


def tune_all(
    todo: Sequence[tuple[Op, Call]],
    folder: Path,
    device: torch.device,
    top: int | None = None,
    force: bool = False,
) -> int:
    """Tune what the folder's tables have not; 1 if a result was wrong or a shape has none."""
    failed = _Failures(device)
    files: dict[str, File] = {}
    begin = time.monotonic()
    for number, (op, sizes) in enumerate(todo, start=1):
        assert op.tuned is not None, f"{op.name} has no table"
        if op.name not in files:
            files[op.name] = File(folder, op.tuned)
        label = f"[{number}/{len(todo)}, {time.monotonic() - begin:.0f} s]"
        num_done = _tune(op, on_device(sizes, device), files[op.name], top, force, failed)
        print(f"{label} {num_done}", flush=True)
    for file in files.values():
        print(f"{file.path}: use it with RFOPS_CONFIGS={folder}")
    return 1 if failed.serious else 0


def _tune(op: Op, c: Call, file: File, top: int | None, force: bool, failed: Failed) -> str:
    """What was done for a shape."""
    if file.has(op, c) and not force:
        return f"{op.name} {_shape(op, c)}: done before"
    row, summary = tune_shape(op, c, top, failed)
    if row:
        file.add(row)
    return summary


def _shape(op: Op, c: Call) -> str:
    return " ".join(f"{name}={value}" for name, value in query_of(op, c).sizes)


def tune_shape(
    op: Op, c: Call, top: int | None, failed: Failed
) -> tuple[dict[str, Any] | None, str]:
    """The row of a shape, None where no kernel gave a result, and what is said of it."""
    trials_ = list(trials(op, c, c.device, top, failed))
    if not trials_:
        failed(f"{op.name} {_shape(op, c)}: no kernel gave a result", True)
        return None, f"{op.name} {_shape(op, c)}: nothing"
    count = len(trials_)
    if c.device.type != "cpu":
        trials_ = retimed(op, c, trials_, failed)
    row = row_of(query_of(op, c), trials_, describe(c.device))
    peer_time = cost.peer(cost.problems(op, c, c.device)) if c.device.type != "cpu" else None
    if peer_time:
        row["figures"] = f"{row['figures']} {peer_time[0]}_us={peer_time[1]:.4g}".strip()
    summary = " ".join(row[name] for name in ("kernel", "config", "figures", "origin"))
    return row, f"{op.name} {_shape(op, c)}: {row['us']} us by {summary}; {count} variants"


# ---------------------------------------------------------------- on many devices


def tune_on(
    op: Op, todo: Sequence[Call], folder: Path, device: torch.device, options: argparse.Namespace
) -> int:
    """The same rows by the workers of an executor, written as they come, in the shapes' order."""
    assert op.tuned is not None, f"{op.name} has no table"
    file, failed = File(folder, op.tuned), _Failures(device)
    calls = list(dict.fromkeys(on_device(c, device) for c in todo))
    file.order = {file.key_of_call(op, c): index for index, c in enumerate(calls)}
    pending = [c for c in calls if options.force or not file.has(op, c)]
    print(f"{len(calls) - len(pending)} of {len(calls)} shapes were done before")
    tasks = [
        Task(
            f"{op.name} {_shape(op, c)}",
            "rfops.cli.tune:tune_task",
            (op.name, {**c.values, **c.sizes}, device.type, options.top, loaded()),
            1.0 + op.flops(c) / 1e9,
        )
        for c in pending
    ]

    def on_outcome(number: int, outcome: Outcome, progress: str) -> None:
        row, summary, failures = outcome.result or (None, "", ())
        for text, is_serious in failures:
            failed(text, is_serious)
        if outcome.error:
            failed(f"{tasks[number].label}: {outcome.error}", True)
        if row:
            file.add(row)
        print(f"{progress} {summary or tasks[number].label + ': lost'}", flush=True)

    if tasks:
        pool = executor.pool(options, device.type != "cpu", tuple(op.modules))
        Run(pool, tasks, on_outcome, options.limit, lambda text: print(text, file=sys.stderr))()
    print(f"{file.path}: use it with RFOPS_CONFIGS={folder}")
    return 1 if failed.serious else 0


def tune_task(
    name: str, arguments: Mapping[str, Any], device: str, top: int | None, files: Sequence[Path]
) -> tuple[dict[str, Any] | None, str, list[tuple[str, bool]]]:
    """In a worker: the row, what is said, what failed."""
    for path in files:
        load_ops(path)
    op, failures = ops()[name], list[tuple[str, bool]]()
    c = call_on(op, arguments, torch.device(device))
    row, summary = tune_shape(op, c, top, lambda text, serious: failures.append((text, serious)))
    return row, summary, failures


def tune_defaults(
    op: Op,
    name: str,
    todo: Sequence[Call],
    folder: Path,
    device: torch.device,
    top: int | None = None,
) -> int:
    """Tune the rows of a kernel's own table that these shapes hit."""
    failed, kernel = _Failures(device), op.kernels[name]
    assert kernel.tuned is not None, f"{name} has no table of its own"
    hit: dict[tuple[Any, ...], dict[str, dict[Any, float]]] = {}
    origin = "estimated"
    file = File(folder, kernel.tuned)
    try:
        for c in (on_device(c, device) for c in todo):
            if kernel.unsupported_reason(c) is None:
                times = {}
                for trial in trials(op, c, device, top, failed, name):
                    times[trial.config], origin = trial.us, trial.origin
                key = (c.arch, c.cu_num, *kernel.own_row(c).sizes)
                if times:
                    hit.setdefault(key, {})[str(c)] = times
    finally:  # of an interrupted run, the shapes that are done
        for key, shapes in hit.items():
            if not set.intersection(*(set(times) for times in shapes.values())):
                failed(f"{name} {key}: no variant gave a result for all of its shapes", True)
                continue
            cells = dict(zip(kernel.tuned.keys, key, strict=True))
            row = cells | _default_of(name, shapes, origin, describe(device))
            file.add(row)
            print(f"{file.path.name} {cells}: {row['us']} us by {row['config']}")
    print(f"{file.path}: use it with RFOPS_CONFIGS={folder}")
    return 1 if failed.serious else 0


def _default_of(
    name: str, shapes: Mapping[str, Mapping[Any, float]], origin: str, device: str
) -> dict[str, str]:
    """The variant with the least geometric mean over these shapes."""
    means = {
        config: math.exp(sum(math.log(times[config]) for times in shapes.values()) / len(shapes))
        for config in set.intersection(*(set(times) for times in shapes.values()))
    }
    best = min(means, key=lambda config: means[config])
    return _choice(
        name, best, means[best], origin, f"{device}: geometric mean of {', '.join(shapes)}"
    )
