"""The GEMV of gemm_mxfp8: HIP, M at most 16, bound by reading w (gfx950). The kernel's signature,
its variants, which one a shape gets, what it refuses, and the launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch

from rfops.dispatch.config import POSITIVE, Allowed, CheckedConfig, up_to
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import Columns, prebuilt
from rfops.dispatch.kernel import Call, RunOf, as_defines
from rfops.dispatch.time_model import TimedKernel
from rfops.jit import compile_ops, u32
from rfops.jit.arch import MAX_WAVES, REGISTERS, WAVE
from rfops.quantization.mxfp8 import BLOCK

from ...terms import Traits

MAX_M = 16
ALIGN = 16  # bytes: a lane's load
_MOST_K = 1 << 15  # from which on no variant leaves a wave without a part of it


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
    def step_k(self) -> int:
        """Elements of K that a wave has in flight."""
        return self.lanes * ALIGN * self.steps

    @property
    def tile_n(self) -> int:
        return self.rows * WAVE // self.lanes

    def defines(self, m: int) -> dict[str, int]:
        return {"M": m, **as_defines(self)}


@lru_cache
def _candidates(m: int, k: int) -> Columns[GemvConfig]:
    """Variants that fit the register file (a step holds 4 VGPRs for each row of x and of w), and
    of which each wave has a part of K."""
    steps = (1, 2) if m <= 4 else (1,)
    values = itertools.product((64, 32, 16), (4, 3, 2, 1), steps, range(1, 9))
    made = [GemvConfig(*value) for value in values]
    return Columns([g for g in made if (g.waves - 1) * g.step_k < k or g.waves == 1])


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

    def space(self, c: Call) -> Columns[Any] | None:
        if self.unsupported_arch_reason(c) or not 0 < c.M <= MAX_M or c.dtype != torch.bfloat16:
            return None
        return _candidates(c.M, min(c.K, _MOST_K))

    def family(self, config: GemvConfig, c: Call) -> str:
        return f"{c.M}x{config.rows}"

    def traits(self, config: GemvConfig, c: Call) -> tuple[float, ...]:
        registers = 20 + config.steps * 5 * (c.M + config.rows) + config.rows * c.M
        by_registers = min(REGISTERS // registers, MAX_WAVES)
        waves = config.waves
        return Traits(
            c.M,
            config.tile_n,
            1,
            config.step_k * waves,
            max(1, 4 * by_registers // waves),
            waves=waves,
            log_waves=math.log2(waves),
            log_steps=math.log2(config.steps),
            log_lines=math.log2(config.lanes),
        )

    def defines(self, c: Call, config: GemvConfig) -> Mapping[str, int]:
        return config.defines(c.M)

    def variant(self, c: Call, config: GemvConfig) -> RunOf:
        kernel = mxfp8_gemv.bind(c.device, config.defines(c.M), c.arch)
        launch = kernel.prepare((config.waves * WAVE, 1, 1), self.arguments)
        tile_n = config.tile_n
        return lambda _m, n, k: launch((-(-n // tile_n), 1, 1), n=n, k=k)
