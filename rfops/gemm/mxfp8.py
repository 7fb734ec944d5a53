"""gemm_mxfp8: y = x @ w^T for OCP MX-FP8, the linear layer of LLM decoding and of prefill.

| kernel | what it takes |
|---|---|
| gemv (kernels/mxfp8/gemv.py) | HIP on gfx950, M up to 16, bf16 out: bound by reading w |
| mfma (kernels/mxfp8/mfma.py) | HIP on gfx950, any M: matrix cores |
| triton (kernels/mxfp8/triton.py) | every architecture that Triton knows |
| torch | whatever is left |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import OUT_DTYPES, check_dtype
from rfops.dispatch.heuristic import coarse
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import grid
from rfops.dispatch.time_model import Layer, Variants
from rfops.quantization.mx_quant import E8M0_BIAS, E8M0_NAN
from rfops.quantization.mxfp8 import BLOCK, dequant_mxfp8

from . import layers
from .kernels.mxfp8.gemv import MAX_M, Gemv
from .kernels.mxfp8.mfma import TILE_K, Mfma, row_tiles
from .kernels.mxfp8.triton import TritonGemm
from .kernels.variant import TILE
from .terms import GemmModel

__all__ = ["gemm_mxfp8", "gemm_mxfp8_ref"]

QUANTISE = "quantise it with rfops.quant_mxfp8 (float8_e4m3fnuz and e5m2 have other values)"
RAW_SCALE = "pass the e8m0 bytes, one per 32 elements of K"


class Torch(Kernel):
    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda *_sizes: run_torch


class _Model(GemmModel):
    units: ClassVar[dict[str, str]] = {
        **GemmModel.units,
        "wave": "1: of a wave's instructions along K, of all rounds",
    }
    terms = tuple(units)

    def layer(self, v: Variants, c: Call) -> Layer:
        layer = super().layer(v, c)
        wave = {"rounds": self.wave_us(layer, v, c) * v.busy_clocks}
        return layer._replace(terms={**layer.terms, "wave": wave})

    def like(self, c: Call) -> Call:
        """With N and K as calls share decisions; M as it is where the GEMV compiles it in."""
        c = c.with_sizes(N=coarse(c.N, TILE), K=coarse(c.K, TILE_K))
        return super().like(c)

    def static(self, c: Call) -> tuple[Any, ...]:
        return *super().static(c), c.M if c.M <= MAX_M else 0

    def space_key(self, c: Call) -> Any:
        return row_tiles(c.M), super().space_key(c)

    def bytes_of(self, c: Call) -> tuple[float, float, float]:
        return 33 / 32, 33 / 32, c.dtype.itemsize


class _Gemm(Op):
    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Most of decoding."""
        return layers.draw(rng, TILE_K, most_m=64 if rng.random() < 0.7 else 1024)

    def flops(self, c: Call) -> int:
        return int(2 * c.M * c.N * c.K)

    def peer(self, c: Call) -> tuple[str, Callable[[], object]]:
        pairs = c.given("x", "x_scale"), c.given("w", "w_scale")
        x, w = (dequant_mxfp8(codes, scale, torch.bfloat16) for codes, scale in pairs)
        return "torch_bf16", lambda: x @ w.T

    def roundings(self, c: Call) -> int:
        return roundings(c.K)


def roundings(k: int) -> int:
    """A matrix instruction adds 128 products in an order it does not tell, then one for each 128 of
    K, 16 parts of K at most and a routed weight; the reference 32 products and its blocks."""
    return 128 + k // 128 + 18 + BLOCK + k // BLOCK + 2


# (N, K) of one GPU: qkv, o_proj, gate_up and mlp_down of a layer, split over 1, 2, 4, 8 GPUs; those
# of 4 are published.
LAYERS = {
    "tp4": ((2304, 6144), (6144, 2048), (1536, 6144), (6144, 1536)),
    "tp1": ((9216, 6144), (6144, 8192), (6144, 6144)),
    "tp2": ((4608, 6144), (6144, 4096), (3072, 6144), (6144, 3072)),
    "tp8": ((1152, 6144), (6144, 1024), (768, 6144), (6144, 768)),
}
_SETS = {name: grid("N K", rows, M=(1, 2, 4, 8, 16, 32, 64)) for name, rows in LAYERS.items()}

OP = _Gemm(
    "gemm_mxfp8",
    """
    x: e4m3[M, K] @16
    w: e4m3[N, K] @16
    x_scale: e8m0[M, K/32]
    w_scale: e8m0[N, K/32]
    dtype: bf16|f16|f32
    -> out: dtype[M, N]
    """,
    sizes="M N K",
    positive="K",
    table="M+ N K",
    shapes={"published": _SETS["tp4"], **_SETS},
    kernels=(Gemv(), Mfma(), TritonGemm(), Torch()),
    coarse={"N": TILE, "K": TILE_K},
    time_model=_Model,
    hints={
        "x": QUANTISE,
        "w": QUANTISE,
        "K": "pad x and w with zeros",
        "x_scale": RAW_SCALE,
        "w_scale": RAW_SCALE,
    },
)


def gemm_mxfp8(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    *,
    config: Any = None,
) -> torch.Tensor:
    """out[m, n] = sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in b} x[m, k] * w[n, k].

    Parameters
    ----------
    x : [M, K] float8_e4m3fn, K a multiple of 32.
    w : [N, K] float8_e4m3fn.
    x_scale, w_scale : [M, K/32] and [N, K/32] e8m0 (uint8 or float8_e8m0fnu); 255 is NaN.
    dtype : of the result; bfloat16, float16 or float32.
    out : [M, N], written in place where given.
    config : takes that kernel in that variant, whatever the tuned table says: a GemvConfig, an
        MfmaConfig or Triton's TritonConfig.

    All tensors are contiguous and on one device (a GPU, or the cpu: the virtual GPU); x and w start
    at a multiple of 16 bytes. There is a result for every M, size and device, by the route that
    `rfops why gemm_mxfp8` prints. Deterministic for one config. Raises ValueError for what does not
    fit, ConfigError for a tuned table that cannot be read, and what building a kernel raises.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0.
    """
    call: Callable[..., torch.Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return call(x, w, x_scale, w_scale, dtype, out, config)


gemm_mxfp8.supports = OP.supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- torch

_CHUNK = 1 << 22  # elements of an operand in float64 at once: 32 MiB
_CHUNK_K = 1 << 16


def run_torch(out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> None:
    """Any size and device: in float64, where values and products are exact, in pieces."""
    (m, k), n = x.shape, w.shape[0]
    step = min(k, _CHUNK_K)
    rows = max(1, _CHUNK // step)

    def values_of(payload: torch.Tensor, scale: torch.Tensor, row: int, k0: int) -> torch.Tensor:
        blocks = slice(k0 // BLOCK, (k0 + step) // BLOCK)
        block = payload[row : row + rows, k0 : k0 + step]
        return dequant_mxfp8(block, scale[row : row + rows, blocks], torch.float64)

    for m0 in range(0, m, rows):
        for n0 in range(0, n, rows):
            target = out[m0 : m0 + rows, n0 : n0 + rows]
            total = torch.zeros(target.shape, dtype=torch.float64, device=out.device)
            for k0 in range(0, k, step):
                total += values_of(x, x_scale, m0, k0) @ values_of(w, w_scale, n0, k0).T
            target.copy_(total)


# ---------------------------------------------------------------- reference


def gemm_mxfp8_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The formula of `gemm_mxfp8` in plain fp32 torch, one block of 32 along K at a time.

    Takes x [M, K], w [N, K] and e8m0 scales as the op does, on any device. dtype : of the result
    [M, N]; bfloat16, float16, float32 or float64. Raises ValueError for another dtype, and torch's
    RuntimeError for sizes that do not fit each other.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0.
    """
    check_dtype("gemm_mxfp8_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    x_byte = x_scale.view(torch.uint8).to(torch.int32)
    w_byte = w_scale.view(torch.uint8).to(torch.int32)
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float32, device=x.device)
    for block in range(x.shape[1] // BLOCK):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        dots = x[:, span].to(torch.float32) @ w[:, span].to(torch.float32).T
        x_e, w_e = x_byte[:, block, None], w_byte[None, :, block]
        is_nan = (x_e == E8M0_NAN) | (w_e == E8M0_NAN)
        scaled = _ldexp(dots, x_e + w_e - 2 * E8M0_BIAS)
        total += scaled.masked_fill(is_nan, float("nan"))
    return total.to(dtype)


OP.reference = gemm_mxfp8_ref


def _ldexp(value: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """value * 2^exponent for |exponent| <= 254, in two exact factors that fp32 can hold."""
    half = exponent >> 1
    for term in (half, exponent - half):
        value = value * ((term + E8M0_BIAS).clamp(min=1) << 23).view(torch.float32)
    return value
