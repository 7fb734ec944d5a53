"""The sizes at which 32-bit offsets of the experts' kernels end, each in one place."""

from __future__ import annotations

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.kernel import Call

MAX_BLOCK = 256  # rows of a block of one expert, of any Triton config


def refuses_weights(c: Call, bits: int) -> str | None:
    """Gate and up of an expert are one matrix [2I, D] of `bits` per element, whose offsets within
    the expert are signed 32-bit bytes; down is half of it."""
    if 2 * c.I * c.D * bits // 8 >= MAX_BYTES:
        return "an expert's weights are beyond signed 32-bit offsets (2 GiB)"
    return None


def refuses_slots(c: Call) -> str | None:
    """moe_align_block_size gives each routed row a slot of 4 bytes, padded to blocks per expert;
    its offsets are signed 32-bit."""
    num_slots = c.M * (c.K + c.E - c.R) + c.E * MAX_BLOCK
    if 4 * num_slots >= MAX_BYTES:
        return f"{num_slots} slots of routed rows are beyond signed 32-bit offsets (2 GiB)"
    return None
