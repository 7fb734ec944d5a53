"""Ops as `torch.ops.rfops.<op>`: a schema, the function and its fake, for torch.compile and export.

Eager calls do not go through here: a public function asks `must_dispatch` and calls its registered
op only where torch has to see one, since the dispatcher costs more than a warm launch.

No op has a derivative. A result of tensors that want a gradient has a history whose backward
raises, in a compiled function too. Refused at once are a gradient that torch.func asks for, a
tangent, and, as torch's own ops do, `out` where any tensor wants a gradient.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from rfops.jit.launch import modes
from rfops.later import TorchOps, registering

_TRANSPARENT: list[None] = []  # one for each scope of `transparent`
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


@dataclass
class _Registered:
    """An op in torch, and what it calls now."""

    schema: str
    library: torch.library.Library  # the op goes with it
    function: Callable[..., Any]
    fake: Callable[..., Any]
    vmap: Callable[..., Any] | None


_REGISTERED: dict[str, _Registered] = {}
_KEPT = torch.library.Library("rfops", "FRAGMENT")
_kept: set[str] = set()


@registering()
def register(
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
) -> Any:
    """Define `rfops::<schema>` for CPU and GPU tensors and return `torch.ops.rfops.<op>.default`.

    `schema` is torch's, every argument that the op writes marked, as `Tensor(a!) out`. `function`
    neither returns nor keeps an input; `fake` returns empty tensors of the result's kind; `vmap` is
    that of torch.library.register_vmap (without: row by row, and a warning of torch's).

    Registered again under its schema, the op stays torch's and calls the new functions; under
    another schema it is another op, and torch refuses calls that do not fit it. No other thread may
    be in torch.ops.rfops.<op> then: torch crashes, because it frees the schema.
    """
    name = schema[: schema.index("(")].strip()
    of = _REGISTERED.get(name)
    if of is not None and of.schema == schema and bool(of.vmap) == bool(vmap):
        of.function, of.fake, of.vmap = function, fake, vmap
    else:
        unregister(name)
        library = torch.library.Library("rfops", "FRAGMENT")
        of = _REGISTERED[name] = _Registered(schema, library, function, fake, vmap)
        _define(name, of)
    return getattr(torch.ops.rfops, name).default


def unregister(name: str) -> None:
    """Take `rfops::<name>` out of torch, where it is there."""
    of = _REGISTERED.pop(name, None)
    if of is not None:
        if isinstance(torch.ops.rfops, TorchOps):
            torch.ops.rfops.give_way()  # torch forgets what its own namespace has
        _keep_handles(name)
        of.library._destroy()


def _keep_handles(name: str) -> None:
    """Keep torch's entry of a name, which callers and compiled graphs have handles to. torch frees
    it with its last kernel, and a handle would call the op that gets its memory; so a kernel stays
    under a key that no tensor of an op has."""
    if name not in _kept:
        _kept.add(name)
        _KEPT.impl(name, _raise, "PrivateUse3")


def _define(name: str, of: _Registered) -> None:
    library = of.library
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    library.define(of.schema, tags=tags)
    for key in ("CPU", "CUDA"):
        library.impl(name, functools.partial(_call_plain, of), key)
    torch.library.register_fake(f"rfops::{name}", lambda *args: of.fake(*args), lib=library)
    if of.vmap is not None:
        vmap = functools.partial(_call_vmap, of)
        torch.library.register_vmap(f"rfops::{name}", vmap, lib=library)
    op = getattr(torch.ops.rfops, name).default
    library.impl(name, functools.partial(_call_recorded, op), "Autograd", with_keyset=True)


def _call_vmap(of: _Registered, *args: Any) -> Any:
    assert of.vmap is not None
    return of.vmap(*args)


def _call_plain(of: _Registered, *args: Any) -> Any:
    """The function on plain tensors. A subclass that left the op to torch still comes as such here,
    and would go to the op again."""
    with torch._C.DisableTorchFunctionSubclass():
        args = tuple(map(_plain, args))
    return of.function(*args)


def _plain(arg: Any) -> Any:
    if isinstance(arg, (tuple, list)):
        return tuple(map(_plain, arg))
    if isinstance(arg, torch.Tensor) and type(arg) not in _PLAIN:
        return arg.as_subclass(torch.Tensor)
    return arg


def must_dispatch(*tensors: torch.Tensor | None) -> bool:
    """Whether torch has to see this call as an op: it is tracing, a mode or a transform is active,
    or an argument is a subclass (FakeTensor, DTensor, ...)."""
    if _TRANSPARENT:
        return False
    if torch.compiler.is_compiling() or modes.are_active() or modes.wants_gradient(tensors):
        return True
    return any(type(tensor) not in _PLAIN for tensor in tensors)


@contextlib.contextmanager
def transparent() -> Iterator[None]:
    """In this process, until it is left, no op is shown to torch: an active mode sees the memory
    that ops allocate and what torch computes for them, in the ops' place. For plain tensors without
    gradients; each call makes its plan anew."""
    _TRANSPARENT.append(None)
    try:
        yield
    finally:
        _TRANSPARENT.pop()


# ---------------------------------------------------------------- gradients


def _call_recorded(op: Any, keyset: Any, *args: Any) -> Any:
    """The op for autograd: the result with a history where a gradient is wanted."""
    if not modes.wants_gradient(args):
        return _below_autograd(op, keyset, args)
    has_tangents = any(map(modes.has_tangent, args))
    if has_tangents or op._schema.is_mutable or torch._C._are_functorch_transforms_active():
        raise NotImplementedError(_refusal(op, args))
    record: Callable[..., Any] = _NoDerivative.apply
    return record(op, keyset, *args)


def _below_autograd(op: Any, keyset: Any, args: tuple[Any, ...]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def _refusal(op: Any, args: tuple[Any, ...]) -> str:
    pairs = zip(op._schema.arguments, args, strict=False)
    names = [parameter.name for parameter, arg in pairs if modes.wants_gradient((arg,))]
    return (
        f"{op._opname.removesuffix('_out')}: there is no derivative, and a gradient is wanted of "
        f"{', '.join(names)}; call it under torch.no_grad(), or .detach() these"
    )


class _NoDerivative(torch.autograd.Function):
    """An op in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, op: Any, keyset: Any, *args: Any) -> Any:
        with torch.enable_grad():
            ctx.refusal = _refusal(op, args)
        ctx.kinds = [isinstance(arg, torch.Tensor) and (arg.shape, arg.dtype) for arg in args]
        return _below_autograd(op, keyset, args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        first_grad = next(grad for grad in grads if grad is not None)
        differentiable = zip(ctx.kinds, ctx.needs_input_grad[2:], strict=True)
        grads_ = [
            _no_gradient(ctx.refusal, first_grad, *kind) if need else None
            for kind, need in differentiable
        ]
        return None, None, *grads_


def _raise(refusal: str, *_tensors: Any) -> NoReturn:
    raise NotImplementedError(refusal)


# An op of its own, so that tracing a backward does not raise, and running it does.
_no_gradient = register(
    "no_gradient(str refusal, Tensor like, SymInt[] shape, ScalarType dtype) -> Tensor",
    _raise,
    lambda _refusal, like, shape, dtype: like.new_empty(shape, dtype=dtype),
)
