"""The opcode tables as tests see them, and encodings of each row with operands of every kind."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import NamedTuple

from support.vgpu.asm import library

DWORDS = {
    "b64": 2,
    "f64": 2,
    "pk_f32": 2,
    "pk_b32": 2,
    "b96": 3,
    "b128": 4,
    "b192": 6,
    "b256": 8,
    "b512": 16,
    "b1024": 32,
    "-": 0,
}


class Row(NamedTuple):
    format: str
    opcode: int
    name: str
    archs: tuple[str, ...]
    flags: frozenset[str]
    category: str
    flow: str
    effects: frozenset[str]
    dst: str
    operands: tuple[str, ...]  # all three source fields, - where there is none

    @property
    def srcs(self) -> tuple[str, ...]:
        return tuple(src for src in self.operands if src != "-")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - {"-"}


@functools.cache
def rows() -> list[Row]:
    """The opcode tables, a row a line of the library's listing."""
    listing = library().rfops_vgpu_opcodes
    listing.restype = ctypes.c_char_p
    out = []
    for line in listing().decode().splitlines():
        fmt, opcode, name, archs, flags, category, flow, effects, dst, *operands = line.split()
        out.append(
            Row(
                fmt,
                int(opcode),
                name,
                tuple(archs.split(",")),
                _set(flags),
                category,
                flow,
                _set(effects),
                dst,
                tuple(operands),
            )
        )
    return out


def disassemble(arch: str, words: list[int]) -> tuple[str, int]:
    text = ctypes.create_string_buffer(256)
    buffer = (ctypes.c_uint32 * len(words))(*words)
    call = library().rfops_vgpu_disassemble
    size = call(int(arch[3:]), buffer, len(words), text, len(text))
    return text.value.decode(), size


def split(value: int, dwords: int) -> list[int]:
    return [value >> (32 * i) & 0xFFFFFFFF for i in range(dwords)]


# ------------------------------------------------------------ encodings, a function a format

VGPR, LITERAL, SDWA, DPP = 256, 255, 249, 250


def scalar_sources(row: Row) -> Iterator[tuple[list[int], list[int]]]:
    """(source codes, literal dwords): registers, inline constants, a literal."""
    count = len(row.srcs)
    yield [20 + 4 * i for i in range(count)], []
    if row.name.startswith(("s_movrel", "s_setpc", "s_swappc")):  # an SGPR and nothing else
        return
    yield [[129, 193][i % 2] for i in range(count)], []
    yield [106] * count, []
    if count:
        yield [LITERAL, 24][:count], [0x12345678]


def encode_sop1(row: Row) -> Iterator[list[int]]:
    for sources, literal in scalar_sources(row):
        dst = 8 if row.dst != "-" else 0
        yield [0x17D << 23 | dst << 16 | row.opcode << 8 | (sources or [0])[0], *literal]


def encode_sop2(row: Row) -> Iterator[list[int]]:
    for sources, literal in scalar_sources(row):
        yield [2 << 30 | row.opcode << 23 | 8 << 16 | sources[1] << 8 | sources[0], *literal]


def encode_sopc(row: Row) -> Iterator[list[int]]:
    if row.name == "s_set_gpr_idx_on":
        yield [0x17E << 23 | row.opcode << 16 | 9 << 8 | 20]
        return
    for sources, literal in scalar_sources(row):
        yield [0x17E << 23 | row.opcode << 16 | sources[1] << 8 | sources[0], *literal]


def encode_sopk(row: Row) -> Iterator[list[int]]:
    base = 0xB << 28 | row.opcode << 23
    if row.name.startswith(("s_getreg", "s_setreg")):
        code = 1 | 4 << 6 | 3 << 11  # MODE, bits 4 to 7
        literal = [0x3] if "inline_k" in row.flags else []
        yield [base | (0 if literal else 8 << 16) | code, *([0x12345678] if literal else [])]
    else:
        yield [base | 8 << 16 | 0x1234]
        yield [base | 8 << 16 | 0xFFF0]


def encode_sopp(row: Row) -> Iterator[list[int]]:
    bare = "s_endpgm s_wakeup s_barrier s_icache_inv s_ttracedata s_endpgm_saved "
    bare += "s_set_gpr_idx_off"
    immediate = 0 if row.name in bare.split() else 3
    yield [0x17F << 23 | row.opcode << 16 | immediate]


def encode_smem(row: Row) -> Iterator[list[int]]:
    base = 0x30 << 26 | row.opcode << 18
    if not row.srcs:
        yield split(base | (8 << 6 if row.dst != "-" else 0), 2)
        return
    data = 16 << 6
    atomic = "atomic" in row.flags
    if row.name.startswith("s_dcache_discard"):
        data = 0
    # An immediate; an SGPR beside it; an SGPR in the immediate's place.
    for imm, soffset_en, offset, soffset in ((1, 0, 0x40, 0), (1, 1, 0x40, 33), (0, 0, 33, 0)):
        word = base | data | 4 | imm << 17 | soffset_en << 14 | offset << 32 | soffset << 57
        yield split(word, 2)
    if atomic:
        yield split(base | data | 4 | 1 << 17 | 1 << 16 | 0x40 << 32, 2)


def vector_codes(row: Row, choice: int) -> list[int]:
    """Source codes for VOP3: VGPRs, with one SGPR, with inline constants."""
    codes = []
    for i, _ in enumerate(row.srcs):
        codes.append([VGPR + 8 + 4 * i, 20, 129][choice if i == 0 else 0])
    return codes


def encode_vop3(row: Row, opcode: int) -> Iterator[list[int]]:
    base = 0x34 << 26 | opcode << 16 | (0 if row.dst == "-" and row.format != "VOPC" else 4)
    if row.name in ("v_readlane_b32", "v_writelane_b32"):
        source_code = VGPR + 8 if row.name == "v_readlane_b32" else 20
        yield split(base | source_code << 32 | 20 << 41, 2)
        return
    carry_out = 40 << 8 if "carry_out" in row.flags else 0
    mask = 42 << 50 if "carry_in" in row.flags else 0
    scalar_ok = (
        "permlane" not in row.name
        and row.name not in ("v_accvgpr_mov_b32", "v_cvt_pkaccum_u8_f32")
        and "carry_in" not in row.flags
    )
    scalar_ok = scalar_ok and not row.name.startswith("v_div_fmas")  # it reads VCC already
    scalar_ok = scalar_ok and not wide_convert(row)
    for choice in (0, 1, 2) if scalar_ok else (0,):
        word = base | carry_out | mask
        for i, code in enumerate(vector_codes(row, choice)):
            word |= code << (32 + 9 * i)
        yield split(word, 2)


def wide_convert(row: Row) -> bool:
    """Conversions of register tuples take them from VGPRs."""
    return (
        row.name.startswith("v_cvt_")
        and any(DWORDS.get(src, 1) > 1 for src in row.srcs)
        and (row.format == "VOP3")
    )


def encode_vop12c(row: Row) -> Iterator[list[int]]:
    """The 32-bit form, a literal, SDWA and DPP where the types allow them, and VOP3."""
    shape = {
        "VOP1": lambda src: 0x3F << 25 | (6 if row.dst != "-" else 0) << 17 | row.opcode << 9 | src,
        "VOP2": lambda src: row.opcode << 25 | 6 << 17 | 12 << 9 | src,
        "VOPC": lambda src: 0x3E << 25 | row.opcode << 17 | 12 << 9 | src,
    }[row.format]
    if not row.srcs:
        yield [shape(0)]
        return
    if "inline_k" in row.flags:
        yield [shape(VGPR + 8), 0x1234 if "f16" in row.srcs else 0x12345678]
        return
    yield [shape(VGPR + 8)]
    narrow = all(DWORDS.get(t, 1) == 1 for t in (row.dst, *row.srcs) if t != "-")
    plain = "permlane" not in row.name and row.name not in (
        "v_accvgpr_mov_b32",
        "v_swap_b32",
        "v_readfirstlane_b32",
    )
    if plain:
        yield [shape(129)]
        if "carry_in" not in row.flags:  # VCC is the one scalar it may read
            yield [shape(20)]
        if "f64" not in row.srcs and "b64" not in row.srcs and "carry_in" not in row.flags:
            half = any("16" in src for src in row.srcs)
            yield [shape(LITERAL), 0x1234 if half else 0x12345678]
    if plain and narrow and has_lane_forms(row):
        sel = (
            (6 << 8 if row.format != "VOPC" else 0)
            | 5 << 16
            | (6 << 24 if len(row.srcs) > 1 else 0)
        )
        yield [shape(SDWA), 8 | sel]
        if row.format != "VOPC":
            yield [shape(DPP), 8 | 0x101 << 8 | 0xFF << 24]
            yield [shape(DPP), 8 | 0x1B << 8 | 1 << 19 | 0xA5 << 24]
    if "no_vop3" not in row.flags and row.name not in ("v_readfirstlane_b32", "v_accvgpr_mov_b32"):
        offset = {"VOP1": 320, "VOP2": 256, "VOPC": 0}[row.format]
        yield from encode_vop3(row, row.opcode + offset)


def has_lane_forms(row: Row) -> bool:
    """SDWA and DPP exist for 32-bit instructions that are not dot products or carries."""
    excluded = (
        "v_dot v_fmac v_mac_f16 v_pk_fmac v_cndmask v_mov_b64 v_cvt_f32_bf16 v_cvt_pk_f32 "
        "v_cvt_f32_fp8 v_cvt_f32_bf8 v_prng v_sat_pk v_clrexcp v_cvt_norm v_ldexp_f16"
    )
    return not row.name.startswith(tuple(excluded.split())) and not row.flags & {
        "carry_in",
        "carry_out",
    }


def encode_vop3p(row: Row) -> Iterator[list[int]]:
    base = 0x1A7 << 23 | row.opcode << 16
    if "matrix" in row.flags:
        yield from encode_matrix(row, base)
        return
    mixed = "_mix" in row.name
    dot = row.name.startswith("v_dot")
    full = 7  # the third bit is set where there is no third source
    for opsel, opsel_hi in ((0, 0 if mixed else full), (1, full)):
        word = base | 4
        if not dot:
            word |= opsel << 11
        word |= (opsel_hi & 3) << 59 | (opsel_hi >> 2) << 14
        for i, _ in enumerate(row.srcs):
            word |= (VGPR + 8 + 4 * i) << (32 + 9 * i)
        yield split(word, 2)


def encode_matrix(row: Row, base: int) -> Iterator[list[int]]:
    if "accvgpr_read" in row.name:
        yield split(base | 4 | 1 << 14 | (VGPR + 8) << 32 | 3 << 59, 2)
        return
    if "accvgpr_write" in row.name:
        yield split(base | 4 | 1 << 14 | (VGPR + 8) << 32 | 3 << 59, 2)
        return
    sparse = "smfmac" in row.name
    for acc in (0, 1):
        word = base | 64 | acc << 15 | (VGPR + 8) << 32 | (VGPR + 24) << 41
        word |= (VGPR + (40 if sparse else 64)) << 50
        if acc and sparse:
            continue
        yield split(word, 2)


def encode_vop3px2(row: Row) -> Iterator[list[int]]:
    scaled = 1 << 11
    mfma = (
        0x1A7 << 23
        | row.opcode << 16
        | scaled
        | 64
        | (VGPR + 8) << 32
        | (VGPR + 24) << 41
        | (VGPR + 64) << 50
    )
    for opsel, opsel_hi, cbsz, blgp in ((0, 0, 0, 0), (1, 2, 0, 1), (3, 3, 4, 4), (0, 0, 2, 3)):
        scale = (
            0x1A7 << 23
            | 0x2C << 16
            | opsel << 11
            | opsel_hi << 59
            | (VGPR + 44) << 32
            | (VGPR + 45) << 41
        )
        yield split(scale, 2) + split(mfma | cbsz << 8 | blgp << 61, 2)


def encode_ds(row: Row) -> Iterator[list[int]]:
    address, data = row.operands[0] != "-", sum(src != "-" for src in row.operands[1:])
    for acc in (0, 1):
        if acc and row.dst == "-" and not data:
            continue
        word = 0x36 << 26 | row.opcode << 17 | acc << 25 | (0x1234 if "nop" not in row.name else 0)
        word |= 6 << 32 if address else 0
        word |= 8 << 40 if data >= 1 else 0
        word |= 12 << 48 if data >= 2 else 0
        word |= 16 << 56 if row.dst != "-" else 0
        yield split(word, 2)


def encode_flat(row: Row) -> Iterator[list[int]]:
    segment = {"FLAT": 0, "SCRATCH": 1, "GLOBAL": 2}[row.format]
    atomic, lds = "atomic" in row.flags, row.category == "lds_dma"
    data = len(row.srcs) > 1
    base = 0x37 << 26 | row.opcode << 18 | segment << 14
    saddrs = {"FLAT": (0,), "GLOBAL": (0x7F, 10), "SCRATCH": (0x7F, 10)}[row.format]
    for saddr in saddrs:
        for sve in (0, 1) if row.format == "SCRATCH" else (0,):
            if row.format == "SCRATCH" and sve == 0 and saddr == 0x7F and lds:
                continue
            returns = atomic and saddr == saddrs[-1]
            word = base | sve << 13 | 0x14 | (1 << 16 if returns else 0)
            word |= (6 << 32 if row.format != "SCRATCH" or sve else 0) | saddr << 48
            word |= 8 << 40 if data else 0
            if row.dst != "-" and not lds and (not atomic or returns):
                word |= 16 << 56
            yield split(word, 2)


def encode_buffer(row: Row) -> Iterator[list[int]]:
    if row.dst == "-" and not row.srcs:
        yield split(0x38 << 26 | row.opcode << 18 | 1 << 15, 2)
        return
    typed = row.format == "MTBUF"
    base = 0x3A << 26 | row.opcode << 15 if typed else 0x38 << 26 | row.opcode << 18
    if typed:
        base |= (4 | 7 << 4) << 19  # data format 32, number format float
    for offen, idxen in ((0, 0), (1, 0), (0, 1), (1, 1)):
        word = base | 0x14 | offen << 12 | idxen << 13 | (6 << 32 if offen or idxen else 0)
        yield split(word | 8 << 40 | 3 << 48 | 20 << 56, 2)


ENCODERS = {
    "SOP1": encode_sop1, "SOP2": encode_sop2, "SOPC": encode_sopc, "SOPK": encode_sopk,
    "SOPP": encode_sopp, "SMEM": encode_smem, "VOP1": encode_vop12c, "VOP2": encode_vop12c,
    "VOPC": encode_vop12c, "VOP3": lambda row: encode_vop3(row, row.opcode), "VOP3P": encode_vop3p,
    "VOP3PX2": encode_vop3px2, "DS": encode_ds, "FLAT": encode_flat, "GLOBAL": encode_flat,
    "SCRATCH": encode_flat, "MUBUF": encode_buffer, "MTBUF": encode_buffer,
}  # fmt: skip
