"""The MXFP4 kernel for few rows: w goes from memory to registers."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, Work, ceil, coarse, prebuilt
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS

from ...mxfp4_op import x_bits
from ..variant import TILE, WavesConfig
from .launch import MAX_SPLIT, TILE_K, Fp4Kernel, signature

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


# Of a wave: instructions that quantise a tile of x, with those that turn it; cycles of a matrix
# instruction; and from a workgroup's part to the sum of all, by timing mode.
_QUANTISE_CYCLES, _MATRIX_CYCLES, _REDUCE_US = 320, 16, 0.55


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
        along = config.split * config.waves * config.steps
        return {**super().kind(c, config, k), "ONE_TURN": int(ceil(k, TILE_K) <= along)}

    def key(self, c: Call) -> tuple[int, ...]:
        return c.M, coarse(c.N, TILE), coarse(c.K, TILE_K), x_bits(c)

    @staticmethod
    def space(m: int, _n: int, k: int, _bits: int) -> Columns[StreamConfig]:
        return _variants(ceil(m, TILE), min(8, ceil(k, TILE_K)))

    @staticmethod
    def work(table: Columns[StreamConfig], m: int, n: int, k: int, bits: int) -> Work:
        c, tiles = table, ceil(k, TILE_K)
        along = c.split * c.waves
        turns = ceil(tiles, along * c.steps)
        share = turns * c.waves * c.steps * TILE_K / 2 * 17 / 16  # bytes of a row of w, scales too
        x_bytes = m * share * bits / 4
        steps = turns * c.steps
        prepare = _QUANTISE_CYCLES if bits == 16 else 10 * bits
        reduce_us = _REDUCE_US + c.split * c.words * 4 / 48e3 / CHIP.ghz
        return Work(
            groups=ceil(n, TILE * c.n_tiles) * c.split,
            waves=c.waves,
            bytes=n * k / 2 * 17 / 16 + m * k * bits / 8,
            w_bytes=c.n_tiles * TILE * share,
            x_bytes=x_bytes,
            cycles=steps * c.m_tiles * (prepare + _MATRIX_CYCLES * c.n_tiles),
            waits=turns,
            registers=c.registers + (turns > 1) * c.steps * (5 * c.n_tiles + 16 * c.m_tiles),
            lds_bytes=c.waves * np.maximum(c.words * 4, c.staged_tiles * _tile_bytes(bits)) + 16,
            more_us=(c.split > 1) * reduce_us,
            idle=(along > 1) & ((along - 1) * c.steps >= tiles),
        )


@functools.lru_cache(maxsize=64)
def _variants(m_tiles: int, max_split: int) -> Columns[StreamConfig]:
    found = []
    along = (1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 16)
    for values in itertools.product((1, 2, 3, 4, 6), range(1, 5), along, range(1, max_split + 1)):
        with contextlib.suppress(ValueError):  # does not fit
            found.append(StreamConfig(m_tiles, *values))
    return Columns(found)
