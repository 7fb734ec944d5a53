"""Tells the virtual GPU's checking mode where tensors lie: torch's memory is not HIP's, and where
memory ends that nobody told of cannot be checked. None of this runs while checking is off."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from .. import settings
from . import launcher
from .hip import Hip, runtime

_blocks = 0  # registering() that are active


def registers_always() -> bool:
    """Whether RFOPS_VGPU_CHECK wants to know of tensors: for as long as this process runs."""
    return settings.text("RFOPS_VGPU_CHECK") != "0"


def is_registering() -> bool:
    """Whether that or a registering() block, which ends, wants to know of tensors."""
    return _blocks > 0 or registers_always()


def _storages(args: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.device.type == "cpu":
            yield arg.untyped_storage()
        elif isinstance(arg, tuple | list):
            yield from _storages(arg)
        elif isinstance(getattr(arg, "base", None), torch.Tensor):  # Triton's TensorDescriptor
            yield from _storages([arg.base])


@contextmanager
def registered(hip: Hip, args: Iterable[Any]) -> Iterator[None]:
    """Tell of the storages of all CPU tensors among a launch's arguments while it runs."""
    if not hip.is_virtual:
        yield
        return
    library = ctypes.CDLL(str(hip.path))
    ranges = [(ctypes.c_void_p(s.data_ptr()), s.nbytes()) for s in _storages(args)]
    for pointer, size in ranges:
        library.rfops_vgpu_register(pointer, ctypes.c_size_t(size))
    try:
        yield
    finally:
        for pointer, _ in ranges:
            library.rfops_vgpu_unregister(pointer)


def registered_tensors(
    device: torch.device, tensors: Sequence[Any]
) -> AbstractContextManager[None]:
    """Tell of tensors that kernels of the block reach by addresses in memory, not by arguments."""
    if not tensors or device.type != "cpu" or not is_registering():
        return nullcontext()
    return registered(runtime(device), tensors)


def registering_launch(launch: Callable[..., None], hip: Hip) -> Callable[..., None]:
    """A bound kernel's `launch` that first tells of its tensors."""

    def checked_launch(
        grid: Any, block: Any, args: Sequence[Any], *args_: Any, **kwargs: Any
    ) -> None:
        with registered(hip, args):
            launch(grid, block, args, *args_, **kwargs)

    return checked_launch


@contextmanager
def registering(kernels: Any) -> Iterator[None]:
    """While the block runs, every bound kernel (of the class `kernels`) tells of its tensors."""
    global _blocks
    original_launch = kernels.launch

    def launch(self: Any, grid: Any, block: Any, args: Any, *arguments: Any, **kwargs: Any) -> None:
        with registered(self.hip, args):
            original_launch(self, grid, block, args, *arguments, **kwargs)

    kernels.launch = launch
    _blocks += 1
    launcher.slow_down(1)
    try:
        yield
    finally:
        _blocks -= 1
        launcher.slow_down(-1)
        kernels.launch = original_launch
