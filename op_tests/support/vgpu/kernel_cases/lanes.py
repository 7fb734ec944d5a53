"""What lanes tell each other: votes, shuffles, DPP, permutes."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Array, Launch, Made, Rng, case, poisoned

from .inputs import f64, i32, i64, integers, small_floats, u32, u64, wrap
from .words import permuted

LANES = np.arange(64)


def waves(a: Array) -> Array:
    return a.reshape(-1, 64)


@case("votes")
def votes(rng: Rng) -> Made:
    a = integers(rng, 256, i32, -50, 100)
    a[70] = 77
    rows = []
    for wave in waves(a):
        w = [int(v) for v in wave]
        positive = sum((v > 0) << i for i, v in enumerate(w))
        odd = [i for i, v in enumerate(w) if v & 1]
        for lane, v in enumerate(w):
            odd_facts = [sum(1 << i for i in odd), w[odd[0]]] if v & 1 else [0, 0]
            rows.append(
                [
                    positive,
                    77 in w,
                    min(w) > -1000,
                    lane + 5,
                    w[0] & 0xFFFFFFFF,
                    w[37] & 0xFFFFFFFF,
                    odd_facts[0],
                    odd_facts[1] & 0xFFFFFFFF,
                ]
            )
    return Launch("votes", (2,), (128,), [poisoned((256, 8), u64), a], {0: wrap(rows, u64)})


@case("votes")
def match_any(rng: Rng) -> Made:
    a = integers(rng, 128, u32, 0, 7)
    expected = [[sum(1 << j for j in range(64) if w[j] == v) for v in w] for w in waves(a)]
    return Launch(
        "match_any", (1,), (128,), [poisoned(128, u64), a], {0: wrap(expected, u64).reshape(-1)}
    )


def shuffled(wave: Array, source: int, delta: int) -> Array:
    group = {w: LANES & ~(w - 1) for w in (8, 16, 32, 64)}

    def up(width: int) -> Array:
        source_lane = LANES - delta
        return wave[np.where(source_lane < group[width], LANES, source_lane)]

    def down(width: int) -> Array:
        in_bounds = (LANES & (width - 1)) + delta < width
        return wave[np.where(in_bounds, (LANES + delta) & 63, LANES)]

    pushed = np.empty_like(wave)
    pushed[(LANES * 5 + 3) & 63] = wave
    quad = np.array([1, 0, 3, 2])
    return np.stack(
        [
            np.full(64, wave[source & 63]),
            wave[group[16] + (source & 15)],
            up(64),
            up(8),
            down(64),
            down(32),
            wave[LANES ^ 5],
            wave[LANES ^ 33],
            wave[wave & 63],
            pushed,
            wave[LANES ^ 1],
            wave[(LANES & ~3) + quad[LANES & 3]],
        ],
        1,
    )


@case("votes")
def shuffles(rng: Rng) -> Made:
    launches = []
    for source, delta in ((5, 3), (77, 31), (-1, 1)):
        a = integers(rng, 128, i32)
        expected = np.concatenate([shuffled(w, source, delta) for w in waves(a)])
        launches.append(
            Launch(
                "shuffles",
                (2,),
                (64,),
                [poisoned((128, 12), i32), a, i32(source), u32(delta)],
                {0: expected},
            )
        )
    return launches


@case("votes")
def shuffles_wide(rng: Rng) -> Made:
    a, delta = small_floats(rng, 128, f64), 9
    w = waves(a)
    moved = np.where(LANES + delta < 64, w[:, (LANES + delta) & 63], w)
    return Launch(
        "shuffles_wide",
        (1,),
        (128,),
        [poisoned(128, f64), poisoned(128, i64), a, u32(delta)],
        {0: (moved + w[:, LANES ^ 16]).reshape(-1), 1: w[:, ::-1].copy().view(i64).reshape(-1)},
    )


def dpp_rows(w: Array) -> Array:
    row, offset = LANES & 48, LANES & 15

    def take(source: Array, valid: Array, otherwise: int = -1) -> Array:
        return np.where(valid, w[np.asarray(source) & 63], otherwise)

    always = LANES >= 0
    shr1 = take(LANES - 1, offset >= 1)
    odd = LANES & 1 == 1
    return np.stack(
        [
            take(LANES ^ 3, always),
            take(LANES + 1, offset < 15),
            take(LANES + 15, offset < 1),
            take(LANES - 3, offset >= 3),
            take(row + ((offset - 5) & 15), always),
            take(LANES + 1, LANES < 63),
            take(LANES + 1, always),
            take(LANES - 1, LANES > 0),
            take(LANES - 1, always),
            take(row + 15 - offset, always),
            take((LANES & 56) + 7 - (LANES & 7), always),
            take(row - 1, LANES >= 16),
            take(np.full(64, 31), LANES >= 32),
            take(row + 3, always),
            np.where((LANES // 16) % 2 == 0, shr1, -1),
            np.where((offset // 4 == 1) | (offset // 4 == 2), shr1, -1),
            take(LANES - 2, offset >= 2, 0),
            np.where(odd, -1, -2),
            np.where(odd, 0, -2),
            1 + take(LANES - 8, offset >= 8, 0),
        ],
        1,
    )


@case("votes")
def dpp_controls(rng: Rng) -> Made:
    a = integers(rng, 128, i32, 1, 1 << 30)
    expected = np.concatenate([dpp_rows(w) for w in waves(a)]).astype(i32)
    return Launch("dpp_controls", (1,), (128,), [poisoned((128, 20), i32), a], {0: expected})


@case("votes")
def lane_writes(rng: Rng) -> Made:
    a, offset = integers(rng, 128, i32, -1000, 1000), 60
    w = waves(a).copy()
    w[:, 5], w[:, 60] = a[0] * 3, 17
    expected = w + w[:, [(offset + 9) & 63]] * 1000
    return Launch(
        "lane_writes",
        (1,),
        (128,),
        [poisoned(128, i32), a, i32(offset)],
        {0: expected.reshape(-1).astype(i32)},
    )


@case("votes")
def byte_permutes(rng: Rng) -> Made:
    a = integers(rng, 64, u32)
    launches = []
    for selector in (0x00010203, 0x07060504, 0x0C0D0A08, 0x0B09FF02):
        rows = [
            [permuted(int(v), int(o), selector), (int(v) << 32 | int(o)) >> 8 * (selector & 3)]
            for v, o in zip(a, a[LANES ^ 1], strict=True)
        ]
        launches.append(
            Launch(
                "byte_permutes",
                (1,),
                (64,),
                [poisoned((64, 2), u32), a, u32(selector)],
                {0: wrap(rows, u32)},
            )
        )
    return launches


@case("gfx950")
def permlane_swaps(rng: Rng) -> Made:
    a, b = integers(rng, 64, u32), integers(rng, 64, u32)
    ra, rb = a.reshape(4, 16), b.reshape(4, 16)
    columns = [
        np.concatenate([ra[0], rb[0], ra[2], rb[2]]),
        np.concatenate([ra[1], rb[1], ra[3], rb[3]]),
        np.concatenate([a[:32], b[:32]]),
        np.concatenate([a[32:], b[32:]]),
    ]
    return Launch(
        "permlane_swaps",
        (1,),
        (64,),
        [poisoned((64, 4), u32), np.concatenate([a, b])],
        {0: np.stack(columns, 1)},
    )


@case("gfx950")
def bit_operations_950(rng: Rng) -> Made:
    n = 300
    a, b, c = (integers(rng, n, u32) for _ in range(3))
    return Launch(
        "bit_operations_950",
        (2,),
        (256,),
        [poisoned((n, 3), u32), a, b, c, i32(n)],
        {0: np.stack([(a & ~b) | (c ^ a), (a ^ b) & (b | c), a ^ b ^ c], 1)},
    )
