"""mla_layer_decode's Triton route at full size and in a graph: on a real GPU only."""

from __future__ import annotations

import pytest
import torch

from rfops.attention.mla_layer_decode import mla_layer_decode
from support.layer_problems import Problem, assert_correct, problem

if not torch.cuda.is_available():
    pytest.skip(
        "no GPU, and long on the virtual one; smaller sizes: test_mla_layer_decode.py",
        allow_module_level=True,
    )


def test_the_challenges_size() -> None:
    """All heads, every product's full size; of 17 sequences, beyond position 4096."""
    lens = [4096 + 61 * b for b in range(16)] + [0]
    p = problem(lens, 128, dim=7168, rank=1536, rows=8192, device="cuda")
    cache = p.cache.clone()
    assert_correct((mla_layer_decode(p.x, cache, p.positions, *p.weights), cache), p)


@pytest.mark.parametrize("rows", [1, 40])
def test_steps_by_a_graph(rows: int) -> None:
    """Captured once; a replay takes the positions, tokens and cache of its time."""
    p = problem([20 + b for b in range(rows)], 16, dim=512, rank=256, rows=96, device="cuda")
    x, cache, positions = p.x.clone(), p.cache.clone(), p.positions
    out = torch.empty_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        mla_layer_decode(x, cache, positions, *p.weights, out=out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mla_layer_decode(x, cache, positions, *p.weights, out=out)
    cache.copy_(p.cache)
    for step in range(3):
        now = Problem(x.clone(), cache.clone(), p.weights, [n + step for n in p.lens])
        positions.copy_(now.positions)
        out.fill_(float("nan"))
        graph.replay()
        assert_correct((out, cache), now)
        x.copy_(x.flip(0) * (-1) ** step)
