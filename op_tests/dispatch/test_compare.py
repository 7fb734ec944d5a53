"""The comparison helper must fail where it should, and say where."""

from __future__ import annotations

import math

import pytest
import torch

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from support.norms import assert_close_in_norm


def test_equal_and_within_pass() -> None:
    exact = torch.tensor([[1.0, math.nan, math.inf, -math.inf, 0.0]])
    assert_within(exact, exact, 0.0)
    assert_within(exact + 0.5, exact, 0.5)
    assert_within(torch.empty(0, 4), torch.empty(0, 4), 0.0)


@pytest.mark.parametrize(
    ("actual", "exact", "message"),
    [
        ([1.0, 2.0], [1.0, 3.5], r"1 of 2 .* worst at \(1,\): got 2\.0, expected 3\.5 within 1"),
        ([1.0, math.nan], [1.0, 1.0], r"worst at \(1,\): got nan.* only: \[\[1\]\]"),
        ([1.0, 1.0], [1.0, math.nan], r"worst at \(1,\): got 1\.0, expected nan"),
        ([math.inf, 1.0], [-math.inf, 1.0], r"worst at \(0,\): got inf, expected -inf"),
        ([math.inf, 1.0], [1e30, 1.0], r"worst at \(0,\): got inf"),
    ],
)
def test_wrong_fails(actual: list[float], exact: list[float], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_within(torch.tensor(actual), torch.tensor(exact), 1.0)


def test_wrong_shape_fails() -> None:
    with pytest.raises(AssertionError, match=r"shape \[1, 2\], expected \[2, 1\]"):
        assert_within(torch.zeros(1, 2), torch.zeros(2, 1), 1.0)


@pytest.mark.parametrize("dtype", HALF_ULP)
def test_half_ulp_is_what_rounding_costs(dtype: torch.dtype) -> None:
    """Just above a power of two rounding is worst."""
    eps = torch.finfo(dtype).eps
    assert HALF_ULP[dtype] == eps / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tolerance_covers_rounding_and_little_more(dtype: torch.dtype) -> None:
    exact = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound = tolerance(exact, exact.abs(), 0, dtype)
    assert_within(exact.to(dtype), exact, bound)
    with pytest.raises(AssertionError):
        assert_within(exact.to(dtype), exact, bound / 2)


@pytest.mark.parametrize("count", [1, 4096])
def test_norm_allows_rounding_and_little_more(count: int) -> None:
    """One value may round by the most that bf16 does; of many values none of the mean does."""
    exact = torch.full((count,), 1 + 2.0**-8 * 0.99, dtype=torch.float64)
    if count > 1:
        exact = (
            exact * torch.rand(count, generator=torch.Generator().manual_seed(0)).add(1).double()
        )
    actual = exact.bfloat16()
    assert_close_in_norm(actual, exact)
    with pytest.raises(AssertionError):
        assert_close_in_norm(actual * (1 - 2.0**-7), exact)
