"""Inline constants of vector operands: clang's encoding says which value a constant stands for.

clang's assembler encodes a hexadecimal operand as an inline constant only where its bits are that
constant in the operand's type. So a probe with the bits of 0.5 in each type names the type without
any knowledge of the simulator's tables. A case then runs an instruction twice, with the constant
and with a register that holds those bits, and the results must be equal.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.vgpu.asm import LANES, Snippets
from support.vgpu.opcodes import DWORDS, Row, rows

FORMATS = ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P", "VOP3PX2")
FLOATS = {  # name, encoding: bits as f16, bf16, f32, f64
    "0.5": (240, 0x3800, 0x3F00, 0x3F000000, 0x3FE0000000000000),
    "-0.5": (241, 0xB800, 0xBF00, 0xBF000000, 0xBFE0000000000000),
    "1.0": (242, 0x3C00, 0x3F80, 0x3F800000, 0x3FF0000000000000),
    "-1.0": (243, 0xBC00, 0xBF80, 0xBF800000, 0xBFF0000000000000),
    "2.0": (244, 0x4000, 0x4000, 0x40000000, 0x4000000000000000),
    "-2.0": (245, 0xC000, 0xC000, 0xC0000000, 0xC000000000000000),
    "4.0": (246, 0x4400, 0x4080, 0x40800000, 0x4010000000000000),
    "-4.0": (247, 0xC400, 0xC080, 0xC0800000, 0xC010000000000000),
    "0.15915494309189532": (248, 0x3118, 0x3E22, 0x3E22F983, 0x3FC45F306DC9C882),
}
INTEGERS = range(-16, 65)
TYPES = ("f16", "bf16", "f32", "f64")
# Registers of a case: sources, the two destinations, and what stands for the constant.
SOURCE, RESULTS, HELD_REGISTER = (32, 64, 96), (128, 160), 192
MASKS = ("s[40:41]", "s[50:51]")
NOT_A_FUNCTION_OF_A_LANE = (
    "v_readlane",
    "v_writelane",
    "v_readfirstlane",
    "v_permlane",
    "v_swap",
    "v_accvgpr_read",
    "v_accvgpr_mov",
)


def dwords(kind: str) -> int:
    return DWORDS.get(kind, 1)


def register(index: int, count: int) -> str:
    return f"v{index}" if count == 1 else f"v[{index}:{index + count - 1}]"


def is_vop3(row: Row) -> bool:
    return "no_vop3" not in row.flags and "inline_k" not in row.flags


def instruction(row: Row, result: int, sources: list[str], tail: str = "") -> str:
    """Text of `row` with its result in RESULTS[result] or MASKS[result]."""
    suffix = ""
    if row.format in ("VOP1", "VOP2", "VOPC"):
        suffix = "_e64" if is_vop3(row) else "" if "inline_k" in row.flags else "_e32"
    operands = []
    if row.format == "VOPC":
        operands.append(MASKS[result])
    else:
        operands.append(register(RESULTS[result], dwords(row.dst)))
        if "carry_out" in row.flags:
            operands.append(MASKS[result])
    if "inline_k" in row.flags:
        constant = "0x4248" if "f16" in row.name else "0x40490fdb"
        sources = [sources[0], constant, sources[1]] if "mk_" in row.name else [*sources, constant]
    operands += sources
    if "carry_in" in row.flags:
        operands.append("s[44:45]")
    if row.format == "VOP3PX2":
        operands += ["v8", "v9"]
    return f"{row.name}{suffix} {', '.join(operands)} {tail}".strip()


def source_registers(row: Row) -> list[str]:
    count = 2 if "inline_k" in row.flags else len(row.srcs)
    return [register(SOURCE[i], dwords(kind)) for i, kind in enumerate(row.srcs[:count])]


def with_operand(row: Row, source_idx: int, text: str) -> list[str]:
    sources = source_registers(row)
    sources[source_idx] = text
    return sources


def encodings(lines: list[str], arch: str) -> list[bytes | None]:
    """clang's encoding of each line, None where it refuses the line."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.s"
        source.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "ziglang", "clang", "-cc1as", "-triple",
                   "amdgcn-amd-amdhsa", "-target-cpu", arch, "-filetype", "asm", "-show-encoding",
                   str(source), "-o", "-"]  # fmt: skip
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = {int(n) for n in re.findall(r"probe\.s:(\d+):\d+: error", completed.stderr)}
    match = re.findall(r"encoding: \[([^\]]*)\]", completed.stdout)
    codes = iter([bytes(int(b, 16) for b in text.split(",")) for text in match])
    out = [None if n in refused else next(codes, b"") for n in range(1, len(lines) + 1)]
    assert next(codes, None) is None and b"" not in out, "lines and encodings do not match"
    return out


def source_code(row: Row, code: bytes, source_idx: int) -> int:
    """The encoded source operand, 255 where a literal follows."""
    word = int.from_bytes(code[-8:], "little")
    if not is_vop3(row) and row.format in ("VOP1", "VOP2", "VOPC"):
        return int.from_bytes(code[:4], "little") & 511
    return word >> (32 + 9 * source_idx) & 511


class Operand(NamedTuple):
    row: Row
    source_idx: int  # source
    kind: str  # of TYPES, or "i16": the 32-bit float, of which the instruction takes 16 bits


def candidates(arch: str) -> list[tuple[Row, int]]:
    out = []
    for row in rows():
        row = row._replace(format=row.format.upper())
        if row.format not in FORMATS or arch not in row.archs or not row.srcs:
            continue
        if row.name.startswith(NOT_A_FUNCTION_OF_A_LANE):
            continue
        count = len(source_registers(row)) if is_vop3(row) else 1
        out += [(row, source_idx) for source_idx in range(count)]
    return out


def operands(arch: str) -> list[Operand]:
    """All source operands that take inline floats, with the type that clang gives them."""
    tried = candidates(arch)
    spellings = ["0.5", *(hex(bits) for bits in FLOATS["0.5"][1:])]
    lines = [
        instruction(row, 0, with_operand(row, source_idx, text))
        for row, source_idx in tried
        for text in spellings
    ]
    codes = encodings(lines, arch)
    out = []
    for n, (row, source_idx) in enumerate(tried):
        group = codes[len(spellings) * n : len(spellings) * (n + 1)]
        inline = [c is not None and source_code(row, c, source_idx) == 240 for c in group]
        if not inline[0]:
            continue
        kinds = [kind for kind, is_inline in zip(TYPES, inline[1:], strict=True) if is_inline]
        assert len(kinds) <= 1, (row.name, source_idx, kinds)
        out.append(Operand(row, source_idx, kinds[0] if kinds else "i16"))
    return out


class Case(NamedTuple):
    operand: Operand
    constant: str
    bits: int
    tail: str

    @property
    def texts(self) -> tuple[str, str]:
        """The instruction with the constant, and with a register in its place."""
        row, source_idx, _ = self.operand
        register_text = register(HELD_REGISTER, dwords(row.srcs[source_idx]))
        return (
            instruction(row, 0, with_operand(row, source_idx, self.constant), self.tail),
            instruction(row, 1, with_operand(row, source_idx, register_text), self.tail),
        )


def _tails(operand: Operand) -> Iterator[tuple[str, str]]:
    """(modifiers, type of the constant under them)."""
    row, source_idx, kind = operand
    if row.format != "VOP3P" or "matrix" in row.flags or row.name.startswith("v_dot"):
        yield "", kind
        return
    count = len(row.srcs)
    bit = [int(i == source_idx) for i in range(count)]

    def text(name: str, values: list[int]) -> str:
        return f"{name}:[{','.join(map(str, values))}]"

    if "_mix" in row.name:  # op_sel_hi: the source is a half
        yield "", "f32"
        yield text("op_sel_hi", bit), kind
        return
    yield "", kind
    yield f"{text('op_sel', bit)} {text('op_sel_hi', [1] * count)}", kind
    yield f"{text('op_sel', bit)} {text('op_sel_hi', [1 - b for b in bit])}", kind


def cases(arch: str, integers: list[int]) -> list[Case]:
    out = []
    for operand in operands(arch):
        for tail, kind in _tails(operand):
            column = 1 + TYPES.index("f32" if kind == "i16" else kind)
            out += [Case(operand, name, values[column], tail) for name, values in FLOATS.items()]
            out += [Case(operand, str(n), n & (1 << 64) - 1, tail) for n in integers]
    accepted = encodings([case.texts[0] for case in out], arch)
    return [case for case, code in zip(out, accepted, strict=True) if code is not None]


# ------------------------------------------------------------------------------ running

_FILL = (
    "".join(
        f"v_alignbit_b32 v{32 + i}, v{8 + i % 8}, v{8 + i % 8}, {i // 8 * 3}\n" for i in range(96)
    )
    + "s_mov_b32 s44, 0x5a5a3c3c\ns_mov_b32 s45, 0x12345678\nv_lshlrev_b32 v2, 2, v0\n"
)


def _load_constant(case: Case) -> str:
    """Puts the constant's bits into every register of the operand."""
    row, source_idx, kind = case.operand
    count = dwords(row.srcs[source_idx])
    halves = (case.bits & 0xFFFFFFFF, case.bits >> 32)
    if kind == "f32" and count > 1:  # every 32-bit element
        halves = (halves[0], halves[0])
    return "".join(f"v_mov_b32 v{HELD_REGISTER + i}, {halves[i % 2]:#x}\n" for i in range(count))


def _run_both(case: Case) -> str:
    """Both forms, from the same old contents of the destination."""
    row = case.operand.row
    text = [_load_constant(case), "s_mov_b64 vcc, s[44:45]\n"]
    if row.format != "VOPC" and "matrix" not in row.flags:
        text += [
            f"v_mov_b32 v{r + i}, v{SOURCE[0] + 7 + i}\n"
            for r in RESULTS
            for i in range(dwords(row.dst))
        ]
    for line in case.texts:
        text.append(f"{line}\ns_mov_b64 exec, -1\n")  # v_cmpx writes EXEC
    return "".join(text)


def _masks(row: Row) -> bool:
    return row.format == "VOPC" or "carry_out" in row.flags


def _compare(case: Case) -> str:
    """v4: not zero where the results differ."""
    row = case.operand.row
    text = ["v_mov_b32 v4, 0\n"]
    if _masks(row):
        text.append(
            "s_xor_b64 s[46:47], s[40:41], s[50:51]\n"
            "v_mov_b32 v3, s46\nv_or_b32 v4, v4, v3\n"
            "v_mov_b32 v3, s47\nv_or_b32 v4, v4, v3\n"
        )
    if row.format != "VOPC":
        for i in range(dwords(row.dst)):
            text.append(
                f"v_xor_b32 v3, v{RESULTS[0] + i}, v{RESULTS[1] + i}\nv_or_b32 v4, v4, v3\n"
            )
    return "".join(text)


_RESOURCES = {"vgprs": 256, "agprs": 256}


def inputs() -> np.ndarray:
    """Random bits, small integers, and values that are ordinary floats and halves."""
    rng = np.random.default_rng(5)
    lanes = rng.integers(0, 2**64, (LANES, 4), dtype=np.uint64)
    small = rng.random(lanes.shape) < 0.3
    lanes[small] = rng.integers(0, 70, small.sum())
    lanes[:16] = rng.normal(size=(16, 8)).astype(np.float32).view(np.uint64)
    lanes[16:28] = rng.normal(size=(12, 16)).astype(np.float16).view(np.uint64)
    lanes[28:36] = rng.normal(size=(8, 4)).view(np.uint64)
    return lanes


def differing(selected: list[Case], arch: str, block: int = 400) -> list[tuple[Case, int]]:
    """The cases whose two results differ, with the number of lanes."""
    blocks = [selected[i : i + block] for i in range(0, len(selected), block)]
    tail = "v_lshlrev_b32 v2, 4, v0\nv_add_u32 v2, {size}, v2\n"
    store = "global_store_dword v2, v4, s[6:7]\nv_add_u32 v2, 0x100, v2\n"
    snippets = [
        _FILL
        + "".join(_run_both(case) + _compare(case) + store for case in case_group)
        + tail.format(size=hex(256 * len(case_group)))
        for case_group in blocks
    ]
    batch, lanes = Snippets(snippets, arch, **_RESOURCES), inputs()
    out = []
    for n, case_group in enumerate(blocks):
        actual = batch.run(n, lanes, len(case_group) + 4).reshape(-1)[: LANES * len(case_group)]
        lanes_off = (actual.reshape(len(case_group), LANES) != 0).sum(1)
        out += [(case_group[i], int(lanes_off[i])) for i in np.flatnonzero(lanes_off)]
    return out


def explain(case: Case, arch: str) -> str:
    """Both results of the first lane that differs."""
    row = case.operand.row
    count = 0 if row.format == "VOPC" else min(dwords(row.dst), 2)
    show = "".join(
        f"v_mov_b32 v{20 + 2 * k + i}, v{RESULTS[k] + i}\n" for k in range(2) for i in range(count)
    )
    if _masks(row) and not count:
        show = "".join(f"v_mov_b32 v{20 + i}, s{s}\n" for i, s in enumerate((40, 41, 50, 51)))
    setup = _FILL + "v_lshlrev_b32 v2, 4, v0\n"
    actual = Snippets([setup + _run_both(case) + show], arch, **_RESOURCES).run(0, inputs())
    lane = int(np.argmax((actual[:, :2] != actual[:, 2:]).any(1)))
    values = [f"0x{high:08x}{low:08x}" for low, high in (actual[lane, :2], actual[lane, 2:])]
    return (
        f"{case.texts[0]}: clang encodes the operand as {case.operand.kind}, bits {case.bits:#x}; "
        f"lane {lane} got {values[0]}, with a register {values[1]}"
    )
