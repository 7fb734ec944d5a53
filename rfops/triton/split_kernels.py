"""Device code of rfops/triton/splits.py."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["m"])
def add_splits(
    out,  # [M, N]
    partials,  # [SPLITS, M, N] fp32
    m,
    n,
    out_m,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write out = partials[0] + partials[1] + ... in that order; a program has COLUMNS columns of a
    row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_there = column < n
    total = tl.load(partials + row * n + column, mask=is_there)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials + (row + split * m) * n + column, mask=is_there)
    tl.store(out + row * out_m + column, total.to(out.dtype.element_ty), mask=is_there)
