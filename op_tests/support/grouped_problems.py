"""Problems of grouped_gemm_mxfp8 and their results in float64, in which products are exact."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from rfops.moe.align_block_size import moe_align_block_size_ref
from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8
from rfops.quantization.mxfp8 import dequant_mxfp8

BF16, F32 = torch.bfloat16, torch.float32
UNTOUCHED = -7.0  # what a row of out holds that nobody is to write
DEPTH_BESIDE_K = 128 + 32 + 2


@dataclass
class Problem:
    a_q: torch.Tensor
    a_scale: torch.Tensor
    w: torch.Tensor
    w_scale: torch.Tensor
    sorted_token_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_post_padded: torch.Tensor
    num_valid_tokens: int
    top_k: int
    block_m: int
    a_div: int
    weights: torch.Tensor | None = None

    def args(self, dtype: torch.dtype = BF16) -> tuple[Any, ...]:
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return (*values[:10], dtype, self.a_div, self.weights)

    def to(self, device: torch.device) -> Problem:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Problem(
            **{n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
        )

    def rows(self) -> list[tuple[int, int]]:
        """(id, expert) of each id that a block in use names; -1 for a block without an expert."""
        used = self.sorted_token_ids[: max(0, int(self.num_tokens_post_padded))].tolist()
        experts = self.expert_ids.tolist()
        named = [(id, experts[position // self.block_m]) for position, id in enumerate(used)]
        return [
            (id, e if 0 <= e < self.w.shape[0] else -1)
            for id, e in named
            if 0 <= id < self.num_valid_tokens
        ]


def payload(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """Every e4m3 code but the two NaN, equally likely."""
    codes = torch.randint(0, 254, shape, generator=generator, dtype=torch.uint8)
    return (codes + (codes >= 127)).view(torch.float8_e4m3fn)


def scale(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """2^-6..2^6: a block read from a wrong place shows."""
    return torch.randint(121, 134, shape, generator=generator, dtype=torch.uint8)


def problem_of(
    topk_ids: torch.Tensor,
    experts: int,
    n: int,
    k: int,
    block_m: int = 16,
    gemm: int = 1,
    weighted: bool | None = None,
) -> Problem:
    """topk_ids [tokens, top_k]; gemm 1 takes a row of a token, gemm 2 one of a routed row and, if
    nothing else is said, weights."""
    tokens, top_k = topk_ids.shape
    generator = torch.Generator().manual_seed(7919 * n + 31 * k + block_m + tokens)
    a_div = top_k if gemm == 1 else 1
    a_rows = tokens * top_k // a_div
    weighted = gemm == 2 if weighted is None else weighted
    weights = torch.rand(tokens, top_k, generator=generator) - 0.3 if weighted else None
    a_shape, w_shape, result = (a_rows, k), (experts, n, k), {"generator": generator}
    return Problem(
        payload(*a_shape, **result),
        scale(a_rows, k // 32, **result),
        payload(*w_shape, **result),
        scale(experts, n, k // 32, **result),
        *moe_align_block_size_ref(topk_ids, block_m, experts),
        tokens * top_k,
        top_k,
        block_m,
        a_div,
        weights,
    )


def spread(tokens: int, top_k: int, experts: int, seed: int = 0) -> torch.Tensor:
    """Different experts for each token, uniformly; some get none."""
    generator = torch.Generator().manual_seed(seed + tokens)
    selected = [torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)]
    return torch.stack(selected).to(torch.int32)


def ragged(tokens: int, top_k: int, experts: int) -> torch.Tensor:
    """Few experts get most rows, most get none."""
    generator = torch.Generator().manual_seed(tokens)
    uniform = torch.rand(tokens, top_k, generator=generator)
    return (uniform**4 * experts).to(torch.int32)


def exact_result(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out and the sum of |products| in float64, and which rows are written."""
    p = problem
    exact = torch.zeros(p.num_valid_tokens, p.w.shape[1], dtype=torch.float64)
    total, written = torch.zeros_like(exact), torch.zeros(p.num_valid_tokens, dtype=torch.bool)
    of_expert: dict[int, list[int]] = {}
    for id, expert in p.rows():
        written[id] = True
        of_expert.setdefault(expert, []).append(id)
    of_expert.pop(-1, None)
    for expert, ids in of_expert.items():
        index = torch.tensor(ids) // p.a_div
        a_bytes = p.a_q.view(torch.uint8)[index].view(torch.float8_e4m3fn)
        a = dequant_mxfp8(a_bytes, p.a_scale.view(torch.uint8)[index], torch.float64)
        w = dequant_mxfp8(p.w[expert], p.w_scale[expert], torch.float64)
        exact[ids], total[ids] = a @ w.T, a.abs() @ w.abs_().T
    if p.weights is not None:
        factor = p.weights.view(-1, 1).double()
        exact, total = exact * factor, total * factor.abs()
    return exact, total, written


def assert_correct(actual: torch.Tensor, problem: Problem, untouched: bool = True) -> None:
    """Against float64; with `untouched`, rows that no block names hold UNTOUCHED."""
    exact, total, written = exact_result(problem)
    limit = torch.finfo(actual.dtype).max * (1 + HALF_ULP[actual.dtype])
    exact = torch.where(exact.abs() > limit, exact.sign() * math.inf, exact)
    depth = DEPTH_BESIDE_K + math.ceil(problem.a_q.shape[1] / 128)
    bound = tolerance(exact, total, depth, actual.dtype)
    actual = actual.cpu()
    assert_within(actual[written], exact[written], bound[written])
    if untouched:
        assert (actual[~written] == UNTOUCHED).all(), "rows that no block names were written"


def run(problem: Problem, device: torch.device, dtype: torch.dtype = BF16, **options: Any) -> Any:
    """The op on `device`, into an output that holds UNTOUCHED."""
    shape = (problem.num_valid_tokens, problem.w.shape[1])
    out = torch.full(shape, UNTOUCHED, dtype=dtype, device=device)
    actual = grouped_gemm_mxfp8(*problem.to(device).args(dtype), out=out, **options)
    assert actual is out
    return out


ROUTINGS = {
    "spread": spread(12, 3, 8),
    "ragged with empty experts": ragged(40, 2, 8),
    "one expert has all": torch.full((70, 1), 5, dtype=torch.int32),
    "each expert has one": torch.arange(8, dtype=torch.int32).view(4, 2),
    "one row": torch.tensor([[7]], dtype=torch.int32),
    "some rows in no block": torch.tensor([[1, -1], [8, 3], [7, 100]], dtype=torch.int32),
}


def by_hand(**changes: Any) -> Problem:
    """Three blocks of 4 for experts 2, 0 and 1, five valid ids among paddings of every kind."""
    problem = problem_of(spread(3, 2, 3), 3, 24, 288, block_m=4, gemm=2)
    layout = {
        "sorted_token_ids": torch.tensor(
            [4, 6, 0, -1, 6, 6, 6, 6, 2**31 - 1, 3, 1, 5, 2, 2, 2, 2], dtype=torch.int32
        ),
        "expert_ids": torch.tensor([2, 0, 1, 0], dtype=torch.int32),
        "num_tokens_post_padded": torch.tensor([12], dtype=torch.int32),
    }
    return dataclasses.replace(problem, **{**layout, **changes})


def scattered_blocks() -> Problem:
    """3 valid ids in 40 blocks: of 3 workgroups along y each takes every third block."""
    ids = torch.full((40, 4), 99, dtype=torch.int32)
    ids[33, 2], ids[39, 0], ids[6, 1] = 0, 1, 2
    return dataclasses.replace(
        problem_of(spread(3, 1, 3), 3, 24, 288, block_m=4),
        sorted_token_ids=ids.view(-1),
        expert_ids=torch.arange(40, dtype=torch.int32) % 3,
        num_tokens_post_padded=torch.tensor([160], dtype=torch.int32),
    )
