"""Predicted against published: errors a kernel, then medians over kernels, ranks and pairs.

Rows of one kernel are correlated, so that the figure of a class is the median of its kernels'
medians; the 90th percentile is over rows. An error is predicted / published - 1."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
FROM_US = 15.0  # below, two published measurements of one kernel differ by 20 to 30 %
OFF = 0.4  # a kernel's median error that is no noise
CLEAR = 1.25  # published times of a pair of variants that differ by so much have an order
HEAD = f"{'rows':>5} {'median':>7} {'p90':>7} {'bias':>6} {'in band':>7}"
RANKED = 3  # variants of one problem that a rank correlation needs


@dataclass(frozen=True)
class Figures:
    rows: int
    median: float
    p90: float
    bias: float  # geometric mean of predicted / published
    inside: float  # share of the published times that lie in the prediction's band


def figures(records: Sequence[Record]) -> Figures:
    errors = [abs(error(record)) for record in records]
    bias = statistics.geometric_mean(1 + error(record) for record in records)
    inside = [r.get("low", 0) <= r["published_us"] <= r.get("high", 0) for r in records]
    return Figures(len(records), statistics.median(errors), p90(errors), bias,
                   statistics.mean(inside))  # fmt: skip


def error(record: Record) -> float:
    return float(record["predicted_us"] / record["published_us"] - 1)


def p90(values: Iterable[float]) -> float:
    """The smallest value that 90 % of them do not exceed."""
    ordered = sorted(values)
    return ordered[-(-9 * len(ordered) // 10) - 1]


def groups(records: Iterable[Record], key: Callable[[Record], Hashable]) -> dict[Any, list[Record]]:
    found: dict[Hashable, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def kernels(records: Iterable[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """By op, part and kernel."""
    return groups(records, lambda r: (r["op"], r["part"], r["kernel"]))


def classes(records: Sequence[Record]) -> dict[tuple[str, str], dict[str, float]]:
    """Of each op and part, and of the op's class on all parts: rows and kernels above FROM_US, the
    median over kernels of the median error, the 90th percentile of rows, the bias, and how many
    kernels' medians are above OFF."""
    above = [r for r in records if r["published_us"] >= FROM_US]
    found = groups(above, lambda r: (r["op"], r["part"]))
    found |= groups(above, lambda r: (f"all {r['op'].partition('_')[0]}", "all"))
    table = {}
    for name, its in sorted(found.items()):
        one = figures(its)
        medians = [figures(rows).median for rows in kernels(its).values()]
        table[name] = {
            "kernels": len(medians), "rows": one.rows, "median": statistics.median(medians),
            "p90": one.p90, "bias": one.bias, "inside": one.inside,
            "off": sum(m > OFF for m in medians),
        }  # fmt: skip
    return table


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]


def rank_correlation(predicted: Sequence[float], published: Sequence[float]) -> float | None:
    """Spearman's; None where one side is all equal."""
    a, b = ranks(predicted), ranks(published)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return statistics.correlation(a, b)


def _problems(records: Iterable[Record]) -> list[list[Record]]:
    """Records of different variants of the same problem."""
    found = groups(records, lambda r: (r["op"], r["part"], r["shape"]))
    variants = [groups(its, lambda r: (r["kernel"], r["split_k"])) for its in found.values()]
    return [[its[0] for its in one.values()] for one in variants]


def order(records: Sequence[Record]) -> dict[str, float | int | None]:
    """Mean rank correlation over problems with RANKED variants and more, and the share of pairs,
    CLEAR in their published times, that are predicted in that order."""
    found, right, pairs = [], 0, 0
    for its in _problems(records):
        if len(its) >= RANKED:
            sides = ([r[name] for r in its] for name in ("predicted_us", "published_us"))
            found += [c for c in [rank_correlation(*sides)] if c is not None]
        for a, b in itertools.combinations(sorted(its, key=lambda r: r["published_us"]), 2):
            if b["published_us"] >= CLEAR * a["published_us"]:
                pairs += 1
                right += a["predicted_us"] < b["predicted_us"]
    return {
        "problems": len(found), "rank_correlation": statistics.mean(found) if found else None,
        "pairs": pairs, "pairs_right": right / pairs if pairs else None,
    }  # fmt: skip


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """All figures of those that were predicted, as they go into the JSON file."""
    done = [r for r in records if "predicted_us" in r]
    by_kernel = [
        {"op": op, "part": part, "kernel": kernel, **figures(its).__dict__}
        for (op, part, kernel), its in sorted(kernels(done).items())
    ]
    by_class = [{"op": op, "part": part, **its} for (op, part), its in classes(done).items()]
    skipped = groups((r for r in records if "skipped" in r), lambda r: r["skipped"])
    return {
        "rows": len(records), "predicted": len(done), "kernels": by_kernel, "classes": by_class,
        "order": order(done), "skipped": {why: len(its) for why, its in skipped.items()},
    }  # fmt: skip


def text(found: dict[str, Any]) -> list[str]:
    """A summary as aligned lines."""
    lines = []
    if found["kernels"]:
        lines += ["", f"{'kernel':64} {'part':7} {HEAD}"]
    lines += [f"{plain(k['kernel']):64} {k['part']:7} {_figures(k)}" for k in found["kernels"]]
    if found["classes"]:
        over = f"over {OFF:.0%}"
        head = f"{'kernels':>8} {HEAD} {over:>9}"
        lines += ["", f"{f'above {FROM_US:g} us, median over kernels':40} {'part':7} {head}"]
    lines += [
        f"{c['op']:40} {c['part']:7} {c['kernels']:8} {_figures(c)} {c['off']:9}"
        for c in found["classes"]
    ]
    ordered = found["order"]
    if ordered["pairs"]:
        lines += ["", f"pairs of variants {CLEAR - 1:.0%} apart in the right order: "
                      f"{ordered['pairs_right']:.0%} of {ordered['pairs']}"]  # fmt: skip
    if ordered["problems"]:
        lines.append(f"rank correlation {ordered['rank_correlation']:.2f}, mean of "
                     f"{ordered['problems']} problems with {RANKED} variants and more")  # fmt: skip
    lines += [f"skipped {count}: {why}" for why, count in found["skipped"].items()]
    return lines


def plain(kernel: str) -> str:
    """A mangled name of one namespace without it: `_ZN5aiter3abcE` is abc."""
    found = re.fullmatch(r"_ZN\d+[a-z]+?(\d+)(\w+)E", kernel)
    return found[2] if found and int(found[1]) == len(found[2]) else kernel


def _figures(f: dict[str, Any]) -> str:
    figures = f"{f['rows']:5} {f['median']:7.1%} {f['p90']:7.1%} {f['bias']:6.2f}"
    return f"{figures} {f['inside']:7.0%}"
