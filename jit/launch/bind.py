"""`@compile_ops`: a typed Python signature bound to a kernel. The first `bind` resolves, builds and
loads; afterwards a launch fills an argument buffer and calls HIP."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import paths
from ..arch import waves_per_simd
from ..cache import trust
from ..errors import BindError, show
from ..forks import importing
from . import hip, launcher, tensor_memory
from .prepare import NamedLaunch
from .signature import (
    Parameter,
    check_layout,
    check_scalars,
    kernel_layout,
    read_signature,
    struct_format,
)

if TYPE_CHECKING:  # all of building is imported by the first bind
    from ..build.recipe import Define, Defines
    from ..build.spec import ModuleSpec
    from ..cache.shelf import Artifact

Dim3 = tuple[int, int, int]
_DIM3 = struct.Struct("3I")
_LDS_STREAM = struct.Struct("=IQ")


class _Slot:
    """A kernel argument buffer with HIP's `extra` array pointing at it."""

    def __init__(self, size: int) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self.size = ctypes.c_size_t(size)
        self.extra = (ctypes.c_void_p * 5)(
            1, ctypes.addressof(self.buffer), 2, ctypes.addressof(self.size), 3
        )  # HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END


def _address(tensor: torch.Tensor | None) -> int:
    if tensor is None:
        return 0
    address = int(tensor.data_ptr())
    if not address and tensor.numel():
        raise ValueError(f"a tensor without memory ({type(tensor).__name__}) cannot be launched on")
    return address


class BoundKernel(NamedLaunch):
    """A loaded kernel with its argument layout; made by `CompiledOp.bind`."""

    def __init__(self, op: CompiledOp, artifact: Artifact, device: torch.device) -> None:
        super().__init__(op.kernel, op.parameters)
        kernels = artifact.meta.kernels
        if op.kernel not in kernels:
            raise BindError(f"{op.module}: no kernel {op.kernel!r}; it has {', '.join(kernels)}")
        args = kernels[op.kernel].args
        parameters = op.parameters
        check_layout(op.kernel, parameters, args)
        self.meta: Mapping[str, Any] = {**artifact.meta.as_dict(), "cached": not artifact.is_new}
        resources = dict(kernels[op.kernel].resources)
        resources["waves_per_simd"] = waves_per_simd(resources["vgpr"])
        self.resources: Mapping[str, int] = resources
        self.device = device
        self.layout = kernel_layout(args, parameters)
        self._pack = struct.Struct(struct_format(args, parameters))
        self.kernarg_size = self._pack.size
        self._counts = (
            tuple(p.count for p in parameters) if any(p.count for p in parameters) else ()
        )
        self._arg_slots: list[_Slot] = []
        self._load(artifact)
        if self.hip.is_virtual and tensor_memory.registers_always():
            self.launch = tensor_memory.registering_launch(self.launch, self.hip)  # type: ignore[method-assign]
        else:
            launcher.attach(self)

    def _load(self, artifact: Artifact) -> None:
        self.hip = hip.runtime(self.device)
        self.index = -1 if self.device.index is None else self.device.index
        code = trust.read(artifact.folder.parents[2], artifact.file)
        arch = hip.device_arch(self.device)
        if self.index >= 0:
            with torch.cuda.device(self.index):
                self._module, self.function = self.hip.load(code, self.name, arch)
        else:
            self.hip.select_arch(artifact.meta.arch)
            self._module, self.function = self.hip.load(code, self.name, arch)

    def launch(
        self, grid: Dim3, block: Dim3, args: Sequence[Any], lds: int = 0, stream: int | None = None
    ) -> None:
        """Launch on torch's current stream of the device (CPU: at once, returns when done).

        `grid` counts workgroups, `lds` is dynamic LDS in bytes. Tensors go by address, None as a
        null pointer; nothing but the number and range of arguments is checked here. Raises
        ValueError, HipError.

        This is the launch through ctypes. An instance's `launch` is the native one where that is
        built (see launcher.py), which comes here with all that is not plain.
        """
        launcher.count()
        try:
            slot = self._arg_slots.pop()
        except IndexError:
            slot = _Slot(self._pack.size)
        try:
            if self._counts:
                values = self._flat(args)
            else:
                values = [
                    _address(arg) if tensor else arg
                    for arg, tensor in zip(args, self._tensors, strict=True)
                ]
            self._pack.pack_into(slot.buffer, 0, *values)
        except Exception as error:  # whatever an argument of any kind may raise
            raise ValueError(self._explain(args, error)) from error
        if stream is None and self.index >= 0:
            stream = hip.raw_stream(self.index)
        try:  # ctypes would cut them to their width
            _DIM3.pack(*grid), _DIM3.pack(*block)
            _LDS_STREAM.pack(lds, 0 if stream is None else stream)
        except (struct.error, TypeError) as error:
            raise ValueError(self._explain_sizes(grid, block, lds, stream)) from error
        if self.index < 0:
            code = self._launch(grid, block, lds, stream, slot)
        else:
            if torch.cuda.current_device() == self.index:
                code = self._launch(grid, block, lds, stream, slot)
            else:
                with torch.cuda.device(self.index):
                    code = self._launch(grid, block, lds, stream, slot)
        self._arg_slots.append(slot)
        if code != 0:
            self.fail(code)

    def _launch(self, grid: Dim3, block: Dim3, lds: int, stream: int | None, slot: _Slot) -> int:
        extra = slot.extra
        return int(self.hip.launch_kernel(self.function, *grid, *block, lds, stream, None, extra))

    def fail(self, code: int) -> None:
        """Raise the HipError of a launch."""
        self.hip.fail(f"hipModuleLaunchKernel({self.name})", code)

    def _flat(self, args: Sequence[Any]) -> list[Any]:
        """The values of a launch with tables of tensors among its arguments."""
        values: list[Any] = []
        for arg, tensor, parameter in zip(args, self._tensors, self.parameters, strict=True):
            if not parameter.count:
                values.append(_address(arg) if tensor else arg)
            elif len(arg) == parameter.count:
                values += map(_address, arg)
            else:
                raise ValueError(f"{parameter} expected, got {len(arg)}")
        return values

    def _explain_sizes(self, grid: Any, block: Any, lds: Any, stream: Any) -> str:
        for name, value in (("grid", grid), ("block", block)):
            try:
                _DIM3.pack(*value)
            except (struct.error, TypeError):
                expected = "three whole numbers from 0 to 2**32 - 1"
                return f"{self.name}: {name} must be {expected}, got {show(value)}"
        try:
            struct.pack("I", lds)
        except struct.error:
            expected = "a whole number of bytes from 0 to 2**32 - 1"
            return f"{self.name}: lds must be {expected}, got {show(lds)}"
        return f"{self.name}: stream must be a stream's handle or None, got {show(stream)}"

    def _explain(self, args: Sequence[Any], error: Exception) -> str:
        if not isinstance(args, Sequence):
            return f"{self.name}: args must be a tuple of arguments, got {show(args)}"
        if len(args) != len(self.parameters):
            return f"{self.name}: {len(self.parameters)} arguments expected, got {len(args)}"
        for parameter, arg in zip(self.parameters, args, strict=True):
            try:
                if parameter.count:
                    if len(list(map(_address, arg))) != parameter.count:
                        raise ValueError(f"{parameter.count} tensors expected, got {len(arg)}")
                    continue
                value = arg if parameter.scalar else _address(arg)
                struct.pack(f"<{parameter.layout.code}", value)
            except Exception as refusal:
                prefix = f"{self.name}: argument {parameter.name}"
                if parameter.scalar or not isinstance(arg, torch.Tensor):
                    return f"{prefix} must be {parameter.expected}, got {show(arg)}"
                return f"{prefix}: {refusal}"  # it has no memory
        return f"{self.name}: {error}"


class CompiledOp:
    """A kernel's Python signature, not yet built for anything; made by `compile_ops`."""

    def __init__(
        self,
        module: str,
        function: Callable[..., None],
        kernel: str,
        config: Path,
        variants: Callable[[str], Iterable[Defines]] | None,
    ) -> None:
        self.module, self.kernel, self.config, self.variants = module, kernel, config, variants
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self._function = function
        self._bound: dict[Any, BoundKernel] = {}
        self._lock = threading.Lock()
        _all.add(self)

    @functools.cached_property
    def spec(self) -> ModuleSpec:
        """The module's entry in the config file."""
        with importing:
            from ..build.spec import module_spec

        return module_spec(self.module, self.config)

    @functools.cached_property
    def parameters(self) -> list[Parameter]:
        """The kernel's arguments as the signature has them."""
        parameters = read_signature(self._function)
        for source in self.spec.sources():
            check_scalars(
                self.kernel, parameters, source.read_text(encoding="utf-8", errors="replace")
            )
        return parameters

    def build(self, arch: str, defines: Defines | None = None) -> Artifact:
        """Build for an architecture without loading; needs no GPU."""
        with importing:
            from ..build.device import build_device

        return build_device(self.spec, arch, defines or {})

    def bind(
        self,
        device: torch.device | str,
        defines: Mapping[str, Define] | None = None,
        arch: str | None = None,
    ) -> BoundKernel:
        """Build or find, load, and check the arguments; once per device and defines. `arch` is the
        device's, where the caller has asked for it already (1.5 us) and the device has its index.

        Raises UnsupportedArch, ToolchainNotFound, BuildError, BindError, HipError, ConfigError.
        """
        factory = getattr(_override, "make", None)
        if factory is not None:
            bound_kernel: BoundKernel = factory(self, defines or {})
            return bound_kernel
        if arch is None:
            device = hip.indexed(torch.device(device))
            arch = hip.device_arch(device)
        try:
            key = (arch, device, frozenset(defines.items()) if defines else None)
            bound = self._bound.get(key)
        except TypeError:  # a value without a hash
            from ..build.recipe import define_flags

            define_flags(self.module, defines or {})
            raise
        if bound is None:
            with self._lock:  # one thread builds and loads, the others take what it made
                bound = self._bound.get(key)
                if bound is None:
                    assert isinstance(device, torch.device)
                    bound = BoundKernel(self, self.build(arch, defines), device)
                    self._bound[key] = bound
        return bound

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"{self.kernel} is a kernel: use .bind(device, defines).launch(...)")


_override = threading.local()


@contextlib.contextmanager
def bind_with(factory: Callable[[CompiledOp, Defines], Any]) -> Iterator[None]:
    """Inside the block `bind` of this thread builds and loads nothing: it returns
    make(op, defines), which records what is launched. Nothing of it is kept."""
    _override.make = factory
    try:
        yield
    finally:
        _override.make = None


_registered: list[CompiledOp] = []
_all: weakref.WeakSet[CompiledOp] = weakref.WeakSet()


def _unlock() -> None:
    for op in _all:
        op._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)  # another thread may have been binding


def compiled_ops(config: Path = paths.COMPILER_CONFIG) -> tuple[CompiledOp, ...]:
    """Every kernel declared so far for a config file, for `rfops build` and `rfops ls`."""
    if config == paths.COMPILER_CONFIG:
        return tuple(_registered)
    return tuple(sorted((op for op in _all if op.config == config), key=lambda op: op.kernel))


def source_folders(kernel: str) -> tuple[Path, ...]:
    """Where the sources of the kernels of that name are."""
    return tuple(dict.fromkeys(op.spec.root for op in _all if op.kernel == kernel))


def compile_ops(
    module: str,
    *,
    kernel: str | None = None,
    config: Path | str = paths.COMPILER_CONFIG,
    variants: Callable[[str], Iterable[Defines]] | None = None,
) -> Callable[[Callable[..., None]], CompiledOp]:
    """Bind a typed signature to a kernel of a module of `compiler_config.json`.

    The kernel's symbol is the function's name unless `kernel` says otherwise. Another `config`
    takes sources from its own folder. `variants(arch)` lists the defines that `rfops build`
    prebuilds. Nothing is read, built or loaded before the first `bind`.
    """

    def declare(function: Callable[..., None]) -> CompiledOp:
        name = kernel or function.__name__
        op = CompiledOp(module, function, name, Path(config).absolute(), variants)
        if op.config == paths.COMPILER_CONFIG:
            _registered.append(op)
        return op

    return declare
