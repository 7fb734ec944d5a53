"""Runs the matrix-core kernel of gemm_mxfp8, whatever the route says."""

from __future__ import annotations

import math

import torch

from rfops.gemm.kernels.mxfp8.mfma import MfmaConfig
from support.calls import prepare
from support.mxfp8_problems import Problem

CPU = torch.device("cpu")  # the virtual GPU, also where there is a real one: its counters, checks
MODEL_M = (1, 2, 4, 8, 16, 32, 64)
# Variants and shapes that take every branch: one wave and many, a workgroup along K and several, a
# last turn of every length, more turns than one, tiles that have no row in x, in w, in both.
VARIANTS = {
    "one wave": (MfmaConfig(1, 1, 1, 1, 1), (7, 16, 640)),
    "last turn of 1": (MfmaConfig(1, 2, 4, 2, 1), (16, 32, 13 * 128)),
    "last turn of 2": (MfmaConfig(2, 1, 4, 1, 1), (32, 32, 6 * 128)),
    "last turn of 3": (MfmaConfig(2, 1, 4, 3, 1), (31, 16, 23 * 128)),
    "waves beyond K": (MfmaConfig(1, 1, 2, 16, 1), (5, 20, 384)),
    "more waves than tiles": (MfmaConfig(4, 1, 2, 16, 1), (64, 48, 4096)),
    "more tiles than waves": (MfmaConfig(3, 3, 2, 2, 1), (48, 96, 1024)),
    "split": (MfmaConfig(1, 2, 2, 2, 3), (9, 64, 2048)),
    "split beyond K": (MfmaConfig(2, 1, 1, 1, 16), (20, 33, 1280)),
    "no row in x": (MfmaConfig(4, 1, 2, 2, 1), (65, 16, 768)),
    "no row in w": (MfmaConfig(1, 4, 2, 2, 1), (3, 81, 768)),
    "no row in either": (MfmaConfig(2, 3, 3, 2, 2), (33, 65, 1920)),
    "K ends in a tile": (MfmaConfig(2, 2, 2, 4, 2), (33, 45, 2080)),
}


def run(
    problem: Problem,
    config: MfmaConfig | None = None,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The result in `out`, or in one full of NaN."""
    (m, k), n, device = problem.x.shape, problem.w.shape[0], problem.x.device
    if out is None:
        out = torch.full((m, n), math.nan, dtype=dtype, device=device)
    scales = {"x_scale": problem.x_scale, "w_scale": problem.w_scale}
    prepare("mfma", device, m, n, k, config, dtype, **scales)(out, *problem.args)
    return out
