"""The names by which programs that were linked against ROCm's library find the virtual GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from rfops.jit import ConfigError
from rfops.jit.build import vgpu_library
from support.command import good
from support.vgpu.hip import compile_c

# As ROCm's library: a name with its major version, and symbols of several versions.
_THEIRS = (
    "int hipInit(unsigned f) { return 77; }\nint hipGetStreamDeviceId(void* s) { return 77; }\n"
)
_VERSIONS = "hip_4.2 { global: hipInit; };\nhip_7.1 { global: hipGetStreamDeviceId; } hip_4.2;\n"
_PROGRAM = r"""
#include <stdio.h>
int hipInit(unsigned);
int hipGetStreamDeviceId(void*);
int main(void) { printf("%d %d\n", hipInit(0), hipGetStreamDeviceId(0)); }
"""
# What rocPRIM, hipCUB and rocThrust (headers, tests, benchmarks), aiter's host code and PyTorch's
# headers call, images, IPC and virtual memory apart.
_CALLED = """
DeviceGetAttribute DeviceGetStreamPriorityRange DeviceSynchronize DrvGetErrorString EventCreate
EventCreateWithFlags EventDestroy EventElapsedTime EventQuery EventRecord EventRecordWithFlags
EventSynchronize Free FuncGetAttributes FuncSetAttribute GetDevice GetDeviceCount
GetDeviceProperties GetErrorName GetErrorString GetFuncBySymbol GetLastError GetStreamDeviceId
GraphAddKernelNode GraphAddMemcpyNode1D GraphCreate GraphDebugDotPrint GraphDestroy
GraphExecDestroy GraphGetNodes GraphInstantiate GraphInstantiateWithFlags GraphLaunch HostFree
HostMalloc LaunchKernel Malloc MallocAsync MallocManaged MemGetInfo Memcpy MemcpyAsync
MemcpyPeerAsync MemcpyToSymbol MemcpyWithStream Memset MemsetAsync ModuleGetFunction
ModuleLaunchKernel ModuleLoadData ModuleUnload OccupancyMaxActiveBlocksPerMultiprocessor
OccupancyMaxPotentialBlockSize PeekAtLastError PointerGetAttributes ProfilerStart ProfilerStop
SetDevice StreamBeginCapture StreamCreate StreamCreateWithFlags StreamCreateWithPriority
StreamDestroy StreamEndCapture StreamGetCaptureInfo StreamGetCaptureInfo_v2 StreamGetPriority
StreamIsCapturing StreamQuery StreamSynchronize StreamUpdateCaptureDependencies StreamWaitEvent
ThreadExchangeStreamCaptureMode
"""


@pytest.fixture(name="lib_dir", scope="module")
def lib_dir_fixture() -> Path:
    return Path(good("vgpu", "--lib-dir").rstrip("\n"))


@pytest.mark.parametrize("name", ["libamdhip64.so", *(f"libamdhip64.so.{n}" for n in (5, 6, 7))])
def test_a_program_linked_against_rocm_finds_the_virtual_gpu(
    lib_dir: Path, tmp_path: Path, name: str
) -> None:
    versions, theirs = tmp_path / "versions.map", tmp_path / name
    versions.write_text(_VERSIONS)
    shared = ("-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}")
    compile_c(_THEIRS, theirs, *shared)
    compile_c(_PROGRAM, tmp_path / "program", str(theirs))
    theirs.unlink()
    completed = subprocess.run(
        [tmp_path / "program"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(lib_dir), "RFOPS_VGPU_ARCH": "gfx950"},
    )
    assert (completed.returncode, completed.stdout) == (0, "0 0\n"), completed.stderr
    assert completed.stderr == "", "and not a word of version information that is missing"


def test_what_public_libraries_call_is_there(lib_dir: Path) -> None:
    library = ctypes.CDLL(str(lib_dir / "libamdhip64.so.7"))
    assert [name for name in _CALLED.split() if not hasattr(library, f"hip{name}")] == []


def test_the_names_are_one_library(lib_dir: Path) -> None:
    path = Path(good("vgpu", "--path").rstrip("\n"))
    assert not any(file.is_symlink() for file in path.parent.iterdir()), "the cache takes no links"
    for name in vgpu_library.NAMES:
        assert (lib_dir / name).samefile(path)
        assert not (lib_dir / name).readlink().is_absolute(), "moves with its folder"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library = tmp_path / "v1" / "host" / "vgpu" / "key" / "libamdhip64.so"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(vgpu_library, "vgpu_library", lambda: library)
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path))
    return library


def test_a_link_that_is_missing_or_wrong_is_made_again(library: Path, tmp_path: Path) -> None:
    (tmp_path / "lib" / "key").mkdir(parents=True)
    (tmp_path / "lib" / "key" / "libamdhip64.so.6").symlink_to("/nowhere")
    for _ in range(2):
        folder = vgpu_library.vgpu_library_folder()
        assert folder == tmp_path / "lib" / "key"
        assert sorted(file.name for file in folder.iterdir()) == sorted(vgpu_library.NAMES)
        assert all((folder / name).samefile(library) for name in vgpu_library.NAMES)
    assert [file.name for file in library.parent.iterdir()] == [library.name]


def test_the_hsa_runtime_has_its_names() -> None:
    """AMD's libamdhip64.so.7 asks for the SONAME, and for symbols of version ROCR_1."""
    folder = Path(good("vgpu", "--hsa-dir").rstrip("\n"))
    assert sorted(file.name for file in folder.iterdir()) == sorted(vgpu_library.HSA_NAMES)
    library = ctypes.CDLL(str(folder / "libhsa-runtime64.so.1"))
    dlvsym = ctypes.CDLL(None).dlvsym
    dlvsym.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library._handle)
    assert dlvsym(handle, b"hsa_init", b"ROCR_1") and not dlvsym(handle, b"hsa_init", b"ROCR_2")
    assert not hasattr(library, "hipInit")


def test_a_folder_that_takes_no_links_is_an_error(library: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").touch()
    with pytest.raises(ConfigError, match=r"cannot make .*make links to .*libamdhip64"):
        vgpu_library.vgpu_library_folder()
