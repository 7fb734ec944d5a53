"""Loads and stores of every address family of the virtual GPU against a byte-wise model."""

from __future__ import annotations

from typing import NamedTuple

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

RESOURCE = "s_mov_b64 s[16:17], s[8:9]\n s_mov_b32 s18, s10\n s_mov_b32 s19, 0\n"
DS_LOADS = {
    "ubyte": "u8",
    "sbyte": "i8",
    "ushort": "u16",
    "sshort": "i16",
    "dword": "b32",
    "dwordx2": "b64",
    "dwordx3": "b96",
    "dwordx4": "b128",
    "ubyte_d16": "u8_d16",
    "ubyte_d16_hi": "u8_d16_hi",
    "sbyte_d16": "i8_d16",
    "sbyte_d16_hi": "i8_d16_hi",
    "short_d16": "u16_d16",
    "short_d16_hi": "u16_d16_hi",
}
DS_STORES = {
    "byte": "b8",
    "byte_d16_hi": "b8_d16_hi",
    "short": "b16",
    "short_d16_hi": "b16_d16_hi",
    "dword": "b32",
    "dwordx2": "b64",
    "dwordx3": "b96",
    "dwordx4": "b128",
}


class AccessForm(NamedTuple):
    """How a family writes an access: `{kind}`, `{reg}` and the immediate offset `imm`."""

    load: str
    store: str
    imm: int
    local: str = ""
    before: str = ""


FAMILIES = {
    "flat": AccessForm("flat_load_{kind} {reg}, v[8:9] offset:8",
                       "flat_store_{kind} v[8:9], {reg} offset:8", 8),
    "global": AccessForm("global_load_{kind} {reg}, v[8:9], off offset:-16",
                         "global_store_{kind} v[8:9], {reg}, off offset:-16", -16),
    "global_saddr": AccessForm("global_load_{kind} {reg}, v10, s[8:9] offset:100",
                               "global_store_{kind} v10, {reg}, s[8:9] offset:100", 100),
    "buffer": AccessForm("buffer_load_{kind} {reg}, v10, s[16:19], 0 offen offset:20",
                         "buffer_store_{kind} {reg}, v10, s[16:19], 0 offen offset:20", 20,
                         before=RESOURCE),
    "ds": AccessForm("ds_read_{kind} {reg}, v10 offset:8",
                     "ds_write_{kind} v10, {reg} offset:8", 8, "ds"),
    "scratch": AccessForm("scratch_load_{kind} {reg}, v10, off offset:4",
                          "scratch_store_{kind} v10, {reg}, off offset:4", 4, "scratch"),
    "scratch_both": AccessForm("scratch_load_{kind} {reg}, v10, s16 offset:-8",
                               "scratch_store_{kind} v10, {reg}, s16 offset:-8", 4, "scratch",
                               "s_mov_b32 s16, 12\n"),
    "scratch_saddr": AccessForm("scratch_load_{kind} {reg}, off, s16 offset:4",
                                "scratch_store_{kind} off, {reg}, s16 offset:4", 4, "scratch",
                                "v_readfirstlane_b32 s16, v10\n"),
}  # fmt: skip


def _reg(first: int, dwords: int, letter: str = "v") -> str:
    return f"{letter}{first}" if dwords == 1 else f"{letter}[{first}:{first + dwords - 1}]"


def _load_body(name: str, kind: str, acc: bool) -> str:
    family = FAMILIES[name]
    dwords = LOADS[kind].dwords
    mnemonic = DS_LOADS[kind] if name == "ds" else kind
    text = family.load.format(
        kind=mnemonic, reg=_reg(0 if acc else 20, dwords, "a" if acc else "v")
    )
    if not acc:
        return family.before + text
    into = "\n".join(f"v_accvgpr_write_b32 a{d}, v{20 + d}" for d in range(4))
    out = "\n".join(f"v_accvgpr_read_b32 v{20 + d}, a{d}" for d in range(4))
    return f"{family.before}{into}\n{text}\ns_waitcnt vmcnt(0) lgkmcnt(0)\n{out}"


def _store_body(name: str, kind: str, acc: bool) -> str:
    family = FAMILIES[name]
    dwords = STORES[kind].dwords
    mnemonic = DS_STORES[kind] if name == "ds" else kind
    text = family.store.format(
        kind=mnemonic, reg=_reg(0 if acc else 24, dwords, "a" if acc else "v")
    )
    into = "\n".join(f"v_accvgpr_write_b32 a{d}, v{24 + d}" for d in range(4)) if acc else ""
    return f"{family.before}{into}\n{text}"


ACC_KINDS = ("dword", "dwordx4")
BATCH = Batch(
    [
        Case(f"{f} load {k} {a}", _load_body(f, k, a), FAMILIES[f].local)
        for f in FAMILIES
        for k in LOADS
        for a in (False, True)
        if not a or k in ACC_KINDS
    ]
    + [
        Case(f"{f} store {k} {a}", _store_body(f, k, a), FAMILIES[f].local)
        for f in FAMILIES
        for k in STORES
        for a in (False, True)
        if not a or k in ACC_KINDS
    ]
)


def _memory(family: str, seed: int) -> Array:
    return random_bytes(LANES * PRIVATE if FAMILIES[family].local == "scratch" else LDS_BYTES, seed)


def _patterns(family: str, size: int, disjoint: bool) -> list[Array]:
    """Offsets of the lanes: side by side, scattered (unaligned), all the same."""
    rng = np.random.default_rng(size)
    if family == "scratch_saddr":  # one offset for all lanes
        return [np.full(LANES, offset) for offset in (16, 33, PRIVATE - size)]
    if FAMILIES[family].local == "scratch":
        return [np.full(LANES, 32), rng.integers(4, PRIVATE - size, LANES), LANE % 8 * 16 + 4]
    scattered = rng.permutation(LANES * 3) * 20 + 103
    patterns = [LANE * size + 128, scattered[:LANES], (LANES - 1 - LANE) * size + 129]
    return patterns if disjoint else [*patterns, np.full(LANES, 777)]


def _whole(family: str, offsets: Array) -> Array:
    """Offsets into the model's memory: private memory has a piece a lane."""
    return offsets + LANE * PRIVATE if FAMILIES[family].local == "scratch" else offsets


@pytest.mark.parametrize("kind", LOADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_load(family: str, kind: str) -> None:
    load, imm = LOADS[kind], FAMILIES[family].imm
    for acc in (False, True) if kind in ACC_KINDS else (False,):
        for p, offsets in enumerate(_patterns(family, load.bytes, disjoint=False)):
            for mask in MASKS:
                memory = _memory(family, p)
                previous = memory.copy()
                actual = BATCH.run(
                    f"{family} load {kind} {acc}", memory, offsets, mask, imm=imm, size=len(memory)
                )
                want = loaded(load, memory, _whole(family, offsets), mask)
                assert_same(f"{family} {kind} pattern {p} mask {mask:x} acc {acc}", actual, want)
                assert_same("a load leaves memory alone", memory, previous)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("family", FAMILIES)
def test_store(family: str, kind: str) -> None:
    store, imm = STORES[kind], FAMILIES[family].imm
    for acc in (False, True) if kind in ACC_KINDS else (False,):
        for p, offsets in enumerate(_patterns(family, store.bytes, disjoint=True)):
            for mask in MASKS:
                memory, data = _memory(family, p), random_data(p)
                want = stored(store, memory, _whole(family, offsets), data_dwords(data), mask)
                BATCH.run(
                    f"{family} store {kind} {acc}",
                    memory,
                    offsets,
                    mask,
                    imm=imm,
                    size=len(memory),
                    data=data,
                )
                assert_same(f"{family} {kind} pattern {p} mask {mask:x} acc {acc}", memory, want)


# ------------------------------------------------------------------------------ FLAT apertures

# Lane i accesses global memory, LDS or private memory (i % 3), each at its own offset.
_APERTURES = """
  s_mov_b64 s[16:17], src_shared_base
  s_mov_b64 s[18:19], src_private_base
  v_mov_b32 v36, 0x55555556
  v_mul_hi_u32 v36, v0, v36
  v_lshl_add_u32 v36, v36, 1, v36
  v_sub_u32 v36, v0, v36
  v_mov_b32 v37, s17
  v_mov_b32 v38, s19
  v_cmp_eq_u32 vcc, 1, v36
  v_cndmask_b32 v8, v8, v10, vcc
  v_cndmask_b32 v9, v9, v37, vcc
  v_cmp_eq_u32 vcc, 2, v36
  v_cndmask_b32 v8, v8, v10, vcc
  v_cndmask_b32 v9, v9, v38, vcc
"""
_FILL = """
  v_lshlrev_b32 v39, 4, v0
  ds_write_b128 v39, v[24:27]
  ds_write_b128 v39, v[24:27] offset:1024
"""
_FILL_PRIVATE = "\n".join(
    f"scratch_store_dwordx4 off, v[24:27], off offset:{at}" for at in range(0, PRIVATE, 16)
)
_FLAT = Batch([
    Case("load", _FILL + _FILL_PRIVATE + _APERTURES
         + "s_waitcnt vmcnt(0) lgkmcnt(0)\n flat_load_dwordx3 v[20:22], v[8:9]"),
    Case("store", _FILL + _FILL_PRIVATE + _APERTURES
         + "v_mov_b32 v32, v27\n v_mov_b32 v33, v26\n v_mov_b32 v34, v25\n"
         + "s_waitcnt vmcnt(0) lgkmcnt(0)\n flat_store_dwordx3 v[8:9], v[32:34]\n"
         + "s_waitcnt vmcnt(0) lgkmcnt(0)\n flat_load_dwordx4 v[20:23], v[8:9]"),
    Case("beyond LDS", """
  s_mov_b64 s[16:17], src_shared_base
  v_mov_b32 v9, s17
  v_mov_b32 v8, v10
  flat_store_dword v[8:9], v24
  s_waitcnt vmcnt(0) lgkmcnt(0)
  flat_load_dword v20, v[8:9]"""),
])  # fmt: skip


def _aperture_bytes(memory: Array, data: Array, offsets: Array, lane: int) -> Array:
    """The bytes a lane sees: global memory, LDS (16 bytes of each lane, twice), its own memory."""
    dwords = data_dwords(data)
    space = lane % 3
    if space == 0:
        return memory[offsets[lane] :]
    if space == 1:
        return np.tile(dwords.T.reshape(-1), 2).view(np.uint8)[offsets[lane] :]
    return np.tile(dwords[:, lane], PRIVATE // 16).view(np.uint8)[offsets[lane] :]


def test_flat_follows_the_apertures() -> None:
    memory, data = random_bytes(LDS_BYTES, 1), random_data(2)
    offsets = np.random.default_rng(3).integers(0, PRIVATE - 16, LANES)
    actual = _FLAT.run("load", memory, offsets, data=data)
    want = np.full((4, LANES), OLD, np.uint32)
    for lane in range(LANES):
        want[:3, lane] = _aperture_bytes(memory, data, offsets, lane)[:12].copy().view(np.uint32)
    assert_same("flat_load_dwordx3", actual, want)


def test_flat_stores_to_every_aperture() -> None:
    memory, data = random_bytes(LDS_BYTES, 1), random_data(2)
    offsets = (
        LANE * 8 % (PRIVATE - 32) // 16 * 16 + LANE // 24 * 512
    )  # aligned pieces, apart in LDS
    offsets = np.where(LANE % 3 == 2, offsets % (PRIVATE - 32), LANE * 16)
    previous = memory.copy()
    actual = _FLAT.run("store", memory, offsets, data=data)
    dwords = data_dwords(data)
    for lane in range(LANES):
        seen = _aperture_bytes(previous, data, offsets, lane)
        want = np.concatenate([dwords[:0:-1, lane], seen[12:16].copy().view(np.uint32)])
        assert_same(f"lane {lane}", actual[:, lane], want)


def test_flat_beyond_lds_reads_zero() -> None:
    memory = np.zeros(LDS_BYTES, np.uint8)
    offsets = np.where(LANE % 2, LDS_BYTES - 4 - LANE * 8, LDS_BYTES - 3 + LANE)
    actual = _FLAT.run("beyond LDS", memory, offsets, data=random_data(5))
    want = np.where(LANE % 2, data_dwords(random_data(5))[0], 0).astype(np.uint32)
    assert_same("flat_load_dword", actual[0], want)


# ------------------------------------------------------------------------------ faults

_FAULTS = Batch([
    Case("stack", "scratch_load_dword v20, v10, off", "scratch"),
    Case("stack below zero", "scratch_load_dword v20, v10, off offset:8", "scratch"),
    Case("stack base below zero",
         "s_mov_b32 s16, -8\n scratch_load_dword v20, v10, s16", "scratch"),
    Case("stack offset below zero", "scratch_load_dword v20, v10, off offset:-4", "scratch"),
    Case("flat stack", "s_mov_b64 s[18:19], src_private_base\n v_mov_b32 v9, s19\n"
         "v_mov_b32 v8, v10\n flat_load_dword v20, v[8:9]", "scratch"),
    Case("global", "v_mov_b32 v16, v10\n v_mov_b32 v17, 0\n global_load_dword v20, v[16:17], off"),
    Case("scalar", "s_mov_b64 s[16:17], 0\n s_load_dword s18, s[16:17], 0x10"),
    Case("buffer", "s_mov_b64 s[16:17], 0\n s_mov_b32 s18, -1\n s_mov_b32 s19, 0\n"
         "buffer_load_dword v20, v10, s[16:19], 0 offen"),
    Case("atomic", "global_atomic_add v10, v24, s[8:9]"),
    Case("ds atomic", "ds_add_u32 v10, v24"),
    Case("gws", "ds_nop\n ds_gws_barrier v24 offset:0 gds"),
    Case("scalar scratch", "s_scratch_load_dword s18, s[8:9], 0x0"),
])  # fmt: skip


@pytest.mark.parametrize(
    ("case", "lane5", "text"),
    [
        ("stack", PRIVATE - 3, r"stack overflow: lane 5 accesses 4 bytes at 0xfd of its 256 bytes"),
        ("stack", 0xFFFFFFF0, r"stack overflow: lane 5 .* at 0xfffffff0"),
        # LLVM (isFlatScratchBaseLegal) keeps bases below zero out of the registers: no sum wraps.
        ("stack below zero", 0xFFFFFFFC, r"stack overflow: lane 5 .* at 0x100000004 of its 256"),
        ("stack base below zero", 12, r"stack overflow: lane 0 .* at 0xfffffff8 of its 256"),
        ("stack offset below zero", 0, r"stack overflow: lane 0 .* at 0xfffffffffffffffc"),
        ("flat stack", PRIVATE, r"flat_load_dword.*stack overflow: lane 5 .* at 0x100 of its 256"),
        ("global", 16, r"global_load_dword.*lane 0 accesses address 0x0, which is invalid"),
        ("scalar", 0, r"s_load_dword.*address 0x10, which is invalid"),
        ("buffer", 64, r"buffer_load_dword.*lane 0 accesses address 0x0"),
        ("atomic", 2, r"global_atomic_add.*misaligned atomic: lane 5"),
        ("ds atomic", 6, r"ds_add_u32.*misaligned atomic: lane 5, address 0x6"),
        ("gws", 0, r"ds_gws_barrier.*global wave sync"),
        ("scalar scratch", 0, r"s_scratch_load_dword.*not implemented"),
    ],
)
def test_fault_names_instruction_and_lane(case: str, lane5: int, text: str) -> None:
    memory = np.zeros(LANES * PRIVATE, np.uint8)
    offsets = np.where(LANE == 5, lane5, 0)
    with pytest.raises(AssertionError, match=text):
        _FAULTS.run(case, memory, offsets)


def test_an_inactive_lane_faults_nothing() -> None:
    memory = np.zeros(LANES * PRIVATE, np.uint8)
    actual = _FAULTS.run("stack", memory, np.where(LANE == 5, 1 << 20, 0), FULL & ~(1 << 5))
    assert_same("scratch_load_dword", actual[0], np.where(active(1 << 5), OLD, 0).astype(np.uint32))


# ------------------------------------------------------------------------------ SMEM


def _smem_cases() -> list[Case]:
    out = []
    enter = RESOURCE + "s_mov_b32 s11, 40\n s_mov_b32 s19, 0\n"
    for n in (1, 2, 4, 8, 16):
        suffix = "" if n == 1 else f"x{n}"
        data = "s32" if n == 1 else f"s[32:{31 + n}]"
        show = "\n".join(f"v_writelane_b32 v20, s{32 + i}, {i}" for i in range(n))
        for form in ("0x10", "-0x10", "s11", "s11 offset:0x8", "0x13"):
            out.append(
                Case(
                    f"load {n} {form}",
                    f"{enter}s_add_u32 s8, s8, 64\n s_addc_u32 s9, s9, 0\n"
                    f"s_load_dword{suffix} {data}, s[8:9], {form}\n s_waitcnt lgkmcnt(0)\n{show}",
                )
            )
        out.append(
            Case(
                f"buffer {n}",
                f"{enter}v_readfirstlane_b32 s11, v10\n"
                f"s_buffer_load_dword{suffix} {data}, s[16:19], s11 offset:0x8\n"
                f"s_waitcnt lgkmcnt(0)\n{show}",
            )
        )
    for n in (1, 2, 4):
        suffix = "" if n == 1 else f"x{n}"
        data = "s32" if n == 1 else f"s[32:{31 + n}]"
        fill = "\n".join(f"v_readfirstlane_b32 s{32 + i}, v{24 + i}" for i in range(4))
        out.append(
            Case(f"store {n}", f"{enter}{fill}\n s_store_dword{suffix} {data}, s[8:9], 0x20")
        )
        out.append(
            Case(
                f"buffer store {n}",
                f"{enter}{fill}\n s_buffer_store_dword{suffix} {data}, s[16:19], 0x20",
            )
        )
    return out


SMEM = Batch(
    [
        *_smem_cases(),
        Case(
            "clocks",
            "s_memtime s[32:33]\n s_memrealtime s[34:35]\n s_dcache_inv\n s_dcache_wb\n"
            "s_waitcnt lgkmcnt(0)\n s_memtime s[36:37]\n s_waitcnt lgkmcnt(0)\n"
            "s_sub_u32 s36, s36, s32\n s_subb_u32 s37, s37, s33\n"
            "v_mov_b32 v20, s36\n v_mov_b32 v21, s37\n v_mov_b32 v22, s34\n v_mov_b32 v23, s35",
        ),
    ]
)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    ("form", "offset"),
    [("0x10", 80), ("-0x10", 48), ("s11", 104), ("s11 offset:0x8", 112), ("0x13", 80)],
)
def test_scalar_load(n: int, form: str, offset: int) -> None:
    memory = random_bytes(1024, n)
    actual = SMEM.run(f"load {n} {form}", memory, np.zeros(LANES))[0]
    assert_same(
        f"s_load_dwordx{n} {form}", actual[:n], memory[offset : offset + 4 * n].view(np.uint32)
    )


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_scalar_buffer_load_is_range_checked(n: int) -> None:
    memory = random_bytes(1024, n)
    for offset in (0, 64, 100, 116, 120, 124, 400):
        actual = SMEM.run(f"buffer {n}", memory, np.full(LANES, offset), size=128)[0]
        dwords = [
            int(memory[o : o + 4].view(np.uint32)[0]) if o + 4 <= 128 else 0
            for o in range(offset + 8, offset + 8 + 4 * n, 4)
        ]
        assert_same(f"s_buffer_load x{n} at {offset}", actual[:n], np.array(dwords, np.uint32))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_scalar_stores(n: int) -> None:
    memory, data = random_bytes(256, n), random_data(n)
    raw = data_dwords(data)[:n, 0].copy().view(np.uint8)
    want = memory.copy()
    want[32 : 32 + 4 * n] = raw
    cut = memory.copy()
    cut[32:40] = want[32:40]
    buffered = memory.copy()
    SMEM.run(f"store {n}", memory, np.zeros(LANES), data=data)
    assert_same("s_store", memory, want)
    SMEM.run(f"buffer store {n}", buffered, np.zeros(LANES), size=40, data=data)
    assert_same("s_buffer_store, dwords beyond 40 bytes dropped", buffered, cut if n > 1 else want)


def test_clocks_run_forward() -> None:
    low, high, real_low, real_high = (
        int(x) for x in SMEM.run("clocks", random_bytes(64, 0), np.zeros(LANES))[:, 0]
    )
    assert 0 <= low | high << 32 < 60 * 10**9
    assert real_low | real_high << 32 > 0
