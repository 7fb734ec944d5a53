"""aiter.test_common: what aiter's op tests measure and compare with.

On the virtual GPU a call is made once; its time is not measured: it is given as NaN."""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("aiter")
CATASTROPHIC = 0.5  # of the reference's largest magnitude


def perftest(*_args: Any, **_kwargs: Any) -> Callable[..., Any]:
    """Return a decorator by which a function returns (its result, NaN us): one call, not timed."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> tuple[Any, float]:
            return function(*args, **kwargs), math.nan

        return run

    return decorate


_OPTIONS = {
    "num_iters",
    "num_warmup",
    "testGraph",
    "num_rotate_args",
    "needTrace",
    "use_cuda_event",
}


def run_perftest(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
    """Return (function's result, NaN us); perftest's options are dropped."""
    function_kwargs = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
    return function(*args, **function_kwargs), math.nan


def benchmark(*_args: Any, **_kwargs: Any) -> Callable[..., Any]:
    """Return a decorator by which a function returns its arguments by name, and the dict that it
    returned behind them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> dict[str, Any]:
            row = inspect.getcallargs(function, *args, **kwargs)
            return row | (function(*args, **kwargs) or {})

        return run

    return decorate


def checkAllclose(
    a: Tensor,
    b: Tensor,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    tol_err_ratio: float = 0.05,
    msg: str = "",
    printNum: int = 8,
    printLog: bool = True,
    max_abs_delta: float | None = None,
    catastrophic_check: bool = False,
) -> float:
    """Return the share of elements of a that are not close to b's.

    Raises AssertionError where that is more than tol_err_ratio, which aiter's only logs, where an
    element is off by more than max_abs_delta, or, with catastrophic_check, is not finite or off by
    more than half of b's largest magnitude.
    """
    far_fraction = 1.0 - torch.isclose(a, b, rtol=rtol, atol=atol).double().mean().item()
    if not far_fraction:
        return 0.0
    delta = (a.double() - b.double()).abs()
    index = tuple(torch.unravel_index(delta.nan_to_num(torch.inf).argmax(), delta.shape))
    worst = f"worst {a[index].item()} for {b[index].item()} at {[int(i) for i in index]}"
    limit = max_abs_delta
    if limit is None and catastrophic_check and b.is_floating_point():
        limit = max(b.double().abs().max().item(), 1.0) * CATASTROPHIC
    is_far = limit is not None and not bool((delta <= limit).all())
    text = f"{msg}: {far_fraction:.2%} of {list(a.shape)} differ by {rtol=} {atol=}, {worst}"
    if far_fraction > tol_err_ratio or is_far:
        raise AssertionError(text)
    if printLog:
        logger.info(text)
    return far_fraction
