"""Buffer resources of the virtual GPU: range checks, structured and swizzled addressing, component
formats; and loads to LDS of every family."""

from __future__ import annotations

import numpy as np
import pytest

from support.vgpu.asm import LANES
from support.vgpu.memory import (
    FULL,
    LANE,
    LDS_BYTES,
    LOADS,
    MASKS,
    PRIVATE,
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


def _resource(word1: int = 0, word3: int = 0) -> str:
    """V# in s[16:19]: base s[8:9], num_records s10; word1 and word3 as given."""
    return (
        f"s_mov_b32 s16, s8\n s_or_b32 s17, s9, 0x{word1:x}\n s_mov_b32 s18, s10\n"
        f"s_mov_b32 s19, 0x{word3:x}\n"
    )


AT = "v10, s[16:19], 0"  # an access by v10 of that resource
AT_SOFFSET = "v10, s[16:19], s20"


def _regs(first: int, dwords: int) -> str:
    return f"v{first}" if dwords == 1 else f"v[{first}:{first + dwords - 1}]"


# ------------------------------------------------------------------------------ raw range checks

RAW = Batch([
    *(Case(f"load {k}", f"{_resource()}s_mov_b32 s20, 64\n"
           f"buffer_load_{k} {_regs(20, load.dwords)}, {AT_SOFFSET} offen offset:20")
      for k, load in LOADS.items()),
    *(Case(f"store {k}", f"{_resource()}s_mov_b32 s20, 64\n"
           f"buffer_store_{k} {_regs(24, store.dwords)}, {AT_SOFFSET} offen offset:20")
      for k, store in STORES.items()),
    Case("atomic", f"{_resource()}buffer_atomic_add v24, {AT} offen sc0\n"
         "s_waitcnt vmcnt(0)\n v_mov_b32 v20, v24"),
    *(Case(f"below zero {dwords}", f"{_resource()}buffer_load_dword{'x4' * (dwords == 4)} "
           f"{_regs(20, dwords)}, {AT} offen offset:4095") for dwords in (1, 4)),
    Case("store below zero", f"{_resource()}buffer_store_dword v24, {AT} offen offset:4095"),
])  # fmt: skip
SIZES = (0, 3, 16, 1000, 1001, 4000)


@pytest.mark.parametrize("kind", LOADS)
def test_loads_outside_read_zero_dword_by_dword(kind: str) -> None:
    rng = np.random.default_rng(1)
    for size in SIZES:
        for mask in MASKS[:2]:
            memory = random_bytes(LDS_BYTES, size)
            offsets = rng.integers(84, 1100, LANES)
            actual = RAW.run(f"load {kind}", memory, offsets, mask, imm=84, size=size)
            want = loaded(LOADS[kind], memory, offsets, mask, lambda end, size=size: end <= size)
            assert_same(f"{kind} of {size} bytes", actual, want)


@pytest.mark.parametrize("kind", STORES)
def test_stores_outside_are_dropped_dword_by_dword(kind: str) -> None:
    offsets = np.random.default_rng(2).permutation(80)[:LANES] * 16 + 85
    for size in SIZES:
        memory, data = random_bytes(LDS_BYTES, size), random_data(size)
        want = stored(
            STORES[kind],
            memory,
            offsets,
            data_dwords(data),
            FULL,
            lambda end, size=size: end <= size,
        )
        RAW.run(f"store {kind}", memory, offsets, imm=84, size=size, data=data)
        assert_same(f"{kind} of {size} bytes", memory, want)


def test_atomics_outside_are_dropped_and_return_zero() -> None:
    memory = np.full(LANES, 7, np.uint32)
    data = np.full(LANES, 5, np.uint64)
    actual = RAW.run("atomic", memory, LANE * 4, size=126, data=data)
    assert_same("memory", memory, np.where(LANE < 31, 12, 7).astype(np.uint32))
    assert_same("old values", actual[0], np.where(LANE < 31, 7, 0).astype(np.uint32))


@pytest.mark.parametrize("dwords", [1, 4])
def test_a_register_offset_below_zero_is_out_of_range(dwords: int) -> None:
    """Also where the instruction's offset makes the sum positive: LLVM's splitBufferOffsets never
    leaves such an offset in the VGPR, "as it appears to be illegal"."""
    memory = random_bytes(8192, 3)
    inside = LANE % 2 == 0
    offsets = np.where(inside, 4095 + 41, 40)  # v10 is this less 4095
    actual = RAW.run(f"below zero {dwords}", memory, offsets, imm=4095, size=8192)
    for d in range(dwords):
        offset = 4095 + 41 + 4 * d
        want = np.where(inside, memory[offset : offset + 4].view(np.uint32)[0], 0).astype(np.uint32)
        assert_same(f"dword {d}", actual[d], want)


def test_a_store_below_zero_is_dropped() -> None:
    memory = random_bytes(8192, 4)
    want = memory.copy()
    offsets = np.where(LANE % 2 == 0, 4095 + 4 * LANE, 4 * LANE)  # v10 is this less 4095
    data = random_data(5)
    for lane in LANE[LANE % 2 == 0]:
        offset = 4095 + 4 * lane
        want[offset : offset + 4] = data_dwords(data)[0, lane : lane + 1].view(np.uint8)
    RAW.run("store below zero", memory, offsets, imm=4095, size=8192, data=data)
    assert_same("memory", memory, want)


# ------------------------------------------------------------------------------ index and stride

SWIZZLE, ADD_TID = 1 << 31, 1 << 23


def _stride(stride: int) -> int:
    return stride << 16


INDEXED = Batch([
    Case("structured", f"{_resource(_stride(48))}v_mov_b32 v16, v10\n v_mov_b32 v17, v24\n"
         "s_mov_b32 s20, 8\n"
         "buffer_load_dwordx2 v[20:21], v[16:17], s[16:19], s20 idxen offen offset:4"),
    Case("index", f"{_resource(_stride(48))}buffer_load_dword v20, {AT} idxen offset:8"),
    Case("stride but no index", f"{_resource(_stride(48))}buffer_load_dword v20, {AT} offen"),
    Case("index, no stride", f"{_resource()}buffer_load_dword v20, {AT} idxen offset:8"),
    Case("thread", f"{_resource(_stride(12), ADD_TID)}"
         "buffer_load_dword v20, off, s[16:19], 0 offset:8"),
    Case("thread, wide stride", f"{_resource(0, ADD_TID | 1 << 15)}s_mov_b64 exec, 1\n"
         "buffer_load_dword v20, off, s[16:19], 0 offset:8"),
    Case("thread and index", f"{_resource(_stride(12), ADD_TID)}buffer_load_dword v20, {AT} idxen"),
    Case("thread atomic", f"{_resource(_stride(12), ADD_TID)}"
         "buffer_atomic_add v24, off, s[16:19], 0"),
    *(Case(f"swizzled load {n}", f"{_resource(SWIZZLE | _stride(32), ADD_TID | n << 21)}"
           f"buffer_load_dwordx3 v[20:22], {AT} offen offset:4") for n in range(4)),
    *(Case(f"swizzled store {n}", f"{_resource(SWIZZLE | _stride(32), ADD_TID | n << 21)}"
           f"buffer_store_dwordx2 v[24:25], {AT} offen") for n in range(4)),
])  # fmt: skip


def test_structured_buffers_check_the_index() -> None:
    memory = random_bytes(8192, 1)
    index, offset = np.random.default_rng(1).integers(0, 120, LANES), LANE % 20
    actual = INDEXED.run(
        "structured",
        memory,
        index,
        size=100,
        data=offset.astype(np.uint64),
        base=memory.ctypes.data,
    )
    want = loaded(LOADS["dwordx2"], memory, index * 48 + offset + 12, FULL)
    assert_same(
        "index and offset", actual[:2], np.where(index < 100, want[:2], 0).astype(np.uint32)
    )
    actual = INDEXED.run("index", memory, index, size=100)
    want = loaded(LOADS["dword"], memory, index * 48 + 8, FULL)
    assert_same("index", actual[0], np.where(index < 100, want[0], 0).astype(np.uint32))


def test_without_index_or_stride_a_buffer_is_raw() -> None:
    memory = random_bytes(8192, 2)
    offsets = LANE * 4
    want = loaded(LOADS["dword"], memory, offsets, FULL, lambda end: end <= 100)
    assert_same("stride", INDEXED.run("stride but no index", memory, offsets, size=100), want)
    want = np.full(LANES, memory[8:12].view(np.uint32)[0])
    assert_same("index", INDEXED.run("index, no stride", memory, LANE + 500, size=100)[0], want)


def test_thread_number_as_index() -> None:
    memory = random_bytes(8192, 3)
    want = loaded(LOADS["dword"], memory, LANE * 12 + 8, FULL)
    assert_same("not range-checked", INDEXED.run("thread", memory, LANE * 0, size=0), want)
    wide = INDEXED.run("thread, wide stride", memory, LANE * 0)
    assert wide[0, 0] == memory[8:12].view(np.uint32)[0]
    index = np.random.default_rng(3).integers(0, 120, LANES)
    actual = INDEXED.run("thread and index", memory, index, size=100)
    want = np.where(index < 100, loaded(LOADS["dword"], memory, index * 12, FULL)[0], 0)
    assert_same(
        "an index replaces the thread in a linear buffer", actual[0], want.astype(np.uint32)
    )
    previous = memory.copy()
    INDEXED.run("thread atomic", memory, LANE * 0, data=np.full(LANES, 3, np.uint64))
    want_memory = previous[: 12 * LANES].copy().view(np.uint32)
    want_memory[::3] += 3
    assert_same("atomic", memory[: 12 * LANES].view(np.uint32), want_memory)


def _swizzled(offset: Array | int, log: int) -> Array:
    """Byte addresses of dwords in a buffer of 32-byte records swizzled by 8 << log lanes."""
    group = 8 << log
    return (LANE // group * 32 + offset // 4 * 4) * group + LANE % group * 4 + offset % 4


@pytest.mark.parametrize("log", range(4))
def test_swizzled_buffers(log: int) -> None:
    memory = random_bytes(8192, log)
    offsets = np.random.default_rng(log).integers(4, 20, LANES) // 4 * 4
    actual = INDEXED.run(f"swizzled load {log}", memory, offsets, imm=4, base=memory.ctypes.data)
    for d in range(3):
        want = loaded(LOADS["dword"], memory, _swizzled(offsets + 4 * d, log), FULL)
        assert_same(f"dword {d}", actual[d], want[0])
    want_memory, data = memory.copy(), random_data(log)
    for d in range(2):
        positions = _swizzled(8 + 4 * d, log)
        want_memory = stored(STORES["dword"], want_memory, positions, data_dwords(data)[d:], FULL)
    INDEXED.run(
        f"swizzled store {log}", memory, np.full(LANES, 8), data=data, base=memory.ctypes.data
    )
    assert_same("store", memory, want_memory)


# ------------------------------------------------------------------------------ component formats

UNORM, SNORM, USCALED, SSCALED, UINT, SINT, FLOAT = 0, 1, 2, 3, 4, 5, 7
WIDTHS = {  # data format: bits of the components from the low end
    1: (8,),
    2: (16,),
    3: (8, 8),
    4: (32,),
    5: (16, 16),
    6: (11, 11, 10),
    7: (10, 11, 11),
    8: (2, 10, 10, 10),
    9: (10, 10, 10, 2),
    10: (8, 8, 8, 8),
    11: (32, 32),
    12: (16, 16, 16, 16),
    13: (32, 32, 32),
    14: (32, 32, 32, 32),
}
FORMATS = [
    *(
        (d, n)
        for d in (1, 2, 3, 5, 8, 9, 10, 12)
        for n in (UNORM, SNORM, USCALED, SSCALED, UINT, SINT)
    ),
    *((d, n) for d in (4, 11, 13, 14) for n in (UINT, SINT, FLOAT)),
    *((d, FLOAT) for d in (2, 5, 6, 7, 12)),
]
LETTERS = "xyzw"


def _format_cases() -> list[Case]:
    out = []
    for data, number in FORMATS:
        n = len(WIDTHS[data])
        shape = f"dfmt:{data}, nfmt:{number}, 0 offen"
        out += [
            Case(
                f"load {data} {number}",
                f"{_resource()}tbuffer_load_format_xyzw v[20:23], v10, s[16:19], {shape}",
            ),
            Case(
                f"copy {data} {number}",
                f"{_resource()}tbuffer_load_format_{LETTERS[:n]} {_regs(20, n)}, "
                f"v10, s[16:19], {shape}\n"
                f"s_waitcnt vmcnt(0)\n s_add_u32 s16, s16, 2048\n s_addc_u32 s17, s17, 0\n"
                f"tbuffer_store_format_{LETTERS[:n]} {_regs(20, n)}, v10, s[16:19], {shape}",
            ),
        ]
    return out


def _word3(data: int, number: int, selectors: int = 0xFAC) -> int:
    return selectors | number << 12 | data << 15


TYPED = Batch([
    *_format_cases(),
    Case("store unorm", f"{_resource(0, _word3(1, UNORM))}buffer_store_format_x v24, {AT} offen"),
    Case("store half", f"{_resource(0, _word3(2, FLOAT))}buffer_store_format_x v24, {AT} offen"),
    Case("select", f"{_resource(0, _word3(14, FLOAT, 5 | 4 << 3 | 1 << 6))}"
         f"buffer_load_format_xyzw v[20:23], {AT} offen"),
    Case("invalid", f"{_resource(0, _word3(0, UINT))}buffer_load_format_xy v[20:21], {AT} offen"),
    Case("d16", f"{_resource(0, _word3(14, FLOAT))}"
         f"buffer_load_format_d16_xyz v[20:21], {AT} offen\n"
         f"buffer_load_format_d16_hi_x v22, {AT} offen"),
    Case("d16 ints", f"{_resource(0, _word3(10, SINT))}"
         f"buffer_load_format_d16_xyzw v[20:21], {AT} offen"),
    Case("d16 store", f"{_resource(0, _word3(11, FLOAT))}"
         f"buffer_store_format_d16_xy v24, {AT} offen"),
    Case("d16 hi store", f"{_resource(0, _word3(4, FLOAT))}"
         f"buffer_store_format_d16_hi_x v24, {AT} offen"),
    Case("reserved", f"{_resource()}"
         "tbuffer_load_format_x v20, v10, s[16:19], dfmt:15, nfmt:4, 0 offen"),
])  # fmt: skip


def _components(memory: Array, data: int) -> list[list[int]]:
    """The raw components of each lane's element; elements lie side by side."""
    size = sum(WIDTHS[data]) // 8
    out = []
    for lane in range(LANES):
        word = int.from_bytes(memory[lane * size : (lane + 1) * size].tobytes(), "little")
        values = []
        for width in WIDTHS[data]:
            values.append(word & ((1 << width) - 1))
            word >>= width
        out.append(values)
    return out


def _unpack(value: int, width: int, number: int) -> int:
    signed = value - (1 << width) if value >> (width - 1) else value
    if number == UINT or (number == FLOAT and width == 32):
        return value
    if number == SINT:
        return signed & 0xFFFFFFFF
    if number == FLOAT:  # 10, 11 and 16 bits have the exponent of a half
        shift = 15 - width if width < 16 else 0
        return int(np.float32(np.uint16(value << shift).view(np.float16)).view(np.uint32))
    scale = {
        UNORM: value / ((1 << width) - 1),
        SNORM: max(-1.0, signed / ((1 << (width - 1)) - 1)),
        USCALED: float(value),
        SSCALED: float(signed),
    }[number]
    return int(np.float32(scale).view(np.uint32))


def _pattern(data: int, number: int) -> Array:
    """Random elements without NaN, and without the second -1 of a signed norm."""
    size = sum(WIDTHS[data]) // 8
    raw = random_bytes(4096, data * 8 + number)
    words = []
    for values in _components(raw, data):
        fixed, offset = 0, 0
        for width, value in zip(WIDTHS[data], values, strict=True):
            if number == SNORM and value == 1 << (width - 1):
                value += 1
            if number == FLOAT:  # clears an exponent bit: neither NaN nor infinity
                value &= ~(1 << (30 if width == 32 else 14 if width == 16 else width - 1))
            fixed |= value << offset
            offset += width
        words.append(fixed.to_bytes(size, "little"))
    raw[: LANES * size] = np.frombuffer(b"".join(words), np.uint8)
    return raw


@pytest.mark.parametrize(("data", "number"), FORMATS)
def test_typed_load(data: int, number: int) -> None:
    memory = _pattern(data, number)
    size = sum(WIDTHS[data]) // 8
    actual = TYPED.run(f"load {data} {number}", memory, LANE * size, size=4096)
    want = np.zeros((4, LANES), np.uint32)
    for lane, values in enumerate(_components(memory, data)):
        for c, (width, value) in enumerate(zip(WIDTHS[data], values, strict=True)):
            want[c, lane] = _unpack(value, width, number)
    assert_same(f"format {data}, number {number}", actual, want)


@pytest.mark.parametrize(("data", "number"), FORMATS)
def test_typed_store_inverts_the_load(data: int, number: int) -> None:
    memory = _pattern(data, number)
    size = sum(WIDTHS[data]) // 8
    TYPED.run(f"copy {data} {number}", memory, LANE * size, size=2048)
    assert_same(
        f"format {data}, number {number}",
        memory[2048 : 2048 + LANES * size],
        memory[: LANES * size],
    )


def _floats(values: list[float]) -> Array:
    return np.resize(np.array(values, np.float32), LANES).view(np.uint32).astype(np.uint64)


def test_typed_stores_clamp_and_round() -> None:
    memory = np.zeros(LANES, np.uint8)
    data = _floats([0.5, 1.5, -3, 1e9, np.nan, 0.49999, 254.5 / 255, -0.0])
    TYPED.run("store unorm", memory, LANE, size=LANES, data=data)
    assert_same("unorm8", memory[:8], np.array([128, 255, 0, 255, 0, 127, 254, 0], np.uint8))
    halves = np.zeros(LANES, np.uint16)
    values = [1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, 2**-25, -1e-7, 0.1, -2]
    TYPED.run("store half", halves, LANE * 2, size=2 * LANES, data=_floats(values))
    with np.errstate(over="ignore"):
        want = np.array(values, np.float32).astype(np.float16).view(np.uint16)
    assert_same("float16 rounds to nearest even", halves[:8], want)


def test_selectors_and_invalid_format() -> None:
    memory = np.random.default_rng(1).normal(size=4 * LANES).astype(np.float32)
    actual = TYPED.run("select", memory, LANE * 16, size=memory.nbytes)
    texels = memory.reshape(LANES, 4)
    want = np.stack([texels[:, 1], texels[:, 0], np.ones(LANES), np.zeros(LANES)]).astype(
        np.float32
    )
    assert_same("y, x, 1, 0", actual, want.view(np.uint32))
    assert_same(
        "invalid format",
        TYPED.run("invalid", memory, LANE * 0, size=64)[:2],
        np.zeros((2, LANES), np.uint32),
    )
    with pytest.raises(AssertionError, match="reserved buffer format: data format 15"):
        TYPED.run("reserved", memory, LANE * 0, size=64)


def _towards_zero(values: Array) -> Array:
    half = values.astype(np.float16)
    away = np.abs(half.astype(np.float64)) > np.abs(values.astype(np.float64))
    return np.where(away, half.view(np.uint16) - 1, half.view(np.uint16)).astype(np.uint32)


def test_d16_formats() -> None:
    memory = np.random.default_rng(1).normal(size=4 * LANES).astype(np.float32)
    actual = TYPED.run("d16", memory, LANE * 16, size=memory.nbytes)
    x, y, z = (_towards_zero(memory[c::4]) for c in range(3))
    assert_same(
        "32-bit floats lose their low bits", actual[:3], np.stack([x | y << 16, z, x << 16])
    )
    raw = random_bytes(4 * LANES, 2)
    wide = raw.view(np.int8).astype(np.int16).view(np.uint16).astype(np.uint32)
    actual = TYPED.run("d16 ints", raw, LANE * 4, size=raw.nbytes)
    assert_same(
        "integers",
        actual[:2],
        np.stack([wide[0::4] | wide[1::4] << 16, wide[2::4] | wide[3::4] << 16]),
    )
    halves = np.random.default_rng(2).normal(size=2 * LANES).astype(np.float16)
    out = np.zeros(2 * LANES, np.float32)
    data = halves.view(np.uint32).astype(np.uint64)
    TYPED.run("d16 store", out, LANE * 8, size=out.nbytes, data=data)
    assert_same("d16 store", out.view(np.uint32), halves.astype(np.float32).view(np.uint32))
    TYPED.run("d16 hi store", out, LANE * 4, size=out.nbytes, data=data)
    assert_same(
        "d16 hi store", out.view(np.uint32)[:LANES], halves[1::2].astype(np.float32).view(np.uint32)
    )


# ------------------------------------------------------------------------------ loads to LDS

TO_LDS = {
    "ubyte": 4,
    "sbyte": 4,
    "ushort": 4,
    "sshort": 4,
    "dword": 4,
    "dwordx3": 16,
    "dwordx4": 16,
}
DMA_SIZE, M0, IMM = 3000, 0x100, 32


def _dma_case(family: str, kind: str, m0: int) -> Case:
    body = {
        "buffer": f"{_resource()}buffer_load_{kind} {AT} offen offset:{IMM} lds",
        "global": f"global_load_lds_{kind} v10, s[8:9] offset:{IMM}",
        "scratch": f"scratch_load_lds_{kind} v10, off offset:{IMM}",
    }[family]
    # The LDS holds zeros before; then each lane's 64 bytes of it follow the source in memory.
    clear = "s_mov_b64 s[30:31], exec\n s_mov_b64 exec, -1\n v_mov_b32 v36, 0\n v_mov_b32 v37, 0\n"
    clear += "v_lshlrev_b32 v38, 3, v0\n"
    clear += "\n".join(
        f"ds_write_b64 v38, v[36:37] offset:{index}" for index in range(0, LDS_BYTES, 512)
    )
    dump = "s_waitcnt vmcnt(0)\n s_mov_b64 exec, -1\n v_lshlrev_b32 v38, 4, v0\n"
    dump += "s_add_u32 s8, s8, 0x4000\n s_addc_u32 s9, s9, 0\n"
    for index in range(0, LDS_BYTES, 1024):
        dump += f"ds_read_b128 v[40:43], v38 offset:{index}\n s_waitcnt lgkmcnt(0)\n"
        dump += f"global_store_dwordx4 v38, v[40:43], s[8:9] offset:{index}\n"
    dump += "s_sub_u32 s8, s8, 0x4000\n s_subb_u32 s9, s9, 0\n"
    enter = f"{clear}\n s_waitcnt lgkmcnt(0)\n s_mov_b64 exec, s[30:31]\n s_mov_b32 m0, 0x{m0:x}\n"
    return Case(
        f"{family} {kind}", f"{enter}{body}\n{dump}", "scratch" if family == "scratch" else ""
    )


DMA_KINDS = {"gfx950": list(TO_LDS), "gfx942": [kind for kind, step in TO_LDS.items() if step == 4]}
DMA_CASES = {
    arch: [
        (family, kind)
        for family in ("buffer", "global", "scratch")
        for kind in kinds
        if family != "scratch" or TO_LDS[kind] == 4
    ]
    for arch, kinds in DMA_KINDS.items()
}
# gfx942 takes 16 bits of M0, gfx950 18 (all of 0x40100 would lie beyond the allocation).
DMA = {
    "gfx950": Batch([_dma_case(f, k, M0) for f, k in DMA_CASES["gfx950"]], "gfx950"),
    "gfx942": Batch([_dma_case(f, k, 0xABC40000 | M0) for f, k in DMA_CASES["gfx942"]], "gfx942"),
}


@pytest.mark.parametrize(
    ("arch", "family", "kind"),
    [(arch, family, kind) for arch, cases in DMA_CASES.items() for family, kind in cases],
)
def test_load_to_lds(arch: str, family: str, kind: str) -> None:
    load, step = LOADS[kind], TO_LDS[kind]
    rng = np.random.default_rng(step)
    for mask in MASKS:
        memory = np.zeros(0x4000 + LDS_BYTES, np.uint8)
        memory[:0x4000] = random_bytes(0x4000, step)
        offsets = rng.integers(IMM, PRIVATE - 16 if family == "scratch" else 4000, LANES)
        source = offsets + LANE * PRIVATE if family == "scratch" else offsets
        inside = (lambda end: end <= DMA_SIZE) if family == "buffer" else None
        values = loaded(load, memory, source, mask, inside)[: load.dwords]
        want = np.zeros(LDS_BYTES, np.uint8)
        for lane in np.flatnonzero(active(mask)):
            to = M0 + IMM + lane * step
            want[to : to + 4 * load.dwords] = np.ascontiguousarray(values[:, lane]).view(np.uint8)
        DMA[arch].run(f"{family} {kind}", memory, offsets, mask, imm=IMM, size=DMA_SIZE)
        assert_same(f"{arch} {family} {kind} {mask:x}", memory[0x4000:], want)


def test_load_to_lds_beyond_the_allocation_is_dropped() -> None:
    case = _dma_case("global", "dwordx4", LDS_BYTES - 512)
    batch = Batch([case])
    memory = np.zeros(0x4000 + LDS_BYTES, np.uint8)
    memory[:0x4000] = random_bytes(0x4000, 1)
    batch.run(case.name, memory, LANE * 16 + IMM, imm=IMM)
    want = np.zeros(LDS_BYTES, np.uint8)
    room = 512 - IMM
    want[LDS_BYTES - room :] = memory[IMM : IMM + room]
    assert_same("LDS", memory[0x4000:], want)


def test_wide_loads_to_lds_fault_on_gfx942() -> None:
    """clang refuses to assemble them, so the lds bit is set by hand."""
    word = ".long 0xe05d1000, 0x8004000a  ; buffer_load_dwordx4 v10, s[16:19], 0 offen lds"
    batch = Batch([Case("x4", f"{_resource()}{word}")], "gfx942")
    with pytest.raises(AssertionError, match="no lds form of this instruction on gfx942"):
        batch.run("x4", np.zeros(256, np.uint8), LANE * 0, size=256)
