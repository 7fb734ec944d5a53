"""The kernels of gemm_a8w8_blockscale for many rows: one output tile per workgroup, and the model
that picks the tile of a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS
from rfops.quantization.fp8_blockscale import BLOCK

from ..variant import RowsConfig
from .launch import MAX_SPLIT, Launched
from .layout import OUT_TYPES, is_columns

MAX_GROUP_M = 16


@dataclass(frozen=True)
class TileConfig(RowsConfig):
    """A variant of one of them."""

    split: int = 1  # workgroups along K
    group_m: int = 4  # tiles along M of a group of workgroups

    TILES: ClassVar[Mapping[tuple[int, int], int]]  # m and n: VGPRs at most
    BUSY: ClassVar[Mapping[tuple[int, int], float]]  # share of time of the matrix cores in the loop
    ALONE: ClassVar[float] = 1.0  # of that what a workgroup with no other on its CU reaches
    stages: ClassVar[int]  # K-steps in LDS
    threads: ClassVar[int]

    ALLOWED: ClassVar[Allowed] = {"split": up_to(MAX_SPLIT), "group_m": up_to(MAX_GROUP_M)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_tile(self.TILES)

    @property
    def registers(self) -> int:
        return self.TILES[self.m, self.n]

    @property
    def busy(self) -> float:
        return self.BUSY[self.m, self.n]

    @property
    def lds_bytes(self) -> int:
        return self.stages * (self.m + self.n) * BLOCK

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
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


# Of a CU: what its L1 and queue hold of bytes in flight, and cycles from a load to its use, both
# published for MI300X and MI355X; what one workgroup reads of others' sums, an assumption.
_IN_FLIGHT, _LATENCY_CYCLES, _REDUCE_BYTES = 44 * 1024, 1000, 48
_PARTS_TB_S = 2.0  # at which parts of sums are written and read, by timing mode


class TileKernel(Launched):
    """One of those kernels."""

    Config: ClassVar[type[TileConfig]]
    takes_columns = True

    def defines(self, c: Call, config: Any) -> Mapping[str, int | str]:
        columns = {"X_COLUMNS": int(is_columns(c, "x")), "W_COLUMNS": int(is_columns(c, "w"))}
        return {**super().defines(c, config), **columns}

    def variants(self, c: Call) -> Columns[Any]:
        most = min(MAX_SPLIT, c.K // BLOCK)
        known = _variants.get((self.name, most))
        if known is None:
            splits = range(1, most + 1)
            made = [self.Config(*tile, split) for tile in self.Config.TILES for split in splits]
            known = _variants[self.name, most] = Columns(made)
        return known

    def times(self, t: Columns[Any], c: Call) -> Any:
        """Rounds of workgroups by their K-steps, each bound by the matrix cores or by loads in
        flight; with split the last workgroup's sum; at least the bytes. Power limits the clock by
        the cube root of how many matrix cores work: idle ones cost less than their share."""
        chip = ARCH_SPECS[c.arch]
        flops = chip.matrix_tflops["fp8"] * 1e6 / chip.cus / (chip.ghz * 1e3)  # a cycle and CU
        groups = ceil(c.M, t.m) * ceil(c.N, t.n) * t.split
        by_registers = np.minimum(REGISTERS // t.registers, MAX_WAVES) // (t.threads // 256)
        most = np.minimum(by_registers, chip.lds_bytes // t.lds_bytes)
        resident = np.minimum(ceil(groups, chip.cus), most)
        rounds = ceil(groups, chip.cus * resident)
        steps = ceil(c.K // BLOCK, t.split)
        busy = t.busy * np.where(resident == 1, t.ALONE, 1)
        matrix = resident * 2 * t.m * t.n * BLOCK / flops / busy
        loads = resident * (t.m + t.n) * BLOCK * _LATENCY_CYCLES / _IN_FLIGHT
        step = np.maximum(np.maximum(matrix, loads), _LATENCY_CYCLES / 2)
        sums = (t.split > 1) * (2 * _LATENCY_CYCLES + t.split * t.m * t.n * 4 / _REDUCE_BYTES)
        ends = 2 * _LATENCY_CYCLES + t.m * t.n * c.dtype.itemsize / _REDUCE_BYTES
        loop = (rounds * (steps * step + ends) + sums) / (chip.ghz * 1e3)
        loop = loop * np.cbrt(groups / (chip.cus * resident * rounds))
        bytes_ = c.M * c.K + c.N * c.K + c.M * c.N * c.dtype.itemsize
        parts = (t.split > 1) * 8 * t.split * c.M * c.N / (_PARTS_TB_S * 1e6)
        return chip.launch_us + np.maximum(loop, bytes_ / (chip.hbm_tb_s * 1e6)) + parts

    def ties(self, t: Columns[Any], c: Call) -> tuple[Any, ...]:
        return t.split, t.m * t.n


_variants: dict[tuple[str, int], Columns[TileConfig]] = {}  # by kernel and largest split
