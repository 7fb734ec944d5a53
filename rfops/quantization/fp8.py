"""quant_fp8: rows to FP8 with one fp32 scale per row (token) or for all of them (tensor), which is
found, or for a tensor given.

    scale   = amax / most                       of a row or of all; amax at least 2^-100
    payload = fp8(x * (most / amax))            to nearest even
    payload = fp8(x * (1 / static_scale))       saturated at most

most is the largest FP8, 448 of e4m3 and 240 of e4m3fnuz. A row or tensor with an infinity or a NaN
becomes NaN, scale and payload; with a given scale NaN alone. HIP and torch give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.steps import Step, run_steps
from rfops.jit import compile_ops, u32

from .fp8_blockscale import quantise_tiles
from .rows import (
    IN_TYPES,
    VEC,
    RowLanes,
    RowStrides,
    fit_scale,
    payload_dtype,
    quantise_rows,
    row_lanes,
    row_strides,
)

__all__ = ["quant_fp8", "quant_fp8_ref"]
_MAX_PARTIALS = 512  # workgroups that look for the largest magnitude: each later one reads all


def _variants(_arch: str) -> list[dict[str, Any]]:
    """Return the defines of the variants that `rfops build` makes: tokens of 7168 elements, and
    tensors of such rows in each pass."""
    lanes = row_lanes(7168, VEC)
    assert lanes is not None
    passes = (
        ("kQuantise", "kFp8Token"),
        ("kQuantise", "kFp8Tensor"),
        ("kAmax", "kFp8Tensor"),
        ("kFromPartials", "kFp8Tensor"),
    )
    return [{"IN": "bf16", **lanes.defines(), "PASS": p, "QUANT": q} for p, q in passes]


@compile_ops("quant_fp8", kernel="quant_fp8", variants=_variants)
def quant_fp8_kernel(
    x: torch.Tensor,
    payload: torch.Tensor,
    scale: torch.Tensor | None,
    partials: torch.Tensor | None,
    k: u32,
    x_row: u32,
    m: u32,
    num_partials: u32,
) -> None:
    """csrc/quantization/quant_fp8.hip: the shapes stand there."""


class Hip(Kernel):
    """The HIP kernels: one launch, or two where the scale of a tensor is to be found."""

    name, module = "hip", "quant_fp8"

    def rows_of(self, c: Call) -> RowStrides | None:
        """Return where the rows of x begin; None where they have not one stride."""
        rows = row_strides(c.tensors.get("x"), c.K)
        return None if rows is None or rows.is_nested else rows

    def lanes_of(self, c: Call, rows: RowStrides) -> RowLanes | None:
        """Return how lanes share the rows of x; None where a row is too long or not aligned."""
        is_aligned = c.K % VEC == 0 and rows.is_aligned(c.x_dtype.itemsize)
        return row_lanes(c.K, VEC) if is_aligned and c.align("x", "payload") >= 16 else None

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if c.dtype != fp8_of(c.arch):
            return f"{c.arch} converts to {fp8_of(c.arch)}, not {c.dtype}"
        rows = self.rows_of(c)
        if rows is None:
            return "x has no rows of neighbouring elements with one stride"
        if self.lanes_of(c, rows) is None:
            return "rows are too long for registers, or do not begin at multiples of 16 bytes"
        return (
            "2^31 rows or elements of a stride, or more"
            if max(c.M, rows.outer_stride) >= 2**31
            else None
        )

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        rows = self.rows_of(c)
        assert rows is not None
        lanes = self.lanes_of(c, rows)
        assert lanes is not None
        quant = "kFp8Token" if c.per == "token" else "kFp8Tensor"
        is_found = c.per == "tensor" and not c.has("static_scale")
        pass_name = "kFromPartials" if is_found else "kQuantise"
        return {"IN": IN_TYPES[c.x_dtype], **lanes.defines(), "PASS": pass_name, "QUANT": quant}

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)

        def run_of(m: int, k: int) -> Run:
            rows = self.rows_of(c.with_sizes(M=m, K=k))
            assert rows is not None
            groups = -(-m * defines["LANES"] // defines["THREADS"])
            partials = min(groups, _MAX_PARTIALS)
            numbers: dict[str, int | str | None] = {
                "k": k,
                "x_row": rows.outer_stride,
                "m": m,
                "num_partials": partials,
            }
            quant_step = Step(quant_fp8_kernel, defines, defines["THREADS"], groups, numbers)
            if defines["PASS"] == "kQuantise":
                source = "static_scale" if c.has("static_scale") else "scale"
                numbers |= {"scale": source, "partials": None}
                return _of_results(run_steps(c.device, self.arguments, [quant_step]))
            amax = {**defines, "PASS": "kAmax"}
            amax_step = Step(quant_fp8_kernel, amax, defines["THREADS"], partials, numbers)
            workspace = {"partials": (partials, torch.int32)}
            run = run_steps(c.device, self.arguments, [amax_step, quant_step], workspace=workspace)
            return _of_results(run)

        return run_of


def _of_results(run: Run) -> Run:
    """Return `run` with its results as one tuple, as a plan passes them."""
    return lambda results, *tensors: run(*results, *tensors)


class Torch(Kernel):
    """The formula in plain torch, for every device."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(results: Any, x: torch.Tensor, static_scale: torch.Tensor | None) -> None:
            references = quant_fp8_ref(x, static_scale, c.per, c.dtype)
            for result, reference in zip(results, references, strict=True):
                result.copy_(reference)

        return lambda *_sizes: run


def quant_fp8_ref(
    x: torch.Tensor, static_scale: torch.Tensor | None, per: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The module's formulas in plain torch, of x [..., K] bfloat16, float16 or float32: payload
    [..., K] of dtype and float32 scale as HIP's.

    Raises nothing of its own: torch's errors for what does not fit.

    Source: the dynamic and static quantisers of vLLM, whose scales these are.
    """
    if static_scale is not None:
        return quantise_rows(x, "fp8_tensor", static_scale, False, dtype)
    if per == "token":
        payload, scale = quantise_rows(x.reshape(-1, x.shape[-1]), "fp8_token", None, False, dtype)
    else:
        payload, scale = quantise_tiles(x.float().reshape(1, 1, 1, -1), dtype)
    return payload.view(x.shape), scale


class _QuantFp8(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **values: Any) -> Call:
        return super().call_of(arch, cu_num, **{"dtype": fp8_of(arch), **values})

    def result_sizes(self, c: Call) -> Mapping[str, int]:
        rows = c.M if c.per == "token" else 1
        size = (0, 0) if c.tensors.get("static_scale") is not None else (rows, 1)
        return {**c.sizes, "scale_rows": size[0], "scale_columns": size[1]}

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        if c.per == "token" and c.tensors.get("static_scale") is not None:
            return "static_scale", "None for per='token'", "a tensor", "pass per='tensor'"
        return None

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        return fit_scale(c)


OP = _QuantFp8(
    "quant_fp8",
    """
    x: bf16|f16|f32[*M, K] strided
    static_scale: f32[1]?
    per: token|tensor
    dtype: e4m3|e4m3fnuz
    -> payload: dtype[*M, K]
    -> scale: f32[scale_rows, scale_columns]
    """,
    kernels=(Hip(), Torch()),
    max_bytes=None,
    positive="K",
    hints={"x": "convert it first"},
    reference=quant_fp8_ref,
    shapes={"activations": grid("K", [(7168,), (2048,)], M=(1, 16, 64, 1024))},
)


def quant_fp8(
    x: torch.Tensor,
    per: str = "token",
    static_scale: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    payload: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows to FP8 with a scale per token or one for the tensor.

    Parameters
    ----------
    x : [..., K] bfloat16, float16 or float32; any strides. HIP takes rows with one stride, K a
        multiple of 8.
    per : token or tensor.
    static_scale : [1] float32, with tensor: the scale to use.
    dtype : float8_e4m3fn or float8_e4m3fnuz; None: what the device's matrix cores multiply.
    payload : [..., K] of dtype, written and returned.
    scale : float32 as returned, written and returned.

    Returns
    -------
    payload : [..., K] of dtype.
    scale : float32, [rows, 1] of tokens, [1, 1] of a tensor, or static_scale.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: the symmetric quantisation of vLLM's and aiter's functions of these names; scale is
    amax over the largest number of the format itself.
    """
    dtype = payload_dtype("fp8_token", x) if dtype is None else dtype
    call = OP.traced if is_dynamo_compiling() else OP.call
    payload, made_scale = call(x, static_scale, per, dtype, payload, scale)
    return payload, made_scale if static_scale is None else static_scale
