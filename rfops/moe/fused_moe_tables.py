"""fused_moe of weights in tables: of each expert a gate and an up [D, I] and a down [I, D], tensors
of their own, as the challenge of 2025 and plain modules hold them. No copy is made of them.

| kernel | what it takes |
|---|---|
| hip (kernels/bf16/hip.py) | gfx942 and gfx950: D and I multiples of 8, up to 64 experts |
| triton (kernels/bf16/triton.py) | every architecture that Triton knows |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.kernel import Call
from rfops.dispatch.problem import InputGenerator, grid

from . import layers
from .experts import Weights, experts_ref
from .kernels.bf16.hip import TABLE, VEC, HipMoe
from .kernels.bf16.triton import TritonMoe
from .moe_op import HINTS, Moe, Torch, declared, reference_of
from .terms import Bf16Model


class _Tables(Moe):
    def weights(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        def matrices(rows: int, columns: int) -> tuple[Tensor, ...]:
            tables = [draw.floats((rows, columns), c.x_dtype) / rows**0.5 for _ in range(c.E)]
            return tuple(tables)

        return {"gate": matrices(c.D, c.I), "up": matrices(c.D, c.I), "down": matrices(c.I, c.D)}

    def draw(self, rng: random.Random) -> dict[str, Any]:
        return layers.draw(rng, VEC, most_experts=TABLE)


OP = _Tables(
    "fused_moe_tables",
    declared(
        *(
            f"{w} @16 x E"
            for w in ("gate: bf16|f16[D, I]", "up: bf16|f16[D, I]", "down: bf16|f16[I, D]")
        )
    ),
    sizes="M D I E K R",
    positive="E",
    table="M+ D I E K R?",
    kernels=(
        HipMoe(is_table=True),
        TritonMoe(is_table=True),
        Torch(lambda _c, op_weights: Weights(*op_weights)),
    ),
    max_bytes=None,
    time_model=Bf16Model,
    shapes={
        # The challenge of 2025: 32 experts and a shared one
        "published": grid(
            "D I E K R", [(7168, 2048, 33, 4, 32)], M=(512, 2048, 8192), x_dtype=(torch.float16,)
        ),
    },
    hints=HINTS,
)


def fused_moe_tables_ref(
    x: Tensor,
    gate: Sequence[Tensor],
    up: Sequence[Tensor],
    down: Sequence[Tensor],
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_shared: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The formula in plain fp32 torch, or fp64 where x is, on any device."""
    result = experts_ref(x, Weights(gate, up, down), topk_weights, topk_ids, num_shared)
    return result if result.dtype == torch.float64 else result.to(dtype)


def _reference(x: Tensor, gate: Any, up: Any, down: Any, *arguments: Any) -> Tensor:
    return reference_of(Weights(gate, up, down), x, *arguments)


OP.reference = _reference
