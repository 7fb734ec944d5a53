"""amd-mixture-of-experts (2025, MI300X): a MoE layer in fp16, with shared experts.

p = softmax(x @ router^T), top k of it without renormalisation; of equal ones the lowest id
out = sum_k p_k * (silu(x Wg_k) * (x Wu_k)) Wd_k + the shared experts' of weight 1
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import silu

from rfops.challenge.problem import Case, Problem, generator, smaller

NAMES = (
    "dhidden",
    "dexpert",
    "nroutedexperts",
    "nsharedexperts",
    "nexpertspertoken",
    "bs",
    "seqlen",
    "seed",
)


def _cases(*sizes: tuple[int, ...]) -> tuple[Case, ...]:
    return tuple(dict(zip(NAMES, (7168, 2048, *size), strict=True)) for size in sizes)


def generate(case: Case) -> Any:
    """Return the official input of a case, drawn with its seed."""
    d, i, experts = case["dhidden"], case["dexpert"], case["nroutedexperts"]
    gen = generator(case)

    def weight(*shape: int, fan: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).half() / math.sqrt(fan)

    x = torch.randn(case["bs"], case["seqlen"], d, generator=gen).half()
    weights = {"router.weight": weight(experts, d, fan=d)}
    for name, width in [(f"experts.{e}", i) for e in range(experts)] + [
        ("shared_experts", i * case["nsharedexperts"])
    ]:
        weights[f"{name}.0.weight"] = weight(d, width, fan=width)
        weights[f"{name}.1.weight"] = weight(d, width, fan=width)
        weights[f"{name}.2.weight"] = weight(width, d, fan=d)
    config = {
        "d_hidden": d,
        "d_expert": i,
        "n_routed_experts": experts,
        "n_shared_experts": case["nsharedexperts"],
        "n_experts_per_token": case["nexpertspertoken"],
        "batch_size": case["bs"],
        "seq_len": case["seqlen"],
    }
    return x, weights, config


def route(x: torch.Tensor, router: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids, rounded to fp16 where the official reference does."""
    p = (x.float() @ router.float().T).half().float().softmax(-1).half()
    p, ids = p.sort(dim=-1, descending=True, stable=True)
    return p[:, :top_k], ids[:, :top_k]


def layer(data: Any, dtype: torch.dtype) -> torch.Tensor:
    """With products of fp32 rounded to dtype."""
    x, weights, config = data
    tokens = x.reshape(-1, config["d_hidden"])
    p, ids = route(tokens, weights["router.weight"], config["n_experts_per_token"])

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float()).to(dtype)

    def expert(name: str, rows: torch.Tensor) -> torch.Tensor:
        gate, up, down = (weights[f"{name}.{matrix_idx}.weight"] for matrix_idx in range(3))
        return mm(silu(mm(rows, gate)) * mm(rows, up), down)

    routed = torch.zeros(tokens.shape, dtype=dtype)
    for e in range(config["n_routed_experts"]):
        token, top_k_idx = (ids == e).nonzero(as_tuple=True)
        if len(token):
            routed[token] += expert(f"experts.{e}", tokens[token]) * p[token, top_k_idx, None].to(
                dtype
            )
    return (routed + expert("shared_experts", tokens)).reshape(x.shape)


PROBLEM = Problem(
    name="amd-mixture-of-experts",
    arch="gfx942",
    tests=_cases((4, 1, 4, 1, 512, 9371), (8, 1, 4, 2, 512, 2291), (8, 1, 4, 1, 8192, 81934)),
    benchmarks=_cases((32, 1, 4, 1, 2048, 9371), (32, 1, 4, 1, 8192, 1212)),
    generate=generate,
    reference=lambda data: layer(data, torch.float16),
    shrink=smaller(dhidden=256, dexpert=128, nroutedexperts=8, bs=1, seqlen=32),
    rtol=1e-2,
    atol=1e-2,
    truths=lambda data, _: {"the layer": layer(data, torch.float32)},
    bound=5e-3,  # roundings to fp16 in five places, 2^-11 each; a wrong expert is 0.1 and more
)
