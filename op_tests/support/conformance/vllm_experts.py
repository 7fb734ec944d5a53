"""vLLM's call sites of experts: bf16, FP8 blocks, MXFP4 and MXFP8, shared and out of tree."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of

from . import reference
from .cases import (
    F32,
    I32,
    I64,
    U8,
    Experts,
    bf16_experts,
    choice,
    fp8_experts,
    mxfp4_experts,
    nan,
    normal,
    parameter,
    words,
)
from .engine_code import ToTheOriginal, World
from .vllm_common import MOE, vllm

MOE_CONFIG = {
    "hidden_dim_unpadded": 256,
    "intermediate_size_per_partition": 128,
    "tp_size": 1,
    "intermediate_size_per_partition_unpadded": 128,
    "intermediate_pad": None,
    "use_mxfp4_w4a4_dsv4": False,
    "swiglu_limit": None,
    "activation_situ_beta": None,
    "activation_situ_linear_beta": None,
    "experts_per_token": 2,
}


def quant_config(experts: Experts, **changes: Any) -> Any:
    result = dict.fromkeys(
        (
            "use_fp8_w8a8",
            "per_act_token_quant",
            "per_out_ch_quant",
            "use_mxfp4_w4a4",
            "use_mxfp4_w4a16",
        ),
        False,
    ) | dict.fromkeys(("block_shape", "a1_scale", "a2_scale", "w1_bias", "w2_bias"))
    return words(**result | {"w1_scale": experts.w1_scale, "w2_scale": experts.w2_scale} | changes)


def of_width(i: int) -> dict[str, int]:
    name = "intermediate_size_per_partition"
    return {name: i, f"{name}_unpadded": i}


FP8_BLOCKS = {"use_fp8_w8a8": True, "block_shape": [128, 128]}


def run_experts(
    world: World,
    experts: Experts,
    quantise: Any,
    m: int = 8,
    k: int = 2,
    config: dict[str, Any] | None = None,
    ids: Any = None,
    moe: dict[str, Any] | None = None,
    activation: str = "SILU",
    **changes: Any,
) -> None:
    """AiterExperts.apply, which every AITER MoE of vLLM goes through."""
    module = world.load(f"{MOE}.experts.rocm_aiter_moe")
    d, i = experts.exact[1].shape[1:]
    sizes = {"hidden_dim_unpadded": d} | of_width(i)
    self = object.__new__(module.AiterExperts)
    self.__dict__ |= {
        "quant_config": quant_config(experts, **(config or {})),
        "moe_config": words(**MOE_CONFIG | sizes | (moe or {})),
    }
    x = normal(m, d)
    weights, selected = choice(m, len(experts.exact[0]), k)
    ids = selected if ids is None else ids
    weights = changes.get("topk_weights", weights)
    out = nan(m, d)
    args = {
        "output": out,
        "hidden_states": x,
        "w1": experts.w1,
        "w2": experts.w2,
        "topk_weights": weights,
        "topk_ids": ids,
        "activation": world.load(f"{MOE}.activation").MoEActivation[activation],
        "global_num_experts": len(experts.exact[0]),
        "expert_map": None,
        "a1q_scale": None,
        "a2_scale": None,
        "workspace13": None,
        "workspace2": None,
        "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    } | changes
    module.AiterExperts.apply(self, **args)
    local = ids if changes.get("expert_map") is None else local_ids(ids, changes["expert_map"])
    if changes.get("expert_tokens_meta") is not None:
        rows = int(changes["expert_tokens_meta"].expert_num_tokens)
        out, x, weights, local = (t[:rows] for t in (out, x, weights, local))
    if changes.get("apply_router_weight_on_input"):
        x, weights = (x * weights.to(x.dtype)), torch.ones_like(weights)
    expected = reference.experts(x, *experts.exact, weights, local, quantise)
    reference.assert_rows(out, expected)


def local_ids(ids: Tensor, mask: Tensor) -> Tensor:
    """Numbers of the experts with a 1 in the mask, -1 of others."""
    is_local = mask > 0
    number = torch.where(is_local, is_local.cumsum(0) - 1, -1)
    return number[ids.long()]


@vllm(each=(1, 8, 70))
def experts_bf16(world: World, m: int) -> None:
    run_experts(world, bf16_experts(), None, m)


@vllm()
def experts_ids_of_64_bits(world: World) -> None:
    run_experts(world, bf16_experts(), None, ids=choice(8, 8, 2)[1].to(I64))


@vllm()
def experts_of_a_rank(world: World) -> None:
    """Expert parallelism: a mask over all experts and a last place that is always 0."""
    mask = torch.zeros(17, dtype=I32)
    mask[8:16] = 1
    weights, ids = choice(8, 16, 4)
    run_experts(world, bf16_experts(), None, ids=ids, topk_weights=weights, k=4, expert_map=mask)


@vllm()
def experts_of_some_rows(world: World) -> None:
    """Rows that a dispatch received, fewer than the tensor has."""
    meta = words(expert_num_tokens=torch.tensor([5], dtype=I32))
    run_experts(world, bf16_experts(), None, expert_tokens_meta=meta)


@vllm()
def experts_weights_on_the_input(world: World) -> None:
    run_experts(world, bf16_experts(), None, k=1, apply_router_weight_on_input=True)


@vllm(refused="activation")
def experts_gelu(world: World) -> None:
    run_experts(world, bf16_experts(), None, activation="GELU")


@vllm(each=(1, 8, 70))
def experts_fp8_blocks(world: World, m: int) -> None:
    fp8 = reference.as_fp8(fp8_of(world.arch))
    run_experts(world, fp8_experts(world.arch), fp8, m, config=FP8_BLOCKS)


@vllm(each=("per_Tensor", "per_Token"), refused="quant_type")
def experts_fp8_one_scale(world: World, kind: str) -> None:
    experts = fp8_experts(world.arch)
    experts.w1_scale = torch.ones(8, 1, 1 if kind == "per_Tensor" else 256)
    experts.w2_scale = torch.ones(8, 1, 1 if kind == "per_Tensor" else 256)
    config = {"use_fp8_w8a8": True, "per_out_ch_quant": kind == "per_Token"}
    run_experts(world, experts, None, config=config)


@vllm(archs=("gfx950",), each=(1, 8))
def experts_mxfp4(world: World, m: int) -> None:
    """Weights and activations in MXFP4, its activations rounded up as aiter does."""
    experts = mxfp4_experts()
    up = reference.as_mxfp4("up")
    run_experts(world, experts, up, m, config={"use_mxfp4_w4a4": True})


@vllm(archs=("gfx950",), refused="gate_mode")
def experts_mxfp4_interleaved(world: World) -> None:
    """gpt-oss: MXFP4 weights in another layout, whose activations stay bf16."""
    run_experts(world, mxfp4_experts(), None, config={"use_mxfp4_w4a16": True})


@vllm(archs=("gfx950",), refused="quant_dtype_a|gate_mode")
def experts_mxfp4_of_v41(world: World) -> None:
    run_experts(
        world,
        mxfp4_experts(),
        None,
        config={"use_mxfp4_w4a16": True},
        moe={"use_mxfp4_w4a4_dsv4": True},
    )


@vllm(archs=("gfx950",), refused="a1_scale")
def experts_quantised_before(world: World) -> None:
    """FP8 rows that a dispatch quantised, with their scales."""
    x, scale = reference.quant_fp8(normal(8, 256, dtype=F32), 1, False, fp8_of(world.arch))
    run_experts(
        world, fp8_experts(world.arch), None, config=FP8_BLOCKS, hidden_states=x, a1q_scale=scale
    )


@vllm(archs=("gfx950",), refused="swiglu_limit")
def experts_clamped(world: World) -> None:
    run_experts(world, bf16_experts(), None, moe={"swiglu_limit": 7.0})


@vllm(archs=("gfx950",), refused="bias1|gate_mode|activation")
def experts_of_gpt_oss(world: World) -> None:
    experts = mxfp4_experts()
    bias = {"w1_bias": torch.zeros(8, 512), "w2_bias": torch.zeros(8, 256)}
    run_experts(
        world, experts, None, activation="SWIGLUOAI", config={"use_mxfp4_w4a16": True} | bias
    )


@vllm(archs=("gfx950",), refused="gate_mode|w1")
def experts_mxfp8(world: World) -> None:
    """AiterMxfp8Experts: FP8 weights with e8m0 scales of 32."""
    module = world.load(f"{MOE}.experts.aiter_mxfp8_moe")
    experts = fp8_experts("gfx950")
    self = words(
        quant_config=words(gemm1_clamp_limit=None),
        w1_scale_val=torch.full((8 * 256, 8), 127, dtype=U8),
        w2_scale_val=torch.full((8 * 256, 4), 127, dtype=U8),
    )
    weights, ids = choice(8, 8, 2)
    silu = world.load(f"{MOE}.activation").MoEActivation.SILU
    module.AiterMxfp8Experts.apply(
        self, nan(8, 256), normal(8, 256), experts.w1, experts.w2, weights, ids, silu, 8, None,
        None, None, None, None, None, False,
    )  # fmt: skip


def heterogeneous(world: World, is_joint: bool) -> tuple[Any, list[Any], Experts]:
    """DeepSeek-V4's layer whose shared expert is the last of the weights."""
    module = world.load(
        "vllm.models.deepseek_v4.amd.model",
        rocm_aiter_fused_experts=world.load(
            f"{MOE}.experts.rocm_aiter_moe"
        ).rocm_aiter_fused_experts,
    )
    module._use_heterogeneous_fhmoe = lambda rows: is_joint
    experts = mxfp4_experts(e=9)
    routed = quant_config(experts, use_mxfp4_w4a4=True)
    routed.w1_scale, routed.w2_scale = experts.w1_scale[: 8 * 512], experts.w2_scale[: 8 * 256]
    layer = object.__new__(module.DeepseekV4HeterogeneousSharedRoutedExperts)
    layer.__dict__ |= dict(
        shared_w1=experts.w1[8:],
        shared_w2=experts.w2[8:],
        shared_w1_scale=experts.w1_scale[8 * 512 :],
        shared_w2_scale=experts.w2_scale[8 * 256 :],
        shared_expert_id=8,
        w13_weight=experts.w1,
        w2_weight=experts.w2,
        expert_map=None,
        _routed_quant_config=routed,
        moe_config=words(**MOE_CONFIG | of_width(256)),
        activation=world.load(f"{MOE}.activation").MoEActivation.SILU,
        quant_method=words(moe_quant_config=quant_config(experts, use_mxfp4_w4a4=True)),
        _ensure_moe_quant_config_init=lambda: None,
        _shared_expert_ref=lambda: torch.zeros_like,
    )
    weights, ids = choice(8, 8, 2)
    routing = torch.cat([weights, torch.ones(8, 1)], 1), torch.cat([ids, torch.full((8, 1), 8)], 1)
    return layer, [normal(8, 256), routing[0], routing[1].to(I32)], experts


@vllm(archs=("gfx950",), refused="shared_w1|shared_expert_id")
def experts_with_another_shared_one(world: World) -> None:
    layer, (x, weights, ids), _ = heterogeneous(world, True)
    type(layer).forward_modular(layer, x, weights, ids, None, None)


@vllm(archs=("gfx950",))
def experts_without_the_shared_one(world: World) -> None:
    """The routed experts as the first rows of all: views, of whole experts."""
    layer, (x, weights, ids), experts = heterogeneous(world, False)
    out = type(layer).forward_modular(layer, x, weights, ids, None, None)
    up = reference.as_mxfp4("up")
    expected = reference.experts(x, *experts.exact, weights[:, :2], ids[:, :2], up)
    reference.assert_rows(out, expected)


@vllm(refused="quant_type")
def experts_of_quark_w4a8(world: World) -> None:
    aiter_moe = world.load(f"{MOE}.experts.rocm_aiter_moe")
    module = world.load("vllm.model_executor.layers.quantization.quark.quark_moe")
    experts = fp8_experts(world.arch)
    config = quant_config(experts, use_fp8_w8a8=True, per_out_ch_quant=True)
    sizes = words(**MOE_CONFIG)
    layer = words(
        w13_weight=experts.w1,
        w2_weight=experts.w2,
        apply_router_weight_on_input=False,
        activation=aiter_moe.MoEActivation.SILU,
        moe_config=sizes,
        expert_mask=None,
    )
    weights, ids = choice(8, 8, 2)
    module.QuarkW4A8Fp8MoEMethod.apply(
        words(moe_quant_config=config), layer, normal(8, 256), weights, ids, None, None
    )


@vllm(archs=("gfx950",))
def experts_by_route(world: World) -> None:
    """Muse Spark: a row for each route, one expert each, weights of 1."""
    module = world.load(
        "vllm.models.muse_spark.amd.muse_moe_runner",
        take_expanded=lambda *_: None,
        rocm_aiter_fused_experts=world.load(
            f"{MOE}.experts.rocm_aiter_moe"
        ).rocm_aiter_fused_experts,
    )
    experts = mxfp4_experts()
    x, (weights, ids) = normal(6, 256), choice(6, 8, 2)
    route_outputs: list[Tensor] = []
    self = object.__new__(module.MuseSparkAiterExperts)
    self.__dict__ |= dict(
        quant_config=quant_config(experts, use_mxfp4_w4a4=True),
        moe_config=words(**MOE_CONFIG | of_width(256)),
        _unit_weights=lambda rows, k, device: torch.ones(rows, k),
        _park_route_output=route_outputs.append,
    )
    out = nan(6, 2, 256)
    silu = world.load(f"{MOE}.activation").MoEActivation.SILU
    module.MuseSparkAiterExperts.apply(
        self, out, x, experts.w1, experts.w2, weights, ids, silu, 8, None, None, None, None, None,
        None, False,
    )  # fmt: skip
    rows = x.repeat_interleave(2, 0)
    one = torch.ones(12, 1)
    expected = reference.experts(
        rows, *experts.exact, one, ids.view(-1, 1), reference.as_mxfp4("up")
    )
    reference.assert_rows(route_outputs[0].reshape(12, 256), expected)


def original_kernel(**_: Any) -> Tensor:
    raise ToTheOriginal("UnquantizedFusedMoEMethod.forward_native")


class SharedExperts:
    """What vLLM's runner computes by itself before and after the routed experts."""


@vllm(each=("alone", "with shared experts"))
def experts_out_of_tree(world: World, label: str) -> None:
    """UnquantizedFusedMoEMethod without aiter, replaced through vLLM's registry. The runner
    computes shared experts by itself."""
    run_out_of_tree(world, label)


@vllm(refused="shared experts")
def experts_out_of_tree_with_overlap(world: World) -> None:
    """A dispatch to other ranks, during which the kernel computes the shared experts."""
    run_out_of_tree(world, "with shared experts", overlaps=True)


def run_out_of_tree(world: World, label: str, overlaps: bool = False) -> None:
    name = "unquantized_fused_moe_method"
    module = world.load(f"{MOE}.{name}")
    from rfops.plugins import vllm_moe

    vllm_moe.MOE.call = world.watch(  # type: ignore[method-assign]
        vllm_moe.MOE, functools.partial(type(vllm_moe.MOE).call, vllm_moe.MOE)
    )
    base = module.UnquantizedFusedMoEMethod
    wrapped_class = vllm_moe.method_over(base)
    method = object.__new__(wrapped_class)
    method.unquantized_backend = words(name="TRITON")
    method.moe = words(has_bias=False)
    method.mk_can_overlap_shared_experts = overlaps
    method.moe_kernel = words(apply=original_kernel)
    method.forward = method.forward_cuda if label == "alone" else method.forward_native
    w1, w2 = normal(8, 256, 256) / 16, normal(8, 256, 128) / 11.3
    layer = words(
        w13_weight=parameter(w1, False),
        w2_weight=parameter(w2, False),
        expert_map=None,
        activation=world.load(f"{MOE}.activation").MoEActivation.SILU,
        apply_router_weight_on_input=False,
    )
    x, (weights, ids) = normal(8, 256), choice(8, 8, 2)
    shared_experts = SharedExperts() if label == "with shared experts" else None
    out = base.apply(
        method, layer, x, weights, ids, shared_experts, None if shared_experts is None else x
    )
    expected = reference.experts(x, w1.double(), w2.double(), weights, ids, None)
    reference.assert_rows(out, expected)
