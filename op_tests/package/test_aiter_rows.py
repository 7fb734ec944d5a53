"""The importable aiter's norms, activations and quantisers: each is its op, bit by bit, in the
signature and the memory that aiter's caller has; and each against fp32 torch once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops.compat.aiter import activations, norms, quant, shuffle
from rfops.dispatch.declare import fp8_of
from rfops.moe.moe_dropins import QuantType
from rfops.quantization.fp8 import quant_fp8
from rfops.rowwise.act_mul import act_mul, act_mul_ref
from rfops.rowwise.act_mul_quant import act_mul_quant
from rfops.rowwise.rms_norm import rms_norm, rms_norm_ref
from rfops.rowwise.rms_norm_quant import rms_norm_quant

BF16 = torch.bfloat16
M, K, EPS = 5, 256, 1e-5


@pytest.fixture(params=["gfx950", pytest.param("gfx942", marks=pytest.mark.sweep)], autouse=True)
def fp8(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The FP8 of the architecture that CPU tensors stand for."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return fp8_of(request.param)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


X, R, W, G = random(M, K), random(M, K, seed=1), random(K, seed=2), random(M, 2 * K, seed=3)
SCALE = torch.tensor([0.03])


def poisoned(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """NaN, or bytes that no result has."""
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.full((size,), 0xFF, dtype=torch.uint8).view(dtype).view(shape)


def same(actual: Any, expected: Any) -> None:
    """The same values in the order of the elements, tensor by tensor; None for None."""
    if expected is None or actual is None:
        assert actual is expected
    elif isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            same(one, other)
    else:
        one, other = (t.reshape(-1).clone().view(torch.uint8) for t in (actual, expected))
        assert torch.equal(one, other), (actual, expected)


# ---------------------------------------------------------------- norms that write


def test_norms_against_fp32() -> None:
    """bf16 rounds once: 2^-8 of a value; aiter's gemma_norm multiplies by 1 + weight."""
    out, total = poisoned(M, K), poisoned(M, K)
    for is_gemma in (False, True):
        factor = W.float() + is_gemma
        norms.rmsnorm(out, X, W, EPS, is_gemma)
        torch.testing.assert_close(
            out.float(), rms_norm_ref(X, factor, None, EPS), rtol=2**-8, atol=0
        )
        before = R.clone()
        norms.add_rmsnorm(out, X, before, total, W, EPS, is_gemma)
        z = R.clone()
        expected = rms_norm_ref(X, factor, z, EPS)
        torch.testing.assert_close(out.float(), expected, rtol=2**-8, atol=0)
        same((total, before), (z, R))


GROUPS: dict[str, tuple[int, bool, Callable[[], torch.Tensor]]] = {
    "token": (0, False, lambda: poisoned(M, 1, dtype=torch.float32)),
    "token, flat": (0, False, lambda: poisoned(M, dtype=torch.float32)),
    "group": (128, False, lambda: poisoned(M, 2, dtype=torch.float32)),
    "group, its memory transposed": (128, True, lambda: poisoned(M, 2, dtype=torch.float32)),
    "group, column-major": (128, True, lambda: poisoned(2, M, dtype=torch.float32).T),
}


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", GROUPS)
def test_quantised_norms(kind: str, adds: bool, fp8: torch.dtype) -> None:
    group_size, shuffled, make = GROUPS[kind]
    payload, scale, total = poisoned(M, K, dtype=fp8), make(), poisoned(M, K)
    more = group_size, shuffled
    if adds:
        norms.add_rmsnorm_quant(payload, X, R, total, scale, W, EPS, *more)
    else:
        norms.rmsnorm_quant(payload, X, scale, W, EPS, *more)
    z = R.clone() if adds else None
    quantisation = "fp8_group" if group_size else "fp8_token"
    expected = rms_norm_quant(X, W, z, EPS, quantisation, dtype=fp8)
    same(payload, expected[0])
    memory = scale.view(2, M).T if shuffled and scale.is_contiguous() else scale
    same(memory, expected[1])
    if adds:
        same(total, z)
    former = payload.clone(), scale.clone()
    if adds:
        residuals = R, poisoned(M, K)
        norms.rmsnorm2d_fwd_with_add_dynamicquant(payload, X, *residuals, scale, W, EPS, 0, *more)
    else:
        norms.rmsnorm2d_fwd_with_dynamicquant(payload, X, scale, W, EPS, 0, *more)
    same((payload, scale), former)


@pytest.mark.parametrize("quantisation", ["mxfp8", "mxfp4"])
def test_norms_to_mx(quantisation: str) -> None:
    expected = rms_norm_quant(X, W, None, EPS, quantisation)
    payload = poisoned(*expected[0].shape, dtype=expected[0].dtype)
    scale = poisoned(M, K // 32, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    norms.rmsnorm_quant(payload, X, scale, W, EPS, 32)
    same((payload, scale), expected)


# ---------------------------------------------------------------- norms of q and k


def test_norms_of_q_and_k(fp8: torch.dtype) -> None:
    k, k_weight = random(M, 128, seed=7), random(128, seed=8)
    q_normed, k_normed = rms_norm(X, W, eps=EPS), rms_norm(k, k_weight, eps=2 * EPS)
    of_k = k, k_weight, 2 * EPS
    same(norms.norms_of_q_and_k(X, W, EPS, *of_k), (q_normed, k_normed))
    q_out, k_out = poisoned(M, K), poisoned(M, 128)
    norms.fused_qk_rmsnorm(
        q_out_quantized=q_out,
        q=X,
        q_weight=W,
        q_epsilon=EPS,
        k_out=k_out,
        k=k,
        k_weight=k_weight,
        k_epsilon=2 * EPS,
        quant_type=QuantType.No,
    )
    same((q_out, k_out), (q_normed, k_normed))
    payload, scale = poisoned(M, K, dtype=fp8), poisoned(M, 2, dtype=torch.float32)
    for residual in (None, R):
        z = None if residual is None else R.clone()
        expected = rms_norm_quant(X, W, z, EPS, dtype=fp8)
        plain = q_normed if z is None else rms_norm(z, W, eps=EPS)
        total = None if residual is None else poisoned(M, K)
        norms.fused_qk_rmsnorm(
            q_out_quantized=payload,
            q_out_scale=scale,
            q=X,
            q_weight=W,
            q_epsilon=EPS,
            q_out_unquantized=q_out,
            k_out=k_out,
            q_res_out=total,
            k=k,
            k_weight=k_weight,
            k_epsilon=2 * EPS,
            q_residual=residual,
            quant_type=QuantType.per_1x128,
        )
        same((payload, scale, q_out, k_out, total), (*expected, plain, k_normed, z))
    tokens = poisoned(M, 1, dtype=torch.float32)
    values = X, W, EPS, None, k_out, None, *of_k
    norms.fused_qk_rmsnorm_per_token_quant(payload, tokens, *values)
    same((payload, tokens), rms_norm_quant(X, W, None, EPS, "fp8_token", dtype=fp8))
    norms.fused_qk_rmsnorm_group_quant(
        q=X, q_weight=W, q_epsilon=EPS, q_out_unquantized=q_out, k=None
    )
    same(q_out, q_normed)


# ---------------------------------------------------------------- aiter.ops.triton's norms


@pytest.mark.parametrize("adds", [False, True])
def test_norms_that_return(adds: bool, fp8: torch.dtype) -> None:
    res, z = (R, R.clone()) if adds else (None, None)
    second, normed = random(M, 128, seed=7), rms_norm(random(M, 128, seed=7), W[:128], eps=1e-3)
    payload, scale = rms_norm_quant(X, W, z, EPS, dtype=fp8)
    plain = rms_norm(X, W, R.clone() if adds else None, EPS)
    more: dict[str, Any] = {"dtype_quant": fp8, "res1": res, "output_unquantized_inp1": True}
    two = second, W[:128], 1e-3
    made = norms.fused_rms_fp8_group_quant(X, W, EPS, *two, **more)
    same(made, ((payload, scale), plain, normed, z))
    for strided in (False, True):
        (again, scales), *_ = norms.fused_rms_fp8_group_quant(
            X, W, EPS, **more, transpose_scale=True, is_x_scale_strided=strided
        )
        assert scales.shape == (M, 2) and scales.stride() == ((1, M) if strided else (2, 1))
        same((again, scales if strided else scales.view(2, M).T), (payload, scale))
    same(norms.fused_rms_fp8_group_quant(X, W, EPS, dtype_quant=fp8)[1:], (None, None, None))
    static = rms_norm_quant(X, W, R.clone() if adds else None, EPS, "fp8_tensor", SCALE, dtype=fp8)
    made = norms.fused_rms_fp8_per_tensor_static_quant(X, W, EPS, SCALE, *two, **more)
    same(made, (static[0], plain, normed, z))
    if adds:
        same(norms.fused_add_rmsnorm_pad(X, W, EPS, R), (plain, z))
        out, total = norms.fused_add_rmsnorm_pad(X, W, EPS, R, 96)
        same(total, z)
    else:
        same(norms.fused_add_rmsnorm_pad(X, W, EPS), plain)
        out = norms.fused_add_rmsnorm_pad(X, W, EPS, None, 96)
        same(norms.rms_norm_triton(X, W, EPS), plain)
    assert out.shape == (M, 288) and not out[:, K:].any()
    same(out[:, :K], plain)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("group_size", [None, 128, 64])
def test_gated_norm(before: bool, group_size: int | None, fp8: torch.dtype) -> None:
    """e4m3 rounds to 2^-4 of a value, e4m3fnuz too; the smallest step is 2^-9 of a scale's unit."""
    bias, z = random(K, seed=4), random(M, K, seed=5)
    payload, scale = norms.fused_rms_gated_fp8_group_quant(
        X, W, bias, z, EPS, norm_before_gate=before, out_dtype=fp8, group_size=group_size
    )
    assert payload.dtype == fp8 and scale.shape == (
        (M,) if group_size is None else (M, K // group_size)
    )
    gate = torch.nn.functional.silu(z.float())
    y = rms_norm_ref(X.float() if before else X.float() * gate, W, None, EPS) + bias.float()
    y = y * gate if before else y
    groups = payload.float().view(M, -1, group_size or K)
    values = (groups * scale.view(M, -1, 1)).view(M, K)
    step = scale.max().item() * 2**-9
    torch.testing.assert_close(values, y, rtol=2**-4, atol=step)


# ---------------------------------------------------------------- activations


def test_activations() -> None:
    out = poisoned(M, K)
    activations.silu_and_mul(out, G)
    same(out, act_mul(G, "silu"))
    torch.testing.assert_close(out.float(), act_mul_ref(G, "silu"), rtol=2**-8, atol=2**-16)
    activations.silu_and_mul(out, G, 0.5)
    gate, up = G.float().chunk(2, -1)
    clamped = torch.nn.functional.silu(gate.clamp(max=0.5)) * up.clamp(-0.5, 0.5)
    torch.testing.assert_close(out.float(), clamped, rtol=2**-8, atol=2**-16)
    activations.swiglu_and_mul(out, G)
    same(out, act_mul(G, "swiglu"))
    for name in ("gelu", "gelu_tanh"):
        getattr(activations, f"{name}_and_mul")(out, G)
        same(out, act_mul(G, name))
        wide = poisoned(M, K, dtype=torch.float32)
        getattr(activations, f"{name}_and_mul")(wide, G)
        same(wide, act_mul(G, name).float())


def test_quantised_activations(fp8: torch.dtype) -> None:
    payload = poisoned(M, K, dtype=fp8)
    activations.scaled_silu_and_mul(payload, G, SCALE)
    same(payload, act_mul_quant(G, "silu", "fp8_tensor", SCALE, dtype=fp8)[0])
    for group_size, shuffled, make in GROUPS.values():
        scale = make()
        activations.silu_and_mul_quant(payload, G, scale, group_size, 0.5, shuffled)
        quantisation = "fp8_group" if group_size else "fp8_token"
        words = {"alpha": 1.0, "limit": 0.5, "beta": 0.0, "dtype": fp8}
        expected = act_mul_quant(G, "swiglu", quantisation, **words)  # type: ignore[arg-type]
        memory = scale.view(2, M).T if shuffled and scale.is_contiguous() else scale
        same((payload, memory), expected)
    scale = poisoned(M, K // 32, dtype=torch.float32)
    activations.silu_and_mul_quant(payload, G, scale, 32)
    expected = quant_fp8(act_mul(G, "silu").view(-1, 32), dtype=fp8)
    same((payload, scale), expected)
    for name in ("silu", "gelu", "gelu_tanh"):
        made = activations.act_mul_and_fp8_group_quant(G, name, 128, fp8)
        same(made, act_mul_quant(G, name, dtype=fp8))


@pytest.mark.parametrize("weighted", [False, True])
def test_fused_clamp_act_mul(weighted: bool, fp8: torch.dtype) -> None:
    run: Callable[..., Any] = activations.fused_clamp_act_mul
    weights = torch.rand(M, 1) if weighted else None
    y = act_mul(G, "swiglu", False, 1.0, 0.5, 0.0)
    y = (y.float() * weights).to(BF16) if weights is not None else y
    out = poisoned(M, K)
    same(run(G, out, None, 0.5, weights=weights), y)
    same(run(G, poisoned(M, K, dtype=torch.float32), None, 0.5, weights=weights), y.float())
    same(run(G, None, None, 0.5, weights=weights), y)
    payload, scale = rfops.quant_fp8_blockscale(y, dtype=fp8)
    more = {"swiglu_limit": 0.5, "weights": weights}
    same(run(G, **more, dtype_quant=fp8), (payload, scale))
    made = run(G, **more, dtype_quant=fp8, transpose_scale=True)
    assert made[1].shape == (2, M)
    same(made, (payload, scale.T))
    given = poisoned(M, K, dtype=fp8), poisoned(M, 2, dtype=torch.float32)
    made = run(G, *given, **more, dtype_quant=fp8)
    assert made[0] is given[0] and made[1] is given[1]
    same(made, (payload, scale))
    mx = {"dtype_quant": torch.float8_e4m3fn, "quant_block_size": 32, "scale_dtype_fmt": "ue8m0"}
    payload, bytes_ = rfops.quant_mxfp8(y)
    same(run(G, **more, **mx), (payload, bytes_))
    same(run(G, **more, **mx, shuffle_scale=True), (payload, shuffle.e8m0_shuffle(bytes_)))


# ---------------------------------------------------------------- quantisers


def test_quantisers_of_rows_and_tensors(fp8: torch.dtype) -> None:
    payload = poisoned(M, K, dtype=fp8)
    for shape in ((M, 1), (M,)):
        scales = poisoned(*shape, dtype=torch.float32)
        quant.dynamic_per_token_scaled_quant(payload, X, scales)
        same((payload, scales), quant_fp8(X, dtype=fp8))
    same(quant.get_hip_quant(2)(X, quant_dtype=fp8), quant_fp8(X, dtype=fp8))
    scale = poisoned(1, dtype=torch.float32)
    quant.dynamic_per_tensor_quant(payload, X, scale)
    same((payload, scale), quant_fp8(X, "tensor", dtype=fp8))
    same(quant.get_triton_quant(1)(X, quant_dtype=fp8), quant_fp8(X, "tensor", dtype=fp8))
    quant.static_per_tensor_quant(payload, X, SCALE)
    same(payload, quant_fp8(X, "tensor", SCALE, fp8)[0])
    same(quant.per_tensor_quant_hip(X, SCALE, fp8), (payload, SCALE))
    same(activations.downcast_to_static_fp8(X, SCALE), payload)


def test_quantisers_of_groups(fp8: torch.dtype) -> None:
    """aiter takes groups as rows of 32, 64 or 128; the memory of scales may be transposed."""
    expected = rfops.quant_fp8_blockscale(X, dtype=fp8)
    payload, scales = poisoned(M, K, dtype=fp8), poisoned(M, 2, dtype=torch.float32)
    quant.dynamic_per_token_scaled_quant(payload, X.view(-1, 128), scales)
    same((payload, scales), expected)
    quant.dynamic_per_token_scaled_quant(payload, X.view(-1, 128), scales, shuffle_scale=True)
    same((payload, scales.view(2, M).T), expected)
    heads = X.view(M, 2, 128)
    same(activations.fused_flatten_fp8_group_quant(heads, 128, fp8), expected)
    made = activations.fused_flatten_fp8_group_quant(heads.mT.contiguous().mT, 128, fp8, True)
    assert made[1].stride() == (1, M)
    same(made, expected)


def test_quantisers_to_int8() -> None:
    payload, scales = quant.per_token_quant_hip(X)
    amax = X.float().abs().amax(-1, keepdim=True)
    torch.testing.assert_close(scales, amax / 127)
    assert ((payload.float() * scales - X.float()).abs() <= scales).all()
    payload, scale = quant.per_tensor_quant_hip(X)
    torch.testing.assert_close(scale, X.float().abs().max().view(1) / 127)
    assert ((payload.float() * scale - X.float()).abs() <= scale * 0.51).all()


def test_mx_quantisers() -> None:
    payload, scales = quant.dynamic_mxfp8_quant(X)
    assert scales.dtype == torch.uint8
    same((payload, scales), rfops.quant_mxfp8(X))
    given = poisoned(M, K // 32, dtype=torch.uint8)
    same(quant.dynamic_mxfp8_quant(X, given)[1], scales)
    assert quant.dynamic_mxfp8_quant(X, given)[1] is given
    same(quant.mxfp4_quant(X), rfops.quant_mxfp4(X, "even"))


def test_sigmoid_mul() -> None:
    same(activations.fused_sigmoid_mul(X, R), (X.float() * R.float().sigmoid()).to(BF16))


# ---------------------------------------------------------------- refusals

INT8 = torch.empty(M, K, dtype=torch.int8)
TOKENS = torch.empty(M, 1)
REFUSED: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str], ...] = (
    (norms.rmsnorm_quant, (INT8, X, TOKENS, W, EPS), {}, "rmsnorm_quant: out must be FP8 or MXFP4"),
    (
        norms.rmsnorm_quant,
        (X.to(torch.float8_e4m3fn), X, TOKENS, W, EPS, 64),
        {},
        "rmsnorm_quant: group_size must be 128 for fp8_group, got 64",
    ),
    (
        norms.rmsnorm2d_fwd_with_dynamicquant,
        (X, X, TOKENS, W, EPS, 1),
        {},
        "rmsnorm2d_fwd_with_dynamicquant: use_model_sensitive_rmsnorm must be 0, got 1",
    ),
    (
        norms.fused_qk_rmsnorm,
        (),
        {"quant_type": QuantType.per_Tensor},
        "quant_type must be another",
    ),
    (norms.fused_qk_rmsnorm_group_quant, (), {}, "q, q_weight and q_res_out must be tensors"),
    (
        norms.fused_qk_rmsnorm_group_quant,
        (),
        {"q": X, "q_weight": W, "k": X},
        "k_weight must be a tensor, got None",
    ),
    (
        norms.fused_qk_rmsnorm,
        (),
        {"q": X, "q_weight": W, "gemma_norm": True},
        "quant_type must be another with gemma_norm, got No",
    ),
    (
        norms.fused_qk_rmsnorm,
        (),
        {"q": X, "q_weight": W, "q_residual": X},
        "quant_type must be another with q_residual, got No",
    ),
    (norms.fused_rms_fp8_group_quant, (X, W, EPS), {"group_size": 64}, "group_size must be 128"),
    (
        norms.fused_rms_gated_fp8_group_quant,
        (X, W, None, X, EPS),
        {"use_ue8m0": True},
        "use_ue8m0 must be its default",
    ),
    (
        norms.fused_rms_gated_fp8_group_quant,
        (X, W, None, X, EPS),
        {"activation": "gelu"},
        "activation must be silu, swish or sigmoid",
    ),
    (activations.silu_and_mul_quant, (INT8, G, TOKENS, 0), {}, "out must be FP8"),
    (
        activations.silu_and_mul_quant,
        (X.to(torch.float8_e4m3fn), G, TOKENS, 64, 0.0, True),
        {},
        "shuffle_scale must be False but for 128",
    ),
    (activations.act_mul_and_fp8_group_quant, (G, "silu", 64), {}, "group_size must be 128"),
    (
        activations.fused_clamp_act_mul,
        (G,),
        {"activation": "gelu", "swiglu_limit": 7.0},
        "activation must be silu with a limit",
    ),
    (
        activations.fused_clamp_act_mul,
        (G,),
        {"dtype_quant": torch.float8_e4m3fn, "quant_block_size": 32},
        "quant_block_size must be 32 for ue8m0, 128 for fp32",
    ),
    (activations.fused_flatten_fp8_group_quant, (X, 64), {}, "group_size must be 128, got 64"),
    (
        quant.dynamic_per_token_scaled_quant,
        (X, X, TOKENS, SCALE),
        {},
        "dynamic_per_token_scaled_quant: scale_ub must be its default",
    ),
    (
        quant.dynamic_per_token_scaled_quant,
        (X, X, TOKENS),
        {"shuffle_scale": True},
        r"input must be \[rows, 128\] to FP8",
    ),
    (quant.per_token_quant_hip, (X, SCALE), {}, "per_token_quant_hip: scale must be its default"),
    (quant.dynamic_mxfp8_quant, (X, None, torch.int8), {}, "quant_dtype must be float8_e4m3fn"),
)


@pytest.mark.parametrize(("function", "args", "words", "message"), REFUSED)
def test_refusals(
    function: Callable[..., Any], args: tuple[Any, ...], words: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(*args, **words)
