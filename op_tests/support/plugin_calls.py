"""Callees of vLLM and SGLang: a call of each as the engines make it, with its check, and stub
modules of aiter and vLLM that note when the original is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import rfops
from rfops import later
from rfops.moe.kernels.topk.choosing import choose
from rfops.plugins import around, callees, layouts, sglang, vllm

BF16, F32, I32, FP8 = torch.bfloat16, torch.float32, torch.int32, torch.float8_e4m3fn
CallCase = tuple[tuple[Any, ...], dict[str, Any], Callable[[Any], None]]
BY_TARGET = {callee.target: callee for callee in (*callees.AITER, *callees.VLLM)}


def nan(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full(shape, float("nan")).to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-2) -> None:
    error = (actual.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert error <= tolerance, (
        f"{error} of the greatest value"
    )  # a call that went wrong, not rounding


# ---------------------------------------------------------------- calls as theirs


def mla() -> CallCase:
    """_rocm_aiter_mla_decode_fwd_impl: eight by position, the rest by name."""
    lens, heads = [5, 0, 33], 16
    q, kv = torch.randn(3, heads, 576).to(BF16), torch.randn(64, 1, 576).to(BF16)
    ends = torch.tensor([0, 5, 5, 38], dtype=I32)
    pages = torch.randperm(64)[:38].to(I32)
    o = nan(3, heads, 512)
    expected = rfops.mla_decode_ref(q, kv.view(-1, 1, 1, 576), ends, pages, 0.04)
    scratch = torch.zeros(8, dtype=I32)
    words = {
        "sm_scale": 0.04,
        "logit_cap": 0.0,
        "q_scale": None,
        "kv_scale": None,
        "causal": True,
        "work_meta_data": scratch,
        "work_indptr": scratch,
        "work_info_set": scratch,
        "reduce_indptr": scratch,
        "reduce_final_map": scratch,
        "reduce_partial_map": scratch,
    }
    args = (
        q,
        kv.view(-1, 1, 1, 576),
        o,
        torch.arange(4, dtype=I32),
        ends,
        pages,
        torch.ones(3, dtype=I32),
        1,
    )
    assert len(lens) == 3
    return args, words, lambda _: close(o, expected)


def decode_attention() -> CallCase:
    """TritonMLAImpl.forward_mqa."""
    q, kv = torch.randn(2, 16, 576).to(BF16), torch.randn(6, 16, 1, 576).to(BF16)
    table, lens = torch.tensor([[3, 1, 0], [4, 5, 2]], dtype=I32), torch.tensor([20, 48], dtype=I32)
    o, lse = nan(2, 16, 512), nan(2, 16, dtype=F32)
    expected = rfops.mla_decode_ref(q, kv, None, table, 0.04, kv_lens=lens)
    one = torch.ones(1)
    args = (q, kv, kv[..., :512], o, lse, table, lens, torch.empty(2, 16, 4, 513), 4, 0.04, 16)

    def check(_: Any) -> None:
        close(o, expected)
        assert lse.isfinite().all()

    return args, {"k_scale": one, "v_scale": one, "is_mla": True}, check


def shuffled(w: torch.Tensor) -> torch.Tensor:
    """As vLLM keeps expert weights: a parameter with a mark on it."""
    data = torch.nn.Parameter(rfops.shuffle_weight(w).data, requires_grad=False)
    data.is_shuffled = True  # type: ignore[attr-defined]
    return data


def moe() -> CallCase:
    """_rocm_aiter_fused_moe_impl."""
    x, w1 = torch.randn(8, 64).to(BF16), (torch.randn(4, 64, 64) / 8).to(BF16)
    w2 = (torch.randn(4, 64, 32) / 6).to(BF16)
    weights, ids = choose(torch.randn(8, 4), None, 2, renormalize=True)
    expected = rfops.fused_moe_ref(x, w1, w2, weights, ids)
    words = dict.fromkeys(("num_local_tokens", "dtype", "bias1", "bias2"))
    words |= {
        "hidden_pad": 0,
        "intermediate_pad": 0,
        "moe_sorting_dispatch_policy": 0,
        "swiglu_limit": 0.0,
    }
    args = (x, shuffled(w1), shuffled(w2), weights, ids.to(I32), None, 0, 0, False, *4 * (None,))
    return args, words, lambda out: close(out, expected)


def quantised(
    quantise: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> list[torch.Tensor]:
    """w1, w1_scale, w2, w2_scale of four experts of D = 256, I = 256."""
    result = []
    for shape in ((512, 256), (256, 256)):
        quantised_items = [quantise(torch.randn(*shape) / 16) for _ in range(4)]
        result += [
            torch.stack([item[0] for item in quantised_items]),
            torch.stack([item[1] for item in quantised_items]),
        ]
    return result


def _routing() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(6, 16), nan(6, 4, dtype=F32), torch.full((6, 4), -7, dtype=I32)


def softmax() -> CallCase:
    logits, weights, ids = _routing()
    expected = rfops.topk_softmax_ref(logits, 4, True)[0]
    return (
        (weights, ids, torch.empty_like(ids), logits, True, 0, ""),
        {},
        lambda _: close(weights, expected),
    )


def gating() -> CallCase:
    logits, weights, ids = _routing()
    expected = rfops.topk_softmax_ref(logits, 4, True)[0]
    words = {
        "correction_bias": None,
        "need_renorm": True,
        "routed_scaling_factor": 1.0,
        "score_func": "softmax",
        "num_shared_experts": 0,
    }
    return (weights, ids, logits), words, lambda _: close(weights, expected)


def fused_topk() -> CallCase:
    logits, weights, ids = _routing()
    expected = rfops.topk_softmax_ref(logits, 4, True)[0]
    words = {"topk_ids": ids, "topk_weights": weights}
    return (torch.randn(6, 8), logits, 4, True), words, lambda out: close(out[0], expected)


def biased() -> CallCase:
    logits, weights, ids = _routing()
    bias = torch.randn(16)
    expected = rfops.grouped_topk_ref(
        logits, bias, 4, num_groups=4, topk_groups=2, renormalize=True, scale=2.5
    )[0]
    args = (logits, bias, weights, ids, 4, 2, True, 2.5)
    return args, {}, lambda _: close(weights, expected)


def grouped() -> CallCase:
    logits, weights, ids = _routing()
    expected = rfops.grouped_topk_ref(
        logits, None, 4, num_groups=4, topk_groups=2, score="softmax"
    )[0]
    return (logits, weights, ids, 4, 2, True, True, 1.0), {}, lambda _: close(weights, expected)


def align() -> CallCase:
    ids = torch.randint(8, (5, 2), dtype=I32)
    expected = rfops.moe_align_block_size(ids, 16, 8)

    def check(out: Any) -> None:
        used = int(expected[2])
        assert torch.equal(out[0][:used], expected[0][:used]) and torch.equal(out[2], expected[2])

    return (ids, 16, 8), {"expert_map": None}, check


def _fp8() -> tuple[torch.Tensor, ...]:
    x, x_scale = rfops.quant_fp8_blockscale(torch.randn(3, 256))
    w, w_scale = rfops.quant_fp8_blockscale(torch.randn(128, 256), (128, 128))
    return x, w, x_scale, w_scale


def fp8() -> CallCase:
    args = _fp8()
    expected = rfops.gemm_a8w8_blockscale_ref(*args)
    return args, {"dtype": BF16}, lambda out: close(out, expected)


def fp8_shuffled() -> CallCase:
    x, w, x_scale, w_scale = _fp8()
    expected = rfops.gemm_a8w8_blockscale_ref(x, w, x_scale, w_scale)
    args = (x, rfops.shuffle_weight(w).data, x_scale.T.contiguous().T, w_scale)
    return args, {"dtype": BF16}, lambda out: close(out, expected)


def _fp4() -> tuple[torch.Tensor, ...]:
    x, x_scale = rfops.quant_mxfp4(torch.randn(64, 512))
    w, w_scale = rfops.quant_mxfp4(torch.randn(64, 512))
    return x, w, x_scale, w_scale


def a4w4() -> CallCase:
    x, w, x_scale, w_scale = _fp4()
    expected = rfops.gemm_afp4wfp4_ref(x, w, x_scale, w_scale)
    args = (
        x,
        rfops.shuffle_weight(w).data,
        rfops.shuffle_scale(x_scale).data,
        rfops.shuffle_scale(w_scale).data,
    )
    return args, {"dtype": BF16, "bpreshuffle": True}, lambda out: close(out, expected)


def afp4() -> CallCase:
    x, w, x_scale, w_scale = _fp4()
    expected, y = rfops.gemm_afp4wfp4_ref(x, w, x_scale, w_scale), nan(64, 64)
    scale = w_scale.view(torch.uint8).T.contiguous().T
    return (x, w, x_scale.view(torch.uint8), scale, BF16, y), {}, lambda _: close(y, expected)


def afp4_shuffled() -> CallCase:
    x, w, x_scale, w_scale = _fp4()
    expected, y = rfops.gemm_afp4wfp4_ref(x, w, x_scale, w_scale), nan(64, 64)
    w2 = rfops.shuffle_weight(w).data.view(torch.uint8).view(4, -1)
    scales = [rfops.shuffle_scale(s).data.view(torch.uint8)[:64] for s in (x_scale, w_scale)]
    xs, ws = (s.view(2, -1) for s in scales)
    return (x.view(torch.uint8), w2, xs, ws, BF16, y), {}, lambda _: close(y, expected)


def quant() -> CallCase:
    x = torch.randn(4, 128).to(BF16)
    expected = rfops.quant_mxfp4(x)[0].view(torch.uint8)

    def check(out: Any) -> None:
        assert torch.equal(out[0].view(torch.uint8), expected)

    return (x,), {}, check


class QuantType:
    """aiter's word, as far as get_hip_quant is asked."""

    name = "per_1x128"


def group_quant() -> CallCase:
    """What get_hip_quant makes, called as vLLM calls it."""
    x = torch.randn(5, 256).to(BF16)
    payload, scale = rfops.quant_fp8_blockscale(x)

    def check(out: Any) -> None:
        assert torch.equal(out[0].view(torch.uint8), payload.view(torch.uint8))
        assert out[1].shape == (5, 2) and out[1].is_contiguous()
        assert torch.equal(out[1].view(2, 5).T, scale)

    return (x,), {"quant_dtype": FP8, "transpose_scale": True}, check


def norm() -> CallCase:
    """rocm_aiter_ops.rms_norm."""
    x, w = torch.randn(4, 256).to(BF16), torch.randn(256).to(BF16)
    return (x, w, 1e-6), {}, lambda out: close(out, rfops.rms_norm_ref(x, w))


def norm_quant() -> CallCase:
    """_rocm_aiter_rmsnorm_fp8_group_quant_impl."""
    x, w = torch.randn(4, 256).to(BF16), torch.randn(256).to(BF16)
    words = {"group_size": 128, "dtype_quant": FP8, "res1": None}

    def check(result: Any) -> None:
        (payload, scale), *other_results = result
        assert other_results == [None, None, None]
        expected = rfops.rms_norm_ref(x, w)
        close(payload.float() * scale.repeat_interleave(128, 1), expected, 2**-4)

    return (x, w, 1e-6, None, None, None), words, check


def silu() -> CallCase:
    """SiluAndMul.forward_aiter."""
    x, out = torch.randn(4, 512).to(BF16), nan(4, 256)
    return (out, x, 0.0), {}, lambda _: close(out, rfops.act_mul_ref(x, "silu"))


def clamp() -> CallCase:
    """DeepseekV2MLP.forward."""
    x = torch.randn(4, 512).to(BF16)
    expected = rfops.act_mul_ref(x, "swiglu", False, 1.0, 0.5, 0.0)
    return (x,), {"swiglu_limit": 0.5, "activation": "silu"}, lambda out: close(out, expected)


def row_quant(rows: int, static: bool = False) -> CallCase:
    """_rocm_aiter_per_token_quant_impl and _rocm_aiter_per_tensor_quant_impl."""
    x, out = torch.randn(4, 256).to(BF16), nan(4, 256, dtype=FP8)
    scale = torch.full((1,), 0.02) if static else torch.zeros(rows).view(-1, *[1] * (rows > 1))
    return (out, x, scale), {}, lambda _: close(out.float() * scale, x, 2**-4)


def new_token_quant() -> CallCase:
    """apply_fp8_ptpc_linear."""
    x = torch.randn(4, 256).to(BF16)
    check: Callable[[Any], None] = lambda result: close(result[0].float() * result[1], x, 2**-4)  # noqa: E731
    return (x,), {"quant_dtype": FP8}, check


CALLS: dict[str, Callable[[], CallCase]] = {
    "aiter.get_hip_quant": group_quant,
    "aiter.mla.mla_decode_fwd": mla,
    "aiter.fused_moe.fused_moe": moe,
    "aiter.topk_softmax": softmax,
    "aiter.ops.topk.topk_gating": gating,
    "aiter.fused_moe.fused_topk": fused_topk,
    "aiter.biased_grouped_topk": biased,
    "aiter.grouped_topk": grouped,
    "aiter.gemm_a8w8_blockscale": fp8,
    "aiter.gemm_a8w8_blockscale_bpreshuffle": fp8_shuffled,
    "aiter.ops.triton.gemm_a8w8_blockscale.gemm_a8w8_blockscale": fp8,
    "aiter.gemm_a4w4": a4w4,
    "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4": afp4,
    "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle": afp4_shuffled,
    "aiter.ops.triton.quant.dynamic_mxfp4_quant": quant,
    "aiter.rms_norm": norm,
    "aiter.rmsnorm2d_fwd": norm,
    "aiter.ops.triton.fused_fp8_quant.fused_rms_fp8_group_quant": norm_quant,
    "aiter.silu_and_mul": silu,
    "aiter.ops.triton.fusions.fused_clamp_act_mul.fused_clamp_act_mul": clamp,
    "aiter.ops.quant.dynamic_per_token_scaled_quant": lambda: row_quant(4),
    "aiter.ops.quant.dynamic_per_tensor_quant": lambda: row_quant(1),
    "aiter.ops.quant.static_per_tensor_quant": lambda: row_quant(1, True),
    "aiter.per_token_quant_hip": new_token_quant,
    "vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd": decode_attention,
    "vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size": align,
}


# ---------------------------------------------------------------- engines that are not there


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Modules of aiter and vLLM with the callees, which note that the original was called."""
    noted: list[str] = []
    monkeypatch.setattr(vllm, "is_rocm", lambda: True)
    monkeypatch.setattr(sglang, "is_rocm", lambda: True)
    monkeypatch.setattr(around, "tell_at_exit", lambda: None)
    monkeypatch.delenv("RFOPS_PLUGIN", raising=False)
    monkeypatch.setattr(later, "_EACH_TIME", {})  # of modules that are loaded when this is over
    monkeypatch.setattr(layouts, "_RECORDS", {})
    monkeypatch.setattr(layouts, "_LAYOUT_RECORDS", {})

    def original(target: str) -> Callable[..., Any]:
        if target == "aiter.get_hip_quant":
            result = original("aiter.ops.quant.per_group_quant_hip")
            return lambda kind: result

        def function(*args: Any, **kwargs: Any) -> Any:
            noted.append(target)
            return args, kwargs

        return function

    for target, callee in BY_TARGET.items():
        module, _, name = target.rpartition(".")
        packages = module.split(".")
        for depth in range(1, len(packages) + 1):
            path = ".".join(packages[:depth])
            if path not in sys.modules:
                result = ModuleType(path)
                result.__spec__ = importlib.machinery.ModuleSpec(path, None)
                monkeypatch.setitem(sys.modules, path, result)
        monkeypatch.setattr(sys.modules[module], name, original(target), raising=False)
        callee.engaged = callee.compiled = 0
        callee.missing, callee.is_registered, callee.is_hooked = "", False, False
        callee.left.clear()
        callee.answers.clear()
    yield noted


def function_of(target: str) -> Callable[..., Any]:
    module, _, name = target.rpartition(".")
    result: Callable[..., Any] = getattr(sys.modules[module], name)
    return result


def called(target: str) -> Callable[..., Any]:
    """What is called with the arguments: the function, or what it makes."""
    function = function_of(target)
    result: Callable[..., Any] = function(QuantType) if "get_hip_quant" in target else function
    return result
