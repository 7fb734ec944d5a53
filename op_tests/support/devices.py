"""Where the tests run, and which of a test's cases do."""

from __future__ import annotations

from collections import Counter
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


def thin(items: list[pytest.Item]) -> None:
    """Keep each n-th case of a test with `thin(n)`, without those that are sweeps already; the rest
    become sweeps."""
    seen: Counter[str] = Counter()
    for item in items:
        thin = item.get_closest_marker("thin")
        if thin is not None and item.get_closest_marker("sweep") is None:
            name = item.nodeid.split("[")[0]
            if seen[name] % thin.args[0]:
                item.add_marker(pytest.mark.sweep)
            seen[name] += 1


def device_of(arch: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    gpu = real_gpu(arch)
    if gpu is None:
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    return gpu or torch.device("cpu")
