"""Every op with every tensor argument in unusual strides: it computes what the contiguous call
computes, reads and writes nothing else, or refuses with a ValueError.

The virtual GPU's checks see each access that leaves the view's storage, which ends with its last
element; the same call without checks has NaN and -1 around the view.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import rfops
from rfops.attention.mla_absorb_cache_write import Ops as AbsorbOps
from rfops.dispatch.declare import TensorArg
from rfops.dispatch.kernel import Kernel
from rfops.dispatch.op import Op
from rfops.dispatch.problem import poison
from support.small_calls import Case, arguments, cases, replaced, tensors_of
from support.views import GUARD, bits, has_own_places, lay, layouts


@pytest.fixture(params=["gfx950", pytest.param("gfx942", marks=pytest.mark.sweep)])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def each_case() -> list[Any]:
    return [pytest.param(case, id=str(case)) for case in cases()]


@pytest.mark.thin(5)
@pytest.mark.parametrize("case", each_case())
def test_arguments(case: Case, arch: str) -> None:
    """By the kernel of the route."""
    assert_views(case, every_kernel=False)


@pytest.mark.sweep
@pytest.mark.parametrize("case", each_case())
def test_arguments_by_every_kernel(case: Case, arch: str) -> None:
    assert_views(case, every_kernel=True)


def assert_views(case: Case, every_kernel: bool) -> None:
    op, args = case.op, arguments(case)
    op.call(*args_of(op, args))  # the contiguous call is taken
    mismatches: list[str] = []
    for at, position, arg, tensor in tensors_of(op, args):
        if position > 0:  # of a table of tensors the first one stands for all
            continue
        recorded_calls: set[str] = set()
        for name, strides, offset in layouts(tensor.shape, tensor.itemsize):
            view = lay(tensor, strides, offset)
            try:
                compared = _compare(op, args, at, position, view, every_kernel, recorded_calls)
                _compare_call(op, args, at, position, lay(tensor, strides, offset, GUARD), compared)
            except ValueError as error:
                if not is_refusal(op, error):
                    mismatches.append(f"{arg.name} {name}: {error}")
            except AssertionError as error:
                mismatches.append(f"{arg.name} {name} {list(view.stride())}: {error}")
    assert not mismatches, f"{case}:\n" + "\n".join(mismatches)


def is_refusal(op: Op, error: ValueError) -> bool:
    return re.match(rf"{op.name}: [\w\[\]]+ must (be|not overlap) .*, got ", str(error)) is not None


def _compare(
    op: Op,
    args: Sequence[Any],
    offset: int,
    position: int,
    view: torch.Tensor,
    every: bool,
    seen: set[str],
) -> list[torch.Tensor] | None:
    """The result of the route's kernel, if that was run. Raises ValueError for a refusal."""
    strange = replaced(args, offset, position, view)
    plain = replaced(args, offset, position, view.contiguous().clone())
    c, _ = op.check(tuple(strange))
    kernel, _, config = op.decide(c, None, None)
    result = None
    for other in op.kernels.values():
        is_own = other.name == kernel.name
        # Triton compiles for each kind of stride: once an argument has to do by default.
        is_slow = not other.is_hip and other.name in seen
        if other.unsupported_reason(c) or (not every and (not is_own or is_slow)):
            continue
        seen.add(other.name)
        selected = config if is_own else other.default(c)
        with checked():
            actual = run(op, other, selected, strange)
        assert_same(actual, run(op, other, selected, plain), other)
        result = actual if is_own else result
    return result


def _compare_call(
    op: Op,
    args: Sequence[Any],
    offset: int,
    position: int,
    view: torch.Tensor,
    expected: list[torch.Tensor] | None,
) -> None:
    """The op itself, its plans forgotten, on a view with poison around it."""
    if expected is None:
        return
    op.plans.clear()
    given = args_of(op, replaced(args, offset, position, view))
    results = flat(op.call(*given))
    for actual, want in zip(results, expected, strict=False):
        assert torch.equal(bits(actual), bits(want)), "the call and its kernel differ"


def args_of(op: Op, args: Sequence[Any]) -> list[Any]:
    """What the op writes, copied."""
    written = {i for i, a in enumerate(op.declaration.inputs) if getattr(a, "written", False)}
    return [a.clone() if i in written and a is not None else a for i, a in enumerate(args)]


def run(op: Op, kernel: Kernel, config: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    """Results of one kernel on poison, then the inputs that it has written."""
    args = args_of(op, args)
    c, _ = op.check(tuple(args))
    launch = op.finish_run(c, op.prepare(kernel.name, c, config))
    results = [poison(tensor) for tensor in op.make_results(c)]
    one = results[0] if op.makes_one else op._collected(tuple(results))
    launch(one, *[args[i] for i in op._tensors_at])
    pairs = zip(op.declaration.inputs, args, strict=False)
    written = [v for a, v in pairs if isinstance(a, TensorArg) and a.written]
    return results + [tensor for tensor in written if tensor is not None]


@contextlib.contextmanager
def checked() -> Iterator[None]:
    with rfops.vgpu.check() as c:
        yield
    assert not c.findings, "\n".join(map(str, c.findings))


def assert_same(actual: list[torch.Tensor], want: list[torch.Tensor], kernel: Kernel) -> None:
    for one, other in zip(actual, want, strict=True):
        is_blas = kernel.name in ("torch", "bmm") or isinstance(kernel, AbsorbOps)
        if is_blas and one.is_floating_point():
            # BLAS sums in another order for other strides.
            close = torch.finfo(one.dtype).eps if one.itemsize < 4 else 2.0**-16
            difference = (one.double() - other.double()).norm()
            assert difference <= 4 * close * other.double().norm(), kernel.name
        else:
            offset = (bits(one) != bits(other)).nonzero()[:1].tolist()
            assert not offset, (
                f"{kernel.name}: differs from the contiguous call from byte {offset[0]} on"
            )


def flat(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results or ())


# ---------------------------------------------------------------- results

WITH_OUT = [case for case in cases() if case.op.num_passed]


@pytest.mark.parametrize("case", WITH_OUT, ids=str)
def test_results(case: Case, arch: str) -> None:
    """What the caller gives for a result: expanded and overlapping ones are refused, others filled
    in, between their elements nothing is written."""
    op, args = case.op, arguments(case)
    expected = flat(op.call(*args_of(op, args)))
    mismatches = []
    for i, (arg, want) in enumerate(zip(op.declaration.passed, expected, strict=True)):
        for name, strides, offset in layouts(want.shape, want.itemsize):
            out = lay(want, strides, offset, GUARD)
            storage = torch.empty(0, dtype=torch.uint8).set_(out.untyped_storage())
            previous = storage.clone()
            poison_places(out)
            given = args_of(op, args)
            given[op.num_inputs + i] = out
            try:
                returned = flat(op.call(*given))[i]
            except ValueError as error:
                if not is_refusal(op, error):
                    mismatches.append(f"{arg.name} {name}: {error}")
                continue
            if not has_own_places(want.shape, strides):
                mismatches.append(
                    f"{arg.name} {name} {strides}: taken, though elements share places"
                )
            elif returned is not out or not torch.equal(bits(out), bits(want)):
                mismatches.append(f"{arg.name} {name} {strides}: another result")
            else:
                poison_places(out, previous, storage)
                if not torch.equal(storage, previous):
                    mismatches.append(f"{arg.name} {name} {strides}: wrote beside its elements")
    assert not mismatches, f"{case}:\n" + "\n".join(mismatches)


def poison_places(
    out: torch.Tensor, like: torch.Tensor | None = None, storage: torch.Tensor | None = None
) -> None:
    """Poison the elements of a view; or give them back the bytes of `like`, its storage's."""
    if like is None or storage is None:
        if 0 not in out.stride():
            bits(out, copy=False).fill_(85)
        return
    old = torch.empty(0, dtype=out.dtype).set_(
        like.untyped_storage(), out.storage_offset(), out.shape, out.stride()
    )
    out.copy_(old)


IN_PLACE = {("rms_norm", "x")}  # whose result may be this argument, whole


@pytest.mark.parametrize("case", WITH_OUT, ids=str)
def test_a_result_in_an_input(case: Case, arch: str) -> None:
    """A result in memory that the op reads is refused, whole or by its last bytes."""
    op, args = case.op, arguments(case)
    results = flat(op.call(*args_of(op, args)))
    for i, want in enumerate(results):
        for offset, position, arg, tensor in tensors_of(op, args):
            if tensor.numel() == 0 or position > 0:
                continue
            size, own = want.numel() * want.itemsize, tensor.numel() * tensor.itemsize
            memory = torch.zeros(own + 2 * size + 64, dtype=torch.uint8)
            first = -(memory.data_ptr() + size) % 64 + size
            inside = memory[first : first + own].view(tensor.dtype).view(tensor.shape)
            inside.view(torch.uint8).copy_(tensor.contiguous().view(torch.uint8))
            last = -(-own // 64) * 64 - 64  # a boundary within its last 64 bytes
            for start in {first, first + last}:
                if start == first and (op.name, arg.name) in IN_PLACE:
                    continue
                out = memory[start : start + size].view(want.dtype).view(want.shape)
                given = args_of(op, replaced(args, offset, position, inside))
                if getattr(arg, "written", False):
                    given = replaced(args, offset, position, inside)
                given[op.num_inputs + i] = out
                names = op.declaration.passed[i].name, arg.name  # either may be said
                expected = rf"^{op.name}: ({'|'.join(names)}) must (not overlap|be)"
                with pytest.raises(ValueError, match=expected):
                    op.call(*given)


# ---------------------------------------------------------------- memory behind addresses


@pytest.mark.parametrize("kernel", ["hip", "triton"])
def test_checks_know_the_tensors_of_a_table(kernel: str, arch: str) -> None:
    """The weights of each expert end where their own tensor does, also where only an address in
    memory leads to them: a matrix that lacks its last row is found."""
    case = next(case for case in cases() if case.op.name == "fused_moe_tables")
    op, args = case.op, arguments(case)
    c, _ = op.check(tuple(args))
    offset = [value.name for value in op.declaration.inputs].index("down")
    given = replaced(args, offset, 1, args[offset][1][:-1].clone())
    launch = op.finish_run(c, op.prepare(kernel, c, op.kernels[kernel].default(c)))
    (result,) = op.make_results(c)
    with rfops.vgpu.check() as check:
        launch(poison(result), *[given[i] for i in op._tensors_at])
    assert {finding.kind for finding in check.findings} == {"out of bounds"}, check.findings
