"""Accesses of 8 and 16 bytes, of which another workgroup never sees a part.

Kernels rely on it: decoupled look-back keeps a flag beside its value. rocPRIM's scans gave wrong
sums where a flag was seen before its value.
"""

from __future__ import annotations

from ctypes import c_int

import numpy as np
import pytest

from support.vgpu.hip import Hip, compile_hip, pointer

LANES, ROUNDS = 64, 100_000

# Even workgroups write a number into each dword of a lane's words, odd ones look for two of them.
SOURCE = """
typedef unsigned u32;
#define KERNEL(NAME, COUNT, SUFFIX)                                                             \\
  typedef u32 NAME##_words __attribute__((ext_vector_type(COUNT)));                             \\
  extern "C" __attribute__((global)) void NAME(NAME##_words* words, u32* torn, int lanes,       \\
                                               int rounds) {                                    \\
    const int lane = __builtin_amdgcn_workitem_id_x();                                          \\
    const int group = __builtin_amdgcn_workgroup_id_x();                                        \\
    if (lane >= lanes) return;                                                                  \\
    u32 seen = 0;                                                                               \\
    for (int i = 0; i < rounds; ++i) {                                                          \\
      NAME##_words value = i * 4 + group;                                                       \\
      if (group & 1) {                                                                          \\
        asm volatile("global_load_" SUFFIX " %0, %1, off\\n s_waitcnt vmcnt(0)"                 \\
                     : "=v"(value) : "v"(words + lane) : "memory");                             \\
        for (int d = 1; d < COUNT; ++d) seen += value[d] != value[0];                           \\
      } else {                                                                                  \\
        asm volatile("global_store_" SUFFIX " %0, %1, off"                                      \\
                     : : "v"(words + lane), "v"(value) : "memory");                             \\
      }                                                                                         \\
    }                                                                                           \\
    torn[group * 64 + lane] = seen;                                                             \\
  }
KERNEL(pairs, 2, "dwordx2")
KERNEL(quads, 4, "dwordx4")
"""


@pytest.fixture(scope="module", name="code")
def code_fixture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_hip(SOURCE, "gfx942", tmp_path_factory.mktemp("wide"))


@pytest.mark.parametrize("lanes", [LANES, LANES - 23])
@pytest.mark.parametrize("kernel", ["pairs", "quads"])
def test_no_part_of_an_access_is_seen(hip: Hip, code: bytes, kernel: str, lanes: int) -> None:
    groups, dwords = 4, {"pairs": 2, "quads": 4}[kernel]
    room = np.zeros(LANES * dwords + 4, np.uint32)
    begin = -room.ctypes.data % 16 // 4
    words = room[begin : begin + LANES * dwords]
    torn = np.full(groups * LANES, 0xA5A5A5A5, np.uint32)
    hip.select("gfx942")
    function = hip.function(hip.load(code), kernel)
    arguments = pointer(words), pointer(torn), c_int(lanes), c_int(ROUNDS)
    status = hip.launch(function, *arguments, grid=(groups,), block=(LANES,))
    assert status == 0, hip.error()
    counts = torn.reshape(groups, LANES)
    assert (counts[:, lanes:] == 0xA5A5A5A5).all()
    assert not counts[:, :lanes].any(), f"{counts[1::2, :lanes].sum()} parts were seen"
