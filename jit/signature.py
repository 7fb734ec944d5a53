"""A kernel's signature in Python: its scalars, and the check against the code object."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from .errors import BindError


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
class Parameter:
    """One parameter of the Python signature."""

    name: str
    scalar: Scalar | None  # None: a tensor

    @property
    def layout(self) -> Scalar:
        return self.scalar or _POINTER

    @property
    def expected(self) -> str:
        """What a launch takes for it."""
        if self.scalar is None:
            return "a tensor or None"
        code, bits = self.scalar.code, 8 * self.scalar.size
        if code in "fd":
            return f"a number that a float of {bits} bits holds"
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if code.islower() else (0, 2**bits)
        return f"an int from {low} to {high - 1}"

    def __str__(self) -> str:
        return f"{self.name}: {f'{self.layout.size}-byte value' if self.scalar else 'tensor'}"


def read_signature(function: Callable[..., None]) -> list[Parameter]:
    """The kernel's arguments as the Python signature has them. Raises BindError."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for name in inspect.signature(function).parameters:
        hint = hints.get(name)
        scalars = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Scalar)]
        optional = torch.Tensor in typing.get_args(hint)
        if not scalars and hint is not torch.Tensor and not optional:
            raise BindError(
                f"{function.__qualname__}: parameter {name} must be annotated torch.Tensor or a "
                f"scalar of rfops.jit (i32, f32, ...), got {hint!r}"
            )
        found.append(Parameter(name, scalars[0] if scalars else None))
    return found


def check_layout(kernel: str, parameters: Sequence[Parameter], args: Sequence[Any]) -> None:
    """Signature against the code object's own list of explicit arguments. Raises BindError."""
    for index in range(max(len(parameters), len(args))):
        ours = str(parameters[index]) if index < len(parameters) else "nothing"
        if index >= len(args):
            raise BindError(f"{kernel}: argument {index}: signature has {ours}, kernel has no more")
        arg = args[index]
        theirs = f"{arg['size']}-byte {arg['kind']} at offset {arg['offset']}"
        drift = index >= len(parameters)
        if not drift:
            wanted = "by_value" if parameters[index].scalar else "global_buffer"
            drift = (arg["kind"], arg["size"]) != (wanted, parameters[index].layout.size)
        if drift:
            raise BindError(
                f"{kernel}: argument {index}: signature has {ours}, kernel has {theirs}"
            )


def struct_format(args: Sequence[Any], parameters: Sequence[Parameter]) -> str:
    """A struct format with the kernel's own offsets, padding written out."""
    text, at = "<", 0
    for arg, parameter in zip(args, parameters, strict=True):
        text += f"{arg['offset'] - at}x{parameter.layout.code}"
        at = arg["offset"] + arg["size"]
    return text


def kernel_layout(
    args: Sequence[Any], parameters: Sequence[Parameter]
) -> tuple[tuple[str, int], ...]:
    """(code, offset) of each argument for the native launcher; a tensor's code is T."""
    return tuple(
        (parameter.layout.code if parameter.scalar else "T", arg["offset"])
        for arg, parameter in zip(args, parameters, strict=True)
    )
