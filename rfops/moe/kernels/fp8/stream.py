"""fused_moe with FP8 weights for few tokens by HIP: four launches, up to 16 tokens three, or two
where experts are short.

(router   each token's experts, two launches            rfops/moe/router.py)
prepare   which experts, and each token quantised once  csrc/moe/moe_fp8_stream_prepare.hip
up        gate, up and SiLU of the chosen experts       csrc/moe/moe_fp8_stream_up.hip
up        up to 16 tokens: these two in one launch      csrc/moe/moe_fp8_stream_up_tile.hip
quantise  h, where `down` does not                      csrc/quantization/quant_fp8_blockscale.hip
down      down of them, and the weighted sum            csrc/moe/moe_fp8_stream_down.hip
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run
from rfops.dispatch.steps import Step, run_steps
from rfops.quantization.fp8_blockscale import BLOCK

from ... import router
from ..bf16.hip import IN_TYPES, THREADS, HipMoeFixed, chosen, id_defines, num_rows
from .hip import quantise, quantized
from .signatures import (
    moe_fp8_stream_down_kernel,
    moe_fp8_stream_prepare_kernel,
    moe_fp8_stream_up_kernel,
    moe_fp8_stream_up_tile_kernel,
)

MAX_TOKENS = 32
TILE = 16  # tokens, and columns of the first launch's workgroups
LANES = 16  # that quantise a block
UP_TILE_THREADS = 256
# Of `up` and of `down`: blocks of K that a wave has in flight, cache lines of a load; the quickest
# of those that were timed at ten shapes.
UP_STEPS, UP_LINES = 2, 2
DOWN_STEPS, DOWN_LINES = 3, 1
RAW_LINES = 2  # of a load of `down` where it quantises h
# Blocks of K that a wave of up_tile loads together: with fewer a CU has more waves, but HBM opens
# more rows. Timing mode, shuffled, 16 tokens, 128 experts of 4096 x 768, MI355X and MI300X: 162.7
# and 239.3 us with four, 138.4 and 197.9 with two; but 8 tokens, 128 of 5120 x 384: 66.0 and 66.3
# on MI355X, and 64 of 7168 x 2048: 289.7 and 337.2.
MANY_SPAN, FEW_SPAN = 4, 2
FEW_SPAN_MAX_I = 1024  # of experts, with half a row on average at least
FEW_BLOCKS = 2  # of K of `down`: with so few a wave has one in flight
# Choices of a lane's tokens, which `down` keeps in registers with their weights: with more, three
# blocks in flight spill.
MANY_CHOICES, DOWN_STEPS_OF_MANY = 16, 2


class HipFp8Stream(HipMoeFixed):
    """Reads the chosen experts' weights once, with all of an expert's tokens at a time."""

    name = "stream"
    module = "moe_fp8_stream_up"
    more_modules = (  # and the router's
        "moe_fp8_stream_down",
        "moe_fp8_stream_prepare",
        "moe_fp8_stream_up_tile",
    )
    weight_bits = 8

    def unsupported_reason(self, c: Call) -> str | None:
        if c.M > MAX_TOKENS:
            return f"{c.M} tokens: it takes up to {MAX_TOKENS}"
        if c.w1_dtype != fp8_of(c.arch):
            return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
        return super().unsupported_reason(c)

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return {**_shared_defines(c), "STEPS": UP_STEPS, "LINES": UP_LINES}

    def launches(self, c: Call, config: Any) -> Run:
        routes, of_router = router.steps(c, c.R, chosen(c))
        has_one_tile = c.M <= TILE
        first_steps = (
            [up_tile(c)] if has_one_tile else [_prepare(c), _up(c, self.defines(c, config))]
        )
        h_steps = [] if _quantises_h(c) else [quantise(c, "h", num_rows(c), c.I)]
        x_q = {} if has_one_tile else quantized("x", c.M, c.D, c.w1_dtype)
        return run_steps(
            c.device,
            self.arguments,
            [*routes, *first_steps, *h_steps, _down(c)],
            arch=c.arch,
            workspace={**_workspace(c), **of_router},
            outer=bool(routes),
            temporaries={
                **x_q,
                **quantized("h", num_rows(c), c.I, c.w1_dtype),
                "h": ((num_rows(c), c.I), c.x_dtype),
            },
        )


def _shared_defines(c: Call) -> dict[str, Any]:
    shape_defines = {"TILES": ceil(c.M, TILE), "SHUFFLED": int(c.w_layout != "raw")}
    return {"IN": IN_TYPES[c.x_dtype], **id_defines(c), **shape_defines}


def _quantises_h(c: Call) -> bool:
    """Whether `down` quantises h itself, for each of its workgroups again: of few tokens of short
    experts that is quicker than a launch."""
    return bool(c.M <= TILE and c.I <= FEW_BLOCKS * BLOCK)


def _columns(c: Call) -> int:
    """Columns of a workgroup of `down`: the CU that has most of them has as few as can be."""
    if c.w_layout != "raw":
        return TILE
    return min(range(TILE, 6, -2), key=lambda columns: ceil(ceil(c.D, columns), c.cu_num) * columns)


def _num_slots(c: Call) -> int:
    """Experts that may have a row, as many as there can be."""
    return int(c.E - c.R + min(c.R, c.M * c.K))


def _prepare(c: Call) -> Step:
    """x in FP8, and the experts that have a row."""
    sizes = {"m": c.M, "k": c.D, "count": c.M * c.K, "routed": c.R, "experts": c.E}
    return Step(
        moe_fp8_stream_prepare_kernel,
        {"IN": IN_TYPES[c.x_dtype], "ID": id_defines(c)["ID"]},
        THREADS,
        1 + ceil(c.M * (c.D // BLOCK), THREADS // LANES),
        {"q": "x_q", "scale": "x_scale", "topk_ids": chosen(c)["ids"], **sizes},
    )


def _up(c: Call, defines: Mapping[str, Any]) -> Step:
    """h = silu(x gate^T) * (x up^T): a workgroup for 16 columns of each expert that may be
    chosen."""
    return Step(
        moe_fp8_stream_up_kernel,
        defines,
        THREADS,
        (c.I // TILE, _num_slots(c), 1),
        {"x": "x_q", "w": "w1", "w_scale": "w1_scale", **_sizes(c, c.I, c.D)},
    )


def _up_tile_span(c: Call) -> int:
    """Blocks of K that a wave of up_tile loads together. Raw weights are of more: with few, the
    order of their fragments spills scalar registers."""
    is_short = FEW_BLOCKS * BLOCK < c.I <= FEW_SPAN_MAX_I
    has_rows = 2 * c.M * c.K >= c.R
    return FEW_SPAN if c.w_layout != "raw" and is_short and has_rows else MANY_SPAN


def up_tile(c: Call) -> Step:
    """The same of x that is not quantised; a slot more lists the experts that have a row."""
    layout_defines = {"SHUFFLED": int(c.w_layout != "raw"), "SPAN": _up_tile_span(c)}
    return Step(
        moe_fp8_stream_up_tile_kernel,
        {"IN": IN_TYPES[c.x_dtype], **id_defines(c), **layout_defines},
        UP_TILE_THREADS,
        (c.I // TILE, _num_slots(c) + 1, 1),
        {"w": "w1", "w_scale": "w1_scale", **_sizes(c, c.I, c.D)},
    )


def _down(c: Call) -> Step:
    """out = the weighted sum of h down^T."""
    is_many = ceil(c.M, TILE) * c.K > MANY_CHOICES
    in_flight = DOWN_STEPS_OF_MANY if is_many else DOWN_STEPS
    in_flight = 1 if c.I <= FEW_BLOCKS * BLOCK else in_flight
    down_defines = {"STEPS": in_flight, "LINES": DOWN_LINES, "COLUMNS": _columns(c), "RAW": 0}
    arguments: dict[str, Any] = {"h": "h_q", "w": "w2", "w_scale": "w2_scale"}
    arguments |= {"topk_weights": chosen(c)["weights"]}
    if _quantises_h(c):
        down_defines |= {"STEPS": FEW_BLOCKS, "LINES": RAW_LINES, "RAW": 1}
        arguments |= {"h": "h", "h_scale": None}
    return Step(
        moe_fp8_stream_down_kernel,
        {**_shared_defines(c), **down_defines},
        THREADS,
        ceil(c.D, down_defines["COLUMNS"]),
        {**arguments, **_sizes(c, c.D, c.I)},
    )


def _sizes(c: Call, n: int, k: int) -> dict[str, Any]:
    num_shared = c.E - c.R
    return {
        "topk_ids": chosen(c)["ids"],
        "m": c.M,
        "routed": c.R,
        "shared": num_shared,
        "n": n,
        "k": k,
    }


def hits(c: Call) -> dict[str, Any]:
    """How many experts have a row, and which."""
    return {"hits": (1 + c.E, torch.int32)}


def _workspace(c: Call) -> dict[str, Any]:
    """Those experts, and what a router writes."""
    return {
        **hits(c),
        "routed_weights": (c.M * c.K, torch.float32),
        "routed_ids": (c.M * c.K, torch.int32),
    }
