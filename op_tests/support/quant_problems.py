"""Inputs of quantisation to MX formats that have every case in them, and comparison bit by bit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from rfops.dispatch.op import Op

BLOCK = 32
# The 127 finite magnitudes of e4m3, by definition: code = exponent * 8 + mantissa.
E4M3 = [
    math.ldexp(code % 8, -9) if code < 8 else math.ldexp(8 + code % 8, code // 8 - 10)
    for code in range(127)
]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def by(op: Op, backend: str, x: torch.Tensor, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """By one route, into poisoned results."""
    c, _ = op.check((x, *values))
    payload, scale = op.make_results(c)
    for result in (payload, scale):
        bytes_of(result).fill_(85)
    op.prepare(backend, c)((payload, scale), x)
    return payload, scale


def assert_same(actual: Any, expected: Any, x: torch.Tensor) -> None:
    for name, a, b in zip(("payload", "scale"), actual, expected, strict=True):
        differing = (bytes_of(a) != bytes_of(b)).flatten().nonzero().flatten()
        if len(differing):
            offset = int(differing[0])
            num_elems = x.shape[-1] // a.shape[-1]
            raise AssertionError(
                f"{name} {offset}: {bytes_of(a).flatten()[offset]:#x}, expected "
                f"{bytes_of(b).flatten()[offset]:#x}, "
                f"of {x.flatten()[num_elems * offset : num_elems * offset + num_elems]}"
            )


def every_16_bits(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 values, each the largest of one block and one of the smaller ones of others: in
    bit order a block has neighbours; shuffled it has values of all sizes."""
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    order = torch.randperm(65536, generator=torch.Generator().manual_seed(0))
    block_of_amax = torch.zeros(65536, BLOCK, dtype=dtype)
    block_of_amax[:, 0] = codes  # each the largest
    block_of_amax[:, 1:9] = codes[:, None] * torch.linspace(-1, 1, 8).to(dtype)
    return torch.cat((codes.view(-1, BLOCK), codes[order].view(-1, BLOCK), block_of_amax))


def wild(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Blocks of every size of number, with zeros of both signs, denormals, infinities and NaN."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    blocks = (*shape[:-1], shape[-1] // BLOCK)
    size = torch.randint(-30, 15, (*blocks, 1), generator=generator)
    x = torch.randn(*blocks, BLOCK, generator=generator) * torch.exp2(size)
    x = x.view(shape).to(dtype)
    flat = x.view(-1, shape[-1])
    flat[0, :BLOCK], flat[-1, 5], flat[len(flat) // 2, -1] = 0.0, math.nan, -math.inf
    flat[len(flat) // 3, :4] = torch.tensor([-0.0, torch.finfo(dtype).tiny, 1e-7, -1e-7]).to(dtype)
    return x


def ties_of_e4m3() -> torch.Tensor:
    """fp32 blocks with all that is halfway between neighbours of e4m3 and just beside, of both
    signs, at powers from the denormals of fp32 to its top."""
    ties = torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(E4M3)])
    neighbours = [torch.nextafter(ties, torch.tensor(target)) for target in (0.0, math.inf)]
    values = torch.cat((ties, *neighbours, torch.tensor(E4M3)))
    values = torch.cat((values, -values, torch.zeros(-2 * len(values) % 31))).view(-1, 31)
    blocks = torch.cat((torch.full((len(values), 1), 448.0), values), 1)
    return torch.cat([blocks * 2.0**power for power in (-149, -140, -134, -127, -126, 0, 119)])
