"""Conversions between wide and small number formats on the virtual GPU, and the bit and lane moves
beside them, against numpy: every code of the 8-bit formats, and values at, beside and between all
neighbours the other way. Block scales: test_vgpu_convert_scaled.py."""

from __future__ import annotations

import numpy as np
import pytest

from support.vgpu.formats import (
    BF16,
    F16,
    SATURATE,
    expect,
    expect_codes,
    expect_wide,
    float_bits,
    narrow_codes,
    next_random,
    points_around,
    random_floats,
    small,
)
from support.vgpu.registers import LANES, Case, Cases

ARCHS = ("gfx942", "gfx950")


# ------------------------------------------------------------------------------ fp8 without scale


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["fp8", "bf8"])
def test_every_code_unpacks(arch: str, name: str) -> None:
    byte = [
        Case(f"  v_cvt_f32_{name}_sdwa v20, v8 src0_sel:BYTE_{b}", ["v8"], ["v20"])
        for b in range(4)
    ]
    word = [
        Case(f"  v_cvt_pk_f32_{name}_sdwa v[20:21], v8 src0_sel:WORD_{w}", ["v8"], ["v20", "v21"])
        for w in range(2)
    ]
    short = [
        Case(f"  v_cvt_f32_{name}_e32 v20, v8", ["v8"], ["v20"]),
        Case(f"  v_cvt_pk_f32_{name}_e32 v[20:21], v8", ["v8"], ["v20", "v21"]),
        Case(f"  v_cvt_f32_{name}_e64 v20, v8", ["v8"], ["v20"]),
    ]
    cases = Cases([*byte, *word, *short], arch)
    codes = np.arange(256, dtype=np.uint32)
    words = (
        codes
        | (codes * 7 + 1) % 256 << 8
        | (codes * 11 + 2) % 256 << 16
        | (codes * 13 + 3) % 256 << 24
    )
    want = small(name, arch).values.astype(np.float32)
    for n, positions in enumerate([[0], [1], [2], [3], [0, 1], [2, 3], [0], [0, 1], [0]]):
        out = cases.run_lanes(n, [words]).view(np.float32)
        for row, position in zip(out, positions, strict=True):
            values = want[words >> 8 * position & 255]
            assert np.array_equal(row, values, equal_nan=True), (
                f"{cases.cases[n].body} byte {position}"
            )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["fp8", "bf8"])
@pytest.mark.parametrize("saturate", [False, True])
def test_packing_rounds_to_nearest_even(arch: str, name: str, saturate: bool) -> None:
    fmt, setup = small(name, arch), SATURATE if saturate else ""
    cases = Cases(
        [
            Case(f"{setup}  v_cvt_pk_{name}_f32 v20, v8, v9 {mods}", ["v8", "v9", "v20"], ["v20"])
            for mods in ("", "op_sel:[0,0,1]")
        ],
        arch,
    )
    x = np.concatenate([points_around(fmt), random_floats(4096, 1)])
    y = x[::-1].copy()
    old = np.full(len(x), 0xA5C3960F, np.uint32)
    for high in range(2):
        actual = cases.run_lanes(high, [float_bits(x), float_bits(y), old])[0]
        pair = actual >> 16 if high else actual & 0xFFFF
        kept = actual & 0xFFFF if high else actual >> 16
        expect(kept, np.full(len(x), 0x960F if high else 0xA5C3), "the other half")
        for code, values in ((pair & 255, x), (pair >> 8, y)):
            want = fmt.round(values.astype(np.float64), saturate=saturate)
            expect_codes(code, want, fmt, f"{arch} {name} saturate={saturate}", values)


@pytest.mark.parametrize("arch", ARCHS)
def test_source_modifiers_of_packing(arch: str) -> None:
    cases = Cases([Case("  v_cvt_pk_fp8_f32 v20, -v8, |v9|", ["v8", "v9", "v20"], ["v20"])], arch)
    fmt = small("fp8", arch)
    x = random_floats(512, 2)
    actual = cases.run_lanes(0, [float_bits(x), float_bits(x), np.zeros(512, np.uint32)])[0]
    expect_codes(actual & 255, fmt.round(-x.astype(np.float64)), fmt, "neg", x)
    expect_codes(actual >> 8 & 255, fmt.round(np.abs(x).astype(np.float64)), fmt, "abs", x)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["fp8", "bf8"])
def test_stochastic_rounding_by_seed(arch: str, name: str) -> None:
    fmt = small(name, arch)
    cases = Cases(
        [
            Case(
                f"  v_cvt_sr_{name}_f32 v20, v8, v9 op_sel:[0,0,{b & 1},{b >> 1}]",
                ["v8", "v9", "v20"],
                ["v20"],
            )
            for b in range(4)
        ],
        arch,
    )
    x = np.concatenate([points_around(fmt), random_floats(2048, 3)])
    seed = np.random.default_rng(4).integers(0, 2**32, len(x), dtype=np.uint32)
    old = np.full(len(x), 0x11223344, np.uint32)
    want = fmt.round_random(x, seed)
    for byte in range(4):
        actual = cases.run_lanes(byte, [float_bits(x), seed, old])[0]
        expect_codes(actual >> 8 * byte & 255, want, fmt, f"{arch} {name} byte {byte}", x)
        mask = np.uint32(0xFFFFFFFF ^ 0xFF << 8 * byte)
        expect(actual & mask, old & mask, "the other bytes")


@pytest.mark.parametrize("arch", ARCHS)
def test_stochastic_rounding_is_unbiased(arch: str) -> None:
    """Over evenly spread seeds (4096 steps of their top bits) the mean is the value."""
    cases = Cases([Case("  v_cvt_sr_fp8_f32 v20, v8, v9", ["v8", "v9", "v20"], ["v20"])], arch)
    fmt = small("fp8", arch)
    seed = (np.arange(4096, dtype=np.uint32) << 20) + (1 << 19)
    for value in (1.0 + 5 / 64, -13.3, 0.75, 2.0**-9 * 3.25):
        x = np.full(4096, value, np.float32)
        actual = cases.run_lanes(0, [float_bits(x), seed, np.zeros(4096, np.uint32)])[0] & 255
        mean = fmt.values[actual].mean()
        step = np.diff(np.unique(fmt.values[actual])).max(initial=0.0)
        assert abs(mean - float(x[0])) <= step / 4096, (value, mean)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_stochastic_rounding_to_halves(name: str) -> None:
    fmt = {"f16": F16, "bf16": BF16}[name]
    cases = Cases(
        [
            Case(f"  v_cvt_sr_{name}_f32 v20, v8, v9 {m}", ["v8", "v9", "v20"], ["v20"])
            for m in ("", "op_sel:[0,0,1]")
        ],
        "gfx950",
    )
    x = np.concatenate(
        [
            random_floats(4096, 5),
            np.array([np.inf, np.nan, 65519.0, 65521.0, 3.4e38, 0.0], np.float32),
        ]
    )
    x = np.concatenate([x, -x])
    seed = np.random.default_rng(6).integers(0, 2**32, len(x), dtype=np.uint32)
    old = np.full(len(x), 0x12345678, np.uint32)
    want = fmt.round_random(x, seed)
    for high in range(2):
        actual = cases.run_lanes(high, [float_bits(x), seed, old])[0]
        expect_codes(actual >> 16 * high & 0xFFFF, want, fmt, f"sr {name}", x)
        expect(
            actual >> 16 * (1 - high) & 0xFFFF, old >> 16 * (1 - high) & 0xFFFF, "the other half"
        )


@pytest.mark.parametrize(
    ("arch", "name", "count"),
    [
        ("gfx950", "fp8", 436),
        ("gfx950", "bf8", 120),
        ("gfx942", "fp8", 496),
        ("gfx942", "bf8", 120),
    ],
)
def test_overflow_happens_as_often_as_on_hardware(arch: str, name: str, count: int) -> None:
    """ROCm issue 9556 counts, on MI300 and MI350, the sums of two finite codes that the packed
    converts turn into infinity or NaN."""
    fmt = small(name, arch)
    codes = np.flatnonzero(np.isfinite(fmt.values))
    left, right = (g.ravel() for g in np.meshgrid(codes, codes))
    if arch == "gfx942":
        case = Case(f"  v_cvt_pk_{name}_f32 v20, v8, v8", ["v8", "v20"], ["v20"])
        columns = [float_bits(fmt.values[left] + fmt.values[right])]
    else:
        case = Case(f"  v_cvt_scalef32_pk_{name}_f16 v20, v8, 1.0", ["v8", "v20"], ["v20"])
        with np.errstate(over="ignore"):
            total = (fmt.values[left] + fmt.values[right]).astype(np.float16)
        columns = [total.view(np.uint16).astype(np.uint32)]
    actual = Cases([case], arch).run_lanes(0, [*columns, np.zeros(len(left), np.uint32)])[0]
    assert (~np.isfinite(fmt.values[actual & 255])).sum() == count


# ------------------------------------------------------------------------------ halves


def test_pairs_of_halves_round_to_nearest_whatever_mode_says() -> None:
    setup = "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 15\n"  # both fields towards zero
    texts = [(f"v_cvt_pk_{k}_f32 v20, v8, v9", k, s) for k in ("f16", "bf16") for s in ("", setup)]
    texts += [
        ("v_cvt_pk_bf16_f32 v20, -v8, |v9|", "mods", ""),
        ("v_cvt_pk_f16_f32 v20, v8, v9 clamp", "clamp", ""),
    ]
    cases = Cases([Case(f"{s}  {t}", ["v8", "v9"], ["v20"]) for t, _, s in texts], "gfx950")
    grid = np.concatenate([points_around(F16)[::7], random_floats(4096, 13)])
    x, y = grid, grid[::-1].copy()
    for n, (text, kind, _) in enumerate(texts):
        actual = cases.run_lanes(n, [float_bits(x), float_bits(y)])[0]
        to = "f16" if "f16_f32" in text and "bf16" not in text else "bf16"
        with np.errstate(invalid="ignore"):
            if kind == "mods":
                low, high = -x, np.abs(y)
            elif kind == "clamp":
                low, high = (np.where(np.isnan(v), 0, np.clip(v, 0, 1)) for v in (x, y))
            else:
                low, high = x, y
        expect_wide(actual & 0xFFFF, narrow_codes(low.astype(np.float64), to), to, f"{text} low")
        expect_wide(actual >> 16, narrow_codes(high.astype(np.float64), to), to, f"{text} high")


def test_every_bfloat_widens() -> None:
    cases = Cases(
        [
            Case("  v_cvt_f32_bf16 v20, v8", ["v8"], ["v20"]),
            Case("  v_cvt_f32_bf16_sdwa v20, v8 src0_sel:WORD_1", ["v8"], ["v20"]),
        ],
        "gfx950",
    )
    codes = np.arange(65536, dtype=np.uint32)
    words = codes | (codes ^ np.uint32(0x5555)) << np.uint32(16)
    for n, want in enumerate([codes, codes ^ np.uint32(0x5555)]):
        actual = cases.run_lanes(n, [words])[0]
        nan = (want & 0x7FFF) > 0x7F80
        expect(
            np.where(nan, actual | 0x400000, actual),
            np.where(nan, want << 16 | 0x400000, want << 16),
            f"word {n}",
        )


# ------------------------------------------------------------------------------ bits and lanes


def test_every_truth_table() -> None:
    cases = Cases(
        [
            Case(f"  v_bitop3_b32 v20, v8, v9, v10 bitop3:{t}", ["v8", "v9", "v10"], ["v20"])
            for t in range(256)
        ],
        "gfx950",
    )
    a, b, c = np.random.default_rng(14).integers(0, 2**32, (3, LANES), dtype=np.uint32)
    for table in range(256):
        want = np.zeros(LANES, np.uint32)
        for index in range(8):
            if table >> index & 1:
                x, y, z = (v if index >> s & 1 else ~v for v, s in ((a, 2), (b, 1), (c, 0)))
                want |= x & y & z
        expect(cases.run_lanes(table, [a, b, c])[0], want, f"bitop3:{table:#x}")


def test_truth_table_on_halves() -> None:
    cases = Cases(
        [
            Case(
                "  v_bitop3_b16 v20, v8, v9, v10 bitop3:0x1e op_sel:[1,0,1,1]",
                ["v8", "v9", "v10", "v20"],
                ["v20"],
            )
        ],
        "gfx950",
    )
    a, b, c, old = np.random.default_rng(15).integers(0, 2**32, (4, LANES), dtype=np.uint32)
    x, y, z = a >> 16, b & 0xFFFF, c >> 16
    want = (x ^ (y | z)) & 0xFFFF  # table 0x1e
    actual = cases.run_lanes(0, [a, b, c, old])[0]
    expect(actual >> 16, want, "the high half")
    expect(actual & 0xFFFF, old & 0xFFFF, "the low half")


def test_shift_and_pack_saturates() -> None:
    cases = Cases(
        [
            Case(f"  v_ashr_pk_{k}_i32 v20, v8, v9, v10 {m}", ["v8", "v9", "v10", "v20"], ["v20"])
            for k in ("i8", "u8")
            for m in ("", "op_sel:[0,0,0,1]")
        ],
        "gfx950",
    )
    rng = np.random.default_rng(16)
    a, b = (rng.integers(-(2**31), 2**31, 512) >> rng.integers(0, 32, 512) for _ in range(2))
    by, old = rng.integers(0, 64, 512), rng.integers(0, 2**32, 512, dtype=np.uint32)
    for n, (low, high, top) in enumerate(
        [(-128, 127, 0), (-128, 127, 1), (0, 255, 0), (0, 255, 1)]
    ):
        pair = [np.clip(v >> (by & 31), low, high) & 255 for v in (a, b)]
        columns = [(v & 0xFFFFFFFF).astype(np.uint32) for v in (a, b, by)]
        actual = cases.run_lanes(n, [*columns, old])[0]
        expect(actual >> 16 * top & 0xFFFF, pair[0] | pair[1] << 8, cases.cases[n].body)


def test_random_generator_steps() -> None:
    cases = Cases([Case("  v_prng_b32 v20, v8", ["v8"], ["v20"])], "gfx950")
    state = np.random.default_rng(17).integers(0, 2**32, 256, dtype=np.uint32)
    expect(cases.run_lanes(0, [state])[0], next_random(state), "v_prng_b32")


@pytest.mark.parametrize("group", [16, 32])
def test_lane_swaps(group: int) -> None:
    mask = 0xFF00F0F0_0FF0A5C3
    off = f"  s_mov_b32 exec_lo, {mask & 0xFFFFFFFF:#x}\n  s_mov_b32 exec_hi, {mask >> 32:#x}\n"
    op = f"  v_permlane{group}_swap_b32"
    bodies = [
        f"{op} v20, v8",
        f"{off}{op} v20, v8",
        f"{off}{op}_e64 v20, v8 fi:1",
        f"{off}{op}_e64 v20, v8 bound_ctrl:1",
    ]
    cases = Cases([Case(b, ["v20", "v8"], ["v20", "v8"]) for b in bodies], "gfx950")
    d, s = np.random.default_rng(18).integers(0, 2**32, (2, LANES), dtype=np.uint32)
    lanes = np.arange(LANES)
    even = lanes & group == 0
    partner = lanes ^ group
    swapped = [
        np.where(even, d, s[partner]),
        np.where(even, d[partner], s),
    ]  # odd lanes of d, even of s
    full = np.ones(LANES, bool)
    active = np.array([mask >> int(lane) & 1 for lane in lanes], bool)
    for n, (on, fetch, zero) in enumerate(
        [(full, 0, 0), (active, 0, 0), (active, 1, 0), (active, 0, 1)]
    ):
        out = cases.run_lanes(n, [d, s])
        for actual, old, new, moves in (
            (out[0], d, swapped[0], ~even),
            (out[1], s, swapped[1], even),
        ):
            sourced = on[partner] | bool(fetch)
            want = np.where(moves & on, np.where(sourced, new, 0 if zero else old), old)
            expect(actual, want, bodies[n])
