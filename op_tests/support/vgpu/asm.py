"""Runs snippets of gfx9 assembly on the virtual GPU, lane by lane, from numpy arrays.

A snippet reads four 64-bit inputs a lane, v[8:9], v[10:11], v[12:13] and v[14:15], and leaves up
to four dwords in v[20:23] (zero before). s[4:7] and s[0:3] are taken; s8 and up, VCC and the rest
of the vector registers are free. Many snippets go into one code object, so that assembling is paid
once.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

LANES = 64
_PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshl_or_b32 v0, s2, 6, v0
  v_lshlrev_b32 v1, 5, v0
  v_lshlrev_b32 v2, 4, v0
  s_waitcnt lgkmcnt(0)
  global_load_dwordx4 v[8:11], v1, s[4:5]
  global_load_dwordx4 v[12:15], v1, s[4:5] offset:16
  v_mov_b32 v20, 0
  v_mov_b32 v21, 0
  v_mov_b32 v22, 0
  v_mov_b32 v23, 0
  s_waitcnt vmcnt(0)
"""
_EPILOGUE = """
  s_nop 7
  s_nop 7
  s_mov_b64 exec, -1
  global_store_dwordx4 v2, v[20:23], s[6:7]
  s_endpgm
"""
_DESCRIPTOR = """
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 96
  .amdhsa_accum_offset {agprs}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 16
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {private}
  .amdhsa_float_denorm_mode_32 {denormals}
.end_amdhsa_kernel
"""
_METADATA = """  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {private}
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: {vgprs}
    .agpr_count: {agprs}
    .max_flat_workgroup_size: {most}
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
"""
_USUAL = {"vgprs": 128, "agprs": 64, "lds": 4096, "private": 256, "most": 64, "denormals": 3}


def source_of(kernels: Mapping[str, str], arch: str, **resources: int) -> str:
    """Assembly of kernels by name, all of them with two buffers and _USUAL but for `resources`."""
    used = {**_USUAL, **resources}
    text = [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n.text\n']
    text += [f".globl {k}\n.p2align 8\n.type {k},@function\n{k}:\n{v}" for k, v in kernels.items()]
    text += [_DESCRIPTOR.format(name=name, **used) for name in kernels]
    text.append(".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:\n")
    text += [_METADATA.format(name=name, **used) for name in kernels]
    return "".join([*text, ".end_amdgpu_metadata\n"])


def assemble(source: str, arch: str, folder: Path) -> bytes:
    """Code object of an assembly source, by ziglang's clang and lld."""
    zig = [sys.executable, "-m", "ziglang"]
    asm, obj, out = (folder / f"k.{suffix}" for suffix in ("s", "o", "hsaco"))
    asm.write_text(source)
    target = ["--target=amdgcn-amd-amdhsa", f"-mcpu={arch}"]
    for command in (
        [*zig, "clang", *target, "-c", str(asm), "-o", str(obj)],
        [*zig, "ld.lld", "-shared", str(obj), "-o", str(out)],
    ):
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, f"{' '.join(command)}\n{completed.stderr[:4000]}"
    return out.read_bytes()


def code_object(snippets: Iterable[str], arch: str, **resources: int) -> bytes:
    """One kernel `k<i>` a snippet, with _USUAL resources but for `resources`."""
    kernels = {f"k{i}": _PROLOGUE + snippet + _EPILOGUE for i, snippet in enumerate(snippets)}
    with tempfile.TemporaryDirectory() as folder:
        return assemble(source_of(kernels, arch, **resources), arch, Path(folder))


@functools.cache
def library() -> ctypes.CDLL:
    """The virtual GPU as a plain HIP runtime."""
    from rfops.jit import vgpu_library

    lib = ctypes.CDLL(str(vgpu_library()))
    lib.rfops_vgpu_last_error.restype = ctypes.c_char_p
    assert lib.hipInit(0) == 0
    return lib


def check(status: int) -> None:
    assert status == 0, f"HIP error {status}: {library().rfops_vgpu_last_error().decode()}"


class Module:
    """A loaded code object; `arch` is set for the calling thread before each use."""

    def __init__(self, code: bytes, arch: str) -> None:
        self.arch, self._lib = arch, library()
        self._select()
        self._handle = ctypes.c_void_p()
        check(self._lib.hipModuleLoadData(ctypes.byref(self._handle), code))

    def _select(self) -> None:
        check(self._lib.rfops_vgpu_set_arch(self.arch.encode()))

    def launch(
        self, kernel: str, grid: int | tuple[int, int], block: int, arguments: bytes
    ) -> None:
        self._select()
        function = ctypes.c_void_p()
        check(self._lib.hipModuleGetFunction(ctypes.byref(function), self._handle, kernel.encode()))
        size = ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(
            1, ctypes.cast(arguments, ctypes.c_void_p), 2, ctypes.addressof(size), 3
        )
        x, y = grid if isinstance(grid, tuple) else (grid, 1)
        check(self._lib.hipModuleLaunchKernel(function, x, y, 1, block, 1, 1, 0, None, None, extra))


class Snippets:
    """A batch of snippets, assembled together; `run(i, inputs)` gives [n, 4] dwords.

    A snippet that sets v2 to the byte at which v[20:23] go, and stores more from s[6:7] on itself,
    can give rows of more than 4 dwords.
    """

    def __init__(self, snippets: list[str], arch: str = "gfx950", **resources: int) -> None:
        self.module = Module(code_object(snippets, arch, **resources), arch)

    def run(self, index: int, inputs: np.ndarray, dwords: int = 4) -> np.ndarray:
        """inputs: uint64 [n, up to 4], n a multiple of 64."""
        n = len(inputs)
        assert n % LANES == 0, n
        padded = np.zeros((n, 4), np.uint64)
        padded[:, : inputs.shape[1]] = inputs
        out = np.full((n, dwords), 0xDEADBEEF, np.uint32)
        arguments = np.array([padded.ctypes.data, out.ctypes.data], np.uint64).tobytes()
        self.module.launch(f"k{index}", n // LANES, LANES, arguments)
        return out
