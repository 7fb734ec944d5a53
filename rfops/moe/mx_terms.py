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
_MANY_TOKENS = 1 << 40  # more than any call has


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
        """What M changes nothing of. The heights of tiles, each once, and where a variant finds its
        own."""
        chip, cus, step = ARCH_SPECS[c.arch], c.cu_num, 8 * STEP_BYTES // self.bits
        l2, l1 = 1e6 * chip.l2_tb_s, 64e3 * chip.ghz
        up_steps, down_steps = ceil(c.D, step), ceil(c.I, step)
        heights, places = np.unique(np.concatenate([v.up_rows, v.down_rows]), return_inverse=True)
        up, down = np.split(places, 2)
        is_summed, by_tile = 1 - v.is_tiled, 1 - v.is_ring
        is_plain = by_tile - v.is_prefetched
        down_groups = np.ceil(c.D / v.down_columns)
        down_slots = down_groups / (cus * v.down_resident)
        row_bytes, tile_bytes = up_steps * STEP_BYTES, TILE * down_steps * STEP_BYTES
        v.derived = {
            "heights": [int(height) for height in heights],
            "up": up,
            "down": down,
            "up_columns": np.ceil(down_steps * step / v.up_columns),
            "up_slots": cus * v.up_resident,
            # Bytes of the weights of a tile of gate and up.
            "up_bytes": 2 * v.up_columns * row_bytes,
            "by_tile": by_tile,
            "more_k_waves": v.up_k_waves - 1,
            "up_steps": up_steps,
            "plain": up_steps * is_plain / v.up_k_waves,
            "ahead": up_steps * v.is_prefetched / v.up_k_waves,
            "ring": up_steps * v.is_ring / v.up_k_waves,
            "up_l1": by_tile / l1,
            "up_product": math.ceil(c.I / 32) * up_steps / cus,
            "row_bytes": row_bytes,
            "down_groups": down_groups,
            "down_slots": cus * v.down_resident,
            # Workgroups of down to a slot: for each tile of rows, or for all.
            "tiled_groups": v.is_tiled * down_slots,
            "summed_groups": is_summed * down_slots,
            "down_tiled": v.is_tiled * down_steps,
            "down_weights": v.is_tiled * down_groups * v.down_columns * (tile_bytes / TILE / l2),
            "down_rows": v.is_tiled * down_groups * (tile_bytes / l2),
            "register_steps": down_steps * v.is_register,
            "staged_steps": down_steps * v.is_staged,
            "deep_steps": down_steps * v.is_deep,
            "h": is_summed * down_groups * (down_steps * STEP_BYTES / l2),
            "is_summed": is_summed,
            "log_up_rows": np.log2(v.up_rows),
            "log_up_columns": np.log2(v.up_columns),
            "log_up_k_waves": np.log2(v.up_k_waves),
            "log_down_columns": np.log2(v.down_columns),
            "log_d": math.log2(c.D),
            "log_i": math.log2(c.I),
            "most_tokens": self._most_tokens(v, c, is_summed),
        }

    def work(self, v: Variants, c: Call) -> Work:
        """Excluded are variants whose sums do not fit in LDS, or whose h is beyond offsets."""
        derived, hbm = v.derived, 1e6 * ARCH_SPECS[c.arch].hbm_tb_s
        shared, all_rows = c.E - c.R, c.M * (c.K + c.E - c.R)
        hit = chosen_experts(c.M, c.K, c.R) + shared
        tiles = np.array([row_tiles(c.M, c.K, c.R, shared, h) for h in derived["heights"]])
        operands = row_tiles(c.M, c.K, c.R, shared, TILE)  # tiles of 16 rows
        up_rows, down_rows = tiles[derived["up"]], tiles[derived["down"]]
        up_tiles = up_rows * derived["up_columns"]
        up_share = up_tiles / derived["up_slots"]
        up_rounds = np.ceil(up_share)
        up_loaded = derived["up_bytes"] + operands * TILE * derived["row_bytes"] / up_rows
        rounds = np.ceil(down_rows * derived["tiled_groups"] + derived["summed_groups"])
        by_wave = rounds * np.ceil(down_rows / v.tiles_at_once) * v.is_register
        of_rows = rounds * down_rows
        up_cu = np.ceil(up_tiles / c.cu_num)
        terms = (
            1.0,
            3 * hit * c.D * c.I * self.bits / 8 / hbm,
            up_rounds * derived["plain"],
            up_rounds * derived["by_tile"],
            up_rounds * derived["more_k_waves"],
            up_tiles * up_loaded / (1e6 * ARCH_SPECS[c.arch].l2_tb_s),
            up_cu * up_loaded * derived["up_l1"],
            operands * derived["up_product"],
            up_rounds * derived["ahead"],
            up_rounds * derived["ring"],
            up_rounds * v.is_ring,
            rounds * derived["down_tiled"],
            rounds * v.is_tiled,
            down_rows * derived["down_weights"] + operands * derived["down_rows"],
            v.is_tiled,
            v.is_tiled * (4 * all_rows * c.D / hbm),
            by_wave * derived["register_steps"],
            by_wave,
            of_rows * derived["staged_steps"],
            of_rows * v.is_staged,
            of_rows * derived["deep_steps"],
            of_rows * v.is_deep,
            derived["h"] * all_rows,
            derived["is_summed"] * rounds * (all_rows / 1000),
        )
        logs = (
            1.0,
            math.log2(c.M),
            derived["log_d"],
            derived["log_i"],
            math.log2(hit),
            math.log2(all_rows / hit),
            np.log2(up_share),
            derived["log_up_rows"],
            derived["log_up_columns"],
            derived["log_up_k_waves"],
            np.log2(down_rows * derived["down_groups"] / derived["down_slots"]),
            derived["log_down_columns"],
        )
        return Work(terms, logs, c.M > derived["most_tokens"])

    def _most_tokens(self, v: Variants, c: Call, is_summed: Array) -> Array:
        """Tokens up to which a variant's sums fit in LDS, and its h in offsets: by bisection, as
        both grow with tokens."""
        fit, too_many = np.zeros(len(v)), np.full(len(v), float(_MANY_TOKENS))
        while (too_many - fit).max() > 1:
            tokens = np.floor((fit + too_many) / 2)
            does_fit = (is_summed == 0) | self._fits(v, c, tokens)
            fit = np.where(does_fit, tokens, fit)
            too_many = np.where(does_fit, too_many, tokens)
        return np.where(too_many < _MANY_TOKENS, fit, math.inf)

    def _fits(self, v: Variants, c: Call, tokens: Array) -> Array:
        routed, shared = tokens * c.K, c.E - c.R
        table = np.floor(routed / v.down_rows) + np.minimum(routed, c.E)
        table += shared * np.ceil(tokens / v.down_rows) + 1
        lds = v.lds_bytes + 16 * (np.ceil(tokens * v.lds_token_bytes / 16) + table)
        h_rows = tokens * (c.K + shared) + (TILE - 1) * c.E
        fits: Array = (lds <= ARCH_SPECS[c.arch].lds_bytes) & (h_rows < v.most_h_rows)
        return fits
