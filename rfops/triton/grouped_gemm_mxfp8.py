"""grouped_gemm_mxfp8 in Triton: the experts' linears of a mixture, rows sorted by expert."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from rfops.quant_mxfp8 import BLOCK
from rfops.triton import launch, tiles
from rfops.triton.bound import BoundKernel
from rfops.triton.gemm_mxfp8 import MAX_SIZE, OUT_DTYPES, WIDE_FROM, refuses_arch
from rfops.triton.tiles import TritonConfig

_LEAST_BLOCK_M = 16  # rows of a matrix instruction


def refuses(
    n: int, k: int, *, arch: str, block_m: int = 16, dtype: torch.dtype = torch.bfloat16
) -> str | None:
    """None if this route takes the sizes on that architecture, else the reason."""
    reason = launch.missing() or refuses_arch(arch)
    if reason is None and dtype not in OUT_DTYPES:
        reason = f"out_dtype {dtype}: out is bfloat16, float16 or float32"
    if reason is None and (k <= 0 or k % BLOCK):
        reason = f"K={k} is not a positive multiple of {BLOCK}"
    if reason is None and block_m < 1:
        reason = f"block_m={block_m} is not positive"
    if reason is None and max(n, k) > MAX_SIZE:
        reason = f"a size of {max(n, k)}: at most {MAX_SIZE}"
    return reason


def from_table(arch: str, block_m: int, n: int, k: int) -> TritonConfig:
    """The tile for blocks of block_m rows; its `origin` says where it comes from."""
    return tiles.find("grouped", arch, block_m, n, k)


def prepare(
    device: torch.device,
    n: int,
    k: int,
    e: int,
    *,
    num_valid_tokens: int,
    top_k: int,
    block_m: int,
    a_div: int,
    config: TritonConfig | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Callable[..., None]:
    """The launch of one problem: launch(out, a_q, a_scale, w, w_scale, sorted_token_ids,
    expert_ids, num_tokens_post_padded, topk_weights).

    out [num_valid_tokens, N] of `dtype`, a_q [rows, K] e4m3 with a_scale [rows, K/32], w [E, N, K]
    e4m3 with w_scale [E, N, K/32], sorted_token_ids int32 with block_m ids for each of expert_ids
    (int32), num_tokens_post_padded int32 [1], read by the kernel alone; topk_weights fp32
    [num_valid_tokens] by flat id, or None. Id i reads row i / a_div of a_q and writes row i of out;
    ids outside 0..num_valid_tokens-1 are padding. A block with an expert outside 0..E-1 writes
    zeros; rows of ids that are in no block stay as they are. `top_k` is part of the interface and
    does not matter here. Raises ValueError for what `refuses` and
    `config.refuses` name.
    """
    arch = launch.arch_of(device)
    reason = refuses(n, k, arch=arch, block_m=block_m, dtype=dtype)
    if reason is None and config is not None:
        reason = config.refuses("grouped", arch)
    if reason is not None:
        raise ValueError(f"grouped_gemm_mxfp8 (Triton): {reason}")
    if n == 0 or num_valid_tokens == 0:
        return lambda *_: None
    config = config or from_table(arch, block_m, n, k)
    return _bind(device, (n, k, e), num_valid_tokens, block_m, a_div, config, config.options(arch))


def tile_rows(block_m: int, config: TritonConfig) -> int:
    """BLOCK_M: no more rows than a block has, so that one of 16 takes no tile of 64."""
    rows = max(_LEAST_BLOCK_M, 1 << (block_m - 1).bit_length())
    return min(config.block_m, rows)


def _bind(
    device: torch.device,
    sizes: tuple[int, int, int],
    num_valid: int,
    block_m: int,
    a_div: int,
    config: TritonConfig,
    options: dict[str, object],
) -> Callable[..., None]:
    n, k, e = sizes
    rows = tile_rows(block_m, config)
    tiles_of_block = -(-block_m // rows) * -(-n // config.block_n)
    of_k = config.constants(k)
    tile = rows, of_k["BLOCK_N"], of_k["BLOCK_K"], of_k["EVEN_K"], config.method, config.group_m
    kernels = {
        kind: BoundKernel(
            "mxfp8_kernels", "grouped_kernel", device, (*tile, *kind), options=options
        )
        for kind in itertools.product((False, True), repeat=2)  # has weights, is wide
    }

    def run(
        out: torch.Tensor,
        a_q: torch.Tensor,
        a_scale: torch.Tensor,
        w: torch.Tensor,
        w_scale: torch.Tensor,
        sorted_token_ids: torch.Tensor,
        expert_ids: torch.Tensor,
        num_tokens_post_padded: torch.Tensor,
        topk_weights: torch.Tensor | None,
    ) -> None:
        # Both limit the grid: a caller's buffers may be of different lengths.
        num_ids = sorted_token_ids.numel()
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
            (out, *sources, sorted_token_ids, expert_ids, num_tokens_post_padded, topk_weights),
            (e, n, k, num_valid, num_ids, blocks, block_m, a_div, out.stride(0),
             a_bytes.stride(0), as_bytes.stride(0), *w_bytes.stride()[:2],
             *ws_bytes.stride()[:2]),
        )  # fmt: skip

    return run
