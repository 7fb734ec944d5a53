"""Random programs: C++ that means the same on the host and, by lanes, on the device.

A program has variables of every type, each lane its own, and some that are the same in all lanes.
Statements assign expressions, branch, loop, use private arrays, memory, LDS and atomics, and move
values between lanes. One struct holds a lane: the device runs one a lane, the host runs the 256 of
them statement by statement.

Left out, because compilers and not the virtual GPU differ there:

- `f16x2{x, -0.0}`: clang 22.1.8 loses the sign of a constant half -0.0; no constant half is zero,
  and halves made of bits are hidden, as clang knows which bits are zero;
- a widened i8 that is narrowed to u16: its SDWA peephole takes the sign for the high byte
  (`widen` in programs.h hides the byte);
- minimum and maximum of a constant: under a negation its v_med3 is wrong for NaN;
- `0 - x` and `-x + 0`: clang 22.1.8 makes them -x in bf16, and in f32 where a zero was converted,
  which gives -0 for 0; no constant float is zero, and only variables are converted from integers;
- a 64-bit OR with a constant whose half is all ones: that half stays the other operand (`either` in
  programs.h hides both);
- the negation of an f32x2 whose bits are used next: one half keeps its sign;
- `f16(f32 product)`: it becomes v_fma_mixlo_f16 with +0 added, which makes -0 to 0 (`rounded`);
- a 64-bit saturating sum of a product: part of the product joins the carry (`add_sat`);
- a float constant whose bits are those of an f16 constant (0x3c00) as a float source of v_fma_mix:
  it becomes the inline constant 1.0;
- a constant dividend, a power of two, at the level "global isel": v_bfe_u32 with a width of 32,
  which the instruction takes for 0 (`dividend`);
- level -Oz: it divides unsigned values that have 9 sign bits in f32 (differential.LEVELS);
- NaN payloads and signs: every NaN is made the same one (`q`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

INTS = {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8}
FLOATS = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
INT_VECTORS = {
    "u8x4": ("u8", 4),
    "u16x2": ("u16", 2),
    "i16x2": ("i16", 2),
    "u16x4": ("u16", 4),
    "u32x2": ("u32", 2),
    "i32x2": ("i32", 2),
}
FLOAT_VECTORS = {
    "f16x2": ("f16", 2),
    "f16x4": ("f16", 4),
    "bf16x2": ("bf16", 2),
    "f32x2": ("f32", 2),
}
VECTORS = {**INT_VECTORS, **FLOAT_VECTORS}
SIZES = {**INTS, **FLOATS, **{v: (INTS | FLOATS)[e] * n for v, (e, n) in VECTORS.items()}}
# How many variables a program has of each type: more where more instructions are.
COUNTS = dict.fromkeys(SIZES, 2) | {
    "u32": 4,
    "i32": 3,
    "u16x2": 3,
    "i16x2": 3,
    "f16x2": 3,
    "f32": 3,
}
UNIFORM = {"u32": 2, "i32": 2, "u64": 2, "i64": 1, "u16x2": 1, "f32": 1}
LANES, SLICE, SHARED_BYTES = 256, 64, 256  # as in programs.h; bytes of memory that all lanes share

_HALVES = (0, 1, 2, 0x40, 0x41, 0xFF, 0x100, 0x3800, 0x3C00, 0x3F00, 0x3F80, 0x4000, 0x4080, 0x4400,
           0xB800, 0xBC00, 0xBF80, 0xC000, 0xC080, 0xC400, 0x3118, 0x3E22, 0xF983, 0x7FFF, 0x8000,
           0xFF00, 0xFFF0, 0xFFEF, 0xFFFF)  # fmt: skip
_INLINE_HALVES = (0x3F00, 0xBF00, 0x3F80, 0xBF80, 0x4000, 0xC000, 0x4080, 0xC080)
_WORDS = (
    0x3F000000,
    0xBF800000,
    0x40800000,
    0x3E22F983,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFF0,
    0xFFFFFFEF,
    0x10001,
    0xFF00FF,
    0x3F003F00,
    0x38003800,
)
_FLOAT_CONSTANTS = (
    "0.5 -0.5 1.0 -1.0 2.0 -2.0 4.0 -4.0 0.15915494309189532 3.0 0.1 1000.0 -7.25 0.0009765625"
).split()
_COMPARES = ("<", "<=", ">", ">=", "==", "!=")

# Rules: `@` is an expression of the rule's own type, `@name` of that type, `@name!` a variable of
# it, `$` the type itself, `@?` a condition, `#n` a number below n.
_INT = (
    "$(@ + @)", "$(@ - @)", "$(@ * @)", "$(@ & @)", "either<$>(@, @)", "$(@ ^ @)", "$(~@)", "$(-@)",
    "shl<$>(@, @u32)", "shr<$>(@, @u32)", "shl<$>(@, #64)", "shr<$>(@, #64)",
    "low<$>(@, @)", "high<$>(@, @)", "median<$>(@, @, @)", "add_sat<$>(@, @)", "sub_sat<$>(@, @)",
    "(@? ? @ : @)", "(@? ? @ : @)", "quotient<$>(@, @)", "remainder<$>(@, @)",
    "$(@ + @ + @)", "$(shl<$>(@, #8) + @)", "either<$>($(@ & @), @)", "$(@ * @ + @)",
    "either<$>($(@ & @), $(~@ & @))", "__builtin_elementwise_popcount(@)",
    "__builtin_elementwise_bitreverse(@)",
)  # fmt: skip
_NARROW = (
    "$(@u32)",
    "$(@i32)",
    "$(@u64)",
    "$(@u16)",
    "$(shr<u32>(@u32, 8 * #4))",
    "$(shr<u32>(@u32, 16))",
    "to_int<$>(@f32)",
    "to_int<$>(@f16)",
)
_WIDE_TERMS = ("$(@u8)", "$(widen(@i8))", "$(@u16)", "$(@i16)", "$(@u32)", "$(@i32)", "$(@u64)",
         "$(@i64)", "to_int<$>(@f32)", "to_int<$>(@f64)", "to_int<$>(@f16)", "to_int<$>(@bf16)",
         "$(leading_zeros(@u32))", "$(trailing_zeros(@u32))", "$(leading_zeros(@u64))")  # fmt: skip
_FLOAT = (
    "(@ + @)",
    "(@ - @)",
    "(@ * @)",
    "(@ + @)",
    "(@ * @)",
    "(-@)",
    "(__builtin_elementwise_abs(@))",
    "(@? ? @ : @)",
    "(@? ? @ : @)",
    "(@ * @ + @)",
    "($(@i32!))",
    "($(@u32!))",
    "($(@u8!))",
    "($(@i16!))",
    "($(@f32))",
)
_FLOAT_UNARY = (
    "(__builtin_elementwise_floor(@))",
    "(__builtin_elementwise_ceil(@))",
    "(__builtin_elementwise_trunc(@))",
    "(__builtin_elementwise_roundeven(@))",
    "(float_low<$>(@!, @!))",
    "(float_high<$>(@!, @!))",
    "(fma<$>(@, @, @))",
    "(fma<$>(@, @, @))",
    "(__builtin_elementwise_copysign(@, q(@)))",
)
_INT_VECTOR = ("(@ + @)", "(@ - @)", "(@ * @)", "(@ & @)", "either<$>(@, @)", "(@ ^ @)", "(~@)",
               "add_sat<$>(@, @)", "sub_sat<$>(@, @)", "__builtin_elementwise_max(@, @)",
               "__builtin_elementwise_min(@, @)", "(@ * @ + @)", "(@? ? @ : @)",
               "(@ << (@ & ($)(BITS - 1)))", "(@ >> (@ & ($)(BITS - 1)))")  # fmt: skip
_FLOAT_VECTOR = (
    "(@ + @)",
    "(@ - @)",
    "(@ * @)",
    "(@ * @ + @)",
    "(-@)",
    "(__builtin_elementwise_abs(@))",
    "(@? ? @ : @)",
)
_SPECIAL = {
    "u32": ("align_bits(@, @, @)", "align_bytes(@, @, @)", "permute_bytes(@, @, @)",
            "permute_bytes(@, @, 0x0#10 0#8 0#10)",
            "sad_bytes(@, @, @)", "sad_halves(@, @, @)", "masked_sad(@, @, @)",
            "average_bytes(@, @, @)", "unsigned_field(@, @, @)", "unsigned_field(@, #32, #32)",
            "dot2(@u16x2, @u16x2, @)", "dot4(@, @, @)", "dot8(@, @, @)", "bits<u32>(q(@f32))",
            "pack_toward_zero(q(@f32), q(@f32))", "bits<u32>(@u16x2)", "bits<u32>(q(@f16x2))",
            "bits<u32>(@i16x2)", "bits<u32>(@u8x4)", "bits<u32>(q(@bf16x2))",
            "align_bits(@, @, #32)",
            "u32((@ & 0xffffff) * (@ & 0xffffff))", "u32(u64(@!) * @! >> 32)",
            "u32(is_class(@f32, #1024))", "u32(@?)", "__builtin_bswap32(@)",
            "u32(@u16) * u32(@u16)", "(@u32 & 0xffff) | (@u32 << 16)",
            "ones_below(@, @, @, lane)", "lane", "id"),
    "i32": ("signed_field(@, @u32, @u32)", "signed_field(@, #32, #32)", "dot2(@i16x2, @i16x2, @)",
            "dot4(@, @, @)", "dot8(@, @, @)", "i32(@i16) * i32(@i16) + @", "bits<i32>(q(@f32))",
            "i32(i64(@) * @ >> 32)", "shr<i32>(shl<i32>(@, 8), 8) * shr<i32>(shl<i32>(@, 8), 8)",
            "__builtin_elementwise_abs(@)"),
    "u64": ("u64(@u32) * @u32", "u64(@u32) * @u32 + @", "bits<u64>(q(@f64))", "bits<u64>(@u16x4)",
            "bits<u64>(q(@f16x4))", "bits<u64>(q(@f32x2))",
            "either<u64>(shl<u64>(u64(@u32), 32), @u32)"),
    "i64": ("i64(@i32) * @i32 + @", "bits<i64>(q(@f64))", "__builtin_elementwise_abs(@)"),
    "i16": ("__builtin_elementwise_abs(@)", "bits<i16>(q(@f16))", "@i16x2.x", "@i16x2.y"),
    "u16": ("bits<u16>(q(@f16))", "bits<u16>(q(@bf16))", "@u16x2.x", "@u16x2.y", "@u16x4.z"),
    "u8": ("@u8x4.x", "@u8x4.y", "@u8x4.z", "@u8x4.w"),
    "f32": ("(@ / @)", "(__builtin_elementwise_sqrt(@))", "q(bits<f32>(@u32!))",
            "(scale_by(@, @i32 % 40))", "(f32(@f64))", "(f32(@u64!))",
            "(f32(@f16) * f32(@f16) + @)", "(f32(@f16x2.y) * @ + f32(@f16x2.x))",
            "unit<f32>(@)", "f32(@bf16x2.y)", "f32(@u8x4.w)", "@f32x2.y", "f32(@bf16) * 2.0f",
            "(f32(@f16))"),
    "f64": ("(@ / @)", "q(bits<f64>(@u64))", "f64(@f32)", "(f64(@i64!))",
            "(f64(@u64!))", "f64(@i32!)"),
    "f16": ("q(bits<f16>(hidden(@u16)))", "rounded<f16>(@f64)", "f16(fma<f32>(@f32, @f32, @f32))",
            "unit<f16>(@)", "unit<f16>(bits<f16x2>(pack_toward_zero(q(@f32), q(@f32))).x)",
            "@f16x2.x", "@f16x2.y", "f16(@u16!)",
            "f16(@i16!)", "(f16(f32(@) * f32(@) + f32(@)))"),
    "bf16": ("q(bits<bf16>(hidden(@u16)))", "@bf16x2.x", "@bf16x2.y"),
    "u16x2": ("bits<u16x2>(@u32)", "u16x2{@u16, @u16}", "@.yx", "@.xx", "@.yy", "@u16x4.yz",
              "pack_unsigned(@u32, @u32)", "bits<u16x2>(q(@f16x2))", "u16x2{@.x, @.y}"),
    "i16x2": ("bits<i16x2>(@u32)", "i16x2{@i16, @i16}", "@.yx", "@.yy", "pack_signed(@i32, @i32)",
              "i16x2{@.y, @i16}", "bits<i16x2>(@u16x2)"),
    "f16x2": ("q(bits<f16x2>(hidden(@u32!)))", "f16x2{@f16, @f16}", "@.yx", "@.xx", "@.yy",
              "@f16x4.zw", "f16x2{@.x, f16(-@.y)}",
              "__builtin_convertvector(hidden(@f32x2), f16x2)"),
    "bf16x2": ("q(bits<bf16x2>(hidden(@u32!)))", "bf16x2{@bf16, @bf16}", "@.yx"),
    "f32x2": ("f32x2{@f32, @f32}", "@.yx", "@.yy", "(__builtin_elementwise_fma(@, @, @))",
              "__builtin_convertvector(@f16x2, f32x2)", "q(bits<f32x2>(@u64!))",
              "__builtin_convertvector(@bf16x2, f32x2)"),
    "u16x4": ("bits<u16x4>(@u64)", "u16x4{@u16, @u16, @u16, @u16}", "@.wzyx", "@.yxwz"),
    "f16x4": ("q(bits<f16x4>(hidden(@u64!)))", "@.wzyx", "f16x4{@f16, @f16, @f16, @f16}"),
    "u8x4": ("bits<u8x4>(@u32)", "u8x4{@u8, @u8, @u8, @u8}", "@.wzyx", "@.yyxx"),
    "u32x2": ("bits<u32x2>(@u64)", "u32x2{@u32, @u32}", "@.yx"),
    "i32x2": ("i32x2{@i32, @i32}", "@.yx", "__builtin_convertvector(@i16x2, i32x2)"),
}  # fmt: skip


def _rules(kind: str) -> tuple[str, ...]:
    special = _SPECIAL.get(kind, ())
    if kind in INTS:
        plain = _INT if INTS[kind] > 2 else (*_INT[:-2],)
        return plain + (_WIDE_TERMS if INTS[kind] > 2 else _NARROW) + 2 * special
    if kind in FLOATS:
        unary = tuple(r for r in _FLOAT_UNARY if kind != "bf16")
        plain = tuple(
            re.sub(r"\$\(@(\w+)\)", r"$(@\1!)", r) if kind == "bf16" else r for r in _FLOAT
        )
        if kind == "f16":
            plain = tuple(r.replace("$(@f32)", "rounded<f16>(@f32)") for r in plain)
        return (*plain, *unary, *special, *special)
    vector = _INT_VECTOR if kind in INT_VECTORS else _FLOAT_VECTOR
    return tuple(r for r in vector if (kind, r) != ("f32x2", "(-@)")) + 2 * special


_CAST = re.compile(rf"(?<![\w<])({'|'.join(INTS | FLOATS)})\(")  # u16(x) may be read as a type
RULES = {kind: _rules(kind) for kind in SIZES}
DPP_CONTROLS = (
    *(0x00, 0x1B, 0x4E, 0x55, 0xB1, 0xE4),
    *(0x101, 0x104, 0x10F),
    *(0x111, 0x112, 0x118, 0x11F),
    *(0x121, 0x124, 0x128),
    *(0x130, 0x134, 0x138, 0x13C),
    *(0x140, 0x141, 0x142, 0x143),
    *(0x150, 0x155, 0x15F),
)


class Step(NamedTuple):
    """A statement of a lane, or one between lanes with a text of its own for each side."""

    device: str
    host: str = ""


class Program:
    """One random program; `steps` may be cut to find what of it matters."""

    def __init__(self, seed: int, size: int = 40) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.variables = {kind: [f"{kind}_{i}" for i in range(n)] for kind, n in COUNTS.items()}
        self.uniform = {kind: [f"s_{kind}_{i}" for i in range(n)] for kind, n in UNIFORM.items()}
        self._loops = 0
        self.steps = [self._step() for _ in range(size)]

    @property
    def name(self) -> str:
        return f"p{self.seed}"

    # -------------------------------------------------------------------- expressions

    def _constant(self, kind: str) -> str:
        choose = self.random.choice
        if kind in VECTORS:
            element, count = VECTORS[kind]
            elements = [self._constant(element) for _ in range(count)]
            if element in ("u16", "i16") and self.random.random() < 0.5:  # inline constants of f32
                elements = [f"{element}(0)"] * count
                elements[choose((1, 1, count - 1, 0))] = f"{element}({choose(_INLINE_HALVES):#x})"
            return f"{kind}{{{', '.join(elements)}}}"
        if kind in FLOATS:
            return f"{kind}({choose(_FLOAT_CONSTANTS)})"
        bits = 8 * INTS[kind]
        value = choose(
            (
                choose(_HALVES),
                self.random.randrange(-16, 65),
                choose(_WORDS),
                self.random.getrandbits(bits),
            )
        )
        return f"{kind}({value & (1 << bits) - 1:#x}{'ull' if bits == 64 else 'u'})"

    def _variable(self, kind: str, uniform: bool) -> str:
        if uniform:
            return self.random.choice(self.uniform.get(kind) or [self._constant(kind)])
        names = self.variables[kind] + (
            self.uniform.get(kind, []) if self.random.random() < 0.2 else []
        )
        return self.random.choice(names)

    def _condition(self, depth: int, uniform: bool) -> str:
        kinds = list(UNIFORM) if uniform else [*INTS, *FLOATS]
        kind = self.random.choice([k for k in kinds if k not in VECTORS])
        a, b = (self.expression(kind, depth, uniform) for _ in range(2))
        return f"({a} {self.random.choice(_COMPARES)} {b})"

    def expression(self, kind: str, depth: int, uniform: bool = False) -> str:
        if depth <= 0 or self.random.random() < 0.1:
            if self.random.random() < 0.25:
                return self._constant(kind)
            return self._variable(kind, uniform)
        rule = self.random.choice(RULES[kind])
        if uniform and re.search(r"lane|\bid\b", rule):
            return self._variable(kind, uniform)
        return self._fill(rule, kind, depth - 1, uniform)

    def _fill(self, rule: str, kind: str, depth: int, uniform: bool) -> str:
        element = VECTORS[kind][0] if kind in VECTORS else kind

        def substitute(match: re.Match[str]) -> str:
            name, mark = match[1], match[2]
            if mark == "?":
                return self._condition(depth - 1, uniform)
            if mark == "!":
                return self._variable(name or kind, uniform)
            return self.expression(name or kind, depth, uniform)

        text = _CAST.sub(r"to<\1>(", rule.replace("$(", f"{kind}(").replace("$", kind))
        text = text.replace("BITS", str(8 * (INTS | FLOATS)[element]))
        text = re.sub(r"#(\d+) ?", lambda m: str(self.random.randrange(int(m[1]))), text)
        return "(" + re.sub(r"@(\w*)([!?]?)", substitute, text) + ")"

    # -------------------------------------------------------------------- statements

    def _assign(self, depth: int, uniform: bool = False) -> str:
        kind = self.random.choice(
            list(UNIFORM) if uniform else [*SIZES, *COUNTS, "u32", "u16x2", "i16x2"]
        )
        target = self.random.choice((self.uniform if uniform else self.variables)[kind])
        return f"{target} = q<{kind}>({self.expression(kind, depth, uniform)});"

    def _branch(self) -> str:
        uniform = self.random.random() < 0.3
        then_branch, else_branch = (
            f"{self._assign(2, uniform)} {self._assign(2, uniform)}" for _ in range(2)
        )
        return f"if ({self._condition(2, uniform)}) {{ {then_branch} }} else {{ {else_branch} }}"

    def _loop(self) -> str:
        self._loops += 1
        i = f"turn{self._loops}"
        bound = self.random.choice(
            [str(self.random.randrange(1, 5)), f"({self.expression('u32', 1)} & 3u)"]
        )
        return f"for (u32 {i} = 0; {i} < {bound}; ++{i}) {{ {self._assign(2)} {self._assign(2)} }}"

    def _switch(self) -> str:
        a, b, c = (self._assign(2) for _ in range(3))
        value = self.expression("u32", 1)
        return f"switch ({value} & 3u) {{ case 0: {a} break; case 1: {b} default: {c} }}"

    def _array(self) -> str:
        kind = self.random.choice(("u8", "u16", "u32", "u64", "f16", "f32", "u16x2"))
        count = self.random.choice((4, 8, 16))
        variable = self.random.choice(self.variables[kind])
        position = [f"{self.expression('u32', 1)} & {count - 1}u" for _ in range(3)]
        a, b = (self.expression(kind, 1) for _ in range(2))
        return (
            f"{{ {kind} a[{count}]; for (u32 i = 0; i < {count}; ++i) a[i] = {variable}; "
            f"a[{position[0]}] = {a}; a[{position[1]}] = {b}; "
            f"{variable} = q<{kind}>(a[{position[2]}]); }}"
        )

    def _address(self, kind: str) -> str:
        """A place of the lane's own memory or LDS, often not aligned."""
        room = SLICE - SIZES[kind]
        offset = str(self.random.randrange(room + 1))
        if self.random.random() < 0.4:
            offset = f"({self.expression('u32', 1)} % {room + 1}u)"
        if self.random.random() < 0.5:
            offset = f"({offset} & ~{SIZES[kind] - 1}u)"
        return f"{self.random.choice(('mem', 'lds'))} + {offset}"

    def _memory(self) -> str:
        kind = self.random.choice(list(SIZES))
        if self.random.random() < 0.5:
            return f"store<{kind}>({self._address(kind)}, q<{kind}>({self.expression(kind, 2)}));"
        target = self.random.choice(self.variables[kind])
        if kind in ("u16x2", "i16x2", "f16x2") and self.random.random() < 0.5:  # d16
            member = self.random.choice(("x", "y"))
            narrow = self.random.choice(("u8", "i8", "u16")) if kind != "f16x2" else "f16"
            loaded = f"load<{narrow}>({self._address(narrow)})"
            loaded = f"widen({loaded})" if narrow == "i8" else loaded
            element = VECTORS[kind][0]
            return f"{target}.{member} = q<{element}>({element}({loaded}));"
        return f"{target} = q<{kind}>(load<{kind}>({self._address(kind)}));"

    def _atomic(self) -> str:
        kind = self.random.choice(("u32", "i32", "u64", "i64", "f32", "f64"))
        position = (
            f"{self.random.choice(('mem', 'lds'))} + {self.random.randrange(0, SLICE, SIZES[kind])}"
        )
        target, value = self.random.choice(self.variables[kind]), self.expression(kind, 1)
        if kind in FLOATS:
            return f"{target} = atomic_float_add<{kind}>({position}, {value});"
        if self.random.random() < 0.15:
            expected = self.expression(kind, 1)
            return f"{target} = atomic_compare_swap<{kind}>({position}, {expected}, {value});"
        op = self.random.choice(("add", "sub", "and", "or", "xor", "min", "max", "swap"))
        call = f"atomic_{op}<{kind}>({position}, {value});"
        return call if self.random.random() < 0.3 else f"{target} = {call}"

    def _share_memory(self) -> str:
        """All lanes at one place, whose result does not depend on their order."""
        op = self.random.choice(("add", "or", "max"))
        offset = {"add": 0, "or": 64, "max": 128}[op]  # one operation a place
        kind = self.random.choice(("u32", "u64"))
        offset += 32 * (kind == "u64") + SIZES[kind] * self.random.randrange(4)
        return f"atomic_{op}<{kind}>(shared + {offset}, {self.expression(kind, 1)});"

    # -------------------------------------------------------------------- between lanes

    def _shuffle_lanes(self) -> Step:
        make: Callable[[], Step] = self.random.choice(
            (
                self._dpp,
                self._dpp,
                self._dpp,
                self._swizzle,
                self._permute,
                self._read_lane,
                self._ballot,
                self._swap,
                self._exchange,
                self._exchange,
            )
        )
        return make()

    def _words(self, count: int) -> list[str]:
        return [self.random.choice(self.variables["u32"]) for _ in range(count)]

    def _dpp(self) -> Step:
        dest, old, source, operand = self._words(4)
        control = self.random.choice(DPP_CONTROLS)
        full = self.random.random() < 0.5
        rows, banks = (15, 15) if full else (self.random.randrange(16), self.random.randrange(16))
        zero = self.random.choice(("true", "false"))
        wrap = self.random.choice(
            (
                "X",
                "X",
                "X + Y",
                "Y - X",
                "X - Y",
                "low<u32>(X, Y)",
                "high<i32>(X, Y)",
                "X & Y",
                "X ^ Y",
                "bits<u32>(q<f32>(q(bits<f32>(X)) + q(bits<f32>(Y))))",
                "shr<u32>(Y, X)",
                "bits<u32>(bits<u16x2>(X) + bits<u16x2>(Y))",
                "(X > Y ? 5u : Y)",
            )
        )
        arguments = f"{control:#x}, {rows}, {banks}, {zero}"
        device = f"__builtin_amdgcn_update_dpp(s.{old}, s.{source}, {arguments})"
        host = f"dpp(t + (l & ~63u), s[l].{old}, l & 63, {arguments})"
        return Step(
            f"{{ const u32 x = {device}; s.{dest} = {self._wrapped(wrap, f's.{operand}')}; }}",
            f"TAKE({source}) EACH {{ const u32 x = {host}; "
            f"s[l].{dest} = {self._wrapped(wrap, f's[l].{operand}')}; }}",
        )

    @staticmethod
    def _wrapped(wrap: str, operand: str) -> str:
        return wrap.replace("X", "u32(x)").replace("Y", operand)

    def _swizzle(self) -> Step:
        dest, source = self._words(2)
        choice = self.random
        pattern = choice.choice((0x8000 | choice.randrange(256), choice.randrange(0x8000)))
        return Step(
            f"s.{dest} = __builtin_amdgcn_ds_swizzle(s.{source}, {pattern:#x});",
            f"TAKE({source}) EACH s[l].{dest} = swizzle(t + (l & ~63u), l & 63, {pattern:#x});",
        )

    def _permute(self) -> Step:
        dest, source, index = self._words(3)
        if self.random.random() < 0.5:
            flip = self.random.randrange(64)
            return Step(
                f"s.{dest} = __builtin_amdgcn_ds_permute((s.lane ^ {flip}) * 4, s.{source});",
                f"TAKE({source}) EACH s[l].{dest} = t[l ^ {flip}];",
            )
        return Step(
            f"s.{dest} = __builtin_amdgcn_ds_bpermute(s.{index}, s.{source});",
            f"TAKE({source}) EACH s[l].{dest} = t[(l & ~63u) | (s[l].{index} >> 2 & 63)];",
        )

    def _read_lane(self) -> Step:
        (source,), dest = self._words(1), self.random.choice(self.uniform["u32"])
        lane = self.random.randrange(64)
        if self.random.random() < 0.5:
            device, lane = f"__builtin_amdgcn_readfirstlane(s.{source})", 0
        else:
            device = f"__builtin_amdgcn_readlane(s.{source}, {lane})"
        return Step(
            f"s.{dest} = {device};",
            f"TAKE({source}) EACH s[l].{dest} = t[(l & ~63u) | {lane}];",
        )

    def _ballot(self) -> Step:
        (a, b), dest = self._words(2), self.random.choice(self.uniform["u64"])
        return Step(
            f"s.{dest} = __builtin_amdgcn_ballot_w64(s.{a} < s.{b});",
            f"u64 m[4] = {{}}; EACH m[l / 64] |= u64{{s[l].{a} < s[l].{b}}} << (l & 63);"
            f" EACH s[l].{dest} = m[l / 64];",
        )

    def _swap(self) -> Step:
        a, b = self.random.sample(self.variables["u32"], 2)
        group = self.random.choice((16, 32))
        return Step(
            f"swap_groups<{group}>(s.{a}, s.{b}, s.lane);",
            f"EACH if (l & {group}) {{ const u32 x = s[l].{a}; s[l].{a} = s[l ^ {group}].{b}; "
            f"s[l ^ {group}].{b} = x; }}",
        )

    def _exchange(self) -> Step:
        """Through LDS, behind barriers."""
        kind = self.random.choice(list(SIZES))
        dest, source = (self.random.choice(self.variables[kind]) for _ in range(2))
        offset, source_offset = (self.random.randrange(SLICE + 1 - SIZES[kind]) for _ in range(2))
        if self.random.random() < 0.6:
            offset, source_offset = offset & -SIZES[kind], offset & -SIZES[kind]
        neighbour = (
            f"({{id}} * {self.random.choice((1, 3, 5, 7))} + {self.random.randrange(256)}) % kLanes"
        )
        load = f"load<{kind}>({{all}} + ({neighbour}) * kSlice + {source_offset})"
        return Step(
            f"barrier(); store<{kind}>(s.lds + {offset}, s.{source}); barrier(); "
            f"s.{dest} = q<{kind}>({load.format(all='all_lds', id='s.id')}); barrier();",
            f"EACH store<{kind}>(s[l].lds + {offset}, s[l].{source}); "
            f"EACH s[l].{dest} = q<{kind}>({load.format(all='all_lds', id='l')});",
        )

    def _step(self) -> Step:
        result = self.random.random()
        if result < 0.18:
            return self._shuffle_lanes()
        statements: list[Callable[[], str]] = [
            lambda: self._assign(3),
            lambda: self._assign(3),
            lambda: self._assign(2),
            lambda: self._assign(4),
            lambda: self._assign(3, uniform=True),
            self._branch,
            self._loop,
            self._switch,
            self._array,
            self._memory,
            self._memory,
            self._memory,
            self._atomic,
            self._share_memory,
        ]
        return Step(self.random.choice(statements)())

    # -------------------------------------------------------------------- layout and text

    def layout(self) -> tuple[list[tuple[str, str, int]], int]:
        """(kind, variable, byte) of the lane's variables in its input and output; their size."""
        return _placed(self.variables)

    def uniform_layout(self) -> tuple[list[tuple[str, str, int]], int]:
        return _placed(self.uniform)

    def text(self) -> str:
        lanes, size = self.layout()
        uniforms, same_size = self.uniform_layout()
        declared = " ".join(f"{kind} {name};" for kind, name, _ in lanes + uniforms)
        loads = [
            f"{name} = q<{kind}>(load<{kind}>(in + {offset}));" for kind, name, offset in lanes
        ]
        loads += [
            f"{name} = q<{kind}>(load<{kind}>(uni + {offset}));" for kind, name, offset in uniforms
        ]
        stores = [f"store<{kind}>(out + {offset}, {name});" for kind, name, offset in lanes]
        stores += [
            f"store<{kind}>(out + {size + offset}, {name});" for kind, name, offset in uniforms
        ]
        methods, device, host = [], [], []
        for n, step in enumerate(self.steps):
            if step.host:
                device.append(step.device)
                host.append(f"{{ {step.host} }}")
            else:
                methods.append(f"METHOD void step{n}() {{ {step.device} }}")
                device.append(f"s.step{n}();")
                host.append(f"EACH s[l].step{n}();")
        return _TEMPLATE.format(
            name=self.name,
            size=size,
            total=size + same_size,
            declared=declared,
            loads="\n    ".join(loads),
            stores="\n    ".join(stores),
            methods="\n  ".join(methods),
            device="\n  ".join(device),
            host="\n  ".join(host),
        )


def _placed(variables: dict[str, list[str]]) -> tuple[list[tuple[str, str, int]], int]:
    out, offset = [], 0
    for kind, names in variables.items():
        for name in names:
            out.append((kind, name, offset))
            offset += (SIZES[kind] + 3) // 4 * 4
    return out, (offset + 15) // 16 * 16


_TEMPLATE = """
struct Lane_{name} {{
  u32 id, lane;
  const u8 *in, *uni;
  u8 *mem, *lds, *shared, *out;
  {declared}
  METHOD void enter(u32 number, const u8* inputs, const u8* same, u8* memory, u8* local, u8* common,
                    u8* results) {{
    id = number, lane = number & 63, in = inputs + number * {size}, uni = same;
    mem = memory + number * kSlice, lds = local + number * kSlice, shared = common;
    out = results + number * {total};
    for (u32 i = 0; i < kSlice; i += 4) store<u32>(lds + i, 0x01010101u * i);
    {loads}
  }}
  METHOD void leave() {{
    {stores}
  }}
  {methods}
}};
#ifdef __AMDGCN__
extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void {name}(
    const u8* __restrict in, const u8* __restrict uni, u8* __restrict mem, u8* __restrict shared,
    u8* __restrict out) {{
  __attribute__((shared, aligned(16))) static u8 all_lds[kLanes * kSlice];
  Lane_{name} s;
  s.enter(__builtin_amdgcn_workitem_id_x(), in, uni, mem, all_lds, shared, out);
  {device}
  s.leave();
}}
#else
extern "C" void {name}(const u8* in, const u8* uni, u8* mem, u8* shared, u8* out) {{
  static u8 all_lds[kLanes * kSlice];
  static Lane_{name} s[kLanes];
  EACH s[l].enter(l, in, uni, mem, all_lds, shared, out);
  {host}
  EACH s[l].leave();
}}
#endif
"""


def source(programs: list[Program]) -> str:
    return '#include "programs.h"\n' + "".join(program.text() for program in programs)
