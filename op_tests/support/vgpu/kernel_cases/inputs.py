"""Inputs that several cases share."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.vgpu.kernel_harness import Array, Rng

i8, u8, i16, u16 = np.int8, np.uint8, np.int16, np.uint16
i32, u32, i64, u64 = np.int32, np.uint32, np.int64, np.uint64
f16, f32, f64 = np.float16, np.float32, np.float64
EPS = float(np.finfo(f32).eps)


def integers(
    rng: Rng, shape: Any, dtype: Any, low: int | None = None, high: int | None = None
) -> Array:
    """Uniform integers over the type's range, or over [low, high)."""
    info = np.iinfo(dtype)
    return rng.integers(
        info.min if low is None else low,
        info.max if high is None else high - 1,
        shape,
        dtype,
        endpoint=True,
    )


def edges(rng: Rng, count: int, dtype: Any) -> Array:
    """Random bits with the edge values in front, magnitudes of every size behind."""
    info = np.iinfo(dtype)
    special = [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1, 7, 10, info.max // 2]
    out = integers(rng, count, dtype)
    shift = rng.integers(0, info.bits, count).astype(dtype)
    out = np.where(np.arange(count) % 2 == 0, out >> shift, out)
    out[: len(special)] = wrap(special, dtype)[:count]
    return out.astype(dtype)


def small_floats(rng: Rng, shape: Any, dtype: Any = f32) -> Array:
    """Quarters of small integers: sums and products of a few thousand stay exact in f32."""
    return (rng.integers(-32, 33, shape) * 0.25).astype(dtype)


def wild_floats(rng: Rng, count: int, dtype: Any = f32) -> Array:
    """Every kind of number: NaN, infinities, signed zeros, subnormals, all exponents."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}").type
    out = integers(rng, count, bits).view(dtype).copy()
    tiny = np.finfo(dtype).smallest_subnormal
    special = [
        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, tiny, -tiny,
        np.finfo(dtype).tiny, np.finfo(dtype).max, -np.finfo(dtype).max,
    ]  # fmt: skip
    picked = rng.integers(0, len(special), count)
    return np.where(rng.random(count) < 0.4, np.array(special, dtype)[picked], out).astype(dtype)


def tame_floats(rng: Rng, count: int, dtype: Any = f32, spread: float = 4.0) -> Array:
    """Finite numbers of both signs, magnitudes over several powers of two."""
    return (rng.standard_normal(count) * 2.0 ** rng.uniform(-spread, spread, count)).astype(dtype)


def bf16_of(values: Array) -> Array:
    """float32 to bfloat16 bits, to nearest even; NaN stays a quiet NaN."""
    raw = np.asarray(values, f32).view(u32).astype(u64)
    rounded = ((raw + 0x7FFF + ((raw >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(
        u16
    )
    return np.where(
        np.isnan(values), ((raw >> np.uint64(16)) | np.uint64(0x40)).astype(u16), rounded
    )


def f32_of(brain: Array) -> Array:
    return (brain.astype(u32) << 16).view(f32)


def divide_toward_zero(a: Array, b: Array) -> tuple[Array, Array]:
    """C's quotient and remainder."""
    wide_a, wide_b = a.astype(object), b.astype(object)
    quotient = abs(wide_a) // abs(wide_b)
    quotient = np.where((wide_a < 0) != (wide_b < 0), -quotient, quotient)
    return quotient.astype(a.dtype), (wide_a - quotient * wide_b).astype(a.dtype)


def wrap(values: Any, dtype: Any) -> Array:
    """Python integers to a machine type, modulo its range."""
    bits = np.dtype(dtype).itemsize * 8
    flat = [int(v) & ((1 << bits) - 1) for v in np.asarray(values, object).reshape(-1)]
    return np.array(flat, f"u{bits // 8}").view(dtype).reshape(np.shape(values))
