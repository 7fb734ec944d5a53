"""The VALU opcodes as the tests know them: one row an opcode (see vgpu_reference.Op)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.vgpu import reference as ref
from support.vgpu.reference import Array, Op, f64, row

_T = "ftz"  # runs on the transcendental unit


def _unary_floats() -> list[Op]:
    rows = []
    for kind, flags in (("f64", "nodpp nosdwa"), ("f32", ""), ("f16", "")):
        one = f"{kind} {kind}"
        real = ref.TYPES[kind][1]
        integer = "i16" if kind == "f16" else "i32"
        rows += [
            row(f"v_trunc_{kind}", one, np.trunc, flags),
            row(f"v_ceil_{kind}", one, np.ceil, flags),
            row(f"v_rndne_{kind}", one, np.rint, flags),
            row(f"v_floor_{kind}", one, np.floor, flags),
            row(f"v_fract_{kind}", one, ref.fract, flags),
            row(f"v_rcp_{kind}", one, lambda a: 1.0 / f64(a), f"{_T} {flags}", 1),
            row(
                f"v_rsq_{kind}",
                one,
                lambda a: 1.0 / np.sqrt(a.astype(np.longdouble)),
                f"{_T} {flags}",
                1,
            ),
            row(
                f"v_sqrt_{kind}",
                one,
                lambda a: np.sqrt(a.astype(np.longdouble)),
                f"{_T} {flags}",
                1,
            ),
            row(f"v_frexp_mant_{kind}", one, lambda a: ref.frexp(a)[0], flags),
            row(
                f"v_frexp_exp_{integer}_{kind}",
                f"{integer} {kind}",
                lambda a: ref.frexp(a)[1],
                flags,
            ),
        ]
        if kind != "f64":
            rows += [
                row(f"v_exp_{kind}", one, lambda a: np.exp2(f64(a)), _T, 1),
                row(f"v_log_{kind}", one, lambda a: np.log2(a.astype(np.longdouble)), _T, 1),
                row(f"v_sin_{kind}", one, lambda a: ref.circle(a, np.sin), _T, 1),
                row(f"v_cos_{kind}", one, lambda a: ref.circle(a, np.cos), _T, 1),
            ]
        assert real is not None
    return rows


_W = "nodpp nosdwa"  # 64-bit operands: no SDWA, DPP only with row_newbcast (tested apart)

VOP1 = [
    *_unary_floats(),
    row("v_rcp_iflag_f32", "f32 f32", lambda a: 1.0 / f64(a), _T, 1),
    row("v_exp_legacy_f32", "f32 f32", lambda a: np.exp2(f64(a)), _T, 1),
    row("v_log_legacy_f32", "f32 f32", lambda a: np.log2(f64(a)), _T, 1),
    row("v_mov_b32", "u32 u32", lambda a: a),
    row("v_mov_b64", "u64 u64", lambda a: a, _W),
    row("v_not_b32", "u32 u32", lambda a: ~a),
    row("v_bfrev_b32", "u32 u32", ref.reverse32),
    row("v_ffbh_u32", "u32 u32", ref.leading),
    row("v_ffbl_b32", "u32 u32", ref.trailing),
    row("v_ffbh_i32", "u32 i32", ref.leading_signed),
    row("v_cvt_i32_f64", "i32 f64", lambda a: ref.to_int(a, "i32"), _W),
    row("v_cvt_u32_f64", "u32 f64", lambda a: ref.to_int(a, "u32"), _W),
    row("v_cvt_f64_i32", "f64 i32", f64, _W),
    row("v_cvt_f64_u32", "f64 u32", f64, _W),
    row("v_cvt_f32_i32", "f32 i32", f64),
    row("v_cvt_f32_u32", "f32 u32", f64),
    row("v_cvt_u32_f32", "u32 f32", lambda a: ref.to_int(a, "u32")),
    row("v_cvt_i32_f32", "i32 f32", lambda a: ref.to_int(a, "i32")),
    row("v_cvt_f16_f32", "f16 f32", f64),
    row("v_cvt_f32_f16", "f32 f16", f64),
    row("v_cvt_rpi_i32_f32", "i32 f32", lambda a: ref.to_int(np.floor(a + np.float32(0.5)), "i32")),
    row("v_cvt_flr_i32_f32", "i32 f32", lambda a: ref.to_int(np.floor(f64(a)), "i32")),
    row("v_cvt_off_f32_i4", "f32 u32", lambda a: ((a & 15 ^ 8) - 8) / 16.0),
    row("v_cvt_f32_f64", "f32 f64", lambda a: a, _W),
    row("v_cvt_f64_f32", "f64 f32", f64, _W),
    *[
        row(f"v_cvt_f32_ubyte{i}", "f32 u32", lambda a, i=i: f64(a >> (8 * i) & 255))
        for i in range(4)
    ],
    row("v_cvt_f16_u16", "f16 u16", f64),
    row("v_cvt_f16_i16", "f16 i16", f64),
    row("v_cvt_u16_f16", "u16 f16", lambda a: ref.to_int(a, "u16")),
    row("v_cvt_i16_f16", "i16 f16", lambda a: ref.to_int(a, "i16")),
    row("v_cvt_norm_i16_f16", "i16 f16", lambda a: ref.norm16(a, True)),
    row("v_cvt_norm_u16_f16", "u16 f16", lambda a: ref.norm16(a, False)),
    row(
        "v_sat_pk_u8_i16",
        "u32 u32",
        lambda a: (
            np.clip(ref.fields(a, 16, True)[0], 0, 255)
            | np.clip(ref.fields(a, 16, True)[1], 0, 255) << 8
        ),
    ),
    row("v_prng_b32", "u32 u32", lambda a: a << 1 ^ np.where(a >> 31, 197, 0), "gfx950"),
]


def _shift(kind: str, to_left: bool) -> Callable[[Array, Array], Array]:
    mask = ref.width(kind) - 1
    if to_left:
        return lambda a, b: b << (a & mask)
    return lambda a, b: b >> (a & mask)


def _int24(signed: bool) -> Callable[[Array], Array]:
    if signed:
        return lambda a: (a & 0xFFFFFF ^ 0x800000) - 0x800000
    return lambda a: a & 0xFFFFFF


_S24, _U24 = _int24(True), _int24(False)


def _dot2_float(real: str) -> Callable[..., Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        (a0, a1), (b0, b1) = ref.halves(a, real), ref.halves(b, real)
        return a0 * b0 + a1 * b1 + f64(c)

    return run


_dot2_f16, _dot2_bf16 = _dot2_float("f16"), _dot2_float("bf16")


def _float_pairs() -> list[Op]:
    rows = []
    for kind in ("f32", "f16"):
        types = f"{kind} {kind} {kind}"
        rows += [
            row(f"v_add_{kind}", types, lambda a, b: a + b),
            row(f"v_sub_{kind}", types, lambda a, b: a - b),
            row(f"v_subrev_{kind}", types, lambda a, b: b - a),
            row(f"v_mul_{kind}", types, lambda a, b: a * b),
            row(f"v_min_{kind}", types, ref.fmin),
            row(f"v_max_{kind}", types, ref.fmax),
        ]
    return rows


def _short_ints() -> list[Op]:
    rows = []
    for kind in ("u16", "i16"):
        types = f"{kind} {kind} {kind}"
        rows += [row(f"v_max_{kind}", types, np.maximum), row(f"v_min_{kind}", types, np.minimum)]
    return rows


VOP2 = [
    *_float_pairs(),
    *_short_ints(),
    row(
        "v_mul_legacy_f32",
        "f32 f32 f32",
        lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b),
        "no32",
    ),
    row("v_mul_i32_i24", "u32 u32 u32", lambda a, b: _S24(a) * _S24(b)),
    row("v_mul_hi_i32_i24", "u32 u32 u32", lambda a, b: _S24(a) * _S24(b) >> 32),
    row("v_mul_u32_u24", "u32 u32 u32", lambda a, b: _U24(a) * _U24(b)),
    row("v_mul_hi_u32_u24", "u32 u32 u32", lambda a, b: _U24(a) * _U24(b) >> 32),
    row("v_min_i32", "i32 i32 i32", np.minimum),
    row("v_max_i32", "i32 i32 i32", np.maximum),
    row("v_min_u32", "u32 u32 u32", np.minimum),
    row("v_max_u32", "u32 u32 u32", np.maximum),
    row("v_lshrrev_b32", "u32 u32 u32", _shift("u32", False)),
    row("v_ashrrev_i32", "i32 u32 i32", _shift("i32", False)),
    row("v_lshlrev_b32", "u32 u32 u32", _shift("u32", True)),
    row("v_and_b32", "u32 u32 u32", lambda a, b: a & b),
    row("v_or_b32", "u32 u32 u32", lambda a, b: a | b),
    row("v_xor_b32", "u32 u32 u32", lambda a, b: a ^ b),
    row("v_xnor_b32", "u32 u32 u32", lambda a, b: ~(a ^ b)),
    row("v_add_u32", "u32 u32 u32", lambda a, b: a + b, "sat"),
    row("v_sub_u32", "u32 u32 u32", lambda a, b: a - b, "sat"),
    row("v_subrev_u32", "u32 u32 u32", lambda a, b: b - a, "sat"),
    row("v_add_u16", "u16 u16 u16", lambda a, b: a + b, "sat"),
    row("v_sub_u16", "u16 u16 u16", lambda a, b: a - b, "sat"),
    row("v_subrev_u16", "u16 u16 u16", lambda a, b: b - a, "sat"),
    row("v_mul_lo_u16", "u16 u16 u16", lambda a, b: a * b),
    row("v_lshlrev_b16", "u16 u16 u16", _shift("u16", True)),
    row("v_lshrrev_b16", "u16 u16 u16", _shift("u16", False)),
    row("v_ashrrev_i16", "i16 u16 i16", _shift("i16", False)),
    row("v_ldexp_f16", "f16 f16 i16", ref.ldexp),
    row("v_fmac_f32", "f32 f32 f32", lambda a, b, d: ref.fma_odd(a, b, d), "acc nosdwa"),
    row("v_fmac_f64", "f64 f64 f64", ref.fma64, "acc slow " + _W),
    row("v_mac_f16", "f16 f16 f16", lambda a, b, d: a * b + d, "acc ftz nosdwa"),
    row("v_dot2c_f32_f16", "f32 h32 h32", _dot2_f16, "acc dotf nosdwa", 2),
    row("v_dot2c_f32_bf16", "f32 b32 b32", _dot2_bf16, "acc dotf nosdwa gfx950", 2),
    row("v_dot2c_i32_i16", "i32 d32 d32", ref.dot(16, True), "acc sat nosdwa"),
    row("v_dot4c_i32_i8", "i32 d32 d32", ref.dot(8, True), "acc sat nosdwa"),
    row("v_dot8c_i32_i4", "i32 d32 d32", ref.dot(4, True), "acc sat nosdwa"),
]


def _three_floats() -> list[Op]:
    rows = []
    for kind in ("f32", "f16"):
        types = f"{kind} {kind} {kind} {kind}"
        rows += [
            row(f"v_min3_{kind}", types, ref.fmin3),
            row(f"v_max3_{kind}", types, ref.fmax3),
            row(f"v_med3_{kind}", types, ref.fmed3),
            row(f"v_fma_{kind}", types, ref.fma_odd),
            row(f"v_div_fixup_{kind}", types, ref.div_fixup),
        ]
    return rows


def _three_ints() -> list[Op]:
    rows = []
    for kind in ("i32", "u32", "i16", "u16"):
        types = f"{kind} {kind} {kind} {kind}"
        rows += [
            row(f"v_min3_{kind}", types, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
            row(f"v_max3_{kind}", types, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
            row(f"v_med3_{kind}", types, ref.median),
        ]
    return rows


def _cube(operation: str) -> Callable[..., Array]:
    def run(x: Array, y: Array, z: Array) -> Array:
        ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
        on_z, on_y = (az >= ax) & (az >= ay), ay >= ax
        z_value, y_value, x_value = {
            "id": (np.where(z < 0, 5.0, 4.0), np.where(y < 0, 3.0, 2.0), np.where(x < 0, 1.0, 0.0)),
            "sc": (np.where(z < 0, -x, x), x, np.where(x < 0, z, -z)),
            "tc": (-y, np.where(y < 0, -z, z), -y),
            "ma": (z * 2, y * 2, x * 2),
        }[operation]
        return np.where(on_z, z_value, np.where(on_y, y_value, x_value)).astype(np.float32)

    return run


def _insert_byte(a: Array, byte: Array, c: Array) -> Array:
    shift = (byte & 3) * 8
    return (
        c & ~(0xFF << shift)
        | ref.to_int(np.clip(np.rint(np.nan_to_num(f64(a))), 0, 255), "u16") << shift
    )


def _pack(low: Array, high: Array) -> Array:
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


def _to_zero_f16(x: Array) -> Array:
    """f16 bits of a float32, rounded toward zero."""
    nearest = x.astype(np.float16)
    rounded_up = np.abs(f64(nearest)) > np.abs(f64(x))
    return (nearest.view(np.uint16) - rounded_up).astype(np.int64)


def _mad_wide(kind: str) -> Callable[..., Array]:
    del kind
    return lambda a, b, c: ref.wide(a, b) + c.astype(object)


_W3 = "u32 u32 u32 u32"
VOP3 = [
    *_three_floats(),
    *_three_ints(),
    row("v_mad_i32_i24", "i32 u32 u32 i32", lambda a, b, c: _S24(a) * _S24(b) + c, "sat"),
    row("v_mad_u32_u24", _W3, lambda a, b, c: _U24(a) * _U24(b) + c, "sat"),
    *[row(f"v_cube{w}_f32", "f32 f32 f32 f32", _cube(w)) for w in ("id", "sc", "tc", "ma")],
    row("v_bfe_u32", _W3, lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1)),
    row("v_bfe_i32", "i32 i32 u32 u32", lambda a, b, c: ref.bfe_signed(a, b & 31, c & 31)),
    row("v_bfi_b32", _W3, lambda a, b, c: a & b | ~a & c),
    row("v_fma_f64", "f64 f64 f64 f64", ref.fma64, "slow"),
    row("v_lerp_u8", _W3, ref.lerp_u8),
    row(
        "v_alignbit_b32",
        _W3,
        lambda a, b, c: np.where(c & 31, a << (32 - (c & 31)), 0) | b >> (c & 31),
    ),
    row(
        "v_alignbyte_b32",
        _W3,
        lambda a, b, c: np.where(c & 3, a << (32 - 8 * (c & 3)), 0) | b >> (8 * (c & 3)),
    ),
    row("v_sad_u8", _W3, ref.sad_u8, "sat"),
    row("v_sad_hi_u8", _W3, lambda a, b, c: (ref.sad_u8(a, b, 0 * c) << 16) + c, "sat"),
    row(
        "v_sad_u16",
        _W3,
        lambda a, b, c: c + np.abs((a & 0xFFFF) - (b & 0xFFFF)) + np.abs((a >> 16) - (b >> 16)),
        "sat",
    ),
    row("v_sad_u32", _W3, lambda a, b, c: np.abs(a - b) + c, "sat"),
    row("v_msad_u8", _W3, lambda a, b, c: ref.sad_u8(a, b, c, True), "sat"),
    row("v_qsad_pk_u16_u8", "u64 u64 u32 u64", lambda a, b, c: ref.quad_sad(a, b, c, False)),
    row("v_mqsad_pk_u16_u8", "u64 u64 u32 u64", lambda a, b, c: ref.quad_sad(a, b, c, True)),
    row("v_cvt_pk_u8_f32", "u32 f32 u32 u32", _insert_byte),
    row("v_cvt_pkaccum_u8_f32", "u32 f32 u32", _insert_byte, "acc"),
    row("v_div_fixup_f64", "f64 f64 f64 f64", ref.div_fixup),
    row("v_div_fixup_legacy_f16", "f16 f16 f16 f16", ref.div_fixup, "zero"),
    row("v_mad_legacy_f16", "f16 f16 f16 f16", lambda a, b, c: a * b + c, "ftz zero"),
    row("v_mad_legacy_u16", "u16 u16 u16 u16", lambda a, b, c: a * b + c, "sat zero"),
    row("v_mad_legacy_i16", "i16 i16 i16 i16", lambda a, b, c: a * b + c, "sat zero"),
    row("v_fma_legacy_f16", "f16 f16 f16 f16", ref.fma_odd, "zero"),
    row("v_mad_f16", "f16 f16 f16 f16", lambda a, b, c: a * b + c, "ftz"),
    row("v_mad_u16", "u16 u16 u16 u16", lambda a, b, c: a * b + c, "sat"),
    row("v_mad_i16", "i16 i16 i16 i16", lambda a, b, c: a * b + c, "sat"),
    row("v_mad_u32_u16", "u32 u16 u16 u32", lambda a, b, c: a * b + c, "sat"),
    row("v_mad_i32_i16", "i32 i16 i16 i32", lambda a, b, c: a * b + c, "sat"),
    row("v_perm_b32", _W3, ref.perm),
    row("v_xad_u32", _W3, lambda a, b, c: (a ^ b) + c),
    row("v_lshl_add_u32", _W3, lambda a, b, c: (a << (b & 31)) + c),
    row("v_add_lshl_u32", _W3, lambda a, b, c: (a + b & 0xFFFFFFFF) << (c & 31)),
    row("v_add3_u32", _W3, lambda a, b, c: a + b + c),
    row("v_lshl_or_b32", _W3, lambda a, b, c: a << (b & 31) | c),
    row("v_and_or_b32", _W3, lambda a, b, c: a & b | c),
    row("v_or3_b32", _W3, lambda a, b, c: a | b | c),
    row(
        "v_lshl_add_u64",
        "u64 u64 u32 u64",
        lambda a, b, c: np.where(b & 7 <= 4, a << (b & 7).astype(np.uint64), np.uint64(0)) + c,
        "shift4",
    ),
    row("v_add_f64", "f64 f64 f64", lambda a, b: a + b),
    row("v_mul_f64", "f64 f64 f64", lambda a, b: a * b),
    row("v_min_f64", "f64 f64 f64", ref.fmin),
    row("v_max_f64", "f64 f64 f64", ref.fmax),
    row("v_ldexp_f64", "f64 f64 i32", ref.ldexp),
    row("v_ldexp_f32", "f32 f32 i32", ref.ldexp),
    row("v_mul_lo_u32", "u32 u32 u32", ref.wide),
    row("v_mul_hi_u32", "u32 u32 u32", lambda a, b: ref.wide(a, b) >> 32),
    row("v_mul_hi_i32", "i32 i32 i32", lambda a, b: ref.wide(a, b) >> 32),
    row("v_bcnt_u32_b32", "u32 u32 u32", lambda a, b: ref.popcount(a) + b),
    row(
        "v_mbcnt_lo_u32_b32",
        "u32 u32 u32",
        lambda a, b, lane: ref.popcount(a & ((1 << np.minimum(lane, 32)) - 1)) + b,
        "lane",
    ),
    row(
        "v_mbcnt_hi_u32_b32",
        "u32 u32 u32",
        lambda a, b, lane: ref.popcount(a & ((1 << np.maximum(lane - 32, 0)) - 1)) + b,
        "lane",
    ),
    row("v_lshlrev_b64", "u64 u32 u64", lambda a, b: ref.shift64(b, a, True)),
    row("v_lshrrev_b64", "u64 u32 u64", lambda a, b: ref.shift64(b, a, False)),
    row("v_ashrrev_i64", "i64 u32 i64", lambda a, b: ref.shift64(b, a, False)),
    row("v_trig_preop_f64", "f64 f64 u32", ref.trig_preop, "slow"),
    row("v_bfm_b32", "u32 u32 u32", lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    row(
        "v_cvt_pknorm_i16_f32",
        "u32 f32 f32",
        lambda a, b: _pack(ref.norm16(a, True), ref.norm16(b, True)),
    ),
    row(
        "v_cvt_pknorm_u16_f32",
        "u32 f32 f32",
        lambda a, b: _pack(ref.norm16(a, False), ref.norm16(b, False)),
    ),
    row(
        "v_cvt_pknorm_i16_f16",
        "u32 f16 f16",
        lambda a, b: _pack(ref.norm16(a, True), ref.norm16(b, True)),
    ),
    row(
        "v_cvt_pknorm_u16_f16",
        "u32 f16 f16",
        lambda a, b: _pack(ref.norm16(a, False), ref.norm16(b, False)),
    ),
    row(
        "v_cvt_pkrtz_f16_f32",
        "pkf16 f32 f32",
        lambda a, b: _pack(_to_zero_f16(a), _to_zero_f16(b)),
        "no32",
    ),
    row(
        "v_cvt_pk_u16_u32",
        "u32 u32 u32",
        lambda a, b: _pack(np.clip(a, 0, 65535), np.clip(b, 0, 65535)),
    ),
    row(
        "v_cvt_pk_i16_i32",
        "u32 i32 i32",
        lambda a, b: _pack(np.clip(a, -32768, 32767), np.clip(b, -32768, 32767)),
    ),
    row("v_add_i32", "i32 i32 i32", lambda a, b: a + b, "sat"),
    row("v_sub_i32", "i32 i32 i32", lambda a, b: a - b, "sat"),
    row("v_add_i16", "i16 i16 i16", lambda a, b: a + b, "sat"),
    row("v_sub_i16", "i16 i16 i16", lambda a, b: a - b, "sat"),
    row(
        "v_minimum3_f32",
        "f32 f32 f32 f32",
        lambda a, b, c: ref.propagate(ref.propagate(a, b, False), c, False),
        "gfx950",
    ),
    row(
        "v_maximum3_f32",
        "f32 f32 f32 f32",
        lambda a, b, c: ref.propagate(ref.propagate(a, b, True), c, True),
        "gfx950",
    ),
]

# Packed opcodes: types of one element, function of one element.
PACKED = [
    row("v_pk_mad_i16", "i16 i16 i16 i16", lambda a, b, c: a * b + c, "sat"),
    row("v_pk_mad_u16", "u16 u16 u16 u16", lambda a, b, c: a * b + c, "sat"),
    row("v_pk_mul_lo_u16", "u16 u16 u16", lambda a, b: a * b),
    row("v_pk_add_i16", "i16 i16 i16", lambda a, b: a + b, "sat"),
    row("v_pk_sub_i16", "i16 i16 i16", lambda a, b: a - b, "sat"),
    row("v_pk_add_u16", "u16 u16 u16", lambda a, b: a + b, "sat"),
    row("v_pk_sub_u16", "u16 u16 u16", lambda a, b: a - b, "sat"),
    row("v_pk_lshlrev_b16", "u16 u16 u16", _shift("u16", True)),
    row("v_pk_lshrrev_b16", "u16 u16 u16", _shift("u16", False)),
    row("v_pk_ashrrev_i16", "i16 u16 i16", _shift("i16", False)),
    row("v_pk_max_i16", "i16 i16 i16", np.maximum),
    row("v_pk_min_i16", "i16 i16 i16", np.minimum),
    row("v_pk_max_u16", "u16 u16 u16", np.maximum),
    row("v_pk_min_u16", "u16 u16 u16", np.minimum),
    row("v_pk_fma_f16", "f16 f16 f16 f16", ref.fma_odd),
    row("v_pk_add_f16", "f16 f16 f16", lambda a, b: a + b),
    row("v_pk_mul_f16", "f16 f16 f16", lambda a, b: a * b),
    row("v_pk_min_f16", "f16 f16 f16", ref.fmin),
    row("v_pk_max_f16", "f16 f16 f16", ref.fmax),
    row(
        "v_pk_minimum3_f16",
        "f16 f16 f16 f16",
        lambda a, b, c: ref.propagate(ref.propagate(a, b, False), c, False),
        "gfx950",
    ),
    row(
        "v_pk_maximum3_f16",
        "f16 f16 f16 f16",
        lambda a, b, c: ref.propagate(ref.propagate(a, b, True), c, True),
        "gfx950",
    ),
    row("v_pk_fma_f32", "f32 f32 f32 f32", ref.fma_odd),
    row("v_pk_mul_f32", "f32 f32 f32", lambda a, b: a * b),
    row("v_pk_add_f32", "f32 f32 f32", lambda a, b: a + b),
]

DOT = [
    row("v_dot2_f32_f16", "f32 h32 h32 f32", _dot2_f16, "dotf", 2),
    row("v_dot2_f32_bf16", "f32 b32 b32 f32", _dot2_bf16, "dotf gfx950", 2),
    row("v_dot2_i32_i16", "i32 d32 d32 i32", ref.dot(16, True), "sat"),
    row("v_dot2_u32_u16", "u32 d32 d32 u32", ref.dot(16, False), "sat"),
    row("v_dot4_i32_i8", "i32 d32 d32 i32", ref.dot(8, True), "sat"),
    row("v_dot4_u32_u8", "u32 d32 d32 u32", ref.dot(8, False), "sat"),
    row("v_dot8_i32_i4", "i32 d32 d32 i32", ref.dot(4, True), "sat"),
    row("v_dot8_u32_u4", "u32 d32 d32 u32", ref.dot(4, False), "sat"),
]

_ORDERED = {
    "f": lambda a, b: a != a,
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_FLOAT_COMPARES: dict[str, Callable[[Array, Array], Array]] = {
    **{k: v for k, v in _ORDERED.items() if k != "f"},
    "f": lambda a, b: np.zeros(len(a), bool),
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(len(a), bool),
}
_INT_COMPARES: dict[str, Callable[[Array, Array], Array]] = {
    **{k: v for k, v in _ORDERED.items() if k != "f"},
    "f": lambda a, b: np.zeros(len(a), bool),
    "ne": np.not_equal,
    "t": lambda a, b: np.ones(len(a), bool),
}


def classify(x: Array, mask: Array) -> Array:
    """v_cmp_class: is x of a class that `mask` names?"""
    info, negative = np.finfo(x.dtype), np.signbit(x)
    size = np.where(
        np.isinf(x), 3, np.where(np.abs(x) >= info.smallest_normal, 2, np.where(x != 0, 1, 0))
    )
    bit = np.where(negative, 5 - size, 6 + size)
    bit = np.where(np.isnan(x), np.where(ref.is_snan(x), 0, 1), bit)
    return (mask >> bit & 1).astype(bool)


def _compares() -> list[Op]:
    rows = []
    for kind, table in [(k, _FLOAT_COMPARES) for k in ("f16", "f32", "f64")] + [
        (k, _INT_COMPARES) for k in ("i16", "u16", "i32", "u32", "i64", "u64")
    ]:
        flags = _W if kind.endswith("64") else "nodpp"
        for prefix in ("v_cmp", "v_cmpx"):
            rows += [
                row(f"{prefix}_{name}_{kind}", f"mask {kind} {kind}", fn, flags)
                for name, fn in table.items()
            ]
    for kind in ("f16", "f32", "f64"):
        flags = _W if kind.endswith("64") else "nodpp"
        rows += [
            row(f"{p}_class_{kind}", f"mask {kind} u32", classify, flags)
            for p in ("v_cmp", "v_cmpx")
        ]
    return rows


VOPC = _compares()
