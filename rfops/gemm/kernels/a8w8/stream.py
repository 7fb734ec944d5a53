"""The kernel of gemm_a8w8_blockscale for few rows, for both: w goes from memory to registers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, WAVE
from rfops.quantization.fp8_blockscale import BLOCK

from ...terms import Traits
from ..variant import TILE, WavesConfig
from .launch import MAX_SPLIT, Launched, compile_gemm
from .layout import OUT_TYPES

MAX_TILES = 4
MAX_M = TILE * MAX_TILES


@dataclass(frozen=True)
class StreamConfig(WavesConfig):
    """A variant of csrc/gemm/a8w8_blockscale_stream.hip; its head comment says what each means."""

    m_tiles: int  # tiles of 16 rows of x
    n_tiles: int  # tiles of 16 rows of w of a workgroup
    steps: int  # blocks along K that a wave has in flight
    waves: int  # waves of a workgroup, side by side along K
    split: int = 1  # workgroups along K
    lines: int = 1  # of a row that a load asks for, then put into order by LDS; 0: a part of one
    x_first: int = 0  # x is brought to L2 and loaded before w (1, 2) or half of it (3): if much

    ALLOWED: ClassVar[Allowed] = {
        "m_tiles": up_to(MAX_TILES),
        "n_tiles": (1, 2, 4),
        "steps": up_to(4),
        "waves": up_to(16),
        "split": up_to(MAX_SPLIT),
        "lines": (0, 1, 2, 4),
        "x_first": (0, 1, 2, 3),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps % max(self.lines, 1):
            raise ValueError(f"{self}: steps must be a multiple of lines, got {self.steps}")
        self.check_loads(2 * self.steps * (self.n_tiles + self.m_tiles) + self.m_tiles)
        self.check_registers(self.registers)

    @property
    def lds_bytes(self) -> int:
        """The waves' sums, 16 bytes a lane and tile, or what puts tiles of 16 x 128 into order; a
        word for the workgroups'."""
        sums = self.m_tiles * self.n_tiles * WAVE * 16 if self.waves > 1 else 16
        return self.waves * max(sums, self.lines * TILE * BLOCK) + 16

    @property
    def registers(self) -> int:
        """VGPRs, about: operands and scales in flight, sums and partial ones, and addresses."""
        in_flight = self.steps * (8 * (self.m_tiles + self.n_tiles) + self.m_tiles)
        return in_flight + 6 * self.m_tiles * self.n_tiles + 24 + 2 * self.lines

    def tiles(self, m: int, n: int) -> int:
        """Return the number of output tiles; a workgroup has all rows of x."""
        return int(ceil(n, TILE * self.n_tiles))

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
        """Return the defines that select the variant in the kernel, without RFOPS_."""
        return {
            "M_TILES": self.m_tiles,
            "N_TILES": self.n_tiles,
            "STEPS": self.steps,
            "WAVES": self.waves,
            "SPLIT": self.split,
            "OUT": OUT_TYPES[dtype],
            "SHUFFLED": int(shuffled),
            "LINES": self.lines,
            "X_FIRST": self.x_first,
            "DENSE": 1,
        }


_X_FIRST_K = 1024  # from here on x of more than a tile is quicker first, by 1 to 14 %


class Stream(Launched):
    """Few rows of x: each wave streams its rows of w from memory to registers."""

    name = "stream"
    module = "a8w8_blockscale_stream"
    Config = StreamConfig
    max_rows = MAX_M
    compiled = compile_gemm(module, StreamConfig(1, 1, 4, 8))

    def unsupported_reason(self, c: Call) -> str | None:
        if c.M > MAX_M:
            return f"M={c.M} is above {MAX_M}"
        return super().unsupported_reason(c)

    def unsupported_config_reason(self, c: Call, config: StreamConfig) -> str | None:  # type: ignore[override]
        if config.m_tiles * TILE < c.M:
            return f"M={c.M} is above {config.m_tiles} tiles of {TILE}"
        if config.lds_bytes > ARCH_SPECS[c.arch].lds_bytes:
            return f"{config.lds_bytes} bytes of LDS, a CU has {ARCH_SPECS[c.arch].lds_bytes}"
        return super().unsupported_config_reason(c, config)

    def space(self, c: Call) -> Columns[Any] | None:
        return self._space(c, _FEW) if 0 < c.M <= MAX_M and c.K >= BLOCK else None

    def full_space(self, c: Call) -> Columns[Any] | None:
        return self._space(c, _ALL) if 0 < c.M <= MAX_M and c.K >= BLOCK else None

    @staticmethod
    def _space(c: Call, values: _Values) -> Columns[Any]:
        m_tiles = int(ceil(c.M, TILE))
        x_first = int(m_tiles > 1 and c.K >= _X_FIRST_K)
        lds = ARCH_SPECS[c.arch].lds_bytes
        return _variants(values, m_tiles, min(c.K // BLOCK, _MOST_BLOCKS), lds, x_first)

    def family(self, config: StreamConfig, c: Call) -> str:
        order = "" if config.lines else "-unordered"
        return f"{config.m_tiles}x{config.n_tiles}{order}"

    def traits(self, config: StreamConfig, c: Call) -> tuple[float, ...]:
        chip, waves = ARCH_SPECS[c.arch], config.waves
        by_registers = min(REGISTERS // config.registers, MAX_WAVES) // ceil(waves, chip.simds)
        resident = max(1, min(by_registers, chip.lds_bytes // config.lds_bytes))
        return Traits(
            config.m_tiles * TILE,
            config.n_tiles * TILE,
            config.split,
            BLOCK * config.steps * waves,
            resident,
            config.lds_bytes,
            waves,
            math.log2(waves),
            math.log2(config.steps),
            math.log2(config.lines or 0.5),
        )


# n_tiles; steps and lines; waves and split: of all variants, of those that a call chooses among.
_Values = tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
_ALL: _Values = (
    (1, 2, 4),
    tuple(itertools.product((1, 2, 3, 4), (0, 1, 2, 4))),
    tuple(itertools.product(range(1, 17), range(1, MAX_SPLIT + 1))),
)
_FEW: _Values = (
    (1, 2, 4),
    ((4, 4), (2, 2), (1, 1)),
    (
        *((1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (7, 1), (8, 1), (12, 1)),
        *((1, 8), (2, 3), (2, 7), (4, 3), (4, 7), (8, 8)),
    ),
)
_MOST_BLOCKS = 256  # of K, from which on no variant leaves a wave without any


@functools.lru_cache(maxsize=256)
def _variants(
    values: _Values, m_tiles: int, blocks: int, lds: int, x_first: int
) -> Columns[StreamConfig]:
    """Those that fit the chip, and of which each wave has a block of K."""
    configs = []
    for n_tiles, (steps, lines), (waves, split) in itertools.product(*values):
        k_waves = split * waves
        with contextlib.suppress(ValueError):  # does not fit
            config = StreamConfig(m_tiles, n_tiles, steps, waves, split, lines, x_first)
            if config.lds_bytes <= lds and (k_waves == 1 or (k_waves - 1) * steps < blocks):
                configs.append(config)
    return Columns(configs)
