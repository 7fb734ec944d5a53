"""Matrix and conversion builtins as compilers emit them: small HIP kernels without a header,
compiled for both architectures, against numpy. Which byte or half a builtin's index means, which
registers a fragment takes and how sums are chained is the compiler's doing here, not ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from support.vgpu import formats as formats
from support.vgpu.asm import Module
from support.vgpu.formats import expect_codes, float_bits, points_around
from support.vgpu.hip import compile_hip

SOURCE = r"""
#define KERNEL \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 64)))
using u32 = unsigned;
using i64 = long;
typedef short short4_ __attribute__((ext_vector_type(4)));
typedef float float4_ __attribute__((ext_vector_type(4)));
typedef float float16_ __attribute__((ext_vector_type(16)));
typedef float float2_ __attribute__((ext_vector_type(2)));
typedef int int4_ __attribute__((ext_vector_type(4)));
typedef int int8_ __attribute__((ext_vector_type(8)));
typedef double double4_ __attribute__((ext_vector_type(4)));
#define LANE (int)__builtin_amdgcn_workitem_id_x()

// D[n][n] = A[n][k] * B[n][k]^T, fragments straight from memory.
KERNEL void gemm_bf16_16(float* d, const short* a, const short* b, int k) {
  const int row = LANE % 16, part = LANE / 16;
  float4_ sum = {};
  for (int at = 0; at < k; at += 16) {
    const short4_ x = *(const short4_*)(a + row * k + at + 4 * part);
    const short4_ y = *(const short4_*)(b + row * k + at + 4 * part);
    sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, sum, 0, 0, 0);
  }
  for (int r = 0; r < 4; ++r) d[(4 * part + r) * 16 + row] = sum[r];
}
KERNEL void gemm_bf16_32(float* d, const short* a, const short* b, int k) {
  const int row = LANE % 32, part = LANE / 32;
  float16_ sum = {};
  for (int at = 0; at < k; at += 8) {
    const short4_ x = *(const short4_*)(a + row * k + at + 4 * part);
    const short4_ y = *(const short4_*)(b + row * k + at + 4 * part);
    sum = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x, y, sum, 0, 0, 0);
  }
  for (int r = 0; r < 16; ++r) d[(8 * (r / 4) + 4 * part + r % 4) * 32 + row] = sum[r];
}
KERNEL void gemm_fp8_16(float* d, const char* a, const char* b, int k) {
  const int row = LANE % 16, part = LANE / 16;
  float4_ sum = {};
  for (int at = 0; at < k; at += 32) {
    const i64 x = *(const i64*)(a + row * k + at + 8 * part);
    const i64 y = *(const i64*)(b + row * k + at + 8 * part);
    sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x, y, sum, 0, 0, 0);
  }
  for (int r = 0; r < 4; ++r) d[(4 * part + r) * 16 + row] = sum[r];
}
KERNEL void gemm_i8_16(int* d, const char* a, const char* b, int k) {
  const int row = LANE % 16, part = LANE / 16;
  int4_ sum = {};
  for (int at = 0; at < k; at += 32) {
    const i64 x = *(const i64*)(a + row * k + at + 8 * part);
    const i64 y = *(const i64*)(b + row * k + at + 8 * part);
    sum = __builtin_amdgcn_mfma_i32_16x16x32_i8(x, y, sum, 0, 0, 0);
  }
  for (int r = 0; r < 4; ++r) d[(4 * part + r) * 16 + row] = sum[r];
}
KERNEL void gemm_f64_16(double* d, const double* a, const double* b, int k) {
  const int row = LANE % 16, part = LANE / 16;
  double4_ sum = {};
  for (int at = 0; at < k; at += 4)
    sum = __builtin_amdgcn_mfma_f64_16x16x4f64(a[row * k + at + part], b[row * k + at + part],
                                               sum, 0, 0, 0);
  for (int r = 0; r < 4; ++r) d[(4 * r + part) * 16 + row] = sum[r];
}

// One word a lane: fp8 codes, their floats back, and the stochastic form.
KERNEL void convert_fp8(u32* out, const float* in) {
  const float x = in[2 * LANE], y = in[2 * LANE + 1];
  int word = __builtin_amdgcn_cvt_pk_fp8_f32(x, y, 0, false);
  word = __builtin_amdgcn_cvt_pk_fp8_f32(y, x, word, true);
  int random = __builtin_amdgcn_cvt_sr_fp8_f32(x, 0, 0, 0);
  random = __builtin_amdgcn_cvt_sr_fp8_f32(y, 0, random, 1);
  random = __builtin_amdgcn_cvt_sr_fp8_f32(x, -1, random, 2);
  random = __builtin_amdgcn_cvt_sr_fp8_f32(y, -1, random, 3);
  const float2_ high = __builtin_amdgcn_cvt_pk_f32_fp8(word, true);
  u32* o = out + 8 * LANE;
  o[0] = word;
  o[1] = random;
  ((float*)o)[2] = __builtin_amdgcn_cvt_f32_fp8(word, 0);
  ((float*)o)[3] = __builtin_amdgcn_cvt_f32_fp8(word, 1);
  ((float*)o)[4] = __builtin_amdgcn_cvt_f32_fp8(word, 2);
  ((float*)o)[5] = __builtin_amdgcn_cvt_f32_fp8(word, 3);
  ((float*)o)[6] = high[0];
  ((float*)o)[7] = high[1];
}

#ifdef __gfx950__
// A and B are fp4 pairs, 64 bytes a row of 128; scales one dword a lane.
KERNEL void scaled_fp4_16(float* d, const int4_* a, const int4_* b, const int* sa, const int* sb) {
  const int row = LANE % 16, part = LANE / 16;
  const int4_ x = a[row * 4 + part], y = b[row * 4 + part];
  const int8_ wide_x = {x[0], x[1], x[2], x[3], 0, 0, 0, 0};
  const int8_ wide_y = {y[0], y[1], y[2], y[3], 0, 0, 0, 0};
  float4_ sum = {};
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(wide_x, wide_y, sum, 4, 4, 1, sa[LANE],
                                                         2, sb[LANE]);
  for (int r = 0; r < 4; ++r) d[(4 * part + r) * 16 + row] = sum[r];
}
KERNEL void scaled_fp8_32(float* d, const int4_* a, const int4_* b, const int* sa, const int* sb) {
  const int row = LANE % 32, part = LANE / 32;
  int8_ x, y;
  for (int i = 0; i < 8; ++i) {  // 16 bytes at 16 * part, 16 more at 32 + 16 * part
    x[i] = a[row * 4 + 2 * (i / 4) + part][i % 4];
    y[i] = b[row * 4 + 2 * (i / 4) + part][i % 4];
  }
  float16_ sum = {};
  sum = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(x, y, sum, 0, 0, 3, sa[LANE], 0, sb[LANE]);
  for (int r = 0; r < 16; ++r) d[(8 * (r / 4) + 4 * part + r % 4) * 32 + row] = sum[r];
}
KERNEL void convert_scaled(u32* out, const float* in, float scale) {
  const float x = in[2 * LANE], y = in[2 * LANE + 1];
  u32 word = 0;
  word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, x, y, scale, 0);
  word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, y, x, scale, 1);
  word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, x, x, scale, 2);
  word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, y, y, scale, 3);
  u32* o = out + 6 * LANE;
  o[0] = word;
  const float2_ first = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(word, scale, 1);
  ((float*)o)[1] = first[0];
  ((float*)o)[2] = first[1];
  u32 bytes = __builtin_amdgcn_cvt_pk_fp8_f32(4.0f, 8.0f, 0, false);
  bytes = __builtin_amdgcn_cvt_pk_fp8_f32(1.0f, 2.0f, bytes, true);
  ((float*)o)[3] = __builtin_amdgcn_cvt_scalef32_f32_fp8(bytes, scale, 0);
  ((float*)o)[4] = __builtin_amdgcn_cvt_scalef32_f32_fp8(bytes, scale, 1);
  ((float*)o)[5] = __builtin_amdgcn_cvt_scalef32_f32_fp8(bytes, scale, 2);
}
#endif
"""
ARCHS = ("gfx942", "gfx950")


@cache
def module(arch: str) -> Module:
    with TemporaryDirectory() as folder:
        return Module(compile_hip(SOURCE, arch, Path(folder)), arch)


def launch(arch: str, kernel: str, *arguments: np.ndarray | np.generic) -> None:
    """Arrays go as pointers, scalars as themselves, each at its natural alignment."""
    packed = b""
    for x in arguments:
        raw = np.uint64(x.ctypes.data).tobytes() if isinstance(x, np.ndarray) else x.tobytes()
        packed += bytes(-len(packed) % len(raw)) + raw
    module(arch).launch(kernel, 1, 64, packed)


def integers(shape: tuple[int, ...], seed: int, top: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(-top + 1, top, shape)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", ["bf16_16", "bf16_32", "fp8_16", "i8_16", "f64_16"])
def test_gemm_of_one_tile(arch: str, kernel: str) -> None:
    kind, size = kernel.split("_")
    n, k = int(size), 96
    a, b = integers((n, k), 1), integers((n, k), 2)
    fp8 = formats.eight_bit(arch)["fp8"]
    code = {
        "bf16": lambda v: (v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "fp8": lambda v: fp8.encode_exact(v.astype(np.float64)).astype(np.uint8),
        "i8": lambda v: v.astype(np.int8),
        "f64": lambda v: v.astype(np.float64),
    }[kind]
    dtype = {"i8": np.int32, "f64": np.float64}.get(kind, np.float32)
    d = np.full((n, n), 77, dtype)
    launch(arch, f"gemm_{kernel}", d, code(a), code(b), np.int32(k))
    assert np.array_equal(d, a @ b.T), np.argwhere(d != a @ b.T)[:4]


@pytest.mark.parametrize("arch", ARCHS)
def test_fp8_conversions(arch: str) -> None:
    fmt = formats.eight_bit(arch)["fp8"]
    x = np.resize(points_around(fmt)[::5], 128).reshape(64, 2)
    out = np.zeros((64, 8), np.uint32)
    launch(arch, "convert_fp8", out, x)
    low, high = x[:, 0].astype(np.float64), x[:, 1].astype(np.float64)
    word, random = out[:, 0], out[:, 1]
    for byte, values in enumerate((low, high, high, low)):
        code = word >> np.uint32(8 * byte) & 255
        expect_codes(code, fmt.round(values), fmt, f"byte {byte}", values)
        back = out[:, 2 + byte].view(np.float32)
        assert np.array_equal(back, fmt.values[code].astype(np.float32), equal_nan=True), byte
    assert np.array_equal(out[:, 6:8], out[:, 4:6])
    zero, ones = np.uint32(0), np.uint32(0xFFFFFFFF)
    for byte, (values, seed) in enumerate(((low, zero), (high, zero), (low, ones), (high, ones))):
        want = fmt.round_random(values, np.full(64, seed))
        expect_codes(random >> np.uint32(8 * byte) & 255, want, fmt, f"random byte {byte}", values)


def block_scaled(
    n: int, k: int, fmt: formats.Format, bytes_of: tuple[int, int]
) -> tuple[list, np.ndarray]:
    """Operands of a scaled kernel and the product it must give."""
    rng = np.random.default_rng(n)
    few = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = [rng.choice(few, (n, k)) * rng.choice([-1.0, 1.0], (n, k)) for _ in range(2)]
    exponents = [rng.integers(125, 130, (n, k // 32)) for _ in range(2)]
    arguments, product = [], []
    for x, e in zip(values, exponents, strict=True):
        codes = fmt.encode_exact(x)
        packed = codes[:, 0::2] | codes[:, 1::2] << 4 if fmt.bits == 4 else codes
        arguments.append(packed.astype(np.uint8))
        product.append(x * np.ldexp(1.0, np.repeat(e, 32, axis=1) - 127))
    for e, byte in zip(exponents, bytes_of, strict=True):
        arguments.append(e.T.reshape(64).astype(np.uint32) << np.uint32(8 * byte))
    return arguments, product[0] @ product[1].T


@pytest.mark.parametrize(
    ("kernel", "n", "k", "fmt", "bytes_of"),
    [
        ("scaled_fp4_16", 16, 128, formats.E2M1, (1, 2)),
        ("scaled_fp8_32", 32, 64, formats.E4M3, (3, 0)),
    ],
)
def test_block_scaled_tile(
    kernel: str, n: int, k: int, fmt: formats.Format, bytes_of: tuple[int, int]
) -> None:
    arguments, want = block_scaled(n, k, fmt, bytes_of)
    d = np.full((n, n), 77, np.float32)
    launch("gfx950", kernel, d, *arguments)
    assert np.array_equal(d, want), np.argwhere(d != want)[:4]


def test_scaled_conversions() -> None:
    x = np.resize(points_around(formats.E2M1, 4.0), 128).reshape(64, 2)
    out = np.zeros((64, 6), np.uint32)
    launch("gfx950", "convert_scaled", out, x, np.float32(4.0))
    low, high = x[:, 0].astype(np.float64) / 4, x[:, 1].astype(np.float64) / 4
    nibbles = [out[:, 0] >> np.uint32(4 * i) & 15 for i in range(8)]
    for i, values in enumerate((low, high, high, low, low, low, high, high)):
        expect_codes(nibbles[i], formats.E2M1.round(values), formats.E2M1, f"nibble {i}", values)
    for i in range(2):
        want = formats.E2M1.values[nibbles[2 + i]] * 4
        assert np.array_equal(out[:, 1 + i].view(np.float32), want.astype(np.float32)), i
    assert np.array_equal(out[:, 3:], np.broadcast_to(float_bits(np.array([16, 32, 4])), (64, 3)))
