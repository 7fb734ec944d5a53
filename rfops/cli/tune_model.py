"""`rfops tune OP --model --out FOLDER`: the constants by which a call without a tuned row chooses.

Draws calls as models have them (Op.draw), times variants of every kernel, fits the op's time model
(model_fit.py), and writes FOLDER/<op>_model.csv with the regret of a choice by it, as
cross-validation has it. The variants of a call are those that are predicted near its best, by what
was fitted to the calls before it, and some others; at last what the fit itself chooses, where it
was not among them. Times are kept in FOLDER/<op>_timings.csv: a
second run goes on where the first ended, and one of fewer shapes fits what is there. Results are
checked on a GPU; estimated ones are not: `rfops bench` and the tests do.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rfops import vgpu
from rfops.cli import executor, model_fit, model_timings
from rfops.cli.bench import describe
from rfops.cli.common import load_ops, loaded
from rfops.cli.executor.driver import Outcome, Run, Task
from rfops.cli.model_source import digests
from rfops.dispatch import cost, routing, time_model
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, call_on

SHAPES = 90  # about as many as the shipped constants are fitted to
VARIANTS = 60  # of a call that are timed at most
_NEAR_RATIO = 2.0  # variants that are predicted to take longer than the best by more are not timed
_SPREAD = 0.15  # of those that are timed, others all the same
_OF_KERNEL = 2  # and so many of each kernel, its best
_REFIT = 5  # calls from one fit to the next
_PASSES, _CHOICES = 3, 2  # over all calls at last; of each the best predicted

Time = tuple[str, Any, float]
Variant = tuple[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="store_true", help="fit the model of its kernels' times")
    parser.add_argument("--shapes", type=int, default=SHAPES, help=f"of --model; default {SHAPES}")
    parser.add_argument("--seed", type=int, default=1, help="of --model's shapes; default 1")


def calls(op: Op, count: int, seed: int) -> list[dict[str, Any]]:
    """So many different calls, the same for the same seed."""
    rng, unique = random.Random(seed), dict[str, dict[str, Any]]()
    while len(unique) < count:
        arguments = op.draw(rng)
        unique.setdefault(model_timings.call_text(arguments), arguments)
    return list(unique.values())


def pool(op: Op, c: Call, count: int, rng: random.Random) -> list[tuple[str, Any]]:
    """Variants worth timing: those that are predicted near the best, the best of each kernel, and a
    share of the others."""
    model = model_fit.model_of(op)
    ranked_configs: list[tuple[float, str, Any]] = []
    best: list[tuple[float, str, Any]] = []
    for kernel in model.kernels:
        table = kernel.space(c)
        if table is None or kernel.unsupported_reason(c) is not None:
            continue
        us = model.predict([kernel], [table], c)[1]
        heuristic = [
            (float(predicted), kernel.name, config)
            for config, predicted in zip(table, us, strict=True)
            if np.isfinite(predicted) and kernel.unsupported_config_reason(c, config) is None
        ]
        heuristic.sort(key=lambda entry: entry[0])
        ranked_configs += heuristic
        best += heuristic[:_OF_KERNEL]
    ranked_configs.sort(key=lambda entry: entry[0])
    max_us = _NEAR_RATIO * ranked_configs[0][0] if ranked_configs else 0.0
    num_near = max(int(count * (1 - _SPREAD)) - len(best), 0)
    candidates = [entry for entry in ranked_configs if entry[0] <= max_us][:num_near]
    selected = dict.fromkeys(
        (name, config) for _, name, config in sorted([*candidates, *best], key=_us)
    )
    rest_pool = [
        (name, config) for _, name, config in ranked_configs if (name, config) not in selected
    ]
    rng.shuffle(rest_pool)
    selected |= dict.fromkeys(rest_pool[: max(0, count - len(selected))])
    return list(selected)


def _us(entry: tuple[float, str, Any]) -> float:
    return entry[0]


def times_of(op: Op, c: Call, variants: Sequence[tuple[str, Any]]) -> Iterator[Time | str]:
    """Of each variant its time; or why it does not run."""
    is_virtual = c.device.type == "cpu"
    sets = [Problem(op, c, is_light=True)] if is_virtual else cost.problems(op, c, c.device)
    for name, config in variants:
        try:
            if not is_virtual:
                yield name, config, cost.measure(sets, name, config).us
                continue
            launch = sets[0].launch_by(sets[0].prepare(name, config))
            with vgpu.timing(results=op.is_chained(c), detail=False) as timing:
                launch()
            yield name, config, sum(launch.us for launch in timing.launches)
        except Exception as error:  # a variant that does not fit has many ways to say so
            lines = str(error).splitlines() or [type(error).__name__]
            yield f"{op.name} {c}: {name} {config}: does not run: {lines[0][:160]}"


def choices(op: Op, c: Call, known: Collection[Variant], count: int = _CHOICES) -> list[Variant]:
    """Of the best that are predicted, those that are not known."""
    selected = [
        (choice.kernel, choice.config) for choice, _ in model_fit.model_of(op).explain(c, count)
    ]
    return [
        (name, config)
        for name, config in selected
        if (name, config) not in known
        and op.kernels[name].unsupported_reason(c) is None
        and op.kernels[name].unsupported_config_reason(c, config) is None
    ]


def time_task(
    name: str,
    arguments: Mapping[str, Any],
    device: str,
    count: int,
    files: Sequence[Path],
    fitted: model_fit.Fitted | None,
    known: Collection[Variant] | None,
) -> tuple[list[Time], list[str]]:
    """In a worker: the times of a call's variants, ranked by these constants, and what failed.
    Where some are known, of what is chosen beside them alone."""
    for path in files:
        load_ops(path)
    op = ops()[name]
    model_fit.model_of(op).use(fitted)
    c = call_on(op, arguments, torch.device(device))
    rng = random.Random(model_timings.call_text(arguments))
    variants = pool(op, c, count, rng) if known is None else choices(op, c, known)
    timings = list(times_of(op, c, variants))
    return [t for t in timings if not isinstance(t, str)], [
        t for t in timings if isinstance(t, str)
    ]


# ---------------------------------------------------------------- the run


def interruptible(op: Op, folder: Path, device: torch.device, options: argparse.Namespace) -> int:
    try:
        return run(op, folder, device, options)
    except KeyboardInterrupt:
        print("rfops: interrupted; times are kept, run it again to go on", file=sys.stderr)
        return 130


def _own_model(op: Op) -> time_model.TimeModel:
    """The model whose constants an op's own times give. Raises ValueError."""
    model = model_fit.model_of(op)
    if model.name != f"{op.name}_model":
        base_name = model.name.removesuffix("_model")
        raise ValueError(
            f"{op.name} chooses by the constants of {base_name}: tune {base_name} instead"
        )
    return model


def run(op: Op, folder: Path, device: torch.device, options: argparse.Namespace) -> int:
    """Raises ValueError, ConfigError."""
    model = _own_model(op)
    tuning = _Tuning(op, folder, device, options)
    arguments_of = {model_timings.call_text(g): g for g in calls(op, options.shapes, options.seed)}
    known = tuning.timed_variants()
    pending = {text: arguments for text, arguments in arguments_of.items() if text not in known}
    print(f"# {describe(device)}")
    print(
        f"{len(arguments_of) - len(pending)} of {len(arguments_of)} shapes were timed before",
        flush=True,
    )
    try:
        tuning.time_calls(pending)
        tuning.check_has_times(len(arguments_of))
        for _ in range(_PASSES):
            tuning.time_choices(arguments_of)
    finally:
        model.use(None)
    return write_model(op, tuning.file, folder, *tuning.chip, tuning.origin, describe(device))


class _Tuning:
    """One run: an op on a device, and the file of its times."""

    def __init__(
        self, op: Op, folder: Path, device: torch.device, options: argparse.Namespace
    ) -> None:
        self.op, self.device, self.options = op, device, options
        self.file, self.chip = model_timings.path_of(op, folder), routing.chip(device)
        self.origin = model_timings.device_name(device)
        self.count, self.begin = options.top or VARIANTS, time.monotonic()

    def timed_variants(self) -> dict[str, set[Variant]]:
        """The variants that were timed, by the texts of calls."""
        if not self.file.is_file():
            return {}
        timings = model_timings.by_call(self.op, self.file, *self.chip, self.origin)
        return {text: set(timed.variants) for (*_, text), timed in timings.items()}

    def check_has_times(self, num_calls: int) -> None:
        """Raises ValueError where no variant ran, or kernels have none that the model ranks."""
        if not self.timed_variants():
            raise ValueError(
                f"{self.op.name}: none of {num_calls} shapes has a time on {self.chip[0]}: no "
                "kernel has variants that the model ranks there, or none of them ran (then it is "
                f"said above); for a table of rows: rfops tune {self.op.name} without --model"
            )

    def fit(self) -> model_fit.Fitted | None:
        if not self.file.is_file():
            return None
        timed = model_timings.read(self.op, self.file, *self.chip, self.origin)
        samples = [model_fit.sample_of(self.op, timed_call) for timed_call in timed]
        return model_fit.fit(model_fit.model_of(self.op), samples) if samples else None

    def time_calls(self, pending: Mapping[str, Mapping[str, Any]]) -> None:
        if self.options.executor:
            self._by_executor(pending, {})
            return
        fitted = self.fit() if pending else None
        for number, (text, arguments) in enumerate(pending.items(), start=1):
            if number % _REFIT == 0:
                fitted = self.fit()
            self._time_here(text, arguments, fitted, None, f"{number}/{len(pending)}")

    def time_choices(self, arguments_of: Mapping[str, Mapping[str, Any]]) -> None:
        """What the fit chooses for these calls."""
        known = self.timed_variants()
        if self.options.executor:
            self._by_executor(arguments_of, known)
            return
        fitted = self.fit()
        for number, (text, arguments) in enumerate(arguments_of.items(), start=1):
            self._time_here(
                text, arguments, fitted, known.get(text, ()), f"{number}/{len(arguments_of)}"
            )

    def _time_here(self, text: str, arguments: Any, fitted: Any, known: Any, number: str) -> None:
        times, failures = time_task(
            self.op.name, arguments, str(self.device), self.count, (), fitted, known
        )
        self._record(text, times, failures, f"[{number}, {time.monotonic() - self.begin:.0f} s]")

    def _by_executor(
        self, pending: Mapping[str, Mapping[str, Any]], known: Mapping[str, set[Variant]]
    ) -> None:
        task = "rfops.cli.tune_model:time_task"
        shared_args = self.device.type, self.count, loaded(), self.fit()
        tasks = [
            Task(text, task, (self.op.name, arguments, *shared_args, known.get(text)))
            for text, arguments in pending.items()
        ]

        def on_outcome(number: int, outcome: Outcome, progress: str) -> None:
            times, failures = outcome.result or ([], [])
            if outcome.error:
                failures = [*failures, f"{tasks[number].label}: {outcome.error}"]
            self._record(tasks[number].label, times, failures, progress)

        if tasks:
            workers = executor.pool(self.options, self.device.type != "cpu", tuple(self.op.modules))
            say = functools.partial(print, file=sys.stderr)
            Run(workers, tasks, on_outcome, self.options.limit, say)()

    def _record(
        self, text: str, times: Sequence[Time], failures: Sequence[str], progress: str
    ) -> None:
        for failure in failures:
            print(f"  {failure}", file=sys.stderr, flush=True)
        if times:
            rows = model_timings.rows_of(*self.chip, text, times, self.origin)
            model_timings.write(self.file, rows)
            name, config, us = min(times, key=lambda t: t[2])
            best = f"{us:.2f} us by {name} {routing.config_text(config)}"
            print(f"{progress} {text}: {best}; {len(times)} variants", flush=True)


def write_model(
    op: Op,
    timings: Path,
    folder: Path,
    arch: str,
    cu_num: int,
    origin: str,
    device: str,
) -> int:
    """Fit, and replace the rows of this chip. Raises ValueError."""
    model = _own_model(op)
    timed = model_timings.read(op, timings, arch, cu_num, origin)
    model.use({})  # those of the file may be of other terms
    samples = [model_fit.sample_of(op, timed_call) for timed_call in timed]
    model.use(None)
    if len(samples) < model_fit.FOLDS:
        requirement = f"at least {model_fit.FOLDS} shapes with times on {arch}"
        raise ValueError(f"{op.name}: {timings} must have {requirement}, got {len(samples)}")
    regret, fitted = model_fit.best_of(model, samples)
    count = sum(len(sample.us) for sample in samples)
    source = f"{device}; {len(samples)} shapes, {count} times; {regret} by 5-fold cross-validation"
    digest_of = digests(op, model)
    rows = []
    for (kernel, family), constants in sorted(fitted.items()):
        cells = arch, cu_num, kernel, family, *time_model.text_of(model, constants), origin
        rows.append([*cells, f"{source}; kernel {digest_of[kernel]}, timing model {digest_of['']}"])
    file = folder / f"{model.name}.csv"
    time_model.replace_rows(file, arch, cu_num, rows)
    print(f"{len(samples)} shapes, {count} times: {regret}")
    print(f"{file}: use it with RFOPS_CONFIGS={folder}")
    return 0
