"""The names of torch.cuda for a program that `rfops run` runs: one device, the virtual GPU.

Each name of torch.cuda does what a program may expect of a GPU with its memory on the host, or
refuses by a RuntimeError that names it. torch_cuda.py puts them in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

CPU = torch.device("cpu")


# ---------------------------------------------------------------------------------- streams


class Event:
    """torch.cuda.Event by the model's clock, which `rfops run` has on throughout."""

    cuda_event, device = 0, CPU

    def __init__(self, enable_timing: bool = False, *_: Any, **__: Any) -> None:
        self._timing, self._ms = enable_timing, -1.0

    def record(self, _stream: Any = None) -> None:
        """Store the model's clock."""
        from rfops.vgpu import modelled_ms

        self._ms = modelled_ms()

    def elapsed_time(self, end: Event) -> float:
        """Return the modelled ms from this event to `end`. Raises RuntimeError unless both are
        recorded with timing."""
        if not (self._timing and end._timing) or min(self._ms, end._ms) < 0:
            raise RuntimeError(
                "elapsed_time: both events must be created with enable_timing=True and recorded"
            )
        return end._ms - self._ms

    def synchronize(self) -> None:
        """Return at once: the event's work has ended."""

    def wait(self, _stream: Any = None) -> None:
        """Return at once: the event's work has ended."""

    def query(self) -> bool:
        """Return True: the event's work has ended."""
        return True


class AnyEvent(Event):
    """torch.Event, which has the device in front and is of the accelerator without one."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **_: Any) -> None:
        super().__init__(enable_timing)


class Stream:
    """A stream of the virtual GPU, on which each launch ends before its call returns.

    The handle is created when it is first asked for; that of the default stream is 0.
    """

    device, device_index = CPU, 0

    def __init__(self, _device: Any = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority

    @functools.cached_property
    def cuda_stream(self) -> int:
        """The HIP handle. Raises RuntimeError if HIP refuses to create it."""
        from rfops.vgpu import library_path

        handle = ctypes.c_void_p()
        code = ctypes.CDLL(str(library_path())).hipStreamCreate(ctypes.byref(handle))
        if code != 0 or handle.value is None:
            raise RuntimeError(f"hipStreamCreate failed with HIP error {code}")
        return handle.value

    @property
    def stream_id(self) -> int:
        """The HIP handle as torch's id of the stream."""
        return self.cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority, as HIP has them."""
        return 0, -1

    def record_event(self, event: Event | None = None) -> Event:
        """Record the event, or a new one, and return it."""
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        """Return at once: each launch has ended."""

    def wait_stream(self, _stream: Any) -> None:
        """Return at once: each launch has ended."""

    def wait_event(self, _event: Any) -> None:
        """Return at once: each launch has ended."""

    def is_capturing(self) -> bool:
        """Return False: graphs are not captured."""
        return False

    def query(self) -> bool:
        """Return True: each launch has ended."""
        return True

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Stream) and self.cuda_stream == other.cuda_stream
        )

    def __hash__(self) -> int:
        return hash(self.cuda_stream)


class ExternalStream(Stream):
    """A stream that the program made by HIP's own interface."""

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        super().__init__(device)
        self.__dict__["cuda_stream"] = stream_ptr


DEFAULT_STREAM = ExternalStream(0)
_current = threading.local()


def current_stream(_device: Any = None) -> Stream:
    """Return this thread's stream; the default one unless `set_stream` chose another."""
    stream: Stream = getattr(_current, "stream", DEFAULT_STREAM)
    return stream


def set_stream(stream: Stream | None) -> None:
    """Make `stream` this thread's stream; None changes nothing."""
    if stream is not None:
        _current.stream = stream


class StreamContext(contextlib.AbstractContextManager["StreamContext"]):
    """`with torch.cuda.stream(s)`."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> StreamContext:
        self._previous = current_stream()
        set_stream(self.stream)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._previous)


class _Anywhere(contextlib.AbstractContextManager[None]):
    """`with torch.cuda.device(0)`."""

    idx = prev_idx = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __exit__(self, *_: object) -> None: ...


# ---------------------------------------------------------------------------------- the device


def arch() -> str:
    """Return the virtual GPU's architecture."""
    from rfops.jit import settings

    return settings.text("RFOPS_VGPU_ARCH")


def _properties(_device: Any = None) -> Any:
    from rfops.jit import settings
    from rfops.jit.arch import ARCH_SPECS

    name = arch()
    row, gpu_model = ARCH_SPECS[name], settings.raw("RFOPS_VGPU_PART") or ARCH_SPECS[name].chip
    return SimpleNamespace(
        name=f"virtual GPU ({gpu_model})",
        gcnArchName=name,
        major=9,
        minor=_capability()[1],
        multi_processor_count=settings.compute_units(name),
        total_memory=_memory()[1],
        warp_size=64,
        shared_memory_per_block=row.lds_bytes,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=131072,
        shared_memory_per_multiprocessor=row.lds_bytes,
        L2_cache_size=4 << 20,
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def _capability(_device: Any = None) -> tuple[int, int]:
    return 9, 5 if arch() == "gfx950" else 4


@functools.cache
def _measured_memory() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    fields = dict(line.split(":") for line in text.splitlines())
    return 1024 * int(fields["MemAvailable"].split()[0])


def _memory(_device: Any = None) -> tuple[int, int]:
    """Free and total bytes: both are what the host had available at the first call. Programs
    compare several calls, want most of the total free, and what other processes take is not
    theirs."""
    return _measured_memory(), _measured_memory()


def _summary(*_: Any, **__: Any) -> str:
    return "rfops run: tensors are in the host's memory, which torch does not count\n"


# ---------------------------------------------------------------------------------- random numbers


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _rng_state(_device: Any = None) -> torch.Tensor:
    return torch.default_generator.get_state()


def _set_rng_state(new_state: torch.Tensor, _device: Any = None) -> None:
    torch.default_generator.set_state(new_state)


def _set_rng_states(new_states: Any) -> None:
    for state in new_states:
        _set_rng_state(state)


# ---------------------------------------------------------------------------------- refusals


def refusal_text(name: str) -> str:
    """Return the message for a name of torch.cuda that the virtual GPU does not have."""
    return (
        f"rfops run: {name} needs a GPU of torch's own. Graphs of HIP work in programs that call "
        "the HIP runtime; in this one launch the kernels without a graph"
        if "raph" in name
        else f"rfops run: {name} needs a GPU of torch's own"
    )


def _refuse(name: str) -> Callable[..., Any]:
    def raise_refusal(*_: Any, **__: Any) -> Any:
        raise RuntimeError(refusal_text(name))

    return raise_refusal


def _refused_class(name: str) -> type:
    """For annotations and isinstance(); no instance can be made."""

    def raise_refusal(_cls: type, *_: Any, **__: Any) -> Any:
        raise RuntimeError(refusal_text(f"torch.cuda.{name}"))

    return type(name, (), {"__new__": raise_refusal, "__module__": "torch.cuda"})


def lack(name: str) -> Any:
    """`torch._C.__getattr__`: what torch has only for a GPU is still absent, and says why."""
    if not name.startswith("_cuda_"):
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
    raise AttributeError(refusal_text(f"torch._C.{name}"))


# ---------------------------------------------------------------------------------- the tables


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _own_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for one name alone: torch.compile has a handler for each."""
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


_NO_OPS = (
    "synchronize",
    "set_device",
    "init",
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_accumulated_host_memory_stats",
    "set_per_process_memory_fraction",
    "set_sync_debug_mode",
    "_lazy_init",
)
_ZERO = (
    "current_device",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "memory_cached",
    "max_memory_reserved",
    "max_memory_cached",
    "memory_usage",
    "utilization",
    "device_memory_used",
    "get_sync_debug_mode",
    "_exchange_device",
    "_maybe_exchange_device",
    "_get_device_index",
)
_UNSUPPORTED = (
    "make_graphed_callables",
    "graph_pool_handle",
    "cudart",
    "current_blas_handle",
    "current_solver_handle",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "temperature",
    "power_draw",
    "clock_rate",
    "use_mem_pool",
    "memory_snapshot",
    "check_error",
    "caching_allocator_enable",
    "export_dot",
    "export_graph_data",
)
_CLASSES = ("CUDAGraph", "graph", "MemPool", "GreenContext", "CUDAPluggableAllocator")


def functions() -> dict[str, Any]:
    """Of torch.cuda."""
    tensors = (name for name in torch.cuda.__all__ if name.endswith(("Tensor", "Storage")))
    return {
        **{name: getattr(torch, name) for name in tensors},
        **{name: _returns(None) for name in _NO_OPS},
        **{name: _returns(0) for name in _ZERO},
        **{name: _refuse(f"torch.cuda.{name}") for name in _UNSUPPORTED},
        **{name: _refused_class(name) for name in _CLASSES},
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda _device=None: _properties().name,
        "get_device_capability": _capability,
        "get_device_properties": _properties,
        "get_arch_list": lambda: [arch()],
        "get_gencode_flags": lambda: "",
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: False,
        "can_device_access_peer": lambda _device, _peer: False,
        "get_allocator_backend": lambda: "native",
        "get_per_process_memory_fraction": lambda _device=None: 1.0,
        "list_gpu_processes": lambda _device=None: "",
        "mem_get_info": _own_name(_memory),
        "memory_stats": lambda _device=None: defaultdict(int),
        "memory_stats_as_nested_dict": lambda _device=None: {},
        "host_memory_stats": lambda: defaultdict(int),
        "host_memory_stats_as_nested_dict": dict,
        "memory_summary": _summary,
        "manual_seed": _own_name(_seed),
        "manual_seed_all": _own_name(_seed),
        "seed": lambda: torch.default_generator.seed(),
        "seed_all": lambda: torch.default_generator.seed(),
        "initial_seed": lambda: torch.default_generator.initial_seed(),
        "get_rng_state": _rng_state,
        "get_rng_state_all": lambda: [_rng_state()],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": _set_rng_states,
        "default_generators": (torch.default_generator,),
        "is_current_stream_capturing": lambda: False,
        "current_stream": _own_name(current_stream),
        "default_stream": lambda _device=None: DEFAULT_STREAM,
        "set_stream": _own_name(set_stream),
        "get_stream_from_external": lambda data_ptr, device=None: ExternalStream(data_ptr),
        "Event": Event,
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "device": _Anywhere,
        "device_of": _Anywhere,
    }


def accelerator_functions() -> dict[str, Any]:
    """Of torch.accelerator, which agrees with torch.cuda."""
    zero = (
        "current_device_index",
        "current_device_idx",
        "memory_allocated",
        "memory_reserved",
        "max_memory_allocated",
        "max_memory_reserved",
    )
    no_ops = (
        "synchronize",
        "set_device_index",
        "set_device_idx",
        "empty_cache",
        "empty_host_cache",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    )
    return {
        **{name: _returns(None) for name in no_ops},
        **{name: _returns(0) for name in zero},
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_stream": _own_name(current_stream),
        "set_stream": _own_name(set_stream),
        "memory_stats": lambda _device=None: defaultdict(int),
        "get_memory_info": _own_name(_memory),
        "device_index": _Anywhere,
    }
