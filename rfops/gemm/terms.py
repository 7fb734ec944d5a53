"""Terms of a GEMM's time, of any kernel here: a workgroup for each tile of the result and split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import Array, Layer, TimeModel, Variants
from rfops.jit.arch import ARCH_SPECS, Arch

_LEAST_ROWS = 16  # of x that a tile reads: a matrix instruction's
_FEW_ROWS = 64  # up to which kernels have variants for each number of tiles
L1_BYTES = 64  # a clock
_TWO = np.array(2.0)  # numpy takes an array in half the time of a number
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
    convert_clocks: float = 0.0  # of all waves' conversions of w in a K-step, without hardware


class GemmModel(TimeModel):
    """Of y = x @ w^T with M, N, K; a subclass says how many bytes elements have."""

    traits: ClassVar[tuple[str, ...]] = Traits._fields
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
    changing_logs: ClassVar[tuple[str, ...]] = ("M", "groups", "fill")
    factors: ClassVar[tuple[str, ...]] = (
        "M",
        "rounds",  # of workgroups
        "beside",  # workgroups of the fullest CU at once, two at least
        "busiest",  # workgroups of the fullest CU
        "rows",  # of x that all of these load
        "groups",  # workgroups
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

    def prepared(self, c: Call) -> tuple[float, float, float]:
        """Launches that prepare operands for a kernel that wants them otherwise; their bytes for an
        element of x and of w."""
        return 0.0, 0.0, 0.0

    def static(self, c: Call) -> tuple[Any, ...]:
        return self.bytes_of(c)

    def changing(self, c: Call) -> Any:
        return c.M

    def space_key(self, c: Call) -> Any:
        """Few rows in tiles of a matrix instruction, others in powers of two."""
        m = c.M
        return -(-m // _LEAST_ROWS) if m <= _FEW_ROWS else _FEW_ROWS + (m - 1).bit_length()

    def prepare(self, v: Variants, c: Call) -> None:
        chip, cus = chip_of(c), c.cu_num
        x_bytes, w_bytes, _ = self.bytes_of(c)
        clocks = 1e3 * chip.ghz
        is_split = v.split > 1
        most = np.minimum(_SPLIT_TILES * cus * v.split, _GROUPS * cus)
        v.derived = {
            "is_split": is_split * 1.0,
            "parts": is_split * v.split,
            "log_split": np.log2(v.split),
            "step_split": v.step_k * v.split,
            "x_bytes": np.minimum(v.max_x_bytes, x_bytes),
            "w_rows": v.n * w_bytes,
            "l1": 1 / (L1_BYTES * clocks) / v.split,
            "lds": v.lds_bytes / (64 * clocks),
            "dispatch": v.waves / (chip.xcds * clocks),
            "busy": v.busy_clocks / (chip.simds * clocks),
            "is_crowded": bool((v.resident > 2).any()),
            "max_groups": np.where(is_split, most, np.inf),
            "idle_k": v.step_k * v.split - v.step_k / np.maximum(v.waves, 1),
            "few_rows": np.minimum(v.m, _LEAST_ROWS),
            "max_m": int(v.m.max()),
            "cus": np.array(float(cus)),
        }

    def layer_key(self, c: Call) -> Any:
        return self.batches(c), c.N, c.K

    def layer(self, v: Variants, c: Call) -> Layer:
        """Excluded are variants whose last wave has no K."""
        n, k, derived, batches = c.N, c.K, v.derived, self.batches(c)
        x_bytes, w_bytes, out_bytes = self.bytes_of(c)
        launches, prepared_x, prepared_w = self.prepared(c)
        hbm = 1e6 * chip_of(c).hbm_tb_s
        steps = np.ceil(k / derived["step_split"])
        crowd = steps if derived["is_crowded"] else 0.0
        terms = {
            "launch": {"one": 1.0},
            "step": {"one": steps},
            "round": {"one": -steps, "rounds": steps},
            "crowd": {"one": -2 * crowd, "beside": crowd},
            "tile": {"one": -1.0, "busiest": 1.0},
            "memory": {
                "one": batches * n * k * w_bytes / hbm,
                "M": batches * (k * x_bytes + n * out_bytes) / hbm,
            },
            "l1": {
                "busiest": derived["w_rows"] * derived["l1"] * k,
                "rows": derived["x_bytes"] * derived["l1"] * k,
            },
            "split": {"one": derived["is_split"]},
            "parts": {"one": derived["parts"]},
            "partials": {"M": derived["parts"] * (8 * batches * n / hbm)},
            "lds": {"busiest": derived["lds"]},
            "launches": {"one": v.is_prepared * launches},
            "prepared": {
                "one": v.is_prepared * (prepared_w * n * k / hbm),
                "M": v.is_prepared * (prepared_x * k / hbm),
            },
            "dispatch": {"groups": derived["dispatch"]},
            "busy": {"busiest": steps * derived["busy"]},
        }
        logs = {
            "one": 1.0,
            "N": math.log2(n),
            "K": math.log2(k) - derived["log_split"],
            "split": derived["log_split"],
            "waves": v.log_waves,
            "steps": v.log_steps,
            "lines": v.log_lines,
        }
        # Not heuristic.ceil: floor division of floats takes three times as long.
        groups_of_m = np.ceil(n / v.n) * (batches * v.split)
        is_idle = derived["idle_k"] >= k
        return Layer(terms, logs, is_idle, {"groups_of_m": groups_of_m})

    def changes(
        self, v: Variants, c: Call, layer: Layer, factors: Sequence[Array], logs: Sequence[Array]
    ) -> Array:
        """Excluded are splits where tiles fill the chip without."""
        m, derived = c.M, v.derived
        m_row, rounds, beside, busiest, loaded, groups = factors
        log_m, average, fill = logs
        m_row.fill(m)
        np.divide(m_row, v.m, out=groups)
        np.ceil(groups, out=groups)
        np.multiply(groups, layer.derived["groups_of_m"], out=groups)
        np.divide(groups, derived["cus"], out=average)
        np.ceil(average, out=busiest)
        np.minimum(busiest, v.resident, out=beside)
        np.divide(busiest, beside, out=rounds)
        np.ceil(rounds, out=rounds)
        if derived["is_crowded"]:
            np.maximum(beside, _TWO, out=beside)
        if m <= _LEAST_ROWS:
            rows = derived["few_rows"]
        else:
            rows = v.m if m >= derived["max_m"] else np.minimum(v.m, m_row)
        np.multiply(busiest, rows, out=loaded)
        log_m.fill(math.log2(m))
        np.divide(average, busiest, out=fill)
        np.add(fill, fill, out=fill)
        np.log2(average, out=average)
        is_excluded: Array = groups > derived["max_groups"]
        return is_excluded

    def wave_us(self, layer: Layer, v: Variants, c: Call) -> Array:
        """Microseconds, along K, of one wave's share of each clock of all waves in a K-step."""
        steps = layer.terms["step"]["one"]
        us: Array = steps / (1e3 * chip_of(c).ghz) / np.exp2(v.log_waves)
        return us


def chip_of(c: Call) -> Arch:
    """The chip whose rates terms are at."""
    return ARCH_SPECS[c.arch if c.arch in ARCH_SPECS else "gfx950"]
