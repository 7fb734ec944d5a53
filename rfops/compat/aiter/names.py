"""What of aiter's names is served, by which function, and what is known and not served.

A new op is bound by a row of _ROWS: the provider, the modules of aiter that give the names out, and
the names, `theirs=ours` where they differ. Its names then leave ABSENT or _KINDS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_AITER = "rfops.compat.aiter"
_COMPAT = "rfops.compat"
_TRITON = "aiter.ops.triton"
_QUANT_MODULES = ("aiter", "aiter.ops.quant")
_GEMM8_MODULES = ("aiter", "aiter.ops.gemm_op_a8w8")
_GEMM4_MODULES = ("aiter", "aiter.ops.gemm_op_a4w4")
_CACHES = "rfops.attention.cache_dropins"
_TOPK_MODULES = ("aiter", "aiter.ops.topk")
_NORM_MODULES = ("aiter", "aiter.ops.rmsnorm")
_ACTIVATION_MODULES = ("aiter", "aiter.ops.activation")
_PREQUANT = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"


def _triton(module: str, folder: str) -> tuple[str, str]:
    """Return the two names of a module of aiter's Triton ops: the former one, and today's, which
    has a folder."""
    return f"{_TRITON}.{module}", f"{_TRITON}.{folder}.{module}"


_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # experts and routing
    (f"{_AITER}.moe", ("aiter.fused_moe",), "fused_moe torch_moe_stage1 torch_moe_stage2"),
    (f"{_AITER}.moe", ("aiter.ops.flydsl.moe_common",), "GateMode"),
    (
        f"{_AITER}.moe",
        ("aiter.ops.flydsl.utils", "aiter.ops.flydsl"),
        "is_flydsl_available=return_false",
    ),
    (f"{_AITER}.moe", ("aiter.jit.core",), "is_experimental_enabled=return_false"),
    (_COMPAT, ("aiter.fused_moe",), "fused_topk moe_sorting"),
    (_COMPAT, ("aiter", "aiter.ops.moe_op"), "topk_softmax"),
    (f"{_AITER}.moe", ("aiter", "aiter.ops.moe_op"), "topk_softmax_asm"),
    (_COMPAT, _TOPK_MODULES, "topk_gating biased_grouped_topk grouped_topk"),
    (
        f"{_AITER}.moe",
        _TOPK_MODULES,
        "biased_grouped_topk_hip moe_fused_gate biased_grouped_topk_torch grouped_topk_torch",
    ),
    (f"{_AITER}.moe", ("aiter", "aiter.ops.moe_op"), "topk_sigmoid"),
    (f"{_AITER}.matmul", ("aiter", "aiter.ops.moe_op"), "moe_sum"),
    # norms and activations
    ("rfops.rowwise.dropins", _NORM_MODULES, "rmsnorm2d_fwd rmsnorm2d_fwd_with_add"),
    (f"{_AITER}.norms", _NORM_MODULES, "rms_norm"),
    (
        f"{_AITER}.norms",
        _NORM_MODULES,
        "rmsnorm add_rmsnorm rmsnorm_quant add_rmsnorm_quant rmsnorm2d_fwd_with_dynamicquant "
        "rmsnorm2d_fwd_with_add_dynamicquant",
    ),
    (
        f"{_AITER}.norms",
        ("aiter", "aiter.ops.fused_qk_rmsnorm_group_quant"),
        "fused_qk_rmsnorm fused_qk_rmsnorm_group_quant fused_qk_rmsnorm_per_token_quant",
    ),
    (
        f"{_AITER}.norms",
        ("aiter.ops.fused_qk_norm_rope_cache_quant",),
        "_fused_qk_rmsnorm fused_qk_rmsnorm=norms_of_q_and_k",
    ),
    (
        f"{_AITER}.norms",
        _triton("rmsnorm", "normalization"),
        "rms_norm=rms_norm_triton rmsnorm2d_fwd_with_add=rmsnorm2d_fwd_with_add_triton",
    ),
    (f"{_AITER}.norms", _triton("fused_add_rmsnorm_pad", "normalization"), "fused_add_rmsnorm_pad"),
    (
        f"{_AITER}.norms",
        (*_triton("fused_fp8_quant", "quant"), f"{_TRITON}.quant"),
        "fused_rms_fp8_group_quant fused_rms_fp8_per_tensor_static_quant "
        "fused_rms_gated_fp8_group_quant",
    ),
    (
        f"{_AITER}.activations",
        _ACTIVATION_MODULES,
        "silu_and_mul gelu_and_mul gelu_tanh_and_mul swiglu_and_mul scaled_silu_and_mul "
        "silu_and_mul_quant",
    ),
    (f"{_AITER}.activations", (f"{_TRITON}.activation",), "act_mul_and_fp8_group_quant"),
    (
        f"{_AITER}.activations",
        (*_triton("fused_fp8_quant", "quant"), f"{_TRITON}.quant"),
        "fused_flatten_fp8_group_quant",
    ),
    (f"{_AITER}.activations", (f"{_TRITON}.fusions.fused_clamp_act_mul",), "fused_clamp_act_mul"),
    (f"{_AITER}.activations", (f"{_TRITON}.fusions.fused_sigmoid_mul",), "fused_sigmoid_mul"),
    (f"{_AITER}.activations", _triton("quant_moe", "moe"), "downcast_to_static_fp8"),
    # MLA
    (_COMPAT, ("aiter.mla",), "mla_decode_fwd"),
    (_COMPAT, ("aiter", "aiter.ops.attention"), "get_mla_metadata_info_v1 get_mla_metadata_v1"),
    (
        f"{_AITER}.mla",
        ("aiter", "aiter.ops.attention"),
        "get_ps_metadata_info_v1 get_ps_metadata_v1",
    ),
    (f"{_AITER}.mla", ("aiter.mla",), "get_meta_param"),
    (f"{_AITER}.prefill", ("aiter", "aiter.ops.mha"), "flash_attn_varlen_func"),
    # RoPE and cache writes
    (
        _CACHES,
        ("aiter", "aiter.ops.cache"),
        "concat_and_cache_mla fused_qk_rope_concat_and_cache_mla reshape_and_cache_flash",
    ),
    (
        _CACHES,
        ("aiter", "aiter.ops.rope"),
        "rope_cached_positions_2c_fwd_impl rope_cached_positions_2c_fwd_inplace "
        "rope_cached_2c_fwd_inplace",
    ),
    (
        _CACHES,
        (f"{_TRITON}.rope.rope", f"{_TRITON}.rope"),
        "rope_cached_thd_positions_2c_fwd_inplace",
    ),
    (
        _CACHES,
        (f"{_TRITON}.fused_kv_cache", f"{_TRITON}.fusions.fused_kv_cache"),
        "fused_qk_rope_cat_and_cache_mla",
    ),
    (
        _CACHES,
        (f"{_TRITON}.fusions.fused_bmm_rope_kv_cache",),
        "fused_fp8_bmm_rope_cat_and_cache_mla",
    ),
    # linear layers
    (_COMPAT, _GEMM8_MODULES, "gemm_a8w8_blockscale gemm_a8w8_blockscale_bpreshuffle"),
    (
        f"{_AITER}.linear",
        _GEMM8_MODULES,
        "gemm_a8w8_blockscale_ck gemm_a8w8_blockscale_cktile gemm_a8w8_blockscale_bpreshuffle_asm",
    ),
    (f"{_AITER}.linear", ("aiter.ops.gemm_op_a8w8",), "get_CKGEMM_config=get_config"),
    (f"{_AITER}.linear", ("aiter.ops.gemm_op_a8w8",), "get_GEMM_config_with_quant_type=get_config"),
    (f"{_AITER}.linear", ("aiter.ops.gemm_op_a4w4",), "get_GEMM_config=get_config"),
    (_COMPAT, _GEMM4_MODULES, "gemm_a4w4"),
    (f"{_AITER}.linear", _GEMM4_MODULES, "gemm_a4w4_asm gemm_a4w4_blockscale"),
    (
        _COMPAT,
        (f"{_TRITON}.gemm_a8w8_blockscale", f"{_TRITON}.gemm.basic.gemm_a8w8_blockscale"),
        "gemm_a8w8_blockscale=gemm_a8w8_blockscale_triton",
    ),
    (
        _COMPAT,
        (f"{_TRITON}.gemm_afp4wfp4", f"{_TRITON}.gemm.basic.gemm_afp4wfp4"),
        "gemm_afp4wfp4 gemm_afp4wfp4_preshuffle gemm_afp4wfp4_preshuffled_weight_scales",
    ),
    (
        _COMPAT,
        (f"{_TRITON}.gemm_a16wfp4", f"{_TRITON}.gemm.basic.gemm_a16wfp4"),
        "gemm_a16wfp4 gemm_a16wfp4_preshuffle",
    ),
    (f"{_AITER}.gemm16", ("aiter.tuned_gemm",), "gemm_a16w16 tgemm TunedGemm"),
    (f"{_AITER}.gemm16", ("aiter.ops.batched_gemm_op_bf16", "aiter"), "batched_gemm_bf16"),
    (
        f"{_AITER}.gemm16",
        ("aiter.ops.batched_gemm_op_bf16", "aiter"),
        "batched_gemm_bf16_CK=batched_gemm_bf16_triton",
    ),
    (
        f"{_AITER}.gemm16",
        (f"{_TRITON}.gemm_a16w16", f"{_TRITON}.gemm.basic.gemm_a16w16"),
        "gemm_a16w16=gemm_a16w16_triton",
    ),
    (
        f"{_AITER}.gemm16",
        (f"{_TRITON}.batched_gemm_bf16", f"{_TRITON}.gemm.batched.batched_gemm_bf16"),
        "batched_gemm_bf16=batched_gemm_bf16_triton",
    ),
    (
        f"{_AITER}.batched",
        (f"{_TRITON}.gemm_a8w8_blockscale", f"{_TRITON}.gemm.basic.gemm_a8w8_blockscale"),
        "gemm_a8w8_blockscale_preshuffle",
    ),
    (f"{_AITER}.batched", _triton("gemm_a8wfp4", "gemm.basic"), "gemm_a8wfp4"),
    (
        f"{_AITER}.batched",
        _triton("gemm_afp4wfp4_pre_quant_atomic", "gemm.basic"),
        "gemm_afp4wfp4_pre_quant",
    ),
    (
        f"{_AITER}.batched",
        _triton("fused_gemm_afp4wfp4_split_cat", "gemm.fused"),
        "fused_gemm_afp4wfp4_split_cat",
    ),
    (
        f"{_AITER}.batched",
        _triton(_PREQUANT, "gemm.batched"),
        f"{_PREQUANT}=batched_gemm_a8w8_prequant",
    ),
    (f"{_AITER}.batched", _triton("batched_gemm_a16wfp4", "gemm.batched"), "batched_gemm_a16wfp4"),
    (
        f"{_AITER}.batched",
        ("aiter", "aiter.ops.batched_gemm_op_a8w8"),
        "batched_gemm_a8w8_mxscale",
    ),
    (f"{_AITER}.matmul", ("aiter.tuned_gemm",), "triton_gemm"),
    (f"{_AITER}.matmul", ("aiter", "aiter.ops.custom"), "wvSpltK"),
    (f"{_AITER}.matmul", ("aiter", "aiter.ops.gradlib"), "hipb_mm hipb_create_extension"),
    (
        f"{_AITER}.matmul",
        _GEMM8_MODULES,
        "gemm_a8w8 gemm_a8w8_CK=gemm_a8w8 gemm_a8w8_bpreshuffle",
    ),
    # quantisers
    (_COMPAT, (f"{_TRITON}.quant", f"{_TRITON}.quant.quant"), "dynamic_mxfp4_quant"),
    (_COMPAT, _QUANT_MODULES, "per_group_quant_hip"),
    (
        f"{_AITER}.quant",
        _QUANT_MODULES,
        "pertoken_quant per_tensor_quant per_1x32_f4_quant per_1x32_f4_quant_hip "
        "per_1x32_mx_quant_hip per_1x32_f4_quant_triton quant_mxfp4_hip get_hip_quant "
        "get_torch_quant get_triton_quant static_per_tensor_quant dynamic_per_tensor_quant "
        "dynamic_per_token_scaled_quant per_token_quant_hip per_tensor_quant_hip",
    ),
    (f"{_AITER}.quant", (f"{_TRITON}.quant", f"{_TRITON}.quant.quant"), "dynamic_mxfp8_quant"),
    (f"{_AITER}.quant", _triton("moe_op_gemm_a4w4", "moe"), "mxfp4_quant"),
    (
        f"{_AITER}.mx_types",
        ("aiter.utility.mx_types",),
        "MxScaleRoundMode MxScaleRoundModeInt MxDtype MxDtypeInt MX_DEFAULT_ROUND_MODE",
    ),
    (f"{_AITER}.mx_types", ("aiter.ops.quant",), "MxScaleRoundMode"),
    (
        f"{_AITER}.mx_types",
        ("aiter.utility.fp4_utils",),
        "f32_to_mx_e8m0_scale e8m0_to_f32 mxfp4_to_f32 f32_to_mxfp4 dynamic_mxfp4_quant",
    ),
    # layouts
    (f"{_AITER}.shuffle", ("aiter.utility.fp4_utils",), "e8m0_shuffle e8m0_unshuffle"),
    (
        f"{_AITER}.shuffle",
        ("aiter.ops.shuffle",),
        "shuffle_weight shuffle_scale shuffle_weight_a16w4 shuffle_scale_a16w4 "
        "moe_shuffle_weight moe_shuffle_scale",
    ),
    # enums, dtypes, device, tests
    ("rfops.moe.moe_dropins", ("aiter", "aiter.ops.enum"), "ActivationType QuantType"),
    (f"{_AITER}.mla", ("aiter", "aiter.ops.enum"), "MlaVersion"),
    (
        f"{_AITER}.dtypes",
        ("aiter.utility.dtypes",),
        "fp8 fp8_e8m0 fp16 bf16 fp32 i4x2 fp4x2 u8 u32 u64 i8 i16 i32 i64 d_dtypes get_dtype_fp8 "
        "str2bool str2tuple str2Dtype str2ActivationType",
    ),
    ("aiter.utility", ("aiter",), "dtypes"),
    (
        f"{_AITER}.chip_info",
        ("aiter.jit.utils.chip_info",),
        "get_gfx get_gfx_runtime=get_gfx get_cu_num get_gfx_list get_device_name",
    ),
    (f"{_AITER}.chip_info", ("aiter",), "get_gfx get_cu_num get_gfx_runtime=get_gfx"),
    (f"{_AITER}.chip_info", (f"{_TRITON}.utils._triton.arch_info",), "get_arch=get_gfx"),
    (f"{_AITER}.chip_info", (f"{_TRITON}.utils.core",), "AITER_TRITON_CONFIGS_PATH"),
    (f"{_AITER}.chip_info", ("aiter.jit.utils.torch_guard",), "torch_compile_guard"),
    (f"{_AITER}.test_common", ("aiter",), "logger"),
    (
        f"{_AITER}.test_common",
        ("aiter.test_common",),
        "perftest run_perftest benchmark checkAllclose logger",
    ),
)


def _served() -> dict[str, dict[str, str]]:
    """Return, by module of aiter and name there, `provider:name`."""
    table: dict[str, dict[str, str]] = {}
    for provider, modules, text in _ROWS:
        for word in text.split():
            theirs, _, ours = word.partition("=")
            for module in modules:
                table.setdefault(module, {})[theirs] = f"{provider}:{ours or theirs}"
    return table


SERVED: Mapping[str, Mapping[str, str]] = MappingProxyType(_served())


def _with_parents(modules: Mapping[str, object]) -> frozenset[str]:
    """Return the dotted names of `modules` and of all packages that contain them."""
    paths = [name.split(".") for name in modules]
    return frozenset(".".join(p[:n]) for p in paths for n in range(1, len(p) + 1))


MODULES = _with_parents(SERVED)  # every module that can be imported

# Kinds of what rfops lacks, by a pattern of the name: what it is, and what serves instead.
_KINDS: tuple[tuple[str, str], ...] = (
    ("flydsl", "It is a FlyDSL kernel of aiter's: RFOPS_AITER_SOURCE does not help, run aiter's"),
    (
        r"rope|rotary|concat_and_cache|reshape_and_cache",
        "RoPE and cache writes: use rope_cached_positions_2c_fwd_impl, concat_and_cache_mla, "
        "reshape_and_cache_flash or fused_qk_rope_concat_and_cache_mla",
    ),
    (r"layer_?norm|smoothquant", "Normalisation: use torch.nn.functional or the engine's own path"),
    (r"norm", "Normalisation: use rmsnorm2d_fwd, add_rmsnorm or add_rmsnorm_quant"),
    (r"_and_mul|act_mul|gelu|silu", "Activations: use silu_and_mul or fused_clamp_act_mul"),
    (
        r"per_tensor_quant|per_token|static_.*quant|dynamic_.*quant",
        "FP8 with a scale per token or per tensor: use dynamic_per_token_scaled_quant",
    ),
    (r"sparse|mqa_logits|indexer|top_k_per_row|msa_|mhc", "Sparse attention: rfops has none"),
    (
        r"flash_attn|prefill|paged_attention|pa_|mha|unified_attention|fmha",
        "Prefill and multi-head attention: use torch's scaled_dot_product_attention or Triton's",
    ),
    (r"mla", "MLA: use aiter.mla.mla_decode_fwd, which is rfops.mla_decode"),
    (
        r"all_?reduce|allgather|reduce_scatter|qr_|communic|dist",
        "Communication: use torch.distributed",
    ),
    (r"topk|routing|gate", "Routing: use topk_softmax, topk_gating or biased_grouped_topk"),
    (r"moe", "Experts: use aiter.fused_moe.fused_moe, which is rfops.fused_moe"),
    (
        r"gemm|tgemm|hipb|wvSplit|wv_split",
        "Linear layers: use gemm_a8w8_blockscale, gemm_a4w4, gemm_a16wfp4 or torch.matmul",
    ),
    (r"sample", "Sampling: use torch"),
    (r"delta|gdn|gdr|conv1d|kda|linear_attention", "Linear attention: rfops has none"),
    (
        r"triton",
        "aiter's own Triton code: set RFOPS_AITER_SOURCE to a checkout of ROCm/aiter and it runs",
    ),
)
_OTHER_ADVICE = "rfops.compat.aiter.names lists what is; for the rest use aiter itself on a GPU"


def advice(name: str) -> str:
    """Return what to use for a dotted name of aiter's that is not served."""
    for pattern, text in _KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return f"{text}."
    return f"{_OTHER_ADVICE}."


# Functions that callers import beside served ones: they can be imported, and raise when called.
ABSENT = frozenset(
    # SGLang's and vLLM's attention
    "flash_attn_varlen_fp8_pertensor_func flash_attn_func "
    "flash_attn_fp8_pertensor_func mha_batch_prefill_func mla_prefill_ps_asm_fwd "
    "mla_prefill_asm_fwd mla_prefill_fwd mla_prefill_ps_fwd mla_reduce_v1 paged_attention_ragged "
    "paged_attention_rocm pa_fwd_asm unified_attention "
    "hipb_findallsols "
    # norms, RoPE and cache
    "layernorm2d_fwd rmsnorm2d_fwd_with_smoothquant rmsnorm2d_fwd_with_add_smoothquant "
    "reshape_and_cache cp_gather_indexer_k_quant_cache indexer_k_quant_and_cache "
    # references and readers of aiter's op tests
    "torch_moe AITER_CONFIGS per_1x32_f8_scale_f8_quant per_1x32_i4_quant "
    "tensor_dump tensor_load shuffle_weight_f4 shuffle_scale_f4 moe_mxfp4_sort mxfp4_moe_sort_hip "
    "get_2stage_cfgs get_padded_M get_build_targets pack_int8_to_packed_int4 "
    "shuffle_scale_for_int4".split()
)
