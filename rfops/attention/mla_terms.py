"""Terms of the time of mla_decode's HIP kernels: workgroups that share out the tokens of all
sequences, for each group of query rows (a head of a query each)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call
from rfops.dispatch.time_model import TimeModel, Variants, Work
from rfops.jit.arch import ARCH_SPECS

D_QK, D_V = 576, 512


class Traits(NamedTuple):
    """Of a variant of a kernel."""

    workers: float  # of each group of query rows, at most
    least: float  # tokens of a worker at least
    even: float  # whether all sequences are cut into as many parts
    single: float  # whether each sequence has a worker where there are fewer tokens than that
    groups: float  # of query rows
    columns: float  # query rows of a group
    overhead: float  # tokens that a sequence costs beside its own
    cut: float  # tokens that parts of a sequence are multiples of
    tile: float  # tokens that a workgroup multiplies at a time
    at_once: float  # parts of a sequence that all of its workgroups add up at once; more by a tree
    part_bytes: float  # of a query row of a part, in memory


class MlaModel(TimeModel):
    traits = Traits._fields
    units: ClassVar[Mapping[str, str]] = {
        "launch": "us: launch, first loads, the result",
        "step": "us for each tile of tokens of a workgroup",
        "loaded": "1: of what a workgroup loads, at 64 bytes a clock",
        "item": "us for each sequence of a workgroup after the first",
        "memory": "1: of all bytes once, at HBM's rate",
        "l2": "1: of what all workgroups load, at L2's rate",
        "apart": "1: of what workgroups of several dies load, at a quarter of L2's rate",
        "split": "us where sequences are split",
        "two": "us where a worker has parts of two sequences",
        "parts": "us for each part of a sequence",
        "tree": "us where a tree adds them up",
        "partials": "1: of parts written and read, at HBM's rate",
    }
    terms = tuple(units)
    logs = ("one", "B", "length", "rows", "bytes", "share", "parts", "fill")

    def like(self, c: Call) -> Call:
        """Sizes in the steps in which calls share a decision."""
        return c.with_sizes(B=coarse(c.B, 1), T=coarse(c.T, 1), S=coarse(c.S, 1))

    def key(self, c: Call) -> tuple[Any, ...]:
        return c.B, c.T, c.S, c.page, *self.static(c)

    def static(self, c: Call) -> tuple[Any, ...]:
        return c.H, c.qo_len, c.has("qo_indptr"), c.q_dtype, c.kv_dtype

    def prepare(self, v: Variants, c: Call) -> None:
        # Tiles that are not full of a worker with parts of two sequences: at a sequence's end,
        # and in one of two where cuts are finer than tiles.
        ends = 1 + 0.5 * (v.cut < v.tile)
        part_bytes = 2 * v.columns * v.part_bytes  # written and read
        v.derived = {
            "is_even": v.even > 0,
            "is_shared": v.groups > 1,  # what a worker reads, by its neighbours in other groups
            "ends": ends,
            "part_bytes": part_bytes,
        }

    def work(self, v: Variants, c: Call) -> Work:
        chip, cus = ARCH_SPECS[c.arch], c.cu_num
        clocks, hbm, l2 = 1e3 * chip.ghz, 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        batch, tokens = max(c.B, 1), max(c.S * c.page, 1)
        length, row_bytes = max(tokens / batch, 1.0), D_QK * c.kv_dtype.itemsize
        filled = np.maximum(np.floor(tokens / v.least), np.maximum(v.single * batch, 1.0))
        active = np.minimum(v.workers, filled)
        whole = np.maximum(np.floor(active / batch), 1.0) * batch
        launched = np.where(v.derived["is_even"] & (batch <= v.workers), whole, v.workers)
        active = np.minimum(launched, filled)
        each, sequences = active / batch, batch / active  # workers of a sequence, and the reverse
        parts, items = np.ceil(each), np.ceil(sequences)
        is_odd = (parts != each) & (items != sequences)  # then cuts are anywhere
        # Tokens of the fullest worker, in whose range the fewest sequences begin.
        share = (length + v.overhead) * sequences - v.overhead * np.floor(sequences)
        share = np.ceil(np.minimum(share, tokens) / v.cut) * v.cut
        steps = items * np.ceil(share / (items * v.tile)) + is_odd * v.derived["ends"]
        parts, items = parts + is_odd, items + is_odd
        workgroups = v.groups * active
        is_split = parts > 1
        rows, loaded = c.T * c.H, v.groups * (tokens * row_bytes / l2)
        terms = (
            1.0,
            steps,
            share * (row_bytes / (64 * clocks)),
            items - 1,
            (tokens * row_bytes + rows * (D_QK * c.q_dtype.itemsize + 2 * D_V)) / hbm,
            loaded,
            4 * loaded * ((launched % chip.xcds > 0) & v.derived["is_shared"]),
            is_split,
            is_odd,
            parts,
            parts > v.at_once,
            (is_split * workgroups) * v.derived["part_bytes"] / hbm,
        )
        logs = (
            1.0,
            math.log2(batch),
            math.log2(length),
            math.log2(max(rows / batch, 1)),
            math.log2(row_bytes),
            np.log2(share),
            np.log2(parts),
            np.log2(workgroups / cus),
        )
        return Work(terms, logs)
