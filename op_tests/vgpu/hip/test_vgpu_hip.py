"""The virtual GPU's HIP interface: device, memory, streams and events."""

from __future__ import annotations

import ast
import ctypes
import struct
import subprocess
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pytest

from support.process import python
from support.vgpu.hip import (
    CONTEXT_DESTROYED,
    DEFAULT,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    ILLEGAL_ADDRESS,
    INVALID_DEVICE,
    INVALID_DIRECTION,
    INVALID_HANDLE,
    INVALID_VALUE,
    LDS_BYTES,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    Hip,
    pointer,
)

# ------------------------------------------------------------------------------ device


def properties(hip: Hip, entry: str) -> bytes:
    raw = ctypes.create_string_buffer(b"\xee" * 1480, 1480)
    hip.call(entry, raw, 0)
    assert raw.raw[1472:] == b"\xee" * 8, "hipDeviceProp_tR0600 has 1472 bytes; more were written"
    return raw.raw[:1472]


@pytest.mark.parametrize("entry", ["hipGetDevicePropertiesR0600", "hipGetDeviceProperties"])
def test_properties_lie_at_the_offsets_that_callers_read(hip: Hip, arch: str, entry: str) -> None:
    raw = properties(hip, entry)

    def i32(offset: int) -> int:
        return struct.unpack_from("<i", raw, offset)[0]

    def size(offset: int) -> int:
        return struct.unpack_from("<Q", raw, offset)[0]

    def text(offset: int) -> str:
        return raw[offset : raw.index(b"\0", offset)].decode()

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


def test_there_are_no_images(hip: Hip) -> None:
    """As AMD's runtime answers for these GPUs; a program that has such calls is loaded."""

    class Channel(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_int) for name in ("x", "y", "z", "w", "kind"))

    hip.lib.hipCreateChannelDesc.restype = Channel
    made = hip.lib.hipCreateChannelDesc(32, 16, 8, 4, 2)
    assert [getattr(made, name) for name, _ in Channel._fields_] == [32, 16, 8, 4, 2]
    texture = ctypes.c_void_p(5)
    assert hip.hipCreateTextureObject(byref(texture), None, None, None) == NOT_SUPPORTED
    assert "no images" in hip.error() and texture.value == 5
    assert hip.hipDestroyTextureObject(texture) == NOT_SUPPORTED
    assert hip.hipDestroyTextureObject(None) == SUCCESS


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
    vgpu_path: Path, value: str, status: int, target: str
) -> None:
    script = (
        "import ctypes, sys; hip = ctypes.CDLL(sys.argv[1]); p = ctypes.create_string_buffer(1472);"
        "status = hip.hipInit(0); hip.hipGetDeviceProperties(p, 0);"
        "hip.rfops_vgpu_last_error.restype = ctypes.c_char_p;"
        "print(status, p.raw[1160:1184], hip.rfops_vgpu_last_error())"
    )
    completed = python(script, vgpu_path, check=True, RFOPS_VGPU_ARCH=value)
    assert completed.stdout.startswith(f"{status} ")
    assert target in completed.stdout


def test_every_function_is_found_by_name(hip: Hip) -> None:
    found, result = c_void_p(), c_int(9)
    names = "hipGetDeviceProperties hipModuleLoadDataEx hipModuleLaunchKernel hipFuncGetAttribute"
    for name in [
        *names.split(),
        "hipDrvLaunchKernelEx",
        "hipPointerGetAttribute",
        "hipGetLastError",
    ]:
        hip.call(
            "hipGetProcAddress", name.encode(), byref(found), 60000000, c_uint64(), byref(result)
        )
        own = ctypes.cast(getattr(hip.lib, name), c_void_p).value
        assert (found.value, result.value) == (own, 0), name
    for name in (b"hipNoSuchCall", b"malloc"):
        status = hip.hipGetProcAddress(name, byref(found), 60000000, c_uint64(), byref(result))
        assert (status, found.value, result.value) == (NOT_FOUND, None, 1), name


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
    hip.call(
        "hipMemcpy2D", first, size(512), pointer(source), size(100), size(100), size(50), DEFAULT
    )
    hip.call(
        "hipMemcpy2D", pointer(back), size(100), first, size(512), size(100), size(50), DEFAULT
    )
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
    hip.call("hipFree", memory)
    assert hip.hipFree(memory) == INVALID_VALUE and "double free" in hip.error()
    hip.call("hipFree", pinned)  # as in ROCm
    assert hip.hipHostFree(pinned) == INVALID_VALUE and "double free" in hip.error()
    device, pinned = allocate(hip, 5000), allocate(hip, 5000, "hipHostMalloc")
    hip.call("hipHostFree", device)
    hip.call("hipHostFree", pinned)
    mine = np.zeros(16, np.uint8)
    hip.call("hipHostRegister", pointer(mine), c_size_t(16), 0)
    assert hip.hipFree(pointer(mine)) == INVALID_VALUE and "hipHostUnregister" in hip.error()
    hip.call("hipHostUnregister", pointer(mine))
    assert hip.hipFree(pointer(mine)) == INVALID_VALUE
    assert "not memory of HIP" in hip.error()
    hip.call("hipFree", None)
    hip.call("hipHostFree", None)


def test_the_default_pool(hip: Hip) -> None:
    pool, again = c_void_p(), c_void_p()
    hip.call("hipDeviceGetDefaultMemPool", byref(pool), 0)
    hip.call("hipDeviceGetDefaultMemPool", byref(again), 0)
    assert pool.value and pool.value == again.value
    hip.call("hipMemPoolTrimTo", pool, c_size_t(0))
    assert hip.hipMemPoolTrimTo(c_void_p(8), c_size_t(0)) == INVALID_VALUE
    assert hip.hipDeviceGetDefaultMemPool(None, 0) == INVALID_VALUE
    assert hip.hipDeviceGetDefaultMemPool(byref(pool), 1) == INVALID_DEVICE


# Without torch, whose CPU tensors would be the device's.
_COPIES = """
import ctypes, sys
hip = ctypes.CDLL(sys.argv[1])
size, memory = ctypes.c_size_t(8), ctypes.c_void_p()
assert hip.hipMalloc(ctypes.byref(memory), size) == 0
one, two = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
sides = {"host": (one, two), "to": (memory, two), "from": (one, memory), "device": (memory, memory)}
copies = {n: [hip.hipMemcpy(*s, size, kind) for kind in range(5)] for n, s in sides.items()}
rows, one_row = (ctypes.c_size_t(4),) * 4, ctypes.c_size_t(1)
copy_rows = lambda kind: hip.hipMemcpy2D(one, rows[0], two, *rows[1:3], one_row, kind)
copies["rows"] = [copy_rows(kind) for kind in range(5)]
copies["fill"] = [hip.hipMemset(side, 0, size) for side in (one, memory)]
print(copies)
"""


def test_a_copy_needs_the_device_that_its_direction_names(vgpu_path: Path) -> None:
    command = [sys.executable, "-S", "-c", _COPIES, str(vgpu_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    every = [SUCCESS] * 5
    host = [SUCCESS, *[INVALID_VALUE] * 3, SUCCESS]
    assert ast.literal_eval(result.stdout) == {
        "host": host, "to": every, "from": every, "device": every, "rows": host,
        "fill": [INVALID_VALUE, SUCCESS],
    }  # fmt: skip
    assert "is not memory of HIP" in result.stderr


def test_memory_is_counted(hip: Hip) -> None:
    total, previous, during, after = (c_size_t() for _ in range(4))
    hip.call("hipMemGetInfo", byref(previous), byref(total))
    assert total.value == 288 << 30 and previous.value <= total.value
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
        ("type", c_int),
        ("device", c_int),
        ("device_pointer", c_void_p),
        ("host_pointer", c_void_p),
        ("managed", c_int),
        ("flags", c_uint),
    )


def test_pointers_say_what_they_are(hip: Hip) -> None:
    blocks = {
        2: allocate(hip, 100),
        1: allocate(hip, 100, "hipHostMalloc"),
        3: allocate(hip, 100, "hipMallocManaged"),
    }
    result = PointerAttributes()
    for kind, memory in blocks.items():
        hip.call("hipPointerGetAttributes", byref(result), c_void_p(memory.value + 99))
        assert (result.type, result.device_pointer) == (kind, memory.value + 99)
        assert result.managed == (kind == 3)
        assert result.host_pointer == (None if kind == 2 else memory.value + 99)
    mine, echoed, start = np.zeros(4, np.uint8), c_void_p(), c_void_p()
    hip.call("hipPointerGetAttributes", byref(result), pointer(mine))
    assert result.type == 0, "memory that HIP did not allocate is unregistered"
    hip.call("hipPointerGetAttribute", byref(echoed), 3, pointer(mine))
    assert echoed.value == mine.ctypes.data, "a CPU tensor is a valid device pointer"
    hip.call("hipPointerGetAttribute", byref(start), 11, c_void_p(blocks[2].value + 50))
    assert start.value == blocks[2].value
    hip.call("hipHostRegister", pointer(mine), c_size_t(4), 0)
    hip.call("hipPointerGetAttributes", byref(result), pointer(mine))
    assert result.type == 1
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
    recorded_calls: list[int] = []
    kind = ctypes.CFUNCTYPE(None, c_void_p)
    hip.call(
        "hipLaunchHostFunc", None, kind(lambda data: recorded_calls.append(data)), c_void_p(77)
    )
    assert recorded_calls == [77]
