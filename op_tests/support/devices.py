"""Where the tests run."""

from __future__ import annotations

from functools import cache

import pytest
import torch

ARCHS = ("gfx942", "gfx950")


@cache
def real_gpu(arch: str) -> torch.device | None:
    """The first GPU of that architecture."""
    if torch.version.hip and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_properties(index).gcnArchName
            if name.split(":")[0] == arch:
                return torch.device("cuda", index)
    return None


def device_of(arch: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    gpu = real_gpu(arch)
    if gpu is None:
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    return gpu or torch.device("cpu")
