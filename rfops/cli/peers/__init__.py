"""`rfops bench OP --peers CHECKOUT`: what another project takes for the same call, timed on the
virtual GPU launch by launch: of all its tiles the quickest.

| op | checkout | launches |
|---|---|---|
| gemm_a8w8_blockscale, gemm_afp4wfp4 | aiter | clearing where it adds to its output, kernel |
| fused_moe_fp8, fused_moe_mxfp4 | aiter | sort, quantisation of x, sort of its scales, kernel |
| fused_moe | vLLM | lists of rows, two GEMMs (Triton), activation between them, sum |

A launch that cannot be had here is named, with the reason, and is not counted."""

from __future__ import annotations

from pathlib import Path

from rfops.dispatch.problem import Problem

from . import aiter, vllm
from .calls import PeerCall

OPS = (*aiter.FAMILIES, vllm.OP)


def check(op: str, checkout: Path, device: str) -> None:
    """Raises ValueError for an op without peers, a folder that is no checkout, and a GPU."""
    if op not in OPS:
        raise ValueError(f"--peers: others' kernels are known for {', '.join(OPS)}; not {op}")
    if device != "cpu":
        raise ValueError("--peers: they are timed on the virtual GPU: --device cpu")
    (vllm if op == vllm.OP else aiter).check(checkout)


def best(problem: Problem, checkout: Path) -> PeerCall | None:
    """The quickest of the calls; None where no kernel takes it."""
    op, c = problem.op.name, problem.call
    calls = vllm.calls(problem, checkout) if op == vllm.OP else aiter.calls(op, c, checkout)
    return min(calls, key=lambda call: call.us, default=None)
