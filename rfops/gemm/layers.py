"""Linear layers of large language models, (N, K) for one GPU: by their shapes GEMMs are drawn to
tune by, and some are benched and tuned.

Hidden size, columns of q, of k and v together, and of the feed-forward part are the models' own
config.json; a GPU has them whole or its share of 2, 4 or 8.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any

TP_SIZES = 1, 2, 4, 8  # of tensor parallelism
# Hidden size, q, k and v, feed-forward.
DENSE = {
    "Llama 3.1 8B": (4096, 4096, 2048, 14336),
    "Llama 3.1 70B": (8192, 8192, 2048, 28672),
    "Llama 3.1 405B": (16384, 16384, 2048, 53248),
    "Qwen3 8B": (4096, 4096, 2048, 12288),
    "Qwen3 14B": (5120, 5120, 2048, 17408),
    "Qwen3 32B": (5120, 8192, 2048, 25600),
    "Qwen3 235B": (4096, 8192, 1024, 12288),
    "GLM 4.5": (5120, 12288, 2048, 12288),
    "Mistral Large 2": (12288, 12288, 2048, 28672),
    "GPT-OSS 120B": (2880, 4096, 1024, 2880),
}
# (N, K) whole, and which of the two is shared out. DeepSeek-V3: q_a and kv_a in one, q_b, o_proj,
# and gate_up and down of the dense layers.
DEEPSEEK_V3 = (
    (2112, 7168, ""),
    (24576, 1536, "N"),
    (7168, 16384, "K"),
    (36864, 7168, "N"),
    (7168, 18432, "K"),
)
# And Kimi-K2's.
LATENT = (
    *DEEPSEEK_V3,
    (576, 7168, ""),
    (12288, 1536, "N"),
    (4096, 7168, "N"),
    (7168, 2048, "K"),
    (32768, 512, "N"),
)
_MIN_N, _MULTIPLE = 64, 16
# Layers of other sizes, one call of six: small ones, whose time is launches and first loads.
_SMALL_CALLS = 1 / 6
_SMALL_N, _SMALL_K = (_MIN_N, 4096, _MULTIPLE), (128, 3072, 128)  # from, to, multiples of
# Multiplications and elements of w: more tell nothing else, and take timing mode seconds a variant.
_MAX_WORK, _MAX_W = 2e10, 2e8


def part_of(layer: tuple[int, int, str], tp: int = 1) -> tuple[int, int]:
    """(N, K) of one of so many GPUs."""
    n, k, split_dim = layer
    return n // (tp if split_dim == "N" else 1), k // (tp if split_dim == "K" else 1)


_Q_KV_A, _Q_B, _O, *_DENSE = DEEPSEEK_V3
DEEPSEEK_V3_ATTENTION = (
    part_of(_Q_KV_A),
    part_of(_Q_B),
    part_of(_Q_B, 8),
    part_of(_O),
    part_of(_O, 8),
)
DEEPSEEK_V3_DENSE = tuple([part_of(layer) for layer in _DENSE])
DEEPSEEK_V3_DENSE_TP8 = tuple([part_of(layer, 8) for layer in _DENSE])


@functools.cache
def shapes(multiple: int) -> tuple[tuple[int, int], ...]:
    """(N, K) of one GPU, K a multiple of that."""
    pairs: set[tuple[int, int]] = set()
    for tp in TP_SIZES:
        for hidden, q, kv, intermediate in DENSE.values():
            pairs |= {((q + kv) // tp, hidden), (hidden, q // tp)}
            pairs |= {(2 * intermediate // tp, hidden), (hidden, intermediate // tp)}
        pairs |= {part_of(layer, tp) for layer in LATENT}
    return tuple(
        sorted(
            (n, k)
            for n, k in pairs
            if n >= _MIN_N and n % _MULTIPLE == 0 and k >= multiple and k % multiple == 0
        )
    )


def _small(rng: random.Random) -> tuple[int, int]:
    """(N, K) of a small layer, the logarithms uniform."""
    n, k = (
        round(math.exp(rng.uniform(math.log(low), math.log(high))) / step) * step
        for low, high, step in (_SMALL_N, _SMALL_K)
    )
    return n, k


def draw(rng: random.Random, multiple: int, most_m: int = 4096) -> dict[str, Any]:
    """M, N, K of a random layer, of a model or small: M from 1 on, its logarithm uniform; one in
    four from 17 to 1,024 and no power of two, where kernels meet."""
    while True:
        low, high = (17, min(most_m, 1024)) if rng.random() < 0.25 else (1, most_m)
        m = round(math.exp(rng.uniform(math.log(low), math.log(high))))
        n, k = _small(rng) if rng.random() < _SMALL_CALLS else rng.choice(shapes(multiple))
        if m * n * k <= _MAX_WORK and n * k <= _MAX_W and not (low > 1 and m & (m - 1) == 0):
            return {"M": m, "N": n, "K": k}
