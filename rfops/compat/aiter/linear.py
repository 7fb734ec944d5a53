"""aiter's block-scaled FP8 GEMMs by backend, which write a given output; and per_1x32's a4w4."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rfops import compat
from rfops.dispatch.guards import Guard, describe
from rfops.dispatch.layout import Shuffled
from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale
from rfops.quantization.shuffle import WEIGHT


def gemm_a8w8_blockscale_ck(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    Out: Tensor,
    splitK: int = 0,
    kernelName: str = "",
) -> Tensor:
    """Out [M, N], written and returned, for raw WQ [N, K]; splitK and kernelName only tune."""
    return gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, Out.dtype, Out)


def gemm_a8w8_blockscale_cktile(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    Out: Tensor,
    isBpreshuffled: bool = False,
    splitK: int = 0,
    kernelName: str = "",
) -> Tensor:
    """The same; WQ as shuffle_weight left it where isBpreshuffled."""
    w = Shuffled(WQ, WEIGHT) if isBpreshuffled else WQ
    return gemm_a8w8_blockscale(XQ, w, x_scale, w_scale, Out.dtype, Out)


def gemm_a8w8_blockscale_bpreshuffle_asm(
    A: Tensor,
    B: Tensor,
    out: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    bias: Tensor | None = None,
    splitK: int | None = None,
    kernelName: str | None = None,
    bpreshuffle: bool | None = True,
    zero_bias_buf: Tensor | None = None,
) -> Tensor:
    """out [M, N], written and returned, for shuffled B; raw B without bpreshuffle."""
    if bias is not None:
        Guard("gemm_a8w8_blockscale_bpreshuffle_asm").fail(
            "bias", "None", describe(bias), "add it to the result"
        )
    if not bpreshuffle:
        return gemm_a8w8_blockscale(A, B, A_scale, B_scale, out.dtype, out)
    return compat.gemm_a8w8_blockscale_bpreshuffle(A, B, A_scale, B_scale, out.dtype, out)


def gemm_a4w4_asm(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    out: Tensor,
    kernelName: str = "",
    bias: Tensor | None = None,
    alpha: float | None = 1.0,
    beta: float | None = 0.0,
    bpreshuffle: bool | None = True,
    log2_k_split: int | None = None,
) -> Tensor:
    """The first M rows of out, written; out is returned. kernelName, log2_k_split only tune."""
    result = compat.gemm_a4w4(A, B, A_scale, B_scale, bias, out.dtype, alpha, beta, bpreshuffle)
    out[: result.shape[0]].copy_(result)
    return out


def gemm_a4w4_blockscale(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    Out: Tensor,
    splitK: int = 0,
    kernelName: str = "",
) -> Tensor:
    """The same for shuffled WQ."""
    return gemm_a4w4_asm(XQ, WQ, x_scale, w_scale, Out)


def get_config(*_args: Any, **_kwargs: Any) -> None:
    """aiter's rows of tuned tables: none, rfops has tables of its own."""
