"""Estimated rows of the shipped tables against the best of the variants that were timed beside
them: the times of `rfops tune OP --prune`, in op_tests/choices/rows. Shapes whose row was dropped
are among them. Where other constants choose otherwise, judge the rows again (CHOICES.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import pytest

from rfops.cli import model_timings
from rfops.cli.model_fit import Timed
from rfops.cli.tune_prune import MAX_RATIO, MAX_ROW_RATIO, Variant, taken
from rfops.dispatch.op import Op, ops
from rfops.jit.arch import ARCH_SPECS

ROWS = Path(__file__).parents[1] / "choices" / "rows"
NAMES = sorted(file.name.removesuffix("_timings.csv") for file in ROWS.glob("*.csv"))
MIN_TIMED = 0.5  # of shapes without a row: another choice may come with other constants


def shapes(op: Op) -> Iterator[list[Timed]]:
    """The calls of each shape, in all layouts."""
    for arch, spec in ARCH_SPECS.items():
        by_sizes: dict[tuple[int, ...], list[Timed]] = {}
        for timed in model_timings.read(op, model_timings.path_of(op, ROWS), arch, spec.cus):
            by_sizes.setdefault(op.table_sizes(timed.call), []).append(timed)
        yield from by_sizes.values()


def best_us(layouts: list[dict[Variant, float]]) -> float:
    """Of the variants that are timed in all layouts."""
    common = set.intersection(*(set(us) for us in layouts))
    return min(geometric_mean([us[variant] for us in layouts]) for variant in common)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_take_the_best_that_was_timed(name: str) -> None:
    op = ops()[name]
    row_ratios, other_ratios, untimed = dict[str, float](), dict[str, float](), list[str]()
    for timed_calls in shapes(op):
        layouts = [dict(zip(one.variants, one.us, strict=True)) for one in timed_calls]
        calls = [one.call for one in timed_calls]
        variants = [taken(op, c) for c in calls]
        has_row = op.route(calls[0]).rule == "exact row"
        if any(v not in us for v, us in zip(variants, layouts, strict=True)):
            assert not has_row, f"{calls[0]}: its row's {variants[0]} has no time"
            untimed.append(str(calls[0]))
            continue
        us = geometric_mean(us[v] for v, us in zip(variants, layouts, strict=True) if v)
        (row_ratios if has_row else other_ratios)[str(calls[0])] = us / best_us(layouts)
    for ratios, limit in ((row_ratios, MAX_ROW_RATIO), (other_ratios, MAX_RATIO)):
        worst = max(ratios, key=lambda call: ratios[call], default="")
        assert not worst or ratios[worst] <= limit, (worst, ratios[worst])
    assert len(untimed) <= (1 - MIN_TIMED) * (len(untimed) + len(other_ratios)), untimed
