"""Host programs as hipcc builds them: `kernel<<<grid, block>>>` in one source, its code objects
inside the executable, which is linked against libamdhip64. Without ROCm's headers: what a program
needs of them stands here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rfops.jit import vgpu_library_folder
from rfops.jit.build import toolchain
from support.vgpu.hip import HOST_ENTRY, bundle, compile_hip, zig

HEADER = """
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
struct dim3 {
  unsigned x, y, z;
  constexpr __host__ __device__ dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1)
      : x(a), y(b), z(c) {}
};
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef int hipError_t;
typedef unsigned long size_t;
extern "C" {
hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t);
hipError_t __hipPushCallConfiguration(dim3, dim3, size_t = 0, hipStream_t = 0);
hipError_t __hipPopCallConfiguration(dim3*, dim3*, size_t*, hipStream_t*);
hipError_t hipMalloc(void**, size_t);
hipError_t hipMemcpy(void*, const void*, size_t, int);
hipError_t hipDeviceSynchronize();
hipError_t hipGetLastError();
hipError_t hipEventCreate(hipEvent_t*);
hipError_t hipEventRecord(hipEvent_t, hipStream_t = 0);
hipError_t hipEventElapsedTime(float*, hipEvent_t, hipEvent_t);
int printf(const char*, ...);
int fork();
int wait(int*);
void abort() __attribute__((noreturn));
}
__device__ inline int index() {
  return __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
}
"""


def build(source: str, archs: Sequence[str], folder: Path, *flags: str) -> Path:
    """The executable. It finds the library where LD_LIBRARY_PATH says; the flags are for kernels,
    -g for debug lines."""
    text = f'#line 1 "header"\n{HEADER}\n#line 1 "program.hip"\n{source}'
    images = [
        (f"hipv4-amdgcn-amd-amdhsa--{a}", compile_hip(text, a, folder, *flags)) for a in archs
    ]
    fat, file, host, program = (
        folder / name for name in ("program.hipfb", "program.hip", "host.o", "program")
    )
    fat.write_bytes(bundle([HOST_ENTRY, *images]))
    file.write_text(text)
    zig("clang", "--target=x86_64-linux-gnu", "-x", "hip", "--cuda-host-only", "-nogpuinc",
        "-nogpulib", "-Xclang", "-fcuda-include-gpubinary", "-Xclang", fat, "-fPIE", "-O1", "-c",
        file, "-o", host)  # fmt: skip
    library = vgpu_library_folder() / "libamdhip64.so.6"
    linker = [*toolchain.host_toolchain().argv, str(host), str(library), "-o", str(program)]
    code, output = toolchain.run(linker)
    assert code == 0, output
    return program
