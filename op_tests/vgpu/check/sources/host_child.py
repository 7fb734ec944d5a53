"""The process of test_vgpu_check_host.py: host_child.py FOLDER FLOATS. Prints [name, what was seen]
of each case, a line each. `run` launches with nothing but kernel arguments, as any program with
HIP's C interface does."""

import ctypes
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

import rfops
from rfops.jit import compile_ops, i32, i64

FOLDER, FLOATS = Path(sys.argv[1]), int(sys.argv[2])
GRID, BLOCK = (1, 1, 1), (64, 1, 1)
hip = ctypes.CDLL(str(rfops.vgpu.library_path()))
hip.rfops_vgpu_last_error.restype = hip.rfops_vgpu_check_take.restype = ctypes.c_char_p
libc, M_MMAP_THRESHOLD = ctypes.CDLL(None), -3
usable, malloc = libc.malloc_usable_size, libc.malloc
usable.argtypes, usable.restype = [ctypes.c_void_p], ctypes.c_size_t
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p

module, functions = ctypes.c_void_p(), {}
assert hip.hipModuleLoadData(ctypes.byref(module), (FOLDER / "kernels.co").read_bytes()) == 0
for name in ("poke", "peek"):
    functions[name] = ctypes.c_void_p()
    assert hip.hipModuleGetFunction(ctypes.byref(functions[name]), module, name.encode()) == 0


@compile_ops("pokes", config=FOLDER / "config.json")
def poke(to: torch.Tensor, offset: i64, n: i32) -> None: ...


def run(kernel: str, *pointers: int, offset: int = 0, n: int = 1) -> int:
    arguments = [*map(ctypes.c_void_p, pointers), ctypes.c_int64(offset), ctypes.c_int(n)]
    params = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    return hip.hipModuleLaunchKernel(functions[kernel], *GRID, *BLOCK, 0, None, params, None)


def launch(tensor: torch.Tensor, offset: int, n: int) -> str:
    """The same as an op of rfops: the error, if any."""
    try:
        poke.bind("cpu").launch(GRID, BLOCK, (tensor, offset, n))
    except rfops.HipError as error:
        return str(error)
    return ""


def say(name: str, status: int, **kwargs: object) -> None:
    result = json.loads(hip.rfops_vgpu_check_take())
    error = hip.rfops_vgpu_last_error().decode()
    print(json.dumps([name, {"status": status, "found": result, "error": error, **kwargs}]))


def tight() -> torch.Tensor:
    """A tensor of zeros whose block of the heap ends where it does. malloc's own blocks, never
    freed: torch asks for aligned ones, and in some heaps each of those is a little too long."""
    blocks = (malloc(FLOATS * 4) for _ in range(1000))
    block = next(b for b in blocks if usable(b) == FLOATS * 4)
    tensor = torch.from_numpy(np.ctypeslib.as_array((ctypes.c_float * FLOATS).from_address(block)))
    assert tensor.data_ptr() == block
    return tensor.zero_()


def elements(tensor: torch.Tensor, address: int) -> int:
    return (address - tensor.data_ptr()) // 4


def bare_pointers() -> None:
    for more in (1, 2, 25):
        others = [torch.zeros(FLOATS) for _ in range(40)]
        x = tight()
        assert run("poke", x.data_ptr(), offset=FLOATS - 10, n=10) == 0 and x[-1] == 9
        status = run("poke", x.data_ptr(), offset=FLOATS - 10, n=10 + more)
        say(f"behind_{more}", status, rest=sum(float(t.sum()) for t in others))
        del others, x
        assert all(float(torch.zeros(FLOATS).sum()) == 0 for _ in range(400))  # the heap is whole
    x, out, source = np.zeros(100, np.float32), torch.full((64,), -1.0), tight()
    say("front", run("poke", x.ctypes.data, offset=-2, n=2))
    status = run("peek", out.data_ptr(), source.data_ptr(), offset=FLOATS)
    say("read", status, wrote=bool(out[0] != -1))


def foreign_memory() -> None:
    assert libc.mallopt(
        M_MMAP_THRESHOLD, 1 << 24
    )  # 8 MB of the heap, more than anybody takes again
    x, gone = torch.zeros(100), torch.zeros(2 << 20)
    _keep = torch.zeros(1 << 20)  # behind it, so that it does not fall back to the heap's end
    offset = elements(x, gone.data_ptr()) + (1 << 20)
    del gone
    say("freed", run("poke", x.data_ptr(), offset=offset))
    assert libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)
    for name, pattern in {"stack": r"\[stack\]", "libc": r"libc\.so\.6|libc-.*\.so"}.items():
        lines = Path("/proc/self/maps").read_text().splitlines()
        line = next(s for s in lines if re.search(pattern, s) and s.split()[1] == "rw-p")
        say(name, run("poke", x.data_ptr(), offset=elements(x, int(line.split("-")[0], 16))))


def mapped_blocks() -> None:
    size = 10 << 20
    tensors = sorted((torch.zeros(size) for _ in range(6)), key=torch.Tensor.data_ptr)
    pages = [t.data_ptr() >> 12 for t in tensors]
    low = next(i for i in range(5) if pages[i + 1] - pages[i] == (4 * size >> 12) + 1)
    offset = elements(tensors[low], pages[low + 1] << 12) - 10
    first = run("poke", tensors[low].data_ptr(), offset=offset, n=10)
    say("mapped", run("poke", tensors[low].data_ptr(), offset=offset, n=11), first=first)


def blocks() -> None:
    x, other = torch.full((1000,), 33, dtype=torch.int64), torch.zeros(1000)
    array = np.zeros(500, np.float32)
    status = run("poke", x[500:].data_ptr(), offset=300, n=64)
    status |= run("poke", x.data_ptr() + 4, offset=60, n=64)
    status |= run("poke", x.data_ptr(), offset=elements(x, other.data_ptr()), n=64)
    status |= run("poke", array.ctypes.data, offset=400, n=64)
    say("blocks", status, sums=[float(other.sum()), float(array.sum())])
    # Not the block's first address, so that the other words of the arguments are tried: at = 0.
    middle = torch.zeros(1000)
    say("zero", run("poke", middle[500:].data_ptr(), offset=0, n=64), sums=[float(middle.sum())])


def tensors_of_ops() -> None:
    room = np.zeros(100, np.float32)
    assert not launch(torch.from_numpy(room[:80]), 70, 10)
    failed = launch(torch.from_numpy(room[:80]), 70, 20)
    say("tensor", 700 if failed else 0, failed=failed, wrote=float(room[80:].sum()))
    failed = launch(tight(), FLOATS - 10, 20)
    say("tensor_end", 700 if failed else 0, failed=failed)


bare_pointers()
foreign_memory()
mapped_blocks()
blocks()
tensors_of_ops()
