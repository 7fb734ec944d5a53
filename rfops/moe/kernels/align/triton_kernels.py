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
def _is_own(ids, row_map, row, rows, experts, own):
    """Whether these rows are of the expert `own`."""
    id = tl.load(ids + row, mask=row < rows, other=-1)
    is_there = (id >= 0) & (id < experts)
    expert = tl.where(is_there, id, 0).to(tl.int32)
    if row_map is not None:
        expert = tl.load(row_map + expert, mask=is_there, other=-1)
    return is_there & (expert == own)


@triton.jit
def count(counts, ids, row_map, rows, experts, ROWS: tl.constexpr):
    own = tl.program_id(0)
    total = tl.zeros((ROWS,), tl.int32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        total += _is_own(ids, row_map, row, rows, experts, own).to(tl.int32)
    tl.store(counts + own, tl.sum(total))


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
    own = tl.program_id(0)
    bins, lane = tl.arange(0, BINS), tl.arange(0, ROWS)
    of_all = tl.load(counts + bins, mask=bins < experts, other=0)
    padded = (of_all + block - 1) // block * block
    start = tl.sum(tl.where(bins < own, padded, 0))
    used = tl.sum(padded)
    count = tl.sum(tl.where(bins == own, of_all, 0))
    end = start + (count + block - 1) // block * block

    to = start
    for first in range(0, rows, ROWS):
        row = first + lane
        is_own = _is_own(ids, row_map, row, rows, experts, own).to(tl.int32)
        before = tl.cumsum(is_own, 0) - is_own
        tl.store(sorted_ids + to + before, row, mask=is_own != 0)
        to += tl.sum(is_own)
    for first in range(start + count, end, ROWS):
        tl.store(sorted_ids + first + lane, rows, mask=first + lane < end)
    named, other = own, 0
    if block_map is not None:
        named, other = tl.load(block_map + own), tl.load(block_map)
    for first in range(start // block, end // block, ROWS):
        tl.store(expert_ids + first + lane, named, mask=first + lane < end // block)

    step = experts * ROWS
    for first in range(used + own * ROWS, slots, step):
        tl.store(sorted_ids + first + lane, rows, mask=first + lane < slots)
    for first in range(used // block + own * ROWS, blocks, step):
        tl.store(expert_ids + first + lane, other, mask=first + lane < blocks)
    if own == 0:
        tl.store(num_padded, used)
