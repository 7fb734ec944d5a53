"""The kernels of gemm_a8w8_blockscale for many rows: one output tile per workgroup."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns
from rfops.dispatch.kernel import Call
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS
from rfops.quantization.fp8_blockscale import BLOCK

from ...terms import Traits
from ..variant import RowsConfig
from .launch import MAX_SPLIT, Launched
from .layout import OUT_TYPES, is_columns

MAX_GROUP_M = 16
SPLITS = 1, 2, 3, 4, 5, 6, 8, 10, MAX_SPLIT  # that a call chooses among: those that were timed


@dataclass(frozen=True)
class TileConfig(RowsConfig):
    """A variant of one of them."""

    split: int = 1  # workgroups along K
    group_m: int = 4  # tiles along M of a group of workgroups

    TILES: ClassVar[Mapping[tuple[int, int], int]]  # m and n: VGPRs at most
    stages: ClassVar[int]  # K-steps in LDS
    threads: ClassVar[int]

    ALLOWED: ClassVar[Allowed] = {"split": up_to(MAX_SPLIT), "group_m": up_to(MAX_GROUP_M)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_tile(self.TILES)

    @property
    def registers(self) -> int:
        """VGPRs of a lane, as the compiler allocates them."""
        return self.TILES[self.m, self.n]

    @property
    def lds_bytes(self) -> int:
        """LDS of a workgroup: the stages of both operands."""
        return self.stages * (self.m + self.n) * BLOCK

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
        """Return the defines that select the variant in the kernel, without RFOPS_."""
        return {
            "M": self.m,
            "N": self.n,
            "SPLIT": self.split,
            "GROUP_M": self.group_m,
            "OUT": OUT_TYPES[dtype],
            "SHUFFLED": int(shuffled),
            "DENSE": 1,
            "X_COLUMNS": 0,
            "W_COLUMNS": 0,
        }


class TileKernel(Launched):
    """One of those kernels."""

    Config: ClassVar[type[TileConfig]]
    takes_columns = True

    def defines(self, c: Call, config: Any) -> Mapping[str, int | str]:
        columns = {"X_COLUMNS": int(is_columns(c, "x")), "W_COLUMNS": int(is_columns(c, "w"))}
        return {**super().defines(c, config), **columns}

    def space(self, c: Call) -> Columns[Any] | None:
        if self.unsupported_arch_reason(c) or c.K < BLOCK:
            return None
        return self._tiles(min(MAX_SPLIT, c.K // BLOCK))

    @functools.lru_cache(maxsize=64)  # noqa: B019 # kernels live as long as the process
    def _tiles(self, max_rows: int) -> Columns[TileConfig]:
        splits = [split for split in SPLITS if split <= max_rows]
        return Columns([self.Config(*t, split) for t in self.Config.TILES for split in splits])

    def family(self, config: TileConfig, c: Call) -> str:
        return f"{config.m}x{config.n}"

    def traits(self, config: TileConfig, c: Call) -> tuple[float, ...]:
        by_registers = min(REGISTERS // config.registers, MAX_WAVES) // (config.threads // 256)
        resident = min(by_registers, ARCH_SPECS[c.arch].lds_bytes // config.lds_bytes)
        return Traits(config.m, config.n, config.split, BLOCK, max(1, resident))
