"""Terms of the time of experts with MX weights: gate and up by tiles or by a ring; down by tiles
and a launch that sums rows, or both in one kernel."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import Array, TimeModel, Variants, Work
from rfops.jit.arch import ARCH_SPECS

from .layers import chosen_experts
from .terms import coarse_tokens, row_tiles

STEP_BYTES = 128  # of K per K-step
TILE = 16  # rows of an operand


class Traits(NamedTuple):
    """Of a variant."""

    # Gate and up: rows of a tile, columns of h, waves along K, workgroups of a CU at once.
    up_rows: float
    up_columns: float
    up_k_waves: float
    up_resident: float
    is_ring: float
    is_prefetched: float  # three K-steps of weights in flight
    # Down: the same; of RegisterDown also the tiles of rows that a workgroup multiplies at once.
    down_rows: float = 0
    down_columns: float = 0
    down_resident: float = 1
    tiles_at_once: float = 1
    is_tiled: float = 0  # the sum of rows has a launch of its own
    is_register: float = 0
    is_staged: float = 0
    is_deep: float = 0
    # Of down and sum in one kernel: bytes of LDS, more for each token; the rows of h from which on
    # offsets are not 32-bit.
    lds_bytes: float = 0
    lds_token_bytes: float = 0
    most_h_rows: float = math.inf


class MxExpertsModel(TimeModel):
    """Of experts whose weights, x and h have elements of `bits`."""

    bits: ClassVar[int]

    traits = Traits._fields
    units: ClassVar[dict[str, str]] = {
        "launch": "us: three launches, first loads",
        "memory": "1: of the chosen experts' weights once, at HBM's rate",
        "up_round": "us per K-step of a round of gate and up's workgroups",
        "up_tile": "us per round of gate and up's workgroups",
        "up_reduce": "us per round and wave that splits K, beyond the first",
        "up_load": "1: of what gate and up's tiles load, at L2's rate",
        "up_cu": "1: of what the fullest CU loads for gate and up, at 64 bytes per clock",
        "up_rows": "us per K-step, 16 rows and 64 columns of gate and up of a CU, on average",
        "ahead_round": "us per K-step of a round, with three K-steps in flight",
        "ring_round": "us per K-step of a round of the ring's workgroups",
        "ring_tile": "us per round of the ring's workgroups",
        "down_round": "us per K-step of a round of down's workgroups",
        "down_tile": "us per round of down's workgroups",
        "down_load": "1: of what down's tiles load, at L2's rate",
        "sum": "us: the launch that sums rows",
        "y": "1: of experts' results, written and read, at HBM's rate",
        "register_step": "us per K-step of an expert's tile in a wave of RegisterDown",
        "register_tile": "us per expert's tile in a wave of RegisterDown",
        "staged_step": "us per K-step of an expert's tile of StagedDown",
        "staged_tile": "us per expert's tile of StagedDown",
        "deep_step": "us per K-step of an expert's tile of DeepDown",
        "deep_tile": "us per expert's tile of DeepDown",
        "h": "1: of h, read by each of their workgroups, at L2's rate",
        "lds": "us per 1,000 rows whose sums a workgroup adds in LDS",
    }
    terms = tuple(units)
    typical: ClassVar[dict[str, float]] = dict.fromkeys(terms, 0.1) | {
        "launch": 10.0,
        "memory": 1.0,
        "up_load": 1.0,
        "down_load": 1.0,
        "sum": 3.0,
        "y": 1.0,
        "h": 1.0,
        "lds": 1.0,
    }
    logs = (
        *("one", "M", "D", "I", "experts", "rows"),
        *("up_tiles", "up_rows", "up_columns", "up_k_waves", "down_tiles", "down_columns"),
    )

    def like(self, c: Call) -> Call:
        return coarse_tokens(c)

    def static(self, c: Call) -> tuple[Any, ...]:
        return c.D, c.I, c.E, c.K, c.R, c.w_layout, c.scale_layout

    def key(self, c: Call) -> tuple[Any, ...]:
        return c.M, *self.static(c)

    def prepare(self, v: Variants, c: Call) -> None:
        """The heights of tiles, each once, and where a variant finds its own."""
        heights, places = np.unique(np.concatenate([v.up_rows, v.down_rows]), return_inverse=True)
        up, down = np.split(places, 2)
        v.derived = {"heights": [int(height) for height in heights], "up": up, "down": down}

    def work(self, v: Variants, c: Call) -> Work:
        """Excluded are variants whose sums do not fit in LDS, or whose h is beyond offsets."""
        chip, cus, bits = ARCH_SPECS[c.arch], c.cu_num, self.bits
        hbm, l2 = 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        shared, all_rows = c.E - c.R, c.M * (c.K + c.E - c.R)
        hit = chosen_experts(c.M, c.K, c.R) + shared
        tiles = np.array([row_tiles(c.M, c.K, c.R, shared, h) for h in v.derived["heights"]])
        operands = row_tiles(c.M, c.K, c.R, shared, TILE)  # tiles of 16 rows
        up_rows, down_rows = tiles[v.derived["up"]], tiles[v.derived["down"]]
        step = 8 * STEP_BYTES // bits
        up_steps, down_steps = ceil(c.D, step), ceil(c.I, step)
        up_tiles = up_rows * np.ceil(down_steps * step / v.up_columns)
        down_groups = np.ceil(c.D / v.down_columns)
        down_tiles = down_rows * down_groups
        up_bytes = (2 * v.up_columns + operands / up_rows * TILE) * up_steps * STEP_BYTES
        up_rounds = np.ceil(up_tiles / (cus * v.up_resident))
        up = up_rounds * up_steps / v.up_k_waves
        is_plain = 1 - v.is_ring - v.is_prefetched
        rounds = np.where(v.is_tiled > 0, down_tiles, down_groups) / (cus * v.down_resident)
        rounds = np.ceil(rounds)
        by_wave = rounds * np.ceil(down_rows / v.tiles_at_once)
        of_rows, is_summed = rounds * down_rows, 1 - v.is_tiled
        h_bytes = all_rows * down_steps * STEP_BYTES
        terms = (
            1.0,
            3 * hit * c.D * c.I * bits / 8 / hbm,
            up * is_plain,
            up_rounds * (1 - v.is_ring),
            up_rounds * (v.up_k_waves - 1),
            up_tiles * up_bytes / l2,
            np.ceil(up_tiles / cus) * up_bytes * (1 - v.is_ring) / (64e3 * chip.ghz),
            operands / cus * math.ceil(c.I / 32) * up_steps,
            up * v.is_prefetched,
            up * v.is_ring,
            up_rounds * v.is_ring,
            rounds * down_steps * v.is_tiled,
            rounds * v.is_tiled,
            v.is_tiled
            * (down_tiles * down_steps * STEP_BYTES / l2)
            * (v.down_columns + operands / down_rows * TILE),
            v.is_tiled,
            v.is_tiled * (4 * all_rows * c.D / hbm),
            by_wave * down_steps * v.is_register,
            by_wave * v.is_register,
            of_rows * down_steps * v.is_staged,
            of_rows * v.is_staged,
            of_rows * down_steps * v.is_deep,
            of_rows * v.is_deep,
            is_summed * down_groups * (h_bytes / l2),
            is_summed * rounds * (all_rows / 1000),
        )
        logs = (
            1.0,
            math.log2(c.M),
            math.log2(c.D),
            math.log2(c.I),
            math.log2(hit),
            math.log2(all_rows / hit),
            np.log2(up_tiles / (cus * v.up_resident)),
            np.log2(v.up_rows),
            np.log2(v.up_columns),
            np.log2(v.up_k_waves),
            np.log2(down_tiles / (cus * v.down_resident)),
            np.log2(v.down_columns),
        )
        return Work(terms, logs, self._does_not_fit(v, c, is_summed))

    def _does_not_fit(self, v: Variants, c: Call, is_summed: Array) -> Array:
        routed, shared = c.M * c.K, c.E - c.R
        table = np.floor(routed / v.down_rows) + min(routed, c.E)
        table += shared * np.ceil(c.M / v.down_rows) + 1
        lds = v.lds_bytes + 16 * (np.ceil(c.M * v.lds_token_bytes / 16) + table)
        h_rows = c.M * (c.K + shared) + (TILE - 1) * c.E
        too_large = (lds > ARCH_SPECS[c.arch].lds_bytes) | (h_rows >= v.most_h_rows)
        found: Array = (is_summed > 0) & too_large
        return found
