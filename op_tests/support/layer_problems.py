"""Inputs of mla_layer_decode, and how close a kernel must come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rfops.attention.mla_layer_decode import OP, mla_layer_decode_ref, rope_angles

BF16 = torch.bfloat16


@dataclass
class Problem:
    x: torch.Tensor
    cache: torch.Tensor  # NaN from each sequence's end on
    weights: list[torch.Tensor]  # q_down, q_up, kv_down, kv_up, o, angles
    lens: list[int]  # tokens before the new one

    @property
    def positions(self) -> torch.Tensor:
        return torch.tensor(self.lens, dtype=torch.int32, device=self.x.device)

    def exact(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The result in float64, and the cache after it."""
        cache = self.cache.clone()
        result = mla_layer_decode_ref(
            self.x, cache, 0, *self.weights, self.positions, dtype=torch.float64
        )
        return result, cache


def problem(
    lens: Sequence[int],
    heads: int = 4,
    *,
    dim: int = 128,
    rank: int = 96,
    rows: int = 0,
    seed: int = 0,
    device: str = "cpu",
) -> Problem:
    """Products of about 1; a cache of `rows`, or of just enough."""
    generator = torch.Generator().manual_seed(seed + sum(lens) + heads)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def weight(n: int, k: int) -> torch.Tensor:
        return (normal(n, k) / math.sqrt(k)).to(BF16).to(device)

    rows = rows or max(lens) + 1
    cache = torch.full((len(lens), rows, 576), math.nan, dtype=BF16)
    for b, length in enumerate(lens):
        cache[b, :length] = normal(length, 576).to(BF16)
    weights = [
        weight(rank, dim),
        weight(192 * heads, rank),
        weight(576, dim),
        weight(256 * heads, 512),
        weight(dim, 128 * heads),
    ]
    angles = rope_angles(rows).to(device)
    x = normal(len(lens), 1, dim).to(BF16).to(device)
    return Problem(x, cache.to(device), [*weights, angles], list(lens))


def run(kernel: str, p: Problem, config: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the cache of one kernel."""
    cache, out = p.cache.clone(), torch.full_like(p.x, math.nan)
    inputs = [p.x, cache, 0, *p.weights, p.positions]
    c, _ = OP.check((*inputs, out, config))
    OP.prepare(kernel, c, config)(out, p.x, cache, *p.weights, p.positions)
    return out, cache


def assert_correct(
    actual: tuple[torch.Tensor, torch.Tensor], p: Problem, bound: float = 8e-3
) -> None:
    """Each row's relative L2 error. Six roundings to bf16 in a row make 1.7e-3 of the norm each,
    4e-3 in all; those of q widen the scores' error by their spread, of about 1."""
    exact, cache = p.exact()
    error = (actual[0].double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    worst = int(error.argmax())
    assert not actual[0].isnan().any(), "NaN in the result"
    assert (error <= bound).all(), f"row {worst}: relative L2 {error.view(-1)[worst]:.2e} > {bound}"
    assert_cache(actual[1], cache, p)


def assert_cache(actual: torch.Tensor, exact: torch.Tensor, p: Problem) -> None:
    """Bit for bit but for the new rows, which are the exact ones rounded: fp32's sums may be off by
    enough to round the other way, and by 448 steps of 2^-23 of a sum of about 1 (dim 7168)."""
    for b, length in enumerate(p.lens):
        new, expected = actual[b, length].double(), exact[b, length].double()
        excess_error = (new - expected).abs() - 2.0**-7 * expected.abs()
        assert (excess_error <= 6e-5).all(), (
            f"row {length} of sequence {b}, element {int(excess_error.argmax())}"
        )
    remaining, previous = actual.clone(), p.cache.clone()
    for b, length in enumerate(p.lens):
        remaining[b, length] = previous[b, length] = 0
    changed = (remaining.view(torch.int16) != previous.view(torch.int16)).nonzero()
    assert not len(changed), f"other rows are written, the first at {changed[0].tolist()}"
