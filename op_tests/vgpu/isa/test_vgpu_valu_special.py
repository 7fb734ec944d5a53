"""VALU opcodes whose operands are not one result and its sources: masks, packed halves, pairs,
quads, constants in the instruction.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from support.vgpu import reference as ref
from support.vgpu import valu_ops as ops
from support.vgpu.cases import (
    ALL,
    ARCHS,
    COUNT,
    FLUSH_CHOICES,
    MASKS,
    SHOW_MASK,
    U64,
    Book,
    Cases,
    Check,
    Form,
    apply_mods,
    finish,
    flush,
    inline_constant,
    lane_inputs,
    low32,
    seed_of,
    set_mask,
    set_sgpr,
    take,
    wave_mask,
    words_of,
)
from support.vgpu.reference import Array, Op
from support.vgpu.swizzle import Dpp, Sdwa, exec_lanes

CASES = Cases()
add = CASES.add

# ---------------------------------------------------------------- masks: cndmask and carries

_CARRIES: dict[str, tuple[Callable[[int, int, int], int], bool]] = {
    "v_add_co_u32": (lambda a, b, c: a + b, False),
    "v_sub_co_u32": (lambda a, b, c: a - b, False),
    "v_subrev_co_u32": (lambda a, b, c: b - a, False),
    "v_addc_co_u32": (lambda a, b, c: a + b + c, True),
    "v_subb_co_u32": (lambda a, b, c: a - b - c, True),
    "v_subbrev_co_u32": (lambda a, b, c: b - a - c, True),
}


def _carry_case(name: str, options: str, exec_mask: int, carry: int) -> None:
    fn, takes = _CARRIES[name]
    clamp = options == "clamp"
    e64 = options in ("e64", "clamp")
    where, source = ("s[12:13]", "s[10:11]") if e64 else ("vcc", "vcc")
    dpp = Dpp("row_shr:3", bound=True) if options == "dpp" else None
    sdwa = Sdwa(("BYTE_2", "WORD_1"), (True, False), "DWORD") if options == "sdwa" else None
    suffix = {"e32": "_e32", "dpp": "_dpp", "sdwa": "_sdwa"}.get(options, "_e64")
    text = f"{name}{suffix} v20, {where}, {'sext(v8)' if sdwa else 'v8'}, v10"
    text += f", {source}" if takes else ""
    text += f" {dpp.text}" if dpp else f" {sdwa.text}" if sdwa else " clamp" if clamp else ""
    asm = (
        set_mask("vcc", carry)
        + set_sgpr(10, carry)
        + set_mask("exec", exec_mask)
        + text
        + "\n"
        + SHOW_MASK.format(where)
    )

    def expect(lanes: Array) -> list[Array]:
        active = exec_lanes(exec_mask, len(lanes))
        a, b = lanes[:, 0], low32(lanes[:, 1])
        if dpp:
            a, active = dpp.apply(low32(a), active)
        if sdwa:
            a, b = sdwa.source(a, 0), sdwa.source(b, 1)
        a, b, c = (
            low32(a).astype(np.int64),
            b.astype(np.int64),
            exec_lanes(carry, len(lanes)).astype(np.int64),
        )
        exact = fn(a, b, c)
        over = (exact < 0) | (exact > 0xFFFFFFFF)
        value = ref.saturate(exact, "u32") if clamp else exact
        return [
            words_of(
                lanes[:, 3],
                (0, "u32", np.where(active, ref.encode(value, "u32"), low32(lanes[:, 3]))),
                (64, "u64", wave_mask(over & active)),
            )
        ]

    add(name, f"{name}{suffix} {options}", asm, "u32 u32", expect)


for _name in _CARRIES:
    for _how, _exec, _carry in (
        ("e32", ALL, MASKS[0]),
        ("e32", MASKS[1], MASKS[3]),
        ("e64", MASKS[0], MASKS[1]),
        ("clamp", ALL, MASKS[0]),
        ("dpp", ALL, MASKS[3]),
        ("sdwa", MASKS[3], MASKS[0]),
    ):
        _carry_case(_name, _how, _exec, _carry)


def _cndmask_case(form: Form, label: str, mask: int) -> None:
    source = "s[10:11]" if form.suffix == "_e64" else "vcc"
    neg, absolute = form.neg, form.abs
    texts = []
    for i, register in enumerate(("v8", "v10")):
        text = f"|{register}|" if absolute >> i & 1 else register
        texts.append(f"-{text}" if neg >> i & 1 else text)
    tail = form.dpp.text if form.dpp else form.sdwa.text if form.sdwa else ""
    asm = (
        set_mask("vcc", mask)
        + set_sgpr(10, mask)
        + set_mask("exec", form.exec)
        + f"v_cndmask_b32{form.suffix} v20, {texts[0]}, {texts[1]}, {source} {tail}\n"
    )

    def expect(lanes: Array) -> list[Array]:
        active = exec_lanes(form.exec, len(lanes))
        a, b = low32(lanes[:, 0]), low32(lanes[:, 1])
        if form.dpp:
            a, active = form.dpp.apply(a, active)
        if form.sdwa:
            a, b = form.sdwa.source(a, 0), form.sdwa.source(b, 1)
        a = apply_mods(a, "c32", bool(neg & 1), bool(absolute & 1))
        b = apply_mods(b, "c32", bool(neg & 2), bool(absolute & 2))
        value, old = np.where(exec_lanes(mask, len(lanes)), b, a), low32(lanes[:, 3])
        if form.sdwa:
            value = form.sdwa.result(value, old)
        return [words_of(lanes[:, 3], (0, "u32", np.where(active, value, old)))]

    add("v_cndmask_b32", f"v_cndmask_b32{form.suffix} {label}", asm, "c32 c32", expect)


for _label, _form in {
    "plain": Form("_e32"),
    "exec": Form("_e32", exec=MASKS[1]),
    "e64": Form("_e64", exec=MASKS[0]),
    "neg": Form("_e64", neg=1, abs=2),
    "abs": Form("_e64", neg=3, abs=1),
    "dpp": Form("_dpp", dpp=Dpp("row_ror:5", 7, 13), exec=MASKS[3]),
    "sdwa": Form(
        "_sdwa", sdwa=Sdwa(("BYTE_3", "WORD_1"), (False, False), "BYTE_2", "UNUSED_PRESERVE")
    ),
}.items():
    _cndmask_case(_form, _label, MASKS[2] ^ MASKS[0])

# ---------------------------------------------------------------- packed

_PACKED_DEFAULT_HIGH = {2: 3, 3: 7}


def _packed_source(op: Op, i: int, bits: Array, half: int, pick: int, negate: int) -> Array:
    """Element `half` of source i as the instruction reads it."""
    kind = op.srcs[i]
    if kind == "f32":
        value = bits >> U64(32) if pick >> i & 1 else low32(bits)
    else:
        value = bits >> U64(16) & U64(0xFFFF) if pick >> i & 1 else bits & U64(0xFFFF)
    del half
    return apply_mods(value, kind, bool(negate >> i & 1), False)


def _packed_case(
    op: Op,
    label: str,
    op_sel: int,
    op_sel_hi: int,
    neg_lo: int,
    neg_hi: int,
    *,
    clamp: bool = False,
    exec_mask: int = ALL,
    scalar: str = "",
) -> None:
    """`scalar`: sgpr or const in place of source 0."""
    count, element = len(op.srcs), op.srcs[0]
    pair = element == "f32"
    rng = random.Random(seed_of(op.name + label))
    texts = [f"v[{r}:{r + 1}]" if pair else f"v{r}" for r in (8, 10, 12)[:count]]
    fixed, setup = None, ""
    if scalar == "sgpr":
        fixed = rng.getrandbits(64)
        texts[0], setup = ("s[10:11]" if pair else "s10"), set_sgpr(10, fixed)
    elif scalar == "const":  # its high half is zero, or the sign of an integer
        texts[0], value = inline_constant(element, rng)
        integer = texts[0].lstrip("-").isdigit()
        fixed = int(texts[0]) & ALL if integer else value
    lists = {"op_sel": op_sel, "op_sel_hi": op_sel_hi, "neg_lo": neg_lo, "neg_hi": neg_hi}
    if not ref.is_float(element):
        assert neg_lo == neg_hi == 0
    tail = "".join(
        f" {k}:[{','.join(str(v >> i & 1) for i in range(count))}]"
        for k, v in lists.items()
        if v != (_PACKED_DEFAULT_HIGH[count] if k == "op_sel_hi" else 0)
    )
    dst = "v[20:21]" if pair else "v20"
    asm = (
        setup
        + set_mask("exec", exec_mask)
        + f"{op.name} {', '.join([dst, *texts])}{tail}{' clamp' if clamp else ''}\n"
    )
    bits_of = 32 if pair else 16
    form = Form(clamp=clamp)

    def expect(lanes: Array) -> list[Array]:
        sources = [
            lanes[:, i] if i or fixed is None else np.full(len(lanes), fixed, U64)
            for i in range(count)
        ]
        active, old = exec_lanes(exec_mask, len(lanes)), lanes[:, 3]
        fields = []
        for half, pick, negate in ((0, op_sel, neg_lo), (1, op_sel_hi, neg_hi)):
            values = [_packed_source(op, i, s, half, pick, negate) for i, s in enumerate(sources)]
            typed = [ref.decode(v, k) for v, k in zip(values, op.srcs, strict=True)]
            result = finish(op.fn(*typed), op, form)
            previous = take(words_of(old), half * bits_of, op.dst)
            fields.append((half * bits_of, op.dst, np.where(active, result, previous)))
        return [words_of(old, *fields)]

    checks = (
        [Check(op.dst, 0, any_zero=clamp), Check(op.dst, bits_of, any_zero=clamp)]
        if ref.is_float(op.dst)
        else []
    )
    kinds = ["f64" if pair else "u32"] * count
    case = add(
        op.name,
        f"{op.name} {label}",
        asm,
        " ".join(kinds),
        expect,
        checks,
        "gfx950" if "gfx950" in op.flags else "",
    )
    case.inputs = _packed_inputs(op, case.inputs)


def _packed_inputs(op: Op, inputs: Array) -> Array:
    """Both elements of every source drawn like lanes of their type."""
    kind, out = op.srcs[0], inputs.copy()
    parts = 2 if kind == "f32" else 4
    size = 64 // parts
    for part in range(parts):
        drawn = lane_inputs(list(op.srcs), len(inputs), seed_of(f"{op.name} {part}"))
        for column in range(len(op.srcs)):
            mask = U64(((1 << size) - 1) << (part * size))
            value = (drawn[:, column] & U64((1 << size) - 1)) << U64(part * size)
            out[:, column] = out[:, column] & ~mask | value
    return out


for _op in ops.PACKED:
    _rng, _n = random.Random(_op.name), len(_op.srcs)
    _all, _signed = _PACKED_DEFAULT_HIGH[_n], ref.is_float(_op.srcs[0])
    _packed_case(_op, "plain", 0, _all, 0, 0)
    for _i in range(3):
        _neg = (_rng.randrange(_all + 1), _rng.randrange(_all + 1)) if _signed else (0, 0)
        _packed_case(
            _op,
            f"mods {_i}",
            _rng.randrange(_all + 1),
            _rng.randrange(_all + 1),
            *_neg,
            exec_mask=(ALL, MASKS[0], MASKS[3])[_i],
        )
    _packed_case(_op, "sgpr", _rng.randrange(_all + 1), _all, 0, 0, scalar="sgpr")
    # On a float pair only op_sel_hi:0 says what a constant's high half is.
    _packed_case(_op, "const", 0, _all & ~1 if _signed else _all, 0, 0, scalar="const")
    if _signed or "sat" in _op.flags:
        _packed_case(_op, "clamp", 0, _all, 0, 0, clamp=True)


def _pk_fmac(suffix: str, exec_mask: int) -> None:
    def expect(lanes: Array) -> list[Array]:
        fields, active = [], exec_lanes(exec_mask, len(lanes))
        for shift in (0, 16):
            a, b, d = (
                ref.decode(lanes[:, i] >> U64(shift) & U64(0xFFFF), "f16") for i in (0, 1, 3)
            )
            bits = ref.encode(ref.quiet(ref.fma_odd)(a, b, d), "f16")
            fields.append(
                (shift, "f16", np.where(active, bits, lanes[:, 3] >> U64(shift) & U64(0xFFFF)))
            )
        return [words_of(lanes[:, 3], *fields)]

    add(
        "v_pk_fmac_f16",
        f"v_pk_fmac_f16{suffix} {exec_mask:x}",
        set_mask("exec", exec_mask) + f"v_pk_fmac_f16{suffix} v20, v8, v10\n",
        "u32 u32 u32 u32",
        expect,
        [Check("f16", 0), Check("f16", 16)],
    )


_pk_fmac("_e32", ALL)
_pk_fmac("_e32", MASKS[0])
_pk_fmac("_e64", ALL)


def _pk_mov(op_sel: int) -> None:
    def expect(lanes: Array) -> list[Array]:
        low = lanes[:, 0] >> U64(32 * (op_sel & 1)) & U64(0xFFFFFFFF)
        high = lanes[:, 1] >> U64(32 * (op_sel >> 1)) & U64(0xFFFFFFFF)
        return [words_of(lanes[:, 3], (0, "u32", low), (32, "u32", high))]

    add(
        "v_pk_mov_b32",
        f"v_pk_mov_b32 {op_sel}",
        f"v_pk_mov_b32 v[20:21], v[8:9], v[10:11] op_sel:[{op_sel & 1},{op_sel >> 1}]\n",
        "u64 u64",
        expect,
    )


for _i in range(4):
    _pk_mov(_i)

# ---------------------------------------------------------------- dot products and mixed FMA


def _dot_case(op: Op, label: str, neg_lo: int, neg_hi: int, clamp: bool, exec_mask: int) -> None:
    tail = " clamp" if clamp else ""
    if neg_lo or neg_hi:
        tail = (
            f" neg_lo:[{neg_lo & 1},{neg_lo >> 1 & 1},{neg_lo >> 2}]"
            f" neg_hi:[{neg_hi & 1},{neg_hi >> 1 & 1},0]" + tail
        )
    form = Form(clamp=clamp)

    def expect(lanes: Array) -> list[Array]:
        values = [low32(lanes[:, i]) for i in range(3)]
        for i in range(2):  # one sign bit a half
            flip = (0x8000 if neg_lo >> i & 1 else 0) | (0x80000000 if neg_hi >> i & 1 else 0)
            values[i] = values[i] ^ U64(flip)
        values[2] = values[2] ^ U64(0x80000000 if neg_lo & 4 else 0)
        bits = finish(
            op.fn(*[ref.decode(v, k) for v, k in zip(values, op.srcs, strict=True)]), op, form
        )
        active = exec_lanes(exec_mask, len(lanes))
        return [words_of(lanes[:, 3], (0, op.dst, np.where(active, bits, low32(lanes[:, 3]))))]

    checks = [Check(op.dst, 0, op.ulp, clamp)] if ref.is_float(op.dst) else []
    add(
        op.name,
        f"{op.name} {label}",
        set_mask("exec", exec_mask) + f"{op.name} v20, v8, v10, v12{tail}\n",
        " ".join(op.srcs),
        expect,
        checks,
        "gfx950" if "gfx950" in op.flags else "",
    )


for _op in ops.DOT:
    _dot_case(_op, "plain", 0, 0, False, ALL)
    _dot_case(_op, "clamp", 0, 0, True, MASKS[0])
    if ref.is_float(_op.dst):
        _dot_case(_op, "neg", 5, 2, False, ALL)
        _dot_case(_op, "neg both", 2, 3, False, MASKS[1])


def _mix_case(
    name: str, half: int, high: int, neg: int, absolute: int, clamp: bool, exec_mask: int
) -> None:
    """half: sources that are f16; high: which half; abs is neg_hi in the encoding."""
    texts = []
    for i, register in enumerate(("v8", "v10", "v12")):
        text = f"|{register}|" if absolute >> i & 1 else register
        texts.append(f"-{text}" if neg >> i & 1 else text)

    def bits_list(v: int) -> str:
        return ",".join(str(v >> i & 1) for i in range(3))

    tail = f" op_sel:[{bits_list(high)}] op_sel_hi:[{bits_list(half)}]{' clamp' if clamp else ''}"
    kind, offset = ("f32", 0) if name.endswith("f32") else ("f16", 16 if "hi" in name else 0)

    def expect(lanes: Array) -> list[Array]:
        sources = []
        for i in range(3):
            real = "f16" if half >> i & 1 else "f32"
            bits = lanes[:, i] >> U64(16) if real == "f16" and high >> i & 1 else lanes[:, i]
            bits = bits & U64((1 << ref.width(real)) - 1)
            sources.append(
                ref.decode(
                    apply_mods(bits, real, bool(neg >> i & 1), bool(absolute >> i & 1)), real
                )
            )
        with np.errstate(all="ignore"):
            value = ref.fma_odd(*sources).astype(np.float32)
            if clamp:
                value = np.abs(np.clip(np.where(np.isnan(value), np.float32(0), value), 0, 1))
        bits, previous = ref.encode(value, kind), take(words_of(lanes[:, 3]), offset, kind)
        return [
            words_of(
                lanes[:, 3],
                (offset, kind, np.where(exec_lanes(exec_mask, len(lanes)), bits, previous)),
            )
        ]

    case = add(
        name,
        f"{name} {half} {high} {neg} {absolute} {clamp}",
        set_mask("exec", exec_mask) + f"{name} v20, {', '.join(texts)}{tail}\n",
        "f32 f32 f32",
        expect,
        [Check(kind, offset, any_zero=clamp)],
    )
    halves = lane_inputs(["f16", "f16", "f16"], COUNT, seed_of(name))
    for i in range(3):
        if half >> i & 1:
            case.inputs[:, i] = halves[:, i] & U64(0xFFFF) | np.roll(halves[:, i], 7) << U64(
                16
            ) & U64(0xFFFF0000)


for _name in ("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"):
    _mix_case(_name, 7, 0, 0, 0, False, ALL)
    _mix_case(_name, 0, 0, 0, 0, False, MASKS[0])
    _mix_case(_name, 5, 4, 3, 6, False, ALL)
    _mix_case(_name, 3, 3, 4, 5, True, MASKS[1])

# ---------------------------------------------------------------- wide results


def _mad_wide(name: str, signed: bool, exec_mask: int) -> None:
    kind, wide = ("i32", "i64") if signed else ("u32", "u64")

    def expect(lanes: Array) -> list[Array]:
        a, b = (ref.decode(low32(lanes[:, i]), kind) for i in range(2))
        exact = ref.wide(a, b) + ref.decode(lanes[:, 2], wide).astype(object)
        limit = 1 << 63 if signed else 1 << 64
        over = np.array([not -limit <= v < limit if signed else v >= limit for v in exact])
        active = exec_lanes(exec_mask, len(lanes))
        return [
            words_of(
                lanes[:, 3],
                (0, "u64", np.where(active, ref.encode(exact, "u64"), lanes[:, 3])),
                (64, "u64", wave_mask(over & active)),
            )
        ]

    add(
        name,
        f"{name} {exec_mask:x}",
        set_mask("exec", exec_mask)
        + f"{name} v[20:21], s[12:13], v8, v10, v[12:13]\n"
        + SHOW_MASK.format("s[12:13]"),
        f"{kind} {kind} {wide}",
        expect,
    )


for _exec in (ALL, MASKS[0]):
    _mad_wide("v_mad_u64_u32", False, _exec)
    _mad_wide("v_mad_i64_i32", True, _exec)


def _mqsad(lanes: Array) -> list[Array]:
    addend = [lanes[:, 2], lanes[:, 2] >> U64(32), lanes[:, 3], lanes[:, 3] >> U64(32)]
    fields = []
    for i in range(4):
        window = low32(lanes[:, 0] >> U64(8 * i)).astype(np.int64)
        total = ref.sad_u8(
            window, low32(lanes[:, 1]).astype(np.int64), low32(addend[i]).astype(np.int64), True
        )
        fields.append((32 * i, "u32", ref.encode(total, "u32")))
    return [words_of(lanes[:, 3], *fields)]


add(
    "v_mqsad_u32_u8",
    "v_mqsad_u32_u8",
    "v_mqsad_u32_u8 v[20:23], v[8:9], v10, v[12:15]\n",
    "u64 u32 u64 u64",
    _mqsad,
)

# ---------------------------------------------------------------- constants in the instruction


def _constant_fma(
    name: str, real: str, text: str, order: Callable[[Array, Array, Array], Array]
) -> None:
    def expect(lanes: Array) -> list[Array]:
        mask = U64((1 << ref.width(real)) - 1)
        constant = np.full(len(lanes), int(text, 16), U64)
        a, b, k = (ref.decode(v & mask, real) for v in (lanes[:, 0], lanes[:, 1], constant))
        outs = []
        for flush_in, flush_out in FLUSH_CHOICES:
            args = [flush(v) if flush_in else v for v in (a, b, k)]
            value = ref.decode(ref.encode(ref.quiet(order)(*args), real), real)
            value = flush(value) if flush_out else value
            outs.append(words_of(lanes[:, 3], (0, "u32", ref.encode(value, real))))
        return outs if real == "f16" else outs[:1]

    operands = f"v8, {text}, v10" if "mk" in name else f"v8, v10, {text}"
    add(name, name, f"{name} v20, {operands}\n", f"{real} {real}", expect, [Check(real, 0)])


_constant_fma("v_fmamk_f32", "f32", "0x40490fdb", lambda a, b, k: ref.fma_odd(a, k, b))
_constant_fma("v_fmaak_f32", "f32", "0xc0490fdb", lambda a, b, k: ref.fma_odd(a, b, k))
_constant_fma("v_madmk_f16", "f16", "0x4248", lambda a, b, k: a * k + b)
_constant_fma("v_madak_f16", "f16", "0xc248", lambda a, b, k: a * b + k)

# ---------------------------------------------------------------- bits and bytes of gfx950


def _bitop3(bits: int, table: int) -> Callable[[Array], list[Array]]:
    mask = U64((1 << bits) - 1)

    def expect(lanes: Array) -> list[Array]:
        out = np.zeros(len(lanes), U64)
        for row in range(8):
            if table >> row & 1:
                parts = [lanes[:, i] if row >> (2 - i) & 1 else ~lanes[:, i] for i in range(3)]
                out |= parts[0] & parts[1] & parts[2]
        return [words_of(lanes[:, 3], (0, f"u{bits}", out & mask))]

    return expect


for _table in (0x6C, 0x01, 0x80, 0xE8, 0x96):
    for _bits in (16, 32):
        add(
            "v_bitop3",
            f"v_bitop3_b{_bits} {_table:#x}",
            f"v_bitop3_b{_bits} v20, v8, v10, v12 bitop3:{_table:#x}\n",
            "u32 u32 u32",
            _bitop3(_bits, _table),
            arch="gfx950",
        )


def _ashr_pk(kind: str, high: bool) -> Callable[[Array], list[Array]]:
    low_limit, top = (-128, 127) if kind == "i8" else (0, 255)

    def expect(lanes: Array) -> list[Array]:
        shift = (lanes[:, 2] & U64(31)).astype(np.int64)
        a, b = (
            np.clip(ref.decode(low32(lanes[:, i]), "i32") >> shift, low_limit, top) & 255
            for i in range(2)
        )
        return [words_of(lanes[:, 3], (16 if high else 0, "u16", (a | b << 8).astype(U64)))]

    return expect


for _kind in ("i8", "u8"):
    for _high in (False, True):
        add(
            "v_ashr_pk",
            f"v_ashr_pk_{_kind}_i32 {_high}",
            f"v_ashr_pk_{_kind}_i32 v20, v8, v10, v12{' op_sel:[0,0,0,1]' if _high else ''}\n",
            "i32 i32 u32",
            _ashr_pk(_kind, _high),
            arch="gfx950",
        )

add(
    "v_cvt_f32_bf16",
    "v_cvt_f32_bf16",
    "v_cvt_f32_bf16 v20, v8\n",
    "u32",
    lambda lanes: [words_of(lanes[:, 3], (0, "f32", lanes[:, 0] << U64(16) & U64(0xFFFF0000)))],
    [Check("f32", 0)],
    arch="gfx950",
)


def _pack_halves(op_sel: int, neg: int, absolute: int) -> Callable[[Array], list[Array]]:
    def expect(lanes: Array) -> list[Array]:
        parts = [
            apply_mods(
                lanes[:, i] >> U64(16 * (op_sel >> i & 1)) & U64(0xFFFF),
                "f16",
                bool(neg >> i & 1),
                bool(absolute >> i & 1),
            )
            for i in range(2)
        ]
        return [words_of(lanes[:, 3], (0, "u16", parts[0]), (16, "u16", parts[1]))]

    return expect


for _sel, _neg, _abs, _text in (
    (0, 0, 0, "v8, v10"),
    (1, 0, 0, "v8, v10 op_sel:[1,0]"),
    (2, 1, 2, "-v8, |v10| op_sel:[0,1]"),
    (3, 2, 2, "v8, -|v10| op_sel:[1,1]"),
):
    add(
        "v_pack_b32_f16",
        f"v_pack_b32_f16 {_text}",
        f"v_pack_b32_f16 v20, {_text}\n",
        "f16 f16",
        _pack_halves(_sel, _neg, _abs),
        [Check("f16", 0), Check("f16", 16)],
    )
add("v_nop", "v_nop", "v_nop\nv_clrexcp\n", "u32", lambda lanes: [words_of(lanes[:, 3])])
add(
    "v_swap_b32",
    "v_swap_b32",
    set_mask("exec", MASKS[0]) + "v_swap_b32 v20, v21\n",
    "u64",
    lambda lanes: [
        words_of(
            np.where(
                exec_lanes(MASKS[0], len(lanes)),
                lanes[:, 3] >> U64(32) | lanes[:, 3] << U64(32),
                lanes[:, 3],
            )
        )
    ],
)


@pytest.fixture(scope="module", params=ARCHS)
def book(request: pytest.FixtureRequest) -> Book:
    return Book(CASES.all(), request.param)


@pytest.mark.parametrize("name", CASES.groups)
def test_opcode(book: Book, name: str) -> None:
    book.run(CASES.groups[name])
