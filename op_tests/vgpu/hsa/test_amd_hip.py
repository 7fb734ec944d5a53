"""AMD's own HIP runtime on the virtual GPU's HSA runtime.

RFOPS_TEST_HIP names its libamdhip64.so (a file of that name: Triton wants it). On Debian
experimental: `apt install libamdhip64-7 libamdhip64-dev`, and then
RFOPS_TEST_HIP=/usr/lib/x86_64-linux-gnu/libamdhip64.so pytest op_tests/vgpu/hsa.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rfops.jit import settings, vgpu_hsa_folder
from support.vgpu.hip import compile_hip
from support.vgpu.hsa import SOURCE

_VARIABLE = "RFOPS_TEST_HIP"

pytestmark = pytest.mark.skipif(
    _VARIABLE not in os.environ,
    reason=f"needs AMD's HIP runtime: apt install libamdhip64-7 libamdhip64-dev (Debian "
    f"experimental), and {_VARIABLE}=/usr/lib/x86_64-linux-gnu/libamdhip64.so",
)


def run(code: str, *arguments: object, genuine: bool, **more: str) -> str:
    """The standard output of Python with AMD's runtime over the virtual GPU, or the virtual GPU's
    own."""
    env = {**os.environ, **more}
    if genuine:
        env["LD_LIBRARY_PATH"] = f"{vgpu_hsa_folder()}:{env.get('LD_LIBRARY_PATH', '')}"
        env["RFOPS_HIP_LIBRARY"] = os.environ[_VARIABLE]
    else:
        env.pop("RFOPS_HIP_LIBRARY", None)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


_OPS = """
import ctypes, hashlib, os, torch, rfops
from rfops.jit.launch import hip

def show(*tensors):
    for t in tensors:
        print(tuple(t.shape), hashlib.sha256(t.contiguous().view(torch.uint8).numpy()).hexdigest())

torch.manual_seed(7)
x, w = torch.randn(5, 512), torch.randn(256, 512)
show(*rfops.quant_fp8_blockscale(x))
show(*rfops.quant_mxfp8(x), *rfops.quant_mxfp4(x))
(a, a_scale), (b, b_scale) = rfops.quant_mxfp8(x), rfops.quant_mxfp8(w)
show(rfops.gemm_mxfp8(a, b, a_scale, b_scale))
ids = torch.randint(0, 8, (64, 2), dtype=torch.int32)
show(*rfops.moe_align_block_size(ids, 16, 8))
with rfops.vgpu.check() as checked, rfops.vgpu.timing() as timed, rfops.vgpu.profile() as counted:
    rfops.quant_mxfp8(x)
print(len(checked.findings), [c.wave_instructions for c in counted.launches])
print(timed.launches[0].us)
with open("/proc/self/maps") as maps:
    loaded = {line.split("/")[-1].strip().split(".so")[0] for line in maps if ".so" in line}
print("libhsa-runtime64" in loaded)
"""


def test_ops_are_the_same_on_both_runtimes() -> None:
    """Bits, findings, counts, and modelled times."""
    ours = run(_OPS, genuine=False, RFOPS_VGPU_ARCH="gfx950").splitlines()
    theirs = run(_OPS, genuine=True, RFOPS_VGPU_ARCH="gfx950").splitlines()
    assert ours[-1] == "False" and theirs[-1] == "True", "which runtime is loaded"
    assert len(ours) > 9 and ours[:-2] == theirs[:-2]
    # Arguments lie elsewhere in their page, so that their cache lines differ.
    assert float(theirs[-2]) == pytest.approx(float(ours[-2]), rel=0.01)


_PRINTF = """
import ctypes, os, triton, triton.language as tl
from ctypes import byref, c_size_t, c_void_p
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def kernel(x, o):
    i = tl.arange(0, 8)
    value = tl.load(x + i)
    tl.device_print("value", value)
    tl.store(o + i, 2 * value)

source = ASTSource(fn=kernel, signature={"x": "*fp32", "o": "*fp32"}, constexprs={})
built = triton.compile(source, target=GPUTarget("hip", os.environ["RFOPS_VGPU_ARCH"], 64))
hip = ctypes.CDLL(os.environ["RFOPS_HIP_LIBRARY"])

def call(name, *arguments):
    status = getattr(hip, name)(*arguments)
    assert status == 0, (name, status)

module, function, x, o, none = (c_void_p() for _ in range(5))
call("hipModuleLoadData", byref(module), built.asm["hsaco"])
call("hipModuleGetFunction", byref(function), module, b"kernel")
values, size = (ctypes.c_float * 8)(*range(8)), c_size_t(32)
for memory in (x, o):
    call("hipMalloc", byref(memory), size)
call("hipMemcpy", x, values, size, 1)
params = (c_void_p * 4)(*(ctypes.addressof(p) for p in (x, o, none, none)))
shape = (1, 1, 1, 64 * built.metadata.num_warps, 1, 1, built.metadata.shared)
call("hipModuleLaunchKernel", function, *shape, None, params, None)
call("hipMemcpy", values, o, size, 2)
assert list(values) == [0, 2, 4, 6, 8, 10, 12, 14]
"""


def test_printf_through_the_runtimes_own_buffer(tmp_path: Path) -> None:
    program = tmp_path / "kernel.py"
    program.write_text(_PRINTF)
    code = "import runpy, sys; runpy.run_path(sys.argv[1])"
    printed = run(code, program, genuine=True, RFOPS_VGPU_ARCH="gfx950")
    assert all(f"value: {value:f}" in printed for value in range(8)), printed


# Without torch, whose CPU tensors are the device's for the virtual GPU's own runtime.
_CALLS = r"""
import ctypes, sys
from ctypes import byref, c_int, c_size_t, c_void_p
hip = ctypes.CDLL(sys.argv[1])
code = open(sys.argv[2], "rb").read()
answers = {}

def call(name, *arguments, key=""):
    answers[key or name] = getattr(hip, name)(*arguments)

def pointer():
    return c_void_p()

module, kernel, bounded, missing, variable = (pointer() for _ in range(5))
size = c_size_t()
call("hipModuleLoadData", byref(module), code)
call("hipModuleLoadData", byref(pointer()), b"no code at all" + bytes(64), key="load garbage")
call("hipModuleGetFunction", byref(kernel), module, b"empty")
call("hipModuleGetFunction", byref(bounded), module, b"bounded")
call("hipModuleGetFunction", byref(missing), module, b"none", key="get none")
call("hipModuleGetGlobal", byref(variable), byref(size), module, b"variable")
memory, pinned, managed, pooled, pool = (pointer() for _ in range(5))
call("hipMalloc", byref(memory), c_size_t(4096))
call("hipMalloc", byref(pointer()), c_size_t(1 << 50), key="malloc too much")
call("hipHostMalloc", byref(pinned), c_size_t(4096), 0)
call("hipMallocManaged", byref(managed), c_size_t(4096), 1)
call("hipMallocAsync", byref(pooled), c_size_t(4096), None)
one, two = ctypes.create_string_buffer(64), ctypes.create_string_buffer(b"x" * 64)
sides = {"plain": (one, two), "to": (memory, two), "from": (one, memory), "both": (memory, memory),
         "pinned": (pinned, two), "managed": (managed, two), "global": (variable, two)}
for side, (dst, src) in sides.items():
    for kind in range(5):
        call("hipMemcpy", dst, src, c_size_t(4), kind, key=f"copy {side} {kind}")
        rows = (c_size_t(4), src, c_size_t(4), c_size_t(4), c_size_t(1))
        call("hipMemcpy2D", dst, *rows, kind, key=f"copy rows {side} {kind}")
        call("hipMemcpyAsync", dst, src, c_size_t(4), kind, None, key=f"copy later {side} {kind}")
call("hipMemcpy", memory, None, c_size_t(4), 1, key="copy null")
call("hipMemcpy", memory, one, c_size_t(0), 1, key="copy nothing")
call("hipMemcpy", one, memory, c_size_t(5000), 2, key="copy beyond")
for side, dst in {"plain": one, "device": memory, "pinned": pinned, "managed": managed}.items():
    call("hipMemset", dst, 1, c_size_t(4), key=f"fill {side}")
    call("hipMemsetD32", dst, 1, c_size_t(1), key=f"fill words {side}")
    call("hipMemset2D", dst, c_size_t(8), 1, c_size_t(4), c_size_t(2), key=f"fill rows {side}")
    call("hipMemsetAsync", dst, 1, c_size_t(4), None, key=f"fill later {side}")

def launch(key, function, grid, block, lds=0, params=None, extra=None):
    call("hipModuleLaunchKernel", function, *grid, *block, lds, None, params, extra, key=key)
    call("hipDeviceSynchronize", key=f"{key}: sync")
    hip.hipGetLastError()

address = c_void_p(memory.value)
params = (c_void_p * 1)(ctypes.addressof(address))
launch("launch", kernel, (1, 1, 1), (64, 1, 1))
launch("no grid", kernel, (0, 1, 1), (64, 1, 1))
launch("no block", kernel, (1, 1, 1), (0, 1, 1))
launch("big block", kernel, (1, 1, 1), (1025, 1, 1))
launch("flat block", kernel, (1, 1, 1), (64, 64, 1))
launch("much lds", kernel, (1, 1, 1), (64, 1, 1), 161 << 10)
launch("bounded", bounded, (1, 1, 1), (64, 1, 1), 4, params)
launch("beyond its bounds", bounded, (1, 1, 1), (128, 1, 1), 4, params)
launch("no function", None, (1, 1, 1), (64, 1, 1))
buffer, count = ctypes.create_string_buffer(8), c_size_t(8)
extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(count), 3)
launch("arguments for none", kernel, (1, 1, 1), (64, 1, 1), 0, None, extra)
call("hipDeviceGetDefaultMemPool", byref(pool), 0)
call("hipDeviceGetDefaultMemPool", byref(pointer()), 1, key="pool of device 1")
call("hipMemPoolTrimTo", pool, c_size_t(0))
stream, event, second = (pointer() for _ in range(3))
milliseconds = ctypes.c_float()
call("hipStreamCreate", byref(stream))
call("hipEventCreate", byref(event))
call("hipEventCreate", byref(second), key="second event")
call("hipEventElapsedTime", byref(milliseconds), event, second, key="not recorded")
call("hipEventQuery", event, key="query before")
call("hipEventRecord", event, stream)
call("hipEventRecord", second, stream, key="record second")
call("hipEventSynchronize", second)
call("hipEventQuery", event, key="query after")
call("hipEventElapsedTime", byref(milliseconds), event, second)
call("hipStreamWaitEvent", stream, event, 0)
call("hipStreamQuery", stream)
call("hipStreamSynchronize", stream)
graph, runnable = pointer(), pointer()
call("hipStreamBeginCapture", stream, 0)
shape = (1, 1, 1, 64, 1, 1, 0)
call("hipModuleLaunchKernel", kernel, *shape, stream, None, None, key="capture launch")
call("hipMemsetAsync", memory, 0, c_size_t(64), stream, key="capture fill")
call("hipStreamEndCapture", stream, byref(graph))
call("hipGraphInstantiate", byref(runnable), graph, None, None, c_size_t(0))
call("hipGraphLaunch", runnable, stream)
call("hipStreamSynchronize", stream, key="sync graph")
call("hipGraphExecDestroy", runnable)
call("hipGraphDestroy", graph)
call("hipStreamEndCapture", stream, byref(graph), key="end no capture")
call("hipEventDestroy", event)
call("hipStreamDestroy", stream)
call("hipFreeAsync", pooled, None)
call("hipFree", c_void_p(memory.value + 8), key="free inside")
call("hipFree", memory, key="free")
call("hipFree", pinned, key="free pinned")
call("hipHostFree", managed, key="free managed as host")
call("hipFree", None, key="free null")
call("hipFree", one, key="free plain")
call("hipSetDevice", 1, key="device 1")
call("hipGetDevice", None, key="get device null")
call("hipModuleUnload", module)
call("hipDeviceSynchronize", key="end")
print(answers)
"""
# Where the virtual GPU's own runtime differs on purpose, with the reason.
_DIFFERENT = {
    "free inside": "AMD's frees the block; a mistake, which the virtual GPU names",
    "free": "the same block, freed already there",
}


def test_both_runtimes_answer_the_same(vgpu_path: Path, tmp_path: Path) -> None:
    """A second opinion on the virtual GPU's HIP interface: statuses of calls, good and bad."""
    code = tmp_path / "code.hsaco"
    code.write_bytes(compile_hip(SOURCE, settings.text("RFOPS_VGPU_ARCH"), tmp_path))
    ours = ast.literal_eval(run(_CALLS, vgpu_path, code, genuine=False, RFOPS_VGPU_LOG="0"))
    amd = os.environ[_VARIABLE]
    theirs = ast.literal_eval(run(_CALLS, amd, code, genuine=True, RFOPS_VGPU_LOG="0"))
    assert len(ours) > 150 and ours.keys() == theirs.keys()
    different = {
        key: f"{ours[key]}, AMD's {theirs[key]}" for key in ours if ours[key] != theirs[key]
    }
    assert different.keys() == _DIFFERENT.keys(), different
