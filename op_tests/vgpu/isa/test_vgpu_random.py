"""Random straight-line programs over VALU and SALU against a scalar model in numpy.

A program has 60 instructions drawn from the tables of support.vgpu.valu_ops and salu_ops, over 16
vector and 16 scalar registers, VCC, SCC and EXEC; afterwards every register of every lane is
compared. A NaN's bits are not defined, so a float result is followed by instructions that replace
NaN by one pattern. A program that differs is cut down to the first instruction after which the
states differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from support.vgpu import reference as ref
from support.vgpu import salu_ops as salu
from support.vgpu import valu_ops as valu
from support.vgpu.asm import LANES, Snippets
from support.vgpu.cases import (
    ALL,
    ARCHS,
    U64,
    Form,
    apply_mods,
    evaluate,
    inline_constant,
    set_mask,
    specials,
)
from support.vgpu.reference import Array, Op
from support.vgpu.salu_ops import ScalarOp, Scalars
from support.vgpu.swizzle import DPP_CONTROLS, SDWA_SELECTS, Dpp, Sdwa

PROGRAMS, LENGTH = 100, 60
BASE, COUNT = 30, 16  # v30..v45 and s30..s45
ROW = 40  # dwords a lane that are compared: v, s, vcc, exec, scc
MASK32 = U64(0xFFFFFFFF)
CANONICAL = {"f16": 0x7E00, "f32": 0x7FC00000, "f64": 0x7FF8000000000000}


@dataclass
class Machine:
    """Registers of one wave."""

    v: Array  # uint32 [16, 64]
    s: list[int]
    vcc: int
    exec: int = ALL
    scc: bool = False

    def lanes(self) -> Array:
        return np.array([self.exec >> i & 1 for i in range(LANES)], bool)

    def vector(self, reg: int, bits: int) -> Array:
        low = self.v[reg - BASE].astype(U64)
        return low | self.v[reg - BASE + 1].astype(U64) << U64(32) if bits == 64 else low

    def set_vector(self, reg: int, bits: int, value: Array, active: Array) -> None:
        parts = [value & MASK32, value >> U64(32)] if bits == 64 else [value & MASK32]
        for i, part in enumerate(parts):
            row = self.v[reg - BASE + i]
            row[active] = part.astype(np.uint32)[active]

    def scalar(self, reg: int, bits: int) -> int:
        return self.s[reg - BASE] | (self.s[reg - BASE + 1] << 32 if bits == 64 else 0)

    def set_scalar(self, reg: int, bits: int, value: int) -> None:
        self.s[reg - BASE] = value & 0xFFFFFFFF
        if bits == 64:
            self.s[reg - BASE + 1] = value >> 32 & 0xFFFFFFFF

    def dump(self) -> Array:
        out = np.zeros((LANES, ROW), np.uint32)
        out[:, :COUNT] = self.v.T
        words = [
            *self.s,
            self.vcc & 0xFFFFFFFF,
            self.vcc >> 32,
            self.exec & 0xFFFFFFFF,
            self.exec >> 32,
            self.scc,
        ]
        out[:, COUNT : COUNT + len(words)] = np.array([int(w) for w in words], np.uint32)
        return out


@dataclass
class Instruction:
    text: str
    step: Callable[[Machine], None]


@dataclass
class Program:
    init: str
    start: Callable[[Array], Machine]
    body: list[Instruction] = field(default_factory=list)

    def source(self, length: int) -> str:
        return self.init + "".join(i.text + "\n" for i in self.body[:length]) + SHOW

    def run_model(self, inputs: Array, length: int) -> Array:
        machine = self.start(inputs)
        for instruction in self.body[:length]:
            instruction.step(machine)
        return machine.dump()


def _show() -> str:
    """Every register to memory: v46.. get the scalars, the last quad leaves through v[20:23]."""
    scalars = [*[f"s{BASE + i}" for i in range(COUNT)], "vcc_lo", "vcc_hi", "s8", "s9", "s10"]
    text = "s_cselect_b32 s10, 1, 0\ns_mov_b64 s[8:9], exec\ns_mov_b64 exec, -1\n"
    text += f"v_mul_u32_u24 v3, {ROW * 4}, v0\n"
    text += "".join(f"v_mov_b32 v{46 + i}, {name}\n" for i, name in enumerate(scalars))
    text += "".join(f"v_mov_b32 v{46 + i}, 0\n" for i in range(len(scalars), ROW - COUNT))
    for quad in range(ROW // 4 - 1):
        first = BASE + 4 * quad
        text += f"global_store_dwordx4 v3, v[{first}:{first + 3}], s[6:7] offset:{16 * quad}\n"
    last = BASE + ROW - 4
    text += "".join(f"v_mov_b32 v{20 + i}, v{last + i}\n" for i in range(4))
    return text + f"v_add_u32 v2, {16 * (ROW // 4 - 1)}, v3\n"


SHOW = _show()


# ---------------------------------------------------------------- operands


def pick_vector(rng: random.Random, bits: int) -> int:
    return BASE + (2 * rng.randrange(COUNT // 2) if bits == 64 else rng.randrange(COUNT))


def name_of(reg: int, bits: int, letter: str) -> str:
    return f"{letter}[{reg}:{reg + 1}]" if bits == 64 else f"{letter}{reg}"


Reader = Callable[[Machine], Array]


def vector_source(rng: random.Random, bits: int) -> tuple[str, Reader]:
    reg = pick_vector(rng, bits)
    return name_of(reg, bits, "v"), lambda m: m.vector(reg, bits)


def uniform_source(rng: random.Random, kind: str) -> tuple[str, Reader]:
    """An SGPR or an inline constant."""
    bits = 64 if ref.width(kind) == 64 else 32
    if rng.random() < 0.5:
        text, value = inline_constant(kind, rng)
        return text, lambda m: np.full(LANES, value, U64)
    reg = pick_vector(rng, bits)
    return name_of(reg, bits, "s"), lambda m: np.full(LANES, m.scalar(reg, bits), U64)


def trim(bits: Array, kind: str) -> Array:
    return bits & U64((1 << ref.width(kind)) - 1)


# ---------------------------------------------------------------- vector instructions


def exact_bits(op: Op) -> bool:
    """Rows whose result is defined to the bit but for NaN."""
    packed = op.dst == "pkf16" or any(k in ("h32", "b32") for k in op.srcs)
    halves = op.dst == "f16" and (op in valu.VOP3 and "zero" not in op.flags)
    return not op.ulp and not packed and not halves and not op.flags & {"ftz", "dotf"}


VECTOR_OPS = [op for op in valu.VOP1 + valu.VOP2 + valu.VOP3 if exact_bits(op)]
VOP12 = {op.name for op in valu.VOP1 + valu.VOP2}
_SWIZZLED = [
    op
    for op in valu.VOP1 + valu.VOP2
    if exact_bits(op)
    and all(ref.width(k) < 64 for k in [*op.srcs, op.dst])
    and "no32" not in op.flags
]


def canonical_nan(kind: str, reg: int) -> str:
    """Instructions that give every NaN of a result one pattern."""
    wide = ref.width(kind) == 64
    name = name_of(reg, 64 if wide else 32, "v")
    text = f"v_cmp_u_{kind} s[8:9], {name}, {name}\n"
    if wide:
        return (
            text
            + f"v_cndmask_b32 v{reg}, v{reg}, 0, s[8:9]\nv_mov_b32 v3, {CANONICAL[kind] >> 32:#x}\n"
            f"v_cndmask_b32 v{reg + 1}, v{reg + 1}, v3, s[8:9]"
        )
    return text + f"v_mov_b32 v3, {CANONICAL[kind]:#x}\nv_cndmask_b32 v{reg}, v{reg}, v3, s[8:9]"


def store_result(m: Machine, op: Op, reg: int, bits: Array, active: Array, keep: bool) -> None:
    if ref.is_float(op.dst):
        nan = np.isnan(ref.decode(bits, op.dst))
        bits = np.where(nan, U64(CANONICAL[op.dst]), bits)
    width = ref.width(op.dst)
    if width == 16 and keep:
        bits = bits | m.vector(reg, 32) & U64(0xFFFF0000)
    m.set_vector(reg, 64 if width == 64 else 32, bits, active)


def vector_instruction(rng: random.Random, arch: str) -> Instruction:
    op = rng.choice([o for o in VECTOR_OPS if arch == "gfx950" or "gfx950" not in o.flags])
    short = op.name in VOP12
    e64 = not short or "no32" in op.flags or rng.random() < 0.4
    reg = pick_vector(rng, ref.width(op.dst))
    uniform = rng.randrange(len(op.srcs)) if e64 else 0
    uniform = uniform if rng.random() < 0.3 else -1
    texts, readers, mods = [], [], []
    for i, kind in enumerate(op.srcs):
        text, reader = (
            uniform_source(rng, kind)
            if i == uniform
            else vector_source(rng, 64 if ref.width(kind) == 64 else 32)
        )
        negate, absolute = (e64 and ref.is_float(kind) and rng.random() < 0.3 for _ in range(2))
        text = f"|{text}|" if absolute else text
        texts.append((f"neg({text})" if i == uniform else f"-{text}") if negate else text)
        readers.append(reader)
        mods.append((negate, absolute))
    clamp = e64 and "sat" in op.flags and rng.random() < 0.3
    suffix = ("_e64" if e64 else "_e32") if short else ""
    dst = name_of(reg, 64 if ref.width(op.dst) == 64 else 32, "v")
    text = f"{op.name}{suffix} {', '.join([dst, *texts])}{' clamp' if clamp else ''}"
    if ref.is_float(op.dst):
        text += "\n" + canonical_nan(op.dst, reg)
    keep = not short and "zero" not in op.flags

    def step(m: Machine) -> None:
        values = [
            apply_mods(trim(read(m), kind), kind, *mod)
            for read, kind, mod in zip(readers, op.srcs, mods, strict=True)
        ]
        if "acc" in op.flags:
            values.append(trim(m.vector(reg, 64 if ref.width(op.dst) == 64 else 32), op.dst))
        bits = evaluate(op, values, Form(clamp=clamp), LANES)[0]
        store_result(m, op, reg, bits, m.lanes(), keep)

    return Instruction(text, step)


def swizzled_instruction(rng: random.Random, arch: str) -> Instruction:
    """A VOP1 or VOP2 with DPP or SDWA, where the destination may be a source."""
    op = rng.choice([o for o in _SWIZZLED if arch == "gfx950" or "gfx950" not in o.flags])
    use_sdwa = "nosdwa" not in op.flags and not ref.is_float(op.dst) and rng.random() < 0.5
    reg = pick_vector(rng, 32)
    sources = [vector_source(rng, 32) for _ in op.srcs]
    dpp = Dpp(
        rng.choice(DPP_CONTROLS),
        rng.choice((15, 15, 9)),
        rng.choice((15, 15, 6)),
        rng.random() < 0.5,
    )
    sext = tuple(not ref.is_float(kind) and rng.random() < 0.5 for kind in op.srcs)
    sdwa = Sdwa(
        tuple(rng.choice(SDWA_SELECTS) for _ in op.srcs),
        sext,
        rng.choice(SDWA_SELECTS),
        rng.choice(("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")),
    )
    texts = [f"sext({t})" if use_sdwa and sext[i] else t for i, (t, _) in enumerate(sources)]
    suffix, options = ("_sdwa", sdwa.text) if use_sdwa else ("_dpp", dpp.text)
    text = f"{op.name}{suffix} v{reg}, {', '.join(texts)} {options}"
    if ref.is_float(op.dst):
        text += "\n" + canonical_nan(op.dst, reg)

    def step(m: Machine) -> None:
        raw, active, old = [read(m) for _, read in sources], m.lanes(), m.vector(reg, 32)
        if use_sdwa:
            raw = [sdwa.source(bits, i) for i, bits in enumerate(raw)]
        else:
            raw[0], active = dpp.apply(raw[0], active)
        values = [trim(bits, kind) for bits, kind in zip(raw, op.srcs, strict=True)]
        if "acc" in op.flags:
            values.append(trim(old, op.dst))
        bits = evaluate(op, values, Form(), LANES)[0]
        if use_sdwa:
            m.set_vector(reg, 32, sdwa.result(bits, old), active)
            return
        store_result(m, op, reg, bits, active, False)
        if ref.is_float(op.dst):  # the canonical NaN also reaches active lanes that DPP left out
            store_result(
                m,
                op,
                reg,
                trim(m.vector(reg, 32), op.dst),
                m.lanes() & np.isnan(ref.decode(trim(m.vector(reg, 32), op.dst), op.dst)),
                False,
            )

    return Instruction(text, step)


def to_mask(hits: Array) -> int:
    return sum(1 << int(i) for i in np.flatnonzero(hits))


def of_mask(mask: int) -> Array:
    return np.array([mask >> i & 1 for i in range(LANES)], bool)


_COMPARES = [op for op in valu.VOPC if op.name.startswith("v_cmp_")]


def compare_instruction(rng: random.Random) -> Instruction:
    op = rng.choice(_COMPARES)
    to_vcc = rng.random() < 0.6
    reg = pick_vector(rng, 64)
    sources = [vector_source(rng, 64 if ref.width(kind) == 64 else 32) for kind in op.srcs]
    where = "vcc" if to_vcc else name_of(reg, 64, "s")
    text = f"{op.name}_e64 {where}, {sources[0][0]}, {sources[1][0]}"

    def step(m: Machine) -> None:
        args = [
            ref.decode(trim(read(m), kind), kind)
            for (_, read), kind in zip(sources, op.srcs, strict=True)
        ]
        mask = to_mask(op.fn(*args) & m.lanes())
        if to_vcc:
            m.vcc = mask
        else:
            m.set_scalar(reg, 64, mask)

    return Instruction(text, step)


_CARRIES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add_co_u32": lambda a, b, c: a + b,
    "v_addc_co_u32": lambda a, b, c: a + b + c,
    "v_sub_co_u32": lambda a, b, c: a - b,
    "v_subb_co_u32": lambda a, b, c: a - b - c,
}


def mask_instruction(rng: random.Random) -> Instruction:
    """Carries and selects through VCC."""
    reg, a, b = (pick_vector(rng, 32) for _ in range(3))
    if rng.random() < 0.4:

        def select(m: Machine) -> None:
            m.set_vector(
                reg, 32, np.where(of_mask(m.vcc), m.vector(b, 32), m.vector(a, 32)), m.lanes()
            )

        return Instruction(f"v_cndmask_b32 v{reg}, v{a}, v{b}, vcc", select)
    name = rng.choice(list(_CARRIES))
    takes = "c_co" in name or "bb" in name

    def step(m: Machine) -> None:
        x, y = (m.vector(r, 32).astype(np.int64) for r in (a, b))
        exact = _CARRIES[name](x, y, of_mask(m.vcc).astype(np.int64))
        active = m.lanes()
        m.vcc = to_mask((exact < 0) | (exact > 0xFFFFFFFF)) & m.exec
        m.set_vector(reg, 32, exact.astype(U64), active)

    return Instruction(f"{name} v{reg}, vcc, v{a}, v{b}{', vcc' if takes else ''}", step)


def lane_instruction(rng: random.Random) -> Instruction:
    reg, scalar, lane = pick_vector(rng, 32), pick_vector(rng, 32), rng.randrange(LANES)
    which = rng.randrange(3)
    if which == 0:
        return Instruction(
            f"v_readlane_b32 s{scalar}, v{reg}, {lane}",
            lambda m: m.set_scalar(scalar, 32, int(m.v[reg - BASE][lane])),
        )
    if which == 1:

        def write(m: Machine) -> None:
            m.v[reg - BASE][lane] = m.s[scalar - BASE]

        return Instruction(f"v_writelane_b32 v{reg}, s{scalar}, {lane}", write)

    def first(m: Machine) -> None:
        low = (m.exec & -m.exec).bit_length() - 1 if m.exec else 0
        m.set_scalar(scalar, 32, int(m.v[reg - BASE][low]))

    return Instruction(f"v_readfirstlane_b32 s{scalar}, v{reg}", first)


# ---------------------------------------------------------------- scalar instructions

_SCALAR_OPS = salu.SOP1 + salu.SOP2 + salu.SOPC + salu.SOPK


def scalar_instruction(rng: random.Random) -> Instruction:
    op = rng.choice(_SCALAR_OPS)
    widths = op.widths
    reg = pick_vector(rng, widths[0] or 32)
    regs = [pick_vector(rng, bits) for bits in widths[1:]]
    imm = rng.randrange(0x10000)
    names = [name_of(r, bits, "s") for r, bits in zip(regs, widths[1:], strict=True)]
    dst = [name_of(reg, widths[0] or 32, "s")] if widths[0] or op.imm else []
    text = f"{op.name} {', '.join([*dst, *names, *([f'{imm:#x}'] if op.imm else [])])}"

    def step(m: Machine) -> None:
        values = [m.scalar(r, bits) for r, bits in zip(regs, widths[1:], strict=True)]
        a, b = ([*values, 0, 0])[:2]
        state = Scalars(a, imm if op.imm else b, m.scalar(reg, widths[0] or 32), m.scc, m.exec)
        apply_scalar(m, op, reg, state)

    return Instruction(text, step)


def apply_scalar(m: Machine, op: ScalarOp, reg: int, state: Scalars) -> None:
    value, scc = op.fn(state)
    if op.writes_exec:
        m.exec = op.writes_exec(state)
    if value is not None:
        m.set_scalar(reg, op.widths[0], value & ((1 << op.widths[0]) - 1))
    if scc is not None:
        m.scc = bool(scc)


def exec_instruction(rng: random.Random) -> Instruction:
    if rng.random() < 0.4:

        def restore(m: Machine) -> None:
            m.exec = ALL

        return Instruction("s_mov_b64 exec, -1", restore)
    op = rng.choice(salu.EXEC_OPS)
    reg, source = pick_vector(rng, 64), pick_vector(rng, 64)
    return Instruction(
        f"{op.name} {name_of(reg, 64, 's')}, {name_of(source, 64, 's')}",
        lambda m: apply_scalar(
            m, op, reg, Scalars(m.scalar(source, 64), d=m.scalar(reg, 64), scc=m.scc, exec=m.exec)
        ),
    )


# ---------------------------------------------------------------- programs


def instruction(rng: random.Random, arch: str) -> Instruction:
    return rng.choices(
        [
            lambda: vector_instruction(rng, arch),
            lambda: swizzled_instruction(rng, arch),
            lambda: compare_instruction(rng),
            lambda: mask_instruction(rng),
            lambda: lane_instruction(rng),
            lambda: scalar_instruction(rng),
            lambda: exec_instruction(rng),
        ],
        weights=(42, 12, 8, 8, 5, 20, 5),
    )[0]()


def make_program(seed: int, arch: str) -> Program:
    rng = random.Random(seed)
    flips = [rng.choice([0, 0, rng.getrandbits(32)]) for _ in range(COUNT)]
    pool = [int(v) for v in specials("u32")]
    scalars = [rng.choice([rng.getrandbits(32), rng.choice(pool)]) for _ in range(COUNT)]
    vcc = rng.getrandbits(64)
    init = "".join(
        f"v_xor_b32 v{BASE + i}, {flip:#x}, v{8 + i % 8}\n" for i, flip in enumerate(flips)
    )
    init += "".join(f"s_mov_b32 s{BASE + i}, {value:#x}\n" for i, value in enumerate(scalars))
    init += set_mask("vcc", vcc) + "s_cmp_lg_u32 s0, s0\n"

    def start(inputs: Array) -> Machine:
        words = inputs.view(np.uint32).reshape(LANES, 8)
        v = np.stack([words[:, i % 8] ^ np.uint32(flip) for i, flip in enumerate(flips)])
        return Machine(v, list(scalars), vcc)

    return Program(init, start, [instruction(rng, arch) for _ in range(LENGTH)])


def program_inputs(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    floats = (rng.standard_normal((LANES, 8)) * np.exp2(rng.integers(-20, 20, (LANES, 8)))).astype(
        np.float32
    )
    words = np.where(
        rng.random((LANES, 8)) < 0.5,
        floats.view(np.uint32),
        rng.integers(0, 1 << 32, (LANES, 8), dtype=np.uint32),
    )
    words = np.where(
        rng.random((LANES, 8)) < 0.2,
        rng.choice(specials("f32").astype(np.uint32), (LANES, 8)),
        words,
    )
    return np.ascontiguousarray(words).view(U64)


def first_wrong(program: Program, inputs: Array, arch: str) -> str:
    """The first instruction after which machine and model differ, and where."""
    snippets = Snippets([program.source(n) for n in range(LENGTH + 1)], arch)
    names = (
        [f"v{BASE + i}" for i in range(COUNT)]
        + [f"s{BASE + i}" for i in range(COUNT)]
        + ["vcc_lo", "vcc_hi", "exec_lo", "exec_hi", "scc"]
    )
    for n in range(LENGTH + 1):
        actual, want = snippets.run(n, inputs, ROW), program.run_model(inputs, n)
        if (actual != want).any():
            bad = np.argwhere(actual != want)
            lane, column = bad[0]
            previous = program.run_model(inputs, n - 1) if n else want
            text = program.body[n - 1].text if n else "the initial state"
            state = " ".join(
                f"{name}={value:08x}" for name, value in zip(names, previous[lane], strict=False)
            )
            return (
                f"instruction {n} of {LENGTH}: {text}\n"
                f"{len(bad)} values differ, first lane {lane} {names[column]}: "
                f"got {actual[lane, column]:08x}, want {want[lane, column]:08x}\nbefore: {state}"
            )
    return "each prefix agrees: the outcome depends on what was run before"


@pytest.fixture(scope="module", params=ARCHS)
def batch(request: pytest.FixtureRequest) -> tuple[str, list[Program], Snippets]:
    arch = request.param
    programs = [make_program(seed, arch) for seed in range(PROGRAMS)]
    return arch, programs, Snippets([p.source(LENGTH) for p in programs], arch)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_program(batch: tuple[str, list[Program], Snippets], seed: int) -> None:
    arch, programs, snippets = batch
    inputs = program_inputs(seed)
    if (snippets.run(seed, inputs, ROW) != programs[seed].run_model(inputs, LENGTH)).any():
        pytest.fail(f"{arch} seed {seed}: {first_wrong(programs[seed], inputs, arch)}")


def test_model_covers_tables() -> None:
    """All rows that are exact to the bit can appear."""
    drawn = {
        i.text.split()[0]
        .removesuffix("_e64")
        .removesuffix("_e32")
        .removesuffix("_dpp")
        .removesuffix("_sdwa")
        for seed in range(PROGRAMS)
        for i in make_program(seed, "gfx950").body
    }
    missing = {op.name for op in VECTOR_OPS} - drawn
    assert len(missing) < len(VECTOR_OPS) // 20, sorted(missing)
