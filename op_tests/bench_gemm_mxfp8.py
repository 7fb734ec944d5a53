"""Bench of gemm_mxfp8: python op_tests/bench_gemm_mxfp8.py [--m 1 4 16] [--shapes tp4] [--csv FILE]

Each shape is checked, then timed. On a GPU: events around calls that rotate through copies of w
larger together than the last-level cache, the median of many. On the virtual GPU there is no time
to measure: the row gives wave-instructions executed per KiB of w instead, and where the VALU would
bound the kernel rather than HBM (an estimate: 8 TB/s, 256 CUs, 2.4 GHz, a VALU slot of 4 clocks).
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from test_gemm_mxfp8 import MODEL_SHAPES, Problem, assert_correct, random_problem

from rfops.gemm_mxfp8 import GemvConfig, gemm_mxfp8, mxfp8_gemv
from rfops.jit import hip

HBM_BYTES_PER_S = 8e12
CACHE_BYTES = 256 << 20
SLOTS_PER_KIB_AT_HBM_RATE = 1024 / (HBM_BYTES_PER_S / 256 / 2.4e9)  # 4 SIMDs, 4 clocks a slot


@dataclass
class Row:
    m: int
    n: int
    k: int
    config: str
    vgpr: int
    waves_per_simd: int
    us: str = ""
    tb_per_s: str = ""
    percent_of_hbm: str = ""
    instructions_per_kib: str = ""
    estimated_bound: str = ""


def traffic(m: int, n: int, k: int) -> int:
    """Bytes that must move: payloads, scales and the result, once each."""
    return (m + n) * (k + k // 32) + 2 * m * n


def time_on_gpu(problem: Problem, repeats: int = 200) -> float:
    """Median seconds of a call, w cold in every cache."""
    x, w, x_scale, w_scale = problem.args
    copies = [(w.clone(), w_scale.clone()) for _ in range(CACHE_BYTES // w.numel() + 2)]
    times = []
    for i in range(repeats + 20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gemm_mxfp8(x, copies[i % len(copies)][0], x_scale, copies[i % len(copies)][1])
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times[20:])


def count_instructions(problem: Problem) -> int:
    library = hip.runtime(problem.x.device).path
    counter = ctypes.CDLL(str(library)).rfops_vgpu_instructions
    counter.restype = ctypes.c_uint64
    before = counter()
    gemm_mxfp8(*problem.args)
    return int(counter() - before)


def measure(m: int, n: int, k: int, device: torch.device) -> Row:
    problem = random_problem(m, n, k).to(device)
    assert_correct(gemm_mxfp8(*problem.args), problem)
    config = GemvConfig.from_heuristic(m, n, k)
    resources = mxfp8_gemv.bind(device=device, defines=config.defines(m)).resources
    text = f"{config.lanes}/{config.rows}/{config.steps}/{config.waves}"
    row = Row(m, n, k, text, resources["vgpr"], resources["waves_per_simd"])
    if device.type == "cuda":
        seconds = time_on_gpu(problem)
        rate = traffic(m, n, k) / seconds
        row.us, row.tb_per_s = f"{seconds * 1e6:.2f}", f"{rate / 1e12:.2f}"
        row.percent_of_hbm = f"{100 * rate / HBM_BYTES_PER_S:.0f}"
    else:
        per_kib = count_instructions(problem) / (n * k / 1024)
        row.instructions_per_kib = f"{per_kib:.1f}"
        row.estimated_bound = "VALU" if per_kib > SLOTS_PER_KIB_AT_HBM_RATE else "HBM"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--m", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--shapes", nargs="+", choices=sorted(MODEL_SHAPES), default=["tp4"])
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available() and torch.version.hip is not None
    device = torch.device("cuda" if on_gpu else "cpu")
    name = torch.cuda.get_device_name(device) if on_gpu else "virtual GPU, nothing is timed"
    version = importlib.import_module("rfops").__version__
    print(f"# {name}; rfops {version}, torch {torch.__version__}")
    shapes = [shape for group in options.shapes for shape in MODEL_SHAPES[group]]
    rows = []
    for k, n in shapes:
        for m in options.m:
            rows.append(asdict(measure(m, n, k, device)))
            if len(rows) == 1:
                print(" | ".join(rows[0]))
            print(" | ".join(str(v).rjust(len(key)) for key, v in rows[-1].items()))
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
