"""The CSVs, mangled: rows that hold what they promise, or a ConfigError naming file and place."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rfops.dispatch import tuned_table
from rfops.dispatch.op import ops
from rfops.dispatch.tuned_table import Query, Table
from rfops.gemm import a16w8_table as batched_gemm_a16w8_table
from rfops.gemm.a16w8_routes import ROUTES, Shape, refuses
from rfops.jit import ConfigError, paths
from rfops.jit.arch import ROWS
from rfops.triton import tiles
from support import mangle

ROUNDS = [400, pytest.param(20_000, marks=pytest.mark.sweep)]


def fuzz(
    name: str, tmp_path: Path, rounds: int, read: Callable[[Path], int], lines: int = 12
) -> None:
    """`read` says how many rows a file has. Mostly a few `lines` of the shipped one are mangled."""
    shipped = (paths.CONFIGS / name).read_bytes()
    head = b"".join(shipped.splitlines(keepends=True)[:lines])
    file = tmp_path / name
    file.write_bytes(shipped)
    assert read(file) > 10
    rng, refused, rows = random.Random(f"{name} {rounds}"), 0, 0
    for at in range(rounds):
        data = mangle.csv_file(rng, shipped if at % 20 == 0 else head)
        file.write_bytes(data)
        try:
            rows += read(file)
        except ConfigError as error:
            assert re.match(rf"{file}(, (after )?line \d+|: no row for )", str(error)), error
            refused += 1
    assert refused > rounds / 3 and rows > rounds


# ---------------------------------------------------------------- mxfp8.csv

QUERIES = (
    Query.of("gemm_mxfp8", "gfx950", 256, m=8, n=2304, k=6144),
    Query.of("gemm_mxfp8", "gfx942", 304, m=1, n=2304, k=6144),
    Query.of("grouped_gemm_mxfp8", "gfx950", 256, m=8, n=2304, k=6144, e=8, a_div=2, has_weight=0),
)


def read_tuned(file: Path) -> int:
    rows = list(tuned_table.read(file, "mxfp8"))
    table = Table({file: rows}, tuned_table.FAMILIES["mxfp8"])
    for row in table.rows:
        assert str(row).encode() and 0 < row.cu_num < 1e18 and row.m > 0
        assert all(math.isfinite(value) and value > 0 for _, value in row.figures)
        op = ops()[row.op]
        op.parse_config(op.kernels[row.backend], row.config, row)
    for query in QUERIES:
        found = table.find(query)
        assert found is None or found.row in table.rows
    return len(rows)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_mxfp8(tmp_path: Path, rounds: int) -> None:
    pytest.importorskip("triton")
    fuzz("mxfp8.csv", tmp_path, rounds, read_tuned)


# ---------------------------------------------------------------- batched_gemm_a16w8_blockscale.csv


def read_batched(file: Path) -> int:
    rows = batched_gemm_a16w8_table.read(file)
    for row in rows:
        assert str(row).encode() and isinstance(row.config, ROUTES[row.route])
        assert all(0 < size < 1e18 for size in row.shape)
        assert all(math.isfinite(value) and value >= 0 for _, value in row.figures)
        for shape in (row.shape, Shape(16, 1, 128, 512)):
            assert isinstance(refuses(shape, torch.bfloat16, row.config), str | None)
    return len(rows)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_batched_gemm_a16w8(tmp_path: Path, rounds: int) -> None:
    fuzz(batched_gemm_a16w8_table.FILE, tmp_path, rounds, read_batched)


# ---------------------------------------------------------------- mxfp8_triton.csv


@pytest.mark.parametrize("rounds", ROUNDS)
def test_triton_tiles(tmp_path: Path, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(file: Path) -> int:
        monkeypatch.setattr(tiles, "TABLE", file)
        tiles.table.cache_clear()
        for row in tiles.table():
            config = row.config
            assert config.block_m > 0 and config.stages >= 0 and config.origin
            assert row.fill >= 0 and math.isfinite(row.fill)
            assert config.constants(6144) and config.options("gfx950")
            if row.op == "dense":
                splits = tiles.splits_for(config, row.fill, 256, 8, 2304, 6144)
                assert 1 <= splits <= tiles.MAX_SPLITS
        for op in tiles.OPS:
            for arch in ROWS:
                tiles.find(op, arch, 8, 2304, 6144)
        return len(tiles.table())

    try:
        fuzz("mxfp8_triton.csv", tmp_path, rounds, read, lines=40)
    finally:
        monkeypatch.undo()
        tiles.table.cache_clear()
