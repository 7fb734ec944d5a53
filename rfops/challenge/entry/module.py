"""Launches by ctypes of code objects that the entry holds."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# ---------------------------------------------------------------- the HIP runtime


def _runtime() -> ctypes.CDLL:
    """The one that torch has loaded: another copy would not know its memory."""
    name = "libamdhip64.so"
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = [line.split()[-1] for line in maps if f"/{name}" in line]
    return ctypes.CDLL(files[0] if files else name)


def loader(kernels: Mapping[str, Any], code: Mapping[str, str]) -> Callable[[str], Any]:
    """function_of(name): a kernel, loaded when it is first asked for."""
    hip = _runtime()
    number, pointer = ctypes.c_uint, ctypes.c_void_p
    hip.hipModuleLaunchKernel.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
    hip.hipGetErrorString.restype = ctypes.c_char_p
    modules: dict[str, ctypes.c_void_p] = {}

    def check(action: str, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"{action}: {hip.hipGetErrorString(status).decode()}")

    def function_of(name: str) -> Any:
        kernel = kernels[name]
        key = kernel["code"]
        if key not in modules:
            modules[key] = ctypes.c_void_p()
            image = base64.b64decode(code[key])
            check(key, hip.hipModuleLoadData(ctypes.byref(modules[key]), image))
        function = ctypes.c_void_p()
        symbol = kernel["symbol"].encode()
        check(name, hip.hipModuleGetFunction(ctypes.byref(function), modules[key], symbol))
        lds = kernel.get("lds", 0)

        def launch(grid: Any, block: Any, memory: Any) -> None:
            size = ctypes.c_size_t(len(memory))
            extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(memory), 2, ctypes.addressof(size), 3)
            check(name, hip.hipModuleLaunchKernel(function, *grid, *block, lds, None, None, extra))

        return launch

    return function_of
