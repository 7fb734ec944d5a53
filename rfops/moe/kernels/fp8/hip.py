"""fused_moe with FP8 weights by HIP: four launches, a router one or two more; no copy to the host.

(router   each token's experts, and perhaps their lists     rfops/moe/router.py)
prepare   those by ids, and each token quantised once       csrc/moe/moe_fp8_prepare.hip
experts   gate, up and SiLU, quantised again                csrc/moe/moe_experts_fp8.hip
experts   down of them                                      csrc/moe/moe_experts_fp8.hip
add       each token's rows, in a fixed order               csrc/moe/moe_add.hip
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run
from rfops.dispatch.steps import Step, run_steps
from rfops.quantization.fp8_blockscale import BLOCK, BLOCKS_AT_ONCE, quant_fp8_blockscale_kernel
from rfops.quantization.fp8_blockscale import THREADS as QUANT_THREADS

from ... import router
from ..bf16.hip import (
    IN_TYPES,
    ROUTED,
    TOKENS,
    FusedMoeHipConfig,
    HipMoe,
    chosen,
    id_defines,
    lists_workspace,
    num_rows,
    product,
    sum_of_rows,
)
from .signatures import experts_defines, moe_experts_fp8_kernel, moe_fp8_prepare_kernel


@dataclass(frozen=True)
class FusedMoeFp8HipConfig(FusedMoeHipConfig):
    """A variant of csrc/moe/moe_experts_fp8.hip."""

    heights = 64, 128


class HipFp8(HipMoe):
    name = "hip"
    module = "moe_experts_fp8"
    more_modules = ("moe_fp8_prepare", "moe_add")  # and the router's
    Config = FusedMoeFp8HipConfig
    weight_bits = 8

    def __init__(self) -> None:
        super().__init__(is_table=False)

    def module_of(self, _arch: str) -> str:
        return self.module

    def unsupported_reason(self, c: Call) -> str | None:
        if c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        return super().unsupported_reason(c)

    def heights(self, _c: Call) -> tuple[int, ...]:
        return self.Config.heights

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return experts_defines(config.rows, c.x_dtype, 1, c.E, c.w_layout != "raw")

    def launches(self, c: Call, config: Any) -> Run:
        x, h = quantized("x", c.M, c.D, c.w1_dtype), quantized("h", num_rows(c), c.I, c.w1_dtype)
        routes, of_router = router.steps(c, c.R, ROUTED, lists=True)
        return run_steps(
            c.device,
            self.arguments,
            [*routes, prepare(c), *self.experts(c, config), sum_of_rows(c)],
            arch=c.arch,
            workspace={**lists_workspace(c), **of_router},
            outer=bool(routes),
            zeros={"counts": c.E},
            temporaries={**x, **h, "y": ((num_rows(c), c.D), c.x_dtype)},
        )

    def experts(self, c: Call, config: Any) -> tuple[Step, Step]:
        """h = fp8(silu(x gate^T) * (x up^T)) and y = h down^T, of all experts' rows."""
        up = {
            "out": "h_q",
            "out_scale": "h_scale",
            "x": "x_q",
            "weights": "w1",
            "scales": "w1_scale",
        }
        down = {
            "out": "y",
            "out_scale": None,
            "x": "h_q",
            "x_scale": "h_scale",
            "weights": "w2",
            "scales": "w2_scale",
        }
        return (
            self._product(c, config, 1, c.I, c.D, up),
            self._product(c, config, 2, c.D, c.I, down),
        )

    def _product(
        self, c: Call, config: Any, stage: int, n: int, k: int, arguments: Mapping[str, Any]
    ) -> Step:
        defines = experts_defines(config.rows, c.x_dtype, stage, c.E, c.w_layout != "raw")
        return product(c, moe_experts_fp8_kernel, defines, config.rows, stage, n, k, arguments)


def prepare(c: Call) -> Step:
    """Each token quantized once; and the tokens of each expert, where a router has not listed
    them."""
    list_groups = 0 if router.lists_tokens(c, c.R) else ceil(c.M, TOKENS)
    groups = list_groups + ceil(c.M * (c.D // BLOCK), BLOCKS_AT_ONCE)
    return Step(
        moe_fp8_prepare_kernel,
        {"IN": IN_TYPES[c.x_dtype], **id_defines(c)},
        TOKENS,
        groups,
        {
            "q": "x_q",
            "scale": "x_scale",
            "topk_ids": chosen(c)["ids"],
            "m": c.M,
            "k": c.D,
            "experts": c.R,
            "list_groups": list_groups,
        },
    )


def quantized(name: str, rows: int, columns: int, dtype: torch.dtype) -> dict[str, Any]:
    """A matrix in FP8 and its scales."""
    scale = (rows, columns // BLOCK), torch.float32
    return {f"{name}_q": ((rows, columns), dtype), f"{name}_scale": scale}


def quantise(c: Call, name: str, rows: int, columns: int) -> Step:
    """The matrix `name` in FP8, as `quantized` has it."""
    blocks = columns // BLOCK
    return Step(
        quant_fp8_blockscale_kernel,
        {"ROWS": 1, "IN": IN_TYPES[c.x_dtype], "ALIGNED": 1},
        QUANT_THREADS,
        ceil(rows * blocks, BLOCKS_AT_ONCE),
        {
            **{"payload": f"{name}_q", "scale": f"{name}_scale", "x": name},
            **{"m": rows, "k": columns, "scale_row": blocks, "scale_k": 1},
        },
    )
