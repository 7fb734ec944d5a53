"""The HIP kernels of gemm_a8w8_blockscale: their common parameters and launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

import torch

from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.workspace import SPLIT, with_partials
from rfops.jit import CompiledOp, compile_ops, u32
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.shuffle import WEIGHT

from ..variant import Variant
from . import layout as a8w8_layout

MAX_SPLIT = 16
_COUNT_STEP = 32  # words of a counter: kCounterStride of rfops/group/split_k_reduce.h


class Config(Variant, Protocol):
    """A variant of one of them."""

    def defines(self, dtype: torch.dtype, shuffled: bool = False) -> dict[str, int | str]: ...


def compile_gemm(module: str, *configs: Config) -> CompiledOp:
    """Return the kernel of a module; `rfops build` compiles these configs of it for bf16, dense
    operands and strided ones."""

    def variants(_arch: str) -> list[dict[str, int | str]]:
        variants_ = [config.defines(torch.bfloat16) for config in configs]
        return [{**defines, "DENSE": dense} for dense in (1, 0) for defines in variants_]

    return compile_ops(module, kernel=module, variants=variants)(signature)


class Launched(TimedKernel):
    """One of those kernels."""

    compiled: ClassVar[CompiledOp]
    max_rows: ClassVar[int]  # of an operand in a workgroup
    takes_columns: ClassVar[bool] = False  # column-major operands

    def unsupported_reason(self, c: Call) -> str | None:
        archs = self.compiled.spec.archs
        if c.arch not in archs:
            return f"no kernel for {c.arch}, only for {', '.join(archs)}"
        if c.M < 1 or c.N < 1:
            return f"M={c.M}, N={c.N}: nothing to compute"
        return a8w8_layout.unsupported_reason(c, self.max_rows, self.takes_columns)

    def unsupported_config_reason(self, c: Call, config: Config) -> str | None:
        if config.split > c.K // BLOCK:
            return f"K={c.K} has fewer than {config.split} blocks of {BLOCK}"
        return None

    def defines(self, c: Call, config: Config) -> Mapping[str, int | str]:
        is_dense = a8w8_layout.is_dense(c, c.M, c.N, c.K)
        return {**config.defines(c.dtype, c.w_layout == WEIGHT), "DENSE": int(is_dense)}

    def variant(self, c: Call, config: Config) -> RunOf:
        """A launch is built at the first sizes of its kind."""
        is_split = config.split > 1
        arguments = (*self.arguments, *(SPLIT if is_split else ()))
        launches: dict[bool, Callable[..., Run]] = {}

        def launch_of(is_dense: bool) -> Callable[..., Run]:
            if is_dense not in launches:
                defines = {**self.defines(c, config), "DENSE": int(is_dense)}
                bound = self.compiled.bind(c.device, defines, c.arch)
                launches[is_dense] = bound.prepare((config.threads, 1, 1), arguments)
            return launches[is_dense]

        launch_of(a8w8_layout.is_dense(c, c.M, c.N, c.K))

        is_contiguous = a8w8_layout.is_contiguous(c)

        def run_of(m: int, n: int, k: int) -> Run:
            tiles = config.tiles(m, n)
            if is_contiguous:
                launch, x_row, w_row, blocks = launch_of(True), k, k, k // BLOCK
                x_scale, w_scale = (blocks, 1), (blocks, 1)
            else:
                x, w, x_scale, w_scale = a8w8_layout.all_strides(c, m, n, k)
                launch = launch_of(a8w8_layout.is_dense(c, m, n, k))
                x_row, w_row = a8w8_layout.step(c, "x", x), a8w8_layout.step(c, "w", w)
            run = launch(
                (tiles * config.split, 1, 1),
                m=m,
                n=n,
                k=k,
                x_scale_row=x_scale[0],
                x_scale_k=x_scale[1],
                w_scale_k=w_scale[1],
                x_row=x_row,
                w_row=w_row,
                w_scale_row=w_scale[0],
            )
            if not is_split:
                return run
            words = tiles * config.split * config.words
            return with_partials(run, c.device, words, tiles * _COUNT_STEP)

        return run_of


def signature(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    m: u32,
    n: u32,
    k: u32,
    x_scale_row: u32,
    x_scale_k: u32,
    w_scale_k: u32,
    out: torch.Tensor,
    workspace: torch.Tensor | None,
    counts: torch.Tensor | None,
    x_row: u32,
    w_row: u32,
    w_scale_row: u32,
) -> None:
    """The parameters of these kernels; csrc/gemm/a8w8_blockscale_*.hip document them. Those that
    fit are in registers when a wave begins (`preload_arguments`)."""
