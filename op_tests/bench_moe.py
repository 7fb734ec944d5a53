"""fused_moe's Triton route on a GPU beside a loop of torch matmuls over experts and a plain Triton
kernel (grouped GEMM, SiLU by torch, grouped GEMM, sum):

python op_tests/bench_moe.py [--tokens 2048] [--search]
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from rfops.moe import fused_moe as op
from rfops.moe.align_block_size import moe_align_block_size
from rfops.moe.kernels.bf16.triton import FusedMoeTritonConfig
from support.moe_problems import Problem, assert_correct, random_problem, run

WARM, TIMES = 3, 11


@triton.jit
def grouped(
    out,
    a,
    w,
    ids,
    expert_ids,
    num_padded,
    num_ids,
    n,
    k,
    a_div,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """out[id] = a[id // a_div] @ w[e]^T, w [E, n, k]; k a multiple of BK."""
    pid, columns = tl.program_id(0), tl.cdiv(n, BN)
    blocks = tl.num_programs(0) // columns
    first = pid // (GROUP * columns) * GROUP
    rows = tl.minimum(blocks - first, GROUP)
    block = first + pid % (GROUP * columns) % rows
    column = pid % (GROUP * columns) // rows
    if block * BM >= tl.load(num_padded):
        return
    id = tl.load(ids + block * BM + tl.arange(0, BM))
    row = tl.where(id < num_ids, id // a_div, 0).to(tl.int64)
    own = column * BN + tl.arange(0, BN)
    offset = tl.arange(0, BK)
    a_at = a + row[:, None] * k + offset[None, :]
    w_at = w + tl.load(expert_ids + block).to(tl.int64) * n * k
    w_at += own.to(tl.int64)[None, :] * k + offset[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot(tl.load(a_at), tl.load(w_at), total)
        a_at += BK
        w_at += BK
    to = out + id.to(tl.int64)[:, None] * n + own[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(id < num_ids)[:, None])


def plain(p: Problem, tile: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    bm, bn, bk, warps, stages = tile
    (m, d), (e, n, _) = p.x.shape, p.w1.shape
    k = p.topk_ids.shape[1]

    def gemm(a: torch.Tensor, w: torch.Tensor, layout: tuple[torch.Tensor, ...], div: int):
        out = torch.empty(m * k, w.shape[1], dtype=a.dtype, device=a.device)
        grid = (layout[1].numel() * triton.cdiv(w.shape[1], bn),)
        grouped[grid](
            out,
            a,
            w,
            *layout,
            m * k,
            *w.shape[1:],
            div,
            bm,
            bn,
            bk,
            8,
            num_warps=warps,
            num_stages=stages,
        )
        return out

    def run() -> torch.Tensor:
        layout = moe_align_block_size(p.topk_ids, bm, e, None, True)
        both = gemm(p.x, p.w1, layout, k)
        h = torch.nn.functional.silu(both[:, : n // 2]) * both[:, n // 2 :]
        y = gemm(h, p.w2, layout, 1).view(m, k, d)
        return (y * p.topk_weights[:, :, None].to(y.dtype)).sum(1)

    return run


def loop(p: Problem) -> torch.Tensor:
    """As plain models have it."""
    out, i = torch.zeros_like(p.x), p.w2.shape[2]
    for e in range(p.w1.shape[0]):
        token, j = (p.topk_ids == e).nonzero(as_tuple=True)
        both = p.x[token] @ p.w1[e].T
        h = torch.nn.functional.silu(both[:, :i]) * both[:, i:]
        y = (h @ p.w2[e].T) * p.topk_weights[token, j, None].to(out.dtype)
        out.index_add_(0, token, y)
    return out


def time_of(call: Callable[[], object]) -> float:
    """Median milliseconds."""
    times = []
    for turn in range(WARM + TIMES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if turn >= WARM:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def made(m: int, d: int, i: int, e: int, k: int, device: torch.device) -> Problem:
    torch.manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.float16)

    ids = torch.rand(m, e, device=device).argsort(1)[:, :k].int().contiguous()
    weights = torch.rand(m, k, device=device)
    w1, w2 = normal(e, 2 * i, d) / math.sqrt(d), normal(e, d, i) / math.sqrt(i)
    return Problem(normal(m, d), w1, w2, weights, ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument(
        "--search",
        type=int,
        nargs="*",
        action="append",
        default=[],
        metavar="N",
        help="a config of the op: block_m block_n block_k group_m ..",
    )
    options = parser.parse_args()
    device = torch.device("cuda")
    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    for dtype in (torch.float16, torch.bfloat16):
        for is_table in (False, True):
            small = random_problem(70, 264, 136, 6, 3, dtype, 1)
            moved = Problem(
                *(t.to(device) for t in (small.x, small.w1, small.w2, *small.choice)), 1
            )
            assert_correct(run("triton", moved, is_table), small)
    p = made(options.tokens, 7168, 2048, 32, 4, device)
    flops = 6 * options.tokens * 4 * 7168 * 2048

    def row(name: str, call: Callable[[], torch.Tensor], expected: torch.Tensor | None) -> None:
        try:
            actual = call()
            error = (
                0.0 if expected is None else ((actual - expected).norm() / expected.norm()).item()
            )
            ms = time_of(call)
            print(
                f"{name:60} {ms:8.3f} ms {flops / ms / 1e9:7.0f} TFLOP/s  off {error:.1e}",
                flush=True,
            )
        except Exception as problem:
            print(f"{name:60} {type(problem).__name__}: {str(problem)[:90]}", flush=True)

    expected = loop(p)
    row("loop of torch.matmul", lambda: loop(p), None)
    for tile in ((64, 64, 32, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3)):
        row(f"plain Triton {tile}", plain(p, tile), expected)
    weights = p.x, p.w1, p.w2, *p.choice
    row("fused_moe", lambda: op.fused_moe(*weights), expected)
    configs = [FusedMoeTritonConfig(*numbers) for numbers in options.search]
    for config in configs:
        row(str(config)[21:-1], lambda cf=config: op.fused_moe(*weights, config=cf), expected)
    return 0


if __name__ == "__main__":
    sys.exit(main())
