"""mla_layer_decode in Triton: AMD's and NVIDIA's GPUs. The launches are those of HIP's route
(mla_layer_decode_hip.py); that of attention may be followed by one that adds up its splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rfops.dispatch.guards import check_config_ints, check_config_powers
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.tuned_table import serving
from rfops.dispatch.workspace import Workspace, with_workspace
from rfops.jit.arch import ROWS
from rfops.triton import launch
from rfops.triton.bound import BoundTriton

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
class LayerTritonConfig:
    """A variant of rfops/attention/mla_layer_decode_triton_kernels.py."""

    block_n: int  # of q_down and kv_down, and of o
    block_k: int
    warps: int = 4
    stages: int = 2

    def __post_init__(self) -> None:
        check_config_ints(self)
        check_config_powers(self, "block_n", "block_k", "warps")
        if not 16 <= self.block_n <= 128 or not 32 <= self.block_k <= 256:
            raise ValueError(f"{self}: block_n is 16 to 128, block_k 32 to 256")
        if not 1 <= self.stages <= 8 or self.warps > 8:
            raise ValueError(f"{self}: stages is 1 to 8, warps 1 to 8")

    def lds_bytes(self, arch: str, block_m: int) -> int:
        """Triton keeps a stage less of AMD's: that one is in registers."""
        buffers = max(1, self.stages - 1) if arch.startswith("gfx") else self.stages
        return 2 * (block_m + max(self.block_n, 64)) * self.block_k * buffers + 1024


class TritonLayer(Kernel):
    name = "triton"
    Config = LayerTritonConfig
    error = 2.0**-6  # five roundings to bf16, and P

    def refuses(self, c: Call) -> str | None:
        reason = launch.missing()
        if reason is not None:
            return reason
        if serving(c.arch) is None:
            return f"no tiles for {c.arch}: {', '.join(ROWS)} and later NVIDIA GPUs have some"
        if c.B * c.L >= 2**31 or c.V * LATENT // V * c.B >= 2**31:
            return f"a cache of {c.B * c.L} rows, or {c.V // V} heads, are beyond 32-bit offsets"
        kernel, reason = attention_kernel(attention_call(c, c.L), hip=False)
        return None if kernel is not None else f"its attention is not taken: {reason}"

    def refuses_config(self, c: Call, config: LayerTritonConfig) -> str | None:
        chip = ROWS[serving(c.arch) or "sm_90"]
        own = config.lds_bytes(c.arch, _block_m(c.B))
        return None if own <= chip.lds_bytes else f"{own} bytes of LDS, {c.arch} has less"

    def default(self, c: Call) -> LayerTritonConfig:
        if c.arch.startswith("gfx"):
            return LayerTritonConfig(32, 64)
        return LayerTritonConfig(32, 128, 4, 4)

    def candidates(self, c: Call) -> list[LayerTritonConfig]:
        first = self.default(c)
        made = [
            LayerTritonConfig(block_n, block_k, warps, stages)
            for block_n in (16, 32, 64)
            for block_k in (64, 128)
            for warps in (4, 8)
            for stages in (2, 3, 4)
        ]
        fit = (config for config in made if self.refuses_config(c, config) is None)
        return [first, *(config for config in fit if config != first)]

    def variant(self, c: Call, config: LayerTritonConfig) -> RunOf:
        def run_of(*sizes: int) -> Run:
            of = c.with_sizes(**dict(zip(c.sizes, sizes, strict=True)))
            launches = _Launches(of, config)
            return with_workspace(launches.run, launches.workspace)

        return run_of


def _block_m(rows: int) -> int:
    return min(128, max(16, 1 << (max(rows, 1) - 1).bit_length()))


class _Launches:
    """Of one call; what is between launches lies in the workspace."""

    def __init__(self, c: Call, config: LayerTritonConfig) -> None:
        self.c, self.heads = c, c.V // V
        self.block_m, self.block_n = _block_m(c.B), config.block_n
        tile = self.block_m, config.block_n, config.block_k

        def bound(name: str, *constants: int) -> BoundTriton:
            return BoundTriton(_KERNELS, name, c.device, constants, config.warps, config.stages)

        self.down = bound("down", *tile)
        self.query = bound("query", self.block_m, config.block_k)
        self.of_heads = bound("product", self.block_m, 64, min(64, config.block_k))
        self.last = bound("product", *tile)
        names = "q cache angles lens table latent".split()
        self.attention = attention(c, c.L, hip=False).bind(c.device, c.arch, names)
        self.workspace = Workspace(
            c.device,
            (c.B, _I32),  # lens
            ((c.B, 1), _I32),  # table
            ((c.B, c.R), _BF16),  # q_lora
            ((c.B, self.heads, NOPE), _BF16),
            ((c.B, self.heads, CACHE_ROW), _BF16),  # q
            ((c.B, self.heads, LATENT), _BF16),  # what attention gives
            ((c.B, self.heads, V), _BF16),
            outer=True,
        )

    def run(
        self, out: Tensor, x: Tensor, cache: Tensor, q_down: Tensor, q_up: Tensor, kv_down: Tensor,
        kv_up: Tensor, o: Tensor, angles: Tensor, positions: Tensor | None, lens: Tensor,
        table: Tensor, q_lora: Tensor, nope: Tensor, q: Tensor, latent: Tensor, value: Tensor,
    ) -> None:  # fmt: skip
        c, heads, block_n = self.c, self.heads, self.block_n
        along_m = ceil(c.B, self.block_m)
        tiles = ceil(c.R, block_n) + ceil(CACHE_ROW, block_n)
        of_down = q_lora, cache, x, q_down, kv_down, positions, lens, table
        self.down((tiles, along_m, 1), of_down, (c.B, c.R, c.D, c.start, c.L))
        parts = heads * (NOPE + ROPE) // 64
        of_query = nope, q, q_lora, q_up, angles, positions
        self.query((parts, along_m, 1), of_query, (c.B, heads, c.R, c.start))
        rows = heads * NOPE, NOPE, 0, _UP, 1, LATENT, heads * CACHE_ROW, CACHE_ROW
        self.of_heads((LATENT // 64, along_m, heads), (q, nope, kv_up), (c.B, LATENT, NOPE, *rows))
        self.attention(q, cache, angles, lens, table, latent)
        rows = heads * LATENT, LATENT, NOPE * LATENT, _UP, LATENT, 1, c.V, V
        self.of_heads((V // 64, along_m, heads), (value, latent, kv_up), (c.B, V, LATENT, *rows))
        rows = c.V, 0, 0, 0, c.V, 1, c.D, 0
        self.last((ceil(c.D, block_n), along_m, 1), (out, value, o), (c.B, c.D, c.V, *rows))
