"""The Triton MX-FP8 kernels at full size, beyond 2 GiB and in a graph: on a real GPU only."""

from __future__ import annotations

import math

import pytest
import torch

from rfops.triton.tiles import TritonConfig
from support.triton_mxfp8_cases import (
    MODEL_SHAPES,
    Side,
    assert_close,
    assert_equal_within,
    assert_grouped,
    dense,
    grouped,
    random_side,
    route,
)

if not torch.cuda.is_available():
    pytest.skip(
        "no GPU, and hours on the virtual one; smaller sizes: test_triton_mxfp8.py",
        allow_module_level=True,
    )


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 32, 64, 128, 1000])
@pytest.mark.parametrize(("k", "n"), MODEL_SHAPES)
def test_model_shapes(k: int, n: int, m: int, device: torch.device) -> None:
    x, w = random_side((m, k), device, 27, pad=0), random_side((n, k), device, 28, pad=0)
    out = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=device)
    assert_close(dense(x, w, out=out), x, w)


@pytest.mark.parametrize("tokens", [1, 7, 64, 300])
@pytest.mark.parametrize("gemm", [1, 2])
def test_moe_shapes(gemm: int, tokens: int, device: torch.device) -> None:
    """E = 128 and top 4: gemm1 reads a token's row four times, gemm2 has weights."""
    n, k = ((1536, 6144), (6144, 768))[gemm - 1]
    generator = torch.Generator().manual_seed(tokens)
    experts = [int(e) for _ in range(tokens) for e in torch.randperm(128, generator=generator)[:4]]
    a_div = 4 if gemm == 1 else 1
    a = random_side((tokens * 4 // a_div, k), device, 29, pad=0)
    w = random_side((128, n, k), device, 30, pad=0)
    weights = torch.rand(tokens * 4, device=device) if gemm == 2 else None
    out = grouped(a, w, route(experts, 16 if tokens < 300 else 64), a_div, weights)
    assert_grouped(out, a, w, experts, a_div, weights)


def test_dense_weights_beyond_2_gib(device: torch.device) -> None:
    n, k = 300_007, 8192  # 2.3 GiB
    x, w = random_side((3, k), device, 31, pad=0), random_side((n, k), device, 32, pad=0)
    out = dense(x, w)
    for start in (0, 262_144 - 100, n - 5000):
        rows = slice(start, start + 5000)
        assert_equal_within(out[:, rows], *_products(x, Side(w.payload[rows], w.scale[rows])), k)


def _products(x: Side, w: Side) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exact @ w.exact.T, x.exact.abs() @ w.exact.abs().T


@pytest.mark.parametrize(("n", "k"), [(64, 8192), (4096, 128)])
def test_rows_beyond_2_gib(n: int, k: int, device: torch.device) -> None:
    """x, then out, larger than 2 GiB."""
    m = 300_007
    x, w = random_side((m, k), device, 33, pad=0), random_side((n, k), device, 34, pad=0)
    out = torch.full((m, n), math.nan, dtype=torch.bfloat16, device=device)
    dense(x, w, out=out)
    assert not out.isnan().any()
    rows = slice(m - 500, m)
    assert_equal_within(out[rows], *_products(Side(x.payload[rows], x.scale[rows]), w), k)


@pytest.mark.parametrize(
    "config",
    [TritonConfig("blocks", 16, 32, 256, splits=4), TritonConfig("expand", 64, 64, 64)],
)
def test_captures_into_a_graph(config: TritonConfig, device: torch.device) -> None:
    """With workspaces: they come from the graph's pool."""
    x, w = random_side((4, 2048), device, 35), random_side((96, 2048), device, 36)
    out = dense(x, w, config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dense(x, w, config, out=out)
    x.payload.copy_(random_side((4, 2048), device, 37).payload)
    out.fill_(math.nan)
    graph.replay()
    assert_close(out, x, w)
