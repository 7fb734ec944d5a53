"""Argument checks of the ops: one matcher for tensors with named sizes.

    guard = Guard("gemm_mxfp8")
    guard.tensor("x", x, ("M", "K"), FP8)       # binds M and K
    guard.tensor("w", w, ("N", "K"), FP8)       # K must agree with x

Each refusal is a ValueError that names op, argument, what is expected, what came, and a way out.
A plan that is found (rfops.jit.Plans) repeats none of them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from rfops.jit.errors import show

from .view import View

# A buffer instruction adds a signed 32-bit byte offset to the tensor's start.
MAX_BYTES = 2**31
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # that GEMMs write


def describe(tensor: object) -> str:
    """What a message says of an argument that was refused."""
    if not isinstance(tensor, (torch.Tensor, View)):
        return f"{type(tensor).__name__} {show(tensor)}"[:80]
    if isinstance(tensor, torch.Tensor) and tensor.is_nested:  # of several shapes
        return f"a nested {_dtype_name(tensor.dtype)} tensor on {tensor.device}"
    return f"{list(tensor.shape)} {_dtype_name(tensor.dtype)} on {tensor.device}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def kind_of(tensor: torch.Tensor) -> str:
    """What is unusual of a tensor that kernels cannot read; empty for a dense one."""
    if tensor.is_nested:
        return "a nested"
    if tensor.layout is not torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.').lstrip('_')}"
    if tensor.is_quantized:
        return "a quantized"
    return "negated" if tensor.is_neg() else ""


def join_or(names: Sequence[str]) -> str:
    """a, b or c"""
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def check_int(op: str, name: str, value: Any, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
    """The value as an int: numpy's count as such; a bool, a float and a tensor do not."""
    number: int = value
    is_int = type(value) is int
    if isinstance(value, torch.SymInt) or (is_int and torch.compiler.is_compiling()):
        return number  # a symbolic size is not compared; the call that runs checks it
    if isinstance(value, (bool, torch.Tensor)) or not hasattr(value, "__index__"):
        number = minimum - 1
    elif not is_int:
        number = _as_index(value, minimum - 1)
    if minimum <= number <= maximum:
        return number
    highest = "2^31 - 1" if maximum == 2**31 - 1 else str(maximum)
    way_out = "pass the size as an int"
    return Guard(op).fail(name, f"an int from {minimum} to {highest}", show(value), way_out)


def _as_index(value: Any, fallback: int) -> int:
    try:
        return operator.index(value)
    except TypeError:  # numpy.bool, an array
        return fallback


def check_flag(op: str, name: str, value: Any) -> bool:
    """The value as a bool; also numpy's, and the ints 0 and 1."""
    if type(value) is bool:
        return value
    if type(value).__name__ in ("bool", "bool_") or (type(value) is int and value in (0, 1)):
        return bool(value)
    return Guard(op).fail(name, "a bool", show(value), "pass True or False")


def check_dtype(op: str, name: str, dtype: Any, allowed: Sequence[torch.dtype]) -> None:
    """One of `allowed`; what numpy and others call a dtype is none."""
    if not (isinstance(dtype, torch.dtype) and dtype in allowed):
        Guard(op).fail(
            name, join_or(list(map(_dtype_name, allowed))), show(dtype), "convert the result"
        )


def check_config_ints(config: Any, *names: str) -> None:
    """Each field of a config dataclass but `other` is an int."""
    for name, value in vars(config).items():
        if name not in names:
            check_int(type(config).__name__, name, value, minimum=0)


@dataclass
class Guard:
    """Matches one call's arguments; a size is bound by its first use and checked by later ones."""

    op: str
    sizes: dict[str, int] = field(default_factory=dict)
    device: torch.device | None = None
    max_bytes: int | None = MAX_BYTES  # of each tensor; None where a route takes any size
    _device_arg: str = ""  # the argument that bound the device

    def fail(self, name: str, expected: str, actual: str, way_out: str) -> NoReturn:
        """Raise the ValueError of an argument: `<op>: <name> must be <expected>, got <actual>;
        <way_out>`."""
        raise ValueError(f"{self.op}: {name} must be {expected}, got {actual}; {way_out}")

    def plain(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse what has no memory of its elements in strides, or memory of other values."""
        kind = kind_of(tensor)
        if kind == "negated":
            actual = f"{describe(tensor)} that is a lazy negation of its memory"
            self.fail(name, "without torch's negative bit", actual, "call .resolve_neg() on it")
        if kind:
            actual = f"{kind} tensor: {describe(tensor)}"
            self.fail(name, "a dense tensor", actual, "pass a dense torch.Tensor")

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        shape: Sequence[str],
        dtypes: Sequence[torch.dtype],
        way_out: str = "convert it first",
    ) -> None:
        """Type, rank, sizes, dtype, device and total bytes of one argument."""
        bound_sizes = self.sizes.copy()

        def refuse(way_out: str) -> NoReturn:  # written only then: a good call has no use for it
            pairs = ((size, str(bound_sizes.get(size, size))) for size in shape)
            sizes = (size if size == value else f"{size}={value}" for size, value in pairs)
            self.fail(name, f"a [{', '.join(sizes)}] tensor", describe(tensor), way_out)

        if not isinstance(tensor, torch.Tensor):
            refuse("pass a torch.Tensor")
        if tensor.dim() != len(shape):
            refuse("reshape it")
        for size_name, size in zip(shape, tensor.shape, strict=True):
            if self.sizes.setdefault(size_name, size) != size:
                refuse("sizes of the arguments must agree")
        if tensor.dtype not in dtypes:
            names = " or ".join(_dtype_name(dtype) for dtype in dtypes)
            self.fail(name, names, describe(tensor), way_out)
        self._check_device(name, tensor)
        num_bytes = tensor.numel() * tensor.element_size()
        if self.max_bytes is not None and num_bytes >= self.max_bytes:
            self.fail(
                name,
                f"smaller than 2 GiB ({self.max_bytes} bytes: offsets are signed 32-bit)",
                f"{describe(tensor)} of {num_bytes} bytes",
                "split it and call the op on the parts",
            )

    def _check_device(self, name: str, tensor: torch.Tensor) -> None:
        if self.device is None:
            if tensor.device.type not in ("cpu", "cuda"):
                self.fail(
                    name,
                    "on a GPU (device cuda) or on the cpu (the virtual GPU)",
                    describe(tensor),
                    "move it",
                )
            self.device, self._device_arg = tensor.device, name
        elif tensor.device != self.device:
            expected = f"on {self.device} as {self._device_arg} is"
            self.fail(name, expected, describe(tensor), f"move it with .to({str(self.device)!r})")


def check_layout(op: str, name: str, tensor: torch.Tensor, align: int) -> None:
    """Contiguity, and the alignment of the first byte."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{op}: {name} must be contiguous (row-major), got {describe(tensor)} with strides "
            f"{list(tensor.stride())}; call .contiguous() on it"
        )
    if tensor.data_ptr() % align:
        raise ValueError(
            f"{op}: {name} must be {align}-byte aligned, got {describe(tensor)} at an address "
            f"that is {tensor.data_ptr() % align} bytes beyond; "
            f"call .clone() on it, or slice at a multiple of {align} bytes"
        )


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte that the tensor touches, whatever its strides."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last_offset = sum((size - 1) * stride for size, stride in pairs)
    return start, start + (last_offset + 1) * tensor.element_size()


def check_no_overlap(
    op: str, name: str, out: torch.Tensor, tensors: dict[str, torch.Tensor]
) -> None:
    """What the op writes shares no byte with another tensor, which other workgroups still read."""
    start, end = _bytes_of(out)
    for other_name, tensor in tensors.items():
        other_start, other_end = _bytes_of(tensor)
        if start < other_end and other_start < end:
            raise ValueError(
                f"{op}: {name} must not overlap {other_name}, got {name} {describe(out)} in the "
                f"memory of {other_name} {describe(tensor)}; pass another {name}, or none"
            )
