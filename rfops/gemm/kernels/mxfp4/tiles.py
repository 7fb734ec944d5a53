"""The MXFP4 kernel whose waves share x in LDS, quantised once for all of them: any M."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS

from ...mxfp4_op import x_bits
from ...terms import Traits
from ..variant import TILE, WavesConfig
from .launch import MAX_SPLIT, TILE_K, Fp4Kernel, signature

MAX_M_TILES, MAX_N_TILES, MAX_STEPS, MOST_WAVES = 8, 4, 6, 12
CHIP = ARCH_SPECS["gfx950"]


# What `rfops build` makes: bf16, raw weights, 128 rows of x.
_BUILT: dict[str, int | str] = {
    "M_TILES": 8,
    "N_TILES": 1,
    "STEPS": 1,
    "WAVES": 4,
    "SPLIT": 1,
    "OUT": "bf16",
    "X": "bf16",
    "ROUNDING": "Even",
    "BIAS": "void",
    "SHUFFLED": 0,
    "SHUFFLED_SCALES": 0,
    "X_SHUFFLED_SCALES": 0,
    "TAIL": 0,
}


@dataclass(frozen=True)
class TilesConfig(WavesConfig):
    """A variant of csrc/gemm/mxfp4_tiles.hip; its head comment says what each means."""

    m_tiles: int  # tiles of 16 rows of x of a workgroup
    n_tiles: int  # tiles of 16 rows of w of a wave
    steps: int  # tiles of 128 in a K-step
    waves: int  # of a workgroup, side by side along N
    split: int = 1  # workgroups along K

    ALLOWED: ClassVar[Allowed] = {
        "m_tiles": up_to(MAX_M_TILES),
        "n_tiles": up_to(MAX_N_TILES),
        "steps": up_to(MAX_STEPS),
        "waves": up_to(MOST_WAVES),
        "split": up_to(MAX_SPLIT),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lds_bytes > CHIP.lds_bytes:
            raise ValueError(
                f"{self}: x takes {self.lds_bytes} bytes of LDS, a CU has {CHIP.lds_bytes}; take "
                "fewer steps or tiles"
            )
        self.check_registers(self.registers)

    @property
    def of_wave(self) -> int:
        """Tiles of x in a K-step that a wave makes ready."""
        return int(ceil(self.m_tiles * self.steps, self.waves))

    @property
    def lds_bytes(self) -> int:
        """LDS of a workgroup: two K-steps of x with scales, a wave's tile in flight, a word for
        split-K."""
        x = self.steps * (self.m_tiles * 1024 + ceil(self.m_tiles, 4) * 256)
        return int(2 * x + self.waves * 4096 + 16)

    @property
    def registers(self) -> int:
        """VGPRs, about: tiles of x on their way, two K-steps of w, one of x, sums, addresses."""
        return (
            16 * self.of_wave
            + 10 * self.steps * self.n_tiles
            + 5 * self.m_tiles
            + 4 * self.m_tiles * self.n_tiles
            + 40
        )

    def fits(self, bits: int) -> bool:
        """Whether x of so many bits an element: of 8 a tile in LDS and in registers is twice as
        large as of the others."""
        more_lds, more_registers = 2 * self.steps * self.m_tiles * 1024, 4 * self.m_tiles
        return bits != 8 or (
            self.lds_bytes + more_lds <= CHIP.lds_bytes
            and self.registers + more_registers <= REGISTERS // max(2, ceil(self.waves, 4))
        )

    @property
    def words(self) -> int:
        return super().words * self.waves

    def tiles(self, m: int, n: int) -> int:
        return int(ceil(m, TILE * self.m_tiles) * ceil(n, TILE * self.n_tiles * self.waves))


class Tiles(Fp4Kernel):
    name = "tiles"
    module = "mxfp4_tiles"
    Config = TilesConfig
    max_rows = max(MAX_M_TILES, MAX_N_TILES * MOST_WAVES) * TILE
    compiled = compile_ops("mxfp4_tiles", kernel="mxfp4_tiles", variants=lambda _arch: [_BUILT])(
        signature
    )

    def unsupported_config_reason(self, c: Call, config: TilesConfig) -> str | None:  # type: ignore[override]
        if not config.fits(x_bits(c)):
            return f"x of {x_bits(c)} bits takes more LDS or registers than a CU has"
        return super().unsupported_config_reason(c, config)

    def space(self, c: Call) -> Columns[Any] | None:
        return self._space(c, _FEW)

    def full_space(self, c: Call) -> Columns[Any] | None:
        return self._space(c, _ALL)

    def _space(self, c: Call, values: _Values) -> Columns[Any] | None:
        if self.unsupported_arch_reason(c) or c.M < 1:
            return None
        m_tiles = min(8, 1 << (int(ceil(c.M, TILE)) - 1).bit_length())
        return _variants(values, m_tiles, min(8, ceil(c.K, TILE_K)), x_bits(c))

    def family(self, config: TilesConfig, c: Call) -> str:
        return f"{config.m_tiles}x{config.n_tiles}x{config.waves}{self.layout(c)}"

    def traits(self, config: TilesConfig, c: Call) -> tuple[float, ...]:
        rows_n = TILE * config.n_tiles * config.waves
        by_registers = min(REGISTERS // config.registers, MAX_WAVES) // ceil(config.waves, 4)
        return Traits(
            TILE * config.m_tiles,
            rows_n,
            config.split,
            TILE_K * config.steps,
            max(1, min(by_registers, CHIP.lds_bytes // config.lds_bytes)),
            log_steps=math.log2(config.steps),
        )


# m_tiles, n_tiles, steps, waves, split: of all variants, of those that a call chooses among.
_Values = tuple[tuple[int, ...], ...]
_ALL: _Values = (1, 2, 4, 8), (1, 2, 4), (1, 2, 3, 4, 6), (4, 6, 8, 12), tuple(range(1, 9))
_FEW: _Values = (1, 2, 4, 8), (1, 2), (2, 4, 6), (4, 8), (1, 2, 4)


@functools.lru_cache(maxsize=256)
def _variants(values: _Values, m_tiles: int, max_split: int, bits: int) -> Columns[TilesConfig]:
    """Those that fit the chip, with at most `m_tiles`, the rows that there are."""
    found = []
    for each in itertools.product(*values):
        with contextlib.suppress(ValueError):  # does not fit
            config = TilesConfig(*each)
            if config.m_tiles <= m_tiles and config.split <= max_split and config.fits(bits):
                found.append(config)
    return Columns(found)
