"""Bench of gemm_mxfp8 and grouped_gemm_mxfp8, HIP beside Triton; `rfops bench OP` is the same:

python op_tests/bench_mxfp8.py [--cells published] [--m 1 16] [--shape M N K] [--csv FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rfops.cli import bench as cli_bench
from rfops.dispatch import cost
from support import mxfp8_shapes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mxfp8_shapes.add(parser)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(argv)
    device = cost.default_device()
    print(f"# {cli_bench.describe(device)}")
    groups = [] if options.shape else options.cells or ["published"]
    pairs = mxfp8_shapes.chosen(options, groups, [options.shape] if options.shape else [])
    rows, wrong = [], []
    for op in dict.fromkeys(op for op, _ in pairs):
        own = [shape for other, shape in pairs if other is op]
        done = cli_bench.bench_all(op, own, device, ["triton"])
        rows, wrong = rows + done[0], wrong + done[1]
    if options.csv:
        cli_bench.write_csv(options.csv, rows, cli_bench.describe(device))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
