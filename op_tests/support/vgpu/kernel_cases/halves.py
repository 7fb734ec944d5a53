"""Half precision and bfloat16, scalar and packed; dot products of packed numbers."""

from __future__ import annotations

import numpy as np
import torch

from support.vgpu.kernel_harness import Close, Launch, Made, Rng, arch_case, case, poisoned

from .inputs import (
    bf16_of,
    edges,
    f16,
    f32,
    f32_of,
    f64,
    i8,
    i16,
    i32,
    i64,
    integers,
    small_floats,
    tame_floats,
    u16,
    u32,
    wild_floats,
    wrap,
)


@case("halfs")
def half_operations(rng: Rng) -> Made:
    n = 700
    a, b = tame_floats(rng, n, f16, 5), tame_floats(rng, n, f16, 5)
    fused = (a.astype(f64) * b + 0.5).astype(f16)
    rows = [
        a + b,
        a - b,
        a * b,
        fused,
        np.minimum(a, b),
        np.maximum(a, b),
        np.floor(a),
        np.rint(a),
        np.abs(a),
        np.where(a < b, a, -b),
        a.astype(i16).astype(f16),
        np.arange(n).astype(u16).astype(f16),
    ]
    return Launch(
        "half_operations",
        (3,),
        (256,),
        [poisoned((n, 12), f16), a, b, i32(n)],
        {0: np.stack(rows, 1)},
    )


@case("halfs")
def half_quotients(rng: Rng) -> Made:
    n = 500
    a, b = tame_floats(rng, n, f16, 4), tame_floats(rng, n, f16, 4)
    return Launch(
        "half_quotients",
        (2,),
        (256,),
        [poisoned(n, f16), poisoned(n, f16), a, b, i32(n)],
        {
            0: Close(a.astype(f64) / b, 2.0**-10, 2.0**-24),
            1: Close(np.sqrt(np.abs(a.astype(f64))), 2.0**-10, 2.0**-24),
        },
    )


@case("halfs")
def packed_halves(rng: Rng) -> Made:
    n = 300
    a, b = (
        tame_floats(rng, 2 * n, f16, 4).reshape(n, 2),
        tame_floats(rng, 2 * n, f16, 4).reshape(n, 2),
    )
    factor = np.array([1.5, -0.25], f16)
    fused = (a.astype(f64) * b + factor).astype(f16)
    rows = [
        a + b,
        a * b,
        fused,
        np.minimum(a, b),
        np.maximum(a, factor[::-1]),
        a[:, ::-1] - b,
        a[:, :1] * -b[:, ::-1],
        np.stack([b[:, 1], a[:, 0]], 1),
    ]
    return Launch(
        "packed_halves",
        (2,),
        (256,),
        [poisoned((n, 8, 2), f16), a, b, factor.view(u32)[0], i32(n)],
        {0: np.stack(rows, 1)},
    )


@case("halfs")
def packed_shorts(rng: Rng) -> Made:
    n = 300
    a, b = edges(rng, 2 * n, i16).reshape(n, 2), edges(rng, 2 * n, i16)[::-1].reshape(n, 2).copy()
    wa, wb = a.astype(i64), b.astype(i64)
    low, high = -32768, 32767
    rows = [
        wa + wb,
        wa - wb,
        wa * wb,
        np.minimum(a, b),
        np.maximum(a, b),
        wa << (wb & 15),
        wa >> (wb & 15),
        wa * wb + wa[:, ::-1],
        np.clip(wa + wb, low, high),
        np.clip(wa - wb[:, ::-1], low, high),
    ]
    return Launch(
        "packed_shorts",
        (2,),
        (256,),
        [poisoned((n, 10, 2), i16), a, b, i32(n)],
        {0: wrap(np.stack(rows, 1), i16)},
    )


@case("halfs")
def bfloat_operations(rng: Rng) -> Made:
    n = 500
    a, b = bf16_of(tame_floats(rng, n)), bf16_of(tame_floats(rng, n))
    wa, wb = f32_of(a), f32_of(b)
    rows = [
        bf16_of(wa + wb),
        bf16_of(wa * wb),
        bf16_of(wa * f32(3) + f32(1)),
        np.where(wa > wb, a, b),
        a ^ 0x8000,
    ]
    return Launch(
        "bfloat_operations",
        (2,),
        (256,),
        [poisoned((n, 5), u16), a, b, i32(n)],
        {0: np.stack(rows, 1)},
    )


@case("halfs")
def narrow_and_widen(rng: Rng) -> Made:
    n = 1000
    a = wild_floats(rng, n)
    a = np.where(np.isnan(a), f32(1.00390625), a)
    a[::3] = tame_floats(rng, a[::3].size, spread=16)
    with np.errstate(all="ignore"):
        brain, half = bf16_of(a), a.astype(f16)
        difference = f32_of(brain) - half.astype(f32)
    return Launch(
        "narrow_and_widen",
        (4,),
        (256,),
        [poisoned(n, u16), poisoned(n, f16), poisoned(n, f32), a, i32(n)],
        {0: brain, 1: half, 2: difference},
    )


def dot_halves_case(source: str, kernel: str) -> None:
    @case(source, kernel)
    def make(rng: Rng) -> Made:
        lanes, pairs = 128, 11
        a, b = (
            small_floats(rng, (lanes, 2 * pairs), f16),
            small_floats(rng, (lanes, 2 * pairs), f16),
        )
        expected = (a.astype(f64) * b).sum(1).astype(f32)
        return Launch(kernel, (2,), (64,), [poisoned(lanes, f32), a, b, i32(pairs)], {0: expected})


dot_halves_case("halfs", "mixed_dot")
dot_halves_case("dots", "dot_halves")


def split_elements(value: int, bits: int, signed: bool) -> list[int]:
    out = [value >> index & ((1 << bits) - 1) for index in range(0, 32, bits)]
    return [v - (1 << bits) if signed and v >> (bits - 1) else v for v in out]


def dot(a: int, b: int, bits: int, signed: bool) -> int:
    return sum(
        x * y
        for x, y in zip(
            split_elements(a, bits, signed), split_elements(b, bits, signed), strict=True
        )
    )


@case("dots")
def dot_bytes(rng: Rng) -> Made:
    n = 400
    a, b, c = edges(rng, n, u32), integers(rng, n, u32), edges(rng, n, i32)
    rows = [
        [
            dot(x, y, 8, True) + z,
            dot(x, y, 8, False) + z,
            dot(x, y, 4, True) + z,
            dot(x, y, 4, False) + z,
            dot(x, y, 16, True) + z,
        ]
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    return Launch(
        "dot_bytes", (2,), (256,), [poisoned((n, 5), i32), a, b, c, i32(n)], {0: wrap(rows, i32)}
    )


@case("dots")
def dot_saturated(rng: Rng) -> Made:
    n = 300
    a, b, c = integers(rng, n, u32), integers(rng, n, u32), edges(rng, n, i32)
    rows = [
        [
            max(-(1 << 31), min((1 << 31) - 1, dot(x, y, 8, True) + z)),
            min((1 << 32) - 1, dot(x, y, 8, False) + (z & 0xFFFFFFFF)),
        ]
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    return Launch(
        "dot_saturated",
        (2,),
        (256,),
        [poisoned((n, 2), i32), a, b, c, i32(n)],
        {0: wrap(rows, i32)},
    )


@case("dots")
def gemm_i8(rng: Rng) -> Made:
    rows, columns, k = 19, 37, 64
    a, b = integers(rng, (rows, k), i8), integers(rng, (columns, k), i8)
    expected = a.astype(i32) @ b.astype(i32).T
    return Launch(
        "gemm_i8",
        (3, 3),
        (16, 8),
        [poisoned((rows, columns), i32), a, b, i32(rows), i32(columns), i32(k // 4)],
        {0: expected},
    )


@arch_case("gemm_fp8")
def gemm_fp8(rng: Rng, arch: str) -> Made:
    """Small integers, which fp8 holds and fp32 sums exactly."""
    rows, columns, k = 128, 256, 96
    a, b = (rng.integers(-16, 17, (n, k)) for n in (rows, columns))
    kind = torch.float8_e4m3fn if arch == "gfx950" else torch.float8_e4m3fnuz
    codes = [
        torch.from_numpy(m).to(torch.float32).to(kind).view(torch.uint8).numpy() for m in (a, b)
    ]
    return Launch(
        "gemm_fp8",
        (rows // 128, columns // 128),
        (256,),
        [poisoned((rows, columns), f32), *codes, i32(columns), i32(k)],
        {0: (a @ b.T).astype(f32)},
    )
