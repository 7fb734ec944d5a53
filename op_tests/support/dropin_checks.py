"""What tests of drop-ins share: inputs, equality in bits, and the signature of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def random_bf16(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def assert_same_bytes(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bytes in the order of the elements."""
    actual_bytes, expected_bytes = (
        t.reshape(-1).clone().view(torch.uint8) for t in (actual, expected)
    )
    assert torch.equal(actual_bytes, expected_bytes)


def signature_of(function: Callable[..., Any]) -> str:
    """Return the parameters, each with its default: "x, scale=None"."""
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(p.name + ("" if p.default is p.empty else f"={p.default}") for p in parameters)
