"""The GEMV of gemm_mxfp8: HIP, M at most 16, bound by reading w (gfx950). The kernel's signature,
its variants, which one a shape gets, what it refuses, and the launch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rfops.dispatch.guards import MAX_BYTES, check_config_ints
from rfops.dispatch.heuristic import Columns, ceil, coarse
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.jit import compile_ops, u32
from rfops.jit.arch import MAX_WAVES, REGISTERS, ROWS, WAVE
from rfops.quantization.mxfp8 import BLOCK

MAX_M = 16
ALIGN = 16  # bytes: a lane's load
CHIP = ROWS["gfx950"]
# (N, K) of linear layers that `rfops build` prepares kernels for, at every M.
PREBUILT_SHAPES = ((2304, 6144), (6144, 2048), (1536, 6144), (6144, 1536))


@compile_ops("mxfp8_gemv", variants=lambda _arch: _prebuilt())
def mxfp8_gemv(
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    n: u32,
    k: u32,
) -> None:
    """csrc/mxfp8_gemv.hip: the shapes stand there; M and the config are compile-time constants."""


@dataclass(frozen=True)
class GemvConfig:
    """A variant of the kernel; its head comment says what each means."""

    lanes: int  # lanes along K, 16 bytes of w each: 64, 32 or 16
    rows: int  # rows of w that a lane sums at once
    steps: int  # steps along K in flight at once
    waves: int  # waves of a workgroup, side by side along K

    def __post_init__(self) -> None:
        check_config_ints(self)
        if self.lanes not in (16, 32, 64) or not 1 <= self.waves <= 16:
            raise ValueError(f"{self}: lanes are 16, 32 or 64, waves 1 to 16")
        if self.rows < 1 or self.steps < 1:
            raise ValueError(f"{self}: rows and steps are 1 or more")

    @property
    def tile_n(self) -> int:
        return self.rows * WAVE // self.lanes

    def defines(self, m: int) -> dict[str, int]:
        return {
            "M": m,
            "LANES": self.lanes,
            "ROWS": self.rows,
            "STEPS": self.steps,
            "WAVES": self.waves,
        }

    @staticmethod
    def from_heuristic(m: int, n: int, k: int) -> GemvConfig:
        """What a shape without a tuned row uses: the fewest VALU slots on the busiest SIMD among
        the variants that keep enough bytes in flight (see `_costs`). N and K count in coarse steps
        of 256, a row on each CU."""
        return _best(m, coarse(n, CHIP.cus), coarse(k, 16 * ALIGN))


def _prebuilt() -> list[dict[str, int]]:
    """The distinct variants of PREBUILT_SHAPES."""
    cases = itertools.product(range(1, MAX_M + 1), PREBUILT_SHAPES)
    pairs = [(m, GemvConfig.from_heuristic(m, n, k)) for m, (n, k) in cases]
    return [config.defines(m) for m, config in dict.fromkeys(pairs)]


@lru_cache(maxsize=512)
def _best(m: int, n: int, k: int) -> GemvConfig:
    table = _candidates(m)
    return table.best(_costs(table, m, n, k))


@lru_cache
def _candidates(m: int) -> Columns[GemvConfig]:
    """Variants that fit the register file: a step holds 4 VGPRs for each row of x and of w."""
    steps = (1, 2) if m <= 4 else (1,)
    values = itertools.product((64, 32, 16), (4, 3, 2, 1), steps, range(1, 9))
    return Columns([GemvConfig(*value) for value in values])


# The cost's unit is a VALU slot, 4 clocks of a SIMD; in one, HBM at its peak delivers 13.3 KB.
_SLOTS = 1e3 * CHIP.ghz / 4  # a microsecond
_BYTES_PER_SLOT = int(1e6 * CHIP.hbm_peak_tb_s / _SLOTS)
# 0.8 us from a load to its use. At 8 TB/s that is 6.4 MB in flight over the chip, 25 KB a CU.
_LATENCY_SLOTS = round(CHIP.latency_us * _SLOTS)
# Dispatch: 2 clocks a wave and XCD (measured by others on MI300X), 32 CUs to an XCD, 4 SIMDs to
# a CU: one more wave on each SIMD costs as much as 64 slots.
_DISPATCH_SLOTS = CHIP.dispatch_cycles * CHIP.cus // CHIP.xcds


def _costs(c: Columns[GemvConfig], m: int, n: int, k: int) -> tuple[Any, ...]:
    """Order of preference: least time, be it of HBM, of the busiest SIMD's instructions, or of one
    wave after the other, each waiting for its loads; fewest such waits; fewest rows of w on one
    CU; fewest slots.

    Slots are those of the compiled kernel: per 16 bytes of w in a lane 8 conversions and 2 for the
    NaN scale, and per row of x 8 dot products and 4 for the block's scale; 11 per 16 bytes of x.
    """
    rounds = ceil(k, c.lanes * ALIGN * c.steps * c.waves)
    sums = c.rows * m
    per_step = c.rows * (10 * ceil(m, 8) + 12 * m) + 11 * m
    per_wave = rounds * c.steps * per_step + 3 * sums + 40
    groups = ceil(n, c.tile_n)
    waves_per_cu = ceil(groups, CHIP.cus) * c.waves
    slots = ceil(waves_per_cu, 4) * (per_wave + _DISPATCH_SLOTS)

    registers = 20 + c.steps * 5 * (m + c.rows) + sums + 8 * min(m, 8)
    resident = 4 * np.minimum(MAX_WAVES, REGISTERS // registers)  # waves of a CU
    batches = ceil(waves_per_cu, resident)
    chain = batches * (per_wave + rounds * _LATENCY_SLOTS)
    time = np.maximum(np.maximum(slots, chain), n * k // _BYTES_PER_SLOT)
    return time, batches * rounds, ceil(groups, CHIP.cus) * c.tile_n, slots


class Gemv(Kernel):
    name = "gemv"
    module = "mxfp8_gemv"
    is_ranked = True
    Config = GemvConfig

    def refuses(self, c: Call) -> str | None:
        m, n, k = c.M, c.N, c.K
        if reason := self.refuses_arch(c):
            return reason
        if c.dtype != torch.bfloat16:
            return f"writes bfloat16, not {str(c.dtype).removeprefix('torch.')}"
        if not 1 <= m <= MAX_M:
            return f"M={m} is not within 1 to {MAX_M}: beyond, matrix cores are better"
        if k % BLOCK:
            return f"K={k} is not a multiple of {BLOCK}"
        if max(m, n) * k >= MAX_BYTES:
            return f"an operand of {max(m, n) * k} bytes is beyond signed 32-bit offsets (2 GiB)"
        return None

    def default(self, c: Call) -> GemvConfig:
        return GemvConfig.from_heuristic(c.M, c.N, c.K)

    def candidates(self, c: Call) -> list[GemvConfig]:
        table = _candidates(c.M)
        return table.ranked(_costs(table, c.M, c.N, c.K))

    def defines(self, c: Call, config: GemvConfig) -> Mapping[str, int]:
        return config.defines(c.M)

    def variant(self, c: Call, config: GemvConfig) -> RunOf:
        kernel = mxfp8_gemv.bind(c.device, config.defines(c.M), c.arch)
        launch = kernel.prepare((config.waves * WAVE, 1, 1), (0, 1, 2, 3, 4))
        tile_n = config.tile_n
        return lambda _m, n, k: launch((-(-n // tile_n), 1, 1), (n, k))
