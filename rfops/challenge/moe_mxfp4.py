"""amd-moe-mxfp4 (2026, MI355X): a MoE layer whose weights and activations are MXFP4.

    h[t, e] = mxfp4(silu(g) * u), [g, u] = mxfp4(x[t]) @ mxfp4(w1[e])^T
    out[t] = sum_j topk_weights[t, j] * h[t, e_j] @ mxfp4(w2[e_j])^T

The last columns of topk_ids are the shared experts, of weight 1. Sizes are padded to 256.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import silu

from rfops.challenge.data import tensors_of
from rfops.challenge.formats import from_mxfp4, mxfp4
from rfops.challenge.problem import Case, Problem, generator, smaller
from rfops.quantization.shuffle import shuffle_scale, shuffle_weight

PAD = 256
NAMES = ("dhidden", "dexpert", "nroutedexperts", "nexpertspertoken", "nsharedexperts", "bs", "seed")


def _cases(*sizes: tuple[int, int, int, int, int, int]) -> tuple[Case, ...]:
    rows = [(d, i, e, k, 1, bs, seed) for d, i, e, k, bs, seed in sizes]
    return tuple(dict(zip(NAMES, row, strict=True)) for row in rows)


def generate(case: Case) -> Any:
    """Return the official input of a case, drawn with its seed."""
    gen, bs, routed = generator(case), case["bs"], case["nroutedexperts"]
    experts = routed + case["nsharedexperts"]
    d, i = (-(-case[name] // PAD) * PAD for name in ("dhidden", "dexpert"))

    def weights(rows: int, columns: int, fan: int) -> tuple[torch.Tensor, torch.Tensor]:
        experts_ = [
            mxfp4(torch.randn(rows, columns, generator=gen).bfloat16() / math.sqrt(fan))
            for _ in range(experts)
        ]
        return torch.stack([p for p, _ in experts_]), torch.cat([s for _, s in experts_])

    x = torch.randn(bs, case["dhidden"], generator=gen).bfloat16()
    router = torch.randn(routed, case["dhidden"], generator=gen).bfloat16()
    scores = (x @ (router / math.sqrt(case["dhidden"])).T).softmax(-1)
    p, ids = torch.topk(scores, case["nexpertspertoken"])
    shared_ids = torch.arange(routed, experts).expand(bs, -1)
    topk_weights = torch.cat([p.float(), torch.ones(shared_ids.shape)], -1)
    topk_ids = torch.cat([ids, shared_ids], -1).int()
    w1, s1 = weights(2 * i, d, case["dhidden"])
    w2, s2 = weights(d, i, case["dexpert"])
    config = {
        "d_hidden": case["dhidden"],
        "d_expert": case["dexpert"],
        "d_hidden_pad": d,
        "d_expert_pad": i,
        "n_routed_experts": routed,
        "n_shared_experts": case["nsharedexperts"],
        "n_experts_per_token": case["nexpertspertoken"],
        "total_top_k": topk_ids.shape[1],
        "bs": bs,
    }
    shuffled = [shuffle_weight(t).data for t in (w1, w2)]
    scales = [shuffle_scale(t).data for t in (s1, s2)]
    return (x, w1, w2, s1, s2, *shuffled, *scales, topk_weights, topk_ids, config)


def layer(data: Any) -> torch.Tensor:
    """In fp32 but for the two quantisations of activations; the second is of bf16 values."""
    x, w1, w2, s1, s2, *_, topk_weights, topk_ids, config = data
    d, width = config["d_hidden"], config["d_expert"]
    x = torch.nn.functional.pad(x, (0, config["d_hidden_pad"] - d))
    quantised = from_mxfp4(*mxfp4(x))
    out = torch.zeros(x.shape[0], d)
    for e in topk_ids.unique().tolist():
        token, top_k_idx = (topk_ids == e).nonzero(as_tuple=True)
        gate_up = from_mxfp4(w1[e], s1[e * w1.shape[1] : (e + 1) * w1.shape[1]])
        down = from_mxfp4(w2[e], s2[e * w2.shape[1] : (e + 1) * w2.shape[1]])
        gate, up = (quantised[token] @ gate_up.T).chunk(2, -1)
        h = silu(gate) * up
        h[:, width:] = 0  # what pads the experts' width is no result's
        rows = from_mxfp4(*mxfp4(h.bfloat16())) @ down.T
        out[token] += topk_weights[token, top_k_idx, None] * rows[:, :d]
    return out


PROBLEM = Problem(
    name="amd-moe-mxfp4",
    arch="gfx950",
    tests=_cases(
        (4096, 1024, 256, 8, 8, 9371),
        (7168, 2048, 32, 8, 32, 2291),
        (4096, 1536, 64, 6, 128, 81934),
    ),
    benchmarks=_cases(
        (7168, 256, 256, 8, 16, 9371),
        (7168, 256, 256, 8, 128, 2291),
        (7168, 256, 256, 8, 512, 81934),
        (7168, 512, 32, 8, 16, 2291),
        (7168, 512, 32, 8, 128, 81934),
        (7168, 512, 32, 8, 512, 81934),
        (7168, 2048, 32, 8, 512, 81934),
    ),
    generate=generate,
    reference=lambda data: layer(data).bfloat16(),
    shrink=smaller(dhidden=512, dexpert=256, nroutedexperts=8, nexpertspertoken=4, bs=16),
    rtol=5e-2,
    atol=5e-2,
    truths=lambda _, expected: {"the layer": tensors_of(expected)[0]},
    bound=5e-2,  # aiter's second quantisation may round scales up: 3e-2; a wrong expert is 0.3
    cold=True,
    shuffled=(5, 6),
)
