"""The one module that speaks HIP's C interface. Real libamdhip64.so under a ROCm torch, the virtual
GPU's for CPU tensors; nothing below this file knows which."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from pathlib import Path
from typing import Any

import torch

from .. import arch as arch_
from .. import log, settings
from ..build.vgpu_library import vgpu_library
from ..errors import ConfigError, HipError, UnsupportedArch

_PARAM_POINTER, _PARAM_SIZE, _PARAM_END = 1, 2, 3  # HIP_LAUNCH_PARAM_*

_SIGNATURES: dict[str, list[Any]] = {
    "hipInit": [c_uint],
    "hipGetDeviceCount": [POINTER(c_int)],
    "hipGetDevice": [POINTER(c_int)],
    "hipSetDevice": [c_int],
    "hipModuleLoadData": [POINTER(c_void_p), c_char_p],
    "hipModuleUnload": [c_void_p],
    "hipModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "hipModuleLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
    "hipStreamSynchronize": [c_void_p],
    "hipDeviceSynchronize": [],
}


class Hip:
    """A loaded HIP runtime."""

    def __init__(self, library: Path) -> None:
        self.path = library
        try:
            self._library = ctypes.CDLL(str(library))
            self._functions = {name: self._declare(name, t) for name, t in _SIGNATURES.items()}
            self._library.hipGetErrorString.restype = c_char_p
        except (OSError, AttributeError) as error:
            raise ConfigError(f"{library} is no HIP runtime: {error}") from error
        self._detail = getattr(self._library, "rfops_vgpu_last_error", None)
        if self._detail is not None:
            self._detail.restype = c_char_p
        self.launch_kernel = self._functions["hipModuleLaunchKernel"]
        self.call("hipInit", 0)

    def _declare(self, name: str, types: list[Any]) -> Any:
        function = self._library[name]
        function.argtypes, function.restype = types, c_int
        return function

    @property
    def is_virtual(self) -> bool:
        """Whether kernels run on the virtual GPU: this runtime is its own, or AMD's on its HSA
        runtime, whose functions are found through AMD's library."""
        return self._detail is not None

    @property
    def is_on_hsa(self) -> bool:
        """Whether this runtime is AMD's, which uses an HSA runtime."""
        return hasattr(self._library, "hsa_init")

    def address(self, name: str) -> int:
        """Of a HIP function, for native code."""
        return int(ctypes.cast(self._functions[name], c_void_p).value or 0)

    def call(self, name: str, *args: Any) -> None:
        """Call a HIP function. Raises HipError."""
        code = self._functions[name](*args)
        if code != 0:
            self.fail(name, code)

    def last_error(self) -> str:
        """What exactly went wrong in the last failed call, as the virtual GPU tells it."""
        return (self._detail() or b"").decode(errors="replace") if self._detail else ""

    def fail(self, name: str, code: int) -> None:
        """Raise HipError with the runtime's text; the virtual GPU adds what exactly went wrong."""
        text = self._library.hipGetErrorString(code).decode(errors="replace")
        detail = self.last_error()
        raise HipError(name, code, f"{text}: {detail}" if detail else text)

    def select_arch(self, arch: str) -> None:
        """Make the virtual GPU one of this architecture; a real GPU is what it is."""
        if self.is_virtual and self._library.rfops_vgpu_set_arch(arch.encode()) != 0:
            self.fail("rfops_vgpu_set_arch", 1)

    def load(self, code: bytes, kernel: str, arch: str = "") -> tuple[c_void_p, c_void_p]:
        """Load a code object; the module and its kernel's function. One that is for another
        architecture than the device's `arch` is refused: not every runtime does, some crash.

        Raises UnsupportedArch, HipError.
        """
        code_arch = arch_.of_code_object(code)
        if arch and code_arch and code_arch != arch:
            raise UnsupportedArch(kernel, arch, (code_arch,))
        module, function = c_void_p(), c_void_p()
        self.call("hipModuleLoadData", byref(module), code)
        self.call("hipModuleGetFunction", byref(function), module, kernel.encode())
        return module, function


@functools.cache
def _open(library: Path) -> Hip:
    return Hip(library)


def runtime(device: torch.device) -> Hip:
    """The HIP runtime that serves the device's tensors."""
    library = settings.path("RFOPS_HIP_LIBRARY")
    if library is not None:
        if device.type == "cpu":
            _wait_for_launches()
        return _open(library)
    return _open(vgpu_library() if device.type == "cpu" else _torch_library())


def _wait_for_launches() -> None:
    """AMD's runtime on the virtual GPU's HSA runtime launches asynchronously, and torch reads and
    frees CPU tensors without asking a stream. Read by the runtime when it is loaded."""
    os.environ.setdefault("HIP_LAUNCH_BLOCKING", "1")


def _torch_library() -> Path:
    """The libamdhip64.so that torch has loaded: a second copy would not know torch's streams."""
    torch.cuda.init()
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            file = Path(line.split(maxsplit=5)[-1].strip())
            if file.name.startswith("libamdhip64.so"):
                return file
    return Path(torch.__file__).parent / "lib" / "libamdhip64.so"


def raw_stream(index: int) -> int:
    """The handle of torch's current stream of a GPU."""
    fast = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # makes no object
    return int(fast(index) if fast else torch.cuda.current_stream(index).cuda_stream)


def indexed(device: torch.device) -> torch.device:
    """`cuda` as the GPU it means now, `cuda:1`; the CPU has no index."""
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and device.index is None and torch.version.hip:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_arch(device: torch.device) -> str:
    """gfx942, gfx950, ... of a device, asked of it lazily. Raises UnsupportedArch."""
    if device.type == "cpu":
        return _virtual_arch(settings.text("RFOPS_VGPU_ARCH"))
    if device.type == "cuda" and torch.version.hip:
        return _gpu_arch(indexed(device).index)
    name = "an NVIDIA GPU" if device.type == "cuda" else f"device type {device.type!r}"
    raise UnsupportedArch("HIP modules", name, ("AMD GPUs", "CPU tensors (virtual GPU)"))


@functools.cache
def _virtual_arch(arch: str) -> str:
    for name in ("RFOPS_VGPU_THREADS", "RFOPS_VGPU_MAX_STEPS", "RFOPS_VGPU_LOG"):
        settings.number(name)  # the library itself takes what is no number for none
    settings.text("RFOPS_VGPU_TIMING")
    log.get().info("CPU tensors run on the virtual GPU (%s): right results, not GPU speed", arch)
    return arch


@functools.cache
def _gpu_arch(index: int) -> str:
    # "gfx950:sramecc+:xnack-": the features after the name do not choose another code object
    return str(torch.cuda.get_device_properties(index).gcnArchName).split(":")[0]
