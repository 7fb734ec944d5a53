"""Microkernels in gfx9 assembly whose time on hardware has been published, run under timing mode.

Written from descriptions of what each benchmark does; no source of theirs was copied. A kernel gets
a pointer in s[4:5], another in s[6:7], s8 trips of its loop and s9 lanes of a workgroup; s2
is the workgroup, v0 the lane in it, v1 byte offset 0. Two runs of different length give the cost of
a trip without what surrounds the loop.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rfops
from rfops.vgpu.timed import TimedLaunch
from support.vgpu.asm import Module, assemble

LINE = 128
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
        with tempfile.TemporaryDirectory() as folder:
            self.module = Module(assemble(source, arch, Path(folder)), arch)

    def run(
        self,
        name: str,
        part: str,
        trips: int,
        data: np.ndarray | None = None,
        blocks: int = 1,
        threads: int = 64,
        cold: bool = True,
        kind: str = "profiler",
    ) -> TimedLaunch:
        """One launch of which only the workgroups run that its time is taken from."""
        at = 0 if data is None else -(-data.ctypes.data // LINE) * LINE
        arguments = np.array([at, at, trips | threads << 32], np.uint64).tobytes()
        with rfops.vgpu.timing(part, cold, kind, results=False, detail=False) as t:
            self.module.launch(name, blocks, threads, arguments)
        (launch,) = t.launches
        assert not launch.error
        return launch

    def trip_clk(self, name: str, part: str, few: int, many: int, **how: object) -> float:
        """Clocks of a trip of the loop."""
        first, second = (self.run(name, part, n, **how).clocks for n in (few, many))  # type: ignore[arg-type]
        return float(second - first) / (many - few)


@functools.cache
def chain(nodes: int, stride: int = 128, seed: int = 0) -> np.ndarray:
    """Addresses in a random cycle over `nodes` lines: each holds where the next one lies."""
    memory = np.zeros((nodes + 1) * stride // 8, np.uint64)
    at = -memory.ctypes.data % stride // 8
    order = np.random.default_rng(seed).permutation(nodes)
    base = np.uint64(memory.ctypes.data + at * 8)
    places = order.astype(np.uint64) * np.uint64(stride) + base
    memory[at + order * (stride // 8)] = np.roll(places, -1)
    # The chase starts at the head: the memory's first word is the first node's address.
    result = memory[at:]
    start = np.flatnonzero(order == 0)[0]
    assert places[start] == base
    return result
