"""What an op takes and gives, written once, an argument a line in the order of the public function:

    x: e4m3[M, K] @16            a tensor; contiguous, its first byte at a multiple of 16
    x_scale: e8m0[M, K/32]       K is a multiple of 32; N^128 is N / 128 rounded up
    w: fp4[N, K/2]               two elements a byte
    x: f32[*M, K]                any leading dimensions, M their product: [K], [M, K], [2, 3, K]
    weights: f32[*rows]?         so `rows` elements of any shape; None may take its place
    table: i32[*S] row W         the same, and W is its last dimension
    w: e4m3[N, K] strided        any strides
    q: bf16[M, K] inout          the op writes it too
    w: e4m3[N, K] x E            a tuple or list of E such tensors, E a size or a number
    topk_ids: any?               a tensor that callers pass and no kernel takes
    rows: M >= 0                 an int that is the size M
    block_m: int >= 1            an int that is no size; also `flag: bool`, `eps: float`
    dtype: bf16|f16|f32          one of these dtypes
    rounding: up|even            one of these words
    -> out: dtype[M, N]          a result: a parameter of this name, None for a new tensor
    -> ids: i32[S] new           a result that is always new, then all are
    -> y: f32[*M, K/32]          its leading dimensions are those of the first input with *M

A size is bound by its first use, in the order of the lines: on its own, or as an exact part, which
makes it K = 2 * extent of K/2.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

MX_BLOCK = 32  # elements that share an e8m0 scale
E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)
FP4 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "bf16": (torch.bfloat16,),
    "f16": (torch.float16,),
    "f32": (torch.float32,),
    "f64": (torch.float64,),
    "e4m3": (torch.float8_e4m3fn,),
    "e4m3fnuz": (torch.float8_e4m3fnuz,),
    "e8m0": tuple(dict.fromkeys((torch.uint8, E8M0))),  # bytes too: one per block, any torch
    "fp4": tuple(dict.fromkeys((torch.uint8, FP4))),  # e2m1, two a byte, low nibble first
    "u8": (torch.uint8,),
    "i32": (torch.int32,),
    "i64": (torch.int64,),
}


def fp8_of(arch: str) -> torch.dtype:
    """The FP8 that the matrix cores of an architecture multiply."""
    return DTYPES["e4m3fnuz" if arch == "gfx942" else "e4m3"][0]


@dataclass(frozen=True)
class Extent:
    """One extent of a tensor: a size, a part of it, or a number."""

    text: str
    size: str = ""  # empty: a number
    factor: int = 1  # below 0: the size over -factor, rounded up

    @classmethod
    def parse(cls, text: str) -> Extent:
        """Read an extent: `N`, `N/32`, `N^128` (rounded up) or a number. Raises ValueError."""
        match = re.fullmatch(r"(\d+)|([A-Za-z_]\w*)(?:([/^])(\d+))?", text)
        if match is None:
            raise ValueError(f"{text!r} is no extent: expected N, N/32, N^128 or a number")
        number, name, sign, factor = match.groups()
        if number:
            return cls(text, "", int(number))
        return cls(text, name, (-1 if sign == "^" else 1) * int(factor or 1))

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.text.replace("^", "/")

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the extent in elements for these sizes."""
        if not self.size:
            return self.factor
        size = sizes[self.size]
        return -(-size // -self.factor) if self.factor < 0 else size // self.factor


@dataclass(frozen=True)
class TensorArg:
    """A tensor in an op's declaration: dtypes, extents and what a call may pass for it."""

    name: str
    dtypes: tuple[torch.dtype, ...]  # of a result: empty where the argument `dtype_of` says it
    extents: tuple[Extent, ...]
    leads: bool = False  # extents[0] is the product of any leading dimensions
    align: int = 0  # of the first byte; 0: that of an element
    optional: bool = False
    strided: bool = False
    written: bool = False  # an input that the op writes
    dtype_of: str = ""
    new: bool = False  # a result that no caller passes
    times: Extent | None = None  # a table: how many tensors
    row: Extent | None = None  # the last dimension, of a tensor of any shape

    ignored: bool = False  # callers pass it, no kernel takes it
    is_fp4: bool = False

    @property
    def pattern(self) -> str:
        """As rfops.jit.Plans writes it."""
        if self.ignored:
            return "?"
        if self.times is not None or (self.leads and len(self.extents) > 1):
            return ""
        row = (self.row,) if self.row else ()
        return ("*" if self.leads else "") + ",".join(e.text for e in (*self.extents, *row))

    def leading(self, shape: Sequence[int]) -> Sequence[int]:
        """The dimensions of a shape whose product is extents[0]."""
        return shape[: len(shape) - len(self.extents) + 1]

    def sizes(self, shape: Sequence[int]) -> Sequence[int]:
        """What its extents are in a tensor of this shape."""
        if not self.leads:
            return shape
        lead = self.leading(shape)
        return math.prod(lead), *shape[len(lead) :]


@dataclass(frozen=True)
class ValueArg:
    """A number, dtype or word in an op's declaration, with its smallest or allowed values."""

    name: str
    kind: str  # size, int, float, bool, dtype, word
    size: str = ""
    minimum: int | None = None
    dtypes: tuple[torch.dtype, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """The size that the value gives, as Declaration matches it against extents; or empty."""
        return self.size


@dataclass(frozen=True)
class Declaration:
    """An op's arguments: inputs in order, then results."""

    inputs: tuple[TensorArg | ValueArg, ...]
    results: tuple[TensorArg, ...]
    order: tuple[str, ...] = ()  # of the sizes, where it is not that of their first use

    @classmethod
    def parse(cls, text: str, sizes: str = "") -> Declaration:
        """Read a declaration: a line `name: what` per input, `-> name: what` per result. Raises
        ValueError that quotes the line."""
        inputs: list[TensorArg | ValueArg] = []
        results: list[TensorArg] = []
        for line in filter(None, map(str.strip, text.splitlines())):
            name, colon, description = line.removeprefix("->").partition(":")
            _require(colon, f"{line!r}: expected `name: what`")
            inputs_by_name = {arg.name: arg for arg in inputs}
            argument = _argument(name.strip(), description.strip(), inputs_by_name)
            if line.startswith("->"):
                if not isinstance(argument, TensorArg):
                    raise ValueError(f"{line!r}: a result must be a tensor, as out: f32[M]")
                results.append(argument)
            else:
                bound = set(cls(tuple(inputs), ()).sizes)
                divided = {
                    e.size for e in getattr(argument, "extents", ()) if e.size and e.factor < 1
                }
                missing = ", ".join(sorted(divided - bound))
                _require(not missing, f"{line!r}: {missing} stands alone in no line before")
                inputs.append(argument)
        _require(len({r.new for r in results}) < 2, "of several results all are new, or none")
        return cls(tuple(inputs), tuple(results), tuple(sizes.split()))

    @cached_property
    def tensors(self) -> tuple[TensorArg, ...]:
        """Of the inputs."""
        return tuple(arg for arg in self.inputs if isinstance(arg, TensorArg))

    @cached_property
    def values(self) -> tuple[ValueArg, ...]:
        """The inputs that are no tensors."""
        return tuple(arg for arg in self.inputs if isinstance(arg, ValueArg))

    @cached_property
    def passed(self) -> tuple[TensorArg, ...]:
        """Results that a caller may pass."""
        return tuple(arg for arg in self.results if not arg.new)

    def leader(self, result: TensorArg) -> TensorArg:
        """The input whose leading dimensions a result has."""
        return next(a for a in self.tensors if a.leads and a.extents[0] == result.extents[0])

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Every size that an input binds."""
        names: dict[str, None] = dict.fromkeys(self.order)
        for arg in self.inputs:
            if isinstance(arg, ValueArg):
                if arg.size:
                    names[arg.size] = None
            else:
                extents = (*arg.extents, *(e for e in (arg.times, arg.row) if e))
                names |= {e.size: None for e in extents if e.size and e.factor > 0}
        return tuple(names)

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """Of all parameters, as rfops.jit.Plans takes them; none where sizes alone do not say the
        shape of a result."""
        extents = {e.size for arg in self.passed for e in arg.extents if e.size}
        if any(arg.leads for arg in self.results) or not extents.issubset(self.sizes):
            return ()
        return tuple(arg.pattern for arg in (*self.inputs, *self.passed))

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Positions of the parameters that the op writes and that must lie alone; strided ones may
        lie between rows of others."""
        tensors = [(i, a) for i, a in enumerate(self.inputs) if isinstance(a, TensorArg)]
        inputs = [i for i, a in tensors if a.written and not a.strided]
        num_inputs = len(self.inputs)
        outs = [num_inputs + i for i, a in enumerate(self.passed) if not a.strided]
        return (*inputs, *outs)


def _argument(
    name: str, text: str, inputs_by_name: Mapping[str, TensorArg | ValueArg]
) -> TensorArg | ValueArg:
    match = re.fullmatch(
        r"([\w|]+)(?:\[([^]]*)\])?(\?)?((?:\s+(?:@\d+|strided|inout|new|(?:x|row) \w+))*)", text
    )
    if match is not None and (match[2] is not None or match[1] == "any"):
        return _tensor(name, match[1], match[2], match[3] == "?", match[4].split(), inputs_by_name)
    match = re.fullmatch(r"([\w|]+)(?:\s*>=\s*(-?\d+))?", text)
    if match is None:
        raise ValueError(f"{name}: {text!r} is no argument: expected as f32[M, K], or int")
    alternatives, minimum = match[1].split("|"), None if match[2] is None else int(match[2])
    if all(name_ in DTYPES for name_ in alternatives):
        return ValueArg(name, "dtype", dtypes=_dtypes(alternatives))
    if len(alternatives) > 1:
        return ValueArg(name, "word", words=tuple(alternatives))
    if alternatives[0] in ("int", "float", "bool"):
        return ValueArg(name, alternatives[0], minimum=minimum)
    return ValueArg(name, "size", alternatives[0], minimum or 0)


def _tensor(
    name: str,
    kind: str,
    extents: str | None,
    optional: bool,
    marks: list[str],
    inputs_by_name: Mapping[str, TensorArg | ValueArg],
) -> TensorArg:
    extents_ = [extent.strip() for extent in (extents or "").split(",") if extent.strip()]
    source = inputs_by_name.get(kind)
    dtypes: tuple[torch.dtype, ...] = ()
    if source is None and kind != "any":
        dtypes = _dtypes(kind.split("|"), name)
    aligns = [int(mark[1:]) for mark in marks if mark.startswith("@")]
    return TensorArg(
        name=name,
        dtypes=dtypes,
        extents=tuple(
            Extent.parse(p if i else p.removeprefix("*")) for i, p in enumerate(extents_)
        ),
        leads=bool(extents_) and extents_[0].startswith("*"),
        align=aligns[0] if aligns else 0,
        optional=optional,
        strided="strided" in marks,
        written="inout" in marks,
        dtype_of=kind if source is not None else "",
        new="new" in marks,
        times=_extent_after("x", marks),
        row=_extent_after("row", marks),
        ignored=kind == "any",
        is_fp4=kind == "fp4",
    )


def _extent_after(mark: str, marks: list[str]) -> Extent | None:
    return Extent.parse(marks[marks.index(mark) + 1]) if mark in marks else None


def _dtypes(names: list[str], name: str = "") -> tuple[torch.dtype, ...]:
    for dtype_name in names:
        if dtype_name not in DTYPES:
            matches = "".join(
                f" (near: {n})" for n in difflib.get_close_matches(dtype_name, DTYPES, 1)
            )
            known_names = ", ".join(DTYPES)
            raise ValueError(
                f"{name}: {dtype_name!r} is no dtype{matches}: expected any, or of {known_names}"
            )
    return tuple(dict.fromkeys(dtype for dtype_name in names for dtype in DTYPES[dtype_name]))


def _require(condition: object, text: str) -> None:
    """The notation is its author's, whose mistake an error of ours would hide."""
    if not condition:
        raise ValueError(text)
