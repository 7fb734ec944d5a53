"""moe_topk_align: a token's best experts, and the chosen rows sorted by expert.

weights, ids = those of grouped_topk, or with score="softmax" and one group of topk_softmax
sorted_token_ids, expert_ids, num_tokens_post_padded = moe_align_block_size(ids, block_size, E)

| kernel | what it takes |
|---|---|
| hip (csrc/moe/moe_topk_align.hip) | up to 1,024 rows M * top_k, in one launch |
| steps (moe_topk.hip, then moe_align_block_size.hip) | any number of rows |
| torch | whatever is left |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.steps import Step, run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.jit import compile_ops, f32, u32, u64
from rfops.jit.arch import WAVE

from .align_block_size import OP as ALIGN
from .align_block_size import Aligned, align_by_torch, align_steps, moe_align_block_size_ref
from .experts import layout_sizes
from .kernels.topk.choosing import choice_options, choose
from .kernels.topk.kernels import Choose, Hip, choosing_defines, topk_step

__all__ = ["moe_topk_align", "moe_topk_align_ref"]

THREADS = 1024  # of a workgroup, each of which sorts one row
# Waves of a workgroup that choose: one for each SIMD; two where a single workgroup then has all
# tokens, because the arrival of several costs more.
ROUTING_WAVES = 4
PASSED = 32  # where ids are in the tensor that counts arrivals


class RoutedRows(NamedTuple):
    """The results of moe_topk_align."""

    weights: torch.Tensor
    ids: torch.Tensor
    sorted_token_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_post_padded: torch.Tensor


@compile_ops(
    "moe_topk_align",
    kernel="moe_topk_align",
    variants=lambda _arch: [
        {**_choosing({"E": 256, "K": 8}), "ROUTING_WAVES": waves}
        for waves in (ROUTING_WAVES, 2 * ROUTING_WAVES)
    ],
)
def moe_topk_align_kernel(
    weights: torch.Tensor,
    ids: torch.Tensor,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    m: u32,
    experts: u32,
    row_stride: u64,
    column_stride: u32,
    scale: f32,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    expert_map: torch.Tensor | None,
    arrivals: torch.Tensor | None,
    is_sorted_by_local: u32,
    block: u32,
    num_slots: u32,
    num_blocks: u32,
    num_groups: u32,
) -> None:
    """csrc/moe/moe_topk_align.hip: the shapes stand there."""


def _choosing(call: Mapping[str, Any]) -> dict[str, int | str]:
    """The constants of the choice; moe_topk's number of threads is its own."""
    defines = choosing_defines(call)
    del defines["THREADS"]
    return defines


class OneLaunch(Hip):
    """The choice and the layout in one launch."""

    name = "hip"
    module = "moe_topk_align"
    limits = "M"

    def unsupported_reason(self, c: Call) -> str | None:
        if c.M * c.K > THREADS:
            return f"{c.M * c.K} rows are more than the {THREADS} threads that sort them"
        return super().unsupported_reason(c)

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        defines = dict(super().defines(c, config))
        tokens_per_wave = WAVE // int(defines["LANES"])
        is_alone = c.M <= 2 * ROUTING_WAVES * tokens_per_wave
        del defines["THREADS"]
        return {**defines, "ROUTING_WAVES": ROUTING_WAVES * (2 if is_alone else 1)}

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(m: int, experts: int, k: int) -> Run:
            call = c.with_sizes(M=m, E=experts, K=k)
            defines = self.defines(call, config)
            tokens = int(defines["ROUTING_WAVES"]) * WAVE // int(defines["LANES"])
            groups = max(1, ceil(m, tokens))
            row_stride, column_stride = matrix_strides(c, "logits", experts)
            num_slots, blocks = layout_sizes(m * k, c.block_size, experts, c.pad_sorted_ids)
            numbers = {
                "m": m,
                "experts": experts,
                "row_stride": row_stride,
                "column_stride": column_stride,
                "scale": float(c.scale),
                "is_sorted_by_local": int(c.ignore_invalid_experts and c.has("expert_map")),
                "block": c.block_size,
                "num_slots": num_slots,
                "num_blocks": blocks,
                "num_groups": groups,
                **({} if groups > 1 else {"arrivals": None}),
            }
            step = Step(moe_topk_align_kernel, defines, THREADS, groups, numbers)
            zeros = {"arrivals": PASSED + m * k} if groups > 1 else None
            run = run_steps(c.device, self.arguments, [step], arch=c.arch, zeros=zeros)
            return lambda results, *inputs: run(*results, *inputs)

        return run_of


class Steps(Hip):
    """The choice, then the layout."""

    name = "steps"
    module = "moe_topk"
    more_modules = ("moe_align_block_size",)

    def unsupported_reason(self, c: Call) -> str | None:
        rows = ALIGN.call_of(c.arch, c.cu_num, rows=c.M * c.K, E=c.E, block_size=c.block_size)
        return super().unsupported_reason(c) or ALIGN.kernels["align"].unsupported_reason(rows)

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(m: int, experts: int, k: int) -> Run:
            call = c.with_sizes(M=m, E=experts, K=k)
            choice = [topk_step(self.defines(call, config), call)] if m else []
            layout, workspace = align_steps(call, m * k, experts, torch.int32, "ids")
            run = run_steps(
                c.device, self.arguments, [*choice, *layout], arch=c.arch, workspace=workspace
            )
            return lambda results, *inputs: run(*results, *inputs)

        return run_of


class Torch(Kernel):
    """The references in plain torch, for every device and call."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(_m: int, experts: int, k: int) -> Run:
            def run(
                results: RoutedRows,
                logits: torch.Tensor,
                bias: torch.Tensor | None = None,
                expert_map: torch.Tensor | None = None,
            ) -> None:
                weights, ids, *layout = results
                chosen_pair = choose(logits, bias, k, **choice_options(c.values))
                for result, tensor in zip((weights, ids), chosen_pair, strict=True):
                    result.copy_(tensor)
                align_by_torch(c, experts, Aligned(*layout), ids, expert_map)

            return run

        return run_of


class _TopkAlign(Choose):
    def result_sizes(self, c: Call) -> Mapping[str, int]:
        num_slots, blocks = layout_sizes(c.M * c.K, c.block_size, c.E, c.pad_sorted_ids)
        return {**c.sizes, "slots": num_slots, "blocks": blocks}

    def is_empty(self, c: Call) -> bool:
        return False  # without rows the layout says so

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """With a map, every other expert is here."""
        local = torch.arange(c.E, dtype=torch.int32, device=c.device)
        local_map = torch.where(local % 2 == 0, local // 2, -1)
        return {"expert_map": local_map} if c.has("expert_map") else {}

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        """Groups, and the number of slots."""
        if refusal := super().unsupported_reason(c, *sizes):
            return refusal
        m, experts, k = sizes
        reason = ALIGN.unsupported_reason(c, m * k, experts)
        return ("logits", *reason[1:]) if reason else None


OP = _TopkAlign(
    "moe_topk_align",
    """
    logits: bf16|f16|f32[M, E] strided
    bias: bf16|f16|f32[E]?
    expert_map: i32[E]?
    block_size: int >= 1
    top_k: K >= 1
    num_groups: int >= 1
    topk_groups: int >= 1
    renormalize: bool
    score: softmax|sigmoid|sqrtsoftplus
    scale: float
    round_scores: bool
    pad_sorted_ids: bool
    ignore_invalid_experts: bool
    -> weights: f32[M, K] new
    -> ids: i32[M, K] new
    -> sorted_token_ids: i32[slots] new
    -> expert_ids: i32[blocks] new
    -> num_tokens_post_padded: i32[1] new
    """,
    sizes="M E K",
    positive="E",
    kernels=(OneLaunch(), Steps(), Torch()),
    max_bytes=None,
    usual={"scale": 1.0, "block_size": 16},
    shapes={
        # DeepSeek-V3, Kimi K2. Timing mode samples one XCD of eight: with 33 to 36 tokens, and 65
        # to 68, the workgroup that sorts is among those; with 16 or 64 its time is left out.
        "published": grid(
            "E K num_groups topk_groups",
            [(256, 8, 8, 4), (384, 8, 1, 1)],
            M=(1, 8, 36, 65),
            bias=(True,),
            renormalize=(True,),
            score=("sigmoid",),
            scale=(2.5,),
        ),
        "softmax": grid("E K", [(128, 8), (128, 4)], M=(1, 65, 512), renormalize=(True,)),
    },
    hints={
        "logits": "convert them first",
        "bias": "pass one number for each expert, or None",
        "expert_map": "pass the local expert of each global one, or -1",
        "E": "pass one expert at least",
    },
    result=RoutedRows,
)


def moe_topk_align(
    logits: torch.Tensor,
    top_k: int,
    block_size: int,
    num_groups: int = 1,
    topk_groups: int = 1,
    bias: torch.Tensor | None = None,
    renormalize: bool = False,
    *,
    score: str = "softmax",
    scale: float = 1.0,
    round_scores: bool = False,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> RoutedRows:
    """The top_k experts of each token, and the M * top_k rows sorted by expert in vLLM's layout.

    Parameters
    ----------
    logits : [M, E] bfloat16, float16 or float32, any strides. NaN counts as the least number, an
        infinity as the largest or least: ids are always top_k different ints from 0 to E - 1.
    top_k : of E.
    block_size : rows of a block; each expert's rows are padded to a multiple of it.
    num_groups, topk_groups, renormalize, score, scale : as of grouped_topk.
    bias : [E] bfloat16, float16 or float32, or None, added to the scores for the choice alone.
    round_scores : scores are rounded to the logits' dtype before they are compared.
    expert_map : [E] int32, the local expert of a global one, or -1; or None.
    pad_sorted_ids, ignore_invalid_experts : as of moe_align_block_size.

    Returns
    -------
    weights, ids : [M, top_k] float32 and int32, the best first; ids are global experts.
    sorted_token_ids, expert_ids, num_tokens_post_padded : what moe_align_block_size returns for
        ids; row t * top_k + j is token t's j-th expert.

    Deterministic, without synchronisation, and can be captured into a graph. Raises ValueError for
    what does not fit, and what building the kernel raises.

    Source: grouped_topk's, and vLLM's moe_align_block_size.
    """
    call: Callable[..., RoutedRows] = OP.traced if is_dynamo_compiling() else OP.call
    return call(
        logits,
        bias,
        expert_map,
        block_size,
        top_k,
        num_groups,
        topk_groups,
        renormalize,
        score,
        scale,
        round_scores,
        pad_sorted_ids,
        ignore_invalid_experts,
    )


moe_topk_align.supports = OP.supports  # type: ignore[attr-defined]


def moe_topk_align_ref(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    expert_map: torch.Tensor | None,
    block_size: int,
    top_k: int,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = False,
    score: str = "softmax",
    scale: float = 1.0,
    round_scores: bool = False,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> RoutedRows:
    """`moe_topk_align` in plain fp32 torch and Python, on any device, of logits [M, E].

    Returns RoutedRows: weights float32, all others int32. Raises torch's RuntimeError for what does
    not fit, such as more groups than experts.

    Source: grouped_topk's, and vLLM's moe_align_block_size.
    """
    weights, ids = choose(
        logits,
        bias,
        top_k,
        num_groups=num_groups,
        topk_groups=topk_groups,
        renormalize=renormalize,
        score=score,
        scale=scale,
        round_scores=round_scores,
    )
    experts = logits.shape[1]
    layout = moe_align_block_size_ref(
        ids, block_size, experts, expert_map, pad_sorted_ids, ignore_invalid_experts
    )
    return RoutedRows(weights, ids, *layout)


OP.reference = moe_topk_align_ref
