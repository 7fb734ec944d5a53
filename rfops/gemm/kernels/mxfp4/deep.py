"""The MXFP4 kernel for rows so many that a workgroup shares them, and so few that loads are the
limit: K-steps are on their way long before they are used."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil, coarse
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import ARCH_SPECS, REGISTERS, WAVE

from ..variant import RowsConfig
from .launch import MAX_SPLIT, has_16_bits, signature
from .prepare import STEP_K, Prepared, PreparedCost, prepare_us

CHIP = ARCH_SPECS["gfx950"]
PAIR = 32  # rows whose scales are one dword
ROW_BYTES = STEP_K // 2
MAX_ROWS = 256  # of an operand in a workgroup
GROUP_M = 8


@dataclass(frozen=True)
class DeepConfig(RowsConfig):
    """A variant of csrc/gemm/mxfp4_deep.hip; its head comment says what each means."""

    waves: int = 4  # of a workgroup
    ahead: int = 2  # K-steps on their way
    split: int = 1  # workgroups along K

    ALLOWED: ClassVar[Allowed] = {"split": up_to(MAX_SPLIT)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.waves, self.ahead) not in ((4, 2), (4, 4), (8, 2)):
            raise ValueError(f"{self}: waves is 4 or 8, ahead 2, or 4 with 4 waves")
        for name in ("m", "n"):
            rows = getattr(self, name)
            if not 0 < rows <= MAX_ROWS or rows % (8 * self.waves):
                raise ValueError(
                    f"{self}: {name} is a multiple of {8 * self.waves} up to {MAX_ROWS}"
                )
        if not self.shape_of_waves:
            raise ValueError(f"{self}: too small for {self.waves} waves of 32 x 32 or more")
        if self.registers > REGISTERS // (self.waves // 4):
            raise ValueError(f"{self}: about {self.registers} VGPRs a wave would spill")

    @property
    def shape_of_waves(self) -> tuple[int, int] | None:
        """Waves along M and N that read least from LDS; None where none fits."""
        pairs = [(a, self.waves // a) for a in (1, 2, 4, 8) if a <= self.waves]
        fit = [(a, b) for a, b in pairs if self.m % (PAIR * a) == 0 and self.n % (PAIR * b) == 0]
        return min(fit, key=lambda p: self.m // p[0] + self.n // p[1], default=None)

    @property
    def load_x(self) -> int:
        """Waves that load x; the others load w."""
        return self.waves // 2

    @property
    def registers(self) -> int:
        """VGPRs, about: sums, a step's operands and scales, pieces on their way, addresses."""
        along_m, along_n = self.shape_of_waves or (1, 1)
        m, n = self.m // along_m, self.n // along_n
        pieces = self.ahead * (self.m + self.n) * ROW_BYTES // (self.threads * 4)
        return m * n // WAVE + (m + n) // 2 + self.ahead * (m + n) // PAIR + pieces + 30

    @property
    def threads(self) -> int:
        return self.waves * WAVE


# By timing mode: clocks of a K-step beside its loads, bytes a clock of a workgroup alone and of two
# of a CU, clocks of the matrix cores for an element of a step, of a tile's beginning and end; what
# all parts are written with, and bytes a clock with which those of a tile are read.
_STEP, _ALONE, _TOGETHER, _MATRIX, _ENDS, _PARTS_TB_S, _PARTS = 260, 32, 33, 1 / 28, 5000, 4.0, 50


# What `rfops build` makes: bf16, weights as they are loaded most quickly.
_BUILT: dict[str, int | str] = {
    "M": 128,
    "N": 64,
    "WAVES_M": 2,
    "WAVES_N": 2,
    "LOAD_X": 2,
    "AHEAD": 2,
    "SPLIT": 1,
    "GROUP_M": GROUP_M,
    "OUT": "bf16",
    "BIAS": "void",
    "SHUFFLED": 1,
    "X_SHUFFLED": 0,
    "TAIL": 0,
}


class Deep(Prepared):
    name = "deep"
    module = "mxfp4_deep"
    more_modules = ("mxfp4_prepare",)
    Config = DeepConfig
    max_rows = MAX_ROWS
    compiled = compile_ops("mxfp4_deep", kernel="mxfp4_deep", variants=lambda _arch: [_BUILT])(
        signature
    )

    def key(self, c: Call) -> tuple[int, ...]:
        sizes = coarse(c.M, PAIR), coarse(c.N, PAIR), coarse(c.K, STEP_K)
        return (*sizes, int(has_16_bits(c)), c.dtype.itemsize)

    @staticmethod
    def space(_m: int, _n: int, k: int, _is_16: int, _size: int) -> Columns[DeepConfig]:
        return _variants(min(8, ceil(k, STEP_K)))

    @staticmethod
    def work(  # type: ignore[override]
        t: Columns[DeepConfig], m: int, n: int, k: int, is_16: int, size: int
    ) -> PreparedCost:
        """Rounds of workgroups by their K-steps, each bound by its loads, alone or with those of
        another workgroup; with split the way of all parts through memory; before it x."""
        groups = ceil(m, t.m) * ceil(n, t.n) * t.split
        busiest = ceil(groups, CHIP.cus)
        together = np.minimum(busiest, np.where(t.waves * t.registers <= 2 * REGISTERS, 2, 1))
        loaded = (t.m + t.n) * (ROW_BYTES + STEP_K // PAIR)
        step = np.maximum(_STEP + loaded / _ALONE, together * loaded / _TOGETHER)
        step = np.maximum(step, together * t.m * t.n * _MATRIX)
        clocks = ceil(busiest, together) * (ceil(ceil(k, STEP_K), t.split) * step + _ENDS)
        us = clocks / (CHIP.ghz * 1e3)
        us = np.maximum(us, (n * k / 2 + m * k / 2 + m * n * size) / (CHIP.hbm_tb_s * 1e6))
        parts = (t.split > 1) * t.m * t.n * 4
        us = us + parts * groups / (_PARTS_TB_S * 1e6) + parts * t.split / _PARTS / (CHIP.ghz * 1e3)
        if is_16:
            us = us + prepare_us(m, k)
        waves = np.where(t.m * t.n > 128 * 64, -t.waves, t.waves)  # few where there is little to do
        rows = groups * (t.m + t.n)
        return PreparedCost(us, (rows, t.split, t.ahead, waves))

    def defines(self, c: Call, config: DeepConfig) -> Mapping[str, Any]:
        along_m, along_n = config.shape_of_waves or (1, config.waves)
        own = {name: v for name, v in super().defines(c, config).items() if name != "WAVES"}
        waves = {"WAVES_M": along_m, "WAVES_N": along_n, "LOAD_X": config.load_x}
        return {**own, **waves, "GROUP_M": GROUP_M}


@lru_cache(maxsize=16)
def _variants(max_split: int) -> Columns[DeepConfig]:
    found = []
    sizes = (32, 64, 128, 256)
    rest = sizes[:3], (4, 8), (2, 4)
    values = itertools.product(sizes, *rest, range(1, max_split + 1))
    # Of others no split: its times are predicted too low.
    for each in itertools.chain(values, itertools.product((96, 192), *rest, (1,))):
        with contextlib.suppress(ValueError):  # does not fit
            found.append(DeepConfig(*each))
    return Columns(found)
