"""A Triton kernel bound to a device and its constants, and its launches by the names of arguments.

    gemm = BoundTriton(_KERNELS, "gemm", device, {"BLOCK_M": 64, "BLOCK_N": 64}, warps=4)
    launch = gemm.prepare("out x w", strides={"x": "x_m x_k"})  # once a variant
    run = launch((tiles, 1, 1), m=m, n=n, k=k)  # once a shape
    run(out, x, w)

Names are those of the @triton.jit function, and are checked when a kernel is bound or prepared.
Triton looks at every argument of every launch to find its compiled kernel. Here the compiled kernel
is kept for arguments like the last ones, and Triton's launcher called at once (a call of
batched_gemm_a16w8_blockscale: 34 us before, 16 so, on an H200's host). Kernels of other plans are
found too, by what Triton specialises: a shape that is new costs Triton's search once for all like
it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from rfops.dispatch.kernel import Run
from rfops.jit import BindError
from rfops.jit.forks import importing

from . import launch

_ALIGN = 16  # what Triton's compiled kernels tell pointers and integers apart by
_SMALL = 2**31  # bytes of a storage, on AMD; from there integers have 64 bits

Grid = tuple[int, int, int]
# A parameter may be a tuple of numbers, or of tuples, which the kernel takes apart.
_Number = int | None | tuple["_Number", ...]
# What is compiled: by kernel, device, constants, options, and what is specialised of arguments.
_compiled: dict[tuple[object, ...], Any] = {}
_MAX_CACHED = 4096


class BoundTriton:
    """`<module>.<name>` with all of its constants (tl.constexpr), by name. Its parameters are
    tensors, then numbers, then constants. Raises BindError."""

    def __init__(
        self,
        module: str,
        name: str,
        device: torch.device,
        constants: Mapping[str, object],
        warps: int = 4,
        stages: int = 1,
        options: Mapping[str, object] | None = None,
    ) -> None:
        with importing:
            self.jit = getattr(importlib.import_module(module), name)
            self.driver = importlib.import_module("triton.runtime").driver
        self.name, self.device = name, device
        self.parameters = tuple([p.name for p in self.jit.params])
        constant_names = [p.name for p in self.jit.params if p.is_constexpr]
        if constants.keys() != set(constant_names):
            passed, expected = ", ".join(constants) or "none", ", ".join(constant_names) or "none"
            raise BindError(f"{name}: constants must be {expected}, got {passed}")
        self.constants = {name: constants[name] for name in constant_names}
        # Unset, fp fusion warns in Triton 3.9 and changes in 3.10.
        defaults = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        self.options = defaults | dict(options or {})
        self.kind = (module, name, device, *self.constants.values(), *self.options.items())
        self.by_size = torch.version.hip is not None

    def is_current(self) -> bool:
        """Whether a launch goes to the device without further ado."""
        return (
            self.device.type == "cuda"
            and torch.cuda.current_device() == self.device.index
            and type(self.driver._active).__name__ != "VirtualDriver"
        )

    def prepare(
        self,
        arguments: str | Sequence[str],
        *,
        sources: Mapping[str, str | None] | None = None,
        strides: Mapping[str, str] | None = None,
    ) -> Callable[..., Run]:
        """`run_of(grid, m=..., n=...) -> run`, and `run(*arguments)` launches on the current
        stream.

        Parameters
        ----------
        arguments : the names of run's arguments, tensors, in order; further ones are ignored. A
            parameter of the kernel takes the argument of its own name.
        sources : the arguments of parameters whose names differ; None is a null pointer.
        strides : for an argument the parameters that take its strides, one a dimension; "_" for a
            stride that none takes.

        `run_of` takes all other parameters, numbers and tuples of them, by name; None is a number
        too. Raises
        BindError for names that the kernel or the launch has not, TypeError for numbers that are
        missing or unknown; `run` raises what Triton raises. Tensors of an argument have one dtype.
        """
        names = arguments.split() if isinstance(arguments, str) else list(arguments)
        sources, strides = dict(sources or {}), dict(strides or {})
        free = [name for name in self.parameters if name not in self.constants]
        origins = {n: sources.get(n, n) for n in free if n in sources or n in names}
        steps = [
            name
            for names_of_tensor in strides.values()
            for name in names_of_tensor.split()
            if name != "_"
        ]
        if unknown := [name for name in (*sources, *steps) if name not in free]:
            raise BindError(
                f"{self.name}: sources and strides must be of its parameters, {' '.join(free)}, "
                f"got {' '.join(unknown)}"
            )
        tensor_names = (*filter(None, sources.values()), *strides)
        if lost := [name for name in tensor_names if name not in names]:
            raise BindError(
                f"{self.name}: sources and strides must come from the launch's arguments, "
                f"{' '.join(names)}, got {' '.join(lost)}"
            )
        leading = free[: free.index([*origins][-1])] if origins else []
        if missing := [name for name in leading if name not in origins]:
            raise BindError(
                f"{self.name}: {', '.join(missing)} must have a source among the launch's "
                f"arguments, {' '.join(names)}, got none. Tensors come before numbers: name it in "
                "arguments or sources."
            )
        return _Prepared(self, names, origins, strides).run_of


@dataclass(frozen=True)
class TritonStep:
    """A launch among the steps of an op (rfops/dispatch/steps.py). `arguments` has the number of
    each number parameter; a tensor parameter takes the tensor of its own name, or of that which
    `arguments` has, or none."""

    kernel: BoundTriton
    grid: Grid
    arguments: Mapping[str, int | str | None]

    def bind(self, _device: torch.device, _arch: str | None, names: Sequence[str]) -> Run:
        """Return the launch, which takes the tensors `names`. Raises as BoundTriton.prepare."""
        numbers = {n: value for n, value in self.arguments.items() if isinstance(value, int)}
        sources = {n: v for n, v in self.arguments.items() if not isinstance(v, int)}
        return self.kernel.prepare(names, sources=sources)(self.grid, **numbers)


class _Prepared:
    """Where the parameters of a kernel come from: arguments, their strides, numbers, constants."""

    def __init__(
        self,
        bound: BoundTriton,
        names: Sequence[str],
        origins: Mapping[str, str | None],
        strides: Mapping[str, str],
    ) -> None:
        self.bound, self.count = bound, len(names)
        order = [names.index(s) if s else len(names) for s in map(origins.get, origins)]
        is_same = order == list(range(len(names)))
        self.pick = None if is_same else itemgetter(*order, len(names))
        self.strided = tuple([names.index(name) for name in strides])
        self.of_strides = tuple(
            [name for stride_names in strides.values() for name in stride_names.split()]
        )
        self.scalar_names = bound.parameters[len(origins) :]
        bound_names = {*self.of_strides, *bound.constants}
        self.numbers = tuple([name for name in self.scalar_names if name not in bound_names])

    def run_of(self, grid: Grid, /, **numbers: _Number) -> Run:
        if numbers.keys() != set(self.numbers):
            passed, expected = ", ".join(numbers) or "none", ", ".join(self.numbers) or "none"
            raise TypeError(
                f"{self.bound.name}: numbers must be {expected}, got {passed}. A tensor parameter "
                "takes the argument of its name, or of that which sources names."
            )
        return _Launch(self, grid, numbers)


class _Launch:
    """A launch that only wants its tensors."""

    def __init__(self, prepared: _Prepared, grid: Grid, numbers: Mapping[str, _Number]) -> None:
        self._prepared, self._grid, self._numbers = prepared, grid, numbers
        self.num_arguments = prepared.count
        self._pick, self._strided = prepared.pick, prepared.strided
        self._by_size, self._is_current = prepared.bound.by_size, prepared.bound.is_current
        # By alignments, strides and, on AMD, sizes: Triton's launcher, and all but the tensors.
        self._cached: dict[tuple[object, ...], tuple[Any, tuple[object, ...]]] = {}

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        strides = [tensors[i].stride() for i in self._strided]  # type: ignore[union-attr]
        if self._pick is not None:
            tensors = self._pick((*tensors, None))[:-1]
        key = (*strides, *[t is not None and t.data_ptr() % _ALIGN == 0 for t in tensors])
        if self._by_size:
            key += tuple([t is not None and _is_small(t) for t in tensors])
        cached = self._cached.get(key)
        if cached is None or not self._is_current():
            self._launch_first(tensors, strides, key)
        else:
            launch, scalars = cached
            launch(*tensors, *scalars)

    def _launch_first(
        self,
        tensors: Sequence[torch.Tensor | None],
        strides: Sequence[tuple[int, ...]],
        key: tuple[object, ...],
    ) -> None:
        prepared, bound = self._prepared, self._prepared.bound
        flat = (stride for of_tensor in strides for stride in of_tensor)
        values = {**dict(zip(prepared.of_strides, flat, strict=True)), **self._numbers}
        numbers = [values[name] for name in prepared.scalar_names if name not in bound.constants]
        scalars = (*numbers, *bound.constants.values())
        kinds = [_specialised(value, bound.by_size) for value in (*tensors, *numbers)]
        full = (*bound.kind, *kinds)
        compiled = _compiled.get(full) if bound.is_current() else None
        if compiled is not None:
            compiled[self._grid](*tensors, *scalars)
        else:
            with launch.on_device(bound.device):
                compiled = bound.jit[self._grid](*tensors, *scalars, **bound.options)
            if bound.device.type == "cpu":
                return  # the virtual GPU's architecture may change, and it is slow
            _remember(_compiled, full, compiled)
        _remember(self._cached, key, (compiled[self._grid], scalars))


def _remember(table: dict[tuple[object, ...], Any], key: tuple[object, ...], value: Any) -> None:
    if len(table) >= _MAX_CACHED:
        table.clear()
    table[key] = value


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() < _SMALL


def _specialised(value: torch.Tensor | _Number, by_size: bool) -> object:
    """What a compiled kernel may know of an argument, whether this one does or not."""
    if isinstance(value, tuple):
        return tuple([_specialised(item, by_size) for item in value])
    if isinstance(value, torch.Tensor):
        is_small = by_size and _is_small(value)
        return value.dtype, value.data_ptr() % _ALIGN == 0, is_small
    if value is None or value == 1:
        return value
    return value % _ALIGN == 0, value.bit_length() // 32
