"""gemm_tile: out[m, n] = sum_k x[m, k] w[n, k] in bf16, with fp32 sums.

Each step of the tutorial is a kernel of this op: `rfops --ops gemm_tile.py profile gemm_tile --by
naive`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.jit import compile_ops, u32

CONFIG = Path(__file__).with_name("config.json")


def gemm_tile(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, m: u32, n: u32, k: u32) -> None:
    """The parameters of each step's kernel, in order; this body is never run."""


class Step(Kernel):
    """One step: its source, the threads and the outputs (tile x tile) of a workgroup."""

    compiler_config = CONFIG

    def __init__(self, name: str, module: str, threads: int, tile: int, **more: int) -> None:
        self.name, self.module = name, f"gemm_{module}"
        self.threads, self.tile = threads, tile
        self.constants = {"THREADS": threads, "TILE": tile, **more}
        self.signature = compile_ops(self.module, kernel="gemm_tile", config=CONFIG)(gemm_tile)

    def unsupported_reason(self, c: Call) -> str | None:
        if c.M % self.tile or c.N % self.tile or c.K % 128:
            return f"M or N is not a multiple of {self.tile}, or K not of 128"
        return self.unsupported_arch_reason(c)

    def defines(self, c: Call, config: Any) -> dict[str, int]:
        return self.constants

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.signature.bind(c.device, self.constants, c.arch)
        launch = bound.prepare((self.threads, 1, 1), self.arguments)
        return lambda m, n, k: launch(self.grid(m // self.tile, n // self.tile), m=m, n=n, k=k)

    def grid(self, m_tiles: int, n_tiles: int) -> tuple[int, int, int]:
        return n_tiles, m_tiles, 1


class Mapped(Step):
    """A step whose kernel maps workgroups to tiles (rfops/group/tile_map.h)."""

    def grid(self, m_tiles: int, n_tiles: int) -> tuple[int, int, int]:
        return n_tiles * m_tiles, 1, 1


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.float() @ w.float().T


STEPS = (  # the last one first, as calls take the first that supports them
    Mapped("pipelined", "pipelined", 512, 256),
    Mapped("tile256", "ahead", 512, 256),
    Mapped("ahead", "ahead", 256, 128),
    Step("swizzle", "lds", 256, 128, SWIZZLE=1),
    Step("lds", "lds", 256, 128, SWIZZLE=0),
    Step("mfma", "mfma", 64, 16),
    Step("naive", "naive", 256, 16),
)

OP = Op(
    "gemm_tile",
    """
    x: bf16[M, K] @16
    w: bf16[N, K] @16
    -> out: bf16[M, N]
    """,
    kernels=STEPS,
    sizes="M N K",
    coarse={"K": 0},
    reference=reference,
    shapes={"tutorial": [{"M": 256, "N": 512, "K": 1024}]},
)
