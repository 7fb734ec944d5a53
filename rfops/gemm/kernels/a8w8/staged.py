"""The kernel of gemm_a8w8_blockscale that stages operands through registers, for both: any M."""

from __future__ import annotations

from types import MappingProxyType

from .launch import compile_gemm
from .tiles import TileConfig, TileKernel


class StagedConfig(TileConfig):
    """A variant of csrc/gemm/a8w8_blockscale_staged.hip."""

    TILES = MappingProxyType({(128, 128): 248, (128, 64): 168, (64, 64): 120, (64, 128): 168})
    stages, threads = 1, 256


class Staged(TileKernel):
    """Tiles of x and w staged in LDS, for many rows."""

    name = "staged"
    module = "a8w8_blockscale_staged"
    Config = StagedConfig
    max_rows = 128
    compiled = compile_gemm(module, StagedConfig(128, 128), StagedConfig(128, 64))
