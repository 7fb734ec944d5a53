"""The MXFP4 kernel whose waves share x in LDS, quantised once for all of them: any M."""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, Work, ceil, coarse
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS, REGISTERS

from ...mxfp4_op import x_bits
from ..variant import TILE, WavesConfig
from .launch import MAX_SPLIT, TILE_K, Fp4Kernel, signature

MAX_M_TILES, MAX_N_TILES, MAX_STEPS, MAX_WAVES = 8, 4, 6, 12
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
        "waves": up_to(MAX_WAVES),
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


# Of a wave: cycles to make a tile of x ready, by its bits; cycles of a matrix instruction;
# and from a workgroup's part to the sum of all, by timing mode.
_PREPARE, _MATRIX, _REDUCE_US = {4: 60, 8: 90, 16: 380}, 16, 0.55


class Tiles(Fp4Kernel):
    name = "tiles"
    module = "mxfp4_tiles"
    Config = TilesConfig
    max_rows = max(MAX_M_TILES, MAX_N_TILES * MAX_WAVES) * TILE
    compiled = compile_ops("mxfp4_tiles", kernel="mxfp4_tiles", variants=lambda _arch: [_BUILT])(
        signature
    )

    def unsupported_config_reason(self, c: Call, config: TilesConfig) -> str | None:  # type: ignore[override]
        if not config.fits(x_bits(c)):
            return f"x of {x_bits(c)} bits takes more LDS or registers than a CU has"
        return super().unsupported_config_reason(c, config)

    def key(self, c: Call) -> tuple[int, ...]:
        return coarse(c.M, TILE), coarse(c.N, TILE), coarse(c.K, TILE_K), x_bits(c)

    @staticmethod
    def space(_m: int, _n: int, k: int, bits: int) -> Columns[TilesConfig]:
        return _variants(min(8, ceil(k, TILE_K)), bits)

    @staticmethod
    def work(table: Columns[TilesConfig], m: int, n: int, k: int, bits: int) -> Work:
        """A K-step after the other, of which one is on its way while another is multiplied."""
        c = table
        tiles = ceil(ceil(k, TILE_K), c.split)
        turns = ceil(tiles, c.steps)
        share = turns * c.steps * TILE_K / 2 * 17 / 16  # bytes of a row of w, scales too
        rows_n = TILE * c.n_tiles * c.waves
        m_groups = ceil(m, TILE * c.m_tiles)
        of_wave = ceil(c.m_tiles * c.steps, c.waves)
        cycles = of_wave * _PREPARE[bits] + c.steps * c.m_tiles * (8 + _MATRIX * c.n_tiles)
        reduce_us = _REDUCE_US + c.split * c.words * 4 / 48e3 / CHIP.ghz
        return Work(
            groups=m_groups * ceil(n, rows_n) * c.split,
            waves=c.waves,
            bytes=n * k / 2 * 17 / 16 + m * k * bits / 8,
            w_bytes=rows_n * share / m_groups,
            x_bytes=TILE * c.m_tiles * share * bits / 4 + rows_n * share * (1 - 1 / m_groups),
            cycles=turns * cycles,
            waits=1 + turns,
            registers=c.registers,
            lds_bytes=c.lds_bytes,
            more_us=(c.split > 1) * reduce_us,
        )


@functools.lru_cache(maxsize=64)
def _variants(max_split: int, bits: int) -> Columns[TilesConfig]:
    found = []
    values = itertools.product(
        (1, 2, 4, 8), (1, 2, 4), (1, 2, 3, 4, 6), (4, 6, 8, 12), range(1, max_split + 1)
    )
    for each in values:
        with contextlib.suppress(ValueError):  # does not fit
            config = TilesConfig(*each)
            if config.fits(bits):
                found.append(config)
    return Columns(found)
