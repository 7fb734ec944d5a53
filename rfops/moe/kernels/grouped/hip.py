"""The HIP kernel of grouped_gemm_mxfp8 (gfx950): its signature, its variants, which one a shape
gets, what it refuses, and the launch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from rfops.dispatch.config import Allowed, CheckedConfig, up_to
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import (
    MFMA_CYCLES,
    VALU_CYCLES,
    Columns,
    ceil,
    prebuilt,
)
from rfops.dispatch.kernel import Call, Run, RunOf, as_defines
from rfops.dispatch.time_model import TimedKernel
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, WAVE
from rfops.quantization.mxfp8 import BLOCK

from ...grouped_terms import Traits

CHIP = ARCH_SPECS["gfx950"]
LDS_BYTES = CHIP.lds_bytes
MAX_BLOCK_M = 128  # 8 tiles of 16 rows: their sums and a's rows are what registers hold
MAX_GROUP_N = 64  # rows of w of a workgroup
SPARE_REGISTERS = 16  # of what `_registers` says, for another compiler's allocation
WIDE_K, NARROW_K = 256, 128  # elements of K that a lane's load of scales serves
OUT_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


@compile_ops("mxfp8_moe", variants=prebuilt("grouped_gemm_mxfp8", "moe", M=(4, 8, 16, 32, 64)))
def mxfp8_moe(
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    num_ids: u32,
    num_valid: u32,
    num_experts: u32,
    group_blocks: u32,
    w: torch.Tensor,
    a_q: torch.Tensor,
    w_scale: torch.Tensor,
    a_scale: torch.Tensor,
    mul_weight_by: torch.Tensor | None,
    out: torch.Tensor,
    n: u32,
    k: u32,
    a_rows: u32,
) -> None:
    """csrc/moe/mxfp8_moe.hip: the shapes stand there; block_m and the config are compile-time."""


@dataclass(frozen=True)
class MoeConfig(CheckedConfig):
    """A variant of the kernel; its head comment says what each means."""

    tile_n: int  # rows of w in a tile: 16, or 8 for blocks of at most 8 rows
    columns: int  # tiles of w of a workgroup
    steps: int  # chunks of K a wave has in flight
    waves: int  # waves of a workgroup, side by side along K

    ALLOWED: ClassVar[Allowed] = {
        "tile_n": (8, 16),
        "columns": up_to(4),
        "steps": up_to(4),
        "waves": up_to(16),
    }

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
        """Return the defines that select the variant in the kernel, without RFOPS_."""
        of_call = {"CHUNK": chunk, "A_DIV": a_div, "WEIGHTED": int(weighted)}
        return {"BLOCK_M": block_m, **as_defines(self), **of_call, "OUT": OUT_DTYPES[dtype]}

    def unsupported_reason(self, block_m: int) -> str | None:
        """Why this variant does not take blocks of that size, None if it does."""
        if self.tile_n == 8 and block_m > 8:
            return f"tile_n=8 takes blocks of at most 8 rows, not block_m={block_m}"
        if _lds_bytes(self, block_m) > LDS_BYTES:
            return f"{self} needs {_lds_bytes(self, block_m)} bytes of LDS, there are {LDS_BYTES}"
        return None


def _chunk(k: int) -> int:
    return NARROW_K if k % WIDE_K else WIDE_K


# ---------------------------------------------------------------- which variant


def _lds_bytes(config: Any, block_m: int) -> Any:
    """Return the LDS of a variant, or of each in Columns."""
    row_tiles = ceil(block_m, config.tile_n)
    results = row_tiles * config.columns * config.tile_n**2 // 4
    return 16 * config.waves * config.fold * results + 8 * config.tile_n * row_tiles


def _registers(config: Any, block_m: int, chunk: int) -> Any:
    """Return the VGPRs of a variant, or of each in Columns, within 12 of what clang 21 and 22
    allocate: payloads and scales in flight, accumulators, row offsets; or after the loop the
    partials of all waves at once, of two halves where a tile has 8 rows."""
    tiles, columns = ceil(block_m, config.tile_n), config.columns
    in_flight = config.steps * (chunk // NARROW_K * 8 + 1) * (columns + tiles)
    loop = 20 + 3 * tiles + 2 * columns + in_flight + 4 * columns * tiles
    sums = 16 + 4 * config.waves
    halves = 34 + 4.5 * config.waves + 4 * np.minimum(columns, 2)
    # Twelve waves have room for 168 registers each: what the loop has kept stays beside the sums.
    halves = np.maximum(halves, np.where(config.waves == 12, np.minimum(loop + 10, 118), 0))
    return np.maximum(loop, np.where(config.tile_n == 8, halves, sums))


@lru_cache
def _candidates(block_m: int, chunk: int) -> Columns[MoeConfig]:
    """Variants that fit the registers which a workgroup of so many waves leaves for each, and two
    waves a SIMD."""
    tile_n = (16, 8) if block_m <= 8 else (16,)
    configs = []
    for values in itertools.product(tile_n, (1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4, 6, 8, 12)):
        config = MoeConfig(*values)
        limit = REGISTERS // max(2, ceil(config.waves, 4)) // 8 * 8
        fits = _registers(config, block_m, chunk) + SPARE_REGISTERS <= limit
        if fits and config.unsupported_reason(block_m) is None:
            configs.append(config)
    return Columns(configs)


# ---------------------------------------------------------------- the kernel


class Moe(TimedKernel):
    """The grouped GEMM of MX-FP8 on gfx950."""

    name = "moe"
    module = "mxfp8_moe"
    Config = MoeConfig
    limits = "A"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
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

    def unsupported_config_reason(self, c: Call, config: MoeConfig) -> str | None:
        return config.unsupported_reason(c.block_m)

    def space(self, c: Call) -> Columns[MoeConfig] | None:
        if self.unsupported_arch_reason(c) or not 1 <= c.block_m <= MAX_BLOCK_M:
            return None
        return _candidates(c.block_m, _chunk(c.K))

    def family(self, config: MoeConfig, c: Call) -> str:
        """Waves along K share a workgroup's fixed costs."""
        return str(config.waves)

    def traits(self, config: MoeConfig, c: Call) -> tuple[float, ...]:
        chunk, waves, columns = _chunk(c.K), config.waves, config.columns
        registers, lds = _registers(config, c.block_m, chunk), _lds_bytes(config, c.block_m)
        by_registers = CHIP.simds * min(MAX_WAVES, REGISTERS // int(registers)) // waves
        tiles = ceil(c.block_m, config.tile_n)
        per_mfma = MFMA_CYCLES * columns * tiles + 3 * VALU_CYCLES * (columns + tiles)
        return Traits(
            config.group_n,
            groups=1,
            unit_k=chunk * config.fold,
            steps=config.steps,
            k_waves=waves,
            waves=waves,
            resident=max(1, min(by_registers, LDS_BYTES // lds)),
            lds_bytes=lds,
            busy_clocks=waves * config.steps * (chunk // NARROW_K) * per_mfma,
        )

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
                launch = launches[is_wide] = kernel.prepare(block, self.arguments)
            # Where each block has a valid row, as those of moe_align_block_size do, one pass is
            # enough.
            rows = min(-(-num_ids // block_m), max(num_valid_tokens, 1), 65535)
            counts = {"num_ids": num_ids, "num_valid": num_valid_tokens, "num_experts": e}
            grid = -(-n // group_n), rows, 1
            return launch(grid, group_blocks=rows, n=n, k=k, a_rows=a_rows, **counts)

        return run_of
