"""The native launch path: the same as the one through ctypes in all that it does and refuses, and
thin. Where a launch goes is seen by a HIP library that writes it down."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import math
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import bench_dispatch
import pytest
import torch

import rfops
from rfops.jit import BoundKernel, Plans, compile_ops
from rfops.jit.build import host
from rfops.jit.launch import hip, launcher
from support.engine_project import EVERY_SCALAR, VALUES, Project, scalars
from support.launchers import is_native
from support.null_hip import NullHip

# ---------------------------------------------------------------- the same as through ctypes


def test_a_kernel_runs(native: ModuleType, project: Project) -> None:
    op = project.op()
    assert torch.equal(project.run(op), 2.0 * torch.arange(100, dtype=torch.float32))
    assert is_native(op.bind("cpu"))


ODD = (
    (-128, 255, -(2**15), 2**16 - 1, -(2**31), 2**32 - 1, -(2**63), 2**64 - 1, 3.4e38, 1e300, 127),
    (127, 0, 2**15 - 1, 0, 2**31 - 1, 0, 2**63 - 1, 0, math.inf, -math.inf, -128),
    (True, False, 1, 1, 1, 1, 1, 1, 1, 2, 0),
    (0, 0, 0, 0, 0, 0, 0, 0, -0.0, 5e-324, 0),
    (0, 0, 0, 0, 0, 0, 0, 2**63, 1e-46, math.nan, 0),
)
WRONG = (
    (128, 0), (-129, 0), (256, 1), (-1, 1), (2**15, 2), (2**16, 3), (2**31, 4), (2**32, 5),
    (2**63, 6), (-1, 7), (2**64, 7), (3.5e38, 8), ("1", 9), (None, 9), (1.0, 4), (2**70, 6),
)  # fmt: skip


def test_every_scalar_has_the_bytes_of_ctypes(
    native: ModuleType, project: Project, null: NullHip
) -> None:
    project.source.write_text(EVERY_SCALAR)
    bound = compile_ops("axpy", config=project.config)(scalars).bind("cpu")
    out, last = torch.empty(12), torch.empty(1)
    for values in (VALUES, *ODD):
        recorded_calls = []
        for launch in (bound.launch, lambda *a: type(bound).launch(bound, *a)):
            for end in (last, None):
                launch((1, 2, 3), (4, 5, 6), (out, *values, end), 7)
                recorded_calls.append(null.kernarg)
        assert (
            recorded_calls[:2] == recorded_calls[2:] and recorded_calls[0] != recorded_calls[1]
        ), values
        assert struct.unpack_from("<Q", recorded_calls[0])[0] == out.data_ptr()
    assert is_native(bound) and null.dims == ([1, 2, 3], [4, 5, 6])


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_every_refusal_is_that_of_ctypes(
    native: ModuleType, project: Project, null: NullHip
) -> None:
    project.source.write_text(EVERY_SCALAR)
    bound = compile_ops("axpy", config=project.config)(scalars).bind("cpu")
    out, one = torch.empty(12), (1, 1, 1)
    zeros = (0,) * 8 + (0.0, 0.0, 0)
    good = (out, *zeros, None)
    cases: list[tuple[Any, ...]] = [
        (one, one, (out, *zeros[:offset], value, *zeros[offset + 1 :], None))
        for value, offset in WRONG
    ]
    cases += [
        (one, one, (out, *zeros)),
        (one, one, (*good, None)),
        (one, one, (3, *zeros, 0)),
        (one, one, ()),
        (one, one, 5),
        ((1, 1), one, good),
        ((1, 1, -1), one, good),
        ((1, 1, "x"), one, good),
        (one,),
        (),
        (one, one, good, 0, None, None),
        (one, one, good, "x"),
        (one, one, good, 0, "x"),
    ]
    previous = null.number("launches")
    for args in cases:
        expected = refusal(lambda args=args: type(bound).launch(bound, *args))
        assert refusal(lambda args=args: bound.launch(*args)) == expected, args
        if args[1:2] == (one,) and args[0] == one and isinstance(args[-1], tuple):
            assert expected != "nothing", args
    assert "unexpected keyword" in refusal(lambda: bound.launch(one, one, args=(), no=1))
    assert null.number("launches") == previous


@pytest.mark.parametrize(
    "value", [2**32, 2**32 + 5, -1, -(2**31), 2**64 + 1, 10**5000, 1.5, "x"], ids=range(8)
)
def test_sizes_that_hip_cannot_have(
    native: ModuleType, project: Project, null: NullHip, value: Any
) -> None:
    """Cut to 32 bits they would be another launch; natively and through ctypes the same error."""
    bound = project.op().bind("cpu")
    out, one = torch.empty(64), (64, 1, 1)
    args = (out, out, 1.0, 64)
    previous = null.number("launches")
    actual = "cannot be shown" if value == 10**5000 else str(value)
    cases: list[tuple[tuple[Any, ...], str]] = [((one, one, args, value), "lds")]
    for index in range(3):
        dims = (*one[:index], value, *one[index + 1 :])
        cases += [((dims, one, args), "grid"), ((one, dims, args), "block")]
    if value not in (2**32, 2**32 + 5):
        cases += [((one, one, args, 0, value), "stream")]
    for case, name in cases:
        text = refusal(lambda case=case: type(bound).launch(bound, *case))
        assert text.startswith(f"ValueError: axpy: {name} must be ") and actual in text, text
        assert refusal(lambda case=case: bound.launch(*case)) == text
    assert is_native(bound) and null.number("launches") == previous
    most = 2**32 - 1
    for launch in (bound.launch, lambda *a: type(bound).launch(bound, *a)):
        launch((most, 0, 1), (1, most, 1), args, most, 2**64 - 1)
        assert null.dims == ([most, 0, 1], [1, most, 1]) and null.stream == 2**64 - 1
    for dims in ((1, 1), (1, 1, 1, 1), 5, None, ()):
        assert "three whole numbers" in refusal(lambda dims=dims: bound.launch(dims, (1, 1), args))


def test_arguments_by_name(native: ModuleType, project: Project, null: NullHip) -> None:
    bound = project.op().bind("cpu")
    out = torch.empty(64)
    bound.launch(stream=5, lds=6, args=[out, out, 1.0, 64], block=(64, 1, 1), grid=(2, 1, 1))
    assert null.dims == ([2, 1, 1], [64, 1, 1]) and null.stream == 5
    assert ctypes.c_uint.in_dll(null.library, "lds").value == 6


def test_what_is_not_plain_goes_through_python(
    native: ModuleType, project: Project, null: NullHip
) -> None:
    """numpy's and torch's numbers, subclasses of Tensor; a fake or functional tensor is refused."""
    import numpy

    bound = project.op().bind("cpu")
    x = torch.ones(4)
    parameter = torch.nn.Parameter(x)
    buffer = torch.nn.Buffer(x)
    for args in (
        (parameter, buffer, 1, 4),
        (x, x[::2], numpy.float32(2), numpy.int64(4)),
        (x, x, torch.tensor(2.0), 4),
        (x.requires_grad_(), x[1:], True, 4),
    ):
        bound.launch((1, 1, 1), (64, 1, 1), args)
        pointers = struct.unpack_from("<QQ", null.kernarg)
        assert pointers == (args[0].data_ptr(), args[1].data_ptr())
    launches = null.number("launches")
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(4)
    x = torch.ones(4)
    with pytest.raises(ValueError, match=r"axpy: .*without memory \(FakeTensor\)"):
        bound.launch((1, 1, 1), (64, 1, 1), (fake, x, 1.0, 4))
    with pytest.raises(Exception, match=r"(?i)data pointer|storage"):
        torch.func.vmap(lambda row: bound.launch((1, 1, 1), (64, 1, 1), (row, row, 1.0, 4)) or row)(
            torch.ones(3, 4)
        )
    assert null.number("launches") == launches


@pytest.mark.parametrize(
    "dtype", ["float8_e8m0fnu", "float8_e4m3fnuz", "uint16", "bool", "bfloat16"]
)
def test_dtypes(native: ModuleType, project: Project, null: NullHip, dtype: str) -> None:
    bound = project.op().bind("cpu")
    x = torch.empty(70, dtype=getattr(torch, dtype))[3:]
    bound.launch((1, 1, 1), (64, 1, 1), (x, x[:0], 1.0, 4))
    assert struct.unpack_from("<QQ", null.kernarg)[0] == x.data_ptr()


def test_a_failing_launch(native: ModuleType, project: Project, null: NullHip) -> None:
    bound = project.op().bind("cpu")
    null.set("fail_with", 98)
    out = torch.empty(4)
    with pytest.raises(
        rfops.HipError, match=r"hipModuleLaunchKernel\(axpy\) failed .* 98: as asked"
    ):
        bound.launch((1, 1, 1), (64, 1, 1), (out, out, 1.0, 4))


WAITS = """
#include "rfops_test/types.h"
extern "C" __global__ void axpy(float* out, const float* x, float a, int n) {
  const volatile float* flag = x;
  for (int i = 0; i < n && *flag == 0; ++i) __builtin_amdgcn_s_sleep(1);
  out[0] = *flag;
}
"""


def test_other_threads_run_during_a_launch(native: ModuleType, project: Project) -> None:
    """The virtual GPU computes inside the call; it must not hold Python up. This kernel ends when
    another thread has written what it reads, or a billion rounds later."""
    project.source.write_text(WAITS)
    bound = project.op().bind("cpu")
    flag, out, begun = torch.zeros(1), torch.zeros(1), threading.Event()

    def write() -> None:
        begun.wait()
        time.sleep(0.01)  # most likely the launch has begun
        flag.fill_(7.0)

    thread = threading.Thread(target=write)
    thread.start()
    begun.set()
    bound.launch((1, 1, 1), (1, 1, 1), (out, flag, 0.0, 10**9))
    thread.join()
    assert is_native(bound) and out.item() == 7.0


def test_nothing_leaks(native: ModuleType, project: Project, null: NullHip) -> None:
    bound = project.op().bind("cpu")
    x = torch.ones(4)
    counts = []
    for _ in range(3):
        for _ in range(2000):
            bound.launch((1, 1, 1), (64, 1, 1), (x, x, 1.0, 4), 0, None)
        counts.append((sys.getrefcount(x), sys.getrefcount(None) // 1000, len(gc.get_objects())))
    assert counts[0][0] == counts[2][0] and counts[1][1] == counts[2][1]
    assert abs(counts[1][2] - counts[2][2]) < 50
    gone = weakref.ref(bound)
    del bound
    gc.collect()
    assert gone() is None, "the launcher and its kernel keep each other alive"


def test_the_checking_mode_sees_native_launches(native: ModuleType, project: Project) -> None:
    """Also those through a `launch` that was taken before."""
    bound = project.op().bind("cpu")
    launch, x, out = bound.launch, torch.ones(64), torch.empty(64)
    assert is_native(bound)
    with rfops.vgpu.check() as result:
        launch((2, 1, 1), (64, 1, 1), (out, x, 1.0, 65))
    assert result.findings, "an access outside of a tensor went unseen"
    launch((1, 1, 1), (64, 1, 1), (out, x, 1.0, 64))


# ---------------------------------------------------------------- devices and streams


@contextlib.contextmanager
def gpus(null: NullHip, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """torch.cuda of a ROCm build with two gfx950; its current device is HIP's, as torch's is."""
    state = SimpleNamespace(entered=0, streams={0: 0x10, 1: 0x11})

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        state.entered += 1
        previous = null.number("device")
        null.set("device", index)
        yield
        null.set("device", previous)

    name = "gfx950:sramecc+:xnack-"
    fakes = {
        "init": lambda: None,
        "device": device,
        "current_device": lambda: null.number("device"),
        "get_device_properties": lambda i: SimpleNamespace(gcnArchName=name),
        "current_stream": lambda i: SimpleNamespace(cuda_stream=state.streams[i]),
    }
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "hip", "7.0")
        patch.delattr(torch._C, "_cuda_getCurrentRawStream", False)  # of a build for CUDA
        for fake, value in fakes.items():
            patch.setattr(torch.cuda, fake, value)
        patch.setattr(hip, "_gpu_arch", hip._gpu_arch.__wrapped__)
        yield state


@pytest.mark.parametrize("kind", ["native", "ctypes"])
def test_the_device_is_set_only_when_it_is_another(
    kind: str, native: ModuleType, project: Project, null: NullHip, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "ctypes":
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
    x = torch.ones(4)
    with gpus(null, monkeypatch) as state:
        bound = project.op().bind("cuda:1")
        assert is_native(bound) == (kind == "native")
        state.entered = 0

        def launch(**kwargs: int) -> None:
            bound.launch((1, 1, 1), (64, 1, 1), (x, x, 1.0, 4), **kwargs)

        null.set("device", 1)
        launch()
        assert (null.number("sets"), state.entered, null.stream) == (0, 0, 0x11)
        state.streams[1] = 0x22
        launch()
        assert null.stream == 0x22, "the stream is that of the moment"
        launch(stream=0x33)
        assert null.stream == 0x33
        null.set("device", 0)
        launch()
        assert null.number("device") == 0, "the caller's device is put back"
        assert null.stream == 0x22, "the stream is that of the kernel's device"
        assert (null.number("sets"), state.entered) == ((2, 0) if kind == "native" else (0, 1))
        null.set("fail_with", 1)
        with pytest.raises(rfops.HipError):
            launch()
        assert null.number("device") == 0


# ---------------------------------------------------------------- when it is built


def test_a_busy_process_builds_it(
    extension: ModuleType, project: Project, null: NullHip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the background; its kernels and plans go over to it."""
    built = threading.Event()

    def build_host(_spec: object) -> object:
        built.set()
        return SimpleNamespace(file=extension.__file__ or extension.__spec__.origin)

    monkeypatch.setenv("RFOPS_LAUNCHER", "auto")
    monkeypatch.setattr(host, "build_host", build_host)
    monkeypatch.setattr(launcher, "_find", lambda: None)
    monkeypatch.setattr(launcher, "_native", None)
    monkeypatch.setattr(launcher, "_launches", launcher._ENOUGH - 3)
    bound, plans, x = project.op().bind("cpu"), Plans(), torch.ones(4)
    for _ in range(3):
        assert not is_native(bound)
        bound.launch((1, 1, 1), (64, 1, 1), (x, x, 1.0, 4))
    for thread in threading.enumerate():
        if thread.name == "rfops-launcher":
            thread.join()
    assert built.is_set() and is_native(bound)
    bound.launch((1, 1, 1), (64, 1, 1), (x, x, 1.0, 4))
    assert null.number("launches") == 4
    assert plans.add("plan", x) and plans.find(x) == "plan" and plans._native is not None


@pytest.mark.parametrize("cached", [True, False])
def test_plans_without_a_hip_kernel_get_it(
    cached: bool, extension: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of Triton's kernels, say: from the cache at the first plan, else when it is built."""
    results = []

    def find() -> None:
        if cached and not results:
            results.append(1)
            launcher._load(extension.__file__ or str(extension.__spec__.origin))

    monkeypatch.setenv("RFOPS_LAUNCHER", "auto")
    monkeypatch.setattr(launcher, "_find", find)
    monkeypatch.setattr(launcher, "_native", None)
    monkeypatch.setattr(launcher, "_launches", launcher._ENOUGH - 3)
    built = []
    monkeypatch.setattr(launcher, "build", lambda: built.append(1))
    plans, x = Plans(sizes="N", shapes=("N",)), torch.ones(4)
    assert plans.find(x) is None
    assert plans.add_family(lambda n: n, x) == cached
    assert plans.add("plan", x) and plans.find(x) == "plan"
    assert (plans._native is not None) == cached
    plans.find(x)
    for thread in threading.enumerate():
        if thread.name == "rfops-launcher":
            thread.join()
    assert len(built) == (not cached)


def test_launches_of_an_earlier_launcher_go_through_python_too(
    native: ModuleType,
    project: Project,
    null: NullHip,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A process whose cache moved loads a second one; what was prepared keeps the first."""
    bound, x = project.op().bind("cpu"), torch.ones(4)
    runs = [bound.prepare((64, 1, 1), (0, 1))((1, 1, 1), a=1.0, n=4)]
    second = shutil.copy(str(native.__spec__.origin), tmp_path)
    launcher._load(second)
    assert launcher.native() is not native
    runs.append(project.op().bind("cpu").prepare((64, 1, 1), (0, 1))((1, 1, 1), a=1.0, n=4))
    calls: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(BoundKernel, "launch", lambda *args: calls.append(args))
        launcher.slow_down(1)
        try:
            for run in runs:
                run(x, x)
        finally:
            launcher.slow_down(-1)
        assert (len(calls), null.number("launches")) == (2, 0)
        for run in runs:
            run(x, x)
    assert (len(calls), null.number("launches")) == (2, 2)


@pytest.mark.parametrize("reason", ["frozen", "no jit"])
def test_nothing_is_built_where_nothing_may_be(
    reason: str, project: Project, null: NullHip, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, x = project.op().bind("cpu"), torch.ones(4)
    monkeypatch.setenv("RFOPS_LAUNCHER", "auto")
    monkeypatch.setattr(launcher, "build", lambda: pytest.fail("built"))
    monkeypatch.setattr(launcher, "_native", None)
    monkeypatch.setattr(launcher, "_launches", launcher._ENOUGH - 1)
    if reason == "no jit":
        monkeypatch.setenv("RFOPS_JIT", "0")
    else:
        rfops.freeze("warn")
    try:
        bound.launch((1, 1, 1), (64, 1, 1), (x, x, 1.0, 4))
    finally:
        rfops.freeze("off")


def test_without_headers_it_is_ctypes(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sysconfig

    monkeypatch.setattr(sysconfig, "get_paths", lambda *_: {"include": str(tmp_path)})
    monkeypatch.setattr(launcher, "_native", None)
    assert launcher.build() is False
    assert torch.equal(project.run(project.op())[:2], torch.tensor([0.0, 2.0]))


# ---------------------------------------------------------------- plans


@pytest.fixture(params=["native", "python"])
def table(
    request: pytest.FixtureRequest, native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Plans]:
    if request.param == "python":
        in_python(monkeypatch)
    return Plans


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
    monkeypatch.setattr(launcher, "_native", None)


def test_plans_know_what_was_decided(table: Callable[..., Plans]) -> None:
    plans = table()
    x = torch.empty(4, 64)
    args = (x, torch.bfloat16, None, 3, 0.5, "text")
    assert plans.find(*args) is None
    assert plans.add("plan", *args) and plans.find(*args) == "plan"
    same = torch.empty(4, 64)
    assert plans.find(same, *args[1:]) == "plan", "another tensor like it"
    assert plans.find(torch.nn.Parameter(same, requires_grad=False), *args[1:]) == "plan"
    others: tuple[tuple[Any, ...], ...] = (
        (torch.empty(4, 65), *args[1:]),
        (torch.empty(64, 4).T, *args[1:]),
        (torch.empty(4, 128)[:, ::2], *args[1:]),
        (x.double(), *args[1:]),
        (x.int(), *args[1:]),
        (torch.empty(257)[1:].view(4, 64), *args[1:]),
        (x.flatten(), *args[1:]),
        (x, torch.float16, *args[2:]),
        (x, *args[1:3], 4, 0.5, "text"),
        (x, *args[1:4], 0.25, "text"),
        (x, *args[1:5], "other"),
        args[:-1],
        (*args, None),
        (*args[1:], x),
    )
    for other in others:
        assert plans.find(*other) is None, other
    assert (plans.hits, plans.misses, len(plans)) == (3, 1 + len(others), 1)
    plans.clear()
    assert plans.find(*args) is None and len(plans) == 0


def test_keys_of_tables_end_at_their_limit(native: ModuleType) -> None:
    """A key has 256 words: with any number of words before a table of three tensors it is found
    or refused."""
    table, scalars = [torch.ones(4, device="cpu") for _ in range(3)], torch.ones((), device="cpu")
    row, added = torch.ones(1, 2, 3, device="cpu"), []
    for rows, ones in itertools.product(range(20, 29), range(12)):
        plans, args = Plans(), (*[row] * rows, *[scalars] * ones, table)
        added.append(plans.add("plan", *args))
        assert plans.find(*args) == ("plan" if added[-1] else None), (rows, ones)
    assert any(added) and not all(added)


@pytest.mark.parametrize("method", ["add", "add_family"])
def test_native_plans_count_their_arguments(native: ModuleType, method: str) -> None:
    """The table reads a plan and at most 64 arguments; more would be written past its arrays."""
    add = getattr(Plans(sizes="N", shapes=("N",)), method)
    for arguments in ((), (str, *range(65))):
        with pytest.raises(TypeError, match="at most 64 arguments"):
            add(*arguments)
    assert Plans().add("plan", *range(64))


def test_plans_of_one_element_and_of_nothing(table: Callable[..., Plans]) -> None:
    plans = table()
    plans.add("row", torch.empty(1, 64))
    assert plans.find(torch.empty(1, 64)) == "row"
    plans.add("empty", torch.empty(0, 64))
    assert plans.find(torch.empty(0, 64)) == "empty" and plans.find(torch.empty(64, 0)) is None
    plans.add("scalar", torch.empty(()))
    assert plans.find(torch.empty(())) == "scalar"


def test_plans_refuse_what_is_no_plain_tensor(table: Callable[..., Plans]) -> None:
    plans = table()
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(4)
    assert plans.find(fake) is None and not plans.add("plan", fake) and plans.find(fake) is None
    plans.add("plan", torch.ones(4))
    recorded_calls = []
    torch.func.vmap(lambda row: recorded_calls.append(plans.find(row)) or row)(torch.ones(3, 4))
    torch.func.grad(lambda row: recorded_calls.append(plans.find(row)) or row.sum())(torch.ones(4))
    sparse = torch.ones(4).to_sparse()
    assert plans.find(sparse) is None and not plans.add("plan", sparse)
    assert recorded_calls == [None, None], "a transform's tensor was taken for a plain one"


def test_plans_of_cpu_tensors_are_of_an_architecture(
    table: Callable[..., Plans], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, x = table(), torch.ones(4)
    monkeypatch.delenv("RFOPS_VGPU_ARCH", raising=False)
    assert plans.add("default", x) and plans.find(x) == "default"
    for arch in ("gfx942", "gfx90a"):
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
        assert plans.find(x) is None
        assert plans.add(arch, x) and plans.find(x) == arch
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFOPS_VGPU_ARCH", "gfx942")
        assert plans.find(x) == "gfx942"
    assert plans.find(x) == "gfx90a"
    monkeypatch.delenv("RFOPS_VGPU_ARCH")
    assert plans.find(x) == "default"
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942:sramecc+")
    assert plans.find(x) is None, "by its first characters"


def test_plans_are_not_found_where_torch_has_to_see_the_call(table: Callable[..., Plans]) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    plans, x = table(), torch.ones(4)
    plans.add("plan", x)
    recorded_calls: list[object] = []
    for mode in (TorchDispatchMode, TorchFunctionMode, torch._subclasses.FakeTensorMode):
        with mode():
            recorded_calls.append(plans.find(x))
        assert plans.find(x) == "plan"
    for transform in (torch.func.vmap, torch.func.grad, torch.func.functionalize):
        transform(lambda row: recorded_calls.append(plans.find(x)) or row.sum())(torch.ones(3))
        assert plans.find(x) == "plan"
    assert recorded_calls == [None] * 6


def test_an_overlapping_out_is_never_found(table: Callable[..., Plans]) -> None:
    plans = table(out=1)
    memory = torch.empty(1024)
    x, out = memory[:64], memory[64:128]
    assert plans.add("plan", x, out, None) and plans.find(x, out, None) == "plan"
    assert plans.find(memory[128:192], out, None) == "plan", "it begins where out ends"
    for start in (0, 16, 60):
        assert plans.find(x, memory[start : start + 64], None) is None
    assert plans.find(x, memory[128:192], None) == "plan"
    wide = memory.view(16, 64)[:, :4]
    assert plans.add("wide", wide, memory[4:8], 1) is False, "within the strides of another"
    assert plans.add("none", x, None, None) and plans.find(x, None, None) == "none"
    assert plans.add("empty", x, x[:0], 2) and plans.find(x, x[:0], 2) == "empty"


def test_plans_are_bounded(table: Callable[..., Plans]) -> None:
    """A growing sequence: the least recently used goes, what is in use stays."""
    plans = table(capacity=8)
    steady = torch.empty(1)
    plans.add("steady", steady)
    for n in range(2, 100):
        x = torch.empty(n)
        assert plans.find(x) is None
        plans.add(n, x)
        assert plans.find(x) == n and plans.find(steady) == "steady"
        assert len(plans) <= 8
    assert plans.find(torch.empty(99)) == 99 and plans.find(torch.empty(50)) is None


def test_plans_keep_what_they_compare_by_identity(table: Callable[..., Plans]) -> None:
    """An object of a key must not die: another one could get its address."""

    class Config:
        pass

    plans = table()
    for index in range(50):
        config = Config()
        assert plans.find(torch.empty(1), config) is None, "found by the address of a dead one"
        plans.add(index, torch.empty(1), config)
        assert plans.find(torch.empty(1), config) == index
        del config
    last = weakref.ref(kept := Config())
    plans.add("x", torch.empty(1), kept)
    del kept
    assert last() is not None
    plans.clear()
    gc.collect()
    assert last() is None


def test_equal_objects_are_one(table: Callable[..., Plans]) -> None:
    """A config that is made anew for each call; but never one of another type."""

    @dataclass(frozen=True)
    class Config:
        tile: int

    @dataclass(frozen=True)
    class Other:
        tile: int

        def __eq__(self, other: object) -> bool:
            return getattr(other, "tile", None) == self.tile

        __hash__ = Config.__hash__

    plans, x = table(), torch.empty(1)
    for tile in range(3):
        assert plans.find(x, Config(tile)) is None
        plans.add(tile, x, Config(tile))
    assert [plans.find(x, Config(tile)) for tile in range(3)] == [0, 1, 2]
    assert plans.find(x, Other(1)) is None
    assert plans.find(x, Config(3)) is None and len(plans) == 3
    plans.add("text", x, "".join(["a", "b"]))
    assert plans.find(x, "".join(["a", "b"])) == "text"
    unhashable = [1]
    assert plans.find(x, unhashable) is None
    if plans.add("list", x, unhashable):  # the native table: by identity
        assert plans.find(x, unhashable) == "list" and plans.find(x, [1]) is None


# ---------------------------------------------------------------- families of plans

DECLARED: dict[str, Any] = {
    "out": 4,
    "sizes": "M K N R",
    "shapes": ("M,K", "N,K/32", "*R", "?", "M,N", "R", "3"),
}
Sizes = tuple[int, int, int, int]


def arguments(m: int = 2, k: int = 64, n: int = 5, r: int = 6) -> list[Any]:
    return [
        torch.ones(m, k),
        torch.ones(n, k // 32),
        torch.ones(2, r // 2),
        torch.ones(7).int(),
        torch.empty(m, n),
        r,
        torch.ones(3),
        "value",
    ]


@pytest.fixture
def family(native: ModuleType) -> tuple[Plans, list[Sizes]]:
    """Plans with one family, whose plans are the sizes, and the calls of what decides."""
    plans = Plans(**DECLARED)
    calls: list[Sizes] = []

    def decide(*sizes: int) -> Sizes:
        calls.append(sizes)  # type: ignore[arg-type]
        return sizes  # type: ignore[return-value]

    assert plans.find(*arguments()) is None
    assert plans.add_family(decide, *arguments())
    return plans, calls


def test_a_family_makes_plans_of_other_sizes(family: tuple[Plans, list[Sizes]]) -> None:
    plans, calls = family
    expected = [(2, 64, 5, 6), (1, 32, 1, 2), (300, 4096, 17, 10**6), (2, 64, 6, 6)]
    for sizes in expected:
        for _ in range(3):
            assert plans.find(*arguments(*sizes)) == sizes
    assert calls == expected, "each once"
    assert (plans.hits, plans.misses, len(plans)) == (8, 1 + len(expected), len(expected))


def strange(offset: int, value: Any) -> list[Any]:
    args = arguments()
    args[offset] = value
    return args


def overlapping() -> list[Any]:
    memory = torch.ones(256)
    return [
        memory[:128].view(2, 64),
        *arguments()[1:4],
        memory[120:130].view(2, 5),
        *arguments()[5:],
    ]


OUTSIDERS: dict[str, list[Any]] = {
    "another dtype": strange(0, torch.ones(2, 64).double()),
    "another rank": strange(0, torch.ones(2, 64, 1)),
    "a size that differs": strange(4, torch.empty(2, 6)),
    "a size that is not K/32": strange(1, torch.ones(5, 3)),
    "turned": strange(0, torch.ones(64, 2).T),
    "rows apart": strange(0, torch.ones(2, 128)[:, :64]),
    "another alignment": strange(0, torch.ones(129)[1:].view(2, 64)),
    "empty": strange(0, torch.ones(0, 64)),
    "elements that differ": strange(2, torch.ones(5)),
    "another int": strange(5, 7),
    "an int beyond 64 bits": strange(5, 2**70),
    "not the constant": strange(6, torch.ones(4)),
    "another value": strange(7, "other"),
    "a tensor in place of a value": strange(7, torch.ones(1)),
    "no tensor": strange(0, None),
    "out over an input": overlapping(),
    "too few": arguments()[:-1],
    "one more": [*arguments(), 1],
    "a fake tensor": strange(0, torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2, 64))),
}


@pytest.mark.parametrize("case", OUTSIDERS)
def test_outside_of_a_family(case: str, family: tuple[Plans, list[Sizes]]) -> None:
    plans, calls = family
    assert plans.find(*OUTSIDERS[case]) is None and not calls


def test_a_family_of_strides(native: ModuleType) -> None:
    """[M, B, K] seen as [B, M, K]: other M have the same strides."""
    plans = Plans(sizes="B M K", shapes=("B,M,K", "B,K^128"))

    def args(b: int, m: int, k: int, turn: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.ones(m, b, k).transpose(0, 1) if turn else torch.ones(b, m, k)
        return x, torch.ones(b, -(-k // 128))

    assert plans.add_family(lambda *sizes: ("turned", *sizes), *args(3, 5, 70))
    assert plans.find(*args(3, 9, 70)) == ("turned", 3, 9, 70)
    for other in (args(3, 9, 71), args(4, 9, 70), args(3, 9, 70, turn=False), args(3, 1, 70)):
        assert plans.find(*other) is None
    assert plans.add_family(lambda *sizes: sizes, *args(3, 5, 70, turn=False))
    for sizes in ((3, 9, 70), (1, 2, 128), (2, 2, 129), (2, 4, 1)):
        assert plans.find(*args(*sizes, turn=False)) == sizes
    x, _ = args(2, 2, 300, turn=False)
    for columns in (2, 4):
        assert plans.find(x, torch.ones(2, columns)) is None


def test_a_family_of_optional_arguments(family: tuple[Plans, list[Sizes]]) -> None:
    """Without a tensor it is another family; a size that only that one gives is then unknown."""
    plans, calls = family
    without = [*arguments()[:2], None, None, None, *arguments()[5:]]
    assert plans.find(*without) is None
    assert plans.add_family(lambda *sizes: ("without", *sizes), *without)
    assert plans.find(*without) == ("without", 2, 64, 5, 6)
    unknown = [arguments()[0], None, *without[2:]]
    assert not plans.add_family(lambda *sizes: sizes, *unknown)
    assert plans.find(*unknown) is None and not calls


def test_what_decides_may_pass_or_raise(native: ModuleType) -> None:
    plans = Plans(**DECLARED)

    def decide(m: int, *_: int) -> str | None:
        if m == 3:
            raise ValueError("not three")
        return None if m == 4 else "plan"

    assert plans.add_family(decide, *arguments())
    assert plans.find(*arguments(2)) == "plan"
    for _ in range(2):
        assert plans.find(*arguments(4)) is None
        with pytest.raises(ValueError, match="not three"):
            plans.find(*arguments(3))
    assert len(plans) == 1


def test_families_are_not_asked_where_torch_has_to_see_the_call(
    family: tuple[Plans, list[Sizes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, calls = family
    args = arguments(9)
    with torch._subclasses.FakeTensorMode():
        assert plans.find(*args) is None
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    assert plans.find(*args) is None, "another architecture's family"
    assert not calls


def test_plans_that_a_family_makes_are_bounded(native: ModuleType) -> None:
    plans = Plans(**{**DECLARED, "capacity": 8})
    result: list[weakref.ref[Any]] = []

    class Plan:
        pass

    def decide(*_: int) -> Plan:
        result.append(weakref.ref(plan := Plan()))
        return plan

    for number in range(1000):  # families too
        args = arguments()
        args[7] = number
        assert plans.add_family(decide, *args)
    for m in range(1, 100):
        args = arguments(m)
        args[7] = 999
        assert plans.find(*args) is not None and len(plans) <= 8
    assert sum(plan() is not None for plan in result) == 8
    args[7] = 0
    assert plans.find(*args) is None, "the oldest family has gone"
    plans.clear()
    gc.collect()
    assert not any(plan() for plan in result) and plans.find(*args) is None


def test_a_table_in_python_knows_no_families(
    native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_python(monkeypatch)
    plans = Plans(**DECLARED)
    assert not plans.add_family(lambda *sizes: sizes, *arguments())
    assert plans.find(*arguments()) is None
    assert plans.add("plan", *arguments()) and plans.find(*arguments()) == "plan"


# ---------------------------------------------------------------- thin


def test_every_row_of_the_bench_can_be_measured(native: ModuleType, tmp_path: Path) -> None:
    """Its times and bars are the bench's own affair."""
    with bench_dispatch.null_runtime(tmp_path):
        calls = bench_dispatch.candidates(tmp_path)
        seconds = bench_dispatch.measure(calls, rounds=1, number=2)
    assert set(seconds) | {"tvm_ffi"} == set(bench_dispatch.ROWS)
    for bar in bench_dispatch.BARS:
        assert {bar.row, bar.unit} <= set(seconds)


def test_missed_bars_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    bar = bench_dispatch.Bar("op", "native", 4.5)
    assert bench_dispatch.report([bar], {"op": 4.0, "native": 1.0})
    assert capsys.readouterr().out == "   4.00  op / native, at most 4.5: met\n"
    assert not bench_dispatch.report([bar], {"op": 5.0, "native": 1.0})
    assert capsys.readouterr().out.endswith("at most 4.5: MISSED\n")


@pytest.mark.sweep
def test_the_bench_runs() -> None:
    bench = str(Path(bench_dispatch.__file__))
    completed = subprocess.run(
        [sys.executable, bench, "--quick"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RFOPS_LOG": "warning"},
    )
    assert not completed.stderr and completed.returncode == ("MISSED" in completed.stdout)
    for row in ("native", "op", "growing", "library", "custom_op"):
        assert f" {row} " in completed.stdout
