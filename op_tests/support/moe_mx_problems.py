"""Problems of fused_moe with MXFP4 and MX-FP8 weights, and the fixture of both formats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from rfops.dispatch.layout import Shuffled
from rfops.moe import fused_moe_mxfp4, fused_moe_mxfp8
from rfops.moe.fused_moe import fused_moe
from rfops.moe.fused_moe_mx import MXFP4, MXFP8, Experts, Format, arguments
from rfops.moe.kernels.mx.config import MxMoeConfig
from rfops.quantization.mx_quant import E8M0_NAN
from rfops.quantization.shuffle import padded_scale, shuffle_scale, shuffle_weight

BF16, F16 = torch.bfloat16, torch.float16
OPS = {"mxfp4": fused_moe_mxfp4.OP, "mxfp8": fused_moe_mxfp8.OP}


@dataclass
class Problem:
    fmt: Format
    x: torch.Tensor
    w1: Any
    w2: Any
    w1_scale: Any
    w2_scale: Any
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    num_shared: int = 0
    rounding: str | None = None

    @property
    def how(self) -> str:
        return self.rounding or next(iter(self.fmt.bumps))

    @property
    def weights(self) -> tuple[Any, ...]:
        return self.w1, self.w2, self.w1_scale, self.w2_scale

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)

    def shuffled(self) -> Problem:
        """What pads scales is NaN: no kernel may read it."""
        scales = [_shuffled_scale(s.flatten(0, 1)) for s in (self.w1_scale, self.w2_scale)]
        return self.with_(
            w1=shuffle_weight(self.w1),
            w2=shuffle_weight(self.w2),
            w1_scale=scales[0],
            w2_scale=scales[1],
        )

    def call(self, **kwargs: Any) -> torch.Tensor:
        """By the op's route."""
        return fused_moe(
            self.x,
            self.w1,
            self.w2,
            self.topk_weights,
            self.topk_ids,
            quant=self.fmt.word,
            w1_scale=self.w1_scale,
            w2_scale=self.w2_scale,
            num_shared=self.num_shared,
            rounding=self.rounding,
            **kwargs,
        )

    def run(self, kernel: str, config: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """By one kernel, in `out` or in one full of NaN."""
        op = OPS[self.fmt.word]
        if out is None:
            out = torch.full(self.x.shape, math.nan, dtype=self.x.dtype)
        choice = self.topk_weights, self.topk_ids, None, self.topk_ids.shape[1]
        args = arguments(
            op, self.x, *self.weights, choice, self.num_shared, (False, False), self.rounding
        )
        c, _ = op.check((*args, None, None))
        op.prepare(kernel, c, config)(out, *args[:7], None)
        return out

    @property
    def experts(self) -> Experts:
        return Experts(self.fmt, self.how, *self.weights)

    @property
    def exact(self) -> torch.Tensor:
        return self.experts.run(self.x, self.topk_weights, self.topk_ids, self.num_shared)


def _shuffled_scale(scale: torch.Tensor) -> Shuffled:
    rows, columns = scale.shape
    padded = scale.new_full(padded_scale(rows, columns), E8M0_NAN, dtype=torch.uint8)
    padded[:rows, :columns] = scale.view(torch.uint8)
    return shuffle_scale(padded.view(scale.dtype))


def random_problem(
    fmt: Format,
    m: int,
    d: int,
    i: int,
    e: int,
    k: int,
    num_shared: int = 0,
    dtype: torch.dtype = BF16,
    seed: int = 0,
) -> Problem:
    """Results of about 1; each token's experts differ while there are enough."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 10_007 * d + 101 * i + 7 * m + e)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    routed = e - num_shared
    order = torch.rand(m, routed, generator=generator).argsort(1)
    ids = order[:, torch.arange(k) % routed].int()
    options = next(iter(fmt.bumps))
    w1, s1 = fmt.quantise(normal(e, 2 * i, d) / math.sqrt(d), options)
    w2, s2 = fmt.quantise(normal(e, d, i) / math.sqrt(i), options)
    weights = torch.rand(m, k, generator=generator)
    return Problem(fmt, normal(m, d).to(dtype), w1, w2, s1, s2, weights, ids, num_shared)


def assert_near(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """Each row's relative L2: half a unit of out's 8 bits and of each expert's rounded rows, 2^-9
    each at most and a third of it on average, and of h a few elements in a million that lie within
    fp32's error of a boundary, which move by a step of the format: 5e-3 of a row of 32 elements."""
    assert actual.dtype in (BF16, F16)
    actual_f64 = actual.double()
    relative_error = (actual_f64 - exact.double()).norm(dim=1) / exact.double().norm(dim=1).clamp(
        min=1e-6
    )
    row = int(relative_error.argmax())
    assert relative_error[row] <= 5e-3, (
        f"row {row}: relative L2 {relative_error[row]:.2e}; {actual[row]}, {exact[row]}"
    )


PLAIN = MxMoeConfig(1, 4, 1, 4, 1)  # four launches, whatever the route's default is
CONFIGS = [
    MxMoeConfig(1, 1, 4, 4, 1, 4),
    MxMoeConfig(1, 4, 1, 2, 1, 1),
    MxMoeConfig(2, 2, 2, 2, 2, 2),
    MxMoeConfig(4, 4, 1, 4, 1, 2),
    MxMoeConfig(8, 4, 1, 4, 1, 1),
    MxMoeConfig(2, 8, 1, 1, 1, 8),
    MxMoeConfig(1, 1, 4, 8, 1, 2, 16, 1),
    MxMoeConfig(2, 4, 1, 4, 1, 2, 32, 2),
    MxMoeConfig(4, 4, 1, 4, 1, 2, 16, 4),
]


# Kernels are the same sources: by default MX-FP8 has one test of its own.
@pytest.fixture(params=[MXFP4, pytest.param(MXFP8, marks=pytest.mark.sweep)], ids=lambda f: f.word)
def fmt(request: pytest.FixtureRequest) -> Format:
    result: Format = request.param
    return result


def call_of(problem: Problem) -> Any:
    op = OPS[problem.fmt.word]
    choice = problem.topk_weights, problem.topk_ids, None, problem.topk_ids.shape[1]
    args = arguments(
        op, problem.x, *problem.weights, choice, problem.num_shared, (False, False), None
    )
    return op.check((*args, None, None))[0]


def sums_config(columns: int, waves: int, slots: int, rows: int = 1) -> MxMoeConfig:
    return MxMoeConfig(1, 4, 1, waves, 1, 2, columns, rows, slots=slots)
