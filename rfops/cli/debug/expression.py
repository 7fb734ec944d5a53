"""Expressions of the prompt: registers, arguments and arithmetic, in the syntax that Python and C
share. `$s0` is s0, as in gdb."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from rfops.cli.debug.launch import LDS_BASE, SPECIAL, Launch
from rfops.cli.debug.values import LANES, CommandError, element, elements

_BINARY: dict[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[..., float]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_REGISTER = re.compile(r"([sva])(\d+)")
_REGISTER_PREFIX = "register_"  # for $: $s0 is the register even if an argument is named s0
_MAX_SHIFT = 64
_INDEXED = {prefix + name for prefix in ("", _REGISTER_PREFIX) for name in ("s", "v", "a", "arg")}


@dataclass(frozen=True)
class Scalar:
    """Bits of a scalar register, an argument or a lane; or a number that was computed from them, of
    no certain width."""

    value: float | int
    bits: int = 0
    type: str = ""  # in which it is shown if none is asked for


@dataclass(frozen=True)
class Vector:
    """A vector register, or a tuple of them as one number per lane."""

    lanes: list[int]
    bits: int


Value = Scalar | Vector


def evaluate(text: str, launch: Launch, wave: int) -> Value:
    """The value of an expression in a wave. Raises CommandError."""
    source = text.replace("$", _REGISTER_PREFIX).replace("&&", " and ").replace("||", " or ")
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError):
        raise CommandError(f"cannot read the expression {text!r}") from None
    try:
        return _Evaluation(launch, wave).value(tree.body)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise CommandError(f"{text}: {error}") from None


def number(text: str, launch: Launch, wave: int) -> int:
    """An integer, such as an address. Raises CommandError."""
    value = evaluate(text, launch, wave)
    if isinstance(value, Vector) or not isinstance(value.value, int):
        raise CommandError(f"{text} must be one integer; v3[5] is lane 5 of v3")
    return value.value


class _Evaluation:
    def __init__(self, launch: Launch, wave: int) -> None:
        self._launch, self._wave = launch, wave

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return Scalar(node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._cast(node)
        return Scalar(self._computed(node))

    def number(self, node: ast.expr) -> float:
        value = self.value(node)
        if isinstance(value, Vector):
            raise CommandError("a vector register has 64 lanes; v3[5] is lane 5 of v3")
        return value.value

    def _computed(self, node: ast.expr) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            lhs, rhs = self.number(node.left), self.number(node.right)
            if isinstance(node.op, ast.LShift) and rhs > _MAX_SHIFT:
                raise CommandError(f"a shift by {rhs} exceeds {_MAX_SHIFT} bits")
            return _BINARY[type(node.op)](lhs, rhs)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return _UNARY[type(node.op)](self.number(node.operand))
        if isinstance(node, ast.BoolOp):
            results = (bool(self.number(value)) for value in node.values)
            return all(results) if isinstance(node.op, ast.And) else any(results)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            lhs, rhs = self.number(node.left), self.number(node.comparators[0])
            return _COMPARE[type(node.ops[0])](lhs, rhs)
        raise CommandError(f"{ast.unparse(node)}: expected registers, arguments, arithmetic")

    def _name(self, name: str) -> Value:
        arg = None if name.startswith(_REGISTER_PREFIX) else self._launch.arg(name)
        name = name.removeprefix(_REGISTER_PREFIX)
        if arg is not None:  # before registers: a kernel's own names are what its author sees
            if arg.value is None:
                raise CommandError(
                    f"argument {name} has {arg.size} bytes; x/8xw kernarg+N shows it"
                )
            return Scalar(arg.value, arg.size * 8, "hex64" if arg.is_pointer else arg.type)
        if name == "lds":
            return Scalar(LDS_BASE, 64, "hex64")
        if name == "pc":
            rows = self._launch.waves()
            return Scalar(rows[self._wave]["offset"], 32, "hex32")
        match = _REGISTER.fullmatch(name)
        if match:
            return self._registers(match[1], int(match[2]), int(match[2]))
        words, vectors = self._launch.scalars(self._wave)
        if name in ("scc", "mode"):
            return Scalar(vectors[name], 32, "hex32" if name == "mode" else "u32")
        base, _, half = name.rpartition("_")
        if name in SPECIAL:
            reg_idx = SPECIAL[name]
            is_one = name == "m0"
            value = words[reg_idx] if is_one else words[reg_idx] | words[reg_idx + 1] << 32
            return Scalar(value, 32 if is_one else 64, "hex32" if is_one else "hex64")
        if base in SPECIAL and base != "m0" and half in ("lo", "hi"):
            return Scalar(words[SPECIAL[base] + (half == "hi")], 32, "hex32")
        args = ", ".join(a.name for a in self._launch.args) or "none"
        raise CommandError(
            f"no name {name!r}; registers are s0, s[4:5], v3, v3[LANE], v[4:7], a2, vcc, exec, "
            f"scc, m0, mode, pc; others lds; arguments {args}"
        )

    def _subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Slice):
            file = node.value.id.removeprefix(_REGISTER_PREFIX)
            lower, upper = node.slice.lower, node.slice.upper
            if file in ("s", "v", "a") and lower and upper and not node.slice.step:
                begin, end = int(self.number(lower)), int(self.number(upper))
                return self._registers(file, begin, end)
        elif isinstance(node.value, ast.Name) and node.value.id in _INDEXED:
            index = int(self.number(node.slice))
            return self._name(f"{node.value.id}{index}")
        elif not isinstance(node.slice, ast.Slice):
            vector, lane = self.value(node.value), int(self.number(node.slice))
            if isinstance(vector, Scalar):
                raise CommandError(f"{ast.unparse(node.value)} is no vector register")
            if not 0 <= lane < LANES:
                raise CommandError(f"lane {lane}: a wave has lanes 0 to 63")
            return Scalar(vector.lanes[lane], vector.bits)
        raise CommandError(f"{ast.unparse(node)}: expected v3[LANE], v[4:7] or s[4:5]")

    def _registers(self, file: str, lo: int, hi: int) -> Value:
        event = self._launch.event
        count = {"s": 102, "v": event["vgprs"], "a": event["agprs"]}[file]
        if not 0 <= lo <= hi < count:
            kind = {"s": "SGPRs", "v": "VGPRs", "a": "AGPRs"}[file]
            names = f"{file}0 to {file}{count - 1}" if count else f"no {kind}"
            raise CommandError(f"the kernel has {names}, got {file}[{lo}:{hi}]")
        width = 32 * (hi - lo + 1)
        if file == "s":
            words, _ = self._launch.scalars(self._wave)
            value = sum(w << 32 * i for i, w in enumerate(words[lo : hi + 1]))
            return Scalar(value, width, "hex32" if width == 32 else "")
        begin = lo + (256 if file == "a" else 0)
        rows = self._launch.vectors(self._wave, begin, hi - lo + 1)
        return Vector(
            [sum(w << 32 * i for i, w in enumerate(lane)) for lane in zip(*rows, strict=True)],
            width,
        )

    def _cast(self, node: ast.Call) -> Value:
        """`f32(v3[0])`: the number whose bits these are."""
        if not isinstance(node.func, ast.Name) or len(node.args) != 1 or node.keywords:
            raise CommandError(f"{ast.unparse(node)}: expected a type of one value, as f32(v3[0])")
        if node.func.id not in elements(self._launch.arch):
            element(node.func.id, self._launch.arch)  # raises, and says which there are
            raise CommandError(f"{node.func.id} holds several numbers; take f32, i32, f16, ...")
        kind = element(node.func.id, self._launch.arch)
        bits = int(self.number(node.args[0])) & ((1 << kind.bits) - 1)
        return Scalar(kind.decode(bits), kind.bits)
