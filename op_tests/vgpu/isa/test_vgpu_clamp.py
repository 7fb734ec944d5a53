"""The clamp bit of every vector instruction with a float result: the result without it, between 0
and 1, and 0 for NaN. clang's assembler says which instructions have the bit.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.vgpu import constants
from support.vgpu.asm import LANES, Snippets
from support.vgpu.cases import ARCHS
from support.vgpu.opcodes import Row, rows
from support.vgpu.reference import Array

# Named by what they read; their results are integers, or bits that are moved.
_NO_FLOAT = re.compile(r"_exp_i|cvt_(pk)?(i|u|flr|rpi|norm|accum)|cvt_pk_u8|v_pack_|_mov_")
_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def result_kind(row: Row) -> str:
    """The type of an element of the result, which a name has first; "" for no float."""
    match = re.search(r"_(bf16|f16|f32|f64)(?=_|$)", row.name)
    return "" if _NO_FLOAT.search(row.name) or match is None else match[1]


def elements(row: Row) -> int:
    return 2 if re.match(r"v_(cvt_)?pk", row.name) else 1


def clamped_rows(arch: str) -> list[Row]:
    tried = [row._replace(format=row.format.upper()) for row in rows() if arch in row.archs]
    tried = [row for row in tried if row.format in constants.FORMATS and row.srcs]
    tried = [row for row in tried if row.dst != "-" and result_kind(row)]
    taken = constants.encodings([_text(row, 0, "clamp") for row in tried], arch)
    return [row for row, code in zip(tried, taken, strict=True) if code is not None]


def _text(row: Row, result: int, tail: str = "") -> str:
    kinds = row.srcs[: len(constants.source_registers(row))]
    sources = [constants.register(8 + 2 * i, constants.dwords(k)) for i, k in enumerate(kinds)]
    return constants.instruction(row, result, sources, tail)


def _snippet(row: Row) -> str:
    """The plain result in v20 and v21, the clamped one in v22 and v23."""
    text = ["s_mov_b64 vcc, 0x1234\ns_mov_b64 s[44:45], 0x1234\n"]
    text += [
        f"v_mov_b32 v{register + i}, v{14 + i}\n"
        for register in constants.RESULTS
        for i in range(2)
    ]
    text += [f"{_text(row, 0)}\n{_text(row, 1, 'clamp')}\n"]
    text += [
        f"v_mov_b32 v{20 + 2 * k + i}, v{register + i}\n"
        for k, register in enumerate(constants.RESULTS)
        for i in range(2)
    ]
    return "".join(text)


def _inputs(kind: str) -> Array:
    """Four values of 64 bits a lane, of numbers on both sides of 0 and 1."""
    rng = np.random.default_rng(9)
    if kind == "bits":
        return rng.integers(0, 1 << 64, (LANES, 4), dtype=np.uint64)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    values = rng.normal(size=(LANES, 256 // _WIDTH[kind]))
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0]
    selected = rng.random(values.shape) < 0.2
    values[selected] = rng.choice(special, int(selected.sum()))
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint64)


def _values(row: Row, dwords: Array) -> Array:
    """The elements of a result of two dwords a lane, as doubles."""
    kind, count = result_kind(row), elements(row)
    bits = np.ascontiguousarray(dwords).view(f"u{_WIDTH[kind] // 8}")
    first = "mixhi" in row.name
    taken = bits[:, first : first + count]
    if kind == "bf16":
        return (taken.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return taken.view(f"f{_WIDTH[kind] // 8}").astype(np.float64)


@pytest.mark.parametrize("arch", ARCHS)
def test_clamp_is_the_plain_result_between_0_and_1(arch: str) -> None:
    selected = clamped_rows(arch)
    assert len(selected) >= 120, len(selected)
    batch, wrong = Snippets([_snippet(row) for row in selected], arch, vgprs=256, agprs=256), []
    changed = set()
    for n, row in enumerate(selected):
        for kind in ("f16", "f32", "f64", "bits"):
            actual = batch.run(n, _inputs(kind))
            plain, clamped = _values(row, actual[:, :2]), _values(row, actual[:, 2:])
            want = np.where(np.isnan(plain), 0.0, np.clip(plain, 0.0, 1.0))
            changed |= {row.name} if (want != plain).any() else set()
            off = np.argwhere(clamped != want)  # a NaN differs from every number
            if len(off):
                lane, offset = off[0]
                wrong.append(
                    f"{row.name}, {kind} lane {lane} element {offset}: {plain[lane, offset]} "
                    f"clamped is {clamped[lane, offset]}"
                )
                break
    assert not wrong, f"{len(wrong)} of {len(selected)}\n" + "\n".join(wrong)
    assert len(changed) > 0.9 * len(selected), sorted({row.name for row in selected} - changed)
