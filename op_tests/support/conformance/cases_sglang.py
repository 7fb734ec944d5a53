"""SGLang 0.5.23's call sites: its own functions, called with tensors as its layers have them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.quantization.mxfp4 import quant_mxfp4_ref

from . import reference, rows
from .cases import (
    BF16,
    F32,
    I32,
    METADATA,
    SCALE,
    U8,
    Experts,
    assert_fp8,
    assert_mxfp4,
    bf16_experts,
    case,
    choice,
    fp8_experts,
    fp8_weight,
    keys_of,
    mxfp4_experts,
    mxfp4_rows,
    mxfp4_weight,
    normal,
    paged,
    parameter,
    shuffled,
    starts,
    words,
)
from .engine_code import World, e8m0_shuffle, per_1x32_f4_quant_hip

LAYERS = "sglang.srt.layers"
QUANT = f"{LAYERS}.quantization"
__all__ = ["prepare", "rows"]
sglang = functools.partial(case, "sglang")


def prepare(world: World) -> None:
    """What SGLang's modules ask when they are imported."""
    for module in ("sglang.srt.utils", "sglang.srt.utils.common"):
        utils = world.stub(module)
        utils.is_hip = lambda: True
        utils.get_bool_env_var = lambda name, default="false": name == "SGLANG_USE_AITER"
        utils.get_int_env_var = lambda name, default=0: default
        utils.is_gfx95_supported = lambda: world.arch == "gfx950"
        utils.is_gfx942_supported = lambda: world.arch == "gfx942"
        utils.get_hip_version = lambda: (7, 2, 0)
        for name in ("is_cuda", "is_npu", "is_xpu", "is_musa", "is_cpu", "is_gfx1250_supported"):
            setattr(utils, name, lambda: False)
        utils.direct_register_custom_op = world.custom_op
    for module in (f"{QUANT}.fp8_kernel", "sglang.kernels.ops.quantization.fp8_kernel"):
        kernel = world.stub(module)
        kernel.fp8_dtype, kernel.is_fp8_fnuz = fp8_of(world.arch), lambda: world.arch == "gfx942"


# ---------------------------------------------------------------- attention


def radix(heads: int = 16, **kwargs: Any) -> Any:
    return words(
        **{
            "tp_q_head_num": heads,
            "qk_head_dim": 576,
            "head_dim": 576,
            "v_head_dim": 512,
            "scaling": SCALE,
            "logit_cap": 0.0,
            "layer_id": 0,
            "k_scale": None,
        }
        | kwargs
    )


def backend(world: World, p: Any, **changes: Any) -> tuple[Any, Any]:
    """AiterAttnBackend with the metadata of a step."""
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    module.prefer_mla_gluon_decode = lambda **_: False
    # Slot 0 belongs to padding: SGLang zeroes it before the persistent kernel.
    p.kv, p.kv_indices = torch.cat([p.kv[:1], p.kv]), p.kv_indices + 1
    rows, heads = len(p.lens), p.q.shape[1]
    meta = words(
        qo_indptr=starts(rows, p.qo_len),
        kv_indptr=p.kv_indptr,
        kv_indices=p.kv_indices,
        kv_last_page_len=torch.ones(rows, dtype=I32),
        max_q_len=p.qo_len,
        work_metadata=METADATA["work_meta_data"],
        global_kv_indptr=p.kv_indptr,
        cprr_kernel_heads=heads,
        cprr_kv_indices=p.kv_indices,
        cprr_kv_indptr=p.kv_indptr,
        **{k: v for k, v in METADATA.items() if k != "work_meta_data"},
    )
    self = object.__new__(module.AiterAttnBackend)
    pool = words(get_key_buffer=lambda layer: p.kv.view(-1, 1, 576))
    self.__dict__ |= dict(
        forward_metadata=meta,
        token_to_kv_pool=pool,
        num_head=heads,
        num_head_padded=heads,
        head_pad_mode="none",
        dcp_world_size=1,
        kv_cache_dtype=p.kv.dtype,
        input_dtype=BF16,
        mla_kernel_num_head_padded=heads,
        mla_decode_backend="asm",
        use_mla_dcp_asm=True,
        cprr_intra_batch_mode=False,
        _cprr_launch_logged=True,
        _kernel_num_kv_splits=lambda: 32,
        _asm_ps_supports_qlen=lambda length: True,
    )
    self.__dict__ |= changes
    return self, radix(heads)


def run_decode(world: World, p: Any, **changes: Any) -> None:
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    self, layer = backend(world, p, **changes)
    expected = reference.attention(p.q, keys_of(p), SCALE)
    scale = torch.ones(()) if p.kv.element_size() == 1 else None
    q = p.q.view(p.q.shape[0], -1)
    out = module.AiterAttnBackend._forward_mla_decode(self, q, layer, None, scale)
    reference.assert_attention(out, expected)


@sglang(each=((16, True), (16, False), (128, True)))
def mla_bf16(world: World, form: tuple[int, bool]) -> None:
    """With the persistent kernel's metadata (intra_batch_mode) and without."""
    heads, is_persistent = form
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    module.intra_batch_mode = module._use_mla_ps_kernel = is_persistent
    run_decode(world, paged(world.arch, [5, 33, 1], heads))


@sglang(each=(("repeat", 8), ("zero", 12)))
def mla_padded_heads(world: World, form: tuple[str, int]) -> None:
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    module.intra_batch_mode = module._use_mla_ps_kernel = True
    mode, heads = form
    p = paged(world.arch, [5, 33], heads)
    run_decode(world, p, head_pad_mode=mode, num_head_padded=16)


@sglang()
def mla_several_tokens(world: World) -> None:
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    module.intra_batch_mode = module._use_mla_ps_kernel = True
    run_decode(world, paged(world.arch, [5, 33], qo_len=2))


@sglang(each=(True, False))
def mla_fp8(world: World, q_fp8: bool) -> None:
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    module.intra_batch_mode = module._use_mla_ps_kernel = True
    run_decode(world, paged(world.arch, [5, 33], fp8=True, q_fp8=q_fp8))


@sglang()
def mla_ranks_of_a_context(world: World) -> None:
    """One query token each over a rank's shard, with lse."""
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    p = paged(world.arch, [5, 33], fp8=True, q_fp8=True)
    self, layer = backend(world, p, dcp_world_size=2)
    cache = p.kv.view(-1, 1, 576)
    out, lse = module.AiterAttnBackend._forward_decode_dcp(self, p.q, cache, layer, torch.ones(()))
    expected = reference.attention(p.q, keys_of(p), SCALE)
    reference.assert_attention(out, expected, lse)


def verify(world: World, ranks: int) -> None:
    module = world.load(f"{LAYERS}.attention.aiter_backend")
    module.get_parallel = lambda: words(attn_dcp_rank=0)
    p = paged(world.arch, [5, 33], fp8=True, q_fp8=True, qo_len=2)
    self, layer = backend(world, p, dcp_world_size=ranks)
    self._resolve_fp8_kv_scale_float = lambda *_: 1.0
    if ranks == 1:
        self.forward_metadata.global_kv_indptr = None
    rows = p.q.shape[0]
    out, lse = module.AiterAttnBackend._forward_verify_asm_cprr(self, p.q, layer, None, rows)
    expected = reference.attention(p.q, keys_of(p), SCALE)
    reference.assert_attention(out, expected, lse)


@sglang()
def mla_verify_on_one_rank(world: World) -> None:
    """cp_world_size 1 and cp_rank 0 change nothing."""
    verify(world, 1)


@sglang(refused="g_kv_indptr|cp_world_size")
def mla_verify_over_ranks(world: World) -> None:
    verify(world, 2)


def chosen_pages(p: Any) -> Tensor:
    """Rows of token numbers as an indexer leaves them, -1 after the last."""
    table = torch.full((len(p.lens), 64), -1, dtype=I32)
    for b, length in enumerate(p.lens):
        table[b, :length] = p.kv_indices[p.kv_indptr[b] : p.kv_indptr[b + 1]]
    return table


def get_valid_kv_indices(table: Tensor, indptr: Tensor, indices: Tensor, rows: int) -> None:
    for row in range(rows):
        row_pages = table[row][table[row] != -1]
        indices[int(indptr[row]) : int(indptr[row]) + len(row_pages)] = row_pages


@sglang(each=(("decode", False), ("decode", True), ("extend", False), ("extend", True)))
def sparse(world: World, form: tuple[str, bool]) -> None:
    """DeepSeek-V3.2: buffers of kv_indptr and kv_indices that are longer than a step's."""
    phase, fp8 = form
    module = world.load(
        f"{LAYERS}.attention.dsa_backend",
        get_valid_kv_indices=get_valid_kv_indices,
        fp8_dtype=fp8_of(world.arch),
    )
    p = paged(world.arch, [5, 33, 1], fp8=fp8, q_fp8=fp8)
    rows = len(p.lens)
    page_metadata = {"kv_last_page_lens": torch.ones(rows, dtype=I32)}
    self = words(
        need_pad_heads=False,
        head_repeat_factor=1,
        aiter_dsa_identity_scale=torch.ones(()),
        kv_indptr=torch.zeros(65, dtype=I32),
        kv_indices=torch.zeros(4096, dtype=I32),
        device="cpu",
        _prepare_aiter_dsa_decode_metadata=lambda *_: METADATA | page_metadata,
    )
    layer, cache = radix(), p.kv.view(-1, 1, 576)
    metadata = words(cu_seqlens_q=starts(rows), max_seq_len_q=1)
    cls = module.DeepseekSparseAttnBackend
    if phase == "decode":
        out = cls._forward_aiter(self, p.q, cache, chosen_pages(p), layer, metadata, rows)
    else:
        out = cls._forward_aiter_extend(self, p.q, cache, chosen_pages(p), layer)
    expected = reference.attention(p.q, keys_of(p), SCALE)
    reference.assert_attention(out.view(rows, 16, 512), expected)


# ---------------------------------------------------------------- experts


def run_experts(
    world: World,
    experts: Experts,
    kind: str,
    quantise: Any,
    m: int = 8,
    config: dict[str, Any] | None = None,
    info: dict[str, Any] | None = None,
    ids: Any = None,
    **changes: Any,
) -> None:
    """AiterRunnerCore.run, which every AITER MoE of SGLang goes through."""
    module = world.load(
        f"{LAYERS}.moe.moe_runner.aiter", _SMALLM_MOE_ON=False, _MOE_SORTING_DISPATCH_POLICY=0
    )
    config_values = {
        "activation": "silu",
        "is_gated": True,
        "no_combine": False,
        "gemm1_alpha": None,
        "gemm1_beta": None,
        "gemm1_clamp_limit": None,
        "gate_up_interleaved": False,
    }
    self = words(config=words(**config_values | (config or {})))
    quant = {
        "w13_weight": experts.w1,
        "w2_weight": experts.w2,
        "w13_scale": experts.w1_scale,
        "w2_scale": experts.w2_scale,
        "a13_scale": None,
        "a2_scale": None,
        "b13": None,
        "b2": None,
        "expert_mask": None,
        "doweight_stage1": False,
        "hidden_pad": 0,
        "intermediate_pad": 0,
        "swiglu_limit": 0.0,
        "fp8_activations": False,
        "fused_moe_kwargs": None,
    }
    d = experts.exact[1].shape[1]
    x, (weights, selected) = normal(m, d), choice(m, len(experts.exact[0]), 2)
    ids = selected if ids is None else ids
    given_to_it = {
        "hidden_states": x,
        "topk_ids": ids,
        "topk_weights": weights,
        "a1_scale": None,
        "quant_type": module.AiterQuantType[kind],
        "num_local_tokens": None,
        "output_dtype": None,
        "output": None,
    }
    quant_info, runner_input = words(**quant | (info or {})), words(**given_to_it | changes)
    out = module.AiterRunnerCore.run(self, runner_input, quant_info, {}).hidden_states
    rows = m
    if changes.get("num_local_tokens") is not None:
        rows = int(changes["num_local_tokens"])
    mask = quant_info.expert_mask
    local = ids
    if mask is not None:
        is_local = mask > 0
        local = torch.where(is_local, is_local.cumsum(0) - 1, -1)[ids.long()]
    expected = reference.experts(x[:rows], *experts.exact, weights[:rows], local[:rows], quantise)
    reference.assert_rows(out[:rows], expected)


@sglang(each=(1, 8, 70), refused="is_shuffled|shuffled|layout|order|mark")
def experts_bf16_of_unknown_order(world: World, m: int) -> None:
    """Shuffled where the plugin does not see it, without the mark; of other values than the rest,
    because the plugin knows results of aiter's function by their bytes."""
    run_experts(world, bf16_experts(mark=False, seed=1), "NONE", None, m)


@sglang(each=(1, 8, 70))
def experts_bf16(world: World, m: int) -> None:
    """As SGLang loads them: shuffled by aiter's function and copied into the parameters, which
    loses the mark."""
    from aiter.ops.shuffle import shuffle_weight

    module = world.load(f"{LAYERS}.utils.common", Parameter=torch.nn.Parameter)
    layer = torch.nn.Module()
    w1, w2 = normal(8, 256, 256) / 16, normal(8, 256, 128) / 128**0.5
    for name, w in (("w13_weight", w1), ("w2_weight", w2)):
        layer.register_parameter(name, torch.nn.Parameter(w.clone(), requires_grad=False))
        module.copy_or_rebind_param(
            layer, name, shuffle_weight(getattr(layer, name).data, (16, 16))
        )
    experts = Experts(layer.w13_weight, layer.w2_weight, (w1.double(), w2.double()))
    assert not hasattr(experts.w1, "is_shuffled")
    run_experts(world, experts, "NONE", None, m)


@sglang()
def experts_bf16_with_the_mark(world: World) -> None:
    run_experts(world, bf16_experts(), "NONE", None)


@sglang(each=(1, 8, 70))
def experts_fp8_blocks(world: World, m: int) -> None:
    fp8 = reference.as_fp8(fp8_of(world.arch))
    run_experts(world, fp8_experts(world.arch), "PER_128X128", fp8, m)


@sglang()
def experts_of_a_rank(world: World) -> None:
    mask = torch.zeros(17, dtype=I32)
    mask[8:16] = 1
    fp8 = reference.as_fp8(fp8_of(world.arch))
    ids = choice(8, 16, 2)[1]
    run_experts(
        world, fp8_experts(world.arch), "PER_128X128", fp8, ids=ids, info={"expert_mask": mask}
    )


@sglang()
def experts_of_some_rows(world: World) -> None:
    """What MORI received: a count on the device and a dtype of the result."""
    fp8 = reference.as_fp8(fp8_of(world.arch))
    count = torch.tensor([5], dtype=I32)
    run_experts(
        world,
        fp8_experts(world.arch),
        "PER_128X128",
        fp8,
        num_local_tokens=count,
        output_dtype=BF16,
    )


@sglang(archs=("gfx950",), each=(1, 8))
def experts_mxfp4(world: World, m: int) -> None:
    up = reference.as_mxfp4("up")
    run_experts(world, mxfp4_experts(), "PER_1X32", up, m)


@sglang(refused="a1_scale")
def experts_quantised_before(world: World) -> None:
    x, scale = reference.quant_fp8(normal(8, 256, dtype=F32), 1, False, fp8_of(world.arch))
    experts = fp8_experts(world.arch)
    run_experts(world, experts, "PER_128X128", None, hidden_states=x, a1_scale=scale)


@sglang(refused="no_combine")
def experts_not_combined(world: World) -> None:
    run_experts(world, fp8_experts(world.arch), "PER_128X128", None, config={"no_combine": True})


@sglang(refused="output")
def experts_into_a_view(world: World) -> None:
    """MORI's staging view as the result's place."""
    run_experts(world, fp8_experts(world.arch), "PER_128X128", None, output=normal(8, 256))


@sglang(refused="gate_mode|swiglu_limit")
def experts_clamped(world: World) -> None:
    run_experts(world, fp8_experts(world.arch), "PER_128X128", None, info={"swiglu_limit": 7.0})


@sglang(refused="quant_type")
def experts_of_other_scales(world: World) -> None:
    run_experts(world, fp8_experts(world.arch), "PER_TOKEN", None)


@sglang(refused="activation")
def experts_gelu(world: World) -> None:
    run_experts(world, bf16_experts(), "NONE", None, config={"activation": "gelu"})


@sglang(archs=("gfx950",))
def experts_behind_sglangs_own_wrapper(world: World) -> None:
    """moe_sorting_small wraps aiter's fused_moe where it is applied after the plugin's hooks."""
    import aiter.fused_moe as fused

    module = world.load("sglang.kernels.ops.moe.moe_sorting_small")
    fused._moe_sorting_impl = fused.fused_dynamic_mxfp8_quant_moe_sort = lambda *_: None
    fused.QuantType = rfops.compat.QuantType
    previous = fused.fused_moe
    module.apply_aiter_small_moe_sort_patch.__wrapped__()
    assert fused.fused_moe is not previous
    world.covers("apply_aiter_small_moe_sort_patch", "fused_moe")
    try:
        run_experts(world, mxfp4_experts(), "PER_1X32", reference.as_mxfp4("up"))
    finally:
        fused.fused_moe = previous


# ---------------------------------------------------------------- routing


def topk(world: World) -> Any:
    module = world.load(f"{LAYERS}.moe.topk")
    module._use_rocm_triton_softmax_topk = lambda *_: False
    module._use_aiter, module._is_cuda, module._is_hip = True, False, True
    return module


@sglang()
def softmax(world: World) -> None:
    logits = normal(6, 128)
    result = topk(world).fused_topk(normal(6, 64), logits, 8, True)
    reference.assert_chosen(*result[:2], reference.softmax_topk(logits, 8, True))


@sglang(each=(F32, BF16))
def bias_without_groups(world: World, dtype: torch.dtype) -> None:
    logits, bias = normal(6, 128, dtype=dtype), normal(128, dtype=F32) / 4
    result = topk(world).fused_topk(normal(6, 64), logits, 8, True, bias, "sigmoid", 2.5, True)
    expected = reference.grouped_topk(logits, bias.to(dtype), 8, 1, 1, True, 2.5)
    reference.assert_chosen(*result[:2], expected)


@sglang(each=((F32, F32), (BF16, BF16), (BF16, F32)))
def groups(world: World, form: tuple[torch.dtype, torch.dtype]) -> None:
    """DeepSeek-V3's; a bias of float32 widens the logits."""
    logits, bias = normal(6, 256, dtype=form[0]), (normal(256, dtype=F32) / 4).to(form[1])
    module = topk(world)
    module.envs.SGLANG_K3_RADIX4_TOPK.get = lambda: False
    function = module.biased_grouped_topk_gpu
    weights, ids = function(normal(6, 64), logits, bias, 8, True, 8, 4, routed_scaling_factor=2.5)
    reference.assert_chosen(weights, ids, reference.grouped_topk(logits, bias, 8, 8, 4, True, 2.5))


@sglang()
def gating_of_deepseek_v4(world: World) -> None:
    logits, bias = normal(6, 256, dtype=F32), normal(256, dtype=F32)
    weights, ids = topk(world).biased_topk_jit_kernel_impl(
        normal(6, 64), logits, bias, 8, True, "sqrtsoftplus", routed_scaling_factor=1.5
    )
    chosen = reference.grouped_topk(logits, bias, 8, 1, 1, True, 1.5, "sqrtsoftplus")
    reference.assert_chosen(weights, ids, chosen)


# ---------------------------------------------------------------- linear layers


def utils(world: World, **flags: Any) -> Any:
    is_gfx950 = world.arch == "gfx950"
    module = world.load(f"{QUANT}.fp8_utils")
    module.__dict__.update(
        {
            "_use_aiter": True,
            "_use_aiter_gfx95": is_gfx950,
            "_use_aiter_gfx942": not is_gfx950,
            "_use_aiter_bpreshuffle_gfx95": False,
        }
        | flags
    )
    smallm = world.stub("sglang.kernels.ops.gemm.smallm_fp8_blockscale_gfx950")
    smallm.try_smallm_fp8_bs_linear = lambda *_: None
    return module


def run_linear(world: World, module: Any, m: int, is_shuffled: bool, is_quantised: bool) -> None:
    n, k = 256, 512
    w, w_scale, exact = fp8_weight(world.arch, n, k)
    x = normal(m, k)
    payload, scale = reference.quant_fp8(x, 1, False, fp8_of(world.arch))
    stored = shuffled(w) if is_shuffled else w
    x_argument, input_scale = (payload, scale) if is_quantised else (x, None)
    if is_quantised and module._use_aiter_bpreshuffle_gfx95 and m > 1:
        input_scale = scale.T.contiguous().view(scale.shape)  # transposed memory, rows in name
        if not module.use_aiter_triton_gemm_w8a8_tuned_gfx950(n, k):
            input_scale = scale  # materialised by the layer
    out = module.aiter_w8a8_block_fp8_linear(
        x_argument, parameter(stored, False), [128, 128], parameter(w_scale, False), input_scale
    )
    assert out.dtype == BF16
    reference.assert_product(out, reference.fp8_rows(payload, scale), exact)


@sglang(each=((1, False), (5, False), (33, True)))
def fp8_linear(world: World, form: tuple[int, bool]) -> None:
    """aiter's Triton GEMM: on gfx942 always."""
    module = utils(world)
    world.covers("aiter_w8a8_block_fp8_linear", "gemm_a8w8_blockscale.gemm_a8w8_blockscale")
    module.use_aiter_triton_gemm_w8a8_tuned_gfx950 = lambda *_: True
    module.envs.SGLANG_AITER_GFX942_BLOCKSCALE_USE_CK.get = lambda: False
    run_linear(world, module, form[0], False, form[1])


@sglang(each=((1, False), (5, True)))
def fp8_linear_ck(world: World, form: tuple[int, bool]) -> None:
    """aiter's CK GEMM."""
    module = utils(world)
    world.covers("aiter_w8a8_block_fp8_linear", "aiter.gemm_a8w8_blockscale")
    module.use_aiter_triton_gemm_w8a8_tuned_gfx950 = lambda *_: False
    module.envs.SGLANG_AITER_GFX942_BLOCKSCALE_USE_CK.get = lambda: True
    run_linear(world, module, form[0], False, form[1])


@sglang(archs=("gfx950",), each=((1, False), (5, False), (33, False), (5, True)))
def fp8_linear_shuffled(world: World, form: tuple[int, bool]) -> None:
    """gfx950 with ROCm 7.2: shuffled weights and column-major scales."""
    module = utils(world, _use_aiter_bpreshuffle_gfx95=True)
    world.covers("aiter_w8a8_block_fp8_linear", "gemm_a8w8_blockscale_bpreshuffle")
    module.use_aiter_triton_gemm_w8a8_tuned_gfx950 = lambda *_: False
    run_linear(world, module, form[0], True, form[1])


@sglang(archs=("gfx950",), refused="scale")
def fp8_linear_of_e8m0(world: World) -> None:
    """DeepSeek-V4 with e8m0 scales."""
    module = utils(world, _use_aiter_bpreshuffle_gfx95=True)
    w, _, _ = fp8_weight("gfx950", 256, 512)
    weight = parameter(shuffled(w), False)
    weight._mxscale_w_scale = torch.full((2, 4), 127, dtype=U8).view(torch.float8_e8m0fnu)
    scale = torch.full((5, 4), 127, dtype=U8).view(torch.float8_e8m0fnu)
    x = normal(5, 512).to(fp8_of("gfx950"))
    module.aiter_w8a8_block_fp8_linear(x, weight, [128, 128], torch.ones(2, 4), scale)


@sglang(archs=("gfx950",), refused="scale")
def mxfp8_linear(world: World) -> None:
    """32 x 32 blocks with e8m0 scales."""
    module = world.load("sglang.kernels.ops.gemm.mxfp8_aiter_gfx95")
    rows = normal(5, 512).to(torch.float8_e4m3fn)
    e8m0 = torch.full((5, 16), 127, dtype=U8).view(torch.float8_e8m0fnu)
    module.mxfp8_operand = lambda x, scale: (rows, e8m0)
    module.aiter_mxfp8_blockscaled_linear(
        normal(5, 512),
        normal(256, 512).to(torch.float8_e4m3fn),
        torch.full((8, 16), 127, dtype=U8).view(torch.float8_e8m0fnu),
    )


@sglang(each=(False, True))
def norm_then_quantiser(world: World, keep: bool) -> None:
    """All-reduce and norm by another kernel, then the quantiser."""
    module = world.load(f"{LAYERS}.layernorm")
    import aiter

    module._aiter, module._use_aiter = aiter, True
    module._get_aiter_per_group_quant.cache_clear()
    module.get_parallel = lambda: words(attn_tp_size=2)
    x = normal(5, 512)
    distributed = world.stub("sglang.srt.distributed")
    distributed.tensor_model_parallel_fused_allreduce_rmsnorm = lambda *_: (x, x)
    fused = "tensor_model_parallel_fused_allreduce_rmsnorm_quant_per_group"
    setattr(distributed, fused, lambda *_, **__: None)
    utils(world)
    result, _ = module._forward_with_allreduce_fusion_quant_per_group(
        words(variance_epsilon=1e-6), x, x, x[0], keep_bf16=keep
    )
    assert_fp8(result[-2:], x, world.arch)


def dispatcher(world: World, kind: str, version: int) -> tuple[Any, Any]:
    module = world.load(f"{LAYERS}.moe.token_dispatcher.moriep")
    import aiter

    module.get_hip_quant, module.QuantType = aiter.get_hip_quant, aiter.QuantType
    module._use_aiter = True
    module.fp8_dtype = fp8_of(world.arch)
    module._MoriEPDispatcherImplBase.__init__ = lambda self, **_: None
    if version == 1:
        self = object.__new__(module._MoriEPv1DispatcherImplBase)
        module._MoriEPv1DispatcherImplBase.__init__(self)
    else:
        self = object.__new__(module._MoriEPv2DispatcherImplNormal)
        self._tbo_enabled = False
        self.deepep_mode = words(enable_normal=lambda: True, enable_low_latency=lambda: False)
        module._get_epv2_launch_config = lambda *_: None
        module._MoriEPv2DispatcherImplNormal.__init__(self, False)
    self.dispatch_dtype, self.hidden_size = module.DispatchDtype[kind], 512
    return module, self


@sglang(each=(1, 2))
def dispatch_fp8(world: World, version: int) -> None:
    _, self = dispatcher(world, "fp8", version)
    x = normal(5, 512)
    assert_fp8(self._quantize_dispatch_input(x), x, world.arch)


@sglang(each=("fp4", "mxfp8"), refused="another quantiser")
def dispatch_of_other_quantisers(world: World, kind: str) -> None:
    _, self = dispatcher(world, kind, 1)
    self._quantize_dispatch_input(normal(5, 512))


# ---------------------------------------------------------------- MXFP4


def quark(world: World) -> Any:
    return world.load(f"{QUANT}.quark.schemes.quark_w4a4_mxfp4")


@sglang(archs=("gfx950",), each=(1, 5, 40))
def mxfp4_linear(world: World, m: int) -> None:
    """QuarkW4A4MXFP4 with aiter's ASM GEMM."""
    module = quark(world)
    w, scale, exact = mxfp4_weight(256, 512)
    layer = words(
        use_aiter_asm_fp4_gemm=True,
        weight=parameter(shuffled(w), False),
        weight_scale=parameter(rfops.shuffle_scale(scale).data, False),
    )
    x = normal(m, 512)
    out = module.QuarkW4A4MXFP4.apply_weights(words(out_dtype=BF16), layer, x)
    reference.assert_product(out, mxfp4_rows(x), exact)


@sglang(archs=("gfx950",), each=(2, 3))
def mxfp4_linear_triton(world: World, dim: int) -> None:
    """With aiter's Triton GEMM, of rows and of a batch of rows."""
    module = quark(world)
    w, scale, exact = mxfp4_weight(256, 512)
    layer = words(weight=parameter(w, False), weight_scale=parameter(scale, False))
    x = normal(6, 512)
    x_argument = x if dim == 2 else x.view(2, 3, 512)
    out = module.QuarkW4A4MXFP4.apply_weights(words(out_dtype=BF16), layer, x_argument)
    reference.assert_product(out.reshape(6, 256), mxfp4_rows(x), exact)


@sglang(archs=("gfx950",))
def mxfp4_linear_quantised_before(world: World) -> None:
    module = quark(world)
    w, scale, exact = mxfp4_weight(256, 512)
    layer = words(weight=parameter(w, False), weight_scale=parameter(scale, False))
    x = normal(6, 512)
    payload, x_scale = quant_mxfp4_ref(x, "even")
    x_argument = payload.view(U8), x_scale.view(U8)
    out = module.QuarkW4A4MXFP4.apply_weights(words(out_dtype=BF16), layer, x_argument)
    reference.assert_product(out, mxfp4_rows(x), exact)


@sglang(archs=("gfx950",), each=(40, 256))
def mxfp4_of_diffusion(world: World, m: int) -> None:
    """Images' models: aiter's quantiser in torch, then gemm_a4w4 by four positions."""
    module = world.load("sglang.multimodal_gen.runtime.layers.quantization.mxfp4")
    module.dynamic_mxfp4_quant = lambda x, shuffle: per_1x32_f4_quant_hip(x, shuffle=shuffle)
    w, scale, exact = mxfp4_weight(256, 512)
    layer = words(
        weight=parameter(shuffled(w).view(torch.float4_e2m1fn_x2), False),
        weight_scale=e8m0_shuffle(scale).view(torch.float8_e8m0fnu),
    )
    x = normal(m, 512)
    world.covers("Mxfp4LinearMethod.process_weights_after_loading", "gemm_a4w4")
    out = module.Mxfp4LinearMethod.apply(words(), layer, x)
    reference.assert_product(out[:m], mxfp4_rows(x), exact)


@sglang()
def mxfp4_quantiser_of_rows(world: World) -> None:
    module = world.load(f"{QUANT}.quark.utils")
    import aiter.ops.triton.quant as own

    module.dynamic_mxfp4_quant = own.dynamic_mxfp4_quant
    x = normal(3, 5, 256)
    assert_mxfp4(module.b_dynamic_mxfp4_quant(x), x)


@sglang()
def mxfp4_quantiser_of_weights(world: World) -> None:
    module = world.load(f"{QUANT}.mxfp4")
    import aiter.ops.triton.quant as own

    module.dynamic_mxfp4_quant, module.e8m0_shuffle = own.dynamic_mxfp4_quant, e8m0_shuffle
    x = normal(2, 128, 256)
    payload, scale = module.Mxfp4DynamicQuantMoEMethod.mxfp4_quantize(None, x)
    plain = rfops.unshuffle_scale(scale, 256, 8)
    assert_mxfp4((payload, plain), x)


@sglang(each=("w13", "w2", "shared"))
def mxfp4_quantiser_when_loaded(world: World, weight_name: str) -> None:
    """QuarkW4A4MXFp4MoE, expert by expert."""
    module = world.load(f"{QUANT}.quark.schemes.quark_w4a4_mxfp4_moe")
    import aiter.ops.triton.quant as own

    module.dynamic_mxfp4_quant = own.dynamic_mxfp4_quant
    cls, x = module.QuarkW4A4MXFp4MoE, normal(3, 64, 256)
    if weight_name == "shared":
        result = cls.quantize_shared_expert(None, x[0], torch.device("cpu"))
        return assert_mxfp4(result, x[0])
    name = f"{weight_name}_weight"
    scales = torch.zeros(3, 64, 8, dtype=U8)
    layer = words(_load_device="cpu", **{name: parameter(x, False), f"{name}_scale": scales})
    world.covers("QuarkW4A4MXFp4MoE.get_online_weight_loader", "dynamic_mxfp4_quant")
    getattr(cls, f"_quantize_{weight_name}_online")(None, layer, own.dynamic_mxfp4_quant)
    return assert_mxfp4((getattr(layer, name).data, getattr(layer, f"{name}_scale")), x)


LOADERS = (
    "QuarkW4A4MXFP4.get_online_fp8_to_mxfp4_weight_loader",
    "QuarkW4A4MXFP4.get_online_mxfp4_weight_loader",
    "QuarkW4A4MXFP4.get_online_nvfp4_to_mxfp4_weight_loader",
    "QuarkW4A4MXFp4MoE._requantize_nvfp4_to_mxfp4",
    "QuarkW4A4MXFp4MoE.get_online_fp8_to_mxfp4_weight_loader",
)


@sglang(each=LOADERS)
def mxfp4_quantiser_in_a_loader(world: World, function: str) -> None:
    """The call alone: what is around it copies checkpoints."""
    quark(world)
    import aiter.ops.triton.quant as own

    dtype = F32 if "nvfp4" in function else BF16
    x = normal(64, 256, dtype=dtype)
    for site in world.sites(function, "dynamic_mxfp4_quant"):
        is_relay = site.target.startswith("->")
        called = quark(world).dynamic_mxfp4_quant if is_relay else own.dynamic_mxfp4_quant
        assert_mxfp4(world.call(site, called, x), x)


# ---------------------------------------------------------------- what SGLang asks of a function


@sglang()
def signatures(world: World) -> None:
    """A wrapper has its callee's parameters, by which SGLang decides what it passes."""
    module = world.load(f"{LAYERS}.moe.moe_runner.aiter")
    for name in ("_aiter_fused_moe_supports_no_combine", "_aiter_fused_moe_supports_output"):
        world.covers(name, "fused_moe")
        assert getattr(module, name)(), name
    moriep, _ = dispatcher(world, "fp8", 1)
    world.covers("_aiter_supports_mxfp8_dispatch", "get_hip_quant")
    assert moriep._aiter_supports_mxfp8_dispatch()
