"""Ops as `torch.ops.rfops.<op>`: a schema, the function and its fake, for torch.compile and export.

Eager calls do not go through here: a public function asks `must_dispatch` and calls its registered
op only where torch has to see one, since the dispatcher costs more than a warm launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
        _LIBRARY.impl(name, function, key)
    torch.library.register_fake(f"rfops::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.rfops, name).default


def must_dispatch(*tensors: torch.Tensor | None) -> bool:
    """Whether torch has to see this call as an op: it is tracing, a mode or a transform is active,
    or an argument is a subclass (FakeTensor, DTensor, ...)."""
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return True
    for tensor in tensors:  # a loop: any() over a generator costs 0.8 us more
        if type(tensor) not in _PLAIN:
            return True
    return False
