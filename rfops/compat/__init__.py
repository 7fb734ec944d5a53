"""Drop-ins with the names, signatures and meaning of aiter's.

Defaults are those of aiter e404860; where rfops computes nothing for a default, it is refused by
name. `gemm_a8w8_blockscale` and `gemm_a8w8_blockscale_bpreshuffle`, as vLLM and SGLang call them,
and `gemm_a8w8_blockscale_triton`, which is aiter.ops.triton's of the first name, always have a
result, as have those for MXFP4 (gemm/mxfp4_compat.py), for MLA, vLLM's and FlashMLA's among
them (attention/mla_dropins.py), and for experts and routing (moe/moe_dropins.py). `mxfp8_gemv` and
`grouped_gemm_mxfp8` are those of pull request 3783: each gives the HIP kernel's result, or None
where HIP does not engage: no kernel for the device, the shape or the dtype, sizes beyond the
kernels' offsets (2 GiB), a layout that they do not take, or a tuned row that says Triton is faster.
A caller keeps its own fallback for None:

    y = mxfp8_gemv(xq, x_scale, wq, w_scale, torch.bfloat16)
    if y is None: ...

Unlike there, an error inside a kernel or its build is raised, and so are sizes that disagree
(ValueError): None never hides a mistake.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from rfops.attention.mla_dropins import (
    decode_attention_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
    get_mla_metadata_info_v1,
    get_mla_metadata_v1,
    mla_decode_fwd,
)
from rfops.attention.mla_flashinfer import BatchMLAPagedAttentionWrapper
from rfops.dispatch import routing
from rfops.dispatch.guards import OUT_DTYPES, Guard
from rfops.dispatch.layout import Shuffled
from rfops.dispatch.op import Op
from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale as _gemm_a8w8_blockscale
from rfops.gemm.mxfp4_compat import (
    dynamic_mxfp4_quant,
    gemm_a4w4,
    gemm_a16wfp4,
    gemm_a16wfp4_preshuffle,
    gemm_afp4wfp4,
    gemm_afp4wfp4_preshuffle,
    gemm_afp4wfp4_preshuffled_weight_scales,
)
from rfops.gemm.mxfp8 import OP as DENSE
from rfops.gemm.mxfp8 import gemm_mxfp8
from rfops.jit.errors import show
from rfops.moe.grouped_gemm_mxfp8 import OP as GROUPED
from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8 as _grouped_gemm_mxfp8
from rfops.moe.moe_dropins import (
    ActivationType,
    QuantType,
    biased_grouped_topk,
    fused_moe,
    fused_topk,
    grouped_topk,
    moe_align_block_size,
    moe_sorting,
    topk_gating,
    topk_softmax,
)
from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
from rfops.quantization.mxfp8 import BLOCK, FP8, SCALE_DTYPES
from rfops.quantization.shuffle import WEIGHT

ALIGN = 16  # bytes: a lane's load

__all__ = [
    "ActivationType",
    "BatchMLAPagedAttentionWrapper",
    "QuantType",
    "biased_grouped_topk",
    "decode_attention_fwd",
    "dynamic_mxfp4_quant",
    "flash_mla_with_kvcache",
    "fused_moe",
    "fused_topk",
    "gemm_a4w4",
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_bpreshuffle",
    "gemm_a8w8_blockscale_triton",
    "gemm_a16wfp4",
    "gemm_a16wfp4_preshuffle",
    "gemm_afp4wfp4",
    "gemm_afp4wfp4_preshuffle",
    "gemm_afp4wfp4_preshuffled_weight_scales",
    "get_mla_metadata",
    "get_mla_metadata_info_v1",
    "get_mla_metadata_v1",
    "grouped_gemm_mxfp8",
    "grouped_topk",
    "mla_decode_fwd",
    "moe_align_block_size",
    "moe_sorting",
    "mxfp8_gemv",
    "per_group_quant_hip",
    "topk_gating",
    "topk_softmax",
]


def gemm_a8w8_blockscale(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    isBpreshuffled: bool = False,
) -> torch.Tensor:
    """[M, N] of dtype: XQ [M, K] times WQ [N, K], FP8, with fp32 scales [M, K/128] in either order
    and [N/128, K/128]; WQ as shuffle_weight(16, 16) left it where isBpreshuffled. Raises as
    rfops.gemm_a8w8_blockscale."""
    w = Shuffled(WQ, WEIGHT) if isBpreshuffled else WQ
    return _gemm_a8w8_blockscale(XQ, w, x_scale, w_scale, dtype)


def gemm_a8w8_blockscale_bpreshuffle(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same for shuffled WQ, in `out` where given. x_scale may also be [M, K/128] in name only:
    contiguous memory that holds its transpose, as per_group_quant_hip(transpose_scale=True) leaves
    it."""
    rows, blocks = x_scale.shape
    if x_scale.is_contiguous() and min(rows, blocks) > 1:
        x_scale = x_scale.view(blocks, rows).T
    return _gemm_a8w8_blockscale(XQ, Shuffled(WQ, WEIGHT), x_scale, w_scale, dtype, out)


def gemm_a8w8_blockscale_triton(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype | None = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict[str, Any] | None = None,
    skip_reduce: bool | None = False,
    kernel_type: str = "bandwidth_bound",
    backend: str | None = None,
) -> torch.Tensor:
    """aiter.ops.triton's gemm_a8w8_blockscale: raw w, in `y` where given. kernel_type and backend,
    which choose among Triton's kernels, are ignored; a config and skip_reduce are refused."""
    guard = Guard("gemm_a8w8_blockscale_triton")
    for name, value in (("config", config), ("skip_reduce", skip_reduce)):
        if value:
            guard.fail(name, "None or False", show(value), "rfops takes its own tuned table")
    out_dtype = y.dtype if y is not None else dtype or torch.bfloat16
    return _gemm_a8w8_blockscale(x, w, x_scale, w_scale, out_dtype, y)


def per_group_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = torch.int8,
    group_size: int = 128,
    transpose_scale: bool = False,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
    scale_type: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """aiter.ops.quant's, which get_hip_quant(per_1x128) gives: x [..., K] in FP8 and its scales
    [..., K/128], contiguous; with transpose_scale their memory holds the transpose of that. Its
    default, int8, is refused."""
    guard = Guard("per_group_quant_hip")
    if quant_dtype is torch.int8:
        guard.fail("quant_dtype", "an FP8 dtype", "torch.int8", "call the original")
    for name, value, default_value in (
        ("scale", scale, None),
        ("group_size", group_size, 128),
        ("num_rows", num_rows, None),
        ("scale_type", scale_type, torch.float32),
    ):
        if value is not default_value and value != default_value:
            guard.fail(name, show(default_value), show(value), "call the original")
    rows = x.reshape(-1, x.shape[-1])
    payload, scales = quant_fp8_blockscale(rows, (1, 128), transpose_scale, quant_dtype)
    scales = scales.T if transpose_scale else scales
    return payload.view(x.shape), scales.reshape(*x.shape[:-1], -1)


def mxfp8_gemv(
    xq: Tensor,
    x_scale: Tensor,
    wq: Tensor,
    w_scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor | None:
    """xq @ wq^T for MX-FP8, [M, N] of `out_dtype`, by HIP's GEMV or matrix-core kernel; else None.

    xq [M, K], wq [N, K] float8_e4m3fn, x_scale [M, K/32], w_scale [N, K/32] e8m0 (uint8 or
    float8_e8m0fnu). Raises as rfops.gemm_mxfp8.
    """
    if not _are_taken("mxfp8_gemv", (xq, wq), (x_scale, w_scale), out_dtype):
        return None
    if xq.dim() == wq.dim() == 2 and xq.shape[0] and wq.shape[0]:
        sizes = {"M": xq.shape[0], "N": wq.shape[0], "K": xq.shape[1]}
        if not _is_hip(DENSE, *routing.chip(xq.device), dtype=out_dtype, **sizes):
            return None
    return gemm_mxfp8(xq, wq, x_scale, w_scale, out_dtype)


@functools.lru_cache(maxsize=1024)
def _is_hip(op: Op, arch: str, cu_num: int, **call: Any) -> bool:
    return op.route(op.call_of(arch, cu_num, **call)).is_hip


def grouped_gemm_mxfp8(
    a_q: Tensor,
    a_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_post_padded: Tensor,
    num_valid_tokens: int,
    top_k: int,
    block_m: int,
    out_dtype: torch.dtype,
    a_div: int,
    mul_weight_by: Tensor | None = None,
    topk_ids: Tensor | None = None,
) -> Tensor | None:
    """The experts' linears of a mixture, [num_valid_tokens, N] of `out_dtype`, by HIP; else None.

    Arguments and errors are those of rfops.grouped_gemm_mxfp8.
    """
    if not _are_taken(GROUPED.name, (a_q, w), (a_scale, w_scale), out_dtype):
        return None
    values = GROUPED.check_values(
        num_valid_tokens=num_valid_tokens, top_k=top_k, block_m=block_m, a_div=a_div
    )
    ids = (sorted_token_ids, expert_ids, num_tokens_post_padded)
    if any(t.dtype != torch.int32 or not t.is_contiguous() for t in ids):
        return None
    weights = mul_weight_by
    if weights is not None and (weights.dtype != torch.float32 or not weights.is_contiguous()):
        return None
    if w.dim() == 3 and a_q.dim() == 2 and values["num_valid_tokens"] > 0 and w.shape[1]:
        e, n, k = w.shape
        sizes = {"M": values.pop("num_valid_tokens"), "N": n, "K": k, "E": e, "A": a_q.shape[0]}
        values |= {"out_dtype": out_dtype, "mul_weight_by": weights is not None}
        if not _is_hip(GROUPED, *routing.chip(a_q.device), **values, **sizes):
            return None
    return _grouped_gemm_mxfp8(
        a_q,
        a_scale,
        w,
        w_scale,
        sorted_token_ids,
        expert_ids,
        num_tokens_post_padded,
        num_valid_tokens,
        top_k,
        block_m,
        out_dtype,
        a_div,
        mul_weight_by,
        topk_ids,
    )


def _are_taken(
    op: str,
    payloads: tuple[Tensor, ...],
    scales: tuple[Tensor, ...],
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
