"""What the opcode tables say of each opcode, against what it does.

Effects: every scalar and vector opcode runs from a state in which SCC, VCC, EXEC or M0 is another;
what changes is what it writes, what then comes out different is what it reads. Flow: an instruction
is skipped, or not, or the wave has ended. Categories: by mnemonic, as AMD's manuals group them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from rfops.jit import paths
from support.vgpu.asm import LANES, Snippets
from support.vgpu.opcodes import ENCODERS, Row, disassemble, rows

ARCHS = ("gfx942", "gfx950")
STATES = ("scc", "vcc", "exec", "m0")
GROUPS, VARIANTS = 6, 5  # of waves: other values; variant 0, then one with another of each STATES
SCALAR = ("SOP1", "SOP2", "SOPC", "SOPK")
VECTOR = ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P", "VOP3PX2")
WITHOUT = r"s_setvskip|v_cmpx?_(f|t|tru)_\w+"  # shows nothing behind it; compares nothing
# What only hardware reads: a message's payload, a trace's word.
UNSEEN = {("s_sendmsg", "m0"), ("s_ttracedata", "m0")}

# s51: the variant. Sources are s20 to s29 and v8 to v15, destinations hold something.
SET_UP = """
  s_mov_b64 s[80:81], s[6:7]
  s_mul_i32 s50, s2, 0xcccd
  s_lshr_b32 s50, s50, 18
  s_mul_i32 s51, s50, 5
  s_sub_u32 s51, s2, s51
  v_readfirstlane_b32 s20, v8
  v_readfirstlane_b32 s21, v9
  v_readfirstlane_b32 s22, v10
  v_readfirstlane_b32 s23, v11
  v_readfirstlane_b32 s24, v12
  v_readfirstlane_b32 s25, v13
  v_readfirstlane_b32 s8, v14
  v_readfirstlane_b32 s9, v15
  s_mov_b64 s[10:11], s[22:23]
  s_mov_b64 s[40:41], s[24:25]
  s_mov_b64 s[42:43], s[20:21]
  v_mov_b32 v4, v13
  v_mov_b32 v5, v14
  v_mov_b32 v6, v11
  v_mov_b32 v7, v9
  v_mov_b32 v16, v8
  v_mov_b32 v17, v10
  v_accvgpr_write_b32 a4, v12
  v_accvgpr_write_b32 a6, v15
  s_cmp_eq_u32 s51, 4
  s_cselect_b32 s52, 1, 0
  s_or_b32 s52, s52, 0x5002
  s_mov_b32 m0, s52
  s_cmp_eq_u32 s51, 2
  s_cselect_b64 s[54:55], -1, 0
  s_xor_b64 vcc, s[20:21], s[54:55]
  s_mov_b32 s56, 0xffff0000
  s_mov_b32 s57, s56
  s_cmp_eq_u32 s51, 3
  s_cselect_b64 s[58:59], s[56:57], -1
  s_cmp_eq_u32 s51, 1
  s_cselect_b32 s53, 1, 0
  s_xor_b32 s53, s53, s50
  s_and_b32 s53, s53, 1
  s_mov_b64 s[60:61], vcc
  s_cmp_lg_u32 s53, 0
  s_mov_b64 exec, s[58:59]
"""
# A row of v20 a register: the state before and behind, then results.
SCALARS = (
    "s53 s60 s61 s58 s59 s52 s66 s68 s69 s70 s71 s72 s8 s9 s10 s11 s40 s41 s4 s5 s64"
).split()
BEFORE = {"scc": [0], "vcc": [1, 2], "exec": [3, 4], "m0": [5]}
BEHIND = {"scc": [6], "vcc": [7, 8], "exec": [9, 10], "m0": [11]}
SHOW = (
    "  s_cselect_b32 s66, 1, 0\n  s_mov_b64 s[68:69], vcc\n  s_mov_b64 s[70:71], exec\n"
    "  s_mov_b32 s72, m0\n  s_mov_b64 exec, -1\n  s_set_gpr_idx_off\n"
    "  s_mov_b32 s64, s6\n  s_mov_b64 s[6:7], s[80:81]\n"
    "  v_mov_b32 v20, 0\n  v_mov_b32 v21, v4\n  v_mov_b32 v22, v6\n"
    "  v_accvgpr_read_b32 v24, a4\n  v_accvgpr_read_b32 v25, a6\n"
    "  v_xor_b32 v24, v24, v25\n  v_xor_b32 v23, v16, v24\n"
) + "".join(f"  v_writelane_b32 v20, {reg}, {lane}\n" for lane, reg in enumerate(SCALARS))


def code(words: list[int]) -> str:
    return "  .long " + ", ".join(hex(word) for word in words) + "\n"


def encoding(row: Row) -> list[int]:
    """With VGPRs, or s20 and s24, as sources; a matrix instruction writes v16."""
    words = next(iter(ENCODERS[row.format](row)))
    if "mfma" in row.category:
        words[-2] = words[-2] & ~0xFF | 16
    if row.format == "SOPP":
        words[0] &= ~0xFFFF
    return words


def observed(arch: str, selected: list[Row]) -> Iterator[tuple[Row, np.ndarray]]:
    """[GROUPS, VARIANTS, lanes, 4] of each opcode."""
    rng = np.random.default_rng(7)
    inputs = rng.integers(0, 1 << 64, (GROUPS, 1, LANES, 4), dtype=np.uint64)
    inputs[:2] &= np.uint64(0x4FFFFFFF4FFFFFFF)  # some floats of a middling size
    inputs[1] = (inputs[1] & np.uint64(0xFFFFFF00FFFFFF)) | np.uint64(0x3F0000003F000000)
    inputs[2, :, :, :2] = inputs[2, :, :, 2:]  # equal sources
    inputs[3] |= np.uint64(0x7FFFFFFF7FFF7FFF)  # no numbers
    waves = np.broadcast_to(inputs, (GROUPS, VARIANTS, LANES, 4)).reshape(-1, 4)
    for start in range(0, len(selected), 400):
        part = selected[start : start + 400]
        snippets = Snippets([SET_UP + code(encoding(row)) + SHOW for row in part], arch)
        for i, row in enumerate(part):
            yield row, snippets.run(i, waves).reshape(GROUPS, VARIANTS, LANES, 4)


def written(out: np.ndarray) -> set[str]:
    return {
        state
        for state in STATES
        if (out[:, :, BEFORE[state], 0] != out[:, :, BEHIND[state], 0]).any()
    }


def read(out: np.ndarray) -> set[str]:
    """States whose other value makes anything else come out different."""
    results = set()
    for variant, state in enumerate(STATES, 1):
        kept = [lane for lane in range(LANES) if lane not in BEFORE[state] + BEHIND[state]]
        a, b = out[:, 0], out[:, variant]
        results |= {state} if (a[:, kept, 0] != b[:, kept, 0]).any() else set()
        results |= {state} if (a[:, :, 1:] != b[:, :, 1:]).any() else set()
    return results


def declared(row: Row, verb: str) -> set[str]:
    """The row's effects, and what its 32-bit encoding fixes as an operand."""
    results = {state for state in STATES if f"{verb}_{state}" in row.effects}
    fixed = {
        "reads": row.format == "VOP2" and "carry_in" in row.flags,
        "writes": row.format == "VOPC" or (row.format == "VOP2" and "carry_out" in row.flags),
    }
    return results | ({"vcc"} if fixed[verb] else set())


@pytest.mark.parametrize("arch", ARCHS)
def test_effects_are_what_execution_does(arch: str) -> None:
    formats, flows = (*SCALAR, *VECTOR, "SOPP"), ("next", "barrier")
    here = [row for row in rows() if arch in row.archs and row.format in formats]
    selected = [row for row in here if row.flow in flows and not re.fullmatch(WITHOUT, row.name)]
    assert len(selected) > 500
    mismatches = []
    for row, out in observed(arch, selected):
        unseen = {state for name, state in UNSEEN if name == row.name}
        for verb, result in (("reads", read(out) | unseen), ("writes", written(out))):
            if result != declared(row, verb):
                mismatches.append(f"{row.name} {verb} {result}, the row says {declared(row, verb)}")
    assert not mismatches, f"{len(mismatches)} of {len(selected)}:\n" + "\n".join(mismatches[:40])


# -------------------------------------------------------------------------------- flow

# The instruction behind is skipped, or s10 becomes 1; s[20:21] is where it would be skipped to.
SKIP = "  s_mov_b32 s10, 1\n"
TARGET = "  s_getpc_b64 s[20:21]\n  s_add_u32 s20, s20, 20\n  s_addc_u32 s21, s21, 0\n"


def flow_text(row: Row) -> str:
    words = encoding(row)
    if row.flow == "indirect":
        set_up = TARGET + "  s_nop 0\n"
        words[0] = words[0] & ~0xFF | 20
    else:
        set_up = "  s_cmp_lg_u32 s53, 0\n"
        words[0] = words[0] & ~0xFFFF | 1
    state = SET_UP + "  s_mov_b32 s10, 0\n"
    if row.effects & {"reads_exec", "reads_vcc"}:
        state += "  s_cmp_eq_u32 s51, 3\n  s_cselect_b64 exec, -1, 0\n  s_mov_b64 vcc, exec\n"
    return state + set_up + code(words) + SKIP + SHOW


def test_flow_is_where_the_wave_goes_on() -> None:
    selected = [row for row in rows() if row.flow not in ("next", "barrier", "trap")]
    selected += [
        row
        for row in rows()
        if row.format == "SOPP" and row.category == "branch" and row.flow == "next"
    ]
    assert {row.flow for row in selected} == {"jump", "branch", "call", "indirect", "end", "next"}
    snippets = Snippets([flow_text(row) for row in selected])
    for i, row in enumerate(selected):
        out = snippets.run(i, np.zeros((GROUPS * VARIANTS * LANES, 4), np.uint64))
        s10 = out.reshape(-1, LANES, 4)[:, SCALARS.index("s10"), 0]
        if row.flow == "end":
            assert (out == 0xDEADBEEF).all(), row
        else:
            seen = {"branch": {0, 1}, "next": {1}}.get(row.flow, {0})
            assert set(s10.tolist()) == seen, row


# -------------------------------------------------------------------------------- categories

# The first that fits; of the rest, the format decides.
NAMED = (
    (r"v_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)(_legacy)?_f\d\d", "trans"),
    (r"v_pk_(fma|mul|add)_f32|v_pk_mov_b32", "packed"),
    (r"v_mul_(lo|hi)_[ui]32|v_mad_(u64_u32|i64_i32)|v_m?qsad_\w+", "quarter"),
    (r"v_(s?mfma|smfmac)_\w+", "mfma"),
    (r"\w+_load_lds_\w+", "lds_dma"),
    (r"(flat|global|scratch|t?buffer)_load_\w+", "vmem_load"),
    (r"(flat|global|scratch|t?buffer)_store_\w+", "vmem_store"),
    (r"(flat|global|buffer)_atomic_\w+", "vmem_atomic"),
    (r"buffer_(wbl2|inv)", "vmem_cache"),
    (r"ds_gws_\w+", "gws"),
    (r"s_(branch|cbranch_\w+|endpgm|endpgm_saved|setpc_b64|swappc_b64|call_b64)", "branch"),
    (r"s_(sendmsg|trap|icache_inv|incperflevel|decperflevel|ttracedata)", "message"),
    (r"s_setprio", "priority"),
    (r"s_(sethalt|wakeup)", "internal"),
    (r"s_waitcnt", "wait"),
    (r"s_nop", "nop"),
    (r"s_sleep", "sleep"),
    (r"s_barrier", "barrier"),
)
BY_FORMAT = dict.fromkeys((*SCALAR, "SOPP"), "salu") | dict.fromkeys(VECTOR, "valu")
BY_FORMAT |= {"SMEM": "smem", "DS": "lds"}


def test_every_opcode_has_its_category() -> None:
    for row in rows():
        named = [category for name, category in NAMED if re.fullmatch(name, row.name)]
        assert row.category == (named[0] if named else BY_FORMAT[row.format]), row


def test_nobody_else_knows_opcodes_by_number_or_name() -> None:
    """Outside of the tables' room only compares do: their number is a set of outcomes."""
    mismatches = []
    for file in sorted((paths.CSRC / "vgpu").rglob("*.[ch]*")):
        for line in file.read_text(encoding="utf-8").splitlines():
            number = re.search(r"(->|\.)opcode\b", line) and "kOutcomes" not in line
            if file.parent.name != "isa" and number:
                mismatches.append(f"{file.name}: {line.strip()}")
            if re.search(r"(op|op_)(->|\.)name\b.*(==|with|find)|string_view name = .*op", line):
                mismatches.append(f"{file.name}: {line.strip()}")
    assert not mismatches


def test_an_architecture_that_is_unknown_has_no_instructions() -> None:
    nop = [0xBF800000]
    assert [disassemble(arch, nop)[1] for arch in (*ARCHS, "gfx900")] == [1, 1, 0]
