"""The sum of each token's rows of its experts, where rows are ordered by token."""

from __future__ import annotations

from torch import Tensor

from rfops.dispatch.kernel import Call
from rfops.dispatch.steps import Step
from rfops.jit import compile_ops, u32

from .bf16.hip import row_sum


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
    """The weighted sum of each token's rows of y, those of shared experts last, in that order."""
    return row_sum(c, moe_add_pairs_kernel, {"m": c.M})
