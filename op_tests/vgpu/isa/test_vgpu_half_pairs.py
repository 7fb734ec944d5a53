"""Packed halves, which run in the host's vector units, against the same instruction on one half.

All bits, those of NaNs too where one operand is one (which of several it is, nobody promises).
Operands are chosen so that sums fall half-way between halves and into their denormals.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.vgpu.asm import Snippets

COUNT = 64 * 1024
SINGLE = {
    "fma": "v_fma_f16 {d}, {a}, {b}, {c}",
    "add": "v_add_f16 {d}, {a}, {b}",
    "mul": "v_mul_f16 {d}, {a}, {b}",
}
# Which half of a, b and c the low and the high result take, and what is negated of them.
PICKS = {
    "": ((0, 0, 0), (1, 1, 1), (0, 0, 0), (0, 0, 0)),
    "picked": ((1, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1)),
}


def halves(rng: np.random.Generator) -> np.ndarray:
    """Any bits, specials, small integers, denormals, and values with few bits."""
    special = np.array(
        [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7D55, 0x7E00,
         0xFE2A, 0x3C00, 0x3C01, 0x1400], np.uint16,
    )  # fmt: skip
    kinds = [
        rng.integers(0, 1 << 16, COUNT, dtype=np.uint16),
        rng.choice(special, COUNT),
        rng.integers(-64, 65, COUNT).astype(np.float16).view(np.uint16),
        rng.integers(0, 1 << 10, COUNT, dtype=np.uint16),
        rng.integers(0, 1 << 16, COUNT, dtype=np.uint16) & np.uint16(0xFF80),
    ]
    return np.choose(rng.integers(0, len(kinds), COUNT), kinds).astype(np.uint64)


def is_nan(bits: np.ndarray) -> np.ndarray:
    return (bits & bits.dtype.type(0x7FFF)) > 0x7C00


def snippet(op: str, picks: str) -> str:
    low, high, neg_low, neg_high = PICKS[picks]
    count = 3 if op == "fma" else 2
    lists = [
        f"{name}:[{','.join(map(str, bits[:count]))}]"
        for name, bits in zip(
            ("op_sel", "op_sel_hi", "neg_lo", "neg_hi"), PICKS[picks], strict=True
        )
    ]
    operands = ", ".join(("v8", "v10", "v12")[:count])
    lines = [f"v_pk_{op}_f16 v20, {operands} {' '.join(lists)}"]
    for d, pick, neg in (("v21", low, neg_low), ("v22", high, neg_high)):
        for i, source in enumerate(("v8", "v10", "v12")[:count]):
            lines.append(f"v_lshrrev_b32 v{30 + i}, {16 * pick[i]}, {source}")
            if neg[i]:
                lines.append(f"v_xor_b32 v{30 + i}, 0x8000, v{30 + i}")
        lines.append(SINGLE[op].format(d=d, a="v30", b="v31", c="v32"))
    return "\n".join(lines)


@pytest.mark.parametrize("picks", PICKS)
@pytest.mark.parametrize("op", SINGLE)
def test_a_pair_is_two_halves(op: str, picks: str) -> None:
    rng = np.random.default_rng(7)
    inputs = np.stack([halves(rng) | halves(rng) << np.uint64(16) for _ in range(3)], 1)
    out = Snippets([snippet(op, picks)]).run(0, inputs)
    for half, single in enumerate((out[:, 1], out[:, 2])):
        actual, want = out[:, 0] >> (16 * half) & 0xFFFF, single & 0xFFFF
        picked = [inputs[:, s] >> np.uint64(16 * PICKS[picks][half][s]) for s in range(3)]
        nans = sum(is_nan(bits & np.uint64(0xFFFF)) for bits in picked[: 3 if op == "fma" else 2])
        wrong = np.flatnonzero((actual != want) & ~((nans > 1) & is_nan(actual) & is_nan(want)))
        assert not wrong.size, (
            f"half {half}: {wrong.size} differ; first {wrong[0]}: inputs {inputs[wrong[0]]}, "
            f"{actual[wrong[0]]:#x} is not {want[wrong[0]]:#x}"
        )
