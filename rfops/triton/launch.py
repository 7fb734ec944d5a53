"""Launching a Triton kernel where its tensors live: `with on_device(device): kernel[grid](...)`.

| device | runs on |
|---|---|
| cuda, torch for ROCm | that GPU |
| cuda, torch for CUDA | that GPU |
| cpu | the virtual GPU of RFOPS_VGPU_ARCH |

Triton has one driver for the process. For the time of the block it is the one of that device,
afterwards the one that was there before. Entering costs 40 us for the virtual GPU, 5 us otherwise,
once a device has been used. Imports triton only inside functions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rfops import vgpu
from rfops.dispatch.routing import chip
from rfops.jit.arch import ARCHS

if TYPE_CHECKING:
    from rfops.vgpu.triton_driver import VirtualDriver

INSTALL = f"pip install 'triton>={'.'.join(map(str, vgpu.OLDEST_TRITON))}'"

_lock = threading.RLock()  # Triton's driver is the process's, so the virtual GPU has one user


@cache
def missing() -> str | None:
    """Why no Triton kernel can run in this process, in words; None if one can."""
    if importlib.util.find_spec("triton") is None:
        return f"triton is not installed ({INSTALL})"
    version = vgpu._triton_version()
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < vgpu.OLDEST_TRITON:
        return f"triton {version} is too old ({INSTALL})"
    return None


def arch_of(device: torch.device) -> str:
    """gfx950, gfx942, sm_90, ... : for what a kernel on this device is compiled."""
    return chip(device)[0]


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Launches in this block go to `device`. Raises as rfops.vgpu.activate_triton on the cpu."""
    if device.type == "cpu":
        with _lock, _on_virtual_gpu(arch_of(device)):
            yield
    else:
        with torch.cuda.device(device), _on_gpu():
            yield


@contextlib.contextmanager
def _on_virtual_gpu(arch: str) -> Iterator[None]:
    from triton.backends.amd import driver as amd_driver
    from triton.runtime import driver

    from rfops.vgpu.triton_driver import VirtualDriver

    virtual, names = _virtual_driver()
    if isinstance(driver._active, VirtualDriver):
        with _replaced(driver._active, "arch", arch):  # the user's own activation
            yield
        return
    with _launcher(virtual.runtime.path), contextlib.ExitStack() as undo:
        vars(amd_driver).update(names)
        undo.enter_context(_replaced(virtual, "arch", arch))
        undo.enter_context(_replaced(driver, "_active", virtual))
        yield


@contextlib.contextmanager
def _on_gpu() -> Iterator[None]:
    """Real GPUs' driver, also where the user has made the virtual GPU Triton's device."""
    from triton.runtime import driver

    active = driver._active
    if active is None or type(active).__name__ != "VirtualDriver":
        yield
        return
    with _lock, _replaced(driver, "_active", driver.default):
        yield


_LAUNCHER_NAMES = ("PyTDMDescriptor", "PyKernelArg", "ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE")


@cache
def _virtual_driver() -> tuple[VirtualDriver, dict[str, Any]]:
    """The virtual GPU's driver, made once (40 ms), and what it left in Triton's driver module."""
    from triton.backends.amd import driver as module

    from rfops.vgpu.triton_driver import VirtualDriver

    library = vgpu.library_path()
    with _launcher(library):
        virtual = VirtualDriver(ARCHS[0], library)
        return virtual, {n: getattr(module, n) for n in _LAUNCHER_NAMES if hasattr(module, n)}


@contextlib.contextmanager
def _launcher(library: Path) -> Iterator[None]:
    """What Triton needs for building its launcher against the virtual GPU."""
    from triton import knobs

    from rfops.vgpu import triton_driver

    build = knobs.build
    with triton_driver._launcher_module(), triton_driver.loading(library):
        with _replaced(build, "impl", build.impl or triton_driver._build_launcher):
            yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    previous = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, previous)
