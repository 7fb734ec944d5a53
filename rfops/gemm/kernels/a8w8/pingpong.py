"""The kernel of gemm_a8w8_blockscale for gfx950 in which two waves of a SIMD take turns: any M."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch

from rfops.dispatch.config import FLAG, Allowed

from .launch import compile_gemm
from .tiles import TileConfig, TileKernel


@dataclass(frozen=True)
class PingPongConfig(TileConfig):
    """A variant of csrc/gemm/a8w8_blockscale_pingpong.hip. `pow2` is a promise of the caller: that
    every scale is a positive power of two, as models with e8m0 scales in fp32 have them; others
    would be rounded down to one."""

    pow2: int = 0

    TILES = MappingProxyType({(256, 256): 256, (256, 128): 192, (128, 256): 192})
    stages, threads = 2, 512
    ALLOWED: ClassVar[Allowed] = {**TileConfig.ALLOWED, "pow2": FLAG}

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
        return {**super().defines(dtype, shuffled), "POW2": self.pow2}


class PingPong(TileKernel):
    """Large tiles on gfx950: two groups of waves alternate between loads and MFMAs."""

    name = "pingpong"
    module = "a8w8_blockscale_pingpong"
    Config = PingPongConfig
    max_rows = 256
    compiled = compile_gemm(module, PingPongConfig(256, 256), PingPongConfig(256, 128))
