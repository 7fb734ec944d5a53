"""Drop-ins on rows: the schemas of vLLM 0.33.0's ops and of aiter 0bc300f's functions, and that
each computes what its op does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rfops.quantization.fp8 import quant_fp8
from rfops.rowwise import dropins
from rfops.rowwise.act_mul import act_mul
from rfops.rowwise.act_mul_quant import act_mul_quant
from rfops.rowwise.rms_norm import rms_norm
from rfops.rowwise.rms_norm_quant import rms_norm_quant
from support.dropin_checks import assert_same_bytes, random_bf16, signature_of

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
pytestmark = pytest.mark.requires_gfx950
# Facts read off the libraries: torch.ops._C's schemas and aiter's signatures.
SIGNATURES = {
    "rms_norm": "result, input, weight, epsilon",
    "fused_add_rms_norm": "input, residual, weight, epsilon",
    "rms_norm_static_fp8_quant": "result, input, weight, scale, epsilon",
    "fused_add_rms_norm_static_fp8_quant": "result, input, residual, weight, scale, epsilon",
    "rms_norm_dynamic_per_token_quant": "result, input, weight, scale, epsilon, scale_ub, residual",
    "rms_norm_per_block_quant": "result, input, weight, scale, epsilon, scale_ub, residual, "
    "group_size, is_scale_transposed",
    "rmsnorm2d_fwd": "input, weight, epsilon, use_model_sensitive_rmsnorm=0",
    "rmsnorm2d_fwd_with_add": "out, input, residual_in, residual_out, weight, epsilon, "
    "gemma_norm=False, use_model_sensitive_rmsnorm=0",
    "silu_and_mul": "result, input",
    "gelu_and_mul": "out, input",
    "gelu_tanh_and_mul": "out, input",
    "swigluoai_and_mul": "out, input, alpha=1.702, limit=7.0",
    "silu_and_mul_with_clamp": "result, input, limit, alpha=1.0, beta=0.0",
    "silu_and_mul_quant": "result, input, scale",
    "silu_and_mul_per_block_quant": "out, input, scales, group_size, scale_ub=None, "
    "is_scale_transposed=False",
    "static_scaled_fp8_quant": "result, input, scale, group_shape=None",
    "dynamic_scaled_fp8_quant": "result, input, scale",
    "dynamic_per_token_scaled_fp8_quant": "result, input, scale, scale_ub",
}


def test_signatures() -> None:
    assert set(dropins.NAMES) == set(SIGNATURES)
    for name, expected in SIGNATURES.items():
        assert signature_of(getattr(dropins, name)) == expected, name


X, R, W, SCALE = (
    random_bf16(3, 256),
    random_bf16(3, 256).flip(0),
    random_bf16(256),
    torch.tensor([0.02]),
)


def test_norms() -> None:
    out = torch.empty_like(X)
    dropins.rms_norm(out, X, W, 1e-5)
    assert_same_bytes(out, rms_norm(X, W, eps=1e-5))
    assert_same_bytes(dropins.rmsnorm2d_fwd(X, W, 1e-5), out)
    x, residual, other = X.clone(), R.clone(), R.clone()
    dropins.fused_add_rms_norm(x, residual, W, 1e-5)
    expected = rms_norm(X, W, other, 1e-5)
    assert_same_bytes(x, expected)
    assert_same_bytes(residual, other)
    after, before = torch.empty_like(R), R.clone()
    dropins.rmsnorm2d_fwd_with_add(out, X, before, after, W, 1e-5)
    assert_same_bytes(out, expected)
    assert_same_bytes(after, other)
    assert_same_bytes(before, R)
    dropins.rmsnorm2d_fwd_with_add(out, X, before, after, W, 1e-5, True)
    assert_same_bytes(out, rms_norm(X, W.float() + 1, R.clone(), 1e-5))


@pytest.mark.parametrize("adds", [False, True])
def test_quantised_norms(adds: bool) -> None:
    result = torch.empty(3, 256, dtype=FP8)

    def residual() -> torch.Tensor | None:
        return R.clone() if adds else None

    def expect(quant: str, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return rms_norm_quant(X, W, residual(), 1e-5, quant, **more)

    tokens = torch.empty(3, 1)
    dropins.rms_norm_dynamic_per_token_quant(result, X, W, tokens, 1e-5, None, residual())
    assert_same_bytes(result, expect("fp8_token")[0])
    assert_same_bytes(tokens, expect("fp8_token")[1])
    for transposed in (False, True):
        groups = torch.empty(2, 3).T if transposed else torch.empty(3, 2)
        dropins.rms_norm_per_block_quant(
            result, X, W, groups, 1e-5, None, residual(), 128, transposed
        )
        assert_same_bytes(result, expect("fp8_group")[0])
        assert_same_bytes(groups, expect("fp8_group")[1])
    if adds:
        z = R.clone()
        dropins.fused_add_rms_norm_static_fp8_quant(result, X, z, W, SCALE, 1e-5)
        assert_same_bytes(z, X + R)
    else:
        dropins.rms_norm_static_fp8_quant(result, X, W, SCALE, 1e-5)
    assert_same_bytes(result, expect("fp8_tensor", static_scale=SCALE)[0])


def test_activations() -> None:
    out = torch.empty(3, 128, dtype=BF16)
    ways: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
        "silu_and_mul": ((), ("silu",)),
        "gelu_and_mul": ((), ("gelu",)),
        "gelu_tanh_and_mul": ((), ("gelu_tanh",)),
        "swigluoai_and_mul": ((), ("swiglu", True, 1.702, 7.0, 1.0)),
        "silu_and_mul_with_clamp": ((0.5,), ("swiglu", False, 1.0, 0.5, 0.0)),
    }
    for name, (values, expected) in ways.items():
        getattr(dropins, name)(out.zero_(), X, *values)
        assert_same_bytes(out, act_mul(X, *expected))
    result = torch.empty(3, 128, dtype=FP8)
    dropins.silu_and_mul_quant(result, X, SCALE)
    assert_same_bytes(result, act_mul_quant(X, "silu", "fp8_tensor", SCALE)[0])
    for transposed in (False, True):
        scales = torch.empty(1, 3).T if transposed else torch.empty(3, 1)
        dropins.silu_and_mul_per_block_quant(result, X, scales, 128, None, transposed)
        assert_same_bytes(result, act_mul_quant(X, "silu")[0])
        assert_same_bytes(scales, act_mul_quant(X, "silu")[1])


def test_quantisers() -> None:
    result, tokens, tensor = torch.empty(3, 256, dtype=FP8), torch.empty(3, 1), torch.empty(1)
    dropins.dynamic_per_token_scaled_fp8_quant(result, X, tokens, None)
    for one, other in zip((result, tokens), quant_fp8(X), strict=True):
        assert_same_bytes(one, other)
    dropins.dynamic_scaled_fp8_quant(result, X, tensor)
    assert_same_bytes(result, quant_fp8(X, "tensor")[0])
    assert_same_bytes(tensor, quant_fp8(X, "tensor")[1])
    dropins.static_scaled_fp8_quant(result, X, SCALE)
    assert_same_bytes(result, quant_fp8(X, "tensor", SCALE)[0])


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("rms_norm", (X, X, None, 1e-5), "weight must be a tensor, got None; call the original"),
        ("rmsnorm2d_fwd", (X, W, 1e-5, 1), "use_model_sensitive_rmsnorm must be 0, got 1"),
        ("rmsnorm2d_fwd_with_add", (X, X, R, R, W, 1e-5, False, 1), "use_model_sensitive_rmsnorm"),
        ("dynamic_per_token_scaled_fp8_quant", (X, X, W, SCALE), "scale_ub must be None"),
        ("static_scaled_fp8_quant", (X, X, SCALE, (1, 128)), "group_shape must be None"),
        ("silu_and_mul_per_block_quant", (X, X, W, 64), "group_size must be 128, got 64"),
    ],
)
def test_refusals(name: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        getattr(dropins, name)(*args)
