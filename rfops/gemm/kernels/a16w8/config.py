"""Variants of batched_gemm_a16w8_blockscale's kernels (triton.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rfops.dispatch.guards import check_config_ints
from rfops.dispatch.heuristic import ceil

SCALE_BLOCK = 128
MIB = 1 << 20


class Shape(NamedTuple):
    """Sizes of a batched GEMM: b of [m, k] x [n, k]."""

    b: int
    m: int
    n: int
    k: int

    @property
    def work(self) -> int:
        """Multiply-adds of all batches."""
        return self.b * self.m * self.n * self.k

    def programs(self, tile_m: int, tile_n: int) -> int:
        """Return the number of output tiles of tile_m x tile_n in all batches."""
        return self.b * ceil(self.m, tile_m) * ceil(self.n, tile_n)


class _Config:
    """The base of config classes: each field is a power of two unless `_free` or `_flags` (0 or 1)
    names it."""

    _free: tuple[str, ...] = ()
    _flags: tuple[str, ...] = ()
    _most_n = SCALE_BLOCK  # a tile of w has one scale in a block of K

    def __post_init__(self) -> None:
        check_config_ints(self)
        for name, value in vars(self).items():
            if name in self._flags:
                if value not in (0, 1):
                    self._fail(name, "0 or 1", value)
                continue
            if value < 1:
                self._fail(name, "a positive integer", value)
            if name not in self._free and value & (value - 1):
                self._fail(name, "a power of two", value)
        self._at_most("tile_n", self._most_n)

    def _at_most(self, name: str, maximum: int) -> None:
        if vars(self)[name] > maximum:
            self._fail(name, f"at most {maximum}", vars(self)[name])

    def _at_least(self, name: str, minimum: int) -> None:
        if vars(self)[name] < minimum:
            self._fail(name, f"at least {minimum}", vars(self)[name])

    def _fail(self, name: str, expected: str, value: object) -> None:
        raise ValueError(f"{type(self).__name__}: {name} must be {expected}, got {value!r}")


@dataclass(frozen=True)
class RowsConfig(_Config):
    """A variant for few rows of x: each program multiplies rows of w by all of x."""

    tile_n: int  # rows of w of a program
    tile_k: int  # elements of K in flight at once
    batches: int = 1  # of a program; more than 1 only where M is 1
    warps: int = 4


@dataclass(frozen=True)
class TilesConfig(_Config):
    """A variant on the matrix units: output tiles of tile_m x tile_n."""

    tile_m: int
    tile_n: int
    tile_k: int
    x_left: int = 0  # 1: x is the matrix unit's left operand, not w
    panels: int = 1  # tiles of n that a program goes through with one tile of x; K up to tile_k
    group_n: int = 8  # tiles of n that share rows of x in the last-level cache
    split_k: int = 1
    warps: int = 4
    stages: int = 3

    _flags = ("x_left",)
    _free = ("panels", "group_n", "split_k", "stages")
    _most_n = 2 * SCALE_BLOCK  # or one for each row

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_most("tile_k", SCALE_BLOCK)
        self._at_least("tile_k", 16)


@dataclass(frozen=True)
class StagedConfig(_Config):
    """A variant for NVIDIA's matrix unit with several steps of K in shared memory."""

    tile_m: int
    tile_n: int
    tile_k: int  # of K for a group of warps and a step
    warps_k: int = 1  # groups of warps, each with a part of K of its own
    warps_m: int = 1
    warps_n: int = 1
    stages: int = 4  # steps of warps_k * tile_k under way, or in shared memory, at once

    _free = ("stages",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_most("tile_k", SCALE_BLOCK)
        self._at_least("tile_m", 8 * self.warps_m)
        self._at_least("tile_n", 16 * self.warps_n)
        self._at_least("tile_k", 32)

    @property
    def step(self) -> int:
        """Elements of K per step of all groups of warps."""
        return self.warps_k * self.tile_k

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self.warps_k * self.warps_m * self.warps_n


@dataclass(frozen=True)
class BmmConfig(_Config):
    """A variant that dequantises w to a workspace and calls torch.bmm."""

    workspace_mib: int = 512  # at most, unless one batch needs more; from torch's allocator
    tile_n: int = 32
    warps: int = 4

    _free = ("workspace_mib",)

    def batches(self, shape: Shape) -> int:
        """Batches dequantised at once."""
        return max(1, min(shape.b, self.workspace_mib * MIB // (2 * shape.n * shape.k)))


Config = RowsConfig | TilesConfig | StagedConfig | BmmConfig
