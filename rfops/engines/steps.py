"""The steps of an engine, a batch through the model each: the estimated time of their launches by
kernel, from where each step began on the model's clock (tally.py)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from rfops.vgpu import report

MOST_KERNELS = 20  # of the table
MOST_SIZES = 6  # of steps


@dataclass
class Step:
    """One batch: its tokens, and us by kernel."""

    tokens: int
    us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


def read(folder: Path) -> list[Step]:
    """All steps of all processes of a run. A step has the launches from its beginning on, to the
    next one's; launches before the first are of no step."""
    steps: list[Step] = []
    for file in sorted(folder.glob("engine-*.json")):
        begun = json.loads(file.read_text(encoding="utf-8"))["steps"]
        launches = file.with_name(f"{file.stem.removeprefix('engine-')}.jsonl")
        if begun and launches.exists():
            steps += _of_process(begun, report.times(launches))
    return steps


def _of_process(
    begun: Sequence[tuple[int, float]], times: Iterator[tuple[str, float]]
) -> list[Step]:
    """`begun` has the tokens of each step and the us before it."""
    steps = [Step(tokens) for tokens, _ in begun]
    clock, index = 0.0, -1
    for kernel, us in times:
        while index + 1 < len(begun) and begun[index + 1][1] <= clock + us / 2:
            index += 1
        if index >= 0:
            steps[index].us[report.readable(kernel)] += us
        clock += us
    return steps


def text(steps: Sequence[Step]) -> str:
    """The mean step of each number of tokens by kernel, as a table; "" without steps."""
    if not steps:
        return ""
    counts = Counter(step.tokens for step in steps)
    sizes = sorted((size for size, _ in counts.most_common(MOST_SIZES)), reverse=True)
    means = {size: defaultdict[str, float](float) for size in sizes}
    for step in steps:
        for kernel, us in step.us.items() if step.tokens in means else ():
            means[step.tokens][kernel] += us / counts[step.tokens]
    kernels = {
        kernel: sum(mean.get(kernel, 0.0) for mean in means.values())
        for kernel in chain.from_iterable(means.values())
    }
    rows = [("kernel", *(f"{size} x {counts[size]}" for size in sizes))]
    for kernel in sorted(kernels, key=kernels.__getitem__, reverse=True)[:MOST_KERNELS]:
        rows.append((kernel, *(f"{mean.get(kernel, 0.0):.2f}" for mean in means.values())))
    rows.append(("all", *(f"{sum(mean.values()):.2f}" for mean in means.values())))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["steps: estimated us of the mean step, by its tokens x how many there were"]
    for name, *numbers in rows:
        cells = [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join(("", *cells, name)))
    return "\n".join(lines)
