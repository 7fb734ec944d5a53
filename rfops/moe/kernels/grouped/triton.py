"""grouped_gemm_mxfp8 in Triton: the experts' linears of a mixture, rows sorted by expert."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from rfops.dispatch import tuned_table
from rfops.dispatch.heuristic import Columns, ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.time_model import TimedKernel
from rfops.gemm.kernels.mxfp8.triton import (
    MAX_SIZE,
    WIDE_FROM,
    matrix_clocks,
    resident_of,
    unsupported_reason,
)
from rfops.jit.arch import ARCH_SPECS
from rfops.triton import tiles
from rfops.triton.bound import BoundTriton
from rfops.triton.tiles import TritonConfig

from ...grouped_terms import Traits

_MAX_RUNS = 256
_KERNELS = "rfops.triton.mxfp8_kernels"
_ARGUMENTS = "out a w a_scale w_scale sorted_ids expert_ids num_padded weights"
_SOURCES = {"ws": "w_scale"}
_STRIDES = {
    "out": "stride_o _",
    "a": "stride_a _",
    "a_scale": "stride_as _",
    "w": "stride_we stride_w _",
    "w_scale": "stride_wse stride_ws _",
}
_MIN_BLOCK_M = 16  # rows of a matrix instruction
# block_m, block_n, block_k, warps of tiles, by the most rows of a block that they are for.
_TILES = {
    16: ((16, 32, 256, 2), (16, 32, 256, 4), (16, 64, 256, 4), (16, 128, 256, 4)),
    32: ((32, 32, 256, 4), (32, 64, 256, 4), (32, 128, 256, 4)),
    64: ((64, 32, 256, 4), (64, 64, 256, 4), (64, 128, 128, 4), (64, 128, 128, 8)),
    MAX_SIZE: ((64, 64, 256, 4), (64, 128, 128, 4), (128, 64, 128, 4), (128, 128, 128, 8)),
}
_GROUP_M = 4  # of tiles of 64 rows and more


@functools.cache
def _variants(max_rows: int) -> Columns[TritonConfig]:
    """Of an architecture whose matrix instruction scales."""
    return Columns(
        [
            TritonConfig("scaled", m, n, k, _GROUP_M if m >= 64 else 1, warps, 2, 0, 16)
            for m, n, k, warps in _TILES[max_rows]
        ]
    )


class TritonGrouped(TimedKernel):
    """The grouped GEMM of MX-FP8 in Triton, for every architecture. Its default is a row of its own
    table if the op's model does not rank it, or if a user has a row there."""

    name = "triton"
    is_ranked = False
    sources = (_KERNELS,)
    Config = TritonConfig
    tuned = tuned_table.declare("grouped_gemm_mxfp8_triton", "block_m<= N<= K<=", ("triton",))

    def unsupported_reason(self, c: Call) -> str | None:
        return unsupported_reason(c, max(c.N, c.K))

    def unsupported_config_reason(self, c: Call, config: TritonConfig) -> str | None:
        return config.unsupported_reason(False, c.arch)

    def default(self, c: Call) -> TritonConfig:
        row = self.own_row(c)
        if row.is_own or self.space(c) is None:
            return tiles.config_of(row)
        ranked: TritonConfig = super().default(c)
        return ranked

    def space(self, c: Call) -> Columns[TritonConfig] | None:
        if c.arch not in tiles.SCALED_ARCHS:
            return None
        return _variants(next(max_block_m for max_block_m in _TILES if c.block_m <= max_block_m))

    def traits(self, config: TritonConfig, c: Call) -> tuple[float, ...]:
        chip, warps = ARCH_SPECS[c.arch], config.warps
        m, n, k = tile_rows(c.block_m, config), config.block_n, config.block_k
        return Traits(
            n,
            groups=ceil(c.block_m, m),
            unit_k=k,
            steps=1,
            k_waves=1,
            waves=warps,
            resident=resident_of(chip, m, n, k, warps),
            lds_bytes=0,
            busy_clocks=matrix_clocks(m, n, k),
        )

    def candidates(self, c: Call) -> Iterable[TritonConfig]:
        tile_configs = tiles.candidates(self.default(c), c, c.block_m, False)
        return tile_configs if self.space(c) is None else [*super().candidates(c), *tile_configs]

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
    constants = {**config.constants(k), "BLOCK_M": rows, "METHOD": config.method}

    def launch_of(is_wide: bool) -> Callable[..., Run]:
        kernel = BoundTriton(
            _KERNELS, "grouped_kernel", device, {**constants, "WIDE": is_wide}, options=options
        )
        return kernel.prepare(_ARGUMENTS, sources=_SOURCES, strides=_STRIDES)

    launches = launch_of(False), launch_of(True)
    numbers = {"E": e, "N": n, "K": k, "num_valid": num_valid, "block_m": block_m, "a_div": a_div}
    runs: dict[tuple[bool, bool, int, int], Run] = {}

    def run(out: torch.Tensor, *inputs: Any) -> None:
        a_q, a_scale, w, w_scale, ids, expert_ids, num_padded, topk_weights = inputs
        # Both limit the grid: a caller's buffers may be of different lengths.
        num_ids = ids.numel()
        blocks = min(-(-num_ids // block_m), expert_ids.numel())
        if blocks == 0:
            return
        sources = [t.view(torch.uint8) for t in (a_q, w, a_scale, w_scale)]
        span = max(t.shape[0] * t.stride(0) for t in (a_q, out))
        is_wide = max(span, config.block_n * w.stride(1)) >= WIDE_FROM
        key = topk_weights is not None, is_wide, num_ids, blocks
        if key not in runs:
            if len(runs) >= _MAX_RUNS:  # lengths that change with every call
                runs.clear()
            grid = blocks * tiles_of_block, 1, 1
            runs[key] = launches[is_wide](grid, num_ids=num_ids, blocks=blocks, **numbers)
        runs[key](out, *sources, ids, expert_ids, num_padded, topk_weights)

    return run
