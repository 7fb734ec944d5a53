"""`load_inline` of entries against the virtual GPU: types of HIP's, and what is refused.

The HIP types of csrc/hip_shim are held against torch's, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rfops.challenge import inline
from rfops.challenge.inline import CannotBuild
from rfops.jit.build import hip_source
from support.vgpu.hip import bundle

# Without torch's headers, which take most of the time.
HOST = "void run(long kind, long out, long in, long count);"
DEVICE = r"""
#include <hip/hip_runtime.h>
#include <hip/amd_detail/amd_hip_fp16.h>
#include <hip/hip_bf16.h>
#include <hip/hip_fp8.h>

template <typename T, typename Bits>
__device__ void decode(float* out, const Bits* in, long i) {
  T value;
  __builtin_memcpy(&value, &in[i], sizeof value);
  out[i] = static_cast<float>(value);
}
template <typename T, typename Bits>
__device__ void encode(Bits* out, const float* in, long i) {
  const T value(in[i]);
  __builtin_memcpy(&out[i], &value, sizeof value);
}
template <typename T, typename T2>
__device__ float arithmetic(float v) {
  T x(v), y(v * 0.5f + 1.0f);
  x += y;
  T2 p(x, -y);
  p = __hfma2(p, p, __hsub2(p, T2(y, y)));
  return __low2float(p) + __high2float(p * p) + float(__hmax(x, y)) + float(__habs(-x)) +
         float(x < y) + float(__hisnan(x));
}
__global__ void work(long kind, void* out, const void* in, long count) {
  const long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  auto* f = static_cast<float*>(out);
  auto* g = static_cast<const float*>(in);
  auto* b8 = static_cast<const unsigned char*>(in);
  auto* b16 = static_cast<const unsigned short*>(in);
  auto* o8 = static_cast<unsigned char*>(out);
  auto* o16 = static_cast<unsigned short*>(out);
  switch (kind) {
    case 0: return decode<__half>(f, b16, i);
    case 1: return decode<__hip_bfloat16>(f, b16, i);
    case 2: return decode<__hip_fp8_e4m3>(f, b8, i);
    case 3: return decode<__hip_fp8_e5m2>(f, b8, i);
    case 4: return decode<__hip_fp8_e4m3_fnuz>(f, b8, i);
    case 5: return decode<__hip_fp8_e5m2_fnuz>(f, b8, i);
    case 10: return encode<__half>(o16, g, i);
    case 11: return encode<__hip_bfloat16>(o16, g, i);
    case 12: return encode<__hip_fp8_e4m3>(o8, g, i);
    case 13: return encode<__hip_fp8_e5m2>(o8, g, i);
    case 14: return encode<__hip_fp8_e4m3_fnuz>(o8, g, i);
    case 15: return encode<__hip_fp8_e5m2_fnuz>(o8, g, i);
    case 20: f[i] = expf(g[i]) + tanhf(g[i]) + __expf(g[i]) + rsqrtf(fabsf(g[i]) + 1.0f); return;
    case 21: f[i] = powf(fabsf(g[i]), 1.5f) + erff(g[i]) + logf(fabsf(g[i]) + 1.0f); return;
    case 22: f[i] = fmaxf(g[i], 0.5f) + min(int(g[i]), 3) + floorf(g[i]) + sinf(g[i]); return;
    case 24: f[i] = arithmetic<__half, __half2>(g[i]); return;
    case 25: f[i] = arithmetic<__hip_bfloat16, __hip_bfloat162>(g[i]); return;
    case 23: f[i] = __shfl_xor(g[i], 1) + __shfl_down(g[i], 32); return;
  }
}
void run(long kind, long out, long in, long count) {
  work<<<(count + 63) / 64, 64>>>(kind, reinterpret_cast<void*>(out),
                                  reinterpret_cast<const void*>(in), count);
}
"""
PYTHON = """
import sys
import torch
from rfops.challenge import inline
HOST, DEVICE = open(sys.argv[1]).read(), open(sys.argv[2]).read()
bound = '#include <pybind11/pybind11.h>' + chr(10) + HOST + (
    'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", run); }')
module = inline.load_inline("types", bound, DEVICE, no_implicit_headers=True,
                            extra_cuda_cflags=["-O3 --save-temps", "--offload-arch=gfx90a"])

def run(kind, given, dtype):
    out = torch.empty(given.shape, dtype=dtype)
    module.run(kind, out.data_ptr(), given.data_ptr(), given.numel())
    return out

def same(a, b, what):
    good = (a == b) | (a.isnan() & b.isnan())
    at = int((~good).to(torch.int).argmax())
    assert good.all(), f"{what}: {a[at]} is not {b[at]}, at {at}"

KINDS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
         torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
gen = torch.Generator().manual_seed(0)
for at, dtype in enumerate(KINDS):
    bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
    codes = torch.arange(1 << 8 * dtype.itemsize).to(bits)
    wide = codes.view(dtype).float()
    same(run(at, codes, torch.float32), wide, f"{dtype} to float")
    # Every value, what lies between two of them, and anything.
    finite = wide[wide.isfinite()].sort().values
    middle = (finite[1:] + finite[:-1]) / 2
    random = torch.randn(4096, generator=gen) * finite.max() / 8
    floats = torch.cat((finite, middle, random, torch.randn(4096, generator=gen)))
    floats = floats[floats.abs() <= finite.max()].contiguous()
    made = run(10 + at, floats, bits).view(dtype)
    same(made.float(), floats.to(dtype).float(), f"float to {dtype}")

x = torch.randn(640, generator=gen) * 3
a, sign = x.abs(), torch.sign(x)

def arithmetic(v, t):
    y = (v * 0.5 + 1.0).to(t)
    x = v.to(t) + y
    z = x - y, -y - y
    low, high = ((a.float() * a.float() + b.float()).to(t) for a, b in zip((x, y), z))
    many = low, high * high, x.maximum(y), x.abs(), x < y
    return sum(part.float() for part in many)

expected = {
    24: arithmetic(x, torch.float16), 25: arithmetic(x, torch.bfloat16),
    20: 2 * x.exp() + x.tanh() + (a + 1).rsqrt(),
    21: a**1.5 + torch.erf(x) + (a + 1).log(),
    22: x.clamp(min=0.5) + x.int().clamp(max=3) + x.floor() + x.sin(),
    23: x.view(-1, 32, 2).flip(2).flatten()
    + torch.cat((x.view(-1, 2, 32)[:, 1:].expand(-1, 2, -1)[:, :1], x.view(-1, 2, 32)[:, 1:]), 1)
    .flatten(),
}
for kind, value in expected.items():
    torch.testing.assert_close(run(kind, x, torch.float32), value, rtol=2e-6, atol=2e-6)
print("all good")
"""


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_types_and_functions(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: what is loaded stays."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    for name, text in (("host", HOST), ("device", DEVICE), ("test.py", PYTHON)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = [sys.executable, "test.py", "host", "device"]
    completed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 0 and "all good" in completed.stdout, (
        completed.stdout + completed.stderr
    )


def test_libraries_are_refused_by_name() -> None:
    for header, says in (
        ("hipblas/hipblas.h", "hipBLAS is not here"),
        ("rocwmma/rocwmma.hpp", "rocWMMA is not here"),
        ("ck_tile/core.hpp", "Composable Kernel is not here"),
    ):
        with pytest.raises(CannotBuild, match=says):
            inline._as_hip(f"int x;\n#include <{header}>\n")


def test_names_of_cuda_and_flags_of_hipcc() -> None:
    assert inline._as_hip("{ cudaMemcpyAsync(a); }") == "{ hipMemcpyAsync(a); }"
    given = ["-O3", "--offload-arch=gfx942", "-g --save-temps -DX='a b'", "-Rpass-analysis=x"]
    assert inline._flags(given) == ["-O3", "-g", "-DX=a b"]


def test_a_bundle_is_as_the_loader_reads_it() -> None:
    images = [("host-x86_64-unknown-linux-gnu-", b""), ("hipv4-amdgcn--gfx942", b"x" * 5000)]
    assert hip_source.bundle(images) == bundle(images)


def test_what_the_compiler_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors, and not the command."""
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"main\.cpp:2:\d+: error: .*nonsense"):
        inline.load_inline("wrong", "nonsense;{}", no_implicit_headers=True)
