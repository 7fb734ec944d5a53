"""`device="cuda"` of a program that `rfops run` runs: memory of the host, where the virtual GPU's
kernels find it. Loaded by guest.py once torch is there.

What a script does around Triton's kernels works: tensors are made on, moved to and from "cuda",
`torch.cuda` has one device, whose events measure modelled time. A move copies, as it does on
hardware. A tensor's `is_cuda` is true and its `device` is the CPU's, by which ops of rfops and
Triton's driver take it for the virtual GPU's. torch's own operators run on the host and are not
part of the report; operators that a program registers for CUDA are its own, and run. What needs a
GPU of torch's own (CUDA graphs) is refused.
"""

from __future__ import annotations

import functools
import math
import mmap
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rfops.later import when_imported

from . import torch_cuda_names as names
from .torch_cuda_names import CPU

active_arch: str | None = None  # of the GPU that torch.cuda stands for; None before `activate`
_SUBMODULES = ("random", "memory", "streams", "graphs")  # of torch.cuda, where its names come from


def _host(value: Any) -> Any:
    """A device as torch may be told of one, on the host."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return CPU
    if isinstance(value, str) and value.startswith("torch.cuda."):  # a type of tensors
        return value.replace("cuda.", "")
    return value


def _index(value: Any) -> Any:
    """A bare number in the place of a device is a GPU's."""
    return CPU if isinstance(value, int) and not isinstance(value, bool) else _host(value)


class OnHost(TorchFunctionMode):
    """Every call of torch with the devices in its arguments changed."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:  # one may be named
            args = ("cuda", *args) if args and type(args[0]) is int else args
            return func(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        if func in _MOVES:
            return _MOVES[func](*args, **kwargs)
        if func in (torch.empty, torch.zeros) and "device" in kwargs:
            vast = _vast(*args, dtype=kwargs.get("dtype"))
            if vast is not None:
                return vast
        if "device" in kwargs:
            kwargs["device"] = _index(kwargs["device"])
        return func(*map(_host, args), **kwargs)


_VAST = 4 << 30  # bytes


def _vast(*sizes: Any, dtype: torch.dtype | None = None) -> torch.Tensor | None:
    """A tensor larger than the host may want to promise, as a GPU of 192 GiB has them: zeros, whose
    memory is there when it is written. None of others, and of what torch is to refuse."""
    shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    if not isinstance(dtype, torch.dtype):  # none, or Python's bool, int or float
        dtype = torch.empty(0, dtype=dtype).dtype
    size = math.prod(shape) * dtype.itemsize
    if size < _VAST:
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.uint8).view(dtype).view(shape)


def _copy(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor.clone()


def _tensor_to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """To another place: a copy, though both are the host's."""
    device = args[0] if args else kwargs.get("device")
    names_device = isinstance(device, (torch.device, str)) or type(device) is int
    args = tuple(_index(arg) if index == 0 else _host(arg) for index, arg in enumerate(args))
    if "device" in kwargs:
        kwargs["device"] = _index(kwargs["device"])
    copy = tensor.to(*args, **kwargs)
    return copy.clone() if names_device and copy is tensor else copy


def _same_tensor(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


_MOVES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: _copy,
    torch.Tensor.cpu: _copy,
    torch.Tensor.to: _tensor_to,
    torch.Tensor.pin_memory: _same_tensor,
    torch.Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda tensor: 0,
    # A block of torch.autocast("cuda"), which is set to the host below, as torch.compile enters it.
    torch.amp.autocast_mode._enter_autocast: torch.amp.autocast_mode._enter_autocast,
}


# ---------------------------------------------------------------------------------- Python inside


def _with_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with devices changed in what it calls: torch leaves a mode while it handles an
    operator, and a program's own Python may be within."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with OnHost():
            return function(*args, **kwargs)

    return wrapper


_KEYS = {"CUDA": "CPU", "AutogradCUDA": "AutogradCPU", "AutocastCUDA": "AutocastCPU"}
# Whose operators are the host's and stay so: an op of rfops, called in a mode, would go to torch's
# dispatcher, from which it came.
_HOST_NAMESPACES = ("aten", "prims", "rfops")


def _opening(init: Callable[..., None]) -> Callable[..., None]:
    """torch.library.Library, whose dispatch key all of its kernels may have."""

    @functools.wraps(init)
    def on_host(library: Any, ns: str, kind: str, dispatch_key: str = "") -> None:
        library.rfops_key = dispatch_key
        init(library, ns, kind, dispatch_key if ns in _HOST_NAMESPACES else _on_host(dispatch_key))

    return on_host


def _on_host(key: str) -> str:
    return _KEYS.get(key, key)


def _registering(register: Callable[..., Any]) -> Callable[..., Any]:
    """Library.impl: a kernel for CUDA serves the host's tensors, and takes the place of one for the
    CPU, whichever is registered first."""
    of_cuda: set[str] = set()

    @functools.wraps(register)
    def impl(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        if library.ns in _HOST_NAMESPACES:
            return register(library, op_name, fn, dispatch_key, **options)
        key = dispatch_key or getattr(library, "rfops_key", library.dispatch_key)
        name = f"{library.ns}::{_op_name(op_name).rpartition('::')[2]} {_on_host(key)}"
        if key in _KEYS:
            of_cuda.add(name)
        elif name in of_cuda:
            return None
        is_python = isinstance(fn, types.FunctionType | types.MethodType | functools.partial)
        with warnings.catch_warnings():  # of a kernel that takes another one's place
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered")
            fn = _with_names(fn) if is_python else fn
            return register(library, op_name, fn, _on_host(dispatch_key), **options)

    return impl


def _op_name(op: Any) -> str:
    if isinstance(op, str):
        return op
    name: str = op._schema.name
    return name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def _storage_to(move: Callable[..., Any]) -> Callable[..., Any]:
    """UntypedStorage.to, by which torch.load moves what it reads."""

    @functools.wraps(move)
    def move_to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        host = _host(torch.device(device))
        copy = move(storage, device=host, non_blocking=non_blocking)
        return copy.clone() if copy is storage else copy

    return move_to


def _traced_is_cuda(module: Any) -> None:
    """torch.compile takes a tensor's is_cuda from its device."""
    build = module.VariableTracker.build
    module.TensorVariable.method_attr_is_cuda = lambda _tensor, tx: build(tx, True)


class _Generators(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _GENERATOR)


_GENERATOR = torch.Generator


class Generator(torch.Generator, metaclass=_Generators):
    """torch.Generator("cuda") is the host's, with other numbers than a GPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _GENERATOR(device=_index(device))


def _autocast(init: Callable[..., None]) -> Callable[..., None]:
    """torch.autocast("cuda") changes the operators that run, which are the host's."""

    @functools.wraps(init)
    def on_host(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        init(self, device_type, dtype, enabled, cache_enabled)

    return on_host


def _in_thread(run: Callable[[Any], None], thread: Any) -> None:
    with OnHost():
        run(thread)


def _instead_of(replaced: Any, value: Any) -> Any:
    """`torch._dynamo` knows some functions by what their decorator wraps."""
    wrapped = getattr(replaced, "__wrapped__", None)
    if wrapped is not None and isinstance(value, types.FunctionType):
        value.__wrapped__ = wrapped  # type: ignore[attr-defined]
    return value


def activate(torch_module: Any) -> None:
    """For the rest of the process."""
    global active_arch
    active_arch = names.arch()
    functions = names.functions()
    for module in (torch_module.cuda, *map(vars(torch_module.cuda).get, _SUBMODULES)):
        for name, value in functions.items():
            if module is torch_module.cuda or name in vars(module):
                setattr(module, name, _instead_of(vars(module).get(name), value))
    for name, value in names.accelerator_functions().items():
        setattr(torch_module.accelerator, name, value)
    for name in ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA"):
        setattr(torch_module.cuda.nvtx._nvtx, name, staticmethod(lambda *_: 0))
    torch_module._C.__getattr__ = names.lack
    torch_module.Generator = Generator
    torch_module.Event = names.AnyEvent
    torch_module.cpu.set_stream = (
        names.set_stream
    )  # getattr(torch, device.type), as scripts have it
    choose = torch_module.set_default_device
    torch_module.set_default_device = lambda device: choose(_index(device))
    torch_module.autocast.__init__ = _autocast(torch_module.autocast.__init__)
    torch_module.library.Library.__init__ = _opening(torch_module.library.Library.__init__)
    torch_module.library.Library.impl = _registering(torch_module.library.Library.impl)
    torch_module.storage._StorageBase.to = _storage_to(torch_module.storage._StorageBase.to)
    torch_module.Tensor.record_stream = lambda _tensor, _stream: None
    when_imported("torch._dynamo.variables.tensor", _traced_is_cuda)
    engine = _with_names(torch_module.autograd._engine_run_backward)
    torch_module.autograd._engine_run_backward = engine
    torch_module.autograd.graph._engine_run_backward = engine
    run = threading.Thread.run
    threading.Thread.run = lambda thread: _in_thread(run, thread)  # type: ignore[assignment, method-assign]
    OnHost().__enter__()  # type: ignore[no-untyped-call]
