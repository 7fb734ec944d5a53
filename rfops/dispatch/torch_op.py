"""An op as `torch.ops.rfops.<op>` and `<op>_out`: schema, fakes, and the way back to its call."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rfops.dispatch.registration import register, unregister

from .declare import TensorArg, ValueArg
from .kernel import Call
from .view import View

if TYPE_CHECKING:
    from .op import Op

_cache_tag = ""
_results: dict[str, str] = {}  # of each op that is not rfops' own
_SCHEMA = {"size": "SymInt", "dtype": "ScalarType", "word": "str"}


def _schema(op: Op) -> str:
    arguments = []
    for i, arg in enumerate(op.declaration.inputs):
        if isinstance(arg, ValueArg):
            arguments.append(f"{_SCHEMA.get(arg.kind, arg.kind)} {arg.name}")
        else:
            mark = f"({chr(ord('b') + i)}!)" if arg.written else ""
            kind = "[]" if arg.times else "?" if arg.optional else ""
            arguments.append(f"Tensor{mark}{kind} {arg.name}")
    return ", ".join([*arguments, *(["str config"] if op.takes_config else [])])


def register_op(op: Op) -> tuple[Any, Any]:
    """`torch.ops.rfops.<op>` and, where results can be passed, `<op>_out`."""
    d, inputs = op.declaration, _schema(op)
    kinds = ", ".join("Tensor" for _ in d.results)
    returns = kinds if len(d.results) == 1 else f"({kinds})"

    def plain(args: Sequence[Any]) -> list[Any]:
        """Payloads may come as bytes: torch's tools do not know float8 everywhere."""
        return [_as_declared(a, v) for a, v in zip(d.inputs, args, strict=False)]

    def functional(*args: Any) -> Any:
        config = [op.config_of(args[-1])] if op.takes_config else []
        return op.call(*plain(args), *([None] * op.num_passed), *config)

    def mutating(*args: Any) -> None:
        config = [op.config_of(args[op.num_inputs])] if op.takes_config else []
        op.call(*plain(args), *args[-op.num_passed :], *config)

    def fake(*args: Any) -> Any:
        return fake_results(op, args)

    registered = register(f"{op.name}({inputs}) -> {returns}", functional, fake, op.vmap)
    if not op.num_passed:
        unregister(f"{op.name}_out")
        return registered, None
    outs = ", ".join(f"Tensor({chr(ord('a') + 25 - i)}!) {a.name}" for i, a in enumerate(d.passed))
    schema = f"{op.name}_out({inputs}, {outs.replace('(z!)', '(a!)', 1)}) -> ()"
    return registered, register(schema, mutating, lambda *_args: None)


def tell_caches(name: str, results: str) -> None:
    """Have torch.compile's caches on disk know what an op returns: by its name alone, code that was
    made for results of float32 would be taken for those of float16."""
    global _cache_tag
    _results[name] = results
    digest = hashlib.sha256(repr(sorted(_results.items())).encode()).hexdigest()
    config, earlier = torch.compiler.config, _cache_tag
    _cache_tag = f"rfops-{digest[:16]}"
    config.cache_key_tag = config.cache_key_tag.replace(earlier, "") + _cache_tag


def forget_compiled() -> None:
    """Have torch.compile compile again, where it has, as code in memory knows results likewise."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _as_declared(arg: TensorArg | ValueArg, value: Any) -> Any:
    if not isinstance(arg, TensorArg) or value is None:
        return value
    if arg.times:
        return tuple(_as_declared(replace(arg, times=None), element) for element in value)
    dtypes = arg.dtypes
    is_raw = value.dtype == torch.uint8 and bool(dtypes) and torch.uint8 not in dtypes
    return value.view(dtypes[0]) if is_raw and dtypes[0].itemsize == 1 else value


def fake_results(op: Op, args: Sequence[Any]) -> Any:
    """Results of the right kind from arguments without data; sizes may be symbols."""
    d = op.declaration
    sizes: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for arg, value in zip(d.inputs, args, strict=False):
        if isinstance(arg, ValueArg):
            values[arg.name] = value
            if arg.size:
                sizes.setdefault(arg.size, value)
        elif value is not None and not arg.ignored:
            if arg.times:
                sizes.setdefault(arg.times.size, len(value))
                value = value[0]
            for extent, size in zip(arg.extents, arg.sizes(value.shape), strict=True):
                if extent.size and extent.factor > 0:
                    sizes.setdefault(extent.size, size * extent.factor)
    tensors_or_values = [v[0] if isinstance(v, (tuple, list)) else v for v in args]
    first_tensor = next(value for value in tensors_or_values if isinstance(value, torch.Tensor))
    # Of shapes alone: to look at a symbol would make it a number.
    shapes = {
        arg.name: View(tuple(value.shape), (), value.dtype, value.device)
        for arg, value in zip(d.inputs, tensors_or_values, strict=False)
        if isinstance(value, torch.Tensor)
    }
    c = Call("", 0, first_tensor.device, sizes, values, shapes)
    results = [first_tensor.new_empty(shape, dtype=dtype) for shape, dtype in op.result_specs(c)]
    return results[0] if len(results) == 1 else tuple(results) or None
