"""Drop-ins with the names, signatures and meaning of aiter's pull request 3783.

Each gives the HIP kernel's result, or None where HIP does not engage: no kernel for the device, the
shape or the dtype, sizes beyond the kernels' offsets (2 GiB), a layout that they do not take, or a
tuned row that says Triton is faster. A caller keeps its own fallback for None:

    y = mxfp8_gemv(xq, x_scale, wq, w_scale, torch.bfloat16)
    if y is None: ...

Unlike there, an error inside a kernel or its build is raised, and so are sizes that disagree
(ValueError): None never hides a mistake.
"""

from __future__ import annotations

import functools

import torch

from . import routing
from .gemm_mxfp8 import ALIGN, SCALE_DTYPES, gemm_mxfp8
from .gemm_mxfp8_route import OUT_DTYPES
from .gemm_mxfp8_route import route as dense_route
from .grouped_gemm_mxfp8 import check_sizes
from .grouped_gemm_mxfp8 import grouped_gemm_mxfp8 as _grouped_gemm_mxfp8
from .grouped_gemm_mxfp8_route import OP, choose_backend
from .grouped_gemm_mxfp8_route import Shape as GroupedShape
from .guards import Guard, show
from .quant_mxfp8 import BLOCK, FP8
from .routing import Route

__all__ = ["grouped_gemm_mxfp8", "mxfp8_gemv"]


def mxfp8_gemv(
    xq: torch.Tensor,
    x_scale: torch.Tensor,
    wq: torch.Tensor,
    w_scale: torch.Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor | None:
    """xq @ wq^T for MX-FP8, [M, N] of `out_dtype`, by HIP's GEMV or matrix-core kernel; else None.

    xq [M, K], wq [N, K] float8_e4m3fn, x_scale [M, K/32], w_scale [N, K/32] e8m0 (uint8 or
    float8_e8m0fnu). Raises as rfops.gemm_mxfp8.
    """
    if not _are_taken("mxfp8_gemv", (xq, wq), (x_scale, w_scale), out_dtype):
        return None
    if xq.dim() == wq.dim() == 2 and xq.shape[0] and wq.shape[0]:
        chosen = _dense_route(*xq.shape, wq.shape[0], out_dtype, *routing.chip(xq.device))
        if not chosen.is_hip:
            return None
    return gemm_mxfp8(xq, wq, x_scale, w_scale, out_dtype)


@functools.lru_cache(maxsize=1024)
def _dense_route(m: int, k: int, n: int, dtype: torch.dtype, arch: str, cu_num: int) -> Route:
    return dense_route(m, n, k, dtype, arch, cu_num)


def grouped_gemm_mxfp8(
    a_q: torch.Tensor,
    a_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    num_valid_tokens: int,
    top_k: int,
    block_m: int,
    out_dtype: torch.dtype,
    a_div: int,
    mul_weight_by: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """The experts' linears of a mixture, [num_valid_tokens, N] of `out_dtype`, by HIP; else None.

    Arguments and errors are those of rfops.grouped_gemm_mxfp8.
    """
    if not _are_taken(OP, (a_q, w), (a_scale, w_scale), out_dtype):
        return None
    if not (type(num_valid_tokens) is type(top_k) is type(block_m) is type(a_div) is int):
        sizes = check_sizes(OP, num_valid_tokens, top_k, block_m, a_div)
        num_valid_tokens, top_k, block_m, a_div = sizes
    ids = (sorted_token_ids, expert_ids, num_tokens_post_padded)
    if any(t.dtype != torch.int32 or not t.is_contiguous() for t in ids):
        return None
    weights = mul_weight_by
    if weights is not None and (weights.dtype != torch.float32 or not weights.is_contiguous()):
        return None
    if w.dim() == 3 and a_q.dim() == 2 and num_valid_tokens > 0 and w.shape[1]:
        e, n, k = w.shape
        sizes = (num_valid_tokens, top_k, block_m, a_div, n, k, e, a_q.shape[0])
        shape = GroupedShape(*sizes, weights is not None)
        if not _grouped_route(shape, out_dtype, *routing.chip(a_q.device)).is_hip:
            return None
    return _grouped_gemm_mxfp8(
        a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids, num_tokens_post_padded,
        num_valid_tokens, top_k, block_m, out_dtype, a_div, mul_weight_by, topk_ids,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _grouped_route(shape: GroupedShape, dtype: torch.dtype, arch: str, cu_num: int) -> Route:
    check_sizes(OP, shape.num_valid_tokens, shape.top_k, shape.block_m, shape.a_div)
    return choose_backend(shape, dtype, arch, cu_num)


def _are_taken(
    op: str,
    payloads: tuple[torch.Tensor, ...],
    scales: tuple[torch.Tensor, ...],
    out_dtype: torch.dtype,
) -> bool:
    """Whether device, dtypes and layouts are those of the HIP kernels."""
    if not isinstance(out_dtype, torch.dtype):
        Guard(op).fail("out_dtype", "a torch.dtype", show(out_dtype), "pass torch.bfloat16")
    return (
        all(t.device.type in ("cpu", "cuda") and t.is_contiguous() for t in (*payloads, *scales))
        and all(t.dtype == FP8 and t.data_ptr() % ALIGN == 0 for t in payloads)
        and all(t.shape and t.shape[-1] % BLOCK == 0 for t in payloads)
        and all(t.dtype in SCALE_DTYPES for t in scales)
        and out_dtype in OUT_DTYPES
    )
