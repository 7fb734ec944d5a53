"""`rfops bench OP`: each shape of a set is checked against the plain reference, then timed; on the
virtual GPU a time is an estimate by timing mode. A wrong result is an exit status of 1."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.util
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

import rfops
from rfops import vgpu
from rfops.cli import executor, peers, why
from rfops.cli.common import load_ops, loaded
from rfops.cli.executor.driver import Outcome, Run, Task
from rfops.cli.peers.calls import PeerCall
from rfops.dispatch import cost, routing
from rfops.dispatch.declare import DTYPES
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import call_on

Row = dict[str, Any]
QUICK = 3  # shapes of the quick subset
COLUMNS = (
    "shape",
    "kernel",
    "us",
    "kind",
    "floor us",
    "bound",
    "share",
    "TB/s",
    "TFLOPS",
    "peer us",
    "peer",
    "published",
    "source",
)


def add_shapes(parser: argparse.ArgumentParser, op: Op) -> None:
    """--set, --shape and --device."""
    default = f"default: {next(iter(op.shapes))}" if op.shapes else "this op has none"
    parser.add_argument("--set", nargs="+", choices=op.shapes, default=[], help=default)
    parser.add_argument(
        "--shape",
        nargs="+",
        action="append",
        default=[],
        metavar="VALUE",
        help=f"one shape: {' '.join(op.asked)}, as numbers or as {op.asked[0]}=4; values by name",
    )
    parser.add_argument("--device", type=torch.device, help="default: the GPU, or cpu if none")


def add_arguments(parser: argparse.ArgumentParser, op: Op) -> None:
    """Add the options of `rfops bench OP` to the parser."""
    from rfops.cli import regret  # which needs this module

    add_shapes(parser, op)
    parser.add_argument("--kernel", nargs="+", choices=op.kernels, default=[], help="these as well")
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="DIR",
        help="a checkout of aiter, for fused_moe of vLLM: time all launches of its call too",
    )
    parser.add_argument("--csv", type=Path, help="write all figures there")
    parser.add_argument("--plot", type=Path, help="draw times and floors there (needs matplotlib)")
    shape_group = parser.add_mutually_exclusive_group()
    shape_group.add_argument(
        "--quick",
        action="store_true",
        help=f"the {QUICK} smallest shapes, which is the default on the virtual GPU",
    )
    shape_group.add_argument("--all", action="store_true", help="every shape of the set there too")
    if op.time_model:
        regret.add_arguments(parser)
    executor.add_arguments(parser)


def shapes_of(op: Op, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the options name, the op's first set by default. Raises ValueError."""
    shapes = [shape_of(op, words) for words in options.shape]
    names = options.set or (() if shapes else [*op.shapes][:1])
    shapes += [dict(shape) for name in names for shape in op.shapes[name]]
    if not shapes:
        raise ValueError(f"{op.name} has no set of shapes; pass --shape {' '.join(op.asked)}")
    return shapes


def shape_of(op: Op, words: Sequence[str]) -> dict[str, Any]:
    """Of `4 64 256` or `M=4 N=64 K=256 dtype=f16`. Raises ValueError."""
    d = op.declaration
    kinds = {a.name: a.kind for a in d.values if not a.size} | dict.fromkeys(d.sizes, "int")
    kinds |= {a.name: "bool" for a in d.tensors if a.optional}
    kinds |= {f"{a.name}_dtype": "dtype" for a in d.tensors if len(a.dtypes) > 1}
    kind_of = {name.lower(): name for name in kinds}
    arg_names, shape = iter(op.asked), {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            name, value = next(arg_names, ""), word
        name = kind_of.get(name.lower(), "")
        try:
            shape[name] = _value(kinds[name], value)
        except (KeyError, ValueError) as error:
            expected = f"{' '.join(op.asked)} as numbers, or NAME=VALUE of {', '.join(kinds)}"
            if name in kinds:
                expected = f"for {name} {_VALUES.get(kinds[name], 'a number')}"
            raise ValueError(f"--shape {word}: expected {expected}") from error
    missing = [name for name in op.asked if name not in shape]
    if missing:
        raise ValueError(f"--shape {' '.join(words)}: say {', '.join(missing)} too")
    return shape


_VALUES = {"dtype": f"fp8, the chip's own, or one of {', '.join(DTYPES)}", "bool": "0 or 1"}


def _value(kind: str, text: str) -> Any:
    if kind == "dtype":
        return text if text == "fp8" else DTYPES[text][0]
    if kind == "word":
        return text
    return float(text) if kind == "float" else bool(int(text)) if kind == "bool" else int(text)


def quick(op: Op, shapes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The smallest, in the order of the set."""

    def work(index: int) -> tuple[int, int]:
        c = op.call_of(**shapes[index])
        return op.flops(c), sum(t.numel() for t in op.make_results(c, "meta"))

    return [shapes[index] for index in sorted(sorted(range(len(shapes)), key=work)[:QUICK])]


# ---------------------------------------------------------------- one shape


def bench(
    op: Op,
    shape: dict[str, Any],
    device: torch.device,
    extra_kernels: Iterable[str] = (),
    checkout: Path | None = None,
) -> tuple[Row, list[str]]:
    """A row, and what was wrong; with the quickest call of another project's checkout."""
    sets = cost.problems(op, call_on(op, shape, device), device)
    c = sets[0].call
    kernel, rule, config = op.decide(c, None, None)
    roofline = cost.floor(op, c)
    row: Row = {
        "op": op.name,
        "shape": label(op, shape),
        "kernel": kernel.name,
        "rule": rule,
        "config": routing.config_text(config) if config is not None else "",
        "floor us": roofline.us,
        "bound": roofline.bound,
        "bytes": roofline.bytes,
        "flops": roofline.flops,
    }
    published = op.published(c)
    if published:
        figures, row["source"] = published
        row["published"] = ", ".join(f"{name} {value:g}" for name, value in figures.items())
        row["published us"] = figures.get("us", "")
    if checkout:
        row |= _peer_figures(peers.best(sets[0], checkout))
    elif peer_time := cost.peer(sets):
        row["peer"], row["peer us"] = peer_time
    wrong = []
    for name in ("", *extra_kernels):
        backend = name or kernel.name
        if name and op.kernels[name].unsupported_reason(c) is not None:
            continue
        try:
            measured = cost.measure(sets, backend, route=not name)
        except AssertionError as error:
            wrong.append(f"{op.name} {row['shape']}: {backend} is WRONG: {error}")
        else:
            row |= {f"{name} us": measured.us} if name else _figures(measured, roofline)
            if checkout and not name:
                row["launch times"] = _launches_text(measured.launches)
    return row, wrong


def label(op: Op, shape: dict[str, Any]) -> str:
    """What a row is called: sizes, then values that are no size of the op's table."""
    field_names = {*op.asked, *op.table}
    extra_values = {name: value for name, value in shape.items() if name not in field_names}
    words = [f"{name}={str(value).removeprefix('torch.')}" for name, value in extra_values.items()]
    return " ".join([why.sizes_text(op, op.call_of(**shape)), *words])


def _figures(measured: cost.Cost, roofline: cost.Roofline) -> Row:
    row = {
        "us": measured.us,
        "low us": measured.low,
        "high us": measured.high,
        "kind": measured.kind,
        "gpu": measured.gpu,
        "spread": measured.spread,
        **measured.counters,
    }
    if measured.us:
        row |= {
            "TB/s": roofline.bytes / measured.us / 1e6,
            "TFLOPS": roofline.flops / measured.us / 1e6,
        }
        row["share"] = roofline.us / measured.us if roofline.us else ""
    return row


def _peer_figures(call: PeerCall | None) -> Row:
    if call is None:
        return {"peer lacks": "a kernel that takes this call"}
    figures: Row = {"peer": call.name, "peer us": call.us}
    figures["peer launch times"] = _launches_text(call.launches)
    return figures | {"peer lacks": "; ".join(call.uncounted)}


def _launches_text(launches: Iterable[tuple[str, float]]) -> str:
    return "; ".join(f"{us:.3g} us {name}" for name, us in launches)


def launch_lines(row: Row) -> list[str]:
    """Each launch of the op's call and of the peer's, their sums, the ratio, and what the peer's
    sum lacks, or that no kernel of the peer takes the call."""
    lacking = f"  {'lacking':8}of the peer, not counted: {row.get('peer lacks')}"
    if not row.get("peer launch times"):
        return [lacking] if row.get("peer lacks") else []
    lines = [
        f"  {who:8}{launch}"
        for who, name in (("this", "launch times"), ("peer", "peer launch times"))
        for launch in filter(None, str(row.get(name, "")).split("; "))
    ]
    us, peer_us = row.get("us"), row["peer us"]
    if us:
        total = f"this {us:.3g} us, peer {peer_us:.3g} us, peer over this {peer_us / us:.3g}"
        lines.append(f"  {'total':8}{total}")
    return [*lines, lacking] if row["peer lacks"] else lines


# ---------------------------------------------------------------- the run


def run(op: Op, options: argparse.Namespace) -> int:
    """Check and time the op on the chosen shapes and print the table; return the exit status, 1 if
    a result is wrong. Raises ValueError for options that do not go together."""
    from rfops.cli import bench_plot, drawing, regret

    if options.plot:
        drawing.check()
    device = options.device or cost.default_device()
    if options.peers:
        peers.check(op.name, options.peers, device.type)
    if op.time_model and options.regret is not None:
        return regret.run(op, device, options)
    shapes = shapes_of(op, options)
    selected = shapes
    if not options.shape and (options.quick or (device.type == "cpu" and not options.all)):
        selected = quick(op, shapes)
    print(f"# {describe(device)}")
    if len(selected) < len(shapes):
        print(f"# the {len(selected)} smallest of {len(shapes)} shapes; --all takes every one")
    if device.type == "cpu":
        print("# us: estimated by the virtual GPU's timing mode; nothing here is measured")
    if options.executor:
        rows, wrong = bench_on(op, selected, device, options)
    else:
        rows, wrong = bench_all(op, selected, device, options.kernel, options.peers)
    if options.csv:
        write_csv(options.csv, rows, describe(device))
    if options.plot:
        drawing.save(options.plot, lambda: bench_plot.draw(op.name, rows))
    return 1 if wrong else 0


def bench_all(
    op: Op,
    shapes: Sequence[dict[str, Any]],
    device: torch.device,
    extra_kernels: Sequence[str] = (),
    checkout: Path | None = None,
) -> tuple[list[Row], list[str]]:
    """Rows of all shapes, printed one by one, and what was wrong."""
    show = _Table(op, shapes, extra_kernels)
    for shape in shapes:
        show(*bench(op, shape, device, extra_kernels, checkout))
    return show.end()


class _Table:
    """Rows as they come, and the summary."""

    def __init__(
        self, op: Op, shapes: Sequence[dict[str, Any]], extra_kernels: Sequence[str]
    ) -> None:
        self.extra_kernels, self.rows, self.wrong = extra_kernels, list[Row](), list[str]()
        columns = (*COLUMNS[:3], *[f"{name} us" for name in extra_kernels], *COLUMNS[3:])
        self.widths = {name: max(len(name), 7) for name in columns}
        self.widths |= {
            "shape": max(len(label(op, shape)) for shape in shapes),
            "kernel": max(map(len, op.kernels)),
            "kind": 9,
        }
        print("  ".join(name.ljust(width) for name, width in self.widths.items()))

    def __call__(self, row: Row, errors: list[str]) -> None:
        self.rows.append(row)
        cells = (_cell(row, name).ljust(width) for name, width in self.widths.items())
        print("\n".join(["  ".join(cells).rstrip(), *launch_lines(row)]), flush=True)
        for error in errors:
            print(f"rfops: {error}", file=sys.stderr)
        self.wrong += errors

    def end(self) -> tuple[list[Row], list[str]]:
        for line in summary(self.rows, self.extra_kernels):
            print(line)
        return self.rows, self.wrong


def bench_on(
    op: Op, shapes: Sequence[dict[str, Any]], device: torch.device, options: argparse.Namespace
) -> tuple[list[Row], list[str]]:
    """The same by the workers of an executor; rows are printed as they come, and kept in order."""
    show, row_indices = _Table(op, shapes, options.kernel), list[int]()
    tasks = [
        Task(
            f"{op.name} {label(op, shape)}",
            "rfops.cli.bench:bench_task",
            (op.name, shape, device.type, options.kernel, loaded(), options.peers),
            1.0 + op.flops(op.call_of(**shape)) / 1e9,
        )
        for shape in shapes
    ]

    def on_outcome(number: int, outcome: Outcome, progress: str) -> None:
        lost = {"op": op.name, "shape": label(op, shapes[number])}
        show(*(outcome.result or (lost, [f"{tasks[number].label}: {outcome.error}"])))
        row_indices.append(number)
        print(progress, file=sys.stderr, flush=True)

    pool = executor.pool(options, device.type != "cpu", tuple(op.modules))
    Run(pool, tasks, on_outcome, options.limit, lambda text: print(text, file=sys.stderr))()
    rows, wrong = show.end()
    in_order = sorted(zip(row_indices, rows, strict=True), key=lambda pair: pair[0])
    return [row for _, row in in_order], wrong


def bench_task(
    name: str,
    shape: dict[str, Any],
    device: str,
    extra_kernels: Sequence[str],
    files: Sequence[Path],
    checkout: Path | None = None,
) -> tuple[Row, list[str]]:
    """In a worker."""
    for path in files:
        load_ops(path)
    return bench(ops()[name], shape, torch.device(device), extra_kernels, checkout)


def _cell(row: Row, name: str) -> str:
    value = row.get(name, "")
    if value == "" or (isinstance(value, float) and not value):
        return "-"
    form = "" if isinstance(value, str) else ".1%" if name == "share" else ".3g"
    return f"{value:{form}}"


def summary(rows: Sequence[Row], extra_kernels: Sequence[str] = ()) -> list[str]:
    """Geometric means, the best and the slowest shape, beside the floor and beside others."""
    import pandas as pd

    other_columns = [f"{name} us" for name in ("published", "peer", *extra_kernels)]
    columns = ["shape", "kind", "us", "share", *other_columns]
    table = pd.DataFrame(rows, columns=columns)
    table[columns[2:]] = table[columns[2:]].apply(pd.to_numeric, errors="coerce")
    timed = table[table["us"] > 0]
    if timed.empty:
        return ["no time: nothing was launched, or nothing was right"]
    kinds = ", ".join(sorted(timed["kind"].unique()))
    lines = [f"geometric mean {geometric_mean(timed['us']):.3g} us of {len(timed)} ({kinds})"]
    ranked = timed[timed["share"] > 0].sort_values("share", kind="stable")
    if len(ranked):
        lowest, highest = ranked.iloc[0], ranked.iloc[-1]
        slow, best = (f"{row['share']:.1%} at {row['shape']}" for row in (lowest, highest))
        mean_share = geometric_mean(ranked["share"])
        lines.append(f"share of the floor {mean_share:.1%}; best {best}, slowest {slow}")
    # An estimate beside somebody's measurement is for reading, not for a ratio.
    timed.loc[timed["kind"] != "measured", "published us"] = float("nan")
    for name in other_columns:
        ratios = (timed[name] / timed["us"])[timed[name] > 0]
        if len(ratios):
            mean = geometric_mean(ratios)
            lines.append(f"{name[:-3]} over this: {mean:.2f} (geometric mean of {len(ratios)})")
    return lines


def write_csv(file: Path, rows: Sequence[Row], device: str) -> None:
    """Write the rows with all their figures, one column each, and the device to a CSV file."""
    import pandas as pd

    table = pd.DataFrame(rows, dtype=object)  # a whole number stays one beside an empty cell
    table = table.reindex(columns=[*dict.fromkeys(["op", *COLUMNS[:-1], *table.columns])])
    table.assign(device=device).to_csv(file, index=False, lineterminator="\n")


def describe(device: torch.device) -> str:
    """Device, versions and day: what a figure's source says."""
    name = "virtual GPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    host = "" if device.type == "cpu" else f"; host {_host()}"
    arch, cu_num = routing.chip(device)
    return (
        f"{name} {arch} {cu_num} CUs; rfops {rfops.__version__}, torch {torch.__version__}, "
        f"triton {_triton()}, {datetime.date.today()}{host}"
    )


@functools.cache
def _host() -> str:
    """Its processor: what a launch's own time depends on."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _triton() -> str:
    return vgpu._triton_version() if importlib.util.find_spec("triton") else "none"
