"""Runs single instructions on whole registers: numpy rows of 64 lanes in, rows of 64 lanes out.

A case names the registers that it reads and writes ("v8", "a3"); the kernel loads each from a row
of the input, runs the body in between, and stores the outputs. v0 to v2 and s0 to s7 are taken.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from support.vgpu import asm

LANES = 64

_PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 2, v0
  v_mov_b32 v2, v1
  s_waitcnt lgkmcnt(0)
"""


def tuple_of(file: str, first_register: int, count: int) -> str:
    """Assembler text of `count` registers: v3 or v[3:6]."""
    return (
        f"{file}{first_register}"
        if count == 1
        else f"{file}[{first_register}:{first_register + count - 1}]"
    )


def names_of(file: str, first_register: int, count: int) -> list[str]:
    return [f"{file}{first_register + i}" for i in range(count)]


@dataclass
class Case:
    body: str
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The kernel's instructions."""
        lines = [_PROLOGUE]
        for name in self.inputs:
            lines += [f"  global_load_dword {name}, v1, s[4:5]", "  v_add_u32 v1, 0x100, v1"]
        lines += ["  s_waitcnt vmcnt(0)", "  s_nop 7", self.body, "  s_nop 15", "  s_nop 15"]
        lines.append("  s_mov_b64 exec, -1")
        for name in self.outputs:
            lines += [f"  global_store_dword v2, {name}, s[6:7]", "  v_add_u32 v2, 0x100, v2"]
        return "\n".join([*lines, "  s_endpgm\n"])


class Cases:
    """Kernels of many cases in one code object."""

    def __init__(self, cases: list[Case], arch: str) -> None:
        self.cases = cases
        kernels = {f"k{i}": case.text() for i, case in enumerate(cases)}
        source = asm.source_of(kernels, arch, vgprs=512, agprs=256, lds=0, private=0)
        with tempfile.TemporaryDirectory() as folder:
            self.module = asm.Module(asm.assemble(source, arch, Path(folder)), arch)

    def run(self, index: int, rows: np.ndarray) -> np.ndarray:
        """rows: uint32 [inputs, 64] -> uint32 [outputs, 64]."""
        case = self.cases[index]
        rows = np.ascontiguousarray(rows, np.uint32)
        assert rows.shape == (len(case.inputs), LANES), (rows.shape, len(case.inputs))
        out = np.full((len(case.outputs), LANES), 0xDEADBEEF, np.uint32)
        arguments = np.array([rows.ctypes.data, out.ctypes.data], np.uint64).tobytes()
        self.module.launch(f"k{index}", 1, LANES, arguments)
        return out

    def run_lanes(self, index: int, columns: list[np.ndarray]) -> np.ndarray:
        """Any number of values of each input, 64 at a time: [outputs, n]."""
        n = len(columns[0])
        padded = np.zeros((len(columns), -(-n // LANES) * LANES), np.uint32)
        for row, column in zip(padded, columns, strict=True):
            row[:n] = column
        starts = range(0, padded.shape[1], LANES)
        chunks = [self.run(index, padded[:, offset : offset + LANES]) for offset in starts]
        return np.concatenate(chunks, axis=1)[:, :n]
