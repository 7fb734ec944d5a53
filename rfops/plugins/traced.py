"""A wrapper inside torch.compile: what is decided is a constant of the graph.

Dynamo sees the drop-in or the original; the decision is made beside the trace, from sizes, dtypes
and values. A size that the graph leaves open stands for all: the call is taken where rfops has a
HIP kernel for each of a few sizes. Importing this imports torch._dynamo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import assume_constant_result
from torch.fx.experimental.symbolic_shapes import has_static_value

from .binding import Arguments, Tensorlike, Values
from .wrapper import WRAPPERS, Callee

_SIZES = (1, 64, 4096)  # for one that is open


def call(
    number: int, callee: Callee, original: Callable[..., Any], args: Values, kwargs: Arguments
) -> Any:
    """Run a call while torch.compile traces it: the decision depends on metadata only and is a
    constant of the graph."""
    facts = tuple([_known_fact(value) for value in (*args, *kwargs.values())])
    reason, arguments_given, defaults = _decide(number, len(args), tuple(kwargs), facts)
    if reason is not None:
        return original(*args, **kwargs)
    values = (*args, *kwargs.values())
    arguments = {name: values[index] for name, index in arguments_given}
    for name, value in defaults:
        arguments[name] = value
    if callee.adapt is not None:
        arguments = callee.adapt(arguments)
    assert callee.function is not None
    try:
        return callee.function(**arguments)
    except (ValueError, TypeError, NotImplementedError):
        _refused(number)
    return original(*args, **kwargs)


@assume_constant_result  # type: ignore[untyped-decorator]
def _refused(number: int) -> None:
    """Count a call that the decision took and the drop-in's checks refused."""
    callee = WRAPPERS[number].callee
    callee.compiled -= 1
    callee.left["refused while it was traced"] += 1


def _known_fact(value: Any) -> Any:
    """Of an argument, constants alone; -1 is a size that the graph leaves open."""
    if not isinstance(value, torch.Tensor):
        return value
    sizes = tuple([size if has_static_value(size) else -1 for size in value.shape])
    return sizes, value.dtype, str(value.device), getattr(value, "is_shuffled", None)


@assume_constant_result  # type: ignore[untyped-decorator]
def _decide(
    number: int, count: int, names: tuple[str, ...], facts: Values
) -> tuple[str | None, tuple[tuple[str, int], ...], tuple[tuple[str, Any], ...]]:
    """Return why the original is traced, or None; the drop-in's arguments with the indices of their
    values; and the defaults of arguments that are not passed."""
    wrapper = WRAPPERS[number]
    callee, plan = wrapper.callee, wrapper.plan((count, *names))
    reason: str | None = None
    for size in _SIZES:
        values = tuple(_stand_in(fact, size) for fact in facts)
        reason = reason or callee.refusal(plan, values)
    if reason is None:
        callee.compiled += 1
    else:
        callee.left[reason] += 1
    return reason, tuple(plan.value_indices.items()), tuple(plan.defaults.items())


def _stand_in(fact: Any, size: int) -> Any:
    if isinstance(fact, tuple) and len(fact) == 4 and isinstance(fact[0], tuple):
        sizes, dtype, device, is_shuffled = fact
        shape = torch.Size([size if n == -1 else n for n in sizes])
        return Tensorlike(shape, dtype, torch.device(device), is_shuffled)
    return fact
