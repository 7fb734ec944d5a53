"""Tells the virtual GPU's checking mode where tensors lie: torch's memory is not HIP's, and where
memory ends that nobody told of cannot be checked. None of this runs while checking is off."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import settings
from .hip import Hip


def is_on() -> bool:
    """Whether RFOPS_VGPU_CHECK asks for checks in this process."""
    return settings.text("RFOPS_VGPU_CHECK") != "0"


@contextmanager
def _known(hip: Hip, args: Sequence[Any]) -> Iterator[None]:
    """Tell of the storages of all CPU tensors among a launch's arguments while it runs."""
    if not hip.is_virtual:
        yield
        return
    library = ctypes.CDLL(str(hip.path))
    storages = [
        arg.untyped_storage()
        for arg in args
        if isinstance(arg, torch.Tensor) and arg.device.type == "cpu"
    ]
    known = [(ctypes.c_void_p(s.data_ptr()), ctypes.c_size_t(s.nbytes())) for s in storages]
    for pointer, size in known:
        library.rfops_vgpu_register(pointer, size)
    try:
        yield
    finally:
        for pointer, _ in known:
            library.rfops_vgpu_unregister(pointer)


def registering_launch(launch: Callable[..., None], hip: Hip) -> Callable[..., None]:
    """A bound kernel's `launch` that first tells of its tensors."""

    def checked(grid: Any, block: Any, args: Sequence[Any], **rest: Any) -> None:
        with _known(hip, args):
            launch(grid, block, args, **rest)

    return checked


@contextmanager
def registering(kernels: type) -> Iterator[None]:
    """While the block runs, every bound kernel tells of its tensors."""
    before = kernels.launch  # type: ignore[attr-defined]

    def launch(self: Any, grid: Any, block: Any, args: Sequence[Any], **rest: Any) -> None:
        with _known(self.hip, args):
            before(self, grid, block, args, **rest)

    kernels.launch = launch  # type: ignore[attr-defined]
    try:
        yield
    finally:
        kernels.launch = before  # type: ignore[attr-defined]
