"""grouped_gemm_mxfp8 in Triton: the experts' linears of a mixture, rows sorted by expert."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from rfops.dispatch import tuned_table
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.gemm.kernels.mxfp8.triton import WIDE_FROM, unsupported_reason
from rfops.triton import tiles
from rfops.triton.bound import BoundTriton
from rfops.triton.tiles import TritonConfig

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


class TritonGrouped(Kernel):
    name = "triton"
    Config = TritonConfig
    tuned = tuned_table.declare("grouped_gemm_mxfp8_triton", "block_m<= N<= K<=", ("triton",))

    def unsupported_reason(self, c: Call) -> str | None:
        return unsupported_reason(c, max(c.N, c.K))

    def unsupported_config_reason(self, c: Call, config: TritonConfig) -> str | None:
        return config.unsupported_reason(False, c.arch)

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
    constants = {**config.constants(k), "BLOCK_M": rows, "METHOD": config.method}

    def launch_of(wide: bool) -> Callable[..., Run]:
        kernel = BoundTriton(
            _KERNELS, "grouped_kernel", device, {**constants, "WIDE": wide}, options=options
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
        wide = max(span, config.block_n * w.stride(1)) >= WIDE_FROM
        key = topk_weights is not None, wide, num_ids, blocks
        if key not in runs:
            if len(runs) >= _MAX_RUNS:  # lengths that change with every call
                runs.clear()
            grid = blocks * tiles_of_block, 1, 1
            runs[key] = launches[wide](grid, num_ids=num_ids, blocks=blocks, **numbers)
        runs[key](out, *sources, ids, expert_ids, num_padded, topk_weights)

    return run
