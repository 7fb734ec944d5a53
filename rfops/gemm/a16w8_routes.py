"""Routes of batched_gemm_a16w8_blockscale: configs, what they take, heuristic, launches.

| route | what runs | config |
|---|---|---|
| rows | one kernel, sums on the vector ALU; M at most 16 | RowsConfig |
| tiles | one kernel on the matrix unit; with split_k a second one that sums | TilesConfig |
| staged | one kernel on NVIDIA's matrix unit, its copies laid out by hand | StagedConfig |
| bmm | w dequantised into a workspace, batches at a time, and torch.bmm; x in bf16 | BmmConfig |

`bmm` rounds w * w_scale to bf16, the others only their fp32 sums. `staged` copies 16 bytes at once:
a call whose x or w does not lie so (`_in_pieces_of_16`) runs `tiles` instead, and so does each call
where Triton does not build it, which one warning tells. The kernels are in
a16w8_kernels.py and a16w8_staged.py; this module imports them, and
triton, at the first launch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rfops.dispatch.guards import check_config_ints
from rfops.jit import log
from rfops.jit.arch import MAX_GRID, ROWS
from rfops.triton.bound import BoundKernel

SCALE_BLOCK = 128
MAX_ROWS = 16  # of the route rows
MIB = 1 << 20
# Compute units that the heuristic fills; fixed, so that a shape has one config an architecture.


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

    def _at_most(self, name: str, most: int) -> None:
        if vars(self)[name] > most:
            self._fail(name, f"at most {most}", vars(self)[name])

    def _at_least(self, name: str, least: int) -> None:
        if vars(self)[name] < least:
            self._fail(name, f"at least {least}", vars(self)[name])

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
        self._at_least("tile_k", 16)


@dataclass(frozen=True)
class StagedConfig(_Config):
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
        return self.warps_k * self.tile_k

    @property
    def warps(self) -> int:
        return self.warps_k * self.warps_m * self.warps_n


@dataclass(frozen=True)
class BmmConfig(_Config):
    workspace_mib: int = 512  # at most, unless one batch needs more; from torch's allocator
    tile_n: int = 32
    warps: int = 4

    _free = ("workspace_mib",)

    def batches(self, shape: Shape) -> int:
        """Batches dequantised at once."""
        return max(1, min(shape.b, self.workspace_mib * MIB // (2 * shape.n * shape.k)))


Config = RowsConfig | TilesConfig | StagedConfig | BmmConfig
ROUTES: dict[str, type[Config]] = {
    "rows": RowsConfig,
    "tiles": TilesConfig,
    "staged": StagedConfig,
    "bmm": BmmConfig,
}


def route_of(config: Config) -> str:
    return next(name for name, kind in ROUTES.items() if isinstance(config, kind))


def family(arch: str) -> str | None:
    """The architecture whose rows and heuristic serve `arch`; None if no route runs there."""
    if arch in ROWS:
        return arch
    number = arch.removeprefix("sm_")
    # e4m3 is a type of Triton's from 8.9 on.
    return "sm_90" if arch.startswith("sm_") and number.isdigit() and int(number) >= 89 else None


def refuses(shape: Shape, x_dtype: torch.dtype, config: Config, arch: str = "sm_90") -> str | None:
    """Why a route does not take the shape with that config; None if it does."""
    if isinstance(config, RowsConfig):
        if shape.m > MAX_ROWS:
            return f"M={shape.m} is above {MAX_ROWS}"
        if config.batches > 1 and shape.m != 1:
            return f"batches={config.batches} needs M=1, and M is {shape.m}"
    if isinstance(config, StagedConfig):
        if arch.startswith("gfx"):
            return f"its kernel is for NVIDIA's matrix unit, and this is {arch}"
        if shape.k % config.step:
            return f"K={shape.k} is no multiple of its step, {config.step}"
        if _ceil(shape.m, config.tile_m) > MAX_GRID:
            return f"M={shape.m} is more than {MAX_GRID} tiles"
    if isinstance(config, BmmConfig) and x_dtype != torch.bfloat16:
        return "dequantised weights may exceed float16's range; it takes bfloat16 x"
    return None


# ---------------------------------------------------------------- heuristic

# From this many multiplications on, and M, torch.bmm repays the dequantised weights' way through
# memory.
_BMM_M, _BMM_WORK = 512, 1 << 34
# Up to which staged beats tiles beyond M=32 (H200: 64 x 64 x 512 x 512 in 11.9 us against 14.2,
# 100 x 128 x 300 x 512 in 31.8 against 24.7).
_STAGED_WORK = 1 << 30
_THREAD_BYTES = 64  # of w in flight in a thread


def heuristic(shape: Shape, x_dtype: torch.dtype, arch: str) -> Config:
    """What a shape without a tuned row takes.

    At M of at most 2, rows: tiles small enough for two programs a compute unit. Above, on sm_90,
    staged up to 32 rows, and for small problems of short K up to 128. Else tiles of the matrix
    unit: M as narrow as it may be (w's rows are the wide side; on sm_90 x is on the left
    from 33 rows on), N halved until the chip is full, and K split where even that leaves most of it
    idle. Large problems take bmm.
    """
    arch = family(arch) or arch
    b, m, n, k = shape
    units = ROWS[arch].cus
    work = b * m * n * k
    if m >= _BMM_M and work >= _BMM_WORK and x_dtype == torch.bfloat16:
        return BmmConfig()
    if m <= 2:
        return _heuristic_rows(shape, 32 if arch == "sm_90" else 64, units)
    is_small = m <= 32 or (m <= 128 and k <= 512 and work <= _STAGED_WORK)
    if arch == "sm_90" and is_small and k % (2 * SCALE_BLOCK) == 0:
        return _heuristic_staged(shape, units)
    return _heuristic_tiles(shape, arch)


def _heuristic_staged(shape: Shape, units: int) -> StagedConfig:
    """The tuned rows' most frequent: two groups of warps with 128 of K each, two such steps."""
    b, m, n, k = shape
    tile_m, tile_n = _power(m, 8, 32), 64
    wanted = 2 * units if k <= 512 else units
    while tile_n > 16 and b * _ceil(m, tile_m) * _ceil(n, tile_n) < wanted:
        tile_n //= 2
    return StagedConfig(tile_m, tile_n, SCALE_BLOCK, 2, 1, _ceil(tile_n, 32), stages=2)


def _heuristic_tiles(shape: Shape, arch: str) -> TilesConfig:
    b, m, n, k = shape
    units = ROWS[arch].cus
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
    while (
        stages > 1 and (stages - 1) * tile_k * (tile_n + 2 * tile_m) > ROWS[arch].lds_bytes * 3 // 4
    ):
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
_KERNELS = "rfops.gemm.a16w8_kernels"


def prepare(device: torch.device, shape: Shape, config: Config) -> Launch:
    """The launches of a shape as a function of out, x, w and w_scale. Nothing runs yet."""
    if isinstance(config, RowsConfig):
        return _prepare_rows(device, shape, config)
    if isinstance(config, BmmConfig):
        return _prepare_bmm(device, shape, config)
    if isinstance(config, StagedConfig):
        return _prepare_staged(device, shape, config)
    if shape.k <= config.tile_k and _ceil(shape.m, config.tile_m) <= MAX_GRID:
        return _prepare_one_block(device, shape, config)
    return _prepare_tiles(device, shape, config)


def _launches(b: int, step: int = 1) -> list[tuple[int, int]]:
    """First batch and extent of the grid's last axis, each launch; programs take `step` batches."""
    most = MAX_GRID * step
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


def _prepare_staged(device: torch.device, shape: Shape, config: StagedConfig) -> Launch:
    b, m, n, k = shape
    constants = staged_constants(shape, config)
    kernel = BoundKernel("rfops.gemm.a16w8_staged", "staged", device, constants, config.warps)
    tiles = _ceil(n, config.tile_n), _ceil(m, config.tile_m)
    launches = _launches(b)
    builds = True

    @functools.cache  # most calls need none
    def by_tiles() -> Launch:
        return prepare(device, shape, _heuristic_tiles(shape, "sm_90"))

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
        nonlocal builds
        if not builds or not (_in_pieces_of_16(x) and _in_pieces_of_16(w)):
            return by_tiles()(out, x, w, scale)
        strides = (*out.stride(), *x.stride()[:2], *w.stride()[:2], *scale.stride())
        try:
            for first, extent in launches:
                kernel((*tiles, extent), (out, x, w, scale), (first, m, n, k, *strides))
        except _build_errors() as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            log.get().warning("%s does not build, tiles runs instead: %s", config, reason)
            builds = False
            by_tiles()(out, x, w, scale)

    return run


def staged_constants(shape: Shape, config: StagedConfig) -> tuple[object, ...]:
    """The kernel's, in its order."""
    _b, m, n, k = shape
    steps = k // config.step
    at_once = steps <= config.stages
    return (config.tile_m, config.tile_n, config.tile_k, config.warps_m, config.warps_n,
            config.warps_k, steps if at_once else config.stages, at_once,
            m % config.tile_m == 0, n % config.tile_n == 0)  # fmt: skip


def _in_pieces_of_16(tensor: torch.Tensor) -> bool:
    """Elements along K side by side, and each row at a multiple of 16 of them and of 16 bytes."""
    batch, row, one = tensor.stride()
    return one == 1 and (batch | row) % 16 == 0 and tensor.data_ptr() % 16 == 0


def _build_errors() -> tuple[type[Exception], ...]:
    """What another Triton, or a chip with less shared memory, may raise."""
    triton_error: type[Exception] = importlib.import_module("triton.errors").TritonError
    return ImportError, AttributeError, triton_error


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
