"""Arguments of the ops that keep plans, and the shape of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rfops import moe_align_block_size, quant_mxfp8

BF16 = torch.bfloat16


def _dense() -> tuple[Any, ...]:
    (x, x_scale), (w, w_scale) = (quant_mxfp8(torch.randn(rows, 64)) for rows in (2, 24))
    return x, w, x_scale, w_scale


def _grouped() -> tuple[Any, ...]:
    a_q, a_scale = quant_mxfp8(torch.randn(3, 64))
    w, w_scale = quant_mxfp8(torch.randn(4 * 8, 64))
    layout = moe_align_block_size(torch.tensor([[0, 1], [2, 3], [1, 0]], dtype=torch.int32), 4, 4)
    return (a_q, a_scale, w.view(4, 8, 64), w_scale.view(4, 8, 2), *layout, 6, 2, 4, BF16, 2)


def _batched() -> tuple[Any, ...]:
    w = torch.randn(2, 24, 64).to(torch.float8_e4m3fn)
    return torch.randn(2, 3, 64).to(BF16), w, torch.ones(2, 1, 1)


def _blockscale() -> tuple[Any, ...]:
    x, w = (torch.randn(rows, 256).to(torch.float8_e4m3fn) for rows in (2, 24))
    return x, w, torch.rand(2, 2), torch.rand(1, 2)


def _mla() -> tuple[Any, ...]:
    bounds, pages = (torch.tensor(v, dtype=torch.int32) for v in ([0, 3, 6], [5, 0, 3, 1, 4, 2]))
    return torch.randn(2, 4, 576).to(BF16), torch.randn(6, 1, 1, 576).to(BF16), bounds, pages, 0.05


OPS: dict[str, tuple[Callable[[], tuple[Any, ...]], tuple[int, ...]]] = {
    "gemm_mxfp8": (_dense, (2, 24)),
    "grouped_gemm_mxfp8": (_grouped, (6, 8)),
    "batched_gemm_a16w8_blockscale": (_batched, (2, 3, 24)),
    "gemm_a8w8_blockscale": (_blockscale, (2, 24)),
    "mla_decode": (_mla, (2, 4, 512)),
}
