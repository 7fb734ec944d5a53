"""The matrix-core kernel of gemm_mxfp8: HIP, any M and N, one scaled MFMA per 16 x 16 x 128
(gfx950). Its signatures, its variants, which one a shape gets, what it refuses, and the launch."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import MFMA_CYCLES, Columns, ceil, prebuilt
from rfops.dispatch.kernel import Call, Run, RunOf, as_defines
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.workspace import SPLIT, with_partials
from rfops.jit import compile_ops, u32
from rfops.jit.arch import ARCH_SPECS, MAX_GRID, MAX_WAVES, REGISTERS, WAVE
from rfops.quantization.mxfp8 import BLOCK

from ...terms import Traits
from ..variant import TILE, WavesConfig

ALIGN = 16  # bytes: a lane's load
TILE_K = 128  # elements of K in an operand
MAX_TILES = 4  # of 16 rows, of x or of w, of a workgroup
CHIP = ARCH_SPECS["gfx950"]
XCDS = CHIP.xcds
MAX_SPLIT = 16  # parts of K that the heuristic tries at most, of workgroups and of waves
# The type of an out element in csrc/gemm/mxfp8_mfma.hip.
OUT_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


@compile_ops("mxfp8_mfma", variants=prebuilt("gemm_mxfp8", "mfma"))
def mxfp8_mfma(
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    m: u32,
    n: u32,
    k: u32,
    workspace: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> None:
    """csrc/gemm/mxfp8_mfma.hip: the shapes stand there; the config is compile-time constants."""


@dataclass(frozen=True)
class MfmaConfig(WavesConfig):
    """A variant of the kernel; its head comment says what each means."""

    m_tiles: int  # tiles of 16 rows of x of a workgroup
    n_tiles: int  # tiles of 16 rows of w of a workgroup
    steps: int  # tiles of 128 along K that a wave has in flight
    waves: int  # waves of a workgroup, side by side along K
    split: int  # workgroups along K; above 1 the last one of a tile adds up their sums

    ALLOWED: ClassVar[Allowed] = {
        **dict.fromkeys(("m_tiles", "n_tiles", "steps"), up_to(MAX_TILES)),
        **dict.fromkeys(("waves", "split"), up_to(16)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lds_bytes > CHIP.lds_bytes:
            raise ValueError(
                f"{self}: the waves' sums take {self.lds_bytes} bytes of LDS, a CU has "
                f"{CHIP.lds_bytes}; take fewer waves or tiles"
            )
        self.check_loads(3 * self.steps * (self.m_tiles + self.n_tiles))
        self.check_registers(self.registers)

    @property
    def lds_bytes(self) -> int:
        """Sums of all waves but where there is one only, 16 bytes a lane and tile; and who of the
        workgroups along K was last."""
        sums = self.waves * self.m_tiles * self.n_tiles * WAVE * 16 if self.waves > 1 else 0
        return sums + 16 * (self.split > 1)

    @property
    def registers(self) -> int:
        """VGPRs, about those that the compiler takes: operands and scales in flight, sums, what a
        step's offsets take, and 16; or a wave's sums, what others left of up to 4, and 16."""
        tiles, sums = self.m_tiles + self.n_tiles, self.m_tiles * self.n_tiles
        adds_up = 0
        if self.split > 1:
            sums_per_wave = -(-sums // self.waves)
            adds_up = 4 * sums_per_wave + 4 * self.split * min(
                sums_per_wave, 4 if self.split <= 8 else 2
            )
        return max(self.steps * (9 * tiles + 2) + 4 * sums, adds_up) + 16

    @property
    def workgroups_per_cu(self) -> int:
        """At once."""
        by_registers = min(REGISTERS // self.registers, MAX_WAVES) // ceil(self.waves, CHIP.simds)
        return max(1, min(by_registers, CHIP.lds_bytes // max(self.lds_bytes, 1)))

    def flags(self, m: int, n: int, k: int) -> tuple[int, bool, bool, bool]:
        """Return what else of a shape is compiled in: K-steps of the tail, whether other workgroups
        read the same rows of w, and whether the last tiles of M and N are partial."""
        rows, m_tiles = -(-m // TILE), self.m_tiles
        last_turn, ragged_n = -(-k // TILE_K) % self.steps, -(-n // TILE) % self.n_tiles != 0
        return last_turn, rows > m_tiles, rows % m_tiles != 0, ragged_n

    def defines(
        self, m: int, n: int, k: int, dtype: torch.dtype, wide_scales: bool
    ) -> dict[str, int | str]:
        last_turn, shared_w, ragged_m, ragged_n = self.flags(m, n, k)
        flags = {"LAST_TURN": last_turn, "SHARED_W": shared_w, "RAGGED_M": ragged_m}
        flags |= {"WIDE_SCALES": wide_scales, "RAGGED_N": ragged_n}
        return {
            **as_defines(self),
            **{name: int(flag) for name, flag in flags.items()},
            "OUT": OUT_TYPES[dtype],
        }

    def groups(self, m: int, n: int) -> tuple[int, int]:
        """Tiles of the result, along M and N."""
        return -(-m // (TILE * self.m_tiles)), -(-n // (TILE * self.n_tiles))

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Workgroups: one an XCD; those of the same rows of w; the rest."""
        m_groups, n_groups = self.groups(m, n)
        return XCDS, m_groups, -(-n_groups // XCDS) * self.split


def row_tiles(m: int) -> int:
    """Return the row tiles of a workgroup: all up to 64 rows, so that w is read once; above, as few
    workgroups of equal size as possible."""
    return int(ceil(ceil(m, TILE), ceil(m, TILE * MAX_TILES)))


# n_tiles; steps; waves and split: of all variants, of those that a call chooses among.
_Values = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
_ALONG_K = 1, 2, 3, 4, 6, 8, 12, MAX_SPLIT
_ALL_VALUES: _Values = (1, 2, 3, 4), (1, 2, 3, 4), tuple(itertools.product(_ALONG_K, _ALONG_K))
_FEW_VALUES: _Values = (
    (1, 2, 3, 4),
    (1, 2, 3, 4),
    (
        *((1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (8, 1), (12, 1), (16, 1)),
        *((2, 3), (2, 6), (3, 4), (4, 2), (4, 3), (4, 4)),
    ),
)


@lru_cache(maxsize=2 * MAX_TILES)
def _variants(values: _Values, m_tiles: int) -> Columns[MfmaConfig]:
    """Those that fit the register file."""
    configs = []
    for n_tiles, steps, (waves, split) in itertools.product(*values):
        if waves * m_tiles * n_tiles * 1024 <= CHIP.lds_bytes // 2:
            with contextlib.suppress(ValueError):  # does not fit
                configs.append(MfmaConfig(m_tiles, n_tiles, steps, waves, split))
    return Columns(configs)


class Mfma(TimedKernel):
    name = "mfma"
    module = "mxfp8_mfma"
    Config = MfmaConfig
    limits = "N"

    def unsupported_reason(self, c: Call) -> str | None:
        m, n, k = c.M, c.N, c.K
        if reason := self.unsupported_arch_reason(c):
            return reason
        if m < 1 or n < 1:
            return f"M={m}, N={n}: nothing to compute"
        if k < BLOCK or k % BLOCK:
            return f"K={k} is not a positive multiple of {BLOCK}"
        if TILE * MAX_TILES * k >= MAX_BYTES:
            return f"{TILE * MAX_TILES} rows of K={k} are beyond signed 32-bit offsets (2 GiB)"
        # Asked of the heuristic, which takes 0.1 ms, only where some variant's grid is too large.
        largest = max(ceil(m, TILE), ceil(ceil(n, TILE), XCDS) * MAX_SPLIT)
        if largest > MAX_GRID and max(self.default(c).grid(m, n)) > MAX_GRID:
            return f"M={m}, N={n} need more than {MAX_GRID} workgroups in one direction"
        return None

    def space(self, c: Call) -> Columns[MfmaConfig] | None:
        return self._space(c, _FEW_VALUES)

    def full_space(self, c: Call) -> Columns[MfmaConfig] | None:
        return self._space(c, _ALL_VALUES)

    def _space(self, c: Call, values: _Values) -> Columns[MfmaConfig] | None:
        if self.unsupported_arch_reason(c) or c.M < 1:
            return None
        return _variants(values, row_tiles(c.M))

    def traits(self, config: MfmaConfig, c: Call) -> tuple[float, ...]:
        return Traits(
            config.m_tiles * TILE,
            config.n_tiles * TILE,
            config.split,
            TILE_K * config.steps * config.waves,
            config.workgroups_per_cu,
            config.lds_bytes,
            config.waves,
            math.log2(config.waves),
            math.log2(config.steps),
            busy_clocks=MFMA_CYCLES * config.waves * config.steps * config.m_tiles * config.n_tiles,
        )

    def defines(self, c: Call, config: MfmaConfig) -> Mapping[str, int | str]:
        is_wide = c.K % TILE_K == 0 and c.align("x_scale", "w_scale") % 4 == 0
        return config.defines(c.M, c.N, c.K, c.dtype, is_wide)

    def variant(self, c: Call, config: MfmaConfig) -> RunOf:
        """Scales at multiples of 4 bytes of whole tiles of K are read 4 at a time. A launch is
        built at the first shape of its kind. Raises ValueError for a grid that is too large."""
        block, split = (config.waves * WAVE, 1, 1), config.split
        arguments = (*self.arguments, *(SPLIT if split > 1 else ()))
        aligned = c.align("x_scale", "w_scale") % 4 == 0
        launches: tuple[dict[object, Callable[..., Run]], ...] = {}, {}

        def run_of(m: int, n: int, k: int) -> Run:
            grid = config.grid(m, n)
            if grid[1] > MAX_GRID or grid[2] > MAX_GRID:
                raise ValueError(
                    f"mxfp8_mfma: {config} must need at most {MAX_GRID} workgroups in one "
                    f"direction for M={m}, N={n}, got a grid of {grid}; take more tiles or less "
                    "split"
                )
            wide_scales = aligned and k % TILE_K == 0
            kind = config.flags(m, n, k)
            launch = launches[wide_scales].get(kind)
            if launch is None:
                defines = config.defines(m, n, k, c.dtype, wide_scales)
                bound = mxfp8_mfma.bind(c.device, defines, c.arch)
                launch = bound.prepare(block, arguments)
                launches[wide_scales][kind] = launch
            run = launch(grid, m=m, n=n, k=k)
            if split == 1:
                return run
            tiles = math.prod(config.groups(m, n))
            return with_partials(run, c.device, tiles * split * config.words, tiles)

        return run_of
