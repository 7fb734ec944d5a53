"""vLLM's call sites of linear layers, quantisers and dispatch: FP8 blocks and MXFP4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.quantization.mxfp4 import quant_mxfp4_ref

from . import reference, rows
from .cases import (
    BF16,
    U8,
    assert_fp8,
    assert_mxfp4,
    choice,
    fp8_weight,
    mxfp4_rows,
    mxfp4_weight,
    nan,
    normal,
    parameter,
    shuffled,
    words,
)
from .engine_code import World
from .vllm_common import MOE, ops, vllm


@vllm(each=(("triton", 1), ("triton", 33), ("ck", 3)))
def fp8_linear(world: World, form: tuple[str, int]) -> None:
    """Of DeepSeek's kv_b_proj in proportion, K of several blocks, N that is no multiple of 128."""
    module = world.load("vllm.model_executor.kernels.linear.scaled_mm.aiter")
    w, w_scale, exact = fp8_weight(world.arch, 576, 512)
    x, x_scale = reference.quant_fp8(normal(form[1], 512), 1, False, fp8_of(world.arch))
    self = words(
        config=words(out_dtype=BF16),
        use_bpreshuffle=False,
        use_triton=form[0] == "triton",
        weight_group_shape=(128, 128),
    )
    kernel = module.AiterFp8BlockScaledMMKernel.apply_block_scaled_mm
    op = "triton_gemm_a8w8_blockscale" if self.use_triton else ".gemm_a8w8_blockscale"
    world.covers("AiterFp8BlockScaledMMKernel", op)
    out = kernel(self, x, parameter(w, False), x_scale, parameter(w_scale, False))
    assert out.dtype == BF16
    reference.assert_product(out, reference.fp8_rows(x, x_scale), exact)


def run_shuffled(world: World, call: Callable[[Tensor, Tensor, Tensor], Tensor], rows: int) -> None:
    """Activations quantised with a column-major scale, weights shuffled."""
    w, w_scale, exact = fp8_weight(world.arch, 256, 512)
    x = normal(rows, 512)
    out = call(x, parameter(shuffled(w), False), w_scale)
    result = reference.quant_fp8(x, 1, False, fp8_of(world.arch))
    reference.assert_product(out, reference.fp8_rows(*result), exact)


@vllm(
    each=(
        ("deepseek_v4", "DeepseekV4ROCMAiterMLAAttention", 5),
        ("deepseek_v4", "DeepseekV4ROCMAiterMLAAttention", 1),
        ("deepseek_v41", "DeepseekV41ROCMAiterMLAAttention", 5),
    )
)
def fp8_linear_shuffled(world: World, form: tuple[str, str, int]) -> None:
    package, cls, rows = form
    module = world.load(f"vllm.models.{package}.amd.rocm")
    kernel = getattr(module, cls)._bpre_attn_gemm
    run_shuffled(world, lambda x, w, s: kernel(words(), w, s, x, False), rows)


@vllm()
def fp8_mlp_shuffled(world: World) -> None:
    module = world.load("vllm.models.deepseek_v4.amd.model")

    def call(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        self = words(
            _gateup_scale=scale,
            gate_up_proj=words(weight=w),
            act_fn=lambda y: y,
            down_proj=lambda y: (y, None),
        )
        result: Tensor = module.DeepseekV4MLP.forward(self, x)
        return result

    run_shuffled(world, call, 5)


@vllm()
def fp8_quantiser(world: World) -> None:
    module = world.load("vllm.model_executor.layers.quantization.input_quant_fp8")
    shape = words(
        is_per_tensor=lambda: False, is_per_token=lambda: False, is_per_group=lambda: True
    )
    self = words(use_aiter=True, group_shape=shape, group_size=128)
    x = normal(5, 512)
    assert_fp8(module.QuantFP8.forward_hip(self, x), x, world.arch)


@vllm()
def fp8_quantiser_of_the_compiler(world: World) -> None:
    """The custom op that vLLM's fusion pass puts into graphs."""
    module = world.load("vllm.compilation.passes.fusion.matcher_utils")
    shape = words(
        is_per_tensor=lambda: False, is_per_token=lambda: False, is_per_group=lambda: True, col=128
    )
    key = words(scale=words(group_shape=shape, static=False))
    x = normal(5, 512)
    matcher = object.__new__(module.MatcherQuantFP8)
    world.covers("MatcherQuantFP8.__init__", "get_group_quant_op")
    module.MatcherQuantFP8.__init__(matcher, key, match_rocm_aiter=True, enabled=True)
    world.covers("rocm_aiter_ops.get_group_quant_op", "group_fp8_quant")
    assert_fp8(matcher.QUANT_OP(x, 128), x, world.arch)


@vllm(each=("static tensor", "tensor", "token"))
def fp8_quantisers_of_rows(world: World, kind: str) -> None:
    """QuantFP8 by aiter, through vLLM's custom ops."""
    module = world.load("vllm.model_executor.layers.quantization.input_quant_fp8")
    is_token = kind == "token"
    shape = words(
        is_per_tensor=lambda: not is_token,
        is_per_token=lambda: is_token,
        is_per_group=lambda: False,
    )
    self = words(
        use_aiter=True, group_shape=shape, is_group_quant=False, use_per_token_if_dynamic=is_token
    )
    x, scale = normal(5, 512), torch.full((1,), 0.04) if kind.startswith("static") else None
    payload, new_scale = module.QuantFP8.forward_hip(self, x, scale)
    rows.assert_fp8(
        payload if is_token else payload.view(1, -1),
        new_scale.view(-1, 1),
        x.double() if is_token else x.double().view(-1),
    )


@vllm()
def fp8_queries_of_mla(world: World) -> None:
    """MLAAttention.forward_impl's own call."""
    q, scale = normal(5, 4, 128), torch.full((1,), 0.04)
    site = world.site("MLAAttention.forward_impl", "rocm_aiter_per_tensor_quant")
    ops(world)
    out = nan(5, 512, dtype=fp8_of(world.arch))
    world.call(site, torch.ops.vllm.rocm_aiter_per_tensor_quant, out, q.view(5, -1), scale, False)
    rows.assert_fp8(out.view(1, -1), scale.view(1, 1), q.double().view(-1))


MORI = {
    "blocks": ("is_block_quantized", ""),
    "token": ("is_per_act_token", "another"),
    "tensor": ("is_per_tensor", "another"),
    "fp4": ("", "another"),
}


def mori(world: World, kind: str) -> None:
    """Quantisation before a dispatch to other ranks."""
    module = world.load(f"{MOE}.prepare_finalize.mori")
    flags = dict.fromkeys(("is_block_quantized", "is_per_act_token", "is_per_tensor"), False)
    config = words(**flags | {MORI[kind][0] or "unused": True}, a1_scale=torch.ones(1))
    sent: list[Any] = []

    def dispatch(*args: Any) -> tuple[Any, ...]:
        sent.extend(args)
        return args[0], args[1], args[2], args[3], torch.ones(1)

    self = object.__new__(module.MoriPrepareAndFinalize)
    self.__dict__ |= dict(
        use_fp8_dispatch=kind != "fp4",
        use_fp4_dispatch=kind == "fp4",
        mori_op=words(dispatch=dispatch),
    )
    x, (weights, ids) = normal(5, 512), choice(5, 8, 2)
    type(self).prepare(self, x, weights, ids, 8, None, False, config)
    assert_fp8((sent[0], sent[2]), x, world.arch)


@vllm()
def dispatch_fp8_blocks(world: World) -> None:
    mori(world, "blocks")


@vllm(each=("token", "tensor", "fp4"), refused="another quantiser")
def dispatch_of_other_quantisers(world: World, kind: str) -> None:
    mori(world, kind)


# ---------------------------------------------------------------- MXFP4


@vllm(
    archs=("gfx950",),
    each=(("preshuffle", 1), ("preshuffle", 40), ("asm", 5), ("asm", 40), ("triton", 5)),
)
def mxfp4_linear(world: World, form: tuple[str, int]) -> None:
    """AiterMxfp4LinearKernel, after process_weights_after_loading."""
    kind, m = form
    module = world.load("vllm.model_executor.kernels.linear.mxfp4.aiter", gemm_afp4wfp4=None)
    tuned = staticmethod(lambda n, k: kind == "preshuffle")
    ops(world).is_triton_gemm_afp4wfp4_presh_ws_tuned = tuned
    w, scale, exact = mxfp4_weight(256, 512)
    is_asm = kind != "triton"
    stored = (shuffled(w), rfops.shuffle_scale(scale).data) if is_asm else (w, scale.T.contiguous())
    layer = words(weight=parameter(stored[0], is_asm), weight_scale=parameter(stored[1], False))
    self = words(use_asm_gemm=is_asm, out_dtype=BF16)
    x = normal(m, 512)
    out = module.AiterMxfp4LinearKernel.apply_weights(self, layer, x)
    reference.assert_product(out, mxfp4_rows(x), exact)


@vllm(archs=("gfx950",), each=(True, False))
def mxfp4_linear_of_a_wrapper(world: World, is_quantised: bool) -> None:
    w, scale, exact = mxfp4_weight(256, 512)
    x = normal(5, 512)
    scale_arguments = {}
    rows: Tensor = x
    if is_quantised:
        payload, x_scale = quant_mxfp4_ref(x, "even")
        rows, scale_arguments = payload.view(U8), {"x_scales": x_scale.view(U8)}
    function = ops(world).triton_fp4_gemm_dynamic_quant
    out = function(rows, w, scale.T.contiguous(), BF16, **scale_arguments)
    reference.assert_product(out, mxfp4_rows(x), exact)


@vllm(each=("quark", "muse"))
def mxfp4_quantiser(world: World, engine_name: str) -> None:
    """Weights of experts, quantised when they are loaded."""
    x = normal(4, 64, 256)
    if engine_name == "quark":
        module = world.load("vllm.model_executor.layers.quantization.quark.utils")
        assert_mxfp4(module.quark_quantize_weight_to_mxfp4(x), x)
    else:
        module = world.load("vllm.models.muse_spark.amd.muse_moe_runner", OCP_MX_BLOCK_SIZE=32)
        assert_mxfp4(module._quantize_experts_to_mxfp4(x, 3), x)
