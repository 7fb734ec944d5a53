"""16-bit halves, atomics that return, tuples and counters in LDS, each by its instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from support.vgpu.kernel_harness import Array, Launch, Made, Rng, case, expect, poisoned

from .inputs import edges, f32, f64, integers, small_floats, u8, u16, u32, u64, wrap
from .words import signed

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def d16_row(raw: Array, lane: int, limit: int) -> list[int]:
    """With SRAM ECC, which these chips have, the half that is not loaded becomes 0."""

    def forms(offset: int, guarded: bool) -> list[int]:
        byte = 0 if guarded and offset + 1 > limit else int(raw[offset])
        half = 0 if guarded and offset + 2 > limit else int(raw[offset]) | int(raw[offset + 1]) << 8
        out = []
        for value in (byte, signed(byte, 8) & 0xFFFF, half):
            out += [value, value << 16]
        return out

    return [
        *forms(2 * lane + 6, False),
        *forms(2 * lane + 2, False),
        *forms(2 * lane + 3, False),
        *forms(2 * lane + 5, True),
    ]


@case("asm_memory")
def d16_loads(rng: Rng) -> Made:
    raw, limit = integers(rng, 1200, u8), 301
    rows = [d16_row(raw, lane, limit) for lane in range(256)]
    return Launch(
        "d16_loads",
        (1,),
        (256,),
        [poisoned((256, 24), u32), raw, u32(limit)],
        {0: np.array(rows, u32)},
    )


@case("asm_memory")
def d16_stores(rng: Rng) -> Made:
    a = integers(rng, 256, u32)
    lds = np.stack([a >> 16 & 0xFF, a >> 8 & 0xFF, a >> 16 & 0xFF, a >> 24], 1).astype(u8)
    return Launch(
        "d16_stores",
        (1,),
        (256,),
        [poisoned(256, u8), poisoned(256, u16), poisoned((256, 4), u8), a],
        {0: (a >> 16).astype(u8), 1: (a >> 16).astype(u16), 2: lds},
    )


def updates(a: int, b: int, bits: int) -> dict[str, int]:
    sa, sb = signed(a, bits), signed(b, bits)
    return {
        "add": a + b,
        "sub": a - b,
        "rsub": b - a,
        "inc": 0 if a >= b else a + 1,
        "dec": b if a == 0 or a > b else a - 1,
        "smin": min(sa, sb),
        "smax": max(sa, sb),
        "umin": min(a, b),
        "umax": max(a, b),
        "and": a & b,
        "or": a | b,
        "xor": a ^ b,
        "swap": b,
    }


LDS_NAMES = "add sub rsub inc dec smin smax umin umax and or xor swap".split()
GLOBAL_NAMES = [name for name in LDS_NAMES if name != "rsub"]


def lds_row(a: int, b: int, c: int, bits: int) -> list[int]:
    """Of two operands LDS compares with the first, stores the second; mskor clears, then sets."""
    results = updates(a, b, bits)
    out = [v for name in LDS_NAMES for v in (a, results[name])]
    out += [a, c if a == b else a, a, (a & ~b) | c]
    return [*out, a, a - b if a >= b else a + c] if bits == 32 else out


def global_row(a: int, b: int, c: int, bits: int) -> list[int]:
    """Global memory takes {new value, compared value}."""
    results = updates(a, b, bits)
    return [*(v for name in GLOBAL_NAMES for v in (a, results[name])), a, b if a == c else a]


def three_inputs(rng: Rng, n: int, dtype: DTypeLike) -> tuple[Array, Array, Array]:
    a, b, c = (rng.permutation(edges(rng, n, dtype)) for _ in range(3))
    b[::4], c[1::4] = a[::4], a[1::4]
    return a, b, c


def returns_case(
    space: str, dtype: DTypeLike, row_of: Callable[[int, int, int, int], list[int]]
) -> None:
    bits = np.dtype(dtype).itemsize * 8
    name = f"{space}_returns_u{bits}"

    @case("asm_memory", name)
    def make(rng: Rng) -> Made:
        n = 256
        a, b, c = three_inputs(rng, n, dtype)
        rows = [row_of(int(x), int(y), int(z), bits) for x, y, z in zip(a, b, c, strict=True)]
        out = poisoned((n, len(rows[0])), dtype)
        if space == "lds":
            return Launch(name, (1,), (n,), [out, a, b, c], {0: wrap(rows, dtype)})
        last_column = wrap([r[-1] for r in rows], dtype)
        return Launch(
            name,
            (2,),
            (128,),
            [out, poisoned(n, dtype), a, b, c],
            {0: wrap(rows, dtype), 1: last_column},
        )


for _dtype in (u32, u64):
    returns_case("lds", _dtype, lds_row)
    returns_case("global", _dtype, global_row)


def float_returns_case(dtype: DTypeLike, bits_type: DTypeLike) -> None:
    name = f"lds_returns_f{np.dtype(dtype).itemsize * 8}"

    @case("asm_memory", name)
    def make(rng: Rng) -> Made:
        n = 256
        a, b, c = (small_floats(rng, n, dtype) for _ in range(3))
        b[::3] = a[::3]
        updated = [a + b, np.minimum(a, b), np.maximum(a, b)]
        if dtype is f32:
            updated.append(np.where(a == b, c, a))
        rows = np.stack([v for value in updated for v in (a, value)], 1)
        zero_sign = np.array(0, dtype) + rows  # -0.0 and 0.0 are equal to every operation here

        def check(actual: Array) -> None:
            expect(np.array(0, dtype) + actual.view(dtype), zero_sign)

        return Launch(name, (1,), (n,), [poisoned(rows.shape, bits_type), a, b, c], {0: check})


float_returns_case(f32, u32)
float_returns_case(f64, u64)


@case("asm_memory")
def lds_tuples(rng: Rng) -> Made:
    a = integers(rng, 256, u32)
    x, y = a, a + u32(1)
    # The pair is {x, y}; the exchange puts {y, x} there and returns {x, y}.
    last_column = x * u32(3) + y * u32(5) + y * u32(7) + x * u32(11)
    rows = np.stack([a + u32(2), a, y, a + u32(2), y, last_column], 1)
    return Launch("lds_tuples", (1,), (256,), [poisoned((256, 6), u32), a], {0: rows})


@case("asm_memory")
def append_consume(rng: Rng) -> Made:
    active = np.arange(64) % 3 == 0
    count = int(active.sum())
    rows = np.where(active[:, None], np.array([100, 100 + count]), 0)
    return Launch("append_consume", (1,), (64,), [poisoned((64, 2), u32)], {0: rows.astype(u32)})
