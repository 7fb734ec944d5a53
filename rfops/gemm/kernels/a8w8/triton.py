"""gemm_a8w8_blockscale in Triton: AMD's and NVIDIA's GPUs, any strides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.quantization.fp8_blockscale import BLOCK, FNUZ
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import MAX_SPLITS, GemmTileConfig, TritonKernel, spec_of, stages_in_lds
from rfops.triton.splits import in_splits

from . import layout as a8w8_layout

_KERNELS = "rfops.gemm.kernels.a8w8.triton_kernels"


@dataclass(frozen=True)
class A8W8TritonConfig(GemmTileConfig):
    """A variant of triton_kernels.py."""

    splits: int = 1
    group_m: int = 8
    warps: int = 4
    stages: int = 3

    @property
    def w_left(self) -> bool:
        """Whether w is the left operand of the matrix unit, which suits few rows."""
        return self.block_m < 64 and self.block_n <= BLOCK


class TritonGemm(TritonKernel):
    """The GEMM in Triton, for every architecture that has FP8 in Triton."""

    Config = A8W8TritonConfig

    def error_on(self, arch: str) -> float:
        """Hopper's FP8 matrix unit cuts each of 32 products, and the sum so far, at about 2^-13 of
        the largest of them. What is cut adds: 2^-10.8 of the sum of |products| was the most
        seen on an H200, at the shapes of the published set; the worst case is far more. Tests hold
        results to what follows from the data (op_tests/support/hopper.py)."""
        return 0.0 if arch.startswith("gfx") else 2.0**-10

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        if c.x_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.x_dtype}"
        if c.w_layout != "raw":
            return f"w is shuffled {c.w_layout}"
        if c.M < 1 or c.N < 1:
            return f"M={c.M}, N={c.N}: nothing to compute"
        strides = a8w8_layout.all_strides(c, c.M, c.N, c.K)
        for name, (row, column) in zip(("x", "w"), strides[:2], strict=True):
            if 256 * abs(row) + BLOCK * abs(column) >= MAX_BYTES:
                return f"256 rows of {name} are beyond signed 32-bit offsets (2 GiB)"
        return None

    def lds_bytes(self, c: Call, config: A8W8TritonConfig) -> int:
        """The operands in flight, and 1 KB for the rest."""
        stages = stages_in_lds(config.stages, c.arch)
        return (config.block_m + config.block_n) * BLOCK * stages + 1024

    def default(self, c: Call) -> A8W8TritonConfig:
        """Tiles as M has rows; K split until there are programs for all units."""
        block_m = min(128, max(16, 1 << (c.M - 1).bit_length()))
        block_n = 128 if block_m >= 64 else 64
        cus = spec_of(c.arch).cus
        tiles = ceil(c.M, block_m) * ceil(c.N, block_n)
        splits = min(MAX_SPLITS, max(1, int(cus // tiles)), max(1, c.K // BLOCK // 4))
        warps = 8 if block_m == block_n == 128 else 4
        stages = 2 if c.arch.startswith("gfx") else 4
        return A8W8TritonConfig(block_m, block_n, splits, 8, warps, stages)

    def candidates(self, c: Call) -> list[A8W8TritonConfig]:
        """The default, and others near it."""
        default = self.default(c)
        tiles = [(16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (128, 128)]
        splits = sorted({1, 2, 4, 8, default.splits} & set(range(1, c.K // BLOCK + 1)))
        configs = [
            A8W8TritonConfig(*tile, split, 8, warps, stages)
            for tile in tiles
            if tile[0] <= max(16, 2 * default.block_m) and 2 * tile[0] >= default.block_m
            for split in splits
            for warps in (4, 8)
            for stages in ((2,) if c.arch.startswith("gfx") else (3, 5))
        ]
        fit = (config for config in configs if self.unsupported_config_reason(c, config) is None)
        return [default, *(config for config in fit if config != default)]

    def variant(self, c: Call, config: A8W8TritonConfig) -> RunOf:
        return lambda m, n, k: _bind(c, config, m, n, k)


def _bind(c: Call, config: A8W8TritonConfig, m: int, n: int, k: int) -> Run:
    blocks = k // BLOCK
    per_split = ceil(blocks, config.splits)
    splits = ceil(blocks, per_split)
    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "GROUP_M": config.group_m,
        "W_LEFT": config.w_left,
        "FNUZ": c.x_dtype == FNUZ,
    }
    gemm = BoundTriton(_KERNELS, "gemm", c.device, constants, config.warps, config.stages)
    strides = tuple(a8w8_layout.all_strides(c, m, n, k))
    launch = gemm.prepare("out x w x_scale w_scale")
    grid = config.tiles(m, n), splits, 1
    run_gemm = launch(grid, m=m, n=n, blocks=blocks, per_split=per_split, out_m=n, strides=strides)

    def run(out: Tensor, x: Tensor, w: Tensor, *scales: Tensor) -> None:
        run_gemm(out, x.view(torch.uint8), w.view(torch.uint8), *scales)

    return in_splits(c.device, splits, m, n, run)
