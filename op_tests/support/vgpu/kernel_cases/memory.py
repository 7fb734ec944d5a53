"""Buffer range checks; global memory and LDS in every shape."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Array, Launch, Made, Rng, case, expect, poisoned

from .inputs import f16, i8, i16, i32, i64, integers, small_floats, u8, u16, u32, u64, wrap
from .words import signed


def dwords_within(a: Array, lanes: int, width: int, limit: int, shift: int = 0) -> Array:
    """What `lanes` loads of `width` dwords see of `a` when `limit` bytes are in range."""
    flat = np.zeros((lanes * width + 64), u32)
    live = min(limit // 4, a.size)
    flat[:live] = a[:live]
    offset = np.arange(lanes * width) + shift
    return flat[offset].reshape(lanes, width)


@case("buffers")
def guarded_copy(rng: Rng) -> Made:
    n, in_bytes, out_bytes = 300, 1000, 1100
    a, out = integers(rng, n, u32), poisoned(n, u32)
    expected = out.copy()
    expected[: out_bytes // 4] = dwords_within(a, n, 1, in_bytes).reshape(-1)[
        : out_bytes // 4
    ] + u32(1)
    return Launch(
        "guarded_copy", (2,), (256,), [out, a, u32(in_bytes), u32(out_bytes)], {0: expected}
    )


@case("buffers")
def guarded_wide(rng: Rng) -> Made:
    lanes, limit = 64, 4 * 130 + 4 * 3
    a = integers(rng, 256, u32)
    three = np.zeros((lanes, 4), u32)
    three[:, :3] = dwords_within(a, lanes, 3, limit)

    def check(actual: Array) -> None:
        expect(actual[:, :3], three[:, :3])

    return Launch(
        "guarded_wide",
        (1,),
        (lanes,),
        [
            poisoned((lanes, 4), u32),
            poisoned((lanes, 4), u32),
            poisoned((lanes, 2), u32),
            a,
            u32(limit),
        ],
        {
            0: dwords_within(a, lanes, 4, limit),
            1: check,
            2: dwords_within(a, lanes, 2, limit, shift=1),
        },
    )


@case("buffers")
def guarded_stores(rng: Rng) -> Made:
    lanes, limit = 64, 4 * 101
    a = integers(rng, (lanes, 4), u32)
    four, two = poisoned(256, u32), poisoned(256, u32)
    want_four, want_two = four.copy(), two.copy()
    want_four[: limit // 4] = a.reshape(-1)[: limit // 4]
    pairs = np.stack([a[:, 0], a[:, 3]], 1).reshape(-1)
    want_two[2 : limit // 4] = pairs[: limit // 4 - 2]
    return Launch(
        "guarded_stores", (1,), (lanes,), [four, two, a, u32(limit)], {0: want_four, 1: want_two}
    )


@case("buffers")
def guarded_narrow(rng: Rng) -> Made:
    lanes, limit, base = 128, 200, 6
    raw = integers(rng, 512, u8)
    live = np.where(np.arange(1024) < limit, np.resize(raw, 1024), 0).astype(u8)
    i = np.arange(lanes)
    got_byte = live[i + base].astype(i32)
    offset = 2 * i + 64 + base
    in_bounds = offset + 2 <= limit
    half = np.where(in_bounds, live[offset] | live[offset + 1].astype(u32) << 8, 0)
    byte_sums = got_byte + (got_byte.astype(i8).astype(i32) << 8)
    out_bytes, out_shorts = poisoned(512, u8), poisoned(256, u16)
    want_bytes, want_shorts = out_bytes.copy(), out_shorts.copy()
    stored = i + base < limit
    want_bytes[(i + base)[stored]] = (got_byte + 1).astype(u8)[stored]
    stored = 2 * i + 2 <= limit
    want_shorts[i[stored]] = (half ^ 0x55AA).astype(u16)[stored]
    return Launch(
        "guarded_narrow",
        (2,),
        (64,),
        [poisoned((lanes, 2), u32), out_bytes, out_shorts, raw, u32(limit), u32(base)],
        {0: np.stack([byte_sums.astype(u32), half.astype(u32)], 1), 1: want_bytes, 2: want_shorts},
    )


@case("buffers")
def guarded_window(rng: Rng) -> Made:
    n, shift, lanes = 100, 5, 128
    a = integers(rng, n, i32, -(1 << 29), 1 << 29)
    padded = np.concatenate([np.zeros(shift, i32), a, np.zeros(64, i32)])
    shifted = padded[1 : lanes + 1].copy()
    shifted[:shift] = 0  # clang leaves the 4 of `at * 4 + 4` to the instruction's offset
    return Launch(
        "guarded_window",
        (2,),
        (64,),
        [poisoned(lanes, i32), a, i32(n), i32(shift)],
        {0: padded[:lanes] + shifted},
    )


@case("memory")
def unaligned_loads(rng: Rng) -> Made:
    n = 130
    raw = integers(rng, 3 * n + 64, u8)

    def take(offset: int, size: int) -> int:
        return int.from_bytes(raw[offset : offset + size].tobytes(), "little")

    rows = []
    for i in range(n):
        four = [take(i + 4 * k, 4) for k in range(4)]
        three = [take(3 * i + 4 * k, 4) for k in range(3)]
        rows.append(
            [
                take(i, 2),
                take(i, 4),
                take(i, 8),
                four[0] + four[1] * four[2] + four[3],
                three[0] ^ three[1] ^ three[2],
                signed(take(2 * i + 1, 2), 16),
            ]
        )
    return Launch(
        "unaligned_loads", (3,), (64,), [poisoned((n, 6), u64), raw, i32(n)], {0: wrap(rows, u64)}
    )


@case("memory")
def unaligned_stores(rng: Rng) -> Made:
    n = 100
    a = integers(rng, n, u64)
    record = np.zeros(n, np.dtype([("i", u8), ("a", u64), ("b", u32), ("c", u16)]))
    record["i"], record["a"] = np.arange(n), a
    record["b"], record["c"] = (a >> u64(7)).astype(u32), (a >> u64(13)).astype(u16)
    return Launch(
        "unaligned_stores", (2,), (64,), [poisoned(15 * n, u8), a, i32(n)], {0: record.view(u8)}
    )


@case("memory")
def copy_wide(rng: Rng) -> Made:
    n = 777
    a = integers(rng, (n, 4), u32)
    return Launch("copy_wide", (2,), (128,), [poisoned((n, 4), u32), a, i32(n)], {0: a})


@case("memory")
def copy_nontemporal(rng: Rng) -> Made:
    n = 300
    a, raw = integers(rng, n, u64), integers(rng, n, u8)
    return Launch(
        "copy_nontemporal",
        (2,),
        (256,),
        [poisoned(n, u64), a, poisoned(n, u8), raw, i32(n)],
        {0: a + u64(1), 2: raw ^ u8(0x80)},
    )


@case("memory")
def narrow_types(rng: Rng) -> Made:
    n = 300
    a, b, c, d = (integers(rng, n, t) for t in (i8, u8, i16, u16))
    total = sum(k * x.astype(i32) for k, x in ((3, a), (5, b), (7, c), (11, d)))
    return Launch(
        "narrow_types", (2,), (256,), [poisoned(n, i32), a, b, c, d, i32(n)], {0: total.astype(i32)}
    )


@case("memory")
def half_pairs(rng: Rng) -> Made:
    n = 200
    a, b = small_floats(rng, n, f16), small_floats(rng, n, f16)
    total = a + b[::-1]
    return Launch(
        "half_pairs",
        (2,),
        (128,),
        [poisoned((n, 2), f16), poisoned(n, u16), a, b, i32(n)],
        {0: np.stack([total, total], 1), 1: b[::-1].copy().view(u16)},
    )


@case("memory")
def copy_structs(rng: Rng) -> Made:
    n = 100
    a, small = integers(rng, (n, 13), u32), integers(rng, (n, 7), u8)
    source = rng.permutation(n).astype(u32)
    expected = a[source].copy()
    expected[np.arange(n), np.arange(n) % 13] += u32(1)
    return Launch(
        "copy_structs",
        (2,),
        (64,),
        [poisoned((n, 13), u32), poisoned((n, 7), u8), a, small, source, i32(n)],
        {0: expected, 1: small[source]},
    )


@case("memory")
def volatile_updates(rng: Rng) -> Made:
    a = integers(rng, 128, u32)
    expected = a.copy()
    for _ in range(9):
        expected = expected * u32(5) + u32(1)
    return Launch("volatile_updates", (2,), (64,), [a, i32(9)], {0: expected})


@case("memory")
def direct_to_lds(rng: Rng) -> Made:
    a = integers(rng, 512, u32)
    moved = a[np.arange(512) ^ 21].reshape(2, 256)[:, ::-1]
    return Launch("direct_to_lds", (2,), (256,), [poisoned(512, u32), a], {0: moved.reshape(-1)})


@case("memory")
def far_offsets(rng: Rng) -> Made:
    a, index = integers(rng, 9000, u32), -3333
    offset = 4096 + np.arange(64)
    total = sum(a[offset + k] for k in (-4096, -1000, 1000, 2000, 4000, index))
    return Launch(
        "far_offsets", (1,), (64,), [poisoned(64, u32), a, i64(index)], {0: total.astype(u32)}
    )


@case("lds_wide")
def lds_vectors(rng: Rng) -> Made:
    a = integers(rng, (64, 4), u32)
    i = np.arange(64)
    expected = a[63 - i] + a[(i + 5) & 63][:, [1, 0, 3, 2]]

    def check(actual: Array) -> None:
        expect(actual[:, :3], a[i ^ 9][:, :3])

    return Launch(
        "lds_vectors",
        (1,),
        (64,),
        [poisoned((64, 4), u32), poisoned((64, 4), u32), a],
        {0: expected, 1: check},
    )


@case("lds_wide")
def lds_pairs(rng: Rng) -> Made:
    a = integers(rng, 128, u64)
    i, partner = np.arange(64), 63 - np.arange(64)
    left_sums = a[partner] + a[partner + 64] + a[partner] * u64(3)
    second = i.astype(u64) * (a[:64] >> u64(32)) + partner.astype(u64)
    return Launch(
        "lds_pairs", (1,), (64,), [poisoned(128, u64), a], {0: np.concatenate([left_sums, second])}
    )


@case("lds_wide")
def lds_narrow(rng: Rng) -> Made:
    a = integers(rng, 256, i32)
    bytes_, shorts, halves = a.astype(i8), (a >> 4).astype(u16), (a & 1023)
    i = np.arange(256)
    partner = (i * 7 + 3) & 255
    total = halves[partner] + halves[255 - i]
    rounded = total.astype(f16).astype(i32)
    expected = (
        bytes_[partner].astype(i32)
        + bytes_[255 - partner].astype(u8)
        + shorts[partner]
        + shorts[i ^ 1].astype(i16)
        + rounded
    )
    return Launch("lds_narrow", (1,), (256,), [poisoned(256, i32), a], {0: expected.astype(i32)})


@case("lds_wide")
def lds_unaligned(rng: Rng) -> Made:
    raw = integers(rng, 512, u8)
    expected = [int.from_bytes(raw[i * 7 + (i & 3) :][:8].tobytes(), "little") for i in range(64)]
    return Launch("lds_unaligned", (1,), (64,), [poisoned(64, u64), raw], {0: wrap(expected, u64)})
