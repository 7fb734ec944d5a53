"""fused_moe for experts of few rows by HIP, of 16-bit or FP8 weights, each read once.

(router   each token's experts, two launches            rfops/moe/router.py)
quantise  x, of FP8 weights                             csrc/quantization/quant_fp8_blockscale.hip
up        gate, up and SiLU of each expert's rows       csrc/moe/moe_listed.hip
quantise  h, of FP8 weights                             csrc/quantization/quant_fp8_blockscale.hip
down      down of them                                  csrc/moe/moe_listed.hip
add       each token's rows, in a fixed order           csrc/moe/moe_add_pairs.hip
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run
from rfops.dispatch.steps import Step, run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.jit import compile_ops, u32

from .. import router
from .bf16.hip import IN_TYPES, HipMoeFixed, chosen, id_defines, num_rows
from .fp8.hip import quantise, quantized
from .pairs import sum_of_pairs

MAX_TOKENS = 512
THREADS, WAVES = 256, 4  # of a workgroup; a thread finds the experts of each 256th token
LINE, FEW_LINES = 128, 4  # bytes of K; lines up to which a load has two
TILE, MAX_TILES, MAX_LINES = 16, 4, 4  # rows; tiles of a pass; cache lines of a load
FEW_ROWS = 10  # of an expert on average: few have more than 16
UP_COLUMNS, STRIP = 16, 32  # columns of a workgroup of `up`; of a wave of `down` at a time
GROUPS_PER_CU = 8  # of `down`, of all experts that may have a row


@compile_ops(
    "moe_listed",
    kernel="moe_listed",
    variants=lambda _arch: [
        {
            **{"IN": "bf16", "ID": "i32", "STAGE": stage, "FP8": is_fp8, "TOP_K": 8, "ROUNDS": 1},
            **{"TILES": 1, "LINES": MAX_LINES, "SHUFFLED": 0},
        }
        for stage in (1, 2)
        for is_fp8 in (0, 1)
    ],
)
def moe_listed_kernel(
    topk_ids: Tensor,
    m: u32,
    routed: u32,
    shared: u32,
    w: Tensor,
    n: u32,
    k_bytes: u32,
    x: Tensor,
    in_row: u32,
    w_scale: Tensor | None,
    x_scale: Tensor | None,
    out: Tensor,
    strips: u32,
) -> None:
    """csrc/moe/moe_listed.hip: the shapes stand there."""


class HipListed(HipMoeFixed):
    """Finds an expert's rows in each of its workgroups, which have a few columns of it each."""

    name = "listed"
    module = "moe_listed"
    more_modules = ("moe_add_pairs",)  # and the router's
    # Of an expert on average, up to which it is quicker than `hip`: timing mode, MI355X, experts of
    # 4096 x 384, 128 tokens: 32 rows 80.3 us, by `hip` 90.9; FP8, 16 rows 82.6, by `hip` 83.5.
    max_rows = 32

    @property
    def is_fp8(self) -> bool:
        return self.weight_bits == 8

    def unsupported_reason(self, c: Call) -> str | None:
        if c.M > MAX_TOKENS:
            return f"{c.M} tokens: it takes up to {MAX_TOKENS}"
        elements = LINE * 8 // self.weight_bits
        if c.D % elements or c.I % elements:
            return f"D={c.D}, I={c.I}: no multiples of {elements}"
        if self.is_fp8 and c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        if reason := super().unsupported_reason(c):
            return reason
        if num_rows(c) * max(c.I * self.weight_bits // 8, 2 * c.I) >= MAX_BYTES:
            return "h is beyond signed 32-bit offsets (2 GiB)"
        return None

    def is_quickest(self, c: Call) -> bool:
        """Whether experts have so few rows that it comes before `hip`."""
        return bool(c.M * c.K <= self.max_rows * c.R)

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return self._step_defines(c, 1, c.D)

    def launches(self, c: Call, config: Any) -> Run:
        routes, of_router = router.steps(c, c.R, chosen(c))
        up, down = self._up(c), self._down(c)
        products, quantised = [up, down], {}
        if self.is_fp8:
            products = [quantise(c, "x", c.M, c.D), up, quantise(c, "h", num_rows(c), c.I), down]
            quantised = {
                **quantized("x", c.M, c.D, c.w1_dtype),
                **quantized("h", num_rows(c), c.I, c.w1_dtype),
            }
        return run_steps(
            c.device,
            self.arguments,
            [*routes, *products, sum_of_pairs(c)],
            arch=c.arch,
            workspace={
                "routed_weights": (c.M * c.K, torch.float32),
                "routed_ids": (c.M * c.K, torch.int32),
                **of_router,
            },
            outer=bool(routes),
            temporaries={
                **quantised,
                "h": ((num_rows(c), c.I), c.x_dtype),
                "y": ((num_rows(c), c.D), c.x_dtype),
            },
        )

    def _up(self, c: Call) -> Step:
        x_row = c.D if self.is_fp8 else 2 * matrix_strides(c, "x", c.D)[0]
        return self._columns(c, 1, c.I, c.D, ceil(c.I, UP_COLUMNS), 0, "x", "w1", "h", x_row)

    def _down(self, c: Call) -> Step:
        row = c.I * self.weight_bits // 8
        groups = ceil(c.D, WAVES * STRIP)
        max_groups = max(1, GROUPS_PER_CU * c.cu_num // _num_slots(c))
        strips = ceil(groups, max_groups)
        return self._columns(c, 2, c.D, c.I, ceil(groups, strips), strips, "h", "w2", "y", row)

    def _columns(
        self,
        c: Call,
        stage: int,
        n: int,
        k: int,
        groups: int,
        strips: int,
        x: str,
        w: str,
        out: str,
        in_row: int,
    ) -> Step:
        """n columns of `out`, K of k: `groups` workgroups for each expert that may have a row."""
        scales: dict[str, str | None] = {"w_scale": f"{w}_scale", "x_scale": f"{x}_scale"}
        arguments = {
            "topk_ids": chosen(c)["ids"],
            "x": f"{x}_q" if self.is_fp8 else x,
            "w": w,
            "out": out,
            **(scales if self.is_fp8 else dict.fromkeys(scales)),
        }
        sizes = {
            "m": c.M,
            "routed": c.R,
            "shared": c.E - c.R,
            "n": n,
            "k_bytes": k * self.weight_bits // 8,
            "in_row": in_row,
            "strips": strips,
        }
        grid = (groups, _num_slots(c), 1)
        defines = self._step_defines(c, stage, k)
        return Step(moe_listed_kernel, defines, THREADS, grid, {**arguments, **sizes})

    def _step_defines(self, c: Call, stage: int, k: int) -> dict[str, Any]:
        tiles, lines = _tiles(c)
        return {
            "IN": IN_TYPES[c.x_dtype],
            **id_defines(c),
            "STAGE": stage,
            "FP8": int(self.is_fp8),
            "ROUNDS": ceil(c.M, THREADS),
            "TILES": tiles,
            "LINES": 2 if k * self.weight_bits <= 8 * FEW_LINES * LINE else lines,
            "SHUFFLED": int(c.values.get("w_layout", "raw") != "raw"),
        }


def _tiles(c: Call) -> tuple[int, int]:
    """Tiles of 16 rows that a pass over an expert's weights has, and cache lines of a row that a
    load of weights brings: many rows leave registers for few lines."""
    return (1, MAX_LINES) if c.M * c.K <= FEW_ROWS * c.R else (MAX_TILES, 2)


class HipFp8Listed(HipListed):
    """The same of FP8 weights, whose x and h are quantised by launches of their own."""

    weight_bits = 8
    max_rows = 16


def _num_slots(c: Call) -> int:
    """Passes over shared experts, and experts that may have a row, as many as there can be."""
    passes = ceil(c.M, TILE * _tiles(c)[0])
    return int((c.E - c.R) * passes + min(c.R, c.M * c.K))
