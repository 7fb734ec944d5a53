"""Launches: arguments, limits, faults, attributes, and host code of hipcc."""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

import numpy as np
import pytest

from support.vgpu.hip import (
    ARCHS,
    COOPERATIVE_TOO_LARGE,
    DEVICE_TO_HOST,
    HOST_ENTRY,
    HOST_TO_DEVICE,
    ILLEGAL_ADDRESS,
    INVALID_CONFIGURATION,
    INVALID_FUNCTION,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    LDS_BYTES,
    NOT_FOUND,
    OUT_OF_RESOURCES,
    SUCCESS,
    Hip,
    bundle,
    pointer,
    poisoned,
)

# ------------------------------------------------------------------------------ arguments

ARGUMENTS = (
    ctypes.c_char(-3 % 256),
    ctypes.c_short(-1234),
    c_int(-(2**31)),
    ctypes.c_float(0.375),
    ctypes.c_double(-1e300),
    ctypes.c_long(2**52 + 1),
    ctypes.c_char(101),
)
ARGUMENT_VALUES = (-3.0, -1234.0, -(2.0**31), 0.375, -1e300, 2.0**52 + 1, 101.0)


def packed_arguments(out: np.ndarray) -> bytes:
    # out 0, c 8, s 10, i 12, f 16, d 24, l 32, last 40
    return struct.pack(
        "<QbxhifxxxxdqB", out.ctypes.data, -3, -1234, -(2**31), 0.375, -1e300, 2**52 + 1, 101
    )


def test_both_argument_forms_give_the_same(hip: Hip, module: c_void_p) -> None:
    function = hip.function(module, "arguments")
    params, extra, padded = (poisoned(7, np.float64) for _ in range(3))
    assert hip.launch(function, pointer(params), *ARGUMENTS) == SUCCESS, hip.error()
    assert hip.launch_extra(function, packed_arguments(extra)) == SUCCESS, hip.error()
    assert hip.launch_extra(function, packed_arguments(padded) + bytes(7)) == SUCCESS, hip.error()
    for result in (params, extra, padded):
        np.testing.assert_array_equal(result, ARGUMENT_VALUES)


def test_a_larger_argument_buffer_ends_where_the_arguments_do(hip: Hip, module: c_void_p) -> None:
    """One struct for many kernels: what is behind the kernel's own arguments is not its hidden
    ones, though it lies where they do."""
    out, shapes = poisoned(7, np.float64), poisoned(16)
    function = hip.function(module, "arguments")
    assert hip.launch_extra(function, packed_arguments(out) + b"\xff" * 4096) == SUCCESS, (
        hip.error()
    )
    np.testing.assert_array_equal(out, ARGUMENT_VALUES)
    struct_of_all = struct.pack("<Q", shapes.ctypes.data) + b"\xff" * 400
    status = hip.launch_extra(hip.function(module, "shapes"), struct_of_all, (5, 3, 2), (32, 4, 2))
    assert status == SUCCESS, hip.error()
    np.testing.assert_array_equal(shapes, [5, 3, 2, 32, 4, 2, 0, 0, 0, *[0] * 6, 3])


@pytest.mark.parametrize("size", [8, 9, 12, 16, 19, 24, 40, 41])
def test_a_smaller_argument_buffer_leaves_zeros(hip: Hip, module: c_void_p, size: int) -> None:
    """As ROCm has it; and the buffer is not read beyond its size."""
    ends = (9, 12, 16, 20, 32, 40, 41)  # of c, s, i, f, d, l, last
    out = poisoned(7, np.float64)
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert ctypes.CDLL(None).mprotect(c_void_p(start + page), c_size_t(page), 0) == 0
    ctypes.memmove(start + page - size, packed_arguments(out), size)
    length = c_size_t(size)
    extra = (c_void_p * 5)(1, start + page - size, 2, ctypes.addressof(length), 3)
    shape = (hip.function(module, "arguments"), 1, 1, 1, 1, 1, 1, 0, None)
    assert hip.hipModuleLaunchKernel(*shape, None, extra) == SUCCESS, hip.error()
    expected = [v if end <= size else 0 for v, end in zip(ARGUMENT_VALUES, ends, strict=True)]
    np.testing.assert_array_equal(out, expected)


def test_missing_and_double_arguments_are_refused(hip: Hip, module: c_void_p) -> None:
    function, out = hip.function(module, "index"), poisoned(64, np.int32)
    shape = (function, 1, 1, 1, 64, 1, 1, 0, None)
    assert hip.hipModuleLaunchKernel(*shape, None, None) == INVALID_VALUE
    assert "takes 2 arguments" in hip.error()
    count, offset = c_int(64), pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(offset), ctypes.addressof(count))
    size = c_size_t(12)
    buffer = ctypes.create_string_buffer(struct.pack("<Qi", out.ctypes.data, 64))
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    assert hip.hipModuleLaunchKernel(*shape, params, extra) == INVALID_VALUE
    assert "both kernelParams and extra" in hip.error()
    for words in ((3,), (1, ctypes.addressof(buffer), 3), (7, 7, 7, 7, 3)):
        bad = (c_void_p * 5)(*words)
        assert hip.hipModuleLaunchKernel(*shape, None, bad) == INVALID_VALUE
        assert "BUFFER_POINTER" in hip.error()
    size.value = 0
    assert hip.hipModuleLaunchKernel(*shape, None, extra) == INVALID_VALUE
    assert "takes 2 arguments, but the argument buffer has 0 bytes" in hip.error()
    null = (c_void_p * 2)(ctypes.addressof(offset), None)
    assert hip.hipModuleLaunchKernel(*shape, null, None) == INVALID_VALUE
    assert "kernelParams[1] of 2 is null" in hip.error()
    assert (out == poisoned(64, np.int32)).all(), "a refused launch runs nothing"
    assert hip.launch(hip.function(module, "empty")) == SUCCESS, "no arguments need no list"


def test_hidden_arguments_tell_the_shape(hip: Hip, module: c_void_p) -> None:
    out = poisoned(16)
    function = hip.function(module, "shapes")
    assert hip.launch(function, pointer(out), grid=(5, 3, 2), block=(32, 4, 2)) == SUCCESS, (
        hip.error()
    )
    expected = [5, 3, 2, 32, 4, 2, 0, 0, 0, *[0] * 6, 3]
    np.testing.assert_array_equal(out, expected)


def test_block_and_grid_size_builtins(hip: Hip, module: c_void_p) -> None:
    out = poisoned(3)
    assert (
        hip.launch(hip.function(module, "sizes"), pointer(out), grid=(7,), block=(96, 2)) == SUCCESS
    )
    np.testing.assert_array_equal(out, [96, 2, 7 * 96])


def test_globals_are_initialised_relocated_and_writable(hip: Hip, module: c_void_p) -> None:
    offset, size, out = c_void_p(), c_size_t(), poisoned(6, np.float32)
    hip.call("hipModuleGetGlobal", byref(offset), byref(size), module, b"counter")
    assert (size.value, c_int.from_address(offset.value).value) == (4, 42)
    new = c_int(100)
    hip.call("hipMemcpyHtoD", offset, byref(new), 4)
    assert hip.launch(hip.function(module, "globals"), pointer(out)) == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, [200, 1.5, -2.0, 0.25, 8.0, 0])
    hip.call("hipMemcpyDtoH", byref(new), offset, 4)
    assert new.value == 7, "the kernel's store is seen by the host"
    hip.call("hipModuleGetGlobal", byref(offset), byref(size), module, b"zeroed")
    assert (size.value, ctypes.string_at(offset.value, 5000)) == (5000, bytes(5000))
    assert hip.hipModuleGetGlobal(byref(offset), byref(size), module, b"countr") == NOT_FOUND


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
    hip: Hip,
    module: c_void_p,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    status: int,
    words: str,
) -> None:
    assert hip.launch(hip.function(module, "empty"), grid=grid, block=block) == status
    assert "launch of empty: " in hip.error() and words in hip.error()


def test_arguments_that_a_kernel_does_not_take(
    hip: Hip, module: c_void_p, capfd: pytest.CaptureFixture[str]
) -> None:
    empty, bounded, out = (
        hip.function(module, "empty"),
        hip.function(module, "bounded"),
        poisoned(1),
    )
    assert hip.launch_extra(empty, bytes(8)) == OUT_OF_RESOURCES
    assert "takes no arguments, but the argument buffer has 8 bytes" in hip.error()
    assert hip.launch_extra(empty, b"") == SUCCESS, hip.error()
    address = struct.pack("<Q", out.ctypes.data)
    for padding in (bytes(8), b"\1" * 8, b"\1" * 8):
        assert hip.launch_extra(bounded, address + padding) == SUCCESS, hip.error()
    reports = [line for line in capfd.readouterr().err.splitlines() if "is not read" in line]
    assert len(reports) == 1 and "16 bytes of arguments, of which the kernel takes 8" in reports[0]


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
    offset = pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(offset), ctypes.addressof(count))
    launch, tail = hip.hipExtModuleLaunchKernel, (params, None, None, None, 0)
    function = hip.function(module, "index")
    assert launch(function, 192, 1, 1, 64, 1, 1, c_size_t(), None, *tail) == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, np.arange(192) * 3)
    status = launch(function, 191, 1, 1, 64, 1, 1, c_size_t(), None, *tail)
    assert status == INVALID_CONFIGURATION and "whole workgroups" in hip.error()


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((f"size{i}", c_uint) for i in range(7)),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


def test_driver_launch_with_a_config(hip: Hip, module: c_void_p) -> None:
    out, count = poisoned(128, np.int32), c_int(128)
    offset = pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(offset), ctypes.addressof(count))
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
    offset = pointer(out)
    params = (c_void_p * 2)(ctypes.addressof(offset), ctypes.addressof(count))
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
