"""What one lane of a VALU opcode computes, in numpy, written from the ISA manual and not from csrc.

A row (`Op`) names the assembler's mnemonic, the types of result and sources, and a function over
whole arrays of lanes. Integers of up to 32 bits arrive as int64 (sign- or zero-extended) and leave
as any integer array, which is wrapped to the result's width; floats arrive in their own dtype. A
function may return float64 for a narrower result: it is rounded once, so functions that need one
rounding of an inexact float64 return it rounded to odd (`fma_odd`), which makes the second rounding
harmless.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Array = np.ndarray

# type -> (bits, dtype of a float or None, signed)
TYPES: dict[str, tuple[int, type | None, bool]] = {
    "f16": (16, np.float16, True),
    "f32": (32, np.float32, True),
    "f64": (64, np.float64, True),
    "u16": (16, None, False),
    "i16": (16, None, True),
    "u32": (32, None, False),
    "i32": (32, None, True),
    "u64": (64, None, False),
    "i64": (64, None, True),
    "c32": (32, None, False),  # 32 raw bits that take neg and abs (v_cndmask_b32)
    # packed halves, bfloats and integers: they differ in what an inline constant means
    "h32": (32, None, False),
    "b32": (32, None, False),
    "d32": (32, None, False),
}
_UINT = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def width(kind: str) -> int:
    return TYPES[kind][0]


def is_float(kind: str) -> bool:
    return TYPES[kind][1] is not None


def decode(bits: Array, kind: str) -> Array:
    """Lane values of a type from raw bits (uint64)."""
    count, real, signed = TYPES[kind]
    if real is not None:
        return bits.astype(_UINT[count]).view(real)
    if count == 64:
        return bits.view(np.int64) if signed else bits
    value = (bits & np.uint64((1 << count) - 1)).astype(np.int64)
    return np.where(value >> (count - 1), value - (1 << count), value) if signed else value


def encode(value: Array, kind: str) -> Array:
    """Raw bits (uint64) of lane values; floats are rounded to nearest even, integers wrap."""
    count, real, _ = TYPES[kind]
    value = np.asarray(value)
    if real is not None:
        with np.errstate(all="ignore"):
            return value.astype(real).view(_UINT[count]).astype(np.uint64)
    if value.dtype == object:
        value = np.array([int(v) & (2**64 - 1) for v in value], np.uint64)
    return value.astype(np.uint64) & np.uint64((1 << count) - 1)


def saturate(value: Array, kind: str) -> Array:
    """Integer clamp of an exact value."""
    count, _, signed = TYPES[kind]
    low, high = (-(1 << (count - 1)), (1 << (count - 1)) - 1) if signed else (0, (1 << count) - 1)
    return np.clip(value, low, high)


# ---------------------------------------------------------------- floating point


def f64(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(np.float64)


def is_snan(x: Array) -> Array:
    quiet = {2: 0x200, 4: 1 << 22, 8: 1 << 51}[x.dtype.itemsize]
    return np.isnan(x) & (x.view(_UINT[8 * x.dtype.itemsize]) & quiet == 0)


def sum_odd(x: Array, y: Array) -> Array:
    """x + y in float64, rounded to odd: exact enough for one more rounding to f32 or f16."""
    total = x + y
    y_rounded = total - x
    error = (x - (total - y_rounded)) + (y - y_rounded)
    bits = total.view(np.int64)
    fix = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    return np.where(fix, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(np.float64)


def fma_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of f32 or f16 lanes (the product is exact in float64)."""
    return sum_odd(f64(a) * f64(b), f64(c))


def round_fraction(value: Fraction, kind: str, mode: str = "even") -> float:
    """An exact value rounded once; modes even, up, down, zero."""
    digits, lowest, top = {"f16": (11, -24, 16), "f32": (24, -149, 128), "f64": (53, -1074, 1024)}[
        kind
    ]
    if value == 0:
        return 0.0
    negative, value = value < 0, abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    step = Fraction(2) ** max(exponent - digits + 1, lowest)
    count, remaining = divmod(value, step)
    rounds_away = {"up": not negative, "down": negative, "zero": False}.get(mode)
    if mode == "even":
        rounds_away = remaining * 2 > step or (remaining * 2 == step and count % 2 == 1)
    if remaining and rounds_away:
        count += 1
    result = count * step
    if result >= Fraction(2) ** top:
        to_infinity = mode == "even" or bool(
            rounds_away if remaining else {"up": not negative, "down": negative}.get(mode, False)
        )
        largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** (top - 1)
        result_float = math.inf if to_infinity else float(largest)
    else:
        result_float = float(result)
    return -result_float if negative else result_float


def _fma_exact(a: float, b: float, c: float, kind: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        if math.isfinite(a) and math.isfinite(b):
            return c
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return round_fraction(exact, kind, mode)
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    if sign == math.copysign(1.0, c) and (a == 0 or b == 0) and c == 0:
        return sign * 0.0
    return -0.0 if mode == "down" else 0.0


def fma_exact(a: Array, b: Array, c: Array, kind: str, mode: str = "even") -> Array:
    """Scalar fused multiply-add of any type in any rounding mode, lane by lane."""
    real = TYPES[kind][1]
    lanes = [
        _fma_exact(float(x), float(y), float(z), kind, mode)
        for x, y, z in zip(a, b, c, strict=True)
    ]
    return np.array(lanes, np.float64).astype(real)


def fma64(a: Array, b: Array, c: Array) -> Array:
    return fma_exact(a, b, c, "f64")


def pick_extreme(a: Array, b: Array, largest: bool) -> Array:
    """v_min / v_max with MODE.IEEE set: a signalling NaN wins, a quiet one loses, -0 < +0."""
    with np.errstate(all="ignore"):
        takes_a = np.where(a == b, np.signbit(a) != largest, (a > b) if largest else (a < b))
        out = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(takes_a, a, b)))
    return np.where(is_snan(a) | is_snan(b), a.dtype.type(np.nan), out).astype(a.dtype)


def fmin(a: Array, b: Array) -> Array:
    return pick_extreme(a, b, False)


def fmax(a: Array, b: Array) -> Array:
    return pick_extreme(a, b, True)


def fmin3(a: Array, b: Array, c: Array) -> Array:
    return fmin(fmin(a, b), c)


def fmax3(a: Array, b: Array, c: Array) -> Array:
    return fmax(fmax(a, b), c)


def fmed3(a: Array, b: Array, c: Array) -> Array:
    top = fmax3(a, b, c)
    remaining = np.where(top == a, fmax(b, c), np.where(top == b, fmax(a, c), fmax(a, b)))
    bad = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(bad, fmin3(a, b, c), remaining)


def propagate(a: Array, b: Array, largest: bool) -> Array:
    """IEEE-754-2019 minimum / maximum: any NaN wins."""
    nan = np.isnan(a) | np.isnan(b)
    return np.where(nan, a.dtype.type(np.nan), pick_extreme(a, b, largest))


def to_int(x: Array, kind: str) -> Array:
    """Truncating conversion: saturates, NaN gives 0."""
    count, _, signed = TYPES[kind]
    low, high = (-(2.0 ** (count - 1)), 2.0 ** (count - 1) - 1) if signed else (0.0, 2.0**count - 1)
    return np.clip(
        np.trunc(np.nan_to_num(f64(x), nan=0.0, posinf=1e30, neginf=-1e30)), low, high
    ).astype(np.int64)


def norm16(x: Array, signed: bool) -> Array:
    """Normalised 16-bit integer of a float: clamped, scaled, rounded to nearest even."""
    scale, low = (32767.0, -1.0) if signed else (65535.0, 0.0)
    return np.rint(np.clip(np.nan_to_num(f64(x), nan=0.0), low, 1.0) * scale).astype(np.int64)


def fract(x: Array) -> Array:
    """x - floor(x), kept below one."""
    largest = np.nextafter(x.dtype.type(1), x.dtype.type(0))
    with np.errstate(all="ignore"):
        value = (f64(x) - np.floor(f64(x))).astype(x.dtype)
    return np.where(value >= 1, largest, value)


def frexp(x: Array) -> tuple[Array, Array]:
    special = ~np.isfinite(x)
    mantissa, exponent = np.frexp(np.where(special, x.dtype.type(0), x))
    return np.where(special, x, mantissa), np.where(special, 0, exponent)


def ldexp(x: Array, power: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.ldexp(f64(x), np.clip(power, -2500, 2500).astype(np.int32))


def circle(x: Array, function: Callable[[Array], Array]) -> Array:
    """sin or cos of x turns, with the argument reduced exactly; 0 or 1 outside [-256, 256]."""
    out_of_range = np.isfinite(x) & (np.abs(f64(x)) > 256)
    with np.errstate(all="ignore"):
        rotations = f64(x) - np.rint(f64(x))
    rotations = rotations.astype(np.longdouble)
    two_pi = np.longdouble("6.283185307179586476925286766559005768")
    if function is np.sin:  # fold to a quarter turn, so that zeros come out exactly
        rotations = np.where(
            rotations > 0.25,
            0.5 - rotations,
            np.where(rotations < -0.25, -0.5 - rotations, rotations),
        )
        return np.where(
            x == 0,
            f64(x),
            np.where(out_of_range, 0.0, np.sin(rotations * two_pi).astype(np.float64)),
        )
    rotations = np.abs(rotations)
    reduced = np.where(
        rotations > 0.125, np.sin((0.25 - rotations) * two_pi), np.cos(rotations * two_pi)
    )
    return np.where(out_of_range, 1.0, reduced.astype(np.float64))


def quiet(function: Callable[..., Array]) -> Callable[..., Array]:
    """Without numpy's warnings about NaN and overflow, which are data here."""

    def wrapped(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(*args)

    return wrapped


# ---------------------------------------------------------------- division helpers


def _exponent(x: Array) -> Array:
    count, shift, mask = {4: (32, 23, 0xFF), 8: (64, 52, 0x7FF)}[x.dtype.itemsize]
    return (x.view(_UINT[count]) >> np.uint8(shift)).astype(np.int64) & mask


def div_fixup(q: Array, den: Array, num: Array) -> Array:
    """The special cases of num / den. A NaN quotient of ordinary operands is an iteration that
    overflowed: only infinity makes LLVM's division right, though the manual would keep the NaN."""
    sign = np.where(np.signbit(den) != np.signbit(num), -1.0, 1.0)
    inf = np.inf
    bad = (
        np.isnan(den) | np.isnan(num) | ((den == 0) & (num == 0)) | (np.isinf(den) & np.isinf(num))
    )
    with np.errstate(all="ignore"):
        value = sign * np.where(np.isnan(q), inf, np.abs(f64(q)))
    if q.dtype != np.float16:  # a quotient far below the smallest denormal, or a huge denominator
        limit = {4: -150, 8: -1075}[q.dtype.itemsize]
        value = np.where(_exponent(num) - _exponent(den) < limit, sign * 0.0, value)
    value = np.where(np.isinf(den) | (num == 0), sign * 0.0, value)
    value = np.where((den == 0) | np.isinf(num), sign * inf, value)
    return np.where(bad, np.nan, value)


def _power(x: Array, power: int) -> Array:
    return np.ldexp(x, power)


def div_scale(x: Array, den: Array, num: Array) -> tuple[Array, Array]:
    """Scaled numerator or denominator of a division, and the mask that v_div_fmas reads."""
    narrow = x.dtype == np.float32
    step, near_max, tiny = (64, 96, 23) if narrow else (128, 768, 53)
    smallest = 2.0**-126 if narrow else 2.0**-1022
    with np.errstate(all="ignore"):
        is_den, is_num = x.view(_UINT[8 * x.itemsize]) == den.view(_UINT[8 * x.itemsize]), x == num
        denormal_den = (np.abs(den) < smallest) & (den != 0)
        inverse_small = np.abs(den) > 1 / smallest
        if narrow:
            quotient = np.abs(f64(num) / f64(den))
            quotient_small = (quotient < smallest) & (quotient > 0)
        else:  # as exact fractions: the quotient may lie below the smallest double
            quotient_small = np.array(
                [_small_quotient(n, d) for n, d in zip(num, den, strict=True)]
            )
        up, down = _power(x, step), _power(x, -step)
    nan = np.full_like(x, np.nan)
    rules = [  # first that holds: condition, value, mask bit
        ((num == 0) | (den == 0), nan, False),
        (_exponent(num) - _exponent(den) >= near_max, np.where(is_den, up, x), True),
        (denormal_den, up, False),
        # The manual has +step here, which would overflow the denominator.
        (inverse_small & quotient_small, np.where(is_den, down, x), True),
        (inverse_small, down, False),
        (quotient_small, np.where(is_num, up, x), True),
        (_exponent(num) <= tiny, up, False),
    ]
    conditions = [rule[0] for rule in rules]
    value = np.select(conditions, [rule[1] for rule in rules], x)
    return value, np.select(conditions, [np.full(len(x), rule[2]) for rule in rules], False)


def _small_quotient(num: float, den: float) -> bool:
    if not (math.isfinite(num) and math.isfinite(den)) or num == 0 or den == 0:
        return False
    return abs(Fraction(float(num)) / Fraction(float(den))) < Fraction(2) ** -1022


def _two_over_pi(count: int) -> int:
    """floor(2 / pi * 2**count), from Machin's formula with guard bits."""
    guard = count + 64

    def arctan_inverse(n: int) -> int:
        term, total, k = (1 << guard) // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    return ((2 << (2 * guard)) // pi) >> (guard - count)


TWO_OVER_PI = _two_over_pi(1201)


def trig_preop(x: Array, segment: Array) -> Array:
    out = np.empty(len(x), np.float64)
    for i, (value, select) in enumerate(zip(x, segment & 31, strict=True)):
        exponent = int(_exponent(np.array([value]))[0])
        shift = int(select) * 53 + max(exponent - 1077, 0)
        bits = (TWO_OVER_PI << shift >> (1201 - 53)) & ((1 << 53) - 1)
        out[i] = math.ldexp(bits, -53 - shift + (128 if exponent >= 1968 else 0))
    return out


# ---------------------------------------------------------------- integers


def bytes_of(x: Array) -> list[Array]:
    return [x >> shift & 0xFF for shift in (0, 8, 16, 24)]


def sad_u8(a: Array, b: Array, c: Array, masked: bool = False) -> Array:
    for x, y in zip(bytes_of(a), bytes_of(b), strict=True):
        c = c + (np.abs(x - y) * (y != 0) if masked else np.abs(x - y))
    return c


def quad_sad(a: Array, b: Array, c: Array, masked: bool) -> Array:
    out = np.zeros(len(a), np.uint64)
    for i in range(4):
        window = (a >> np.uint64(8 * i) & np.uint64(0xFFFFFFFF)).astype(np.int64)
        start = (c >> np.uint64(16 * i) & np.uint64(0xFFFF)).astype(np.int64)
        total = sad_u8(window, b, start, masked) & 0xFFFF
        out |= total.astype(np.uint64) << np.uint64(16 * i)
    return out


def lerp_u8(a: Array, b: Array, c: Array) -> Array:
    averages = [
        (x + y + (z & 1)) >> 1
        for x, y, z in zip(bytes_of(a), bytes_of(b), bytes_of(c), strict=True)
    ]
    return sum(average << (8 * i) for i, average in enumerate(averages))


def perm(a: Array, b: Array, selector: Array) -> Array:
    data = bytes_of(b) + bytes_of(a)
    fixed = [np.where(data[i] & 0x80, 0xFF, 0) for i in (1, 3, 5, 7)] + [np.zeros_like(a)]
    table = np.stack(data + fixed + [np.full_like(a, 0xFF)])
    picks = [table[np.minimum(s, 13), np.arange(len(a))] for s in bytes_of(selector)]
    return sum(pick << (8 * i) for i, pick in enumerate(picks))


def reverse32(x: Array) -> Array:
    return sum((x >> i & 1) << (31 - i) for i in range(32))


def popcount(x: Array) -> Array:
    return np.bitwise_count(x.astype(np.uint64)).astype(np.int64)


def leading(x: Array) -> Array:
    """Distance of the highest set bit of 32 from the top, -1 if none."""
    return np.where(x == 0, -1, 32 - np.frexp(x.astype(np.float64))[1])


def leading_signed(x: Array) -> Array:
    return leading(np.where(x < 0, ~x, x))


def trailing(x: Array) -> Array:
    return np.where(x == 0, -1, np.frexp((x & -x).astype(np.float64))[1] - 1)


def bfe_signed(x: Array, offset: Array, count: Array) -> Array:
    """Sign-extended field of `count` bits (0 gives 0)."""
    value = x >> offset & ((1 << count) - 1)
    return np.where(
        count > 0, (value ^ (1 << np.maximum(count - 1, 0))) - (1 << np.maximum(count - 1, 0)), 0
    )


def wide(a: Array, b: Array) -> Array:
    """Product of 32-bit lanes as Python integers."""
    return a.astype(object) * b.astype(object)


def shift64(x: Array, count: Array, to_left: bool) -> Array:
    count = (count & 63).astype(x.dtype)
    return x << count if to_left else x >> count


def fields(x: Array, count: int, signed: bool) -> list[Array]:
    """The 32 / count fields of a dword."""
    fields = [x >> shift & ((1 << count) - 1) for shift in range(0, 32, count)]
    return [np.where(p >> (count - 1), p - (1 << count), p) for p in fields] if signed else fields


def dot(count: int, signed: bool) -> Callable[..., Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        return c + sum(
            x * y for x, y in zip(fields(a, count, signed), fields(b, count, signed), strict=True)
        )

    return run


def halves(x: Array, real: str) -> tuple[Array, Array]:
    """The two 16-bit floats of a dword as float64."""
    low, high = x & 0xFFFF, x >> 16 & 0xFFFF
    if real == "bf16":
        return tuple(f64((h.astype(np.uint32) << 16).view(np.float32)) for h in (low, high))
    return tuple(f64(h.astype(np.uint16).view(np.float16)) for h in (low, high))


def median(a: Array, b: Array, c: Array) -> Array:
    return np.sort(np.stack([a, b, c]), axis=0)[1]


@dataclass(frozen=True)
class Op:
    """One opcode: see the head of this file.

    flags: acc (the function gets the old result last), lane (gets the lane number last), sat (clamp
    saturates the exact integer result), gfx950, keep (a 16-bit result leaves the other half alone),
    zero (it clears it), ftz (may flush denormals in or out whatever MODE says: the transcendental
    unit and the legacy multiply-adds), no32 / nodpp / nosdwa / no64 (has no such encoding).
    """

    name: str
    dst: str
    srcs: tuple[str, ...]
    fn: Callable[..., Array]
    flags: frozenset[str] = frozenset()
    ulp: int = 0


def row(name: str, types: str, fn: Callable[..., Array], flags: str = "", ulp: int = 0) -> Op:
    dst, *srcs = types.split()
    return Op(name, dst, tuple(srcs), quiet(fn), frozenset(flags.split()), ulp)
