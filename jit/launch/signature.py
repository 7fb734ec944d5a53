"""A kernel's signature in Python: its scalars, and the check against the code object."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch

from ..errors import BindError

if TYPE_CHECKING:
    from ..cache.code_object import Argument


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value: its struct code and size."""

    code: str
    size: int


i8 = Annotated[int, Scalar("b", 1)]
u8 = Annotated[int, Scalar("B", 1)]
i16 = Annotated[int, Scalar("h", 2)]
u16 = Annotated[int, Scalar("H", 2)]
i32 = Annotated[int, Scalar("i", 4)]
u32 = Annotated[int, Scalar("I", 4)]
i64 = Annotated[int, Scalar("q", 8)]
u64 = Annotated[int, Scalar("Q", 8)]
f32 = Annotated[float, Scalar("f", 4)]
f64 = Annotated[float, Scalar("d", 8)]

_POINTER = Scalar("Q", 8)


@dataclass(frozen=True)
class Pointers:
    """A kernel argument that is a table of so many tensors' addresses, by value."""

    count: int


def tensors(count: int) -> Any:
    """The annotation of a table of `count` tensors, a struct with an array of pointers in the
    kernel. A launch takes a tuple or list of as many, None for a null pointer."""
    return Annotated[Sequence[torch.Tensor | None], Pointers(count)]


@dataclass(frozen=True)
class Parameter:
    """One parameter of the Python signature."""

    name: str
    scalar: Scalar | None  # None: a tensor, or a table of them
    count: int = 0  # of tensors in a table
    optional: bool = False  # a tensor annotated `torch.Tensor | None`: may be a null pointer

    @property
    def layout(self) -> Scalar:
        """How the value is packed into the kernel arguments: a scalar, a table of pointers or one
        pointer."""
        if self.count:
            return Scalar(f"{self.count}Q", 8 * self.count)
        return self.scalar or _POINTER

    @property
    def is_by_value(self) -> bool:
        """Whether the kernel takes the value itself: a scalar or a table of pointers."""
        return self.scalar is not None or self.count > 0

    @property
    def expected(self) -> str:
        """What a launch takes for it."""
        if self.count:
            return f"{self.count} tensors"
        if self.scalar is None:
            return "a tensor or None"
        code, bits = self.scalar.code, 8 * self.scalar.size
        if code in "fd":
            return f"a number that a float of {bits} bits holds"
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if code.islower() else (0, 2**bits)
        return f"an int from {low} to {high - 1}"

    def __str__(self) -> str:
        if self.count:
            return f"{self.name}: table of {self.count} tensors"
        return f"{self.name}: {f'{self.layout.size}-byte value' if self.scalar else 'tensor'}"


def read_signature(function: Callable[..., None]) -> list[Parameter]:
    """The kernel's arguments as the Python signature has them. Raises BindError."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters_ = []
    for name in inspect.signature(function).parameters:
        hint = hints.get(name)
        marks = getattr(hint, "__metadata__", ())
        scalars = [mark for mark in marks if isinstance(mark, Scalar)]
        tables = [mark for mark in marks if isinstance(mark, Pointers)]
        optional = torch.Tensor in typing.get_args(hint)
        if not scalars and not tables and hint is not torch.Tensor and not optional:
            raise BindError(
                f"{function.__qualname__}: parameter {name} must be annotated torch.Tensor or a "
                f"scalar of rfops.jit (i32, f32, ...), got {hint!r}"
            )
        count = tables[0].count if tables else 0
        scalar = scalars[0] if scalars else None
        parameters_.append(Parameter(sys.intern(name), scalar, count, optional))
    return parameters_


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FLOATS = frozenset({"f32", "f64", "float", "double"})
_INTS = frozenset("i8 u8 i16 u16 i32 u32 i64 u64 int unsigned long size_t bool".split()) | {
    f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def check_scalars(kernel: str, parameters: Sequence[Parameter], source: str) -> None:
    """Numbers of the signature against the types in the kernel's source, which its code object does
    not have: a float's bits in the place of an int of that size are another number.

    A parameter whose type the source gives by another name is not looked at. Raises BindError.
    """
    types = _source_types(kernel, source)
    if len(types) != len(parameters):
        return
    for index, (parameter, source_words) in enumerate(zip(parameters, types, strict=True)):
        if parameter.scalar is None or not source_words & (_FLOATS | _INTS):
            continue
        is_float = parameter.scalar.code in "fd"
        if is_float != bool(source_words & _FLOATS):
            source_type = " ".join(sorted(source_words & (_FLOATS | _INTS)))
            annotation, kernel_kind = ("float", "int") if is_float else ("int", "float")
            raise BindError(
                f"{kernel}: argument {index}, {parameter.name}, must be annotated as a scalar of "
                f"kind {kernel_kind}, as in the kernel ({source_type}), got {annotation}. Annotate "
                "it with that scalar of rfops.jit."
            )


def _source_types(kernel: str, source: str) -> list[set[str]]:
    """The words of each parameter's type but for pointers; none where the source has no such
    kernel, or several."""
    text = _COMMENT.sub(" ", source)
    matches = list(re.finditer(rf"__global__\b[^;{{}}]*?\b{re.escape(kernel)}\s*\(", text))
    if len(matches) != 1:
        return []
    end = text.find(")", matches[0].end())
    texts_ = [text_ for text_ in text[matches[0].end() : end].split(",") if text_.strip()]
    return [set() if "*" in text_ else set(re.findall(r"\w+", text_)[:-1]) for text_ in texts_]


def find_tensors(
    kernel: str,
    parameters: Sequence[Parameter],
    arguments: Sequence[str],
    sources: Mapping[str, str | None],
) -> tuple[int | None, ...]:
    """For each tensor parameter in order the position in `arguments` of the one that it takes; None
    for a null pointer. Raises BindError."""
    tensors = [p for p in parameters if p.scalar is None]
    unknown = sources.keys() - {p.name for p in tensors}
    if unknown:
        tensor_names = ", ".join(p.name for p in tensors)
        raise BindError(
            f"{kernel}: sources must name tensor parameters, {tensor_names}, "
            f"got {', '.join(unknown)}"
        )
    indices: list[int | None] = []
    for parameter in tensors:
        source = sources.get(parameter.name, parameter.name)
        if source in arguments:
            indices.append(arguments.index(source))
        elif source is None or (parameter.optional and parameter.name not in sources):
            indices.append(None)
        else:
            raise BindError(
                f"{kernel}: parameter {parameter.name} must have a source among the launch's "
                f"arguments, {' '.join(arguments)}, got {source}. Add it to sources, or annotate "
                "the parameter `torch.Tensor | None` for a null pointer."
            )
    return tuple(indices)


def check_layout(kernel: str, parameters: Sequence[Parameter], args: Sequence[Argument]) -> None:
    """Signature against the code object's own list of explicit arguments. Raises BindError."""
    for index in range(max(len(parameters), len(args))):
        annotation = str(parameters[index]) if index < len(parameters) else "nothing"
        if index >= len(args):
            raise BindError(
                f"{kernel}: argument {index}: signature has {annotation}, kernel has no more"
            )
        arg = args[index]
        kernel_arg = f"{arg.size}-byte {arg.kind} at offset {arg.offset}"
        drift = index >= len(parameters)
        if not drift:
            expected_kind = "by_value" if parameters[index].is_by_value else "global_buffer"
            drift = (arg.kind, arg.size) != (expected_kind, parameters[index].layout.size)
        if drift:
            raise BindError(
                f"{kernel}: argument {index}: signature has {annotation}, kernel has {kernel_arg}"
            )


def struct_format(args: Sequence[Argument], parameters: Sequence[Parameter]) -> str:
    """A struct format with the kernel's own offsets, padding written out."""
    text, offset = "<", 0
    for arg, parameter in zip(args, parameters, strict=True):
        text += f"{arg.offset - offset}x{parameter.layout.code}"
        offset = arg.offset + arg.size
    return text


def kernel_layout(
    args: Sequence[Argument], parameters: Sequence[Parameter]
) -> tuple[tuple[str, int, int], ...]:
    """(code, offset, count) of each argument for the native launcher; a tensor's code is T, that of
    a table of `count` tensors P."""
    return tuple(
        (p.layout.code if p.scalar else "P" if p.count else "T", arg.offset, p.count)
        for arg, p in zip(args, parameters, strict=True)
    )
