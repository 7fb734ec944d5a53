"""Reductions, scans, histograms, sorts, softmax, norms."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import (
    Array,
    Close,
    Launch,
    Made,
    Rng,
    blocks,
    case,
    expect,
    poisoned,
)

from .inputs import (
    EPS,
    bf16_of,
    f32,
    f32_of,
    f64,
    i32,
    i64,
    integers,
    small_floats,
    tame_floats,
    u8,
    u32,
    u64,
)


@case("reduce")
def block_sum_tree(rng: Rng) -> Made:
    n, grid = 20011, 5
    a = integers(rng, n, i32, -(10**6), 10**6)
    owner = (np.arange(n) // 256) % grid
    expected = np.array([a[owner == g].sum() for g in range(grid)], i32)
    return Launch(
        "block_sum_tree", (grid,), (256,), [poisoned(grid, i32), a, i32(n)], {0: expected}
    )


@case("reduce")
def block_max_shuffle(rng: Rng) -> Made:
    launches = []
    for n, block in ((5000, 1024), (64, 128), (3, 64)):
        a = tame_floats(rng, n)
        launches.append(
            Launch(
                "block_max_shuffle",
                (1,),
                (block,),
                [poisoned(1, f32), a, i32(n)],
                {0: a.max(keepdims=True)},
            )
        )
    return launches


@case("reduce")
def arg_max(rng: Rng) -> Made:
    launches = []
    for n, block in ((10007, 1000), (50, 64)):
        a = rng.integers(-500, 500, n).astype(f32)
        launches.append(
            Launch(
                "arg_max",
                (1,),
                (block,),
                [poisoned(1, u32), a, i32(n)],
                {0: np.array([a.argmax()], u32)},
            )
        )
    return launches


@case("reduce")
def wave_sum_dpp(rng: Rng) -> Made:
    a = integers(rng, 512, i32)
    expected = a.reshape(8, 64).sum(1, dtype=i32)
    return Launch("wave_sum_dpp", (2,), (256,), [poisoned(8, i32), a], {0: expected})


@case("reduce")
def row_max_dpp(rng: Rng) -> Made:
    a = tame_floats(rng, 256)
    expected = np.repeat(a.reshape(16, 16).max(1), 16)
    return Launch("row_max_dpp", (1,), (256,), [poisoned(256, f32), a], {0: expected})


@case("reduce")
def sum_1024(rng: Rng) -> Made:
    n = 30011
    a = small_floats(rng, n)
    return Launch(
        "sum_1024",
        (1,),
        (1024,),
        [poisoned(1, f32), a, i32(n)],
        {0: np.array([a.sum(dtype=f64)], f32)},
    )


@case("scan")
def scan_block(rng: Rng) -> Made:
    n = 700
    a = integers(rng, n, i32, -1000, 1000)
    expected = np.concatenate([np.cumsum(a[index : index + 256]) for index in range(0, n, 256)])
    return Launch(
        "scan_block", (3,), (256,), [poisoned(n, i32), a, i32(n)], {0: expected.astype(i32)}
    )


@case("scan")
def scan_1024(rng: Rng) -> Made:
    a = integers(rng, 2048, i32)
    expected = np.cumsum(a.reshape(2, 1024), axis=1, dtype=i64).reshape(-1)
    return Launch("scan_1024", (2,), (1024,), [poisoned(2048, i64), a], {0: expected})


@case("scan")
def compact_odd(rng: Rng) -> Made:
    a = integers(rng, 64, i32, 0, 100)
    odd_values = a[a % 2 == 1]
    expected = poisoned(64, i32)
    expected[: odd_values.size] = odd_values
    return Launch(
        "compact_odd",
        (1,),
        (64,),
        [poisoned(64, i32), poisoned(1, i32), a],
        {0: expected, 1: np.array([odd_values.size], i32)},
    )


@case("histogram")
def histogram_bytes(rng: Rng) -> Made:
    n = 40013
    a = (rng.standard_normal(n) * 20 + 100).clip(0, 255).astype(u8)
    bins = integers(rng, 256, u32, 0, 10)
    expected = bins + np.bincount(a, minlength=256).astype(u32)
    return Launch("histogram_bytes", (6,), (256,), [bins, a, i32(n)], {0: expected})


@case("histogram")
def sum_by_key(rng: Rng) -> Made:
    n = 2001
    keys, values = integers(rng, n, u32), integers(rng, n, u32)
    expected = np.zeros(32, u64)
    np.add.at(expected, keys & 31, values.astype(u64) << u64(8))
    return Launch(
        "sum_by_key",
        (blocks(n, 320),),
        (320,),
        [np.zeros(32, u64), keys, values, i32(n)],
        {0: expected},
    )


# exp to 2 units in the last place after a rounded subtraction, and a sum of n terms.
def soft(a: Array) -> tuple[Array, Array, Array]:
    values = a.astype(f64)
    exps = np.exp(values - values.max(1, keepdims=True))
    return values, exps, exps.sum(1, keepdims=True)


@case("softmax")
def softmax_rows(rng: Rng) -> Made:
    launches = []
    for rows, n, block in ((5, 333, 256), (3, 1000, 64), (2, 50, 128)):
        a = tame_floats(rng, rows * n, spread=2).reshape(rows, n)
        _, exps, sums = soft(a)
        spread = float(np.ptp(a))
        launches.append(
            Launch(
                "softmax_rows",
                (rows,),
                (block,),
                [poisoned((rows, n), f32), a, i32(n)],
                {0: Close(exps / sums, EPS * (spread + n / block + 32), 1e-37)},
            )
        )
    return launches


@case("softmax")
def log_sum_exp_rows(rng: Rng) -> Made:
    rows, n = 4, 515
    a = tame_floats(rng, rows * n, spread=2).reshape(rows, n)
    values, _, sums = soft(a)
    expected = (values.max(1, keepdims=True) + np.log(sums)).reshape(-1)
    return Launch(
        "log_sum_exp_rows",
        (rows,),
        (256,),
        [poisoned(rows, f32), a, i32(n)],
        {0: Close(expected, 4 * EPS, 64 * EPS)},
    )


@case("norm")
def layer_norm_rows(rng: Rng) -> Made:
    rows, n = 10, 515
    a = tame_floats(rng, rows * n, spread=1).reshape(rows, n)
    gain, bias = tame_floats(rng, n, spread=1), tame_floats(rng, n, spread=1)
    values = a.astype(f64)
    normal = (values - values.mean(1, keepdims=True)) / np.sqrt(values.var(1, keepdims=True) + 1e-5)
    expected = normal * gain + bias
    bound = 64 * EPS * (np.abs(normal * gain) + np.abs(bias) + np.abs(gain))
    return Launch(
        "layer_norm_rows",
        (3,),
        (64, 4),
        [poisoned((rows, n), f32), a, gain, bias, i32(rows), i32(n), f32(1e-5)],
        {0: Close(expected, 0, bound)},
    )


@case("norm")
def rms_norm_bf16(rng: Rng) -> Made:
    rows, pairs = 3, 129
    a, gain = bf16_of(tame_floats(rng, rows * pairs * 2)), bf16_of(tame_floats(rng, pairs * 2))
    values = f32_of(a).astype(f64).reshape(rows, -1)
    scale = 1 / np.sqrt((values**2).mean(1, keepdims=True) + 1e-6)
    expected = (values * scale * f32_of(gain)).reshape(-1)

    def check(actual: Array) -> None:
        expect(f32_of(actual), Close(expected, 2.0**-8 + 32 * EPS))

    return Launch(
        "rms_norm_bf16",
        (rows,),
        (64,),
        [poisoned(rows * pairs * 2, np.uint16), a, gain, i32(pairs), f32(1e-6)],
        {0: check},
    )


@case("big_block")
def bitonic_sort(rng: Rng) -> Made:
    a = integers(rng, (2, 2048), i32)
    return Launch("bitonic_sort", (2,), (1024,), [a], {0: np.sort(a, 1)})


@case("big_block")
def automaton(rng: Rng) -> Made:
    cells, steps = integers(rng, 1024, u8, 0, 2), 50
    state = cells.copy()
    for _ in range(steps):
        state = (110 >> (np.roll(state, 1) * 4 + state * 2 + np.roll(state, -1)) & 1).astype(u8)
    return Launch("automaton", (1,), (1024,), [cells, i32(steps)], {0: state})
