"""Terms of the time of mla_decode's HIP kernels: workgroups that share out the tokens of all
sequences, for each group of query rows (a head of a query each)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rfops.dispatch.heuristic import coarse_middle
from rfops.dispatch.kernel import Call
from rfops.dispatch.row_program import Program
from rfops.dispatch.time_model import Layer, TimeModel, Variants
from rfops.jit.arch import ARCH_SPECS

D_QK, D_V = 576, 512
_COARSE_CUT = 64  # tokens of a worker at least from which cuts are not fine


class Traits(NamedTuple):
    """What the model reads of one variant of a kernel, for one call."""

    workers: float  # of each group of query rows, at most
    least: float  # tokens of a worker at least
    even: float  # whether all sequences are cut into as many parts
    single: float  # whether each sequence has a worker where there are fewer tokens than that
    groups: float  # of query rows
    columns: float  # query rows of a group
    overhead: float  # tokens that a sequence costs beside its own
    cut: float  # tokens that parts of a sequence are multiples of
    tile: float  # tokens that a workgroup multiplies at a time
    # Splits of a sequence that its workgroups combine in one step; with more they form a tree.
    max_flat_splits: float
    max_single: float  # tokens of a range that has a part of one sequence alone, at most
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
        "fine": "us where cuts of a few tokens are anywhere and many workers may have two parts",
        "parts": "us for each part of a sequence",
        "tree": "us where a tree adds them up",
        "partials": "1: of parts written and read, at HBM's rate",
    }
    terms = tuple(units)
    logs = ("one", "B", "length", "rows", "bytes", "share", "parts", "fill")
    changing_logs = ("B", "length", "rows", "share", "parts", "fill")
    factors = (
        *("rows", "tokens"),
        *("steps", "share", "items"),  # of the fullest worker: tiles, tokens, sequences
        *("split", "two", "fine", "parts", "tree"),
        "partials",  # workers that write them
    )

    # A worker has a range of the work, in which each sequence takes its overhead and its tokens
    # (`extent`). `is_single`, where a tree would add up parts (`beyond_flat`): ranges, of `spread`
    # tokens at least, are so long that none does, and have a part of one sequence alone, as its
    # overhead is a range; they end before `single_end` tokens. `share`: the most tokens of a range.
    # `two`: a range that begins anywhere may have parts of one sequence more; a cut is in the
    # middle of a sequence at `last_cut` at most. `cut_steps`: tiles of a range of several
    # sequences, the most where it begins at that cut: one of the tail after it, those of whole
    # sequences, those of the `head` of the last sequence.
    program = Program(
        """
rows = num_rows
tokens = num_tokens
filled = maximum(maximum(floor(num_tokens / least), single * batch), 1)
whole_workers = maximum(floor(minimum(workers, filled) / batch), 1) * batch
usual = minimum(minimum(workers, maximum(whole_workers, uneven_workers)), filled)
spread = maximum(ceil(num_tokens / maximum(workers - batch, 0.001)), cut)
flat_range = floor(length / flat_parts) + 1
usual_extent = length + overhead
beyond_flat = length - max_flat_splits * maximum(spread, usual_extent * batch / usual)
is_single = minimum(ceil(maximum(minimum(beyond_flat, single_end - maximum(flat_range, spread)), \
0)), 1)
active = usual + is_single * (ceil(num_tokens / flat_range) + batch - usual)
extent = usual_extent + is_single * (flat_range - overhead)
splits = active / batch
sequences = batch / active
whole_splits = ceil(splits)
whole_sequences = ceil(sequences)
whole = floor(sequences)
rest = minimum(extent * (sequences - whole), length)
share = ceil((whole * length + rest) / cut) * cut
uneven = ceil(whole_splits - splits) * ceil(whole_sequences - sequences)
last_cut = cut * (ceil(length / cut) - 1)
two = uneven * (ceil(sequences + last_cut / extent) - whole_sequences)
fine = uneven * minimum(4 * sequences, 1) * (1 - is_single)
whole_steps = maximum(whole, 1) * ceil(minimum(share, length) / tile)
items = whole_sequences + two
between = maximum(items - 2, 0)
head = minimum(maximum(extent * sequences - extent * (between + 1) + last_cut, 0), length)
cut_steps = 1 + between * ceil(length / tile) + ceil(ceil(head / cut) * cut / tile)
steps = maximum(whole_steps, uneven * minimum(items - 1, 1) * cut_steps)
parts = ceil(splits - is_single) + two
split = minimum(parts - 1, 1)
tree = minimum(maximum(parts - max_flat_splits, 0), 1)
partials = split * (active - is_single * batch)
log_B = log_batch
log_length = log_length_
log_rows = log_rows_
log_share = log2(share)
log_parts = log2(parts)
log_fill = log2(active * groups_of_cu)
""",
        "num_rows num_tokens batch length log_batch log_length_ log_rows_".split(),
    )

    def like(self, c: Call) -> Call:
        """In the middle of the steps of S in which calls share a decision: at the end, a power of
        two often, tokens are shared out evenly as in no other call of the step."""
        return c.with_sizes(S=coarse_middle(c.S, 1))

    def resized(self, c: Call, sizes: Mapping[str, int]) -> Call:
        """The call at a row's sizes, with as many queries for each sequence."""
        return c.with_sizes(**sizes, T=c.T * sizes.get("B", c.B) // max(c.B, 1))

    def changing(self, c: Call) -> Any:
        return c.B, c.T, c.S, c.page

    def space_key(self, c: Call) -> Any:
        """Workers of a group of query rows, and whether all sequences may have as many of them,
        follow from B and, with ragged queries, T."""
        kernels: Sequence[Any] = self.kernels
        return c.B, c.T, *[kernel.has_few_tokens(c) for kernel in kernels]

    def static(self, c: Call) -> tuple[Any, ...]:
        return c.H, c.qo_len, c.has("qo_indptr"), c.has("angles"), c.q_dtype, c.kv_dtype

    def prepare(self, v: Variants, c: Call) -> None:
        chip, row_bytes = ARCH_SPECS[c.arch], D_QK * c.kv_dtype.itemsize
        hbm, l2 = 1e6 * chip.hbm_tb_s, 1e6 * chip.l2_tb_s
        is_apart = (v.groups > 1) * (v.workers % chip.xcds > 0)
        terms = {
            "launch": {"one": 1.0},
            "step": {"steps": 1.0},
            "loaded": {"share": row_bytes / (64 * 1e3 * chip.ghz)},
            "item": {"one": -1.0, "items": 1.0},
            "memory": {
                "tokens": row_bytes / hbm,
                "rows": (D_QK * c.q_dtype.itemsize + 2 * D_V) / hbm,
            },
            "l2": {"tokens": v.groups * (row_bytes / l2)},
            # What a worker reads, by its neighbours in other groups.
            "apart": {"tokens": 4 * v.groups * (row_bytes / l2) * is_apart},
            "split": {"split": 1.0},
            "two": {"two": 1.0},
            "fine": {"fine": 1.0 * (v.least < _COARSE_CUT)},
            "parts": {"parts": 1.0},
            "tree": {"tree": 1.0},
            # Written and read.
            "partials": {"partials": v.groups * (2 * v.columns * v.part_bytes) / hbm},
        }
        v.derived = {
            "uneven_workers": v.workers * (v.even == 0),
            "flat_parts": v.max_flat_splits - 1.0,
            "single_end": (v.max_single + 1.0) * (v.least == v.cut),
            "groups_of_cu": v.groups / c.cu_num,
            "layer": Layer(terms, {"one": 1.0, "bytes": math.log2(row_bytes)}),
        }

    def layer(self, v: Variants, c: Call) -> Layer:
        """All is static but what changes with every call."""
        layer: Layer = v.derived["layer"]
        return layer

    def numbers(self, v: Variants, c: Call) -> tuple[float, ...]:
        num_rows, batch = c.T * c.H, float(max(c.B, 1))
        num_tokens = float(max(c.S * c.page, 1))
        length = max(num_tokens / batch, 1.0)
        logs = math.log2(batch), math.log2(length), math.log2(max(num_rows / batch, 1))
        return (num_rows, num_tokens, batch, length, *logs)
