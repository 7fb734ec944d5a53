"""The kernel of gemm_a8w8_blockscale for few tiles, for both: two K-steps in LDS and two more on
their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.quantization.fp8_blockscale import BLOCK

from .launch import Launched, compile_gemm
from .tiles import TileConfig, TileKernel

_LOAD_ROWS = 32  # of an operand that all threads load at once


@dataclass(frozen=True)
class DeepConfig(TileConfig):
    """A variant of csrc/gemm/a8w8_blockscale_deep.hip."""

    group_m: int = 8

    TILES: ClassVar[Mapping[tuple[int, int], int]] = MappingProxyType(
        {
            (96, 128): 288,
            (80, 128): 296,
            (64, 128): 248,
            (48, 128): 224,
            (32, 128): 184,
            (96, 64): 216,
            (64, 64): 184,
            (48, 64): 168,
            (32, 64): 136,
        }
    )
    stages, threads = 2, 256

    @property
    def lds_bytes(self) -> int:
        """LDS of a workgroup; x has rows for whole loads."""
        return self.stages * (ceil(self.m, _LOAD_ROWS) * _LOAD_ROWS + self.n) * BLOCK

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
        """Return the defines that select the variant in the kernel, without RFOPS_."""
        defines = super().defines(dtype, shuffled)
        return {name: value for name, value in defines.items() if not name.endswith("_COLUMNS")}


class Deep(TileKernel):
    """Tiles of which a CU has one or two: a workgroup is busy without another. Small ones keep more
    CUs loading, and of those a CU takes two at once where its LDS has room."""

    name = "deep"
    module = "a8w8_blockscale_deep"
    Config = DeepConfig
    max_rows = 128
    takes_columns = False
    compiled = compile_gemm(module, DeepConfig(96, 128))

    def defines(self, c: Call, config: Any) -> Mapping[str, int | str]:
        return Launched.defines(self, c, config)
