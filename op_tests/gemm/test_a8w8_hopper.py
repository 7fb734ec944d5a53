"""gemm_a8w8_blockscale by Hopper's arithmetic: Triton's route on such a GPU where there is one, its
emulation elsewhere. What the tolerance lets pass, and defects that it must not."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from rfops.dispatch.compare import assert_within, tolerance
from rfops.gemm.a8w8_blockscale import OP, roundings
from rfops.quantization.fp8_blockscale import BLOCK
from support.a8w8_problems import Problem, exact_product, random_problem, run
from support.hopper import assert_correct_on_hopper, hopper_product

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
SHAPES = [
    (24, 256, 128),
    (17, 300, 1024),
    pytest.param((16, 256, 7168), marks=pytest.mark.sweep),  # 10 s of emulation
]


@functools.cache
def problem_of(m: int, n: int, k: int) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """Scales of 1 to 2, so that no block hides; what Hopper makes of it, and its deviation."""
    problem = random_problem(m, n, k, "sm_90")
    scales = {
        name: torch.copysign(1 + getattr(problem, name).abs() % 1, getattr(problem, name))
        for name in ("x_scale", "w_scale")
    }
    problem = problem.with_(**scales)
    return problem, *hopper_product(problem)


def product(problem: Problem, emulated: torch.Tensor | None = None) -> torch.Tensor:
    if IS_HOPPER:
        return run("triton", problem.to(torch.device("cuda")), dtype=torch.float32)
    return (hopper_product(problem)[0] if emulated is None else emulated).float()


@pytest.mark.parametrize("shape", SHAPES)
def test_is_within_its_tolerance(shape: tuple[int, int, int]) -> None:
    """And not far within, which would see nothing."""
    problem, emulated, deviation = problem_of(*shape)
    assert assert_correct_on_hopper(product(problem, emulated), problem, deviation) > 0.1


def _one_ulp(scale: torch.Tensor, offset: tuple[int, int]) -> torch.Tensor:
    """One scale off by a unit of bfloat16's last place."""
    changed = scale.clone()
    changed[offset] *= 1 + 2.0**-7 / changed[offset].abs()
    return changed


def _x_scale(p: Problem) -> Problem:
    return p.with_(x_scale=_one_ulp(p.x_scale, (p.sizes[0] // 2, -1)))


def _w_scale(p: Problem) -> Problem:
    return p.with_(w_scale=_one_ulp(p.w_scale, (1, 0)))


def _dropped(p: Problem) -> Problem:
    """The last block of K of one row of x."""
    x = p.x.clone()
    x[3, -BLOCK:] = 0.0
    return p.with_(x=x)


def _half_dropped(p: Problem) -> Problem:
    """One step of the matrix unit, of one row of w."""
    w = p.w.clone()
    w[p.sizes[1] // 2, :32] = 0.0
    return p.with_(w=w)


@pytest.mark.parametrize("defect", [_x_scale, _w_scale, _dropped, _half_dropped])
@pytest.mark.parametrize("shape", SHAPES)
def test_defects_are_seen(
    shape: tuple[int, int, int], defect: Callable[[Problem], Problem]
) -> None:
    """Of one block of K, up to 56 of them."""
    problem, _, deviation = problem_of(*shape)
    actual = product(defect(problem))
    with pytest.raises(AssertionError, match=r"are wrong|deviations on average"):
        assert_correct_on_hopper(actual, problem, deviation)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_share_that_bench_allows(shape: tuple[int, int, int]) -> None:
    """2^-10 of the sum of |products|, for `rfops bench`, which knows no more of the data: above
    what normal values make of it, and a dropped block is seen in a result of bfloat16."""
    problem, emulated, _ = problem_of(*shape)
    exact, total = exact_product(problem)
    depth = roundings(shape[2]) + OP.kernels["triton"].error_on("sm_90") * 2**24
    bound = tolerance(exact, total, depth, torch.bfloat16)
    assert_within(product(problem, emulated).bfloat16(), exact, bound)
    with pytest.raises(AssertionError, match=r"elements of .* are wrong"):
        assert_within(product(_dropped(problem)).bfloat16(), exact, bound)
