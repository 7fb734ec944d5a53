"""The kernel of gemm_a8w8_blockscale for few rows, for both: w goes from memory to registers."""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rfops.dispatch.config import Allowed, up_to
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call
from rfops.jit.arch import ARCH_SPECS, MAX_WAVES, REGISTERS, WAVE
from rfops.quantization.fp8_blockscale import BLOCK

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
        return int(ceil(n, TILE * self.n_tiles))

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]:
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


# By timing mode: bytes that a CU has on their way; what putting lines into order costs; what going
# to another row of HBM costs, in lines.
_IN_FLIGHT, _ORDER_US, _ROW_LINES = 28 * 1024, 0.1, 0.4
_X_FIRST_K = 1024  # from here on x of more than a tile is quicker first, by 1 to 14 %


class Stream(Launched):
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

    def variants(self, c: Call) -> Columns[Any]:
        lds = ARCH_SPECS[c.arch].lds_bytes
        m_tiles = int(ceil(c.M, TILE))
        x_first = int(m_tiles > 1 and c.K >= _X_FIRST_K)
        return _variants(m_tiles, min(MAX_SPLIT, c.K // BLOCK), lds, x_first)

    def times(self, t: Columns[Any], c: Call) -> Any:
        """The first load's latency, the slowest of HBM, L2 and the fullest CU's loads in flight,
        the sums' way through LDS; with split the last workgroup's sum. No wave along K is idle."""
        chip, blocks = ARCH_SPECS[c.arch], c.K // BLOCK
        by_registers = np.minimum(REGISTERS // t.registers, MAX_WAVES) // ceil(t.waves, chip.simds)
        resident = np.maximum(1, np.minimum(by_registers, chip.lds_bytes // t.lds_bytes))
        along = t.split * t.waves
        idle = (along > 1) & ((along - 1) * t.steps >= blocks)
        tiles = ceil(c.N, TILE * t.n_tiles)
        groups = tiles * t.split
        busiest = ceil(groups, chip.cus)
        turns = ceil(blocks, along * t.steps)
        row_bytes = c.K / t.split
        w_bytes, x_bytes = t.n_tiles * TILE * row_bytes, min(c.M, MAX_M) * row_bytes
        in_flight = np.minimum(
            _IN_FLIGHT, resident * t.waves * t.steps * BLOCK * (t.n_tiles * TILE + c.M)
        )
        times = (
            (1 + _ROW_LINES / np.maximum(1, t.lines)) * c.N * c.K / (chip.hbm_tb_s * 1e6),
            groups * (w_bytes + x_bytes) / (chip.l2_tb_s * 1e6),
            busiest * (w_bytes * chip.latency_us + x_bytes * chip.l2_latency_us) / in_flight,
            busiest * (w_bytes + x_bytes) / np.where(t.lines, 64, 16) / (chip.ghz * 1e3),  # L1
        )
        rounds = ceil(busiest, resident)
        time = chip.latency_us * (1 + (turns * rounds - 1) / 2)
        time = time + functools.reduce(np.maximum, times) + _ORDER_US * (t.lines > 0)
        time = time + busiest * 2 * t.lds_bytes / 128 / (chip.ghz * 1e3)
        time = time + groups * t.waves * chip.dispatch_cycles / chip.xcds / (chip.ghz * 1e3)
        time = time + (t.split > 1) * (chip.latency_us + 4 * t.split * t.words / 48e3 / chip.ghz)
        return chip.launch_us + time + 1e6 * idle

    def ties(self, t: Columns[Any], c: Call) -> tuple[Any, ...]:
        return ceil(c.N, TILE * t.n_tiles) * t.split * t.waves, t.split


@functools.lru_cache(maxsize=64)
def _variants(m_tiles: int, max_split: int, lds: int, x_first: int) -> Columns[StreamConfig]:
    found = []
    splits = range(1, max_split + 1)
    values_of = (1, 2, 4), (1, 2, 3, 4), range(1, 17), splits, (0, 1, 2, 4)
    for values in itertools.product(*values_of):
        with contextlib.suppress(ValueError):  # does not fit
            config = StreamConfig(m_tiles, *values, x_first)
            if config.lds_bytes <= lds:
                found.append(config)
    return Columns(found)
