"""What the kernels of vgpu/kernels/sources must give, by group: all of CASES."""

from support.vgpu.kernel_harness import CASES

from . import (
    asm_masks,
    asm_memory,
    asm_scalar,
    asm_vector,
    atomics,
    control,
    converts,
    elementwise,
    floats,
    halves,
    integers,
    lanes,
    launches,
    memory,
    private,
    reductions,
)

__all__ = [
    "CASES", "asm_masks", "asm_memory", "asm_scalar", "asm_vector", "atomics", "control",
    "converts",
    "elementwise", "floats", "halves", "integers", "lanes", "launches", "memory", "private",
    "reductions",
]  # fmt: skip
