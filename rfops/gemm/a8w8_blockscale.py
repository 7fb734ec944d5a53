"""gemm_a8w8_blockscale: y = x @ w^T for FP8 with fp32 scales of 1 x 128 of x and of 128 x 128 of w,
the linear layer of DeepSeek-class models.

| kernel | what it takes |
|---|---|
| stream (kernels/a8w8/stream.py) | HIP, M up to 64: bound by reading w |
| pingpong (kernels/a8w8/pingpong.py) | HIP on gfx950, any M: tiles of up to 256 x 256 |
| deep (kernels/a8w8/deep.py) | HIP, any M: tiles of up to 96 x 128, where they are few |
| staged (kernels/a8w8/staged.py) | HIP, any M: tiles of up to 128 x 128 |
| triton (kernels/a8w8/triton.py) | AMD's and NVIDIA's GPUs, any strides |
| torch | whatever is left |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import OUT_DTYPES, check_dtype
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.layout import Shuffled, unwrap
from rfops.dispatch.op import Op
from rfops.dispatch.problem import grid
from rfops.dispatch.time_model import Layer, Variants
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.shuffle import unshuffle_weight

from . import layers
from .kernels.a8w8.deep import Deep
from .kernels.a8w8.pingpong import PingPong
from .kernels.a8w8.staged import Staged
from .kernels.a8w8.stream import Stream
from .kernels.a8w8.triton import TritonGemm
from .layers import DEEPSEEK_V3_ATTENTION, DEEPSEEK_V3_DENSE, DEEPSEEK_V3_DENSE_TP8
from .terms import GemmModel

__all__ = ["gemm_a8w8_blockscale", "gemm_a8w8_blockscale_ref"]


class Torch(Kernel):
    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        if c.w_layout == "raw":
            return lambda *_sizes: run_torch
        return lambda *_sizes: (
            lambda out, x, w, *scales: run_torch(out, x, unshuffle_weight(w), *scales)
        )


_TILE_ROWS, _MAX_EXACT_ROWS = 16, 1024  # of a matrix instruction; in whose steps M decides


class _Model(GemmModel):
    family_prior = 0.3  # families are tiles of one kernel: the best of 0.03 to 0.3, on both chips
    logs = (*GemmModel.logs, "uneven")  # of K-steps of the longest part of K, over the average

    def like(self, c: Call) -> Call:
        """Up to 1,024 rows M in sixteens: tiles of 48, 80 and 96 rows end between coarse steps."""
        if _TILE_ROWS < c.M <= _MAX_EXACT_ROWS:
            return c.with_sizes(M=-(-c.M // _TILE_ROWS) * _TILE_ROWS)
        return super().like(c)

    def layer(self, v: Variants, c: Call) -> Layer:
        layer, steps = super().layer(v, c), c.K / v.derived["step_split"]
        return layer._replace(logs={**layer.logs, "uneven": np.log2(np.ceil(steps) / steps)})

    def bytes_of(self, c: Call) -> tuple[float, float, float]:
        return 1.0, 1.0, c.dtype.itemsize


class _Gemm(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        arguments = {"x_dtype": fp8_of(arch), "w_dtype": fp8_of(arch), **arguments}
        return super().call_of(arch, cu_num, **arguments)

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        if c.w_layout != "raw" and sizes[1] % 16:
            return "N", "a multiple of 16 where w is shuffled", f"N={sizes[1]}", "pad w with zeros"
        w = c.tensors.get("w")
        if c.w_layout != "raw" and w is not None and not w.is_contiguous():
            strides = f"strides {list(w.strides)}"
            return "w", "contiguous where it is shuffled", strides, "shuffle a copy"
        if c.x_dtype == c.w_dtype:
            return None
        return "w", f"{c.x_dtype} as x is", str(c.w_dtype), "quantise both to the same FP8"

    def draw(self, rng: random.Random) -> dict[str, Any]:
        return layers.draw(rng, BLOCK)

    def flops(self, c: Call) -> int:
        return int(2 * c.M * c.N * c.K)

    def peer(self, c: Call) -> tuple[str, Callable[[], object]]:
        x, w, x_scale, w_scale = c.given("x", "w", "x_scale", "w_scale")

        def run() -> torch.Tensor:
            rows = w_scale.repeat_interleave(BLOCK, 0)[: c.N]
            x_values = dequantised(x, x_scale, torch.bfloat16)
            return x_values @ dequantised(w, rows, torch.bfloat16).T

        return "torch_dequantise", run

    def roundings(self, c: Call) -> int:
        return roundings(c.K)


def roundings(k: int) -> int:
    """Matrix instructions add the 128 products of a block in an order they do not tell; then one
    for the product of the scales, one for each block, 16 parts of K at most; the reference its 128
    products, two scales and its blocks."""
    return 128 + 1 + k // BLOCK + 16 + 128 + 2 + k // BLOCK


# (N, K) of linear layers. The challenge of 2025 has its own; those of models are of one GPU.
CHALLENGE = (
    (1536, 7168),
    (3072, 1536),
    (576, 7168),
    (7168, 256),
    (7168, 2048),
    (4608, 7168),
    (7168, 2304),
    (512, 7168),
    (4096, 512),
)
LAYERS = {
    "deepseek_v3": (*DEEPSEEK_V3_ATTENTION, *DEEPSEEK_V3_DENSE, *DEEPSEEK_V3_DENSE_TP8),
    # qkv, o_proj of 235B-A22B, then qkv, o_proj, gate_up, down of 32B
    "qwen3": (
        (9216, 4096),
        (4096, 8192),
        (10240, 5120),
        (5120, 8192),
        (51200, 5120),
        (5120, 25600),
    ),
}
DECODE_M = (1, 2, 4, 8, 16, 32, 64)

OP = _Gemm(
    "gemm_a8w8_blockscale",
    """
    x: e4m3|e4m3fnuz[M, K] strided
    w: e4m3|e4m3fnuz[N, K] strided
    x_scale: f32[M, K/128] strided
    w_scale: f32[N^128, K/128] strided
    dtype: bf16|f16|f32
    w_layout: raw|16x16
    -> out: dtype[M, N]
    """,
    sizes="M N K",
    positive="K",
    table="M+ N K",
    max_bytes=None,
    shapes={
        "published": grid("N K", CHALLENGE, M=(1024, 6144)),
        "decode": grid("N K", CHALLENGE, M=DECODE_M),
        **{name: grid("N K", rows, M=(*DECODE_M, 1024, 4096)) for name, rows in LAYERS.items()},
    },
    kernels=(Stream(), PingPong(), Staged(), Deep(), TritonGemm(), Torch()),
    time_model=_Model,
    hints={
        "x": "quantise it with scales of 1 x 128",
        "w": "quantise it with scales of 128 x 128",
        "K": "pad x and w with zeros",
        "x_scale": "pass fp32, one for each row and 128 of K",
        "w_scale": "pass fp32, one for each block of 128 x 128",
    },
)


def gemm_a8w8_blockscale(
    x: torch.Tensor,
    w: torch.Tensor | Shuffled,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    *,
    config: Any = None,
) -> torch.Tensor:
    """out[m, n] = sum_b x_scale[m, b] * w_scale[n // 128, b] * sum_{k in b} x[m, k] * w[n, k].

    Parameters
    ----------
    x : [M, K] float8_e4m3fn, on gfx942 float8_e4m3fnuz; K a multiple of 128.
    w : [N, K] of the same dtype; or what shuffle_weight made of it.
    x_scale : [M, K/128] float32, in either order (row-major or column-major), any value.
    w_scale : [ceil(N/128), K/128] float32.
    dtype : of the result; bfloat16, float16 or float32.
    out : [M, N], written in place where given.
    config : takes that kernel in that variant, whatever the tuned table says.

    All tensors are on one device (a GPU, or the cpu: the virtual GPU). x and w may have any
    strides; HIP's kernels take elements side by side along K and rows at multiples of 16 bytes, and
    column-major operands with rows and columns in fours; the rest goes to Triton or torch. Sums are
    fp32, in an order that the config fixes: deterministic.
    Raises ValueError for what does not fit, ConfigError for a tuned table that cannot be read, and
    what building a kernel raises.

    Source: DeepSeek-V3 Technical Report (arXiv:2412.19437), 3.3: sums of each 128 of K are scaled
    and added in fp32.
    """
    call: Callable[..., torch.Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    weight, layout = unwrap(w)
    return call(x, weight, x_scale, w_scale, dtype, layout, out, config)


gemm_a8w8_blockscale.supports = OP.supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- torch

_ROWS = 2048  # of an operand at once: 32 MiB of sums


def run_torch(out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> None:
    """Any size, strides and device, in pieces. Sums of a block are exact in float64, and meet their
    scales as in the kernels, so that an infinite scale of a finite sum gives infinity, not NaN."""
    (m, k), n = x.shape, w.shape[0]
    for n0 in range(0, n, _ROWS):
        w_part = w[n0 : n0 + _ROWS]
        w_rows = w_scale[n0 // BLOCK : (n0 + _ROWS) // BLOCK].repeat_interleave(BLOCK, 0)
        w_rows = w_rows[: w_part.shape[0]]
        for m0 in range(0, m, _ROWS):
            x_part, x_rows = x[m0 : m0 + _ROWS], x_scale[m0 : m0 + _ROWS]
            shape = x_part.shape[0], w_part.shape[0]
            total = torch.zeros(shape, dtype=torch.float64, device=x.device)
            for block in range(k // BLOCK):
                span = slice(block * BLOCK, (block + 1) * BLOCK)
                dots = _to_float64(x_part[:, span]) @ _to_float64(w_part[:, span]).T
                total += dots * (x_rows[:, block, None] * w_rows[None, :, block])
            out[m0 : m0 + _ROWS, n0 : n0 + _ROWS] = total


def _to_float64(payload: torch.Tensor) -> torch.Tensor:
    return payload.to(torch.float32).to(torch.float64)


def dequantised(payload: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return payload * scale, with one scale per row and block."""
    blocks = payload.to(torch.float32).to(dtype).unflatten(1, (-1, BLOCK))
    values: torch.Tensor = (blocks * scale.to(dtype)[:, :, None]).flatten(1)
    return values


# ---------------------------------------------------------------- reference


def gemm_a8w8_blockscale_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    w_layout: str = "raw",
) -> torch.Tensor:
    """The formula of `gemm_a8w8_blockscale` in plain fp32 torch, by blocks of 128 along K.

    Takes x [M, K], w [N, K], x_scale and w_scale as the op does, on any device; w_layout "16x16":
    w is what shuffle_weight made. dtype : of the result [M, N]; bfloat16, float16, float32 or
    float64. Raises ValueError for another dtype, and torch's RuntimeError for sizes that do not fit
    each other.

    Source: DeepSeek-V3 Technical Report (arXiv:2412.19437), 3.3.
    """
    check_dtype("gemm_a8w8_blockscale_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    w = w if w_layout == "raw" else unshuffle_weight(w)
    n = w.shape[0]
    w_rows = w_scale.repeat_interleave(BLOCK, 0)[:n]
    total = torch.zeros(x.shape[0], n, dtype=torch.float32, device=x.device)
    for block in range(x.shape[1] // BLOCK):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        dots = x[:, span].to(torch.float32) @ w[:, span].to(torch.float32).T
        total += dots * (x_scale[:, block, None] * w_rows[None, :, block])
    return total.to(dtype)


OP.reference = gemm_a8w8_blockscale_ref
