"""What bench and tuner of batched_gemm_a16w8_blockscale share: shapes, published times, inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from rfops.gemm.a16w8_routes import Shape
from support.gpu_timing import sets_past_cache

PUBLISHED_SOURCE = "aiter pull request 2297 on MI350X"
_NK = ((512, 128), (128, 512))
PUBLISHED_SHAPES = tuple(
    Shape(b, m, n, k) for b in (16, 32, 64, 128) for n, k in _NK for m in (1, 32, 128)
)
LARGE = Shape(16, 8192, 8192, 8192)
# Weights beyond any last-level cache here.
STREAMED = tuple(
    Shape(b, m, n, k)
    for b, n, k in ((128, 2048, 512), (16, 4096, 4096), (32, 7168, 2048))
    for m in (1, 16, 32)
)
# TFLOPS as published, of the rows that its text gives.
PUBLISHED_TFLOPS = {
    Shape(16, 1, 512, 128): 0.069,
    Shape(16, 1, 128, 512): 0.071,
    Shape(16, 32, 512, 128): 2.251,
    Shape(16, 32, 128, 512): 2.313,
    Shape(16, 128, 512, 128): 8.771,
    Shape(16, 128, 128, 512): 8.857,
    Shape(128, 1, 512, 128): 0.409,
    Shape(128, 1, 128, 512): 0.508,
    Shape(128, 32, 512, 128): 12.7,
    Shape(128, 32, 128, 512): 15.891,
    Shape(128, 128, 512, 128): 43.844,
    Shape(128, 128, 128, 512): 58.69,
    LARGE: 645.0,
}


def flops(shape: Shape) -> int:
    return 2 * shape.b * shape.m * shape.n * shape.k


def traffic(shape: Shape, w_bytes: int = 1) -> int:
    """Bytes that must move at least: x, w and the result once each."""
    b, m, n, k = shape
    return b * (2 * m * k + w_bytes * n * k + 2 * m * n)


def published_us(shape: Shape) -> float | None:
    rate = PUBLISHED_TFLOPS.get(shape)
    return None if rate is None else flops(shape) / rate * 1e-6


@dataclass(frozen=True)
class Inputs:
    out: torch.Tensor
    x: torch.Tensor
    w: torch.Tensor
    scale: torch.Tensor
    values: torch.Tensor | None  # w * scale in bf16


def make_inputs(shape: Shape, device: torch.device, seed: int, with_values: bool = True) -> Inputs:
    """Random, made on the device; w's magnitudes are those of a quantised normal distribution."""
    b, m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(seed)
    random = functools.partial(torch.randn, generator=generator, device=device)
    x = random(b, m, k, dtype=torch.bfloat16)
    scale = random(b, -(-n // 128), -(-k // 128)).abs_() / 128 + 1e-3
    w = torch.empty(b, n, k, dtype=torch.float8_e4m3fn, device=device)
    values = torch.empty(b, n, k, dtype=torch.bfloat16, device=device) if with_values else None
    for part in _parts(shape):
        w[part] = (random(*w[part].shape) * 100).clamp_(-448, 448)
        if values is not None:
            values[part] = dequantised(w[part], scale[part])
    out = torch.full((b, m, n), float("nan"), dtype=torch.bfloat16, device=device)
    return Inputs(out, x, w, scale, values)


def dequantised(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """In fp32."""
    n, k = w.shape[1:]
    full = scale.repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[:, :, :k]
    return w.float() * full


def _parts(shape: Shape) -> Iterator[slice]:
    """Batches by parts that fp32 copies of fit anywhere."""
    step = max(1, (1 << 26) // max(shape.n * shape.k, shape.m * shape.n, shape.m * shape.k))
    for first in range(0, shape.b, step):
        yield slice(first, first + step)


def make_sets(shape: Shape, device: torch.device, with_values: bool = True) -> list[Inputs]:
    count = sets_past_cache(traffic(shape), device)
    return [make_inputs(shape, device, seed, with_values) for seed in range(count)]


MAX_ERROR = 4e-3  # relative, Frobenius: rounding to bf16 makes 1.7e-3, twice of it (bmm) 2.3e-3


def error_of(inputs: Inputs, call: Callable[[], object]) -> float:
    """Of the result that `call` writes to out, poisoned before; NaN where it left any."""
    inputs.out.fill_(float("nan"))
    call()
    wrong = total = torch.zeros((), device=inputs.x.device, dtype=torch.float64)
    for part in _parts(Shape(*inputs.out.shape, inputs.x.shape[2])):
        want = inputs.x[part].float() @ dequantised(inputs.w[part], inputs.scale[part]).mT
        wrong = wrong + (inputs.out[part].float() - want).square_().sum()
        total = total + want.square_().sum()
    return float((wrong / total).sqrt())
