"""How close all elements of a result must come together, beside the bound of each."""

from __future__ import annotations

import torch

from rfops.dispatch.compare import HALF_ULP

_MANY = 100  # elements, whose roundings are as their distribution has them


def assert_close_in_norm(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """Finite results against float64, by the norm of the errors.

    Rounding to bf16 errs by at most 2^-8 of a value, and by 1.6e-3 in the quadratic mean of many
    values. A few may all be near the largest error.
    """
    finite = exact.isfinite()
    share = 2.5e-3
    if finite.sum() < _MANY:
        share = max(share, 1.01 * HALF_ULP[actual.dtype])
    errors = (actual.cpu().double() - exact)[finite]
    assert errors.norm() <= max(share * exact[finite].norm().item(), 1e-30)
