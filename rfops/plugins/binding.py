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

Words = dict[str, Any]  # the arguments of a call by name
Key = tuple[Any, ...]
Form = tuple[Any, ...]  # the number of arguments by position, then the other's names
Values = tuple[Any, ...]
Neutral = Mapping[str, Collection[Any]]
_PLAIN = frozenset({int, float, bool, str, torch.dtype, torch.device})
_NO_PARAMETERS: Mapping[str, inspect.Parameter] = {}


class _Anything(Collection[Any]):
    """Every value, of an argument that changes no result."""

    def __contains__(self, _value: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


ANY = _Anything()


@dataclass(frozen=True)
class Tensorlike:
    """What a traced call knows of a tensor, with the members that a route looks at."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    is_shuffled: Any = None

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return self.dtype.itemsize


@dataclass(eq=False)
class Plan:
    """How the calls of one form bind.

    names : the argument that each value is of.
    given : what the drop-in gets, by the place of its value.
    defaults : the original's, of arguments that are not passed, where the drop-in's differ.
    checked : arguments that the drop-in does not get, with the values that change nothing.
    is_direct : the drop-in can be called as the original is.
    why : what does not bind, else "".
    tensors : places of the tensors that the key has by shape and dtype, by number of elements and
        dtype, by dtype, and by the order of their elements.
    """

    names: tuple[str, ...]
    given: Mapping[str, int] = field(default_factory=dict)
    defaults: Words = field(default_factory=dict)
    checked: tuple[tuple[int, Collection[Any]], ...] = ()
    is_direct: bool = False
    why: str = ""
    tensors: tuple[tuple[int, ...], ...] = ((), (), (), ())
    keys: dict[tuple[type, ...], TypedKey] = field(default_factory=dict)

    def words(self, values: Values) -> Words:
        """What the drop-in gets."""
        words = {name: values[place] for name, place in self.given.items()}
        return {**self.defaults, **words} if self.defaults else words

    def key(self, values: Values) -> Key:
        types = tuple(map(type, values))
        typed = self.keys.get(types)
        if typed is None:
            typed = self.keys[types] = TypedKey(self, types)
        return typed.key(values)

    def fine_key(self, values: Values) -> Key:
        """All that a check may look at without reading a tensor's elements."""
        return self, "fine", *(_fine(value) for value in values)

    def unfit(self, values: Values) -> str:
        """The argument whose value has no counterpart, else ""."""
        for place, neutral in self.checked:
            value = values[place]
            if not _is_neutral(value, neutral):
                wanted = " or ".join(map(repr, neutral))
                return f"{self.names[place]} must be {wanted}, got {show(value)}"
        return ""


def _is_neutral(value: Any, neutral: Collection[Any]) -> bool:
    if isinstance(value, torch.Tensor | Tensorlike):
        return neutral is ANY
    return value in neutral


def show(value: Any) -> str:
    if isinstance(value, torch.Tensor | Tensorlike):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return repr(value)[:60]


def _fact(value: Any) -> Any:
    """A hashable stand-in that keeps nothing alive: numbers of enums, facts of tensors, types."""
    if value is None or type(value) in _PLAIN:
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
        tensors = {place for place, kind in enumerate(types) if issubclass(kind, torch.Tensor)}
        plain = [place for place, kind in enumerate(types) if kind in _PLAIN]
        self.plain = operator.itemgetter(*plain) if plain else lambda _values: ()
        self.shaped, self.sized, self.dtyped, self.marked = (
            tuple(place for place in some if place in tensors) for some in plan.tensors
        )
        known = {*tensors, *plain, *(p for p, kind in enumerate(types) if kind is type(None))}
        self.odd = tuple(place for place in range(len(types)) if place not in known)

    def key(self, values: Values) -> Key:
        key = [self, self.plain(values)]
        for place in self.shaped:
            tensor = values[place]
            key += (tensor.shape, tensor.dtype)
        for place in self.sized:
            tensor = values[place]
            key += (tensor.numel(), tensor.dtype)
        for place in self.dtyped:
            key.append(values[place].dtype)
        for place in self.marked:
            key.append(layouts.of(values[place]))
        for place in self.odd:
            key.append(_fact(values[place]))
        return tuple(key)


# ---------------------------------------------------------------- plans


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Of a signature that names its parameters, else none: aiter's compiled functions have
    *args."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return _NO_PARAMETERS
    is_open = any(p.kind is p.VAR_POSITIONAL for p in found.values())
    return _NO_PARAMETERS if is_open else found


def make_plan(
    form: Form,
    original: Callable[..., Any],
    own: Callable[..., Any],
    neutral: Neutral,
    tensors: Sequence[Collection[str]],
) -> Plan:
    """The form's plan: by the original's signature, or by the drop-in's where it says nothing."""
    ours = parameters(own)
    theirs = parameters(original) or ours
    by_position = [p.name for p in theirs.values() if p.kind < p.VAR_POSITIONAL]
    count, by_name = form[0], form[1:]
    names = (*by_position[:count], *by_name)
    plan = Plan(names, why=_unbound(names, count, theirs))
    if plan.why:
        return plan
    takes = [name for name, p in ours.items() if p.kind is not p.VAR_KEYWORD]
    place_of = {name: place for place, name in enumerate(names)}
    given = {n: p for n, p in place_of.items() if n in takes and n not in neutral}
    left = {n: p for n, p in place_of.items() if n not in given}
    checked = tuple((place, _neutral_of(name, neutral, theirs)) for name, place in left.items())
    defaults = {
        name: p.default
        for name, p in theirs.items()
        if name in takes
        and name not in place_of
        and name not in neutral
        and p.default is not p.empty
        and _differs(p.default, ours[name].default)
    }
    is_direct = not left and not defaults and list(names[:count]) == takes[:count]
    places = tuple(tuple(place_of[n] for n in some if n in place_of) for some in tensors)
    return Plan(names, given, defaults, checked, is_direct, "", places)


def _unbound(names: tuple[str, ...], count: int, theirs: Mapping[str, inspect.Parameter]) -> str:
    """What the original itself would not take."""
    if len([n for n, p in theirs.items() if p.kind < p.VAR_POSITIONAL]) < count:
        return f"{count} arguments by position"
    if len(set(names)) < len(names):
        return "an argument that is passed twice"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in theirs.values())
    strange = [] if takes_any else [name for name in names if name not in theirs]
    missing = [
        name
        for name, p in theirs.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and name not in names
    ]
    if strange or missing:
        return f"arguments not known: {', '.join([*strange, *(f'no {n}' for n in missing)])}"
    return ""


def _neutral_of(
    name: str, neutral: Neutral, theirs: Mapping[str, inspect.Parameter]
) -> Collection[Any]:
    if name in neutral:
        return neutral[name]
    default = theirs[name].default if name in theirs else None
    return (None,) if default in (None, inspect.Parameter.empty) else (default, None)


def _differs(default: Any, own: Any) -> bool:
    try:
        return bool(default is not own and default != own)
    except Exception:  # an object of theirs that does not compare
        return True
