"""Every SALU opcode of the virtual GPU against Python integers, one set of operands a wave; then
what the program counter, relative register access and wave state do.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from support.vgpu import salu_ops as ops
from support.vgpu.asm import LANES, Snippets
from support.vgpu.cases import (
    ARCHS,
    MASKS,
    OLD,
    U64,
    Book,
    Case,
    Cases,
    place,
    random_bits,
    seed_of,
    specials,
    words_of,
)
from support.vgpu.reference import Array
from support.vgpu.salu_ops import M64, ScalarOp, Scalars

WAVES = 96
CASES = Cases()
# Columns 0 and 1 are the sources, 2 holds EXEC, whose top bit is SCC too, 3 the old destination.
LOAD = "".join(
    f"v_readfirstlane_b32 s{s}, v{v}\n"
    for s, v in ((8, 8), (9, 9), (10, 10), (11, 11), (12, 12), (13, 13), (20, 14), (21, 15))
)
SET_SCC = "s_lshr_b32 s14, s13, 31\ns_cmp_lg_u32 s14, 0\n"
SHOW_RESULT = "s_cselect_b32 s22, 1, 0\n" + "".join(
    f"v_mov_b32 v{v}, s{s}\n" for v, s in ((20, 20), (21, 21), (22, 22))
)
SHOW_EXEC = (
    "s_cselect_b32 s22, 1, 0\ns_mov_b64 s[24:25], exec\ns_mov_b64 exec, -1\n"
    "s_xor_b32 s24, s24, s20\n"
    "s_xor_b32 s25, s25, s21\n"
    + "".join(f"v_mov_b32 v{v}, s{s}\n" for v, s in ((20, 20), (21, 22), (22, 24), (23, 25)))
)


def wave_inputs(widths: tuple[int, ...], seed: int) -> Array:
    """[waves, 4] operands, pairs of special values first."""
    rng = np.random.default_rng(seed)
    out = rng.integers(0, 1 << 64, (WAVES, 4), dtype=U64)
    for column, bits in enumerate(widths[1:]):
        kind = f"u{max(bits, 32)}"
        pool = specials(kind)
        half = WAVES * 2 // 3
        out[:half, column] = rng.choice(pool, half)
        out[half:, column] = random_bits(kind, WAVES - half, rng)
    same = rng.random(WAVES) < 0.1
    out[same, 1] = out[same, 0]
    out[rng.random(WAVES) < 0.2, 2] &= U64(1 << 63)  # EXEC that a mask may leave empty
    out[rng.random(WAVES) < 0.2, 0] &= U64(0xFFFFFFFF00000000)
    return out


def operand(bits: int, base: int) -> str:
    return f"s[{base}:{base + 1}]" if bits == 64 else f"s{base}"


def trim(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def model(op: ScalarOp, row: Array, fixed: dict[int, int]) -> tuple[Scalars, int | None, bool]:
    """The state that the instruction sees in one wave, its result and SCC afterwards."""
    bits = [*op.widths, 32, 32][1:3]
    sources = [trim(fixed.get(i, int(row[i])), bits[i]) for i in range(2)]
    state = Scalars(*sources, d=int(row[3]), scc=bool(int(row[2]) >> 63), exec=int(row[2]))
    if op.widths[0] == 32 or op.imm:
        state = Scalars(state.a, state.b, state.d & 0xFFFFFFFF, state.scc, state.exec)
    value, scc = op.fn(state)
    return state, value, state.scc if scc is None else scc


def scalar_case(op: ScalarOp, label: str, texts: list[str], fixed: dict[int, int]) -> None:
    dst = operand(op.widths[0], 20) if op.widths[0] or op.imm else ""
    exec_op = op.writes_exec is not None
    asm = (
        LOAD
        + SET_SCC
        + ("s_mov_b64 exec, s[12:13]\n" if exec_op else "")
        + f"{op.name} {', '.join(t for t in [dst, *texts] if t)}\n"
        + (SHOW_EXEC if exec_op else SHOW_RESULT)
    )

    def expect(lanes: Array) -> list[Array]:
        out = np.zeros((WAVES, 4), np.uint32)
        for w, row in enumerate(lanes[::LANES]):
            state, value, scc = model(op, row, fixed)
            old, bits = int(row[3]), op.widths[0]
            result = old if value is None else old & ~((1 << bits) - 1) | trim(value, bits)
            words = np.array([[0, 0, 0, 0]], np.uint32)
            if exec_op:
                after = op.writes_exec(state) ^ result
                words[0] = [result & 0xFFFFFFFF, scc, after & 0xFFFFFFFF, after >> 32]
            else:
                place(words, 0, "u64", np.array([result], U64))
                words[0, 2] = scc
            out[w] = words[0]
        return [out.repeat(LANES, axis=0)]

    inputs = wave_inputs(op.widths, seed_of(op.name + label)).repeat(LANES, axis=0)
    CASES.groups.setdefault(op.name, []).append(Case(f"{op.name} {label}", asm, inputs, expect))


def constants(bits: int, rng: random.Random) -> list[tuple[str, int]]:
    """Inline and literal constants of a 32- or 64-bit operand."""
    small = rng.choice([0, 1, 64, -1, -16, rng.randint(-16, 64)])
    value = rng.getrandbits(31) | 1 << 20
    one = 0x3FF0000000000000 if bits == 64 else 0x3F800000
    return [(str(small), small & M64), (f"{value:#x}", value), ("1.0", one)]


def make_cases(op: ScalarOp) -> None:
    rng = random.Random(seed_of(op.name))
    sources = [operand(bits, 8 + 2 * i) for i, bits in enumerate(op.widths[1:])]
    if op.imm:
        for value in (0, 1, 0x7FFF, 0x8000, 0xFFFF, rng.randrange(0x10000)):
            scalar_case(op, f"{value:#x}", [f"{value:#x}"], {1: value})
        return
    scalar_case(op, "sgpr", sources, {})
    for i in range(len(sources)):
        for text, value in constants(op.widths[1 + i], rng):
            scalar_case(op, f"{i} {text}", [*sources[:i], text, *sources[i + 1 :]], {i: value})


for _op in ops.SOP1 + ops.SOP2 + ops.SOPC + ops.SOPK + ops.EXEC_OPS:
    make_cases(_op)

# ---------------------------------------------------------------- control flow and wave state


def program(group: str, name: str, asm: str, *values: int) -> None:
    """A snippet that leaves the same dwords, from v20 on, in every lane."""

    def expect(lanes: Array) -> list[Array]:
        out = words_of(lanes[:, 3])
        for i, value in enumerate(values):
            out[:, i] = value & 0xFFFFFFFF
        return [out]

    inputs = np.zeros((LANES, 4), U64)
    inputs[:, 3] = 0x1111222233334444
    CASES.groups.setdefault(group, []).append(Case(name, OLD + asm, inputs, expect))


_TAKEN = """{set}
  v_mov_b32 v20, 1
  {branch} 1f
  v_mov_b32 v20, 2
1:
  v_mov_b32 v21, 3
"""
for _branch, _yes, _no in (
    ("s_cbranch_scc1", "s_cmp_eq_u32 s0, s0", "s_cmp_lg_u32 s0, s0"),
    ("s_cbranch_scc0", "s_cmp_lg_u32 s0, s0", "s_cmp_eq_u32 s0, s0"),
    ("s_cbranch_vccz", "s_mov_b64 vcc, 0", "s_mov_b64 vcc, 1"),
    ("s_cbranch_vccnz", "s_mov_b32 vcc_lo, 0\ns_brev_b32 vcc_hi, 1", "s_mov_b64 vcc, 0"),
    ("s_cbranch_execnz", "s_nop 0", ""),
    ("s_branch", "s_nop 0", ""),
):
    program(_branch, "taken", _TAKEN.format(set=_yes, branch=_branch), 1, 3)
    if _no:
        program(_branch, "not taken", _TAKEN.format(set=_no, branch=_branch), 2, 3)
program(
    "s_cbranch_execz",
    "taken",
    """
  s_mov_b64 s[8:9], exec
  s_mov_b64 exec, 0
  s_cbranch_execz 1f
  s_mov_b64 exec, s[8:9]
  v_mov_b32 v20, 2
1:
  v_mov_b32 v21, 9
  s_mov_b64 exec, s[8:9]
""",
    0x33334444,
    0x11112222,
)
program(
    "s_cbranch_execz", "not taken", _TAKEN.format(set="s_nop 0", branch="s_cbranch_execz"), 2, 3
)
program(
    "loop",
    "counts",
    """
  s_mov_b32 s8, 0
  v_mov_b32 v20, 0
1:
  v_add_u32 v20, 3, v20
  s_add_u32 s8, s8, 1
  s_cmp_lt_u32 s8, 100
  s_cbranch_scc1 1b
  v_mov_b32 v21, s8
""",
    300,
    100,
)
program(
    "calls",
    "s_getpc, s_swappc and s_setpc",
    """
  s_getpc_b64 s[8:9]
1:
  s_add_u32 s8, s8, 3f-1b
  s_addc_u32 s9, s9, 0
  v_mov_b32 v20, 5
  s_swappc_b64 s[10:11], s[8:9]
2:
  v_add_u32 v20, 100, v20
  s_branch 4f
3:
  v_add_u32 v20, 10, v20
  s_setpc_b64 s[10:11]
4:
  s_sub_u32 s10, s8, s10
  v_mov_b32 v21, s10
""",
    115,
    12,
)
program(
    "calls",
    "s_call",
    """
  v_mov_b32 v20, 5
  s_call_b64 s[10:11], 3f
  v_add_u32 v20, 100, v20
  s_branch 4f
3:
  v_add_u32 v20, 10, v20
  s_setpc_b64 s[10:11]
4:
  v_mov_b32 v21, 0
""",
    115,
    0,
)
_REGS = "".join(f"s_mov_b32 s{30 + i}, {0x100 + i:#x}\n" for i in range(8))
_SHOW4 = "".join(f"v_mov_b32 v{20 + i}, s{{{i}}}\n" for i in range(4))
program(
    "s_movrel",
    "sources",
    _REGS
    + "s_mov_b32 m0, 3\ns_nop 4\ns_movrels_b32 s8, s30\ns_movrels_b64 s[10:11], s[32:33]\n"
    + _SHOW4.format(8, 10, 11, 30),
    0x103,
    0x105,
    0x106,
    0x100,
)
program(
    "s_movrel",
    "destinations",
    _REGS + "s_mov_b32 m0, 4\ns_nop 4\ns_movreld_b32 s30, s37\n"
    "s_mov_b32 m0, 2\ns_nop 4\ns_movreld_b64 s[30:31], s[36:37]\n" + _SHOW4.format(34, 32, 33, 30),
    0x107,
    0x106,
    0x107,
    0x100,
)
program(
    "no effect",
    "hints",
    "s_nop 15\ns_sleep 1\ns_setprio 3\ns_waitcnt 0\ns_icache_inv\ns_incperflevel 1\n"
    "s_decperflevel 1\ns_barrier\ns_wakeup\ns_sethalt 0\nv_mov_b32 v20, 7\n",
    7,
)
program(
    "special sources",
    "vccz, execz, scc",
    "s_mov_b64 vcc, 0\ns_cmp_eq_u32 s0, s0\ns_mov_b32 s8, src_scc\n"
    "s_mov_b32 s9, src_vccz\ns_mov_b32 s10, src_execz\ns_mov_b32 m0, 77\ns_add_u32 s11, m0, 1\n"
    + _SHOW4.format(8, 9, 10, 11),
    1,
    1,
    0,
    78,
)
program(
    "special sources",
    "exec and vcc as operands",
    f"s_mov_b32 vcc_lo, {MASKS[0] & 0xFFFFFFFF:#x}\n"
    "s_not_b32 vcc_hi, vcc_lo\ns_and_b64 s[8:9], exec, vcc\n" + _SHOW4.format(8, 9, 8, 9),
    MASKS[0],
    ~MASKS[0],
    MASKS[0],
    ~MASKS[0],
)

_OTHERS = (
    "s_cbranch_cdbgsys",
    "s_cbranch_cdbguser",
    "s_cbranch_cdbgsys_or_user",
    "s_cbranch_cdbgsys_and_user",
)
for _branch in _OTHERS:  # no debugger is there
    program("no effect", _branch, _TAKEN.format(set="s_nop 0", branch=_branch), 2, 3)
program(
    "no effect", "messages", "s_mov_b32 m0, 0\ns_ttracedata\ns_sendmsg 0\nv_mov_b32 v20, 7\n", 7
)
program(
    "ends", "s_endpgm_saved", "s_endpgm_saved\n", *[0xDEADBEEF] * 4
)  # what was in memory before
program("ends", "s_endpgm", "s_endpgm\n", *[0xDEADBEEF] * 4)

# While VSKIP is on no vector instruction is issued, whatever it would write; scalar ones are.
program(
    "s_setvskip",
    "on and off",
    "v_mov_b32 v20, 1\ns_mov_b32 s8, 2\ns_mov_b32 s9, 0\ns_mov_b64 vcc, 0\nv_mov_b32 v24, 0\n"
    "v_mov_b32 v25, 9\nds_write_b32 v24, v25\ns_waitcnt lgkmcnt(0)\n"
    "s_setvskip -1, 0\ns_nop 1\nv_mov_b32 v20, 5\nv_readfirstlane_b32 s8, v25\n"
    "v_cmp_eq_u32 vcc, v24, v24\nds_write_b32 v24, v24\nglobal_store_dword v2, v25, s[6:7]\n"
    "global_load_dwordx4 v[20:23], v2, s[6:7]\nv_mfma_f32_4x4x1_16b_f32 v[20:23], v24, v25, 0\n"
    "s_add_u32 s9, s9, 3\ns_getreg_b32 s10, hwreg(HW_REG_MODE, 28, 1)\ns_lshl_b32 s10, s10, 4\n"
    "s_or_b32 s9, s9, s10\ns_setvskip 0, 0\ns_nop 1\nds_read_b32 v21, v24\n"
    "s_getreg_b32 s10, hwreg(HW_REG_MODE, 28, 1)\ns_or_b32 s8, s8, s10\ns_or_b32 s8, s8, vcc_lo\n"
    "v_mov_b32 v22, s8\nv_mov_b32 v23, s9\ns_waitcnt lgkmcnt(0)\n",
    1,
    9,
    2,
    0x13,
)
program(
    "s_setvskip",
    "a bit by its number, SCC stays",
    "v_mov_b32 v20, 1\nv_mov_b32 v21, 1\ns_mov_b32 s8, 0x10\ns_mov_b32 s9, 0xffffff24\n"
    "s_cmp_eq_u32 s8, s8\ns_setvskip s8, s9\ns_nop 1\nv_mov_b32 v20, 5\ns_setvskip s8, 3\n"
    "s_nop 1\nv_mov_b32 v21, 5\ns_cselect_b32 s8, 6, 7\nv_mov_b32 v22, s8\n",
    1,
    5,
    6,
)
program(
    "s_setvskip",
    "by the mode register, over a barrier",
    "v_mov_b32 v20, 1\ns_mov_b32 s8, 1\ns_setreg_b32 hwreg(HW_REG_MODE, 28, 1), s8\ns_nop 1\n"
    "v_mov_b32 v20, 5\ns_barrier\nv_mov_b32 v20, 6\ns_mov_b32 s8, 0\n"
    "s_setreg_b32 hwreg(HW_REG_MODE, 28, 1), s8\ns_nop 1\nv_mov_b32 v21, 5\n",
    1,
    5,
)

# VGPR numbers relative to M0[7:0]: bits of the mode are source 0, 1, 2 and destination.
_VALUES = "".join(f"v_mov_b32 v{r}, {r}\n" for r in range(30, 40))
program(
    "s_set_gpr_idx",
    "source",
    _VALUES + "s_mov_b32 s8, 3\ns_set_gpr_idx_on s8, gpr_idx(SRC0)\n"
    "v_add_u32 v20, v31, v31\ns_set_gpr_idx_off\nv_add_u32 v21, v31, v31\n",
    34 + 31,
    62,
)
program(
    "s_set_gpr_idx",
    "destination and new index",
    _VALUES + "s_mov_b32 s8, 3\ns_set_gpr_idx_on s8, gpr_idx(DST)\n"
    "v_mov_b32 v17, v31\ns_mov_b32 s8, 1\ns_set_gpr_idx_idx s8\nv_mov_b32 v20, v33\n"
    "s_set_gpr_idx_mode gpr_idx(SRC0,SRC1)\nv_sub_u32 v22, v37, v31\ns_set_gpr_idx_off\n",
    31,
    33,
    6,
)
program(
    "s_set_gpr_idx",
    "third source",
    _VALUES + "s_mov_b32 s8, 5\ns_set_gpr_idx_on s8, gpr_idx(SRC2)\n"
    "v_mad_u32_u24 v20, v30, v31, v32\ns_set_gpr_idx_off\n"
    "s_and_b32 s8, m0, 0xf0ff\nv_mov_b32 v21, s8\n",
    30 * 31 + 37,
    0x4005,
)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", ["s_trap 2", "s_sethalt 1"])
def test_stop(arch: str, text: str) -> None:
    """What would never come back ends the launch with the instruction's name."""
    with pytest.raises(AssertionError, match=text):
        Snippets([text + "\n"], arch).run(0, np.zeros((LANES, 1), U64))


@pytest.fixture(scope="module", params=ARCHS)
def book(request: pytest.FixtureRequest) -> Book:
    return Book(CASES.all(), request.param)


@pytest.mark.parametrize("name", CASES.groups)
def test_opcode(book: Book, name: str) -> None:
    book.run(CASES.groups[name])
