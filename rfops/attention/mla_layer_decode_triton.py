"""mla_layer_decode in Triton: AMD's and NVIDIA's GPUs. The launches are those of HIP's route
(mla_layer_decode_hip.py); that of attention may be followed by one that adds up its splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rfops.dispatch.config import Allowed, powers
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.steps import NestedRun, run_steps
from rfops.triton.bound import BoundTriton, TritonStep
from rfops.triton.kernel import TileConfig, TritonKernel, stages_in_lds

from .mla_layer_parts import (
    CACHE_ROW,
    LATENT,
    NOPE,
    ROPE,
    V,
    attention,
    attention_call,
    attention_kernel,
)

_KERNELS = "rfops.attention.mla_layer_decode_triton_kernels"
_BF16, _I32 = torch.bfloat16, torch.int32
_UP = (NOPE + V) * LATENT  # of a head of kv_up


@dataclass(frozen=True)
class LayerTritonConfig(TileConfig):
    """A variant of rfops/attention/mla_layer_decode_triton_kernels.py."""

    block_n: int  # of q_down and kv_down, and of o
    block_k: int
    warps: int = 4
    stages: int = 2

    ALLOWED: ClassVar[Allowed] = {
        **TileConfig.ALLOWED,
        "block_n": powers(16, 128),
        "block_k": powers(32, 256),
        "warps": powers(1, 8),
    }


class TritonLayer(TritonKernel):
    """The layer in Triton: its projections around mla_decode's Triton kernel."""

    Config = LayerTritonConfig
    error = 2.0**-6  # five roundings to bf16, and P

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := super().unsupported_reason(c):
            return reason
        if c.B * c.L >= 2**31 or c.V * LATENT // V * c.B >= 2**31:
            return f"a cache of {c.B * c.L} rows, or {c.V // V} heads, are beyond 32-bit offsets"
        kernel, reason = attention_kernel(attention_call(c, c.L), hip=False)
        return None if kernel is not None else f"its attention is not taken: {reason}"

    def lds_bytes(self, c: Call, config: LayerTritonConfig) -> int:
        rows = _block_m(c.B) + max(config.block_n, 64)
        return 2 * rows * config.block_k * stages_in_lds(config.stages, c.arch) + 1024

    def default(self, c: Call) -> LayerTritonConfig:
        if c.arch.startswith("gfx"):
            return LayerTritonConfig(32, 64)
        return LayerTritonConfig(32, 128, 4, 4)

    def candidates(self, c: Call) -> list[LayerTritonConfig]:
        default = self.default(c)
        configs = [
            LayerTritonConfig(block_n, block_k, warps, stages)
            for block_n in (16, 32, 64)
            for block_k in (64, 128)
            for warps in (4, 8)
            for stages in (2, 3, 4)
        ]
        fit = (config for config in configs if self.unsupported_config_reason(c, config) is None)
        return [default, *(config for config in fit if config != default)]

    def variant(self, c: Call, config: LayerTritonConfig) -> RunOf:
        def run_of(*sizes: int) -> Run:
            call = c.with_sizes(**dict(zip(c.sizes, sizes, strict=True)))
            heads = call.V // V
            return run_steps(
                call.device,
                self.arguments,
                _steps(call, config),
                arch=call.arch,
                workspace={
                    "lens": (call.B, _I32),
                    "table": ((call.B, 1), _I32),
                    "q_lora": ((call.B, call.R), _BF16),
                    "nope": ((call.B, heads, NOPE), _BF16),
                    "q": ((call.B, heads, CACHE_ROW), _BF16),
                    "latent": ((call.B, heads, LATENT), _BF16),  # what attention gives
                    "value": ((call.B, heads, V), _BF16),
                },
                outer=True,
            )

        return run_of


def _block_m(rows: int) -> int:
    return min(128, max(16, 1 << (max(rows, 1) - 1).bit_length()))


def _steps(c: Call, config: LayerTritonConfig) -> list[TritonStep | NestedRun]:
    heads, block_m, block_n = c.V // V, _block_m(c.B), config.block_n
    along_m = ceil(c.B, block_m)
    tile = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": config.block_k}

    def bound(name: str, constants: dict[str, int]) -> BoundTriton:
        return BoundTriton(_KERNELS, name, c.device, constants, config.warps, config.stages)

    down = TritonStep(
        bound("down", tile),
        grid=(ceil(c.R, block_n) + ceil(CACHE_ROW, block_n), along_m, 1),
        arguments={
            "out": "q_lora",
            "w": "q_down",
            "w_other": "kv_down",
            "m": c.B,
            "n": c.R,
            "k": c.D,
            "start": c.start,
            "cache_rows": c.L,
        },
    )
    query = TritonStep(
        bound("query", {"BLOCK_M": block_m, "BLOCK_K": config.block_k}),
        grid=(heads * (NOPE + ROPE) // 64, along_m, 1),
        arguments={
            "x": "q_lora",
            "w": "q_up",
            "m": c.B,
            "heads": heads,
            "k": c.R,
            "start": c.start,
        },
    )
    head_kernel = bound("product", {**tile, "BLOCK_N": 64, "BLOCK_K": min(64, config.block_k)})

    def product_of_heads(n: int, k: int, **arguments: int | str) -> TritonStep:
        """Return the step that multiplies x of each head by that head's rows of kv_up."""
        common_arguments = {"w": "kv_up", "m": c.B, "n": n, "k": k, "x_row": heads * k, "x_head": k}
        return TritonStep(
            head_kernel, (n // 64, along_m, heads), {**common_arguments, "w_head": _UP, **arguments}
        )

    q_strides = {"out_row": heads * CACHE_ROW, "out_head": CACHE_ROW}
    absorb = product_of_heads(
        LATENT, NOPE, out="q", x="nope", w_first=0, w_n=1, w_k=LATENT, **q_strides
    )
    w_begin, strides = NOPE * LATENT, {"out_row": c.V, "out_head": V}
    values = product_of_heads(
        V, LATENT, out="value", x="latent", w_first=w_begin, w_n=LATENT, w_k=1, **strides
    )
    out_step = TritonStep(
        bound("product", tile),
        grid=(ceil(c.D, block_n), along_m, 1),
        arguments={
            "x": "value",
            "w": "o",
            "m": c.B,
            "n": c.D,
            "k": c.V,
            "x_row": c.V,
            "x_head": 0,
            "w_first": 0,
            "w_head": 0,
            "w_n": c.V,
            "w_k": 1,
            "out_row": c.D,
            "out_head": 0,
        },
    )
    return [down, query, absorb, attention(c, c.L, hip=False), values, out_step]
