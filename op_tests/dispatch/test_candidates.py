"""The variants that `rfops tune` times, of every kernel of every op: for whatever valid call they
are given without an error, and the kernel takes each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from rfops.dispatch.declare import ValueArg, fp8_of
from rfops.dispatch.kernel import Call, Kernel
from rfops.dispatch.op import Op, ops
from rfops.jit.arch import ARCHS

KERNELS = [
    (name, kernel.name)
    for name, op in ops().items()
    for kernel in op.kernels.values()
    if kernel.Config is not None
]
MOST = {"E": 512, "K": 8192, "top_k": 16, "B": 256, "T": 4, "page": 128}


def _size(rng: random.Random, name: str, op: Op) -> int:
    """Few, or many; often a multiple that kernels want."""
    experts = "E" in op.declaration.sizes and name == "K"
    most = 16 if experts else MOST.get(name, 8192)
    size = max(1, round(most ** rng.random()))
    step = rng.choice([1, op._multiple_of(name), 16, 64, 128, 256])
    return max(size // step, 1) * step


def _value(rng: random.Random, arg: ValueArg) -> Any:
    if arg.kind == "bool":
        return rng.random() < 0.5
    if arg.kind == "word":
        return rng.choice(arg.words)
    return rng.choice(arg.dtypes)


def _call(rng: random.Random, op: Op, arch: str) -> Call | None:
    """A valid call of sizes alone, or None."""
    d = op.declaration
    given: dict[str, Any] = {name: _size(rng, name, op) for name in op.asked}
    given |= {
        arg.name: _value(rng, arg)
        for arg in d.values
        if arg.kind in ("bool", "word", "dtype") and rng.random() < 0.5
    }
    for name in op.more_sizes:  # as routed experts
        given.pop(name, None)
    if rng.random() < 0.3:
        given |= rng.choice([s for sets in op.shapes.values() for s in sets])
    is_fp8 = rng.random() < 0.3  # all that may be
    given |= {
        f"{arg.name}_dtype": fp8_of(arch)
        if is_fp8 and fp8_of(arch) in arg.dtypes
        else rng.choice(arg.dtypes)
        for arg in d.tensors
        if arg.dtypes and (is_fp8 or rng.random() < 0.3)
    }
    given |= {arg.name: True for arg in d.tensors if arg.optional and rng.random() < 0.2}
    try:
        c = op.call_of(arch, **given)
        op.check_sizes(c)
    except ValueError:
        return None
    return None if op.unsupported_reason(c, *c.sizes.values()) else c


def _calls(rng: random.Random, op: Op, kernel: Kernel, arch: str) -> Iterator[Call]:
    """40 valid calls that the kernel takes, or those among 600 draws."""
    drawn = (_call(rng, op, arch) for _ in range(600))
    return itertools.islice((c for c in drawn if c and kernel.unsupported_reason(c) is None), 40)


@pytest.mark.thin(3)
@pytest.mark.parametrize(("name", "kernel"), KERNELS, ids=map(" ".join, KERNELS))
def test_every_candidate_is_taken(name: str, kernel: str) -> None:
    op, own = ops()[name], ops()[name].kernels[kernel]
    rng, seen = random.Random(f"{name} {kernel}"), 0
    for arch in (*ARCHS, "sm_90"):
        for c in _calls(rng, op, own, arch):
            seen += 1
            about = f"{c} {c.values} on {arch}"
            try:
                configs = [own.default(c), *own.candidates(c)]
            except Exception as error:
                raise AssertionError(f"{about}: {error}") from error
            for config in configs:
                reason = own.unsupported_config_reason(c, config)
                assert reason is None, f"{about}: {config}: {reason}"
    assert seen >= 10, f"{seen} valid calls"
