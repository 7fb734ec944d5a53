"""The HIP kernels of gemm_a16wfp4, gemm_a8wfp4 and gemm_afp4wfp4: the operand layouts that they
support, their common parameters and launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.workspace import SPLIT, with_partials
from rfops.jit import CompiledOp, u32
from rfops.quantization.mxfp8 import BLOCK

from ...mxfp4_op import RAW, scale_sizes, x_bits
from ..variant import Variant

TILE_K = 128  # elements of K in an operand
ALIGN = 16  # bytes: a lane's load
MAX_SPLIT = 16
X_BYTES = 17 / 32  # of an element of MXFP4, its share of the scale too
# How csrc/gemm/mxfp4_*.hip call types.
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def has_16_bits(c: Call) -> bool:
    """Return whether x has 16 bits, which the kernel quantizes."""
    return x_bits(c) == 16


def layout_of_w(c: Call) -> str:
    """Of w with its scales, by which times differ: raw where either is."""
    return str(RAW if c.w_scale_layout == RAW else c.w_layout)


class Rows(NamedTuple):
    """The row strides in bytes, by the names of the kernel's parameters."""

    x_row: int
    w_row: int
    w_scale_row: int
    x_scale_row: int


def rows_of(c: Call, k: int) -> Rows:
    """Return the row strides for a call like `c` of this K: contiguous tensors stay contiguous,
    others keep their strides."""
    return Rows(
        _row(c, "x", k * x_bits(c) // 8),
        _row(c, "w", k // 2),
        _scale_row(c, "w_scale", k),
        0 if has_16_bits(c) else _scale_row(c, "x_scale", k),
    )


def _row(c: Call, name: str, contiguous: int) -> int:
    tensor = c.tensors.get(name)
    if tensor is None or tensor.is_contiguous() or tensor.shape[0] == 1:
        return contiguous
    return int(tensor.stride(0) * tensor.itemsize)


def _scale_row(c: Call, name: str, k: int) -> int:
    layout = getattr(c, f"{name}_layout")
    return _row(c, name, k // BLOCK) if layout == RAW else scale_sizes(layout, 1, k)[1]


def _refuses_rows(c: Call, name: str, rows: int) -> str | None:
    tensor = c.tensors.get(name)
    if tensor is not None and tensor.stride(1) != 1 and tensor.shape[1] > 1:
        return f"the elements of {name} do not lie side by side along K"
    row = getattr(rows_of(c, c.K), f"{name}_row")
    payload = not name.endswith("_scale")
    align = ALIGN if payload else 1 if getattr(c, f"{name}_layout") == RAW else 4
    if row % align or c.align(name) % align:
        return f"rows of {name} do not begin at multiples of {align} bytes"
    if row < 0 or (rows + 1) * row >= MAX_BYTES:
        return f"{rows} rows of {name} are beyond signed 32-bit offsets (2 GiB)"
    return None


class Fp4Kernel(TimedKernel):
    """One of these kernels, for each of the ops."""

    compiled: ClassVar[CompiledOp]
    max_rows: ClassVar[int]  # of an operand in a workgroup

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if c.M < 1 or c.N < 1:
            return f"M={c.M}, N={c.N}: nothing to compute"
        for name in ("x", "w", "w_scale", *(() if has_16_bits(c) else ("x_scale",))):
            if reason := _refuses_rows(c, name, self.max_rows):
                return reason
        if self.max_rows * c.N * c.dtype.itemsize >= MAX_BYTES:
            return f"{self.max_rows} rows of out are beyond signed 32-bit offsets (2 GiB)"
        return None

    def unsupported_config_reason(self, c: Call, config: Variant) -> str | None:
        if config.split > -(-c.K // TILE_K):
            return f"K={c.K} has fewer than {config.split} tiles of {TILE_K}"
        return None

    def common_defines(self, c: Call) -> dict[str, Any]:
        """Return the defines that follow from the layouts and dtypes of a call."""
        bias = c.tensors.get("bias")
        is_16 = has_16_bits(c)
        narrow = "Fp8" if x_bits(c) == 8 else "Fp4"
        return {
            "OUT": TYPES[c.dtype],
            "X": TYPES[c.x_dtype] if is_16 else narrow,
            "ROUNDING": c.rounding.capitalize() if is_16 else "Even",
            "BIAS": "void" if bias is None else TYPES[bias.dtype],
            "SHUFFLED": int(c.w_layout != RAW),
            "SHUFFLED_SCALES": int(c.w_scale_layout != RAW),
            "X_SHUFFLED_SCALES": int(not is_16 and c.x_scale_layout != RAW),
        }

    def kind(self, c: Call, config: Any, k: int) -> Mapping[str, int]:
        """Return the defines that depend on K."""
        return {"TAIL": int(k % TILE_K != 0)}

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        defines = {name.upper(): value for name, value in vars(config).items()}
        return {**defines, **self.common_defines(c), **self.kind(c, config, c.K)}

    def variant(self, c: Call, config: Variant) -> RunOf:
        """A launch is built at the first K of its kind."""
        arguments = (*self.arguments, *(SPLIT if config.split > 1 else ()))
        launches: dict[tuple[int, ...], Callable[..., Run]] = {}

        def launch_of(k: int) -> Callable[..., Run]:
            kind = self.kind(c, config, k)
            key = tuple(kind.values())
            if key not in launches:
                defines = {**self.defines(c, config), **kind}
                bound = self.compiled.bind(c.device, defines, c.arch)
                launches[key] = bound.prepare((config.threads, 1, 1), arguments)
            return launches[key]

        launch_of(c.K)

        def run_of(m: int, n: int, k: int, *_sizes: int) -> Run:
            tiles, rows = config.tiles(m, n), rows_of(c, k)
            grid = tiles * config.split, 1, 1
            run = launch_of(k)(grid, m=m, n=n, k=k, **rows._asdict())
            if config.split == 1:
                return run
            return with_partials(run, c.device, tiles * config.split * config.words, tiles)

        return run_of


def signature(
    w: torch.Tensor,
    w_scale: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    m: u32,
    n: u32,
    k: u32,
    x_row: u32,
    w_row: u32,
    w_scale_row: u32,
    x_scale_row: u32,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> None:
    """The parameters of these kernels; csrc/gemm/mxfp4_*.hip say what they are."""
