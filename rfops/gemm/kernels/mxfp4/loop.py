"""The MXFP4 kernel for so many rows that the matrix cores are the limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops, u32

from ...mxfp4_op import STEP_K
from ...terms import Traits
from ..variant import RowsConfig
from .launch import X_BYTES
from .prepare import Prepared, share_prepared

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
    "RAW_SCALES": 0,
    "X_RAW_SCALES": 0,
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

    @property
    def has_room_for_raw(self) -> bool:
        """Whether LDS has room for raw scales and the counter of a split without fewer workgroups
        at once."""
        return self.resident == 1 or self.split == 1


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

    def space(self, c: Call) -> Columns[LoopConfig] | None:
        return (
            None if self.unsupported_arch_reason(c) else _variants(_SPLITS, _no_largest(c) is None)
        )

    def full_space(self, c: Call) -> Columns[LoopConfig] | None:
        if self.unsupported_arch_reason(c):
            return None
        splits = tuple(range(1, min(MAX_SPLIT, ceil(c.K, STEP_K)) + 1))
        return _variants(splits, _no_largest(c) is None)

    def traits(self, config: LoopConfig, c: Call) -> tuple[float, ...]:
        return Traits(
            config.m,
            config.n,
            config.split,
            STEP_K,
            config.resident,
            lds_bytes=config.words * 4,
            is_prepared=share_prepared(c, config.has_room_for_raw),
            max_x_bytes=X_BYTES,
        )

    def reads_raw(self, c: Call, config: LoopConfig, name: str, k: int) -> bool:
        return config.has_room_for_raw and super().reads_raw(c, config, name, k)

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


_SPLITS = 1, 2, 3  # that a call chooses among


@lru_cache(maxsize=32)
def _variants(splits: tuple[int, ...], with_largest: bool) -> Columns[LoopConfig]:
    pairs = [(tile, split) for tile in LoopConfig.TILES for split in splits]
    fit = [p for p in pairs if p[0] != _LARGEST or (p[1] == 1 and with_largest)]
    return Columns([LoopConfig(*tile, split) for tile, split in fit])
