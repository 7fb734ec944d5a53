"""Calls of changing sizes share a decision: it is the one that each of them gets alone."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from rfops.dispatch.family import Family
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.jit.arch import ARCHS

SHARING = sorted(
    (name, arch)
    for name, op in ops().items()
    for arch in ARCHS
    if op.shares
    and op.declaration.patterns
    and any(k.is_hip and k.refuses_arch(op.call_of(arch, **dict.fromkeys(op.asked, 128))) is None
            for k in op.kernels.values())
)  # fmt: skip


def _random_call(op: Op, arch: str, rng: random.Random) -> Call | None:
    """Sizes of all magnitudes; None where the op refuses them."""

    def size() -> int:
        return int(2 ** rng.uniform(0, rng.choice((3, 8, 14)))) * rng.choice((1, 1, 16, 128))

    given: dict[str, Any] = {name: size() for name in op.asked}
    for arg in op.declaration.values:
        if arg.kind == "int":
            given[arg.name] = rng.choice((1, 2, 4, 16))
        elif arg.kind == "word":
            given[arg.name] = rng.choice(arg.words)
    for arg in op.declaration.tensors:
        if arg.optional:
            given[arg.name] = rng.random() < 0.5
    if "page" in op.declaration.sizes:
        given["page"] = rng.choice((1, 2, 16, 31, 48, 63, 64))
    try:
        c = op.call_of(arch, **given)
        op.check_sizes(c)
    except ValueError:
        return None
    return c


def _like(op: Op, c: Call, rng: random.Random) -> Call | None:
    """Other sizes with the key of these; None where the op refuses them."""
    family = Family(op, c, None)
    sizes = dict(c.sizes)
    for at, _ in op.coarse_at:
        name = op.declaration.sizes[at]
        unit = math.gcd(sizes[name], 128)
        sizes[name] = max(1, int(sizes[name] / unit * rng.uniform(0.85, 1.15))) * unit
    op.assume({k: v for k, v in sizes.items() if k in op.asked}, c.values)
    other = c.with_sizes(**sizes)
    try:
        op.check_sizes(other)
    except ValueError:
        return None
    is_alike = family._key(tuple(sizes.values())) == family._key(tuple(c.sizes.values()))
    return other if is_alike else None


@pytest.mark.parametrize(("name", "arch"), SHARING)
def test_sizes_of_one_step_are_decided_alike(name: str, arch: str) -> None:
    """Where the kernel of one takes the other: kernel and config are those of the step."""
    op, rng, compared = ops()[name], random.Random(f"{name} {arch}"), 0
    for _ in range(4000):
        c = _random_call(op, arch, rng)
        other = None if c is None else _like(op, c, rng)
        if c is None or other is None:
            continue
        made, mine = (op.decide(one, Family(op, one, None).router, None) for one in (c, other))
        rules = {made[1], mine[1]}
        if not rules <= {"envelope default", "first"}:
            continue  # a tuned row, or what is left: not shared
        kernel, _, config = made
        is_taken = kernel.refuses(other) is None and kernel.refuses_config(other, config) is None
        if is_taken and kernel.name == next(iter(op.order(c)), None):
            assert (mine[0].name, mine[2]) == (kernel.name, config), f"{c} and {other}"
            compared += 1
        if compared == 300:
            break
    assert compared >= 20, "few sizes share a step"
