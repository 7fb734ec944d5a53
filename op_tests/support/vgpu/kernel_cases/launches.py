"""What a launch hands over: arguments, module variables, dynamic LDS, clocks and modes."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Array, Launch, Made, Rng, Runner, case, poisoned

from .inputs import (
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    integers,
    small_floats,
    tame_floats,
    u8,
    u16,
    u32,
    u64,
    wrap,
)
from .words import M32

MIXED = np.dtype([("c", i8), ("d", f64), ("s", i16), ("tail", u8)], align=True)
BYTES3, BYTES5 = np.dtype([("b", u8, 3)]), np.dtype([("b", u8, 5)])
WORDS13 = np.dtype([("w", u32, 13)], align=True)
NESTED = np.dtype([("mixed", MIXED, 2), ("bytes", BYTES3), ("pointer", u64)], align=True)


@case("structs")
def odd_arguments(rng: Rng) -> Made:
    floats = np.array([1, 2, 3, 4321, 5], f32)
    mixed = np.array((-5, 12.375, -3, 250), MIXED)
    words = np.array((list(range(1000, 1013)),), WORDS13)

    def nested(runner: Runner) -> Array:
        pair = [(1, 2.0, 3, 4), (5, 345.5, 7, 8)]
        return np.array((pair, ([9, 10, 11],), int(runner.value_of(floats))), NESTED)

    expected = [
        1, 2, 3, 250, 4, 5, 6, 7, 99, -5, 99, -3, 250, 65535, 100, *range(1000, 1013), 10, 691,
        11, 4321, 0x12345678,
    ]  # fmt: skip
    return Launch(
        "odd_arguments",
        (1,),
        (64,),
        [
            poisoned(33, u32),
            np.array(([1, 2, 3],), BYTES3),
            np.array(([250, 4, 5, 6, 7],), BYTES5),
            u8(99),
            mixed,
            u16(65535),
            np.bool_(True),
            words,
            f16(2.5),
            nested,
            i64(0x1234567800000001),
        ],
        {0: wrap(expected, u32)},
    )


@case("structs")
def indexed_argument(rng: Rng) -> Made:
    n = 130
    index = integers(rng, n, u32)
    words = integers(rng, 13, u32)
    return Launch(
        "indexed_argument",
        (3,),
        (64,),
        [poisoned(n, u32), index, np.array((words,), WORDS13), i32(n)],
        {0: words[index % 13]},
    )


@case("structs")
def many_arguments(rng: Rng) -> Made:
    types = [i8, i32, i64, i16, i64, u8, i64, i64, i64, i64]
    values = [[t(rng.integers(0 if t is u8 else -100, 100)) for _ in range(4)] for t in types]
    total = sum(int(w) * int(v) for four in values for w, v in zip((1, 3, 5, 7), four, strict=True))
    return Launch(
        "many_arguments",
        (2,),
        (64,),
        [poisoned(128, i64), *(v for four in values for v in four)],
        {0: total + np.arange(128, dtype=i64)},
    )


@case("structs")
def no_arguments(rng: Rng) -> Made:
    return Launch("no_arguments", (3, 2, 1), (64,), [], {})


@case("dynlds")
def reverse_block(rng: Rng) -> Made:
    n, size, grid = 450, 100, 5
    a = tame_floats(rng, size * grid)
    expected = a.reshape(grid, size)[:, ::-1].reshape(-1)[:n]
    return Launch(
        "reverse_block",
        (grid,),
        (size,),
        [poisoned(n, f32), a, i32(n)],
        {0: expected},
        lds=size * 4,
    )


@case("dynlds")
def carve(rng: Rng) -> Made:
    size, grid = 192, 3
    a = integers(rng, (grid, size), u32)
    offset = np.arange(size)
    partner = (offset + 7) % size
    expected = (
        a[:, partner] * 0.5
        + (a[:, size - 1 - offset] ^ 0xFF)
        + (a[:, partner] & 0xFF)
        + ((partner % 64) ** 2)
    )
    return Launch(
        "carve",
        (grid,),
        (size,),
        [poisoned((grid, size), f64), a],
        {0: expected.astype(f64)},
        lds=size * 13,
    )


@case("dynlds")
def moving_sum(rng: Rng) -> Made:
    n, radius, size = 1000, 37, 256
    a = integers(rng, n, i32, -1000, 1000)
    total = np.convolve(a, np.ones(2 * radius + 1, i64))[radius : radius + n]
    return Launch(
        "moving_sum",
        (4,),
        (size,),
        [poisoned(n, i32), a, i32(n), i32(radius)],
        {0: total.astype(i32)},
        lds=(size + 2 * radius) * 4,
    )


@case("globals")
def module_variables(rng: Rng) -> Made:
    table = np.array([2, 3, 5, 7, 11, 13, 17, 19], u32)
    data = np.array([-1, 20, -300, 4000], i32)
    i = np.arange(64)

    def reading() -> Launch:
        total = table[i & 7].astype(i64) + data[i & 3] + table[7 - (i & 7)] + data[2]
        return Launch("read_globals", (1,), (64,), [poisoned(64, u32)], {0: wrap(total, u32)})

    initial, a = reading(), integers(rng, 128, u64)
    data[2:] = [-302, 17]
    writes = [
        Launch("write_globals", (2,), (64,), [a], {}),
        Launch(
            "write_globals",
            (2,),
            (64,),
            [a],
            {},
            expect_variables={
                "zeroed": a + a,
                "launch_count": np.array([2], u32),
                "initialised": data.copy(),
            },
        ),
    ]
    return [initial, *writes, reading()]


@case("globals")
def host_set_variable(rng: Rng) -> Made:
    values = small_floats(rng, 16)
    i = np.arange(100)
    return Launch(
        "read_host_set",
        (2,),
        (64,),
        [poisoned(100, f32), i32(100)],
        {0: values[i & 15] * i.astype(f32)},
        variables={"host_set": values},
    )


@case("globals")
def walk_list(rng: Rng) -> Made:
    value = 0
    for byte in b"alpha" + b"delta-delta" + b"omega":
        value = (value * 31 + byte) & M32
    return Launch(
        "walk_list",
        (1,),
        (64,),
        [poisoned(64, u32)],
        {0: wrap([value + i for i in range(64)], u32)},
    )


@case("globals")
def local_table(rng: Rng) -> Made:
    a = integers(rng, 90, u32)
    return Launch(
        "local_table", (2,), (64,), [poisoned(90, u32), a, i32(90)], {0: (a % 11) ** 2 + u32(5)}
    )


@case("clocks")
def clocks_advance(rng: Rng) -> Made:
    state = np.arange(1, 65, dtype=u32)
    for _ in range(2000):
        state = state * u32(1664525) + u32(1013904223)

    def check(actual: Array) -> None:
        previous, later_clock, real, real_after = map(int, actual)
        assert later_clock > previous and real_after >= real, f"clocks do not advance: {actual}"

    return Launch(
        "clocks_advance", (1,), (64,), [poisoned(4, u64), poisoned(64, u32)], {0: check, 1: state}
    )


@case("clocks")
def read_mode(rng: Rng) -> Made:
    return Launch("read_mode", (1,), (64,), [poisoned(64, u32)], {0: np.full(64, 0xF0, u32)})


@case("clocks")
def set_rounding(rng: Rng) -> Made:
    a, b = np.full(64, 1, f32), (2.0**-25 * (1 + np.arange(64))).astype(f32)
    exact = a.astype(f64) + b
    nearest = exact.astype(f32)
    rounded = np.where(nearest > exact, np.nextafter(nearest, f32(0)), nearest)
    return Launch(
        "set_rounding",
        (1,),
        (64,),
        [poisoned((64, 2), f32), a, b],
        {0: np.stack([rounded, nearest], 1)},
    )


@case("clocks")
def hints(rng: Rng) -> Made:
    return Launch("hints", (2,), (64,), [poisoned(128, u32)], {0: np.arange(1, 129, dtype=u32)})
