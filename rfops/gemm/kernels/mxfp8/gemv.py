"""The GEMV of gemm_mxfp8: HIP, M at most 16, bound by reading w (gfx950). The kernel's signature,
its variants, which one a shape gets, what it refuses, and the launch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch

from rfops.dispatch.config import POSITIVE, Allowed, CheckedConfig, up_to
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import VALU_CYCLES, Columns, Ranked, Work, ceil, coarse, prebuilt
from rfops.dispatch.kernel import Call, RunOf, as_defines
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS, WAVE
from rfops.quantization.mxfp8 import BLOCK

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


@lru_cache
def _candidates(m: int) -> Columns[GemvConfig]:
    """Variants that fit the register file: a step holds 4 VGPRs for each row of x and of w."""
    steps = (1, 2) if m <= 4 else (1,)
    values = itertools.product((64, 32, 16), (4, 3, 2, 1), steps, range(1, 9))
    return Columns([GemvConfig(*value) for value in values])


class Gemv(Ranked):
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

    def key(self, c: Call) -> tuple[int, ...]:
        """N counts in steps of a row on each CU."""
        return c.M, coarse(c.N, CHIP.cus), coarse(c.K, 16 * ALIGN)

    @staticmethod
    def space(m: int, _n: int, _k: int) -> Columns[GemvConfig]:
        return _candidates(m)

    @staticmethod
    def work(table: Columns[GemvConfig], m: int, n: int, k: int) -> Work:
        """Instructions of the compiled kernel: per 16 bytes of w in a lane 8 conversions and 2 for
        the NaN scale, and per row of x 8 dot products and 4 for the block's scale; 11 per 16 bytes
        of x."""
        c = table
        turns = ceil(k, c.lanes * ALIGN * c.steps * c.waves)
        sums = c.rows * m
        per_step = c.rows * (10 * ceil(m, 8) + 12 * m) + 11 * m
        row = k + k // BLOCK
        return Work(
            groups=ceil(n, c.tile_n),
            waves=c.waves,
            bytes=n * row,
            w_bytes=c.tile_n * row,
            x_bytes=m * row,
            cycles=VALU_CYCLES * (turns * c.steps * per_step + 3 * sums + 40),
            waits=turns,
            registers=20 + c.steps * 5 * (m + c.rows) + sums + 8 * min(m, 8),
        )

    def defines(self, c: Call, config: GemvConfig) -> Mapping[str, int]:
        return config.defines(c.M)

    def variant(self, c: Call, config: GemvConfig) -> RunOf:
        kernel = mxfp8_gemv.bind(c.device, config.defines(c.M), c.arch)
        launch = kernel.prepare((config.waves * WAVE, 1, 1), self.arguments)
        tile_n = config.tile_n
        return lambda _m, n, k: launch((-(-n // tile_n), 1, 1), n=n, k=k)
