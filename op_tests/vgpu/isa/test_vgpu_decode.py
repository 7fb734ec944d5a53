"""Round trip of every opcode: encode from the table's number, disassemble, assemble with clang.

clang's assembler is the judge: the bytes must come back as they were, so a wrong opcode number,
mnemonic, operand width or field position of the virtual GPU's tables shows.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest

from support.vgpu.asm import assemble
from support.vgpu.opcodes import ENCODERS, disassemble, rows

ARCHS = ("gfx942", "gfx950")
SLOT = 64  # bytes an instruction gets in the assembled text


def text_section(code: bytes) -> bytes:
    offset, count, names = (
        struct.unpack_from("<Q", code, 40)[0],
        *struct.unpack_from("<HH", code, 60),
    )
    headers = [struct.unpack_from("<IIQQQQ", code, offset + 64 * i) for i in range(count)]
    base = headers[names][4]
    for name, _, _, _, start, size in headers:
        if code[base + name : code.index(b"\0", base + name)] == b".text":
            return code[start : start + size]
    raise AssertionError("no .text section")


@pytest.mark.parametrize("arch", ARCHS)
def test_every_opcode_round_trips(arch: str) -> None:
    cases = []
    for row in rows():
        if arch in row.archs and row.category != "gws":  # those stop with a fault
            encodings = list(ENCODERS[row.format](row))
            assert encodings, row
            cases += [(row, words) for words in encodings]
    texts = []
    for row, words in cases:
        text, size = disassemble(arch, words)
        assert size == len(words), (
            f"{row.name}: {[hex(w) for w in words]} -> {text!r} of {size} dwords"
        )
        assert text.startswith(row.name), f"{row.name} decodes as {text!r}"
        texts.append(text)
    source = "".join(f".p2align 6\n{text}\n" for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        code = text_section(assemble(f".text\n{source}", arch, Path(folder)))
    mismatches = []
    for i, (row, words) in enumerate(cases):
        actual = list(struct.unpack_from(f"<{len(words)}I", code, SLOT * i))
        if actual != words:
            mismatches.append(
                f"{row.format} {row.opcode} {texts[i]!r}: "
                f"{hexes(words)} came back as {hexes(actual)}"
            )
    assert not mismatches, f"{len(mismatches)} of {len(cases)}:\n" + "\n".join(mismatches[:20])


def hexes(words: list[int]) -> str:
    return " ".join(f"{word:08x}" for word in words)


def test_the_tables_name_each_opcode_once() -> None:
    for arch in ARCHS:
        seen: dict[tuple[str, int], str] = {}
        for row in rows():
            if arch in row.archs:
                key = (row.format, row.opcode)
                assert key not in seen, f"{arch} {key}: {row.name} and {seen[key]}"
                seen[key] = row.name
