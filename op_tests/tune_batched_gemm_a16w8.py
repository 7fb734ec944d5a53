"""Tuner: python op_tests/tune_batched_gemm_a16w8.py [--output FILE] [--resume] [--shape B M N K]

Times every candidate config of batched_gemm_a16w8_blockscale for every shape below on this GPU, as
the bench does, and writes the fastest into the op's table as `measured` rows with device, versions
and date. A candidate whose result is wrong is left out and named. The file is replaced after each
shape; --resume goes on where an interrupted run stopped. Rows of other architectures stay; those of
AMD that nobody has measured are written from the heuristic, as `estimated`.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import functools
import itertools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import triton

from rfops.dispatch.routing import config_text
from rfops.gemm.a16w8_routes import (
    BmmConfig,
    Config,
    RowsConfig,
    Shape,
    StagedConfig,
    TilesConfig,
    family,
    heuristic,
    prepare,
    refuses,
    route_of,
)
from rfops.gemm.a16w8_table import COLUMNS, FILE, KEY, read
from rfops.jit import paths
from rfops.jit.arch import ROWS
from rfops.triton import launch
from support.batched_gemm_a16w8_cases import (
    LARGE,
    MAX_ERROR,
    PUBLISHED_SHAPES,
    PUBLISHED_SOURCE,
    STREAMED,
    Inputs,
    error_of,
    flops,
    make_inputs,
    make_sets,
    published_us,
)
from support.gpu_timing import Timing, time_graph

# Rows besides the published: a grid of batches, M, and weights from MLA's to dense layers'.
GRID = tuple(
    Shape(b, m, n, k)
    for b, n, k in (
        (1, 512, 128),
        (1, 128, 512),
        (128, 512, 512),
        (16, 2048, 2048),
        (1, 4096, 4096),
    )
    for m in (1, 4, 16, 32, 128, 512)
    if b > 1 or m in (1, 16, 128)
) + tuple(
    Shape(b, m, n, k)
    for b, n, k in ((16, 512, 128), (16, 128, 512), (128, 512, 128), (128, 128, 512))
    for m in (4, 16, 512)
)
SHAPES = tuple(dict.fromkeys((*PUBLISHED_SHAPES, LARGE, *STREAMED, *GRID)))
_SHARED = 220 << 10  # bytes of shared memory for stages


# ---------------------------------------------------------------- candidates


def _power(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def candidates(shape: Shape) -> Iterator[Config]:
    """What may be fastest on an NVIDIA GPU, by wider searches on an H200."""
    work = flops(shape)
    if shape.m <= 2:
        yield from _rows(shape)
    if work <= 1 << 39:
        yield from _one_block(shape) if shape.k <= 128 else _tiles(shape)
    if shape.m <= 128:
        yield from _staged(shape)
    if shape.m >= 128 and work >= 1 << 33:
        for mib, tile_n in itertools.product((32, 64, 128, 256, 512), (32, 64)):
            yield BmmConfig(mib, tile_n)


def _rows(shape: Shape) -> Iterator[Config]:
    for warps, tile_n, tile_k in itertools.product(
        (1, 2, 4), (4, 8, 16, 32, 64), (128, 256, 512, 1024)
    ):
        if tile_k <= _power(shape.k) and 32 <= tile_n * tile_k // (32 * warps) <= 128:
            yield RowsConfig(tile_n, tile_k, 1, warps)
    if shape.m == 1 and shape.k <= 128 and shape.b >= 64:
        yield from (RowsConfig(16, 128, 2, 1), RowsConfig(16, 128, 4, 2), RowsConfig(32, 128, 2, 2))


def _tile_sizes(shape: Shape) -> Iterator[tuple[int, int, int, int]]:
    """M, N, x_left and warps of a tile, with 4 to 64 sums a thread. w is on the left for up to 64
    rows, x from 64 on: wgmma takes no fewer."""
    for tile_m, tile_n, x_left, warps in itertools.product(
        (8, 16, 32, 64, 128), (16, 32, 64, 128, 256), (0, 1), (2, 4, 8)
    ):
        sums = tile_m * tile_n // (32 * warps)
        if not 4 <= sums <= 64 or 4 * tile_m < min(shape.m, 128):
            continue
        if x_left and (tile_m < 64 or warps < 4 or tile_m > _power(2 * shape.m)):
            continue
        if not x_left and (tile_m > max(8, _power(shape.m)) or tile_m > 64 or tile_n < 32):
            continue
        if shape.m > 128 and min(tile_m, tile_n) < 64:
            continue
        if warps < 8 or sums >= 16 or tile_n == 256 or (x_left and shape.k > 128):
            yield tile_m, tile_n, x_left, warps


def _one_block(shape: Shape) -> Iterator[Config]:
    for tile_m, tile_n, x_left, warps in _tile_sizes(shape):
        for panels, stages in ((1, 1), (2, 2), (4, 3)):
            if tile_n * panels <= shape.n:
                yield TilesConfig(tile_m, tile_n, 128, x_left, panels, warps=warps, stages=stages)


def _tiles(shape: Shape) -> Iterator[Config]:
    steps = -(-shape.k // 128)
    for tile_m, tile_n, x_left, warps in _tile_sizes(shape):
        programs = shape.b * -(-shape.m // tile_m) * -(-shape.n // tile_n)
        for tile_k, stages, split_k in itertools.product((64, 128), (2, 3, 4), (1, 4)):
            shared = (stages - 1) * tile_k * (tile_n + 2 * tile_m) + x_left * 2 * tile_k * tile_n
            if shared > _SHARED or stages > steps + 1:
                continue
            if split_k > 1 and (programs * split_k > 270 or steps < 4 * split_k):
                continue
            if tile_k == 64 and (split_k > 1 or stages < 3 or tile_n < 128 or steps < 8):
                continue
            if stages < 3 and (tile_m < 64 or steps > 4):
                continue
            yield TilesConfig(
                tile_m, tile_n, tile_k, x_left, split_k=split_k, warps=warps, stages=stages
            )


def _staged(shape: Shape) -> Iterator[Config]:
    """2 to 8 warps, 4 to 64 sums a thread, a chip half full; wide tiles where K is long."""
    least_m, least_n = (min(_power(shape.m), 32), 64) if shape.k > 512 else (8, 16)
    for (tile_k, warps_k, stages), tile_m, tile_n, warps_m, warps_n in itertools.product(
        _depths(shape), (8, 16, 32, 64), (16, 32, 64, 128), (1, 2), (1, 2, 4)
    ):
        if tile_m < max(8 * warps_m, least_m) or tile_n < max(16 * warps_n, least_n):
            continue
        if tile_m > max(8, _power(shape.m)) or 4 * tile_m < min(shape.m, 128):
            continue
        sums = tile_m * tile_n // (32 * warps_m * warps_n)
        programs = shape.b * -(-shape.m // tile_m) * -(-shape.n // tile_n)
        if not 4 <= sums <= 64 or not 2 <= warps_k * warps_m * warps_n <= 8:
            continue
        if programs < 64 and shape.b > 1:
            continue
        if stages * warps_k * tile_k * (2 * tile_m + tile_n) <= 200 << 10:
            yield StagedConfig(tile_m, tile_n, tile_k, warps_k, warps_m, warps_n, stages)


def _depths(shape: Shape) -> Iterator[tuple[int, int, int]]:
    """tile_k, warps_k and stages: all of K at once where that is at most 512."""
    if shape.k > 512:
        if shape.k % 512 == 0:
            yield from ((128, 1, 2), (128, 1, 3), (128, 2, 1), (128, 2, 2), (128, 4, 1))
        return
    for tile_k, warps_k in ((128, 1), (128, 2), (128, 4), (64, 1), (64, 2)):
        step = tile_k * warps_k
        if shape.k % step == 0 and (tile_k == 128 or shape.k == 128):
            yield tile_k, warps_k, shape.k // step


# ---------------------------------------------------------------- compiling ahead


def _compile(job: tuple[Shape, Config]) -> str | None:
    """In a process of its own: one launch, which leaves the kernel in Triton's cache."""
    shape, config = job
    device = torch.device("cuda", 0)
    one = shape._replace(b=1)
    try:
        inputs = make_inputs(one, device, 0, with_values=False)
        prepare(device, one, config)(inputs.out, inputs.x, inputs.w, inputs.scale)
        torch.cuda.synchronize()
    except Exception as error:  # the tuner leaves this candidate out
        return f"{type(error).__name__}: {error}"[:200]
    return None


def compile_all(shapes: Iterable[Shape], processes: int) -> None:
    """Kernels do not depend on B, nor on M beyond whether it fits a tile."""
    jobs: dict[tuple[object, ...], tuple[Shape, Config]] = {}
    for shape in shapes:
        for config in candidates(shape):
            if isinstance(config, BmmConfig):
                continue
            fits: object = shape.m
            if isinstance(config, TilesConfig | StagedConfig):
                fits = shape.m <= config.tile_m, shape.m % config.tile_m
            jobs.setdefault((config, shape.n, shape.k, fits), (shape, config))
    print(f"# compiling {len(jobs)} kernels in {processes} processes", flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for job, failure in zip(
            jobs.values(), pool.map(_compile, jobs.values(), chunksize=4), strict=True
        ):
            if failure:
                print(f"# {job[0]} {job[1]}: {failure}", flush=True)


# ---------------------------------------------------------------- timing


def _bmm(inputs: Inputs) -> None:
    assert inputs.values is not None
    torch.bmm(inputs.x, inputs.values.mT, out=inputs.out)


def tune(shape: Shape, device: torch.device) -> tuple[Config, Timing, Timing]:
    """The fastest candidate, its time and torch.bmm's. The best few are timed again, longer."""
    sets = make_sets(shape, device)

    def calls(config: Config) -> list[functools.partial[None]]:
        run = prepare(device, shape, config)
        return [functools.partial(run, s.out, s.x, s.w, s.scale) for s in sets]

    quick: list[tuple[float, Config]] = []
    for config in candidates(shape):
        if refuses(shape, torch.bfloat16, config) is not None:
            continue
        try:
            each = calls(config)
            error = error_of(sets[0], each[0])
            if not error < MAX_ERROR:
                print(f"# WRONG: {shape} {config}: relative error {error:.2g}", flush=True)
                continue
            quick.append((time_graph(each, samples=6).us, config))
        except Exception as error:  # too much shared memory, say
            print(f"# {shape} {config}: {type(error).__name__}: {error}"[:200], flush=True)
    quick.sort(key=lambda pair: pair[0])
    if not quick:
        raise SystemExit(f"no candidate runs for {shape}")
    # In turn: a chip that is hot by now runs slower.
    finals = [config for _, config in quick[:6]]
    rounds = [[time_graph(calls(config)) for config in finals] for _ in range(3)]
    timings = [
        sorted(times, key=lambda timing: timing.us)[1] for times in zip(*rounds, strict=True)
    ]
    timing, best = min(zip(timings, finals, strict=True), key=lambda pair: pair[0].us)
    bmm = time_graph([functools.partial(_bmm, inputs) for inputs in sets])
    return best, timing, bmm


# ---------------------------------------------------------------- the table

Cells = dict[str, str]


def row_of(
    arch: str, shape: Shape, config: Config, origin: str, source: str, figures: dict[str, float]
) -> Cells:
    published = published_us(shape) if arch == "gfx950" else None
    if published is not None:
        figures = {**figures, "published_us": published}
        source += f"; published_us: {PUBLISHED_SOURCE}"
    cells = {"arch": arch, **{name: str(size) for name, size in shape._asdict().items()}}
    cells |= {"route": route_of(config), "config": config_text(config)}
    cells |= {name: f"{value:.4g}" for name, value in figures.items()}
    return {**dict.fromkeys(COLUMNS, ""), **cells, "origin": origin, "source": source}


def estimated_rows() -> list[Cells]:
    """AMD's, for the published shapes, so that `rfops why` shows what was published beside them."""
    source = "heuristic in rfops/triton/batched_gemm_a16w8_blockscale.py"
    return [
        row_of(arch, shape, heuristic(shape, torch.bfloat16, arch), "estimated", source, {})
        for arch in ("gfx942", "gfx950")
        for shape in (*PUBLISHED_SHAPES, LARGE)
    ]


def _key(cells: Cells) -> tuple[object, ...]:
    return tuple(cells[name] for name in KEY)


def _order(cells: Cells) -> tuple[object, ...]:
    n, k, b, m = (int(cells[name]) for name in ("n", "k", "b", "m"))
    return list(ROWS).index(cells["arch"]), n * k, n, b, m


def merge(old: Iterable[Cells], new: Iterable[Cells]) -> list[Cells]:
    """New rows replace those of their key, but an estimate no measured one."""
    rows = {_key(cells): cells for cells in old}
    for cells in new:
        before = rows.get(_key(cells))
        if before is None or cells["origin"] == "measured" or before["origin"] != "measured":
            rows[_key(cells)] = cells
    return sorted(rows.values(), key=_order)


def load(file: Path) -> list[Cells]:
    if not file.exists():
        return []
    read(file)  # refuses what the op would refuse
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def save(file: Path, rows: Iterable[Cells]) -> None:
    """Whole or not at all."""
    with tempfile.NamedTemporaryFile(
        "w", newline="", encoding="utf-8", dir=file.parent, delete=False
    ) as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    Path(stream.name).chmod(0o644)
    Path(stream.name).replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=paths.CONFIGS / FILE)
    parser.add_argument("--resume", action="store_true", help="leave shapes that are measured")
    parser.add_argument("--shape", type=int, nargs=4, action="append", metavar=("B", "M", "N", "K"))
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    options = parser.parse_args()

    rows = merge(load(options.output), estimated_rows())
    save(options.output, rows)
    if not torch.cuda.is_available():
        print("# no GPU: only the rows that the heuristic gives were written")
        return
    device = torch.device("cuda", torch.cuda.current_device())
    arch = family(launch.arch_of(device))
    if arch is None:
        raise SystemExit(f"no route of the op runs on {launch.arch_of(device)}")
    source = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"{datetime.date.today()}"
    )
    shapes = [Shape(*sizes) for sizes in options.shape] if options.shape else list(SHAPES)
    if options.resume:
        done = {_key(cells) for cells in rows if cells["origin"] == "measured"}
        shapes = [shape for shape in shapes if (arch, *map(str, shape)) not in done]
    compile_all(shapes, options.processes)
    for index, shape in enumerate(shapes):
        config, timing, bmm = tune(shape, device)
        figures = {"us": timing.us, "spread": timing.spread, "bmm_us": bmm.us}
        rows = merge(rows, [row_of(arch, shape, config, "measured", source, figures)])
        save(options.output, rows)
        print(
            f"[{index + 1}/{len(shapes)}] {tuple(shape)}: {timing.us:.2f} us, bmm {bmm.us:.2f}, "
            f"{route_of(config)} {config_text(config)}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
