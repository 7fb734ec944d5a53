"""The MXFP4 kernel for few rows: w goes from memory to registers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil, prebuilt
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS

from ...mxfp4_op import x_bits
from ...terms import Traits
from ..variant import TILE, WavesConfig
from .launch import MAX_SPLIT, TILE_K, Fp4Kernel, layout_of_w, signature

MAX_TILES = 4
MAX_M = TILE * MAX_TILES
CHIP = ARCH_SPECS["gfx950"]


@dataclass(frozen=True)
class StreamConfig(WavesConfig):
    """A variant of csrc/gemm/mxfp4_stream.hip; its head comment says what each means."""

    m_tiles: int  # tiles of 16 rows of x
    n_tiles: int  # tiles of 16 rows of w of a workgroup
    steps: int  # tiles of 128 along K that a wave has in flight
    waves: int  # waves of a workgroup, side by side along K
    split: int = 1  # workgroups along K

    ALLOWED: ClassVar[Allowed] = {
        "m_tiles": up_to(MAX_TILES),
        "n_tiles": up_to(8),
        "steps": up_to(4),
        "waves": up_to(16),
        "split": up_to(MAX_SPLIT),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_loads(self.steps * (2 * self.n_tiles + 4 * self.m_tiles))
        lds_bytes = self.lds_bytes(16)
        if lds_bytes > CHIP.lds_bytes:
            raise ValueError(
                f"{self}: the waves' sums take {lds_bytes} bytes of LDS, a CU has "
                f"{CHIP.lds_bytes}; take fewer waves or tiles"
            )
        self.check_registers(self.registers)

    @property
    def staged_tiles(self) -> int:
        """Tiles of x that a wave has in LDS at once."""
        return 2 if self.m_tiles * self.steps > 1 else 1

    def lds_bytes(self, bits: int) -> int:
        """LDS of a workgroup for x of `bits` per element: per wave its sums or the staged tiles of
        x, whichever is more; and a word for split-K."""
        return self.waves * max(self.words * 4, self.staged_tiles * _tile_bytes(bits)) + 16

    @property
    def registers(self) -> int:
        """VGPRs, about: operands in flight, sums, what is turned, and addresses."""
        in_flight = self.steps * (5 * self.n_tiles + 16 * self.m_tiles)
        return in_flight + 4 * self.m_tiles * self.n_tiles + 20

    def tiles(self, m: int, n: int) -> int:
        return int(ceil(n, TILE * self.n_tiles))


def _tile_bytes(bits: int) -> int:
    """Of x, of `bits` per element."""
    return TILE * TILE_K * bits // 8


# Of a wave, where x has more than 4 bits: to quantise a tile of x, and for a matrix instruction.
_QUANTISE_CLOCKS, _MATRIX_CLOCKS = {8: 0, 16: 320}, 16


class Stream(Fp4Kernel):
    name = "stream"
    module = "mxfp4_stream"
    Config = StreamConfig
    max_rows = TILE * 8
    compiled = compile_ops(
        "mxfp4_stream",
        kernel="mxfp4_stream",
        variants=prebuilt("gemm_a16wfp4", "stream"),
    )(signature)

    def unsupported_reason(self, c: Call) -> str | None:
        return f"M={c.M} is above {MAX_M}" if c.M > MAX_M else super().unsupported_reason(c)

    def unsupported_config_reason(self, c: Call, config: StreamConfig) -> str | None:  # type: ignore[override]
        if config.m_tiles * TILE < c.M:
            return f"M={c.M} is above {config.m_tiles} tiles of {TILE}"
        return super().unsupported_config_reason(c, config)

    def kind(self, c: Call, config: StreamConfig, k: int) -> Mapping[str, int]:
        k_step_waves = config.split * config.waves * config.steps
        return {**super().kind(c, config, k), "ONE_TURN": int(ceil(k, TILE_K) <= k_step_waves)}

    def space(self, c: Call) -> Columns[StreamConfig] | None:
        return self._space(c, _FEW if x_bits(c) == 4 else _FEW_WIDE)

    def full_space(self, c: Call) -> Columns[StreamConfig] | None:
        return self._space(c, _ALL)

    def _space(self, c: Call, values: _Values) -> Columns[StreamConfig] | None:
        if self.unsupported_arch_reason(c) or not 0 < c.M <= MAX_M:
            return None
        return _variants(values, ceil(c.M, TILE))

    def family(self, config: StreamConfig, c: Call) -> str:
        return layout_of_w(c)

    def traits(self, config: StreamConfig, c: Call) -> tuple[float, ...]:
        bits, m_tiles, n_tiles, waves = x_bits(c), config.m_tiles, config.n_tiles, config.waves
        lds_bytes = config.lds_bytes(bits)
        clocks = 0
        if bits > 4:
            clocks = m_tiles * _QUANTISE_CLOCKS[bits] + _MATRIX_CLOCKS * m_tiles * n_tiles
        by_registers = min(REGISTERS // config.registers, MAX_WAVES) // ceil(waves, CHIP.simds)
        return Traits(
            m_tiles * TILE,
            n_tiles * TILE,
            config.split,
            TILE_K * config.steps * waves,
            max(1, min(by_registers, CHIP.lds_bytes // lds_bytes)),
            waves * config.words * 4,
            waves,
            math.log2(waves),
            math.log2(config.steps),
            busy_clocks=waves * config.steps * clocks,
        )


# n_tiles; steps; waves and split: of all variants, of those that a call chooses among.
_Values = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
_WAVES = 1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 16
_ALL: _Values = (1, 2, 3, 4, 6), (1, 2, 3, 4), tuple(itertools.product(_WAVES, range(1, 9)))
_FEW: _Values = (
    (1, 2, 3, 4),
    (2, 3, 4),
    ((1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (12, 1), (1, 8), (2, 3), (4, 4)),
)
_FEW_WIDE: _Values = _FEW[0], (1, 2, 4), (*_FEW[2], (2, 7))  # where x has more than 4 bits


@functools.lru_cache(maxsize=16)
def _variants(values: _Values, m_tiles: int) -> Columns[StreamConfig]:
    """Those that fit."""
    configs = []
    for n_tiles, steps, (waves, split) in itertools.product(*values):
        with contextlib.suppress(ValueError):  # does not fit
            configs.append(StreamConfig(m_tiles, n_tiles, steps, waves, split))
    return Columns(configs)
