"""rms_norm: each row over its root mean square, times a weight.

    z = x                 or x + residual rounded to x's dtype, which replaces residual
    y = z * (1 / sqrt(mean(z^2) + eps)) * weight

Sums are in fp32, and y is rounded once, to x's dtype; rms_norm_quant quantises it. Rows may lie
anywhere: q and k of [tokens, heads, dim] within a row of qkv are normalised as they lie, and in
place where out is x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import TensorArg
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.tuned_table import serving
from rfops.jit import compile_ops, f32, u32
from rfops.quantization.rows import (
    FORMATS,
    IN_TYPES,
    VEC,
    RowLanes,
    RowStrides,
    check_out_of_rows,
    default_dtype,
    quantise_rows,
    row_lanes,
    row_refusal,
    row_strides,
    store_numbers,
)
from rfops.triton import launch as triton_launch
from rfops.triton.bound import BoundTriton

__all__ = ["rms_norm", "rms_norm_ref"]
EPS = 1e-6
NO_ROWS = "x or out has no rows of neighbouring elements with at most two strides"
# Of a row with a residual, whose three operands are more than a CU has in flight: 14 waves of one
# chunk hide more of it. Estimated, K = 7168, seven waves of two, then 14 of one: MI355X 1 row 3.71
# and 3.59 us, 512 rows 7.61 and 7.28, 2,048 rows 23.4 and 23.9; MI300X 512 rows 9.75 and 9.65.
RESIDUAL_WAVES = 16
_MAX_BLOCK = 1 << 16  # elements of a Triton program


def _variants(_arch: str) -> list[dict[str, Any]]:
    """Of hidden size 7168, with and without residual: what serves DeepSeek-V3."""
    lanes = row_lanes(7168, VEC), row_lanes(7168, VEC, RESIDUAL_WAVES)
    common_defines = {"IN": "bf16", "WEIGHT": "bf16", "NESTED": 0}
    return [
        {**common_defines, **of_row.defines(), "RESIDUAL": residual, "QUANT": quant}
        for residual, of_row in enumerate(lanes)
        if of_row is not None
        for quant in ("kNone", "kFp8Group")
    ]


@compile_ops("rms_norm", kernel="rms_norm", variants=_variants)
def rms_norm_kernel(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    k: u32,
    inverse_k: f32,
    eps: f32,
    x_outer: u32,
    out_outer: u32,
    m: u32,
    inner: u32,
    x_inner: u32,
    out_inner: u32,
    scale_row: u32,
    scale_k: u32,
    scale: torch.Tensor | None,
) -> None:
    """csrc/rowwise/rms_norm.hip: the shapes stand there."""


def rows_of(c: Call) -> tuple[RowStrides, RowStrides] | None:
    """The rows of x and of out; None where kernels do not take them."""
    x, out = (row_strides(c.tensors.get(name), c.K) for name in ("x", "out"))
    if x is None or out is None or (x.is_nested and out.is_nested and x.inner != out.inner):
        return None
    inner = max(x.inner, out.inner)
    return x.split(inner), out.split(inner)


def row_numbers(x: RowStrides, out: RowStrides) -> dict[str, int]:
    """The numbers of a launch that say where rows begin."""
    return {
        "inner": x.inner,
        "x_outer": x.outer_stride,
        "x_inner": x.inner_stride,
        "out_outer": out.outer_stride,
        "out_inner": out.inner_stride,
    }


class Hip(Kernel):
    """The HIP kernel of both ops; rows that are not aligned go by single elements, and are not
    quantised."""

    name, module = "hip", "rms_norm"

    def lanes_of(self, c: Call, x: RowStrides, out: RowStrides) -> RowLanes | None:
        """How lanes share the rows."""
        size = c.x_dtype.itemsize
        is_aligned = c.K % VEC == 0 and x.is_aligned(size) and out.is_aligned(size)
        is_aligned = is_aligned and c.align("x", "weight", "residual", "out") >= 16
        if "quant" in c.values and not is_aligned:
            return None
        vec = VEC if is_aligned else 1
        return row_lanes(c.K, vec, RESIDUAL_WAVES) if c.has("residual") else row_lanes(c.K, vec)

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        rows = rows_of(c)
        if rows is None:
            return NO_ROWS
        if self.lanes_of(c, *rows) is None:
            return "rows are too long for registers, or not 16-byte aligned to be quantised"
        quant = c.values.get("quant")
        if quant and quant.startswith("fp8") and c.dtype != default_dtype(quant, c.arch):
            return f"{c.arch} converts to {default_dtype(quant, c.arch)}, not {c.dtype}"
        strides = [rows[i].outer_stride for i in (0, 1)]
        return "2^31 rows or elements of a stride, or more" if max(c.M, *strides) >= 2**31 else None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        rows = rows_of(c)
        assert rows is not None
        lanes = self.lanes_of(c, *rows)
        assert lanes is not None
        return {
            "IN": IN_TYPES[c.x_dtype],
            "WEIGHT": IN_TYPES[c.weight_dtype],
            **lanes.defines(),
            "NESTED": int(rows[0].is_nested),
            "RESIDUAL": int(c.has("residual")),
            "QUANT": FORMATS[c.quant].define if "quant" in c.values else "kNone",
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)
        bound = rms_norm_kernel.bind(c.device, defines, c.arch)
        quant = c.values.get("quant")
        sources = {"out": "payload"} if quant else {}
        sources |= {"scale": "static_scale"} if quant == "fp8_tensor" else {}
        launch = bound.prepare((defines["THREADS"], 1, 1), self.arguments, sources=sources)

        def run_of(m: int, k: int) -> Run:
            sized = c.with_sizes(M=m, K=k)
            rows = rows_of(sized)
            assert rows is not None
            numbers = {**row_numbers(*rows), "scale_row": 0, "scale_k": 0}
            if quant:
                numbers |= store_numbers(sized, m, k)
            groups = -(-m * defines["LANES"] // defines["THREADS"])
            run = launch((groups, 1, 1), m=m, k=k, inverse_k=1 / k, eps=float(c.eps), **numbers)
            return (lambda results, *tensors: run(*results, *tensors)) if quant else run

        return run_of


class Triton(Kernel):
    """The Triton kernel, a program a row, where rows lie as the HIP kernel takes them."""

    name = "triton"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := triton_launch.missing():
            return reason
        if serving(c.arch) is None:
            return f"Triton has no kernel for {c.arch}"
        if rows_of(c) is None:
            return NO_ROWS
        return f"rows of more than {_MAX_BLOCK} elements" if c.K > _MAX_BLOCK else None

    def variant(self, c: Call, config: Any) -> RunOf:
        block = 1 << (c.K - 1).bit_length()
        constants = {"EPS": float(c.eps), "RESIDUAL": c.has("residual"), "BLOCK": block}
        warps = min(max(block // 512, 1), 8)
        bound = BoundTriton("rfops.rowwise.triton_kernels", "rms_norm", c.device, constants, warps)
        launch = bound.prepare(self.arguments)

        def run_of(m: int, k: int) -> Run:
            rows = rows_of(c.with_sizes(M=m, K=k))
            assert rows is not None
            return launch((m, 1, 1), k=k, **row_numbers(*rows))

        return run_of


class Torch(Kernel):
    """The formula in plain torch, for every device."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(
            results: Any,
            x: torch.Tensor,
            weight: torch.Tensor,
            residual: torch.Tensor | None,
            static_scale: torch.Tensor | None = None,
        ) -> None:
            y = rms_norm_ref(x, weight, residual, c.eps).to(x.dtype)
            if "quant" in c.values:
                quantised_rows = quantise_rows(y, c.quant, static_scale, c.transpose_scale, c.dtype)
                for result, tensor in zip(results, quantised_rows, strict=True):
                    result.copy_(tensor)
            else:
                results.copy_(y)

        return lambda *_sizes: run


def rms_norm_ref(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = EPS,
) -> torch.Tensor:
    """y [..., K] in float32, not rounded, of x [..., K] and weight [K] of any floating-point dtype;
    residual is written as by rms_norm.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (arXiv:1910.07467).
    """
    z = x.float()
    if residual is not None:
        z = residual.copy_(z + residual.float()).float()
    return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * weight.float()


def fit_residual(c: Call, draw: InputGenerator) -> Mapping[str, Any]:
    return {"residual": draw.floats((c.M, c.K), c.x_dtype) if c.has("residual") else None}


class _RmsNorm(Op):
    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        return row_refusal(c)

    def dtype_of(self, arg: TensorArg, c: Call) -> torch.dtype:
        x = c.tensors.get("x")  # a fake has no other values, and a call of sizes alone no tensors
        dtype: torch.dtype = c.x_dtype if x is None else x.dtype
        return dtype

    def finish_run(self, c: Call, run: Run) -> Run:
        """Check a given result, which may be x itself, for overlaps in each call: a plan knows how
        tensors lie, not where."""
        if not c.has("out"):
            return run

        def checked(out: torch.Tensor, *inputs: torch.Tensor | None) -> None:
            check_out_of_rows(self.name, out, *inputs)
            run(out, *inputs)

        return checked

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        return fit_residual(c, draw)

    def roundings(self, c: Call) -> int:
        """A sum of K squares is off by K roundings at most, its root by half of that."""
        return int(c.K // 2 + 16)


SHAPES = grid("K", [(7168,), (2880,), (1536,), (128,)], M=(1, 16, 4096))
OP = _RmsNorm(
    "rms_norm",
    """
    x: bf16|f16|f32[*M, K] strided
    weight: bf16|f16|f32[K]
    residual: bf16|f16|f32[*M, K]? inout
    eps: float
    -> out: bf16|f16|f32[*M, K] strided
    """,
    kernels=(Hip(), Triton(), Torch()),
    max_bytes=None,
    positive="K",
    usual={"eps": EPS},
    hints={"x": "convert it first"},
    reference=rms_norm_ref,
    shapes={"models": SHAPES},
)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = EPS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x, or x + residual, over its root mean square along the last dimension, times weight.

    Parameters
    ----------
    x : [..., K] bfloat16, float16 or float32; any strides. HIP takes rows of neighbouring elements
        whose leading dimensions have at most two strides, as [tokens, heads, dim] within qkv.
    weight : [K] of one of these dtypes.
    residual : [..., K] of x's dtype, contiguous: x is added to it, in place.
    eps : added to the mean of squares.
    out : [..., K] of x's dtype, any strides, written and returned; it may be x.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (arXiv:1910.07467).
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    result: torch.Tensor = call(x, weight, residual, eps, out)
    return result
