"""aiter's GEMM code objects: arguments and grid of a row, from the host files that launch them
(the rows' column arg_src). x is [M, K], w [N, K]; strides are in bytes unless said."""

from __future__ import annotations

from rfops.cli.timing.launches import Launch, New, Tile, ceil_div, up
from rfops.cli.timing.rows import Row

A4W4 = (
    "D C A B alpha beta stride_D0 stride_D1 stride_C0 stride_C1 stride_A0 stride_A1 stride_B0 "
    "stride_B1 M N K ScaleA ScaleB stride_ScaleA0 stride_ScaleA1 stride_ScaleB0 stride_ScaleB1 "
    "log2_k_split"
)
A8W8 = "C A B a_scale b_scale bias m n k lda ldb ldc ks"
A8W8_BLOCKSCALE = f"{A8W8} scale_m scale_n scale_k"
BF16 = (
    "D C A B alpha beta stride_D0 stride_D1 stride_C0 stride_C1 stride_A0 stride_A1 stride_B0 "
    "stride_B1 M N K splitk is_out_b16 Bias add_bias semaphore"
)

I8_PADDING = 128  # elements between the rows of x, as the tuner has them
SEMAPHORES = 16 * 64 * 4
F32_TABLES = ("bf16_tuned_gemm",)  # sources whose bf16 GEMMs write float32; all others bf16


def a4w4(row: Row, tile: Tile, new: New) -> Launch:
    """MX-FP4: two values a byte, e8m0 scales of 32, rows padded to 256 and columns to 8. Strides
    are in elements; splitK is a power of two."""
    m, n, k = (row.sizes[name] for name in "MNK")
    rows, columns = up(m, 256), up(k // 32, 8)
    split = 1 << row.split_k if tile.split_k else 1
    values = {
        "D": new(rows * n * 2),
        "A": new(m * k // 2),
        "B": new(n * k // 2),
        "alpha": 1.0,
        "beta": 0.0,
        "stride_C0": n,
        "stride_A0": k,
        "stride_B0": k,
        "M": m,
        "N": n,
        "K": k,
        "ScaleA": new(rows * columns),
        "ScaleB": new(up(n, 256) * columns),
        "stride_ScaleA0": columns,
        "stride_ScaleB0": columns,
        "log2_k_split": split.bit_length() - 1,
    }
    deep = ceil_div(k, up(k // split, 256))
    cleared_bytes = rows * n * 2 if split > 1 else 0
    return Launch(A4W4, values, (ceil_div(n, tile.n), ceil_div(m, tile.m), deep), cleared_bytes)


def _a8w8(row: Row, new: New, padding: int = 0) -> dict[str, int]:
    m, n, k = (row.sizes[name] for name in "MNK")
    return {
        "C": new(m * n * 2),
        "A": new(m * (k + padding)),
        "B": new(n * k),
        "bias": new(n * 4),
        "m": m,
        "n": n,
        "k": k,
        "lda": k + padding,
        "ldb": k,
        "ldc": n * 2,
        "ks": max(1, row.split_k),
    }


def _a8w8_grid(row: Row, tile: Tile, split: int) -> tuple[int, int, int]:
    return row.sizes["N"] // tile.n * split, ceil_div(row.sizes["M"], tile.m), 1


def a8w8_blockscale(row: Row, tile: Tile, new: New) -> Launch:
    """FP8 with a scale for 1 x 128 of x and 128 x 128 of w; a split adds to a cleared output."""
    m, n, k = (row.sizes[name] for name in "MNK")
    values = _a8w8(row, new)
    scale_n, scale_k = ceil_div(n, 128), ceil_div(k, 128)
    values |= {
        "a_scale": new(m * scale_k * 4),
        "b_scale": new(scale_n * scale_k * 4),
        "scale_m": m,
        "scale_n": scale_n,
        "scale_k": scale_k,
    }
    split = values["ks"]
    cleared_bytes = m * n * 2 if tile.split_k and split > 1 else 0
    return Launch(A8W8_BLOCKSCALE, values, _a8w8_grid(row, tile, split), cleared_bytes)


def a8w8_per_token(row: Row, tile: Tile, new: New) -> Launch:
    """INT8 with one scale a row of x and of w."""
    m, n = row.sizes["M"], row.sizes["N"]
    values = _a8w8(row, new, I8_PADDING)
    values |= {"a_scale": new(m * 4), "b_scale": new(n * 4)}
    split = values["ks"]
    cleared_bytes = m * n * 2 if tile.split_k and split > 1 else 0
    return Launch(A8W8, values, _a8w8_grid(row, tile, split), cleared_bytes)


def bf16(row: Row, tile: Tile, new: New) -> Launch:
    """bf16 to bf16 or float32; the workgroups of a split wait for one another by a semaphore."""
    m, n, k = (row.sizes[name] for name in "MNK")
    size = 4 if row.src in F32_TABLES else 2
    split = min(row.split_k, 16, k // 64) if tile.split_k else 1
    values = {
        "D": new(m * n * size),
        "A": new(m * k * 2),
        "B": new(n * k * 2),
        "alpha": 1.0,
        "beta": 0.0,
        "stride_D0": n * size,
        "stride_C0": n * size,
        "stride_A0": k * 2,
        "stride_B0": k * 2,
        "M": m,
        "N": n,
        "K": k,
        "splitk": split,
        "is_out_b16": int(size == 2),
        "semaphore": new(SEMAPHORES) if split > 1 else 0,
    }
    grid = (ceil_div(n, tile.n), ceil_div(m, tile.m), split)
    return Launch(BF16, values, grid, waits=split > 1)
