"""The op class of gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4: operand layouts, the torch kernel,
the reference.

Payloads of w are e2m1, two a byte, raw or as shuffle_weight left them ("16x16"); scales are e8m0,
raw or as shuffle_scale did ("32x8"). Shuffled scales have rows of their own number, a multiple of
32 that is N or more (aiter pads to 32 or to 256), and ceil(K / 256) * 8 columns; what pads them may
hold anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.layout import Shuffled, unwrap
from rfops.dispatch.op import Op
from rfops.dispatch.time_model import Layer, Variants
from rfops.quantization.mx_quant import E8M0_BIAS, E8M0_NAN
from rfops.quantization.mxfp4 import FP4_DTYPES, dequant_mxfp4, fp4_values, quant_mxfp4
from rfops.quantization.mxfp8 import BLOCK, FP8, dequant_mxfp8
from rfops.quantization.shuffle import TILE_ROWS, padded_scale, unshuffle_scale, unshuffle_weight

from . import layers
from .terms import L1_BYTES, GemmModel, chip_of

RAW = "raw"
STEP_K = 256  # elements of K in a step of the kernels that prepare operands
QUANTISE = "quantise it with rfops.quant_mxfp4, two elements a byte"
RAW_SCALE = "pass the e8m0 bytes, one per 32 elements of K"
HINTS = {
    "w": QUANTISE,
    "K": "pad x and w with zeros",
    "x_scale": RAW_SCALE,
    "w_scale": RAW_SCALE,
    "bias": "pass [N], or None",
}
# Of the ops whose x has scales: their arguments behind x.
SCALED = """
    w: fp4[N, K/2] strided
    x_scale: e8m0[XM, XK] strided
    w_scale: e8m0[SN, SK] strided
    bias: bf16|f16|f32[N]?
    dtype: bf16|f16|f32
    w_layout: raw|16x16
    x_scale_layout: raw|32x8
    w_scale_layout: raw|32x8
    -> out: dtype[M, N]
    """
# A scale's argument: the size that it has a row for each of, and those of its own.
SCALES = {"w_scale": ("N", "SN", "SK"), "x_scale": ("M", "XM", "XK")}


def scale_sizes(layout: str, rows: int, k: int) -> tuple[int, int]:
    """The least that scales of so many rows must have."""
    return (rows, k // BLOCK) if layout == RAW else padded_scale(rows, k // BLOCK, TILE_ROWS)


def x_bits(c: Call) -> int:
    """Return the bits of an element of x: 16 (quantized by the kernel), 8 (e4m3) or 4 (e2m1)."""
    return 4 if c.x_dtype in FP4_DTYPES else 8 if c.x_dtype == FP8 else 16


_X_BYTES = {16: 2.0, 8: 33 / 32, 4: 17 / 32}  # by the bits of an element, with its scale


class Fp4Model(GemmModel):
    units: ClassVar[dict[str, str]] = {
        **GemmModel.units,
        "wave": "1: of a wave's instructions along K, of all rounds",
        "fill": "1: of a workgroup's first K-step, at a CU's share of HBM's rate, x not of 4 bits",
        "fabric": "1: of x of 16 bits, from each XCD that has a tile of its rows, at HBM's rate",
        "reduction": "1: of the parts that a tile's last workgroup adds, at 64 bytes a clock",
    }
    terms = tuple(units)
    ridge = 20.0  # of 1 to 80 the best for three quarters of the shuffles, two of the ops
    # Estimated, 15 calls near rows: rows held 1.050 times the choices' time, those up to this ratio
    # 1.001 (of nine limits the best for the same calls).
    max_row_ratio = 1.02

    def bytes_of(self, c: Call) -> tuple[float, float, float]:
        return _X_BYTES[x_bits(c)], 17 / 32, c.dtype.itemsize

    def layer(self, v: Variants, c: Call) -> Layer:
        layer = super().layer(v, c)
        chip = chip_of(c)
        x_readers = np.minimum(np.ceil(c.N / v.n), chip.xcds) * (x_bits(c) == 16)
        step_bytes = (x_bits(c) > 4) * v.step_k * (v.derived["w_rows"] + v.m * v.derived["x_bytes"])
        part_bytes = 4 * v.derived["parts"] * v.m * v.n
        terms = {
            "wave": {"rounds": self.wave_us(layer, v, c) * v.busy_clocks},
            "fill": {"one": step_bytes * (c.cu_num / (1e6 * chip.hbm_tb_s))},
            "fabric": {"M": x_readers * v.derived["x_bytes"] * (c.K / (1e6 * chip.hbm_tb_s))},
            "reduction": {"one": part_bytes / (L1_BYTES * 1e3 * chip.ghz)},
        }
        return layer._replace(terms={**layer.terms, **terms})

    def static(self, c: Call) -> tuple[Any, ...]:
        layouts = c.w_layout, c.w_scale_layout, c.values.get("x_scale_layout")
        return *super().static(c), *layouts, c.has("bias"), c.K % STEP_K == 0

    def prepared(self, c: Call) -> tuple[float, float, float]:
        """x of 16 bits is quantised, raw scales are shuffled."""
        is_wide, has_raw_x = x_bits(c) == 16, c.values.get("x_scale_layout") == RAW
        has_raw_w = c.w_scale_layout == RAW
        x_moved = 2 + 17 / 32 if is_wide else 2 / BLOCK * has_raw_x
        return (is_wide or has_raw_x) + has_raw_w, x_moved, 2 / BLOCK * has_raw_w


class Fp4Gemm(Op):
    """One of the three."""

    def __init__(self, name: str, arguments: str, x_hint: str, **options: Any) -> None:
        options |= {"positive": "K", "table": "M+ N K", "max_bytes": None, "time_model": Fp4Model}
        super().__init__(name, arguments, hints={**HINTS, "x": x_hint}, **options)

    @property
    def scales(self) -> list[str]:
        return [arg.name for arg in self.declaration.tensors if arg.name in SCALES]

    def product_type(self, c: Call) -> str:
        return "fp8" if c.x_dtype == torch.float8_e4m3fn else "fp4"

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        size_of = dict(zip(self.declaration.sizes, sizes, strict=True))
        n, k = size_of["N"], size_of["K"]
        if k % BLOCK:
            return "K", f"a positive multiple of {BLOCK}", f"K={k}", self.hints["K"]
        if c.w_layout != RAW and n % 16:
            return "N", "a multiple of 16 where w is shuffled", f"N={n}", "pad w with zeros"
        for name in self.scales:
            rows, num_rows, columns = (size_of[size] for size in SCALES[name])
            layout = getattr(c, f"{name}_layout")
            min_rows, num_columns = scale_sizes(layout, rows, k)
            is_shuffled = layout != RAW
            is_sized = (
                num_rows >= min_rows and num_rows % TILE_ROWS == 0
                if is_shuffled
                else num_rows == min_rows
            )
            if not is_sized or columns != num_columns:
                shape = f"[{min_rows}{' or more' * is_shuffled}, {num_columns}]"
                actual = f"[{num_rows}, {columns}]"
                return name, f"a {shape} tensor, {layout}", actual, self.hints[name]
        return self._refuses_strides(c)

    def _refuses_strides(self, c: Call) -> tuple[str, str, str, str] | None:
        for name in ("w", *self.scales):
            tensor = c.tensors.get(name)
            if getattr(c, f"{name}_layout") != RAW and tensor is not None:
                if not tensor.is_contiguous():
                    strides = f"strides {list(tensor.strides)}"
                    return name, "contiguous where it is shuffled", strides, "shuffle a copy"
        return None

    def _multiple_of(self, size: str) -> int:
        return BLOCK if size == "K" else super()._multiple_of(size)

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        for name in self.scales:
            rows, scale_rows, columns = SCALES[name]
            min_rows = scale_sizes(values[f"{name}_layout"], sizes[rows], sizes["K"])
            sizes.setdefault(scale_rows, min_rows[0])
            sizes.setdefault(columns, min_rows[1])

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """One in two with all shuffled that can be."""
        is_raw = rng.random() < 0.5
        layer = layers.draw(rng, BLOCK)
        return {**layer, **self.layouts(layer)[0 if is_raw else -1]}

    def layouts(self, sizes: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
        """All raw; where N is a multiple of 16, all shuffled."""
        shuffled = {f"{name}_layout": "32x8" for name in self.scales} | {"w_layout": "16x16"}
        return ({}, shuffled) if sizes["N"] % 16 == 0 else ({},)

    def flops(self, c: Call) -> int:
        return int(2 * c.M * c.N * c.K)

    def peer(self, c: Call) -> tuple[str, Callable[[], object]]:
        x, w, w_scale = c.given("x", "w", "w_scale")
        x_scale = c.inputs.get("x_scale")

        def run() -> torch.Tensor:
            wide_w = dequantised(w, w_scale, c.w_layout, c.w_scale_layout)
            x_values = x if x_scale is None else dequantised(x, x_scale, RAW, c.x_scale_layout)
            return x_values.to(torch.bfloat16) @ wide_w.to(torch.bfloat16).T

        return "torch_dequantise", run

    def roundings(self, c: Call) -> int:
        return roundings(c.K)


def call_scaled(
    op: Op,
    x: torch.Tensor,
    w: torch.Tensor | Shuffled,
    x_scale: torch.Tensor | Shuffled,
    w_scale: torch.Tensor | Shuffled,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *arguments: Any,
) -> torch.Tensor:
    """An op whose x has scales, by its public arguments."""
    call: Callable[..., torch.Tensor] = op.traced if is_dynamo_compiling() else op.call
    weight, layout = unwrap(w)
    x_scale_, x_layout = unwrap(x_scale)
    w_scale_, w_scale_layout = unwrap(w_scale)
    tensors = x, weight, x_scale_, w_scale_, bias
    return call(*tensors, dtype, layout, x_layout, w_scale_layout, *arguments)


def roundings(k: int) -> int:
    """A matrix instruction adds 128 products in an order it does not tell, then one for each 128 of
    K, 16 parts of K at most and a bias; the reference is exact."""
    return 128 + k // 128 + 18


# ---------------------------------------------------------------- torch


class Torch(Kernel):
    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        x_layout = RAW if x_bits(c) == 16 else c.x_scale_layout
        layouts = x_layout, c.w_layout, c.w_scale_layout
        if x_bits(c) == 16:
            rounding = c.rounding

            def run_quantised(out: Tensor, x: Tensor, *inputs: Any) -> None:
                run_torch(out, *quant_mxfp4(x, rounding), *inputs, layouts=layouts)

            return lambda *_sizes: run_quantised

        def run(out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, *inputs: Any) -> None:
            run_torch(out, x, x_scale, w, *inputs, layouts=layouts)

        return lambda *_sizes: run


_CHUNK = 1 << 22  # elements of an operand in float64 at once: 32 MiB


def run_torch(
    out: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    layouts: tuple[str, str, str],
) -> None:
    """Any size, strides and device: in float64, where scaled values are exact, in pieces. `layouts`
    are those of x_scale, w and w_scale."""
    x_layout, w_layout, w_scale_layout = layouts
    m, (n, half) = x.shape[0], w.shape
    x_scale = plain_scale(x_scale, x_layout, m, 2 * half)
    w_scale = plain_scale(w_scale, w_scale_layout, n, 2 * half)
    w = w if w_layout == RAW else unshuffle_weight(w)
    rows = max(1, _CHUNK // (2 * half))
    widen = dequant_mxfp8 if x.dtype == FP8 else dequant_mxfp4
    for n0 in range(0, n, rows):
        values = dequant_mxfp4(w[n0 : n0 + rows], w_scale[n0 : n0 + rows], torch.float64)
        for m0 in range(0, m, rows):
            x_rows = widen(x[m0 : m0 + rows], x_scale[m0 : m0 + rows], torch.float64)
            sums = x_rows @ values.T
            if bias is not None:
                sums += bias[n0 : n0 + rows].to(torch.float64)
            out[m0 : m0 + rows, n0 : n0 + rows] = sums


def plain_scale(scale: torch.Tensor, layout: str, rows: int, k: int) -> torch.Tensor:
    """[rows, K/32] of scales in a layout."""
    return scale if layout == RAW else unshuffle_scale(scale, rows, k // BLOCK)


def dequantised(
    payload: torch.Tensor, scale: torch.Tensor, layout: str, scale_layout: str
) -> torch.Tensor:
    """[rows, K] float32."""
    if payload.dtype == FP8:
        return dequant_mxfp8(payload, plain_scale(scale, scale_layout, *payload.shape))
    plain = payload if layout == RAW else unshuffle_weight(payload)
    rows, half = plain.shape
    return dequant_mxfp4(plain, plain_scale(scale, scale_layout, rows, 2 * half))


# ---------------------------------------------------------------- reference


def reference(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    x_layout: str,
    w_layout: str,
    w_scale_layout: str,
) -> torch.Tensor:
    """The formula in float64, in which products and scales are exact, block by block."""
    m, n, k = x.shape[0], w.shape[0], 2 * w.shape[1]
    w = w if w_layout == RAW else unshuffle_weight(w)
    x_values = (x if x.dtype == FP8 else fp4_values(x)).to(torch.float64)
    w_values = fp4_values(w).to(torch.float64)
    x_factor = _factors(plain_scale(x_scale, x_layout, m, k))
    w_factor = _factors(plain_scale(w_scale, w_scale_layout, n, k))
    total = torch.zeros(m, n, dtype=torch.float64, device=x.device)
    for block in range(k // BLOCK):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        dots = x_values[:, span] @ w_values[:, span].T
        total += dots * (x_factor[:, block, None] * w_factor[None, :, block])
    result: torch.Tensor = (total if bias is None else total + bias).to(dtype)
    return result


def scaled_reference(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    w_layout: str = RAW,
    x_scale_layout: str = RAW,
    w_scale_layout: str = RAW,
) -> torch.Tensor:
    """The formula of gemm_afp4wfp4 and gemm_a8wfp4 in plain float64 torch, block by block.

    Takes x [M, K/2] of two e2m1 a byte, or [M, K] float8_e4m3fn, w [N, K/2], e8m0 scales [M, K/32]
    and [N, K/32], and bias [N] as the ops do, on any device; the layouts name the orders of plain
    tensors ("raw", "16x16", "32x8"). Returns [M, N] of any float dtype. Raises ValueError for a
    scale that its layout does not fit, and torch's RuntimeError for other sizes that do not fit.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0.
    """
    layouts = x_scale_layout, w_layout, w_scale_layout
    return reference(x, x_scale, w, w_scale, bias, dtype, *layouts)


def _factors(scale: torch.Tensor) -> torch.Tensor:
    byte = scale.view(torch.uint8).to(torch.float64)
    return torch.exp2(byte - E8M0_BIAS).masked_fill(byte == E8M0_NAN, float("nan"))
