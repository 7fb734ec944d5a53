"""Private memory: local arrays with indices known at run time only, and pointers to them."""

from __future__ import annotations

import numpy as np

from support.vgpu.kernel_harness import Launch, Made, Rng, case, poisoned

from .inputs import i32, integers, u8, u16, u32, u64, wrap
from .words import M32


@case("scratch")
def insertion_sort(rng: Rng) -> Made:
    a = integers(rng, (128, 37), i32)
    return Launch(
        "insertion_sort", (2,), (64,), [poisoned(a.shape, i32), a, i32(37)], {0: np.sort(a, 1)}
    )


@case("scratch")
def private_histogram(rng: Rng) -> Made:
    a = integers(rng, (64, 200), u8)
    expected = np.stack([np.bincount(row & 63, minlength=64) for row in a]).astype(u8)
    return Launch(
        "private_histogram", (1,), (64,), [poisoned((64, 64), u8), a, i32(200)], {0: expected}
    )


@case("scratch")
def reverse_wide(rng: Rng) -> Made:
    a, order = integers(rng, (64, 16), u64), rng.permutation(16).astype(u32)
    local = np.empty_like(a)
    local[:, order] = a
    offset = np.arange(16)
    expected = local[:, 15 - offset] + local[:, offset & int(order[3])]
    return Launch("reverse_wide", (1,), (64,), [poisoned(a.shape, u64), a, order], {0: expected})


@case("scratch")
def generic_pointers(rng: Rng) -> Made:
    n = 100
    a, selectors = integers(rng, 16, i32, -1000, 1000), rng.integers(0, 3, n).astype(u32)
    k = np.arange(16)
    choices = [
        np.full(n, ((1000 + k * k) * (k + 1)).sum()),
        ((np.arange(n)[:, None] + k * k) * (k + 1)).sum(1),
        np.full(n, (a * (k + 1)).sum()),
    ]
    return Launch(
        "generic_pointers",
        (2,),
        (64,),
        [poisoned(n, i32), a, selectors, i32(n)],
        {0: np.choose(selectors, choices).astype(i32)},
    )


@case("scratch")
def pointer_kinds(rng: Rng) -> Made:
    selectors = rng.integers(0, 3, 64).astype(u32)
    expected = np.choose(selectors, [1 + (5 << 4), 2 + (1 << 4), int(selectors[0]) << 4])
    return Launch(
        "pointer_kinds", (1,), (64,), [poisoned(64, u32), selectors], {0: expected.astype(u32)}
    )


@case("scratch")
def packed_records(rng: Rng) -> Made:
    n = 100
    raw, pick = integers(rng, n + 90, u8), integers(rng, n + 1, u32)
    record = np.dtype([("tag", u8), ("key", u32), ("weight", u16), ("payload", u64)])
    expected = []
    for i in range(n):
        records = raw[i : i + 90].copy().view(record)
        selected = records[pick[i] % 6].copy()
        records[pick[i + 1] % 6] = records[0]
        narrow = (int(selected["tag"]) + int(selected["key"])) & M32
        checksum = ((narrow + int(selected["weight"])) & M32) + int(selected["payload"])
        expected.append([checksum, int(records[5]["payload"]) ^ int(records[1]["key"])])
    return Launch(
        "packed_records",
        (2,),
        (64,),
        [poisoned((n, 2), u64), raw, pick, i32(n)],
        {0: wrap(expected, u64)},
    )


@case("scratch")
def variable_length(rng: Rng) -> Made:
    lengths = integers(rng, 150, u32)
    expected = [
        sum((j * j + i) * (length - j) for j in range(length))
        for i, length in enumerate((lengths % 33 + 1).tolist())
    ]
    return Launch(
        "variable_length",
        (3,),
        (64,),
        [poisoned(150, u32), lengths, i32(150)],
        {0: np.array(expected, u32)},
    )
