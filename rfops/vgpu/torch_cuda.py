"""`device="cuda"` of a program that `rfops run` runs: memory of the host, where the virtual GPU's
kernels find it. Loaded by guest.py once torch is there.

What a script does around Triton's kernels works: tensors are made on, moved to and from "cuda",
`torch.cuda` has one device, whose events measure modelled time. A move copies, as it does on
hardware. A tensor's `is_cuda` is true and its `device` is the CPU's, by which ops of rfops and
Triton's driver take it for the virtual GPU's. torch's own operators run on the host and are not
part of the report. What needs a GPU of torch's own (CUDA graphs) is refused.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _host(value: Any) -> Any:
    """A device as torch may be told of one, on the host."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return CPU
    return value


def _index(value: Any) -> Any:
    """A bare number in the place of a device is a GPU's."""
    return CPU if isinstance(value, int) and not isinstance(value, bool) else _host(value)


class OnHost(TorchFunctionMode):
    """Every call of torch with the devices in its arguments changed."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:  # one may be named
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
    dtype = dtype or torch.get_default_dtype()
    size = math.prod(shape) * dtype.itemsize
    if size < _VAST:
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.uint8).view(dtype).view(shape)


def _copy(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor.clone()


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """To another place: a copy, though both are the host's."""
    given = args[0] if args else kwargs.get("device")
    names_device = isinstance(given, (torch.device, str)) or type(given) is int
    args = tuple(_index(arg) if at == 0 else _host(arg) for at, arg in enumerate(args))
    if "device" in kwargs:
        kwargs["device"] = _index(kwargs["device"])
    moved = tensor.to(*args, **kwargs)
    return moved.clone() if names_device and moved is tensor else moved


def _same(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


_MOVES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: _copy,
    torch.Tensor.cpu: _copy,
    torch.Tensor.to: _to,
    torch.Tensor.pin_memory: _same,
    torch.Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
}


# ---------------------------------------------------------------------------------- torch.cuda


class Event:
    """torch.cuda.Event by the model's clock, which `rfops run` has on throughout."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._timing, self._ms = enable_timing, -1.0

    def record(self, _stream: Any = None) -> None:
        from rfops.vgpu import modelled_ms

        self._ms = modelled_ms()

    def elapsed_time(self, end: Event) -> float:
        if not (self._timing and end._timing) or min(self._ms, end._ms) < 0:
            raise RuntimeError(
                "elapsed_time: both events must be created with enable_timing=True and recorded"
            )
        return end._ms - self._ms

    def synchronize(self) -> None: ...

    def wait(self, _stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


class Stream:
    """The null stream, whatever it is called: each launch ends before its call returns."""

    cuda_stream, device, priority = 0, CPU, 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None: ...

    def wait_stream(self, _stream: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def query(self) -> bool:
        return True


class _Anywhere(contextlib.AbstractContextManager[None]):
    """`with torch.cuda.device(0)` and `with torch.cuda.stream(s)`."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _arch() -> str:
    from rfops.jit import settings

    return settings.text("RFOPS_VGPU_ARCH")


def _properties(_device: Any = None) -> Any:
    from rfops.jit import settings
    from rfops.jit.arch import ROWS

    arch = _arch()
    row, part = ROWS[arch], settings.raw("RFOPS_VGPU_PART") or ROWS[arch].chip
    return SimpleNamespace(
        name=f"virtual GPU ({part})", gcnArchName=arch, major=9, minor=5 if arch == "gfx950" else 4,
        multi_processor_count=settings.compute_units(arch),
        total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), warp_size=64,
        shared_memory_per_block=row.lds_bytes, max_threads_per_multi_processor=2048,
        L2_cache_size=4 << 20, is_integrated=False, is_multi_gpu_board=False,
    )  # fmt: skip


def _memory(_device: Any = None) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _refuse(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"rfops run: {name} needs a GPU of torch's own. Graphs of HIP work in programs that "
            "call the HIP runtime; in this one launch the kernels without a graph"
        )

    return refused


def _nothing(*_: Any, **__: Any) -> None: ...


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class _Generators(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _GENERATOR)


_GENERATOR = torch.Generator


class Generator(torch.Generator, metaclass=_Generators):
    """torch.Generator("cuda") is the host's, with other numbers than a GPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _GENERATOR(device=_index(device))


def _functions() -> dict[str, Any]:
    capability = (9, 5 if _arch() == "gfx950" else 4)
    nothing = ("synchronize", "set_device", "init", "empty_cache", "manual_seed", "manual_seed_all",
               "seed", "seed_all", "ipc_collect", "set_stream",
               "reset_peak_memory_stats", "reset_max_memory_allocated")  # fmt: skip
    zero = ("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved",
            "max_memory_reserved")  # fmt: skip
    stream = Stream()
    return {
        # Each a function of its own: torch.compile wants them told apart.
        **{name: _returns(None) for name in nothing},
        **{name: _returns(0) for name in zero},
        **{name: _returns(stream) for name in ("current_stream", "default_stream")},
        **{name: _refuse(f"torch.cuda.{name}") for name in ("graph", "CUDAGraph",
           "make_graphed_callables")},
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda _device=None: _properties().name,
        "get_device_capability": lambda _device=None: capability,
        "get_device_properties": _properties,
        "mem_get_info": _memory,
        "is_current_stream_capturing": lambda: False,
        "Event": Event,
        "Stream": Stream,
        "device": _Anywhere,
        "device_of": _Anywhere,
        "stream": _Anywhere,
    }  # fmt: skip


def _in_thread(run: Callable[[Any], None], thread: Any) -> None:
    with OnHost():
        run(thread)


def activate(torch_module: Any) -> None:
    """For the rest of the process."""
    for name, value in _functions().items():
        setattr(torch_module.cuda, name, value)
    choose = torch_module.set_default_device
    torch_module.Generator = Generator
    torch_module.cpu.set_stream = _nothing  # getattr(torch, device.type), as scripts have it
    run = threading.Thread.run
    threading.Thread.run = lambda thread: _in_thread(run, thread)  # type: ignore[assignment, method-assign]
    torch_module.set_default_device = lambda device: choose(_index(device))
    OnHost().__enter__()  # type: ignore[no-untyped-call]
