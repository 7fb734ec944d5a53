"""amd-mxfp4-mm (2026, MI355X): bf16 activations, quantised to MXFP4, times MXFP4 weights.

c = mxfp4(a) @ mxfp4(b)^T, scales by rounding "even" (aiter's dynamic_mxfp4_quant)
"""

from __future__ import annotations

from typing import Any

import torch

from rfops.challenge.formats import from_mxfp4, mxfp4
from rfops.challenge.problem import Case, Problem, generator, smaller
from rfops.quantization.shuffle import shuffle_scale, shuffle_weight


def _cases(*sizes: tuple[int, int, int, int]) -> tuple[Case, ...]:
    return tuple(dict(zip(("m", "n", "k", "seed"), size, strict=True)) for size in sizes)


def generate(case: Case) -> Any:
    """Return the official input of a case, drawn with its seed."""
    gen = generator(case)
    a = torch.randn(case["m"], case["k"], generator=gen).bfloat16()
    b = torch.randn(case["n"], case["k"], generator=gen).bfloat16()
    payload, scale = mxfp4(b)
    return a, b, payload, shuffle_weight(payload).data, shuffle_scale(scale).data


def exact(data: Any) -> torch.Tensor:
    a, b = data[:2]
    return from_mxfp4(*mxfp4(a)) @ from_mxfp4(*mxfp4(b)).T


PROBLEM = Problem(
    name="amd-mxfp4-mm",
    arch="gfx950",
    tests=_cases(
        (8, 2112, 7168, 124), (16, 3072, 1536, 6635), (64, 3072, 1536, 45), (256, 2880, 512, 78)
    ),
    benchmarks=_cases(
        (4, 2880, 512, 4565),
        (16, 2112, 7168, 15),
        (32, 4096, 512, 457),
        (32, 2880, 512, 54),
        (64, 7168, 2048, 687),
        (256, 3072, 1536, 7856),
    ),
    generate=generate,
    reference=lambda data: exact(data).bfloat16(),
    shrink=smaller(m=64, n=192, k=512),
    rtol=1e-2,
    atol=1e-2,
    truths=lambda data, _: {"the product": exact(data)},
    bound=4e-3,  # bf16's rounding: a block quantised otherwise is 0.1 of its part
    cold=True,
    shuffled=(3,),
)
