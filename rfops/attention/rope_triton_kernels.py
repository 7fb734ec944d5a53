"""Device code of rope in Triton, for every GPU that Triton has: a program has a head of a token."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit
def rope(
    positions,
    q,
    k,
    cos_sin,
    sin,
    heads,
    num_positions,
    first_elem,
    q_token,
    q_head,
    k_token,
    k_head,
    angle_row,
    sin_offset,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    HAS_SIN: tl.constexpr,
):
    """Rotate the HALF pairs of one head in place: low cos - high sin, high cos + low sin. Programs
    0 .. heads - 1 of the second dimension have heads of q, later ones those of k."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    is_there = pair < HALF
    position = tl.load(positions + token).to(tl.int64)
    last_position = num_positions - 1
    position = tl.where((position < 0) | (position > last_position), last_position, position)
    angles = position * angle_row + pair
    cos = tl.load(cos_sin + angles, mask=is_there, other=0).to(tl.float32)
    sines = sin if HAS_SIN else cos_sin
    sine = tl.load(sines + sin_offset + angles, mask=is_there, other=0).to(tl.float32)
    if INVERSE:
        sine = -sine
    if head < heads:
        row = q + token * q_token + head * q_head + first_elem
    else:
        row = k + token * k_token + (head - heads) * k_head + first_elem
    low_at = 2 * pair if INTERLEAVED else pair
    high_at = low_at + 1 if INTERLEAVED else pair + HALF
    low = tl.load(row + low_at, mask=is_there, other=0)
    high = tl.load(row + high_at, mask=is_there, other=0)
    turned_low = low.to(tl.float32) * cos - high.to(tl.float32) * sine
    turned_high = high.to(tl.float32) * cos + low.to(tl.float32) * sine
    tl.store(row + low_at, turned_low.to(low.dtype), mask=is_there)
    tl.store(row + high_at, turned_high.to(high.dtype), mask=is_there)
