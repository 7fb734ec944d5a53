"""Every VALU opcode of the virtual GPU against numpy: plain, and with each kind of operand and
modifier.

Exact wherever IEEE or integer rules define the result; 1 ulp for exp, log, rcp, rsq, sqrt, sin and
cos (hardware promises about that for f32; where denormals reach that unit, flushed and kept pass).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from support.vgpu import reference as ref
from support.vgpu import valu_ops as ops
from support.vgpu.cases import (
    ALL,
    ARCHS,
    MASKS,
    U64,
    Book,
    Case,
    Form,
    apply_mods,
    lane_inputs,
    op_case,
    operand_text,
    place,
    seed_of,
    set_mask,
    set_sgpr,
)
from support.vgpu.reference import Array, Op
from support.vgpu.swizzle import DPP_CONTROLS, SDWA_SELECTS, Dpp, Sdwa, exec_lanes

PLAIN, SMALL, SLOW = 2048, 512, 192


def _count(op: Op, expected: int) -> int:
    return min(expected, SLOW) if "slow" in op.flags else expected


def _mods(op: Op, rng: random.Random) -> dict[str, int]:
    """neg and abs bits on the sources that take them."""
    able = sum(1 << i for i, kind in enumerate(op.srcs) if ref.is_float(kind) or kind == "c32")
    return {"neg": rng.randrange(8) & able, "abs": rng.randrange(8) & able}


def _clamps(op: Op) -> bool:
    return op.dst != "pkf16" and (ref.is_float(op.dst) or "sat" in op.flags)


def _random_dpp(rng: random.Random) -> Dpp:
    return Dpp(
        rng.choice(DPP_CONTROLS),
        rng.choice([15, 15, 5, 10]),
        rng.choice([15, 15, 6, 9]),
        rng.random() < 0.5,
    )


def _random_sdwa(op: Op, rng: random.Random) -> Sdwa:
    count = len(op.srcs)
    selects = tuple(rng.choice(SDWA_SELECTS) for _ in range(count))
    sext = tuple(not ref.is_float(k) and rng.random() < 0.5 for k in op.srcs)
    # A NaN's bits are not defined, so float results are never cut.
    results = {"f32": ("DWORD",), "f16": ("DWORD", "WORD_0", "WORD_1")}.get(op.dst, SDWA_SELECTS)
    return Sdwa(
        selects,
        sext,
        rng.choice(results),
        rng.choice(["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"]),
    )


def _narrow(op: Op) -> bool:
    return all(ref.width(kind) < 64 for kind in [*op.srcs, op.dst])


def vop12_forms(op: Op) -> Iterator[tuple[str, Form, int]]:
    """Forms of a VOP1 or VOP2 opcode."""
    rng = random.Random(seed_of(op.name))
    last = len(op.srcs) - 1
    float_result = ref.is_float(op.dst)
    if "no32" not in op.flags:
        yield "plain", Form("_e32"), PLAIN
        yield "exec", Form("_e32", exec=MASKS[0]), SMALL
        yield "const", Form("_e32", {0: "const"}, exec=MASKS[1]), SMALL
        yield "sgpr", Form("_e32", {0: "sgpr"}), SMALL
        if all(k not in ("u64", "i64") for k in op.srcs):
            yield "literal", Form("_e32", {0: "literal"}), SMALL
    yield "e64", Form("_e64", exec=rng.choice(MASKS), **_mods(op, rng)), SMALL
    yield "e64 const", Form("_e64", {last: "const"}, **_mods(op, rng)), SMALL
    yield "e64 sgpr", Form("_e64", {last: "sgpr"}, **_mods(op, rng)), SMALL
    if _clamps(op):
        yield "clamp", Form("_e64", clamp=True, **_mods(op, rng)), SMALL
    if float_result:  # ignored while MODE has IEEE and denormals on
        yield "omod", Form("_e64", omod=rng.choice(["mul:2", "mul:4", "div:2"])), SMALL
    if "no32" in op.flags or not _narrow(op):
        return
    if "nodpp" not in op.flags:
        for i in range(2):
            yield (
                f"dpp {i}",
                Form("_dpp", dpp=_random_dpp(rng), exec=(ALL, MASKS[0])[i], **_mods(op, rng)),
                SMALL,
            )
    if "nosdwa" not in op.flags:
        for i in range(2):
            yield (
                f"sdwa {i}",
                Form(
                    "_sdwa", sdwa=_random_sdwa(op, rng), exec=(ALL, MASKS[2])[i], **_mods(op, rng)
                ),
                SMALL,
            )
        yield "sdwa sgpr", Form("_sdwa", {last: "sgpr"}, sdwa=_random_sdwa(op, rng)), SMALL
        if float_result:
            selects = ("WORD_1", "DWORD")[: len(op.srcs)]
            yield "sdwa clamp", Form("_sdwa", sdwa=Sdwa(selects, (False, False)), clamp=True), SMALL


def vop3_forms(op: Op) -> Iterator[tuple[str, Form, int]]:
    """Forms of an opcode that only VOP3 has."""
    rng = random.Random(seed_of(op.name))
    yield "plain", Form(), PLAIN
    yield "mods", Form(exec=rng.choice(MASKS), **_mods(op, rng)), SMALL
    for i in range(len(op.srcs)):
        yield f"const {i}", Form(sources={i: "const"}, **_mods(op, rng)), SMALL
        yield (
            f"sgpr {i}",
            Form(sources={i: "sgpr"}, exec=rng.choice(MASKS), **_mods(op, rng)),
            SMALL,
        )
    if _clamps(op) and not op.name.startswith("v_cube"):
        yield "clamp", Form(clamp=True, **_mods(op, rng)), SMALL
    if any(ref.width(k) == 16 for k in op.srcs) and "zero" not in op.flags:
        halves = sum(1 << i for i, k in enumerate(op.srcs) if ref.width(k) == 16)
        top = 1 << len(op.srcs) if ref.width(op.dst) == 16 else 0
        for i in range(3):
            pick = rng.randrange(16) & halves | (top if i else 0)
            yield (
                f"op_sel {i}",
                Form(op_sel=pick, exec=(ALL, MASKS[0], ALL)[i], **_mods(op, rng)),
                SMALL,
            )


FormsOf = Callable[[Op], Iterator[tuple[str, Form, int]]]


def _cases_of(rows: list[Op], forms: FormsOf, vop3_only: bool) -> dict[str, list[Case]]:
    return {
        op.name: [
            op_case(op, form, _count(op, n), label, vop3_only) for label, form, n in forms(op)
        ]
        for op in rows
    }


# ---------------------------------------------------------------- compares


def compare_case(op: Op, form: Form, label: str) -> Case:
    """A compare: VCC or s[16:17] afterwards in v20:21, EXEC in v22:23."""
    rng = random.Random(seed_of(op.name + label))
    operands = [operand_text(op, i, form, rng) for i in range(2)]
    fixed = [o[1] for o in operands]
    where = "s[16:17]" if form.suffix == "_e64" else "vcc"
    writes_exec = op.name.startswith("v_cmpx")
    sdwa = f" {' '.join(form.sdwa.text.split()[2:])}" if form.sdwa else ""
    asm = (
        "".join(o[2] for o in operands)
        + set_mask("vcc", ALL)
        + set_sgpr(16, ALL)
        + set_mask("exec", form.exec)
        + f"{op.name}{form.suffix} {where}, {operands[0][0]}, {operands[1][0]}{sdwa}\n"
        + "s_mov_b64 s[12:13], exec\ns_mov_b64 exec, -1\nv_mov_b32 v22, s12\nv_mov_b32 v23, s13\n"
        + (f"s_mov_b64 s[12:13], {where}\nv_mov_b32 v20, s12\nv_mov_b32 v21, s13\n")
    )

    def expect(lanes: Array) -> list[Array]:
        values = []
        for i, kind in enumerate(op.srcs):
            bits = lanes[:, i] if fixed[i] is None else np.full(len(lanes), fixed[i], U64)
            if form.sdwa:
                bits = form.sdwa.source(bits, i)
            if ref.width(kind) < 64:
                bits = bits & U64((1 << ref.width(kind)) - 1)
            values.append(
                ref.decode(
                    apply_mods(bits, kind, bool(form.neg >> i & 1), bool(form.abs >> i & 1)), kind
                )
            )
        hits = (op.fn(*values) & exec_lanes(form.exec, len(lanes))).reshape(-1, 64)
        mask = (hits.astype(U64) << np.arange(64, dtype=U64)).sum(axis=1, dtype=U64).repeat(64)
        words = np.zeros((len(lanes), 4), np.uint32)
        place(words, 0, "u64", mask)
        place(words, 64, "u64", mask if writes_exec else np.full(len(lanes), form.exec, U64))
        return [words]

    inputs = lane_inputs(op.srcs, PLAIN if label == "plain" else SMALL, seed_of(op.name + label))
    return Case(f"{op.name}{form.suffix} {label}", asm, inputs, expect)


def compare_cases(op: Op) -> list[Case]:
    rng = random.Random(seed_of(op.name))
    forms = [
        ("plain", Form("_e32")),
        ("exec", Form("_e32", {0: "const"}, exec=MASKS[0])),
        ("e64", Form("_e64", exec=MASKS[1], **_mods(op, rng))),
        ("sgpr", Form("_e64", {1: "sgpr"}, **_mods(op, rng))),
    ]
    if "nosdwa" not in op.flags:
        forms.append(
            ("sdwa", Form("_sdwa", sdwa=_random_sdwa(op, rng), exec=MASKS[3], **_mods(op, rng)))
        )
    return [compare_case(op, form, label) for label, form in forms]


CASES: dict[str, list[Case]] = {
    **_cases_of(ops.VOP1 + ops.VOP2, vop12_forms, False),
    **_cases_of(ops.VOP3, vop3_forms, True),
    **{op.name: compare_cases(op) for op in ops.VOPC},
}


@pytest.fixture(scope="module", params=ARCHS)
def book(request: pytest.FixtureRequest) -> Book:
    return Book([case for cases in CASES.values() for case in cases], request.param)


@pytest.mark.parametrize("name", CASES)
def test_opcode(book: Book, name: str) -> None:
    book.run(CASES[name])
