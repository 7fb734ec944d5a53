"""The MXFP4 kernel whose waves share x in LDS, quantised once for all of them: any M."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS

from ...mxfp4_op import x_bits
from ...terms import Traits
from ..variant import TILE, WavesConfig
from .launch import MAX_SPLIT, TILE_K, Fp4Kernel, layout_of_w, signature

MAX_M_TILES, MAX_N_TILES, MAX_STEPS, MAX_GROUP_WAVES = 8, 4, 6, 12
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
        "waves": up_to(MAX_GROUP_WAVES),
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


# Of a wave, where x has more than 4 bits: to make a tile of x ready, and for a matrix instruction.
_X_CLOCKS, _MATRIX_CLOCKS = {8: 90, 16: 380}, 16


class Tiles(Fp4Kernel):
    name = "tiles"
    module = "mxfp4_tiles"
    Config = TilesConfig
    max_rows = max(MAX_M_TILES, MAX_N_TILES * MAX_GROUP_WAVES) * TILE
    compiled = compile_ops("mxfp4_tiles", kernel="mxfp4_tiles", variants=lambda _arch: [_BUILT])(
        signature
    )

    def unsupported_config_reason(self, c: Call, config: TilesConfig) -> str | None:  # type: ignore[override]
        if not config.fits(x_bits(c)):
            return f"x of {x_bits(c)} bits takes more LDS or registers than a CU has"
        return super().unsupported_config_reason(c, config)

    def space(self, c: Call) -> Columns[TilesConfig] | None:
        """No more tiles of 16 rows than x has; above 64 rows one only where x is wide."""
        if self.unsupported_arch_reason(c):
            return None
        bits, are_few = x_bits(c), c.M <= _FEW_ROWS
        max_tiles = ceil(c.M, TILE) if are_few else MAX_M_TILES
        min_tiles = 1 if are_few or bits > 4 else 2
        return _few(tuple([tile for tile in _FEW[bits] if min_tiles <= tile[0] <= max_tiles]), bits)

    def full_space(self, c: Call) -> Columns[TilesConfig] | None:
        return None if self.unsupported_arch_reason(c) else _all(x_bits(c))

    def family(self, config: TilesConfig, c: Call) -> str:
        """Of e4m3 x by the columns of a workgroup too."""
        layout = layout_of_w(c)
        return f"{layout} {config.n_tiles}.{config.waves}" if x_bits(c) == 8 else layout

    def traits(self, config: TilesConfig, c: Call) -> tuple[float, ...]:
        waves, m_tiles, bits = config.waves, config.m_tiles, x_bits(c)
        clocks = 0
        if bits > 4:
            products = config.steps * m_tiles * config.n_tiles
            clocks = config.of_wave * _X_CLOCKS[bits] + _MATRIX_CLOCKS * products
        by_registers = min(REGISTERS // config.registers, MAX_WAVES) // ceil(waves, CHIP.simds)
        return Traits(
            m_tiles * TILE,
            config.n_tiles * TILE * waves,
            config.split,
            TILE_K * config.steps,
            max(1, min(by_registers, CHIP.lds_bytes // config.lds_bytes)),
            config.words * 4,
            log_waves=math.log2(waves),
            log_steps=math.log2(config.steps),
            busy_clocks=waves * clocks,
        )


# That a call chooses among, by the bits of x: m_tiles, n_tiles, steps; waves, split.
_Tiles = tuple[tuple[int, int, int], ...]
_FEW: Mapping[int, _Tiles] = {
    4: (
        *((1, 1, 2), (1, 1, 4), (2, 1, 2), (2, 1, 4), (4, 1, 2), (4, 1, 4)),
        *((4, 2, 2), (8, 1, 2), (8, 2, 2)),
    ),
    8: (
        *((1, 1, 2), (1, 1, 4), (1, 2, 4), (2, 1, 2), (2, 1, 4), (2, 2, 2)),
        *((4, 1, 2), (4, 1, 4), (4, 2, 2), (4, 2, 4), (8, 1, 2), (8, 2, 2)),
    ),
    16: (
        *((1, 1, 2), (1, 1, 4), (1, 1, 6), (1, 2, 2), (1, 2, 4), (1, 2, 6)),
        *((2, 1, 2), (2, 1, 4), (2, 1, 6), (2, 2, 4)),
        *((4, 1, 2), (4, 1, 4), (4, 2, 2), (4, 2, 4)),
    ),
}
_FEW_ROWS = 64
_WAVES, _SPLITS = (4, 8), (1, 2, 3, 4)


@functools.lru_cache(maxsize=16)
def _few(tiles: _Tiles, bits: int) -> Columns[TilesConfig]:
    values = itertools.product(tiles, _WAVES, _SPLITS)
    configs = [TilesConfig(*tile, waves, split) for tile, waves, split in values]
    return Columns([config for config in configs if config.fits(bits)])


@functools.lru_cache(maxsize=3)
def _all(bits: int) -> Columns[TilesConfig]:
    """Those that fit, for x of so many bits."""
    values = (1, 2, 4, 8), (1, 2, 4), (1, 2, 3, 4, 6), (4, 6, 8, 12), range(1, 9)
    configs = []
    for fields in itertools.product(*values):
        with contextlib.suppress(ValueError):  # does not fit
            config = TilesConfig(*fields)
            if config.fits(bits):
                configs.append(config)
    return Columns(configs)
