"""act_mul: the activation of gated linear units, times their other half.

    silu       gate * sigmoid(gate) * up
    gelu       gate * Phi(gate) * up, Phi the normal distribution (by erf)
    gelu_tanh  gate * (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 * up
    swiglu     g * sigmoid(alpha g) * (u + beta), g = min(gate, limit), u = up within +-limit

A row of x has both: gate, then up; or pairs of them, interleaved. Computed in fp32 and rounded
once, to x's dtype; act_mul_quant quantises that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import TensorArg
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import grid
from rfops.jit import compile_ops, f32, u32
from rfops.quantization.rows import (
    FORMATS,
    IN_TYPES,
    VEC,
    RowLanes,
    RowStrides,
    default_dtype,
    quantise_rows,
    row_lanes,
    row_strides,
    store_numbers,
)

__all__ = ["act_mul", "act_mul_ref", "gelu_mul", "silu_mul", "swiglu_mul"]
ACTIVATIONS = {"silu": "kSilu", "gelu": "kGelu", "gelu_tanh": "kGeluTanh", "swiglu": "kSwiglu"}
WORDS = "|".join(ACTIVATIONS)
ALPHA, LIMIT, BETA = 1.702, 7.0, 1.0  # of GPT-OSS
USUAL = {"alpha": ALPHA, "limit": LIMIT, "beta": BETA}


def _variants(_arch: str) -> list[dict[str, Any]]:
    """SiLU of DeepSeek-V3's shared expert at TP 8 and of its experts."""
    lanes = [row_lanes(k, VEC) for k in (256, 2048)]
    common_defines = {"IN": "bf16", "INTERLEAVED": 0, "ACTIVATION": "kSilu"}
    return [
        {**common_defines, **lane_layout.defines(), "QUANT": quant}
        for lane_layout in lanes
        if lane_layout is not None
        for quant in ("kNone", "kFp8Group")
    ]


@compile_ops("act_mul", kernel="act_mul", variants=_variants)
def act_mul_kernel(
    x: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor | None,
    k: u32,
    x_row: u32,
    out_row: u32,
    m: u32,
    scale_row: u32,
    scale_k: u32,
    alpha: f32,
    limit: f32,
    beta: f32,
) -> None:
    """csrc/rowwise/act_mul.hip: the shapes stand there."""


def rows_of(c: Call) -> tuple[RowStrides, RowStrides] | None:
    """The rows of x and of out; None where the kernel does not take them."""
    x, out = row_strides(c.tensors.get("x"), c.N), row_strides(c.tensors.get("out"), c.N // 2)
    if x is None or out is None or x.is_nested or out.is_nested:
        return None
    return x, out


class Hip(Kernel):
    """The HIP kernel of both ops; rows that are not aligned go by single elements, and are not
    quantised."""

    name, module = "hip", "act_mul"

    def lanes_of(self, c: Call, x: RowStrides, out: RowStrides) -> RowLanes | None:
        """How lanes share the rows."""
        size, k = c.x_dtype.itemsize, c.N // 2
        is_aligned = k % VEC == 0 and x.is_aligned(size) and out.is_aligned(size)
        is_aligned = is_aligned and c.align("x", "out") >= 16
        if "quant" in c.values and not is_aligned:
            return None
        return row_lanes(k, VEC if is_aligned else 1)

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        rows = rows_of(c)
        if rows is None:
            return "x or out has no rows of neighbouring elements with one stride"
        if self.lanes_of(c, *rows) is None:
            return "rows are too long for registers, or not 16-byte aligned to be quantised"
        quant = c.values.get("quant")
        if quant and quant.startswith("fp8") and c.dtype != default_dtype(quant, c.arch):
            return f"{c.arch} converts to {default_dtype(quant, c.arch)}, not {c.dtype}"
        if max(c.M, *[strides.outer_stride for strides in rows]) >= 2**31:
            return "2^31 rows or elements of a stride, or more"
        return None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        rows = rows_of(c)
        assert rows is not None
        lanes = self.lanes_of(c, *rows)
        assert lanes is not None
        return {
            "IN": IN_TYPES[c.x_dtype],
            **lanes.defines(),
            "INTERLEAVED": int(c.interleaved),
            "ACTIVATION": ACTIVATIONS[c.activation],
            "QUANT": FORMATS[c.quant].define if "quant" in c.values else "kNone",
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)
        bound = act_mul_kernel.bind(c.device, defines, c.arch)
        quant = c.values.get("quant")
        sources = {"out": "payload"} if quant else {}
        sources |= {"scale": "static_scale"} if quant == "fp8_tensor" else {}
        launch = bound.prepare((defines["THREADS"], 1, 1), self.arguments, sources=sources)
        floats = {name: float(c.values[name]) for name in USUAL}

        def run_of(m: int, n: int) -> Run:
            sized = c.with_sizes(M=m, N=n)
            rows = rows_of(sized)
            assert rows is not None
            numbers = {"out_row": rows[1].outer_stride, "scale_row": 0, "scale_k": 0}
            if quant:
                stored = store_numbers(sized, m, n // 2)
                numbers = {"out_row": stored.pop("out_outer"), **stored}
            groups = -(-m * defines["LANES"] // defines["THREADS"])
            x_row = rows[0].outer_stride
            run = launch((groups, 1, 1), m=m, k=n // 2, x_row=x_row, **floats, **numbers)
            return (lambda results, *tensors: run(*results, *tensors)) if quant else run

        return run_of


class Torch(Kernel):
    """The formula in plain torch, for every device."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        values = c.activation, c.interleaved, c.alpha, c.limit, c.beta

        def run(results: Any, x: torch.Tensor, static_scale: torch.Tensor | None = None) -> None:
            y = act_mul_ref(x, *values).to(x.dtype)
            if "quant" in c.values:
                quantised_rows = quantise_rows(y, c.quant, static_scale, c.transpose_scale, c.dtype)
                for result, tensor in zip(results, quantised_rows, strict=True):
                    result.copy_(tensor)
            else:
                results.copy_(y)

        return lambda *_sizes: run


def act_mul_ref(
    x: torch.Tensor,
    activation: str,
    interleaved: bool = False,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    beta: float = BETA,
) -> torch.Tensor:
    """The module's formulas on x [..., 2 K] of any floating-point dtype: float32 [..., K], not
    rounded; of a float64 x float64.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: the module's head names that of each activation.
    """
    x = x if x.dtype == torch.float64 else x.float()
    gate, up = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    if activation == "swiglu":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + beta
    factor: torch.Tensor
    if activation == "gelu":
        factor = 0.5 * torch.special.erfc(-gate * math.sqrt(0.5))
    elif activation == "gelu_tanh":
        factor = torch.sigmoid(math.sqrt(8 / math.pi) * (gate + 0.044715 * gate**3))
    else:
        factor = torch.sigmoid(gate * (alpha if activation == "swiglu" else 1.0))
    return gate * factor * up


class _ActMul(Op):
    def dtype_of(self, arg: TensorArg, c: Call) -> torch.dtype:
        x = c.tensors.get("x")  # a fake has no other values, and a call of sizes alone no tensors
        dtype: torch.dtype = c.x_dtype if x is None else x.dtype
        return dtype

    def roundings(self, c: Call) -> int:
        """exp2's argument has the rounding of up to 128 times itself; gelu's polynomial 2^-19."""
        return 128


SHAPES = grid("N", [(512,), (4096,), (5760,), (36864,)], M=(1, 16, 4096), activation=("silu",))
OP = _ActMul(
    "act_mul",
    f"""
    x: bf16|f16|f32[*M, N] strided
    activation: {WORDS}
    interleaved: bool
    alpha: float
    limit: float
    beta: float
    -> out: bf16|f16|f32[*M, N/2]
    """,
    kernels=(Hip(), Torch()),
    max_bytes=None,
    positive="N",
    usual=USUAL,
    hints={"x": "convert it first", "N": "pass gate and up of one size"},
    reference=act_mul_ref,
    shapes={"models": SHAPES},
)


def act_mul(
    x: torch.Tensor,
    activation: str,
    interleaved: bool = False,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    beta: float = BETA,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return activation(gate) * up.

    Parameters
    ----------
    x : [..., 2 K] bfloat16, float16 or float32: gate, then up; or pairs of them. Any strides; HIP
        takes rows of neighbouring elements with one stride.
    activation : silu, gelu, gelu_tanh or swiglu (see module).
    interleaved : x has pairs of gate and up, as GPT-OSS's weights give them.
    alpha, limit, beta : of swiglu.
    out : [..., K] of x's dtype, contiguous, written and returned.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: Shazeer, GLU Variants Improve Transformer (arXiv:2002.05202); swiglu with limit:
    GPT-OSS's model code.
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    result: torch.Tensor = call(x, activation, interleaved, alpha, limit, beta, out)
    return result


def silu_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up of x [..., 2 K] bfloat16, float16 or float32: [..., K] of its dtype.

    Raises ValueError as act_mul.

    Source: SwiGLU of GLU Variants Improve Transformer (arXiv:2002.05202).
    """
    return act_mul(x, "silu", out=out)


def gelu_mul(
    x: torch.Tensor, approximate: str = "none", out: torch.Tensor | None = None
) -> torch.Tensor:
    """gelu(gate) * up of x [..., 2 K] bfloat16, float16 or float32: [..., K] of its dtype, by erf,
    or with approximate="tanh" by tanh.

    Raises ValueError as act_mul, and for another word.

    Source: GEGLU of GLU Variants Improve Transformer (arXiv:2002.05202).
    """
    if approximate not in ("none", "tanh"):
        OP.fail("approximate", "none or tanh", repr(approximate), "pass one of these")
    return act_mul(x, "gelu" if approximate == "none" else "gelu_tanh", out=out)


def swiglu_mul(
    x: torch.Tensor,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    beta: float = BETA,
    interleaved: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """GPT-OSS's clamped swiglu of x [..., 2 K] bfloat16, float16 or float32: [..., K] of its dtype.

    Raises ValueError as act_mul.

    Source: the gpt-oss model card's reference implementation (openai/gpt-oss).
    """
    return act_mul(x, "swiglu", interleaved, alpha, limit, beta, out)
