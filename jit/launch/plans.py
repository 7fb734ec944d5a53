"""What an op has decided for arguments like these: a bounded table that counts.

    _PLANS = Plans(out=4, sizes="M N K", shapes=("M,K", "N,K", "M,K/32", "N,K/32", "M,N"))
    plan = _PLANS.find(x, w, x_scale, w_scale, out, dtype)  # None: check, decide, and then
    _PLANS.add(plan, x, w, x_scale, w_scale, out, dtype)
    _PLANS.add_family(decide, x, w, x_scale, w_scale, out, dtype)

A tensor counts with dtype, device, sizes, strides and its address modulo 16, an int or a float with
its bits, anything else as equals do; with a CPU tensor RFOPS_VGPU_ARCH and RFOPS_VGPU_PART count
too. So a plan need not check again what was decided from these, and may depend on nothing else of a
call: not on the stride of a dimension of size 1, and it may hold no tensor. Tuned tables are not in
a key: only calls without a plan see a change of RFOPS_CONFIGS. Never found: subclasses of Tensor (a
FakeTensor has no memory), tensors without memory of their own (those of torch.func), an `out` (its
position) that overlaps another tensor, and anything while torch has to see the call: one of its
modes or transforms is active, or a gradient is wanted (modes.py).

A family is all of this but the sizes: tensors of the declared shapes, none empty, each contiguous
or with the same strides and the same dimensions of size 1. Once one call of it has passed an op's
checks, `find` has `decide(m, n, k)` make the plans of others: a shape that changes every call costs
no check. `decide` repeats those that depend on sizes, and may return None where the op has to look
again. Families are known to the native table alone.

`find` is native where the launcher is built, 0.5 us for five tensors, and Python otherwise, 8 us.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import settings
from . import launcher, modes

Serve = Callable[[Callable[..., Any]], None]
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_ALIGN = 16


class Plans:
    """At most `capacity` plans, the least recently used goes first.

    `shapes` says of each argument what it is in a family: "M,K/32" a tensor of these extents or, if
    one, an int; "N^128" rounds up; "*M" a contiguous tensor of M elements of any shape, "*M,W" one
    whose last dimension is W; "?" any tensor; "" a value, as are those that it leaves out. None
    takes any argument's place. The first extent of a size says it, alone or as an exact part: K/32,
    not K^32.
    """

    def __init__(
        self,
        capacity: int = 1024,
        out: int | Sequence[int] = (),
        sizes: str = "",
        shapes: Sequence[str] = (),
    ) -> None:
        self.capacity = capacity
        self.written_args = frozenset((out,) if isinstance(out, int) else out)
        self._arguments = capacity, out, sizes, tuple(shapes)
        names = sizes.split()
        bits = sum(1 << index for index in self.written_args)
        self.native_args = capacity, bits, len(names), tuple(_pattern(s, names) for s in shapes)
        self._op_call: tuple[Serve, tuple[Any, ...]] | None = None
        self._table: OrderedDict[Any, Any] = OrderedDict()
        self._native: Any = None
        self._hits = self._misses = 0
        launcher.attach_plans(self)

    def new_table(self) -> Plans:
        """An empty table of the same kind."""
        return Plans(*self._arguments)

    def use_native(self, table: Any) -> None:
        """Go on with the native table; it fills anew."""
        self._native = table
        self.find, self.add, self.clear = table, table.add, table.clear  # type: ignore[method-assign]
        self.add_family = table.add_family  # type: ignore[method-assign]
        if self._op_call is not None:
            set_call, (miss, *positions) = self._op_call
            set_call(table.caller(miss, torch.empty, *positions))

    def serve(
        self,
        set_call: Serve,
        miss: Callable[..., Any],
        tensors: tuple[int, ...],
        first_result: int,
        num_results: int,
    ) -> None:
        """Give an op its call, `set_call(call)`, now and again when it is native.

        A plan is (run, make), or of one result (run, dtype, device, *sizes). The call finds it,
        takes the result that is given, or what make(*results given) or torch.empty makes, and
        launches: run(result, *input tensors). Without a plan it is `miss(*parameters)`.
        """
        self._op_call = set_call, (miss, tensors, first_result, num_results)
        if self._native is not None:
            self.use_native(self._native)
            return

        def call(*args: Any) -> Any:
            plan = self.find(*args)
            return miss(*args) if plan is None else self.finish(plan, args)

        set_call(call)

    def stop_serving(self) -> None:
        """Another table has the op's call; this one, made native later, must not take it back."""
        self._op_call = None

    def finish(self, plan: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        """The rest of a served call, in Python."""
        assert self._op_call is not None
        _, (_, tensors, first_result, num_results) = self._op_call
        run, factory, *sizes_ = plan
        results = args[first_result : first_result + num_results]
        if not sizes_:
            result = factory(*results)
        elif results and results[0] is not None:
            result = results[0]
        else:
            device, *sizes = sizes_
            result = torch.empty(*sizes, dtype=factory, device=device)
        run(result, *[args[index] for index in tensors])
        return result

    @property
    def hits(self) -> int:
        """How many calls found a plan, in Python and in the native table."""
        return self._hits + (self._native.hits if self._native is not None else 0)

    @property
    def misses(self) -> int:
        """How many calls found no plan, in Python and in the native table."""
        return self._misses + (self._native.misses if self._native is not None else 0)

    def __len__(self) -> int:
        return len(self._table) if self._native is None else len(self._native)

    def clear(self) -> None:
        """Forget all plans."""
        self._table.clear()

    def find(self, *args: Any) -> Any:
        """The plan for arguments like these, or None."""
        launcher.count()
        key = self._key(args)
        if modes.are_active() or modes.wants_gradient(args):
            key = None
        plan = self._table.get(key) if key is not None else None
        if plan is None:
            self._misses += 1
            return None
        self._hits += 1
        try:
            self._table.move_to_end(key)
        except KeyError:  # another thread has just removed it
            pass
        return plan

    def add(self, plan: Any, *args: Any) -> bool:
        """Remember the plan; False where the arguments cannot be found again."""
        launcher.look()
        if self._native is not None:  # since this moment
            return bool(self._native.add(plan, *args))
        key = self._key(args)
        if key is None:
            return False
        self._table[key] = plan
        while len(self._table) > self.capacity:
            self._table.popitem(last=False)
        return True

    def add_family(self, decide: Callable[..., Any], *args: Any) -> bool:
        """Have `decide` make the plans of other sizes; False where that cannot be, as here."""
        launcher.look()
        return self._native is not None and bool(self._native.add_family(decide, *args))

    def _key(self, args: tuple[Any, ...]) -> Any:
        key: list[tuple[Any, ...]] = []
        spans = []
        on_host = False
        try:
            for arg in args:
                if type(arg) in _PLAIN_TYPES:
                    if arg.is_neg():  # its memory has the negated values
                        return None
                    address = arg.data_ptr()
                    spans.append(_span(arg, address))
                    on_host = on_host or arg.is_cpu
                    identity = arg.device, arg.dtype, address % _ALIGN
                    key.append((arg.shape, arg.stride(), *identity))
                elif isinstance(arg, torch.Tensor):
                    return None
                elif type(arg) in (tuple, list) and arg:  # a table: plans that know none miss it
                    return None
                else:
                    spans.append((0, 0))
                    key.append((type(arg), _bits(arg)))
            if on_host:
                key.append((settings.raw("RFOPS_VGPU_ARCH"), settings.raw("RFOPS_VGPU_PART")))
            key_tuple = tuple(key)
            hash(key_tuple)
        except (RuntimeError, TypeError):  # no memory; an argument that cannot be a key
            return None
        for index in self.written_args:
            other_spans = (span for i, span in enumerate(spans) if i != index)
            if index < len(spans) and any(_overlap(spans[index], span) for span in other_spans):
                return None
        return key_tuple


def _bits(value: Any) -> Any:
    """What equals the bits of a float, of numpy's too: 0.0 equals -0.0, and a NaN nothing."""
    kind = type(value)
    if kind is float or (hasattr(kind, "__float__") and not hasattr(kind, "__index__")):
        return float(value).hex()
    return value


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _span(tensor: torch.Tensor, start: int) -> tuple[int, int]:
    """First and last byte that the tensor touches."""
    if tensor.numel() == 0:
        return start, start
    last_element = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last_element + 1) * tensor.element_size()


_VALUE, _ANY, _SHAPE, _ELEMENTS = range(4)  # csrc/launcher/keys.h has the same


def _pattern(text: str, names: list[str]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """An argument of a family for the native table: its kind, and (size, factor) of each extent."""
    if text in ("", "?"):
        return (_ANY if text else _VALUE), ()
    extents = []
    for dimension in text.removeprefix("*").split(","):
        match = re.fullmatch(r"(\d+)|([A-Za-z_]\w*)(?:([/^])(\d+))?", dimension)
        assert match is not None, f"{text!r} is no shape"
        number, name, sign, factor = match.groups()
        times = -int(factor) if sign == "^" else int(factor or 1)
        extents.append((names.index(name), times) if name else (-1, int(number)))
    return (_ELEMENTS if text.startswith("*") else _SHAPE), tuple(extents)
