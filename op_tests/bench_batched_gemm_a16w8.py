"""Bench of batched_gemm_a16w8_blockscale: python op_tests/bench_batched_gemm_a16w8.py [--csv FILE]

Each row is checked, then timed: graph replays over inputs beyond the last-level cache, medians,
spread from decile to decile (gpu_timing.py), in one run against
    bmm      torch.bmm on weights dequantised to bf16 beforehand: twice the bytes of w
    deq+bmm  the same with the dequantisation in each call (the op's route bmm)
    plain    the straightforward Triton kernel: one 2-D tile, no regimes
`floor` is the least time by this run's own ceilings, of torch.neg on 1 GiB and of torch.bmm at 8192
cubed, and `% roof` the op's share of it. `eager` is the time of a call from Python. On the virtual
GPU there is no time to measure: it prints what the kernels do instead.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

import rfops.vgpu
from rfops.gemm.a16w8_blockscale import batched_gemm_a16w8_blockscale
from rfops.gemm.a16w8_routes import BmmConfig, Shape
from rfops.triton import launch
from support.batched_gemm_a16w8_cases import (
    LARGE,
    MAX_ERROR,
    PUBLISHED_SHAPES,
    STREAMED,
    Inputs,
    error_of,
    flops,
    make_inputs,
    make_sets,
    published_us,
    traffic,
)
from support.batched_gemm_a16w8_plain import empty_kernel, plain_kernel
from support.calls import batched_route as route
from support.gpu_timing import Timing, cache_bytes, time_eager, time_graph


def plain(inputs: Inputs) -> None:
    out, x, w, scale = inputs.out, inputs.x, inputs.w, inputs.scale
    (b, m, k), n = x.shape, w.shape[1]
    bm, bn = (16 if m <= 16 else 64), 64
    grid = (-(-m // bm) * -(-n // bn), b)
    plain_kernel[grid](
        out, x, w, scale, m, n, k, x.stride(0), w.stride(0), scale.stride(0), scale.stride(1),
        out.stride(0), BM=bm, BN=bn, BK=128, num_warps=4, num_stages=3,
    )  # fmt: skip


# ---------------------------------------------------------------- on a GPU


def op(inputs: Inputs, config: Any = None) -> None:
    batched_gemm_a16w8_blockscale(inputs.x, inputs.w, inputs.scale, out=inputs.out, config=config)


def bmm(inputs: Inputs) -> None:
    assert inputs.values is not None
    torch.bmm(inputs.x, inputs.values.mT, out=inputs.out)


IMPLEMENTATIONS: dict[str, Callable[[Inputs], None]] = {
    "op": op,
    "bmm": bmm,
    "deq+bmm": functools.partial(op, config=BmmConfig()),
    "plain": plain,
}


def measure(shape: Shape, device: torch.device) -> tuple[dict[str, Timing], Timing]:
    """Times by implementation, and the op's from Python."""
    sets = make_sets(shape, device)
    times = {}
    for name, call in IMPLEMENTATIONS.items():
        error = error_of(sets[0], functools.partial(call, sets[0]))
        if not error < MAX_ERROR:
            raise SystemExit(f"{name} is wrong for {shape}: relative error {error:.2g}")
        times[name] = time_graph([functools.partial(call, inputs) for inputs in sets])
    return times, time_eager([functools.partial(op, inputs) for inputs in sets[:32]])


def ceilings(device: torch.device) -> tuple[float, Timing]:
    """Bytes a second, read and written, of torch.neg on 1 GiB; time of an empty kernel."""
    source = torch.randn(1 << 28, device=device)
    target = torch.empty_like(source)
    copy = time_graph([functools.partial(torch.neg, source, out=target)] * 2)
    empty = time_graph([functools.partial(empty_kernel[(1,)], 1)] * 100)
    return 2 * source.nbytes / copy.us * 1e6, empty


HEADER = (
    "   B     M     N     K |      us    sprd | TFLOPS  TB/s | floor us % roof |      bmm  x bmm |"
    "  deq+bmm |    plain | eager us | published |   route"
)


def bench_on_gpu(shapes: Sequence[Shape], device: torch.device) -> list[dict[str, object]]:
    arch = launch.arch_of(device)
    bandwidth, empty = ceilings(device)
    results = {shape: measure(shape, device) for shape in shapes if shape == LARGE}
    peak = flops(LARGE) / results[LARGE][0]["bmm"].us * 1e6 if results else float("inf")
    print(
        f"# memory {bandwidth / 1e12:.2f} TB/s, bmm 8192^3 {peak / 1e12:.0f} TFLOPS, an empty "
        f"kernel {empty.us:.2f} us, cache {cache_bytes(device) >> 20} MiB\n{HEADER}"
    )
    rows = []
    for shape in shapes:
        times, eager = results.get(shape) or measure(shape, device)
        own, bm = times["op"], times["bmm"]
        floor = max(traffic(shape) / bandwidth, flops(shape) / peak) * 1e6
        chosen = route(*shape, arch)
        rows.append(
            {
                **shape._asdict(),
                "us": own.us,
                "spread": own.spread,
                "tflops": flops(shape) / own.us * 1e-6,
                "tb_per_s": traffic(shape) / own.us * 1e-6,
                "floor_us": floor,
                "roof": floor / own.us,
                "bmm_us": bm.us,
                "bmm_spread": bm.spread,
                "over_bmm": bm.us / own.us,
                "dequantise_bmm_us": times["deq+bmm"].us,
                "plain_us": times["plain"].us,
                "eager_us": eager.us,
                "empty_us": empty.us,
                "published_us": published_us(shape) or "",
                "route": chosen.backend,
                "config": chosen.config,
                "rule": chosen.rule,
            }
        )
        print(_line(rows[-1]), flush=True)
    _summary(rows)
    return rows


def _line(row: dict[str, Any]) -> str:
    published = f"{row['published_us']:9.1f}" if row["published_us"] else " " * 9
    return (
        f"{row['b']:4d} {row['m']:5d} {row['n']:5d} {row['k']:5d} | {row['us']:7.2f} "
        f"{100 * row['spread']:6.1f}% | {row['tflops']:6.1f} {row['tb_per_s']:5.2f} | "
        f"{row['floor_us']:8.2f} {100 * row['roof']:6.0f} | {row['bmm_us']:8.2f} "
        f"{row['over_bmm']:6.2f} | {row['dequantise_bmm_us']:8.2f} | {row['plain_us']:8.2f} | "
        f"{row['eager_us']:8.2f} | {published} |   {row['route']} {row['config']}"
    )


def _summary(rows: list[dict[str, Any]]) -> None:
    """What the op is for, in three lines."""
    published = [row for row in rows if Shape(*list(row.values())[:4]) in PUBLISHED_SHAPES]
    if published:
        slow = [row for row in published if row["over_bmm"] < 1]
        print(f"# {len(published) - len(slow)} of {len(published)} published cells beat bmm")
        small = [row for row in published if row["b"] == 16 and row["m"] == 1]
        over = ", ".join(f"{row['us'] - row['empty_us']:.2f}" for row in small)
        print(f"# B=16, M=1: {over} us above an empty kernel")
    streamed = [row for row in rows if Shape(*list(row.values())[:4]) in STREAMED]
    if streamed:
        least = min(row["over_bmm"] for row in streamed)
        print(f"# weights beyond the cache, M <= 32: at least {least:.2f} times as fast as bmm")


# ---------------------------------------------------------------- on the virtual GPU


def bench_on_virtual_gpu(shapes: Sequence[Shape]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    device = torch.device("cpu")
    for shape in shapes:
        inputs = make_inputs(shape, device, 0, with_values=False)
        error = error_of(inputs, functools.partial(op, inputs))
        if not error < MAX_ERROR:
            raise SystemExit(f"wrong for {shape}: relative error {error:.2g}")
        with rfops.vgpu.profile() as p:
            op(inputs)
        chosen = route(*shape, launch.arch_of(device))
        read = sum(record.global_read["lines_64B"] for record in p.launches) * 64
        row = {
            **shape._asdict(),
            "wave_instructions": sum(record.wave_instructions for record in p.launches),
            "read_over_least": f"{read / (traffic(shape) - 2 * shape.b * shape.m * shape.n):.2f}",
            "route": chosen.backend,
            "config": chosen.config,
        }
        if not rows:
            print(" | ".join(row))
        rows.append(row)
        print(" | ".join(str(value).rjust(len(key)) for key, value in row.items()), flush=True)
    return rows


# ---------------------------------------------------------------- the command


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:  # no git
        return "commit unknown"
    return done.stdout.strip() or "commit unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    sets = {"published": [*PUBLISHED_SHAPES, LARGE], "streamed": list(STREAMED)}
    parser.add_argument("--shapes", nargs="+", choices=sets, help="default: all")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else "virtual GPU, nothing is timed"
    version = importlib.import_module("rfops").__version__
    print(
        f"# {name}; rfops {version} ({commit()}), torch {torch.__version__}, "
        f"triton {triton.__version__}"
    )
    if on_gpu:
        shapes = [shape for key in options.shapes or sets for shape in sets[key]]
        rows = bench_on_gpu(shapes, torch.device("cuda", torch.cuda.current_device()))
    else:
        rows = bench_on_virtual_gpu([shape for shape in PUBLISHED_SHAPES if shape.b == 16])
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
