"""The best experts of tokens by their logits: what topk_softmax and grouped_topk share.

| kernel | what it takes |
|---|---|
| hip (csrc/moe/moe_topk.hip) | up to 1,024 experts, of which up to 16 are chosen |
| torch | whatever is left |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.steps import Step
from rfops.dispatch.strided import matrix_strides
from rfops.jit import compile_ops, f32, u32, u64
from rfops.jit.arch import WAVE

from .choosing import IN_BYTES, IN_TYPES, SCORINGS, choice_options, choose, refuses_choosing

THREADS = 256  # of a workgroup
# Tokens up to which each that has a wave has a workgroup too. Timing mode, MI355X, 256 experts: 64
# tokens take 3.39 us, by workgroups of four 3.40; 2,048 take 4.50, by four 4.16.
FEW_TOKENS = 256
EXPERTS_PER_LANE = 4  # where a wave has lanes enough
MAX_PART = 16  # lanes of a token that has no wave of its own: DPP moves values among these


@compile_ops(
    "moe_topk",
    kernel="moe_topk",
    variants=lambda _arch: [
        choosing_defines({"M": m, "E": 256, "K": 8}) for m in (FEW_TOKENS, FEW_TOKENS + 1)
    ],
)
def moe_topk_kernel(
    weights: torch.Tensor,
    ids: torch.Tensor,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    m: u32,
    experts: u32,
    row_stride: u64,
    column_stride: u32,
    scale: f32,
) -> None:
    """csrc/moe/moe_topk.hip: the shapes stand there."""


def pow2_ceil(n: int) -> int:
    return 1 << (n - 1).bit_length()


def threads_of(lanes: int, tokens: int) -> int:
    """Of a workgroup, where a token has so many lanes."""
    return WAVE if lanes == WAVE and tokens <= FEW_TOKENS else THREADS


def choosing_defines(call: Mapping[str, Any]) -> dict[str, int | str]:
    """Return the defines for a call's sizes and values by name; absent ones take defaults."""
    groups = call.get("num_groups", 1)
    lanes = max(pow2_ceil(ceil(call["E"], EXPERTS_PER_LANE)), pow2_ceil(call["K"]))
    lanes = WAVE if groups > 1 or lanes > MAX_PART else lanes
    experts_per_lane = ceil(call["E"] // groups, lanes // pow2_ceil(groups))
    bias = call.get("bias_dtype")
    return {
        "IN": IN_TYPES[call.get("logits_dtype", torch.float32)],
        "BIAS": IN_TYPES[bias or torch.float32],
        "THREADS": threads_of(lanes, call.get("M", 1)),
        "LANES": lanes,
        "EACH": experts_per_lane,
        "WHOLE": 0,
        "TOP_K": call["K"],
        "GROUPS": groups,
        "GROUPS_TAKEN": call.get("topk_groups", 1),
        "SCORING": SCORINGS[call.get("score", "softmax")],
        "ROUNDS": int(call.get("round_scores", False)),
        "HAS_BIAS": int(bias is not None),
        "RENORMALIZES": int(call.get("renormalize", False)),
    }


def choosing_defines_of(c: Call, **more: Any) -> dict[str, int | str]:
    """Return the defines for a call with its tensors: `logits`, without which they are contiguous,
    and `bias`; `more` has values that the call has under other names."""
    bias = c.values.get("bias_dtype", torch.float32) if c.has("bias") else None
    defines = choosing_defines({**c.sizes, **c.values, "bias_dtype": bias, **more})
    return {**defines, "WHOLE": int(_is_whole(c, defines))}


def _is_whole(c: Call, defines: Mapping[str, Any]) -> bool:
    """Whether each lane has all its experts, in neighbours that it can load at once."""
    each = int(defines["EACH"])
    if c.E != int(defines["LANES"]) * each:
        return False
    row, column = matrix_strides(c, "logits", c.E)
    for name, type_name in (("logits", "IN"), ("bias", "BIAS")):
        lane_bytes = each * IN_BYTES[str(defines[type_name])]
        factor = min(16, lane_bytes & -lane_bytes)  # what load_experts takes them as aligned to
        row_bytes = row * IN_BYTES[str(defines[type_name])] if name == "logits" else 0
        if c.align(name) % factor or row_bytes % factor:
            return False
    return column == 1


def topk_step(
    defines: Mapping[str, Any], c: Call, arguments: Mapping[str, str] | None = None
) -> Step:
    """The launch of moe_topk on `logits`, `bias`, `weights` and `ids` of a call; `arguments` has
    other names of these."""
    row_stride, column_stride = matrix_strides(c, "logits", c.E)
    threads = int(defines["THREADS"])
    numbers = {
        "m": c.M,
        "experts": c.E,
        "row_stride": row_stride,
        "column_stride": column_stride,
        "scale": float(c.values.get("scale", 1.0)),
        **({} if c.has("bias") else {"bias": None}),
        **(arguments or {}),
    }
    return Step(
        moe_topk_kernel, defines, threads, ceil(c.M, threads // int(defines["LANES"])), numbers
    )


class Hip(Kernel):
    """The HIP kernel, for up to 1,024 experts."""

    name = "hip"
    module = "moe_topk"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c) or refuses_choosing(c):
            return reason
        if 4 * c.E * matrix_strides(c, "logits", c.E)[1] >= MAX_BYTES:
            return "experts of a row lie farther apart than 32-bit offsets"
        return None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return choosing_defines_of(c)

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)
        lanes = int(defines["LANES"])
        scale = float(c.values.get("scale", 1.0))

        @functools.cache
        def launch_of(threads: int) -> Any:
            bound = moe_topk_kernel.bind(c.device, {**defines, "THREADS": threads}, c.arch)
            return bound.prepare((threads, 1, 1), self.arguments)

        launch_of(int(defines["THREADS"]))  # a call's own is built with its plan

        def run_of(m: int, experts: int, *_k: int) -> Run:
            row_stride, column_stride = matrix_strides(c, "logits", experts)
            threads = threads_of(lanes, m)
            run = launch_of(threads)(
                (ceil(m, threads // lanes), 1, 1),
                m=m,
                experts=experts,
                row_stride=row_stride,
                column_stride=column_stride,
                scale=scale,
            )
            return lambda results, logits, bias=None: run(*results, logits, bias)

        return run_of


class Torch(Kernel):
    """The reference in plain torch, for every device and call."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        values = dict(c.values)

        def run_of(_m: int, _experts: int, k: int) -> Run:
            def run(results: Any, logits: torch.Tensor, bias: torch.Tensor | None = None) -> None:
                chosen_pair = choose(logits, bias, k, **choice_options(values))
                for result, tensor in zip(results, chosen_pair, strict=True):
                    result.copy_(tensor)

            return run

        return run_of


def refuses_groups(c: Call, experts: int, k: int) -> tuple[str, str, str, str] | None:
    """Check groups, and top_k against the experts that may be chosen."""
    groups, num_taken = c.values.get("num_groups", 1), c.values.get("topk_groups", 1)
    if experts % groups:
        return "num_groups", f"a divisor of E={experts}", str(groups), "pass 1 for no groups"
    if num_taken > groups:
        return "topk_groups", f"at most num_groups={groups}", str(num_taken), "pass fewer"
    max_top_k = experts // groups * num_taken
    if k > max_top_k:
        expected = f"at most {max_top_k}, the experts that may be chosen"
        return "top_k", expected, str(k), "pass fewer"
    return None


class Choose(Op):
    """An op whose kernels these are."""

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        _m, experts, k = sizes
        return refuses_groups(c, experts, k)

    def is_empty(self, c: Call) -> bool:
        return bool(c.M == 0)

    def roundings(self, c: Call) -> int:
        """The sum of the exponentials twice, once in each order, a few for each of exp, division
        and scaling."""
        return 2 * int(c.E) + 32
