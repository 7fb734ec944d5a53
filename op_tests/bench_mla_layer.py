"""mla_layer_decode's Triton route on a GPU, DeepSeek-V3's layer: calls with a wait each, as the
challenge of 2025 times them, calls in a row, and a graph's replays:

python op_tests/bench_mla_layer.py [--batch 1 16 128] [--start 4096 6144]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from rfops.attention.mla_layer_decode import mla_layer_decode
from rfops.dispatch.timing import time_graph
from support.layer_problems import assert_correct, problem

WARM, TIMES = 3, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--start", type=int, nargs="+", default=[4096, 6144])
    options = parser.parse_args()
    print(f"# {torch.cuda.get_device_name()}; torch {torch.__version__}; us a call")
    print("batch  start  waited  in a row  graph  floor")
    for start in options.start:
        for batch in options.batch:
            bench(batch, start)


def bench(batch: int, start: int) -> None:
    p = problem([start] * batch, 128, dim=7168, rank=1536, rows=8192, device="cuda")
    cache, out, positions = p.cache.clone(), torch.empty_like(p.x), p.positions

    def call() -> None:
        mla_layer_decode(p.x, cache, positions, *p.weights, out=out)

    call()
    assert_correct((out, cache), p)
    for _ in range(WARM):
        call()
    waited = []
    for _ in range(TIMES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        waited.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(TIMES):
        call()
    torch.cuda.synchronize()
    row = (time.perf_counter() - begin) / TIMES * 1e6
    read = sum(w.nbytes for w in p.weights[:-1]) + batch * (start + 1) * 1152
    graph = time_graph([call]).us
    print(
        f"{batch:5}  {start:5}  {statistics.median(waited) * 1e6:6.0f}  {row:8.0f}  {graph:5.0f}"
        f"  {read / 4.8e6:5.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
