"""Launches by dispatch packets (AQL) that the entry writes to a queue of its own, of code objects
that it holds."""

from __future__ import annotations

import base64
import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any

# ---------------------------------------------------------------- the HSA runtime

_WORD = ctypes.c_uint64
_Visitor = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p)
_DEVICE_TYPE, _GPU = 17, 1  # an agent's attribute, its value
_FLAGS, _KERNARG = 1, 1  # of a memory pool: its flags, that of kernel arguments
_OBJECT, _ARGUMENT_BYTES, _LDS_BYTES, _SCRATCH_BYTES = 22, 11, 13, 14  # of a kernel's symbol
_QUEUE_PACKETS, _SINGLE_PRODUCER = 256, 1
# A dispatch whose barrier bit makes it wait for the packet before it. Fences of system scope: what
# the host has written is seen, and what it reads.
_HEADER = 2 | 1 << 8 | 2 << 9 | 2 << 11
_DIMENSIONS, _CONDITION_LT = 3, 2  # of a grid; HSA_SIGNAL_CONDITION_LT
_INTERVAL = 10**8  # of the system's clock, between two looks at a queue's error


class Queue:
    """A queue of the first GPU."""

    def __init__(self) -> None:
        self.hsa = ctypes.CDLL("libhsa-runtime64.so.1")
        for name in ("add_write_index_screlease", "load_read_index_scacquire"):
            getattr(self.hsa, f"hsa_queue_{name}").restype = _WORD
        self.hsa.hsa_signal_wait_scacquire.restype = ctypes.c_int64
        self.call("hsa_init")
        agents = self.visited("hsa_iterate_agents")
        types = [self.info("hsa_agent_get_info", agent, _DEVICE_TYPE) for agent in agents]
        self.gpu = next(a for a, kind in zip(agents, types, strict=True) if kind == _GPU)
        pools = [
            pool
            for agent in agents
            if agent != self.gpu
            for pool in self.visited("hsa_amd_agent_iterate_memory_pools", _WORD(agent))
        ]
        get = "hsa_amd_memory_pool_get_info"
        self.pool = next(pool for pool in pools if self.info(get, pool, _FLAGS) & _KERNARG)
        self.failed: list[int] = []
        callback = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
        self.on_error = callback(lambda status, _queue, _data: self.failed.append(status))
        self.handle, default_size = ctypes.c_void_p(), ctypes.c_uint32(2**32 - 1)
        options = (
            _QUEUE_PACKETS,
            _SINGLE_PRODUCER,
            self.on_error,
            None,
            default_size,
            default_size,
        )
        self.call("hsa_queue_create", _WORD(self.gpu), *options, ctypes.byref(self.handle))
        head = ctypes.string_at(self.handle.value or 0, 40)
        _, _, self.base, self.doorbell, self.size, _, _ = struct.unpack("<IIQQIIQ", head)
        self.completion_signal, self.packets = _WORD(), list[bytes]()
        self.call(
            "hsa_signal_create", ctypes.c_int64(0), 0, None, ctypes.byref(self.completion_signal)
        )

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.hsa, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: status {status:#x}")

    def visited(self, name: str, *arguments: Any) -> list[int]:
        """Return the handles that the iteration function `name` of the runtime passes."""
        handles: list[int] = []

        def visit(handle: int, _data: Any) -> int:
            handles.append(handle)
            return 0

        self.call(name, *arguments, _Visitor(visit), None)
        return handles

    def info(self, name: str, handle: int, attribute: int) -> int:
        value = _WORD()
        self.call(name, _WORD(handle), attribute, ctypes.byref(value))
        return value.value

    def load(self, image: bytes) -> Any:
        reader, program, size = _WORD(), _WORD(), ctypes.c_size_t(len(image))
        create = "hsa_code_object_reader_create_from_memory"
        self.call(create, image, size, ctypes.byref(reader))
        self.call("hsa_executable_create_alt", 0, 0, None, ctypes.byref(program))
        load = "hsa_executable_load_agent_code_object"
        self.call(load, program, _WORD(self.gpu), reader, None, None)
        self.call("hsa_executable_freeze", program, None)
        return program

    def kernel(self, program: Any, symbol: str) -> int:
        """Return the handle of a kernel's symbol in a loaded program."""
        kernel_symbol, agent = _WORD(), _WORD(self.gpu)
        references = ctypes.byref(agent), ctypes.byref(kernel_symbol)
        name = f"{symbol}.kd".encode()
        self.call("hsa_executable_get_symbol_by_name", program, name, *references)
        return kernel_symbol.value

    def arguments(self, size: int) -> int:
        """Allocate `size` bytes for a kernel's arguments and return their address."""
        memory = ctypes.c_void_p()
        allocate = "hsa_amd_memory_pool_allocate"
        self.call(allocate, _WORD(self.pool), ctypes.c_size_t(size), 0, ctypes.byref(memory))
        agent = _WORD(self.gpu)
        self.call("hsa_amd_agents_allow_access", 1, ctypes.byref(agent), None, memory)
        return memory.value or 0

    def enqueue(self, body: bytes) -> None:
        """Queue a dispatch packet, without its header and completion signal, for `finish`."""
        self.packets.append(body)

    def finish(self) -> None:
        """Write the packets, ring, and wait for the last one's signal."""
        if not self.packets:
            return
        self.hsa.hsa_signal_store_screlease(self.completion_signal, ctypes.c_int64(1))
        signals = [0] * (len(self.packets) - 1) + [self.completion_signal.value]
        for body, signal in zip(self.packets, signals, strict=True):
            index = self.hsa.hsa_queue_add_write_index_screlease(self.handle, _WORD(1))
            while index - self.hsa.hsa_queue_load_read_index_scacquire(self.handle) >= self.size:
                self.check()
                self.ring(index - 1)
            packet_address = self.base + index % self.size * 64
            ctypes.memmove(packet_address + 4, body + struct.pack("<Q", signal), 60)
            # The header makes it the packet processor's: it is written last.
            ctypes.c_uint32.from_address(packet_address).value = _HEADER | _DIMENSIONS << 16
        self.packets.clear()
        self.ring(index)
        wait = self.hsa.hsa_signal_wait_scacquire
        while (
            wait(self.completion_signal, _CONDITION_LT, ctypes.c_int64(1), _WORD(_INTERVAL), 0) > 0
        ):
            self.check()

    def ring(self, index: int) -> None:
        self.hsa.hsa_signal_store_screlease(_WORD(self.doorbell), ctypes.c_int64(index))

    def check(self) -> None:
        if self.failed:
            raise RuntimeError(f"the queue has failed: status {self.failed[0]:#x}")


QUEUE = Queue()


def loader(kernels: Mapping[str, Any], code: Mapping[str, str]) -> Callable[[str], Any]:
    """function_of(name): a kernel, loaded when it is first asked for. Each that is asked for has
    memory of its own for its arguments, which is written anew when a call has been waited for."""
    programs: dict[str, Any] = {}

    def function_of(name: str) -> Any:
        kernel = kernels[name]
        key = kernel["code"]
        if key not in programs:
            programs[key] = QUEUE.load(base64.b64decode(code[key]))
        symbol = QUEUE.kernel(programs[key], kernel["symbol"])
        facts = _OBJECT, _ARGUMENT_BYTES, _LDS_BYTES, _SCRATCH_BYTES
        of_symbol = (QUEUE.info("hsa_executable_symbol_get_info", symbol, fact) for fact in facts)
        kernel_object, argument_bytes, lds, scratch = of_symbol
        lds += kernel.get("lds", 0)
        address = QUEUE.arguments(max(16, argument_bytes))

        def launch(grid: Any, block: Any, memory: Any) -> None:
            if len(memory) < argument_bytes:
                raise RuntimeError(
                    f"{name}: {argument_bytes} bytes of arguments, got {len(memory)}"
                )
            ctypes.memmove(address, memory, len(memory))
            lanes = [groups * threads for groups, threads in zip(grid, block, strict=True)]
            shape = (*block, 0, *lanes, scratch, lds)
            QUEUE.enqueue(struct.pack("<4H5I3Q", *shape, kernel_object, address, 0))

        return launch

    return function_of
