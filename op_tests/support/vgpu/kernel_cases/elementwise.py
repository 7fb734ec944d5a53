"""Element-wise kernels, transposes, three-dimensional grids."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from support.vgpu.kernel_harness import Launch, Made, Rng, blocks, case, poisoned

from .inputs import f32, f64, i16, i32, i64, integers, small_floats, tame_floats, u8, u16, u32, u64

EPS = float(np.finfo(f32).eps)


@case("vectors")
def vector_add(rng: Rng) -> Made:
    launches = []
    for n, block in ((1, 64), (1000003, 256), (63, 32), (1025, 1024), (777, 100)):
        a, b = tame_floats(rng, n), tame_floats(rng, n)
        launches.append(
            Launch(
                "vector_add",
                (blocks(n, block),),
                (block,),
                [poisoned(n, f32), a, b, i32(n)],
                {0: a + b},
            )
        )
    return launches


@case("vectors")
def saxpy_grid_stride(rng: Rng) -> Made:
    n = 50021
    x, y = small_floats(rng, n), small_floats(rng, n)
    expected = (2.5 * x.astype(f64) + y).astype(f32)
    return Launch("saxpy_grid_stride", (7,), (192,), [y, x, f32(2.5), i32(n)], {0: expected})


@case("vectors")
def add_bytes(rng: Rng) -> Made:
    n = 1001
    a, b = integers(rng, n, u8), integers(rng, n, u8)
    return Launch("add_bytes", (4,), (256,), [poisoned(n, u8), a, b, i32(n)], {0: a + b})


@case("vectors")
def average_shorts(rng: Rng) -> Made:
    n = 999
    a, b = integers(rng, n, i16), integers(rng, n, i16)
    expected = ((a.astype(i32) + b) >> 1).astype(i16)
    return Launch(
        "average_shorts", (blocks(n, 128),), (128,), [poisoned(n, i16), a, b, i32(n)], {0: expected}
    )


@case("vectors")
def scale_by_four(rng: Rng) -> Made:
    n = 4099
    a = tame_floats(rng, n)
    return Launch(
        "scale_by_four",
        (blocks(n, 1024),),
        (256,),
        [poisoned(n, f32), a, f32(0.3), u64(n)],
        {0: f32(0.3) * a},
    )


@case("vectors")
def axpby_f64(rng: Rng) -> Made:
    n = 3001
    x, y = small_floats(rng, n, f64), small_floats(rng, n, f64)
    return Launch(
        "axpby_f64",
        (blocks(n, 256),),
        (256,),
        [poisoned(n, f64), x, y, f64(1.5), f64(-0.75), i64(n)],
        {0: 1.5 * x - 0.75 * y},
    )


@case("vectors")
def optional_bias(rng: Rng) -> Made:
    n = 130
    a, bias = small_floats(rng, n), small_floats(rng, n)
    return [
        Launch("optional_bias", (3,), (64,), [poisoned(n, f32), a, bias, i32(n)], {0: a + bias}),
        Launch("optional_bias", (3,), (64,), [poisoned(n, f32), a, None, i32(n)], {0: a}),
    ]


def transpose_case(kernel: str, dtype: DTypeLike, tile: int, rows: int) -> None:
    @case("transpose", kernel)
    def make(rng: Rng) -> Made:
        launches = []
        for height, width in ((1, 1), (33, 70), (129, 65), (128, 128)):
            a = integers(rng, (height, width), u8).astype(dtype)
            launches.append(
                Launch(
                    kernel,
                    (blocks(width, tile), blocks(height, tile)),
                    (tile, rows),
                    [poisoned((width, height), dtype), a, i32(width), i32(height)],
                    {0: np.ascontiguousarray(a.T)},
                )
            )
        return launches


for _kernel, _dtype, _tile, _rows in (
    ("transpose_f32", f32, 32, 8),
    ("transpose_u8", u8, 64, 4),
    ("transpose_f64", f64, 16, 16),
):
    transpose_case(_kernel, _dtype, _tile, _rows)


@case("grids")
def record_indices(rng: Rng) -> Made:
    launches = []
    for (nx, ny, nz), block in (
        ((33, 9, 7), (8, 4, 3)),
        ((70, 1, 2), (64, 1, 2)),
        ((5, 5, 5), (3, 5, 7)),
        ((130, 3, 1), (1, 1, 1)),
    ):
        grid = tuple(blocks(n, b) for n, b in zip((nx, ny, nz), block, strict=True))
        z, y, x = np.meshgrid(np.arange(nz), np.arange(ny), np.arange(nx), indexing="ij")
        offset, size = np.stack([x, y, z], -1), np.array(block)
        fixed = np.broadcast_to(np.concatenate([block, grid]), (*x.shape, 6))
        recorded_calls = np.concatenate([offset % size, offset // size, fixed], -1).astype(u16)
        launches.append(
            Launch(
                "record_indices",
                grid,
                block,
                [poisoned((nz, ny, nx, 12), u16), u32(nx), u32(ny), u32(nz)],
                {0: recorded_calls},
            )
        )
    return launches


@case("grids")
def record_grid_threads(rng: Rng) -> Made:
    return Launch(
        "record_grid_threads",
        (5, 3, 2),
        (8, 4, 2),
        [poisoned(3, u32)],
        {0: np.array([40, 12, 4], u32)},
    )


@case("grids")
def stencil(rng: Rng) -> Made:
    nz, ny, nx = 7, 13, 21
    a = small_floats(rng, (nz, ny, nx))
    p = np.pad(a, 1, mode="edge")
    inner = slice(1, -1)
    expected = (
        p[inner, inner, :-2]
        + p[inner, inner, 2:]
        + p[inner, :-2, inner]
        + p[inner, 2:, inner]
        + p[:-2, inner, inner]
        + p[2:, inner, inner]
    )
    return Launch(
        "stencil",
        (3, 4, 3),
        (8, 4, 3),
        [poisoned(a.shape, f32), a, i32(nx), i32(ny), i32(nz)],
        {0: expected},
    )
