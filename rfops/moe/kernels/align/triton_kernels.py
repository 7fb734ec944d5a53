"""Device code of moe_align_block_size in Triton: a program an expert, which looks at all rows.

    sorted_ids[start[e] + i] = the i-th row, in order, of those of expert e, then rows up to a block

`count` leaves how many rows each expert has; `place` has start[e] from all counts and puts its own
rows, which it finds by a running sum, its padding and its blocks; the tail is shared out. A place
is written once. An id outside 0..E-1 is in no block, and reads no map.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

import triton
import triton.language as tl


@triton.jit
def _is_own(ids, row_map, row, rows, experts, own_expert):
    """Whether these rows are of the expert `own_expert`."""
    id = tl.load(ids + row, mask=row < rows, other=-1)
    is_there = (id >= 0) & (id < experts)
    expert = tl.where(is_there, id, 0).to(tl.int32)
    if row_map is not None:
        expert = tl.load(row_map + expert, mask=is_there, other=-1)
    return is_there & (expert == own_expert)


@triton.jit
def count(counts, ids, row_map, rows, experts, ROWS: tl.constexpr):
    """The number of rows of one expert."""
    expert = tl.program_id(0)
    total = tl.zeros((ROWS,), tl.int32)
    for row_begin in range(0, rows, ROWS):
        row = row_begin + tl.arange(0, ROWS)
        total += _is_own(ids, row_map, row, rows, experts, expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total))


@triton.jit
def place(
    sorted_ids,
    expert_ids,
    num_padded,
    ids,
    row_map,
    block_map,
    counts,
    rows,
    experts,
    block,
    slots,
    blocks,
    ROWS: tl.constexpr,
    BINS: tl.constexpr,
):
    """The sorted ids of one expert with their padding, and the expert's blocks."""
    own_expert = tl.program_id(0)
    bins, lane = tl.arange(0, BINS), tl.arange(0, ROWS)
    of_all = tl.load(counts + bins, mask=bins < experts, other=0)
    padded = (of_all + block - 1) // block * block
    start = tl.sum(tl.where(bins < own_expert, padded, 0))
    num_used = tl.sum(padded)
    count = tl.sum(tl.where(bins == own_expert, of_all, 0))
    end = start + (count + block - 1) // block * block

    list_idx = start
    for begin in range(0, rows, ROWS):
        row = begin + lane
        is_own = _is_own(ids, row_map, row, rows, experts, own_expert).to(tl.int32)
        rank = tl.cumsum(is_own, 0) - is_own
        tl.store(sorted_ids + list_idx + rank, row, mask=is_own != 0)
        list_idx += tl.sum(is_own)
    for begin in range(start + count, end, ROWS):
        tl.store(sorted_ids + begin + lane, rows, mask=begin + lane < end)
    named_expert, padding_expert = own_expert, 0
    if block_map is not None:
        named_expert, padding_expert = tl.load(block_map + own_expert), tl.load(block_map)
    for begin in range(start // block, end // block, ROWS):
        tl.store(expert_ids + begin + lane, named_expert, mask=begin + lane < end // block)

    step = experts * ROWS
    for begin in range(num_used + own_expert * ROWS, slots, step):
        tl.store(sorted_ids + begin + lane, rows, mask=begin + lane < slots)
    for begin in range(num_used // block + own_expert * ROWS, blocks, step):
        tl.store(expert_ids + begin + lane, padding_expert, mask=begin + lane < blocks)
    if own_expert == 0:
        tl.store(num_padded, num_used)
