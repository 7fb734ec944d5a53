"""LDS instructions of the virtual GPU that are more than a load or a store: pairs, permutations,
counters, transposed reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.vgpu.asm import LANES
from support.vgpu.memory import (
    FULL,
    LANE,
    LDS_BYTES,
    LOADS,
    MASKS,
    OLD,
    STORES,
    Array,
    Batch,
    Case,
    active,
    assert_same,
    data_dwords,
    loaded,
    random_bytes,
    random_data,
    stored,
)

# ------------------------------------------------------------------------------ two places at once

PAIRS = {  # suffix: dwords an element, bytes an offset unit, the two offsets
    "_b32": (1, 4, 3, 7),
    "st64_b32": (1, 256, 1, 5),
    "_b64": (2, 8, 2, 9),
    "st64_b64": (2, 512, 0, 3),
}


def _tuple(first: int, dwords: int) -> str:
    return f"v{first}" if dwords == 1 else f"v[{first}:{first + dwords - 1}]"


def _pair_cases() -> list[Case]:
    out = []
    for suffix, (dwords, _, first, second) in PAIRS.items():
        offsets = f"offset0:{first} offset1:{second}"
        data = f"{_tuple(24, dwords)}, {_tuple(26, dwords)}"
        pair = _tuple(20, 2 * dwords)
        rtn = suffix.replace("_", "_rtn_")
        out += [
            Case(f"read2{suffix}", f"ds_read2{suffix} {pair}, v10 {offsets}", "ds"),
            Case(
                f"read2{suffix} in place",
                f"v_mov_b32 v20, v10\n ds_read2{suffix} {pair}, v20 {offsets}",
                "ds",
            ),
            Case(f"write2{suffix}", f"ds_write2{suffix} v10, {data} {offsets}", "ds"),
            Case(f"wrxchg2{suffix}", f"ds_wrxchg2{rtn} {pair}, v10, {data} {offsets}", "ds"),
        ]
    return out


PAIR_BATCH = Batch(_pair_cases())


def _kind(dwords: int) -> str:
    return "dword" if dwords == 1 else "dwordx2"


def _both(suffix: str, memory: Array, offsets: Array, mask: int) -> Array:
    """Result registers of a two-place read."""
    dwords, unit, first, second = PAIRS[suffix]
    out = loaded(LOADS[_kind(dwords)], memory, offsets + first * unit, mask)
    out[dwords : 2 * dwords] = loaded(LOADS[_kind(dwords)], memory, offsets + second * unit, mask)[
        :dwords
    ]
    return out


@pytest.mark.parametrize("suffix", PAIRS)
@pytest.mark.parametrize("mask", MASKS)
def test_read2(suffix: str, mask: int) -> None:
    memory = random_bytes(LDS_BYTES, 1)
    offsets = np.random.default_rng(2).integers(0, 1024, LANES)
    want = _both(suffix, memory, offsets, mask)
    assert_same("read2", PAIR_BATCH.run(f"read2{suffix}", memory, offsets, mask), want)
    in_place = PAIR_BATCH.run(f"read2{suffix} in place", memory, offsets, mask)
    want[0] = np.where(active(mask), want[0], OLD)
    assert_same("read2 over its address", in_place, want)


@pytest.mark.parametrize("suffix", PAIRS)
@pytest.mark.parametrize("mask", MASKS)
def test_write2(suffix: str, mask: int) -> None:
    dwords, unit, first, second = PAIRS[suffix]
    memory, data = random_bytes(LDS_BYTES, 1), random_data(3)
    offsets = LANE * 20 + 1
    words, store = data_dwords(data), STORES[_kind(dwords)]
    want = stored(store, memory, offsets + first * unit, words, mask)
    want = stored(store, want, offsets + second * unit, words[2:], mask)
    PAIR_BATCH.run(f"write2{suffix}", memory, offsets, mask, data=data)
    assert_same("write2", memory, want)


@pytest.mark.parametrize("suffix", PAIRS)
@pytest.mark.parametrize("mask", MASKS)
def test_wrxchg2(suffix: str, mask: int) -> None:
    dwords, unit, first, second = PAIRS[suffix]
    memory, data = random_bytes(LDS_BYTES, 1), random_data(3)
    spread = {4: 32, 8: 32, 256: 4, 512: 8}[unit]  # no lane meets another's places
    offsets = LANE * spread
    words, store = data_dwords(data), STORES[_kind(dwords)]
    want_old = _both(suffix, memory, offsets, mask)
    want = stored(store, memory, offsets + first * unit, words, mask)
    want = stored(store, want, offsets + second * unit, words[2:], mask)
    actual = PAIR_BATCH.run(f"wrxchg2{suffix}", memory, offsets, mask, data=data)
    assert_same("old values", actual, want_old)
    assert_same("new values", memory, want)


# ------------------------------------------------------------------------------ permutations

SWIZZLES: dict[str, Callable[[int], int]] = {
    "swizzle(QUAD_PERM, 3,1,0,2)": lambda i: (i & ~3) | (3, 1, 0, 2)[i & 3],
    'swizzle(BITMASK_PERM, "01pi0")': lambda i: (i & 32) | (((i & 0b00110) | 0b01000) ^ 0b00010),
    "swizzle(SWAP,16)": lambda i: i ^ 16,
    "swizzle(REVERSE,8)": lambda i: i ^ 7,
    "swizzle(BROADCAST,32,5)": lambda i: (i & 32) | 5,
    "swizzle(ROTATE,0,3)": lambda i: (i & 32) | ((i + 3) & 31),
    "swizzle(ROTATE,1,3)": lambda i: (i & 32) | ((i - 3) & 31),
    "swizzle(FFT,0)": lambda i: (i & 32) | int(f"{i & 31:05b}"[::-1], 2),
    "swizzle(FFT,16)": lambda i: (i & 48) | int(f"{i & 15:04b}"[::-1], 2),
    "swizzle(FFT,31)": lambda i: i,
}
PERMUTE_BATCH = Batch(
    [
        Case("bpermute", "ds_bpermute_b32 v20, v10, v24 offset:4"),
        Case("permute", "ds_permute_b32 v20, v10, v24 offset:8"),
        *(Case(text, f"ds_swizzle_b32 v20, v24 offset:{text}") for text in SWIZZLES),
    ]
)


def _pull(values: Array, source: Array, mask: int) -> Array:
    """An inactive source gives zero, an inactive lane keeps its value."""
    on = active(mask)
    return np.where(on, np.where(on[source], values[source], 0), OLD).astype(np.uint32)


@pytest.mark.parametrize("mask", MASKS)
def test_bpermute_pulls(mask: int) -> None:
    address, data = np.random.default_rng(1).integers(0, 1 << 20, LANES), random_data(1)
    actual = PERMUTE_BATCH.run("bpermute", random_bytes(64, 0), address, mask, data=data)
    assert_same(
        "ds_bpermute_b32", actual[0], _pull(data_dwords(data)[0], (address + 4) // 4 % LANES, mask)
    )


@pytest.mark.parametrize("mask", MASKS)
def test_permute_pushes_and_the_highest_lane_wins(mask: int) -> None:
    address, data = np.random.default_rng(1).integers(0, 1 << 20, LANES), random_data(1)
    actual = PERMUTE_BATCH.run("permute", random_bytes(64, 0), address, mask, data=data)
    pushed = np.zeros(LANES, np.uint32)
    for lane in np.flatnonzero(active(mask)):
        pushed[(address[lane] + 8) // 4 % LANES] = data_dwords(data)[0, lane]
    assert_same("ds_permute_b32", actual[0], np.where(active(mask), pushed, OLD).astype(np.uint32))


@pytest.mark.parametrize("text", SWIZZLES)
def test_swizzle(text: str) -> None:
    source = np.array([SWIZZLES[text](i) for i in range(LANES)])
    for mask in MASKS:
        data = random_data(mask % 1000)
        actual = PERMUTE_BATCH.run(text, random_bytes(64, 0), LANE, mask, data=data)
        assert_same(f"{text} {mask:x}", actual[0], _pull(data_dwords(data)[0], source, mask))


# ------------------------------------------------------------------------------ by lane, counters

OTHER_BATCH = Batch(
    [
        Case("read_addtid", "s_mov_b32 m0, 0xabc00100\n ds_read_addtid_b32 v20 offset:12", "ds"),
        Case("write_addtid", "s_mov_b32 m0, 0xabc00100\n ds_write_addtid_b32 v24 offset:12", "ds"),
        Case("append", "s_mov_b32 m0, 0x40\n ds_append v20 offset:16", "ds"),
        Case("consume", "s_mov_b32 m0, 0x40\n ds_consume v20 offset:16", "ds"),
        Case("write beyond", "ds_write_b64 v10, v[24:25]", "ds"),
        Case("read beyond", "ds_read_b64 v[20:21], v10", "ds"),
        Case(
            "read wrapped",
            "v_subrev_u32 v10, 0x100, v10\n ds_read_b64 v[20:21], v10 offset:256",
            "ds",
        ),
        Case(
            "write wrapped",
            "v_subrev_u32 v10, 0x100, v10\n ds_write_b64 v10, v[24:25] offset:256",
            "ds",
        ),
    ]
)


@pytest.mark.parametrize("mask", MASKS)
def test_addtid(mask: int) -> None:
    memory, data = random_bytes(LDS_BYTES, 4), random_data(5)
    offsets = 0x10C + LANE * 4
    actual = OTHER_BATCH.run("read_addtid", memory, LANE, mask)
    assert_same("ds_read_addtid_b32", actual, loaded(LOADS["dword"], memory, offsets, mask))
    want = stored(STORES["dword"], memory, offsets, data_dwords(data), mask)
    OTHER_BATCH.run("write_addtid", memory, LANE, mask, data=data)
    assert_same("ds_write_addtid_b32", memory, want)


@pytest.mark.parametrize(("name", "sign"), [("append", 1), ("consume", -1)])
def test_counters(name: str, sign: int) -> None:
    for mask in MASKS:
        memory = random_bytes(LDS_BYTES, 6)
        counter = memory[0x50:0x54].view(np.uint32)
        counter[0] = 1000
        actual = OTHER_BATCH.run(name, memory, LANE, mask)
        assert_same(name, actual[0], np.where(active(mask), 1000, OLD).astype(np.uint32))
        assert counter[0] == 1000 + sign * mask.bit_count()


def test_outside_the_allocation() -> None:
    memory, data = random_bytes(LDS_BYTES, 7), random_data(8)
    offsets = np.where(LANE % 2, LDS_BYTES - 8 - LANE * 16, LDS_BYTES - 7 + LANE * 100)
    inside = int(sum(1 << lane for lane in range(1, LANES, 2)))
    want = stored(STORES["dwordx2"], memory, offsets, data_dwords(data), inside)
    OTHER_BATCH.run("write beyond", memory, offsets, data=data)
    assert_same("writes outside are dropped", memory, want)
    actual = OTHER_BATCH.run("read beyond", memory, offsets)
    read = loaded(LOADS["dwordx2"], memory, np.minimum(offsets, LDS_BYTES - 8), FULL)
    assert_same(
        "reads outside are zero", actual[:2], np.where(LANE % 2, read[:2], 0).astype(np.uint32)
    )


def test_an_address_below_zero_wraps() -> None:
    """With the instruction's offset it is in LDS again: from gfx7 on LLVM folds an offset whatever
    the sign of the base is (isDSOffsetLegal, hasUsableDSOffset). Buffers differ: a register offset
    below zero is out of range there."""
    memory, data = random_bytes(LDS_BYTES, 9), random_data(10)
    offsets = LANE * 8  # v10 is this less 256: below zero for half of the lanes
    actual = OTHER_BATCH.run("read wrapped", memory, offsets)
    assert_same("reads", actual[:2], loaded(LOADS["dwordx2"], memory, offsets, FULL)[:2])
    want = stored(STORES["dwordx2"], memory, offsets, data_dwords(data), FULL)
    OTHER_BATCH.run("write wrapped", memory, offsets, data=data)
    assert_same("writes", memory, want)


# ------------------------------------------------------------------------------ transposed reads

TRANSPOSED = {
    "b64_tr_b16": (16, 4),
    "b64_tr_b8": (8, 8),
    "b64_tr_b4": (4, 16),
    "b96_tr_b6": (6, 16),
}
TRANSPOSE_BATCH = Batch(
    [
        Case(name, f"ds_read_{name} {_tuple(20, bits * count // 32)}, v10 offset:16", "ds")
        for name, (bits, count) in TRANSPOSED.items()
    ]
)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_read(name: str) -> None:
    """16 lanes hold a row-major matrix of 16 columns in pieces; lane i of them gets column i."""
    bits, count = TRANSPOSED[name]
    memory = random_bytes(LDS_BYTES, bits)
    offsets = np.random.default_rng(bits).permutation(LDS_BYTES // 16 - 1)[:LANES] * 16
    actual = TRANSPOSE_BATCH.run(name, memory, offsets + 16, imm=16)
    for group in range(0, LANES, 16):
        pieces = [
            memory[o + 16 : o + 16 + bits * count // 8].tobytes()
            for o in offsets[group : group + 16]
        ]
        elements = [
            int.from_bytes(p, "little") >> (bits * e) & ((1 << bits) - 1)
            for p in pieces
            for e in range(count)
        ]
        matrix = np.array(elements, object).reshape(count, 16)
        for column in range(16):
            packed = sum(int(v) << (bits * r) for r, v in enumerate(matrix[:, column]))
            want = [packed >> (32 * d) & 0xFFFFFFFF for d in range(bits * count // 32)]
            assert_same(
                f"{name} lane {group + column}",
                actual[: len(want), group + column],
                np.array(want, np.uint32),
            )
