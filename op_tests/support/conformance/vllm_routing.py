"""vLLM's call sites of routing: top-k experts of tokens, and rows by expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import reference
from .cases import (
    BF16,
    F32,
    I32,
    I64,
    choice,
    normal,
    words,
)
from .engine_code import World
from .vllm_common import MOE, ops, vllm


def router(world: World, name: str) -> Any:
    return world.load(f"{MOE}.router.{name}")


def with_moe_enabled(world: World, gating: bool = False, has_shared: bool = False) -> None:
    ops(world).is_fused_moe_enabled = staticmethod(lambda: True)
    ops(world).is_topk_gating_enabled = staticmethod(lambda: gating)
    ops(world).is_fusion_moe_shared_experts_enabled = staticmethod(lambda: has_shared)


@vllm(each=("topk_softmax", "topk_gating"))
def softmax(world: World, op: str) -> None:
    """Qwen3's 128 experts, 8 a token."""
    with_moe_enabled(world, gating=op == "topk_gating")
    world.covers("dispatch_topk_softmax_func", op)
    logits = normal(6, 128)
    result = router(world, "fused_topk_router").fused_topk(normal(6, 64), logits, 8, True)
    reference.assert_chosen(result[0], result[1], reference.softmax_topk(logits, 8, True))


@vllm(refused="ids must be int32")
def softmax_ids_of_64_bits(world: World) -> None:
    """As the dispatch of expert parallelism wants ids."""
    with_moe_enabled(world)
    logits = normal(6, 128)
    result = router(world, "fused_topk_router").fused_topk(normal(6, 64), logits, 8, True, I64)
    reference.assert_chosen(result[0], result[1], reference.softmax_topk(logits, 8, True))


@vllm()
def fused_topk_op(world: World) -> None:
    logits = normal(6, 128)
    result = ops(world).fused_topk(normal(6, 64), logits, 8, True)
    reference.assert_chosen(*result, reference.softmax_topk(logits, 8, True))


@vllm(each=("biased", "biased, bf16", "softmax", "sigmoid", "shared"))
def groups(world: World, form: str) -> None:
    """DeepSeek-V3's 256 experts in 8 groups, 4 of them, 8 experts a token."""
    with_moe_enabled(world, has_shared=form == "shared")
    module = world.load(f"{MOE}.experts.rocm_aiter_moe")
    router(world, "grouped_topk_router").rocm_aiter_grouped_topk = module.rocm_aiter_grouped_topk
    logits = normal(6, 256, dtype=BF16 if form == "biased, bf16" else F32)
    bias = None if form in ("softmax", "sigmoid") else normal(256, dtype=logits.dtype) / 4
    score = "softmax" if form == "softmax" else "sigmoid"
    num_shared = 1 if form == "shared" else 0
    module.aiter_topK_meta_data = torch.zeros(10, 9), torch.full((10, 9), 256, dtype=I32)
    self = words(
        topk=8,
        renormalize=True,
        num_expert_group=8,
        topk_group=4,
        scoring_func=score,
        routed_scaling_factor=2.5,
        num_fused_shared_experts=num_shared,
    )
    grouped = router(world, "grouped_topk_router").GroupedTopk.forward_hip
    weights, ids = grouped(self, normal(6, 64), logits, bias)
    expected = reference.grouped_topk(logits, bias, 8, 8, 4, True, 2.5, score)
    reference.assert_chosen(weights[:, :8], ids[:, :8], expected)
    if num_shared:
        assert weights.shape == (6, 9) and (ids[:, 8] == 256).all() and (weights[:, 8] == 0).all()


@vllm()
def bias_without_groups(world: World) -> None:
    run_bias(world, I32)


@vllm(refused="ids must be int32")
def bias_ids_of_64_bits(world: World) -> None:
    run_bias(world, I64)


def run_bias(world: World, dtype: torch.dtype) -> None:
    with_moe_enabled(world)
    logits, bias = normal(6, 128, dtype=F32), normal(128, dtype=F32) / 4
    function = router(world, "fused_topk_bias_router").fused_topk_bias
    weights, ids = function(
        normal(6, 64), logits, "sigmoid", bias, 8, True, dtype, routed_scaling_factor=2.5
    )
    expected = reference.grouped_topk(logits, bias, 8, 4, 4, True, 2.5)
    reference.assert_chosen(weights, ids, expected)


# ---------------------------------------------------------------- rows by expert

ALIGN = {
    "_prepare_expert_assignment": (16, False),
    "HummingIndexedExperts.prepare": (16, True),
    "fused_marlin_moe": (8, True),
    "fused_moe_mxfp8_native": (64, True),
    "Nvfp4QuantizationEmulationTritonExperts.apply": (16, False),
    "Rdna3WNA16Experts.apply": (1, False),
    "TritonWNA16Experts.apply": (16, False),
}


@vllm(each=tuple(ALIGN))
def align(world: World, function: str) -> None:
    run_align(world, function, None)


@vllm(each=tuple(ALIGN))
def align_of_a_rank(world: World, function: str) -> None:
    expert_map = torch.full((16,), -1, dtype=I32)
    expert_map[4:12] = torch.arange(8, dtype=I32)
    run_align(world, function, expert_map)


def run_align(world: World, function: str, expert_map: Tensor | None) -> None:
    """The call alone: the functions around it launch kernels of vLLM."""
    block, ignore = ALIGN[function]
    import vllm.model_executor.layers.fused_moe.moe_align_block_size as module

    ids = choice(9, 16, 4)[1]
    for site in world.sites(function, "moe_align_block_size"):
        values = {
            "topk_ids": ids,
            "expert_map": expert_map,
            "ignore_invalid_experts": ignore,
            "return_scatter_idx": False,
        }
        result = world.call(
            site,
            module.moe_align_block_size,
            ids,
            block,
            16,
            expert_map,
            names=values | {"block_size": block, "num_experts": 16},
        )
        reference.assert_aligned(result, ids, block, 16, expert_map)


@vllm(refused="return_scatter_idx")
def align_with_the_inverse(world: World) -> None:
    """Humming's layout of routes asks for the inverse of the order too."""
    import vllm.model_executor.layers.fused_moe.moe_align_block_size as module

    ids = choice(9, 16, 4)[1]
    (site,) = (
        s
        for s in world.sites("HummingIndexedExperts", "moe_align_block_size")
        if "return_scatter_idx" in s.form
    )
    world.call(
        site,
        module.moe_align_block_size,
        names={
            "topk_ids": ids,
            "block_size": 16,
            "num_experts": 16,
            "expert_map": None,
            "ignore_invalid_experts": True,
            "return_scatter_idx": True,
        },
    )
