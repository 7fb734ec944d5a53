"""One scale for a whole tensor, expanded without memory of its own (all strides 0): every GEMM with
scales, at the extremes of M, N and K, for x, for w and for both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import rfops
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Problem, call_on

CPU = torch.device("cpu")
GEMMS = (
    "gemm_a8w8_blockscale",
    "gemm_a8wfp4",
    "gemm_a16wfp4",
    "gemm_afp4wfp4",
    "batched_gemm_a16w8_blockscale",
    "gemm_mxfp8",
)
# One of each; ragged ones beside multiples of tiles; the longest K; more rows than a tile has.
SIZES = (
    (1, 1, 128),
    (1, 16, 128),
    (2, 129, 256),
    (16, 128, 7168),
    (17, 144, 256),
    (64, 48, 1024),
    (65, 257, 384),
    (300, 130, 256),
)


@pytest.fixture(params=["gfx950", pytest.param("gfx942", marks=pytest.mark.sweep)])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def problems(op_name: str, sizes: tuple[int, int, int]) -> Iterator[tuple[str, Problem]]:
    op = ops()[op_name]
    m, n, k = sizes
    given = {"M": m, "N": n, "K": k, **({"B": 2} if "B" in op.declaration.sizes else {})}
    names = [arg.name for arg in op.declaration.inputs]
    scales = [name for name in names if name.endswith("_scale")]
    choices = [(name,) for name in scales] + ([tuple(scales)] if len(scales) > 1 else [])
    for selected in choices:
        problem = Problem(op, call_on(op, given, CPU))
        for name in selected:
            offset = names.index(name)
            scale = problem.inputs[offset]
            one = scale.flatten()[:1].clone()
            problem.inputs[offset] = one.as_strided(scale.shape, (0,) * scale.dim())
        yield ", ".join(selected), problem


@pytest.mark.thin(5)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", GEMMS)
def test_one_scale(name: str, sizes: tuple[int, int, int], arch: str) -> None:
    for selected, problem in problems(name, sizes):
        problem.op.plans.clear()
        if name == "gemm_mxfp8":
            with pytest.raises(ValueError, match=rf"^{name}: \w+_scale must be contiguous"):
                problem.op.check((*problem.inputs, None, None))
            continue
        with rfops.vgpu.check() as c:
            results = problem.launch()
        assert not c.findings, f"{selected}: {c.findings[0]}"
        problem.check(results)
