"""The checking mode of the virtual GPU: each planted defect is found where it is, and nothing else.

A case is a piece of assembly with one defect (check_cases.py). The line marked `// here` is
the one that the finding must name; the same piece with its fix must give no finding at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rfops
from rfops.jit.launch import tensor_memory
from support.engine_project import Project
from support.vgpu.check_cases import BYTES, CLEAN, MARKER, Case, cases, source
from support.vgpu.hip import ARCHS, ILLEGAL_ADDRESS, LAUNCH_FAILURE, SUCCESS, Hip, compile_hip, zig


def assemble(text: str, arch: str, folder: Path) -> bytes:
    """With debug lines, so that a finding names the line of the assembly."""
    asm, obj, out = (folder / f"check.{end}" for end in ("s", "o", "hsaco"))
    asm.write_text(text)
    zig("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-g", "-c", asm, "-o", obj)
    zig("ld.lld", "-shared", obj, "-o", out)
    return out.read_bytes()


class Gpu:
    """The virtual GPU with checking on, the cases of an architecture, and two buffers."""

    def __init__(self, hip: Hip, arch: str, folder: Path) -> None:
        self.hip, self.arch = hip, arch
        hip.lib.rfops_vgpu_check_take.restype = ctypes.c_char_p
        hip.lib.rfops_vgpu_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        hip.lib.rfops_vgpu_unregister.argtypes = [ctypes.c_void_p]
        hip.select(arch)
        self.cases = cases(arch)
        self.text = source(arch).splitlines()
        self.module = hip.load(assemble("\n".join(self.text), arch, folder))
        self.out, self.input = self.allocate(), self.allocate()

    def allocate(self, written: bool = True) -> int:
        pointer = ctypes.c_void_p()
        self.hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(BYTES))
        if written:
            self.hip.call("hipMemset", pointer, 1, ctypes.c_size_t(BYTES))
        assert pointer.value
        return pointer.value

    @contextlib.contextmanager
    def input_of(self, case: Case) -> Iterator[int]:
        """The input buffer, or one that was allocated while checking was on and never written."""
        if not case.is_new:
            yield self.input
            return
        previous = self.hip.rfops_vgpu_check(1)
        fresh = self.allocate(written=False)
        yield fresh
        self.hip.call("hipFree", ctypes.c_void_p(fresh))
        self.hip.rfops_vgpu_check(previous)

    def launch(
        self, kernel: str, waves: int, given: int | None = None, level: int = 1
    ) -> tuple[int, list[dict[str, Any]]]:
        """The launch's status and its findings."""
        self.hip.select(self.arch)
        function = self.hip.function(self.module, kernel)
        buffers = [ctypes.c_void_p(self.out), ctypes.c_void_p(given or self.input)]
        previous = self.hip.rfops_vgpu_check(level)
        try:
            status = self.hip.launch(function, *buffers, block=(64 * waves,))
            result = json.loads(self.hip.lib.rfops_vgpu_check_take().decode())
        finally:
            self.hip.rfops_vgpu_check(previous)
        return status, result

    def line_of(self, kernel: str) -> int:
        """The line of the source that the finding in `kernel` has to name, from 1."""
        start = self.text.index(f"{kernel}:")
        return next(i for i in range(start, len(self.text)) if MARKER in self.text[i]) + 1


@pytest.fixture(scope="module")
def gpus(vgpu_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Gpu]:
    return cache(lambda arch: Gpu(Hip(vgpu_path), arch, tmp_path_factory.mktemp("check")))


@pytest.fixture(params=ARCHS)
def gpu(request: pytest.FixtureRequest, gpus: Callable[[str], Gpu]) -> Gpu:
    return gpus(request.param)


SPECIAL = {"far", "through_table"}  # with tests of their own


def show(results: list[dict[str, Any]]) -> str:
    return "\n".join(str(finding) for finding in results)


EACH = pytest.mark.parametrize(
    ("gpu", "name"), [(arch, name) for arch in ARCHS for name in cases(arch)], indirect=["gpu"]
)


@EACH
def test_a_planted_defect_is_found_and_nothing_else(gpu: Gpu, name: str) -> None:
    case = gpu.cases[name]
    with gpu.input_of(case) as given:
        status, result = gpu.launch(name, case.waves, given)
    assert status == (ILLEGAL_ADDRESS if case.faults else SUCCESS), gpu.hip.error()
    assert len(result) == 1, show(result)
    finding = result[0]
    line = gpu.line_of(name)
    mnemonic = gpu.text[line - 1].split()[0]
    assert finding["kind"] == case.kind, show(result)
    assert finding["kernel"] == name
    assert finding["instruction"].startswith(mnemonic), show(result)
    assert finding["line"] == line and finding["file"].endswith("check.s"), show(result)
    for words in case.words:
        assert words in finding["detail"], show(result)
    assert finding["workgroup"] == [0, 0, 0] and finding["count"] >= 1
    for key, value in case.place(gpu.input).items():
        assert finding[key] == value, show(result)


@EACH
def test_the_fixed_kernel_is_clean(gpu: Gpu, name: str) -> None:
    case = gpu.cases[name]
    with gpu.input_of(case) as given:
        status, result = gpu.launch(name + "_fixed", case.waves, given)
    assert status == SUCCESS and not result, show(result)


@pytest.mark.parametrize("name", [name for name in CLEAN if name not in SPECIAL])
def test_what_is_right_is_not_reported(gpu: Gpu, name: str) -> None:
    status, result = gpu.launch(name, CLEAN[name].waves)
    assert status == SUCCESS and not result, show(result)


@pytest.mark.parametrize("kernel", ["wait_load_fixed", "write_input"])
def test_a_use_after_free_names_the_freed_block(gpu: Gpu, kernel: str) -> None:
    freed = gpu.allocate()
    gpu.hip.call("hipFree", ctypes.c_void_p(freed))
    status, result = gpu.launch(kernel, 1, given=freed)
    assert status == ILLEGAL_ADDRESS  # the page is gone as well
    assert [finding["kind"] for finding in result] == ["use after free"], show(result)
    assert result[0]["address"] == freed and result[0]["lane"] == 0
    assert f"{BYTES} bytes at {freed:#x} that was freed" in result[0]["detail"]
    assert ("writes" if kernel == "write_input" else "reads") in result[0]["detail"]


def test_a_wild_pointer_is_reported_before_it_faults(gpu: Gpu) -> None:
    status, result = gpu.launch("far", 1)
    assert status == ILLEGAL_ADDRESS
    assert [finding["kind"] for finding in result] == ["out of bounds"], show(result)


def test_host_memory_is_checked_once_it_is_registered(gpu: Gpu) -> None:
    """Nobody told us of this array's end: its neighbourhood may be the caller's as well."""
    array = np.zeros(2 * BYTES, np.uint8)
    base = array.ctypes.data
    status, result = gpu.launch("load", 1, given=base)
    assert status == SUCCESS and not result, show(result)
    gpu.hip.rfops_vgpu_register(base, BYTES)
    gpu.hip.rfops_vgpu_register(base + 16, BYTES - 16)  # a view of it
    try:
        status, result = gpu.launch("load", 1, given=base)
        assert status == SUCCESS
        assert [f["kind"] for f in result] == ["out of bounds"], show(result)
        assert result[0]["address"] == base + BYTES
        assert "registered memory" in result[0]["detail"]
    finally:
        gpu.hip.rfops_vgpu_unregister(base)
        gpu.hip.rfops_vgpu_unregister(base + 16)
    status, result = gpu.launch("load", 1, given=base)
    assert status == SUCCESS and not result, show(result)


def test_pointers_in_memory_are_followed(gpu: Gpu) -> None:
    """What a kernel reaches through a pointer that it read is not the surroundings of an array."""
    target = np.zeros(4096, np.uint8)
    table = np.array([target.ctypes.data], np.uint64)
    gpu.hip.rfops_vgpu_register(table.ctypes.data, table.nbytes)
    try:
        status, result = gpu.launch("through_table", 1, given=table.ctypes.data)
        assert status == SUCCESS and not result, show(result)
        gpu.hip.rfops_vgpu_register(target.ctypes.data, 100)
        status, result = gpu.launch("through_table", 1, given=table.ctypes.data)
        gpu.hip.rfops_vgpu_unregister(target.ctypes.data)
    finally:
        gpu.hip.rfops_vgpu_unregister(table.ctypes.data)
    assert status == SUCCESS
    assert [finding["kind"] for finding in result] == ["out of bounds"], show(result)
    assert result[0]["address"] == target.ctypes.data + 100 and result[0]["lane"] == 25


def test_as_errors_findings_fail_the_launch(gpu: Gpu) -> None:
    status, result = gpu.launch("wait_load", 1, level=2)
    assert status == LAUNCH_FAILURE and len(result) == 1
    for part in ("wait_load", "missing wait", "v_add_u32", "check.s", "reads v8"):
        assert part in gpu.hip.error(), gpu.hip.error()
    status, result = gpu.launch("wait_load_fixed", 1, level=2)
    assert status == SUCCESS and not result


def test_off_means_off(gpu: Gpu) -> None:
    status, result = gpu.launch("wait_load", 1, level=0)
    assert status == SUCCESS and not result


def test_repeats_are_counted_not_repeated(gpu: Gpu) -> None:
    status, result = gpu.launch("wait_load", 4)
    assert status == SUCCESS and len(result) == 1
    assert result[0]["count"] == 4 and result[0]["wave"] == 0


DEFECTS = (Path(__file__).parent / "sources" / "defects.hip").read_text().splitlines()
TAG = "// here: "


def _compiled_defects() -> dict[str, tuple[str, int]]:
    """Kernel: kind of the finding, line."""
    results, kernel = {}, ""
    for number, line in enumerate(DEFECTS, 1):
        if line.startswith("KERNEL"):
            kernel = line.split("(")[0].split()[-1]
        elif TAG in line:
            results[kernel] = (line.split(TAG)[1], number)
    return results


@pytest.mark.parametrize("arch", ARCHS)
def test_defects_in_compiled_code(vgpu_path: Path, tmp_path: Path, arch: str) -> None:
    """With their lines; the two tensors end where they end."""
    hip = Hip(vgpu_path)
    hip.select(arch)
    module = hip.load(compile_hip("\n".join(DEFECTS), arch, tmp_path, "-gline-tables-only"))
    values = np.arange(256, dtype=np.float32)
    size = ctypes.c_size_t(values.nbytes)
    for kernel, (kind, line) in _compiled_defects().items():
        buffers = [ctypes.c_void_p(), ctypes.c_void_p()]
        for buffer in buffers:
            hip.call("hipMalloc", ctypes.byref(buffer), size)
            hip.call("hipMemcpyHtoD", buffer, ctypes.c_void_p(values.ctypes.data), size)
        with rfops.vgpu.check() as check:
            hip.launch(hip.function(module, kernel), *buffers, block=(256,))
        for buffer in buffers:
            hip.call("hipFree", buffer)
        # A race shows at both its ends, and may bring values that nobody had written yet.
        results = {(finding.kind, finding.line) for finding in check.findings}
        assert (kind, line) in results, f"{kernel}: {results}"
        assert kind == "LDS race" or len(results) == 1, f"{kernel}: {results}"
        assert all((f.file or "").endswith(f"kernels.{arch}.hip") for f in check.findings)


SCALES = torch.full((2, 16, 2), 127, dtype=torch.uint8)


def test_tensors_end_where_they_end(project: Project) -> None:
    """A tensor that is one element short: what reads behind it is found, with the lane."""
    kernel = project.op().bind("cpu")
    out, x = torch.empty(100), torch.arange(100, dtype=torch.float32)
    with rfops.vgpu.check() as clean:
        kernel.launch((2, 1, 1), (64, 1, 1), (out, x, 2.0, 100))
        rfops.gemm_mxfp8(*torch.zeros(2, 16, 64).to(torch.float8_e4m3fn), *SCALES)
    assert not clean.findings, clean.findings
    short = x[:99].clone()
    with rfops.vgpu.check() as check:
        kernel.launch((2, 1, 1), (64, 1, 1), (out, short, 2.0, 100))
    (finding,) = check.findings
    assert (finding.kind, finding.kernel) == ("out of bounds", "axpy")
    assert (finding.workgroup, finding.wave, finding.lane) == ((1, 0, 0), 0, 35)
    assert finding.address == short.data_ptr() + 99 * 4
    assert "reads 4 bytes" in finding.detail and "(argument 1)" in finding.detail
    assert Path(finding.file).name == "axpy.hip" and finding.line, finding
    room = np.zeros(100, np.float32)  # so that what is written behind the tensor harms nobody
    with rfops.vgpu.check() as check:
        kernel.launch((2, 1, 1), (64, 1, 1), (torch.from_numpy(room[:80]), x, 2.0, 100))
    (finding,) = check.findings
    assert finding.kind == "out of bounds" and "writes 4 bytes" in finding.detail
    assert "(argument 0)" in finding.detail
    assert (finding.workgroup, finding.lane) == ((1, 0, 0), 16)
    kernel.launch((2, 1, 1), (64, 1, 1), (out, short, 2.0, 100))
    with rfops.vgpu.check() as nothing:
        pass
    assert not nothing.findings


def test_a_kernel_bound_in_a_block_is_as_others_after_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block ends, and with it what the kernel told of its tensors: nothing of it is kept."""
    args = (2, 1, 1), (64, 1, 1), (torch.empty(100), torch.ones(100), 2.0, 100)
    with rfops.vgpu.check() as check:
        kernel = project.op().bind("cpu")
        kernel.launch(*args)
    assert not check.findings
    recorded_calls: list[object] = []
    monkeypatch.setattr(
        tensor_memory, "registered", lambda *message: recorded_calls.append(message)
    )
    kernel.launch(*args)
    assert not recorded_calls


@pytest.mark.parametrize("setting", ["1", "error"])
def test_the_variable(project: Project, setting: str) -> None:
    """Checks every launch of a process: findings on stderr, and with `error` the launch fails."""
    process = project.start(
        """
        import rfops, torch
        kernel = project.op().bind("cpu")
        out, x = torch.empty(100), torch.arange(99, dtype=torch.float32)
        kernel.launch((1, 1, 1), (64, 1, 1), (out, x, 2.0, 64))
        try:
            kernel.launch((2, 1, 1), (64, 1, 1), (out, x, 2.0, 100))
            print("done")
        except rfops.HipError as error:
            print("failed:", error)
        """,
        RFOPS_VGPU_CHECK=setting,
    )
    out, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    finding = "check: out of bounds: kernel axpy"
    assert finding in log, log
    assert out.strip().startswith("failed:" if setting == "error" else "done"), out
    if setting == "error":
        assert finding in out and "workgroup 1,0,0 wave 0 lane 35" in out, out


def test_triton_tensors_end_where_they_end(vgpu_path: Path) -> None:
    """The last block of a Triton kernel that forgot its mask."""
    from support.vgpu_triton_kernels import add

    out, y, x = torch.zeros(256), torch.zeros(256), torch.arange(200, dtype=torch.float32)
    rfops.vgpu.activate_triton("gfx950")
    try:
        with rfops.vgpu.check() as clean:
            add[(4,)](x, y, out, 200, BLOCK=64, num_warps=1)
        with rfops.vgpu.check() as check:
            add[(4,)](x, y, out, 256, BLOCK=64, num_warps=1)
    finally:
        rfops.vgpu.deactivate_triton()
    assert not clean.findings, clean.findings
    assert {finding.kind for finding in check.findings} == {"out of bounds"}, check.findings
    assert check.findings[0].address == x.data_ptr() + 800
    assert check.findings[0].workgroup == (3, 0, 0)
    assert check.findings[0].file and check.findings[0].file.endswith("vgpu_triton_kernels.py")
