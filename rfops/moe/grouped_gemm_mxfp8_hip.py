"""The HIP kernel of grouped_gemm_mxfp8 (gfx950): its signature, its variants, which one a shape
gets, what it refuses, and the launch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rfops.dispatch.guards import MAX_BYTES, check_config_ints
from rfops.dispatch.heuristic import Columns, ceil, coarse
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.jit import compile_ops, u32
from rfops.jit.arch import MAX_WAVES, REGISTERS, ROWS, WAVE
from rfops.quantization.mxfp8 import BLOCK

CHIP = ROWS["gfx950"]
LDS_BYTES = CHIP.lds_bytes
MAX_BLOCK_M = 128  # 8 tiles of 16 rows: their sums and a's rows are what registers hold
MAX_GROUP_N = 64  # rows of w of a workgroup
SPARE_REGISTERS = 16  # of what `_registers` says, for another compiler's allocation
WIDE_K, NARROW_K = 256, 128  # elements of K that a lane's load of scales serves
OUT_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
# (E, N, K, a_div, weighted) of layers that `rfops build` prepares kernels for, at block_m 16.
PREBUILT_SHAPES = tuple(
    (e, *shape)
    for e, shape in itertools.product(
        (128, 64, 32),
        ((1536, 6144, 4, False), (768, 6144, 4, False), (6144, 768, 1, True)),
    )
)


@compile_ops("mxfp8_moe", variants=lambda _arch: _prebuilt())
def mxfp8_moe(
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_padded: torch.Tensor,
    num_ids: u32,
    num_valid: u32,
    num_experts: u32,
    group_blocks: u32,
    w: torch.Tensor,
    a: torch.Tensor,
    w_scale: torch.Tensor,
    a_scale: torch.Tensor,
    weights: torch.Tensor | None,
    out: torch.Tensor,
    n: u32,
    k: u32,
    a_rows: u32,
) -> None:
    """csrc/mxfp8_moe.hip: the shapes stand there; block_m and the config are compile-time."""


@dataclass(frozen=True)
class MoeConfig:
    """A variant of the kernel; its head comment says what each means."""

    tile_n: int  # rows of w in a tile: 16, or 8 for blocks of at most 8 rows
    columns: int  # tiles of w of a workgroup
    steps: int  # chunks of K a wave has in flight
    waves: int  # waves of a workgroup, side by side along K

    def __post_init__(self) -> None:
        check_config_ints(self)
        if self.tile_n not in (8, 16) or not 1 <= self.waves <= 16:
            raise ValueError(f"{self}: tile_n is 8 or 16, waves 1 to 16")
        if not 1 <= self.columns <= 4 or not 1 <= self.steps <= 4:
            raise ValueError(f"{self}: columns and steps are 1 to 4")

    @property
    def group_n(self) -> int:
        """Rows of w of a workgroup."""
        return self.tile_n * self.columns

    @property
    def fold(self) -> int:
        """Chunks of K side by side in one MFMA."""
        return 16 // self.tile_n

    def defines(
        self, block_m: int, chunk: int, a_div: int, weighted: bool, dtype: torch.dtype
    ) -> dict[str, int | str]:
        return {
            "BLOCK_M": block_m,
            "TILE_N": self.tile_n,
            "COLUMNS": self.columns,
            "STEPS": self.steps,
            "WAVES": self.waves,
            "CHUNK": chunk,
            "A_DIV": a_div,
            "WEIGHTED": int(weighted),
            "OUT": OUT_DTYPES[dtype],
        }

    def refuses(self, block_m: int) -> str | None:
        """Why this variant does not take blocks of that size, None if it does."""
        if self.tile_n == 8 and block_m > 8:
            return f"tile_n=8 takes blocks of at most 8 rows, not block_m={block_m}"
        if _lds_bytes(self, block_m) > LDS_BYTES:
            return f"{self} needs {_lds_bytes(self, block_m)} bytes of LDS, there are {LDS_BYTES}"
        return None

    @staticmethod
    def from_heuristic(n: int, k: int, e: int, num_valid_tokens: int, block_m: int) -> MoeConfig:
        """What a shape without a tuned row uses: the least time by `_costs`. Sizes count in coarse
        steps."""
        wide = WIDE_K if k % WIDE_K == 0 else NARROW_K
        sizes = coarse(n, 16), coarse(k, wide), e, coarse(max(num_valid_tokens, 1), 1)
        return _best(*sizes, block_m, wide)


def _prebuilt() -> list[dict[str, int | str]]:
    """The distinct variants of PREBUILT_SHAPES, for 1 to 16 tokens."""
    found = []
    for (e, n, k, a_div, weighted), tokens in itertools.product(PREBUILT_SHAPES, (1, 2, 4, 8, 16)):
        config = MoeConfig.from_heuristic(n, k, e, tokens * 4, 16)
        found.append(config.defines(16, _chunk(k), a_div, weighted, torch.bfloat16))
    return [dict(pairs) for pairs in dict.fromkeys(tuple(d.items()) for d in found)]


def _chunk(k: int) -> int:
    return NARROW_K if k % WIDE_K else WIDE_K


# ---------------------------------------------------------------- which variant


def _lds_bytes(config: Any, block_m: int) -> Any:
    """Of a variant, or of each in Columns."""
    row_tiles = ceil(block_m, config.tile_n)
    results = row_tiles * config.columns * config.tile_n**2 // 4
    return 16 * config.waves * config.fold * results + 8 * config.tile_n * row_tiles


def _registers(config: Any, block_m: int, chunk: int) -> Any:
    """VGPRs of a variant, or of each in Columns, within 12 of what clang 21 and 22 allocate:
    payloads and scales in flight, sums, offsets of rows."""
    tiles, columns = ceil(block_m, config.tile_n), config.columns
    in_flight = config.steps * (chunk // NARROW_K * 8 + 1) * (columns + tiles)
    return 20 + 3 * tiles + 2 * columns + in_flight + 4 * columns * tiles


@lru_cache(maxsize=1024)
def _best(n: int, k: int, e: int, num_valid_tokens: int, block_m: int, chunk: int) -> MoeConfig:
    table = _candidates(block_m, chunk)
    return table.best(_costs(table, n, k, e, num_valid_tokens, block_m, chunk))


@lru_cache
def _candidates(block_m: int, chunk: int) -> Columns[MoeConfig]:
    """Variants that fit the registers which a workgroup of so many waves leaves for each, and two
    waves a SIMD."""
    tile_n = (16, 8) if block_m <= 8 else (16,)
    found = []
    for values in itertools.product(tile_n, (1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4, 6, 8, 12)):
        config = MoeConfig(*values)
        limit = REGISTERS // max(2, ceil(config.waves, 4)) // 8 * 8
        fits = _registers(config, block_m, chunk) + SPARE_REGISTERS <= limit
        if fits and config.refuses(block_m) is None:
            found.append(config)
    return Columns(found)


# The cost's unit is a slot, 4 clocks of a SIMD; in one, HBM at its peak delivers 13.3 KB, L2 28 KB.
_SLOTS = 1e3 * CHIP.ghz / 4  # a microsecond
_HBM_BYTES_PER_SLOT = int(1e6 * CHIP.hbm_peak_tb_s / _SLOTS)
_L2_BYTES_PER_SLOT = int(1e6 * CHIP.l2_tb_s / _SLOTS)
_LATENCY_SLOTS = round(CHIP.latency_us * _SLOTS)
_DISPATCH_SLOTS = CHIP.dispatch_cycles * CHIP.cus // CHIP.xcds
_MFMA_SLOTS = 8  # 32 clocks


def _costs(
    c: Columns[MoeConfig], n: int, k: int, e: int, num_valid_tokens: int, block_m: int, chunk: int
) -> tuple[Any, ...]:
    """Order of preference: least time, be it of HBM, of L2, of the busiest SIMD, or of one wave
    after the other, each waiting for its loads; fewest such waits; fewest rows of w on one CU;
    fewest slots. Tokens spread evenly over the experts are assumed."""
    blocks = max(1, min(num_valid_tokens, e + num_valid_tokens // block_m))
    rows = min(block_m, ceil(num_valid_tokens, blocks))
    tiles = ceil(rows, c.tile_n)
    groups = blocks * ceil(n, c.group_n)

    step_k = chunk * c.fold
    full, left = np.divmod(k, step_k * c.steps)  # what is left one wave does, step by step
    rounds = np.maximum(ceil(full, c.waves), full // c.waves + ceil(left, step_k))
    per_mfma = _MFMA_SLOTS * c.columns * tiles + 3 * (c.columns + tiles)
    results = c.columns * tiles * c.tile_n**2 // 4
    reduce = ceil(results, WAVE * c.waves) * c.waves * c.fold * 8
    per_wave = rounds * c.steps * chunk // NARROW_K * per_mfma + reduce + 100
    waves_per_cu = ceil(groups, CHIP.cus) * c.waves
    slots = ceil(waves_per_cu, 4) * (per_wave + _DISPATCH_SLOTS)

    resident = 4 * np.minimum(MAX_WAVES, REGISTERS // _registers(c, block_m, chunk)) // c.waves
    by_lds = LDS_BYTES // _lds_bytes(c, block_m)
    batches = ceil(ceil(groups, CHIP.cus), np.maximum(1, np.minimum(resident, by_lds)))
    chain = batches * (per_wave + (rounds + 1) * _LATENCY_SLOTS)
    hbm = blocks * n * k // _HBM_BYTES_PER_SLOT
    l2 = groups * (c.group_n + rows) * k // _L2_BYTES_PER_SLOT
    time = np.maximum(np.maximum(slots, chain), np.maximum(hbm, l2))
    return time, batches * (rounds + 1), ceil(groups, CHIP.cus) * c.group_n, slots


# ---------------------------------------------------------------- the kernel


# Of the kernel's tensors among out, a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids,
# num_tokens_post_padded, mul_weight_by.
_PLACES = (5, 6, 7, 3, 1, 4, 2, 8, 0)


class Moe(Kernel):
    name = "moe"
    module = "mxfp8_moe"
    is_ranked = True
    Config = MoeConfig

    def refuses(self, c: Call) -> str | None:
        if reason := self.refuses_arch(c):
            return reason
        if not 1 <= c.block_m <= MAX_BLOCK_M:
            return f"block_m={c.block_m} is not within 1 to {MAX_BLOCK_M}"
        if c.K % BLOCK:
            return f"K={c.K} is not a multiple of {BLOCK}"
        # Offsets reach up to a step beyond the end of the last row. w is rebased by workgroup.
        row = c.K + 4 * WIDE_K
        if MAX_GROUP_N * row >= MAX_BYTES:
            return f"{MAX_GROUP_N} rows of w with K={c.K} are beyond signed 32-bit offsets (2 GiB)"
        if c.A * row >= MAX_BYTES:
            return f"a_q of {c.A} x {c.K} is beyond signed 32-bit offsets (2 GiB)"
        return None

    def refuses_config(self, c: Call, config: MoeConfig) -> str | None:
        return config.refuses(c.block_m)

    def default(self, c: Call) -> MoeConfig:
        return MoeConfig.from_heuristic(c.N, c.K, c.E, c.M, c.block_m)

    def candidates(self, c: Call) -> list[MoeConfig]:
        table = _candidates(c.block_m, _chunk(c.K))
        return table.ranked(_costs(table, c.N, c.K, c.E, c.M, c.block_m, _chunk(c.K)))

    def defines(self, c: Call, config: MoeConfig) -> Mapping[str, int | str]:
        chunk = _chunk(c.K) if c.align("a_scale", "w_scale") % 4 == 0 else NARROW_K
        return config.defines(c.block_m, chunk, c.a_div, c.has("mul_weight_by"), c.out_dtype)

    def variant(self, c: Call, config: MoeConfig) -> RunOf:
        """Scales at multiples of 4 bytes are read in wide loads. A kernel is built at the first
        shape that needs it."""
        group_n, block, block_m = config.group_n, (config.waves * WAVE, 1, 1), c.block_m
        launches: dict[bool, Callable[..., Run]] = {}

        def run_of(
            num_valid_tokens: int, n: int, k: int, e: int, a_rows: int, num_ids: int, _blocks: int
        ) -> Run:
            is_wide = k % WIDE_K == 0
            launch = launches.get(is_wide)
            if launch is None:
                defines = self.defines(c.with_sizes(K=k), config)
                kernel = mxfp8_moe.bind(c.device, defines, c.arch)
                launch = launches[is_wide] = kernel.prepare(block, _PLACES)
            # Where each block has a valid row, as those of moe_align_block_size do, one pass is
            # enough.
            rows = min(-(-num_ids // block_m), max(num_valid_tokens, 1), 65535)
            scalars = num_ids, num_valid_tokens, e, rows, n, k, a_rows
            return launch((-(-n // group_n), rows, 1), scalars)

        return run_of
