"""What quant_mxfp4 and quant_mxfp8 share: the op, and its kernels of HIP and of Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from rfops.dispatch.declare import MX_BLOCK
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator
from rfops.dispatch.tuned_table import serving
from rfops.jit import CompiledOp
from rfops.triton import launch as triton_launch
from rfops.triton.bound import BoundTriton

THREADS, ELEMS_PER_LANE = 256, 8  # of HIP's kernels; elements of a lane
E8M0_BIAS, E8M0_NAN = 127, 255
IN_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}  # in csrc/
_BLOCKS, _WARPS = 32, 4  # of a program of Triton's
_KERNELS = "rfops.quantization.mx_triton_kernels"


def _strides(c: Call) -> tuple[int, int] | None:
    """From row to row of x and along it, in elements; None where it is no matrix."""
    x = c.tensors.get("x")
    if x is None or x.is_contiguous():
        return int(c.K), 1
    return (int(x.stride(0)), int(x.stride(1))) if x.dim() == 2 else None


def _strides_or_dense(c: Call, k: int, strides: tuple[int, int]) -> tuple[int, int]:
    """These strides in a call like `c` of another K: contiguous tensors stay so."""
    return strides if c.K == k else (k, 1)


class HipQuant(Kernel):
    """The HIP kernel of MX quantisation; subclasses name the module and its rounding."""

    name = "hip"
    compiled: ClassVar[CompiledOp]

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        strides = _strides(c)
        if strides is None or strides[1] != 1 or strides[0] < 0:
            return "x is neither contiguous nor of rows in steps"
        if strides[0] * c.x_dtype.itemsize % 16 or c.align("x") < 16:
            return "rows of x do not begin at multiples of 16 bytes"
        if c.M * c.K >= 2**31 * THREADS * ELEMS_PER_LANE or c.M >= 2**32:
            return "more workgroups or rows than a grid has"
        return None

    def rounding(self, c: Call) -> Mapping[str, Any]:
        """How csrc/ is told of it."""
        raise NotImplementedError

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        in_rows = int(_strides(c) != (c.K, 1))
        return {"IN": IN_TYPES[c.x_dtype], **self.rounding(c), "IN_ROWS": in_rows}

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.compiled.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((THREADS, 1, 1), self.arguments)
        strides = _strides(c) or (int(c.K), 1)

        def run_of(m: int, k: int) -> Run:
            groups, pitch = (
                ceil(m * k, THREADS * ELEMS_PER_LANE),
                _strides_or_dense(c, k, strides)[0],
            )
            run = launch((groups, 1, 1), pitch=pitch, m=m, k=k)
            return lambda results, x: run(*results, x)

        return run_of


class TritonQuant(Kernel):
    """A matrix of any strides."""

    name = "triton"

    def __init__(self, kernel: str, bumps: Mapping[str, int]) -> None:
        self.kernel, self.bumps = kernel, bumps

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := triton_launch.missing():
            return reason
        if serving(c.arch) is None:
            return f"Triton has no kernel for {c.arch}"
        if _strides(c) is None:
            return "x is neither contiguous nor a matrix"
        if c.M * c.K >= 2**31 * _BLOCKS * MX_BLOCK:
            return "more programs than a grid has"
        return None

    def variant(self, c: Call, config: Any) -> RunOf:
        bump, strides = self.bumps[c.rounding], _strides(c) or (int(c.K), 1)
        constants = {"BUMP": bump, "BLOCKS": _BLOCKS}
        bound = BoundTriton(_KERNELS, self.kernel, c.device, constants, _WARPS)
        launch = bound.prepare("payload scale x")

        def run_of(m: int, k: int) -> Run:
            blocks = m * (k // MX_BLOCK)
            x_m, x_k = _strides_or_dense(c, k, strides)
            grid = (ceil(blocks, _BLOCKS), 1, 1)
            run_quant = launch(grid, blocks=blocks, k_blocks=k // MX_BLOCK, x_m=x_m, x_k=x_k)

            def run(results: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor) -> None:
                payload, scale = results
                run_quant(payload.view(torch.uint8), scale.view(torch.uint8), x)

            return run

        return run_of


class TorchQuant(Kernel):
    """`quantise(payload, scale, x, bump)` in plain torch, for every device."""

    name = "torch"

    def __init__(self, quantise: Callable[..., None], bumps: Mapping[str, int]) -> None:
        self.quantise, self.bumps = quantise, bumps

    def variant(self, c: Call, config: Any) -> RunOf:
        bump = self.bumps[c.rounding]
        return lambda *_sizes: lambda results, x: self.quantise(*results, x, bump)


def scaled_blocks(
    x: torch.Tensor, bump: int, max_exponent: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale blocks of 32 of x, [..., K], by a power of two each.

    Returns x over its scales as fp32 [..., K/32, 32], the scales' bytes as int32 [..., K/32], and
    which blocks hold an infinity or a NaN; those have the byte of NaN. `bump` is added to the bits
    of amax, `max_exponent` is the payload format's.
    """
    blocks = x.to(torch.float32).unflatten(-1, (-1, MX_BLOCK))
    amax = blocks.abs().amax(dim=-1)
    exponent = (amax.view(torch.int32) + bump) >> 23
    byte = (exponent - max_exponent).clamp(min=0)
    # 1 / scale = 2^(127 - byte): its bits are an exponent field of 254 - byte, byte < 254
    inverse = ((2 * E8M0_BIAS - byte) << 23).view(torch.float32)
    is_not_finite = ~torch.isfinite(amax)
    scaled = blocks * inverse.unsqueeze(-1)
    return scaled, byte.masked_fill_(is_not_finite, E8M0_NAN), is_not_finite


class MxQuant(Op):
    """An op that quantises to an MX format, with one e8m0 scale per 32 elements."""

    def vmap(self, _info: Any, dims: tuple[int | None, ...], x: torch.Tensor, *args: Any) -> Any:
        return self._op(x.movedim(dims[0] or 0, 0), *args), (0, 0)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Blocks of all magnitudes."""
        magnitudes = 2.0 ** draw.ints((c.M, c.K), -12, 12)
        return {"x": (draw.floats((c.M, c.K)) * magnitudes).to(c.x_dtype)}
