"""The GEMV of gemm_mxfp8: HIP, M at most 16, bound by reading w (gfx950). The kernel's signature,
its variants, which one a shape gets, what it refuses, and the launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch

from rfops.dispatch.config import POSITIVE, Allowed, CheckedConfig, up_to
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import VALU_CYCLES, Columns, ceil, prebuilt
from rfops.dispatch.kernel import Call, RunOf, as_defines
from rfops.dispatch.time_model import TimedKernel
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, WAVE
from rfops.quantization.mxfp8 import BLOCK

from ...terms import Traits

MAX_M = 16
ALIGN = 16  # bytes: a lane's load
CHIP = ARCH_SPECS["gfx950"]


@compile_ops("mxfp8_gemv", variants=prebuilt("gemm_mxfp8", "gemv", M=range(1, MAX_M + 1)))
def mxfp8_gemv(
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    n: u32,
    k: u32,
) -> None:
    """csrc/gemm/mxfp8_gemv.hip has the shapes; M and the config are compile-time constants."""


@dataclass(frozen=True)
class GemvConfig(CheckedConfig):
    """A variant of the kernel; its head comment says what each means."""

    lanes: int  # lanes along K, 16 bytes of w each: 64, 32 or 16
    rows: int  # rows of w that a lane sums at once
    steps: int  # steps along K in flight at once
    waves: int  # waves of a workgroup, side by side along K

    ALLOWED: ClassVar[Allowed] = {
        "lanes": (16, 32, 64),
        "rows": POSITIVE,
        "steps": POSITIVE,
        "waves": up_to(16),
    }

    @property
    def tile_n(self) -> int:
        return self.rows * WAVE // self.lanes

    def defines(self, m: int) -> dict[str, int]:
        return {"M": m, **as_defines(self)}


# lanes, rows, steps, waves: of all variants, of those that a call chooses among.
_ALL_VALUES = (64, 32, 16), (4, 3, 2, 1), (1, 2), tuple(range(1, 9))
_FEW_VALUES = (64, 32, 16), (4, 3, 2), (1, 2), (1, 2, 3, 4, 6, 8)


@lru_cache(maxsize=2 * MAX_M)
def _variants(values: tuple[tuple[int, ...], ...], m: int) -> Columns[GemvConfig]:
    """Those that fit the register file: a step holds 4 VGPRs for each row of x and of w."""
    configs = [GemvConfig(*value) for value in itertools.product(*values)]
    return Columns([config for config in configs if config.steps == 1 or m <= 4])


class Gemv(TimedKernel):
    name = "gemv"
    module = "mxfp8_gemv"
    Config = GemvConfig
    limits = "N"

    def unsupported_reason(self, c: Call) -> str | None:
        m, n, k = c.M, c.N, c.K
        if reason := self.unsupported_arch_reason(c):
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

    def space(self, c: Call) -> Columns[GemvConfig] | None:
        return self._space(c, _FEW_VALUES)

    def full_space(self, c: Call) -> Columns[GemvConfig] | None:
        return self._space(c, _ALL_VALUES)

    def _space(self, c: Call, values: tuple[tuple[int, ...], ...]) -> Columns[GemvConfig] | None:
        if self.unsupported_arch_reason(c) or not 1 <= c.M <= MAX_M:
            return None
        return _variants(values, c.M)

    def traits(self, config: GemvConfig, c: Call) -> tuple[float, ...]:
        """Instructions of the compiled kernel: per 16 bytes of w in a lane 8 conversions and 2 for
        the NaN scale, and per row of x 8 dot products and 4 for the block's scale; 11 per 16 bytes
        of x."""
        m, rows, waves = c.M, config.rows, config.waves
        sums = rows * m
        registers = 20 + config.steps * 5 * (m + rows) + sums + 8 * min(m, 8)
        valu = rows * (10 * ceil(m, 8) + 12 * m) + 11 * m
        return Traits(
            m,
            config.tile_n,
            1,
            config.lanes * ALIGN * config.steps * waves,
            max(1, CHIP.simds * min(MAX_WAVES, REGISTERS // registers) // waves),
            waves=waves,
            log_waves=math.log2(waves),
            log_steps=math.log2(config.steps),
            busy_clocks=VALU_CYCLES * config.steps * valu * waves,
        )

    def defines(self, c: Call, config: GemvConfig) -> Mapping[str, int]:
        return config.defines(c.M)

    def variant(self, c: Call, config: GemvConfig) -> RunOf:
        kernel = mxfp8_gemv.bind(c.device, config.defines(c.M), c.arch)
        launch = kernel.prepare((config.waves * WAVE, 1, 1), self.arguments)
        tile_n = config.tile_n
        return lambda _m, n, k: launch((-(-n // tile_n), 1, 1), n=n, k=k)
