"""What the kernels of vgpu_kernels/ must give, by group; importing this registers all cases."""

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
    "asm_masks", "asm_memory", "asm_scalar", "asm_vector", "atomics", "control", "converts",
    "elementwise", "floats", "halves", "integers", "lanes", "launches", "memory", "private",
    "reductions",
]  # fmt: skip
