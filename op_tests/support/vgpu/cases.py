"""Instruction tests as data: a case is a snippet, its inputs and what every output dword must hold.

`op_case` makes the case of one opcode row in one form (operands, modifiers, EXEC, DPP, SDWA) and
works the same form out on the reference side. A `Book` assembles all cases of an architecture.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from support.vgpu import reference as ref
from support.vgpu.asm import LANES, Snippets
from support.vgpu.reference import Array, Op
from support.vgpu.swizzle import Dpp, Sdwa, exec_lanes

ARCHS = ("gfx942", "gfx950")
MASKS = (0x5A5A_F00F_1234_8001, 0xFFFF_0000_FFFF_0000, 0x8000_0000_0000_0001, 0x0F0F_3333_5555_FF00)
ALL = (1 << LANES) - 1
U64 = np.uint64

# ---------------------------------------------------------------- inputs

_FLOAT_SPECIALS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    0.25,
    3.0,
    255.5,
    256.0,
    -300.0,
    65504.0,
    65520.0,
    0.75,
    127.5,
    -128.5,
    32767.5,
    2147483648.0,
    -2147483648.0,
    4294967295.0,
    4294967296.0,
    8388607.5,
]
# smallest and largest denormal, smallest normal, largest, inf, quiet and signalling NaN
_FLOAT_BITS = {
    "f16": [
        1,
        0x8001,
        0x3FF,
        0x400,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E01,
        0xFE00,
        0x7C01,
        0xFD00,
    ],
    "f32": [
        1,
        0x80000001,
        0x7FFFFF,
        0x807FFFFF,
        0x800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0xFFC00000,
        0x7F800001,
        0xFFA00000,
        0x3EFFFFFF,
        0x477FEFFF,
        0x33000000,
    ],
    "f64": [
        1,
        1 << 63 | 1,
        (1 << 52) - 1,
        1 << 52,
        0x7FEFFFFFFFFFFFFF,
        0xFFEFFFFFFFFFFFFF,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8000000000001,
        0xFFF8 << 48,
        0x7FF0000000000001,
        0xFFF4 << 48,
        0x3FDFFFFFFFFFFFFF,
        0x36A0000000000000,
        0x47EFFFFFF0000000,
        0x380FFFFFFFFFFFFF,
        0x7B00000000000000,
    ],
}
_INT_SPECIALS = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFFFF,
    0x800000,
    0xFFFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x80008000,
    0xC0A08040,
    0x7FFFFFFFFFFFFFFF,
    1 << 63,
    ALL,
]


@functools.cache
def specials(kind: str) -> Array:
    if not ref.is_float(kind):
        if kind == "c32":
            return specials("f32")
        return np.unique(np.array(_INT_SPECIALS, U64) & U64((1 << ref.width(kind)) - 1))
    values = ref.encode(np.array(_FLOAT_SPECIALS), kind)
    return np.concatenate([values, np.array(_FLOAT_BITS[kind], U64)])


def random_bits(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Half plain random bits (integers: of random length), half floats of moderate size."""
    raw = rng.integers(0, 1 << 64, count, dtype=U64)
    if not ref.is_float(kind):
        return raw >> rng.integers(0, 64, count, dtype=U64) if kind != "c32" else raw
    spread = {"f16": 6, "f32": 20, "f64": 40}[kind]
    moderate = rng.standard_normal(count) * np.exp2(rng.integers(-spread, spread, count))
    return np.where(rng.random(count) < 0.5, ref.encode(moderate, kind), raw)


def lane_inputs(kinds: Sequence[str], count: int, seed: int) -> Array:
    """uint64 [count, 4]: pairs of special values first, then random; unused columns are random."""
    rng = np.random.default_rng(seed)
    out = rng.integers(0, 1 << 64, (count, 4), dtype=U64)
    index = np.arange(count // 2)
    if count < 1024:
        index = rng.integers(0, 1 << 30, count // 2)
    stride = 1
    for column, kind in enumerate(kinds):
        pool = specials(kind)
        out[: count // 2, column] = (
            pool[index // stride % len(pool)] if column < 2 else rng.choice(pool, count // 2)
        )
        out[count // 2 :, column] = random_bits(kind, count - count // 2, rng)
        stride *= len(pool)
    if len(kinds) > 1 and kinds[0] == kinds[1]:  # equal and nearly equal operands
        third = slice(count // 2, count // 2 + count // 8)
        out[third, 1] = out[third, 0] ^ rng.integers(0, 4, count // 8, dtype=U64)
    # Registers above an operand's width hold garbage, except that lane_inputs owns all 64 bits.
    for column, kind in enumerate(kinds):
        if ref.width(kind) < 64:
            mask = U64((1 << ref.width(kind)) - 1)
            out[:, column] = (
                out[:, column] & mask | rng.integers(0, 1 << 64, count, dtype=U64) & ~mask
            )
    return out


def seed_of(text: str) -> int:
    return zlib.crc32(text.encode())


# ---------------------------------------------------------------- cases


@dataclass
class Check:
    """How a range of bits of the four output dwords is compared: `kind` at bit `at`."""

    kind: str
    at: int
    ulp: int = 0
    any_zero: bool = False  # the sign of a zero is not defined (clamp)

    def matches(self, actual: Array, want: Array) -> Array:
        bits = actual == want
        if not ref.is_float(self.kind):
            return bits
        x, y = ref.decode(actual, self.kind), ref.decode(want, self.kind)
        ok = bits | (np.isnan(x) & np.isnan(y) & ~ref.is_snan(x))
        if self.any_zero:
            ok |= (x == 0) & (y == 0)
        if self.ulp:
            ok |= (
                ~np.isnan(x)
                & ~np.isnan(y)
                & (np.abs(_order(actual, self.kind) - _order(want, self.kind)) <= self.ulp)
            )
        return ok


def _order(bits: Array, kind: str) -> Array:
    count = ref.width(kind)
    magnitude = (bits & U64((1 << (count - 1)) - 1)).astype(np.int64)
    return np.where(bits >> U64(count - 1), -magnitude, magnitude)


def take(words: Array, offset: int, kind: str) -> Array:
    """The field of `kind` at bit `offset` of [n, 4] dwords, as uint64."""
    low = words[:, offset // 32].astype(U64)
    if ref.width(kind) == 64:
        return low | words[:, offset // 32 + 1].astype(U64) << U64(32)
    return low >> U64(offset % 32) & U64((1 << ref.width(kind)) - 1)


def place(words: Array, offset: int, kind: str, bits: Array) -> None:
    """Inverse of `take`."""
    dword, shift, mask = offset // 32, U64(offset % 32), U64((1 << ref.width(kind)) - 1)
    if ref.width(kind) == 64:
        words[:, dword + 1] = (bits >> U64(32)).astype(np.uint32)
        words[:, dword] = (bits & U64(0xFFFFFFFF)).astype(np.uint32)
        return
    old = words[:, dword].astype(U64)
    words[:, dword] = (old & ~(mask << shift) | (bits & mask) << shift).astype(np.uint32)


@dataclass
class Case:
    """`expect(inputs)`: alternatives of [n, 4] dwords; bits outside `checks` compare exactly."""

    name: str
    asm: str
    inputs: Array
    expect: Callable[[Array], list[Array]]
    checks: list[Check] = field(default_factory=list)
    arch: str = ""  # only there

    def verdict(self, actual: Array) -> str:
        """Empty if the outputs are as expected, else a report."""
        good = np.zeros(len(actual), bool)
        alternatives = self.expect(self.inputs)
        for want in alternatives:
            good |= self._lanes_equal(actual, want)
        if good.all():
            return ""
        bad = np.flatnonzero(~good)
        lines = [f"{self.name}: {len(bad)} of {len(actual)} lanes differ", self.asm.strip()]
        for lane in bad[:: max(1, len(bad) // 6)][:8]:
            lines.append(self._describe(int(lane), actual, alternatives))
        return "\n".join(lines)

    def _lanes_equal(self, actual: Array, want: Array) -> Array:
        ok = np.ones(len(actual), bool)
        rest_got, rest_want = actual.copy(), want.copy()
        for check in self.checks:
            ok &= check.matches(
                take(actual, check.at, check.kind), take(want, check.at, check.kind)
            )
            for remaining in (rest_got, rest_want):
                place(remaining, check.at, check.kind, np.zeros(len(remaining), U64))
        return ok & (rest_got == rest_want).all(axis=1)

    def _describe(self, lane: int, actual: Array, alternatives: list[Array]) -> str:
        def show(words: Array) -> str:
            text = " ".join(f"{w:08x}" for w in words[lane])
            values = [str(ref.decode(take(words, c.at, c.kind), c.kind)[lane]) for c in self.checks]
            return f"{text} ({', '.join(values)})" if values else text

        sources = " ".join(f"{v:016x}" for v in self.inputs[lane])
        floats = self.inputs[lane].astype(np.uint32).view(np.float32)
        wants = " or ".join(dict.fromkeys(show(w) for w in alternatives))
        return (
            f"  lane {lane}: in {sources} (f32 {floats})\n    got  {show(actual)}\n    want {wants}"
        )


class Book:
    """All cases of one architecture, assembled together and run one by one."""

    def __init__(self, cases: list[Case], arch: str) -> None:
        self.cases = [c for c in cases if c.arch in ("", arch)]
        self.snippets = Snippets([c.asm for c in self.cases], arch)

    def run(self, cases: Sequence[Case]) -> None:
        index = {id(c): i for i, c in enumerate(self.cases)}
        reports = []
        for case in cases:
            if id(case) in index:
                reports.append(case.verdict(self.snippets.run(index[id(case)], case.inputs)))
        failed = [r for r in reports if r]
        assert not failed, f"{len(failed)} of {len(reports)} cases\n" + "\n".join(failed)


# ---------------------------------------------------------------- operands

_INLINE_FLOATS = {
    "0.5": 0.5,
    "-0.5": -0.5,
    "1.0": 1.0,
    "-1.0": -1.0,
    "2.0": 2.0,
    "-2.0": -2.0,
    "4.0": 4.0,
    "-4.0": -4.0,
}
_INVERSE_TWO_PI = {"f16": 0x3118, "f32": 0x3E22F983, "f64": 0x3FC45F306DC9C882}


def inline_constant(kind: str, rng: random.Random) -> tuple[str, int]:
    """An inline constant's text and its bits as an operand of `kind` reads it."""
    real = (
        kind
        if ref.is_float(kind)
        else {"u32": "f32", "c32": "f32", "i32": "f32", "h32": "f16"}.get(kind)
    )
    if kind == "b32" and rng.random() < 0.6:
        text = rng.choice(list(_INLINE_FLOATS))
        return text, int(ref.encode(np.array([_INLINE_FLOATS[text]]), "f32")[0]) >> 16
    if real and rng.random() < 0.1:
        return "0.15915494309189532" if real == "f64" else "0.15915494", _INVERSE_TWO_PI[real]
    if real and rng.random() < 0.6:
        text = rng.choice(list(_INLINE_FLOATS))
        return text, int(ref.encode(np.array([_INLINE_FLOATS[text]]), real)[0])
    value = rng.choice([0, 1, 2, 31, 32, 63, 64, -1, -2, -16, rng.randint(-16, 64)])
    return str(value), value & ((1 << ref.width(kind)) - 1)


def scalar_value(kind: str, rng: random.Random) -> int:
    return (
        int(rng.choice(list(specials(kind))))
        if rng.random() < 0.5
        else rng.getrandbits(ref.width(kind))
    )


def literal(kind: str, rng: random.Random) -> tuple[str, int]:
    """A 32-bit literal (doubles take it as their high half)."""
    value = rng.getrandbits(min(32, ref.width(kind))) | (1 << min(31, ref.width(kind) - 2))
    if kind == "f64":
        return f"{value:#x}", value << 32
    return f"{value:#x}", value


def register(kind: str, base: int, letter: str = "v") -> str:
    return (
        f"{letter}[{base}:{base + 1}]"
        if kind != "pkf16" and ref.width(kind) == 64
        else f"{letter}{base}"
    )


def set_sgpr(base: int, value: int) -> str:
    return f"s_mov_b32 s{base}, {value & 0xFFFFFFFF:#x}\ns_mov_b32 s{base + 1}, {value >> 32:#x}\n"


def set_mask(name: str, mask: int) -> str:
    return f"s_mov_b32 {name}_lo, {mask & 0xFFFFFFFF:#x}\ns_mov_b32 {name}_hi, {mask >> 32:#x}\n"


OLD = "v_mov_b32 v20, v14\nv_mov_b32 v21, v15\n"  # the old result: column 3
FLUSH_CHOICES = [(False, False), (True, True), (True, False), (False, True)]


def flush(value: Array) -> Array:
    """Denormals to zero of the same sign."""
    small = np.abs(value) < np.finfo(value.dtype).smallest_normal
    return np.where(small, np.copysign(value.dtype.type(0), value), value)


def apply_mods(bits: Array, kind: str, negate: bool, absolute: bool) -> Array:
    sign = U64(1 << (ref.width(kind) - 1))
    if absolute:
        bits = bits & ~sign
    return bits ^ sign if negate else bits


@dataclass
class Form:
    """How an opcode is written in one case."""

    suffix: str = ""  # _e32, _e64, _dpp, _sdwa
    sources: dict[int, str] = field(default_factory=dict)  # operand -> const, sgpr or literal
    neg: int = 0
    abs: int = 0
    clamp: bool = False
    omod: str = ""
    op_sel: int | None = None  # bit per source, then one for the result (VOP3 16-bit)
    exec: int = ALL
    dpp: Dpp | None = None
    sdwa: Sdwa | None = None
    mode_asm: str = ""  # put before the instruction
    omod_live: bool = False  # MODE lets omod work


def evaluate(op: Op, values: list[Array], form: Form, count: int) -> list[Array]:
    """Result bits of one opcode: alternatives where denormals may be flushed."""
    typed = [
        ref.decode(v, k) for v, k in zip(values, [*op.srcs, op.dst][: len(values)], strict=True)
    ]
    extra = [np.arange(count, dtype=np.int64) % LANES] if "lane" in op.flags else []
    results = []
    for flush_in, flush_out in FLUSH_CHOICES if "ftz" in op.flags else FLUSH_CHOICES[:1]:
        args = [flush(t) if flush_in and t.dtype.kind == "f" else t for t in typed]
        value = op.fn(*args, *extra)
        results.append(finish(value, op, form, flush_out))
    return results


def finish(value: Array, op: Op, form: Form, flush_out: bool = False) -> Array:
    """Bits of a result after omod and clamp."""
    if op.dst == "pkf16":
        return ref.encode(value, "u32")
    if not ref.is_float(op.dst):
        if form.clamp:
            assert "sat" in op.flags, op.name
            value = ref.saturate(value, op.dst)
        return ref.encode(value, op.dst)
    result = ref.decode(ref.encode(value, op.dst), op.dst)
    if flush_out:
        result = flush(result)
    with np.errstate(all="ignore"):
        if form.omod_live and form.omod:
            result = flush(
                result * result.dtype.type({"mul:2": 2, "mul:4": 4, "div:2": 0.5}[form.omod])
            )
            result = result + result.dtype.type(0)  # -0 becomes +0
        if form.clamp:
            result = np.clip(np.where(np.isnan(result), result.dtype.type(0), result), 0, 1)
            result = np.abs(result)
    return ref.encode(result, op.dst)


def operand_text(op: Op, i: int, form: Form, rng: random.Random) -> tuple[str, int | None, str]:
    """Text, fixed bits (None for a VGPR) and setup code of source i."""
    kind, options = op.srcs[i], form.sources.get(i)
    text, bits, setup = register(kind, 8 + 2 * i), None, ""
    if options == "const":
        text, bits = inline_constant(kind, rng)
    elif options == "literal":
        text, bits = literal(kind, rng)
    elif options == "sgpr":
        bits = scalar_value(kind, rng)
        text, setup = register(kind, 8 + 2 * i, "s"), set_sgpr(8 + 2 * i, bits)
    if form.abs >> i & 1:
        text = f"|{text}|"
    if form.neg >> i & 1:
        text = f"neg({text})" if options == "const" else f"-{text}"
    if form.sdwa and form.sdwa.sext[i]:
        text = f"sext({text})"
    return text, bits, setup


def keeps_half(op: Op, vop3_only: bool) -> bool:
    return "keep" in op.flags or (vop3_only and "zero" not in op.flags)


def op_case(op: Op, form: Form, count: int, label: str, vop3_only: bool = False) -> Case:
    """The case of an opcode whose result lands in v20 (and up), as written by `form`."""
    rng = random.Random(seed_of(op.name + label))
    operands = [operand_text(op, i, form, rng) for i in range(len(op.srcs))]
    kind = "u32" if op.dst == "pkf16" else op.dst
    tail = _modifiers_text(op, form)
    texts = [register(kind, 20), *[o[0] for o in operands]]
    body = f"{op.name}{form.suffix} {', '.join(texts)}{tail}\n"
    setup = "".join(o[2] for o in operands) + form.mode_asm
    inputs = lane_inputs(
        [*op.srcs, *["u32"] * (3 - len(op.srcs)), kind], count, seed_of(op.name + label)
    )
    fixed = [o[1] for o in operands]

    def expect(lanes: Array) -> list[Array]:
        return _expected(op, form, fixed, lanes, kind, keeps_half(op, vop3_only))

    asm = OLD + setup + (set_mask("exec", form.exec) if form.exec != ALL else "") + body
    return Case(
        f"{op.name}{form.suffix} {label}",
        asm,
        inputs,
        expect,
        result_checks(op, form),
        "gfx950" if "gfx950" in op.flags else "",
    )


def result_checks(op: Op, form: Form) -> list[Check]:
    if op.dst == "pkf16":
        return [Check("f16", 0), Check("f16", 16)]
    if not ref.is_float(op.dst):
        return []
    high = form.op_sel is not None and form.op_sel >> len(op.srcs) & 1
    high = high or (form.sdwa is not None and form.sdwa.dst == "WORD_1")
    return [Check(op.dst, 16 if high else 0, op.ulp, form.clamp)]


def _modifiers_text(op: Op, form: Form) -> str:
    modifiers = []
    if form.op_sel is not None:
        modifiers.append(
            f"op_sel:[{','.join(str(form.op_sel >> i & 1) for i in range(len(op.srcs) + 1))}]"
        )
    if form.clamp:
        modifiers.append("clamp")
    if form.omod:
        modifiers.append(form.omod)
    if form.dpp:
        modifiers.append(form.dpp.text)
    if form.sdwa:
        modifiers.append(form.sdwa.text)
    return "".join(f" {p}" for p in modifiers)


def _source_bits(op: Op, i: int, form: Form, fixed: int | None, lanes: Array) -> Array:
    kind = op.srcs[i]
    bits = lanes[:, i] if fixed is None else np.full(len(lanes), fixed, U64)
    if form.op_sel is not None and ref.width(kind) == 16 and form.op_sel >> i & 1:
        bits = bits >> U64(16)
    if form.sdwa:
        bits = form.sdwa.source(bits, i)
    if ref.width(kind) < 64:
        bits = bits & U64((1 << ref.width(kind)) - 1)
    return apply_mods(bits, kind, bool(form.neg >> i & 1), bool(form.abs >> i & 1))


def _expected(
    op: Op, form: Form, fixed: list[int | None], lanes: Array, kind: str, keep: bool
) -> list[Array]:
    active = exec_lanes(form.exec, len(lanes))
    old = lanes[:, 3]
    moved = lanes
    if form.dpp:
        moved = lanes.copy()
        moved[:, 0], active = form.dpp.apply(lanes[:, 0], active)
    values = [_source_bits(op, i, form, f, moved) for i, f in enumerate(fixed)]
    if "acc" in op.flags:
        values.append(old & U64((1 << ref.width(kind)) - 1) if ref.width(kind) < 64 else old)
    outs = []
    for bits in evaluate(op, values, form, len(lanes)):
        words = np.zeros((len(lanes), 4), np.uint32)
        place(words, 0, "u64", old)
        if form.sdwa:
            bits = form.sdwa.result(bits, old)
            place(words, 0, "u32", np.where(active, bits, old))
        elif ref.width(kind) == 16:
            high = form.op_sel is not None and form.op_sel >> len(op.srcs) & 1
            wide_sums = (
                bits << U64(16) | old & U64(0xFFFF)
                if high
                else bits | (old & U64(0xFFFF0000) if keep else U64(0))
            )
            place(words, 0, "u32", np.where(active, wide_sums, old))
        else:
            place(words, 0, kind, np.where(active, bits, old))
        outs.append(words)
    return outs


# ---------------------------------------------------------------- cases written by hand

COUNT = 1024
# Leaves a lane mask in v22:23 of every lane.
SHOW_MASK = "s_mov_b64 s[14:15], {0}\ns_mov_b64 exec, -1\nv_mov_b32 v22, s14\nv_mov_b32 v23, s15\n"


def words_of(old: Array, *fields: tuple[int, str, Array]) -> Array:
    """[n, 4] dwords: the old pair, then fields (bit position, type, bits) laid over it."""
    words = np.zeros((len(old), 4), np.uint32)
    place(words, 0, "u64", old)
    for offset, kind, bits in fields:
        place(words, offset, kind, bits)
    return words


def low32(bits: Array) -> Array:
    return bits & U64(0xFFFFFFFF)


def wave_mask(hits: Array) -> Array:
    """The 64-bit mask of each lane's wave, repeated for its lanes."""
    waves = hits.reshape(-1, LANES).astype(U64) << np.arange(LANES, dtype=U64)
    return waves.sum(axis=1, dtype=U64).repeat(LANES)


class Cases:
    """Cases by group (an opcode or a theme)."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Case]] = {}

    def all(self) -> list[Case]:
        return [case for cases in self.groups.values() for case in cases]

    def add(
        self,
        group: str,
        name: str,
        asm: str,
        kinds: str,
        expect: Callable[[Array], list[Array]],
        checks: list[Check] | None = None,
        arch: str = "",
        count: int = COUNT,
    ) -> Case:
        """v20:21 are preset from column 3; `kinds` are the types of the input columns."""
        case = Case(
            name,
            OLD + asm,
            lane_inputs(kinds.split(), count, seed_of(name)),
            expect,
            checks or [],
            arch,
        )
        self.groups.setdefault(group, []).append(case)
        return case
