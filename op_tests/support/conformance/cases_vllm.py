"""vLLM 0.33's call sites: its own functions, called with tensors as its layers have them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import rfops
from rfops.dispatch.declare import fp8_of
from rfops.quantization.mxfp4 import quant_mxfp4_ref

from . import reference
from .cases import (
    BF16,
    F32,
    I32,
    I64,
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
    nan,
    normal,
    paged,
    parameter,
    shuffled,
    starts,
    words,
)
from .engine_code import ToTheOriginal, World

MLA = "vllm.v1.attention.backends.mla"
MOE = "vllm.model_executor.layers.fused_moe"
vllm = functools.partial(case, "vllm")


def prepare(world: World) -> None:
    """What vLLM's modules ask when they are imported."""
    platform = world.stub("vllm.platforms").current_platform
    platform.fp8_dtype = lambda: fp8_of(world.arch)
    platform.is_rocm = lambda: True
    platform.is_fp8_fnuz = lambda: world.arch == "gfx942"
    rocm = world.stub("vllm.platforms.rocm")
    for name in ("gfx942", "gfx950"):
        setattr(rocm, f"on_{name}", lambda name=name: world.arch == name)
    rocm.on_mi3xx = lambda: True
    world.stub("vllm.envs").VLLM_ROCM_AITER_MOE_DISPATCH_POLICY = 0
    rocm.get_cdna_version = lambda: 4 if world.arch == "gfx950" else 3
    world.stub("vllm.v1.worker.workspace").is_workspace_manager_initialized = lambda: False
    world.load(f"{MOE}.activation")
    world.load("vllm._aiter_ops")


def ops(world: World) -> Any:
    return world.load("vllm._aiter_ops").rocm_aiter_ops


# ---------------------------------------------------------------- attention


def aiter_mla(world: World, p: Any, **changes: Any) -> tuple[Any, list[Any]]:
    """AiterMLAImpl and forward_mqa's arguments, as the builder of its metadata leaves them."""
    module = world.load(f"{MLA}.rocm_aiter_mla")
    heads, rows = p.q.shape[1], len(p.lens)
    impl = object.__new__(module.AiterMLAImpl)
    ranks = changes.get("dcp_world_size", 1)
    impl.__dict__ |= {
        "scale": SCALE,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_heads": heads // ranks,
        "dcp_world_size": ranks,
        "kv_cache_dtype": "auto",
        "_sm_count": 304,
    }
    decode = words(
        qo_indptr=starts(rows, p.qo_len),
        max_qo_len=p.qo_len,
        paged_kv_indptr=p.kv_indptr,
        paged_kv_indices=p.kv_indices,
        paged_kv_last_page_len=torch.ones(rows, dtype=I32),
        attn_out_dtype=BF16,
        use_gluon_decode=False,
        use_gluon_verify=False,
        dcp_route=None,
        dcp_verify=None,
        asm_decode_num_heads=0,
        has_persistent_metadata=True,
        varlen_q_rows=None,
    )
    metadata = words(decode=decode, causal=p.causal, **METADATA)
    for name, value in changes.items():
        owner = impl if hasattr(impl, name) else decode if hasattr(decode, name) else metadata
        setattr(owner, name, value)
    layer = words(_q_scale=torch.ones(()), _k_scale=torch.ones(()))
    return impl, [p.q, p.kv.squeeze(2), metadata, layer]


def run_aiter_mla(world: World, p: Any, **changes: Any) -> None:
    impl, args = aiter_mla(world, p, **changes)
    out, lse = impl.forward_mqa(*args)
    if impl.dcp_world_size > 1:
        world.covers("_get_aiter_mla_decode", "mla_decode_fwd")
    expected = reference.attention(p.q, keys_of(p), SCALE)
    assert out.dtype == BF16
    reference.assert_attention(out, expected, lse)


@vllm(each=(16, 128))
def mla_bf16(world: World, heads: int) -> None:
    run_aiter_mla(world, paged(world.arch, [5, 33, 1], heads))


@vllm()
def mla_heads_of_a_rank(world: World) -> None:
    """Eight heads, which vLLM repeats to the 16 that aiter wants."""
    run_aiter_mla(world, paged(world.arch, [5, 33], 8))


@vllm()
def mla_without_metadata(world: World) -> None:
    run_aiter_mla(world, paged(world.arch, [5, 33]), work_meta_data=None)


@vllm()
def mla_of_a_padded_batch(world: World) -> None:
    """A graph of four requests, of which two have no query and no token."""
    p = paged(world.arch, [5, 33])
    impl, args = aiter_mla(world, p)
    decode = args[2].decode
    decode.qo_indptr = torch.tensor([0, 1, 2, 2, 2], dtype=I32)
    decode.paged_kv_indptr = torch.cat([p.kv_indptr, p.kv_indptr[-1:], p.kv_indptr[-1:]])
    decode.paged_kv_last_page_len = torch.ones(4, dtype=I32)
    q = torch.cat([p.q, nan(2, *p.q.shape[1:])])
    out, _ = impl.forward_mqa(q, *args[1:])
    reference.assert_attention(out[:2], reference.attention(p.q, keys_of(p), SCALE))


@vllm(each=(True, False))
def mla_several_tokens(world: World, causal: bool) -> None:
    """Tokens of a draft, checked in one call."""
    run_aiter_mla(world, paged(world.arch, [5, 33, 2], qo_len=2, causal=causal))


@vllm(each=(True, False))
def mla_fp8(world: World, q_fp8: bool) -> None:
    run_aiter_mla(world, paged(world.arch, [5, 33], fp8=True, q_fp8=q_fp8), kv_cache_dtype="fp8")


@vllm()
def mla_ranks_of_a_context(world: World) -> None:
    """Context parallelism: each rank its shard of tokens, merged by lse, causal over one query."""
    run_aiter_mla(world, paged(world.arch, [5, 33, 1], 32), dcp_world_size=2)


@vllm(refused="cp_world_size|g_kv_indptr|cp_rank")
def mla_causal_over_ranks(world: World) -> None:
    p = paged(world.arch, [5, 33], 32, qo_len=2)
    route = world.load(f"{MLA}.rocm_aiter_mla")._DCPDecodeRoute.CPRR
    impl, args = aiter_mla(world, p, dcp_world_size=2, dcp_route=route)
    decode = args[2].decode
    decode.g_kv_indptr, decode.cp_world_size, decode.cp_rank = p.kv_indptr, 2, 0
    decode.mla_num_kv_splits = 1
    impl.forward_mqa(*args)


@vllm(each=("some", "none"))
def mla_verify_by_rows(world: World, empty: str) -> None:
    """Each row of a draft as a sequence of its own; a shard can be empty."""
    lens = [20, 0, 48] if empty == "some" else [20, 47, 48]
    p = paged_by_16(world, lens=lens)
    module = world.load(f"{MLA}.rocm_aiter_mla", decode_attention_fwd=decode_attention_fwd())
    module._triton_dcp_verify_num_kv_splits = lambda *_: 4
    verify = words(row_lens=p.kv_lens, block_table=p.kv_indices, page_size=16, max_kv_seq_len=48)
    impl, args = aiter_mla(world, p)
    _, cache, _, layer = args
    out, lse = impl._forward_triton_dcp_verify(p.q, verify, cache, layer, BF16)
    assert lse.dtype == F32
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE), lse)


def decode_attention_fwd() -> Any:
    import vllm.v1.attention.ops.triton_decode_attention as module

    return module.decode_attention_fwd


def paged_by_16(
    world: World, qo_len: int = 1, causal: bool = True, lens: Sequence[int] = (20, 48, 3)
) -> Any:
    """Pages of 16 tokens in a block table, whose rows end with page 0, as vLLM's do."""
    p = paged(world.arch, lens, page=16, table=True, qo_len=qo_len, causal=causal)
    p.kv_indices = torch.where(p.kv_indices >= p.kv.shape[0], 0, p.kv_indices)
    return p


def triton_mla(world: World, cls: Any, p: Any) -> tuple[Any, list[Any]]:
    impl = object.__new__(cls)
    impl.__dict__ |= {"scale": SCALE, "kv_lora_rank": 512, "dcp_world_size": 1, "_sm_count": 304}
    decode = words(block_table=p.kv_indices, seq_lens=p.kv_lens)
    metadata = words(decode=decode, causal=p.causal, max_seq_len=48)
    return impl, [p.q, p.kv.squeeze(2), metadata, words(_k_scale=torch.ones(()))]


@vllm(each=((1, True), (2, True), (2, False)))
def triton_mla_backend(world: World, form: tuple[int, bool]) -> None:
    """TRITON_MLA, whose lse has q's dtype."""
    p = paged_by_16(world, *form)
    module = world.load(f"{MLA}.triton_mla", decode_attention_fwd=decode_attention_fwd())
    module._compute_num_kv_splits = lambda *_: 4
    impl, args = triton_mla(world, module.TritonMLAImpl, p)
    out, lse = impl.forward_mqa((p.q[..., :512], p.q[..., 512:]), *args[1:])
    assert lse.dtype == BF16
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE), lse)


@vllm(
    each=(
        "MLAAttention.forward_impl",
        "MultiHeadLatentAttention._attention",
        "KimiK3MultiHeadLatentAttentionWrapper._fused_decode",
    )
)
def own_backend(world: World, function: str) -> None:
    """--attention-backend RFOPS_MLA at the calls of impl.forward_mqa that reach it."""
    p = paged_by_16(world)
    world.load(f"{MLA}.triton_mla", decode_attention_fwd=decode_attention_fwd())
    from rfops.plugins import vllm_mla

    vllm_mla.MLA.call = world.watch(  # type: ignore[method-assign]
        vllm_mla.MLA, functools.partial(type(vllm_mla.MLA).call, vllm_mla.MLA)
    )
    impl, args = triton_mla(world, vllm_mla.RfopsMLAImpl, p)
    out, lse = world.call(world.site(function, "RFOPS_MLA"), impl.forward_mqa, *args)
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE), lse)


# ---------------------------------------------------------------- experts

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


def quant_config(given: Experts, **changes: Any) -> Any:
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
    return words(**result | {"w1_scale": given.w1_scale, "w2_scale": given.w2_scale} | changes)


def of_width(i: int) -> dict[str, int]:
    name = "intermediate_size_per_partition"
    return {name: i, f"{name}_unpadded": i}


FP8_BLOCKS = {"use_fp8_w8a8": True, "block_shape": [128, 128]}


def run_experts(
    world: World,
    given: Experts,
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
    d, i = given.exact[1].shape[1:]
    sizes = {"hidden_dim_unpadded": d} | of_width(i)
    self = object.__new__(module.AiterExperts)
    self.__dict__ |= {
        "quant_config": quant_config(given, **(config or {})),
        "moe_config": words(**MOE_CONFIG | sizes | (moe or {})),
    }
    x = normal(m, d)
    weights, selected = choice(m, len(given.exact[0]), k)
    ids = selected if ids is None else ids
    weights = changes.get("topk_weights", weights)
    out = nan(m, d)
    args = {
        "output": out,
        "hidden_states": x,
        "w1": given.w1,
        "w2": given.w2,
        "topk_weights": weights,
        "topk_ids": ids,
        "activation": world.load(f"{MOE}.activation").MoEActivation[activation],
        "global_num_experts": len(given.exact[0]),
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
    expected = reference.experts(x, *given.exact, weights, local, quantise)
    reference.assert_rows(out, expected)


def local_ids(ids: Tensor, mask: Tensor) -> Tensor:
    """Numbers of the experts with a 1 in the mask, -1 of others."""
    here = mask > 0
    number = torch.where(here, here.cumsum(0) - 1, -1)
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
    given = fp8_experts(world.arch)
    given.w1_scale = torch.ones(8, 1, 1 if kind == "per_Tensor" else 256)
    given.w2_scale = torch.ones(8, 1, 1 if kind == "per_Tensor" else 256)
    config = {"use_fp8_w8a8": True, "per_out_ch_quant": kind == "per_Token"}
    run_experts(world, given, None, config=config)


@vllm(archs=("gfx950",), each=(1, 8))
def experts_mxfp4(world: World, m: int) -> None:
    """Weights and activations in MXFP4, its activations rounded up as aiter does."""
    given = mxfp4_experts()
    up = reference.as_mxfp4("up")
    run_experts(world, given, up, m, config={"use_mxfp4_w4a4": True})


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
    given = mxfp4_experts()
    bias = {"w1_bias": torch.zeros(8, 512), "w2_bias": torch.zeros(8, 256)}
    run_experts(world, given, None, activation="SWIGLUOAI", config={"use_mxfp4_w4a16": True} | bias)


@vllm(archs=("gfx950",), refused="gate_mode|w1")
def experts_mxfp8(world: World) -> None:
    """AiterMxfp8Experts: FP8 weights with e8m0 scales of 32."""
    module = world.load(f"{MOE}.experts.aiter_mxfp8_moe")
    given = fp8_experts("gfx950")
    self = words(
        quant_config=words(gemm1_clamp_limit=None),
        w1_scale_val=torch.full((8 * 256, 8), 127, dtype=U8),
        w2_scale_val=torch.full((8 * 256, 4), 127, dtype=U8),
    )
    weights, ids = choice(8, 8, 2)
    silu = world.load(f"{MOE}.activation").MoEActivation.SILU
    module.AiterMxfp8Experts.apply(
        self, nan(8, 256), normal(8, 256), given.w1, given.w2, weights, ids, silu, 8, None, None,
        None, None, None, None, False,
    )  # fmt: skip


def heterogeneous(world: World, together: bool) -> tuple[Any, list[Any], Experts]:
    """DeepSeek-V4's layer whose shared expert is the last of the weights."""
    module = world.load(
        "vllm.models.deepseek_v4.amd.model",
        rocm_aiter_fused_experts=world.load(
            f"{MOE}.experts.rocm_aiter_moe"
        ).rocm_aiter_fused_experts,
    )
    module._use_heterogeneous_fhmoe = lambda rows: together
    given = mxfp4_experts(e=9)
    routed = quant_config(given, use_mxfp4_w4a4=True)
    routed.w1_scale, routed.w2_scale = given.w1_scale[: 8 * 512], given.w2_scale[: 8 * 256]
    layer = object.__new__(module.DeepseekV4HeterogeneousSharedRoutedExperts)
    layer.__dict__ |= dict(
        shared_w1=given.w1[8:],
        shared_w2=given.w2[8:],
        shared_w1_scale=given.w1_scale[8 * 512 :],
        shared_w2_scale=given.w2_scale[8 * 256 :],
        shared_expert_id=8,
        w13_weight=given.w1,
        w2_weight=given.w2,
        expert_map=None,
        _routed_quant_config=routed,
        moe_config=words(**MOE_CONFIG | of_width(256)),
        activation=world.load(f"{MOE}.activation").MoEActivation.SILU,
        quant_method=words(moe_quant_config=quant_config(given, use_mxfp4_w4a4=True)),
        _ensure_moe_quant_config_init=lambda: None,
        _shared_expert_ref=lambda: torch.zeros_like,
    )
    weights, ids = choice(8, 8, 2)
    more = torch.cat([weights, torch.ones(8, 1)], 1), torch.cat([ids, torch.full((8, 1), 8)], 1)
    return layer, [normal(8, 256), more[0], more[1].to(I32)], given


@vllm(archs=("gfx950",), refused="shared_w1|shared_expert_id")
def experts_with_another_shared_one(world: World) -> None:
    layer, (x, weights, ids), _ = heterogeneous(world, True)
    type(layer).forward_modular(layer, x, weights, ids, None, None)


@vllm(archs=("gfx950",))
def experts_without_the_shared_one(world: World) -> None:
    """The routed experts as the first rows of all: views, of whole experts."""
    layer, (x, weights, ids), given = heterogeneous(world, False)
    out = type(layer).forward_modular(layer, x, weights, ids, None, None)
    up = reference.as_mxfp4("up")
    expected = reference.experts(x, *given.exact, weights[:, :2], ids[:, :2], up)
    reference.assert_rows(out, expected)


@vllm(refused="quant_type")
def experts_of_quark_w4a8(world: World) -> None:
    aiter_moe = world.load(f"{MOE}.experts.rocm_aiter_moe")
    module = world.load("vllm.model_executor.layers.quantization.quark.quark_moe")
    given = fp8_experts(world.arch)
    config = quant_config(given, use_fp8_w8a8=True, per_out_ch_quant=True)
    sizes = words(**MOE_CONFIG)
    layer = words(
        w13_weight=given.w1,
        w2_weight=given.w2,
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
    given = mxfp4_experts()
    x, (weights, ids) = normal(6, 256), choice(6, 8, 2)
    kept: list[Tensor] = []
    self = object.__new__(module.MuseSparkAiterExperts)
    self.__dict__ |= dict(
        quant_config=quant_config(given, use_mxfp4_w4a4=True),
        moe_config=words(**MOE_CONFIG | of_width(256)),
        _unit_weights=lambda rows, k, device: torch.ones(rows, k),
        _park_route_output=kept.append,
    )
    out = nan(6, 2, 256)
    silu = world.load(f"{MOE}.activation").MoEActivation.SILU
    module.MuseSparkAiterExperts.apply(
        self, out, x, given.w1, given.w2, weights, ids, silu, 8, None, None, None, None, None, None,
        False,
    )  # fmt: skip
    rows = x.repeat_interleave(2, 0)
    one = torch.ones(12, 1)
    expected = reference.experts(rows, *given.exact, one, ids.view(-1, 1), reference.as_mxfp4("up"))
    reference.assert_rows(kept[0].reshape(12, 256), expected)


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
    own = vllm_moe.method_over(base)
    method = object.__new__(own)
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
    shared = SharedExperts() if label == "with shared experts" else None
    out = base.apply(method, layer, x, weights, ids, shared, None if shared is None else x)
    expected = reference.experts(x, w1.double(), w2.double(), weights, ids, None)
    reference.assert_rows(out, expected)


# ---------------------------------------------------------------- routing


def router(world: World, name: str) -> Any:
    return world.load(f"{MOE}.router.{name}")


def with_moe_enabled(world: World, gating: bool = False, shared: bool = False) -> None:
    ops(world).is_fused_moe_enabled = staticmethod(lambda: True)
    ops(world).is_topk_gating_enabled = staticmethod(lambda: gating)
    ops(world).is_fusion_moe_shared_experts_enabled = staticmethod(lambda: shared)


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
    with_moe_enabled(world, shared=form == "shared")
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


# ---------------------------------------------------------------- linear layers


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
    given = {}
    rows: Tensor = x
    if is_quantised:
        payload, x_scale = quant_mxfp4_ref(x, "even")
        rows, given = payload.view(U8), {"x_scales": x_scale.view(U8)}
    function = ops(world).triton_fp4_gemm_dynamic_quant
    out = function(rows, w, scale.T.contiguous(), BF16, **given)
    reference.assert_product(out, mxfp4_rows(x), exact)


@vllm(each=("quark", "muse"))
def mxfp4_quantiser(world: World, which: str) -> None:
    """Weights of experts, quantised when they are loaded."""
    x = normal(4, 64, 256)
    if which == "quark":
        module = world.load("vllm.model_executor.layers.quantization.quark.utils")
        assert_mxfp4(module.quark_quantize_weight_to_mxfp4(x), x)
    else:
        module = world.load("vllm.models.muse_spark.amd.muse_moe_runner", OCP_MX_BLOCK_SIZE=32)
        assert_mxfp4(module._quantize_experts_to_mxfp4(x, 3), x)


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


# ---------------------------------------------------------------- sparse attention


def sparse_mla(world: World, p: Any, sinks: Tensor | None) -> tuple[Tensor, Any]:
    module = world.load(f"{MLA}.rocm_aiter_mla_sparse")
    module.AiterMLAHelper = world.load(f"{MLA}.rocm_aiter_mla").AiterMLAHelper
    module._use_rocm_sparse_triton = lambda **_: False
    module._is_long_bf16_prefill = lambda *_: False
    rows, heads = len(p.lens), p.q.shape[1]
    impl = object.__new__(module.ROCMAiterMLASparseImpl)
    impl.__dict__ |= {
        "scale": SCALE,
        "kv_lora_rank": 512,
        "num_heads": heads,
        "sinks": sinks,
        "kv_cache_dtype": "auto",
    }
    metadata = words(
        qo_indptr=starts(rows),
        paged_kv_indptr=p.kv_indptr,
        paged_kv_indices=p.kv_indices,
        paged_kv_last_page_len=torch.ones(rows, dtype=I32),
        attn_out_dtype=BF16,
        num_prefills=0,
        num_decodes=rows,
        num_decode_tokens=rows,
        max_query_len=1,
        max_seq_len=64,
        topk_tokens=64,
        **METADATA,
    )
    layer = words(_q_scale=torch.ones(()), _k_scale=torch.ones(()))
    result: tuple[Tensor, Any] = impl._forward_mla(layer, p.q, p.kv.squeeze(2), metadata)
    return result


@vllm(each=("bf16", "fp8"))
def sparse(world: World, kind: str) -> None:
    """Each token over the tokens that an indexer chose for it."""
    fp8 = kind == "fp8"
    p = paged(world.arch, [5, 33, 1], fp8=fp8, q_fp8=fp8)
    out, _ = sparse_mla(world, p, None)
    expected = reference.attention(p.q, keys_of(p), SCALE)
    reference.assert_attention(out, expected)


@vllm(each=(16, 32))
def sparse_with_sinks(world: World, heads: int) -> None:
    """lse, to which the sink of each head is added afterwards."""
    p = paged(world.arch, [5, 33, 1], heads)
    sinks = torch.full((heads,), -100.0)  # of no weight
    out, _ = sparse_mla(world, p, sinks)
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE))


# ---------------------------------------------------------------- what vLLM asks of a function


@vllm()
def signatures(world: World) -> None:
    """A wrapper has its callee's parameters, by which vLLM decides what it passes."""
    module, own = world.load("vllm._aiter_ops"), ops(world)
    world.covers("_check_aiter_mla_fp8_support", "mla_decode_fwd")
    assert module._check_aiter_mla_fp8_support()
    for name, target in (
        ("fused_moe_supports_gate_mode", "fused_moe"),
        ("fused_moe_supports_quant_dtype_a", "fused_moe"),
        ("mla_decode_supports_non_causal", "mla_decode_fwd"),
        ("topk_softmax_supports_fused_sigmoid", "topk_softmax"),
    ):
        world.covers(f"rocm_aiter_ops.{name}", target)
        assert getattr(own, name)(), name
