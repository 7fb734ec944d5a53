"""Every comparison of every type, the *_saveexec family, scalar registers by number."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from support.vgpu.kernel_harness import Array, Launch, Made, Rng, case, poisoned

from .inputs import edges, f16, f32, f64, i16, i32, i64, u16, u32, u64, wild_floats, wrap
from .words import M64


def comparison_values(rng: Rng, dtype: DTypeLike, n: int) -> tuple[Array, Array]:
    if np.dtype(dtype).kind == "f":
        a, b = wild_floats(rng, n, dtype), wild_floats(rng, n, dtype)
    else:
        a, b = edges(rng, n, dtype), rng.permutation(edges(rng, n, dtype))
    b[::5] = a[::5]
    return a, b


def conditions(a: Array, b: Array) -> list[Array]:
    always_false, always = np.zeros(a.shape, bool), np.ones(a.shape, bool)
    with np.errstate(invalid="ignore"):
        base = [always_false, a < b, a == b, a <= b, a > b]
        if a.dtype.kind != "f":
            return [*base, a != b, a >= b, always]
        unordered = np.isnan(a) | np.isnan(b)
        less_greater = (a < b) | (a > b)
        return [
            *base,
            less_greater,
            a >= b,
            ~unordered,
            unordered,
            ~(a >= b),
            ~less_greater,
            ~(a > b),
            ~(a <= b),
            a != b,
            ~(a < b),
            always,
        ]


def compare_all_case(name: str, dtype: DTypeLike) -> None:
    @case("asm_masks", f"compare_all_{name}")
    def make(rng: Rng) -> Made:
        n = 512
        a, b = comparison_values(rng, dtype, n)
        condition_bits = sum(t.astype(u32) << i for i, t in enumerate(conditions(a, b)))
        return Launch(
            f"compare_all_{name}",
            (2,),
            (256,),
            [poisoned(n, u32), a, b],
            {0: condition_bits.astype(u32)},
        )


for _name, _type in {
    "i16": i16,
    "u16": u16,
    "i32": i32,
    "u32": u32,
    "i64": i64,
    "u64": u64,
    "f16": f16,
    "f32": f32,
    "f64": f64,
}.items():
    compare_all_case(_name, _type)


@case("asm_masks")
def compare_exec(rng: Rng) -> Made:
    n = 256
    a, b = comparison_values(rng, f32, n)
    f = conditions(a, b)
    s, u = conditions(a.view(i32), b.view(i32)), conditions(a.view(u32), b.view(u32))
    tests = [
        f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[11], f[14], f[15], s[1], s[2],
        u[3], u[4], s[5], u[6],
    ]  # fmt: skip
    condition_bits = sum(t.astype(u32) << i for i, t in enumerate(tests))
    return Launch(
        "compare_exec", (1,), (256,), [poisoned(n, u32), a, b], {0: condition_bits.astype(u32)}
    )


@case("asm_masks")
def save_exec(rng: Rng) -> Made:
    launches = []
    for e, s in (
        (M64, 0x00FF00FF12345678),
        (0xF0F0F0F0F0F0F0F0, 0x0F0F0F0F0F0F0F0F),
        (0, M64),
        (1, 0),
    ):
        saving = [s & e, s | e, s ^ e, s & ~e, s | ~e, ~(s & e), ~(s | e), ~(s ^ e), ~s & e, ~s | e]
        out = []
        for mask in saving:
            out += [e, mask & M64, int(mask & M64 != 0)]
        for mask in (~s & e, s & ~e):
            out += [mask & M64, mask & M64, int(mask & M64 != 0)]
        launches.append(
            Launch(
                "save_exec",
                (1,),
                (64,),
                [poisoned(len(out), u64), u64(e), u64(s)],
                {0: wrap(out, u64)},
            )
        )
    return launches


@case("asm_masks")
def scalar_moves(rng: Rng) -> Made:
    return [
        Launch(
            "scalar_moves",
            (1,),
            (64,),
            [poisoned(3, u32), u32(33), u32(7), u32(index)],
            {0: np.array([99 if index == 1 else 22, 26, 4], u32)},
        )
        for index in (1, 2)
    ]
