"""Mixtures of experts of large language models: of what shapes their experts are drawn to tune by.

Hidden size, size of an expert, experts, those of a token and shared ones are the models' own
config.json; a GPU has an expert whole or its share of 2, 4 or 8.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any

from rfops.gemm.layers import TP_SIZES

# D, I, experts that are routed, K, shared experts that serve as one more.
MODELS = {
    "DeepSeek-V3": (7168, 2048, 256, 8, 1),
    "Kimi-K2": (7168, 2048, 384, 8, 1),
    "Qwen3 30B": (2048, 768, 128, 8, 0),
    "Qwen3 235B": (4096, 1536, 128, 8, 0),
    "Qwen3-Coder 480B": (6144, 2560, 160, 8, 0),
    "GLM 4.5": (5120, 1536, 160, 8, 1),
    "GLM 4.5 Air": (4096, 1408, 128, 8, 1),
    "GPT-OSS 120B": (2880, 2880, 128, 4, 0),
    "MiniMax-M2": (3072, 1536, 256, 8, 0),
    "Mixtral 8x7B": (4096, 14336, 8, 2, 0),
    "Mixtral 8x22B": (6144, 16384, 8, 2, 0),
    "AMD's challenge of 2025": (7168, 2048, 32, 4, 1),
}
FEW_TOKENS, MANY_TOKENS = (1, 512), (512, 4096)  # tokens; one call of eight has many
_ROWS = 16  # that an expert multiplies at least
MAX_WORK = 1e11  # multiplications of all experts that some token chooses: more tell nothing else


@functools.cache
def shapes(multiple: int) -> tuple[tuple[int, ...], ...]:
    """(D, I, E, K, R) of one GPU, D and I multiples of that."""
    layer_shapes = {
        (d, i // tp_size, routed + gpu_shared, k, routed)
        for d, i, routed, k, num_shared in MODELS.values()
        for tp_size in TP_SIZES
        for gpu_shared in {0, num_shared}
    }
    return tuple(
        sorted(s for s in layer_shapes if s[0] % multiple == 0 == s[1] % multiple and s[1])
    )


def draw(
    rng: random.Random, multiple: int, most_experts: int = 512, most_work: float = MAX_WORK
) -> dict[str, Any]:
    """M, D, I, E, K, R of a random layer of at most so many experts: the logarithm of M uniform, of
    few tokens or of many."""
    layers = [shape for shape in shapes(multiple) if shape[2] <= most_experts]
    while True:
        low, high = MANY_TOKENS if rng.random() < 1 / 8 else FEW_TOKENS
        m = round(math.exp(rng.uniform(math.log(low), math.log(high))))
        d, i, experts, k, routed = rng.choice(layers)
        hit = chosen_experts(m, k, routed) + experts - routed
        if max(m * (k + experts - routed), _ROWS * hit) * 3 * d * i <= most_work:
            return {"M": m, "D": d, "I": i, "E": experts, "K": k, "R": routed}


def chosen_experts(tokens: int, k: int, routed: int) -> float:
    """Of the routed experts, the expected number that some token chooses, under uniform routing."""
    return routed * (1 - max(1 - k / routed, 0.0) ** tokens) if routed else 0.0
