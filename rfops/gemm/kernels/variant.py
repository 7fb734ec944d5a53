"""What a launch of a HIP GEMM asks of its config, and configs of two shapes that have it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from rfops.dispatch.config import CheckedConfig
from rfops.dispatch.heuristic import ceil
from rfops.jit.arch import REGISTERS, WAVE

TILE = 16  # rows of an operand of a matrix instruction
MAX_LOADS = 63  # that vmcnt counts


class Variant(Protocol):
    """A variant of a kernel with split-K."""

    @property
    def split(self) -> int:
        """Workgroups along K."""
        ...

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""

    @property
    def words(self) -> int:
        """fp32 sums of a workgroup."""
        ...

    def tiles(self, m: int, n: int) -> int:
        """Output tiles of a result."""
        ...


@dataclass(frozen=True)
class RowsConfig(CheckedConfig):
    """A workgroup computes `m` rows of x by `n` rows of w."""

    m: int
    n: int

    def check_tile(self, tiles: Collection[tuple[int, int]]) -> None:
        """Raises ValueError unless m x n is one of these."""
        if (self.m, self.n) not in tiles:
            names = ", ".join(f"{m} x {n}" for m, n in tiles)
            raise ValueError(f"{self}: m x n must be one of {names}, got {self.m} x {self.n}")

    @property
    def words(self) -> int:
        """fp32 sums of a workgroup."""
        return self.m * self.n

    def tiles(self, m: int, n: int) -> int:
        """Return the number of output tiles."""
        return ceil(m, self.m) * ceil(n, self.n)


class WavesConfig(CheckedConfig):
    """Operands are tiles of 16 rows, `m_tiles` of x and `n_tiles` of w, and loads of w go from
    memory to the registers of `waves` waves."""

    m_tiles: int
    n_tiles: int
    waves: int

    def check_loads(self, loads: int) -> None:
        """Raises ValueError if vmcnt does not count so many loads in flight."""
        if loads > MAX_LOADS:
            raise ValueError(
                f"{self}: more than {MAX_LOADS} loads in flight; take fewer steps or tiles"
            )

    def check_registers(self, registers: int) -> None:
        """Raises ValueError if a wave would spill."""
        waves = self.threads // WAVE
        if registers > min(REGISTERS // 2, REGISTERS // ceil(waves, 4)):
            raise ValueError(
                f"{self}: about {registers} VGPRs in each of {waves} waves would spill; "
                "take fewer waves, steps or tiles"
            )

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.waves * WAVE

    @property
    def words(self) -> int:
        """fp32 sums of a workgroup."""
        return self.m_tiles * self.n_tiles * TILE * TILE
