"""amd-fp8-mm (2025, MI300X): FP8 GEMM with 1 x 128 and 128 x 128 scales, all inputs column-major.

c[m, n] = sum_kb a_scale[m, kb] * b_scale[n / 128, kb] * sum_{k in kb} a[m, k] * b[n, k]
"""

from __future__ import annotations

from typing import Any

import torch

from rfops.challenge.problem import Case, Problem, generator, smaller

BLOCK = 128
FP8 = torch.float8_e4m3fnuz


def _cases(*sizes: tuple[int, int, int, int]) -> tuple[Case, ...]:
    return tuple(dict(zip(("m", "n", "k", "seed"), size, strict=True)) for size in sizes)


TESTS = _cases(
    (64, 64, 128, 6635),
    (64, 1536, 7168, 6635),
    (64, 3072, 1536, 1236),
    (64, 576, 7168, 542),
    (96, 7168, 256, 1234),
    (96, 7168, 2048, 4153),
    (96, 4608, 7168, 412),
    (128, 7168, 2304, 624),
    (128, 512, 7168, 2514),
    (512, 4096, 512, 543),
    (512, 1536, 7168, 12341),
)
LAYERS = (
    (1536, 7168, 8135, 6543),
    (3072, 1536, 6251, 234),
    (576, 7168, 12346, 9863),
    (7168, 256, 5364, 764243),
    (7168, 2048, 6132, 76547),
    (4608, 7168, 7531, 65436),
    (7168, 2304, 12345, 452345),
    (512, 7168, 6563, 12341),
    (4096, 512, 17512, 45245),
)
BENCHMARKS = _cases(
    *((1024, n, k, seed) for n, k, seed, _ in LAYERS),
    *((6144, n, k, seed) for n, k, _, seed in LAYERS),
)


def generate(case: Case) -> Any:
    """Return the official input of a case, drawn with its seed."""
    m, n, k, gen = case["m"], case["n"], case["k"], generator(case)

    def column_major(rows: int) -> torch.Tensor:
        return torch.randn(k, rows, dtype=torch.bfloat16, generator=gen).to(FP8).T

    a, b = column_major(m), column_major(n)
    a_scale = torch.randn(-(-k // BLOCK), m, generator=gen).T
    b_scale = torch.randn(-(-k // BLOCK), -(-n // BLOCK), generator=gen).T
    return a, b, a_scale, b_scale, torch.zeros(m, n, dtype=torch.bfloat16)


def exact(data: Any) -> torch.Tensor:
    """Return the product in float32 of the dequantised operands."""
    a, b, a_scale, b_scale, _ = data
    wide_a = a.float() * a_scale.repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
    tall = b_scale.repeat_interleave(BLOCK, 0)[: b.shape[0]]
    wide_b = b.float() * tall.repeat_interleave(BLOCK, 1)[:, : b.shape[1]]
    product: torch.Tensor = wide_a @ wide_b.T
    return product


PROBLEM = Problem(
    name="amd-fp8-mm",
    arch="gfx942",
    tests=TESTS,
    benchmarks=BENCHMARKS,
    generate=generate,
    reference=lambda data: exact(data).to(torch.bfloat16),
    shrink=smaller(m=128, n=192, k=512),
    rtol=2e-2,
    atol=1e-3,
    truths=lambda data, _: {"the product": exact(data)},
    bound=4e-3,  # bf16 rounds by 2^-9 at most, 1.2e-3 in a row's norm
    in_place=lambda data: [data[4]],
)
