"""Terms of the time of a mixture's experts: two launches of persistent workgroups, gate and up,
then down, each over tiles of an expert's rows by 256 rows of its weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import Array, Layer, TimeModel, Variants
from rfops.jit.arch import ARCH_SPECS

from .layers import chosen_experts

COLUMNS = 256  # rows of weights of a tile, in the first launch of gate and of up half each
STEP_BYTES = 128  # of K of a step
OPERAND_ROWS = 16  # of a matrix instruction
FEW_ROWS = 10  # of an expert on average: few have more than 16
# Rows of an expert on average up to which a pass of `listed` over an expert's weights has so many
# tiles of 16 rows.
PASS_TILES, MANY_PASS_TILES = ((FEW_ROWS, 1), (20, 2)), 4
_EXACT_M = 16  # up to which M counts exactly
_TAIL = 4.0  # standard deviations of an expert's rows beyond which no expert is


class Traits(NamedTuple):
    """Of a variant."""

    rows: float  # of a tile at most
    max_tokens: float = math.inf  # that it takes
    is_listed: float = 0.0  # workgroups have few columns and all rows of an expert


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
        "listed_rows": "us a K-step, 256 columns and 16 rows of `listed`, beyond an expert's first",
        "listed_tiles": "us the same, rows of a pass that no token has too",
        "listed_steps": "us a K-step of a workgroup of down of `listed`",
    }
    terms = tuple(units)
    logs = ("one", "M", "D", "I", "experts", "rows", "up_tiles", "down_tiles")
    changing_logs = ("M", "experts", "rows", "up_tiles", "down_tiles")
    factors = (
        *("M", "experts"),
        *("up", "down"),  # rounds of tiles
        *("up_granules", "down_granules"),  # the same, each granule of a tile's rows for itself
        *("tiles", "granules"),  # of rows
        *("operands", "listed_tiles"),  # of 16 rows; of passes of `listed`, with the empty ones
    )

    def like(self, c: Call) -> Call:
        return coarse_tokens(c)

    def changing(self, c: Call) -> Any:
        return c.M

    def space_key(self, c: Call) -> Any:
        return ()

    def prepare(self, v: Variants, c: Call) -> None:
        heights = [*map(int, v.rows), self.granule, OPERAND_ROWS]
        v.derived = {"heights": heights, "cus": np.array(float(c.cu_num))}

    def layer_key(self, c: Call) -> Any:
        return c.D, c.I, c.E, c.K, c.R

    def layer(self, v: Variants, c: Call) -> Layer:
        chip, cus, size = ARCH_SPECS[c.arch], c.cu_num, self.element_bytes
        hbm, l2 = 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        all_rows = c.K + c.E - c.R  # of a token
        up_columns, down_columns = -(-c.I * 2 // COLUMNS), -(-c.D // COLUMNS)
        up_steps = math.ceil(c.D * size / STEP_BYTES)
        down_steps = math.ceil(c.I * size / STEP_BYTES)
        steps = up_columns * up_steps + down_columns * down_steps
        listed_steps = v.is_listed * (steps / cus)
        terms = {
            "launch": {"one": 1.0},
            "up": {"up": up_steps},
            "down": {"down": down_steps},
            "rows": {"up_granules": up_steps, "down_granules": down_steps},
            "load": {"tiles": steps / cus},
            "tile": {"up": 1.0, "down": 1.0},
            "memory": {"experts": 3 * c.D * c.I * size / hbm},
            "l2": {
                "tiles": steps * COLUMNS * STEP_BYTES / l2,
                "granules": steps * self.granule * STEP_BYTES / l2,
            },
            "tokens": {
                "M": (c.D * (4 + 2 * size) + 2 * all_rows * (c.I * size + 2 * c.D)) / hbm,
            },
            **{
                name: {factor: listed_steps, "experts": -listed_steps}
                for name, factor in (("listed_rows", "operands"), ("listed_tiles",) * 2)
            },
            "listed_steps": {"one": v.is_listed * down_steps},
        }
        logs = {"one": 1.0, "D": math.log2(c.D), "I": math.log2(c.I)}
        derived = {"up": np.array(float(up_columns)), "down": np.array(float(down_columns))}
        return Layer(terms, logs, derived=derived)

    def changes(
        self, v: Variants, c: Call, layer: Layer, factors: Sequence[Array], logs: Sequence[Array]
    ) -> Any:
        """Excluded are variants for fewer tokens."""
        num_shared, all_rows = c.E - c.R, c.M * (c.K + c.E - c.R)
        hit = chosen_experts(c.M, c.K, c.R) + num_shared
        m, experts, up, down, up_granules, down_granules, tiles, granules, *listed = factors
        log_m, log_experts, log_rows, log_up, log_down = logs
        m.fill(c.M)
        experts.fill(hit)
        heights, tiles_of_pass = v.derived["heights"], pass_tiles(c)
        *num_tiles, num_granules, num_operands, num_passes = all_row_tiles(
            c.M, c.K, c.R, num_shared, (*heights, OPERAND_ROWS * tiles_of_pass)
        )
        operands, listed_tiles = listed
        tiles[:] = num_tiles
        granules.fill(num_granules)
        operands.fill(num_operands)
        listed_tiles.fill(num_passes * tiles_of_pass)
        granules_per_tile = granules / tiles
        for columns, rounds, rounds_of_granules, log in (
            (layer.derived["up"], up, up_granules, log_up),
            (layer.derived["down"], down, down_granules, log_down),
        ):
            np.multiply(tiles, columns, out=log)
            np.divide(log, v.derived["cus"], out=log)
            np.ceil(log, out=rounds)
            np.multiply(rounds, granules_per_tile, out=rounds_of_granules)
            np.log2(log, out=log)
        log_m.fill(math.log2(c.M))
        log_experts.fill(math.log2(hit))
        log_rows.fill(math.log2(all_rows / hit))
        return v.max_tokens < c.M


class Bf16Model(ExpertsModel):
    """Of fused_moe, and of fused_moe_tables by the same constants: one kernel, whose weights are
    stacked or in tables."""

    element_bytes, granule = 2.0, 32

    def __init__(self, _name: str) -> None:
        super().__init__("fused_moe")


def pass_tiles(c: Call) -> int:
    """Tiles of 16 rows that a pass of `listed` over an expert's weights has."""
    rows = c.M * c.K / max(c.R, 1)  # none is routed where all experts are shared
    return next((tiles for most, tiles in PASS_TILES if rows <= most), MANY_PASS_TILES)


def coarse_tokens(c: Call) -> Call:
    """The call whose choice calls of about as many tokens share; up to 16 each has its own."""
    return c.with_sizes(M=coarse(c.M, _EXACT_M)) if c.M > _EXACT_M else c


@functools.lru_cache(maxsize=4096)
def row_tiles(tokens: int, k: int, routed: int, num_shared: int, height: int) -> float:
    """The expected number of tiles of so many rows of all experts, under uniform routing."""
    return all_row_tiles(tokens, k, routed, num_shared, (height,))[0]


def all_row_tiles(
    tokens: int, k: int, routed: int, num_shared: int, heights: Sequence[int]
) -> list[float]:
    """Those of several heights: the sum over j of the experts with more than j * height rows, whose
    number of rows is binomial, taken as normal where j > 0."""
    probability = min(k / routed, 1.0) if routed else 0.0
    mean, deviation = tokens * probability, math.sqrt(tokens * probability * (1 - probability))
    min_rows, max_rows = mean - _TAIL * deviation, min(mean + _TAIL * deviation, tokens - 1)
    scale, chosen = max(deviation * math.sqrt(2), 1e-9), chosen_experts(tokens, k, routed)
    erfc, half, middle, end = math.erfc, routed / 2, mean - 0.5, math.floor(max_rows) + 1
    tiles = []
    for height in heights:
        full_tiles = int(min_rows / height) if min_rows > height else 0
        num_tiles = full_tiles * routed if full_tiles else chosen
        begin = full_tiles * height or height
        if begin < end:
            tails = [erfc((rows - middle) / scale) for rows in range(begin, end, height)]
            num_tiles += half * sum(tails)
        tiles.append(num_tiles + num_shared * -(-tokens // height))
    return tiles
