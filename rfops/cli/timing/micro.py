"""Microkernels in gfx9 assembly whose time on hardware has been published, run under timing mode:
how they are made and run (micro_cases.py has them).

Written from descriptions of what each benchmark does; no source of theirs was copied. A kernel gets
a pointer in s[4:5], another in s[6:7], s8 trips of its loop and s9 lanes of a workgroup; s2
is the workgroup, v0 the lane in it, v1 byte offset 0. Two runs of different length give the cost of
a trip without what surrounds the loop.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Mapping
from ctypes import byref, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rfops import vgpu
from rfops.jit import BuildError, ToolchainNotFound, settings
from rfops.jit.build import toolchain
from rfops.jit.launch import hip
from rfops.vgpu.timed import TimedLaunch

Array = np.ndarray[Any, Any]
LINE, PAGE = 128, 4096
_PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_and_b32 v0, 0x3ff, v0
  v_mov_b32 v1, 0
  s_waitcnt lgkmcnt(0)
"""
_LOOP = """
{before}
.p2align 6
loop_{name}:
{body}
  s_sub_u32 s8, s8, 1
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 loop_{name}
{after}
  s_endpgm
"""
_DESCRIPTOR = """
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 96
  .amdhsa_accum_offset {vgprs}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 24
  .amdhsa_group_segment_fixed_size {lds}
.end_amdhsa_kernel
"""
_METADATA = """  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: {vgprs}
    .max_flat_workgroup_size: 1024
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 16, .size: 8, .value_kind: by_value}}
"""


@dataclass(frozen=True)
class Micro:
    """A kernel's loop and what stands around it."""

    body: str
    before: str = ""
    after: str = ""
    vgprs: int = 64
    lds: int = 0


def assemble(source: str, arch: str) -> bytes:
    """The code object. Raises ToolchainNotFound, BuildError."""
    title = "the microkernels (assembler)"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asm, obj, out = (folder / f"micro.{end}" for end in ("s", "o", "co"))
        asm.write_text(source, encoding="utf-8")
        clang, lld = _tools(title)
        target = ["--target=amdgcn-amd-amdhsa", f"-mcpu={arch}"]
        for command in (
            [*clang, *target, "-c", str(asm), "-o", str(obj)],
            [*lld, "-shared", str(obj), "-o", str(out)],
        ):
            code, output = toolchain.run(command)
            if code:
                raise BuildError(title, command, output, None)
        return out.read_bytes()


def _tools(title: str) -> tuple[list[str], list[str]]:
    """clang and lld, ROCm's or the ziglang package's. Raises ToolchainNotFound."""
    rocm, rejected = settings.path("ROCM_PATH"), []
    if rocm is not None:
        paths = [shutil.which(str(rocm / "llvm" / "bin" / tool)) for tool in ("clang", "ld.lld")]
        if all(paths):
            return [str(paths[0])], [str(paths[1])]
        rejected.append(f"ROCM_PATH={rocm}: no llvm/bin/clang and llvm/bin/ld.lld")
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang"]
        return [*zig, "clang"], [*zig, "ld.lld"]
    rejected.append("the ziglang package of this Python: not found")
    advice = "Point ROCM_PATH at ROCm, or: pip install 'rfops[clang]'."
    raise ToolchainNotFound(title, rejected, advice)


class Micros:
    """Kernels of one architecture, assembled together."""

    def __init__(self, kernels: Mapping[str, Micro], arch: str) -> None:
        text = [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n.text\n']
        metadata = [".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:\n"]
        for name, k in kernels.items():
            text.append(f".text\n.globl {name}\n.p2align 8\n.type {name},@function\n{name}:")
            text.append(_PROLOGUE)
            text.append(_LOOP.format(name=name, before=k.before, body=k.body, after=k.after))
            text.append(_DESCRIPTOR.format(name=name, vgprs=k.vgprs, lds=k.lds))
            metadata.append(_METADATA.format(name=name, vgprs=k.vgprs, lds=k.lds))
        source = "".join([*text, *metadata, ".end_amdgpu_metadata\n"])
        self.arch, self._runtime = arch, hip.runtime(torch.device("cpu"))
        self._runtime.select_arch(arch)
        self._module = c_void_p()
        self._runtime.call("hipModuleLoadData", byref(self._module), assemble(source, arch))

    def run(
        self,
        name: str,
        gpu_model: str,
        trips: int,
        data: Array | None = None,
        blocks: int = 1,
        threads: int = 64,
        cold: bool = True,
        kind: str = "profiler",
        stride: int = 0,
        detail: bool = False,
    ) -> TimedLaunch:
        """One launch of which only the workgroups run that its time is taken from; `apart` bytes
        lie between what the two pointers point at; `detail`: with figures of each instruction."""
        address = 0 if data is None else -(-data.ctypes.data // LINE) * LINE
        arguments = np.array(
            [address, address + stride, trips | threads << 32], np.uint64
        ).tobytes()
        size = c_size_t(len(arguments))
        buffer = ctypes.cast(ctypes.create_string_buffer(arguments, len(arguments)), c_void_p)
        extra = (c_void_p * 5)(1, buffer, 2, ctypes.addressof(size), 3)
        grid = (blocks, 1, 1, threads, 1, 1)
        self._runtime.select_arch(self.arch)
        function = c_void_p()
        self._runtime.call("hipModuleGetFunction", byref(function), self._module, name.encode())
        with vgpu.timing(gpu_model, cold, kind, results=False, detail=detail) as t:
            self._runtime.call("hipModuleLaunchKernel", function, *grid, 0, None, None, extra)
        (launch,) = t.launches
        return launch

    def trip_clk(
        self, name: str, gpu_model: str, num_few: int, num_many: int, **options: Any
    ) -> float:
        """Clocks of a trip of the loop."""
        few_clk, many_clk = (
            self.run(name, gpu_model, n, **options).clocks for n in (num_few, num_many)
        )
        return float(many_clk - few_clk) / (num_many - num_few)


def zeros(num_words: int) -> Array:
    """Words of 8 bytes from a page's start on, as a GPU's allocations lie: where in a page memory
    begins is part of the model. Pages that nobody touches cost the host nothing."""
    memory = np.zeros(num_words + PAGE // 8, np.uint64)
    offset = -memory.ctypes.data % PAGE // 8
    return memory[offset : offset + num_words]


@functools.cache
def chain(nodes: int, stride: int = 128, seed: int = 0) -> Array:
    """Addresses in a random cycle over `nodes` lines: each holds where the next one lies."""
    memory = zeros(nodes * stride // 8)
    order = np.random.default_rng(seed).permutation(nodes)
    # The chase starts at the head: the memory's first word is the first node.
    addresses = order.astype(np.uint64) * np.uint64(stride) + np.uint64(memory.ctypes.data)
    memory[order * (stride // 8)] = np.roll(addresses, -1)
    return memory
