"""Matrix instructions of the virtual GPU against numpy (matrix.py). Values are such that every
order of additions is exact, unless a test is about rounding."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from support.vgpu import formats as formats
from support.vgpu.matrix import (
    ADDED_GFX950,
    BITS,
    DATA,
    SMALL,
    Product,
    Shape,
    added_layout,
    calculated,
    format_of,
    layout_of,
    measured_sparse,
    names_for,
    operand_rows,
    out_kind,
    random_product,
    shape_of,
    take,
    write_codes,
)
from support.vgpu.registers import LANES, Case, Cases, names_of, tuple_of

ARCHS = ("gfx942", "gfx950")


def plain_case(
    shape: Shape,
    mods: str = "",
    files: str = "vvv",
    setup: str = "",
    literal_c: str = "",
    scales: int = 0,
) -> Case:
    """A kernel around one instruction; files: register file of A, B and C/D."""
    counts = [shape.registers(x) for x in "ABD"]
    firsts = [8, 32, 64]
    a, b, d = (tuple_of(f, offset, n) for f, offset, n in zip(files, firsts, counts, strict=True))
    inputs = [
        n
        for f, offset, count in zip(files, firsts, counts, strict=True)
        for n in names_of(f, offset, count)
    ]
    third = literal_c or d
    if shape.sparse:
        third, inputs = "v120", [*inputs, "v120"]
    extra = ""
    if scales:
        inputs, extra = [*inputs, "v121", "v122"], ", v121, v122"
    body = f"{setup}\n  {shape.name} {d}, {a}, {b}, {third}{extra} {mods}"
    return Case(body, inputs, names_of(files[2], firsts[2], counts[2]))


def assert_equal(actual: np.ndarray, want: np.ndarray, label: str) -> None:
    wrong = ~((actual == want) | (np.isnan(actual.astype(np.float64)) & np.isnan(want)))
    if wrong.any():
        offset = tuple(int(x) for x in np.argwhere(wrong)[0])
        pytest.fail(
            f"{label}: {wrong.sum()} of {wrong.size} differ, first at {offset}: "
            f"got {actual[offset]!r}, expected {want[offset]!r}"
        )


@cache
def all_plain(arch: str) -> tuple[list[str], Cases]:
    names = names_for(arch)
    return names, Cases([plain_case(shape_of(n)) for n in names], arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_instruction_is_exact_on_small_integers(arch: str) -> None:
    names, cases = all_plain(arch)
    for n, name in enumerate(names):
        shape, rng = shape_of(name), np.random.default_rng(n)
        product = random_product(rng, shape, arch)
        layouts = layout_of
        if shape.sparse and name in ADDED_GFX950:
            layouts = lambda s, x: layout_of(s, x) if x == "D" else measured_sparse(s, x)  # noqa: E731
        out = cases.run(n, np.concatenate(operand_rows(product, layouts)))
        actual = take(out, layouts(shape, "D"), out_kind(shape))
        assert_equal(actual, product.expected(), f"{arch} {name}")


@pytest.mark.parametrize("arch", ARCHS)
def test_rounding_stays_within_one_step_a_product(arch: str) -> None:
    """|error| <= (K + 1) * 2^-24 * sum |a b|: the bound of any sequence of f32 additions."""
    names, cases = all_plain(arch)
    for n, name in enumerate(names):
        shape, rng = shape_of(name), np.random.default_rng(100 + n)
        if shape.a in ("i8", "xf32") or shape.sparse:
            continue
        product = random_product(rng, shape, arch)

        def rounded(values: np.ndarray, kind: str) -> np.ndarray:
            if kind in ("f64", "f32"):
                return values.astype(np.float32).astype(np.float64)
            if kind == "bf16":
                return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(
                    np.float32
                ) * 1.0
            if kind == "f16":
                return values.astype(np.float16).astype(np.float64)
            fmt = format_of(kind, arch)
            return fmt.values[fmt.round(values)]

        product.a = rounded(rng.standard_normal(product.a.shape), shape.a).astype(np.float64)
        product.b = rounded(rng.standard_normal(product.b.shape), shape.b).astype(np.float64)
        product.c = rng.standard_normal(product.c.shape).astype(np.float32).astype(np.float64)
        out = cases.run(n, np.concatenate(operand_rows(product, layout_of)))
        actual = take(out, layout_of(shape, "D"), out_kind(shape)).astype(np.float64)
        unit = 2.0**-53 if shape.out == "f64" else 2.0**-24
        error = np.abs(actual - product.expected()) / (product.magnitude() * unit * (shape.k + 1))
        offset = np.unravel_index(error.argmax(), error.shape)
        assert error[offset] <= 1, f"{arch} {name} at {offset}: {error[offset]:.2f} of the bound"
        assert shape.out == "f64" or error.max() > 0, f"{name}: nothing was rounded"


# ------------------------------------------------------------------------------ operands


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("files", ["aaa", "avv", "vav", "vva"])
def test_operands_in_accumulation_registers(arch: str, files: str) -> None:
    names = [
        "v_mfma_f32_32x32x8_f16",
        "v_mfma_f32_16x16x32_fp8_bf8",
        "v_mfma_f64_16x16x4_f64",
        "v_mfma_i32_4x4x4_16b_i8",
        "v_smfmac_f32_16x16x32_bf16",
    ]
    cases = Cases([plain_case(shape_of(n), files=files) for n in names], arch)
    for n, name in enumerate(names):
        shape = shape_of(name)
        product = random_product(np.random.default_rng(n), shape, arch)
        out = cases.run(n, np.concatenate(operand_rows(product, layout_of)))
        actual = take(out, layout_of(shape, "D"), out_kind(shape))
        assert_equal(actual, product.expected(), f"{name} in {files}")


@pytest.mark.parametrize("arch", ARCHS)
def test_inline_constants_as_c(arch: str) -> None:
    rows = [
        ("v_mfma_f32_16x16x16_f16", "2.0", 2),
        ("v_mfma_f32_16x16x16_f16", "0", 0),
        ("v_mfma_i32_16x16x32_i8", "-7", -7),
        ("v_mfma_f64_16x16x4_f64", "-4.0", -4),
        ("v_mfma_f64_4x4x4_4b_f64", "0.5", 0.5),
        ("v_mfma_f32_4x4x1_16b_f32", "1.0", 1),
    ]
    cases = Cases([plain_case(shape_of(n), literal_c=text) for n, text, _ in rows], arch)
    for n, (name, text, value) in enumerate(rows):
        shape = shape_of(name)
        product = random_product(np.random.default_rng(n), shape, arch)
        out = cases.run(n, np.concatenate(operand_rows(product, layout_of)))
        product.c = np.full_like(product.c, value)
        actual = take(out, layout_of(shape, "D"), out_kind(shape))
        assert_equal(actual, product.expected(), f"{name} with C = {text}")


def test_exec_is_ignored_and_overlapping_registers_are_read_first() -> None:
    shape = shape_of("v_mfma_f32_16x16x16_f16")
    off = plain_case(shape, setup="  s_mov_b64 exec, 0")
    onto_a = Case(
        f"  {shape.name} v[8:11], v[8:9], v[32:33], v[64:67]", off.inputs, names_of("v", 8, 4)
    )
    onto_b = Case(
        f"  {shape.name} v[32:35], v[8:9], v[32:33], v[64:67]", off.inputs, names_of("v", 32, 4)
    )
    shifted = Case(
        f"  {shape.name} v[66:69], v[8:9], v[32:33], v[64:67]", off.inputs, names_of("v", 66, 4)
    )
    cases = Cases([off, onto_a, onto_b, shifted], "gfx950")
    product = random_product(np.random.default_rng(0), shape, "gfx950")
    rows = np.concatenate(operand_rows(product, layout_of))
    for n, label in enumerate(["exec 0", "D on A", "D on B", "D partly on C"]):
        actual = take(cases.run(n, rows), layout_of(shape, "D"), "f32")
        assert_equal(actual, product.expected(), label)


@pytest.mark.parametrize("arch", ARCHS)
def test_broadcast_fields_follow_the_calculator(arch: str) -> None:
    """CBSZ and ABID for A, BLGP for B, ABID and CBSZ for the index of a sparse A: the calculator
    says which lane the instruction reads, so garbage elsewhere must not matter."""
    mods = DATA["modifiers"]
    texts = [" ".join(f"{f}:{m[f]}" for f in ("cbsz", "abid", "blgp") if f in m) for m in mods]
    cases = Cases(
        [plain_case(shape_of(m["name"]), t) for m, t in zip(mods, texts, strict=True)], arch
    )
    for n, (mod, text) in enumerate(zip(mods, texts, strict=True)):
        shape, rng = shape_of(mod["name"]), np.random.default_rng(n)
        product = random_product(rng, shape, arch)
        source = next(x for x in "ABK" if x in mod)
        positions = calculated(shape, source, mod[source])

        def layouts(
            s: Shape, x: str, source: str = source, positions: np.ndarray = positions
        ) -> np.ndarray:
            return positions if x == source else layout_of(s, x)

        if source in "AB":  # blocks that read the same lane hold the same values
            values = product.a if source == "A" else product.b
            _, first = np.unique(positions, return_index=True)
            table = np.zeros(positions.max() + 1, np.int64)
            table[positions.ravel()[first]] = first
            values[...] = values.ravel()[table[positions]]
        out = cases.run(n, np.concatenate(operand_rows(product, layouts)))
        actual = take(out, layout_of(shape, "D"), out_kind(shape))
        assert_equal(actual, product.expected(), f"{arch} {shape.name} {text}")


# ------------------------------------------------------------------------------ number rules


@pytest.mark.parametrize("arch", ARCHS)
def test_f64_negation_bits(arch: str) -> None:
    shape = shape_of("v_mfma_f64_16x16x4_f64")
    bits = [(x & 1, x >> 1 & 1, x >> 2 & 1) for x in range(8)]
    cases = Cases([plain_case(shape, f"neg:[{a},{b},{c}]") for a, b, c in bits], arch)
    product = random_product(np.random.default_rng(3), shape, arch)
    rows = np.concatenate(operand_rows(product, layout_of))
    for n, (a, b, c) in enumerate(bits):
        want = Product(
            shape, arch, product.a * (-1) ** a, product.b * (-1) ** b, product.c * (-1) ** c
        )
        actual = take(cases.run(n, rows), layout_of(shape, "D"), "f64")
        assert_equal(actual, want.expected(), f"neg:[{a},{b},{c}]")


@pytest.mark.parametrize("arch", ARCHS)
def test_i8_sums_wrap(arch: str) -> None:
    shape = shape_of("v_mfma_i32_16x16x32_i8")
    product = random_product(np.random.default_rng(4), shape, arch)
    product.a[...], product.b[...] = -128, -128
    product.c[...] = 2**31 - 1
    out = Cases([plain_case(shape)], arch).run(0, np.concatenate(operand_rows(product, layout_of)))
    want = ((product.expected().astype(np.int64) + 2**31) % 2**32) - 2**31
    assert_equal(take(out, layout_of(shape, "D"), "i32"), want, shape.name)
    assert (want < 0).all()


def one_product(shape: Shape, arch: str, a: float, b: float, c: float) -> np.ndarray:
    product = random_product(np.random.default_rng(0), shape, arch)
    product.a[...], product.b[...], product.c[...] = 0, 0, c
    product.a[..., 0], product.b[..., 0] = a, b
    return np.concatenate(operand_rows(product, layout_of))


def test_xf32_cuts_the_fraction_to_ten_bits() -> None:
    shape = shape_of("v_mfma_f32_16x16x8_xf32")
    out = Cases([plain_case(shape)], "gfx942").run(
        0, one_product(shape, "gfx942", 1 + 2.0**-10 + 2.0**-11 + 2.0**-20, 1.0, 0.0)
    )
    actual = take(out, layout_of(shape, "D"), "f32")
    assert_equal(actual, np.full(actual.shape, 1 + 2.0**-10), shape.name)


FLUSH_NONE, FLUSH_ALL, FLUSH_RESULTS, FLUSH_SOURCES = 3, 0, 1, 2  # fields of MODE.denorm


@pytest.mark.parametrize("arch", ARCHS)
def test_denormals_survive_except_f32_sources_under_mode(arch: str) -> None:
    tiny = 2.0**-140  # f32 denormal
    rows = [  # name, A, B, C, sources honour MODE
        ("v_mfma_f32_16x16x4_f32", tiny, 1.0, 0.0, True),
        ("v_mfma_f32_16x16x16_bf16", 2.0**-130, 2.0**-3, 0.0, False),
        ("v_mfma_f32_16x16x16_f16", 2.0**-24, 2.0**-24, 0.0, False),
        ("v_mfma_f32_16x16x4_f32", 0.0, 0.0, tiny, False),
        ("v_mfma_f32_16x16x4_f32", 2.0**-70, 2.0**-70, 0.0, False),
    ]
    modes = [FLUSH_NONE, FLUSH_ALL, FLUSH_RESULTS, FLUSH_SOURCES]
    setup = "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), {}"
    cases = Cases(
        [plain_case(shape_of(r[0]), setup=setup.format(m)) for r in rows for m in modes], arch
    )
    for n, (name, a, b, c, honours) in enumerate(rows):
        shape = shape_of(name)
        data = one_product(shape, arch, a, b, c)
        for m, mode in enumerate(modes):
            actual = take(cases.run(n * len(modes) + m, data), layout_of(shape, "D"), "f32")
            flushed = honours and mode in (FLUSH_ALL, FLUSH_SOURCES)
            want = np.full(actual.shape, 0.0 if flushed else a * b + c)
            assert_equal(actual, want, f"{name} {a} * {b} + {c} with denorm mode {mode}")


@pytest.mark.parametrize("arch", ARCHS)
def test_rounding_ignores_mode(arch: str) -> None:
    shape = shape_of("v_mfma_f32_16x16x4_f32")
    setup = "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 1"  # towards plus infinity
    data = one_product(shape, arch, 1.0, 2.0**-30, 1.0)
    actual = take(
        Cases([plain_case(shape, setup=setup)], arch).run(0, data), layout_of(shape, "D"), "f32"
    )
    assert_equal(actual, np.ones(actual.shape), "1 + 2^-30")


@pytest.mark.parametrize("arch", ARCHS)
def test_every_eight_bit_code_times_one(arch: str) -> None:
    """All 256 codes through A and through B of every fp8/bf8 mix: 16 rows of 16 k groups."""
    names = [f"v_mfma_f32_16x16x32_{a}_{b}" for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
    cases = Cases([plain_case(shape_of(n)) for n in names], arch)
    zero = np.zeros((1, 16, 16))
    for n, name in enumerate(names):
        shape = shape_of(name)
        fmt_a, fmt_b = format_of(shape.a, arch), format_of(shape.b, arch)
        for side in range(2):
            fmt = (fmt_a, fmt_b)[side]
            for start in range(0, 256, 16):
                codes = np.zeros((2, 1, 16, 32), np.uint32)
                codes[side, 0, :, 0] = np.arange(start, start + 16)
                codes[1 - side, 0, :, 0] = (fmt_b, fmt_a)[side].encode_exact(np.ones(16))
                a, b, c = (np.zeros((shape.registers(x), LANES), np.uint32) for x in "ABD")
                write_codes(a, layout_of(shape, "A"), 8, codes[0])
                write_codes(b, layout_of(shape, "B"), 8, codes[1])
                actual = take(cases.run(n, np.concatenate([a, b, c])), layout_of(shape, "D"), "f32")
                values = fmt.values[start : start + 16]
                want = zero + (values[:, None] if side == 0 else values[None, :])
                assert_equal(actual, want, f"{name} codes {start}.. of {'AB'[side]}")


# ------------------------------------------------------------------------------ block scales


@cache
def scaled_cases() -> tuple[list[tuple[Shape, tuple[int, int] | None]], Cases]:
    """Every pair of formats in both shapes, unscaled and with op_sel bytes that go round."""
    label: list[tuple[Shape, tuple[int, int] | None]] = []
    texts = []
    for tile in ("16x16x128", "32x32x64"):
        for fa, a in enumerate(SMALL):
            for fb, b in enumerate(SMALL):
                label.append((shape_of(f"v_mfma_f32_{tile}_f8f6f4", a, b), None))
                texts.append(f"cbsz:{fa} blgp:{fb}")
                byte = ((fa + fb) % 4, (fa + 2 * fb + 1) % 4)
                label.append((shape_of(f"v_mfma_scale_f32_{tile}_f8f6f4", a, b), byte))
                low, high = [x & 1 for x in byte], [x >> 1 for x in byte]
                texts.append(
                    f"op_sel:[{low[0]},{low[1]},0] op_sel_hi:[{high[0]},{high[1]},0] "
                    f"cbsz:{fa} blgp:{fb}"
                )
    cases = [
        plain_case(s, t, scales=byte is not None) for (s, byte), t in zip(label, texts, strict=True)
    ]
    return label, Cases(cases, "gfx950")


def scale_rows(exponents: np.ndarray, byte: int, rng: np.random.Generator) -> np.ndarray:
    """[rows, k blocks] of E8M0 -> a register: lane = k block * rows + row, other bytes garbage."""
    lanes = exponents.T.reshape(LANES).astype(np.uint32)
    other = rng.integers(0, 2**32, LANES, dtype=np.uint32) & np.uint32(
        ~(0xFF << 8 * byte) & 0xFFFFFFFF
    )
    return (other | lanes << np.uint32(8 * byte))[None]


def scaled_expected(product: Product, ea: np.ndarray, eb: np.ndarray) -> np.ndarray:
    a = product.a[0] * np.ldexp(1.0, np.repeat(ea, 32, axis=1) - 127)
    b = product.b[0] * np.ldexp(1.0, np.repeat(eb, 32, axis=1) - 127)
    return (product.c[0] + a @ b.T)[None]


def test_f8f6f4_in_all_pairs_of_formats() -> None:
    label, cases = scaled_cases()
    for n, (shape, byte) in enumerate(label):
        rng = np.random.default_rng(n)
        product = random_product(rng, shape, "gfx950")
        rows = operand_rows(product, added_layout)
        want = product.expected()
        if byte is not None:
            ea, eb = (rng.integers(125, 130, (shape.dim, shape.k // 32)) for _ in range(2))
            rows += [scale_rows(ea, byte[0], rng), scale_rows(eb, byte[1], rng)]
            want = scaled_expected(product, ea, eb)
        actual = take(cases.run(n, np.concatenate(rows)), added_layout(shape, "D"), "f32")
        assert_equal(actual, want, f"{shape.name} {shape.a} x {shape.b} bytes {byte}")


def test_small_formats_code_by_code() -> None:
    """Each code of each format as A, times one."""
    label, cases = scaled_cases()
    for n, (shape, byte) in enumerate(label):
        if byte is not None or shape.dim != 32 or shape.b != "fp8":
            continue
        fmt = format_of(shape.a, "gfx950")
        one = formats.E4M3.encode_exact(np.ones(32))
        for start in range(0, 1 << fmt.bits, 32):
            codes = np.arange(start, start + 32) % (1 << fmt.bits)
            a, b, c = (np.zeros((shape.registers(x), LANES), np.uint32) for x in "ABD")
            position = added_layout(shape, "A")[0, :, 37]
            write_codes(a, position, BITS[shape.a], codes)
            write_codes(b, added_layout(shape, "B")[0, :, 37], 8, one)
            actual = take(cases.run(n, np.concatenate([a, b, c])), added_layout(shape, "D"), "f32")
            assert_equal(
                actual[0], np.repeat(fmt.values[codes][:, None], 32, axis=1), f"{shape.a} codes"
            )


def test_scales_reach_the_ends_of_their_range() -> None:
    """2^(sa + sb - 254) from -254 to 254 without a detour through infinity or zero; 255 is NaN."""
    label, cases = scaled_cases()
    for n, (shape, byte) in enumerate(label):
        if byte is None or (shape.a, shape.b) != ("fp4", "fp8"):
            continue
        rng = np.random.default_rng(n)
        product = random_product(rng, shape, "gfx950")
        product.a[...], product.b[...], product.c[...] = 1.5, 1.0, 0.0
        ea, eb = (rng.integers(0, 255, (shape.dim, shape.k // 32)) for _ in range(2))
        ea[0], eb[0] = 254, 254
        ea[1], eb[1] = 0, 0
        ea[2, 0], eb[3, 1] = 255, 255
        rows = operand_rows(product, added_layout)
        rows += [scale_rows(ea, byte[0], rng), scale_rows(eb, byte[1], rng)]
        actual = take(cases.run(n, np.concatenate(rows)), added_layout(shape, "D"), "f32")[0]
        want = scaled_expected(product, ea, eb)[0]
        with np.errstate(over="ignore"):
            single = want.astype(np.float32)
        single[2, :], single[:, 3] = np.nan, np.nan
        assert np.array_equal(np.isnan(actual), np.isnan(single))
        fine = np.isfinite(single) & np.isfinite(actual)
        assert np.array_equal(np.isinf(actual), np.isinf(single))
        # Block sums are exact (48 * 2^n); their sum rounds at most three times, and each denormal
        # block at most by half the smallest denormal.
        bound = 4 * 2.0**-24 * np.abs(want[fine]) + 4 * 2.0**-150
        error = np.abs(actual[fine].astype(np.float64) - want[fine])
        assert (error <= bound).all(), f"{shape.name}: {(error / bound).max()} of the bound"


def test_scale_needs_its_enable_bit_and_accepts_infinite_results_under_ovfl() -> None:
    shape = shape_of("v_mfma_scale_f32_16x16x128_f8f6f4", "fp8", "fp8")
    setup = "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1"
    cases = Cases([plain_case(shape, setup=setup, scales=1), plain_case(shape, scales=1)], "gfx950")
    product = random_product(np.random.default_rng(0), shape, "gfx950")
    product.a[...], product.b[...], product.c[...] = 2.0, 4.0, 0.0
    product.a[0, 0] = -2.0
    rng = np.random.default_rng(1)
    full = np.full((16, 4), 254)
    rows = np.concatenate(
        [*operand_rows(product, added_layout), scale_rows(full, 0, rng), scale_rows(full, 0, rng)]
    )
    clamped = take(cases.run(0, rows), added_layout(shape, "D"), "f32")[0]
    free = take(cases.run(1, rows), added_layout(shape, "D"), "f32")[0]
    largest = np.finfo(np.float32).max
    sign = np.where(np.arange(16)[:, None] == 0, -1.0, 1.0) * np.ones((16, 16))
    assert_equal(clamped, sign * largest, "FP16_OVFL")
    assert_equal(free, sign * np.inf, "without FP16_OVFL")


# ------------------------------------------------------------------------------ sparse, moves


def test_index_sets_of_the_doubled_16_bit_instructions() -> None:
    """Sixteen bits of index a lane: ABID picks one of two sets unless CBSZ is set."""
    names = ["v_smfmac_f32_16x16x64_f16", "v_smfmac_f32_32x32x32_bf16"]
    mods = [("abid:1", 1), ("abid:0", 0), ("cbsz:1 abid:1", 0)]
    cases = Cases([plain_case(shape_of(n), m) for n in names for m, _ in mods], "gfx950")
    for n, name in enumerate(names):
        for m, (text, selected) in enumerate(mods):
            shape = shape_of(name)
            product = random_product(np.random.default_rng(n), shape, "gfx950")
            layouts = lambda s, x: layout_of(s, x) if x == "D" else measured_sparse(s, x)  # noqa: E731
            rows = operand_rows(product, layouts, index_shift=4 * selected)
            rows[3] |= np.uint32(0x4E4E << (16 * (1 - selected)))  # the set that is not read
            out = cases.run(n * len(mods) + m, np.concatenate(rows))
            actual = take(out, layouts(shape, "D"), "f32")
            assert_equal(actual, product.expected(), f"{name} {text}")


def test_sparse_product_ignores_what_is_not_selected() -> None:
    shape = shape_of("v_smfmac_f32_16x16x32_f16")
    product = random_product(np.random.default_rng(5), shape, "gfx950")
    product.chosen = np.broadcast_to(
        np.arange(16) // 2 * 4 + np.arange(16) % 2, product.a.shape
    ).copy()
    want = product.expected()
    product.b[..., 2::4], product.b[..., 3::4] = np.nan, np.inf
    out = Cases([plain_case(shape)], "gfx950").run(
        0, np.concatenate(operand_rows(product, layout_of))
    )
    assert_equal(take(out, layout_of(shape, "D"), "f32"), want, shape.name)


@pytest.mark.parametrize("arch", ARCHS)
def test_accumulation_register_moves_follow_exec(arch: str) -> None:
    mask = "  s_mov_b32 exec_lo, 0x0ff0ff0f\n  s_mov_b32 exec_hi, 0x5a5a5a5a\n"
    bodies = [
        "v_accvgpr_write_b32 a9, v8",
        "v_accvgpr_read_b32 v9, a8",
        "v_accvgpr_mov_b32 a9, a8",
        "v_accvgpr_write_b32 a9, -3",
        "v_accvgpr_write_b32 a9, 1.0",
    ]
    pairs = [("v8", "a9"), ("a8", "v9"), ("a8", "a9"), ("v8", "a9"), ("v8", "a9")]
    cases = Cases([Case(mask + b, [*p], [p[1]]) for b, p in zip(bodies, pairs, strict=True)], arch)
    rows = np.random.default_rng(0).integers(0, 2**32, (2, LANES), dtype=np.uint32)
    active = np.array([0x5A5A5A5A0FF0FF0F >> lane & 1 for lane in range(LANES)], bool)
    sources = [rows[0], rows[0], rows[0], np.full(LANES, 0xFFFFFFFD), np.full(LANES, 0x3F800000)]
    for n, source in enumerate(sources):
        actual = cases.run(n, rows)[0]
        assert np.array_equal(actual, np.where(active, source, rows[1])), bodies[n]


def test_f8f6f4_refuses_a_format_it_has_not() -> None:
    shape = shape_of("v_mfma_f32_16x16x128_f8f6f4", "fp8", "fp8")
    word = "  .long 0xd3ad0540, 0x05024108"  # cbsz 5, D and C v[64:67], A v[8:15], B v[32:39]
    cases = Cases([Case(word, plain_case(shape).inputs, names_of("v", 64, 4))], "gfx950")
    with pytest.raises(AssertionError, match="format code"):
        cases.run(0, np.zeros((20, LANES), np.uint32))
