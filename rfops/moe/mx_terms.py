"""Terms of the time of experts with MX weights: gate and up by tiles or by a ring; down by tiles
and a launch that sums rows, or both in one kernel."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.dispatch.row_program import Program
from rfops.dispatch.time_model import Array, Layer, TimeModel, Variants
from rfops.jit.arch import ARCH_SPECS

from .layers import chosen_experts
from .terms import all_row_tiles, coarse_tokens

STEP_BYTES = 128  # of K per K-step
TILE = 16  # rows of an operand
L2_BYTES = 4 << 20  # of an XCD
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
    down_waves: float = 1  # that multiply, of down and sum in one kernel
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
        "raw_memory": "1: of the same where they are raw, in addition",
        "raw_up": "us per K-step of a round of gate and up's workgroups, where weights are raw",
        "raw_up_rows": "us more, for further tiles of rows where waves split K",
        "raw_register": "us per K-step and 16 columns of RegisterDown over the number of waves, "
        "where weights are raw and waves have several experts",
        "raw_staged": "us per wave and K-step of an expert's tile of StagedDown, where weights are "
        "raw",
        "up_round": "us per K-step of a round of gate and up's workgroups",
        "up_tile": "us per round of gate and up's workgroups",
        "up_reduce": "us per round and wave that splits K, beyond the first",
        "up_load": "1: of what gate and up's tiles load, at L2's rate",
        "up_cu": "1: of what the fullest CU loads for gate and up, at 64 bytes per clock",
        "up_rows": "us per K-step, 16 rows and 64 columns of gate and up of a CU, on average",
        "ahead_round": "us per K-step of a round, with three K-steps in flight",
        "ring_cu": "1: of what a CU loads for the ring, the last round cut, at 64 bytes per clock",
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
        "far_h": "1: of h beyond L2, read by each workgroup of StagedDown, at HBM's rate",
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
        "ring_cu": 1.0,
        "far_h": 1.0,
        "lds": 1.0,
    }
    logs = (
        *("one", "M", "D", "I", "experts", "rows"),
        *("up_tiles", "up_rows", "up_columns", "up_k_waves", "down_tiles", "down_columns"),
    )
    changing_logs = ("M", "experts", "rows", "up_tiles", "down_tiles")
    factors = (
        *("experts", "all_rows"),
        "operands",  # tiles of 16 rows
        *("up_rows", "down_rows"),  # tiles of rows
        *("up_rounds", "down_rounds"),  # of workgroups
        *("up_cu", "up_cu_rows"),  # tiles of the fullest CU, operands of x in them
        *("ring_cu", "ring_cu_rows"),  # the same, where the tiles of the last round are cut
        *("wave_tiles", "round_tiles"),  # of RegisterDown, of the others in one kernel
        "wave_refills",  # whether a wave of RegisterDown has several experts
        "round_rows",  # thousands of rows of h that each round reads
        "far_rows",  # rows of h that do not fit in L2
    )

    # Excluded are variants whose sums do not fit in LDS, or whose h is beyond offsets.
    program = Program(
        """
experts = hit
all_rows = num_rows
operands = num_operands
up_rows = take(tiles, up)
up_groups = up_rows * up_columns_of_row
up_tiles = up_groups / up_slots
up_rounds = ceil(up_tiles)
up_cu = ceil(up_groups / cus)
up_cu_rows = up_cu * num_operands / up_rows
ring_cu = maximum(up_tiles, 1)
ring_cu_rows = ring_cu * num_operands / up_rows
down_rows = take(tiles, down)
down_rounds = ceil(down_rows * tiled_groups + summed_groups)
wave_experts = ceil(down_rows / tiles_at_once)
wave_tiles = wave_experts * down_rounds
wave_refills = minimum(wave_experts - 1, 1)
round_tiles = down_rows * down_rounds
round_rows = down_rounds * thousand_rows
far_rows = maximum(num_rows - near_rows, 0)
log_M = log_tokens
log_experts = log_hit
log_rows = log_rows_of_expert
log_up_tiles = log2(up_tiles)
log_down_tiles = log2(down_rows * down_slots)
excluded = maximum(num_tokens - most_tokens, 0)
""",
        (
            *("num_tokens", "hit", "num_rows", "thousand_rows", "num_operands"),
            *("log_tokens", "log_hit", "log_rows_of_expert"),
        ),
        table="tiles",
    )

    def like(self, c: Call) -> Call:
        return coarse_tokens(c)

    def static(self, c: Call) -> tuple[Any, ...]:
        return c.D, c.I, c.E, c.K, c.R, c.w_layout, c.scale_layout

    def changing(self, c: Call) -> Any:
        return c.M

    def space_key(self, c: Call) -> Any:
        return ()

    def prepare(self, v: Variants, c: Call) -> None:
        """What M changes nothing of. The heights of tiles, each once, and where a variant finds its
        own."""
        chip, cus, step = ARCH_SPECS[c.arch], c.cu_num, 8 * STEP_BYTES // self.bits
        l2, l1 = 1e6 * chip.l2_tb_s, 64e3 * chip.ghz
        up_steps, down_steps = ceil(c.D, step), ceil(c.I, step)
        heights, height_indices = np.unique(
            np.concatenate([[TILE], v.up_rows, v.down_rows]), return_inverse=True
        )
        up, down = np.split(height_indices[1:], 2)
        is_summed, by_tile = 1 - v.is_tiled, 1 - v.is_ring
        down_groups = np.ceil(c.D / v.down_columns)
        down_slots = down_groups / (cus * v.down_resident)
        row_bytes, h_row_bytes = up_steps * STEP_BYTES, down_steps * STEP_BYTES
        tile_bytes = TILE * h_row_bytes
        up_columns = np.ceil(down_steps * step / v.up_columns)
        hbm = 1e6 * chip.hbm_tb_s
        # Of an expert's weights. Raw ones are loaded as rows of 128 bytes and pass through LDS to
        # the lanes that multiply them; shuffled ones are loaded as one span, in their order.
        weights_us, is_raw = 3 * c.D * c.I * self.bits / 8 / hbm, float(c.w_layout == "raw")
        # Bytes of the weights of a tile of gate and up.
        up_bytes = 2 * v.up_columns * row_bytes
        v.derived = {
            "tiles": [*map(int, heights)],  # their heights
            "operand_idx": height_indices.item(0),  # of TILE among them
            "up": up,
            "down": down,
            "up_columns_of_row": up_columns,
            "up_slots": cus * v.up_resident,
            # Workgroups of down to a slot: for each tile of rows, or for all.
            "tiled_groups": v.is_tiled * down_slots,
            "summed_groups": is_summed * down_slots,
            "down_slots": down_slots,
            "cus": cus,
            "near_rows": L2_BYTES / h_row_bytes,
            "most_tokens": self._most_tokens(v, c, is_summed),
        }
        terms = {
            "launch": {"one": 1.0},
            "memory": {"experts": weights_us},
            "raw_memory": {"experts": is_raw * weights_us},
            "raw_up": {"up_rounds": is_raw * up_steps / v.up_k_waves},
            "raw_up_rows": {
                "up_rounds": is_raw
                * (v.up_k_waves > 1)
                * np.minimum(v.up_rows / TILE - 1, 1)
                * (up_steps / v.up_k_waves)
            },
            "raw_register": {
                "wave_refills": is_raw
                * v.is_register
                * (v.down_columns / TILE)
                * (down_steps / v.down_waves)
            },
            "raw_staged": {"round_tiles": is_raw * down_steps * v.is_staged * v.down_waves},
            "up_round": {"up_rounds": up_steps * (by_tile - v.is_prefetched) / v.up_k_waves},
            "up_tile": {"up_rounds": by_tile},
            "up_reduce": {"up_rounds": v.up_k_waves - 1},
            "up_load": {
                "up_rows": by_tile * up_columns * up_bytes / l2,
                "operands": by_tile * up_columns * (TILE * row_bytes / l2),
            },
            "up_cu": {
                "up_cu": up_bytes * by_tile / l1,
                "up_cu_rows": by_tile * (TILE * row_bytes / l1),
            },
            "up_rows": {"operands": math.ceil(c.I / 32) * up_steps / cus},
            "ahead_round": {"up_rounds": up_steps * v.is_prefetched / v.up_k_waves},
            "ring_cu": {
                "ring_cu": up_bytes * v.is_ring / l1,
                "ring_cu_rows": v.is_ring * (TILE * row_bytes / l1),
            },
            "ring_tile": {"up_rounds": v.is_ring},
            "down_round": {"down_rounds": v.is_tiled * down_steps},
            "down_tile": {"down_rounds": v.is_tiled},
            "down_load": {
                "down_rows": v.is_tiled * down_groups * v.down_columns * (tile_bytes / TILE / l2),
                "operands": v.is_tiled * down_groups * (tile_bytes / l2),
            },
            "sum": {"one": v.is_tiled},
            "y": {"all_rows": v.is_tiled * (4 * c.D / hbm)},
            "register_step": {"wave_tiles": down_steps * v.is_register},
            "register_tile": {"wave_tiles": v.is_register},
            "staged_step": {"round_tiles": down_steps * v.is_staged},
            "staged_tile": {"round_tiles": v.is_staged},
            "deep_step": {"round_tiles": down_steps * v.is_deep},
            "deep_tile": {"round_tiles": v.is_deep},
            "h": {"all_rows": is_summed * down_groups * (h_row_bytes / l2)},
            "far_h": {"far_rows": v.is_staged * down_groups * (h_row_bytes / hbm)},
            "lds": {"round_rows": is_summed},
        }
        logs = {
            "one": 1.0,
            "D": math.log2(c.D),
            "I": math.log2(c.I),
            "up_rows": np.log2(v.up_rows),
            "up_columns": np.log2(v.up_columns),
            "up_k_waves": np.log2(v.up_k_waves),
            "down_columns": np.log2(v.down_columns),
        }
        v.derived["layer"] = Layer(terms, logs)

    def layer(self, v: Variants, c: Call) -> Layer:
        """All sizes but M are static."""
        layer: Layer = v.derived["layer"]
        return layer

    def numbers(self, v: Variants, c: Call) -> list[float]:
        num_shared = c.E - c.R
        num_rows, hit = c.M * (c.K + num_shared), chosen_experts(c.M, c.K, c.R) + num_shared
        tiles = all_row_tiles(c.M, c.K, c.R, num_shared, v.derived["tiles"])
        logs = math.log2(c.M), math.log2(hit), math.log2(num_rows / hit)
        num_operands = tiles[v.derived["operand_idx"]]
        return [c.M, hit, num_rows, num_rows / 1000, num_operands, *logs, *tiles]

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
        routed, num_shared = tokens * c.K, c.E - c.R
        table = np.floor(routed / v.down_rows) + np.minimum(routed, c.E)
        table += num_shared * np.ceil(tokens / v.down_rows) + 1
        lds = v.lds_bytes + 16 * (np.ceil(tokens * v.lds_token_bytes / 16) + table)
        h_rows = tokens * (c.K + num_shared) + (TILE - 1) * c.E
        fits: Array = (lds <= ARCH_SPECS[c.arch].lds_bytes) & (h_rows < v.most_h_rows)
        return fits
