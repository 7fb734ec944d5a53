"""Conversions between integers, floats, halves and 8-bit floats."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import (
    Array,
    Check,
    Close,
    Launch,
    Made,
    Rng,
    arch_case,
    case,
    expect,
    poisoned,
)

from .inputs import (
    edges,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    integers,
    tame_floats,
    u8,
    u16,
    u32,
    u64,
    wrap,
)


def saturated(values: Array, low: int, high: int) -> list[int]:
    return [
        0 if np.isnan(v) else low if v <= low else high if v >= high else int(v) for v in values
    ]


@case("converts")
def saturate(rng: Rng) -> Made:
    n = 300
    special = [
        np.nan, np.inf, -np.inf, 3e9, -3e9, 5e9, 1e30, -1e30, 2147483648.0, -2147483648.0,
        4294967296.0, -0.75, 0.75, -0.0, 0.5, -0.5, 1.5, 2147483520.0,
    ]  # fmt: skip
    a = (rng.integers(-(10**6), 10**6, n) * 0.25).astype(f32)
    a[: len(special)] = special
    doubles = tame_floats(rng, n, f64, 34)
    doubles[: len(special)] = special
    signed, unsigned = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
    rows = [
        saturated(a, *signed),
        saturated(a, *unsigned),
        saturated(np.floor(a), *signed),
        saturated(np.floor(a + f32(0.5)), *signed),
        saturated(doubles, *signed),
        saturated(doubles, *unsigned),
    ]
    return Launch(
        "saturate",
        (2,),
        (256,),
        [poisoned((n, 6), i32), a, doubles, i32(n)],
        {0: wrap(np.array(rows, object).T, i32)},
    )


@case("converts")
def from_integers(rng: Rng) -> Made:
    n = 500
    a = edges(rng, n, i64)
    unsigned = a.view(u64)
    rows = [
        a.astype(i32),
        a.astype(u32),
        a,
        unsigned,
        a.astype(u8),
        (a >> 8).astype(u8),
        (a >> 16).astype(u8),
        a.astype(i16),
    ]
    expected = np.stack([r.astype(f32) for r in rows], 1)
    doubles = np.stack([a.astype(f64), unsigned.astype(f64)], 1)
    return Launch(
        "from_integers",
        (2,),
        (256,),
        [poisoned((n, 8), f32), poisoned((n, 2), f64), a, i32(n)],
        {0: expected, 1: doubles},
    )


@case("converts")
def to_integers(rng: Rng) -> Made:
    n = 500
    a = tame_floats(rng, n, spread=41)
    a = np.where(np.abs(a) < 2.4e13, a, f32(12345678.0))
    size = np.abs(a)
    rows = [
        a.astype(i64),
        size.astype(u64).astype(i64),
        (a / f32(1e6)).astype(i64),
        (a / f32(1e9)).astype(i64),
        (size / f32(1e11)).astype(i64),
    ]
    return Launch(
        "to_integers", (2,), (256,), [poisoned((n, 5), i64), a, i32(n)], {0: np.stack(rows, 1)}
    )


def half_toward_zero(a: Array) -> Array:
    with np.errstate(over="ignore"):
        half = a.astype(f16)
    raw = half.view(u16)
    return np.where(np.abs(half.astype(f64)) > np.abs(a.astype(f64)), raw - 1, raw).astype(u16)


@case("converts")
def pack(rng: Rng) -> Made:
    n = 400
    a, b = tame_floats(rng, n), tame_floats(rng, n)
    a[:3] = [70000.0, -65519.0, 1e-7]
    rtz = half_toward_zero(a) | half_toward_zero(b).astype(u32) << 16
    big = (a * f32(1e4)).astype(i64).clip(-(1 << 31), (1 << 31) - 1)
    shorts = big.clip(-32768, 32767).astype(u16) | b.astype(i64).astype(u16).astype(u32) << 16
    words = (np.abs(a) * f32(1e5)).astype(i64).clip(0, 65535).astype(u32) | np.arange(
        n, dtype=u32
    ) << 16
    byte = np.trunc(a).clip(0, 255).astype(u32)
    low = np.trunc(b * f32(300)).clip(0, 255).astype(u32)

    def check(actual: Array) -> None:
        exact = [
            (0, rtz),
            (3, shorts),
            (4, words),
            (5, (u32(0x11003344) | byte << 16)),
            (6, u32(0xFFFFFF00) | low),
        ]
        for column, expected in exact:
            try:
                expect(actual[:, column], expected.astype(u32))
            except AssertionError as error:
                raise AssertionError(f"column {column}: {error}") from None
        for column, dtype, factor, floor in ((1, i16, 32767, -1), (2, u16, 65535, 0)):
            floats = np.ascontiguousarray(actual[:, column]).view(dtype).reshape(n, 2).astype(f64)
            ideal = np.stack([a, b], 1).astype(f64).clip(floor, 1) * factor
            expect(floats, Close(ideal, absolute=1))

    return Launch("pack", (2,), (256,), [poisoned((n, 7), u32), a, b, i32(n)], {0: check})


@case("converts")
def narrow_signed(rng: Rng) -> Made:
    n = 300
    a = edges(rng, n, i32)
    return Launch(
        "narrow_signed",
        (2,),
        (256,),
        [poisoned(n, i8), poisoned(n, i16), poisoned(n, u16), a, i32(n)],
        {
            0: a.clip(-128, 127).astype(i8),
            1: (a >> 3).astype(i16),
            2: a.astype(i16).astype(f16).view(u16),
        },
    )


def float8_table(arch: str, exponent_bits: int) -> Array:
    """All 256 values: FNUZ formats on gfx942 (NaN is 0x80), OCP formats on gfx950."""
    fnuz, mantissa_bits = arch == "gfx942", 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - (0 if fnuz else 1)
    values = np.empty(256)
    for code in range(128):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        lead = 1 if exponent else 0
        values[code] = (lead + mantissa / (1 << mantissa_bits)) * 2.0 ** (max(exponent, 1) - bias)
    if not fnuz and exponent_bits == 4:
        values[0x7F] = np.nan
    if not fnuz and exponent_bits == 5:
        values[0x7C:0x80] = [np.inf, np.nan, np.nan, np.nan]
    values[128:] = -values[:128]
    if fnuz:
        values[0x80] = np.nan
    return values


def float8_nearest(values: Array, table: Array, fnuz: bool) -> Array:
    """Codes of finite values within range, ties to the even code."""
    positive = table[:128][np.isfinite(table[:128])]
    size = np.abs(values.astype(f64))
    upper = np.searchsorted(positive, size).clip(0, positive.size - 1)
    lower = (upper - 1).clip(0)
    upper_gap, lower_gap = positive[upper] - size, size - positive[lower]
    code = np.where(
        (upper_gap < lower_gap) | ((upper_gap == lower_gap) & (upper % 2 == 0)), upper, lower
    )
    sign = np.where(np.signbit(values) & ~(fnuz & (code == 0)), 128, 0)
    return (code | sign).astype(u8)


@arch_case("fp8")
def widen_all(rng: Rng, arch: str) -> Made:
    code = np.arange(256)
    word = np.stack([code, 255 - code, code ^ 0x55, code ^ 0x80], 1)
    fp8, bf8 = (float8_table(arch, bits)[word].astype(f32) for bits in (4, 5))
    return Launch(
        "widen_all",
        (1,),
        (256,),
        [poisoned((256, 4), f32), poisoned((256, 4), f32), poisoned((256, 8), f32)],
        {0: fp8, 1: bf8, 2: np.concatenate([fp8, bf8], 1)},
    )


@arch_case("fp8")
def narrow(rng: Rng, arch: str) -> Made:
    n = 500
    a = tame_floats(rng, 4 * n, spread=10).clip(-240, 240)
    a[:6] = [0.0, -0.0, 1e-9, -1e-9, 0.0009765625, 240]
    fnuz = arch == "gfx942"
    expected = [float8_nearest(a, float8_table(arch, bits), fnuz).view(u32) for bits in (4, 5)]
    return Launch(
        "narrow",
        (2,),
        (256,),
        [poisoned(n, u32), poisoned(n, u32), a, i32(n)],
        {0: expected[0], 1: expected[1]},
    )


@arch_case("fp8")
def narrow_stochastic(rng: Rng, arch: str) -> Made:
    n = 1000
    a = tame_floats(rng, n, spread=5).clip(-200, 200)
    random = integers(rng, n, u32)

    def checker(bits: int, byte: int) -> Check:
        def check(actual: Array) -> None:
            table = float8_table(arch, bits)
            keep = 0xFFFFFFFF & ~(0xFF << 8 * byte)
            expect(actual & u32(keep), np.full(n, 0x01020304 & keep, u32))
            magnitudes = np.abs(table[(actual >> u32(8 * byte)) & u32(0xFF)])
            grid = np.sort(table[:128][np.isfinite(table[:128])])
            offset = np.searchsorted(grid, np.abs(a), side="right").clip(1, grid.size - 1)
            wrong = (magnitudes != grid[offset - 1]) & (magnitudes != grid[offset])
            first_wrong = int(np.argmax(wrong))
            assert not wrong.any(), (
                f"{a[first_wrong]} became {magnitudes[first_wrong]}, no neighbour"
            )

        return check

    return Launch(
        "narrow_stochastic",
        (4,),
        (256,),
        [poisoned(n, u32), poisoned(n, u32), a, random, i32(n)],
        {0: checker(4, 2), 1: checker(5, 0)},
    )
