"""`rfops tune OP --prune --out FOLDER`: judges the rows of a table again.

Each row of this chip and of this kind of times (measured on a GPU, estimated on the virtual one) is
timed beside what the call takes without it, the nearest row, else the choice by the op's time
model, and beside the variants that the model predicts quickest (`--top` of them). All are timed in
the layouts that the op has, and compared by the geometric mean over layouts with the best variant
of all that have times in each, those of earlier runs included:

| what | then |
|---|---|
| the call without the row takes at most 2 % longer, in no layout more than 5 % | the row goes |
| the row's variant takes more than 3 % longer | the best variant replaces it |
| else | the row stays |

`us` of a row that stays is the new time, in the last of the layouts. All rows are timed first, the
cheapest first; then they are judged, those of many tokens first, as they are the nearest ones of
fewer. Times are kept in FOLDER/<op>_timings.csv, as those of `--model`: an interrupted run may be
repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import torch

from rfops.cli import model_fit, model_timings, tune_model
from rfops.cli.bench import describe
from rfops.cli.model_source import digests
from rfops.cli.tuned_file import File
from rfops.dispatch import routing, tuned_table
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.problem import call_on
from rfops.jit import paths

if TYPE_CHECKING:
    import pandas as pd

# Of a call without the row over the best: of the mean over layouts, and of each.
MARGIN, MAX_RATIO = 1.02, 1.05
MAX_ROW_RATIO = 1.03  # of a row's variant over the best
PREDICTED = 4  # variants of each layout that are timed beside a row

Row = Mapping[str, str]
Variant = tune_model.Variant


class Times:
    """Times of calls' variants: those of a file, and those that are taken."""

    def __init__(self, op: Op, folder: Path, device: torch.device) -> None:
        self.op, self.device, self.chip = op, device, routing.chip(device)
        self.file = model_timings.path_of(op, folder)
        self.origin = model_timings.device_name(device)
        self.known: dict[str, dict[Variant, float]] = {}
        if self.file.is_file():
            timings = model_timings.by_call(op, self.file, *self.chip, self.origin)
            for (*_, text), timed in timings.items():
                self.known[text] = dict(zip(timed.variants, timed.us, strict=True))

    def of(
        self, arguments: Mapping[str, Any], c: Call, variants: Sequence[Variant]
    ) -> tuple[Mapping[Variant, float], list[str]]:
        """Of a call all times, with those of these variants; and why some do not run."""
        text = model_timings.call_text(arguments)
        known = self.known.setdefault(text, {})
        unknown = [variant for variant in dict.fromkeys(variants) if variant not in known]
        timings = list(tune_model.times_of(self.op, c, unknown))
        times = [time for time in timings if not isinstance(time, str)]
        known |= {(name, config): us for name, config, us in times}
        if times:
            rows = model_timings.rows_of(*self.chip, text, times, self.origin)
            model_timings.write(self.file, rows)
        return known, [time for time in timings if isinstance(time, str)]


@dataclass(frozen=True)
class Verdict:
    """What becomes of a row, and why."""

    action: str  # kept, dropped, replaced
    reason: str
    cells: Mapping[str, str] = field(default_factory=dict)  # of a row that has new ones


def run(op: Op, folder: Path, device: torch.device, options: argparse.Namespace) -> int:
    """Raises ValueError, ConfigError."""
    if options.executor:
        raise ValueError("--prune: rows are timed in this process, without --executor")
    model = model_fit.model_of(op)
    assert op.tuned is not None, f"{op.name} has no table"
    file, origin = File(folder, op.tuned), model_timings.device_name(device)
    arch, cu_num = routing.chip(device)
    rows = file.rows()
    mine = rows[(rows.arch == arch) & (rows.cu_num == str(cu_num)) & (rows.origin == origin)]
    mine = mine[mine.kernel != ""]
    print(f"# {describe(device)}")
    print(f"{len(mine)} of {len(rows)} rows are {origin} on {arch} with {cu_num} CUs", flush=True)
    source = f"{describe(device)}; timing model {digests(op, model)['']}"
    judge = Judge(op, file, Times(op, folder, device), source, options.top or PREDICTED)
    counts = dict.fromkeys(("kept", "dropped", "replaced"), 0)
    cheapest_first = sorted((row for _, row in mine.iterrows()), key=judge.flops)
    for number, row in enumerate(cheapest_first, start=1):
        print(f"[{number}/{len(mine)}] {judge.text(row)}: {judge.verdict(row).reason}", flush=True)
    lead_column = op.tuned.sizes[0]
    in_order = mine.sort_values(lead_column, key=_numbers, ascending=False, kind="stable")
    for _, row in in_order.iterrows():
        verdict = judge.verdict(row)
        counts[verdict.action] += 1
        if verdict.action == "dropped":
            file.drop(row)
        elif verdict.cells:
            file.replace(row, verdict.cells)
        print(f"{verdict.action}  {judge.text(row)}: {verdict.reason}", flush=True)
    said = ", ".join(f"{count} {action}" for action, count in counts.items())
    print(f"{file.path}: of {len(mine)} rows {said}")
    return 0


def _numbers(cells: pd.Series[str]) -> pd.Series[int]:
    """Of cells as they are in a file."""
    return cells.replace("", "0").astype(int)


@dataclass(frozen=True)
class Judge:
    op: Op
    file: File
    times: Times
    source: str  # of new times
    top: int

    def text(self, row: Row) -> str:
        return " ".join(f"{name}={row[name]}" for name in self._tuned.sizes)

    @property
    def _tuned(self) -> tuned_table.Tuned:
        assert self.op.tuned is not None, f"{self.op.name} has no table"
        return self.op.tuned

    def arguments(self, row: Row) -> list[dict[str, Any]]:
        """Of a call in each layout."""
        pairs = zip(self.op.table, self._tuned.sizes, strict=True)
        given = {name: int(row[column]) for name, column in pairs if row[column]}
        sizes = self.op.sizes_of_row(given)
        return [{**sizes, **layout} for layout in self.op.layouts(sizes)]

    def flops(self, row: Row) -> int:
        return self.op.flops(call_on(self.op, self.arguments(row)[0], self.times.device))

    def verdict(self, row: Row) -> Verdict:
        """Time what is not timed yet, and compare."""
        arguments = self.arguments(row)
        calls = [call_on(self.op, given, self.times.device) for given in arguments]
        kernel = self.op.kernels[row["kernel"]]
        config = self.op.parse_config(kernel, row["config"])
        named = [(kernel.name, kernel.default(c) if config is None else config) for c in calls]
        without = [fallback_for(self.op, c, row, self.file) for c in calls]
        fallbacks = [variant for variant in without if variant is not None]
        if len(fallbacks) < len(calls):
            return Verdict("kept", "no kernel takes it without")
        predicted = [v for c in calls for v in tune_model.choices(self.op, c, (), self.top)]
        candidates = [v for v in dict.fromkeys(predicted) if all(self._runs(v, c) for c in calls)]
        times = list[Mapping[Variant, float]]()
        for given, c, own, fallback in zip(arguments, calls, named, fallbacks, strict=True):
            known, failed = self.times.of(given, c, [own, fallback, *candidates])
            if not {own, fallback} <= known.keys():
                return Verdict("kept", failed[0])
            times.append(known)
        in_all = [v for v in times[0] if all(v in known for known in times)]
        return self._compared(row, times, named, fallbacks, in_all)

    def _runs(self, variant: Variant, c: Call) -> bool:
        kernel = self.op.kernels[variant[0]]
        is_supported = kernel.unsupported_reason(c) is None
        return is_supported and kernel.unsupported_config_reason(c, variant[1]) is None

    def _compared(
        self,
        row: Row,
        times: Sequence[Mapping[Variant, float]],
        named: Sequence[Variant],
        fallbacks: Sequence[Variant],
        candidates: Sequence[Variant],
    ) -> Verdict:
        def us_of(variants: Sequence[Variant]) -> list[float]:
            return [known[variant] for known, variant in zip(times, variants, strict=True)]

        own_us, without_us = us_of(named), us_of(fallbacks)
        options = [[*named], *([variant] * len(times) for variant in candidates)]
        best = min(options, key=lambda variants: geometric_mean(us_of(variants)))
        best_us = us_of(best)
        ratio = geometric_mean(own_us) / geometric_mean(best_us)
        reason = f"{_us(own_us)} us, {ratio:.3f} of the best, {_us(best_us)} by {_text(best[0])}"
        reason += f"; without it {_us(without_us)} by {_text(fallbacks[-1])}"
        ratios = [us / min_us for us, min_us in zip(without_us, best_us, strict=True)]
        if geometric_mean(ratios) <= MARGIN and max(ratios) <= MAX_RATIO:
            return Verdict("dropped", reason)
        cells = {"origin": self.times.origin, "source": self.source}
        if ratio <= MAX_ROW_RATIO:
            return Verdict("kept", reason, cells | {"us": f"{own_us[-1]:.3f}"})
        name, config = best[0]
        cells |= {"kernel": name, "config": routing.config_text(config)}
        return Verdict("replaced", reason, cells | {"us": f"{best_us[-1]:.3f}"})


def _us(times: Sequence[float]) -> str:
    return ", ".join(f"{us:.2f}" for us in times)


def _text(variant: Variant) -> str:
    return f"{variant[0]} {routing.config_text(variant[1])}".rstrip()


def fallback_for(op: Op, c: Call, row: Row, file: File) -> Variant | None:
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
    return taken(op, c, selector)


def taken(op: Op, c: Call, selector: routing.KernelSelector | None = None) -> Variant | None:
    """The kernel and the variant that a call takes, by these rows or by the op's own; None: no
    kernel that can be timed."""
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
