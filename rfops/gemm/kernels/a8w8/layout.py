"""Operand layouts of gemm_a8w8_blockscale: which ones its HIP kernels support, and the strides that
they take."""

from __future__ import annotations

import torch

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.dispatch.strided import matrix_strides
from rfops.quantization.fp8_blockscale import BLOCK

ALIGN = 16  # bytes: a lane's load

OUT_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}  # in csrc/


def all_strides(c: Call, m: int, n: int, k: int) -> tuple[tuple[int, int], ...]:
    """Return the strides of x, w, x_scale and w_scale in elements, for a call like `c` of these
    sizes: contiguous tensors stay contiguous, others keep their strides."""
    blocks = k // BLOCK
    names = {"x": k, "w": k, "x_scale": blocks, "w_scale": blocks}
    return tuple([matrix_strides(c, name, columns) for name, columns in names.items()])


def is_contiguous(c: Call) -> bool:
    """Whether sizes alone tell all strides, of any call like `c`."""
    tensors = (c.tensors.get(name) for name in ("x", "w", "x_scale", "w_scale"))
    return all(tensor is None or tensor.is_contiguous() for tensor in tensors)


def is_dense(c: Call, m: int, n: int, k: int) -> bool:
    """Whether sizes alone tell the strides of x, w and w_scale, but for their order."""
    x, w, _, w_scale = all_strides(c, m, n, k)
    blocks = ceil(k, BLOCK), ceil(n, BLOCK)
    return (
        x in ((k, 1), (1, m))
        and w in ((k, 1), (1, n))
        and w_scale in ((blocks[0], 1), (1, blocks[1]))
    )


def is_columns(c: Call, name: str) -> bool:
    """Whether x or w is column-major: what lies side by side are elements of one k."""
    row, column = matrix_strides(c, name, c.K)
    return row == 1 and column != 1


def step(c: Call, name: str, strides: tuple[int, int]) -> int:
    """The stride of x or w that a launch is told: from k to k of a column-major operand, from row
    to row of any other, which is 0 where one row is expanded. The other stride is 1."""
    return strides[is_columns(c, name)]


def unsupported_reason(c: Call, rows: int, columns: bool = False) -> str | None:
    """Why no kernel with at most `rows` rows of an operand in a workgroup takes these operands;
    with `columns` it takes column-major ones too."""
    if c.x_dtype != fp8_of(c.arch):
        return f"the matrix cores of {c.arch} take {fp8_of(c.arch)}, not {c.x_dtype}"
    for name, size in (("x", c.M), ("w", c.N)):
        reason = (
            _refuses_columns(c, name, size)
            if columns and is_columns(c, name)
            else _refuses_rows(c, name, rows)
        )
        if reason:
            return reason
    for name in ("x_scale", "w_scale"):
        row, column = matrix_strides(c, name, c.K // BLOCK)
        if 4 * (rows * row + c.K // BLOCK * column) >= MAX_BYTES:
            return f"{rows} rows of {name} are beyond signed 32-bit offsets (2 GiB)"
    if rows * c.N * c.dtype.itemsize >= MAX_BYTES:
        return f"{rows} rows of out are beyond signed 32-bit offsets (2 GiB)"
    return None


def _refuses_rows(c: Call, name: str, rows: int) -> str | None:
    row, column = matrix_strides(c, name, c.K)
    if column != 1:
        return f"the elements of {name} do not lie side by side along K"
    if row % ALIGN or c.align(name) % ALIGN:
        return f"rows of {name} do not begin at multiples of {ALIGN} bytes"
    if row < 0 or rows * row + c.K >= MAX_BYTES:
        return f"{rows} rows of {name} are beyond signed 32-bit offsets (2 GiB)"
    return None


def _refuses_columns(c: Call, name: str, size: int) -> str | None:
    """Four rows are loaded at once, a K-step of all of them from one address."""
    column = matrix_strides(c, name, c.K)[1]
    if size % 4 or column % 4 or c.align(name) % 4:
        return f"columns of {name} do not begin and end at multiples of 4 bytes"
    if column < 0 or (BLOCK + 1) * column >= MAX_BYTES:
        return f"{BLOCK} columns of {name} are beyond signed 32-bit offsets (2 GiB)"
    return None
