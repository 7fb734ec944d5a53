"""The virtual GPU's HIP interface, called as any C program would: through ctypes.

Error codes are ROCm's, as its own test suite (hip-tests) expects them from the module interface.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pytest

ARCHS = ("gfx950", "gfx942")
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION = 0, 1, 2, 9
INVALID_DIRECTION, INVALID_FUNCTION, INVALID_DEVICE, INVALID_IMAGE = 21, 98, 101, 200
NO_BINARY, FILE_NOT_FOUND, INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS = 209, 301, 400, 500, 700
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
extern "C" __device__ unsigned char zeroed[5000];
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:4000]}"


def compile_hip(source: str, arch: str, folder: Path) -> bytes:
    hip, asm, obj, out = (folder / f"kernels.{arch}.{end}" for end in ("hip", "s", "o", "hsaco"))
    hip.write_text(source)
    flags = ("-x", "hip", "--cuda-device-only", f"--offload-arch={arch}", "-nogpuinc", "-nogpulib")
    zig("clang", *flags, "-O3", "-S", hip, "-o", asm)
    zig("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", asm, "-o", obj)
    zig("ld.lld", "-shared", obj, "-o", out)
    return out.read_bytes()


@pytest.fixture(scope="session")
def code_objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("vgpu_hip")
    return {arch: compile_hip(SOURCE, arch, folder) for arch in ARCHS}


@pytest.fixture(scope="session")
def library_path() -> Path:
    from rfops.jit import vgpu_library

    return Path(vgpu_library())


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
        self, function: c_void_p, *arguments: object, grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (1,), lds: int = 0, stream: c_void_p | None = None,
        entry: str = "hipModuleLaunchKernel",
    ) -> int:  # fmt: skip
        """kernelParams form. Pads grid and block with ones."""
        params = (c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        shape = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        last = () if "Cooperative" in entry else (None,)
        return getattr(self.lib, entry)(function, *shape, lds, stream, params, *last)

    def launch_extra(self, function: c_void_p, buffer: bytes, grid: int = 1, block: int = 1) -> int:
        data, size = ctypes.create_string_buffer(buffer, len(buffer)), c_size_t(len(buffer))
        extra = (c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), 3)
        return self.hipModuleLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, None, None, extra)


@pytest.fixture(scope="session")
def hip(library_path: Path) -> Hip:
    return Hip(library_path)


@pytest.fixture(autouse=True)
def default_arch(hip: Hip) -> Iterator[None]:
    """Tests switch the process-wide architecture; each starts and ends with gfx950, no error."""
    hip.select("gfx950")
    hip.hipGetLastError()
    yield
    hip.select(os.environ.get("RFOPS_VGPU_ARCH", "gfx950"))


@pytest.fixture(params=ARCHS)
def arch(hip: Hip, request: pytest.FixtureRequest) -> str:
    hip.select(request.param)
    return request.param


@pytest.fixture
def module(hip: Hip, code_objects: dict[str, bytes], arch: str) -> Iterator[c_void_p]:
    module = hip.load(code_objects[arch])
    yield module
    hip.call("hipModuleUnload", module)


def pointer(array: np.ndarray) -> c_void_p:
    return c_void_p(array.ctypes.data)


def poisoned(count: int, dtype: type = np.uint32) -> np.ndarray:
    return np.frombuffer(b"\xa5" * (count * np.dtype(dtype).itemsize), dtype).copy()


# ------------------------------------------------------------------------------ device


def properties(hip: Hip, entry: str) -> bytes:
    raw = ctypes.create_string_buffer(b"\xee" * 1480, 1480)
    hip.call(entry, raw, 0)
    assert raw.raw[1472:] == b"\xee" * 8, "hipDeviceProp_tR0600 has 1472 bytes; more were written"
    return raw.raw[:1472]


@pytest.mark.parametrize("entry", ["hipGetDevicePropertiesR0600", "hipGetDeviceProperties"])
def test_properties_lie_at_the_offsets_that_callers_read(hip: Hip, arch: str, entry: str) -> None:
    raw = properties(hip, entry)

    def i32(at: int) -> int:
        return struct.unpack_from("<i", raw, at)[0]

    def size(at: int) -> int:
        return struct.unpack_from("<Q", raw, at)[0]

    def text(at: int) -> str:
        return raw[at : raw.index(b"\0", at)].decode()

    expected = {
        "gfx950": ("AMD Instinct MI355X (virtual, rfops)", 256, 5, 2400000, 288),
        "gfx942": ("AMD Instinct MI300X (virtual, rfops)", 304, 4, 2100000, 192),
    }[arch]
    assert (text(0), i32(388), i32(364), i32(348), size(288) >> 30) == expected
    assert text(1160) == f"{arch}:sramecc+:xnack-"
    assert (i32(308), i32(320), i32(360), i32(624), i32(688)) == (64, 1024, 9, 2048, 1)
    assert size(296) == LDS_BYTES[arch]
    assert (i32(304), i32(616), i32(612)) == (65536, 4 << 20, 8192)
    assert i32(608) > 1000000


def test_device_attributes_agree_with_the_properties(hip: Hip, arch: str) -> None:
    raw = properties(hip, "hipGetDevicePropertiesR0600")
    for attribute, offset in {5: 348, 23: 360, 61: 364, 63: 388, 87: 308, 57: 624, 19: 616}.items():
        value = c_int(-1)
        hip.call("hipDeviceGetAttribute", byref(value), attribute, 0)
        assert value.value == struct.unpack_from("<i", raw, offset)[0], attribute
    value = c_int()
    for attribute, expected in {74: LDS_BYTES[arch], 10018: 8, 10019: 512, 29: 2**31 - 1}.items():
        hip.call("hipDeviceGetAttribute", byref(value), attribute, 0)
        assert value.value == expected, attribute
    assert hip.hipDeviceGetAttribute(byref(value), 4242, 0) == INVALID_VALUE
    assert "4242" in hip.error()


def test_there_is_one_device(hip: Hip) -> None:
    count, version = c_int(), c_int()
    hip.call("hipInit", 0)
    hip.call("hipGetDeviceCount", byref(count))
    hip.call("hipDriverGetVersion", byref(version))
    assert (count.value, version.value) == (1, 70125424)
    hip.call("hipSetDevice", 0)
    assert hip.hipSetDevice(1) == INVALID_DEVICE
    assert hip.hipGetDevicePropertiesR0600(ctypes.create_string_buffer(1472), 3) == INVALID_DEVICE
    assert hip.hipInit(1) == INVALID_VALUE


def test_last_error_is_kept_until_it_is_read(hip: Hip) -> None:
    assert hip.hipSetDevice(7) == INVALID_DEVICE
    assert hip.hipPeekAtLastError() == INVALID_DEVICE
    assert hip.hipGetLastError() == INVALID_DEVICE
    assert hip.hipGetLastError() == SUCCESS
    others: list[int] = []
    hip.hipSetDevice(7)
    thread = threading.Thread(target=lambda: others.append(hip.hipGetLastError()))
    thread.start()
    thread.join()
    assert others == [SUCCESS], "a thread sees only its own errors"
    assert hip.hipGetErrorName(ILLEGAL_ADDRESS) == b"hipErrorIllegalAddress"
    assert hip.hipGetErrorString(ILLEGAL_ADDRESS) == b"an illegal memory access was encountered"
    assert hip.hipGetErrorString(123456) == b"unknown error"


@pytest.mark.parametrize("name", ["gfx90a", "gfx950:xnack+", "gfx9500", "", "sramecc+"])
def test_unknown_architectures_are_refused(hip: Hip, name: str) -> None:
    assert hip.rfops_vgpu_set_arch(name.encode()) == INVALID_VALUE
    assert "expected gfx942 or gfx950" in hip.error()


@pytest.mark.parametrize("name", ["gfx942", "gfx942:sramecc+", "gfx942:sramecc+:xnack-"])
def test_features_may_be_named(hip: Hip, name: str) -> None:
    hip.select(name)
    assert b"gfx942:sramecc+:xnack-\0" in properties(hip, "hipGetDevicePropertiesR0600")


@pytest.mark.parametrize(
    ("value", "status", "target"),
    [("", 0, "gfx950:"), ("gfx942:sramecc+", 0, "gfx942:"), ("gfx1100", 1, "'gfx1100'")],
)
def test_arch_comes_from_the_environment(
    library_path: Path, value: str, status: int, target: str
) -> None:
    script = (
        "import ctypes, sys; hip = ctypes.CDLL(sys.argv[1]); p = ctypes.create_string_buffer(1472);"
        "status = hip.hipInit(0); hip.hipGetDeviceProperties(p, 0);"
        "hip.rfops_vgpu_last_error.restype = ctypes.c_char_p;"
        "print(status, p.raw[1160:1184], hip.rfops_vgpu_last_error())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(library_path)],
        env={**os.environ, "RFOPS_VGPU_ARCH": value}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{status} ")
    assert target in done.stdout


def test_every_function_is_found_by_name(hip: Hip) -> None:
    found, result = c_void_p(), c_int(9)
    names = "hipGetDeviceProperties hipModuleLoadDataEx hipModuleLaunchKernel hipFuncGetAttribute"
    for name in [*names.split(), "hipDrvLaunchKernelEx", "hipPointerGetAttribute", "hipGetLastError"]:
        hip.call("hipGetProcAddress", name.encode(), byref(found), 60000000, c_uint64(), byref(result))
        own = ctypes.cast(getattr(hip.lib, name), c_void_p).value
        assert (found.value, result.value) == (own, 0), name
    for name in (b"hipNoSuchCall", b"malloc"):
        status = hip.hipGetProcAddress(name, byref(found), 60000000, c_uint64(), byref(result))
        assert (status, found.value, result.value) == (NOT_FOUND, None, 1), name


# ------------------------------------------------------------------------------ code objects


def bundle(entries: list[tuple[str, bytes]]) -> bytes:
    """A __CLANG_OFFLOAD_BUNDLE__, images at 4096-byte offsets as the bundler lays them out."""
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    table_bytes = len(header) + sum(24 + len(name) for name, _ in entries)
    body, table = b"", b""
    at = -(-table_bytes // 4096) * 4096
    start = at
    for name, image in entries:
        table += struct.pack("<QQQ", at, len(image), len(name)) + name.encode()
        padded = image + bytes(-len(image) % 4096)
        body += padded
        at += len(padded)
    return (header + table).ljust(start, b"\0") + body


HOST_ENTRY = ("host-x86_64-unknown-linux-gnu-", b"")


@pytest.mark.parametrize("suffix", ["", ":sramecc+:xnack-", ":xnack-"])
@pytest.mark.parametrize("kind", ["hipv4", "hip"])
def test_the_right_image_of_a_bundle_is_run(
    hip: Hip, code_objects: dict[str, bytes], arch: str, kind: str, suffix: str
) -> None:
    name = f"{kind}-amdgcn-amd-amdhsa--"
    entries = [(f"{name}{other}{suffix}", code_objects[other]) for other in ARCHS]
    module = hip.load(bundle([HOST_ENTRY, *entries]))
    out = poisoned(4)
    assert hip.launch(hip.function(module, "sizes"), pointer(out), block=(64,)) == SUCCESS, hip.error()
    assert out[0] == 64
    hip.call("hipModuleUnload", module)


def test_wrong_architecture_is_refused_by_both_names(
    hip: Hip, code_objects: dict[str, bytes]
) -> None:
    module = c_void_p()
    assert hip.hipModuleLoadData(byref(module), code_objects["gfx942"]) == NO_BINARY
    assert re.search("built for gfx942, but the virtual GPU is gfx950", hip.error())
    foreign = bundle([HOST_ENTRY, ("hipv4-amdgcn-amd-amdhsa--gfx942", code_objects["gfx942"])])
    assert hip.hipModuleLoadData(byref(module), foreign) == NO_BINARY
    assert "amdhsa--gfx942" in hip.error() and "no image for gfx950" in hip.error()
    xnack = bundle([("hipv4-amdgcn-amd-amdhsa--gfx950:xnack+", code_objects["gfx950"])])
    assert hip.hipModuleLoadData(byref(module), xnack) == NO_BINARY
    assert not module.value


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda b: b"CCOB" + b[4:], INVALID_IMAGE, "--no-offload-compress"),
        (lambda b: b"\0" + b[1:], INVALID_IMAGE, "not a little-endian ELF64"),
        (lambda b: b[:18] + struct.pack("<H", 62) + b[20:], INVALID_IMAGE, "machine 62"),
        (lambda b: b[:8] + b"\x01" + b[9:], INVALID_IMAGE, "OS ABI 64 version 1"),
        (lambda b: b[:16] + b"\x01" + b[17:], INVALID_IMAGE, "ld.lld -shared"),
        (lambda b: b[:48] + struct.pack("<I", 0x741) + b[52:], NO_BINARY, "built for gfx1100"),
        (lambda b: b[:48] + struct.pack("<I", 0x74F) + b[52:], NO_BINARY, "gfx950:xnack+"),
    ],
)
def test_bad_images_are_named(
    hip: Hip, code_objects: dict[str, bytes], change: Callable[[bytes], bytes], status: int, words: str
) -> None:
    module = c_void_p()
    assert hip.hipModuleLoadData(byref(module), change(code_objects["gfx950"])) == status
    assert words in hip.error()


def test_modules_load_from_files(
    hip: Hip, code_objects: dict[str, bytes], tmp_path: Path
) -> None:
    file, module = tmp_path / "k.hsaco", c_void_p()
    file.write_bytes(code_objects["gfx950"])
    hip.call("hipModuleLoad", byref(module), os.fsencode(file))
    hip.function(module, "empty")
    hip.call("hipModuleUnload", module)
    assert hip.hipModuleLoad(byref(module), os.fsencode(tmp_path / "none")) == FILE_NOT_FOUND
    file.write_bytes(code_objects["gfx950"][:200])
    assert hip.hipModuleLoad(byref(module), os.fsencode(file)) == INVALID_IMAGE
    assert "truncated" in hip.error()


def test_handles_end_with_their_module(hip: Hip, code_objects: dict[str, bytes]) -> None:
    module = hip.load(code_objects["gfx950"])
    function = hip.function(module, "empty")
    assert hip.launch(function) == SUCCESS
    missing = c_void_p()
    assert hip.hipModuleGetFunction(byref(missing), module, b"emptyy") == NOT_FOUND
    assert "emptyy" in hip.error() and "arguments" in hip.error(), "names what there is"
    hip.call("hipModuleUnload", module)
    assert hip.hipModuleUnload(module) == INVALID_HANDLE
    assert hip.launch(function) == INVALID_HANDLE
    assert hip.hipModuleGetFunction(byref(missing), module, b"empty") == INVALID_HANDLE


# Runs in a process of its own, so that a crash is a failed test. The image ends where readable
# memory ends: reading past it would be a crash too. Exit 0 and a count of images that loaded.
_HOSTILE = r"""
import ctypes, mmap, random, sys
hip = ctypes.CDLL(sys.argv[1])
hip.rfops_vgpu_last_error.restype = ctypes.c_char_p
good = open(sys.argv[2], "rb").read()
mode, count = sys.argv[3], int(sys.argv[4])
page = mmap.PAGESIZE
area = mmap.mmap(-1, (len(good) // page + 3) * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None)
end = base + len(area) - page
assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0
loaded, module, function = 0, ctypes.c_void_p(), ctypes.c_void_p()
def load(image):
    ctypes.memmove(end - len(image), image, len(image))
    status = hip.hipModuleLoadData(ctypes.byref(module), ctypes.c_void_p(end - len(image)))
    if status:
        assert status in (200, 209), status
        assert hip.rfops_vgpu_last_error(), "an error has a text"
        return 0
    for name in (b"empty", b"arguments", b"globals"):
        hip.hipModuleGetFunction(ctypes.byref(function), module, name)
    assert hip.hipModuleUnload(module) == 0
    return 1
assert load(good)
if mode == "truncate":
    needed = int(sys.argv[5])
    for size in range(0, len(good), count):
        got = load(good[:size])
        assert got == (size >= needed), (size, needed, hip.rfops_vgpu_last_error())
        loaded += got
else:
    rng = random.Random(20261121)
    hot = min(len(good), 4096)  # headers, notes, symbols and descriptors
    for _ in range(count):
        image = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(hot) if rng.random() < 0.8 else rng.randrange(len(image))
            image[at] ^= 1 << rng.randrange(8)
        loaded += load(bytes(image))
print(loaded)
"""


def hostile(library_path: Path, file: Path, *arguments: object) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _HOSTILE, str(library_path), str(file), *map(str, arguments)],
        env={**os.environ, "RFOPS_VGPU_LOG": "0", "RFOPS_VGPU_ARCH": "gfx950"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    assert done.stderr == "", "RFOPS_VGPU_LOG=0 is silent"
    return int(done.stdout)


def last_segment_end(image: bytes) -> int:
    """Where the bytes end that a loader needs: the last segment, not the sections behind it."""
    offset, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    rows = (struct.unpack_from("<IIQQQQ", image, offset + 56 * i) for i in range(count))
    return max(row[2] + row[5] for row in rows)


def test_truncated_images_are_errors(
    library_path: Path, code_objects: dict[str, bytes], tmp_path: Path
) -> None:
    image, file = code_objects["gfx950"], tmp_path / "k.hsaco"
    file.write_bytes(image)
    loaded = hostile(library_path, file, "truncate", 64, last_segment_end(image))
    assert loaded < len(image) // 64


@pytest.mark.parametrize("form", ["elf", "bundle"])
def test_flipped_bits_never_crash(
    library_path: Path, code_objects: dict[str, bytes], tmp_path: Path, form: str
) -> None:
    image, file = code_objects["gfx950"], tmp_path / "k.hsaco"
    names = ((f"hipv4-amdgcn-amd-amdhsa--{arch}", code_objects[arch]) for arch in ARCHS)
    file.write_bytes(image if form == "elf" else bundle([HOST_ENTRY, *names]))
    loaded = hostile(library_path, file, "flip", 1500)
    assert 0 < loaded < 1500, "some flips hit nothing that matters, some do"


# ------------------------------------------------------------------------------ arguments

ARGUMENTS = (
    ctypes.c_char(-3 % 256), ctypes.c_short(-1234), c_int(-(2**31)), ctypes.c_float(0.375),
    ctypes.c_double(-1e300), ctypes.c_long(2**52 + 1), ctypes.c_char(101),
)  # fmt: skip
ARGUMENT_VALUES = (-3.0, -1234.0, -(2.0**31), 0.375, -1e300, 2.0**52 + 1, 101.0)


def packed_arguments(out: np.ndarray) -> bytes:
    # out 0, c 8, s 10, i 12, f 16, d 24, l 32, last 40
    return struct.pack("<QbxhifxxxxdqB", out.ctypes.data, -3, -1234, -(2**31), 0.375, -1e300,
                       2**52 + 1, 101)  # fmt: skip


def test_both_argument_forms_give_the_same(hip: Hip, module: c_void_p) -> None:
    function = hip.function(module, "arguments")
    params, extra, padded = (poisoned(7, np.float64) for _ in range(3))
    assert hip.launch(function, pointer(params), *ARGUMENTS) == SUCCESS, hip.error()
    assert hip.launch_extra(function, packed_arguments(extra)) == SUCCESS, hip.error()
    assert hip.launch_extra(function, packed_arguments(padded) + bytes(7)) == SUCCESS, hip.error()
    for result in (params, extra, padded):
        np.testing.assert_array_equal(result, ARGUMENT_VALUES)


def test_missing_and_double_arguments_are_refused(hip: Hip, module: c_void_p) -> None:
    function, out = hip.function(module, "index"), poisoned(64, np.int32)
    shape = (function, 1, 1, 1, 64, 1, 1, 0, None)
    assert hip.hipModuleLaunchKernel(*shape, None, None) == INVALID_VALUE
    assert "takes 2 arguments" in hip.error()
    count, at = c_int(64), pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(count))
    size = c_size_t(12)
    buffer = ctypes.create_string_buffer(struct.pack("<Qi", out.ctypes.data, 64))
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    assert hip.hipModuleLaunchKernel(*shape, params, extra) == INVALID_VALUE
    assert "both kernelParams and extra" in hip.error()
    for words in ((3,), (1, ctypes.addressof(buffer), 3), (7, 7, 7, 7, 3)):
        bad = (c_void_p * 5)(*words)
        assert hip.hipModuleLaunchKernel(*shape, None, bad) == INVALID_VALUE
        assert "BUFFER_POINTER" in hip.error()
    size.value = 11
    assert hip.hipModuleLaunchKernel(*shape, None, extra) == INVALID_VALUE
    assert "11 bytes, expected 12 to" in hip.error()
    null = (c_void_p * 2)(ctypes.addressof(at), None)
    assert hip.hipModuleLaunchKernel(*shape, null, None) == INVALID_VALUE
    assert "kernelParams[1] of 2 is null" in hip.error()
    assert (out == poisoned(64, np.int32)).all(), "a refused launch runs nothing"
    assert hip.launch(hip.function(module, "empty")) == SUCCESS, "no arguments need no list"


def test_hidden_arguments_tell_the_shape(hip: Hip, module: c_void_p) -> None:
    out = poisoned(16)
    function = hip.function(module, "shapes")
    assert hip.launch(function, pointer(out), grid=(5, 3, 2), block=(32, 4, 2)) == SUCCESS, hip.error()
    expected = [5, 3, 2, 32, 4, 2, 0, 0, 0, *[0] * 6, 3]
    np.testing.assert_array_equal(out, expected)


def test_block_and_grid_size_builtins(hip: Hip, module: c_void_p) -> None:
    out = poisoned(3)
    assert hip.launch(hip.function(module, "sizes"), pointer(out), grid=(7,), block=(96, 2)) == SUCCESS
    np.testing.assert_array_equal(out, [96, 2, 7 * 96])


def test_globals_are_initialised_relocated_and_writable(hip: Hip, module: c_void_p) -> None:
    at, size, out = c_void_p(), c_size_t(), poisoned(6, np.float32)
    hip.call("hipModuleGetGlobal", byref(at), byref(size), module, b"counter")
    assert (size.value, c_int.from_address(at.value).value) == (4, 42)
    new = c_int(100)
    hip.call("hipMemcpyHtoD", at, byref(new), 4)
    assert hip.launch(hip.function(module, "globals"), pointer(out)) == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, [200, 1.5, -2.0, 0.25, 8.0, 0])
    hip.call("hipMemcpyDtoH", byref(new), at, 4)
    assert new.value == 7, "the kernel's store is seen by the host"
    hip.call("hipModuleGetGlobal", byref(at), byref(size), module, b"zeroed")
    assert (size.value, ctypes.string_at(at.value, 5000)) == (5000, bytes(5000))
    assert hip.hipModuleGetGlobal(byref(at), byref(size), module, b"countr") == NOT_FOUND


def test_dynamic_lds_is_the_kernels(hip: Hip, module: c_void_p) -> None:
    data, out = np.arange(64, dtype=np.int32), poisoned(64, np.int32)
    function = hip.function(module, "reverse")
    status = hip.launch(function, pointer(out), pointer(data), block=(64,), lds=256)
    assert status == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, data[::-1])


# ------------------------------------------------------------------------------ launch refusals


@pytest.mark.parametrize(
    ("grid", "block", "status", "words"),
    [
        ((0, 1, 1), (1, 1, 1), INVALID_VALUE, "grid 0x1x1"),
        ((1, 1, 0), (1, 1, 1), INVALID_VALUE, "grid 1x1x0"),
        ((2**31, 1, 1), (1, 1, 1), INVALID_VALUE, "grid 2147483648x1x1"),
        ((1, 65537, 1), (1, 1, 1), INVALID_VALUE, "65536 in y and z"),
        ((2**24, 1, 1), (256, 1, 1), INVALID_CONFIGURATION, "2^32 or more lanes"),
        ((1, 1, 1), (0, 1, 1), INVALID_VALUE, "block 0x1x1"),
        ((1, 1, 1), (1025, 1, 1), INVALID_VALUE, "block 1025x1x1"),
        ((1, 1, 1), (11, 11, 11), INVALID_VALUE, "block 11x11x11"),
    ],
)
def test_shapes_are_checked(
    hip: Hip, module: c_void_p, grid: tuple[int, ...], block: tuple[int, ...], status: int, words: str
) -> None:
    assert hip.launch(hip.function(module, "empty"), grid=grid, block=block) == status
    assert "launch of empty: " in hip.error() and words in hip.error()


def test_launch_bounds_are_kept(hip: Hip, module: c_void_p) -> None:
    out = poisoned(1, np.int32)
    bounded = hip.function(module, "bounded")
    assert hip.launch(bounded, pointer(out), block=(65,)) == LAUNCH_FAILURE
    assert "64 lanes it was compiled for" in hip.error()
    assert hip.launch(bounded, pointer(out), block=(64,)) == SUCCESS and out[0] == 1


def test_lds_limit_counts_static_and_dynamic(hip: Hip, module: c_void_p, arch: str) -> None:
    limit, out = LDS_BYTES[arch], poisoned(64, np.int32)
    static = hip.function(module, "static_lds")
    assert hip.launch(hip.function(module, "empty"), lds=limit) == SUCCESS
    assert hip.launch(hip.function(module, "empty"), lds=limit + 1) == INVALID_VALUE
    assert f"{limit + 1} bytes of LDS" in hip.error() and f"{arch} has {limit}" in hip.error()
    assert hip.launch(static, pointer(out), block=(64,), lds=limit - 4096) == SUCCESS, hip.error()
    assert hip.launch(static, pointer(out), block=(64,), lds=limit - 4095) == INVALID_VALUE
    assert "4096 static" in hip.error()


def test_cooperative_grids_must_be_resident(hip: Hip, module: c_void_p, arch: str) -> None:
    entry, empty = "hipModuleLaunchCooperativeKernel", hip.function(module, "empty")
    resident = {"gfx950": 256, "gfx942": 304}[arch] * 2  # 1024 lanes: 16 of a CU's 32 waves
    assert hip.launch(empty, grid=(resident,), block=(1024,), entry=entry) == SUCCESS, hip.error()
    status = hip.launch(empty, grid=(resident + 1,), block=(1024,), entry=entry)
    assert status == COOPERATIVE_TOO_LARGE and f"at most {resident}" in hip.error()


def test_ext_launch_counts_lanes(hip: Hip, module: c_void_p) -> None:
    out, count = poisoned(192, np.int32), c_int(192)
    at = pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(count))
    launch, tail = hip.hipExtModuleLaunchKernel, (params, None, None, None, 0)
    function = hip.function(module, "index")
    assert launch(function, 192, 1, 1, 64, 1, 1, c_size_t(), None, *tail) == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, np.arange(192) * 3)
    status = launch(function, 191, 1, 1, 64, 1, 1, c_size_t(), None, *tail)
    assert status == INVALID_CONFIGURATION and "whole workgroups" in hip.error()


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((f"size{i}", c_uint) for i in range(7)),
        ("stream", c_void_p), ("attributes", c_void_p), ("count", c_uint),
    )  # fmt: skip


def test_driver_launch_with_a_config(hip: Hip, module: c_void_p) -> None:
    out, count = poisoned(128, np.int32), c_int(128)
    at = pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(count))
    config = LaunchConfig(2, 1, 1, 64, 1, 1, 0)
    assert ctypes.sizeof(config) == 56
    hip.call("hipDrvLaunchKernelEx", byref(config), hip.function(module, "index"), params, None)
    np.testing.assert_array_equal(out, np.arange(128) * 3)


def test_a_wild_pointer_is_an_error_and_the_device_goes_on(
    hip: Hip, module: c_void_p, capfd: pytest.CaptureFixture[str]
) -> None:
    function, wild = hip.function(module, "bounded"), c_void_p(0x123456789000)
    assert hip.launch(function, wild) == ILLEGAL_ADDRESS
    assert "kernel bounded" in hip.error() and "0x123456789000" in hip.error()
    assert hip.hipGetLastError() == ILLEGAL_ADDRESS
    logged = capfd.readouterr().err
    assert logged.startswith("rfops vgpu: ") and logged.count("\n") == 1 and hip.error() in logged
    out = poisoned(1, np.int32)
    assert hip.launch(function, pointer(out)) == SUCCESS and out[0] == 1
    hip.call("hipDeviceSynchronize")


def test_a_trap_is_a_launch_failure(hip: Hip, module: c_void_p) -> None:
    assert hip.launch(hip.function(module, "trap")) == LAUNCH_FAILURE
    assert "kernel trap" in hip.error() and "s_trap" in hip.error()


def test_threads_launch_at_once(hip: Hip, module: c_void_p) -> None:
    function, rounds = hip.function(module, "index"), 40
    outs = [poisoned(1000, np.int32) for _ in range(4)]
    bad: list[str] = []

    def work(out: np.ndarray) -> None:
        for _ in range(rounds):
            out[:] = -1
            if hip.launch(function, pointer(out), c_int(1000), grid=(16,), block=(64,)):
                bad.append(hip.error())
            if not np.array_equal(out, np.arange(1000) * 3):
                bad.append(f"wrong values from {out[:8]}")

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad, bad[0]


def test_an_empty_launch_is_cheap(hip: Hip, module: c_void_p) -> None:
    """Printed, and bounded loosely: the host may be busy. ctypes itself is most of it."""
    function, launch = hip.function(module, "empty"), hip.hipModuleLaunchKernel
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(200):
            launch(function, 1, 1, 1, 64, 1, 1, 0, None, None, None)
        best = min(best, (time.perf_counter() - begin) / 200)
    print(f"empty launch through ctypes: {best * 1e6:.1f} us")
    assert best < 100e-6


# ------------------------------------------------------------------------------ functions


def test_function_attributes(hip: Hip, module: c_void_p, arch: str) -> None:
    static, bounded = (hip.function(module, name) for name in ("static_lds", "bounded"))

    def attribute(function: c_void_p, number: int) -> int:
        value = c_int(-1)
        hip.call("hipFuncGetAttribute", byref(value), number, function)
        return value.value

    assert attribute(bounded, 0) == 64 and attribute(static, 0) == 1024
    assert attribute(static, 1) == 4096 and attribute(bounded, 1) == 0
    assert attribute(bounded, 3) == 0, "no scratch"
    assert 1 <= attribute(bounded, 4) <= 16, "registers"
    assert attribute(static, 8) == LDS_BYTES[arch] - 4096
    raw = ctypes.create_string_buffer(56)
    hip.call("hipFuncGetAttributes", raw, static)
    assert struct.unpack_from("<i", raw, 28)[0] == 1024  # maxThreadsPerBlock
    assert struct.unpack_from("<Q", raw, 48)[0] == 4096  # sharedSizeBytes
    value = c_int()
    assert hip.hipFuncGetAttribute(byref(value), 99, static) == INVALID_VALUE
    assert hip.hipFuncGetAttribute(byref(value), 0, None) == INVALID_FUNCTION
    hip.call("hipFuncSetAttribute", static, 8, LDS_BYTES[arch] - 4096)
    assert hip.hipFuncSetAttribute(static, 8, LDS_BYTES[arch] - 4095) == INVALID_VALUE


@pytest.mark.parametrize(
    ("block", "lds_share", "expected"),
    [
        (64, 0, 32),  # 4 SIMDs x 8 waves
        (256, 0, 8),
        (1024, 0, 2),
        (128, 0, 16),  # two waves each: also the 16 barriers of a CU
        (64, 2, 2),  # half of LDS each
        (64, 1, 1),
    ],
)
def test_occupancy_follows_waves_and_lds(
    hip: Hip, module: c_void_p, arch: str, block: int, lds_share: int, expected: int
) -> None:
    blocks, lds = c_int(-1), LDS_BYTES[arch] // lds_share if lds_share else 0
    query = "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
    hip.call(query, byref(blocks), hip.function(module, "empty"), block, c_size_t(lds))
    assert blocks.value == expected


# ------------------------------------------------------------------------------ memory


def allocate(hip: Hip, size: int, entry: str = "hipMalloc") -> c_void_p:
    memory = c_void_p()
    extra = (0,) if entry in ("hipHostMalloc", "hipMallocManaged") else ()
    hip.call(entry, byref(memory), c_size_t(size), *extra)
    return memory


def test_copies_go_every_way(hip: Hip) -> None:
    source = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    back = np.zeros_like(source)
    first, second = allocate(hip, source.size), allocate(hip, source.size)
    assert first.value % 256 == 0
    stream = c_void_p()
    hip.call("hipStreamCreate", byref(stream))
    hip.call("hipMemcpy", first, pointer(source), c_size_t(source.size), HOST_TO_DEVICE)
    hip.call("hipMemcpyDtoD", second, first, c_size_t(source.size))
    hip.call("hipMemcpyAsync", pointer(back), second, c_size_t(source.size), DEVICE_TO_HOST, stream)
    hip.call("hipStreamSynchronize", stream)
    np.testing.assert_array_equal(back, source)
    size = c_size_t
    hip.call("hipMemcpy2D", first, size(512), pointer(source), size(100), size(100), size(50), DEFAULT)
    hip.call("hipMemcpy2D", pointer(back), size(100), first, size(512), size(100), size(50), DEFAULT)
    np.testing.assert_array_equal(back[:5000], source[:5000])
    status = hip.hipMemcpy2D(first, size(99), first, size(99), size(100), size(2), DEFAULT)
    assert status == 12, "the pitch is less than the width"
    for memory in (first, second):
        hip.call("hipFree", memory)
    hip.call("hipStreamDestroy", stream)


def test_fills(hip: Hip) -> None:
    memory = allocate(hip, 64)
    array = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(memory.value))
    hip.call("hipMemset", memory, 0x1FF, c_size_t(64))
    assert (array == 0xFF).all()
    hip.call("hipMemsetD16", memory, 0x1234, c_size_t(8))
    hip.call("hipMemsetD32", c_void_p(memory.value + 16), -2, c_size_t(4))
    hip.call("hipMemsetD8Async", c_void_p(memory.value + 32), 7, c_size_t(4), None)
    expected = b"\x34\x12" * 8 + b"\xfe\xff\xff\xff" * 4 + b"\x07" * 4 + b"\xff" * 28
    assert array.tobytes() == expected
    hip.call("hipFree", memory)


def test_accesses_outside_a_block_are_refused(hip: Hip) -> None:
    memory, host = allocate(hip, 1000), np.zeros(2000, np.uint8)
    status = hip.hipMemcpy(memory, pointer(host), c_size_t(1001), HOST_TO_DEVICE)
    assert status == INVALID_VALUE and "beyond its block of 1000" in hip.error()
    assert hip.hipMemset(c_void_p(memory.value + 1), 0, c_size_t(1000)) == INVALID_VALUE
    assert hip.hipMemcpy(memory, pointer(host), c_size_t(4), 9) == INVALID_DIRECTION
    assert hip.hipMemcpy(None, pointer(host), c_size_t(4), DEFAULT) == INVALID_VALUE
    hip.call("hipMemcpy", None, None, c_size_t(0), DEFAULT)
    status = hip.hipMemcpy(pointer(host), c_void_p(0x10000), c_size_t(4), DEFAULT)
    assert status == INVALID_VALUE and "is not mapped" in hip.error()
    hip.call("hipFree", memory)
    assert hip.hipMemset(memory, 0, c_size_t(4)) == INVALID_VALUE and "was freed" in hip.error()


def test_frees_are_checked(hip: Hip) -> None:
    memory, pinned = allocate(hip, 5000), allocate(hip, 5000, "hipHostMalloc")
    assert hip.hipFree(c_void_p(memory.value + 8)) == INVALID_VALUE
    assert "not at its start" in hip.error()
    assert hip.hipFree(pinned) == INVALID_VALUE and "hipHostFree" in hip.error()
    assert hip.hipHostFree(memory) == INVALID_VALUE and "hipFree" in hip.error()
    hip.call("hipFree", memory)
    assert hip.hipFree(memory) == INVALID_VALUE and "double free" in hip.error()
    hip.call("hipHostFree", pinned)
    mine = np.zeros(16, np.uint8)
    assert hip.hipFree(pointer(mine)) == INVALID_VALUE
    assert "not a pointer of hipMalloc" in hip.error()
    hip.call("hipFree", None)
    hip.call("hipHostFree", None)


def test_memory_is_counted(hip: Hip) -> None:
    total, before, during, after = (c_size_t() for _ in range(4))
    hip.call("hipMemGetInfo", byref(before), byref(total))
    assert total.value == 288 << 30 and before.value <= total.value
    status = hip.hipMalloc(byref(c_void_p()), c_size_t(total.value + 1))
    assert status == OUT_OF_MEMORY and str(total.value + 1) in hip.error()
    big = allocate(hip, 1 << 30)
    size, base = c_size_t(), c_void_p()
    hip.call("hipMemPtrGetInfo", big, byref(size))
    assert size.value == 1 << 30
    hip.call("hipMemGetAddressRange", byref(base), byref(size), c_void_p(big.value + 12345))
    assert (base.value, size.value) == (big.value, 1 << 30)
    hip.call("hipMemGetInfo", byref(during), byref(total))
    hip.call("hipFree", big)
    hip.call("hipMemGetInfo", byref(after), byref(total))
    assert during.value <= total.value - (1 << 30)
    nothing = c_void_p(1)
    hip.call("hipMalloc", byref(nothing), c_size_t(0))
    assert nothing.value is None


class PointerAttributes(ctypes.Structure):
    _fields_ = (
        ("type", c_int), ("device", c_int), ("device_pointer", c_void_p),
        ("host_pointer", c_void_p), ("managed", c_int), ("flags", c_uint),
    )  # fmt: skip


def test_pointers_say_what_they_are(hip: Hip) -> None:
    blocks = {
        2: allocate(hip, 100), 1: allocate(hip, 100, "hipHostMalloc"),
        3: allocate(hip, 100, "hipMallocManaged"),
    }  # fmt: skip
    found = PointerAttributes()
    for kind, memory in blocks.items():
        hip.call("hipPointerGetAttributes", byref(found), c_void_p(memory.value + 99))
        assert (found.type, found.device_pointer) == (kind, memory.value + 99)
        assert found.managed == (kind == 3)
        assert found.host_pointer == (None if kind == 2 else memory.value + 99)
    mine, echoed, start = np.zeros(4, np.uint8), c_void_p(), c_void_p()
    hip.call("hipPointerGetAttributes", byref(found), pointer(mine))
    assert found.type == 0, "memory that HIP did not allocate is unregistered"
    hip.call("hipPointerGetAttribute", byref(echoed), 3, pointer(mine))
    assert echoed.value == mine.ctypes.data, "a CPU tensor is a valid device pointer"
    hip.call("hipPointerGetAttribute", byref(start), 11, c_void_p(blocks[2].value + 50))
    assert start.value == blocks[2].value
    hip.call("hipHostRegister", pointer(mine), c_size_t(4), 0)
    hip.call("hipPointerGetAttributes", byref(found), pointer(mine))
    assert found.type == 1
    assert hip.hipHostRegister(pointer(mine), c_size_t(4), 0) == 712
    hip.call("hipHostUnregister", pointer(mine))
    assert hip.hipHostUnregister(pointer(mine)) == 713
    for kind, memory in blocks.items():
        hip.call("hipHostFree" if kind == 1 else "hipFree", memory)


# ------------------------------------------------------------------------------ streams and events


def test_streams_are_checked(hip: Hip, module: c_void_p) -> None:
    stream, status, empty = c_void_p(), c_int(9), hip.function(module, "empty")
    hip.call("hipStreamCreateWithFlags", byref(stream), 1)
    assert hip.launch(empty, stream=stream) == SUCCESS
    hip.call("hipStreamQuery", stream)
    hip.call("hipStreamIsCapturing", stream, byref(status))
    assert status.value == 0
    assert hip.hipStreamBeginCapture(stream, 0) == NOT_SUPPORTED
    for builtin in (None, c_void_p(1), c_void_p(2)):  # null, legacy, per thread
        assert hip.launch(empty, stream=builtin) == SUCCESS
    hip.call("hipStreamDestroy", stream)
    assert hip.hipStreamSynchronize(stream) == CONTEXT_DESTROYED
    assert hip.launch(empty, stream=stream) == CONTEXT_DESTROYED
    assert hip.hipStreamDestroy(None) == INVALID_HANDLE
    assert hip.hipStreamCreateWithFlags(byref(stream), 6) == INVALID_VALUE


def test_events_measure_the_time_between(hip: Hip) -> None:
    start, stop, untimed, elapsed = c_void_p(), c_void_p(), c_void_p(), ctypes.c_float(-1)
    hip.call("hipEventCreate", byref(start))
    hip.call("hipEventCreateWithFlags", byref(stop), 0)
    hip.call("hipEventCreateWithFlags", byref(untimed), 2)
    assert hip.hipEventElapsedTime(byref(elapsed), start, stop) == INVALID_HANDLE, "not recorded"
    hip.call("hipEventRecord", start, None)
    time.sleep(0.02)
    hip.call("hipEventRecord", stop, None)
    hip.call("hipEventRecord", untimed, None)
    hip.call("hipStreamWaitEvent", None, stop, 0)
    hip.call("hipEventSynchronize", stop)
    hip.call("hipEventQuery", stop)
    hip.call("hipEventElapsedTime", byref(elapsed), start, stop)
    assert elapsed.value >= 20
    assert hip.hipEventElapsedTime(byref(elapsed), start, untimed) == INVALID_HANDLE
    for event in (start, stop, untimed):
        hip.call("hipEventDestroy", event)
    assert hip.hipEventRecord(start, None) == INVALID_HANDLE


def test_host_functions_run(hip: Hip) -> None:
    seen: list[int] = []
    kind = ctypes.CFUNCTYPE(None, c_void_p)
    hip.call("hipLaunchHostFunc", None, kind(lambda data: seen.append(data)), c_void_p(77))
    assert seen == [77]


# ------------------------------------------------------------------------------ hipcc's host code


class Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class FatBinary(ctypes.Structure):
    _fields_ = (("magic", c_uint), ("version", c_uint), ("binary", c_void_p), ("unused", c_void_p))


def test_kernels_and_variables_of_a_host_program(
    hip: Hip, code_objects: dict[str, bytes], arch: str
) -> None:
    """What `kernel<<<grid, block>>>(...)` compiles to, by hand."""
    images = bundle(
        [HOST_ENTRY, *((f"hipv4-amdgcn-amd-amdhsa--{a}", code_objects[a]) for a in ARCHS)]
    )
    holder = ctypes.create_string_buffer(images, len(images))
    wrapper = FatBinary(0x48495046, 1, ctypes.addressof(holder), None)
    handle = c_void_p(hip.lib.__hipRegisterFatBinary(byref(wrapper)))
    stub, shadow = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    register = getattr(hip.lib, "__hipRegisterFunction")
    register(handle, stub, b"index", b"index", c_uint(-1 % 2**32), None, None, None, None, None)
    getattr(hip.lib, "__hipRegisterVar")(
        handle, shadow, b"counter", b"counter", 0, c_size_t(4), 0, 0
    )

    push, pop = (getattr(hip.lib, f"__hip{w}CallConfiguration") for w in ("Push", "Pop"))
    assert push(Dim3(3, 1, 1), Dim3(64, 1, 1), c_size_t(0), None) == SUCCESS
    grid, block, shared, stream = Dim3(), Dim3(), c_size_t(9), c_void_p(9)
    assert pop(byref(grid), byref(block), byref(shared), byref(stream)) == SUCCESS
    assert (grid.x, block.x, shared.value, stream.value) == (3, 64, 0, None)
    assert pop(byref(grid), byref(block), byref(shared), byref(stream)) == 52

    out, count = poisoned(192, np.int32), c_int(192)
    at = pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(count))
    hip.call("hipLaunchKernel", stub, grid, block, params, shared, stream)
    np.testing.assert_array_equal(out, np.arange(192) * 3)
    bad = hip.hipLaunchKernel(stub, grid, Dim3(1025, 1, 1), params, shared, stream)
    assert bad == INVALID_CONFIGURATION
    assert hip.hipLaunchKernel(shadow, grid, block, params, shared, stream) == INVALID_FUNCTION

    value, size = c_int(), c_size_t()
    hip.call("hipGetSymbolSize", byref(size), shadow)
    hip.call("hipMemcpyFromSymbol", byref(value), shadow, c_size_t(4), c_size_t(0), DEVICE_TO_HOST)
    assert (size.value, value.value) == (4, 42)
    status = hip.hipMemcpyToSymbol(shadow, byref(value), c_size_t(4), c_size_t(1), HOST_TO_DEVICE)
    assert status == INVALID_VALUE, "past the variable's end"
    getattr(hip.lib, "__hipUnregisterFatBinary")(handle)
    assert hip.hipLaunchKernel(stub, grid, block, params, shared, stream) == INVALID_FUNCTION


def test_memory_that_is_not_readable_is_no_image(hip: Hip) -> None:
    """A bare pointer near the end of its mapping, and one to nothing."""
    module = c_void_p()
    assert hip.hipModuleLoadData(byref(module), c_void_p(0x10000)) == INVALID_IMAGE
    assert "not readable" in hip.error()
    area = mmap.mmap(-1, mmap.PAGESIZE)
    area[-4:] = b"\x7fELF"
    last = ctypes.addressof(ctypes.c_char.from_buffer(area)) + mmap.PAGESIZE - 4
    assert hip.hipModuleLoadData(byref(module), c_void_p(last)) == INVALID_IMAGE
    assert hip.hipModuleLoadData(byref(module), None) == INVALID_VALUE
