"""MXFP4 as the problems have it, on the CPU: payloads of two values a byte, e8m0 scales."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rfops.quantization.mx_quant import E8M0_BIAS, E8M0_NAN
from rfops.quantization.mxfp4 import ROUNDING, _quantise, fp4_values

BLOCK = 32
_MAX_TEMPORARY_ELEMS = 1 << 19  # elements: torch's temporaries of so many stay in the host's caches


def mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] to bytes [M, K/2] and e8m0 bytes [M, K/32]; rounding "even"."""
    m, k = x.shape
    payload = torch.empty(m, k // 2, dtype=torch.uint8)
    scale = torch.empty(m, k // BLOCK, dtype=torch.uint8)
    if not isinstance(x, FakeTensor):  # of which only sizes are asked (record.unreal)
        for p, s, x_rows in _by_rows(k, payload, scale, x):
            _quantise(p, s, x_rows, ROUNDING["even"])
    return payload, scale


def from_mxfp4(payload: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values in fp32; rows and columns that pad the scales are left out."""
    rows, half = payload.shape
    values = torch.empty(rows, 2 * half)
    scale = scale[:rows, : 2 * half // BLOCK]
    for out, codes, bytes_ in _by_rows(2 * half, values, payload, scale):
        pairs = _pairs().index_select(0, codes.flatten().int()).view(torch.float32)
        scale_values = (
            (bytes_.float() - E8M0_BIAS).exp2().masked_fill_(bytes_ == E8M0_NAN, math.nan)
        )
        torch.mul(pairs.view(-1, BLOCK), scale_values.view(-1, 1), out=out.view(-1, BLOCK))
    return values


@functools.cache
def _pairs() -> torch.Tensor:
    """A byte's two values, as one number of 64 bits."""
    return fp4_values(torch.arange(256, dtype=torch.uint8)).view(torch.float64)


def _by_rows(columns: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Parts of them, some rows of all. By one thread: passes are short, and with more of them each
    waits for the last one, ten times as long where other programs run too."""
    rows = max(1, _MAX_TEMPORARY_ELEMS // columns)
    with _threads(1):
        yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
