"""quant_fp8_blockscale: a matrix to FP8 with fp32 scales, as DeepSeek-class models have them: one
scale for 1 x 128 of activations and for 128 x 128 of weights.

    scale[r, b]   = amax / most
    payload[m, k] = fp8(x[m, k] * (most / amax))     to nearest even

amax is the block's largest magnitude, at least 2^-100; most is the largest FP8, 448 of e4m3 and 240
of e4m3fnuz. A block with an infinity or a NaN becomes NaN, scale and payload. HIP and torch give
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import grid
from rfops.dispatch.routing import chip
from rfops.jit import compile_ops, u32
from rfops.jit.errors import show
from rfops.later import when_imported

__all__ = ["quant_fp8_blockscale"]

OCP, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
BLOCK = 128  # elements of K, and rows of w, that share a scale
MIN_AMAX = 2.0**-100  # of amax: the scale and its inverse are normal numbers
THREADS, BLOCKS_AT_ONCE = 256, 16
IN_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}  # in csrc/
SHAPES = ((1, BLOCK), (BLOCK, BLOCK))


def max_of(dtype: torch.dtype) -> float:
    """Its largest number."""
    return torch.finfo(dtype).max


@compile_ops(
    "quant_fp8_blockscale",
    kernel="quant_fp8_blockscale",
    variants=lambda _arch: [{"ROWS": rows, "IN": "bf16", "ALIGNED": 1} for rows, _ in SHAPES],
)
def quant_fp8_blockscale_kernel(
    payload: torch.Tensor,
    scale: torch.Tensor,
    x: torch.Tensor,
    m: u32,
    k: u32,
    scale_row: u32,
    scale_k: u32,
) -> None:
    """csrc/quantization/quant_fp8_blockscale.hip: the shapes stand there."""


class Hip(Kernel):
    """The HIP kernel, which converts to the FP8 type of its architecture."""

    name = "hip"
    module = "quant_fp8_blockscale"
    limits = "M K"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if c.dtype != fp8_of(c.arch):
            return f"{c.arch} converts to {fp8_of(c.arch)}, not {c.dtype}"
        if ceil(c.M, c.block_rows) * (c.K // BLOCK) >= 2**31:
            return "more than 2^31 blocks"
        return None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        # Weights of a safetensors file begin where its header ends: at a multiple of 8 or less.
        aligned = int(c.align("x") >= 16)
        return {"ROWS": c.block_rows, "IN": IN_TYPES[c.x_dtype], "ALIGNED": aligned}

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = quant_fp8_blockscale_kernel.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((THREADS, 1, 1), self.arguments)

        def run_of(m: int, k: int) -> Run:
            rows, blocks = int(ceil(m, c.block_rows)), k // BLOCK
            groups = int(ceil(rows * blocks, BLOCKS_AT_ONCE if c.block_rows == 1 else 1))
            scale_row, scale_k = (1, rows) if c.transpose_scale else (blocks, 1)
            run = launch((groups, 1, 1), m=m, k=k, scale_row=scale_row, scale_k=scale_k)
            return lambda results, x: run(*results, x)

        return run_of


class Torch(Kernel):
    """The reference in plain torch, for every device."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(results: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor) -> None:
            results_ = reference(x, c.block_rows, c.transpose_scale, c.dtype)
            for result, tensor in zip(results, results_, strict=True):
                result.copy_(tensor)

        return lambda *_sizes: run


class _Quant(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **values: Any) -> Call:
        return super().call_of(arch, cu_num, **{"dtype": fp8_of(arch), **values})

    def result_sizes(self, c: Call) -> Mapping[str, int]:
        rows, blocks = int(ceil(c.M, c.block_rows)), c.K // BLOCK
        scale_rows, scale_columns = (blocks, rows) if c.transpose_scale else (rows, blocks)
        return {**c.sizes, "scale_rows": scale_rows, "scale_columns": scale_columns}

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        if sizes[1] % BLOCK:
            return "K", f"a multiple of {BLOCK}", f"K={sizes[1]}", "pad x with zeros"
        return None


OP = _Quant(
    "quant_fp8_blockscale",
    """
    x: bf16|f16|f32[M, K]
    block_rows: int >= 1
    transpose_scale: bool
    dtype: e4m3|e4m3fnuz
    -> payload: dtype[M, K] new
    -> scale: f32[scale_rows, scale_columns] new
    """,
    kernels=(Hip(), Torch()),
    max_bytes=None,
    coarse={"M": 0, "K": 0},
    hints={"x": "convert it first"},
    shapes={"activations": grid("K", [(7168,), (2048,)], M=(1, 16, 64, 1024))},
)


def fp8_of_device(device: torch.device) -> torch.dtype:
    """The FP8 that the matrix cores of a device multiply; dynamo asks for it while it traces."""
    return fp8_of(chip(device)[0])


# As a decorator this would import dynamo, which takes as long as torch itself.
when_imported("torch._dynamo", lambda dynamo: dynamo.assume_constant_result(fp8_of_device))


def quant_fp8_blockscale(
    x: torch.Tensor,
    block: tuple[int, int] = (1, BLOCK),
    transpose_scale: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix, activations by (1, 128) or weights by (128, 128).

    Parameters
    ----------
    x : [M, K] bfloat16, float16 or float32, contiguous; K a multiple of 128. Its first byte may be
        at any multiple of an element.
    block : rows and columns that share a scale: (1, 128) or (128, 128).
    transpose_scale : the scale's memory is column-major, as some callers of GEMMs want it.
    dtype : float8_e4m3fn or float8_e4m3fnuz; without, what the device's matrix cores multiply.

    Returns
    -------
    payload : [M, K] of dtype.
    scale : [ceil(M / rows), K / 128] float32.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V3 Technical Report (arXiv:2412.19437), 3.3: tiles of 1 x 128 and blocks of 128
    x 128.
    """
    if not isinstance(block, tuple) or block not in SHAPES:
        OP.fail("block", "(1, 128) or (128, 128)", show(block), "pass one of these")
    if dtype is None:
        is_tensor = isinstance(x, torch.Tensor) and x.device.type in ("cpu", "cuda")
        dtype = fp8_of_device(x.device) if is_tensor else OCP
    call: Callable[..., Any] = OP.traced if is_dynamo_compiling() else OP.call
    payload, scale = call(x, block[0], transpose_scale, dtype)
    return payload, scale.T if transpose_scale else scale


def reference(
    x: torch.Tensor, block_rows: int, transpose_scale: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula in plain torch, with the scale as the memory has it."""
    (m, k), rows = x.shape, -(-x.shape[0] // block_rows)
    padded = torch.zeros(rows * block_rows, k, dtype=torch.float32, device=x.device)
    padded[:m] = x
    tiles = padded.view(rows, block_rows, k // BLOCK, BLOCK)
    payload, scale = quantise_tiles(tiles, dtype)
    return payload.view(-1, k)[:m], scale.T.contiguous() if transpose_scale else scale


def quantise_tiles(tiles: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 [R, rows, B, columns] with a scale for each tile of rows x columns: the payload in that
    shape, the scale [R, B]."""
    amax = tiles.abs().amax((1, 3))
    is_nan = ~amax.isfinite()
    amax = amax.clamp(min=MIN_AMAX).masked_fill(is_nan, float("nan"))
    max_fp8 = torch.full_like(amax, max_of(dtype))
    factor = max_fp8 / amax  # of two tensors: a number over one is rounded twice
    payload = (tiles * factor[:, None, :, None]).to(dtype)
    nan = 0x80 if dtype == FNUZ else 0x7F
    codes = payload.view(torch.uint8).masked_fill(is_nan[:, None, :, None], nan)
    return codes.view(dtype), amax / max_fp8


OP.reference = reference
