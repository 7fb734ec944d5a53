"""Terms of the time of a grouped GEMM: workgroups for each block of routed rows in use, by columns
of its expert's weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import ceil, coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import Array, Layer, TimeModel, Variants
from rfops.jit.arch import ARCH_SPECS

from .layers import chosen_experts
from .terms import row_tiles

_EXACT_M = 16  # routed rows up to which each number counts
_L1_BYTES = 64  # per clock
_TWO = np.array(2.0)  # numpy takes an array in half the time of a number
_ROW = 33 / 32  # bytes of an element and its share of a scale


class Traits(NamedTuple):
    """Of a variant, in blocks of the call's size."""

    n: float  # rows of w of a workgroup
    groups: float  # workgroups along the rows of a block
    unit_k: float  # elements of K that a wave multiplies at a time
    steps: float  # of these that it has in flight: a K-step
    k_waves: float  # waves along K
    waves: float  # of a workgroup
    resident: float  # workgroups of a CU at once
    lds_bytes: float  # of a workgroup's sums, written once and read once
    busy_clocks: float  # of the matrix units in a K-step of a workgroup


class GroupedModel(TimeModel):
    """Of out[id] = a[id / a_div] @ w[expert of id]^T in MX-FP8, with uniform routing."""

    traits = Traits._fields
    units: ClassVar[dict[str, str]] = {
        "launch": "us: launch, first loads, end of a tile",
        "step": "us per K-step of a workgroup",
        "round": "us per K-step of each further round of workgroups on the fullest CU",
        "crowd": "us per K-step for each workgroup beyond two that shares a CU",
        "tile": "us for each further workgroup of the fullest CU",
        "memory": "1: of all bytes once at HBM's rate, of weights the chosen experts'",
        "l2": "1: of what all workgroups load, at L2's rate",
        "l1": "1: of what the fullest CU loads, at 64 bytes per clock",
        "lds": "1: of the sums of the fullest CU through LDS, at 128 bytes per clock",
        "dispatch": "1: of all waves' starts, one per clock and XCD; of blocks not in use too",
        "busy": "1: of the fullest CU's matrix instructions, its SIMDs side by side",
    }
    terms = tuple(units)
    # About those that MX-FP8's linear layers were fitted to.
    typical: ClassVar[dict[str, float]] = {
        "launch": 3.0,
        "step": 0.3,
        "round": 0.2,
        "crowd": 0.2,
        "tile": 0.5,
    }
    logs = ("one", "M", "N", "K", "experts", "rows", "groups", "waves", "steps", "resident")
    changing_logs = ("M", "experts", "rows", "groups")
    factors = (
        *("M", "tokens", "experts"),
        *("blocks", "launched"),  # of rows: in use, of all that are launched
        "rounds",  # of workgroups
        "beside",  # workgroups of the fullest CU at once, two at least
        *("busiest", "rows"),  # workgroups of the fullest CU, rows that all of these load
    )

    def like(self, c: Call) -> Call:
        """The sizes that calls sharing a decision have in common."""
        m = coarse(c.M, 1) if c.M > _EXACT_M else c.M
        return c.with_sizes(M=m, N=coarse(c.N, 16), K=coarse(c.K, 256 if c.K % 256 == 0 else 128))

    def static(self, c: Call) -> tuple[Any, ...]:
        return c.block_m, c.K % 256 == 0

    def changing(self, c: Call) -> Any:
        return c.M, c.A, _picks(c)

    def space_key(self, c: Call) -> Any:
        return ()

    def layer_key(self, c: Call) -> Any:
        return c.N, c.K, c.E, c.out_dtype.itemsize

    def layer(self, v: Variants, c: Call) -> Layer:
        """Excluded are variants whose last wave has no K."""
        chip, cus, n, k = ARCH_SPECS[c.arch], c.cu_num, c.N, c.K
        clocks, hbm, l2 = 1e3 * chip.ghz, 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        groups_of_block = np.ceil(n / v.n) * v.groups
        step_k = v.unit_k * v.steps
        full = np.floor(k / step_k)
        remainder = np.ceil((k - full * step_k) / v.unit_k)  # one wave does it, unit by unit
        steps = np.maximum(np.ceil(full / v.k_waves), np.floor(full / v.k_waves) + remainder)
        row_bytes, l1 = k * _ROW, _L1_BYTES * clocks
        w_loaded, x_loaded = np.minimum(v.n, n) * row_bytes, row_bytes / v.groups
        terms = {
            "launch": {"one": 1.0},
            "step": {"one": steps},
            "round": {"one": -steps, "rounds": steps},
            "crowd": {"one": -2 * steps, "beside": steps},
            "tile": {"one": -1.0, "busiest": 1.0},
            "memory": {
                "experts": n * row_bytes / hbm,
                "tokens": row_bytes / hbm,
                "M": n * c.out_dtype.itemsize / hbm,
            },
            "l2": {
                "blocks": groups_of_block * w_loaded / l2,
                "M": groups_of_block * x_loaded / l2,
            },
            "l1": {"busiest": w_loaded / l1, "rows": x_loaded / l1},
            "lds": {"busiest": v.lds_bytes / (64 * clocks)},
            "dispatch": {"launched": groups_of_block * v.waves / (chip.xcds * clocks)},
            "busy": {"busiest": steps * v.busy_clocks / (chip.simds * clocks)},
        }
        logs = {
            "one": 1.0,
            "N": math.log2(n),
            "K": math.log2(k),
            "waves": np.log2(v.waves),
            "steps": np.log2(v.steps),
            "resident": np.log2(v.resident),
        }
        derived = {"groups_of_block": groups_of_block, "cus": np.array(float(cus))}
        return Layer(terms, logs, (v.k_waves - 1) * step_k >= k, derived)

    def changes(
        self, v: Variants, c: Call, layer: Layer, factors: Sequence[Array], logs: Sequence[Array]
    ) -> None:
        picks = _picks(c)
        hit = max(chosen_experts(ceil(c.M, picks), picks, c.E), 1.0)
        # There may be no expert.
        num_blocks = max(row_tiles(ceil(c.M, picks), picks, c.E, 0, c.block_m), 1.0)
        rows_of_block = c.M / num_blocks
        m, tokens, experts, blocks, launched, rounds, resident_groups, busiest, rows = factors
        log_m, log_experts, log_rows, groups = logs
        m.fill(c.M)
        tokens.fill(c.A)
        experts.fill(hit)
        blocks.fill(num_blocks)
        launched.fill(max(num_blocks, min(c.M, c.E + c.M / c.block_m)))
        np.multiply(blocks, layer.derived["groups_of_block"], out=groups)
        np.divide(groups, layer.derived["cus"], out=groups)
        np.ceil(groups, out=busiest)
        np.minimum(busiest, v.resident, out=resident_groups)
        np.divide(busiest, resident_groups, out=rounds)
        np.ceil(rounds, out=rounds)
        np.maximum(resident_groups, _TWO, out=resident_groups)
        np.multiply(busiest, np.array(rows_of_block), out=rows)
        np.log2(groups, out=groups)
        log_m.fill(math.log2(c.M))
        log_experts.fill(math.log2(hit))
        log_rows.fill(math.log2(rows_of_block))


def _picks(c: Call) -> int:
    """Experts per token."""
    return int(max(c.top_k, c.a_div))
