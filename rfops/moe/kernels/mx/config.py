"""The variants of fused_moe's MX kernels: alternatives for gate and up, and for down."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, ClassVar

from rfops.dispatch.guards import check_config_ints

TALLEST_M_TILES = 9  # of MXFP4 with D in 1024s: what fits in LDS
PREFETCHED = 3  # K-steps of weights in flight, with `prefetch`


def _must_be(config: Any, name: str, allowed: Container[int], condition: str) -> None:
    value = getattr(config, name)
    if value not in allowed:
        raise ValueError(f"{name} must be {condition}, got {value}")


@dataclass(frozen=True)
class ExpertTiles:
    """A product by csrc/moe/moe_mx_experts.hip: gate and up, or down."""

    m_tiles: int  # tiles of 16 rows of an expert, per workgroup
    n_waves: int  # waves along the columns
    k_waves: int  # waves along K
    per_cu: int  # workgroups per CU, at most
    prefetch: int = 1  # K-steps of weights in flight

    def __post_init__(self) -> None:
        waves = self.n_waves * self.k_waves
        _must_be(self, "m_tiles", (1, 2, 4, 8, TALLEST_M_TILES), "1, 2, 4, 8 or 9")
        _must_be(self, "n_waves", (1, 2, 3, 4, 8), "1, 2, 3, 4 or 8")
        _must_be(self, "k_waves", (1, 2, 4), "1, 2 or 4")
        _must_be(self, "per_cu", range(1, 9), "1 to 8")
        _must_be(self, "prefetch", (1, PREFETCHED), f"1 or {PREFETCHED}")
        if waves > (max_waves := 4 if self.m_tiles >= 8 or self.prefetch > 1 else 8):
            raise ValueError(f"n_waves * k_waves must be at most {max_waves} here, got {waves}")
        if self.k_waves > 1 and self.m_tiles > 2:
            raise ValueError(f"m_tiles must be 1 or 2 with k_waves > 1, got {self.m_tiles}")
        if self.prefetch == 1 and (self.m_tiles == TALLEST_M_TILES or self.n_waves == 3):
            raise ValueError(f"prefetch must be {PREFETCHED} with m_tiles=9 or n_waves=3, got 1")


@dataclass(frozen=True)
class RingGateUp:
    """Gate and up by csrc/moe/moe_mx_gate_up.hip, for experts with many rows: consumer waves share
    weights in a ring in LDS, which two producer waves fill."""

    n_waves: int = 4  # waves along the columns

    # By n_waves: tiles of 16 rows of an expert, per workgroup, what fits in LDS.
    M_TILES: ClassVar[dict[int, int]] = {3: 10, 4: 9}

    def __post_init__(self) -> None:
        _must_be(self, "n_waves", self.M_TILES, "3 or 4")

    @property
    def m_tiles(self) -> int:
        return self.M_TILES[self.n_waves]

    @property
    def waves(self) -> int:
        """Consumers, two for the rows of each of n_waves, and two producers."""
        return 2 * self.n_waves + 2


@dataclass(frozen=True)
class RegisterDown:
    """Down and the sum of each token's rows by csrc/moe/moe_mx_down.hip: an expert's weights in
    registers, all rows of the workgroup's columns in LDS."""

    columns: int  # per workgroup
    waves: int
    row_tiles: int  # tiles of 16 rows that a wave multiplies at a time

    # By the number of waves: tiles of weights and of rows times K-steps that fit in registers.
    MAX_TILES: ClassVar[dict[int, int]] = {4: 24, 8: 11, 16: 4}

    def __post_init__(self) -> None:
        _must_be(self, "columns", (16, 32), "16 or 32")
        _must_be(self, "waves", self.MAX_TILES, "4, 8 or 16")
        _must_be(self, "row_tiles", (1, 2, 4), "1, 2 or 4")


@dataclass(frozen=True)
class StagedDown:
    """Down and the sum of each token's rows by csrc/moe/moe_mx_down_sums.hip: weights pass through
    LDS, the sums of all tokens stay there."""

    columns: int  # per workgroup
    waves: int  # consumers; one producer wave more loads weights
    stages: int  # tiles of weights in LDS

    row_tiles: ClassVar[int] = 1  # per wave
    WAVES: ClassVar[range] = range(2, 16)
    STAGES: ClassVar[range] = range(3, 6)

    def __post_init__(self) -> None:
        _must_be(self, "columns", (16, 32), "16 or 32")
        _must_be(self, "waves", self.WAVES, f"{self.WAVES[0]} to {self.WAVES[-1]}")
        _must_be(self, "stages", self.STAGES, f"{self.STAGES[0]} to {self.STAGES[-1]}")


@dataclass(frozen=True)
class DeepDown(StagedDown):
    """StagedDown by csrc/moe/moe_mx_down_deep.hip, for h that does not fit in L2: each wave holds
    the rows of two tiles in registers, all of K."""

    row_tiles: ClassVar[int] = 2
    WAVES: ClassVar[range] = range(2, 8)


GateUp = ExpertTiles | RingGateUp
Down = ExpertTiles | RegisterDown | StagedDown


@dataclass(frozen=True)
class MxMoeConfig:
    """Which kernels run, in numbers, as a row of the tuned table has them; `gate_up` and `down` are
    the alternatives that they stand for."""

    m_tiles: int  # of ExpertTiles, gate and up, and down where `columns` is 0
    up_n: int  # ExpertTiles.n_waves and k_waves of gate and up
    up_k: int
    down_n: int  # the same of down; its waves where `columns` is not 0
    down_k: int
    per_cu: int = 2  # of ExpertTiles
    columns: int = 0  # of RegisterDown, StagedDown or DeepDown; 0: down by ExpertTiles
    rows: int = 1  # row_tiles of RegisterDown; with `slots` 1 of StagedDown, 2 of DeepDown
    ahead: int = 1  # prefetch of ExpertTiles, of gate and up
    slots: int = 0  # stages of StagedDown or DeepDown; 0: neither
    ring: int = 0  # 1: RingGateUp

    def __post_init__(self) -> None:
        check_config_ints(self)
        try:
            _must_be(self, "rows", (1, 2, 4), "1, 2 or 4")
            alternatives = self.gate_up, self.down
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from None
        if self.up_n == 3 and isinstance(alternatives[1], ExpertTiles):
            raise ValueError(f"{self}: columns must be 16 or 32 with up_n=3, got 0")

    @property
    def expert_tiles(self) -> ExpertTiles:
        """Gate and up, if they are by ExpertTiles. Raises ValueError."""
        return ExpertTiles(self.m_tiles, self.up_n, self.up_k, self.per_cu, self.ahead)

    @property
    def gate_up(self) -> GateUp:
        """How gate and up are computed. Raises ValueError for fields that exclude each other."""
        _must_be(self, "ring", (0, 1), "0 or 1")
        if not self.ring:
            return self.expert_tiles
        given = self.up_n, self.up_k, self.ahead
        if self.up_n not in RingGateUp.M_TILES or given[1:] != (1, 1):
            allowed = "3 or 4, 1 and 1 with ring=1"
            raise ValueError(f"up_n, up_k and ahead must be {allowed}, got {given}")
        return RingGateUp(self.up_n)

    @property
    def down(self) -> Down:
        """How down is computed. Raises ValueError for fields that exclude each other."""
        if not self.columns:
            _must_be(self, "slots", (0,), "0 with columns=0")
            _must_be(self, "rows", (1, 2, 4), "1, 2 or 4")
            return ExpertTiles(self.m_tiles, self.down_n, self.down_k, self.per_cu)
        _must_be(self, "down_k", (1,), "1 with columns")
        if not self.slots:
            return RegisterDown(self.columns, self.down_n, self.rows)
        _must_be(self, "rows", (1, 2), "1 or 2 with slots")
        kind = StagedDown if self.rows == 1 else DeepDown
        return kind(self.columns, self.down_n, self.slots)
