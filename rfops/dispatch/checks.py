"""The checks of a call that its declaration asks for, and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rfops.dispatch.guards import (
    Guard,
    check_dtype,
    check_flag,
    check_int,
    check_layout,
    check_no_overlap,
    describe,
    join_or,
)
from rfops.jit.errors import show

from .declare import Declaration, TensorArg, ValueArg
from .kernel import Call


class Checked:
    """What has a declaration, and refuses arguments that are not as it says."""

    def __init__(
        self,
        name: str,
        declaration: Declaration,
        positive: str,
        hints: Mapping[str, str] | None,
        max_bytes: int | None,
    ) -> None:
        self.name, self.declaration, self.max_bytes = name, declaration, max_bytes
        self.positive, self.hints = frozenset(positive.split()), dict(hints or {})
        inputs = tuple(enumerate(declaration.inputs))
        self._tensors = tuple((i, arg) for i, arg in inputs if isinstance(arg, TensorArg))
        self._values = tuple((i, arg) for i, arg in inputs if isinstance(arg, ValueArg))
        # Messages name a size by the argument that gives it.
        self._labels = {arg.size: arg.name for arg in declaration.values if arg.size}

    def fail(self, name: str, expected: str, actual: str, way_out: str) -> Any:
        """Raise the ValueError of an argument: `<op>: <name> must be <expected>, got <actual>;
        <way_out>`."""
        Guard(self.name).fail(name, expected, actual, way_out)

    def hint(self, arg: TensorArg | ValueArg | str, default: str) -> str:
        """Return how to fix the argument: the op's own hint, else `default`."""
        return self.hints.get(arg if isinstance(arg, str) else arg.name, default)

    def check_values(self, **values: Any) -> dict[str, Any]:
        """The values of some arguments, checked. Raises ValueError."""
        args_by_name = {arg.name: arg for arg in self.declaration.values}
        return {
            name: self._check_value(args_by_name[name], value) for name, value in values.items()
        }

    def _typed_values(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The parameters with values of the declared types: numpy's ints as ints."""
        typed = list(args)
        for index, arg in self._values:
            typed[index] = self._check_value(arg, args[index])
        return tuple(typed)

    def _check_value(self, arg: ValueArg, value: Any) -> Any:
        if arg.kind in ("int", "size"):
            return check_int(
                self.name, arg.name, value, -(2**31) if arg.minimum is None else arg.minimum
            )
        if arg.kind == "bool":
            return check_flag(self.name, arg.name, value)
        if arg.kind == "dtype":
            check_dtype(self.name, arg.name, value, arg.dtypes)
        elif arg.kind == "word":
            if not isinstance(value, str) or value not in arg.words:
                self.fail(arg.name, join_or(arg.words), show(value), "pass one of these")
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(arg.name, "a float", show(value), "pass one")
        return value

    def _check_arg(self, guard: Guard, arg: TensorArg, value: Any) -> None:
        if arg.times is None:
            self._check_tensor(guard, arg, value, arg.dtypes)
            return
        if not isinstance(value, (tuple, list)):
            shown = type(value).__name__
            guard.fail(arg.name, "a tuple of tensors", shown, self.hint(arg, "pass one"))
        count = arg.times.text
        expected_count = (
            guard.sizes.setdefault(count, len(value)) if arg.times.size else arg.times.factor
        )
        if expected_count != len(value):
            expected = (
                f"{count}={expected_count} tensors"
                if arg.times.size
                else f"{expected_count} tensors"
            )
            guard.fail(arg.name, expected, str(len(value)), "sizes of the arguments must agree")
        for i, tensor in enumerate(value):
            element = replace(arg, name=f"{arg.name}[{i}]", times=None)
            self._check_tensor(guard, element, tensor, arg.dtypes)

    def _check_tensor(
        self, guard: Guard, arg: TensorArg, tensor: Any, dtypes: tuple[torch.dtype, ...]
    ) -> None:
        if arg.optional and not isinstance(tensor, torch.Tensor):
            if tensor is None:
                return
            guard.fail(
                arg.name, "a tensor or None", type(tensor).__name__, self.hint(arg, "pass None")
            )
        if arg.ignored:
            return
        self._check_kind(guard, arg, tensor)
        self._bind_parts(guard, arg)
        default = self.hint(arg, "convert it first")
        fix = "pass one of that dtype, or none" if arg.dtype_of else default
        labels = [self._labels.get(e.text, e.label) for e in arg.extents]
        if arg.leads:
            self._check_leading(guard, arg, tensor, labels, dtypes, fix)
        else:
            guard.tensor(arg.name, tensor, labels, dtypes, fix)
        for extent in arg.extents:
            size = extent.size
            if size and extent.factor > 1:
                guard.sizes.setdefault(size, extent.factor * guard.sizes[extent.label])
            if size in self.positive and extent.factor > 0 and guard.sizes[size] == 0:
                self._fail_size(guard, size)

    def _check_kind(self, guard: Guard, arg: TensorArg, value: Any) -> None:
        """Refuse a tensor that kernels cannot read, and a result that is no tensor."""
        if isinstance(value, torch.Tensor):
            guard.plain(arg.name, value)
        elif value is not None and arg in self.declaration.results:
            shape = ", ".join(extent.label for extent in arg.extents)
            fix = self.hint(arg, "pass a torch.Tensor")
            guard.fail(arg.name, f"a [{shape}] tensor", describe(value), fix)

    def _bind_parts(self, guard: Guard, *args: TensorArg) -> None:
        """Give parts of sizes, as K/32, their values; the sizes of inputs are bound by then."""
        for extent in (extent for arg in args for extent in arg.extents):
            size, factor = extent.size, extent.factor
            if size and (factor == 1 or size not in guard.sizes):
                continue
            if size and factor > 0 and guard.sizes[size] % factor:
                self._fail_size(guard, size)
            guard.sizes[extent.label] = extent.of(guard.sizes)

    def _fail_size(self, guard: Guard, size: str) -> None:
        multiple = self._multiple_of(size)
        expected = "positive" if size in self.positive else ""
        if multiple > 1:
            expected = f"a {expected} multiple of {multiple}".replace("  ", " ")
        guard.fail(size, expected, f"{size}={guard.sizes[size]}", self.hint(size, "change it"))

    def _check_leading(
        self,
        guard: Guard,
        arg: TensorArg,
        tensor: Any,
        labels: list[str],
        dtypes: tuple[torch.dtype, ...],
        way: str,
    ) -> None:
        """A tensor of any leading dimensions; those of a result are its leader's."""
        size, *trailing = labels
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < len(trailing):
            expected = f"a [{', '.join(['...', *trailing])}] tensor" if trailing else "a tensor"
            is_tensor = isinstance(tensor, torch.Tensor)
            fix = "reshape it" if is_tensor else "pass a torch.Tensor"
            guard.fail(arg.name, expected, describe(tensor), fix)
        lead = [f"{arg.name}.shape[{i}]" for i in range(tensor.dim() - len(trailing))]
        if arg in self.declaration.results:
            leader = self.declaration.leader(arg).name
            lead = [label for label in guard.sizes if label.startswith(f"{leader}.shape[")]
        guard.tensor(arg.name, tensor, [*lead, *trailing], dtypes, way)
        count = arg.sizes(tensor.shape)[0]
        if guard.sizes.setdefault(size, count) != count:
            expected = f"of {size} = {guard.sizes[size]} {'rows' if trailing else 'elements'}"
            guard.fail(arg.name, expected, f"{list(tensor.shape)}", "reshape it")
        if arg.row is not None:
            guard.sizes[arg.row.text] = tensor.shape[-1] if tensor.dim() else 1

    def _check_layouts(
        self,
        inputs: Mapping[str, torch.Tensor | None],
        passed: Mapping[str, torch.Tensor | None],
    ) -> None:
        d = self.declaration
        for arg in (*d.tensors, *d.passed):
            if arg.ignored or arg.strided:
                continue
            for name, tensor in flat({arg.name: {**inputs, **passed}[arg.name]}):
                check_layout(self.name, name, tensor, arg.align or tensor.element_size())
        arg_names = [arg.name for arg in d.tensors if not arg.ignored]
        tensors_by_name = dict(flat({name: inputs[name] for name in arg_names}))
        tensors_by_name |= {name: t for name, t in passed.items() if t is not None}
        written_args = [a for a in (*d.tensors, *d.passed) if (a.written or a in d.passed)]
        for arg in written_args:
            if arg.name in tensors_by_name and not arg.strided:
                other_tensors = {name: t for name, t in tensors_by_name.items() if name != arg.name}
                check_no_overlap(self.name, arg.name, tensors_by_name[arg.name], other_tensors)

    def _multiple_of(self, size: str) -> int:
        """The least size that its parts, as K/32, allow."""
        args = (*self.declaration.tensors, *self.declaration.results)
        factors = [e.factor for a in args for e in a.extents if e.size == size]
        return max((factor for factor in factors if factor > 0), default=1)

    def check_sizes(self, c: Call) -> None:
        """The checks of a call that sizes alone decide. Raises ValueError."""
        guard = Guard(self.name, sizes=dict(c.sizes))
        for value in self.declaration.values:
            self._check_value(value, c.values[value.name])
        for name, size in c.sizes.items():
            if size < 0:
                self.fail(name, "0 or more", f"{name}={size}", "pass a size")
        self._bind_parts(guard, *self.declaration.tensors, *self.declaration.results)
        for name in self.positive:
            if c.sizes[name] == 0:
                self._fail_size(guard, name)


def flat(tensors: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Name and tensor; of a table each, as w[3], and first the first by the table's own name."""
    pairs: list[tuple[str, torch.Tensor]] = []
    for name, value in tensors.items():
        if isinstance(value, (tuple, list)):
            pairs += [(f"{name}[{i}]" if i else name, tensor) for i, tensor in enumerate(value)]
        elif value is not None:
            pairs.append((name, value))
    return pairs
