"""Switches, calls, loops."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Array, Launch, Made, Rng, blocks, case, poisoned

from .inputs import (
    divide_toward_zero,
    edges,
    f32,
    i32,
    i64,
    integers,
    small_floats,
    tame_floats,
    u8,
    u32,
)
from .words import M32, quotient, signed


def apply(operation: int, a: int, b: int) -> int:
    table = {
        0: a + b,
        1: a - b,
        2: a * b,
        3: a & b,
        4: a | b,
        5: a ^ b,
        6: a << (b & 31),
        7: a >> (b & 31),
        8: a < b,
        9: a == b,
        10: quotient(a, b) if b else 0,
        11: a - quotient(a, b) * b if b else 0,
        12: max(a, b),
        13: (a & M32).bit_count() + b,
        14: ~a,
        15: a * 17 + 3,
        17: b - a,
        19: quotient(a + b, 2),
        23: a + 100,
        29: 7,
        31: -a,
        1000: a * a,
        100000: b * b,
    }
    return signed(int(table.get(operation, operation)))


OPERATIONS = [*range(33), 1000, 100000, 99999, 0xFFFFFFFF]


@case("switches")
def switch_divergent(rng: Rng) -> Made:
    n = 1000
    operation = rng.choice(np.array(OPERATIONS, u32), n)
    a, b = integers(rng, n, i32, -30000, 30000), integers(rng, n, i32, -30000, 30000)
    b[::7], b[::11] = 0, a[::11]
    expected = [apply(*map(int, v)) for v in zip(operation, a, b, strict=True)]
    return Launch(
        "switch_divergent",
        (blocks(n, 256),),
        (256,),
        [poisoned(n, i32), operation, a, b, i32(n)],
        {0: np.array(expected, i32)},
    )


@case("switches")
def switch_uniform(rng: Rng) -> Made:
    return [
        Launch(
            "switch_uniform",
            (1,),
            (64,),
            [poisoned(1, i32), u32(op), i32(-1234), i32(57)],
            {0: np.array([apply(op, -1234, 57)], i32)},
        )
        for op in OPERATIONS
    ]


def interpret_one(program: list[int], self: int) -> int:
    stack, depth, offset = [0] * 8, 0, 0
    while offset < len(program) and depth >= 0:
        code = program[offset]
        offset += 1
        top = (depth - 1) & 7
        if code == 0:
            stack[depth & 7] = program[offset]
            offset, depth = offset + 1, depth + 1
        elif code == 1:
            stack[depth & 7] = self
            depth += 1
        elif code in (2, 3):
            depth -= 1
            next_depth, value = (depth - 1) & 7, stack[depth & 7]
            stack[next_depth] = (
                stack[next_depth] + value if code == 2 else stack[next_depth] * value
            )
        elif code == 4:
            stack[depth & 7] = stack[top]
            depth += 1
        elif code == 5:
            distance = program[offset]
            offset += 1
            stack[top] = (stack[top] & 0x7FFFFFFF) >> 1
            if stack[top] & 1:
                offset -= distance
        else:
            depth = -1
    return stack[(depth - 1) & 7] if depth > 0 else -1


@case("switches")
def interpret(rng: Rng) -> Made:
    n = 300
    launches = []
    for program in (
        [1, 0, 13, 3, 0, 7, 2, 5, 2, 4, 3],
        [1, 4, 3, 9, 1],
        [0, 200, 1, 2, 5, 2, 5, 2],
    ):
        expected = [interpret_one(program, i) for i in range(n)]
        launches.append(
            Launch(
                "interpret",
                (2,),
                (256,),
                [poisoned(n, i32), np.array(program, u8), i32(len(program)), i32(n)],
                {0: np.array(expected, i32)},
            )
        )
    return launches


@case("calls")
def recurse_fibonacci(rng: Rng) -> Made:
    numbers = [0, 1]
    while len(numbers) < 13:
        numbers.append(numbers[-1] + numbers[-2])
    expected = [numbers[i % 13] for i in range(100)]
    return Launch(
        "recurse_fibonacci",
        (1,),
        (128,),
        [poisoned(100, u32), i32(100)],
        {0: np.array(expected, u32)},
    )


@case("calls")
def recurse_ackermann(rng: Rng) -> Made:
    value = {0: lambda n: n + 1, 1: lambda n: n + 2, 2: lambda n: 2 * n + 3}
    expected = [value[i % 3](i % 7) for i in range(64)]
    return Launch(
        "recurse_ackermann", (1,), (64,), [poisoned(64, u32)], {0: np.array(expected, u32)}
    )


@case("calls")
def recurse_sort(rng: Rng) -> Made:
    a = integers(rng, (128, 24), i32)
    return Launch("recurse_sort", (2,), (64,), [poisoned((128, 24), i32), a], {0: np.sort(a, 1)})


@case("calls")
def call_by_pointer(rng: Rng) -> Made:
    n = 200
    a, b, selectors = tame_floats(rng, n), tame_floats(rng, n), integers(rng, n, u32)
    expected = np.choose(selectors & 3, [a + b, a - b, a * b, a])
    return Launch(
        "call_by_pointer", (4,), (64,), [poisoned(n, f32), a, b, selectors, i32(n)], {0: expected}
    )


@case("calls")
def call_virtual(rng: Rng) -> Made:
    n = 200
    side, selectors = tame_floats(rng, n), integers(rng, n, u32)
    half, choice = f32(0.5), selectors % 3
    expected = np.choose(choice, [side * side * f32(3), side * f32(5) * half, side * side * f32(7)])
    return Launch(
        "call_virtual", (4,), (64,), [poisoned(n, f32), side, selectors, i32(n)], {0: expected}
    )


@case("calls")
def call_with_many(rng: Rng) -> Made:
    n = 150
    a = integers(rng, n, i32, -100000, 100000)
    expected = []
    for i, v in enumerate(map(int, a)):
        narrow = [v, v + 1, v + 2, v + 3, i, i + 1, i + 2, i + 3, 4, 5]
        terms = [v, v - 1, v - 2, v - 3, i, i - 1, i - 2, i - 3, 6, 7]
        total = sum(k * x for k, x in enumerate(narrow, 1))
        total += sum((2 * k + 1) * x for k, x in enumerate(terms))
        total += (v + i + 1000000007) * 31 + signed(v * i)
        expected.append(signed(total + (v ^ i)))
    return Launch(
        "call_with_many",
        (3,),
        (64,),
        [poisoned(n, i32), poisoned(n, f32), a, i32(n)],
        {0: np.array(expected, i32), 1: (np.arange(n) * 0.5).astype(f32)},
    )


@case("calls")
def call_chain(rng: Rng) -> Made:
    n = 200
    a = integers(rng, (n, 4), u32)

    def mix(v: Array) -> Array:
        return v * u32(2654435761) ^ (v >> 15)

    def pair(x: Array, y: Array) -> Array:
        return mix(x) + u32(3) * mix(y) + mix(x ^ y)

    v = [a[:, i] for i in range(4)]
    h = np.arange(n, dtype=u32)
    for r in range(5):
        h = (pair(v[0], v[1]) ^ pair(v[2], v[3]) ^ pair(v[1], v[3])) + mix(h + u32(r))
    return Launch("call_chain", (4,), (64,), [poisoned(n, u32), a, i32(n)], {0: h})


@case("loops")
def collatz(rng: Rng) -> Made:
    n = 300
    a = np.arange(1, n + 1, dtype=u32)
    expected = []
    for v in map(int, a):
        steps = 0
        while v != 1:
            v, steps = (3 * v + 1 if v & 1 else v // 2), steps + 1
        expected.append(steps)
    return Launch(
        "collatz", (2,), (256,), [poisoned(n, u32), a, i32(n)], {0: np.array(expected, u32)}
    )


def nested_one(i: int, value: int) -> int | None:
    work = 0
    for a in range(1, 40):
        if a % 3 == i % 3:
            continue
        for b in range(a, 40):
            work += 1
            if a ^ b == 7:
                continue
            if a * b > value:
                break
            if a * a + b * b == value:
                return (a * 100 + b) * 1000 + work
        if work > 500:
            return None
    return -1000 + work


@case("loops")
def nested_breaks(rng: Rng) -> Made:
    n = 300
    a = integers(rng, n, i32, 1, 2500)
    out = poisoned(n, i32)
    expected = out.copy()
    for i in range(n):
        value = nested_one(i, int(a[i]))
        expected[i] = expected[i] if value is None else value
    return Launch("nested_breaks", (3,), (128,), [out, a, i32(n)], {0: expected})


@case("loops")
def early_return(rng: Rng) -> Made:
    n = 150
    a = integers(rng, n, i32)
    out = poisoned(n, i32)
    expected = np.where(a < 0, out, a[::-1])
    return Launch("early_return", (1,), (256,), [out, a, i32(n)], {0: expected})


@case("loops")
def gcd(rng: Rng) -> Made:
    n = 500
    a, b = edges(rng, n, u32), rng.permutation(edges(rng, n, u32))
    return Launch("gcd", (2,), (256,), [poisoned(n, u32), a, b, i32(n)], {0: np.gcd(a, b)})


@case("loops")
def generator(rng: Rng) -> Made:
    lanes, rounds, seed = 128, 3000, 2463534242
    state = np.arange(lanes, dtype=u32) + u32(seed)
    for _ in range(rounds):
        state ^= state << 13
        state ^= state >> 17
        state ^= state << 5
    return Launch(
        "generator", (2,), (64,), [poisoned(lanes, u32), u32(seed), i32(rounds)], {0: state}
    )


@case("loops")
def mandelbrot(rng: Rng) -> Made:
    width, height, limit = 45, 30, 60
    y, x = np.mgrid[:height, :width].astype(i64)
    re0 = divide_toward_zero(x * 3 * 4096, np.full_like(x, width))[0] - 2 * 4096
    im0 = divide_toward_zero(y * 2 * 4096, np.full_like(y, height))[0] - 4096
    re, im, steps = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    live = np.ones(x.shape, bool)
    for _ in range(limit):
        re2, im2 = (re * re) >> 12, (im * im) >> 12
        live &= re2 + im2 <= 4 * 4096
        new_im, new_re = ((re * im) >> 11) + im0, re2 - im2 + re0
        im, re = np.where(live, new_im, im), np.where(live, new_re, re)
        steps += live
    return Launch(
        "mandelbrot",
        (3, 4),
        (16, 8),
        [poisoned((height, width), u32), i32(width), i32(height), i32(limit)],
        {0: steps.astype(u32)},
    )


@case("loops")
def matmul_tiled(rng: Rng) -> Made:
    m, n, k = 35, 50, 45
    a, b = small_floats(rng, (m, k)), small_floats(rng, (k, n))
    return Launch(
        "matmul_tiled",
        (blocks(n, 16), blocks(m, 16)),
        (16, 16),
        [poisoned((m, n), f32), a, b, i32(m), i32(n), i32(k)],
        {0: a @ b},
    )


@case("loops")
def spill(rng: Rng) -> Made:
    n, lanes = 1001, 1024
    a = integers(rng, n, u32)
    v = [a[(np.arange(lanes) + i * 7) % n] for i in range(160)]
    for _ in range(3):
        for i in range(160):
            v[i] = v[i] * u32(33) + v[(i + 1) % 160]
    h = np.zeros(lanes, u32)
    for x in v:
        h = h * u32(31) + x
    return Launch("spill", (1,), (1024,), [poisoned(lanes, u32), a, i32(n)], {0: h})
