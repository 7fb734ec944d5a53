"""Routes of batched_gemm_a16w8_blockscale: configs, what they take, heuristic, launches.

| route | what runs | config |
|---|---|---|
| rows | one kernel, sums on the vector ALU; M at most 16 | RowsConfig |
| tiles | one kernel on the matrix unit; with split_k a second one that sums | TilesConfig |
| bmm | w dequantised into a workspace, batches at a time, and torch.bmm; x in bf16 | BmmConfig |

`bmm` rounds w * w_scale to bf16, the others only their fp32 sums. The kernels are in
batched_gemm_a16w8_kernels.py; this module imports them, and triton, at the first launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .bound import BoundKernel

SCALE_BLOCK = 128
MAX_ROWS = 16  # of the route rows
MIB = 1 << 20
# Compute units that the heuristic fills; fixed, so that a shape has one config an architecture.
UNITS = {"gfx942": 304, "gfx950": 256, "sm_90": 132}
_LDS = {"gfx942": 64 << 10, "gfx950": 160 << 10, "sm_90": 227 << 10}
_MAX_GRID = 65535  # programs along the grid's second and third axis


class Shape(NamedTuple):
    b: int
    m: int
    n: int
    k: int


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power(value: int, least: int = 1, most: int = 1 << 30) -> int:
    """The next power of two, within bounds."""
    return max(least, min(most, 1 << max(value - 1, 0).bit_length()))


class _Config:
    """What the config classes share: each field is a power of two unless `_free` or `_flags` (0 or
    1) names it."""

    _free: tuple[str, ...] = ()
    _flags: tuple[str, ...] = ()
    _most_n = SCALE_BLOCK  # a tile of w has one scale in a block of K

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in self._flags:
                if value not in (0, 1):
                    self._fail(name, "0 or 1", value)
                continue
            if not isinstance(value, int) or value < 1:
                self._fail(name, "a positive integer", value)
            if name not in self._free and value & (value - 1):
                self._fail(name, "a power of two", value)
        self._at_most("tile_n", self._most_n)

    def _at_most(self, name: str, most: int) -> None:
        if vars(self)[name] > most:
            self._fail(name, f"at most {most}", vars(self)[name])

    def _fail(self, name: str, expected: str, got: object) -> None:
        raise ValueError(f"{type(self).__name__}: {name} must be {expected}, got {got!r}")


@dataclass(frozen=True)
class RowsConfig(_Config):
    tile_n: int  # rows of w of a program
    tile_k: int  # elements of K in flight at once
    batches: int = 1  # of a program; more than 1 only where M is 1
    warps: int = 4


@dataclass(frozen=True)
class TilesConfig(_Config):
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
        if self.tile_k < 16:
            self._fail("tile_k", "at least 16", self.tile_k)


@dataclass(frozen=True)
class BmmConfig(_Config):
    workspace_mib: int = 512  # at most, unless one batch needs more; from torch's allocator
    tile_n: int = 32
    warps: int = 4

    _free = ("workspace_mib",)

    def batches(self, shape: Shape) -> int:
        """Batches dequantised at once."""
        return max(1, min(shape.b, self.workspace_mib * MIB // (2 * shape.n * shape.k)))


Config = RowsConfig | TilesConfig | BmmConfig
ROUTES: dict[str, type[Config]] = {"rows": RowsConfig, "tiles": TilesConfig, "bmm": BmmConfig}


def route_of(config: Config) -> str:
    return next(name for name, kind in ROUTES.items() if isinstance(config, kind))


def family(arch: str) -> str | None:
    """The architecture whose rows and heuristic serve `arch`; None if no route runs there."""
    if arch in UNITS:
        return arch
    number = arch.removeprefix("sm_")
    # e4m3 is a type of Triton's from 8.9 on.
    return "sm_90" if arch.startswith("sm_") and number.isdigit() and int(number) >= 89 else None


def refuses(shape: Shape, x_dtype: torch.dtype, config: Config) -> str | None:
    """Why a route does not take the shape with that config; None if it does."""
    if isinstance(config, RowsConfig):
        if shape.m > MAX_ROWS:
            return f"M={shape.m} is above {MAX_ROWS}"
        if config.batches > 1 and shape.m != 1:
            return f"batches={config.batches} needs M=1, and M is {shape.m}"
    if isinstance(config, BmmConfig) and x_dtype != torch.bfloat16:
        return "dequantised weights may exceed float16's range; it takes bfloat16 x"
    return None


# ---------------------------------------------------------------- heuristic

# From this many multiplications on, and M, torch.bmm repays the dequantised weights' way through
# memory.
_BMM_M, _BMM_WORK = 512, 1 << 34
_THREAD_BYTES = 64  # of w in flight in a thread


def heuristic(shape: Shape, x_dtype: torch.dtype, arch: str) -> Config:
    """What a shape without a tuned row takes.

    At M of at most 2, rows: tiles small enough for two programs a compute unit. Above, tiles of the
    matrix unit: M as narrow as it may be (w's rows are the wide side; on sm_90 x is on the left
    from 33 rows on), N halved until the chip is full, and K split where even that leaves most of it
    idle. Large problems take bmm.
    """
    arch = family(arch) or arch
    b, m, n, k = shape
    units = UNITS[arch]
    work = b * m * n * k
    if m >= _BMM_M and work >= _BMM_WORK and x_dtype == torch.bfloat16:
        return BmmConfig()
    if m <= 2:
        return _heuristic_rows(shape, 32 if arch == "sm_90" else 64, units)
    x_left = int(arch == "sm_90" and m > 32)
    tile_m = _power(m, 64 if x_left else 16, 128)
    tile_n = 128 if tile_m <= 64 and arch != "gfx942" else 64
    while tile_n > 32 and b * _ceil(m, tile_m) * _ceil(n, tile_n) < 2 * units:
        tile_n //= 2
    while tile_m > (64 if x_left else 32) and b * _ceil(m, tile_m) * _ceil(n, tile_n) < units:
        tile_m //= 2
    tile_k = _power(k, 32, SCALE_BLOCK)
    steps = _ceil(k, tile_k)
    programs = b * _ceil(m, tile_m) * _ceil(n, tile_n)
    split_k = max(1, min(steps // 4, 8, units // max(programs, 1)))
    stages = 3
    while stages > 1 and (stages - 1) * tile_k * (tile_n + 2 * tile_m) > _LDS[arch] * 3 // 4:
        stages -= 1
    return TilesConfig(
        tile_m, tile_n, tile_k, x_left, split_k=split_k, stages=max(1, min(stages, steps))
    )


def _heuristic_rows(shape: Shape, wave: int, units: int) -> RowsConfig:
    b, m, n, k = shape
    warps = 2 if wave == 32 else 1
    tile_k = _power(k, 16, 512)
    tile_n = _power(warps * wave * _THREAD_BYTES // tile_k, 1, SCALE_BLOCK)
    tile_n = min(tile_n, _power(n))
    while tile_n > 4 and b * _ceil(n, tile_n) < 2 * units:
        tile_n //= 2
    spare = warps * wave * _THREAD_BYTES // (tile_n * tile_k)
    batches = 1
    while m == 1 and 2 * batches <= spare and b * _ceil(n, tile_n) >= 8 * units * batches:
        batches *= 2
    return RowsConfig(tile_n, tile_k, batches, warps)


# ---------------------------------------------------------------- launches

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
_KERNELS = "batched_gemm_a16w8_kernels"


def prepare(device: torch.device, shape: Shape, config: Config) -> Launch:
    """The launches of a shape as a function of out, x, w and w_scale. Nothing runs yet."""
    if isinstance(config, RowsConfig):
        return _prepare_rows(device, shape, config)
    if isinstance(config, BmmConfig):
        return _prepare_bmm(device, shape, config)
    if shape.k <= config.tile_k and _ceil(shape.m, config.tile_m) <= _MAX_GRID:
        return _prepare_one_block(device, shape, config)
    return _prepare_tiles(device, shape, config)


def _launches(b: int, step: int = 1) -> list[tuple[int, int]]:
    """First batch and extent of the grid's last axis, each launch; programs take `step` batches."""
    most = _MAX_GRID * step
    return [(first, _ceil(min(b - first, most), step)) for first in range(0, b, most)]


def _prepare_rows(device: torch.device, shape: Shape, config: RowsConfig) -> Launch:
    b, m, n, k = shape
    constants = (_power(m), config.batches, config.tile_n, config.tile_k, k % config.tile_k == 0)
    kernel = BoundKernel(_KERNELS, "rows", device, constants, config.warps)
    tiles_n, launches = _ceil(n, config.tile_n), _launches(b, config.batches)

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
        strides = (*out.stride(), *x.stride(), *w.stride(), *scale.stride())
        for first, extent in launches:
            kernel((tiles_n, 1, extent), (out, x, w, scale), (first, b, m, n, k, *strides))

    return run


def _prepare_one_block(device: torch.device, shape: Shape, config: TilesConfig) -> Launch:
    b, m, n, k = shape
    constants = (config.tile_m, config.tile_n, config.tile_k, config.panels, config.x_left == 1,
                 m % config.tile_m == 0, k == config.tile_k)  # fmt: skip
    kernel = BoundKernel(_KERNELS, "one_block", device, constants, config.warps, config.stages)
    tiles = _ceil(n, config.tile_n * config.panels), _ceil(m, config.tile_m)
    launches = _launches(b)

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
        strides = (*out.stride(), *x.stride(), *w.stride(), *scale.stride())
        for first, extent in launches:
            kernel((*tiles, extent), (out, x, w, scale), (first, m, n, k, *strides))

    return run


def _prepare_tiles(device: torch.device, shape: Shape, config: TilesConfig) -> Launch:
    b, m, n, k = shape
    splits = min(config.split_k, _ceil(k, config.tile_k))
    constants = (config.tile_m, config.tile_n, config.tile_k, config.group_n, splits,
                 config.x_left == 1, m % config.tile_m == 0, k % config.tile_k == 0,
                 m <= config.tile_m)  # fmt: skip
    kernel = BoundKernel(_KERNELS, "tiles", device, constants, config.warps, config.stages)
    tiles = _ceil(m, config.tile_m) * _ceil(n, config.tile_n)
    launches = _launches(b)
    sum_tile = _power(n, 16, 1024)
    sum_splits = BoundKernel(_KERNELS, "sum_splits", device, (splits, sum_tile), warps=4)

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
        part, part_s = out, 0
        if splits > 1:
            part = torch.empty(splits, b, m, n, dtype=torch.float32, device=device)
            part_s = b * m * n
        strides = (*part.stride()[-3:], *x.stride(), *w.stride(), *scale.stride())
        for first, extent in launches:
            numbers = (first, m, n, k, part_s, *strides)
            kernel((tiles, splits, extent), (part, x, w, scale), numbers)
        if splits > 1:
            grid = (b * m * _ceil(n, sum_tile), 1, 1)
            sum_splits(grid, (out, part), (m, n, part_s, *out.stride()))

    return run


def _prepare_bmm(device: torch.device, shape: Shape, config: BmmConfig) -> Launch:
    b, _m, n, k = shape
    step = config.batches(shape)
    kernel = BoundKernel(_KERNELS, "dequantise", device, (config.tile_n,), config.warps)
    tiles = _ceil(n, config.tile_n) * _ceil(k, SCALE_BLOCK)

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
        strides = (*w.stride(), *scale.stride())
        space = torch.empty(step, n, k, dtype=x.dtype, device=device)
        for first in range(0, b, step):
            part = slice(first, min(first + step, b))
            values = space[: part.stop - first]
            grid = (tiles * len(values), 1, 1)
            kernel(grid, (values, w, scale), (first, n, k, *strides))
            if out.dtype == x.dtype:
                torch.bmm(x[part], values.mT, out=out[part])
            else:
                out[part] = torch.bmm(x[part], values.mT)

    return run
