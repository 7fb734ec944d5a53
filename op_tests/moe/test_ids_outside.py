"""Ids of no expert on every kernel of every op that takes ids: as -1, and a row of them alone is 0.
Those of 64 bits lie beyond 32 too, where a narrowed one would name an expert."""

from __future__ import annotations

import math

import pytest
import torch

from rfops import compat
from rfops.dispatch.problem import Problem
from rfops.moe import (
    align_block_size,
    fused_moe,
    fused_moe_fp8,
    fused_moe_mxfp4,
    fused_moe_mxfp8,
    fused_moe_tables,
)
from support.devices import ARCHS, device_of

EXPERTS = 4
MODULES = fused_moe, fused_moe_fp8, fused_moe_tables, fused_moe_mxfp4, fused_moe_mxfp8
OPS = {module.OP.name: module.OP for module in MODULES}
QUANTISED = [name for name in OPS if name not in ("fused_moe", "fused_moe_tables")]
BEYOND = {  # rows 2 and 3 have one expert each; of 64 bits most would be one in 32
    torch.int32: [[-1, EXPERTS], [2**31 - 1, -(2**31)], [EXPERTS + 1, 1], [2, -7]],
    torch.int64: [[2**32 + 1, -1], [-(2**32) + 2, 2**40], [2**32, 1], [2, 2**63 - 1]],
}
KERNELS = [(name, kernel) for name, op in OPS.items() for kernel in op.kernels]


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    device_of(request.param, monkeypatch)
    return str(request.param)


def _outside(ids: torch.Tensor, experts: int) -> torch.Tensor:
    return (ids < 0) | (ids >= experts)


@pytest.mark.thin(5)
@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("dtype", BEYOND, ids=["i32", "i64"])
@pytest.mark.parametrize(("name", "kernel"), KERNELS, ids=map(" ".join, KERNELS))
def test_ids_outside_add_nothing(
    name: str, kernel: str, dtype: torch.dtype, shared: int, arch: str
) -> None:
    """Weights of theirs are NaN. A shared expert's own id is outside too."""
    op = OPS[name]
    sizes = {"M": 4, "D": 256, "I": 256, "E": EXPERTS, "K": 2, "R": EXPERTS - shared}
    half = {} if op.name in QUANTISED else {"x_dtype": torch.float16}  # whose builds others need
    c = op.call_of(arch, **sizes, topk_ids_dtype=dtype, **half)
    own = op.kernels[kernel]
    if reason := own.unsupported_reason(c):
        assert kernel != "torch" and "no kernel for" in reason, reason
        return
    problem = Problem(op, c)
    names = [arg.name for arg in op.declaration.inputs]
    offset, weights_at = names.index("topk_ids"), names.index("topk_weights")
    ids = torch.tensor(BEYOND[dtype], dtype=dtype)
    weights, actual = problem.inputs[weights_at], []
    config = own.default(c) if own.Config else None
    for given in (ids, ids.masked_fill(_outside(ids, EXPERTS - shared), -1)):
        problem.inputs[offset] = given
        problem.inputs[weights_at] = weights.masked_fill(given != ids, math.nan)
        problem.renew()
        problem.launch_by(problem.prepare(kernel, config))()
        actual.append(problem.results[0].clone())
    assert torch.equal(*actual), f"row {int((actual[0] != actual[1]).any(1).nonzero()[0])} differs"
    assert actual[0].isfinite().all()
    is_zero = (actual[0] == 0).all(1)
    assert is_zero.tolist() == [not shared] * 2 + [False] * 2


@pytest.mark.parametrize("kernel", align_block_size.OP.kernels)
@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("dtype", BEYOND, ids=["i32", "i64"])
def test_rows_outside_are_in_no_block(
    kernel: str, dtype: torch.dtype, is_mapped: bool, arch: str
) -> None:
    op, ids = align_block_size.OP, torch.tensor(BEYOND[dtype], dtype=dtype)
    expert_map = torch.tensor([1, 0, 3, 2], dtype=torch.int32) if is_mapped else None
    given = []
    for item in (ids, ids.masked_fill(_outside(ids, EXPERTS), -1)):
        c, _ = op.check((item, 2, EXPERTS, expert_map, False, True))
        problem_of = op.make_results(c)
        results = align_block_size.Aligned(*(r.fill_(85) for r in problem_of))
        op.prepare(kernel, c, None)(results, item, expert_map)
        given.append(results)
    for a, b in zip(*given, strict=True):
        assert torch.equal(a, b)
    expected = align_block_size.moe_align_block_size_ref(ids, 2, EXPERTS, expert_map, False, True)
    for a, b in zip(given[0], expected, strict=True):
        assert torch.equal(a, b)
    assert int(given[0].num_tokens_post_padded) == 2 * len({1, 2} & set(ids[2:].flatten().tolist()))


@pytest.mark.parametrize("dtype", BEYOND, ids=["i32", "i64"])
def test_sorting_and_experts_of_aiter(dtype: torch.dtype) -> None:
    """moe_sorting and fused_moe of rfops.compat, with a mask of experts too."""
    ids = torch.tensor(BEYOND[dtype], dtype=dtype)
    minus = ids.masked_fill(_outside(ids, EXPERTS), -1)
    weights = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([0, 1, 1, 0])
    for expert_mask in (None, mask):
        sorts = [
            compat.moe_sorting(item, weights, EXPERTS, 64, torch.bfloat16, 4, expert_mask)
            for item in (ids, minus)
        ]
        for a, b in zip(*sorts, strict=True):
            assert torch.equal(a, b)
    generator = torch.Generator().manual_seed(1)
    x, w1, w2 = (
        torch.randn(*shape, generator=generator).bfloat16() / 8
        for shape in ((4, 64), (2, 128, 64), (2, 64, 64))
    )
    actual = [compat.fused_moe(x, w1, w2, weights, item, expert_mask=mask) for item in (ids, minus)]
    assert torch.equal(*actual)
    assert (actual[0] == 0).all(1).tolist() == [True, True, False, False]
