"""Predicted against published: errors per kernel, then medians over kernels, ranks and pairs.

Rows of one kernel are correlated, so that the figure of a class is the median of its kernels'
medians; the 90th percentile is over rows. An error is predicted / published - 1."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]
FROM_US = 15.0  # below, two published measurements of one kernel differ by 20 to 30 %
MAX_NOISE = 0.4  # a kernel's median error that is no noise
CLEAR = 1.25  # published times of a pair of variants that differ by so much have an order
RANKED = 3  # variants of one problem that a rank correlation needs
KERNEL = ["op", "part", "kernel"]
PROBLEM = ["op", "part", "shape"]


def error(record: Record) -> float:
    """Return the relative error of a predicted time: 0.1 is 10 % too long."""
    return float(record["predicted_us"] / record["published_us"] - 1)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """The predicted records, with `ratio` predicted / published, the absolute `error`, and whether
    the published time is `is_inside` the prediction's error interval."""
    import pandas as pd

    columns = [*KERNEL, "shape", "split_k", "predicted_us", "published_us", "low", "high"]
    rows = pd.DataFrame([r for r in records if "predicted_us" in r], columns=columns)
    ratio = (rows["predicted_us"] / rows["published_us"]).astype(float)
    interval = rows[["low", "high"]].astype(float).fillna(0)
    is_inside = rows["published_us"].between(interval["low"], interval["high"])
    return rows.assign(ratio=ratio, error=(ratio - 1).abs(), inside=is_inside.astype(float))


def p90(values: pd.Series[float]) -> float:
    """The smallest value that 90 % of them do not exceed."""
    return float(values.sort_values().iloc[-(-9 * len(values) // 10) - 1])


def figures(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Per group: rows, median and 90th percentile of the error, the geometric mean of predicted /
    published (`bias`), the share of published times inside the error interval."""
    return rows.groupby(keys).agg(
        rows=("error", "size"),
        median=("error", "median"),
        p90=("error", p90),
        bias=("ratio", statistics.geometric_mean),
        inside=("inside", "mean"),
    )


def classes(rows: pd.DataFrame) -> pd.DataFrame:
    """Figures of rows above FROM_US per op and part, and per class of ops on all parts. `median` is
    that over kernels of the median error, `off` how many kernels' medians are above OFF."""
    import pandas as pd

    timed = rows[rows["published_us"] >= FROM_US]
    family = "all " + timed["op"].astype(str).str.replace("_.*", "", regex=True)
    grouped = pd.concat(
        [timed.assign(of=timed["op"], on=timed["part"]), timed.assign(of=family, on="all")]
    )
    medians = grouped.groupby(["of", "on", *KERNEL])["error"].median().groupby(level=["of", "on"])
    class_figures = figures(grouped, ["of", "on"]).assign(
        kernels=medians.size(),
        median=medians.median(),
        off=medians.agg(lambda m: (m > MAX_NOISE).sum()),
    )
    return class_figures.rename_axis(["op", "part"])


def order(rows: pd.DataFrame) -> dict[str, float | int | None]:
    """The mean of Spearman's rank correlation over problems with RANKED variants or more, and the
    share of pairs, CLEAR in their published times, that are predicted in that order."""
    variants = rows.drop_duplicates([*PROBLEM, "kernel", "split_k"])
    times = ["predicted_us", "published_us"]
    ranked = variants.groupby(PROBLEM).filter(lambda variants_: len(variants_) >= RANKED)
    ranks = ranked[PROBLEM].join(ranked.groupby(PROBLEM)[times].rank())
    correlations = [
        variants_["predicted_us"].corr(variants_["published_us"])
        for _, variants_ in ranks.groupby(PROBLEM)
        if variants_[times].nunique().min() > 1
    ]
    pairs = variants.merge(variants, on=PROBLEM, suffixes=("", "_slower"))
    pairs = pairs[pairs["published_us_slower"] >= CLEAR * pairs["published_us"]]
    is_right = pairs["predicted_us"] < pairs["predicted_us_slower"]
    return {
        "problems": len(correlations),
        "rank_correlation": statistics.mean(correlations) if correlations else None,
        "pairs": len(pairs),
        "pairs_right": float(is_right.mean()) if len(pairs) else None,
    }


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """All figures of the predicted records, as they go into the JSON file."""
    rows = table(records)
    return {
        "rows": len(records),
        "predicted": len(rows),
        "kernels": figures(rows, KERNEL).reset_index().to_dict("records"),
        "classes": classes(rows).reset_index().to_dict("records"),
        "order": order(rows),
        "skipped": Counter(r["skipped"] for r in records if "skipped" in r),
    }


FORMATS = {
    "kernels": "{}",
    "rows": "{}",
    "median": "{:.1%}",
    "p90": "{:.1%}",
    "bias": "{:.2f}",
    "inside": "{:.0%}",
    "off": "{}",
}


def _aligned(rows: Sequence[Record], name: str, title: str) -> list[str]:
    """A table of the columns in FORMATS, each row called by its cell `name` and its part."""
    import pandas as pd

    if not rows:
        return []
    frame = pd.DataFrame(rows)
    figures = [column for column in FORMATS if column in frame]
    width = max(map(len, (title, *frame[name].map(readable_name))))
    formats = {name: lambda text: readable_name(text).ljust(width)}
    formats |= {column: FORMATS[column].format for column in figures}
    heads = [title.ljust(width), "part", *figures]
    heads = [
        {"inside": "in band", "off": f"over {MAX_NOISE:.0%}"}.get(head, head) for head in heads
    ]
    return [
        "",
        *frame.to_string(
            columns=[name, "part", *figures], index=False, header=heads, formatters=formats
        ).splitlines(),
    ]


def text(scores: dict[str, Any]) -> list[str]:
    """A summary as aligned lines."""
    lines = _aligned(scores["kernels"], "kernel", "kernel")
    lines += _aligned(scores["classes"], "op", f"above {FROM_US:g} us, median over kernels")
    ordered = scores["order"]
    if ordered["pairs"]:
        lines += [
            "",
            f"pairs of variants {CLEAR - 1:.0%} apart in the right order: "
            f"{ordered['pairs_right']:.0%} of {ordered['pairs']}",
        ]
    if ordered["problems"]:
        lines.append(
            f"rank correlation {ordered['rank_correlation']:.2f}, mean of "
            f"{ordered['problems']} problems with {RANKED} variants and more"
        )
    lines += [f"skipped {count}: {reason}" for reason, count in scores["skipped"].items()]
    return lines


def readable_name(kernel: str) -> str:
    """A mangled name of one namespace without it: `_ZN5aiter3abcE` is abc."""
    match = re.fullmatch(r"_ZN\d+[a-z]+?(\d+)(\w+)E", kernel)
    return match[2] if match and int(match[1]) == len(match[2]) else kernel
