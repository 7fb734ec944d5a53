"""A call of an op made from sizes alone, for `rfops bench | tune | profile`: random inputs that are
valid, poisoned results, and the check against the op's plain reference.

    c = call_on(OP, {"M": 4, "N": 64, "K": 256}, torch.device("cpu"))
    problem = Problem(OP, c)
    problem.check(problem.launch())  # raises AssertionError that names the worst element
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rfops.dispatch import routing

from .compare import HALF_ULP, assert_within, tolerance
from .declare import E8M0, TensorArg, ValueArg
from .kernel import Call, Run

if TYPE_CHECKING:
    from .op import Op

E4M3, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
Launch = Callable[[], Sequence[torch.Tensor]]
_LIGHT_BYTES = 1 << 16
_PAGE_BYTES = 4096  # bytes: a page; within it, timing mode sees where a tensor begins


def grid(
    names: str, rows: Iterable[Sequence[Any]], /, **alternatives: Iterable[Any]
) -> list[dict[str, Any]]:
    """Shapes: each row of values of `names` with each value of the others.

    grid("N K", [(64, 32), (32, 64)], M=(1, 2))
    """
    cases = [dict(zip(names.split(), row, strict=True)) for row in rows]
    for name, values in alternatives.items():
        cases = [{**shape, name: value} for shape in cases for value in values]
    return cases


def on_device(c: Call, device: torch.device) -> Call:
    """A call of sizes alone, on that device's chip."""
    device = torch.empty(0, device=device).device  # with its index
    return Call(*routing.chip(device), device, c.sizes, c.values, {})


def call_on(op: Op, arguments: Mapping[str, Any], device: torch.device) -> Call:
    """A call of sizes and values by their names, with what that device's chip usually has: which
    FP8, for one."""
    return on_device(op.call_of(*routing.chip(device), **arguments), device)


class InputGenerator:
    """Random tensors on a call's device, the same for the same seed. With `is_light` large ones are
    zeros: for times, where making them would take longer than a launch."""

    def __init__(self, c: Call, seed: int, is_light: bool = False) -> None:
        self.device, self.is_light = c.device, is_light
        self.generator = torch.Generator(c.device).manual_seed(seed)

    def ints(
        self, shape: Sequence[int], low: int, high: int, dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        """From low to high - 1."""
        return torch.randint(
            low, high, tuple(shape), generator=self.generator, dtype=dtype, device=self.device
        )

    def floats(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Of the normal distribution."""
        return torch.randn(tuple(shape), generator=self.generator, dtype=dtype, device=self.device)

    def picks(self, rows: int, count: int, maximum: int) -> torch.Tensor:
        """[rows, count] ids below `most`, those of a row different while there are enough."""
        keys = torch.rand(rows, max(maximum, 1), generator=self.generator, device=self.device)
        columns = torch.arange(count, device=self.device) % max(maximum, 1)
        return keys.argsort(dim=1)[:, columns].to(torch.int32)

    def like(self, arg: TensorArg, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Every e4m3 code but the NaN, scales 2^-6 to 2^6, small ints, normal floats."""
        if self.is_light and math.prod(shape) * dtype.itemsize > _LIGHT_BYTES:
            return _zeros(shape, dtype, self.device)
        if dtype.itemsize > 1 and dtype.is_floating_point:
            return self.floats(shape, dtype)
        if dtype.itemsize > 1:
            return self.ints(shape, 0, 8, dtype)
        if dtype == FNUZ:
            return _skip_code(self.ints(shape, 0, 255, torch.uint8), 128).view(dtype)
        if E4M3 in (dtype, *arg.dtypes):  # bytes may come in its place
            codes = _skip_code(self.ints(shape, 0, 254, torch.uint8), 127)
            return codes.view(dtype)
        low, high = (121, 134) if E8M0 in arg.dtypes else (0, 256)
        return self.ints(shape, low, high, torch.uint8).view(dtype)


def _skip_code(codes: torch.Tensor, code: int) -> torch.Tensor:
    """Steps over one code."""
    return codes + (codes >= code)


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """Where a GPU's allocator would place it: torch's tensors of the CPU begin in the middle of a
    cache line, and timing mode would see each row of theirs in two."""
    if tensor.device.type != "cpu" or tensor.data_ptr() % _PAGE_BYTES == 0:
        return tensor
    memory = torch.empty(tensor.nbytes + _PAGE_BYTES, dtype=torch.uint8)
    begin = -memory.data_ptr() % _PAGE_BYTES
    view = memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return view.copy_(tensor)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Placed so too: of the CPU no memory is touched before a launch reads it."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = torch.zeros(num_bytes + _PAGE_BYTES, dtype=torch.uint8, device=device)
    begin = -memory.data_ptr() % _PAGE_BYTES
    return memory[begin : begin + num_bytes].view(dtype).view(tuple(shape))


def _placed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_placed, value))
    is_plain = isinstance(value, torch.Tensor) and value.is_contiguous()
    return placed(value) if is_plain else value


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """What no kernel writes: NaN, or a strange int."""
    return tensor.fill_(float("nan") if tensor.is_floating_point() else 85)


class Problem:
    """A call with its inputs and results. `is_light`: to be timed alone, its inputs are mostly
    zeros. Raises what the op's checks raise."""

    def __init__(self, op: Op, c: Call, seed: int = 0, is_light: bool = False) -> None:
        self.op = op
        self.inputs = list(_inputs(op, c, InputGenerator(c, seed, is_light)))
        args = [*self.inputs, *[None] * op.num_passed, *[None] * op.takes_config]
        c, _ = op.check(tuple(args))  # inputs are valid, whoever made them
        names = [arg.name for arg in op.declaration.inputs]
        self.call = c.with_inputs(dict(zip(names, self.inputs, strict=True)))
        self.results = [placed(tensor) for tensor in op.make_results(self.call)]
        if not is_light and any(arg.written for arg in op.declaration.tensors):
            _ = self.expected  # before anything is written
            self._written_before = [t.clone() for _, t in self.written()]

    @property
    def tensors(self) -> list[Any]:
        """What of the inputs a launch takes: tensors, tuples of them, None."""
        pairs = zip(self.op.declaration.inputs, self.inputs, strict=True)
        return [v for a, v in pairs if isinstance(a, TensorArg) and not a.ignored]

    @property
    def num_bytes(self) -> int:
        """Of all its tensors."""
        return sum(t.nbytes for value in (*self.tensors, *self.results) for t in _tensors_of(value))

    def launch(self) -> Sequence[torch.Tensor]:
        """The op itself; its results."""
        outputs = [
            r for r, a in zip(self.results, self.op.declaration.results, strict=True) if not a.new
        ]
        result = self.op.call(*self.inputs, *outputs, *[None] * self.op.takes_config)
        return (result,) if isinstance(result, torch.Tensor) else result or ()

    def prepare(self, backend: str, config: Any = None) -> Run:
        """The launch by one kernel, whatever the route says; builds it. Raises ValueError."""
        return self.op.finish_run(self.call, self.op.prepare(backend, self.call, config))

    def launch_by(self, run: Run) -> Launch:
        """A launch of what another problem of these sizes may have prepared."""
        results = self.op.result(*self.results) if self.op.result else tuple(self.results)
        is_one = len(self.results) == 1 and not self.op.result
        call = functools.partial(run, results[0] if is_one else results, *self.tensors)

        def launch() -> Sequence[torch.Tensor]:
            call()
            return self.results

        return launch

    # ------------------------------------------------------------ the check

    @functools.cached_property
    def expected(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The reference's results in fp32 where it can, then what it leaves of inputs that are
        written; and the sum of |products| of each: the same of absolute values."""
        exact, sums = self._refer(_identity), self.op.sums
        return exact, self._refer(_identity, sums) if sums else self._refer(_absolute)

    def _refer(
        self,
        change: Callable[[TensorArg, torch.Tensor], torch.Tensor],
        reference_: Callable[..., Any] | None = None,
    ) -> list[Any]:
        reference, d = reference_ or self.op.reference, self.op.declaration
        if reference is None:
            raise ValueError(f"{self.op.name}: has no reference to check by; give its Op one")
        dtype_args = {arg.dtype_of for arg in d.results}
        args: list[Any] = []
        for arg, value in zip(d.inputs, self.inputs, strict=True):
            if isinstance(arg, ValueArg):
                is_wide = arg.name in dtype_args and torch.float32 in arg.dtypes
                is_factor = arg.kind == "float" and change is _absolute
                args.append(torch.float32 if is_wide else abs(value) if is_factor else value)
            else:
                changed = tuple(change(arg, tensor) for tensor in _tensors_of(value))
                args.append(changed if arg.times else changed[0] if changed else None)
        expected = reference(*args)
        results = [expected] if isinstance(expected, torch.Tensor) else list(expected or ())
        self._check_reference(results)
        pairs = zip(d.inputs, args, strict=True)
        return results + [t for a, v in pairs if _is_written(a) for t in _tensors_of(v)]

    def _check_reference(self, arguments: Sequence[Any]) -> None:
        """Raises ValueError where the reference does not give the op's results."""
        names = [arg.name for arg in self.op.declaration.results]
        if len(arguments) != len(names):
            raise ValueError(
                f"{self.op.name}: reference must return {', '.join(names) or 'nothing'}, got "
                f"{len(arguments)} results. Return a tuple of them."
            )
        for name, mine, result in zip(names, arguments, self.results, strict=True):
            if mine.shape != result.shape:
                raise ValueError(
                    f"{self.op.name}: reference's {name} must be {list(result.shape)}, got "
                    f"{list(mine.shape)}. Return it in the shape of the declaration."
                )
            if HALF_ULP.get(mine.dtype, 0.0) > HALF_ULP.get(result.dtype, 1.0):
                raise ValueError(
                    f"{self.op.name}: reference's {name} must not be rounded, got {mine.dtype} for "
                    f"a result of {result.dtype}. Return float32."
                )

    def written(self) -> Iterator[tuple[str, torch.Tensor]]:
        for arg, value in zip(self.op.declaration.inputs, self.inputs, strict=True):
            if _is_written(arg):
                yield from ((arg.name, tensor) for tensor in _tensors_of(value))

    def renew(self) -> None:
        """Poison what is to be written, and restore inputs that have been."""
        for tensor in self.results:
            poison(tensor)
        for (_, tensor), original in zip(
            self.written(), getattr(self, "_written_before", ()), strict=False
        ):
            tensor.copy_(original)

    def check(self, results: Sequence[torch.Tensor], backend: str = "") -> None:
        """Raises AssertionError that names the worst element."""
        kernel_error = self.op.kernels[backend].error_on(self.call.arch) if backend else 0.0
        names = [arg.name for arg in self.op.declaration.results]
        names += [name for name, _ in self.written()]
        outputs = [*results, *[tensor for _, tensor in self.written()]]
        for name, actual, exact, total in zip(names, outputs, *self.expected, strict=True):
            bound: torch.Tensor | float = 0.0
            if exact.dtype in (E4M3, FNUZ):  # which torch compares, and hardly more
                exact, total = exact.float(), total.float()
            if actual.dtype in HALF_ULP:  # others are exact
                depth = self.op.roundings(self.call) + kernel_error * 2**24
                bound = tolerance(exact.abs(), total.abs().to(torch.float32), depth, actual.dtype)
                bound = bound * (1 if exact.dtype == torch.float32 else 2)  # it is rounded too
            try:
                assert_within(actual, exact, bound)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None

    def checked(self, launch: Launch, backend: str = "") -> None:
        """Launch once on poisoned results, and check. Raises AssertionError."""
        self.renew()
        self.check(launch(), backend)


def _tensors_of(value: Any) -> Sequence[torch.Tensor]:
    """The tensors of an argument."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _is_written(arg: TensorArg | ValueArg) -> bool:
    return isinstance(arg, TensorArg) and arg.written


def _identity(_arg: TensorArg, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def _absolute(arg: TensorArg, tensor: torch.Tensor) -> torch.Tensor:
    if arg.is_fp4:
        return (tensor.view(torch.uint8) & 0x77).view(tensor.dtype)
    if tensor.dtype.itemsize == 1:
        is_code = {tensor.dtype, *arg.dtypes} & {E4M3, FNUZ}
        return (tensor.view(torch.uint8) & 127).view(tensor.dtype) if is_code else tensor
    return tensor.abs() if tensor.is_floating_point() else tensor.clone()


def _inputs(op: Op, c: Call, draw: InputGenerator) -> Iterator[Any]:
    fitted: Mapping[str, Any] = op.fit(c, draw)
    for arg in op.declaration.inputs:
        if arg.name in fitted:
            yield _placed(fitted[arg.name])
        elif isinstance(arg, ValueArg):
            yield c.sizes[arg.size] if arg.size else c.values[arg.name]
        elif arg.ignored or (arg.optional and not c.has(arg.name)):
            yield None
        else:
            shape = [extent.of(c.sizes) for extent in arg.extents]
            dtype, times = getattr(c, f"{arg.name}_dtype"), arg.times
            count = times.of(c.sizes) if times else 1
            tensors = [placed(draw.like(arg, dtype, shape)) for _ in range(count)]
            yield tuple(tensors) if times else tensors[0]
