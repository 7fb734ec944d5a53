"""Terms of a GEMM's time, of any kernel here: a workgroup for each tile of the result and split."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import TimeModel, Variants, Work
from rfops.jit.arch import ARCH_SPECS, Arch

_LEAST_ROWS = 16  # of x that a tile reads: a matrix instruction's
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
    is_prepared: float = 0.0  # share of what the op can prepare by launches of their own
    max_x_bytes: float = math.inf  # of an element of x, which it reads narrower than the call's
    busy_clocks: float = 0.0  # of all waves' instructions in a K-step, where they are many


class GemmModel(TimeModel):
    """Of y = x @ w^T with M, N, K; a subclass says how many bytes elements have."""

    traits = Traits._fields
    units: ClassVar[dict[str, str]] = {
        "launch": "us: launch, first loads, end of a tile",
        "step": "us a K-step of a workgroup",
        "round": "us a K-step of each further round of workgroups on the fullest CU",
        "crowd": "us a K-step for each workgroup beyond two that shares a CU",
        "tile": "us for each further workgroup of the fullest CU",
        "memory": "1: of all bytes once at HBM's rate",
        "l1": "1: of what the fullest CU loads, at 64 bytes a clock",
        "split": "us where K is split",
        "parts": "us for each part of a split K",
        "partials": "1: of fp32 parts written and read, at HBM's rate",
        "lds": "1: of a workgroup's sums through LDS, at 128 bytes a clock",
        "launches": "us for each launch before it",
        "prepared": "1: of what those read and write, at HBM's rate",
        "dispatch": "1: of all waves' starts, at a clock each on an XCD",
        "busy": "1: of the instructions of the fullest CU, its SIMDs side by side",
    }
    terms = tuple(units)
    # About those that FP8's kernels were fitted to on gfx950; of the others 1.
    typical: ClassVar[dict[str, float]] = {
        "launch": 3.0,
        "step": 0.3,
        "round": 0.2,
        "crowd": 0.2,
        "tile": 0.5,
        "split": 0.5,
        "parts": 0.05,
        "launches": 2.0,
    }
    logs: ClassVar[tuple[str, ...]] = (
        *("one", "M", "N", "K", "groups", "fill"),
        *("split", "waves", "steps", "lines"),
    )

    def like(self, c: Call) -> Call:
        """M above a tile in coarse steps, which end at each tile's."""
        return c.with_sizes(M=coarse(c.M, 16)) if c.M > _LEAST_ROWS else c

    def bytes_of(self, c: Call) -> tuple[float, float, float]:
        """Bytes of an element of x and w, their scales too, and of the result."""
        raise NotImplementedError

    def batches(self, c: Call) -> int:
        """Products of a call."""
        return 1

    def prepared(self, c: Call) -> tuple[float, float]:
        """Launches that prepare operands for a kernel that wants them otherwise; their bytes."""
        return 0.0, 0.0

    def static(self, c: Call) -> tuple[Any, ...]:
        return self.bytes_of(c)

    def key(self, c: Call) -> tuple[Any, ...]:
        return self.batches(c), c.M, c.N, c.K, *self.static(c)

    def prepare(self, v: Variants, c: Call) -> None:
        chip, cus = chip_of(c), c.cu_num
        x_bytes, w_bytes, _ = self.bytes_of(c)
        clocks = 1e3 * chip.ghz
        is_split = v.split > 1
        most = np.minimum(_SPLIT_TILES * cus * v.split, _GROUPS * cus)
        has_waves, busy = v.waves.any(), v.busy_clocks / (chip.simds * clocks)
        v.derived = {
            "is_split": is_split * 1.0,
            "parts": is_split * v.split,
            "log_split": np.log2(v.split),
            "step_split": v.step_k * v.split,
            "x_bytes": np.minimum(v.max_x_bytes, x_bytes),
            "w_rows": v.n * w_bytes,
            "l1": 1 / (_L1_BYTES * clocks) / v.split,
            "lds": v.lds_bytes / (64 * clocks) if v.lds_bytes.any() else None,
            "dispatch": v.waves / (chip.xcds * clocks) if has_waves else None,
            "busy": busy if busy.any() else None,
            "is_crowded": (v.resident > 2).any(),
            "max_groups": np.where(is_split, most, np.inf),
            "idle_k": v.step_k * v.split - v.step_k / np.maximum(v.waves, 1),
        }

    def _of_layer(self, v: Variants, c: Call) -> tuple[Any, ...]:
        """What M changes nothing of, kept for the calls that follow."""
        batches, n, k = layer = self.batches(c), c.N, c.K
        known, found = v.kept
        if known != layer:
            found = (
                # Not heuristic.ceil: floor division of floats takes three times as long.
                np.ceil(n / v.n) * (batches * v.split),
                np.ceil(k / v.derived["step_split"]),
                v.derived["w_rows"] * k,
                v.derived["x_bytes"] * k,
                math.log2(n),
                math.log2(k) - v.derived["log_split"],
                v.derived["idle_k"] >= k,
            )
            v.kept = layer, found
        return found

    def work(self, v: Variants, c: Call) -> Work:
        """Excluded are splits where tiles fill the chip without, and variants whose last wave has
        no K."""
        chip, m, n, k, derived = chip_of(c), c.M, c.N, c.K, v.derived
        x_bytes, w_bytes, out_bytes = self.bytes_of(c)
        launches, prepared_bytes = self.prepared(c)
        hbm = 1e6 * chip.hbm_tb_s
        batches = self.batches(c)
        groups_of_m, steps, w_loaded, x_row, log_n, log_k, is_idle = self._of_layer(v, c)
        groups = np.ceil(m / v.m) * groups_of_m
        average = groups / c.cu_num
        busiest = np.ceil(average)
        beside = np.minimum(busiest, v.resident)
        rounds = np.ceil(busiest / beside)
        loaded = np.minimum(v.m, max(_LEAST_ROWS, m)) * x_row + w_loaded
        lds, dispatch, busy = derived["lds"], derived["dispatch"], derived["busy"]
        terms = (
            1.0,
            steps,
            steps * (rounds - 1),
            steps * np.maximum(0.0, beside - 2) if derived["is_crowded"] else 0.0,
            busiest - 1,
            batches * (m * k * x_bytes + n * k * w_bytes + m * n * out_bytes) / hbm,
            busiest * loaded * derived["l1"],
            derived["is_split"],
            derived["parts"],
            derived["parts"] * (8 * batches * m * n / hbm),
            0.0 if lds is None else busiest * lds,
            v.is_prepared * launches if launches else 0.0,
            v.is_prepared * (prepared_bytes / hbm) if launches else 0.0,
            0.0 if dispatch is None else groups * dispatch,
            0.0 if busy is None else busiest * steps * busy,
        )
        logs = (
            1.0,
            math.log2(m),
            log_n,
            log_k,
            np.log2(average),
            2 * average / busiest,
            derived["log_split"],
            v.log_waves,
            v.log_steps,
            v.log_lines,
        )
        excluded = (groups > derived["max_groups"]) | is_idle
        return Work(terms, logs, excluded)


def chip_of(c: Call) -> Arch:
    """The chip whose rates terms are at."""
    return ARCH_SPECS[c.arch if c.arch in ARCH_SPECS else "gfx950"]
