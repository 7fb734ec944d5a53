"""The MXFP4 kernel for rows so many that a workgroup shares them, and so few that loads are the
limit: K-steps are on their way long before they are used."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit import compile_ops
from rfops.jit.arch import REGISTERS, WAVE

from ...mxfp4_op import STEP_K
from ...terms import Traits
from ..variant import RowsConfig
from .launch import MAX_SPLIT, X_BYTES, layout_of_w, signature
from .prepare import Prepared, share_prepared

PAIR = 32  # rows whose scales are one dword
ROW_BYTES = STEP_K // 2
MAX_ROWS = 256  # of an operand in a workgroup
GROUP_M = 8
STARTS = 4, 8, 12, 16


@dataclass(frozen=True)
class DeepConfig(RowsConfig):
    """A variant of csrc/gemm/mxfp4_deep.hip; its head comment says what each means."""

    waves: int = 4  # of a workgroup
    ahead: int = 2  # K-steps on their way
    split: int = 1  # workgroups along K
    starts: int = 16  # K-steps that tiles of a split, or of few K-steps, start at

    ALLOWED: ClassVar[Allowed] = {"split": up_to(MAX_SPLIT), "starts": STARTS}

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
        num_regs = self.ahead * (self.m + self.n) * ROW_BYTES // (self.threads * 4)
        return m * n // WAVE + (m + n) // 2 + self.ahead * (m + n) // PAIR + num_regs + 30

    @property
    def threads(self) -> int:
        return self.waves * WAVE


# What `rfops build` makes: bf16, weights as they are loaded most quickly.
_BUILT: dict[str, int | str] = {
    "M": 128,
    "N": 64,
    "WAVES_M": 2,
    "WAVES_N": 2,
    "LOAD_X": 2,
    "AHEAD": 2,
    "SPLIT": 1,
    "STARTS": 16,
    "GROUP_M": GROUP_M,
    "OUT": "bf16",
    "BIAS": "void",
    "SHUFFLED": 1,
    "X_SHUFFLED": 0,
    "RAW_SCALES": 0,
    "X_RAW_SCALES": 0,
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

    def space(self, c: Call) -> Columns[DeepConfig] | None:
        return None if self.unsupported_arch_reason(c) else _few()

    def full_space(self, c: Call) -> Columns[DeepConfig] | None:
        if self.unsupported_arch_reason(c):
            return None
        return _all(min(MAX_SPLIT, ceil(c.K, STEP_K)))

    def family(self, config: DeepConfig, c: Call) -> str:
        return layout_of_w(c)

    def traits(self, config: DeepConfig, c: Call) -> tuple[float, ...]:
        return Traits(
            config.m,
            config.n,
            config.split,
            STEP_K,
            2 if config.waves * config.registers <= 2 * REGISTERS else 1,
            log_waves=math.log2(config.waves),
            log_steps=math.log2(config.ahead),
            lds_bytes=config.words * 4,
            is_prepared=share_prepared(c, reads_raw=True),
            max_x_bytes=X_BYTES,
        )

    def defines(self, c: Call, config: DeepConfig) -> Mapping[str, Any]:
        along_m, along_n = config.shape_of_waves or (1, config.waves)
        defines = {name: v for name, v in super().defines(c, config).items() if name != "WAVES"}
        waves = {"WAVES_M": along_m, "WAVES_N": along_n, "LOAD_X": config.load_x}
        return {**defines, **waves, "GROUP_M": GROUP_M}


# m, n, waves; splits: that a call chooses among.
_TILES = (
    (32, 128, 4),
    (64, 64, 4),
    (64, 128, 4),
    (96, 128, 4),
    (128, 64, 4),
    (128, 128, 4),
    (128, 128, 8),
    (192, 128, 8),
    (256, 128, 8),
)
_SPLITS = 1, 2, 3, 4, 6


@lru_cache(maxsize=1)
def _few() -> Columns[DeepConfig]:
    return Columns([DeepConfig(*tile, 2, split) for tile in _TILES for split in _SPLITS])


@lru_cache(maxsize=MAX_SPLIT)
def _all(max_split: int) -> Columns[DeepConfig]:
    """Those that fit."""
    configs = []
    sizes = (32, 64, 96, 128, 192, 256)
    values = itertools.product(sizes, sizes[:4], (4, 8), (2, 4), range(1, max_split + 1))
    for fields in values:
        with contextlib.suppress(ValueError):  # does not fit
            configs.append(DeepConfig(*fields))
    return Columns(configs)
