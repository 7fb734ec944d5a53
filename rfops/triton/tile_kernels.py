"""Functions that the ops' Triton kernels share."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit
def grouped_tile(tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return the tile of a program, along m and n. Programs go through GROUP_M rows of tiles at a
    time, because those that run at once then share w in the L2."""
    pid, group = tl.program_id(0), GROUP_M * tiles_n
    group_m = pid // group * GROUP_M
    rows = tl.minimum(tiles_m - group_m, GROUP_M)
    return group_m + pid % group % rows, pid % group // rows


@triton.jit
def rows_of_tile(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return for m and then for n the first row of a program's tile, its rows from there on, and
    the rows to read: past the edge the last one."""
    tile_m, tile_n = grouped_tile(tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    row_m, row_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    read_m = tl.minimum(row_m, m - 1 - first_m)
    read_n = tl.minimum(row_n, n - 1 - first_n)
    return first_m, row_m, read_m, first_n, row_n, read_n


@triton.jit
def expert_slots(ids, expert_ids, block, BLOCK_M: tl.constexpr):
    """Return for a block of moe_align_block_size its expert, its slots and the ids there."""
    expert = tl.load(expert_ids + block).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    return expert, rows, tl.load(ids + rows)


@triton.jit
def own_columns(column, n, BLOCK_N: tl.constexpr):
    """Return the columns of a program, and those to read: past the edge the first one."""
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    return columns, tl.where(columns < n, columns, 0)


@triton.jit
def store_slots(h, gate, up, rows, columns, n):
    """h[slot] = silu(gate) * up, of the columns that are there."""
    hidden = gate / (1.0 + tl.exp(-gate)) * up
    dst = h + rows.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(dst, hidden.to(h.dtype.element_ty), mask=columns[None, :] < n)


@triton.jit
def store_ids(y, total, id, columns, num_ids, n):
    """y[id] = total, of the ids and columns that are there."""
    dst = y + id.to(tl.int64)[:, None] * n + columns[None, :]
    is_there = (id < num_ids)[:, None] & (columns[None, :] < n)
    tl.store(dst, total.to(y.dtype.element_ty), mask=is_there)
