"""The checks of `rfops selftest` below the ops: versions, the HIP calls that the engine makes, its
error paths, streams and graphs. Each runs in a worker; what does not hold is raised."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import platform
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

import torch

import rfops
from rfops import vgpu
from rfops.dispatch import routing
from rfops.dispatch.declare import fp8_of
from rfops.jit import HipError, UnsupportedArch
from rfops.jit.arch import ARCHS
from rfops.jit.build import toolchain
from rfops.jit.launch import hip, launcher
from rfops.jit.launch.bind import BoundKernel
from rfops.quantization.fp8_blockscale import (
    BLOCK,
    IN_TYPES,
    THREADS,
    quant_fp8_blockscale_kernel,
    reference,
)

_KERNEL = "quant_fp8_blockscale"
_DEFINES: dict[str, str | int] = {"ROWS": 1, "IN": IN_TYPES[torch.bfloat16], "ALIGNED": 1}
_M, _K = 4, 256  # 8 blocks of 128: one workgroup
_COPY_DEFAULT, _CAPTURE_THREAD_LOCAL = 4, 1  # hipMemcpyDefault, hipStreamCaptureModeThreadLocal


class NotHere(Exception):
    """The check does not apply to this machine, and why."""


def run(name: str, device: str) -> str:
    """What was found. Raises NotHere, AssertionError, and what the engine raises."""
    return CHECKS[name](torch.device(device))


def versions(_device: torch.device) -> str:
    """Packages, and the HIP that torch was built with."""
    words = [f"rfops {rfops.__version__}", f"Python {platform.python_version()}"]
    words.append(f"torch {torch.__version__}")
    if importlib.util.find_spec("triton"):
        words.append(f"Triton {vgpu._triton_version()}")
    return ", ".join([*words, *[f"HIP {torch.version.hip}"] * bool(torch.version.hip)])


def device(device: torch.device) -> str:
    """What computes."""
    arch, cu_num = routing.chip(device)
    name = "virtual GPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{name}, {arch}, {cu_num} compute units"


def compiler(device: torch.device) -> str:
    """What builds HIP modules for the device."""
    device_toolchain = toolchain.device_toolchain(_arch(device))
    return f"{device_toolchain.headline} ({device_toolchain.name})"


def _arch(device: torch.device) -> str:
    """Raises NotHere without HIP."""
    if device.type == "cuda" and not torch.version.hip:
        raise NotHere("no HIP: this GPU is NVIDIA's, for which ops have Triton kernels")
    return hip.device_arch(device)


def library(device: torch.device) -> str:
    """The runtime, by the calls that the engine makes before it launches."""
    _arch(device)
    runtime, count, current = hip.runtime(device), c_int(), c_int()
    runtime.call("hipGetDeviceCount", byref(count))
    runtime.call("hipGetDevice", byref(current))
    runtime.call("hipSetDevice", current.value)
    assert 0 <= current.value < count.value, f"hipGetDevice gives {current.value} of {count.value}"
    return f"{count.value} device(s), {runtime.path}"


def launch(device: torch.device) -> str:
    """A kernel built or found, loaded, and launched through ctypes and natively."""
    quant = _Quant(device)
    quant.run(functools.partial(BoundKernel.launch, quant.bound))
    if launcher.native() is None:
        return f"right through ctypes, {quant.origin}"
    quant.run(quant.bound.launch)
    return f"right through ctypes and natively, {quant.origin}"


def refusals(device: torch.device) -> str:
    """What is no code, code of another architecture, a kernel that is not there, a workgroup that
    is too large: each is a typed error, and the next launch is right."""
    quant = _Quant(device)
    runtime, arch = quant.bound.hip, quant.bound.meta["arch"]
    other_arch = next(candidate for candidate in ARCHS if candidate != arch)
    codes = [
        quant_fp8_blockscale_kernel.build(name, _DEFINES).file.read_bytes()
        for name in (other_arch, arch)
    ]
    _expect(HipError, "bytes that are no code", lambda: runtime.load(bytes(256), "none"))
    _expect(UnsupportedArch, f"code of {other_arch}", lambda: runtime.load(codes[0], _KERNEL, arch))
    _expect(HipError, "a kernel that is not there", lambda: runtime.load(codes[1], "none", arch))
    _expect(HipError, "4,096 threads a workgroup", lambda: quant.run(quant.bound.launch, 4096))
    quant.run(quant.bound.launch)
    return "4 wrong calls refused, the next launch right"


def _expect(kind: type[Exception], action: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{action} was taken")


def streams(device: torch.device) -> str:
    """A launch on one stream, an event, a copy on another stream that waits for it."""
    quant = _Quant(device)
    hip_calls, copied = _Calls(quant.bound.hip), torch.zeros_like(quant.scale)
    event = hip_calls.create("hipEventCreate")
    stream0, stream1 = hip_calls.create("hipStreamCreate"), hip_calls.create("hipStreamCreate")
    quant.poison()
    quant.start(quant.bound.launch, stream=stream0.value)
    hip_calls("hipEventRecord", event, stream0)
    hip_calls("hipStreamWaitEvent", stream1, event, c_uint(0))
    pointers = c_void_p(copied.data_ptr()), c_void_p(quant.scale.data_ptr())
    hip_calls("hipMemcpyAsync", *pointers, c_size_t(copied.nbytes), c_int(_COPY_DEFAULT), stream1)
    hip_calls("hipStreamSynchronize", stream1)
    quant.check()
    assert torch.equal(copied, quant.scale), "the copy came before what it waits for"
    hip_calls("hipEventDestroy", event)
    for stream in (stream0, stream1):
        hip_calls("hipStreamDestroy", stream)
    return "two streams in order by an event"


def graphs(device: torch.device) -> str:
    """A launch is captured, and replayed twice."""
    quant = _Quant(device)
    hip_calls, graph, executable = _Calls(quant.bound.hip), c_void_p(), c_void_p()
    stream = hip_calls.create("hipStreamCreate")
    hip_calls("hipStreamBeginCapture", stream, c_int(_CAPTURE_THREAD_LOCAL))
    quant.start(quant.bound.launch, stream=stream.value)
    hip_calls("hipStreamEndCapture", stream, byref(graph))
    hip_calls("hipGraphInstantiate", byref(executable), graph, None, None, c_size_t(0))
    for _ in range(2):
        quant.poison()
        hip_calls("hipGraphLaunch", executable, stream)
        hip_calls("hipStreamSynchronize", stream)
        quant.check()
    hip_calls("hipGraphExecDestroy", executable)
    hip_calls("hipGraphDestroy", graph)
    hip_calls("hipStreamDestroy", stream)
    return "captured once, replayed twice"


class _Calls:
    """HIP functions that the engine does not call."""

    def __init__(self, runtime: hip.Hip) -> None:
        self._runtime, self._library = runtime, ctypes.CDLL(str(runtime.path))

    def __call__(self, name: str, *args: object) -> None:
        """Raises HipError."""
        code = self._library[name](*args)
        if code != 0:
            self._runtime.fail(name, code)

    def create(self, name: str) -> c_void_p:
        """What a function creates."""
        handle = c_void_p()
        self(name, byref(handle))
        return handle


class _Quant:
    """One launch of quant_fp8_blockscale, which both architectures have, by hand."""

    def __init__(self, device: torch.device) -> None:
        arch = _arch(device)
        self.bound = quant_fp8_blockscale_kernel.bind(hip.indexed(device), _DEFINES, arch)
        self.origin = "found in the cache" if self.bound.meta["cached"] else "built"
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(_M, _K, generator=generator).to(torch.bfloat16)
        self.expected = reference(x, 1, False, fp8_of(arch))
        self.x = x.to(device)
        self.payload, self.scale = (torch.empty_like(t, device=device) for t in self.expected)
        torch.cuda.synchronize() if device.type == "cuda" else None

    def poison(self) -> None:
        self.payload.view(torch.uint8).fill_(0x55)
        self.scale.fill_(float("nan"))
        if self.x.device.type == "cuda":  # torch's stream is none of the checks'
            torch.cuda.synchronize()

    def start(
        self, launch: Callable[..., None], threads: int = THREADS, stream: int | None = None
    ) -> None:
        args = (self.payload, self.scale, self.x, _M, _K, _K // BLOCK, 1)
        launch((1, 1, 1), (threads, 1, 1), args, stream=stream)

    def run(self, launch: Callable[..., None], threads: int = THREADS) -> None:
        """Raises AssertionError, HipError."""
        self.poison()
        self.start(launch, threads)
        self.check()

    def check(self) -> None:
        for name, result, want in zip(
            ("payload", "scale"), (self.payload, self.scale), self.expected, strict=True
        ):
            is_equal = result.cpu().view(torch.uint8) == want.view(torch.uint8)
            if not is_equal.all():
                mismatch = [int(i) for i in (~is_equal).nonzero()[0]]
                raise AssertionError(f"{name}: other bytes than the reference, first at {mismatch}")


CHECKS = {
    check.__name__: check
    for check in (versions, device, compiler, library, launch, refusals, streams, graphs)
}
