"""Atomics of every operation, width and address space; workgroups that wait for each other."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Array, Check, Launch, Made, Rng, case, expect, poisoned

from .inputs import edges, f16, f32, f64, i32, i64, integers, small_floats, u16, u32, u64, wrap
from .words import M32, M64


def one_of(values: Array) -> Check:
    def check(actual: Array) -> None:
        assert np.isin(actual, values).all(), f"got {actual}, which no lane wrote"

    return check


def atomics_case(space: str, name: str, dtype: type) -> None:
    @case("atomics", f"{space}_atomics_{name}")
    def make(rng: Rng) -> Made:
        n = 700
        a = edges(rng, n, dtype)
        start = np.array(
            [5, 7, np.iinfo(dtype).max, np.iinfo(dtype).min, -1, 0, 0x55, 0, 3], object
        )
        initial_values = wrap(start, dtype)
        total = sum(map(int, a))
        masks = [int(v) & ((1 << 64) - 1) for v in a]
        bit_and = (1 << 64) - 1
        bit_or = bit_xor = 0
        for m in masks:
            bit_and &= m | 0xF0
            bit_or |= m & 0x0F0F
            bit_xor ^= m
        final = wrap(
            [5 + total, 7 - total, int(a.min()), int(a.max()), bit_and, bit_or, 0x55 ^ bit_xor],
            dtype,
        )
        written = (np.arange(n) + 100).astype(dtype)

        def check(actual: Array) -> None:
            expect(actual[:7], final)
            one_of(written)(actual[7:])

        grid, block = ((3,), (256,)) if space == "global" else ((1,), (1024,))
        return Launch(
            f"{space}_atomics_{name}", grid, block, [initial_values, a, i32(n)], {0: check}
        )


for _space in ("global", "lds"):
    for _name, _dtype in (("i32", i32), ("u32", u32), ("i64", i64), ("u64", u64)):
        atomics_case(_space, _name, _dtype)


def permutation(n: int) -> Check:
    def check(actual: Array) -> None:
        expect(np.sort(actual), np.arange(n).astype(actual.dtype))

    return check


def exchange_chain(n: int, initial: int) -> Check:
    """Every value but the last one written comes back once, and so does the initial one."""

    def check(actual: Array) -> None:
        final_values = sorted(map(int, actual))
        distinct = len(set(final_values)) == n and initial in final_values
        assert distinct, f"lost values: {final_values[:9]}"
        assert all(v == initial or v < n for v in final_values), (
            f"values nobody wrote: {final_values[-9:]}"
        )

    return check


def tickets_case(name: str, dtype: type, initial: int, *, lds: bool = False) -> None:
    @case("atomics", name)
    def make(rng: Rng) -> Made:
        n = 1000 if lds else 2000
        state = poisoned(2, dtype) if lds else np.array([0, initial], dtype)
        args = [poisoned(n, dtype), poisoned(n, dtype), state]
        grid, block = ((1,), (n,)) if lds else ((8,), (256,))

        def check(actual: Array) -> None:
            assert actual[0] == n and actual[1] < n, f"got {actual}"

        return Launch(
            name,
            grid,
            block,
            args if lds else [*args, i32(n)],
            {0: permutation(n), 1: exchange_chain(n, initial), 2: check},
        )


tickets_case("tickets_u32", u32, M32)
tickets_case("tickets_u64", u64, M64)
tickets_case("tickets_lds", u32, M32, lds=True)


@case("atomics")
def flat_atomics(rng: Rng) -> Made:
    n = 500
    a = integers(rng, n, u32)
    odd = a & 1 == 1
    expected = wrap([int(a[~odd].sum(dtype=u64)), int(a[odd].sum(dtype=u64))], u32)

    def check(actual: Array) -> None:
        assert actual[0] <= n, f"got {actual}"

    return Launch(
        "flat_atomics",
        (2,),
        (256,),
        [np.zeros(2, u32), np.zeros(1, u32), a, i32(n)],
        {0: expected, 1: check},
    )


@case("atomics")
def compare_loop(rng: Rng) -> Made:
    n = 400
    a = integers(rng, n, u32, 0, 1000)
    return [
        Launch(
            "compare_loop",
            (2,),
            (256,),
            [np.array([9], u32), a, u32(limit), i32(n)],
            {0: np.array([min(limit, 9 + int(a.sum()))], u32)},
        )
        for limit in (10**9, 100000)
    ]


@case("atomics")
def wrap_counters(rng: Rng) -> Made:
    n = 300
    return Launch(
        "wrap_counters",
        (2,),
        (192,),
        [np.zeros(2, u32), i32(n)],
        {0: np.array([n % 7, -n % 7], u32)},
    )


@case("atomics_float")
def add_loop(rng: Rng) -> Made:
    n = 300
    a = small_floats(rng, n)
    total = a.sum(dtype=f64)
    return Launch(
        "add_loop",
        (2,),
        (256,),
        [np.array([1], f32), np.array([2], f64), a, i32(n)],
        {0: np.array([1 + total], f32), 1: np.array([2 + total])},
    )


@case("atomics_float")
def add_instruction(rng: Rng) -> Made:
    n = 500
    a = small_floats(rng, n)
    total, values = a.sum(dtype=f64), a.astype(f64)
    return Launch(
        "add_instruction",
        (2,),
        (256,),
        [
            np.array([1, 0, 100, -100], f32),
            np.array([2, 100, -100], f64),
            poisoned(n, f32),
            a,
            i32(n),
        ],
        {
            0: np.array([1 + total, n, a.min(), a.max()], f32),
            1: np.array([2 + total, values.min(), values.max()]),
            2: permutation(n),
        },
    )


@case("atomics_float")
def add_lds(rng: Rng) -> Made:
    n = 500
    a = small_floats(rng, n)
    total = a.sum(dtype=f64)
    return Launch(
        "add_lds",
        (2,),
        (256,),
        [np.array([1], f32), np.array([2], f64), a, i32(n)],
        {0: np.array([1 + total], f32), 1: np.array([2 + total])},
    )


@case("atomics_float")
def add_packed(rng: Rng) -> Made:
    n = 200
    a = rng.integers(-1, 2, (n, 2)).astype(f16)
    total = a.sum(0, dtype=f64)
    brain = (total.astype(f32).view(u32) >> 16).astype(u16)
    return Launch(
        "add_packed",
        (1,),
        (256,),
        [np.zeros((2, 2), f16), np.zeros(2, u16), a, i32(n)],
        {0: np.stack([total, total]).astype(f16), 1: brain},
    )


@case("spin")
def ticket_lock(rng: Rng) -> Made:
    grid = 20
    a = integers(rng, grid, u32)
    total = 0
    for v in map(int, a):
        total = (total * 3 + v) & ((1 << 64) - 1)
    return Launch(
        "ticket_lock",
        (grid,),
        (64,),
        [np.zeros(2, u32), np.zeros(1, u64), a],
        {0: np.array([grid, grid], u32), 1: np.array([total], u64)},
    )


@case("spin")
def chained_scan(rng: Rng) -> Made:
    grid = 12
    a = integers(rng, grid * 64, u32)
    return Launch(
        "chained_scan",
        (grid,),
        (64,),
        [poisoned(grid * 64, u32), np.zeros(grid, u32), a],
        {0: np.cumsum(a, dtype=u32), 1: np.ones(grid, u32)},
    )


@case("spin")
def last_block_sums(rng: Rng) -> Made:
    n, grid = 10000, 7
    a = integers(rng, n, u32)
    owner = (np.arange(n) // 256) % grid
    sums = np.array([a[owner == g].sum(dtype=u64) for g in range(grid)], u64)
    return Launch(
        "last_block_sums",
        (grid,),
        (256,),
        [poisoned(1, u64), poisoned(grid, u64), np.zeros(1, u32), a, i32(n)],
        {0: sums.sum(keepdims=True), 1: sums, 2: np.array([grid], u32)},
    )


@case("spin")
def grid_barrier(rng: Rng) -> Made:
    grid, rounds = 8, 5
    out = np.zeros((rounds + 1, grid), u32)
    out[0] = integers(rng, grid, u32)
    expected = out.copy()
    for r in range(rounds):
        expected[r + 1] = (
            expected[r] + u32(1) + expected[r].sum(dtype=u32) + np.arange(grid, dtype=u32)
        )
    return Launch(
        "grid_barrier",
        (grid,),
        (64,),
        [out, np.zeros(1, u32), i32(rounds)],
        {0: expected, 1: np.array([grid * rounds], u32)},
    )


@case("spin")
def wave_to_wave(rng: Rng) -> Made:
    a = integers(rng, 40, u32)
    return Launch(
        "wave_to_wave", (1,), (128,), [poisoned(40, u32), a, i32(40)], {0: a * u32(2) + u32(1)}
    )
