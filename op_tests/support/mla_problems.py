"""Inputs of mla_decode, its exact result, and how close a kernel must come.

What no sequence names is NaN: rows of the cache, ends of pages, the rest of a block table's row.
Ragged queries have a row of q before and behind them that is of no sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from rfops.attention.mla_decode import OP, mla_decode
from rfops.attention.mla_terms import D_QK, D_V
from rfops.dispatch.declare import fp8_of

SM_SCALE = 1 / 24
BF16 = torch.bfloat16


@dataclass
class Problem:
    q: torch.Tensor
    kv: torch.Tensor
    kv_indptr: torch.Tensor | None
    kv_indices: torch.Tensor
    kv_lens: torch.Tensor | None
    lens: list[int]
    qo_len: int = 1
    causal: bool = True
    kv_scale: torch.Tensor | None = None
    q_scale: torch.Tensor | None = None
    sm_scale: float = SM_SCALE
    qo_indptr: torch.Tensor | None = None

    def args(self, lse: torch.Tensor | None, out: torch.Tensor) -> list[Any]:
        """The op's parameters but for the config."""
        no_list = self.kv_lens if self.qo_indptr is None else self.qo_indptr
        bounds = no_list if self.kv_indptr is None else self.kv_indptr
        is_table = self.kv_indptr is None
        return [
            self.q, self.kv, bounds, self.kv_indices, self.sm_scale, len(self.lens), is_table,
            self.qo_len, self.causal, self.kv_lens, self.kv_scale, self.q_scale, lse,
            self.qo_indptr, out,
        ]  # fmt: skip

    def queries(self, b: int) -> range:
        """The rows of q of a sequence."""
        if self.qo_indptr is None:
            return range(b * self.qo_len, (b + 1) * self.qo_len)
        return range(int(self.qo_indptr[b]), int(self.qo_indptr[b + 1]))

    def seen(self, b: int, row: int) -> int:
        """How many tokens of its sequence a row of q sees."""
        return max(0, self.lens[b] - (self.queries(b).stop - 1 - row) * self.causal)

    @property
    def is_row(self) -> torch.Tensor:
        """Of each row of q whether some sequence has it."""
        is_row = torch.zeros(len(self.q), dtype=torch.bool)
        for b in range(len(self.lens)):
            is_row[list(self.queries(b))] = True
        return is_row

    def rows(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Page and place in it of each token of a sequence."""
        token_idx = torch.arange(self.lens[b])
        page = self.kv.shape[1]
        if self.kv_indptr is None:
            page_list = self.kv_indices[b].long()
        else:
            page_list = self.kv_indices[self.kv_indptr[b] : self.kv_indptr[b + 1]].long()
        return page_list[token_idx // page], token_idx % page

    def keys(self, b: int) -> torch.Tensor:
        """Of a sequence, exactly, in float64."""
        scale = 1.0 if self.kv_scale is None else self.kv_scale.double().item()
        pages, offsets = self.rows(b)
        return self.kv[pages, offsets, 0].double() * scale

    def set_row(self, b: int, token: int, row: torch.Tensor) -> None:
        pages, offsets = self.rows(b)
        self.kv[pages[token], offsets[token], 0] = row.to(self.kv.dtype)

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)


# Turns for which a part waits for the others, with the order of workgroups; each number of turns is
# a build of its own, so that by default each architecture has one.
WAITS = {
    "not": [(256, "hardware"), (0, "hardware")],
    "once": [(1, "random:1"), (1, "random:2")],
}
ARCH_WAITS = [
    ("gfx942", "not"),
    ("gfx950", "once"),
    pytest.param("gfx942", "once", marks=pytest.mark.sweep),
    pytest.param("gfx950", "not", marks=pytest.mark.sweep),
]


def problem(
    lens: Sequence[int],
    heads: int = 16,
    *,
    arch: str = "gfx950",
    qo_len: int = 1,
    qo_lens: Sequence[int] | None = None,
    page: int = 1,
    table: bool = False,
    fp8: bool = False,
    q_fp8: bool = False,
    causal: bool = True,
    spread: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Normal values; pages in any order between pages of NaN, lengths told where pages have ends.
    `spread` of q makes scores that wide. `qo_lens` are ragged queries."""
    generator = torch.Generator().manual_seed(1009 * seed + sum(lens) + heads)
    counts = [-(-length // page) for length in lens]
    total = sum(counts)
    pages = total + 3
    order = torch.randperm(pages, generator=generator, dtype=torch.int32)
    kv = torch.full((pages, page, 1, D_QK), math.nan)
    starts = None
    if qo_lens is not None:
        qo_len = max(*qo_lens, 1, 1)
        starts = torch.tensor([1, *qo_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    num_rows = len(lens) * qo_len if starts is None else int(starts[-1]) + 1
    q = torch.randn(num_rows, heads, D_QK, generator=generator) * spread
    dtype = fp8_of(arch) if fp8 else BF16
    bounds = torch.tensor([sum(counts[:b]) for b in range(len(lens) + 1)], dtype=torch.int32)
    lens_tensor = torch.tensor(lens, dtype=torch.int32) if page > 1 or table else None
    indices = order[:total].clone()
    if table:
        indices = torch.full((len(lens), max([*counts, 0]) + 2), 2**30, dtype=torch.int32)
        for b, count in enumerate(counts):
            indices[b, :count] = order[bounds[b] : bounds[b] + count]
    problem = Problem(
        (q / 4 if q_fp8 else q).to(fp8_of(arch) if q_fp8 else BF16),
        kv,
        None if table else bounds,
        indices,
        lens_tensor,
        list(lens),
        qo_len,
        causal,
        torch.tensor([0.03125]) if fp8 else None,
        torch.tensor([4.0]) if q_fp8 else None,
        qo_indptr=starts,
    )
    for b, length in enumerate(lens):
        rows = torch.randn(length, D_QK, generator=generator)
        token_pages, offsets = problem.rows(b)
        kv[token_pages, offsets, 0] = rows * (32 if fp8 else 1)
    problem.kv = kv.clamp(-240, 240).to(dtype)
    return problem


def exact(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and lse in float64; zeros and -inf in rows of no sequence."""
    out = torch.zeros(*p.q.shape[:2], D_V, dtype=torch.float64)
    lse = torch.full(p.q.shape[:2], -math.inf, dtype=torch.float64)
    scale = 1.0 if p.q_scale is None else p.q_scale.double().item()
    for b in range(len(p.lens)):
        key = p.keys(b)
        for row in p.queries(b):
            if kv_end := p.seen(b, row):
                score = p.sm_scale * scale * p.q[row].double() @ key[:kv_end].T
                out[row] = torch.softmax(score, -1) @ key[:kv_end, :D_V]
                lse[row] = torch.logsumexp(score, -1)
    return out, lse


def run(kernel: str, p: Problem, config: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and lse of one kernel, in tensors full of NaN."""
    out = torch.full((*p.q.shape[:2], D_V), math.nan, dtype=BF16)
    lse = torch.full(p.q.shape[:2], math.nan)
    args = p.args(lse, out)
    c, _ = OP.check((*args, *[None] * OP.takes_config))
    values = [args[i] for i, _ in OP._tensors]
    OP.prepare(kernel, c, config)(out, *values)
    return out, lse


def call(p: Problem, **options: Any) -> torch.Tensor:
    """The result of the public op."""
    queries = {"qo_len": p.qo_len} if p.qo_indptr is None else {"qo_indptr": p.qo_indptr}
    return mla_decode(
        p.q,
        p.kv,
        p.kv_indptr,
        p.kv_indices,
        p.sm_scale,
        causal=p.causal,
        kv_lens=p.kv_lens,
        kv_scale=p.kv_scale,
        q_scale=p.q_scale,
        **queries,
        **options,
    )


def assert_correct(
    results: tuple[torch.Tensor, torch.Tensor], p: Problem, bound: float | None = None
) -> None:
    """Each head's relative L2 error, and lse to fp32's sums. P and the result are rounded to bf16,
    by 1.1e-3 to 1.7e-3 of their norm: of P's errors those of many tokens cancel."""
    if bound is None:
        bound = 2e-3 if min([n for n in p.lens if n], default=0) >= 1000 else 4e-3
    is_row = p.is_row
    assert results[0][~is_row].isnan().all() and results[1][~is_row].isnan().all(), (
        "a row of no sequence is written"
    )
    results = results[0][is_row], results[1][is_row]
    out, lse = (t[is_row] for t in exact(p))
    error = (results[0].double() - out).norm(dim=-1)
    size = out.norm(dim=-1)
    relative = torch.where(size > 0, error / size.clamp(min=1e-300), error)
    worst = int(relative.argmax()) if relative.numel() else 0
    assert not results[0].isnan().any(), "NaN in the result"
    assert (relative <= bound).all(), (
        f"head {divmod(worst, out.shape[1])}: relative L2 {relative.view(-1)[worst]:.2e} > {bound}"
    )
    none = lse == -math.inf
    assert torch.equal(results[1] == -math.inf, none)
    lse_error = (results[1].double() - lse)[~none].abs()
    # Scores are sums of 576 products: 2^-24 each of their magnitude, which is about lse's.
    limit = 2e-5 * (1 + lse[~none].abs())
    assert (lse_error <= limit).all(), f"lse is off by {lse_error.max():.2e}"


def needle(p: Problem, b: int, token: int, gain: float = 1.5) -> Problem:
    """All heads of sequence b look at one token: what they see is its value, bit for bit."""
    key = p.keys(b)[token]
    q = p.q.clone()
    scale = 1.0 if p.q_scale is None else p.q_scale.item()
    q[b * p.qo_len : (b + 1) * p.qo_len] = (gain * key / scale).to(q.dtype)
    return p.with_(q=q)
