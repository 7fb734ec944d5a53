"""`rfops bench step`: one decode step of a model, estimated launch by launch as a chain.

The virtual GPU's timing mode gives each launch, as a captured graph runs it. What a launch reads of
launches before it is in the Infinity Cache; weights and the KV cache are not: between two uses of a
weight lie all other weights of a GPU, tens of GB, and the cache has 256 MB. So an op is timed with
cold and with warm operands, and its time lies between them by the share of its bytes that are cold.

Where rfops has no op, a part's bytes at the rate that the model lets HBM deliver stand for it, and
say so. All-reduces are no kernels here: published times stand for them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfops.cli.common import virtual_arch, with_ops
from rfops.cli.step.models import MODELS, Component, Setup
from rfops.jit import settings

# us of an all-reduce among 8 MI355X, by bytes of each GPU: vLLM's own kernel as of pull request
# 39080 of vllm-project/vllm, April 2026, TP8, bf16. Between sizes a straight line.
_ALL_REDUCE = ((24 << 10, 6.4), (96 << 10, 6.8), (384 << 10, 7.5), (1536 << 10, 12.9))
_COLUMNS = (
    "block",
    "launch",
    "kernel",
    "us",
    "alone us",
    "share",
    "MB",
    "TB/s",
    "floor us",
    "kind",
)


@dataclass(frozen=True)
class Time:
    """Of a part: in the chain, and alone with cold caches."""

    component: Component
    us: float
    alone_us: float
    kernel: str
    kind: str  # estimated, bytes (no op), published
    bytes: int
    floor_us: float


def main(words: Sequence[str]) -> int:
    """Print the step's table. Raises ValueError for what does not go together."""
    options = _arguments().parse_args(words)
    setup = Setup(options.tp, options.batch, options.context)
    if min(setup) < 1:
        raise ValueError("--tp, --batch and --context: expected 1 or more")
    arch = virtual_arch(options.arch, options.part)
    with settings.put("RFOPS_VGPU_ARCH", arch):
        with_ops()
        return _run(options, setup, arch)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rfops bench step", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", choices=MODELS, default="deepseek-v3")
    parser.add_argument("--tp", type=int, default=8, help="GPUs that share a layer; default 8")
    parser.add_argument("--batch", type=int, default=16, help="sequences; default 16")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each; default 4096")
    parser.add_argument("--arch", help="gfx942 or gfx950; default: RFOPS_VGPU_ARCH")
    parser.add_argument("--part", help="MI300X, MI308X, MI355X, ...")
    parser.add_argument("--csv", type=Path, help="write the table there")
    parser.add_argument("--plot", type=Path, help="draw it there (needs matplotlib)")
    return parser


def _run(options: argparse.Namespace, setup: Setup, arch: str) -> int:
    from rfops.cli.step import times

    model = MODELS[options.model]
    components = list(model.components(setup))
    title = f"{options.model} on {setup.num_gpus} x {options.part or arch}, batch {setup.batch}, "
    title += f"{setup.context} tokens of context"
    print(f"# {title}; estimated, nothing here is measured")
    timed = []
    for time in times.estimates(components, arch, options.part, setup.num_gpus):
        timed.append(time)
        print(f"  {time.component.block}: {time.component.name}: {time.us:.1f} us", file=sys.stderr)
    print("\n".join(table(timed, model.layers)))
    if options.csv:
        _write(options.csv, timed, model.layers)
    if options.plot:
        from rfops.cli import drawing

        drawing.check()
        drawing.save(options.plot, lambda: times.draw(title, timed, model.layers))
    return 0


def all_reduce_us(size: int, num_gpus: int) -> float:
    """The published time of so many bytes, by a straight line between sizes; 0 on one GPU."""
    if num_gpus == 1:
        return 0.0
    sizes = (*_ALL_REDUCE,)
    smaller = [pair for pair in sizes[:-1] if pair[0] <= size] or [sizes[0]]
    (x0, y0), (x1, y1) = smaller[-1], sizes[sizes.index(smaller[-1]) + 1]
    return max(sizes[0][1], y0 + (y1 - y0) * (size - x0) / (x1 - x0))


def rows(times: Sequence[Time], layers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Of the table, a launch each."""
    step = sum(time.us * layers[time.component.block] for time in times)
    for t in times:
        yield {
            "block": t.component.block,
            "launch": t.component.name,
            "kernel": t.kernel,
            "us": t.us,
            "alone us": t.alone_us,
            "share": t.us * layers[t.component.block] / step,
            "MB": t.bytes / 1e6,
            "TB/s": t.bytes / t.us / 1e6 if t.us else 0.0,
            "floor us": t.floor_us,
            "kind": t.kind,
        }


def table(times: Sequence[Time], layers: Mapping[str, int]) -> list[str]:
    """The launches, the blocks, the step, and what caches make of the sum."""
    cells = [list(_COLUMNS), *([_cell(n, row[n]) for n in _COLUMNS] for row in rows(times, layers))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in cells]
    blocks = {block: sum(t.us for t in times if t.component.block == block) for block in layers}
    counts = [f"{layers[block]} x {block} {us:.1f} us" for block, us in blocks.items()]
    step = sum(us * layers[block] for block, us in blocks.items())
    alone = sum(t.alone_us * layers[t.component.block] for t in times)
    lines += ["", f"step {step / 1e3:.2f} ms: {', '.join(counts)}"]
    if {"attention", "experts"} <= {*blocks}:
        lines.append(f"layer with experts {blocks['attention'] + blocks['experts']:.1f} us")
    lines.append(
        f"each launch alone, with cold caches: {alone / 1e3:.2f} ms; what earlier launches leave "
        f"in caches saves {1 - step / alone:.1%}"
    )
    kinds = {t.kind: 0.0 for t in times}
    for t in times:
        kinds[t.kind] += t.us * layers[t.component.block] / step
    lines.append(
        "of the step: " + ", ".join(f"{kind} {share:.0%}" for kind, share in kinds.items())
    )
    return lines


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if name == "share" else f"{value:.3g}"


def _write(file: Path, times: Sequence[Time], layers: Mapping[str, int]) -> None:
    import pandas as pd

    pd.DataFrame(rows(times, layers), columns=[*_COLUMNS]).to_csv(file, index=False)
