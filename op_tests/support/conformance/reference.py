"""What a replayed call must give, in float64 from the operands' values, and how close it must come.

Tolerances follow from the arithmetic: half a unit in the last place of each rounding that a kernel
does, 2^-24 of the sum of magnitudes for each fp32 sum; where several roundings follow each other, a
bound of a row's relative L2 error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.compare import HALF_ULP
from rfops.quantization.fp8_blockscale import reference as quant_fp8
from rfops.quantization.mxfp4 import dequant_mxfp4, quant_mxfp4_ref

BLOCK = 128
# Of a row's norm: the roundings of a result to bf16, and of what is between (P, or h and each
# expert's row), err by 2^-8 / sqrt(3) = 2.3e-3 at most, in the root of the mean square; four of
# them by twice that. A code of FP8 or FP4 that falls the other way is rare and adds little.
MAX_RELATIVE_L2 = 5e-3


def assert_close(actual: Tensor, expected: Tensor, bound: Tensor) -> None:
    assert actual.shape == expected.shape, (
        f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    )
    excess = (actual.double() - expected).abs() - bound
    excess = torch.where(excess.isnan(), math.inf, excess)
    if excess.numel() and excess.max() > 0:
        offset = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        raise AssertionError(
            f"{offset}: {actual[offset]}, expected {expected[offset]} within {bound[offset]}"
        )


def assert_rows(actual: Tensor, expected: Tensor) -> None:
    """Each row within MAX_RELATIVE_L2 of its norm."""
    assert actual.shape == expected.shape, (
        f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    )
    error = (actual.double() - expected).norm(dim=-1)
    relative = error / expected.norm(dim=-1).clamp(min=1e-9)
    relative = torch.where(relative.isnan(), math.inf, relative)
    if relative.numel() and relative.max() > MAX_RELATIVE_L2:
        offset = tuple(int(i) for i in torch.unravel_index(relative.argmax(), relative.shape))
        raise AssertionError(
            f"row {offset}: relative L2 {relative[offset]:.3e}, expected {MAX_RELATIVE_L2} at most"
        )


# ---------------------------------------------------------------- attention


def attention(q: Tensor, keys: list[Tensor], sm_scale: float) -> tuple[Tensor, Tensor]:
    """Of each row of q [rows, heads, 576] over its keys [n, 576]: [rows, heads, 512] and lse."""
    out = torch.zeros(*q.shape[:2], 512, dtype=torch.float64)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float64)
    for row, key in enumerate(keys):
        if len(key):
            score = sm_scale * q[row].double() @ key.double().T
            out[row] = torch.softmax(score, -1) @ key.double()[:, :512]
            lse[row] = torch.logsumexp(score, -1)
    return out, lse


def assert_attention(
    actual: Tensor, expected: tuple[Tensor, Tensor], lse: Tensor | None = None
) -> None:
    """Each head's row, and lse to fp32's sums and its dtype's rounding. Rows without a token have
    no result."""
    out, wanted_lse = expected
    has_keys = wanted_lse[:, 0] > -math.inf
    assert_rows(actual[has_keys], out[has_keys])
    if lse is not None:
        assert torch.equal(lse == -math.inf, wanted_lse == -math.inf), "lse of rows without a token"
        exact = wanted_lse[has_keys]
        limit = (2e-5 + HALF_ULP[lse.dtype]) * (1 + exact.abs())
        assert_close(lse[has_keys], exact, limit)


# ---------------------------------------------------------------- linear layers


def fp8_weight(w: Tensor, scale: Tensor) -> Tensor:
    """Values of [..., N, K] with scales of 128 x 128."""
    element_scales = scale.double().repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return w.double() * element_scales[..., : w.shape[-2], : w.shape[-1]]


def fp8_rows(x: Tensor, scale: Tensor) -> Tensor:
    return x.double() * scale.double().repeat_interleave(BLOCK, -1)


def assert_product(actual: Tensor, x: Tensor, w: Tensor) -> None:
    """x [M, K] times w [N, K], both float64: sums in fp32, one rounding of the result."""
    exact, total = x @ w.T, x.abs() @ w.abs().T
    # Along K, and the products with scales.
    bound = HALF_ULP[actual.dtype] * exact.abs() + (x.shape[1] + 64) * 2.0**-24 * total
    assert_close(actual, exact, bound + 1e-30)


# ---------------------------------------------------------------- experts

Quantise = Callable[[Tensor], Tensor]


def as_fp8(dtype: torch.dtype) -> Quantise:
    def quantise(x: Tensor) -> Tensor:
        payload, scale = quant_fp8(x.float(), 1, False, dtype)
        return fp8_rows(payload, scale)

    return quantise


def as_mxfp4(rounding: str) -> Quantise:
    def quantise(x: Tensor) -> Tensor:
        return dequant_mxfp4(*quant_mxfp4_ref(x.float(), rounding), torch.float64)

    return quantise


def experts(
    x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor, quantise: Quantise | None
) -> Tensor:
    """[M, D] in float64 of w1 [E, 2I, D] and w2 [E, D, I] in float64, silu(gate) * up; activations
    quantised on the way in and between where `quantise` says so: what is between is rounded to x's
    dtype first, as where it is made by an op of its own. Ids below 0 have no expert."""
    rows = x.double() if quantise is None else quantise(x)
    out = torch.zeros(x.shape[0], w2.shape[1], dtype=torch.float64)
    inner = w2.shape[2]
    for e in ids[ids >= 0].unique().tolist():
        token, j = (ids == e).nonzero(as_tuple=True)
        gate_up = rows[token] @ w1[e].T
        h = torch.nn.functional.silu(gate_up[:, :inner]) * gate_up[:, inner:]
        h = h if quantise is None else quantise(h.to(x.dtype))
        out.index_add_(0, token, weights[token, j].double()[:, None] * (h @ w2[e].T))
    return out


# ---------------------------------------------------------------- routing


def softmax_topk(logits: Tensor, k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    p = logits.double().softmax(1)
    weights, ids = p.sort(dim=1, descending=True, stable=True)
    weights, ids = weights[:, :k], ids[:, :k]
    return (weights / weights.sum(1, True) if renormalize else weights), ids


def grouped_topk(
    logits: Tensor,
    bias: Tensor | None,
    k: int,
    groups: int,
    selected: int,
    renormalize: bool,
    scale: float,
    score: str = "sigmoid",
) -> tuple[Tensor, Tensor]:
    """DeepSeek's: groups by the sum of their two greatest keys (the greatest without a bias), k
    experts of the chosen groups by key, their scores as weights."""
    scores = {
        "sigmoid": torch.sigmoid,
        "softmax": lambda x: x.softmax(1),
        "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    }[score](logits.double())
    keys = scores if bias is None else scores + bias.double()
    by_group = keys.view(len(keys), groups, -1)
    of_group = by_group.amax(-1) if bias is None else by_group.topk(2, -1).values.sum(-1)
    best = of_group.topk(selected, -1).indices
    is_in = torch.zeros_like(of_group, dtype=torch.bool).scatter_(1, best, True)
    keys = keys.view(len(keys), groups, -1).masked_fill(~is_in[..., None], -math.inf).flatten(1)
    ids = keys.topk(k, -1).indices
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(1, True) if renormalize else weights
    return scale * weights, ids


def assert_chosen(weights: Tensor, ids: Tensor, expected: tuple[Tensor, Tensor]) -> None:
    """The same experts in any order, their weights to the rounding of fp32 (exp, sum, division)."""
    order, position = ids.long().sort(1)
    wanted_order, wanted_place = expected[1].sort(1)
    assert torch.equal(order, wanted_order), f"experts {order.tolist()} {wanted_order.tolist()}"
    exact = expected[0].gather(1, wanted_place)
    assert_close(weights.gather(1, position), exact, 4e-6 * exact)


def assert_aligned(actual: Any, ids: Tensor, block: int, num_experts: int, expert_map: Any) -> None:
    """vLLM's sorted_token_ids, expert_ids and num_tokens_post_padded: each block's rows are those
    of its expert, padded with the number of rows, every row is there once."""
    sorted_ids, expert_ids, padded = actual[:3]
    used, rows = int(padded), ids.flatten()
    expert = rows.long()
    if expert_map is not None:
        is_mapped = (expert >= 0) & (expert < len(expert_map))
        expert = torch.where(is_mapped, expert_map.long()[expert.clamp(0, len(expert_map) - 1)], -1)
    assert used % block == 0
    results: list[int] = []
    for start in range(0, used, block):
        members = [int(r) for r in sorted_ids[start : start + block] if int(r) < len(rows)]
        assert all(int(expert[r]) == int(expert_ids[start // block]) for r in members), start
        results += members
    expected = [r for r in range(len(rows)) if expert[r] >= 0 or expert_map is not None]
    local_rows = [r for r in expected if expert[r] >= 0]
    assert sorted(r for r in results if expert[r] >= 0) == local_rows
