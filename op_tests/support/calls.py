"""What tests ask of an op: the route of sizes, a kernel's default and its launch."""

from __future__ import annotations

from typing import Any

import torch

from rfops.cli.why import text
from rfops.dispatch.kernel import Call, Run
from rfops.dispatch.routing import Decision, chip
from rfops.dispatch.view import views_of
from rfops.gemm.a16w8_blockscale import OP as BATCHED
from rfops.gemm.mxfp8 import OP as DENSE
from rfops.moe.grouped_gemm_mxfp8 import OP as GROUPED

BF16 = torch.bfloat16


def dense_call(
    m: int, n: int, k: int, dtype: torch.dtype = BF16, arch: str = "gfx950", cu_num: int = 256
) -> Call:
    return DENSE.call_of(arch, cu_num, M=m, N=n, K=k, dtype=dtype)


def route(m: int, n: int, k: int, dtype: torch.dtype = BF16, **chip: Any) -> Decision:
    return DENSE.route(dense_call(m, n, k, dtype, **chip))


def decision(m: int, n: int = 480, k: int = 640, **chip: object) -> tuple[str, str]:
    """The rule and the kernel of a dense call."""
    selected = route(m, n, k, **chip)  # type: ignore[arg-type]
    return selected.rule, selected.backend


def grouped_call(
    m: int,
    n: int,
    k: int,
    e: int,
    top_k: int,
    a_div: int,
    weighted: bool = False,
    block_m: int = 16,
    dtype: torch.dtype = BF16,
    arch: str = "gfx950",
    cu_num: int = 256,
    **sizes: int,
) -> Call:
    return GROUPED.call_of(
        arch,
        cu_num,
        M=m,
        N=n,
        K=k,
        E=e,
        top_k=top_k,
        a_div=a_div,
        block_m=block_m,
        out_dtype=dtype,
        mul_weight_by=weighted,
        **sizes,
    )


def grouped_route(*args: Any, **sizes_by_name: Any) -> Decision:
    return GROUPED.route(grouped_call(*args, **sizes_by_name))


def default_config(backend: str, m: int, n: int, k: int, arch: str = "gfx950") -> Any:
    return DENSE.kernels[backend].default(dense_call(m, n, k, arch=arch))


def default_moe(n: int, k: int, e: int, m: int, block_m: int) -> Any:
    return GROUPED.kernels["moe"].default(grouped_call(m, n, k, e, 1, 1, block_m=block_m))


def prepare(
    backend: str,
    device: torch.device | str,
    m: int,
    n: int,
    k: int,
    config: Any = None,
    dtype: torch.dtype = BF16,
    **tensors: torch.Tensor,
) -> Run:
    """The launch of gemm_mxfp8's shape by one kernel, whatever the route says; its scales lie as
    these tensors do, by default as torch allocates them."""
    device = torch.device(device)
    c = dense_call(m, n, k, dtype, *chip(device))
    return DENSE.prepare(backend, with_device(c, device, **tensors), config)


def prepare_grouped(
    backend: str, device: torch.device, *sizes: Any, config: Any = None, **sizes_by_name: Any
) -> Run:
    """The same of grouped_gemm_mxfp8: m, n, k, e, top_k, a_div, weighted, block_m, dtype."""
    arch, cu_num = chip(device)
    c = grouped_call(*sizes, arch=arch, cu_num=cu_num, **sizes_by_name)
    return GROUPED.prepare(backend, with_device(c, device), config)


def with_device(c: Call, device: torch.device, **tensors: torch.Tensor) -> Call:
    """A call of sizes alone on a device; its tensors lie as these do."""
    return Call(c.arch, c.cu_num, device, c.sizes, c.values, views_of(tensors))


def batched_call(b: int, m: int, n: int, k: int, arch: str, x_dtype: torch.dtype = BF16) -> Call:
    return BATCHED.call_of(arch, B=b, M=m, N=n, K=k, x_dtype=x_dtype)


def batched_route(*sizes: Any) -> Decision:
    """Of b, m, n, k, arch and x's dtype."""
    return BATCHED.route(batched_call(*sizes))


def batched_why(*sizes: Any) -> str:
    return text(BATCHED, batched_call(*sizes))
