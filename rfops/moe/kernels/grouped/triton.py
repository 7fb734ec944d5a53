"""grouped_gemm_mxfp8 in Triton: the experts' linears of a mixture, rows sorted by expert."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch

from rfops.dispatch import tuned_table
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.gemm.kernels.mxfp8.triton import WIDE_FROM, refuses
from rfops.triton import tiles
from rfops.triton.bound import BoundTriton
from rfops.triton.tiles import TritonConfig

_MIN_BLOCK_M = 16  # rows of a matrix instruction


class TritonGrouped(Kernel):
    name = "triton"
    Config = TritonConfig
    tuned = tuned_table.declare("grouped_gemm_mxfp8_triton", "block_m<= N<= K<=", ("triton",))

    def refuses(self, c: Call) -> str | None:
        return refuses(c, max(c.N, c.K))

    def refuses_config(self, c: Call, config: TritonConfig) -> str | None:
        return config.refuses(False, c.arch)

    def default(self, c: Call) -> TritonConfig:
        """The table's tile for blocks of block_m rows."""
        return tiles.of(self.own_row(c))

    def candidates(self, c: Call) -> Iterable[TritonConfig]:
        return tiles.candidates(self.default(c), c, c.block_m, False)

    def variant(self, c: Call, config: TritonConfig) -> RunOf:
        options, block_m, a_div = config.options(c.arch), c.block_m, c.a_div

        def run_of(rows: int, n: int, k: int, e: int, *_layout: int) -> Run:
            return _bind(c.device, (n, k, e), rows, block_m, a_div, config, options)

        return run_of


def tile_rows(block_m: int, config: TritonConfig) -> int:
    """BLOCK_M: no more rows than a block has, so that one of 16 takes no tile of 64."""
    rows = max(_MIN_BLOCK_M, 1 << (block_m - 1).bit_length())
    return min(config.block_m, rows)


def _bind(
    device: torch.device,
    sizes: tuple[int, int, int],
    num_valid: int,
    block_m: int,
    a_div: int,
    config: TritonConfig,
    options: dict[str, object],
) -> Run:
    n, k, e = sizes
    rows = tile_rows(block_m, config)
    tiles_of_block = -(-block_m // rows) * -(-n // config.block_n)
    of_k = config.constants(k)
    tile = rows, of_k["BLOCK_N"], of_k["BLOCK_K"], of_k["EVEN_K"], config.method, config.group_m
    kernels = {
        kind: BoundTriton(
            "rfops.triton.mxfp8_kernels", "grouped_kernel", device, (*tile, *kind), options=options
        )
        for kind in itertools.product((False, True), repeat=2)  # has weights, is wide
    }

    def run(out: torch.Tensor, *inputs: Any) -> None:
        a_q, a_scale, w, w_scale, ids, expert_ids, num_padded, topk_weights = inputs
        # Both limit the grid: a caller's buffers may be of different lengths.
        num_ids = ids.numel()
        blocks = min(-(-num_ids // block_m), expert_ids.numel())
        if blocks == 0:
            return
        sources = [t.view(torch.uint8) for t in (a_q, w, a_scale, w_scale)]
        a_bytes, w_bytes, as_bytes, ws_bytes = sources
        span = max(t.shape[0] * t.stride(0) for t in (a_q, out))
        wide = max(span, config.block_n * w_bytes.stride(1)) >= WIDE_FROM
        kernel = kernels[topk_weights is not None, wide]
        kernel(
            (blocks * tiles_of_block, 1, 1),
            (out, *sources, ids, expert_ids, num_padded, topk_weights),
            (
                e,
                n,
                k,
                num_valid,
                num_ids,
                blocks,
                block_m,
                a_div,
                out.stride(0),
                a_bytes.stride(0),
                as_bytes.stride(0),
                *w_bytes.stride()[:2],
                *ws_bytes.stride()[:2],
            ),
        )

    return run
