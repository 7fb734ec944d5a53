"""Vector instructions by name: three, two and one operand, sub-dword forms, modifiers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.vgpu.kernel_harness import Array, Check, Launch, Made, Rng, case, poisoned

from .floats import fma32
from .inputs import edges, f32, i32, tame_floats, u32, u64, wrap
from .words import (
    M32,
    byte,
    byte_differences,
    leading_zeros,
    permuted,
    reversed_bits,
    sign_run,
    signed,
    trailing_zeros,
    word,
)

# Values, values with a mask of the bits that count, or None where any result will do.
Row = list[int | tuple[int, int] | None]
LOW16 = 0xFFFF


def table_check(rows: list[Row]) -> Check:
    """Compares where a row holds a number; a pair is (value, mask)."""

    def check(actual: Array) -> None:
        for i, row in enumerate(rows):
            for j, want in enumerate(row):
                if want is None:
                    continue
                value, mask = want if isinstance(want, tuple) else (want, M32)
                element, value = int(actual[i, j]) & mask, value & mask
                assert element == value, (
                    f"row {i}, column {j}: got {element:#x}, expected {value:#x}"
                )

    return check


def sad_u16(a: int, b: int) -> int:
    return sum(abs(word(a, i) - word(b, i)) for i in range(2))


def median(a: int, b: int, c: int) -> int:
    return sorted((a, b, c))[1]


def three_row(a: int, b: int, c: int) -> Row:
    sa, sb, sc = signed(a), signed(b), signed(c)
    sad = byte_differences(a, b)
    masked = sum(abs(byte(a, i) - byte(b, i)) for i in range(4) if byte(b, i))
    return [
        a + b + c,
        (a << (b & 31)) + c,
        (a + b) << (c & 31),
        (a & b) | c,
        a | b | c,
        (a << (b & 31)) | c,
        (a ^ b) + c,
        (a & b) | (~a & c),
        (a << 32 | b) >> (c & 31),
        (a << 32 | b) >> 8 * (c & 3),
        permuted(a, b, c),
        sad + c,
        (sad << 16) + c,
        sad_u16(a, b) + c,
        abs(a - b) + c,
        signed(a, 24) * signed(b, 24) + c,
        (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
        median(sa, sb, sc),
        median(a, b, c),
        min(sa, sb, sc),
        max(a, b, c),
        min(a, b, c),
        max(sa, sb, sc),
        ((a * b + c) & LOW16, LOW16),
        word(a, 0) * word(b, 0) + c,
        masked + c,
    ]


def is_nan16(half: int) -> bool:
    return half & 0x7C00 == 0x7C00 and half & 0x3FF != 0


def two_row(a: int, b: int, lane: int) -> Row:
    wa, wb, ia, ib = word(a, 0), word(b, 0), signed(a, 16), signed(b, 16)
    product = signed(a, 24) * signed(b, 24)
    wide_u = (a & 0xFFFFFF) * (b & 0xFFFFFF)
    lower_lanes = (1 << min(lane, 32)) - 1
    pair = None if is_nan16(wa) or is_nan16(wb) else wb << 16 | wa
    return [
        product,
        product >> 32,
        wide_u,
        wide_u >> 32,
        a * b,
        a * b >> 32,
        signed(a) * signed(b) >> 32,
        b << (a & 31),
        b >> (a & 31),
        signed(b) >> (a & 31),
        a.bit_count() + b,
        ((1 << (a & 31)) - 1) << (b & 31),
        ~(a ^ b),
        a - b,
        b - a,
        min(wa, wb),
        max(ia, ib) & LOW16,
        (wa + wb) & LOW16,
        (wa - wb) & LOW16,
        wa * wb & LOW16,
        wb << (a & 15) & LOW16,
        (ib >> (a & 15)) & LOW16,
        wb >> (a & 15),
        (a & lower_lanes).bit_count() + b,
        pair,
        min(a, LOW16) | min(b, LOW16) << 16,
    ]


def one_row(a: int, b: int, c: int) -> Row:
    saturated = [max(0, min(255, signed(word(a, i), 16))) for i in range(2)]
    return [
        ~a,
        reversed_bits(a),
        leading_zeros(a) if a else -1,
        trailing_zeros(a) if a else -1,
        sign_run(a),
        (saturated[0] | saturated[1] << 8, LOW16),
        a,
        b + c,
    ]


def sub_dword_row(a: int, b: int, c: int) -> Row:
    third = (word(a, 0) - byte(b, 0)) & LOW16
    tenth = byte(a, 3) ^ byte(b, 2)
    return [
        byte(a, 1) + word(b, 1),
        (c & ~0xFF0000) | (((a + byte(b, 3)) & 0xFF) << 16),
        signed(third, 16),
        (word(a, 1) & word(b, 0)) << 16,
        (c & 0xFFFFFF) | (byte(a, 0) | byte(b, 0)) << 24,
        word(b, 1) << (byte(a, 0) & 31),
        signed(byte(a, 2), 8) + signed(word(b, 0), 16),
        (c & LOW16) | (signed(byte(a, 3), 8) & LOW16) << 16,
        a if byte(a, 0) > byte(b, 1) else 0,
        (signed(tenth, 8) << 8),
    ]


def vector_case(name: str, columns: int, row_of: Callable[[int, int, int, int], Row]) -> None:
    @case("asm_vector", name)
    def make(rng: Rng) -> Made:
        n = 300
        a, b, c = (rng.permutation(edges(rng, n, u32)) for _ in range(3))
        rows = [
            row_of(int(x), int(y), int(z), i % 64)
            for i, (x, y, z) in enumerate(zip(a, b, c, strict=True))
        ]
        assert all(len(r) == columns for r in rows)
        return Launch(
            name,
            (2,),
            (256,),
            [poisoned((n, columns), u32), a, b, c, i32(n)],
            {0: table_check(rows)},
        )


vector_case("three_operands", 26, lambda a, b, c, _: three_row(a, b, c))
vector_case("two_operands", 26, lambda a, b, c, lane: two_row(a, b, lane))
vector_case("one_operand", 8, lambda a, b, c, _: one_row(a, b, c))
vector_case("sub_dword", 10, lambda a, b, c, _: sub_dword_row(a, b, c))


@case("asm_vector")
def carries(rng: Rng) -> Made:
    n = 300
    a, b = edges(rng, n, u64), rng.permutation(edges(rng, n, u64))
    rows = []
    for x, y in zip(map(int, a), map(int, b), strict=True):
        shift = y & 63
        x0, y1 = x & M32, y >> 32
        rows.append(
            [
                x + y,
                x - y,
                x0 * y1 + y,
                signed(x0) * signed(y1) + x,
                x << shift,
                signed(x, 64) >> shift,
                (x << 3) + y,
                y,
            ]
        )
    return Launch(
        "carries", (2,), (256,), [poisoned((n, 8), u64), a, b, i32(n)], {0: wrap(rows, u64)}
    )


@case("asm_vector")
def float_modifiers(rng: Rng) -> Made:
    n = 300
    a, b = tame_floats(rng, n), tame_floats(rng, n)
    five = np.maximum(np.maximum(a, -b), f32(0.5)) + f32(2) * b
    rows = [
        -a + np.abs(b),
        (a * b).clip(0, 1),
        (-np.abs(a) + b).clip(0, 1),
        fma32(-a, np.abs(b), 1.0),
        five,
        fma32(a, b, 3.140625),
        fma32(a, f32(-10), b),
        np.uint32(0x3E22F983).view(f32) - a,
    ]
    return Launch(
        "float_modifiers",
        (2,),
        (256,),
        [poisoned((n, 8), f32), a, b, i32(n)],
        {0: np.stack(rows, 1)},
    )
