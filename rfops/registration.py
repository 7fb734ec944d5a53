"""Ops as `torch.ops.rfops.<op>`: a schema, the function and its fake, for torch.compile and export.

Eager calls do not go through here: a public function asks `must_dispatch` and calls its registered
op only where torch has to see one, since the dispatcher costs more than a warm launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .jit import modes

_LIBRARY = torch.library.Library("rfops", "FRAGMENT")
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def register(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define `rfops::<schema>` for CPU and GPU tensors and return `torch.ops.rfops.<op>.default`.

    `schema` is torch's, every argument that the op writes marked, as `Tensor(a!) out`. `function`
    neither returns nor keeps an input; `fake` returns empty tensors of the result's kind.
    """
    name = schema[: schema.index("(")].strip()
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, functools.partial(_call_plain, function), key)
    torch.library.register_fake(f"rfops::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.rfops, name).default


def _call_plain(function: Callable[..., Any], *args: Any) -> Any:
    """The function on plain tensors. A subclass that left the op to torch still comes as such here,
    and would go to the op again."""
    if any(isinstance(arg, torch.Tensor) and type(arg) not in _PLAIN for arg in args):
        with torch._C.DisableTorchFunctionSubclass():
            args = tuple(
                arg.as_subclass(torch.Tensor) if isinstance(arg, torch.Tensor) else arg
                for arg in args
            )
    return function(*args)


def must_dispatch(*tensors: torch.Tensor | None) -> bool:
    """Whether torch has to see this call as an op: it is tracing, a mode or a transform is active,
    or an argument is a subclass (FakeTensor, DTensor, ...)."""
    if torch.compiler.is_compiling() or modes.are_active():
        return True
    return any(type(tensor) not in _PLAIN for tensor in tensors)
