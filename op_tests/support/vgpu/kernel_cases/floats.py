"""Single and double precision: exact operations, comparisons, functions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from support.vgpu.kernel_harness import Array, Close, Launch, Made, Rng, case, expect, poisoned

from .inputs import EPS, f16, f32, f64, i32, i64, small_floats, tame_floats, u32, u64, wild_floats


def to_odd(a: Array, b: Array) -> Array:
    """a + b in f64, rounded to odd: rounding that again to fewer digits is correct."""
    total = a + b
    b_rounded = total - a
    error = (a - (total - b_rounded)) + (b - b_rounded)
    even = (total.view(u64) & u64(1)) == 0
    corrected = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even & np.isfinite(total), corrected, total)


def fma32(a: Array, b: Any, c: Any) -> Array:
    with np.errstate(all="ignore"):
        exact = a.astype(f64) * np.asarray(b, f32).astype(f64)
        return to_odd(exact, np.broadcast_to(np.asarray(c, f32).astype(f64), exact.shape)).astype(
            f32
        )


def fma64(a: Array, b: Array, c: Array) -> Array:
    return np.array(
        [
            float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            for x, y, z in zip(a, b, c, strict=True)
        ]
    )


def c_round(a: Array) -> Array:
    """Half away from zero."""
    truncated = np.trunc(np.abs(a))
    return np.copysign(truncated + (np.abs(a) - truncated >= 0.5), a).astype(a.dtype)


def quiet(values: Array) -> Array:
    """Signaling NaNs become quiet ones."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(values), np.array(np.nan, values.dtype), values)


@case("doubles")
def double_operations(rng: Rng) -> Made:
    n = 300
    a, b = tame_floats(rng, n, f64, 30), tame_floats(rng, n, f64, 30)
    a[:4] = [0.5, 1.5, -2.5, 1e300]
    rows = [
        a + b,
        a - b,
        a * b,
        a / b,
        np.sqrt(np.abs(a)),
        fma64(a, b, np.ones(n)),
        np.floor(a),
        np.ceil(a),
        np.trunc(a),
        np.rint(a),
        np.minimum(a, b),
        np.maximum(a, b),
        np.copysign(a, b),
        np.ldexp(a, np.arange(n) % 41 - 20),
        np.where(a < b, -a, np.abs(b)),
        1 / b,
    ]
    return Launch(
        "double_operations",
        (2,),
        (256,),
        [poisoned((n, 16), f64), a, b, i32(n)],
        {0: np.stack(rows, 1)},
    )


@case("doubles")
def double_conversions(rng: Rng) -> Made:
    n = 500
    a = tame_floats(rng, n, f64, 10)
    rows = []
    for v in map(float, a):
        scaled, big = int(v * 1e6), int(abs(v) * 1e9)
        floats = [float(scaled), float(int(abs(v))) + float(int(v)) + float(big)]
        rows.append([int(v), int(abs(v)), scaled, big, *(int(f64(x).view(i64)) for x in floats)])
    return Launch(
        "double_conversions",
        (2,),
        (256,),
        [poisoned((n, 6), i64), poisoned(n, f32), a, i32(n)],
        {0: np.array(rows, i64), 1: a.astype(f32)},
    )


@case("doubles")
def cube_root(rng: Rng) -> Made:
    n = 200
    a = np.abs(tame_floats(rng, n, f64, 20))
    expected = []
    for v in map(float, a):
        root = max(v, 1.0)
        for _ in range(200):
            following = (2 * root + v / (root * root)) / 3
            if following >= root:
                break
            root = following
        expected.append(root)
    return Launch("cube_root", (4,), (64,), [poisoned(n, f64), a, i32(n)], {0: np.array(expected)})


@case("doubles")
def dot_f64(rng: Rng) -> Made:
    n = 3000
    a, b = small_floats(rng, n, f64), small_floats(rng, n, f64)
    return Launch("dot_f64", (1,), (256,), [poisoned(1, f64), a, b, i32(n)], {0: np.array([a @ b])})


@case("floats")
def float_operations(rng: Rng) -> Made:
    n = 600
    a, b = tame_floats(rng, n, spread=12), tame_floats(rng, n, spread=12)
    a[:8] = [0.5, -0.5, 2.5, 0.49999997, 8388609.0, np.inf, 1e-42, -1e-42]
    b[:8] = [1e-42, 1e38, -0.5, 2.0, 0.1, -1.0, 1e-41, 3e-39]
    with np.errstate(all="ignore"):
        rows = [
            a + b,
            a - b,
            a * b,
            fma32(a, b, -a),
            a * b + f32(1),
            np.floor(a),
            np.ceil(a),
            np.trunc(a),
            np.rint(a),
            c_round(a),
            np.abs(a) + b,
            np.copysign(a, b),
            a - np.floor(a),
            f32(2) * (a + b),
            np.clip(a, 0, 1),
            np.minimum(np.maximum(a, -b), f32(3.5)),
        ]
    return Launch(
        "float_operations",
        (3,),
        (256,),
        [poisoned((n, 16), f32), a, b, i32(n)],
        {0: np.stack(rows, 1)},
    )


@case("floats")
def float_quotients(rng: Rng) -> Made:
    n = 3000
    a, b = quiet(wild_floats(rng, n)), quiet(wild_floats(rng, n))
    a[::2] = tame_floats(rng, a[::2].size, spread=20)
    with np.errstate(all="ignore"):
        rows = [a / b, np.sqrt(np.abs(a)), f32(1) / b]
    return Launch(
        "float_quotients",
        (12,),
        (256,),
        [poisoned((n, 3), f32), a, b, i32(n)],
        {0: np.stack(rows, 1)},
    )


@case("floats")
def min_max(rng: Rng) -> Made:
    n = 1500
    a, b = quiet(wild_floats(rng, n)), quiet(wild_floats(rng, n))
    unordered = np.isnan(a) | np.isnan(b)
    with np.errstate(invalid="ignore"):
        numbers = np.stack([np.fmin(a, b), np.fmax(a, b)], 1)
        selects = np.stack([np.where(a < b, a, b), np.where(a > b, a, b)], 1)
        median = np.median(np.stack([a, b, np.full(n, f32(0.25))]), axis=0).astype(f32)

    def check(actual: Array) -> None:
        is_same = (actual[:, :2] == numbers) | (np.isnan(actual[:, :2]) & np.isnan(numbers))
        offset = int(np.argmax(~is_same.all(1)))
        text = f"got {actual[offset, :2]}, expected {numbers[offset]}"
        assert is_same.all(), f"fmin/fmax({a[offset]}, {b[offset]}): {text}"
        expect(actual[:, 2:4], selects)
        expect(np.where(unordered, median, actual[:, 4]), Close(median))

    return Launch("min_max", (6,), (256,), [poisoned((n, 5), f32), a, b, i32(n)], {0: check})


def comparison_case(name: str, dtype: type) -> None:
    @case("floats", f"compare_{name}")
    def make(rng: Rng) -> Made:
        n = 900
        a, b = wild_floats(rng, n, dtype), wild_floats(rng, n, dtype)
        b[::5] = a[::5]
        with np.errstate(invalid="ignore"):
            tests = [
                a < b,
                a <= b,
                a > b,
                a >= b,
                a == b,
                a != b,
                ~(a < b),
                ~(a <= b),
                ~(a > b),
                ~(a >= b),
                np.isnan(a) | np.isnan(b),
                (a < b) | (a > b),
                np.isnan(a),
                np.isinf(b),
                np.isfinite(a),
                np.isfinite(b) & (np.abs(b) >= np.finfo(dtype).tiny),
                np.signbit(a),
            ]
        expected = sum(t.astype(u32) << i for i, t in enumerate(tests))
        return Launch(
            f"compare_{name}",
            (4,),
            (256,),
            [poisoned(n, u32), a, b, i32(n)],
            {0: expected.astype(u32)},
        )


for _name, _dtype in (("f16", f16), ("f32", f32), ("f64", f64)):
    comparison_case(_name, _dtype)


@case("floats")
def scale_and_split(rng: Rng) -> Made:
    n = 500
    a = wild_floats(rng, n)
    a = np.where(np.isfinite(a), a, f32(-3))
    mantissa, exponent = np.frexp(a)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(a, (np.arange(n) % 31 - 15).astype(i32)).astype(f32)
    return Launch(
        "scale_and_split",
        (2,),
        (256,),
        [poisoned(n, f32), poisoned(n, i32), poisoned(n, f32), a, i32(n)],
        {0: mantissa.astype(f32), 1: exponent.astype(i32), 2: scaled},
    )


@case("floats")
def transcendental(rng: Rng) -> Made:
    n = 1000
    a = tame_floats(rng, n, spread=3).clip(-80, 80)
    w = a.astype(f64)
    size = np.abs(w)
    exact = np.stack(
        [
            np.exp(w),
            np.exp2(w),
            np.log(size),
            np.log2(size),
            np.log10(size),
            np.sin(w),
            np.cos(w),
            1 / w,
            1 / np.sqrt(size),
        ],
        1,
    )
    relative = np.array([8, 4, 8, 4, 8, 0, 0, 2, 2]) * EPS
    angle = 2.0**-16 + 4 * EPS * size
    absolute = np.zeros_like(exact)
    absolute[:, 2:5] = 4 * EPS
    absolute[:, 5] = absolute[:, 6] = angle
    return Launch(
        "transcendental",
        (4,),
        (256,),
        [poisoned((n, 9), f32), a, i32(n)],
        {0: Close(exact, 0, absolute + relative * np.abs(exact))},
    )


@case("floats")
def packed_floats(rng: Rng) -> Made:
    n = 300
    a, b = tame_floats(rng, 2 * n).reshape(n, 2), tame_floats(rng, 2 * n).reshape(n, 2)
    factor = np.array([0.3, -7.7], f32)
    swapped = np.ascontiguousarray(a[:, ::-1])
    rows = [
        a + b,
        a * b,
        fma32(a, b, factor),
        a * factor[::-1],
        -a - b[:, :1],
        fma32(swapped, factor[0], b),
    ]
    return Launch(
        "packed_floats",
        (2,),
        (256,),
        [poisoned((n, 6, 2), f32), a, b, factor.view(u64)[0], i32(n)],
        {0: np.stack(rows, 1)},
    )
