"""A HIP runtime that does nothing but count: what a launch costs the host, and where it goes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from rfops.jit.build import toolchain

SOURCE = r"""
#include <stddef.h>
#define API __attribute__((visibility("default")))
int device = 0, sets = 0, launches = 0, fail_with = 0;
unsigned grid[3], block[3], lds;
unsigned char machines[2];  /* EF_AMDGPU_MACH of what was loaded last on each device */
void* stream;
unsigned char kernarg[4096];
size_t kernarg_size;
API int hipInit(unsigned f) { return 0; }
API int hipGetDeviceCount(int* n) { *n = 2; return 0; }
API int hipGetDevice(int* d) { *d = device; return 0; }
API int hipSetDevice(int d) { device = d; ++sets; return 0; }
API int hipModuleLoadData(void** m, const void* c) {
  machines[device & 1] = ((const unsigned char*)c)[48];
  *m = &device;
  return 0;
}
API int hipModuleUnload(void* m) { return 0; }
API int hipModuleGetFunction(void** f, void* m, const char* n) { *f = &sets; return 0; }
API int hipStreamSynchronize(void* s) { return 0; }
API int hipDeviceSynchronize(void) { return 0; }
API const char* hipGetErrorString(int e) { return "as asked"; }
API int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned l, void* s, void** p,
                              void** extra) {
  ++launches;
  if (RECORD) {
    grid[0] = gx; grid[1] = gy; grid[2] = gz; block[0] = bx; block[1] = by; block[2] = bz;
    lds = l; stream = s; kernarg_size = *(size_t*)extra[3];
    for (size_t i = 0; i < kernarg_size; ++i) kernarg[i] = ((unsigned char*)extra[1])[i];
  }
  return fail_with;
}
"""


def build(folder: Path, record: bool = True) -> Path:
    """Compile it into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "null_hip.c", folder / "null_hip.so"
    source.write_text(SOURCE)
    compiler = toolchain.host_toolchain().argv
    flags = ("-O2", "-shared", "-fPIC", f"-DRECORD={int(record)}", "-x", "c")
    code, output = toolchain.run([*compiler, *flags, str(source), "-o", str(library)])
    assert code == 0, output
    return library


class NullHip:
    """The library's records."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self.library = ctypes.CDLL(str(library))

    def number(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, name).value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, name).value = value

    @property
    def dims(self) -> tuple[list[int], list[int]]:
        kind = ctypes.c_uint * 3
        return list(kind.in_dll(self.library, "grid")), list(kind.in_dll(self.library, "block"))

    @property
    def machines(self) -> list[int]:
        return list((ctypes.c_ubyte * 2).in_dll(self.library, "machines"))

    @property
    def stream(self) -> int:
        return ctypes.c_void_p.in_dll(self.library, "stream").value or 0

    @property
    def kernarg(self) -> bytes:
        size = ctypes.c_size_t.in_dll(self.library, "kernarg_size").value
        return bytes((ctypes.c_ubyte * 4096).in_dll(self.library, "kernarg"))[:size]
