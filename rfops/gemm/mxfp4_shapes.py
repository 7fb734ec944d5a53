"""Shapes of MXFP4 GEMMs for `rfops bench` and `rfops tune`; those of models are of one GPU."""

from __future__ import annotations

from rfops.dispatch.problem import grid

from .layers import DEEPSEEK_V3_ATTENTION, DEEPSEEK_V3_DENSE_TP8

# (M, N, K) of the challenge of 2026: what it times, and what it checks.
CHALLENGE = (
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
)
TESTS = ((8, 2112, 7168), (16, 3072, 1536), (64, 3072, 1536), (256, 2880, 512))
# (N, K) of linear layers.
LAYERS = {
    "deepseek_v3": (*DEEPSEEK_V3_ATTENTION, *DEEPSEEK_V3_DENSE_TP8),
    # qkv, o_proj, gate_up, down of 70B, whole, then of 405B split over 8
    "llama": (
        (10240, 8192),
        (8192, 8192),
        (57344, 8192),
        (8192, 28672),
        (2304, 16384),
        (16384, 2048),
        (13312, 16384),
        (16384, 6656),
    ),
}
DECODE_M = (1, 4, 16, 32, 64, 128, 256)
LARGE = ((8192, 8192, 8192), (16384, 8192, 8192), (16384, 16384, 16384))

_MODELS = {name: grid("N K", rows, M=(*DECODE_M, 1024)) for name, rows in LAYERS.items()}
_LAYERS = [pair for rows in LAYERS.values() for pair in rows]

A16WFP4 = {
    "published": grid("M N K", CHALLENGE),
    "tests": grid("M N K", TESTS),
    **_MODELS,
}
A8WFP4 = {"challenge": grid("M N K", (*CHALLENGE, *TESTS)), **_MODELS}
AFP4WFP4 = {
    "published": grid("N K", _LAYERS, M=DECODE_M),
    "large": grid("M N K", LARGE),
    "challenge": grid("M N K", (*CHALLENGE, *TESTS)),
    **_MODELS,
}
