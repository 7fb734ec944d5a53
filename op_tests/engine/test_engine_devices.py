"""Several GPUs of different architectures in one host, by a HIP runtime that writes down what goes
where: each tensor's device decides code object, device and stream."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import rfops
from rfops.jit.launch import hip
from support.engine_project import Project
from support.launchers import is_native
from support.null_hip import NullHip

NAMES = ("gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-")
MACHINES = [0x4C, 0x4F]  # EF_AMDGPU_MACH of the two


@pytest.fixture
def mixed(null: NullHip, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch.cuda of a ROCm build with a gfx942 and a gfx950; its current device is HIP's."""
    state = SimpleNamespace(streams=[0x10, 0x11], asked=Counter(), name=NAMES)

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        previous = null.number("device")
        null.set("device", index)
        yield
        null.set("device", previous)

    def properties(index: int) -> Any:
        state.asked[index] += 1
        return SimpleNamespace(gcnArchName=state.name[index])

    fakes = {
        "init": lambda: None,
        "device": device,
        "current_device": lambda: null.number("device"),
        "get_device_properties": properties,
        "current_stream": lambda index: SimpleNamespace(cuda_stream=state.streams[index]),
    }
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    hip._gpu_arch.cache_clear()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", state.streams.__getitem__, False)
    yield state
    hip._gpu_arch.cache_clear()


@pytest.mark.parametrize("kind", ["native", "ctypes"])
def test_each_gpu_gets_its_own(
    kind: str,
    native: ModuleType,
    project: Project,
    null: NullHip,
    mixed: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind == "ctypes":
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
    op, x = project.op(), torch.ones(4)
    assert not mixed.asked, "asked before it was needed"
    kernels = [op.bind("cuda:0"), op.bind("cuda:1")]
    assert [kernel.meta["arch"] for kernel in kernels] == ["gfx942", "gfx950"]
    assert null.machines == MACHINES and null.number("device") == 0
    assert all(is_native(kernel) == (kind == "native") for kernel in kernels)
    for current in (0, 1):
        null.set("device", current)
        assert op.bind("cuda") is kernels[current] is op.bind(torch.device("cuda", current))
        for offset in (1, 0, 0, 1):
            mixed.streams[offset] += 0x100
            kernels[offset].launch((1, 1, 1), (64, 1, 1), (x, x, 1.0, 4))
            assert null.stream == mixed.streams[offset]
            assert null.number("device") == current
    assert null.number("launches") == 8 and mixed.asked == {0: 1, 1: 1}
    assert sorted(call[3] for call in project.compiles()) == [
        "--offload-arch=gfx942",
        "--offload-arch=gfx950",
    ]


def test_a_gpu_that_the_module_does_not_know(project: Project, mixed: SimpleNamespace) -> None:
    """One GPU of the host has no kernel: refused with both names, and the other one works."""
    mixed.name = ("gfx90a:sramecc+:xnack-", NAMES[1])
    op = project.op()
    with pytest.raises(rfops.UnsupportedArch, match=r"no kernel for gfx90a; .* gfx942, gfx950"):
        op.bind("cuda:0")
    assert op.bind("cuda:1").meta["arch"] == "gfx950" and len(project.compiles()) == 1


def test_a_code_object_of_the_other_gpu(
    project: Project, null: NullHip, mixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cache put together by hand would have it: it never reaches the runtime."""
    other = project.op().build("gfx942")
    op = project.op()
    monkeypatch.setattr(op, "build", lambda *_: other)
    previous = null.machines
    with pytest.raises(rfops.UnsupportedArch, match=r"axpy: no kernel for gfx950; .* gfx942"):
        op.bind("cuda:1")
    assert null.machines == previous
