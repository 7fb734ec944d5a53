"""In a clean process: recorded launches, on inputs that are given, timed by the virtual GPU.

Run by its path with `python -I -S`: argument 1 is the number of a socket with channel.py's
messages. It takes the standard library alone, so that little of its memory can lie where the
entry's process had the case's: the launches' pointers are addresses of that process, and memory is
mapped at them. Where an address is taken, another process is asked, whose memory lies elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import socket
import struct
import sys

PAGE = 4096
FIXED_NOREPLACE, NORESERVE = 0x100000, 0x4000
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 3  # HIP_LAUNCH_PARAM_*
HEAD = struct.Struct("<8sQ")  # of a message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class Collision(Exception):
    """An address is taken."""


def read_into(end: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        count = end.recv_into(view[: 1 << 20])
        if count == 0:
            raise SystemExit
        view = view[count:]


def view_memory(address: int, size: int) -> memoryview:
    """Return this process's memory at `address` as bytes that can be written."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def map_ranges(ranges: list[tuple[int, int]]) -> None:
    """Map zeroed pages that cover all `ranges`, which are (address, bytes). Raises Collision where
    an address is taken."""
    pages: list[list[int]] = []
    for address, size in sorted(r for r in ranges if r[1]):
        begin, end = address // PAGE * PAGE, -(-(address + size) // PAGE) * PAGE
        if pages and begin <= pages[-1][1]:
            pages[-1][1] = max(pages[-1][1], end)
        else:
            pages.append([begin, end])
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED_NOREPLACE | NORESERVE
    for begin, end in pages:
        mapped_address = libc.mmap(
            begin, end - begin, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0
        )
        if mapped_address != begin:
            raise Collision


class Gpu:
    """The virtual GPU's library, in timing mode."""

    def __init__(self, library: str) -> None:
        self._hip = ctypes.CDLL(library)
        self._hip.hipModuleLaunchKernel.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint] * 7,
            *[ctypes.c_void_p] * 3,
        ]
        self._hip.rfops_vgpu_last_error.restype = ctypes.c_char_p
        self._hip.rfops_vgpu_timing_take.restype = ctypes.c_char_p
        self._hip.rfops_vgpu_timing.restype = ctypes.c_char_p
        error = self._hip.rfops_vgpu_timing(b"detail=0")
        if error:
            raise RuntimeError(error.decode())

    def load(self, code: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self._check(self._hip.hipModuleLoadData(ctypes.byref(module), code))
        return module

    def launch(self, module: ctypes.c_void_p, launch: dict[str, Any]) -> float:
        """Run a launch on the virtual GPU and return its estimated time in us."""
        function, args = ctypes.c_void_p(), bytes.fromhex(launch["args"])
        name = launch["kernel"].encode()
        self._check(self._hip.hipModuleGetFunction(ctypes.byref(function), module, name))
        buffer = ctypes.create_string_buffer(args, max(1, len(args)))
        size = ctypes.c_size_t(len(args))
        words = (BUFFER_POINTER, ctypes.addressof(buffer), BUFFER_SIZE, ctypes.addressof(size), END)
        extra = (ctypes.c_void_p * 5)(*words)
        shape = (*launch["grid"], *launch["block"], launch["lds"])
        self._check(self._hip.hipModuleLaunchKernel(function, *shape, None, None, extra))
        return sum(float(r["us"]) for r in json.loads(self._hip.rfops_vgpu_timing_take()))

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError((self._hip.rfops_vgpu_last_error() or b"").decode(errors="replace"))


def replay(end: socket.socket, order: dict[str, Any]) -> tuple[list[float], list[memoryview]]:
    """Run the launches of `order`, whose memory comes through `end`; return the us of each, and the
    memory of the outputs. Raises Collision, and RuntimeError where a launch fails."""
    inputs, writes, outputs = order["inputs"], order["writes"], order["outputs"]
    map_ranges([*map(tuple, inputs), *((w["address"], w["size"]) for w in writes)])
    codes = []
    for size in order["codes"]:
        codes.append(bytearray(size))
        read_into(end, memoryview(codes[-1]))
    for address, size in inputs:
        read_into(end, view_memory(address, size))
    for write in writes:
        write["bytes"] = memoryview(bytearray(write["blob"]))
        read_into(end, write["bytes"])
    gpu = Gpu(order["library"])
    modules = [gpu.load(bytes(code)) for code in codes]
    times = []
    for number, launch in enumerate(order["launches"]):
        for write in [w for w in writes if w["launch"] == number]:
            if write["blob"]:
                view_memory(write["address"], write["size"])[:] = write["bytes"]
            elif number or any(a <= write["address"] < a + size for a, size in inputs):
                ctypes.memset(write["address"], 0, write["size"])
        times.append(gpu.launch(modules[launch["code"]], launch))
    return times, [view_memory(address, size) for address, size in outputs]


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as end:
        head = bytearray(HEAD.size)  # as channel.py has it
        read_into(end, memoryview(head))
        start, size = HEAD.unpack(head)
        order = bytearray(size)
        read_into(end, memoryview(order))
        blobs: list[memoryview] = []
        answer: dict[str, object] = {"type": "Replayed"}
        try:
            answer["us"], blobs = replay(end, json.loads(order))
        except Collision:
            answer["collides"] = True
        except RuntimeError as error:
            answer["error"] = str(error)[:2000]
        data = json.dumps(answer).encode()
        end.sendall(HEAD.pack(start, len(data)) + data)
        for blob in blobs:
            end.sendall(blob)


if __name__ == "__main__":
    main()
