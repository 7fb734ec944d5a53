"""The MXFP4 kernel for so many rows that the matrix cores are the limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil, coarse
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS

from ..variant import RowsConfig
from .launch import has_16_bits
from .prepare import STEP_K, Prepared, PreparedCost, prepare_us

MAX_SPLIT, MAX_GROUP_M = 8, 16

# What `rfops build` makes: bf16, weights as they are loaded most quickly.
_LOOP: dict[str, int | str] = {
    "M": 256,
    "N": 256,
    "SPLIT": 1,
    "GROUP_M": 4,
    "OUT": "bf16",
    "BIAS": "void",
    "SHUFFLED": 1,
    "X_SHUFFLED": 0,
    "TAIL": 0,
}


@compile_ops("mxfp4_loop", kernel="mxfp4_loop", variants=lambda _arch: [_LOOP])
def mxfp4_loop(
    w: torch.Tensor,
    w_scale: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    m: u32,
    n: u32,
    k: u32,
    x_row: u32,
    w_row: u32,
    w_scale_row: u32,
    x_scale_row: u32,
    groups: u32,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> None:
    """csrc/gemm/mxfp4_loop.hip documents the shapes."""


@dataclass(frozen=True)
class LoopConfig(RowsConfig):
    """A variant of csrc/gemm/mxfp4_loop.hip; its head comment says what each means."""

    split: int = 1  # workgroups along K
    group_m: int = 4  # tiles along M of a group of workgroups

    # m and n: workgroups of a CU at once.
    TILES: ClassVar[Mapping[tuple[int, int], int]] = MappingProxyType(
        {(256, 256): 1, (256, 128): 1, (128, 256): 1, (128, 128): 2}
    )
    threads: ClassVar[int] = 256
    ALLOWED: ClassVar[Allowed] = {"split": up_to(MAX_SPLIT), "group_m": up_to(MAX_GROUP_M)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_tile(self.TILES)
        if (self.m, self.n) == (256, 256) and self.split > 1:
            raise ValueError(f"{self}: 256 x 256 has no split, as registers would spill")

    @property
    def resident(self) -> int:
        return self.TILES[self.m, self.n]


# By timing mode: busy share of the matrix cores in the loop, cycles of a tile beside it, what a
# workgroup reads of others' sums a cycle.
_BUSY, _ENDS, _REDUCE_BYTES = 0.95, 5000, 48
_WRITE_TB_S = 5.0


class Loop(Prepared):
    name = "loop"
    module = "mxfp4_loop"
    more_modules = ("mxfp4_prepare",)
    Config = LoopConfig
    max_rows = 256
    compiled = mxfp4_loop

    def unsupported_config_reason(self, c: Call, config: LoopConfig) -> str | None:  # type: ignore[override]
        largest = (config.m, config.n) == _LARGEST
        return super().unsupported_config_reason(c, config) or (_no_largest(c) if largest else None)

    def key(self, c: Call) -> tuple[int, ...]:
        sizes = coarse(c.M, 64), coarse(c.N, 64), coarse(c.K, STEP_K)
        return (*sizes, int(has_16_bits(c)), c.dtype.itemsize, int(_no_largest(c) is not None))

    @staticmethod
    def space(
        _m: int, _n: int, k: int, _is_16: int, _size: int, without_largest: int
    ) -> Columns[LoopConfig]:
        return _variants(min(MAX_SPLIT, ceil(k, STEP_K)), bool(without_largest))

    @staticmethod
    def work(  # type: ignore[override]
        t: Columns[LoopConfig], m: int, n: int, k: int, is_16: int, size: int, _without_largest: int
    ) -> PreparedCost:
        """Rounds of workgroups by their K-steps, each bound by the matrix cores or by loads; with
        split the last workgroup's sum; at least the bytes; before it x."""
        chip = ARCH_SPECS["gfx950"]
        flops = 2 * 8192  # of FP4, a cycle and CU
        items = ceil(m, t.m) * ceil(n, t.n) * t.split
        resident = np.minimum(ceil(items, chip.cus), t.resident)
        rounds = ceil(items, chip.cus * resident)
        steps = ceil(ceil(k, STEP_K), t.split) + 1
        matrix = 2 * t.m * t.n * STEP_K / flops / _BUSY
        loads = (t.m + t.n) * STEP_K / 2 / 64 * 1.1
        step = np.maximum(resident * np.maximum(matrix, loads), 700)
        sums = (t.split > 1) * (2000 + t.split * t.m * t.n * 4 / _REDUCE_BYTES)
        clocks = rounds * (steps * step + _ENDS * resident + sums)
        us = clocks / (chip.ghz * 1e3) + m * n * size / _WRITE_TB_S / 1e6
        traffic = (m + n) * k / 2 + 8 * (t.split > 1) * t.split * m * n
        us = np.maximum(us, traffic / (chip.hbm_tb_s * 1e6))
        if is_16:
            us = us + prepare_us(m, k)
        return PreparedCost(us, (t.split, t.m * t.n))

    def grid(self, c: Call, config: LoopConfig, items: int) -> tuple[int, Mapping[str, int]]:
        groups = min(items, c.cu_num * config.resident)
        return groups, {"groups": groups}


_LARGEST = 256, 256


def _no_largest(c: Call) -> str | None:
    """Why 256 x 256 does not take the call; None if it does."""
    if c.K % STEP_K:
        return f"K={c.K} is no multiple of {STEP_K}, for which registers would spill"
    if c.dtype == torch.float32 and c.has("bias"):
        return "a bias has no room in LDS beside 256 x 256 of fp32"
    return None


@lru_cache(maxsize=16)
def _variants(max_split: int, without_largest: bool) -> Columns[LoopConfig]:
    splits = range(1, max_split + 1)
    pairs = [(tile, split) for tile in LoopConfig.TILES for split in splits]
    fit = [p for p in pairs if p[0] != _LARGEST or (p[1] == 1 and not without_largest)]
    return Columns([LoopConfig(*tile, split) for tile, split in fit])
