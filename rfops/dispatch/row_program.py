"""Arithmetic on rows of numbers, one of each variant: what of a time model changes with a call.
The native launcher runs a program in a twentieth of the time that numpy takes, whose calls are what
costs.

    up_slots = up_rows * up_columns / slots
    up_rounds = ceil(up_slots)

A line sets a row. A name is a row of an earlier line, else a number of the call, else a column:
what variants have. There are + - * / %, ceil, floor, log2, minimum, maximum, and take(table,
column): of the call's table the entry whose index the column has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MASK = "excluded"  # the row that tells which variants are not to be chosen
Array = npt.NDArray[np.float64]

# In the order of the launcher's codes: csrc/launcher/row_program.cpp.
_UFUNCS: Mapping[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mult": np.multiply,
    "Div": np.divide,
    "Mod": np.remainder,
    "minimum": np.fmin,  # minimum takes longer, or no out by position
    "maximum": np.fmax,
    "ceil": np.ceil,
    "floor": np.floor,
    "log2": np.log2,
    "set": np.positive,
}
_CODES = {name: code for code, name in enumerate([*_UFUNCS, "take"])}
_UNARY = "ceil", "floor", "log2", "set"


class Step(NamedTuple):
    """target = operation(operands)."""

    target: str
    operation: str
    operands: tuple[str, ...]


class Program:
    """The steps of a text; numbers, and the table of them that `take` reads behind them, are a
    call's. Raises ValueError for text that is none."""

    def __init__(self, text: str, numbers: Sequence[str], table: str = "") -> None:
        self.numbers, self.table = tuple(numbers), table
        self.steps: list[Step] = []
        self.literals: dict[str, float] = {}
        for line in ast.parse(text).body:
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                raise ValueError(f"expected name = expression, got {ast.unparse(line)!r}")
            target = line.targets[0].id
            self._check(target, line.value)
            operand = self._operand(line.value, target)
            if operand != target:
                self.steps.append(Step(target, "set", (operand,)))

    def _check(self, target: str, expression: ast.expr) -> None:
        """No row is set twice, nor after it was read as a column."""
        if target in (*self.numbers, self.table, *[step.target for step in self.steps]):
            raise ValueError(f"{target} is set twice")
        read = {name for step in self.steps for name in step.operands}
        read |= {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        if target in read:
            raise ValueError(f"{target} is read before it is set")

    def _operand(self, node: ast.expr, target: str = "") -> str:
        """The name of an expression's row: of an operation, `target` or one of its own."""
        match node:
            case ast.Name(id=name):
                return name
            case ast.Constant(value=int() | float() as value):
                self.literals[str(value)] = float(value)
                return str(value)
            case ast.BinOp(left=left, op=operator, right=right):
                parts, operation = [left, right], type(operator).__name__
            case ast.Call(func=ast.Name(id=operation), args=parts, keywords=[]):
                pass
            case _:
                raise ValueError(f"expected an operation, got {ast.unparse(node)!r}")
        if operation not in _CODES or len(parts) != (1 if operation in _UNARY else 2):
            raise ValueError(f"expected one of {', '.join(_CODES)}, got {ast.unparse(node)!r}")
        operands = tuple([self._operand(part) for part in parts])
        name = target or f"({ast.unparse(node)})"
        step = Step(name, operation, operands)
        if step not in self.steps:
            self.steps.append(step)
        return name

    def steps_for(self, targets: Collection[str]) -> list[Step]:
        """Those that these rows need, in order."""
        needed, steps = set(targets), list[Step]()
        for step in reversed(self.steps):
            if step.target in needed:
                needed.update(step.operands)
                steps.append(step)
        return steps[::-1]


class Rows:
    """A program's steps on rows of variants. `targets` are the rows that they are to set, by name;
    other rows are made here, behind them.

    Attributes
    ----------
    values : [rows, variants]: first `size` of the caller's, then the numbers of a call, its table,
        literals, columns and what lies between.
    codes : of each step a code of the operation, then the indices of its target and operands.
    mask_row : the index of the row `excluded`; None where the program has none.
    """

    def __init__(
        self,
        program: Program,
        targets: Mapping[str, int],
        size: int,
        column: Callable[[str], Any],
        num_variants: int,
        num_entries: int,
    ) -> None:
        steps = program.steps_for([*targets, MASK])
        for name in set(targets) - {step.target for step in steps}:
            raise ValueError(f"nothing sets {name}")
        index_of = dict(targets)
        self.first_number = size
        names = [*program.numbers, *[f"{program.table}[{i}]" for i in range(num_entries)]]
        self.num_numbers = len(names)
        operands = [name for step in steps for name in (*step.operands, step.target)]
        for name in dict.fromkeys([*names, *operands]):
            index_of.setdefault(name, size + len(index_of) - len(targets))
        table_begin = size + len(program.numbers)
        self.mask_row = index_of.get(MASK)
        index_of[program.table] = table_begin
        self.values = np.ones((max(size, *index_of.values()) + 1, num_variants))
        made_names = {*names, program.table, *[step.target for step in steps]}
        for name in dict.fromkeys(operands):
            if name not in made_names:
                value = program.literals.get(name)
                self.values[index_of[name]] = column(name) if value is None else value
        indices = [
            [index_of[step.target], *[index_of[name] for name in step.operands]] for step in steps
        ]
        self.codes = np.array(
            [[_CODES[s.operation], *i, i[-1]][:4] for s, i in zip(steps, indices, strict=True)],
            dtype=np.int32,
        )
        self._bind(steps, indices, table_begin)

    def _bind(self, steps: Sequence[Step], indices: Sequence[Sequence[int]], table: int) -> None:
        """Make what `run` calls: of each step a function with its arrays, of a number one element,
        and of `take` the whole numbers of its column. A row that is set to a number is filled."""
        end = self.first_number + self.num_numbers
        self.numbers = np.empty(self.num_numbers)
        entries = self.numbers[table - self.first_number :]

        def operand(index: int) -> Array:
            if self.first_number <= index < end:
                # Without axes: numpy takes five times as long for one element of a vector.
                number: Array = self.numbers[index - self.first_number, ...]
                return number
            row: Array = self.values[index]
            return row

        self._calls: list[tuple[Any, tuple[Any, ...]]] = []
        self._fills: list[tuple[Callable[[float], None], int]] = []
        for step, (target, *sources) in zip(steps, indices, strict=True):
            out = self.values[target]
            if step.operation == "set" and self.first_number <= sources[0] < end:
                self._fills.append((out.fill, sources[0] - self.first_number))
            elif step.operation == "take":
                column = self.values[sources[1]].astype(np.intp)
                if column.min() < 0 or column.max() >= len(entries):
                    raise ValueError(f"{step.operands[1]} must be indices below {len(entries)}")
                self._calls.append((entries.take, (column, None, out, "clip")))
            else:
                self._calls.append((_UFUNCS[step.operation], (*map(operand, sources), out)))

    def run(self, numbers: Sequence[float]) -> None:
        """Set the targets' rows by numpy, for a call's numbers and its table."""
        self.numbers[:] = numbers
        for fill, number_idx in self._fills:
            fill(numbers[number_idx])
        for function, arrays in self._calls:
            function(*arrays)

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """The variants whose row `excluded` is not 0, as it was set last."""
        return None if self.mask_row is None else self.values[self.mask_row] != 0
