"""What an op launches on inputs of given sizes, without building or running anything.

    with recording("gfx942") as record:
        plan = record(inputs, lambda: rfops.gemm_a8w8_blockscale(x, w, x_scale, w_scale, out=out))

The op's own checks, route and plan are asked; a launch's tensors are then named: an input, the
result, or scratch memory of the op's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rfops.dispatch.dynamic_plan import DynamicShapePlan
from rfops.dispatch.op import Op
from rfops.jit import CompiledOp, settings
from rfops.jit.launch.bind import bind_with
from rfops.jit.launch.prepare import NamedLaunch

Dim3 = tuple[int, int, int]
Tensors = Mapping[str, Any]  # a tensor, or a tuple of them, by name


class Variant(NamedTuple):
    """A kernel's module with the constants that are compiled in."""

    op: CompiledOp
    defines: tuple[tuple[str, Any], ...]


class ArgPlace(NamedTuple):
    """A launch's tensor: where it begins, in bytes from the named one's first."""

    name: str
    offset: int = 0
    item: int | None = None  # in a tuple of tensors


class Launch(NamedTuple):
    variant: Variant
    grid: Dim3
    block: Dim3
    lds: int
    args: tuple[Any, ...]  # Place, None, a number, or a tuple of Places and None for a table


class Plan(NamedTuple):
    """What one call launches, in order."""

    launches: tuple[Launch, ...]
    scratch: Mapping[str, int]  # bytes, zeros before the first call
    result: tuple[tuple[int, ...], torch.dtype] | None  # of what is made; None: it was given


class _NoComputation(TorchDispatchMode):
    """Lets torch allocate and view memory, and raises ValueError for an operator that computes,
    because a plan has only launches of kernels."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_view = func.is_view or "empty" in str(func) or "zeros" in str(func)
        if not is_view and str(func) not in ("aten.detach.default", "aten._reshape_alias.default"):
            raise ValueError(f"torch's {func} is among what the op does: no kernel of a plan's")
        return func(*args, **(kwargs or {}))


class _Kernel(NamedLaunch):
    """Stands in for a BoundKernel and records its launches."""

    def __init__(self, launches: list[Any], op: CompiledOp, defines: Mapping[str, Any]) -> None:
        super().__init__(op.kernel, op.parameters)
        self._launches, self._variant = launches, Variant(op, tuple(sorted(defines.items())))

    def launch(
        self, grid: Dim3, block: Dim3, args: Sequence[Any], lds: int = 0, stream: Any = None
    ) -> None:
        del stream
        self._launches.append(Launch(self._variant, grid, block, lds, tuple(args)))


class Recorder:
    """Of one architecture; made by `recording`."""

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._result: tuple[tuple[int, ...], torch.dtype] | None = None
        self._new_result: torch.Tensor | None = None

    def __call__(self, inputs: Tensors, op: Op, call: Callable[[], Any]) -> Plan:
        """The plan of a call of `op`, which is made in `call` on tensors that hold nothing."""
        self._launches.clear()
        self._result = self._new_result = None
        original = op.call
        op.call = lambda *args: self._recorded(op, args)
        try:
            call()
        finally:
            op.call = original
        named_tensors = (
            dict(inputs) if self._new_result is None else {**inputs, "out": self._new_result}
        )
        names = _Names(named_tensors, self._launches)
        launches = tuple(
            launch._replace(args=tuple(map(names.place_of, launch.args)))
            for launch in self._launches
        )
        return Plan(launches, names.scratch, self._result)

    def _recorded(self, op: Op, args: tuple[Any, ...]) -> Any:
        c, config = op.check(op._typed_values(args))
        passed_results = args[op.num_inputs : op.num_inputs + op.num_passed]
        results = [
            result if passed_result is None else passed_result
            for result, passed_result in zip(op.make_results(c), passed_results, strict=False)
        ]
        if len(results) != 1:
            raise ValueError(f"{op.name} has {len(results)} results; a plan has one")
        if passed_results[0] is None:
            self._new_result = results[0]
            self._result = tuple(results[0].shape), results[0].dtype
        kernel, _, config = op.decide(c, DynamicShapePlan(op, c, config).router, config)
        if not kernel.is_hip:
            reasons = {n: k.unsupported_reason(c) for n, k in op.kernels.items() if k.is_hip}
            raise ValueError(f"{op.name} {c} on {c.arch} goes to {kernel.name}, no HIP: {reasons}")
        run = op.finish_run(c, kernel.variant(c, config)(*c.sizes.values()))
        tensors = [args[index] for index in op._tensors_at]
        run(results[0], *tensors)  # workspaces are there, and their zeros, from the first call on
        self._launches.clear()
        with _NoComputation():  # type: ignore[no-untyped-call]
            run(results[0], *tensors)
        return results[0]


class _Names:
    """What each tensor of the launches is called."""

    def __init__(self, inputs: Tensors, launches: Sequence[Launch]) -> None:
        self._spans: list[tuple[int, int, ArgPlace]] = []
        for name, value in inputs.items():
            pairs = enumerate(value) if isinstance(value, (tuple, list)) else [(None, value)]
            for item, tensor in pairs:
                if tensor is not None and tensor.numel():
                    self._spans.append((*_span(tensor), ArgPlace(name, 0, item)))
        self.scratch: dict[str, int] = {}
        spans = [
            (*_span(tensor), parameter.name)
            for launch in launches
            for parameter, arg in zip(launch.variant.op.parameters, launch.args, strict=True)
            for tensor in (arg if parameter.count else (arg,))
            if isinstance(tensor, torch.Tensor) and tensor.numel() and self._find(tensor) is None
        ]
        self._add_scratch(spans, set(inputs))

    def _add_scratch(self, spans: list[tuple[int, int, str]], used_names: set[str]) -> None:
        """Name the memory of `spans` (begin, end, parameter) as scratch; overlapping spans become
        one."""
        merged: list[tuple[int, int, str]] = []
        first_use = {span: index for index, span in reversed(list(enumerate(spans)))}
        for begin, end, name in sorted(set(spans), key=lambda s: (s[0], first_use[s])):
            if merged and begin < merged[-1][1]:
                previous = merged[-1]
                merged[-1] = previous[0], max(previous[1], end), previous[2]
            else:
                merged.append((begin, end, name))
        merged.sort(key=lambda m: min(first_use[s] for s in spans if m[0] <= s[0] < m[1]))
        for begin, end, name in merged:
            unique = name
            while unique in used_names:
                unique += "_"
            used_names.add(unique)
            self.scratch[unique] = end - begin
            self._spans.append((begin, end, ArgPlace(unique)))

    def _find(self, tensor: torch.Tensor) -> ArgPlace | None:
        address = tensor.data_ptr()
        exact = next((p for begin, _, p in self._spans if begin == address), None)
        if exact is not None:
            return exact
        containing = ((b, p) for b, end, p in self._spans if b <= address < end)
        begin, argument = next(containing, (0, None))
        return None if argument is None else argument._replace(offset=address - begin)

    def place_of(self, arg: Any) -> Any:
        if isinstance(arg, (tuple, list)):
            return tuple(map(self.place_of, arg))
        if not isinstance(arg, torch.Tensor):
            return arg
        return self._find(arg) if arg.numel() else None


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of the tensor's first element, and the address after its last."""
    last_element = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905
    return tensor.data_ptr(), tensor.data_ptr() + (last_element + 1) * tensor.itemsize


@contextlib.contextmanager
def recording(arch: str) -> Iterator[Recorder]:
    """Record the launches of calls for `arch` instead of running them."""
    recorder = Recorder()

    def bind(op: CompiledOp, defines: Mapping[str, Any]) -> Any:
        return _Kernel(recorder._launches, op, defines)

    no_gpu_model = settings.put("RFOPS_VGPU_PART", "")
    with no_gpu_model, settings.put("RFOPS_VGPU_ARCH", arch), bind_with(bind):
        yield recorder


def unreal(make_fakes: Callable[[], Tensors]) -> dict[str, Any]:
    """Return tensors like those of `make_fakes`: the same sizes, strides and shared storages, but
    nothing is computed or written, so tensors of hundreds of GiB cost nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fakes = make_fakes()
    storages: dict[int, torch.UntypedStorage] = {}

    def real(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(map(real, value))
        if not isinstance(value, torch.Tensor):
            return value
        fake_storage = value.untyped_storage()
        if fake_storage._cdata not in storages:
            memory = torch.empty(fake_storage.nbytes(), dtype=torch.uint8)
            storages[fake_storage._cdata] = memory.untyped_storage()
        empty = torch.empty(0, dtype=value.dtype)
        geometry = value.storage_offset(), value.size(), value.stride()
        return empty.set_(storages[fake_storage._cdata], *geometry)

    return {name: real(value) for name, value in fakes.items()}
