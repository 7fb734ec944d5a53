"""aiter's GEMMs of 16-bit operands as rfops.compat.aiter serves them: by aiter's own names and
argument order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rfops.compat.aiter import gemm16, names
from rfops.dispatch.compare import assert_within, tolerance

BF16, F32 = torch.bfloat16, torch.float32
_TRITON = "aiter.ops.triton"
# The leading parameters that callers of aiter pass, by module and name.
PARAMETERS = {
    ("aiter.tuned_gemm", "gemm_a16w16"): "A B bias otype scale_a scale_b scale_c",
    (f"{_TRITON}.gemm_a16w16", "gemm_a16w16"): "x w bias dtype y config activation skip_reduce",
    ("aiter", "batched_gemm_bf16"): "XQ WQ out bias splitK",
    ("aiter", "batched_gemm_bf16_CK"): "XQ WQ bias dtype splitK",
    (f"{_TRITON}.batched_gemm_bf16", "batched_gemm_bf16"): "XQ WQ bias dtype splitK YQ config",
}


@pytest.fixture(autouse=True)
def _arch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")


def served(module: str, name: str) -> Callable[..., Any]:
    provider, _, ours = names.SERVED[module][name].partition(":")
    assert provider == gemm16.__name__
    function: Callable[..., Any] = getattr(gemm16, ours)
    return function


@pytest.mark.parametrize("place", PARAMETERS)
def test_parameters_stand_where_callers_pass_them(place: tuple[str, str]) -> None:
    wanted = PARAMETERS[place].split()
    assert list(inspect.signature(served(*place)).parameters)[: len(wanted)] == wanted


def assert_correct(
    actual: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """One rounding more than the product's: the bias."""
    added = 0.0 if bias is None else bias.double()
    exact, total = x.double() @ w.double().mT + added, x.double().abs() @ w.double().abs().mT
    total = total + (0.0 if bias is None else bias.double().abs())
    assert_within(actual, exact, tolerance(exact, total, x.shape[-1] + 33, actual.dtype))


@pytest.mark.parametrize("has_bias", [False, True])
def test_tuned_gemm(has_bias: bool) -> None:
    """Any leading dimensions; SGLang asks for fp32 of bf16 in its gates."""
    x, w = torch.randn(2, 3, 64).to(BF16), torch.randn(24, 64).to(BF16)
    bias = torch.randn(24).to(BF16) if has_bias else None
    actual = gemm16.tgemm.mm(x, w, bias, otype=F32)
    assert actual.dtype == F32 and actual.shape == (2, 3, 24)
    assert_correct(actual, x, w, bias)
    assert served("aiter.tuned_gemm", "gemm_a16w16")(x, w, bias).dtype == BF16


@pytest.mark.parametrize("has_bias", [False, True])
def test_given_results(has_bias: bool) -> None:
    x, w = torch.randn(2, 3, 64).to(BF16), torch.randn(2, 24, 64).to(BF16)
    bias = torch.randn(2, 1, 24).to(BF16) if has_bias else None
    out = torch.full((2, 3, 24), float("nan"), dtype=BF16)
    assert served("aiter", "batched_gemm_bf16")(x, w, out, bias) is out
    assert_correct(out, x, w, bias)
    assert_correct(served("aiter", "batched_gemm_bf16_CK")(x, w, bias), x, w, bias)
    y = torch.full((3, 24), float("nan"), dtype=BF16)
    row = None if bias is None else bias[0, 0]
    place = f"{_TRITON}.gemm_a16w16", "gemm_a16w16"
    assert served(*place)(x[0], w[0], row, BF16, y) is y
    assert_correct(y, x[0], w[0], row)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: gemm16.gemm_a16w16(x, w, scale_a=w), "scale_a must be None"),
        (lambda x, w: gemm16.gemm_a16w16_triton(x, w, activation="silu"), "activation must be"),
        (lambda x, w: gemm16.gemm_a16w16_triton(x, w, skip_reduce=True), "skip_reduce must be"),
    ],
)
def test_refusals(call: Callable[..., Any], message: str) -> None:
    x, w = torch.randn(3, 64).to(BF16), torch.randn(24, 64).to(BF16)
    with pytest.raises(ValueError, match=f"^gemm_a16w16: {message}"):
        call(x, w)
