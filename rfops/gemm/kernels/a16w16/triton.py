"""The Triton kernel of gemm_a16w16 and batched_gemm_a16w16: any strides, AMD and NVIDIA.

The device code is in triton_kernels.py, which is imported, with triton, at the first launch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch

from rfops.dispatch.config import Allowed, powers
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.jit.arch import MAX_GRID
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import GemmTileConfig, TritonKernel, spec_of, stages_in_lds

from .shape import Shape, shape_of, strides

_KERNELS = "rfops.gemm.kernels.a16w16.triton_kernels"
_STRIDES = {"out": "out_b out_m out_n", "x": "x_b x_m x_k", "w": "w_b w_n w_k"}


@dataclass(frozen=True)
class TilesConfig(GemmTileConfig):
    """A program computes `block_m` rows of x by `block_n` rows of w."""

    block_k: int
    warps: int = 4
    stages: int = 2

    ALLOWED: ClassVar[Allowed] = {**GemmTileConfig.ALLOWED, "block_k": powers(16, 256)}


class TritonTiles(TritonKernel):
    """Output tiles on the matrix unit."""

    Config = TilesConfig

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        shape = shape_of(*c.sizes.values())
        for name in ("x", "w", "out"):
            _, row, column = strides(c, name, shape)
            _, rows, columns = shape.sizes_of(name)
            if 4 * ((rows + 256) * abs(row) + (columns + 256) * abs(column)) >= MAX_BYTES:
                return f"a batch of {name} is beyond signed 32-bit offsets (2 GiB)"
        if ceil(shape.m, 16) > MAX_GRID:
            return f"M={shape.m} is more than {MAX_GRID} tiles"
        return None

    def lds_bytes(self, c: Call, config: TilesConfig) -> int:
        stages = stages_in_lds(config.stages, c.arch)
        return 2 * (config.block_m + config.block_n) * config.block_k * stages + 1024

    def default(self, c: Call) -> TilesConfig:
        """Tiles as M has rows, narrower ones until there are programs for all units."""
        shape = shape_of(*c.sizes.values())
        block_m = min(64, max(16, 1 << (shape.m - 1).bit_length()))
        block_n, block_k = 128 if block_m == 64 else 64, 64 if shape.k <= 256 else 128
        cus = spec_of(c.arch).cus
        while block_n > 32 and shape.b * ceil(shape.m, block_m) * ceil(shape.n, block_n) < cus:
            block_n //= 2
        return TilesConfig(block_m, block_n, block_k, stages=2 if c.arch.startswith("gfx") else 4)

    def candidates(self, c: Call) -> list[TilesConfig]:
        """The default, and others near it."""
        default = self.default(c)
        axes = (16, 32, 64, 128), (32, 64, 128), (64, 128), (4, 8), {default.stages, 3}
        configs = itertools.starmap(TilesConfig, itertools.product(*axes))
        fit = [
            config
            for config in configs
            if default.block_m <= 2 * config.block_m <= 4 * default.block_m
            and self.unsupported_config_reason(c, config) is None
        ]
        return list(dict.fromkeys([default, *fit]))

    def variant(self, c: Call, config: TilesConfig) -> RunOf:
        return lambda *sizes: _bind(
            c.device, config, shape_of(*sizes), len(sizes) == len(Shape._fields)
        )


def _bind(device: torch.device, config: TilesConfig, shape: Shape, is_batched: bool) -> Run:
    constants = {
        "BM": config.block_m,
        "BN": config.block_n,
        "BK": config.block_k,
        "EVEN_K": shape.k % config.block_k == 0,
    }
    kernel = BoundTriton(_KERNELS, "tiles", device, constants, config.warps, config.stages)
    names = _STRIDES if is_batched else {n: s.split(" ", 1)[1] for n, s in _STRIDES.items()}
    launch = kernel.prepare("out x w", strides=names)
    numbers = {"m_count": shape.m, "n_count": shape.n, "k_count": shape.k}
    if not is_batched:
        numbers |= {"out_b": 0, "x_b": 0, "w_b": 0}
    tiles = ceil(shape.n, config.block_n), ceil(shape.m, config.block_m)
    runs = [
        launch((*tiles, min(MAX_GRID, shape.b - batch)), b_first=batch, **numbers)
        for batch in range(0, shape.b, MAX_GRID)
    ]

    def run(*tensors: torch.Tensor) -> None:
        for one in runs:
            one(*tensors)

    return runs[0] if len(runs) == 1 else run
