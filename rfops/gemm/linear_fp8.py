"""linear_fp8_blockscale: y = q(x) @ w^T for 16-bit x, and FP8 w with fp32 scales of 128 x 128.

q(x) is x in FP8 with a scale for each 1 x 128, so results are those of quant_fp8_blockscale and
gemm_a8w8_blockscale, which few rows get by one launch.

| kernel | what it takes |
|---|---|
| hip (csrc/gemm/linear_fp8_blockscale.hip) | up to 16 rows, of K up to 2,560 |
| ops | what is left: the quantiser, and the product by the kernel that it chooses |
| torch | the reference |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.layout import Shuffled, unwrap
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.strided import matrix_strides
from rfops.jit import compile_ops, u32
from rfops.jit.arch import WAVE
from rfops.quantization.fp8_blockscale import BLOCK, quant_fp8_blockscale
from rfops.quantization.fp8_blockscale import reference as quantise
from rfops.quantization.rows import IN_TYPES

from .a8w8_blockscale import OP as GEMM
from .a8w8_blockscale import (
    gemm_a8w8_blockscale,
    gemm_a8w8_blockscale_ref,
    roundings,
)

__all__ = ["linear_fp8_blockscale", "linear_fp8_blockscale_ref"]
TILE = 16
MAX_K = 2560  # each workgroup quantises x: with more the quantiser's launch costs less
STEPS, MAX_WAVES = 2, 8


def _variants(_arch: str) -> list[dict[str, Any]]:
    """DeepSeek-V3's o_proj at TP 8."""
    shared = {"IN": "bf16", "OUT": "bf16", "STEPS": STEPS, "WAVES": MAX_WAVES, "SHUFFLED": 0}
    return [{**shared, "N_TILES": tiles} for tiles in (1, 2)]


@compile_ops("linear_fp8_blockscale", kernel="linear_fp8_blockscale", variants=_variants)
def linear_fp8_blockscale_kernel(
    w: Tensor,
    x: Tensor,
    m: u32,
    n: u32,
    k: u32,
    x_row: u32,
    w_row: u32,
    w_scale_row: u32,
    w_scale_k: u32,
    w_scale: Tensor,
    out: Tensor,
) -> None:
    """csrc/gemm/linear_fp8_blockscale.hip: the shapes stand there."""


class Hip(Kernel):
    """One launch: x is quantised while w comes from memory."""

    name, module = "hip", "linear_fp8_blockscale"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if c.w_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w_dtype}"
        if c.M > TILE or c.K > MAX_K:
            return f"M={c.M}, K={c.K}: it takes up to {TILE} rows of up to {MAX_K}"
        (x_row, x_elem), (w_row, w_elem) = (matrix_strides(c, n, c.K) for n in ("x", "w"))
        if x_elem != 1 or w_elem != 1:
            return "rows of x or w are not of neighbouring elements"
        if x_row * c.x_dtype.itemsize % 16 or w_row % 16 or c.align("x", "w") < 16:
            return "rows of x or w are not 16-byte aligned"
        if max(c.M * x_row * c.x_dtype.itemsize, 2 * TILE * w_row, c.N) >= 2**31:
            return "2 GiB or more between the rows of a workgroup"
        return None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        # Half as many reads of x, where there are workgroups enough.
        n_tiles = 2 if ceil(c.N, 2 * TILE) * 3 >= 2 * (c.cu_num or 1) else 1
        return {
            "IN": IN_TYPES[c.x_dtype],
            "OUT": IN_TYPES[c.dtype],
            "N_TILES": n_tiles,
            "STEPS": STEPS,
            "WAVES": max(1, min(MAX_WAVES, ceil(c.K // BLOCK, STEPS))),
            "SHUFFLED": int(c.w_layout != "raw"),
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(*sizes: int) -> Run:
            sized = c.resized(sizes)
            defines = self.defines(sized, config)
            bound = linear_fp8_blockscale_kernel.bind(c.device, defines, c.arch)
            launch = bound.prepare((defines["WAVES"] * WAVE, 1, 1), self.arguments)
            m, n, k = (sized.sizes[name] for name in "MNK")
            scale_row, scale_k = matrix_strides(sized, "w_scale", k // BLOCK)
            rows = {f"{name}_row": matrix_strides(sized, name, k)[0] for name in ("x", "w")}
            scales = {"w_scale_row": scale_row, "w_scale_k": scale_k}
            grid_size = ceil(n, defines["N_TILES"] * TILE), 1, 1
            return launch(grid_size, m=m, n=n, k=k, **rows, **scales)

        return run_of


class Ops(Kernel):
    """The two ops one after the other."""

    name = "ops"

    def error_on(self, arch: str) -> float:
        return GEMM.kernels["triton"].error_on(arch)

    def unsupported_reason(self, c: Call) -> str | None:
        wanted = fp8_of(c.arch) if c.arch.startswith("gfx") else c.w_dtype
        return None if c.w_dtype == wanted else f"{c.arch} quantises to {wanted}, not {c.w_dtype}"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, x: Tensor, w: Tensor, w_scale: Tensor) -> None:
            payload, scale = quant_fp8_blockscale(x.contiguous(), dtype=w.dtype)
            rows = w if c.w_layout == "raw" else Shuffled(w, c.w_layout)
            gemm_a8w8_blockscale(payload, rows, scale, w_scale, c.dtype, out)

        return lambda *_sizes: run


class Torch(Kernel):
    """The reference, for every device."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, x: Tensor, w: Tensor, w_scale: Tensor) -> None:
            out.copy_(linear_fp8_blockscale_ref(x, w, w_scale, c.dtype, c.w_layout))

        return lambda *_sizes: run


def linear_fp8_blockscale_ref(
    x: Tensor,
    w: Tensor,
    w_scale: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    w_layout: str = "raw",
) -> Tensor:
    """gemm_a8w8_blockscale_ref of x [M, K], bfloat16 or float16, quantised by 1 x 128 to w's dtype,
    and of w [N, K] FP8, w_scale [N/128, K/128] float32; dtype : of the result [M, N].

    Raises nothing of its own: ValueError and torch's errors of that reference.

    Source: DeepSeek-V3 (arXiv:2412.19437), 3.3.2, fine-grained quantisation.
    """
    payload, scale = quantise(x, 1, False, w.dtype)
    return gemm_a8w8_blockscale_ref(payload, w, scale, w_scale, dtype, w_layout)


class _Linear(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        return super().call_of(arch, cu_num, **{"w_dtype": fp8_of(arch), **arguments})

    def is_empty(self, c: Call) -> bool:
        return 0 in (c.M, c.N)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Scales that leave results of about 1."""
        shape = ceil(c.N, BLOCK), c.K // BLOCK
        return {"w_scale": torch.full(shape, 0.01 * c.K**-0.5, device=c.device)}

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        if c.w_layout != "raw" and sizes[1] % TILE:
            return "w", f"of a multiple of {TILE} rows", str(sizes[1]), "pad w, or keep it as it is"
        return None

    def flops(self, c: Call) -> int:
        return 2 * int(c.M * c.N * c.K)

    def roundings(self, c: Call) -> int:
        return roundings(c.K)


OP = _Linear(
    "linear_fp8_blockscale",
    """
    x: bf16|f16[M, K] strided
    w: e4m3|e4m3fnuz[N, K] strided
    w_scale: f32[N^128, K/128] strided
    dtype: bf16|f16|f32
    w_layout: raw|16x16
    -> out: dtype[M, N]
    """,
    sizes="M N K",
    positive="K",
    max_bytes=None,
    kernels=(Hip(), Ops(), Torch()),
    reference=linear_fp8_blockscale_ref,
    hints={
        "x": "convert it first",
        "w": "quantise it with scales of 128 x 128",
        "K": "pad x and w with zeros",
        "w_scale": "pass fp32, one for each block of 128 x 128",
    },
    shapes={"deepseek": grid("N K", [(7168, 2048), (3072, 1536)], M=(1, 16, 64))},
)


def linear_fp8_blockscale(
    x: Tensor,
    w: Tensor | Shuffled,
    w_scale: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
) -> Tensor:
    """gemm_a8w8_blockscale of x quantised by 1 x 128: a linear layer of an FP8 checkpoint.

    Parameters
    ----------
    x : [M, K] bfloat16 or float16; strided rows; K a multiple of 128.
    w : [N, K] FP8, or what shuffle_weight made of it.
    w_scale : [N/128, K/128] float32, any strides.
    dtype : of the result: bfloat16, float16 or float32.
    out : [M, N] of dtype, contiguous, written and returned.

    Raises ValueError for what does not fit, and what building a kernel raises.

    Source: DeepSeek-V3 (arXiv:2412.19437), 3.3.2, fine-grained quantisation.
    """
    w, layout = unwrap(w)
    call: Callable[..., Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return call(x, w, w_scale, dtype, layout, out)
