"""The virtual GPU through HIP's C interface: calls, test kernels and fixtures of test_vgpu_*.py.

Error codes are ROCm's, as its own test suite (hip-tests) expects them from the module interface.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest

from rfops.jit.build import toolchain

ARCHS = ("gfx950", "gfx942")
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION = 0, 1, 2, 9
INVALID_DIRECTION, INVALID_FUNCTION, INVALID_DEVICE, INVALID_IMAGE = 21, 98, 101, 200
NO_BINARY, FILE_NOT_FOUND, INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS = 209, 301, 400, 500, 700
OUT_OF_RESOURCES = 701
CONTEXT_DESTROYED, LAUNCH_FAILURE, COOPERATIVE_TOO_LARGE, NOT_SUPPORTED = 709, 719, 720, 801
HOST_TO_DEVICE, DEVICE_TO_HOST, DEFAULT = 1, 2, 4
LDS_BYTES = {"gfx950": 160 << 10, "gfx942": 64 << 10}

SOURCE = r"""
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define BOUNDS(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
using u32 = unsigned;

extern "C" __device__ int counter = 42;
extern "C" __device__ int* counter_pointer = &counter;
extern "C" __device__ unsigned char zeroed[5000] = {};
extern "C" __constant__ float table[4] = {1.5f, -2.0f, 0.25f, 8.0f};

extern "C" __global__ void empty() {}
extern "C" __global__ void BOUNDS(64) bounded(int* out) { *out = 1; }

// Arguments of every size, with padding between them.
extern "C" __global__ void arguments(double* out, char c, short s, int i, float f, double d,
                                     long l, char last) {
  out[0] = c; out[1] = s; out[2] = i; out[3] = f; out[4] = d; out[5] = l; out[6] = last;
}

// The hidden arguments of code object v5 and later.
extern "C" __global__ void shapes(u32* out) {
  auto* hidden = (const __constant__ unsigned char*)__builtin_amdgcn_implicitarg_ptr();
  if (__builtin_amdgcn_workitem_id_x() | __builtin_amdgcn_workgroup_id_x()) return;
  for (int i = 0; i < 3; ++i) out[i] = ((const __constant__ u32*)hidden)[i];
  for (int i = 0; i < 6; ++i) out[3 + i] = ((const __constant__ unsigned short*)(hidden + 12))[i];
  for (int i = 0; i < 6; ++i) out[9 + i] = ((const __constant__ u32*)(hidden + 40))[i];
  out[15] = *(const __constant__ unsigned short*)(hidden + 64);
}

extern "C" __global__ void sizes(u32* out) {
  out[0] = __builtin_amdgcn_workgroup_size_x();
  out[1] = __builtin_amdgcn_workgroup_size_y();
  out[2] = __builtin_amdgcn_grid_size_x();
}

extern "C" __global__ void globals(float* out) {
  out[0] = *counter_pointer + counter;
  for (int i = 0; i < 4; ++i) out[1 + i] = table[i];
  out[5] = zeroed[4999];
  counter = 7;
}

// Reverses 64 words through LDS that is allocated at launch.
extern "C" __global__ void reverse(int* out, const int* in) {
  extern __shared__ int tile[];
  const int i = __builtin_amdgcn_workitem_id_x();
  tile[i] = in[i];
  __builtin_amdgcn_s_waitcnt(0);
  __builtin_amdgcn_s_barrier();
  out[i] = tile[63 - i];
}

extern "C" __global__ void static_lds(int* out) {
  __shared__ int tile[1024];
  const int i = __builtin_amdgcn_workitem_id_x();
  tile[i] = i;
  __builtin_amdgcn_s_barrier();
  out[i] = tile[i ^ 1];
}

extern "C" __global__ void index(int* out, int n) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) out[i] = i * 3;
}

extern "C" __global__ void trap() { __builtin_trap(); }
"""


def zig(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{' '.join(command)}\n{completed.stderr[:4000]}"


def compile_hip(source: str, arch: str, folder: Path, *extra_flags: str) -> bytes:
    """A code object; `more` are flags, -g for debug lines."""
    hip, asm, obj, out = (folder / f"kernels.{arch}.{end}" for end in ("hip", "s", "o", "hsaco"))
    hip.write_text(source)
    flags = ("-x", "hip", "--cuda-device-only", f"--offload-arch={arch}", "-nogpuinc", "-nogpulib")
    zig("clang", *flags, *extra_flags, "-O3", "-S", hip, "-o", asm)
    zig("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", asm, "-o", obj)
    zig("ld.lld", "-shared", obj, "-o", out)
    return out.read_bytes()


class Hip:
    """HIP's C interface: `hip.hipMalloc(...)` returns the status, `call` wants success."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        for name in ("rfops_vgpu_last_error", "hipGetErrorString", "hipGetErrorName"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        getattr(self.lib, "__hipRegisterFatBinary").restype = c_void_p

    def __getattr__(self, name: str) -> Callable[..., int]:
        return getattr(self.lib, name)

    def error(self) -> str:
        return self.lib.rfops_vgpu_last_error().decode()

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.lib, name)(*arguments)
        assert status == SUCCESS, f"{name}: {status}: {self.error()}"

    def select(self, arch: str) -> None:
        self.call("rfops_vgpu_set_arch", arch.encode())

    def load(self, image: bytes) -> c_void_p:
        module = c_void_p()
        self.call("hipModuleLoadData", byref(module), image)
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        function = c_void_p()
        self.call("hipModuleGetFunction", byref(function), module, name.encode())
        return function

    def launch(
        self,
        function: c_void_p,
        *arguments: object,
        grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (1,),
        lds: int = 0,
        stream: c_void_p | None = None,
        entry: str = "hipModuleLaunchKernel",
    ) -> int:
        """kernelParams form. Pads grid and block with ones."""
        params = (c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        shape = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        extra_arguments = () if "Cooperative" in entry else (None,)
        return getattr(self.lib, entry)(function, *shape, lds, stream, params, *extra_arguments)

    def launch_extra(
        self,
        function: c_void_p,
        buffer: bytes,
        grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (1,),
        lds: int = 0,
    ) -> int:
        """The arguments in one buffer. Pads grid and block with ones."""
        data, size = ctypes.create_string_buffer(buffer, len(buffer)), c_size_t(len(buffer))
        extra = (c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), 3)
        shape = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        return self.hipModuleLaunchKernel(function, *shape, lds, None, None, extra)


def bundle(entries: list[tuple[str, bytes]]) -> bytes:
    """A __CLANG_OFFLOAD_BUNDLE__, images at 4096-byte offsets as the bundler lays them out."""
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    table_bytes = len(header) + sum(24 + len(name) for name, _ in entries)
    body, table = b"", b""
    offset = -(-table_bytes // 4096) * 4096
    start = offset
    for name, image in entries:
        table += struct.pack("<QQQ", offset, len(image), len(name)) + name.encode()
        padded = image + bytes(-len(image) % 4096)
        body += padded
        offset += len(padded)
    return (header + table).ljust(start, b"\0") + body


def compile_c(source: str, out: Path, *flags: str) -> None:
    """Compiles C for the host, as rfops compiles its own; `-shared` makes a library."""
    file = out.with_suffix(".c")
    file.write_text(source)
    argv = [*toolchain.host_toolchain().argv, "-x", "c", str(file), "-x", "none", *flags]
    code, output = toolchain.run([*argv, "-o", str(out)])
    assert code == 0, output


def zstd_compress(data: bytes) -> bytes:
    """A zstd frame. Skips the test where there is no libzstd, which the library needs too."""
    try:
        # Other tests make another zstd global (FlyDSL's): this one calls its own functions.
        zstd = ctypes.CDLL("libzstd.so.1", os.RTLD_NOW | os.RTLD_DEEPBIND)
    except OSError as error:
        pytest.skip(f"compressed offload bundles need zstd (Debian: libzstd1): {error}")
    zstd.ZSTD_compress.restype = zstd.ZSTD_compressBound.restype = c_size_t
    frame = ctypes.create_string_buffer(zstd.ZSTD_compressBound(c_size_t(len(data))))
    sizes = c_size_t(len(frame)), c_size_t(len(data))
    written = zstd.ZSTD_compress(frame, sizes[0], data, sizes[1], 3)
    assert not zstd.ZSTD_isError(c_size_t(written))
    return frame.raw[:written]


def compressed(contents: bytes, version: int = 3) -> bytes:
    """A compressed offload bundle (CCOB) of version 2 or 3, as ROCm 6.2 and ROCm 7 write them."""
    frame = zstd_compress(contents)
    sizes = struct.Struct("<II" if version == 2 else "<QQ")
    total = 8 + sizes.size + 8 + len(frame)
    head = b"CCOB" + struct.pack("<HH", version, 1) + sizes.pack(total, len(contents))
    return head + bytes(8) + frame


HOST_ENTRY = ("host-x86_64-unknown-linux-gnu-", b"")


def pointer(array: np.ndarray) -> c_void_p:
    return c_void_p(array.ctypes.data)


def poisoned(count: int, dtype: type = np.uint32) -> np.ndarray:
    return np.frombuffer(b"\xa5" * (count * np.dtype(dtype).itemsize), dtype).copy()


@pytest.fixture(scope="session", name="code_objects")
def code_objects_fixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("vgpu_hip")
    return {arch: compile_hip(SOURCE, arch, folder) for arch in ARCHS}


@pytest.fixture(name="hip")
def hip_fixture(vgpu_path: Path) -> Iterator[Hip]:
    """Tests switch the process-wide architecture; each starts with gfx950 and no error."""
    hip = Hip(vgpu_path)
    hip.select("gfx950")
    hip.hipGetLastError()
    yield hip
    hip.select(os.environ.get("RFOPS_VGPU_ARCH", "gfx950"))


@pytest.fixture(params=ARCHS, name="arch")
def arch_fixture(hip: Hip, request: pytest.FixtureRequest) -> str:
    hip.select(request.param)
    return request.param


@pytest.fixture(name="module")
def module_fixture(hip: Hip, code_objects: dict[str, bytes], arch: str) -> Iterator[c_void_p]:
    module = hip.load(code_objects[arch])
    yield module
    hip.call("hipModuleUnload", module)
