"""Atomics of the virtual GPU, in every address family, against numpy one lane after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from support.vgpu.asm import LANES, Module, code_object
from support.vgpu.memory import (
    LANE,
    LDS_BYTES,
    MASKS,
    OLD,
    Array,
    Batch,
    Case,
    active,
    assert_same,
    random_bytes,
)

Rmw = Callable[[int, int, int], int]  # old, new value or addend, second operand


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _f32(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def _f64(bits: int) -> np.float64:
    return np.uint64(bits).view(np.float64)


def _bits(value: np.generic) -> int:
    return int(value.view(np.uint32 if value.nbytes == 4 else np.uint64))


def _pk_f16(old: int, a: int, _: int) -> int:
    halves = [np.uint16(v >> s & 0xFFFF).view(np.float16) for s in (0, 16) for v in (old, a)]
    low, high = halves[0] + halves[1], halves[2] + halves[3]
    return int(low.view(np.uint16)) | int(high.view(np.uint16)) << 16


def _bf16(value: np.float32) -> int:
    bits = _bits(value)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def _pk_bf16(old: int, a: int, _: int) -> int:
    low = _f32((old & 0xFFFF) << 16) + _f32((a & 0xFFFF) << 16)
    high = _f32(old & 0xFFFF0000) + _f32(a & 0xFFFF0000)
    return _bf16(low) | _bf16(high) << 16


def _integer_ops(bits: int) -> dict[str, Rmw]:
    ones = (1 << bits) - 1
    return {
        "swap": lambda o, a, b: a,
        "cmpswap": lambda o, a, b: a if o == b else o,
        "add": lambda o, a, b: (o + a) & ones,
        "sub": lambda o, a, b: (o - a) & ones,
        "rsub": lambda o, a, b: (a - o) & ones,
        "smin": lambda o, a, b: min(o, a, key=lambda v: _signed(v, bits)),
        "smax": lambda o, a, b: max(o, a, key=lambda v: _signed(v, bits)),
        "umin": lambda o, a, b: min(o, a),
        "umax": lambda o, a, b: max(o, a),
        "and": lambda o, a, b: o & a,
        "or": lambda o, a, b: o | a,
        "xor": lambda o, a, b: o ^ a,
        "inc": lambda o, a, b: 0 if o >= a else o + 1,
        "dec": lambda o, a, b: a if o == 0 or o > a else o - 1,
        "mskor": lambda o, a, b: (o & ~a) | b,
        "wrap": lambda o, a, b: (o - a if o >= a else o + b) & ones,
    }


def _condxchg32(old: int, a: int, _: int) -> int:
    halves = [
        (a >> s & 0x7FFFFFFF) if a >> (s + 31) & 1 else old >> s & 0xFFFFFFFF for s in (0, 32)
    ]
    return halves[0] | halves[1] << 32


OPS = {bits: _integer_ops(bits) for bits in (32, 64)}


class Atomic(NamedTuple):
    name: str  # unique
    text: str  # with {rtn}, {dst} and {sc0} where there are two forms
    bits: int
    kind: str  # of the values: "int", "f32", "f64", "pk_f16", "pk_bf16"
    rmw: Rmw
    local: str = ""
    operands: str = "a"  # data registers: "a", "ab" (b behind or in data1), "ba" (compare first)
    only_return: bool = False


def _regs(first: int, dwords: int) -> str:
    return f"v{first}" if dwords == 1 else f"v[{first}:{first + dwords - 1}]"


ADDRESSES = {
    "flat": "flat_atomic_{op} {dst}v[8:9], {data}{sc0}",
    "global": "global_atomic_{op} {dst}v10, {data}, s[8:9]{sc0}",
    "buffer": "buffer_atomic_{op} {data}, v10, s[16:19], 0 offen{sc0}",
}
# Float atomics of the caches keep denormals: LLVM gives ISA 9.4 and 9.5 the feature
# FeatureMemoryAtomicFAddF32DenormalSupport, and selects global_atomic_add_f32 for an atomicrmw fadd
# whose function keeps f32 denormals.
CACHE_FLOATS: dict[str, tuple[int, str, Rmw]] = {
    "add_f32": (32, "f32", lambda o, a, b: _bits(_f32(o) + _f32(a))),
    "add_f64": (64, "f64", lambda o, a, b: _bits(_f64(o) + _f64(a))),
    "min_f64": (64, "f64", lambda o, a, b: _bits(min(_f64(o), _f64(a)))),
    "max_f64": (64, "f64", lambda o, a, b: _bits(max(_f64(o), _f64(a)))),
    "pk_add_f16": (32, "pk_f16", _pk_f16),
    "pk_add_bf16": (32, "pk_bf16", _pk_bf16),
}
CACHE_INTEGERS = (
    "swap",
    "cmpswap",
    "add",
    "sub",
    "smin",
    "smax",
    "umin",
    "umax",
    "and",
    "or",
    "xor",
    "inc",
    "dec",
)


def _cache_atomics() -> list[Atomic]:
    out = []
    for family, form in ADDRESSES.items():
        for bits in (32, 64):
            for op in CACHE_INTEGERS:
                dwords = bits // 32 * (2 if op == "cmpswap" else 1)
                text = form.replace("{op}", op + ("_x2" if bits == 64 else "")).replace(
                    "{data}", _regs(24, dwords)
                )
                out.append(
                    Atomic(
                        f"{family} {op}{bits}",
                        text,
                        bits,
                        "int",
                        OPS[bits][op],
                        operands="ab" if op == "cmpswap" else "a",
                    )
                )
        for op, (bits, kind, rmw) in CACHE_FLOATS.items():
            text = form.replace("{op}", op).replace("{data}", _regs(24, bits // 32))
            out.append(Atomic(f"{family} {op}", text, bits, kind, rmw))
    return out


DS_INTEGERS = {  # mnemonic: suffix letter, operation, data registers
    "add_u": ("add", "a"),
    "sub_u": ("sub", "a"),
    "rsub_u": ("rsub", "a"),
    "inc_u": ("inc", "a"),
    "dec_u": ("dec", "a"),
    "min_i": ("smin", "a"),
    "max_i": ("smax", "a"),
    "min_u": ("umin", "a"),
    "max_u": ("umax", "a"),
    "and_b": ("and", "a"),
    "or_b": ("or", "a"),
    "xor_b": ("xor", "a"),
    "mskor_b": ("mskor", "ab"),
    "cmpst_b": ("cmpswap", "ba"),
}
DS_FLOATS: dict[str, tuple[int, str, Rmw]] = {
    "add_f32": (32, "f32", lambda o, a, b: _bits(_f32(o) + _f32(a))),
    "min_f32": (32, "f32", lambda o, a, b: _bits(min(_f32(o), _f32(a)))),
    "max_f32": (32, "f32", lambda o, a, b: _bits(max(_f32(o), _f32(a)))),
    "add_f64": CACHE_FLOATS["add_f64"],
    "min_f64": CACHE_FLOATS["min_f64"],
    "max_f64": CACHE_FLOATS["max_f64"],
    "pk_add_f16": CACHE_FLOATS["pk_add_f16"],
    "pk_add_bf16": CACHE_FLOATS["pk_add_bf16"],
}


def _ds(
    stem: str, suffix: str, bits: int, kind: str, rmw: Rmw, operands: str, only: bool = False
) -> Atomic:
    dwords = bits // 32
    data = ", ".join(_regs(r, dwords) for r in ((24,) if operands == "a" else (24, 26)))
    rtn = "_rtn" if only else "{rtn}"
    text = f"ds_{stem}{rtn}{suffix} {{dst}}v10, {data}"
    return Atomic(f"ds {stem}{suffix}", text, bits, kind, rmw, "ds", operands, only)


def _ds_atomics() -> list[Atomic]:
    out = []
    for bits in (32, 64):
        for name, (op, operands) in DS_INTEGERS.items():
            stem, _, letter = name.partition("_")
            out.append(_ds(stem, f"_{letter}{bits}", bits, "int", OPS[bits][op], operands))
        out.append(_ds("wrxchg", f"_b{bits}", bits, "int", OPS[bits]["swap"], "a", only=True))
        compare = {32: ("f32", _f32), 64: ("f64", _f64)}[bits]
        out.append(
            _ds(
                "cmpst",
                f"_f{bits}",
                bits,
                compare[0],
                lambda o, a, b, f=compare[1]: a if f(o) == f(b) else o,
                "ba",
            )
        )
    for name, (bits, kind, rmw) in DS_FLOATS.items():
        stem, _, suffix = name.rpartition("_")
        out.append(_ds(stem, f"_{suffix}", bits, kind, rmw, "a"))
    out.append(_ds("wrap", "_b32", 32, "int", OPS[32]["wrap"], "ab", only=True))
    out.append(_ds("condxchg32", "_b64", 64, "int", _condxchg32, "a", only=True))
    return out


ATOMICS = {atomic.name: atomic for atomic in [*_cache_atomics(), *_ds_atomics()]}
RESOURCE = "s_mov_b64 s[16:17], s[8:9]\n s_mov_b32 s18, s10\n s_mov_b32 s19, 0\n"


def _operands(atomic: Atomic) -> str:
    """Puts `b` where the instruction wants it: v[24:25] = a, v[26:27] = b, 64 bits each."""
    if atomic.operands == "ba":
        return "v_swap_b32 v24, v26\n v_swap_b32 v25, v27\n"
    if atomic.operands == "ab" and atomic.bits == 32 and not atomic.local:
        return "v_mov_b32 v25, v26\n"
    return ""


def _case(atomic: Atomic, returns: bool) -> Case:
    dst = f"{_regs(20, atomic.bits // 32)}, " if returns else ""
    text = atomic.text.format(rtn="_rtn" if returns else "", dst=dst, sc0=" sc0" if returns else "")
    after = ""
    if returns and atomic.name.startswith("buffer"):  # the data registers receive the old values
        after = "\ns_waitcnt vmcnt(0)\n v_mov_b32 v20, v24\n v_mov_b32 v21, v25"
    # b = the two dwords of the lane's entry in the second half of the memory
    second = (
        "v_lshlrev_b32 v36, 3, v0\n global_load_dwordx2 v[26:27], v36, s[8:9] offset:3584\n"
        "s_waitcnt vmcnt(0)\n"
    )
    return Case(
        f"{atomic.name} {returns}",
        f"{RESOURCE}{second}{_operands(atomic)}{text}{after}",
        atomic.local,
    )


BATCH = Batch(
    [
        _case(atomic, returns)
        for atomic in ATOMICS.values()
        for returns in (False, True)
        if returns or not atomic.only_return
    ]
)
SECOND = 3584  # byte offset of the lanes' second operands in the memory


def _values(kind: str, bits: int, count: int, rng: np.random.Generator) -> Array:
    """Operands as integers; denormals and, for integers, small values among them."""
    if kind == "f32":
        values = rng.normal(size=count).astype(np.float32)
        values[::5] *= np.float32(1e-38)
        return values.view(np.uint32).astype(np.uint64)
    if kind == "f64":
        values = rng.normal(size=count)
        values[::5] *= 1e-308
        return values.view(np.uint64)
    if kind == "pk_f16":
        values = rng.normal(size=2 * count)
        values[::9] *= 1e-7
        return values.astype(np.float16).view(np.uint32).astype(np.uint64)
    if kind == "pk_bf16":
        high = rng.normal(size=2 * count).astype(np.float32).view(np.uint32) >> 16
        return (high[::2] | high[1::2] << 16).astype(np.uint64)
    values = rng.integers(0, 1 << bits, count, dtype=np.uint64)
    values[::3] %= 8
    return values


def _prepare(atomic: Atomic, seed: int) -> tuple[Array, Array, Array, Array]:
    """Memory (old values and second operands), slot of each lane (shared ones too), a, b."""
    rng = np.random.default_rng(seed)
    size = atomic.bits // 8
    memory = random_bytes(LDS_BYTES, seed)
    dtype = np.uint32 if size == 4 else np.uint64
    slots = rng.integers(0, 48, LANES)
    memory[: 48 * size].view(dtype)[:] = _values(atomic.kind, atomic.bits, 48, rng)
    a, b = (_values(atomic.kind, atomic.bits, LANES, rng) for _ in range(2))
    if "cmp" in atomic.name:  # half of the lanes find what they expect
        b[::2] = memory[: 48 * size].view(dtype)[slots[::2]]
    memory[SECOND : SECOND + 8 * LANES].view(np.uint64)[:] = b
    return memory, slots, a, b


def _expected(atomic: Atomic, memory: Array, slots: Array, a: Array, b: Array, mask: int) -> Array:
    """Updates `memory`; the old values, [2, 64]."""
    dtype = np.uint32 if atomic.bits == 32 else np.uint64
    cells = memory[: 48 * atomic.bits // 8].view(dtype)
    out = np.full((2, LANES), OLD, np.uint32)
    with np.errstate(all="ignore"):
        for lane in np.flatnonzero(active(mask)):
            old = int(cells[slots[lane]])
            cells[slots[lane]] = atomic.rmw(old, int(a[lane]), int(b[lane]))
            for d in range(atomic.bits // 32):
                out[d, lane] = old >> (32 * d) & 0xFFFFFFFF
    return out


@pytest.mark.parametrize("name", ATOMICS)
def test_atomic(name: str) -> None:
    atomic = ATOMICS[name]
    for returns in (True,) if atomic.only_return else (False, True):
        for seed, mask in enumerate(MASKS):
            memory, slots, a, b = _prepare(atomic, seed)
            want = memory.copy()
            old = _expected(atomic, want, slots, a, b, mask)
            actual = BATCH.run(
                f"{name} {returns}",
                memory,
                slots * (atomic.bits // 8),
                mask,
                size=len(memory),
                data=a,
            )
            assert_same(f"{name} returns {returns} mask {mask:x}", memory, want)
            if returns:
                on = active(mask)
                dwords = atomic.bits // 32
                assert_same(
                    f"{name} old values mask {mask:x}", actual[:dwords, on], old[:dwords, on]
                )


# ------------------------------------------------------------------------------ many workgroups

_COUNTER = """
  v_mov_b32 v24, 1
  v_mov_b32 v25, 0
  v_mov_b32 v30, 0
  v_mov_b32 v31, 1.0
  v_readfirstlane_b32 s8, v8
  v_readfirstlane_b32 s9, v9
  global_atomic_add v20, v30, v24, s[8:9] sc0
  global_atomic_add_f32 v30, v31, s[8:9] offset:64
  global_atomic_add_x2 v30, v[24:25], s[8:9] offset:128
  s_waitcnt vmcnt(0)
"""


def test_atomics_of_many_workgroups_lose_nothing() -> None:
    groups = 512
    cells = np.zeros(64, np.uint32)
    lanes = np.zeros((groups * LANES, 4), np.uint64)
    lanes[:, 0] = cells.ctypes.data
    out = np.zeros((groups * LANES, 4), np.uint32)
    module = Module(code_object([_COUNTER], "gfx950"), "gfx950")
    module.launch(
        "k0", groups, LANES, np.array([lanes.ctypes.data, out.ctypes.data], np.uint64).tobytes()
    )
    count = groups * LANES
    assert cells[0] == count
    assert_same(
        "every lane got its own number", np.sort(out[:, 0]), np.arange(count, dtype=np.uint32)
    )
    assert cells[16:17].view(np.float32)[0] == count  # exact: below 2^24
    assert cells[32:34].view(np.uint64)[0] == count


# ------------------------------------------------------------------------------ scalar atomics

_SCALAR = Batch(
    [
        Case(
            f"{prefix}{op}{suffix}",
            "v_readfirstlane_b32 s20, v24\n v_readfirstlane_b32 s21, v25\n"
            f"v_readfirstlane_b32 s22, v26\n v_readfirstlane_b32 s23, v27\n {RESOURCE}"
            f"s_{prefix}atomic_{op}{suffix} {data}, {base}, 0x10 glc\n s_waitcnt lgkmcnt(0)\n"
            "v_mov_b32 v20, s20\n v_mov_b32 v21, s21",
        )
        for prefix, base in (("", "s[8:9]"), ("buffer_", "s[16:19]"))
        for suffix in ("", "_x2")
        for op in CACHE_INTEGERS
        for data in [
            {
                ("", False): "s20",
                ("", True): "s[20:21]",
                ("_x2", False): "s[20:21]",
                ("_x2", True): "s[20:23]",
            }[suffix, op == "cmpswap"]
        ]
    ]
)


@pytest.mark.parametrize("prefix", ["", "buffer_"])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("op", CACHE_INTEGERS)
def test_scalar_atomic(prefix: str, bits: int, op: str) -> None:
    dtype, dwords = (np.uint32, 1) if bits == 32 else (np.uint64, 2)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        memory = random_bytes(64, seed)
        old = int(memory[16:24].view(dtype)[0])
        data = rng.integers(0, 1 << 64, dtype=np.uint64)
        words = [int(data) & 0xFFFFFFFF, int(data) >> 32]
        words += [w ^ 0xFFFFFFFF for w in words]  # v[24:27]
        a = sum(w << (32 * i) for i, w in enumerate(words[:dwords]))
        b = sum(w << (32 * i) for i, w in enumerate(words[dwords : 2 * dwords]))
        if seed % 2:
            memory[16 : 16 + bits // 8].view(dtype)[0] = old = b
        name = f"{prefix}{op}{'_x2' if bits == 64 else ''}"
        actual = _SCALAR.run(name, memory, LANE * 0, size=64, data=np.full(LANES, data))
        assert int(memory[16:24].view(dtype)[0]) == OPS[bits][op](old, a, b), (name, seed)
        assert sum(int(actual[d, 9]) << (32 * d) for d in range(dwords)) == old, (name, seed)
