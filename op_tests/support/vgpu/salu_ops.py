"""What each SALU opcode computes, on Python integers, from the ISA manual.

A row's function gets a `Scalars` (unsigned sources a and b, the old destination d, SCC, EXEC) and
returns the new destination and SCC; None leaves either as it was. Results wrap to the destination's
width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
Outcome = tuple[int | None, bool | None]


@dataclass(frozen=True)
class Scalars:
    a: int
    b: int = 0
    d: int = 0
    scc: bool = False
    exec: int = M64


@dataclass(frozen=True)
class ScalarOp:
    """widths: destination (0: none), then sources, in bits. `imm`: source b is a constant."""

    name: str
    widths: tuple[int, ...]
    fn: Callable[[Scalars], Outcome]
    imm: bool = False
    reads_dst: bool = False
    writes_exec: Callable[[Scalars], int] | None = None


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def s32(x: int) -> int:
    return signed(x & M32, 32)


def s64(x: int) -> int:
    return signed(x & M64, 64)


def _value(fn: Callable[[Scalars], int]) -> Callable[[Scalars], Outcome]:
    """No SCC."""
    return lambda s: (fn(s), None)


def _nonzero(fn: Callable[[Scalars], int], bits: int) -> Callable[[Scalars], Outcome]:
    """SCC = result is not 0."""

    def run(s: Scalars) -> Outcome:
        value = fn(s) & ((1 << bits) - 1)
        return value, value != 0

    return run


def _flag(fn: Callable[[Scalars], bool]) -> Callable[[Scalars], Outcome]:
    """SCC only."""
    return lambda s: (None, fn(s))


def find(x: int, bits: int, bit: int, from_top: bool = False) -> int:
    """Distance to the first bit of that value from an end, -1 if there is none."""
    for i in range(bits):
        if x >> (bits - 1 - i if from_top else i) & 1 == bit:
            return i
    return -1


def sign_run(x: int, bits: int) -> int:
    """Bits from the top until one differs from the sign, -1 if none does."""
    sign = x >> (bits - 1) & 1
    return next((i for i in range(1, bits) if x >> (bits - 1 - i) & 1 != sign), -1)


def groups(x: int, bits: int, spread: bool) -> int:
    """One bit for each group of four that has any bit set; spread: the whole group."""
    out = 0
    for i in range(bits // 4):
        if x >> (4 * i) & 15:
            out |= 15 << (4 * i) if spread else 1 << i
    return out


def reverse(x: int, bits: int) -> int:
    return int(f"{x:0{bits}b}"[::-1], 2)


def replicate(x: int) -> int:
    return sum((x >> i & 1) * 3 << (2 * i) for i in range(32))


def bit_field(x: int, spec: int, bits: int, is_signed: bool) -> int:
    """s_bfe: offset in the low bits of `spec`, width in its bits 22:16."""
    offset, count = spec & (bits - 1), spec >> 16 & 0x7F
    if not count:
        return 0
    source = signed(x, bits) if is_signed else x
    field = source >> offset & ((1 << count) - 1)
    if is_signed and count < bits:
        field = signed(field, count)
    return field & ((1 << bits) - 1)


def _sop1() -> list[ScalarOp]:
    rows = [
        ScalarOp("s_flbit_i32", (32, 32), _value(lambda s: sign_run(s.a, 32))),
        ScalarOp("s_flbit_i32_i64", (32, 64), _value(lambda s: sign_run(s.a, 64))),
        ScalarOp("s_sext_i32_i8", (32, 32), _value(lambda s: signed(s.a & 255, 8))),
        ScalarOp("s_sext_i32_i16", (32, 32), _value(lambda s: signed(s.a & 0xFFFF, 16))),
        ScalarOp("s_abs_i32", (32, 32), _nonzero(lambda s: abs(s32(s.a)), 32)),
        ScalarOp("s_bitreplicate_b64_b32", (64, 32), _value(lambda s: replicate(s.a))),
    ]
    for bits, mask in ((32, M32), (64, M64)):
        w = (bits, bits)

        def count(x: int, bits: int = bits) -> int:
            return x.bit_count()

        rows += [
            ScalarOp(f"s_mov_b{bits}", w, _value(lambda s: s.a)),
            ScalarOp(f"s_cmov_b{bits}", w, _value(lambda s: s.a if s.scc else s.d), reads_dst=True),
            ScalarOp(f"s_not_b{bits}", w, _nonzero(lambda s: ~s.a, bits)),
            ScalarOp(f"s_wqm_b{bits}", w, _nonzero(lambda s, n=bits: groups(s.a, n, True), bits)),
            ScalarOp(
                f"s_quadmask_b{bits}", w, _nonzero(lambda s, n=bits: groups(s.a, n, False), bits)
            ),
            ScalarOp(f"s_brev_b{bits}", w, _value(lambda s, n=bits: reverse(s.a, n))),
            ScalarOp(
                f"s_bcnt0_i32_b{bits}",
                (32, bits),
                _nonzero(lambda s, m=mask: (s.a ^ m).bit_count(), 32),
            ),
            ScalarOp(f"s_bcnt1_i32_b{bits}", (32, bits), _nonzero(lambda s: count(s.a), 32)),
            ScalarOp(f"s_ff0_i32_b{bits}", (32, bits), _value(lambda s, n=bits: find(s.a, n, 0))),
            ScalarOp(f"s_ff1_i32_b{bits}", (32, bits), _value(lambda s, n=bits: find(s.a, n, 1))),
            ScalarOp(
                f"s_flbit_i32_b{bits}", (32, bits), _value(lambda s, n=bits: find(s.a, n, 1, True))
            ),
            ScalarOp(
                f"s_bitset0_b{bits}",
                (bits, 32),
                _value(lambda s, n=bits: s.d & ~(1 << (s.a & (n - 1)))),
                reads_dst=True,
            ),
            ScalarOp(
                f"s_bitset1_b{bits}",
                (bits, 32),
                _value(lambda s, n=bits: s.d | 1 << (s.a & (n - 1))),
                reads_dst=True,
            ),
        ]
    return rows


_EXEC_RULES: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, e: a & e,
    "or": lambda a, e: a | e,
    "xor": lambda a, e: a ^ e,
    "andn2": lambda a, e: a & ~e,
    "orn2": lambda a, e: a | ~e,
    "nand": lambda a, e: ~(a & e),
    "nor": lambda a, e: ~(a | e),
    "xnor": lambda a, e: ~(a ^ e),
    "andn1": lambda a, e: ~a & e,
    "orn1": lambda a, e: ~a | e,
}


def _exec_ops() -> list[ScalarOp]:
    rows = []
    for name, rule in _EXEC_RULES.items():

        def new(s: Scalars, rule: Callable[[int, int], int] = rule) -> int:
            return rule(s.a, s.exec) & M64

        rows.append(
            ScalarOp(
                f"s_{name}_saveexec_b64",
                (64, 64),
                lambda s, new=new: (s.exec, new(s) != 0),
                writes_exec=new,
            )
        )
        if name in ("andn1", "andn2"):
            rows.append(
                ScalarOp(
                    f"s_{name}_wrexec_b64",
                    (64, 64),
                    lambda s, new=new: (new(s), new(s) != 0),
                    writes_exec=new,
                )
            )
    return rows


def _overflow(fn: Callable[[int, int], int]) -> Callable[[Scalars], Outcome]:
    def run(s: Scalars) -> Outcome:
        exact = fn(s32(s.a), s32(s.b))
        return exact & M32, not -(1 << 31) <= exact < 1 << 31

    return run


def _carry(fn: Callable[[Scalars], int]) -> Callable[[Scalars], Outcome]:
    def run(s: Scalars) -> Outcome:
        exact = fn(s)
        return exact & M32, not 0 <= exact <= M32

    return run


def _choose(
    is_first: Callable[[int, int], bool], view: Callable[[int], int]
) -> Callable[[Scalars], Outcome]:
    """min and max: SCC says whether the first was taken."""

    def run(s: Scalars) -> Outcome:
        takes_a = is_first(view(s.a), view(s.b))
        return (s.a if takes_a else s.b), takes_a

    return run


_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}


def _sop2() -> list[ScalarOp]:
    three = (32, 32, 32)
    rows = [
        ScalarOp("s_add_u32", three, _carry(lambda s: s.a + s.b)),
        ScalarOp("s_sub_u32", three, _carry(lambda s: s.a - s.b)),
        ScalarOp("s_addc_u32", three, _carry(lambda s: s.a + s.b + s.scc)),
        ScalarOp("s_subb_u32", three, _carry(lambda s: s.a - s.b - s.scc)),
        ScalarOp("s_add_i32", three, _overflow(lambda a, b: a + b)),
        ScalarOp("s_sub_i32", three, _overflow(lambda a, b: a - b)),
        ScalarOp("s_min_i32", three, _choose(lambda a, b: a < b, s32)),
        ScalarOp("s_min_u32", three, _choose(lambda a, b: a < b, int)),
        ScalarOp("s_max_i32", three, _choose(lambda a, b: a >= b, s32)),
        ScalarOp("s_max_u32", three, _choose(lambda a, b: a >= b, int)),
        ScalarOp("s_ashr_i32", three, _nonzero(lambda s: s32(s.a) >> (s.b & 31), 32)),
        ScalarOp("s_ashr_i64", (64, 64, 32), _nonzero(lambda s: s64(s.a) >> (s.b & 63), 64)),
        ScalarOp("s_bfm_b32", three, _value(lambda s: ((1 << (s.a & 31)) - 1) << (s.b & 31))),
        ScalarOp(
            "s_bfm_b64", (64, 32, 32), _value(lambda s: ((1 << (s.a & 63)) - 1) << (s.b & 63))
        ),
        ScalarOp("s_mul_i32", three, _value(lambda s: s.a * s.b)),
        ScalarOp("s_mul_hi_u32", three, _value(lambda s: s.a * s.b >> 32)),
        ScalarOp("s_mul_hi_i32", three, _value(lambda s: s32(s.a) * s32(s.b) >> 32)),
        ScalarOp("s_absdiff_i32", three, _nonzero(lambda s: abs(s32(s.a - s.b)), 32)),
        ScalarOp("s_pack_ll_b32_b16", three, _value(lambda s: s.a & 0xFFFF | s.b << 16)),
        ScalarOp("s_pack_lh_b32_b16", three, _value(lambda s: s.a & 0xFFFF | s.b & 0xFFFF0000)),
        ScalarOp("s_pack_hh_b32_b16", three, _value(lambda s: s.a >> 16 | s.b & 0xFFFF0000)),
    ]
    rows += [
        ScalarOp(f"s_lshl{n}_add_u32", three, _carry(lambda s, n=n: (s.a << n) + s.b))
        for n in (1, 2, 3, 4)
    ]
    for bits in (32, 64):
        w, shift = (bits, bits, bits), (bits, bits, 32)
        rows += [
            ScalarOp(f"s_{name}_b{bits}", w, _nonzero(lambda s, f=fn: f(s.a, s.b), bits))
            for name, fn in _LOGIC.items()
        ]
        rows += [
            ScalarOp(f"s_cselect_b{bits}", w, _value(lambda s: s.a if s.scc else s.b)),
            ScalarOp(
                f"s_lshl_b{bits}", shift, _nonzero(lambda s, n=bits: s.a << (s.b & (n - 1)), bits)
            ),
            ScalarOp(
                f"s_lshr_b{bits}", shift, _nonzero(lambda s, n=bits: s.a >> (s.b & (n - 1)), bits)
            ),
            ScalarOp(
                f"s_bfe_u{bits}",
                shift,
                _nonzero(lambda s, n=bits: bit_field(s.a, s.b, n, False), bits),
            ),
            ScalarOp(
                f"s_bfe_i{bits}",
                shift,
                _nonzero(lambda s, n=bits: bit_field(s.a, s.b, n, True), bits),
            ),
        ]
    return rows


_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _sopc() -> list[ScalarOp]:
    rows = []
    for name, rule in _RELATIONS.items():
        rows += [
            ScalarOp(
                f"s_cmp_{name}_i32", (0, 32, 32), _flag(lambda s, r=rule: r(s32(s.a), s32(s.b)))
            ),
            ScalarOp(f"s_cmp_{name}_u32", (0, 32, 32), _flag(lambda s, r=rule: r(s.a, s.b))),
        ]
        if name in ("eq", "lg"):
            rows.append(
                ScalarOp(f"s_cmp_{name}_u64", (0, 64, 64), _flag(lambda s, r=rule: r(s.a, s.b)))
            )
    for bits in (32, 64):
        for bit in (0, 1):
            rows.append(
                ScalarOp(
                    f"s_bitcmp{bit}_b{bits}",
                    (0, bits, 32),
                    _flag(lambda s, n=bits, v=bit: s.a >> (s.b & (n - 1)) & 1 == v),
                )
            )
    return rows


def _sopk() -> list[ScalarOp]:
    """The destination is the first source; unsigned compares alone zero-extend the constant."""

    def imm(s: Scalars) -> int:
        return signed(s.b & 0xFFFF, 16)

    rows = [
        ScalarOp("s_movk_i32", (32,), _value(imm), imm=True),
        ScalarOp(
            "s_cmovk_i32",
            (32,),
            _value(lambda s: imm(s) if s.scc else s.d),
            imm=True,
            reads_dst=True,
        ),
        ScalarOp(
            "s_addk_i32",
            (32,),
            lambda s: ((s.d + imm(s)) & M32, not -(1 << 31) <= s32(s.d) + imm(s) < 1 << 31),
            imm=True,
            reads_dst=True,
        ),
        ScalarOp(
            "s_mulk_i32", (32,), _value(lambda s: s32(s.d) * imm(s)), imm=True, reads_dst=True
        ),
    ]
    for name, rule in _RELATIONS.items():
        rows += [
            ScalarOp(
                f"s_cmpk_{name}_i32", (0,), _flag(lambda s, r=rule: r(s32(s.d), imm(s))), imm=True
            ),
            ScalarOp(
                f"s_cmpk_{name}_u32",
                (0,),
                _flag(lambda s, r=rule: r(s.d & M32, s.b & 0xFFFF)),
                imm=True,
            ),
        ]
    return rows


SOP1, SOP2, SOPC, SOPK, EXEC_OPS = _sop1(), _sop2(), _sopc(), _sopk(), _exec_ops()
