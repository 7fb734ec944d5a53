"""Hashes, bit operations, division, wide integers."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Launch, Made, Rng, blocks, case, poisoned

from .inputs import divide_toward_zero, edges, i8, i16, i32, i64, integers, u8, u16, u32, u64, wrap
from .words import (
    M32,
    M64,
    byte_differences,
    leading_zeros,
    permuted,
    quotient,
    reversed_bits,
    rotated_left,
    signed,
    trailing_zeros,
)


@case("hash")
def murmur(rng: Rng) -> Made:
    n, seed = 1000, 0x1234ABCD
    a = edges(rng, n, u32)
    with np.errstate(over="ignore"):
        h = np.full(n, seed, u32)
        for word in range(4):
            k = (a + u32(word * 0x9E3779B9 & M32)) * u32(0xCC9E2D51)
            k = (k << 15 | k >> 17) * u32(0x1B873593)
            h ^= k
            h = (h << 13 | h >> 19) * u32(5) + u32(0xE6546B64)
        h ^= h >> 16
        h *= u32(0x85EBCA6B)
        h ^= h >> 13
        h *= u32(0xC2B2AE35)
        h ^= h >> 16
    return Launch(
        "murmur", (blocks(n, 256),), (256,), [poisoned(n, u32), a, u32(seed), i32(n)], {0: h}
    )


def bit_row(a: int, b: int) -> list[int]:
    s = b & 31
    sa24, sb24 = signed(a << 8) >> 8, signed(b << 8) >> 8
    return [
        a * b >> 32,
        signed(a) * signed(b) >> 32,
        leading_zeros(a),
        trailing_zeros(a),
        a.bit_count(),
        trailing_zeros(a) + 1 if a else 0,
        reversed_bits(a),
        int.from_bytes(a.to_bytes(4, "little"), "big"),
        rotated_left(a, s),
        rotated_left(a, 32 - s),
        a >> (b & 15) & 0x3FF,
        signed(a << 7) >> 20,
        (a & b) | (~a & 0x12345678),
        (a << 32 | b) >> 11,
        permuted(a, b, 0x07020500),
        (a & 0xFFFFFF) * (b & 0xFFFFFF) + 77,
        sa24 * sb24,
        a >> s & 0x1FF,
        (((a >> s & 0x1FF) ^ 0x100) - 0x100) if s + 9 < 32 else signed(a) >> s,
        5 + byte_differences(a, b),
    ]


@case("hash")
def bit_operations(rng: Rng) -> Made:
    n = 500
    a, b = edges(rng, n, u32), rng.permutation(edges(rng, n, u32))
    expected = wrap([bit_row(int(x), int(y)) for x, y in zip(a, b, strict=True)], u32)
    return Launch(
        "bit_operations", (2,), (256,), [poisoned((n, 20), u32), a, b, i32(n)], {0: expected}
    )


def logic_row(a: int, b: int, c: int) -> list[int]:
    saturated = max(-(1 << 31), min((1 << 31) - 1, a + b))
    return [
        a + b + c,
        (a << 3) + b,
        (a + b) << 5,
        (a & b) | c,
        a | b | c,
        (a << 9) | c,
        a ^ b ^ c,
        ~(a ^ b),
        sorted((a, b, c))[1],
        max(a, b, c),
        min(a, b, c),
        a >> (b & 31),
        (a & M32) >> (c & 31),
        (a ^ b) - c,
        abs(a),
        saturated,
    ]


@case("hash")
def mixed_logic(rng: Rng) -> Made:
    n = 500
    a, b, c = (rng.permutation(edges(rng, n, i32)) for _ in range(3))
    rows = [logic_row(int(x), int(y), int(z)) for x, y, z in zip(a, b, c, strict=True)]
    return Launch(
        "mixed_logic", (2,), (256,), [poisoned((n, 16), i32), a, b, c, i32(n)], {0: wrap(rows, i32)}
    )


@case("hash")
def fnv_64(rng: Rng) -> Made:
    n, text = 130, integers(rng, 57, u8)
    expected = []
    for i in range(n):
        h = 0xCBF29CE484222325 + i
        for byte in text:
            h = (h ^ int(byte)) * 0x100000001B3 & M64
        expected.append(h)
    return Launch(
        "fnv_64",
        (3,),
        (64,),
        [poisoned(n, u64), text, i32(text.size), i32(n)],
        {0: np.array(expected, u64)},
    )


def division_case(name: str, dtype: type) -> None:
    @case("integers", f"divide_{name}")
    def make(rng: Rng) -> Made:
        n = 1200
        a, b = edges(rng, n, dtype), rng.permutation(edges(rng, n, dtype))
        b = np.where(b == 0, dtype(3), b).astype(dtype)
        overflow = (a == np.iinfo(dtype).min) & (b == dtype(-1 if np.iinfo(dtype).min else 1))
        a = np.where(overflow, dtype(5), a).astype(dtype)
        quotient, remainder = divide_toward_zero(a, b)
        return Launch(
            f"divide_{name}",
            (blocks(n, 256),),
            (256,),
            [poisoned(n, dtype), poisoned(n, dtype), a, b, i32(n)],
            {0: quotient, 1: remainder},
        )


for _name, _dtype in {
    "i8": i8,
    "u8": u8,
    "i16": i16,
    "u16": u16,
    "i32": i32,
    "u32": u32,
    "i64": i64,
    "u64": u64,
}.items():
    division_case(_name, _dtype)


@case("integers")
def divide_uniform(rng: Rng) -> Made:
    n = 300
    a = edges(rng, n, i64)
    launches = []
    for by64, by32, by_unsigned in ((12345678901, -77, 3000000001), (-3, 1 << 30, 1)):
        rows = [
            [
                quotient(int(v), by64),
                signed(int(v)) - quotient(signed(int(v)), by32) * by32,
                (int(v) & M32) // by_unsigned,
                quotient(by64, by32) + n % by_unsigned,
            ]
            for v in a
        ]
        launches.append(
            Launch(
                "divide_uniform",
                (2,),
                (256,),
                [poisoned((n, 4), i64), a, i64(by64), i32(by32), u32(by_unsigned), i32(n)],
                {0: wrap(rows, i64)},
            )
        )
    return launches


@case("integers")
def divide_by_constants(rng: Rng) -> Made:
    n = 700
    a = edges(rng, n, i32)
    rows = []
    for v in map(int, a):
        rows.append(
            [
                quotient(v, 3),
                quotient(v, 7),
                v - quotient(v, 10) * 10,
                quotient(v, -13),
                (v & M32) // 641,
                (v & M32) % 1000003,
                quotient(v, 16),
                v - quotient(v, 4096) * 4096,
            ]
        )
    return Launch(
        "divide_by_constants",
        (3,),
        (256,),
        [poisoned((n, 8), i32), a, i32(n)],
        {0: wrap(rows, i32)},
    )


def wide_row(a: int, b: int) -> list[int]:
    s, sa, sb = b & 63, signed(a, 64), signed(b, 64)
    swapped = int.from_bytes(a.to_bytes(8, "little"), "big")
    return [
        a + b,
        a - b,
        a * b,
        a << s,
        a >> s,
        sa >> s,
        leading_zeros(a, 64),
        trailing_zeros(a, 64),
        a.bit_count(),
        min(sa, sb),
        max(a, b),
        abs(sa),
        a * b >> 64,
        sa * sb >> 64,
        (a == b) + 2 * (a <= b) + 4 * (sa >= sb) + 8 * (a != b),
        swapped ^ reversed_bits(b, 64),
        signed(a) * signed(b) + a,
        rotated_left(a, s, 64),
    ]


@case("integers")
def wide_operations(rng: Rng) -> Made:
    n = 400
    a, b = edges(rng, n, u64), rng.permutation(edges(rng, n, u64))
    rows = [wide_row(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    return Launch(
        "wide_operations",
        (2,),
        (256,),
        [poisoned((n, 18), u64), a, b, i32(n)],
        {0: wrap(rows, u64)},
    )


@case("integers")
def sum_128(rng: Rng) -> Made:
    a = integers(rng, 37, u64)
    total = sum(int(v) ** 2 for v in a)
    sums = [total + i + 37 * i for i in range(128)]
    return Launch(
        "sum_128",
        (2,),
        (64,),
        [poisoned((128, 2), u64), a, i32(a.size)],
        {0: wrap([[s, s >> 64] for s in sums], u64)},
    )


@case("integers")
def scalar_chain(rng: Rng) -> Made:
    a, b, rounds = 0x0123456789ABCDEF, 0xFEDCBA9876543211, 100
    state = a
    for i in range(rounds):
        state = (state * 6364136223846793005 + b) & M64
        state ^= state >> 29
        state = rotated_left(state, 17, 64)
        if state.bit_count() & 1:
            state = (state + leading_zeros(state | 1, 64)) & M64
        state = (state - (signed(state) >> 3)) & M64
        if state >> 63:
            state = ~state & ~(a >> 1) & M64
        state ^= reversed_bits(state, 64) >> (i & 31)
    return Launch(
        "scalar_chain",
        (3,),
        (64,),
        [poisoned(3, u64), u64(a), u64(b), i32(rounds)],
        {0: np.full(3, state, u64)},
    )
