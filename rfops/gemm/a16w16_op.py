"""The op class of gemm_a16w16 and batched_gemm_a16w16: checks, the torch kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import describe
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.strided import check_apart, extent, overlaps_itself

from .kernels.a16w16.shape import shape_of, strides
from .kernels.a16w16.stream import StreamConfig
from .kernels.a16w16.triton import TilesConfig

Config = StreamConfig | TilesConfig


class Torch(Kernel):
    """torch's own product in fp32, for every device and call."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, x: Tensor, w: Tensor) -> None:
            out.copy_(x.float() @ w.float().mT)

        return lambda *_sizes: run


class Gemm16(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        arguments = {"w_dtype": arguments.get("x_dtype", torch.bfloat16), **arguments}
        return super().call_of(arch, cu_num, **arguments)

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        if c.x_dtype != c.w_dtype:
            return "w", f"{c.x_dtype} as x is", str(c.w_dtype), "convert it first"
        out = c.tensors.get("out")
        if out is None or 0 in sizes:
            return None
        shape = shape_of(*sizes)
        if overlaps_itself(shape.sizes_of("out"), strides(c, "out", shape)):
            expected = "a tensor with each element in a place of its own"
            actual = f"{describe(out)} with strides {list(out.strides)}"
            return "out", expected, actual, "pass one that is not expanded, or none"
        return None

    def is_empty(self, c: Call) -> bool:
        return 0 in c.sizes.values()

    def run_empty(self, c: Call) -> Run:
        return lambda out, *_inputs: out.zero_() if out.numel() else None  # K may be 0

    def finish_run(self, c: Call, run: Run) -> Run:
        """Check a given out for overlaps with the inputs, which may lie between its rows."""
        if not c.has("out"):
            return run
        shape, names = shape_of(*c.sizes.values()), ("x", "w", "out")
        extents = [
            extent(shape.sizes_of(n), strides(c, n, shape), c.tensors[n].itemsize) for n in names
        ]

        def checked(out: Tensor, x: Tensor, w: Tensor) -> None:
            check_apart(self.name, out, extents, names, (x, w))
            run(out, x, w)

        return checked

    def flops(self, c: Call) -> int:
        shape = shape_of(*c.sizes.values())
        return 2 * shape.b * shape.m * shape.n * shape.k

    def peer(self, c: Call) -> tuple[str, Callable[[], object]]:
        x, w = c.given("x", "w")
        return "torch_matmul", lambda: x @ w.mT

    def roundings(self, c: Call) -> int:
        """Matrix instructions add K in an order they do not tell; so does the reference."""
        return 2 * int(c.K) + 32


HINTS = {"x": "convert it first", "w": "convert it first"}
DECODE_M = (1, 16, 64, 256)
