"""Inline constants of every vector operand against clang's encoding, and the parts of a register
that every SDWA form writes.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest

from support.vgpu import constants
from support.vgpu.asm import LANES, Snippets
from support.vgpu.cases import ARCHS
from support.vgpu.opcodes import Row, rows

KINDS = {"gfx942": {"f16", "f32", "f64", "i16"}, "gfx950": {"f16", "bf16", "f32", "f64", "i16"}}


def _all_equal(arch: str, integers: list[int]) -> None:
    selected = constants.cases(arch, integers)
    kinds = collections.Counter(case.operand.kind for case in selected)
    assert set(kinds) == KINDS[arch] and len(selected) > 12000, kinds
    off = constants.differing(selected, arch)
    shown = {(case.operand.row.name, case.operand.which): case for case, _ in reversed(off)}
    text = "\n".join(constants.explain(case, arch) for case in list(shown.values())[:8])
    assert not off, f"{arch}: {len(off)} of {len(selected)} cases, {len(shown)} operands\n{text}"


@pytest.mark.parametrize("arch", ARCHS)
def test_constants_are_what_clang_encodes(arch: str) -> None:
    _all_equal(arch, [-16, -1, 1, 64])


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ARCHS)
def test_all_constants_are_what_clang_encodes(arch: str) -> None:
    _all_equal(arch, list(constants.INTEGERS))


def _half_pair(low: float, high: float) -> int:
    low_bits, high_bits = np.array([low, high], np.float16).view(np.uint16)
    return int(low_bits) | int(high_bits) << 16


ONES = "v_mov_b32 v8, 3\nv_mov_b32 v9, 5\nv_mov_b32 v10, 1.0\nv_mov_b32 v12, 1.0\n"
PAIR = "v_mov_b32 v8, 0x00050003\n"
FIXED = {  # the values by hand: text, v20 (and v21)
    "v_pk_add_u16 v20, v8, 0.5 op_sel_hi:[1,1]": (PAIR, 0x3F050003),
    "v_pk_add_u16 v20, v8, 0.5 op_sel:[0,1] op_sel_hi:[1,1]": (PAIR, 0x3F053F03),
    "v_pk_add_u16 v20, v8, 0.5 op_sel_hi:[1,0]": (PAIR, 0x00050003),
    "v_pk_max_i16 v20, v8, -4.0": (PAIR, 0x00050003),
    "v_pk_min_i16 v20, v8, -4.0": (PAIR, 0xC0800000),
    "v_pk_mul_lo_u16 v20, v8, -1": (PAIR, 0xFFFBFFFD),
    "v_pk_add_f16 v20, 0, 0.5 op_sel_hi:[1,0]": ("", _half_pair(0.5, 0.5)),
    "v_pk_add_f16 v20, 0, 0.5": ("", _half_pair(0.5, 0)),
    "v_dot2c_i32_i16_e32 v20, 0.5, v8": (PAIR, 5 * 0x3F00),
    "v_dot2_i32_i16 v20, v8, 0.5, 0": (PAIR, 5 * 0x3F00),
    "v_add_u16 v20, 0.5, v8": (ONES, 3),
    "v_mad_u16 v20, v8, 0.5, v9": (ONES, 5),
    "v_cvt_f16_u16 v20, 0.5": (ONES, 0),
    "v_max_u16 v20, 0.15915494309189532, v8": (ONES, 0xF983),
    "v_ldexp_f16 v20, 1.0, 1": (ONES, 0x4000),
    "v_fma_mixlo_f16 v20, 0, 1.0, 63 op_sel_hi:[0,0,1]": (ONES, 63),
    "v_fma_mix_f32 v20, 1.0, 64, 0 op_sel_hi:[0,1,0]": (ONES, 0x36800000),
    "v_fma_mix_f32 v20, 1.0, 0.5, 0 op_sel_hi:[0,1,0]": (ONES, 0x3F000000),
    "v_fma_mix_f32 v20, 1.0, 0.5, 0": (ONES, 0x3F000000),
}
FIXED950 = {
    "v_cvt_scalef32_pk_fp8_f16 v20, 0.5, v10": (ONES, 0x30),
    "v_cvt_scalef32_pk_fp8_bf16 v20, 0.5, v10": (ONES, 0x30),
    "v_cvt_scalef32_pk_bf8_f16 v20, 0.5, v10": (ONES, 0x38),
    "v_cvt_scalef32_pk_fp4_f16 v20, 2.0, v10": (ONES, 0x4),
    "v_cvt_scalef32_pk_fp4_bf16 v20, 2.0, v10": (ONES, 0x4),
    "v_cvt_scalef32_sr_pk_fp4_f16 v20, 0.5, v10, v12": (ONES, 0x1),
    "v_cvt_scalef32_sr_pk_fp4_bf16 v20, 0.5, v10, v12": (ONES, 0x1),
}
_PATTERNS = {  # 1 / (2 pi) as C of v_mfma_f64: an f64, not a widened f32
    "v_mfma_f64_16x16x4_f64 v[20:27], v[10:11], v[14:15], 0.15915494309189532": 0x3FC45F306DC9C882,
    "v_mfma_f64_4x4x4_4b_f64 v[20:21], v[10:11], v[14:15], -4.0": 0xC010000000000000,
}


@pytest.mark.parametrize("arch", ARCHS)
def test_constants_by_hand(arch: str) -> None:
    table = FIXED | (FIXED950 if arch == "gfx950" else {})
    batch = Snippets([f"{setup}{text}\n" for text, (setup, _) in table.items()], arch)
    for n, (text, (_, want)) in enumerate(table.items()):
        actual = batch.run(n, np.zeros((LANES, 4), np.uint64))[:, 0]
        assert (actual == want).all(), f"{text}: got {actual[0]:#x}, want {want:#x}"


@pytest.mark.parametrize("arch", ARCHS)
def test_double_constants_of_matrix_instructions(arch: str) -> None:
    batch = Snippets([f"{text}\ns_nop 15\n" for text in _PATTERNS], arch)
    for n, (text, want) in enumerate(_PATTERNS.items()):
        actual = batch.run(n, np.zeros((LANES, 4), np.uint64))[:, :2].copy().view(np.uint64)
        assert (actual == want).all(), f"{text}: got {int(actual[0, 0]):#x}, want {want:#x}"


# ------------------------------------------------------------------------------ SDWA

SELECTS = {"BYTE_0": (0, 8), "BYTE_2": (16, 8), "WORD_1": (16, 16)}
OLD = 0x11223344


def _operands(row: Row) -> str:
    carry_out, carry_in = (["vcc"] * (flag in row.flags) for flag in ("carry_out", "carry_in"))
    return ", ".join(["v20", *carry_out, *["v8", "v10"][: len(row.srcs)], *carry_in])


def _sdwa_text(row: Row, select: str) -> str:
    selects = " ".join(f"src{i}_sel:DWORD" for i in range(len(row.srcs)))
    parts = f"dst_sel:{select} dst_unused:UNUSED_PRESERVE {selects}"
    return f"{row.name}_sdwa {_operands(row)} {parts}"


@pytest.mark.parametrize("arch", ARCHS)
def test_every_sdwa_form_writes_its_part_alone(arch: str) -> None:
    """The selected part is the low part of the plain result; the rest is what it was."""
    tried = [
        row
        for row in rows()
        if arch in row.archs
        and row.format.upper() in ("VOP1", "VOP2")
        and row.srcs
        and row.dst != "-"
        and "inline_k" not in row.flags
    ]
    taken = constants.encodings([_sdwa_text(row, "WORD_1") for row in tried], arch)
    tried = [row for row, code in zip(tried, taken, strict=True) if code is not None]
    assert len(tried) > 90, len(tried)
    setup = f"v_mov_b32 v20, {OLD:#x}\ns_mov_b64 vcc, 0x1234\ns_nop 4\n"
    texts = []
    for row in tried:
        texts += [f"{row.name}_e32 {_operands(row)}"]
        texts += [_sdwa_text(row, select) for select in SELECTS]
    batch, lanes = Snippets([f"{setup}{text}\n" for text in texts], arch), constants.inputs()
    step = 1 + len(SELECTS)
    for n, row in enumerate(tried):
        plain = batch.run(step * n, lanes)[:, 0]
        for k, (select, (shift, width)) in enumerate(SELECTS.items()):
            mask = np.uint32(((1 << width) - 1) << shift)
            want = (plain << np.uint32(shift)) & mask | np.uint32(OLD) & ~mask
            actual = batch.run(step * n + 1 + k, lanes)[:, 0]
            lane = int(np.argmax(actual != want))
            assert (actual == want).all(), (
                f"{_sdwa_text(row, select)}: lane {lane} "
                f"got {actual[lane]:#x}, want {want[lane]:#x}"
            )
