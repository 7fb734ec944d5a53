"""The sum of each token's rows of its experts, where rows are ordered by token."""

from __future__ import annotations

from torch import Tensor

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.dispatch.steps import Step
from rfops.jit import compile_ops, u32

from .bf16.hip import ADD_COLUMNS, IN_TYPES, chosen, id_defines


@compile_ops(
    "moe_add_pairs",
    kernel="moe_add_pairs",
    variants=lambda _arch: [{"IN": "bf16", "ID": "i32", "TOP_K": 8, "SHARED": 0}],
)
def moe_add_pairs_kernel(
    out: Tensor, rows: Tensor, weights: Tensor, ids: Tensor, m: u32, n: u32, routed: u32
) -> None:
    """csrc/moe/moe_add_pairs.hip: the shapes stand there."""


def sum_of_pairs(c: Call) -> Step:
    """The step; rows of shared experts are last."""
    defines = {"IN": IN_TYPES[c.x_dtype], **id_defines(c), "SHARED": c.E - c.R}
    return Step(
        moe_add_pairs_kernel,
        defines,
        256,
        (c.M, ceil(c.D, ADD_COLUMNS), 1),
        {"rows": "y", **chosen(c), "m": c.M, "n": c.D, "routed": c.R},
    )
