"""aiter.jit.utils.chip_info: the device that rfops' ops would run on."""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from rfops.dispatch import routing


def current_device() -> torch.device:
    """Return torch's GPU where it has one of AMD's, else the CPU, which is the virtual GPU."""
    is_real = bool(torch.version.hip) and torch.cuda.is_available()
    return torch.device("cuda" if is_real else "cpu")


def get_gfx() -> str:
    """Return the architecture, gfx942 or gfx950."""
    return routing.chip(current_device())[0]


def get_cu_num() -> int:
    """Return the number of compute units."""
    return routing.chip(current_device())[1]


def get_gfx_list() -> list[str]:
    """Return the architectures that kernels are built for: the device's."""
    return [get_gfx()]


@functools.cache
def _configs_folder() -> str:
    """Return an empty folder that lasts as long as the process: programs write tuned configs of
    aiter's Triton kernels there, which rfops does not read."""
    folder = tempfile.TemporaryDirectory(prefix="rfops-aiter-")
    atexit.register(folder.cleanup)
    return folder.name


def __getattr__(name: str) -> str:
    if name == "AITER_TRITON_CONFIGS_PATH":
        return _configs_folder()
    raise AttributeError(name)


def torch_compile_guard(*_args: Any, **_kwargs: Any) -> Callable[[Any], Any]:
    """Return a decorator that leaves a function as it is; aiter's makes a torch op of it."""
    return lambda function: function


def get_device_name() -> str:
    """Return the GPU model's name, without spaces."""
    return {"gfx942": "MI300X", "gfx950": "MI355X"}.get(get_gfx(), get_gfx())
