"""Registers and memory in the types that kernels compute with."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LANES = 64


class CommandError(Exception):
    """What a user typed cannot be done; the text says what can."""


@dataclass(frozen=True)
class Element:
    """A number in memory. `decode` takes its bits."""

    name: str
    bits: int
    decode: Callable[[int], float | int]

    def text(self, value: int) -> str:
        """The number that these bits are."""
        if self.name.startswith("hex"):
            return f"0x{value:0{self.bits // 4}x}"
        number = self.decode(value)
        return f"{number:.7g}" if isinstance(number, float) else str(number)

    @property
    def width(self) -> int:
        """Columns that its numbers take."""
        return {"hex": 2 + self.bits // 4, "f": 13}.get(self.name.rstrip("0123456789"), 12)


def _signed(bits: int) -> Callable[[int], int]:
    return lambda value: value - (value >> (bits - 1) << bits)


def _packed(float_format: str, int_format: str) -> Callable[[int], float]:
    def decode(value: int) -> float:
        number: float = struct.unpack(float_format, struct.pack(int_format, value))[0]
        return number

    return decode


def small_float(exponent_bits: int, bias: int, special: str) -> Callable[[int], float]:
    """An FP8 type. `special`: "fnuz" has one NaN, 0x80; "fn" has NaN where all bits below the sign
    are ones; "ieee" has infinities."""
    mantissa_bits = 7 - exponent_bits

    def decode(value: int) -> float:
        sign = -1.0 if value >> 7 else 1.0
        exponent, mantissa = (value & 0x7F) >> mantissa_bits, value & ((1 << mantissa_bits) - 1)
        if (special == "fnuz" and value == 0x80) or (special == "fn" and value & 0x7F == 0x7F):
            return math.nan
        if special == "ieee" and exponent == (1 << exponent_bits) - 1:
            return math.nan if mantissa else sign * math.inf
        fraction = mantissa / (1 << mantissa_bits)
        if not exponent:
            return sign * math.ldexp(fraction, 1 - bias)
        return sign * math.ldexp(1 + fraction, exponent - bias)

    return decode


def elements(arch: str) -> dict[str, Element]:
    """By name. FP8 is the architecture's: FNUZ on gfx942, OCP on gfx950."""
    is_fnuz = arch == "gfx942"
    decoders: dict[str, tuple[int, Callable[[int], float | int]]] = {
        "f16": (16, _packed("<e", "<H")),
        "bf16": (16, lambda value: _packed("<f", "<I")(value << 16)),
        "f32": (32, _packed("<f", "<I")),
        "f64": (64, _packed("<d", "<Q")),
        "fp8": (8, small_float(4, 8, "fnuz") if is_fnuz else small_float(4, 7, "fn")),
        "bf8": (8, small_float(5, 16, "fnuz") if is_fnuz else small_float(5, 15, "ieee")),
    }
    for bits in (8, 16, 32, 64):
        decoders[f"u{bits}"] = (bits, int)
        decoders[f"i{bits}"] = (bits, _signed(bits))
        decoders[f"hex{bits}"] = (bits, int)
    table = {name: Element(name, *row) for name, row in decoders.items()}
    return {**table, "hex": table["hex32"]}


# gdb's letters of a format and of a size: x/8xw, x/4fg.
_FORMATS = {"x": "hex", "d": "i", "u": "u", "f": "f"}
_SIZES = {"b": 8, "h": 16, "w": 32, "g": 64}


def element(name: str, arch: str) -> Element:
    """The type of a name such as f32, f16x2 or fp8x4, or of gdb's letters such as x, fg or dh.
    Raises CommandError."""
    type_of = elements(arch)
    base, _, count = name.partition("x") if name[:1] != "h" and "x" in name[1:] else (name, "", "")
    if base in type_of and (not count or count.isdigit()):
        type_ = type_of[base]
        if not count or int(count) * type_.bits in (32, 64):
            return type_
    if name and set(name) <= set(_FORMATS) | set(_SIZES):
        kinds = [_FORMATS[letter] for letter in name if letter in _FORMATS] or ["hex"]
        sizes = [_SIZES[letter] for letter in name if letter in _SIZES] or [32]
        if len(kinds) == len(sizes) == 1 and f"{kinds[0]}{sizes[0]}" in type_of:
            return type_of[f"{kinds[0]}{sizes[0]}"]
    raise CommandError(
        f"no type {name!r}; there are hex, u32, i32, f32, f16x2, bf16x2, fp8x4, bf8x4, f64, u64 "
        "and so on, and gdb's letters x d u f with b h w g"
    )


def split(bits: int, total: int, kind: Element) -> list[int]:
    """The elements of a word of `total` bits, the lowest first."""
    return [bits >> shift & ((1 << kind.bits) - 1) for shift in range(0, total, kind.bits)]


def text_of(bits: int, total: int, kind: Element) -> str:
    """A word of `total` bits as its elements."""
    return " ".join(kind.text(value) for value in split(bits, max(total, kind.bits), kind))


def words_of(text: str) -> list[int]:
    """Dwords of hexadecimal bytes in the order of memory."""
    data = bytes.fromhex(text)
    return [word for (word,) in struct.iter_unpack("<I", data)]


def lane_mask(mask: int) -> str:
    """Lanes of a mask as ranges: `lanes 0-3, 8`."""
    ranges: list[str] = []
    lane = 0
    while lane < LANES:
        begin = lane
        while lane < LANES and mask >> lane & 1:
            lane += 1
        if lane > begin:
            ranges.append(f"{begin}-{lane - 1}" if lane - begin > 1 else str(begin))
        lane += 1
    return f"lanes {', '.join(ranges)}" if ranges else "no lane"


def lane_table(texts: Sequence[str], exec_mask: int) -> list[str]:
    """Rows of eight lanes (fewer where texts are wide). What inactive lanes hold is in
    parentheses."""
    cells = [text if exec_mask >> lane & 1 else f"({text})" for lane, text in enumerate(texts)]
    width = max(map(len, cells))
    columns = 8 if width <= 14 else 4 if width <= 28 else 2
    head = "".join(f" {f'+{column}':>{width}}" for column in range(columns))
    rows = [f"  lane {head}"]
    for begin in range(0, len(cells), columns):
        row = "".join(f" {cell:>{width}}" for cell in cells[begin : begin + columns])
        rows.append(f"  {begin:4d} {row}")
    return rows
