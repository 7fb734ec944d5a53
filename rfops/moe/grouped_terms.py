"""Terms of the time of a grouped GEMM: workgroups for each block of routed rows in use, by columns
of its expert's weights."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import ceil, coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import TimeModel, Variants, Work
from rfops.jit.arch import ARCH_SPECS

from .layers import chosen_experts
from .terms import row_tiles

_EXACT_M = 16  # routed rows up to which each number counts
_L1_BYTES = 64  # per clock
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
    logs = ("one", "M", "N", "K", "experts", "rows", "groups", "waves", "steps")

    def like(self, c: Call) -> Call:
        """The sizes that calls sharing a decision have in common."""
        m = coarse(c.M, 1) if c.M > _EXACT_M else c.M
        return c.with_sizes(M=m, N=coarse(c.N, 16), K=coarse(c.K, 256 if c.K % 256 == 0 else 128))

    def static(self, c: Call) -> tuple[Any, ...]:
        return c.block_m, c.K % 256 == 0

    def key(self, c: Call) -> tuple[Any, ...]:
        return c.M, c.N, c.K, c.E, c.block_m, _picks(c), c.out_dtype.itemsize

    def work(self, v: Variants, c: Call) -> Work:
        """Excluded are variants whose last wave has no K."""
        chip, cus, n, k = ARCH_SPECS[c.arch], c.cu_num, c.N, c.K
        clocks, hbm, l2 = 1e3 * chip.ghz, 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        tokens = ceil(c.M, _picks(c))
        hit = max(chosen_experts(tokens, _picks(c), c.E), 1.0)
        blocks = max(row_tiles(tokens, _picks(c), c.E, 0, c.block_m), 1.0)  # there may be no expert
        rows = c.M / blocks
        groups_of_block = np.ceil(n / v.n) * v.groups
        groups = blocks * groups_of_block
        launched = max(blocks, min(c.M, c.E + c.M / c.block_m)) * groups_of_block
        average = groups / cus
        busiest = np.ceil(average)
        beside = np.minimum(busiest, v.resident)
        rounds = np.ceil(busiest / beside)
        step_k = v.unit_k * v.steps
        full = np.floor(k / step_k)
        remainder = np.ceil((k - full * step_k) / v.unit_k)  # one wave does it, unit by unit
        steps = np.maximum(np.ceil(full / v.k_waves), np.floor(full / v.k_waves) + remainder)
        loaded = (np.minimum(v.n, n) + rows / v.groups) * k * _ROW
        moved = (hit * n + c.A) * k * _ROW + c.M * n * c.out_dtype.itemsize
        terms = (
            1.0,
            steps,
            steps * (rounds - 1),
            steps * np.maximum(0.0, beside - 2),
            busiest - 1,
            moved / hbm,
            groups * loaded / l2,
            busiest * loaded / (_L1_BYTES * clocks),
            busiest * v.lds_bytes / (64 * clocks),
            launched * v.waves / (chip.xcds * clocks),
            busiest * steps * v.busy_clocks / (chip.simds * clocks),
        )
        logs = (
            1.0,
            math.log2(c.M),
            math.log2(n),
            math.log2(k),
            math.log2(hit),
            math.log2(rows),
            np.log2(average),
            np.log2(v.waves),
            np.log2(v.steps),
        )
        return Work(terms, logs, (v.k_waves - 1) * step_k >= k)


def _picks(c: Call) -> int:
    """Experts per token."""
    return int(max(c.top_k, c.a_div))
