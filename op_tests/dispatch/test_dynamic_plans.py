"""Calls of changing sizes share a decision: it is the one that each of them gets alone."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from rfops.dispatch.dynamic_plan import DynamicShapePlan, Traced
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.jit.arch import ARCHS


def _has_hip(op: Op, arch: str) -> bool:
    c = op.call_of(arch, **dict.fromkeys(op.asked, 128))
    return any(k.is_hip and k.unsupported_arch_reason(c) is None for k in op.kernels.values())


SHARING = sorted(
    (name, arch)
    for name, op in ops().items()
    for arch in ARCHS
    if op.shares_decisions and op.declaration.patterns and _has_hip(op, arch)
)


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
    family = DynamicShapePlan(op, c, None)
    sizes = dict(c.sizes)
    for offset, _ in op.coarse_at:
        name = op.declaration.sizes[offset]
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
        result, mine = (
            op.decide(item, DynamicShapePlan(op, item, None).router, None) for item in (c, other)
        )
        rules = {result[1], mine[1]}
        if not rules <= {"envelope default", "first"}:
            continue  # a tuned row, or what is left: not shared
        kernel, _, config = result
        is_taken = (
            kernel.unsupported_reason(other) is None
            and kernel.unsupported_config_reason(other, config) is None
        )
        if is_taken and kernel.name == next(iter(op.order(c)), None):
            assert (mine[0].name, mine[2]) == (kernel.name, config), f"{c} and {other}"
            compared += 1
        if compared == 300:
            break
    assert compared >= 20, "few sizes share a step"


# ---------------------------------------------------------------- what a kernel is asked


def _limited_sizes(op: Op, limits: list[str], c: Call, rng: random.Random) -> Call:
    """The call with sizes of `limits` of any magnitude, multiples of what they were of."""
    sizes = {}
    for name in limits:
        unit = math.gcd(getattr(c, name), 128)
        sizes[name] = unit * int(2 ** rng.uniform(0, 40))
    return c.with_sizes(**sizes)


@pytest.mark.parametrize(("name", "arch"), SHARING)
def test_limits_bound_sizes_from_above(name: str, arch: str) -> None:
    """Where a kernel takes a call, it takes it with smaller sizes of its `limits`."""
    op, rng = ops()[name], random.Random(f"limits {name} {arch}")
    compared: dict[str, int] = {}
    for kernel in op.kernels.values():
        limits, taken, refused = kernel.limits.split(), 0, 0
        assert set(limits) <= set(op.declaration.sizes), f"{kernel.name}: {limits}"
        for _ in range(1000 if limits else 0):
            c = _random_call(op, arch, rng)
            if c is None or kernel.unsupported_reason(c) is not None:
                continue
            c = _limited_sizes(op, limits, c, rng)
            if kernel.unsupported_reason(c) is not None:
                refused += 1
                continue
            taken += 1
            for limit in limits:
                unit = math.gcd(getattr(c, limit), 128)
                less = rng.randrange(unit, getattr(c, limit) + 1, unit)
                smaller = c.with_sizes(**{limit: less})
                assert kernel.unsupported_reason(smaller) is None, f"{kernel.name}: {c}, {smaller}"
        if limits:
            compared[kernel.name] = min(taken, refused)
    assert not compared or max(compared.values()) > 5, f"few sizes are near a limit: {compared}"


@pytest.mark.parametrize("name", sorted(ops()))
def test_the_checks_of_sizes_read_the_sizes_that_they_are_given(name: str) -> None:
    """A family passes new sizes beside the first call of the family."""
    op, rng, calls = ops()[name], random.Random(name), 0
    for _ in range(200):
        c = _random_call(op, "gfx950", rng)
        if c is not None:
            traced, calls = Traced.of(c), calls + 1
            op.unsupported_reason(traced, *c.sizes.values())
            assert not traced.read, f"{traced.read} of {c}"
    assert calls or not op.declaration.patterns


def test_a_traced_call_knows_what_is_read() -> None:
    c = ops()["gemm_mxfp8"].call_of("gfx950", M=1, N=64, K=256)
    for read, ask in [
        ({"N"}, lambda c: c.N),
        ({"M", "K"}, lambda c: (c.K, getattr(c, "M"), c.dtype, c.align("x"))),  # noqa: B009
        ({"M", "N", "K"}, lambda c: c.sizes),
        ({"M", "N", "K"}, lambda c: c.with_sizes(M=3).M),
        ({"M", "N", "K"}, str),
        (set(), lambda c: c.has("x")),
    ]:
        traced = Traced.of(c)
        ask(traced)
        assert traced.read == read


def _family(monkeypatch: pytest.MonkeyPatch, name: str, **sizes: int) -> DynamicShapePlan:
    """One whose plans launch nothing: the first item of each is the kernel's name. HIP's are tried
    as they are listed, whatever takes how long."""
    op = ops()[name]
    listed = [kernel.name for kernel in op.kernels.values() if kernel.is_hip]
    monkeypatch.setattr(op, "order", lambda _c: listed)
    for kernel in op.kernels.values():
        monkeypatch.setattr(kernel, "variant", lambda _c, _v, name=kernel.name: lambda *_: name)
    return DynamicShapePlan(op, op.call_of("gfx950", **sizes), None)


def _kernels(family: DynamicShapePlan, *shapes: tuple[int, ...]) -> list[str]:
    plans = [family(*sizes) for sizes in shapes]
    return [plan[0] for plan in plans if plan is not None]


def test_a_refusal_inside_a_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without limits, that takes each second size of one step."""
    family = _family(monkeypatch, "gemm_mxfp8", M=1, N=498, K=256)
    gemv = family.op.kernels["gemv"]
    monkeypatch.setattr(gemv, "limits", "")
    monkeypatch.setattr(gemv, "unsupported_reason", lambda c: "an odd N" if c.N % 2 else None)
    assert len({family._key((1, n, 256)) for n in range(498, 503)}) == 1
    actual = _kernels(family, *((1, n, 256) for n in (498, 499, 500, 498, 501, 502)))
    assert actual == ["gemv", "mfma", "gemv", "gemv", "mfma", "gemv"]


def test_a_variant_that_refuses_inside_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    family = _family(monkeypatch, "gemm_mxfp8", M=1, N=498, K=256)
    gemv = family.op.kernels["gemv"]
    monkeypatch.setattr(gemv, "limits", "")
    asked = []

    def unsupported_config_reason(c: Call, _config: Any) -> str | None:
        asked.append(c.N)
        return None

    monkeypatch.setattr(gemv, "unsupported_config_reason", unsupported_config_reason)
    _kernels(family, (1, 498, 256), (1, 499, 256), (1, 499, 256))
    assert asked == [498, 499]


def test_a_limit_is_asked_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    family = _family(monkeypatch, "gemm_mxfp8", M=1, N=498, K=256)
    gemv, asked = family.op.kernels["gemv"], []
    plain = gemv.unsupported_reason

    def unsupported_reason(c: Call) -> str | None:
        asked.append(object.__getattribute__(c, "N"))
        return plain(c)

    monkeypatch.setattr(gemv, "unsupported_reason", unsupported_reason)
    assert _kernels(family, (1, 498, 256)) == ["gemv"]
    first = len(asked)
    assert asked[-1] == family._key((1, 498, 256))[1], "the largest of the step"
    assert _kernels(family, *((1, n, 256) for n in range(490, 505))) == ["gemv"] * 15
    assert len(asked) == first


def test_near_a_limit_each_size_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """N * K of 2 GiB is refused, and a step that ends there has sizes that are taken."""
    family = _family(monkeypatch, "gemm_mxfp8", M=1, N=32700, K=1 << 16)
    sizes = [(1, n, 1 << 16) for n in (32760, 32767, 32768, 32761)]
    assert len(set(map(family._key, sizes))) == 1
    assert _kernels(family, *sizes) == ["gemv", "gemv", "mfma", "gemv"]


def test_a_limit_of_a_size_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """M decides nothing of a quantisation, but 2^31 blocks are too many for a launch."""
    family = _family(monkeypatch, "quant_fp8_blockscale", M=1, K=128, dtype="fp8")
    few, more, many = (3, 128), (1 << 20, 128), (1 << 31, 128)
    assert len({family._key(sizes) for sizes in (few, more, many)}) == 1
    names = _kernels(family, few, more, many, few)
    assert names[0] == names[1] == names[3] == "hip" != names[2]
