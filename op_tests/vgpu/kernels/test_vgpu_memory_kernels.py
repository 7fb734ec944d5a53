"""Memory as compilers use it: HIP kernels without a header, for both architectures, against numpy.

Which address space, addressing mode and width an access takes is the compiler's choice here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from support.vgpu.asm import Module
from support.vgpu.hip import compile_hip

SOURCE = r"""
#define KERNEL extern "C" __attribute__((global))
#define SHARED __attribute__((shared))
#define LDS __attribute__((address_space(3)))
#define GLOBAL __attribute__((address_space(1)))
#define RELAXED __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT
using u8 = unsigned char;
using i8 = signed char;
using u32 = unsigned;
using u64 = unsigned long;
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x2 __attribute__((ext_vector_type(2)));
#define TID (int)__builtin_amdgcn_workitem_id_x()
#define BLOCK (int)__builtin_amdgcn_workgroup_id_x()
#define BARRIER() \
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); __builtin_amdgcn_s_barrier()

// A private array indexed at run time lives in scratch: insertion sort of 37 values a thread.
KERNEL void sort_private(int* data) {
  int* own = data + (BLOCK * 192 + TID) * 37;
  int values[37];
  for (int i = 0; i < 37; ++i) values[i] = own[i];
  for (int i = 1; i < 37; ++i) {
    const int v = values[i];
    int at = i;
    for (; at && values[at - 1] > v; --at) values[at] = values[at - 1];
    values[at] = v;
  }
  for (int i = 0; i < 37; ++i) own[i] = values[i];
}

// Calls through the stack: a frame with an array at every depth, unequal depths in a wave.
__attribute__((device)) __attribute__((noinline)) int descend(int n, int seed) {
  volatile u8 frame[13];
  for (int i = 0; i < 13; ++i) frame[i] = (u8)(seed + i * n);
  const int below = n ? descend(n - 1, seed * 3 + 1) : 0;
  int sum = below;
  for (int i = 0; i < 13; ++i) sum += frame[i];
  return sum;
}
KERNEL void recursion(int* out) { out[TID] = descend(TID % 9, TID); }

// Pointers whose address space is known at run time only: LDS, private memory, global memory.
__attribute__((device)) __attribute__((noinline)) int sum_bytes(const u8* p, int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += p[i] * (i + 1);
  return sum;
}
KERNEL void generic_pointers(int* out, const u8* in) {
  SHARED u8 shared[256 * 5];
  u8 own[40];
  for (int i = 0; i < 5; ++i) shared[TID * 5 + i] = in[TID * 5 + i];
  for (int i = 0; i < 40; ++i) own[i] = (u8)(in[TID] + i * TID);
  BARRIER();
  const int kind = TID % 3;
  const u8* p = kind == 0 ? in + TID : kind == 1 ? shared + (TID * 7) % 1200 : own + TID % 8;
  out[TID] = sum_bytes(p, 32);
}

// Histogram: LDS atomics, then one global atomic a bin; float and 64-bit sums as well.
KERNEL void histogram(u32* bins, u64* total, float* sum, const u8* in, int n) {
  SHARED u32 local[256];
  for (int i = TID; i < 256; i += 128) local[i] = 0;
  BARRIER();
  for (int i = BLOCK * 128 + TID; i < n; i += 16 * 128) {
    __hip_atomic_fetch_add(&local[in[i]], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    __hip_atomic_fetch_add(total, (u64)in[i] << 33, RELAXED);
    __hip_atomic_fetch_add(sum, (float)in[i], RELAXED);
  }
  BARRIER();
  for (int i = TID; i < 256; i += 128) __hip_atomic_fetch_add(bins + i, local[i], RELAXED);
}

// The last workgroup to arrive (an acquire-release counter) sees what all others wrote.
KERNEL void last_block(u32* partial, u32* counter, u32* out, int blocks) {
  SHARED int is_last;
  partial[BLOCK * 64 + TID] = BLOCK * 1000 + TID;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  if (TID == 0) {
    const u32 before =
        __hip_atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
    is_last = before == blocks - 1;
  }
  BARRIER();
  if (!is_last) return;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  u32 sum = 0;
  for (int b = 0; b < blocks; ++b) sum += partial[b * 64 + TID];
  out[TID] = sum;
}

// Compare-and-swap loop: maximum of doubles.
KERNEL void max_double(u64* cell, const double* in) {
  const double mine = in[BLOCK * 64 + TID];
  u64 old = __hip_atomic_load(cell, RELAXED);
  while (__builtin_bit_cast(double, old) < mine) {
    if (__hip_atomic_compare_exchange_strong(cell, &old, __builtin_bit_cast(u64, mine),
                                             __ATOMIC_RELAXED, RELAXED)) {
      break;
    }
  }
}

// Transpose through a buffer resource with a bound: rows beyond it read zero and are not written.
KERNEL void buffer_transpose(u32* out, const u32* in, int n, int bytes) {
  __amdgpu_buffer_rsrc_t from = __builtin_amdgcn_make_buffer_rsrc((void*)in, 0, bytes, 0x20000);
  __amdgpu_buffer_rsrc_t to = __builtin_amdgcn_make_buffer_rsrc(out, 0, bytes, 0x20000);
  for (int at = TID; at < n * n / 4; at += 64) {
    const u32x4 v = __builtin_amdgcn_raw_buffer_load_b128(from, at * 16, 0, 0);
    const int row = at * 4 / n, column = at * 4 % n;
    for (int i = 0; i < 4; ++i) {
      __builtin_amdgcn_raw_buffer_store_b32(v[i], to, ((column + i) * n + row) * 4, 0, 0);
    }
  }
}

// Global memory to LDS without registers; each wave brings its own piece, others read it.
KERNEL void direct_to_lds(u32* out, const u32* in) {
  SHARED u32 tile[256 * 4];
  const int wave = __builtin_amdgcn_readfirstlane(TID / 64);
#if defined(__gfx950__)
  __builtin_amdgcn_global_load_lds((GLOBAL u32*)(in + TID * 4), (LDS u32*)tile + wave * 256,
                                   16, 0, 0);
#else
  for (int i = 0; i < 4; ++i) {
    __builtin_amdgcn_global_load_lds((GLOBAL u32*)(in + wave * 256 + i * 64 + TID % 64),
                                     (LDS u32*)tile + wave * 256 + i * 64, 4, 0, 0);
  }
#endif
  __builtin_amdgcn_s_waitcnt(0);
  BARRIER();
  for (int i = 0; i < 4; ++i) out[i * 256 + TID] = tile[1023 - (i * 256 + TID)];
}

// Narrow types: bytes and halves, signed and not, packed in structs without alignment.
struct __attribute__((packed)) Record { u8 a; short b; int c; i8 d; long e; };
KERNEL void packed_records(Record* out, const Record* in) {
  const Record r = in[TID];
  out[TID] = {(u8)(r.a + 1), (short)(r.b - r.d), r.c ^ r.a, (i8)-r.d, r.e * 3 + r.b};
}
KERNEL void half_pairs(f16x2* out, const _Float16* a, const _Float16* b) {
  out[TID] = f16x2{a[TID * 3], b[TID * 5]} + f16x2{b[TID], a[TID + 1]};
}

// Wave reductions by lane exchange, then across the waves of a workgroup by LDS.
KERNEL void reduce(int* out, const int* in) {
  SHARED int waves[16];
  int v = in[BLOCK * 1024 + TID];
  for (int step = 1; step < 64; step *= 2) {
    v += __builtin_amdgcn_ds_bpermute((TID ^ step) * 4, v);
  }
  if (TID % 64 == 0) waves[TID / 64] = v;
  BARRIER();
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum += waves[i];
  if (TID == 0) out[BLOCK] = sum;
}

// A pair of elements apart in LDS: read2 and write2.
KERNEL void butterfly(float* data) {
  SHARED float tile[512];
  tile[TID] = data[TID];
  tile[TID + 256] = data[TID + 256];
  for (int half = 256; half; half /= 2) {
    BARRIER();
    const int at = TID / half * 2 * half + TID % half;
    const float a = tile[at], b = tile[at + half];
    tile[at] = a + b;
    tile[at + half] = a - b;
  }
  BARRIER();
  data[TID] = tile[TID];
  data[TID + 256] = tile[TID + 256];
}
"""
ARCHS = ("gfx942", "gfx950")
pytestmark = pytest.mark.parametrize("arch", ARCHS)


@cache
def module(arch: str) -> Module:
    with TemporaryDirectory() as folder:
        return Module(compile_hip(SOURCE, arch, Path(folder)), arch)


def launch(arch: str, kernel: str, grid: int, block: int, *arguments: np.ndarray | int) -> None:
    """Arrays go as pointers, integers as int."""
    packed = b""
    for x in arguments:
        array = isinstance(x, np.ndarray)
        raw = (np.uint64(x.ctypes.data) if array else np.int32(x)).tobytes()
        packed += bytes(-len(packed) % len(raw)) + raw
    module(arch).launch(kernel, grid, block, packed)


def equal(label: str, actual: np.ndarray, want: np.ndarray) -> None:
    wrong = np.argwhere(actual != want)
    if len(wrong):
        offset = tuple(wrong[0])
        raise AssertionError(
            f"{label}: {len(wrong)} differ, first at {offset}: "
            f"got {actual[offset]}, want {want[offset]}"
        )


def random(shape: int | tuple[int, ...], dtype: type, seed: int = 1) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def test_private_arrays(arch: str) -> None:
    data = random((3 * 192, 37), np.int32)
    want = np.sort(data, axis=1)
    launch(arch, "sort_private", 3, 192, data)
    equal("sorted", data, want)


def test_recursion(arch: str) -> None:
    def descend(n: int, seed: int) -> int:
        below = descend(n - 1, seed * 3 + 1) if n else 0
        return below + sum((seed + i * n) & 255 for i in range(13))

    out = np.full(128, -1, np.int32)
    launch(arch, "recursion", 1, 128, out)
    equal("sum", out, np.array([descend(t % 9, t) for t in range(128)], np.int32))


def test_generic_pointers(arch: str) -> None:
    raw, out = random(1280, np.uint8), np.full(256, -1, np.int32)
    launch(arch, "generic_pointers", 1, 256, out, raw)
    want = []
    for t in range(256):
        own = (int(raw[t]) + np.arange(40) * t).astype(np.uint8)
        p = (raw[t:], raw[t * 7 % 1200 :], own[t % 8 :])[t % 3]
        want.append(int(np.dot(p[:32].astype(np.int64), np.arange(1, 33))))
    equal("sum of bytes", out, np.array(want, np.int32))


def test_histogram(arch: str) -> None:
    values = random(20_000, np.uint8)
    bins, total, sums = np.zeros(256, np.uint32), np.zeros(1, np.uint64), np.zeros(1, np.float32)
    launch(arch, "histogram", 16, 128, bins, total, sums, values, len(values))
    equal("bins", bins, np.bincount(values, minlength=256).astype(np.uint32))
    assert total[0] == int(values.sum(dtype=np.uint64)) << 33
    assert sums[0] == values.sum(dtype=np.uint64)  # exact: below 2^24


def test_last_block_sees_all_writes(arch: str) -> None:
    blocks = 200
    partial, counter = np.zeros(blocks * 64, np.uint32), np.zeros(1, np.uint32)
    out = np.zeros(64, np.uint32)
    launch(arch, "last_block", blocks, 64, partial, counter, out, blocks)
    assert counter[0] == blocks
    want = [sum(b * 1000 + t for b in range(blocks)) for t in range(64)]
    equal("sum", out, np.array(want, np.uint32))


def test_compare_and_swap_loop(arch: str) -> None:
    values = np.random.default_rng(1).normal(size=100 * 64)
    cell = np.full(1, -np.inf)
    launch(arch, "max_double", 100, 64, cell, values)
    assert cell[0] == values.max()


def test_buffer_builtins(arch: str) -> None:
    n, rows = 32, 25
    data, out = random((n, n), np.uint32), np.full((n, n), 77, np.uint32)
    launch(arch, "buffer_transpose", 1, 64, out, data, n, rows * n * 4)
    want = np.full((n, n), 77, np.uint32)
    want[:rows] = np.where(np.arange(n)[:, None] < rows, data, 0).T[:rows]
    equal("transposed", out, want)


def test_direct_to_lds(arch: str) -> None:
    data, out = random(1024, np.uint32), np.zeros(1024, np.uint32)
    launch(arch, "direct_to_lds", 1, 256, out, data)
    equal("reversed", out, data[::-1])


def test_packed_records(arch: str) -> None:
    record = np.dtype([("a", "u1"), ("b", "<i2"), ("c", "<i4"), ("d", "i1"), ("e", "<i8")])
    data = random(256 * record.itemsize, np.uint8).view(record)
    out = np.zeros(256, record)
    launch(arch, "packed_records", 1, 256, out, data)
    wide = {name: data[name].astype(np.int64) for name in record.names}
    equal("a", out["a"], (wide["a"] + 1).astype(np.uint8))
    equal("b", out["b"], (wide["b"] - wide["d"]).astype(np.int16))
    equal("c", out["c"], (wide["c"] ^ wide["a"]).astype(np.int32))
    equal("d", out["d"], (-wide["d"]).astype(np.int8))
    equal("e", out["e"], wide["e"] * 3 + wide["b"])


def test_half_pairs(arch: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=1400).astype(np.float16) for _ in range(2))
    out = np.zeros((256, 2), np.float16)
    launch(arch, "half_pairs", 1, 256, out, a, b)
    t = np.arange(256)
    equal("low", out[:, 0], a[3 * t] + b[t])
    equal("high", out[:, 1], b[5 * t] + a[t + 1])


def test_workgroup_reduction(arch: str) -> None:
    data = np.random.default_rng(1).integers(-999, 999, (5, 1024), np.int32)
    out = np.zeros(5, np.int32)
    launch(arch, "reduce", 5, 1024, out, data)
    equal("sum", out, data.sum(axis=1, dtype=np.int32))


def test_butterfly(arch: str) -> None:
    """A Walsh-Hadamard transform of small integers: exact in float."""
    data = np.random.default_rng(1).integers(-99, 99, 512).astype(np.float32)
    want = data.reshape([2] * 9)
    for axis in range(9):
        a, b = np.take(want, 0, axis), np.take(want, 1, axis)
        want = np.stack([a + b, a - b], axis)
    launch(arch, "butterfly", 1, 256, data)
    equal("transform", data, want.reshape(-1))
