"""How a call of another library's function becomes arguments by name.

A call has a form: how many arguments come by position, and the names of the others. For each form
the signatures are looked at once, in a plan, and for each tuple of types of its values once more. A
call then costs two look-ups and its key. The key holds what may change the answer and no tensor:
types, dtypes and shapes of the tensors that the op's route is asked with, and every value that is
not a tensor.
"""

from __future__ import annotations

import enum
import inspect
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import layouts

Arguments = dict[str, Any]  # the arguments of a call by name
Key = tuple[Any, ...]
Form = tuple[Any, ...]  # the number of arguments by position, then the other's names
Values = tuple[Any, ...]
Neutral = Mapping[str, Collection[Any]]
_PLAIN_TYPES = frozenset({int, float, bool, str, torch.dtype, torch.device})
_NO_PARAMETERS: Mapping[str, inspect.Parameter] = {}


class _AnyValue(Collection[Any]):
    """Every value, of an argument that changes no result."""

    def __contains__(self, _value: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


ANY_VALUE = _AnyValue()


@dataclass(frozen=True)
class Tensorlike:
    """What a traced call knows of a tensor, with the members that a route looks at."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    is_shuffled: Any = None

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize


@dataclass(eq=False)
class Plan:
    """How the calls of one form bind.

    names : the argument that each value is of.
    value_indices : the arguments that the drop-in gets, each with the index of its value.
    defaults : the original's, of arguments that are not passed, where the drop-in's differ.
    checked : arguments that the drop-in does not get, with the values that change nothing.
    is_direct : the drop-in can be called as the original is.
    reason : why the arguments do not bind, otherwise "".
    tensors : indices of the tensors that the key has by shape and dtype, by number of elements and
        dtype, by dtype, and by the order of their elements.
    """

    names: tuple[str, ...]
    value_indices: Mapping[str, int] = field(default_factory=dict)
    defaults: Arguments = field(default_factory=dict)
    checked: tuple[tuple[int, Collection[Any]], ...] = ()
    is_direct: bool = False
    reason: str = ""
    tensors: tuple[tuple[int, ...], ...] = ((), (), (), ())
    keys: dict[tuple[type, ...], TypedKey] = field(default_factory=dict)

    def words(self, values: Values) -> Arguments:
        """Return the drop-in's arguments by name: from `values`, and the original's defaults."""
        arguments = {name: values[index] for name, index in self.value_indices.items()}
        return {**self.defaults, **arguments} if self.defaults else arguments

    def key(self, values: Values) -> Key:
        """Return the key of a call in the wrapper's cache: the argument types and what the plan
        looks at."""
        types = tuple(map(type, values))
        typed = self.keys.get(types)
        if typed is None:
            typed = self.keys[types] = TypedKey(self, types)
        return typed.key(values)

    def fine_key(self, values: Values) -> Key:
        """Return a key of all that a check may look at without reading a tensor's elements."""
        return self, "fine", *(_fine(value) for value in values)

    def unfit(self, values: Values) -> str:
        """Return which argument has a value that the drop-in has no counterpart for, with the
        values that it may have, or ""."""
        for index, neutral in self.checked:
            value = values[index]
            if not _is_neutral(value, neutral):
                expected = " or ".join(map(repr, neutral))
                return f"{self.names[index]} must be {expected}, got {show(value)}"
        return ""


def _is_neutral(value: Any, neutral: Collection[Any]) -> bool:
    """Return whether `value` is among the neutral ones; a tensor is neutral only for ANY_VALUE."""
    if isinstance(value, torch.Tensor | Tensorlike):
        return neutral is ANY_VALUE
    return value in neutral


def show(value: Any) -> str:
    """Return a value for a message: shape and dtype of a tensor, else at most 60 characters."""
    if isinstance(value, torch.Tensor | Tensorlike):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return repr(value)[:60]


def _fact(value: Any) -> Any:
    """A hashable stand-in that keeps nothing alive: numbers of enums, facts of tensors, types."""
    if value is None or type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, torch.Tensor | Tensorlike):
        return value.dtype, value.shape
    if isinstance(value, tuple | list):
        return type(value), *map(_fact, value)
    if isinstance(value, enum.Enum):
        return type(value), value.name
    # Enums of pybind11, and numbers of other libraries.
    return (type(value), int(value)) if hasattr(type(value), "__index__") else type(value)


def _fine(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        layout = (value.stride(), value.data_ptr() % 16) if value.layout is torch.strided else ()
        marks = value.is_neg(), value.is_conj(), value.requires_grad, layouts.mark(value)
        return value.dtype, value.shape, value.device, *layout, *marks
    return type(value), _fact(value)


class TypedKey:
    """Makes the keys of one form whose values have these types."""

    def __init__(self, plan: Plan, types: tuple[type, ...]) -> None:
        tensors = {index for index, kind in enumerate(types) if issubclass(kind, torch.Tensor)}
        plain_indices = [index for index, kind in enumerate(types) if kind in _PLAIN_TYPES]
        self.plain = operator.itemgetter(*plain_indices) if plain_indices else lambda _values: ()
        self.shaped, self.sized, self.dtyped, self.marked = (
            tuple(index for index in group if index in tensors) for group in plan.tensors
        )
        covered = {
            *tensors,
            *plain_indices,
            *(p for p, kind in enumerate(types) if kind is type(None)),
        }
        self.other_indices = tuple(index for index in range(len(types)) if index not in covered)

    def key(self, values: Values) -> Key:
        """Return the key of a call with these types: values of plain arguments, shapes and dtypes
        of tensors."""
        key = [self, self.plain(values)]
        for index in self.shaped:
            tensor = values[index]
            key += (tensor.shape, tensor.dtype)
        for index in self.sized:
            tensor = values[index]
            key += (tensor.numel(), tensor.dtype)
        for index in self.dtyped:
            key.append(values[index].dtype)
        for index in self.marked:
            key.append(layouts.find_layout(values[index]))
        for index in self.other_indices:
            key.append(_fact(values[index]))
        return tuple(key)


# ---------------------------------------------------------------- plans


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `function`; none where it has no signature or takes *args, as
    aiter's compiled functions do."""
    try:
        parameters_ = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return _NO_PARAMETERS
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters_.values())
    return _NO_PARAMETERS if is_open else parameters_


def make_plan(
    form: Form,
    original: Callable[..., Any],
    own_function: Callable[..., Any],
    neutral: Neutral,
    tensors: Sequence[Collection[str]],
) -> Plan:
    """Return the plan of calls of `form`, by the original's signature, or by the drop-in's where
    the original has none."""
    own_parameters = parameters(own_function)
    original_parameters = parameters(original) or own_parameters
    by_position = [p.name for p in original_parameters.values() if p.kind < p.VAR_POSITIONAL]
    count, by_name = form[0], form[1:]
    names = (*by_position[:count], *by_name)
    plan = Plan(names, reason=_unbound(names, count, original_parameters))
    if plan.reason:
        return plan
    accepted = [name for name, p in own_parameters.items() if p.kind is not p.VAR_KEYWORD]
    index_of = {name: index for index, name in enumerate(names)}
    passed = {n: p for n, p in index_of.items() if n in accepted and n not in neutral}
    unused = {n: p for n, p in index_of.items() if n not in passed}
    neutral_checks = tuple(
        (index, _neutral_of(name, neutral, original_parameters)) for name, index in unused.items()
    )
    defaults = {
        name: p.default
        for name, p in original_parameters.items()
        if name in accepted
        and name not in index_of
        and name not in neutral
        and p.default is not p.empty
        and _differs(p.default, own_parameters[name].default)
    }
    is_direct = not unused and not defaults and list(names[:count]) == accepted[:count]
    tensor_indices = tuple(tuple(index_of[n] for n in group if n in index_of) for group in tensors)
    return Plan(names, passed, defaults, neutral_checks, is_direct, "", tensor_indices)


def _unbound(
    names: tuple[str, ...], count: int, parameters_: Mapping[str, inspect.Parameter]
) -> str:
    """Return why the original itself would refuse these arguments, or ""."""
    if len([n for n, p in parameters_.items() if p.kind < p.VAR_POSITIONAL]) < count:
        return f"{count} arguments by position"
    if len(set(names)) < len(names):
        return "an argument that is passed twice"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters_.values())
    unexpected = [] if takes_any else [name for name in names if name not in parameters_]
    missing = [
        name
        for name, p in parameters_.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and name not in names
    ]
    if unexpected or missing:
        return f"arguments not known: {', '.join([*unexpected, *(f'no {n}' for n in missing)])}"
    return ""


def _neutral_of(
    name: str, neutral: Neutral, parameters_: Mapping[str, inspect.Parameter]
) -> Collection[Any]:
    if name in neutral:
        return neutral[name]
    default = parameters_[name].default if name in parameters_ else None
    return (None,) if default in (None, inspect.Parameter.empty) else (default, None)


def _differs(default: Any, own_default: Any) -> bool:
    try:
        return bool(default is not own_default and default != own_default)
    except Exception:  # an object of theirs that does not compare
        return True
