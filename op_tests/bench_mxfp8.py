"""Bench of gemm_mxfp8 and grouped_gemm_mxfp8:

    python op_tests/bench_mxfp8.py [--cells published] [--m 1 16] [--shape M N K] [--csv FILE]

Each cell is checked against float64, then timed: the route's HIP kernel, Triton and, on NVIDIA,
torch on weights dequantised before. One row a cell: us, TB/s, TFLOPS, the share of the roofline
(bytes once over HBM, products at the dense FP8 peak, both published), HIP against Triton; at the
end the geometric mean. On the virtual GPU there is no time: a row has counters, their ratio to what
the work needs at least, and an estimate that is called one.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_timing import time_graph
from mxfp8_cells import (
    GROUPS,
    Cell,
    Cost,
    Inputs,
    cells,
    default_config,
    describe,
    device_of,
    input_sets,
    measure,
    parse_config,
    prepare,
    refuses,
    route,
)

from rfops import routing
from rfops.quant_mxfp8 import dequant_mxfp8

# Dense FP8 and HBM of the product with that architecture, as published by its maker: TFLOPS, TB/s.
PEAKS = {"gfx942": (2614.9, 5.3), "gfx950": (5033.2, 8.0), "sm_90": (1978.9, 4.8)}
COUNTERS = ("bytes_over_least", "requested_over_least", "mfma", "mfma_over_least", "valu", "vgpr",
            "waves_per_simd", "spills")  # fmt: skip
COLUMNS = ("op", "m", "n", "k", "e", "a_div", "has_weight", "backend", "rule", "config", "us",
           "spread", "tb_s", "tflops", "roofline", "triton_us", "speedup", "torch_us", *COUNTERS,
           "triton_bytes_over_least", "triton_mfma", "triton_valu", "origin", "source")  # fmt: skip


def bench(cell: Cell, device: torch.device, source: str) -> dict[str, Any]:
    """One row."""
    arch, cu_num = routing.chip(device)
    inputs = input_sets(cell, device)
    chosen = route(cell, arch, cu_num)
    costs = {}
    for backend in dict.fromkeys((chosen.backend, "triton")):
        if backend == "torch" or refuses(cell, backend, arch) is None:
            text = chosen.config if backend == chosen.backend else ""
            run = prepare(cell, backend, device, parse_config(cell, backend, text))
            costs[backend] = measure(cell, run, inputs)
    hip_us = costs[chosen.backend].us
    config = chosen.config or default_config(cell, chosen.backend, arch)
    row = dict.fromkeys(COLUMNS, "") | {
        "op": cell.op, "m": cell.m, "n": cell.n, "k": cell.k, "e": cell.e or "",
        "a_div": cell.a_div if cell.e else "", "has_weight": int(cell.weighted) if cell.e else "",
        "backend": chosen.backend, "rule": chosen.rule,
        "config": config if isinstance(config, str) else routing.config_text(config),
        "origin": costs[chosen.backend].origin, "source": source, "us": hip_us,
    }  # fmt: skip
    row |= _rates(cell, inputs[0], costs[chosen.backend], arch)
    if "triton" in costs:
        row["triton_us"] = costs["triton"].us
        row["speedup"] = costs["triton"].us / hip_us if chosen.is_hip else ""
        for name in ("bytes_over_least", "mfma", "valu"):
            row[f"triton_{name}"] = costs["triton"].counters.get(name, "")
    if device.type != "cpu" and not torch.version.hip and not cell.e:
        row["torch_us"] = _torch_us(inputs)
    return row


def _rates(cell: Cell, inputs: Inputs, cost: Cost, arch: str) -> dict[str, Any]:
    if cost.origin != "measured":  # an estimate's TB/s would read like a measurement
        return {name: cost.counters.get(name, "") for name in COUNTERS}
    rates = {"spread": cost.spread, "tb_s": inputs.bytes / cost.us / 1e6,
             "tflops": cell.flops / cost.us / 1e6}  # fmt: skip
    if arch in PEAKS:
        tflops, tb_s = PEAKS[arch]
        floor_us = max(cell.flops / tflops, inputs.bytes / tb_s) / 1e6
        rates["roofline"] = floor_us / cost.us
    return rates


def _torch_us(inputs: list[Inputs]) -> float:
    """torch's bf16 matmul on what was dequantised before: twice the bytes."""
    pairs = []
    for x, w, x_scale, w_scale in (i.tensors for i in inputs):
        pairs.append((dequant_mxfp8(x, x_scale, torch.bfloat16),
                      dequant_mxfp8(w, w_scale, torch.bfloat16)))  # fmt: skip
    return time_graph([functools.partial(lambda a, b: a @ b.T, *pair) for pair in pairs]).us


# ---------------------------------------------------------------- the run

TIMED = (("us", 9, ".2f"), ("spread", 7, ".0%"), ("tb_s", 6, ".2f"), ("tflops", 8, ".1f"),
         ("roofline", 9, ".0%"), ("triton_us", 10, ".2f"), ("speedup", 8, ".2f"),
         ("torch_us", 9, ".2f"))  # fmt: skip
COUNTED = (("bytes_over_least", 17, ".3f"), ("requested_over_least", 21, ".3f"), ("mfma", 9, ".0f"),
           ("mfma_over_least", 16, ".3f"), ("valu", 11, ".0f"), ("vgpr", 5, ".0f"),
           ("waves_per_simd", 15, ".0f"), ("spills", 7, ".0f"), ("us", 9, ".2f"),
           ("triton_us", 10, ".2f"), ("speedup", 8, ".2f"))  # fmt: skip


def show(row: dict[str, Any], shown: tuple[tuple[str, int, str], ...]) -> str:
    experts = f"e{row['e']} " if row["e"] else ""
    shape = f"{experts}{row['m']} {row['n']} {row['k']}".ljust(20)
    numbers = (
        (f"{row[name]:{form}}" if row[name] != "" else "-").rjust(width)
        for name, width, form in shown
    )
    return f"{shape} {row['backend']:7} {' '.join(numbers)}"


def head(shown: tuple[tuple[str, int, str], ...]) -> str:
    return f"{'[e] m n k':20} {'backend':7} " + " ".join(n.rjust(width) for n, width, _ in shown)


def geomean(rows: list[dict[str, Any]]) -> str:
    speedups = [row["speedup"] for row in rows if row["speedup"] != ""]
    if not speedups:
        return "no cell ran on HIP and on Triton"
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
    kinds = {row["origin"] for row in rows}
    return f"HIP over Triton, geomean of {len(speedups)} cells: {mean:.2f} ({', '.join(kinds)})"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", nargs="+", choices=GROUPS, default=["published"])
    parser.add_argument("--m", type=int, nargs="+", help="rows, or routed rows, instead of all")
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), help="that one only")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(argv)

    device = device_of()
    source = describe(device)
    print(f"# {source}")
    if device.type == "cpu":
        print("# us: an estimate from counters, not calibrated; nothing here is measured")
    shown = COUNTED if device.type == "cpu" else TIMED
    print(head(shown))
    ms = tuple(options.m) if options.m else None
    chosen = [cell for group in options.cells for cell in cells(group, ms)]
    if options.shape:
        chosen = [Cell(*options.shape)]
    rows = []
    for cell in dict.fromkeys(chosen):
        rows.append(bench(cell, device, source))
        print(show(rows[-1], shown), flush=True)
    print(geomean(rows))
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
