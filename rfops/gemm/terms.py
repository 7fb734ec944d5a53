"""Terms of a GEMM's time, of any kernel here: a workgroup for each tile of the result and split."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import TimeModel, Variants, Work
from rfops.jit.arch import ARCH_SPECS

_LEAST_ROWS = 16  # of x that a tile reads: a matrix instruction's
_GROUP_M = 4  # tiles along M that workgroups of one XCD take before they go on along N
_L1_BYTES = 64  # a clock
_SPLIT_TILES, _GROUPS = 1.2, 5  # tiles, and workgroups, of a CU up to which splits of K were timed


class Traits(NamedTuple):
    """Of a variant."""

    m: float  # rows of x of a workgroup
    n: float  # rows of w of a workgroup
    split: float  # workgroups along K
    step_k: float  # elements of K of a step: what is loaded, then multiplied
    resident: float  # workgroups of a CU at once
    lds_bytes: float = 0.0  # of a workgroup, that its end writes and reads
    waves: float = 0.0  # of a workgroup, where many of few tiles start
    log_waves: float = 0.0
    log_steps: float = 0.0  # K-steps in flight
    log_lines: float = 0.0
    is_prepared: float = 0.0  # whether operands are prepared by launches of their own


class GemmModel(TimeModel):
    """Of y = x @ w^T with M, N, K; a subclass says how many bytes elements have."""

    traits = Traits._fields
    units: ClassVar[dict[str, str]] = {
        "launch": "us: launch, first loads, end of a tile",
        "step": "us a K-step of a workgroup",
        "round": "us a K-step of each further round of workgroups on the fullest CU",
        "beside": "us a K-step for each workgroup that shares a CU",
        "crowd": "us a K-step for each workgroup beyond two that shares a CU",
        "tile": "us for each further workgroup of the fullest CU",
        "load": "us a K-step and workgroup per CU, on average",
        "memory": "1: of all bytes once at HBM's rate",
        "l2": "1: of what all workgroups load, at L2's rate",
        "fabric": "1: of what each XCD loads once, at a quarter of L2's rate",
        "l1": "1: of what the fullest CU loads, at 64 bytes a clock",
        "split": "us where K is split",
        "parts": "us for each part of a split K",
        "partials": "1: of fp32 parts written and read, at HBM's rate",
        "lds": "1: of a workgroup's sums through LDS, at 128 bytes a clock",
        "launches": "us for each launch before it",
        "prepared": "1: of what those read and write, at HBM's rate",
        "dispatch": "1: of all waves' starts, at a clock each on an XCD",
    }
    terms = tuple(units)
    logs = ("one", "M", "N", "K", "groups", "fill", "split", "waves", "steps", "lines")

    def like(self, c: Call) -> Call:
        """M above a tile in coarse steps, which end at each tile's."""
        return c.with_sizes(M=coarse(c.M, 16)) if c.M > _LEAST_ROWS else c

    def bytes_of(self, c: Call) -> tuple[float, float, float]:
        """Bytes of an element of x and w, their scales too, and of the result."""
        raise NotImplementedError

    def prepared(self, c: Call) -> tuple[float, float]:
        """Launches that prepare operands for a kernel that wants them otherwise; their bytes."""
        return 0.0, 0.0

    def key(self, c: Call) -> tuple[Any, ...]:
        return c.M, c.N, c.K, *self.bytes_of(c), self.static(c)

    def prepare(self, v: Variants) -> None:
        is_split = v.split > 1
        v.derived = {
            "is_split": is_split * 1.0,
            "parts": is_split * v.split,
            "log_split": np.log2(v.split),
            "step_split": v.step_k * v.split,
        }

    def work(self, v: Variants, c: Call) -> Work:
        """Excluded are splits where tiles fill the chip without."""
        chip, cus = ARCH_SPECS[c.arch if c.arch in ARCH_SPECS else "gfx950"], c.cu_num
        m, n, k, derived = c.M, c.N, c.K, v.derived
        x_bytes, w_bytes, out_bytes = self.bytes_of(c)
        launches, prepared_bytes = self.prepared(c)
        clocks, hbm, l2 = 1e3 * chip.ghz, 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        # Not heuristic.ceil: floor division of floats takes three times as long.
        m_tiles, n_tiles = np.ceil(m / v.m), np.ceil(n / v.n)
        tiles = m_tiles * n_tiles
        groups = tiles * v.split
        average = groups / cus
        busiest = np.ceil(average)
        beside = np.minimum(busiest, v.resident)
        rounds = np.ceil(busiest / beside)
        steps = np.ceil(k / derived["step_split"])
        x_rows = np.minimum(v.m, max(_LEAST_ROWS, m)) * x_bytes
        w_rows = v.n * w_bytes
        loaded = (x_rows + w_rows) * (k / v.split)
        of_xcd = np.maximum(1.0, tiles / chip.xcds)
        along_m = np.minimum(np.minimum(m_tiles, _GROUP_M), of_xcd)
        along_n = np.minimum(n_tiles, np.maximum(1.0, of_xcd / along_m))
        terms = (
            1.0,
            steps,
            steps * (rounds - 1),
            steps * (busiest - rounds),
            steps * np.maximum(0.0, beside - 2),
            busiest - 1,
            steps * average,
            (m * k * x_bytes + n * k * w_bytes + m * n * out_bytes) / hbm,
            groups * loaded / l2,
            (along_m * x_rows + along_n * w_rows) * (4 * chip.xcds * k / l2),
            busiest * loaded / (_L1_BYTES * clocks),
            derived["is_split"],
            derived["parts"],
            derived["parts"] * (8 * m * n / hbm),
            busiest * v.lds_bytes / (64 * clocks),
            v.is_prepared * launches,
            v.is_prepared * (prepared_bytes / hbm),
            groups * v.waves / (chip.xcds * clocks),
        )
        log_split = derived["log_split"]
        logs = (
            1.0,
            math.log2(m),
            math.log2(n),
            math.log2(k) - log_split,
            np.log2(average),
            2 * average / busiest,
            log_split,
            v.log_waves,
            v.log_steps,
            v.log_lines,
        )
        most = np.minimum(_SPLIT_TILES * cus * v.split, _GROUPS * cus)
        return Work(terms, logs, derived["is_split"] * groups > most)
