"""Tunes the tiles of configs/mxfp8_triton.csv on the GPU at hand:

    python op_tests/tune_triton_mxfp8.py --problems dense:16 grouped:16 --out tuned.json

For each bucket (`dense:M`, or `grouped:tokens`) it compiles the candidates in parallel, checks each
on a small problem, times it on every model shape (bench_triton_mxfp8.py) and prints the best. With
--write it rewrites the table: each row that those shapes hit gets the tile with the least geometric
mean over them, as measured here. The JSON has all times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from bench_triton_mxfp8 import (
    BLOCK_M,
    EXPERTS,
    MOE_SHAPES,
    TOP_K,
    dense_calls,
    header,
    moe_calls,
    text,
)

from rfops.jit.arch import ROWS
from rfops.quantization.mxfp8 import BLOCK
from rfops.triton import launch
from rfops.triton.tiles import (
    AMD_NUMBERS,
    KEY,
    NUMBERS,
    TABLE,
    Row,
    TritonConfig,
    find_row,
    splits_for,
    table,
)
from support.gpu_timing import time_graph
from support.triton_mxfp8_cases import (
    MODEL_SHAPES,
    assert_close,
    assert_grouped,
    dense,
    grouped,
    random_side,
    route,
)

WORKERS = max(1, (os.cpu_count() or 2) - 2)
SAMPLES = 5
FILLS = (1, 2, 4)
Found = tuple[str, int, int, int, TritonConfig, float]  # op, M or tokens, N, K, tile, us
Times = dict[tuple[tuple[int, int, int], TritonConfig], float]


def candidates(op: str, m: int) -> Iterator[TritonConfig]:
    """The grid of a bucket; what does not fit the GPU is left out when it fails to compile."""
    if op == "dense" and m >= 128:
        tiles = [(64, 128, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8)]
        for (bm, bn, warps), stages in itertools.product(tiles, (3, 4)):
            yield TritonConfig("expand", bm, bn, 64, 8, warps, stages)
    if m > 128:
        return
    bm = min(1 << max(m - 1, 7).bit_length(), 64) if op == "dense" else 16
    for rows in {bm, 8} if op == "grouped" else {bm}:
        grid = itertools.product((32, 64, 128), (64, 128, 256), (2, 4, 8), (3, 4))
        for bn, bk, warps, stages in grid:
            sums = bk // BLOCK * bn * rows // (32 * warps)  # registers of a thread
            in_flight = bn * bk * (stages - 1)  # bytes of a program
            if sums <= 64 and bk // BLOCK >= warps and 8192 <= in_flight <= 65536:
                yield TritonConfig("blocks", rows, bn, bk, 1, warps, stages)


def splits_of(config: TritonConfig, op: str, m: int, n: int, k: int) -> list[int]:
    """1, and what brings 1, 2 or 4 programs to a unit."""
    if op == "grouped" or config.method == "expand":
        return [1]
    units = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = -(-m // config.block_m) * -(-n // config.block_n)
    wanted = {fill * units // tiles for fill in FILLS}
    most = min(16, k // (2 * config.block_k))
    return sorted({1} | {s for s in wanted if 1 < s <= most})


def compile_one(job: tuple[str, TritonConfig, int]) -> str | None:
    """Runs a variant once on a small problem, so that it is in Triton's cache; its error if any."""
    op, config, splits = job
    device = torch.device("cuda")
    try:
        if op == "dense":
            x, w = random_side((16, 2048), device, 1, 0), random_side((64, 2048), device, 2, 0)
            out = torch.empty((16, 64), dtype=torch.bfloat16, device=device)
            assert_close(dense(x, w, replace(config, splits=splits), out=out), x, w)
        else:  # here `splits` is a_div
            experts = [2, 2, 1, 1, 1, 1, 0, 0]
            a = random_side((8 // splits, 2048), device, 3, 0)
            w = random_side((3, 64, 2048), device, 4, 0)
            weights = torch.rand(8, device=device) if splits == 1 else None
            out = grouped(a, w, route(experts, BLOCK_M), splits, weights, config)
            assert_grouped(out, a, w, experts, splits, weights)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return None


def tune(op: str, m: int, pool: multiprocessing.pool.Pool) -> list[Found]:
    start, configs = time.monotonic(), list(candidates(op, m))
    kinds = (1, 2) if op == "dense" else (1, TOP_K)
    jobs = [(op, config, kind) for config in configs for kind in kinds]
    bad = set()
    for job, error in zip(jobs, pool.map(compile_one, jobs, chunksize=1), strict=True):
        if error is not None:
            bad.add(job[1])
            if "OutOfResources" not in error:
                print(f"# {text(job[1])}: {error}")
    good = [config for config in configs if config not in bad]
    print(f"# {op}:{m}: {len(good)} variants built in {time.monotonic() - start:.0f} s", flush=True)
    found: list[Found] = []
    for k, n in MODEL_SHAPES if op == "dense" else MOE_SHAPES.values():
        times = {}
        for config in good:
            for splits in splits_of(config, op, m, n, k):
                variant = replace(config, splits=splits)
                try:
                    times[variant] = time_graph(calls_of(op, m, n, k, variant), SAMPLES).us
                except Exception as error:
                    print(f"# {text(variant)}: {type(error).__name__} {str(error)[:100]}")
        best_by_method: dict[str, list[TritonConfig]] = defaultdict(list)
        for variant in sorted(times, key=times.__getitem__):
            best_by_method[variant.method].append(variant)
        print(f"{op} m={m} n={n} k={k}, {time.monotonic() - start:.0f} s")
        for variants in best_by_method.values():
            print("   ", "; ".join(f"{times[v]:.2f} {text(v)}" for v in variants[:3]), flush=True)
        found += [
            {"op": op, "m": m, "n": n, "k": k, "us": us, **asdict(v)} for v, us in times.items()
        ]
    return found


def calls_of(op: str, m: int, n: int, k: int, config: TritonConfig) -> list[object]:
    if op == "dense":
        return dense_calls(m, n, k, config)[0]
    name = next(name for name, shape in MOE_SHAPES.items() if shape == (k, n))
    return moe_calls(name, m, config)[0]


def best_tile(row: Row, times: Times) -> tuple[float, TritonConfig, float]:
    """Least geometric mean over the shapes, its tile, and the fill that it is for."""
    units, shapes = ROWS[row.arch].cus, {shape for shape, _ in times}
    found = []
    for config in dict.fromkeys(replace(config, splits=1) for _, config in times):
        for fill in (*FILLS, 0) if row.op == "dense" and config.method != "expand" else (0,):
            us = []
            for m, n, k in shapes:
                splits = splits_for(config, fill, units, m, n, k) if row.op == "dense" else 1
                us.append(times.get(((m, n, k), replace(config, splits=splits)), math.inf))
            mean = math.exp(sum(map(math.log, us)) / len(us))
            found.append((mean, config, fill))
    return min(found, key=lambda entry: entry[0])


def rewrite(file: Path, arch: str, found: list[Found]) -> None:
    """The table with the rows that were tuned replaced, the others as they are."""
    hits: dict[int, Times] = defaultdict(dict)
    for op, m, n, k, config, us in found:
        row = find_row(op, arch, BLOCK_M if op == "grouped" else m, n, k)
        hits[table().index(row)][(m, n, k), config] = us
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    for index, times in hits.items():
        row = table()[index]
        us, config, fill = best_tile(row, times)
        shapes = sorted({shape for shape, _ in times})
        text = " and ".join(f"M={m} N={n} K={k}" for m, n, k in shapes)
        if row.op == "grouped":
            text = text.replace("M=", "tokens=") + f", {TOP_K} of E={EXPERTS} each"
        key = lines[index + 1].split(",")[: len(KEY)]
        values = asdict(config)
        numbers = [values[name] or "" for name in ("method", *NUMBERS, *AMD_NUMBERS)]
        origin = f"measured, {header()}, {time.strftime('%Y-%m-%d')}: geometric mean of {text}"
        cells = [*key, *numbers, fill or "", f"{us:.2f}", f'"{origin}"']
        lines[index + 1] = ",".join(map(str, cells))
    temporary = file.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=["dense:16", "grouped:16"])
    parser.add_argument("--out", type=Path, help="JSON of all times")
    parser.add_argument("--write", type=Path, help="the table with the tuned rows replaced")
    options = parser.parse_args()
    print(f"# {header()}")
    found = []
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        for problem in options.problems:
            op, m = problem.split(":")
            found += tune(op, int(m), pool)
            if options.out:
                times = [(*entry[:4], asdict(entry[4]), entry[5]) for entry in found]
                options.out.write_text(json.dumps({"device": header(), "times": times}))
    if options.write:
        rewrite(options.write, launch.arch_of(torch.device("cuda")), found)


if __name__ == "__main__":
    main()
