"""The virtual GPU's HSA runtime: calls by ctypes, and packets that are written by hand.

Statuses and layouts are those of ROCm 7's hsa.h and hsa_ext_amd.h.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

SUCCESS, MEMORY_FAULT = 0, 43
INVALID_ARGUMENT, INVALID_QUEUE_CREATION, INVALID_ALLOCATION = 0x1001, 0x1002, 0x1003
INVALID_PACKET_FORMAT, INCOMPATIBLE_ARGUMENTS, INVALID_CODE_OBJECT = 0x1009, 0x100D, 0x1010
FROZEN_EXECUTABLE, INVALID_SYMBOL_NAME, EXCEPTION = 0x1012, 0x1013, 0x1016
INVALID_QUEUE = 0x1007

VENDOR, INVALID, DISPATCH, BARRIER_AND, BARRIER_OR = 0, 1, 2, 3, 5
EQUAL, NOT_EQUAL, LESS, GREATER_OR_EQUAL = range(4)
FENCES = 0x0A00  # system scope, before and after
FOREVER = (1 << 64) - 1
SECOND = 10**9

POOL_FINE, POOL_KERNARG, POOL_DEVICE = 0x2001, 0x2002, 0x2004

Visit = ctypes.CFUNCTYPE(c_uint32, c_uint64, c_void_p)
QueueCallback = ctypes.CFUNCTYPE(None, c_uint32, c_void_p, c_void_p)
SignalHandler = ctypes.CFUNCTYPE(ctypes.c_bool, c_int64, c_void_p)


SOURCE = r"""
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
using u32 = unsigned;
using u64 = unsigned long;

extern "C" __attribute__((device)) u32 variable = 42;

// out[i] = a * x[i] + y[i] for i < n
extern "C" __global__ void axpy(float* out, const float* x, const float* y, float a, u32 n) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 256 +
                __builtin_amdgcn_workitem_id_x();
  if (i < n) out[i] = a * x[i] + y[i];
}

// One kernel after another: 10 * word + digit.
extern "C" __global__ void append(u32* word, u32 digit) { *word = 10 * *word + digit; }

// Every lane of a grid of any extents counts itself and its place in its workgroup.
extern "C" __global__ void places(u32* count, u32 nx, u32 ny) {
  auto* packet = (const __constant__ u32*)__builtin_amdgcn_dispatch_ptr();
  const u32 bx = packet[1] & 0xffff, by = packet[1] >> 16;
  const u32 x = __builtin_amdgcn_workgroup_id_x() * bx + __builtin_amdgcn_workitem_id_x();
  const u32 y = __builtin_amdgcn_workgroup_id_y() * by + __builtin_amdgcn_workitem_id_y();
  if (x < nx && y < ny) count[y * nx + x] += 1; else count[nx * ny] += 1;
}

extern "C" __global__ void pointers(u64* out) {
  out[0] = (u64)__builtin_amdgcn_dispatch_ptr();
  out[1] = (u64)__builtin_amdgcn_queue_ptr();
}

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, 64))) bounded(u32* out) {
  __shared__ u32 sum;
  extern __shared__ u32 more[];
  sum = 0;
  more[0] = 1;
  __builtin_amdgcn_s_barrier();
  __atomic_fetch_add(&sum, more[0], __ATOMIC_RELAXED);
  __builtin_amdgcn_s_barrier();
  *out = sum;
}

extern "C" __global__ void empty() {}
extern "C" __global__ void stray() { *(volatile u32*)0x10000 = 1; }
extern "C" __global__ void trap() { __builtin_trap(); }

// A signal as device code sees it: value, then mailbox and event, which an interrupt announces.
extern "C" __global__ void signals(u64* signal) {
  __hip_atomic_fetch_add((long*)signal + 1, -1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
  if (signal[2]) {
    *(u64*)signal[2] = ((u32*)signal)[6];
    __builtin_amdgcn_s_sendmsg(1, ((u32*)signal)[6] & 0xff);
  }
}
"""


class PointerInfo(ctypes.Structure):
    _fields_ = (
        ("size", c_uint32),
        ("type", c_uint32),
        ("agent_base", c_void_p),
        ("host_base", c_void_p),
        ("bytes", c_uint64),
        ("user_data", c_void_p),
        ("owner", c_uint64),
        ("global_flags", c_uint32),
        ("registered", ctypes.c_bool),
    )


class Hsa:
    """`hsa.hsa_signal_create(...)` returns the status, `call` wants success."""

    def __init__(self, library: Path) -> None:
        self.lib = ctypes.CDLL(str(library))
        for name in ("load_relaxed", "wait_scacquire"):
            getattr(self.lib, f"hsa_signal_{name}").restype = c_int64
        for name in ("add_write_index_screlease", "load_read_index_relaxed"):
            getattr(self.lib, f"hsa_queue_{name}").restype = c_uint64
        self.call("hsa_init")
        self.cpu, self.gpu = self._agents()

    def __getattr__(self, name: str) -> Callable[..., int]:
        return getattr(self.lib, name)

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.lib, name)(*arguments)
        assert status == SUCCESS, f"{name}: status {status:#x}"

    def visited(self, name: str, *arguments: object) -> list[int]:
        found: list[int] = []
        visit = Visit(lambda handle, _: found.append(handle) or SUCCESS)
        self.call(name, *arguments, visit, None)
        return found

    def _agents(self) -> tuple[c_uint64, c_uint64]:
        cpu, gpu = self.visited("hsa_iterate_agents")
        return c_uint64(cpu), c_uint64(gpu)

    def agent_text(self, attribute: int) -> str:
        text = ctypes.create_string_buffer(64)
        self.call("hsa_agent_get_info", self.gpu, attribute, text)
        return text.value.decode()

    # ------------------------------------------------------------------ signals

    def signal(self, value: int = 1) -> c_uint64:
        handle = c_uint64()
        self.call("hsa_signal_create", c_int64(value), 0, None, byref(handle))
        return handle

    def value(self, signal: c_uint64) -> int:
        return self.lib.hsa_signal_load_relaxed(signal)

    def set(self, signal: c_uint64, value: int) -> None:
        self.lib.hsa_signal_store_screlease(signal, c_int64(value))

    def wait(self, signal: c_uint64, operand: int = 1, condition: int = LESS) -> int:
        """Waits for a value, at most 20 s; the value then."""
        timeout = c_uint64(20 * SECOND)
        wait = self.lib.hsa_signal_wait_scacquire
        return wait(signal, condition, c_int64(operand), timeout, 0)

    # ------------------------------------------------------------------ memory and code

    def allocate(self, size: int, pool: int = POOL_DEVICE) -> int:
        memory = c_void_p()
        self.call("hsa_amd_memory_pool_allocate", c_uint64(pool), c_size_t(size), 0, byref(memory))
        assert memory.value
        return memory.value

    def load(self, code: bytes) -> c_uint64:
        """An executable."""
        reader, executable = c_uint64(), c_uint64()
        create = "hsa_code_object_reader_create_from_memory"
        self.call(create, code, c_size_t(len(code)), byref(reader))
        self.call("hsa_executable_create_alt", 0, 0, None, byref(executable))
        load = "hsa_executable_load_agent_code_object"
        self.call(load, executable, self.gpu, reader, None, None)
        self.call("hsa_executable_freeze", executable, None)
        self.call("hsa_code_object_reader_destroy", reader)
        return executable

    def symbol(self, executable: c_uint64, name: str) -> c_uint64:
        symbol, agent = c_uint64(), c_uint64(self.gpu.value)
        get = "hsa_executable_get_symbol_by_name"
        self.call(get, executable, name.encode(), byref(agent), byref(symbol))
        return symbol

    def symbol_info(self, symbol: c_uint64, attribute: int) -> int:
        value = c_uint64()
        self.call("hsa_executable_symbol_get_info", symbol, attribute, byref(value))
        return value.value

    def kernel_object(self, executable: c_uint64, name: str) -> int:
        return self.symbol_info(self.symbol(executable, f"{name}.kd"), 22)


class Queue:
    """A queue of the GPU. The errors that its callback gets are in `errors`."""

    def __init__(self, hsa: Hsa, size: int = 64) -> None:
        self.hsa, self.size, self.errors = hsa, size, []
        self._callback = QueueCallback(lambda status, *_: self.errors.append(status))
        handle = c_void_p()
        hsa.call("hsa_queue_create", hsa.gpu, size, 0, self._callback, None, 0, 0, byref(handle))
        self.handle = handle
        # hsa_queue_t: type, features, base address, doorbell signal, size
        _, _, self.base, doorbell, held, *_ = struct.unpack(
            "<IIQQIIQ", ctypes.string_at(handle.value or 0, 40)
        )
        self.doorbell = c_uint64(doorbell)
        assert held == size

    def destroy(self) -> None:
        self.hsa.call("hsa_queue_destroy", self.handle)

    def reserve(self) -> int:
        """The index of a packet, once the ring has room for it."""
        index = self.hsa.lib.hsa_queue_add_write_index_screlease(self.handle, c_uint64(1))
        give_up = time.monotonic() + 20
        while index - self.read_index() >= self.size:
            assert time.monotonic() < give_up, "the queue stays full"
        return index

    def read_index(self) -> int:
        return self.hsa.lib.hsa_queue_load_read_index_relaxed(self.handle)

    def write(self, index: int, packet: bytes) -> None:
        """All of the packet but its header, then the header, which hands it to the processor."""
        assert len(packet) == 64
        slot = self.base + index % self.size * 64
        ctypes.memmove(slot + 4, packet[4:], 60)
        ctypes.c_uint32.from_address(slot).value = int.from_bytes(packet[:4], "little")

    def ring(self, index: int) -> None:
        self.hsa.set(self.doorbell, index)

    def submit(self, *packets: bytes) -> None:
        """The packets, and one ring for all."""
        for packet in packets:
            index = self.reserve()
            self.write(index, packet)
        self.ring(index)


def _shape(extents: Sequence[int]) -> list[int]:
    return [*extents, 1, 1][:3]


def dispatch(
    kernel_object: int,
    kernarg: np.ndarray | int,
    grid: Sequence[int],
    block: Sequence[int],
    completion: c_uint64 | None = None,
    *,
    lds: int = 0,
    private: int = 0,
) -> bytes:
    """hsa_kernel_dispatch_packet_t. The grid is in lanes."""
    address = kernarg if isinstance(kernarg, int) else kernarg.ctypes.data
    return struct.pack(
        "<HH4HIIIIIQQQQ",
        DISPATCH | FENCES,
        3,
        *_shape(block),
        0,
        *_shape(grid),
        private,
        lds,
        kernel_object,
        address,
        0,
        completion.value if completion else 0,
    )


def barrier(
    kind: int, dependencies: Sequence[c_uint64], completion: c_uint64 | None = None
) -> bytes:
    """hsa_barrier_and_packet_t or hsa_barrier_or_packet_t."""
    handles = [d.value for d in dependencies] + [0] * (5 - len(dependencies))
    return struct.pack(
        "<HHI5QQQ", kind | FENCES, 0, 0, *handles, 0, completion.value if completion else 0
    )


def barrier_value(
    signal: c_uint64, value: int, mask: int, condition: int, completion: c_uint64
) -> bytes:
    """hsa_amd_barrier_value_packet_t."""
    return struct.pack(
        "<HBBIQqqIIQQQ",
        VENDOR | FENCES,
        2,
        0,
        0,
        signal.value,
        value,
        mask,
        condition,
        0,
        0,
        0,
        completion.value,
    )
