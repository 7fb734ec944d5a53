"""Block-scaled conversions (v_cvt_scalef32_*) of the virtual GPU against numpy: every code of the
8-, 6- and 4-bit formats, and values at, beside and between all neighbours the other way, under
scales of every exponent."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from support.vgpu import formats as formats
from support.vgpu.formats import (
    SATURATE,
    Format,
    expect,
    expect_codes,
    expect_wide,
    narrow_codes,
    next_random,
    points_around,
    small,
    wide_bits,
    wide_values,
)
from support.vgpu.registers import LANES, Case, Cases, names_of, tuple_of

Array = np.ndarray

WIDE = ("f32", "f16", "bf16")
SCALED = [
    *(f"pk_{s}_{w}" for s in ("fp8", "bf8", "fp4") for w in WIDE),
    *(f"sr_{s}_{w}" for s in ("fp8", "bf8") for w in WIDE),
    *(f"sr_pk_fp4_{w}" for w in WIDE),
    *(f"pk_{w}_{s}" for s in ("fp8", "bf8", "fp4") for w in WIDE),
    *(f"{w}_{s}" for s in ("fp8", "bf8") for w in ("f32", "f16")),
    *(f"2xpk16_{s}_f32" for s in ("fp6", "bf6")),
    *(f"pk32_{s}_{w}" for s in ("fp6", "bf6") for w in ("f16", "bf16")),
    *(f"sr_pk32_{s}_{w}" for s in ("fp6", "bf6") for w in WIDE),
    *(f"pk32_{w}_{s}" for s in ("fp6", "bf6") for w in WIDE),
]


def scaled_parts(name: str) -> tuple[str, str, str]:
    """Kind, destination type, source type."""
    match = re.fullmatch(r"(2xpk16_|(?:sr_)?pk32_|(?:sr_)?pk_|sr_)?(\w+?)_(\w+?)", name)
    assert match, name
    return (match[1] or "").rstrip("_"), match[2], match[3]


def scales(count: int, seed: int, near: bool) -> tuple[Array, Array]:
    """Scale floats with random sign and fraction, which say nothing, and their exponents."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(120, 135, count) if near else rng.integers(0, 256, count)
    noise = rng.integers(0, 2**32, count, dtype=np.uint32) & np.uint32(0x807FFFFF)
    return noise | (exponent.astype(np.uint32) << np.uint32(23)), exponent


def power(exponent: Array) -> Array:
    return np.where(exponent == 255, np.nan, np.ldexp(1.0, np.minimum(exponent, 254) - 127))


def scaled_case(name: str, select: int = 0, setup: str = "") -> Case:
    """Sources from v8, destination at v80; `select` is the half or byte that op_sel names."""
    kind, to, frm = scaled_parts(name)
    pack = to not in WIDE
    if "32" in kind or kind == "2xpk16":
        sizes = {"f32": 32, "f16": 16, "bf16": 16}
        first = [16, 16] if kind == "2xpk16" else [sizes[frm]] if pack else [6]
        out, seeded = (6 if pack else sizes[to]), "sr" in kind
        counts = [*first, *([1] if seeded else []), 1]
    elif pack:
        two = frm == "f32" and kind == "pk"
        counts = [1, 1, 1] if two else [2 if (frm, kind) == ("f32", "sr_pk") else 1]
        counts += [] if two else ([1, 1] if "sr" in kind else [1])
        out = 1
    else:
        counts, out = [1, 1], 2 if (kind, to) == ("pk", "f32") else 1
    offset, operands, inputs = 8, [], []
    for count in counts:
        operands.append(tuple_of("v", offset, count))
        inputs += names_of("v", offset, count)
        offset += count
    wide_word = to in ("fp8", "bf8") and kind == "pk"
    if "32" in kind or kind == "2xpk16":
        mods = ""
    elif pack and wide_word:  # a half by the destination's bit, which follows those of the sources
        mods = f"op_sel:[{'0,' * len(counts)}{select}]"
    elif pack:
        mods = f"op_sel:[0,0,{select & 1},{select >> 1}]"
    elif kind == "pk" and frm != "fp4":
        mods = f"op_sel:[{select},0]"
    elif (kind, to) == ("", "f16"):
        mods = f"op_sel:[{select & 1},{select >> 1 & 1},{select >> 2}]"
    else:
        mods = f"op_sel:[{select & 1},{select >> 1},0]"
    body = f"{setup}  v_cvt_scalef32_{name} {tuple_of('v', 80, out)}, {', '.join(operands)} {mods}"
    return Case(body, [*inputs, *names_of("v", 80, out)], names_of("v", 80, out))


def selections(name: str) -> int:
    kind, to, frm = scaled_parts(name)
    if "32" in kind or kind == "2xpk16":
        return 1
    if kind == "pk":
        return 4 if "fp4" in (to, frm) else 2
    return 8 if (kind, to) == ("", "f16") else 4


@cache
def scaled_cases() -> tuple[list[tuple[str, int, bool]], Cases]:
    rows, cases = [], []
    for name in SCALED:
        packs = scaled_parts(name)[1] not in WIDE
        for select in range(selections(name)):
            for saturate in (False, True) if packs and select == 0 else (False,):
                rows.append((name, select, saturate))
                cases.append(scaled_case(name, select, SATURATE if saturate else ""))
    return rows, Cases(cases, "gfx950")


def pack_inputs(frm: str, fmt: Format, count: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Wide codes, their values over the scale, scale words, exponents; most near the format."""
    rng = np.random.default_rng(seed)
    grid = points_around(fmt)
    word, exponent = scales(count, seed, near=True)
    far_word, far_exponent = scales(count, seed + 1, near=False)
    far = np.arange(count) % 4 == 3
    word, exponent = np.where(far, far_word, word), np.where(far, far_exponent, exponent)
    with np.errstate(over="ignore", invalid="ignore"):
        x = grid[rng.integers(0, len(grid), count)] * np.ldexp(1.0, np.clip(exponent, 1, 253) - 127)
        codes = wide_bits(x.astype(np.float32), frm)
        return codes, wide_values(codes, frm) / power(exponent), word, exponent


def test_every_scaled_conversion_is_tried() -> None:
    """VOP3 opcodes 565 to 611, 617 and 618."""
    assert len(SCALED) == len(set(SCALED)) == 49


@pytest.mark.parametrize(
    "name", [n for n in SCALED if re.match(r"(pk|sr|sr_pk)_(fp8|bf8|fp4)_", n)]
)
def test_packing_over_a_scale(name: str) -> None:
    kind, to, frm = scaled_parts(name)
    fmt, count = small(to), 2048
    rows, cases = scaled_cases()
    low, low_value, word, exponent = pack_inputs(frm, fmt, count, 7)
    rng = np.random.default_rng(8)
    offset = rng.permutation(count)
    with np.errstate(invalid="ignore", over="ignore"):
        high_value = wide_values(low[offset], frm) / power(exponent)
    high, seed = low[offset], rng.integers(0, 2**32, count, dtype=np.uint32)
    old = np.full(count, 0x5AA51234, np.uint32)
    single = kind == "sr"
    if frm == "f32":
        sources = [low] if single else [low, high]
    else:
        sources = [low | (high << np.uint32(16))]
    if "sr" in kind:
        sources.append(seed)
    for n, (other, select, saturate) in enumerate(rows):
        if other != name:
            continue
        actual = cases.run_lanes(n, [*sources, word, old])[0]
        width = fmt.bits * (1 if single else 2)
        shift = width * select if width == 16 else 8 * select
        expect(
            actual & ~np.uint32(((1 << width) - 1) << shift),
            old & ~np.uint32(((1 << width) - 1) << shift),
            f"{name}: the rest of the register",
        )
        field = actual >> np.uint32(shift)
        for position, values, random in ((0, low_value, seed), (1, high_value, next_random(seed))):
            if single and position:
                continue
            code = field >> np.uint32(position * fmt.bits) & np.uint32((1 << fmt.bits) - 1)
            want = (
                fmt.round_random(values, random, saturate=saturate)
                if "sr" in kind
                else fmt.round(values, saturate=saturate)
            )
            expect_codes(code, want, fmt, f"{name} select {select} saturate {saturate}", values)


@pytest.mark.parametrize("name", [n for n in SCALED if re.match(r"(pk_)?(f32|f16|bf16)_", n)])
def test_unpacking_times_a_scale(name: str) -> None:
    kind, to, frm = scaled_parts(name)
    fmt = small(frm)
    rows, cases = scaled_cases()
    words = np.arange(1024, dtype=np.uint32) * np.uint32(0x01234567) + np.uint32(0x89)
    words = np.concatenate([words, np.arange(256, dtype=np.uint32) * np.uint32(0x01010101)])
    word, exponent = scales(len(words), 9, near=False)
    old = np.full(len(words), 0x5AA51234, np.uint32)
    for n, (other, select, _) in enumerate(rows):
        if other != name:
            continue
        source, target = select & 3, select >> 2
        extra = [old] * len([x for x in cases.cases[n].outputs])
        actual = cases.run_lanes(n, [words, word, *extra])
        shift = 16 * source if kind == "pk" and fmt.bits == 8 else 8 * source
        for position in range(2 if kind == "pk" else 1):
            codes = words >> np.uint32(shift + position * fmt.bits) & np.uint32((1 << fmt.bits) - 1)
            with np.errstate(invalid="ignore"):
                want = narrow_codes(fmt.values[codes] * power(exponent), to)
            if to == "f32":
                out = actual[position]
            else:
                out = actual[0] >> np.uint32(
                    16 * (target if kind != "pk" else position)
                ) & np.uint32(0xFFFF)
            expect_wide(out, want, to, f"{name} select {select} element {position}")
        if kind != "pk" and to == "f16":
            expect(
                actual[0] >> 16 * (1 - target) & 0xFFFF,
                old >> 16 * (1 - target) & 0xFFFF,
                "other half",
            )


def six_bits(rows: Array) -> Array:
    """[6, n] dwords -> [32, n] codes."""
    stream = sum(rows[i].astype(object) << (32 * i) for i in range(6))
    return np.array([[int(s >> 6 * e & 63) for s in stream] for e in range(32)])


@pytest.mark.parametrize("name", [n for n in SCALED if re.search(r"(2xpk16|pk32)_(fp6|bf6)_", n)])
def test_packing_32_six_bit_codes(name: str) -> None:
    kind, to, frm = scaled_parts(name)
    fmt, count = small(to), 256
    rows, cases = scaled_cases()
    parts = [pack_inputs(frm, fmt, count, 20 + e) for e in range(32)]
    codes, word, exponent = [p[0] for p in parts], parts[0][2], parts[0][3]
    with np.errstate(invalid="ignore", over="ignore"):
        values = [wide_values(c, frm) / power(exponent) for c in codes]
    if kind == "2xpk16":
        sources = [*codes[0::2], *codes[1::2]]
    elif frm == "f32":
        sources = codes
    else:
        sources = [a | b << np.uint32(16) for a, b in zip(codes[0::2], codes[1::2], strict=True)]
    seed = np.random.default_rng(10).integers(0, 2**32, count, dtype=np.uint32)
    if "sr" in kind:
        sources = [*sources, seed]
    old = [np.full(count, 0xFFFFFFFF, np.uint32)] * 6
    for n, (other, _, saturate) in enumerate(rows):
        if other != name:
            continue
        actual, state = six_bits(cases.run_lanes(n, [*sources, word, *old])), seed
        for e in range(32):
            want = fmt.round_random(values[e], state) if "sr" in kind else fmt.round(values[e])
            expect_codes(actual[e], want, fmt, f"{name} element {e} saturate {saturate}", values[e])
            state = next_random(state)


@pytest.mark.parametrize("name", [n for n in SCALED if re.match(r"pk32_(f32|f16|bf16)_", n)])
def test_unpacking_32_six_bit_codes(name: str) -> None:
    _, to, frm = scaled_parts(name)
    fmt, count = small(frm), 256
    rows, cases = scaled_cases()
    stream = np.random.default_rng(11).integers(0, 2**32, (6, count), dtype=np.uint32)
    word, exponent = scales(count, 12, near=False)
    n = next(i for i, row in enumerate(rows) if row[0] == name)
    out = len(cases.cases[n].outputs)
    actual = cases.run_lanes(n, [*stream, word, *([np.zeros(count, np.uint32)] * out)])
    codes = six_bits(stream)
    for e in range(32):
        with np.errstate(invalid="ignore"):
            want = narrow_codes(fmt.values[codes[e]] * power(exponent), to)
        value = (
            actual[e]
            if to == "f32"
            else actual[e // 2] >> np.uint32(16 * (e % 2)) & np.uint32(0xFFFF)
        )
        expect_wide(value, want, to, f"{name} element {e}")


def test_mode_flushes_float_sources_only() -> None:
    """A denormal float over a tiny scale is zero where MODE flushes sources; a denormal bfloat and
    a denormal result are not touched."""
    flush = "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\n"
    texts = [
        "v_cvt_scalef32_pk_fp8_f32 v20, v8, v8, v9",
        "v_cvt_scalef32_pk_fp8_bf16 v20, v8, v9",
        "v_cvt_scalef32_pk_f32_fp8 v[20:21], v8, v9",
    ]
    cases = Cases(
        [Case(f"{s}  {t}", ["v8", "v9", "v20"], ["v20"]) for t in texts for s in ("", flush)],
        "gfx950",
    )
    tiny = np.full(LANES, np.float32(2.0**-130)).view(np.uint32)
    scale, none = np.full(LANES, 1 << 23, np.uint32), np.zeros(LANES, np.uint32)  # 2^-126
    one = formats.E4M3.encode_exact(np.array([1.0]))[0]
    sources = [tiny, tiny, tiny >> 16, tiny >> 16, none + one, none + one]
    sixteenth = formats.E4M3.encode_exact(np.array([2.0**-4]))[0]
    scales_of = [scale] * 4 + [none] * 2
    want = [sixteenth, 0, sixteenth, sixteenth, 2.0**-127, 2.0**-127]
    for n, value in enumerate(want):
        actual = cases.run_lanes(n, [sources[n], scales_of[n], none])[0]
        expected = actual & 255 if n < 4 else actual.view(np.float32)
        expect(expected, np.full(LANES, value), cases.cases[n].body)


def test_inline_constants_as_scale() -> None:
    """Only the exponent of the float counts."""
    texts = [("1.0", 127), ("0.5", 126), ("-4.0", 129), ("0.15915494", 124), ("0", 0)]
    cases = Cases(
        [Case(f"  v_cvt_scalef32_f32_fp8 v20, v8, {t}", ["v8"], ["v20"]) for t, _ in texts],
        "gfx950",
    )
    codes = np.arange(256, dtype=np.uint32)
    for n, (text, exponent) in enumerate(texts):
        want = narrow_codes(formats.E4M3.values * power(np.full(256, exponent)), "f32")
        expect_wide(cases.run_lanes(n, [codes])[0], want, "f32", f"scale {text}")
