"""Bench of the Triton kernels of MX-FP8 on a GPU:

    python op_tests/bench_triton_mxfp8.py [--m 1 16 64] [--tokens 1 64] [--csv FILE]

Each shape is checked, then timed by graph replay through inputs that no cache still holds
(gpu_timing.py). The floor of a row is the larger of its bytes, once each, at the rate of a large
copy, and its products at the rate of a large bf16 matmul, both measured in the same run. Beside it:
torch's bf16 matmul on weights dequantised before, and dequantising then multiplying.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from rfops.triton import launch, tiles
from rfops.triton.tiles import TritonConfig
from support.calls import default_config, prepare, prepare_grouped
from support.gpu_timing import Timing, sets_past_cache, time_graph
from support.triton_mxfp8_cases import (
    E4M3,
    MODEL_SHAPES,
    Side,
    assert_close,
    assert_grouped,
    random_side,
    route,
)

EXPERTS, TOP_K, BLOCK_M = 128, 4, 16
MOE_SHAPES = {"gemm1": (6144, 1536), "gemm2": (768, 6144)}  # K, N
Calls = list[Callable[[], object]]


@dataclass
class Row:
    op: str
    m: int
    n: int
    k: int
    us: float
    spread: float
    tb_per_s: float
    tflops: float
    percent_of_floor: float
    bf16_us: float | None
    dequant_us: float | None
    config: str


@dataclass(frozen=True)
class Ceilings:
    bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measure(cls, device: torch.device) -> Ceilings:
        source = torch.randint(-(1 << 60), 1 << 60, (1 << 28,), device=device)  # 2 GiB
        target = torch.empty_like(source)
        # A kernel, not copy_: inside a graph that becomes a memcpy node, 2.7 TB/s on an H200.
        copy = time_graph([lambda: torch.add(source, 1, out=target)] * 2)
        size = 8192
        a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in "ab")
        matmul = time_graph([lambda: a @ b] * 2)
        return cls(2 * source.numel() * 8 / copy.us * 1e6, 2 * size**3 / matmul.us * 1e6)

    def floor_us(self, num_bytes: int, flops: int) -> float:
        return max(num_bytes / self.bytes_per_s, flops / self.flops_per_s) * 1e6


# ---------------------------------------------------------------- dense


def dense_bytes(m: int, n: int, k: int) -> int:
    return (m + n) * (k + k // 32) + 2 * m * n


@functools.lru_cache(maxsize=1)
def dense_sets(m: int, n: int, k: int) -> list[tuple[Side, Side]]:
    device = torch.device("cuda")
    count = sets_past_cache(dense_bytes(m, n, k), device)
    return [
        (random_side((m, k), device, 2 * i, pad=0), random_side((n, k), device, 2 * i + 1, pad=0))
        for i in range(count)
    ]


def dense_calls(m: int, n: int, k: int, config: TritonConfig | None) -> tuple[Calls, torch.Tensor]:
    """Calls and the output of the first."""
    device = torch.device("cuda")
    run = prepare("triton", device, m, n, k, config)
    calls, outs = [], []
    for x, w in dense_sets(m, n, k):
        out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)
        outs.append(out)
        calls.append(
            functools.partial(
                run, out, x.payload.view(E4M3), w.payload.view(E4M3), x.scale, w.scale
            )
        )
    return calls, outs[0]


def dequantised(side: Side) -> torch.Tensor:
    """bf16; what a model without an MX-FP8 kernel does. Scales here are normal numbers."""
    scale = (side.scale.to(torch.int16) << 7).view(torch.bfloat16)
    values = side.payload.view(E4M3).to(torch.bfloat16).unflatten(-1, (-1, 32))
    return (values * scale.unsqueeze(-1)).flatten(-2)


def bench_dense(m: int, n: int, k: int, ceilings: Ceilings, arch: str) -> Row:
    calls, out = dense_calls(m, n, k, None)
    calls[0]()
    x, w = dense_sets(m, n, k)[0]
    assert_close(out, x, w)
    timing = time_graph(calls)

    plain = [(dequantised(x), dequantised(w)) for x, w in dense_sets(m, n, k)]
    bf16 = time_graph([functools.partial(lambda a, b: a @ b.T, *pair) for pair in plain])
    del plain
    on_the_fly = time_graph(
        [functools.partial(lambda x, w: dequantised(x) @ dequantised(w).T, *pair)
         for pair in dense_sets(m, n, k)[:8]]
    )  # fmt: skip
    config = default_config("triton", m, n, k, arch)
    work = dense_bytes(m, n, k), 2 * m * n * k
    return row("dense", m, n, k, timing, ceilings, work, (bf16.us, on_the_fly.us), config)


def row(
    op: str, m: int, n: int, k: int, timing: Timing, ceilings: Ceilings, work: tuple[int, int],
    others: tuple[float | None, float | None], config: TritonConfig,
) -> Row:  # fmt: skip
    num_bytes, flops = work
    return Row(
        op, m, n, k, timing.us, timing.spread, num_bytes / timing.us / 1e6, flops / timing.us / 1e6,
        100 * ceilings.floor_us(*work) / timing.us, *others, text(config),
    )  # fmt: skip


def text(config: TritonConfig) -> str:
    tile = f"{config.method} {config.block_m}x{config.block_n}x{config.block_k}"
    return f"{tile} w{config.warps} s{config.stages} k/{config.splits} g{config.group_m}"


# ---------------------------------------------------------------- grouped


@functools.lru_cache(maxsize=1)
def moe_weights(n: int, k: int) -> Side:
    return random_side((EXPERTS, n, k), torch.device("cuda"), 99, pad=0)


def moe_experts(tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    picks = (torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(tokens))
    return [int(expert) for pick in picks for expert in pick]


def moe_bytes(name: str, tokens: int, seed: int = 0) -> int:
    k, n = MOE_SHAPES[name]
    experts = moe_experts(tokens, seed)
    rows = tokens if name == "gemm1" else tokens * TOP_K
    return (len(set(experts)) * n + rows) * (k + k // 32) + 2 * len(experts) * n


@dataclass
class MoeCase:
    a: Side
    experts: list[int]
    a_div: int
    weights: torch.Tensor | None
    out: torch.Tensor


def moe_calls(
    name: str, tokens: int, config: TritonConfig | None, block_m: int = BLOCK_M
) -> tuple[Calls, list[MoeCase]]:
    """Calls that route to other experts each time."""
    device, (k, n) = torch.device("cuda"), MOE_SHAPES[name]
    a_div = TOP_K if name == "gemm1" else 1
    valid = tokens * TOP_K
    weights = None if name == "gemm1" else torch.rand(valid, device=device)
    run = prepare_grouped(
        "triton", device, valid, n, k, EXPERTS, TOP_K, a_div, name != "gemm1", block_m,
        config=config,
    )  # fmt: skip
    w, calls, cases = moe_weights(n, k), [], []
    for seed in range(sets_past_cache(moe_bytes(name, tokens), device)):
        experts = moe_experts(tokens, seed)
        routing = route(experts, block_m, worst_case=EXPERTS).to(device)
        a = random_side((valid // a_div, k), device, seed, pad=0)
        out = torch.full((valid + 2, n + 8), float("nan"), dtype=torch.bfloat16, device=device)
        case = MoeCase(a, experts, a_div, weights, out[1:-1, :n])
        cases.append(case)
        inputs = (a.payload.view(E4M3), a.scale, w.payload.view(E4M3), w.scale)
        order = (routing.sorted_ids, routing.expert_ids, routing.num_padded)
        calls.append(functools.partial(run, case.out, *inputs, *order, weights))
    return calls, cases


def bench_moe(name: str, tokens: int, ceilings: Ceilings, arch: str) -> Row:
    k, n = MOE_SHAPES[name]
    calls, cases = moe_calls(name, tokens, None)
    calls[0]()
    case = cases[0]
    assert_grouped(case.out, case.a, moe_weights(n, k), case.experts, case.a_div, case.weights)
    timing = time_graph(calls)
    num_bytes = sum(moe_bytes(name, tokens, seed) for seed in range(len(cases))) // len(cases)
    work = num_bytes, 2 * tokens * TOP_K * n * k
    config = tiles.find("grouped", arch, BLOCK_M, n, k)
    return row(f"moe {name}", tokens, n, k, timing, ceilings, work, (None, None), config)


# ---------------------------------------------------------------- the run


def header() -> str:
    triton = importlib.import_module("triton").__version__
    version = importlib.import_module("rfops").__version__
    name = torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, triton {triton}, rfops {version}"


def show(row: Row) -> str:
    def number(value: float | None) -> str:
        return f"{value:8.2f}" if value is not None else " " * 8

    spread = 100 * row.spread
    return (
        f"{row.op:9s} {row.m:5d} {row.n:5d} {row.k:5d} | {row.us:8.2f} +-{spread:3.0f}% | "
        f"{row.tb_per_s:5.2f} {row.tflops:6.1f} {row.percent_of_floor:4.0f}% | "
        f"{number(row.bf16_us)} {number(row.dequant_us)} | {row.config}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--m", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64, 128, 1024, 4096]
    )
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_triton_mxfp8: needs a GPU; `rfops profile` counts on the virtual GPU")

    device = torch.device("cuda")
    ceilings, arch = Ceilings.measure(device), launch.arch_of(device)
    print(f"# {header()}")
    print(f"# copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, ", end="")
    print(f"bf16 matmul {ceilings.flops_per_s / 1e12:.0f} TFLOPS")
    print(
        "op            m     n     k |       us        |  TB/s TFLOPS floor |  bf16 us   dequant |"
    )
    rows = []
    for k, n in MODEL_SHAPES:
        for m in options.m:
            rows.append(bench_dense(m, n, k, ceilings, arch))
            print(show(rows[-1]), flush=True)
    for name in MOE_SHAPES:
        for tokens in options.tokens:
            rows.append(bench_moe(name, tokens, ceilings, arch))
            print(show(rows[-1]), flush=True)
    if options.csv and rows:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
