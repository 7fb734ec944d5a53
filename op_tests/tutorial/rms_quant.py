"""rms_quant: RMSNorm, then FP8 with a scale per group of 128 elements of a row.

    y        = x / sqrt(mean(x^2) + eps) * w
    scale[g] = max(|y| of group g, 1e-10) / 448
    out      = e4m3(y / scale)

Each step of the tutorial is a kernel of this op: `rfops --ops rms_quant.py profile rms_quant --by
naive`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.jit import compile_ops, f32, u32

CONFIG = Path(__file__).with_name("config.json")
GROUP = 128  # elements that share a scale
MAX_FP8, MIN_AMAX = 448.0, 1e-10


def rms_quant(
    out: torch.Tensor,
    scale: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    eps: f32,
    m: u32,
    k: u32,
) -> None:
    """The parameters of each step's kernel, in order; this body is never run."""


class Step(Kernel):
    """One step: the threads and rows of a workgroup, and whether a row stays in registers, whose
    number then depends on K."""

    compiler_config = CONFIG

    def __init__(self, name: str, threads: int, rows: int, keeps_row: bool = False) -> None:
        self.name, self.module = name, f"rms_{name}"
        self.threads, self.rows, self.keeps_row = threads, rows, keeps_row
        self.signature = compile_ops(self.module, kernel="rms_quant", config=CONFIG)(rms_quant)

    def unsupported_reason(self, c: Call) -> str | None:
        if c.K % 1024:
            return "K is not a multiple of 1024"
        return self.unsupported_arch_reason(c)

    def defines(self, c: Call, config: Any) -> dict[str, int]:
        constants = {"THREADS": self.threads}
        return {**constants, "K": c.K} if self.keeps_row else constants

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = self.signature.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((self.threads, 1, 1), self.arguments)

        def run_of(m: int, k: int) -> Any:
            run = launch((-(-m // self.rows), 1, 1), eps=float(c.eps), m=m, k=k)
            return lambda results, *tensors: run(*results, *tensors)

        return run_of


def reference(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula in fp32, without the rounding to FP8."""
    x, w = x.float(), w.float()
    y = (x * torch.rsqrt(x.square().mean(1, keepdim=True) + eps) * w).unflatten(1, (-1, GROUP))
    scale = y.abs().amax(2).clamp(min=MIN_AMAX) / MAX_FP8
    return (y / scale[..., None]).flatten(1), scale


class _RmsQuant(Op):
    def roundings(self, c: Call) -> int:
        """A sum of K squares is off by K roundings at most, its root by half of that."""
        return int(c.K // 2 + 16)


STEPS = (  # the last one first, as calls take the first that supports them
    Step("two_waves", 128, 1, keeps_row=True),
    Step("one_pass", 256, 4, keeps_row=True),
    Step("wide", 256, 4),
    Step("wave", 256, 4),
    Step("coalesced", 128, 1),
    Step("naive", 64, 64),
)

OP = _RmsQuant(
    "rms_quant",
    """
    x: bf16[M, K] @16
    w: bf16[K] @16
    eps: float
    -> out: e4m3[M, K]
    -> scale: f32[M, K/128]
    """,
    kernels=STEPS,
    coarse={"M": 0},
    usual={"eps": 1e-6},
    reference=reference,
    shapes={"tutorial": [{"M": 256, "K": 7168}]},
)
