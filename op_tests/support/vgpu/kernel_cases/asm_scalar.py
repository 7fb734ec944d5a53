"""Scalar instructions by name, each with the condition code that it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.vgpu.kernel_harness import Launch, Made, Rng, case, poisoned

from .inputs import i32, u32, u64, wrap
from .words import M32, M64, leading_zeros, reversed_bits, sign_run, signed, trailing_zeros, word


def field(value: int, control: int, bits: int) -> int:
    offset, width = control & (bits - 1), control >> 16 & 0x7F
    return value >> offset & ((1 << width) - 1)


def field_signed(value: int, control: int, bits: int) -> int:
    width = control >> 16 & 0x7F
    return signed(field(value, control, bits), width) if width else 0


def scalar_two_rows(a: int, b: int) -> list[tuple[int, int]]:
    sa, sb = signed(a), signed(b)

    def flagged(value: int) -> tuple[int, int]:
        return value, int(value & M32 != 0)

    def overflow(value: int) -> tuple[int, int]:
        return value, int(signed(value) != value)

    shift = b & 31
    shifted = [((a << k) + b, int((a << k) + b > M32)) for k in (1, 2, 3, 4)]
    return [
        (a + b, int(a + b > M32)),
        (a - b, int(b > a)),
        overflow(sa + sb),
        overflow(sa - sb),
        (min(sa, sb), int(sa < sb)),
        (min(a, b), int(a < b)),
        (max(sa, sb), int(sa > sb)),
        (max(a, b), int(a > b)),
        flagged(a & b),
        flagged(a | b),
        flagged(a ^ b),
        flagged(a & ~b),
        flagged(a | ~b),
        flagged(~(a & b)),
        flagged(~(a | b)),
        flagged(~(a ^ b)),
        flagged(a << shift),
        flagged(a >> shift),
        flagged(sa >> shift),
        flagged(field(a, b, 32)),
        flagged(field_signed(a, b, 32)),
        flagged(abs(signed(sa - sb))),
        *shifted,
    ]


PAIRS = [
    (0x80000001, 0x000D0005),
    (0x7FFFFFFF, 0x00080014),
    (0x12345678, 0xFF100004),
    (5, 0x80000003),
    (0xFFFFFFFF, 0x00200000),
    (0xDEADBEEF, 0x0001001F),
    (0, 0x00030001),
    (0x40000000, 0x40000000 | 7),
]


def scalar_launch(kernel: str, pairs: list[tuple[int, int]], args: list[Any], bits: int) -> Launch:
    out = []
    for value, scc in pairs:
        out += [value & ((1 << bits) - 1), scc]
    return Launch(kernel, (1,), (64,), [poisoned(len(out), u64), *args], {0: wrap(out, u64)})


@case("asm_scalar")
def scalar_two(rng: Rng) -> Made:
    launches = []
    for a, b in PAIRS:
        rows = scalar_two_rows(a, b)
        launches.append(scalar_launch("scalar_two", rows, [u32(a), u32(b)], 32))
    return launches


@case("asm_scalar")
def scalar_plain(rng: Rng) -> Made:
    launches = []
    for a, b in PAIRS:
        inverse = ~a & M32
        values = [
            a * b,
            a * b >> 32,
            signed(a) * signed(b) >> 32,
            ((1 << (a & 31)) - 1) << (b & 31),
            word(a, 0) | word(b, 0) << 16,
            word(a, 0) | word(b, 1) << 16,
            word(a, 1) | word(b, 1) << 16,
            reversed_bits(a),
            trailing_zeros(inverse) if inverse else -1,
            trailing_zeros(a) if a else -1,
            leading_zeros(a) if a else -1,
            sign_run(a),
            signed(a, 8),
            signed(a, 16),
            a,
        ]
        launches.append(
            scalar_launch("scalar_plain", [(v, 0) for v in values], [u32(a), u32(b)], 32)
        )
    return launches


@case("asm_scalar")
def scalar_one(rng: Rng) -> Made:
    launches = []
    for a in (0, 1, M32, 0x80000000, 0x00F00010, 0x80000001, 12345):
        quads = [a >> 4 * q & 15 for q in range(8)]
        quad_mask = sum(15 << 4 * q for q in range(8) if quads[q])
        values = [
            ~a & M32,
            quad_mask,
            32 - a.bit_count(),
            a.bit_count(),
            abs(signed(a)) & M32,
            sum(1 << q for q in range(8) if quads[q]),
        ]
        launches.append(
            scalar_launch("scalar_one", [(v, int(v != 0)) for v in values], [u32(a)], 32)
        )
    return launches


@case("asm_scalar")
def scalar_wide(rng: Rng) -> Made:
    launches = []
    for a, b, c in (
        (0x8000000000000001, 0xF0F0F0F0F0F0F0F0, 0x00140020),
        (M64, 0, 0x00400000),
        (0x123456789ABCDEF0, 0xFFFFFFFF00000000, 0x00080004),
        (0, 0, 5),
    ):
        shift = c & 63
        values = [
            a & b, a | b, a ^ b, a & ~b, a | ~b, ~(a & b), ~(a | b), ~(a ^ b), a << shift,
            a >> shift, signed(a, 64) >> shift, field(a, c, 64), field_signed(a, c, 64), ~a,
            64 - a.bit_count(), a.bit_count(),
        ]  # fmt: skip
        values = [v & M64 for v in values]
        launches.append(
            scalar_launch(
                "scalar_wide", [(v, int(v != 0)) for v in values], [u64(a), u64(b), u32(c)], 64
            )
        )
    return launches


@case("asm_scalar")
def scalar_compare(rng: Rng) -> Made:
    launches = []
    for a, b, wa, wb in (
        (1, 2, 5, 5),
        (-1, 2, 5, 6),
        (7, 7, 1 << 40, 0),
        (5, -9, 0, 0),
        (-3, -3, 1, 1),
    ):
        ua, ub = a & M32, b & M32
        bit = ua >> (ub & 31) & 1
        expected = [
            a == b, a != b, a > b, a >= b, a < b, a <= b, ua == ub, ua != ub, ua > ub, ua >= ub,
            ua < ub, ua <= ub, not bit, bit, wa == wb, wa != wb,
        ]  # fmt: skip
        launches.append(
            Launch(
                "scalar_compare",
                (1,),
                (64,),
                [poisoned(16, u32), i32(a), i32(b), u64(wa), u64(wb)],
                {0: np.array(expected, u32)},
            )
        )
    return launches


@case("asm_scalar")
def scalar_immediate(rng: Rng) -> Made:
    launches = []
    for a, b in ((0xFFFFFFFF, 2), (0x1235, 0), (0x1234, 0xFFFFFFF0), (8, 0x80000000)):
        low = a + b
        expected = [
            low,
            b + a + (low >> 32),
            (a | 0x80) & ~8,
            -128 if a > 0x1234 else b,
            a * -3 + 0x7FFF,
            b if b else -32767,
        ]
        launches.append(
            Launch(
                "scalar_immediate",
                (1,),
                (64,),
                [poisoned(6, u32), u32(a), u32(b)],
                {0: wrap(expected, u32)},
            )
        )
    return launches
