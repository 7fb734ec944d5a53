"""The kernels of batched_gemm_a16w8_blockscale, Triton's: which variant a shape gets, which are
worth timing, and the launches.

| kernel | what runs | config |
|---|---|---|
| rows | one kernel, sums on the vector ALU; M at most 16 | RowsConfig |
| tiles | one kernel on the matrix unit; with split_k a second one that sums | TilesConfig |
| staged | one kernel on NVIDIA's matrix unit, its copies laid out by hand | StagedConfig |
| bmm | w dequantised into a workspace, batches at a time, and torch.bmm; x in bf16 | BmmConfig |

`bmm` rounds w * w_scale to bf16, the others only their fp32 sums. `staged` copies 16 bytes at once:
a call whose x or w does not lie so (`_in_pieces_of_16`) runs `tiles` instead, and so does each call
where Triton does not build it, which one warning tells. The device code is in triton_kernels.py and
staged.py; this module imports them, and triton, at the first launch.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from rfops.dispatch.heuristic import VALU_CYCLES, Columns, ceil
from rfops.dispatch.kernel import Call, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.tuned_table import serving
from rfops.dispatch.workspace import Workspace
from rfops.jit import log
from rfops.jit.arch import ARCH_SPECS, MAX_GRID, MAX_WAVES, REGISTERS, WAVE
from rfops.triton.bound import BoundTriton

from ...terms import Traits
from .config import (
    MIB,
    SCALE_BLOCK,
    BmmConfig,
    RowsConfig,
    Shape,
    StagedConfig,
    TilesConfig,
)

_KERNELS = "rfops.gemm.kernels.a16w8.triton_kernels"
Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

_RANKED_ARCHS = "gfx942", "gfx950"  # whose variants the op's model ranks
MAX_ROWS = 16  # of the kernel rows
_MOST_ROW_K = 512  # elements of K that it has in flight
_PRODUCTS = 512  # multiplications of a matrix unit per clock, about
# Of the vector ALU for an element of w: on gfx942 its own FP8, and e4m3fn, which no instruction
# converts and which takes 3 to 4 times as long in timing mode; on gfx950 two elements at a time to
# fp32, then to x's type.
_CONVERT_FNUZ, _CONVERT_OCP, _CONVERT_GFX950 = 13, 45, 1
_MAX_CONVERTED_SUMS = 16  # per lane; with more, conversion leaves too few registers, and it spills
# From this many multiplications on, and M, torch.bmm is taken: a library's, which timing mode does
# not see.
_BMM_M, _BMM_WORK = 512, 1 << 34
# Up to which staged beats tiles beyond M=32 (H200: 64 x 64 x 512 x 512 in 11.9 us against 14.2,
# 100 x 128 x 300 x 512 in 31.8 against 24.7).
_STAGED_WORK = 1 << 30
_THREAD_BYTES = 64  # of w in flight in a thread
_SHARED_BYTES = 220 << 10  # bytes of NVIDIA's shared memory that candidates' stages may take


def shape_of(c: Call) -> Shape:
    """Return the sizes of a call."""
    return Shape(c.B, c.M, c.N, c.K)


def _power(value: int, minimum: int = 1, maximum: int = 1 << 30) -> int:
    """The next power of two, within bounds."""
    return max(minimum, min(maximum, 1 << max(value - 1, 0).bit_length()))


def takes_bmm(c: Call) -> bool:
    """Whether torch.bmm repays the dequantised weights' way through memory."""
    shape = shape_of(c)
    return bool(shape.m >= _BMM_M and shape.work >= _BMM_WORK and c.x_dtype == torch.bfloat16)


def order(c: Call) -> tuple[str, ...]:
    """Return the kernels for a shape without a tuned row that no model ranks: rows up to M=2;
    above, on sm_90, staged up to 32 rows, and up to 128 for small problems of short K; else
    tiles."""
    shape = shape_of(c)
    if shape.m <= 2:
        return "rows", "tiles"
    is_small = shape.m <= 32 or (shape.m <= 128 and shape.k <= 512 and shape.work <= _STAGED_WORK)
    if serving(c.arch) == "sm_90" and is_small and shape.k % (2 * SCALE_BLOCK) == 0:
        return "staged", "tiles"
    return ("tiles",)


class _Batched(TimedKernel):
    """The base of the four kernels. The op's model ranks those that have a space for a call."""

    is_ranked = False
    sources = (_KERNELS,)
    prepare: Callable[[torch.device, Shape, Any], Launch]  # the launches of a shape

    def unsupported_reason(self, c: Call) -> str | None:
        return None if serving(c.arch) else f"no kernel for {c.arch}"

    def space(self, c: Call) -> Columns[Any] | None:
        return None

    def _unranked(self, c: Call) -> Any:
        """Return the variant of a call that the model does not rank."""
        raise NotImplementedError

    def default(self, c: Call) -> Any:
        return self._unranked(c) if self.space(c) is None else super().default(c)

    def candidates(self, c: Call) -> Iterable[Any]:
        """On an NVIDIA GPU what wider searches on an H200 left."""
        if self.space(c) is not None:
            yield from super().candidates(c)
            return
        yield self.default(c)
        if c.arch.startswith("sm_"):
            yield from self._on_nvidia(shape_of(c))

    def _on_nvidia(self, shape: Shape) -> Iterator[Any]:
        yield from ()

    def variant(self, c: Call, config: Any) -> RunOf:
        prepare = type(self).prepare
        return lambda *sizes: prepare(c.device, Shape(*sizes), config)


def _is_ranked(c: Call) -> bool:
    return c.arch in _RANKED_ARCHS and 0 not in c.sizes.values()


def convert_instructions(c: Call) -> int:
    """Return the vector ALU's instructions that convert an element of w."""
    if c.arch != "gfx942":
        return _CONVERT_GFX950
    return _CONVERT_FNUZ if c.w_dtype == torch.float8_e4m3fnuz else _CONVERT_OCP


def _convert_clocks(c: Call, num_elements: int) -> float:
    """Of waves that convert so many elements of w in all."""
    return VALU_CYCLES * convert_instructions(c) * num_elements / WAVE


def _sums_clocks(config: RowsConfig) -> float:
    """Of all waves' instructions per K-step beside products: every wave adds up the sums of all
    rows of w of the tile."""
    return float(VALU_CYCLES * config.warps * config.tile_n)


def _converted_rows(config: TilesConfig) -> int:
    """Rows of w that the waves of a tile convert: those beside each other along M the same ones."""
    rows_of_wave = 16 if config.tile_m == 16 else 32  # of w, in a matrix instruction
    return max(config.tile_n, config.warps * rows_of_wave)


def _steps(c: Call) -> int:
    return int(ceil(c.K, SCALE_BLOCK))


@functools.cache
def _amd_rows(max_k: int) -> Columns[RowsConfig]:
    """With 16 to 64 elements of w in flight in a thread."""
    all_k = [k for k in (128, 256, _MOST_ROW_K) if k <= max_k] or [max_k]
    all_n = (4, 8, 16, 32) if max_k >= 128 else (16, 32, 64, 128)
    configs = [
        RowsConfig(tile_n, tile_k, 1, warps)
        for tile_n, tile_k, warps in itertools.product(all_n, all_k, (1, 2, 4))
        if 16 <= tile_n * tile_k // (WAVE * warps) <= 64
    ]
    return Columns(configs)


@functools.lru_cache(maxsize=256)
def _amd_tiles(
    max_m: int, tile_k: int, steps: int, lds_bytes: int, max_sums: int
) -> Columns[TilesConfig]:
    """w on the left; each part of a split K has four steps at least, and a lane so many sums at
    most."""
    configs = []
    for tile_m, tile_n, split in itertools.product((16, 32, 64, 128), (32, 64, 128), (1, 2, 4, 8)):
        if tile_m > max_m or 4 * tile_m < max_m or 4 * split > max(steps, 4):
            continue
        is_wide, is_narrow = min(tile_m, tile_n) >= 64, max(tile_m, tile_n) <= 32
        for warps in (4, 8) if is_wide else (2, 4) if is_narrow else (4,):
            if tile_m * tile_n > max_sums * WAVE * warps:
                continue
            config = TilesConfig(tile_m, tile_n, tile_k, split_k=split, warps=warps)
            configs.append(_with_stages(config, steps, lds_bytes))
    return Columns(configs)


class Rows(_Batched):
    """Few rows of x, without the matrix units."""

    name, Config = "rows", RowsConfig

    def space(self, c: Call) -> Columns[RowsConfig] | None:
        if not _is_ranked(c) or c.M > MAX_ROWS:
            return None
        return _amd_rows(_power(c.K, 16, _MOST_ROW_K))

    def traits(self, config: RowsConfig, c: Call) -> tuple[float, ...]:
        elements = config.tile_n * config.tile_k
        clocks = VALU_CYCLES * (_power(c.M) + 1) * elements / WAVE
        resident = max(1, ARCH_SPECS[c.arch].simds * MAX_WAVES // config.warps // 2)
        traits = Traits(
            MAX_ROWS,
            config.tile_n,
            1,
            config.tile_k,
            resident,
            log_waves=math.log2(config.warps),
            busy_clocks=clocks,
            convert_clocks=_convert_clocks(c, elements),
        )
        return *traits, _sums_clocks(config)

    def unsupported_reason(self, c: Call) -> str | None:
        return super().unsupported_reason(c) or (
            f"M={c.M} is above {MAX_ROWS}" if c.M > MAX_ROWS else None
        )

    def unsupported_config_reason(self, c: Call, config: RowsConfig) -> str | None:
        if config.batches > 1 and c.M != 1:
            return f"batches={config.batches} needs M=1, and M is {c.M}"
        return None

    def _unranked(self, c: Call) -> RowsConfig:
        """Tiles small enough for two programs a compute unit."""
        arch, shape = serving(c.arch) or c.arch, shape_of(c)
        units, (wave, warps) = ARCH_SPECS[arch].cus, (32, 2) if arch == "sm_90" else (64, 1)
        tile_k = _power(shape.k, 16, 512)
        tile_n = _power(warps * wave * _THREAD_BYTES // tile_k, 1, SCALE_BLOCK)
        tile_n = min(tile_n, _power(shape.n))
        while tile_n > 4 and shape.b * ceil(shape.n, tile_n) < 2 * units:
            tile_n //= 2
        spare = warps * wave * _THREAD_BYTES // (tile_n * tile_k)
        batches = 1
        max_batches = shape.b * ceil(shape.n, tile_n) // (8 * units)
        while shape.m == 1 and 2 * batches <= spare and batches <= max_batches:
            batches *= 2
        return RowsConfig(tile_n, tile_k, batches, warps)

    def _on_nvidia(self, shape: Shape) -> Iterator[RowsConfig]:
        for warps, tile_n, tile_k in itertools.product(
            (1, 2, 4), (4, 8, 16, 32, 64), (128, 256, 512, 1024)
        ):
            of_thread = tile_n * tile_k // (32 * warps)
            if shape.m <= 2 and tile_k <= _power(shape.k) and 32 <= of_thread <= 128:
                yield RowsConfig(tile_n, tile_k, 1, warps)
        if shape.m == 1 and shape.k <= 128 and shape.b >= 64:
            tiles = (16, 128, 2, 1), (16, 128, 4, 2), (32, 128, 2, 2)
            yield from itertools.starmap(RowsConfig, tiles)

    @staticmethod
    def prepare(device: torch.device, shape: Shape, config: RowsConfig) -> Launch:
        b, m, n, k = shape
        constants = {
            "ROWS": _power(m),
            "BB": config.batches,
            "BN": config.tile_n,
            "BK": config.tile_k,
            "EVEN_K": k % config.tile_k == 0,
        }
        kernel = BoundTriton(_KERNELS, "rows", device, constants, config.warps)
        launches = _launches(b, config.batches)
        return _in_parts(
            kernel, (ceil(n, config.tile_n), 1), launches, _STRIDES, b_count=b, **counts(shape)
        )


class Tiles(_Batched):
    """Output tiles on the matrix units of any architecture."""

    name, Config = "tiles", TilesConfig

    def family(self, config: TilesConfig, c: Call) -> str:
        return str(config.warps)

    def space(self, c: Call) -> Columns[TilesConfig] | None:
        if not _is_ranked(c):
            return None
        tile = _power(c.M, 16, 128), _power(c.K, 32, SCALE_BLOCK)
        max_sums = _MAX_CONVERTED_SUMS if c.arch == "gfx942" else REGISTERS
        return _amd_tiles(*tile, _steps(c), ARCH_SPECS[c.arch].lds_bytes, max_sums)

    def traits(self, config: TilesConfig, c: Call) -> tuple[float, ...]:
        m, n, k, warps = config.tile_m, config.tile_n, config.tile_k, config.warps
        chip = ARCH_SPECS[c.arch]
        # Sums, loads in flight, addresses; those of the next K-step too.
        more = 40 if config.stages == 1 else 80
        registers = (m * n + (m + n) * k // 2) // (WAVE * warps) + more
        by_registers = chip.simds * min(MAX_WAVES, max(1, REGISTERS // registers)) // warps
        by_lds = chip.lds_bytes // max(_staged_bytes(config), 1)
        traits = Traits(
            m,
            n,
            config.split_k,
            k,
            max(1, min(by_registers, by_lds)),
            log_waves=math.log2(warps),
            log_steps=math.log2(config.stages),
            busy_clocks=m * n * k / _PRODUCTS,
            convert_clocks=_convert_clocks(c, _converted_rows(config) * k),
        )
        return *traits, 0.0

    def _unranked(self, c: Call) -> TilesConfig:
        return _default_tiles(shape_of(c), serving(c.arch) or c.arch)

    def _on_nvidia(self, shape: Shape) -> Iterator[TilesConfig]:
        if shape.work <= 1 << 38:
            yield from _one_block_tiles(shape) if shape.k <= 128 else _deep_tiles(shape)

    @staticmethod
    def prepare(device: torch.device, shape: Shape, config: TilesConfig) -> Launch:
        if shape.k <= config.tile_k and ceil(shape.m, config.tile_m) <= MAX_GRID:
            return _prepare_one_block(device, shape, config)
        return _prepare_tiles(device, shape, config)


def _default_tiles(shape: Shape, arch: str) -> TilesConfig:
    """M as narrow as it may be (w's rows are the wide side; on sm_90 x is on the left from 33 rows
    on), N halved until the chip is full, and K split where even that leaves most of it idle."""
    chip, k = ARCH_SPECS[arch], shape.k
    x_left = int(arch == "sm_90" and shape.m > 32)
    tile_m = _power(shape.m, 64 if x_left else 16, 128)
    tile_n = 128 if tile_m <= 64 and arch != "gfx942" else 64
    while tile_n > 32 and shape.programs(tile_m, tile_n) < 2 * chip.cus:
        tile_n //= 2
    while tile_m > (64 if x_left else 32) and shape.programs(tile_m, tile_n) < chip.cus:
        tile_m //= 2
    tile_k = _power(k, 32, SCALE_BLOCK)
    steps = ceil(k, tile_k)
    split_k = max(1, min(steps // 4, 8, chip.cus // max(shape.programs(tile_m, tile_n), 1)))
    config = TilesConfig(tile_m, tile_n, tile_k, x_left, split_k=split_k)
    return _with_stages(config, steps, chip.lds_bytes)


def _staged_bytes(config: TilesConfig) -> int:
    """The LDS of a program: w and x of all K-steps in flight but one."""
    return (config.stages - 1) * config.tile_k * (config.tile_n + 2 * config.tile_m)


def _with_stages(config: TilesConfig, steps: int, lds_bytes: int) -> TilesConfig:
    """The config with as many K-steps in flight as there are, up to 3, in three quarters of LDS."""
    fitting = (replace(config, stages=stages) for stages in (3, 2, 1) if stages <= steps)
    return next(one for one in fitting if _staged_bytes(one) <= lds_bytes * 3 // 4)


def _tile_sizes(shape: Shape) -> Iterator[tuple[int, int, int, int]]:
    """M, N, x_left and warps of a tile, with 4 to 64 sums a thread. w is on the left for up to 64
    rows, x from 64 on: wgmma takes no fewer."""
    for tile_m, tile_n, x_left, warps in itertools.product(
        (8, 16, 32, 64, 128), (16, 32, 64, 128, 256), (0, 1), (2, 4, 8)
    ):
        sums = tile_m * tile_n // (32 * warps)
        if not 4 <= sums <= 64 or 4 * tile_m < min(shape.m, 128):
            continue
        if x_left and (tile_m < 64 or warps < 4 or tile_m > _power(2 * shape.m)):
            continue
        if not x_left and (tile_m > max(8, _power(shape.m)) or tile_m > 64 or tile_n < 32):
            continue
        if shape.m > 128 and min(tile_m, tile_n) < 64:
            continue
        if warps < 8 or sums >= 16 or tile_n == 256 or (x_left and shape.k > 128):
            yield tile_m, tile_n, x_left, warps


def _one_block_tiles(shape: Shape) -> Iterator[TilesConfig]:
    for tile_m, tile_n, x_left, warps in _tile_sizes(shape):
        for panels, stages in ((1, 1), (2, 2), (4, 3)):
            if tile_n * panels <= shape.n:
                yield TilesConfig(tile_m, tile_n, 128, x_left, panels, warps=warps, stages=stages)


def _deep_tiles(shape: Shape) -> Iterator[TilesConfig]:
    steps = ceil(shape.k, 128)
    for tile_m, tile_n, x_left, warps in _tile_sizes(shape):
        programs = shape.programs(tile_m, tile_n)
        for tile_k, stages, split_k in itertools.product((64, 128), (2, 3, 4), (1, 4)):
            shared_bytes = (stages - 1) * tile_k * (
                tile_n + 2 * tile_m
            ) + x_left * 2 * tile_k * tile_n
            if shared_bytes > _SHARED_BYTES or stages > steps + 1:
                continue
            if split_k > 1 and (programs * split_k > 270 or steps < 4 * split_k):
                continue
            if tile_k == 64 and (split_k > 1 or stages < 3 or tile_n < 128 or steps < 8):
                continue
            if stages >= 3 or (tile_m >= 64 and steps <= 4):
                tile = tile_m, tile_n, tile_k, x_left
                yield TilesConfig(*tile, split_k=split_k, warps=warps, stages=stages)


class Staged(_Batched):
    """Output tiles on NVIDIA's matrix unit, with asynchronous loads to shared memory."""

    name, Config = "staged", StagedConfig

    def unsupported_reason(self, c: Call) -> str | None:
        if c.arch.startswith("gfx"):
            return f"its kernel is for NVIDIA's matrix unit, and this is {c.arch}"
        return super().unsupported_reason(c) or self.unsupported_config_reason(
            c, StagedConfig(16, 16, 32)
        )

    def unsupported_config_reason(self, c: Call, config: StagedConfig) -> str | None:
        if c.K % config.step:
            return f"K={c.K} is no multiple of its step, {config.step}"
        if ceil(c.M, config.tile_m) > MAX_GRID:
            return f"M={c.M} is more than {MAX_GRID} tiles"
        return None

    def _unranked(self, c: Call) -> StagedConfig:
        """The tuned rows' most frequent: two groups of warps with 128 of K each, two such steps."""
        shape = shape_of(c)
        tile_m, tile_n = _power(shape.m, 8, 32), 64
        units = ARCH_SPECS["sm_90"].cus
        min_programs = 2 * units if shape.k <= 512 else units
        while tile_n > 16 and shape.programs(tile_m, tile_n) < min_programs:
            tile_n //= 2
        tile_k = min(SCALE_BLOCK, shape.k & -shape.k)
        warps_k = 2 if shape.k % (2 * SCALE_BLOCK) == 0 else 1
        return StagedConfig(tile_m, tile_n, tile_k, warps_k, 1, ceil(tile_n, 32), stages=2)

    def _on_nvidia(self, shape: Shape) -> Iterator[StagedConfig]:
        """2 to 8 warps, 4 to 64 sums a thread, a chip half full; wide tiles where K is long."""
        min_m, min_n = (min(_power(shape.m), 32), 64) if shape.k > 512 else (8, 16)
        for (tile_k, warps_k, stages), tile_m, tile_n, warps_m, warps_n in itertools.product(
            _depths(shape), (8, 16, 32, 64), (16, 32, 64, 128), (1, 2), (1, 2, 4)
        ):
            if tile_m < max(8 * warps_m, min_m) or tile_n < max(16 * warps_n, min_n):
                continue
            if tile_m > max(8, _power(shape.m)) or 4 * tile_m < min(shape.m, 128):
                continue
            sums = tile_m * tile_n // (32 * warps_m * warps_n)
            if not 4 <= sums <= 64 or not 2 <= warps_k * warps_m * warps_n <= 8:
                continue
            if shape.programs(tile_m, tile_n) < 64 and shape.b > 1:
                continue
            if stages * warps_k * tile_k * (2 * tile_m + tile_n) <= 200 << 10:
                yield StagedConfig(tile_m, tile_n, tile_k, warps_k, warps_m, warps_n, stages)

    @staticmethod
    def prepare(device: torch.device, shape: Shape, config: StagedConfig) -> Launch:
        b, m, n, _k = shape
        tiles = ceil(n, config.tile_n), ceil(m, config.tile_m)
        builds = True

        @functools.cache  # most calls need none
        def by_tiles() -> Launch:
            return Tiles.prepare(device, shape, _default_tiles(shape, "sm_90"))

        @functools.cache  # a launch that may not build
        def staged() -> Launch:
            module = "rfops.gemm.kernels.a16w8.staged"
            kernel = BoundTriton(
                module, "staged", device, staged_constants(shape, config), config.warps
            )
            rows = {"x": "x_b x_m _", "w": "w_b w_n _"}  # whose elements are contiguous along K
            return _in_parts(kernel, tiles, _launches(b), {**_STRIDES, **rows}, **counts(shape))

        def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
            nonlocal builds
            if not builds or not (_in_pieces_of_16(x) and _in_pieces_of_16(w)):
                return by_tiles()(out, x, w, scale)
            try:
                staged()(out, x, w, scale)
            except _build_errors() as error:
                reason = f"{type(error).__name__}: {error}"[:200]
                log.get().warning("%s does not build, tiles runs instead: %s", config, reason)
                builds = False
                by_tiles()(out, x, w, scale)

        return run


def _depths(shape: Shape) -> Iterator[tuple[int, int, int]]:
    """tile_k, warps_k and stages of up to 128 rows: all of K at once where that is at most 512."""
    if shape.m > 128:
        return
    if shape.k > 512:
        if shape.k % 512 == 0:
            yield from ((128, 1, 2), (128, 1, 3), (128, 2, 1), (128, 2, 2), (128, 4, 1))
        return
    for tile_k, warps_k in ((128, 1), (128, 2), (128, 4), (64, 1), (64, 2)):
        step = tile_k * warps_k
        if shape.k % step == 0 and (tile_k == 128 or shape.k == 128):
            yield tile_k, warps_k, shape.k // step


class Bmm(_Batched):
    """Weights dequantised to bf16, then torch.bmm; takes any M."""

    name, Config = "bmm", BmmConfig
    error = 2.0**-8  # w * w_scale is rounded to bf16

    def unsupported_reason(self, c: Call) -> str | None:
        if c.x_dtype != torch.bfloat16:
            return "dequantised weights may exceed float16's range; it takes bfloat16 x"
        if c.dtype != c.x_dtype:
            return f"torch.bmm rounds its sums to bfloat16, and the result is {c.dtype}"
        return super().unsupported_reason(c)

    def _unranked(self, c: Call) -> BmmConfig:
        return BmmConfig()

    def notes(self, c: Call, config: BmmConfig) -> Mapping[str, str]:
        batches = config.batches(shape_of(c))
        mib = 2 * batches * c.N * c.K / MIB
        return {"workspace": f"{mib:.0f} MiB, {batches} batches"}

    def _on_nvidia(self, shape: Shape) -> Iterator[BmmConfig]:
        if shape.m >= 128 and shape.work >= 1 << 32:
            pairs = itertools.product((32, 64, 128, 256, 512), (32, 64))
            yield from itertools.starmap(BmmConfig, pairs)

    @staticmethod
    def prepare(device: torch.device, shape: Shape, config: BmmConfig) -> Launch:
        b, _m, n, k = shape
        step = config.batches(shape)
        kernel = BoundTriton(_KERNELS, "dequantise", device, {"BN": config.tile_n}, config.warps)
        strides = {name: _STRIDES[name] for name in ("w", "scale")}
        launch = kernel.prepare("out w scale", strides=strides)
        tiles = ceil(n, config.tile_n) * ceil(k, SCALE_BLOCK)
        spans = [slice(begin, min(begin + step, b)) for begin in range(0, b, step)]
        runs = [
            launch((tiles * (p.stop - p.start), 1, 1), b_first=p.start, n_count=n, k_count=k)
            for p in spans
        ]

        def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
            space = torch.empty(step, n, k, dtype=x.dtype, device=device)
            for span, dequantise in zip(spans, runs, strict=True):
                values = space[: span.stop - span.start]
                dequantise(values, w, scale)
                torch.bmm(x[span], values.mT, out=out[span])

        return run


# ---------------------------------------------------------------- launches


def _launches(b: int, step: int = 1) -> list[tuple[int, int]]:
    """First batch and extent of the grid's last axis, each launch; programs take `step` batches."""
    maximum = MAX_GRID * step
    return [(begin, ceil(min(b - begin, maximum), step)) for begin in range(0, b, maximum)]


# The kernels' parameters that take the strides of each tensor.
_STRIDES = {
    "out": "out_b out_m out_n",
    "x": "x_b x_m x_k",
    "w": "w_b w_n w_k",
    "scale": "s_b s_n s_k",
}


def counts(shape: Shape) -> dict[str, int]:
    """The kernels' parameters that are sizes."""
    return {"m_count": shape.m, "n_count": shape.n, "k_count": shape.k}


def _in_parts(
    kernel: BoundTriton,
    tiles: tuple[int, int],
    launches: list[tuple[int, int]],
    strides: Mapping[str, str],
    **numbers: int,
) -> Launch:
    launch = kernel.prepare("out x w scale", strides=strides)
    runs = [launch((*tiles, extent), b_first=begin, **numbers) for begin, extent in launches]
    if len(runs) == 1:
        return runs[0]

    def run(*tensors: torch.Tensor) -> None:
        for one in runs:
            one(*tensors)

    return run


def _prepare_one_block(device: torch.device, shape: Shape, config: TilesConfig) -> Launch:
    b, m, n, k = shape
    constants = {
        "BM": config.tile_m,
        "BN": config.tile_n,
        "BK": config.tile_k,
        "TILES": config.panels,
        "X_LEFT": config.x_left == 1,
        "EVEN_M": m % config.tile_m == 0,
        "EVEN_K": k == config.tile_k,
    }
    kernel = BoundTriton(_KERNELS, "one_block", device, constants, config.warps, config.stages)
    tiles = ceil(n, config.tile_n * config.panels), ceil(m, config.tile_m)
    return _in_parts(kernel, tiles, _launches(b), _STRIDES, **counts(shape))


def _prepare_tiles(device: torch.device, shape: Shape, config: TilesConfig) -> Launch:
    b, m, n, k = shape
    splits = min(config.split_k, ceil(k, config.tile_k))
    constants = {
        "BM": config.tile_m,
        "BN": config.tile_n,
        "BK": config.tile_k,
        "GROUP_N": config.group_n,
        "SPLIT_K": splits,
        "X_LEFT": config.x_left == 1,
        "EVEN_M": m % config.tile_m == 0,
        "EVEN_K": k % config.tile_k == 0,
        "ONE_M": m <= config.tile_m,
    }
    kernel = BoundTriton(_KERNELS, "tiles", device, constants, config.warps, config.stages)
    tiles = ceil(m, config.tile_m) * ceil(n, config.tile_n), splits
    part_s = b * m * n if splits > 1 else 0  # elements from one partial to the next
    # With splits out is the workspace, [splits, B, M, N].
    strides = _STRIDES if splits == 1 else {**_STRIDES, "out": f"_ {_STRIDES['out']}"}
    gemm = _in_parts(kernel, tiles, _launches(b), strides, out_s=part_s, **counts(shape))
    if splits == 1:
        return gemm
    sum_tile = _power(n, 16, 1024)
    constants = {"SPLIT_K": splits, "BN": sum_tile}
    add = BoundTriton(_KERNELS, "sum_splits", device, constants, warps=4)
    launch = add.prepare("out part", strides={"out": _STRIDES["out"]})
    sum_splits = launch((b * m * ceil(n, sum_tile), 1, 1), m_count=m, n_count=n, part_s=part_s)
    workspace = Workspace(device, ((splits, b, m, n), torch.float32))

    def run(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> None:
        (partials,) = workspace()
        gemm(partials, x, w, scale)
        sum_splits(out, partials)

    return run


def staged_constants(shape: Shape, config: StagedConfig) -> dict[str, object]:
    """The constants of kernel staged."""
    _b, m, n, k = shape
    steps = k // config.step
    all_in_flight = steps <= config.stages
    return {
        "BM": config.tile_m,
        "BN": config.tile_n,
        "BK": config.tile_k,
        "WM": config.warps_m,
        "WN": config.warps_n,
        "WK": config.warps_k,
        "STAGES": steps if all_in_flight else config.stages,
        "ALL_IN_FLIGHT": all_in_flight,
        "EVEN_M": m % config.tile_m == 0,
        "EVEN_N": n % config.tile_n == 0,
    }


def _in_pieces_of_16(tensor: torch.Tensor) -> bool:
    """Elements along K side by side, and each row at a multiple of 16 of them and of 16 bytes."""
    batch, row, one = tensor.stride()
    return one == 1 and (batch | row) % 16 == 0 and tensor.data_ptr() % 16 == 0


def _build_errors() -> tuple[type[Exception], ...]:
    """Return what another Triton version, or a GPU with less shared memory, may raise."""
    triton_error: type[Exception] = importlib.import_module("triton.errors").TritonError
    return ImportError, AttributeError, triton_error
