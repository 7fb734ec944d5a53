"""The importable aiter's products: scales of rows, batches, and 16 bits, against fp32 torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops import compat
from rfops.compat.aiter import batched, gemm16, matmul, moe, mx_types
from rfops.dispatch.declare import fp8_of

BF16 = torch.bfloat16
M, N, K = 5, 144, 256


@pytest.fixture(params=["gfx950", pytest.param("gfx942", marks=pytest.mark.sweep)])
def fp8(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The FP8 of the architecture that CPU tensors stand for."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return fp8_of(request.param)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(actual: torch.Tensor, expected: torch.Tensor, depth: int = K) -> None:
    """A sum of `depth` fp32 products, then bf16's rounding: 2^-24 of the magnitudes a term, whose
    sum is at most sqrt(depth) of these normal results', and 2^-8 of the result."""
    bound = depth**1.5 * 2**-24 * float(expected.abs().max())
    torch.testing.assert_close(actual.float(), expected, rtol=2**-8, atol=bound)


# ---------------------------------------------------------------- scales of rows


@pytest.mark.parametrize("per", ["rows", "tensor"])
@pytest.mark.parametrize("bias", [False, True])
def test_scales_of_rows(per: str, bias: bool, fp8: torch.dtype) -> None:
    x, w = random(M, K).to(fp8), random(N, K, seed=1).to(fp8)
    xs = torch.rand(M, 1) if per == "rows" else torch.rand(1)
    ws = torch.rand(1, N) if per == "rows" else torch.rand(1)
    b = random(N, seed=2) if bias else None
    expected = (x.float() @ w.float().T) * xs * ws + (0 if b is None else b)
    shuffled = rfops.shuffle_weight(w).data
    near(matmul.gemm_a8w8(x, w, xs, ws, b), expected)
    near(matmul.gemm_a8w8_bpreshuffle(x, shuffled, xs, ws.view(-1), b), expected)
    words: dict[str, Any] = {"out_dtype": BF16, "scaleA": xs, "scaleB": ws}
    near(matmul.hipb_mm(x, w.T, -1, b, **words), expected)
    near(matmul.hipb_mm(x, shuffled.T, -1, b, **words, bpreshuffle=True), expected)
    made = matmul.gemm_a8w8(x, w, xs, ws, b, torch.float16)
    assert made.dtype == torch.float16


def test_padded_rows_of_weights(fp8: torch.dtype) -> None:
    x, w = random(M, K).to(fp8), torch.zeros(N, K + 128).to(fp8)
    w[:, :K] = random(N, K, seed=1).to(fp8)
    one = torch.ones(1)
    made = matmul.gemm_a8w8_bpreshuffle(x, rfops.shuffle_weight(w).data, one, one)
    near(made, x.float() @ w[:, :K].float().T)


def test_int8() -> None:
    x, w = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((M, K), (N, K)))
    xs, ws = torch.rand(M, 1), torch.rand(N, 1)
    near(matmul.gemm_a8w8(x, w, xs, ws), (x.float() @ w.float().T) * xs * ws.T)


@pytest.mark.parametrize("transposed", [False, True])
def test_blockscale_preshuffle(transposed: bool, fp8: torch.dtype) -> None:
    x, xs = rfops.quant_fp8_blockscale(random(M, K), dtype=fp8)
    w, ws = rfops.quant_fp8_blockscale(random(N, K, seed=1), (128, 128), dtype=fp8)
    shuffled = rfops.shuffle_weight(w).data.view(N // 16, -1)
    memory = xs.T.contiguous().view(xs.shape) if transposed else xs
    y = torch.full((M, N), float("nan"), dtype=BF16)
    made = batched.gemm_a8w8_blockscale_preshuffle(
        x, shuffled, memory, ws, BF16, y, is_x_scale_tranposed=transposed
    )
    assert made is y and torch.equal(made, rfops.gemm_a8w8_blockscale(x, w, xs, ws))


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("transposed", [False, True])
def test_batched_prequant(transposed: bool, fp8: torch.dtype) -> None:
    x, w, scale = random(3, M, K).to(BF16), random(3, N, K, seed=1).to(fp8), torch.tensor([0.3])
    expected = x.float() @ w.float().mT * scale
    run: Callable[..., torch.Tensor] = batched.batched_gemm_a8w8_prequant
    given = x.transpose(0, 1).contiguous() if transposed else x
    words = {"transpose_bm": transposed, "transpose_bm_in": transposed}
    made = run(given, w, scale, **words)
    assert made.shape == ((M, 3, N) if transposed else (3, M, N))
    near(made.transpose(0, 1) if transposed else made, expected)
    out = torch.full_like(made, float("nan"))
    assert run(given, w, scale, YQ=out, **words) is out and torch.equal(out, made)


def test_batched_mx_scales(fp8: torch.dtype) -> None:
    """Scales are powers of two, so that the blocks' sums are exact multiples of them."""
    g = 2
    x, w = random(M, g, K).to(fp8), random(g, 256, K, seed=1).to(fp8)
    xs = torch.randint(120, 131, (M, g, K // 128), dtype=torch.uint8)
    ws = torch.randint(120, 131, (g, 2, K // 128), dtype=torch.uint8)
    values = x.float() * mx_types.e8m0_to_f32(xs).repeat_interleave(128, -1)
    weights = mx_types.e8m0_to_f32(ws).repeat_interleave(128, -1).repeat_interleave(128, -2)
    expected = torch.einsum("mgk,gnk->mgn", values, w.float() * weights)
    near(batched.batched_gemm_a8w8_mxscale(x, w, xs, ws), expected)


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("scaled", [False, True])
def test_batched_mxfp4(scaled: bool) -> None:
    x = random(2, M, K).to(BF16)
    w, ws = rfops.quant_mxfp4(random(2 * N, K, seed=1).to(BF16))
    w, ws = w.view(2, N, -1), ws.view(2, N, -1)
    y_scale = torch.tensor([0.25]) if scaled else None
    expected = torch.stack([rfops.gemm_a16wfp4(x[b], w[b], ws[b]) for b in range(2)]).float()
    made = batched.batched_gemm_a16wfp4(x, w, ws, y_scale=y_scale)
    near(made, expected / 0.25 if scaled else expected)
    y = torch.full((M, 2, N), float("nan"), dtype=BF16)
    made = batched.batched_gemm_a16wfp4(x, w, ws, y=y, transpose_bm=True, y_scale=y_scale)
    assert made is y
    near(y.transpose(0, 1), expected / 0.25 if scaled else expected)


@pytest.mark.requires_gfx950
def test_mxfp4_of_other_callers() -> None:
    x = random(M, K).to(BF16)
    w, ws = rfops.quant_mxfp4(random(N, K, seed=1).to(BF16))
    weights = mx_types.mxfp4_to_f32(w) * mx_types.e8m0_to_f32(ws).repeat_interleave(32, -1)
    q, scale = x.to(torch.float8_e4m3fn), torch.rand(M, 1)
    y = torch.full((M, N), float("nan"), dtype=BF16)
    made = batched.gemm_a8wfp4(x=q, w=w, y=y, x_scales=scale, w_scales=ws)
    assert made is y
    near(y, q.float() @ weights.T * scale)
    y.fill_(float("nan"))
    assert batched.gemm_afp4wfp4_pre_quant(x, w, ws, BF16, y) is y
    assert torch.equal(y, rfops.gemm_a16wfp4(x, w, ws))
    p, ps = rfops.quant_mxfp4(x)
    tail = random(M, 3, 16).to(BF16)
    first, second = batched.fused_gemm_afp4wfp4_split_cat(p, w, tail, ps, ws, 32, 16)
    c = compat.gemm_afp4wfp4(p, w, ps, ws).view(M, 3, 48)
    assert torch.equal(first, torch.cat((c[..., :32], tail), -1))
    assert torch.equal(second, c[..., 32:])


# ---------------------------------------------------------------- 16 bits


def test_16_bits() -> None:
    x, w, b = random(M, K).to(BF16), random(N, K, seed=1).to(BF16), random(N, seed=2).to(BF16)
    expected = x.float() @ w.float().T
    near(gemm16.tgemm.mm(x, w, None), expected)
    near(gemm16.tgemm.mm(x.view(M, 1, K), w, b, otype=torch.float32)[:, 0], expected + b.float())
    shuffled = rfops.shuffle_weight(w).data
    shuffled.is_shuffled = True  # type: ignore[attr-defined]
    near(gemm16.tgemm.mm(x, shuffled), expected)
    y = torch.full((M, N), float("nan"), dtype=BF16)
    near(gemm16.gemm_a16w16_triton(x, w, b), expected + b.float())
    assert gemm16.gemm_a16w16_triton(x, w, None, y=y) is y
    near(y, expected)
    y.fill_(float("nan"))
    matmul.wvSpltK(w, x, y, M, 80)
    near(y, expected)
    near(matmul.hipb_mm(x, w.T, -1), expected)
    near(matmul.hipb_mm(x, shuffled.T, -1, bpreshuffle=True), expected)
    assert matmul.hipb_create_extension() is None  # type: ignore[func-returns-value]
    xs, ws = torch.stack((x, x)), torch.stack((w, -w))
    near(gemm16.batched_gemm_bf16_triton(xs, ws), torch.stack((expected, -expected)))
    out = torch.full((2, M, N), float("nan"), dtype=BF16)
    bias = torch.stack((b, b)).view(2, 1, N)
    assert gemm16.batched_gemm_bf16_triton(xs, ws, bias, YQ=out) is out
    near(out[1], b.float() - expected)
    near(matmul.triton_gemm(x, w, 0, b), expected + b.float())


def test_moe_sum_and_sigmoid() -> None:
    x, out = random(M, 4, K).to(BF16), torch.full((M, K), float("nan"), dtype=BF16)
    matmul.moe_sum(x, out)
    near(out, x.float().sum(1), 4)
    logits = random(M, 16)
    weights, ids = torch.full((M, 2), float("nan")), torch.full((M, 2), -1, dtype=torch.int32)
    moe.topk_sigmoid(weights, ids, logits)
    expected = logits.sigmoid().topk(2)
    torch.testing.assert_close(weights, expected.values)
    assert torch.equal(ids.long(), expected.indices)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gemm16.tgemm.mm(x, x, scale_a=x), "gemm_a16w16: scale_a must be None"),
        (lambda x: gemm16.gemm_a16w16_triton(x, x, activation="silu"), "activation must be None"),
        (lambda x: matmul.gemm_a8w8(x, x, x[:2, :1], x[:, :1]), r"must be of 5 or 1 and 5 or 1"),
        (lambda x: matmul.hipb_mm(x, x.T, -1, use_gelu=True), "hipb_mm: use_gelu must be None"),
        (
            lambda x: batched.batched_gemm_a16wfp4(x, x, x, prequant=False),
            "batched_gemm_a16wfp4: prequant must be True",
        ),
        (
            lambda x: batched.gemm_a8wfp4(x, x, x, x[:, :2], x),
            r"gemm_a8wfp4: x_scales must be float32 \[5, 1\]",
        ),
        (
            lambda x: batched.batched_gemm_a8w8_prequant(x, x, x, bias=x),
            "batched_gemm_a8w8_prequant: bias must be None",
        ),
    ],
)
def test_refusals(call: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(random(M, K))
