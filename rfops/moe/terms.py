"""Terms of the time of a mixture's experts: two launches of persistent workgroups, gate and up,
then down, each over tiles of an expert's rows by 256 rows of its weights."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import TimeModel, Variants, Work
from rfops.jit.arch import ARCH_SPECS

from .layers import chosen_experts

COLUMNS = 256  # rows of weights of a tile, in the first launch of gate and of up half each
STEP_BYTES = 128  # of K of a step
_EXACT_M = 16  # up to which M counts exactly
_TAIL = 4.0  # standard deviations of an expert's rows beyond which no expert is


class Traits(NamedTuple):
    """Of a variant."""

    rows: float  # of a tile at most


class ExpertsModel(TimeModel):
    """Of experts whose weights and h have elements of `element_bytes`; rows of a tile are
    multiplied `granule` at a time."""

    element_bytes: ClassVar[float]
    granule: ClassVar[int]

    traits = Traits._fields
    units: ClassVar[dict[str, str]] = {
        "launch": "us: the launches, first loads",
        "up": "us a K-step of the fullest CU, of gate and up",
        "down": "us a K-step of the fullest CU, of down",
        "rows": "us a K-step and granule of rows of the fullest CU",
        "load": "us a K-step and tile per CU, on average",
        "tile": "us for each tile of the fullest CU",
        "memory": "1: of the chosen experts' weights once, at HBM's rate",
        "l2": "1: of what all tiles load, at L2's rate",
        "tokens": "1: of x, h and experts' results, written and read, at HBM's rate",
    }
    terms = tuple(units)
    logs = ("one", "M", "D", "I", "experts", "rows", "up_tiles", "down_tiles")

    def like(self, c: Call) -> Call:
        return coarse_tokens(c)

    def key(self, c: Call) -> tuple[Any, ...]:
        return c.M, c.D, c.I, c.E, c.K, c.R

    def work(self, v: Variants, c: Call) -> Work:
        chip, cus, size = ARCH_SPECS[c.arch], c.cu_num, self.element_bytes
        hbm, l2 = 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        shared, all_rows = c.E - c.R, c.M * (c.K + c.E - c.R)
        hit = chosen_experts(c.M, c.K, c.R) + shared
        tiles = np.array([row_tiles(c.M, c.K, c.R, shared, int(rows)) for rows in v.rows])
        granules = row_tiles(c.M, c.K, c.R, shared, self.granule) / tiles
        up_tiles, down_tiles = tiles * -(-c.I * 2 // COLUMNS), tiles * -(-c.D // COLUMNS)
        up_steps, down_steps = (
            math.ceil(c.D * size / STEP_BYTES),
            math.ceil(c.I * size / STEP_BYTES),
        )
        up_rounds, down_rounds = np.ceil(up_tiles / cus), np.ceil(down_tiles / cus)
        up, down = up_rounds * up_steps, down_rounds * down_steps
        steps = up_tiles * up_steps + down_tiles * down_steps
        terms = (
            1.0,
            up,
            down,
            (up + down) * granules,
            steps / cus,
            up_rounds + down_rounds,
            3 * hit * c.D * c.I * size / hbm,
            steps * (COLUMNS + granules * self.granule) * STEP_BYTES / l2,
            (c.M * c.D * (4 + 2 * size) + 2 * all_rows * (c.I * size + 2 * c.D)) / hbm,
        )
        logs = (
            1.0,
            math.log2(c.M),
            math.log2(c.D),
            math.log2(c.I),
            math.log2(hit),
            math.log2(all_rows / hit),
            np.log2(up_tiles / cus),
            np.log2(down_tiles / cus),
        )
        return Work(terms, logs)


class Bf16Model(ExpertsModel):
    """Of fused_moe, and of fused_moe_tables by the same constants: one kernel, whose weights are
    stacked or in tables."""

    element_bytes, granule = 2.0, 32

    def __init__(self, _name: str) -> None:
        super().__init__("fused_moe")


def coarse_tokens(c: Call) -> Call:
    """The call whose choice calls of about as many tokens share; up to 16 each has its own."""
    return c.with_sizes(M=coarse(c.M, _EXACT_M)) if c.M > _EXACT_M else c


@functools.lru_cache(maxsize=4096)
def row_tiles(tokens: int, k: int, routed: int, shared: int, height: int) -> float:
    """The expected number of tiles of so many rows of all experts, under uniform routing: the sum
    over j of the experts with more than j * height rows, whose number of rows is binomial, taken as
    normal where j > 0."""
    share = min(k / routed, 1.0) if routed else 0.0
    mean, deviation = tokens * share, math.sqrt(tokens * share * (1 - share))
    whole = max(int((mean - _TAIL * deviation) / height), 0)
    found = whole * routed if whole else chosen_experts(tokens, k, routed)
    j = max(whole, 1)
    while j * height < tokens and j * height <= mean + _TAIL * deviation:
        more = (j * height + 0.5 - mean) / max(deviation * math.sqrt(2), 1e-9)
        found += routed * math.erfc(more) / 2
        j += 1
    return found + shared * -(-tokens // height)
