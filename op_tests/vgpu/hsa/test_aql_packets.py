"""Packets of 64 bytes that are written to a queue by hand, as the runtimes above HSA do."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Iterator
from ctypes import c_uint64
from pathlib import Path

import numpy as np
import pytest

from rfops.jit import settings, vgpu_hsa_folder
from support.vgpu import hsa as h
from support.vgpu.hip import compile_hip, poisoned


@pytest.fixture(scope="module", name="hsa")
def hsa_fixture() -> h.Hsa:
    return h.Hsa(vgpu_hsa_folder() / "libhsa-runtime64.so.1")


@pytest.fixture(scope="module", name="code")
def code_fixture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_hip(h.SOURCE, settings.text("RFOPS_VGPU_ARCH"), tmp_path_factory.mktemp("aql"))


@pytest.fixture(scope="module", name="program")
def program_fixture(hsa: h.Hsa, code: bytes) -> c_uint64:
    return hsa.load(code)


@pytest.fixture(name="queue")
def queue_fixture(hsa: h.Hsa) -> Iterator[h.Queue]:
    queue = h.Queue(hsa)
    yield queue
    queue.destroy()


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_the_agent_describes_the_virtual_gpu(hsa: h.Hsa) -> None:
    arch, units, isas = settings.text("RFOPS_VGPU_ARCH"), ctypes.c_uint32(), []
    assert hsa.agent_text(0) == arch and "virtual" in hsa.agent_text(0xA009)
    hsa.call("hsa_agent_get_info", hsa.gpu, 0xA002, ctypes.byref(units))
    assert units.value == {"gfx950": 256, "gfx942": 304}[arch]
    (isa,) = hsa.visited("hsa_agent_iterate_isas", hsa.gpu)
    length, name = ctypes.c_uint32(), ctypes.create_string_buffer(100)
    hsa.call("hsa_isa_get_info_alt", c_uint64(isa), 0, ctypes.byref(length))
    hsa.call("hsa_isa_get_info_alt", c_uint64(isa), 1, name)
    assert name.value.decode() == f"amdgcn-amd-amdhsa--{arch}:sramecc+:xnack-"
    assert length.value == len(name.value) + 1 and not isas
    assert len(hsa.visited("hsa_amd_agent_iterate_memory_pools", hsa.gpu)) == 2
    assert len(hsa.visited("hsa_amd_agent_iterate_memory_pools", hsa.cpu)) == 3
    assert hsa.hsa_agent_get_info(hsa.gpu, 0xBEEF, name) == h.INVALID_ARGUMENT


def test_a_kernel_by_hand(hsa: h.Hsa, program: c_uint64, queue: h.Queue) -> None:
    """The whole way: memory, arguments, packet, doorbell, completion signal."""
    n = 1000
    out, x, y = (np.zeros(n, np.float32) for _ in range(3))
    x[:], y[:], out[:] = np.arange(n), 0.5, np.nan
    symbol = hsa.symbol(program, "axpy.kd")
    kernarg = hsa.allocate(hsa.symbol_info(symbol, 11), h.POOL_KERNARG)
    pointers = (out.ctypes.data, x.ctypes.data, y.ctypes.data)
    arguments = struct.pack("<QQQfI", *pointers, 2.0, n)
    ctypes.memmove(kernarg, arguments, len(arguments))
    done = hsa.signal()
    kernel = hsa.symbol_info(symbol, 22)
    index = queue.reserve()
    queue.write(index, h.dispatch(kernel, kernarg, (1024,), (256,), done))
    assert hsa.value(done) == 1 and queue.read_index() == index, "the doorbell has not been rung"
    queue.ring(index)
    assert hsa.wait(done) == 0 and not queue.errors
    assert (out == 2 * x + y).all()
    start, end = (ctypes.c_uint64.from_address((done.value or 0) + at).value for at in (32, 40))
    assert 0 < start <= end
    hsa.call("hsa_amd_memory_pool_free", ctypes.c_void_p(kernarg))
    hsa.call("hsa_signal_destroy", done)


def test_packets_run_in_order_around_the_ring(hsa: h.Hsa, program: c_uint64) -> None:
    queue, kernel, done = h.Queue(hsa, 16), hsa.kernel_object(program, "append"), hsa.signal(40)
    digits = [(7 * i + 3) % 10 for i in range(40)]
    number = np.zeros(40, np.uint32)
    arguments = [words(number[i // 8 :].ctypes.data, digit) for i, digit in enumerate(digits)]
    for argument in arguments:
        queue.submit(h.dispatch(kernel, argument, (1,), (1,), done))
    assert hsa.wait(done) == 0 and queue.read_index() == 40
    expected = [int("".join(map(str, digits[i : i + 8]))) for i in range(0, 40, 8)]
    assert list(number[:5]) == expected and not number[5:].any()
    queue.destroy()


def test_a_packet_waits_for_an_earlier_one_that_is_still_written(
    hsa: h.Hsa, program: c_uint64, queue: h.Queue
) -> None:
    number, kernel, done = (
        np.zeros(1, np.uint32),
        hsa.kernel_object(program, "append"),
        hsa.signal(2),
    )
    arguments = [words(number.ctypes.data, digit) for digit in (1, 2)]
    first, second = queue.reserve(), queue.reserve()
    queue.write(second, h.dispatch(kernel, arguments[1], (1,), (1,), done))
    queue.ring(second)
    tick = hsa.signal()
    hsa.lib.hsa_signal_wait_scacquire(tick, h.LESS, ctypes.c_int64(1), c_uint64(h.SECOND // 50), 0)
    assert hsa.value(done) == 2 and number[0] == 0
    queue.write(first, h.dispatch(kernel, arguments[0], (1,), (1,), done))
    queue.ring(first)
    assert hsa.wait(done) == 0 and number[0] == 12


def test_barriers(hsa: h.Hsa, program: c_uint64, queue: h.Queue) -> None:
    """AND waits for all of its signals, OR for one, a value barrier for masked bits."""
    number, kernel = np.zeros(1, np.uint32), hsa.kernel_object(program, "append")
    arguments = [words(number.ctypes.data, digit) for digit in (1, 2, 3)]
    one, two, bits = hsa.signal(1), hsa.signal(1), hsa.signal(0x10)
    done = [hsa.signal() for _ in range(4)]
    run = [h.dispatch(kernel, a, (1,), (1,), d) for a, d in zip(arguments, done, strict=False)]
    queue.submit(
        h.barrier(h.BARRIER_OR, (one, two)),
        run[0],
        h.barrier(h.BARRIER_AND, (one, two)),
        run[1],
        h.barrier_value(bits, 0x20, 0xF0, h.EQUAL, done[3]),
        run[2],
    )
    hsa.set(two, 0)
    assert hsa.wait(done[0]) == 0 and number[0] == 1 and hsa.value(done[1]) == 1
    hsa.set(one, 0)
    assert hsa.wait(done[1]) == 0 and number[0] == 12 and hsa.value(done[3]) == 1
    hsa.set(bits, 0x25)
    assert hsa.wait(done[2]) == 0 and number[0] == 123 and hsa.value(done[3]) == 0


def test_queues_run_beside_each_other(hsa: h.Hsa, program: c_uint64, queue: h.Queue) -> None:
    """One waits for a signal that a kernel of the other completes."""
    number, kernel = np.zeros(1, np.uint32), hsa.kernel_object(program, "append")
    other, middle, done = h.Queue(hsa), hsa.signal(), hsa.signal()
    one, two = words(number.ctypes.data, 1), words(number.ctypes.data, 2)
    queue.submit(h.barrier(h.BARRIER_AND, (middle,)), h.dispatch(kernel, two, (1,), (1,), done))
    other.submit(h.dispatch(kernel, one, (1,), (1,), middle))
    assert hsa.wait(done) == 0 and number[0] == 12
    other.destroy()


@pytest.mark.parametrize(
    ("grid", "block"), [((100, 7), (32, 2)), ((65, 3), (64, 4)), ((5,), (64,))]
)
def test_grids_of_any_extents(
    hsa: h.Hsa, program: c_uint64, queue: h.Queue, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    """The last workgroups have fewer lanes, numbered as in a workgroup of that size."""
    nx, ny = (*grid, 1)[:2]
    count, done = np.zeros(nx * ny + 1, np.uint32), hsa.signal()
    arguments = np.array([count.ctypes.data, ny << 32 | nx], np.uint64)
    queue.submit(h.dispatch(hsa.kernel_object(program, "places"), arguments, grid, block, done))
    assert hsa.wait(done) == 0 and not queue.errors
    assert (count[:-1] == 1).all() and count[-1] == 0


def test_a_kernel_sees_its_packet_and_queue(hsa: h.Hsa, program: c_uint64, queue: h.Queue) -> None:
    out, done = np.zeros(2, np.uint64), hsa.signal()
    packet = h.dispatch(
        hsa.kernel_object(program, "pointers"), words(out.ctypes.data), (1,), (1,), done
    )
    index = queue.reserve()
    queue.write(index, packet)
    queue.ring(index)
    assert hsa.wait(done) == 0
    assert list(out) == [queue.base + index * 64, queue.handle.value]


def test_blocks_larger_than_compiled_for_are_not_checked(
    hsa: h.Hsa, program: c_uint64, queue: h.Queue
) -> None:
    """As on hardware; AMD's copy kernels are launched so. LDS is the packet's."""
    out, done = poisoned(1), hsa.signal()
    symbol = hsa.symbol(program, "bounded.kd")
    lds = hsa.symbol_info(symbol, 13)
    assert lds == 4
    argument = words(out.ctypes.data)
    kernel = hsa.symbol_info(symbol, 22)
    queue.submit(h.dispatch(kernel, argument, (512,), (512,), done, lds=lds + 4))
    assert hsa.wait(done) == 0 and out[0] == 512


BAD_PACKETS = {
    "kernel": (lambda k: h.dispatch(0x1000, 0, (64,), (64,)), h.INVALID_CODE_OBJECT),
    "block": (lambda k: h.dispatch(k("empty"), 0, (64,), (1025,)), h.INVALID_PACKET_FORMAT),
    "no block": (lambda k: h.dispatch(k("empty"), 0, (64,), (0,)), h.INVALID_PACKET_FORMAT),
    "grid": (lambda k: h.dispatch(k("empty"), 0, (64, 0), (64,)), h.INVALID_PACKET_FORMAT),
    "much lds": (
        lambda k: h.dispatch(k("empty"), 0, (64,), (64,), lds=161 << 10),
        h.INVALID_PACKET_FORMAT,
    ),
    "little lds": (lambda k: h.dispatch(k("bounded"), 64, (64,), (64,)), h.INVALID_PACKET_FORMAT),
    "arguments": (lambda k: h.dispatch(k("append"), 0, (64,), (64,)), h.INVALID_PACKET_FORMAT),
    "type": (lambda k: struct.pack("<I60x", 9), h.INVALID_PACKET_FORMAT),
    "vendor": (lambda k: struct.pack("<HB61x", 0, 1), h.INVALID_PACKET_FORMAT),
    "memory": (lambda k: h.dispatch(k("stray"), 0, (64,), (64,)), h.MEMORY_FAULT),
    "trap": (lambda k: h.dispatch(k("trap"), 0, (64,), (64,)), h.EXCEPTION),
}


@pytest.mark.parametrize("name", BAD_PACKETS)
def test_errors_go_to_the_callback_and_end_the_queue(
    hsa: h.Hsa, program: c_uint64, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make, status = BAD_PACKETS[name]
    queue, done, after = h.Queue(hsa), hsa.signal(), hsa.signal()
    packet = make(lambda kernel: hsa.kernel_object(program, kernel))
    queue.submit(packet[:56] + struct.pack("<Q", done.value or 0), h.barrier(3, (), after))
    hsa.lib.hsa_signal_wait_scacquire(after, h.LESS, ctypes.c_int64(1), c_uint64(h.SECOND // 20), 0)
    queue.destroy()  # joins its thread
    assert queue.errors == [status]
    assert hsa.value(done) == 1 and hsa.value(after) == 1
    assert "packet 0: " in capfd.readouterr().err


def test_the_last_error_is_of_what_failed_last(hsa: h.Hsa) -> None:
    """An old error of a queue hid that of a later call, and outlived its queue."""

    def last_error() -> str:
        return ctypes.string_at(hsa.rfops_vgpu_last_error()).decode()

    hsa.lib.rfops_vgpu_last_error.restype = ctypes.c_void_p
    queues, after = [h.Queue(hsa), h.Queue(hsa)], hsa.signal()
    for number, queue in enumerate(queues):
        queue.submit(struct.pack("<I60x", 9 + number), h.barrier(3, (), after))
        while not queue.errors:
            time.sleep(0.001)
        assert f"packet type {9 + number}" in last_error()
    assert hsa.hsa_queue_destroy(ctypes.c_void_p(64)) == h.INVALID_QUEUE
    assert last_error() == "hsa_queue_destroy: unknown queue"
    queue = h.Queue(hsa)
    queue.submit(struct.pack("<I60x", 11), h.barrier(3, (), after))
    while not queue.errors:
        time.sleep(0.001)
    assert "packet type 11" in last_error()
    queue.destroy()
    assert last_error() == "hsa_queue_destroy: unknown queue", "the queue's error ended with it"
    for queue in queues:
        queue.destroy()


def test_a_queue_that_waits_can_be_destroyed(hsa: h.Hsa) -> None:
    queue, never = h.Queue(hsa), hsa.signal()
    queue.submit(h.barrier(h.BARRIER_AND, (never,)))
    queue.destroy()
    assert not queue.errors


def test_queues_are_checked(hsa: h.Hsa) -> None:
    handle = ctypes.c_void_p()
    create = hsa.hsa_queue_create
    for agent, size, kind, status in (
        (hsa.gpu, 48, 0, h.INVALID_ARGUMENT),
        (hsa.gpu, 0, 0, h.INVALID_ARGUMENT),
        (hsa.gpu, 64, 9, h.INVALID_QUEUE_CREATION),
        (hsa.cpu, 64, 0, h.INVALID_QUEUE_CREATION),
    ):
        out = ctypes.byref(handle)
        assert create(agent, size, kind, h.QueueCallback(), None, 0, 0, out) == status
    assert not handle.value


# ------------------------------------------------------------------------------ signals


def test_kernels_change_a_signal(hsa: h.Hsa, program: c_uint64, queue: h.Queue) -> None:
    """And a handler on the host runs, again as long as it returns true."""
    seen: list[int] = []
    signal, last = hsa.signal(3), hsa.signal()

    def handle(value: int, _: int | None) -> bool:
        seen.append(value)
        if not value:
            hsa.set(last, 0)
        return value > 0

    handler = h.SignalHandler(handle)
    watch = hsa.hsa_amd_signal_async_handler
    assert watch(signal, h.LESS, ctypes.c_int64(3), handler, None) == h.SUCCESS
    argument = words(signal.value or 0)
    kernel = hsa.kernel_object(program, "signals")
    queue.submit(*[h.dispatch(kernel, argument, (1,), (1,))] * 3)
    assert hsa.wait(last) == 0 and hsa.value(signal) == 0
    assert seen == sorted(seen, reverse=True) and seen[-1] == 0 and seen.count(0) == 1


def test_waits_end_at_their_time(hsa: h.Hsa) -> None:
    signal = hsa.signal(5)
    wait = hsa.lib.hsa_signal_wait_scacquire
    assert wait(signal, h.EQUAL, ctypes.c_int64(6), c_uint64(1000), 0) == 5
    for condition, operand in (
        (h.EQUAL, 5),
        (h.NOT_EQUAL, 6),
        (h.LESS, 6),
        (h.GREATER_OR_EQUAL, 5),
    ):
        assert wait(signal, condition, ctypes.c_int64(operand), c_uint64(h.FOREVER), 0) == 5
    change = threading.Timer(
        0.02, lambda: hsa.lib.hsa_signal_add_relaxed(signal, ctypes.c_int64(1))
    )
    change.start()
    assert hsa.wait(signal, 6, h.EQUAL) == 6
    change.join()
    hsa.call("hsa_signal_destroy", signal)
    assert hsa.hsa_signal_destroy(c_uint64(0)) != h.SUCCESS


# ------------------------------------------------------------------------------ memory


def pointer_info(hsa: h.Hsa, address: int) -> h.PointerInfo:
    info = h.PointerInfo(size=ctypes.sizeof(h.PointerInfo))
    pointer = ctypes.c_void_p(address)
    hsa.call("hsa_amd_pointer_info", pointer, ctypes.byref(info), None, None, None)
    return info


def test_pointers_are_described(hsa: h.Hsa) -> None:
    memory, pinned = hsa.allocate(5000), hsa.allocate(5000, h.POOL_FINE)
    plain, agent_pointer = np.zeros(5000, np.uint8), ctypes.c_void_p()
    inside = pointer_info(hsa, memory + 4999)
    assert (inside.type, inside.agent_base, inside.bytes) == (1, memory, 5000)
    assert inside.owner == hsa.gpu.value and pointer_info(hsa, pinned).owner == hsa.cpu.value
    assert pointer_info(hsa, plain.ctypes.data).type == 0
    lock = (ctypes.c_void_p(plain.ctypes.data), ctypes.c_size_t(5000), None, 0)
    pool = c_uint64(h.POOL_FINE)
    hsa.call("hsa_amd_memory_lock_to_pool", *lock, pool, 0, ctypes.byref(agent_pointer))
    assert agent_pointer.value == plain.ctypes.data
    assert pointer_info(hsa, plain.ctypes.data + 1).type == 2
    hsa.call("hsa_amd_memory_unlock", agent_pointer)
    assert pointer_info(hsa, plain.ctypes.data).type == 0
    for block in (memory, pinned):
        hsa.call("hsa_amd_memory_pool_free", ctypes.c_void_p(block))
        assert hsa.hsa_amd_memory_pool_free(ctypes.c_void_p(block)) == h.INVALID_ALLOCATION


def test_copies_wait_for_their_signals(hsa: h.Hsa) -> None:
    source, middle, out = np.arange(100, dtype=np.uint8), poisoned(25), poisoned(25)
    gate, first, second = hsa.signal(), hsa.signal(), hsa.signal()
    copy, size = "hsa_amd_memory_async_copy", ctypes.c_size_t(100)

    def address(array: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    # The second is asked for first.
    after_first, after_gate = (ctypes.byref(c_uint64(s.value or 0)) for s in (first, gate))
    ends = (hsa.gpu, address(middle), hsa.gpu, size, 1)
    hsa.call(copy, address(out), *ends, after_first, second)
    ends = (hsa.gpu, address(source), hsa.cpu, size, 1)
    hsa.call(copy, address(middle), *ends, after_gate, first)
    assert hsa.value(first) == hsa.value(second) == 1
    hsa.set(gate, 0)
    assert hsa.wait(second) == 0 and out.tobytes() == source.tobytes()
    wrong = hsa.hsa_amd_memory_async_copy(ctypes.c_void_p(0x10000), *ends[:3], size, 0, None, first)
    assert wrong == h.INVALID_ARGUMENT


def test_one_memory_at_two_addresses(hsa: h.Hsa, program: c_uint64, queue: h.Queue) -> None:
    size, handle, places = ctypes.c_size_t(8192), c_uint64(), []
    pool = c_uint64(h.POOL_DEVICE)
    hsa.call("hsa_amd_vmem_handle_create", pool, size, 0, c_uint64(0), ctypes.byref(handle))
    for _ in range(2):
        place = ctypes.c_void_p()
        reserve = (size, c_uint64(0), c_uint64(1 << 21), c_uint64(0))
        hsa.call("hsa_amd_vmem_address_reserve_align", ctypes.byref(place), *reserve)
        assert (place.value or 1) % (1 << 21) == 0
        hsa.call("hsa_amd_vmem_map", place, size, ctypes.c_size_t(0), handle, c_uint64(0))
        places.append(place.value or 0)
    hsa.call("hsa_amd_vmem_handle_release", handle)
    done = hsa.signal()
    kernel = hsa.kernel_object(program, "append")
    queue.submit(h.dispatch(kernel, words(places[0] + 4096, 7), (1,), (1,), done))
    assert hsa.wait(done) == 0
    assert ctypes.c_uint32.from_address(places[1] + 4096).value == 7
    assert pointer_info(hsa, places[1] + 8191).type == 6
    for place in map(ctypes.c_void_p, places):
        hsa.call("hsa_amd_vmem_unmap", place, size)
        assert hsa.hsa_amd_vmem_unmap(place, size) == h.INVALID_ALLOCATION
        hsa.call("hsa_amd_vmem_address_free", place, size)


# ------------------------------------------------------------------------------ code


def test_code_and_symbols_are_checked(hsa: h.Hsa, code: bytes, tmp_path: Path) -> None:
    executable, symbol = hsa.load(code), c_uint64()
    get = hsa.hsa_executable_get_symbol_by_name
    for name in (b"none", b"none.kd", b"axpy"):
        assert get(executable, name, None, ctypes.byref(symbol)) == h.INVALID_SYMBOL_NAME
    variable = hsa.symbol(executable, "variable")
    assert hsa.symbol_info(variable, 0) == 0 and hsa.symbol_info(variable, 9) == 4
    assert ctypes.c_uint32.from_address(hsa.symbol_info(variable, 21)).value == 42
    assert hsa.hsa_executable_freeze(executable, None) == h.FROZEN_EXECUTABLE
    kernel = hsa.kernel_object(executable, "empty")
    hsa.call("hsa_executable_destroy", executable)
    queue = h.Queue(hsa)
    queue.submit(h.dispatch(kernel, 0, (1,), (1,)))
    after = hsa.signal()
    hsa.lib.hsa_signal_wait_scacquire(after, h.LESS, ctypes.c_int64(1), c_uint64(h.SECOND // 20), 0)
    queue.destroy()
    assert queue.errors == [h.INVALID_CODE_OBJECT], "its executable has been destroyed"
    other = bytearray(code)
    other[48] = 0x4F ^ 0x4C ^ other[48]  # the other architecture
    for bad, status in ((bytes(other), h.INCOMPATIBLE_ARGUMENTS), (b"none", h.INVALID_CODE_OBJECT)):
        reader, empty = c_uint64(), c_uint64()
        create = "hsa_code_object_reader_create_from_memory"
        hsa.call(create, bad, ctypes.c_size_t(len(bad)), ctypes.byref(reader))
        hsa.call("hsa_executable_create_alt", 0, 0, None, ctypes.byref(empty))
        load = hsa.hsa_executable_load_agent_code_object
        assert load(empty, hsa.gpu, reader, None, None) == status
