"""fused_moe: the experts of a mixture in fp16 or bf16, from tokens' rows and choices to their sums.

    h[t, e] = silu(x[t] @ gate[e]^T) * (x[t] @ up[e]^T),  w1[e] = gate[e] over up[e]
    out[t]  = sum over j of topk_weights[t, j] * (h[t, e_j] @ w2[e_j]^T),  e_j = topk_ids[t, j]

Weights come stacked, as vLLM has them, or as tables of one tensor an expert (fused_moe_tables.py).

| kernel | what it takes |
|---|---|
| hip (kernels/bf16/hip.py) | gfx942 and gfx950: D and I multiples of 8, up to 512 experts |
| listed (kernels/bf16/listed.py) | the same, up to 512 tokens; D and I multiples of 64 |
| triton (kernels/bf16/triton.py) | every architecture that Triton knows |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import check_int, describe
from rfops.dispatch.kernel import Call
from rfops.dispatch.layout import Shuffled, unwrap
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.jit.errors import show
from rfops.quantization.shuffle import unshuffle_weight
from rfops.rowwise.act_mul import ALPHA, BETA, LIMIT

from . import (
    fused_moe_fp8,
    fused_moe_mxfp4,
    fused_moe_mxfp8,
    fused_moe_tables,
    gated_experts,
    layers,
    local_experts,
)
from .experts import Weights, experts_ref
from .gated_experts import ExpertWeights, Gating
from .kernels.bf16.hip import VEC, HipMoe
from .kernels.bf16.listed import HipListed16Bit
from .kernels.bf16.triton import TritonMoe
from .kernels.gated.triton import StoredWeights
from .moe_op import HINTS, Moe, Torch, declared, reference_of
from .router import moe_router
from .terms import Bf16Model

__all__ = ["fused_moe", "fused_moe_ref", "moe_layer"]
MXFP4_WEIGHTS = "mxfp4_weights"  # a word of `quant`: x and h are not quantised
_Of = TypeVar("_Of")  # what a word of `quant` names


def _stacked(w1: Tensor, w2: Tensor, layout: str) -> Weights:
    return Weights.stacked(*(w1, w2) if layout == "raw" else map(unshuffle_weight, (w1, w2)))


class _FusedMoe(Moe):
    form = "16-bit"

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        _m, d, i, e, k, routed, n = sizes
        if c.w_layout != "raw" and (d % 16 or i % 16):
            expected = "multiples of 16 where weights are shuffled"
            return "D and I", expected, f"D={d}, I={i}", "pad the weights with zeros"
        if n != 2 * i:
            expected = f"of 2 * I = {2 * i} rows an expert, gate's and then up's"
            return "w1", expected, str(n), "w1 is [E, 2I, D] where w2 is [E, D, I]"
        return self.refuses_choice(c, e, k, routed)

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        super().assume(sizes, values)
        sizes.setdefault("N", 2 * sizes["I"])

    def weights(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        w1 = draw.floats((c.E, c.N, c.D), c.w1_dtype) / c.D**0.5
        w2 = draw.floats((c.E, c.D, c.I), c.w2_dtype) / c.I**0.5
        return {"w1": w1, "w2": w2}

    def draw(self, rng: random.Random) -> dict[str, Any]:
        return layers.draw(rng, VEC)


OP = _FusedMoe(
    "fused_moe",
    declared(
        "w1: bf16|f16[E, N, D] @16", "w2: bf16|f16[E, D, I] @16", more_args=("w_layout: raw|16x16",)
    ),
    sizes="M D I E K R N",
    positive="E",
    table="M+ D I E K R?",
    kernels=(
        HipMoe(is_table=False),
        HipListed16Bit(),
        TritonMoe(is_table=False),
        Torch(lambda c, op_weights: _stacked(op_weights[0], op_weights[1], c.w_layout)),
    ),
    max_bytes=None,
    time_model=Bf16Model,
    shapes={
        # Mixtral 8x7B, Qwen3-30B-A3B and 235B-A22B of TP8, DeepSeek-V3 of TP8
        "models": grid(
            "D I E K",
            [(4096, 14336, 8, 2), (2048, 768, 128, 8), (4096, 192, 128, 8), (7168, 256, 256, 8)],
            M=(1, 64, 2048),
        ),
    },
    hints={
        **HINTS,
        "w1": "pass [E, 2I, D], or a pair of lists of [D, I] where w2 is a list of [I, D]",
        "w2": "pass [E, D, I], or a list of [I, D] where w1 is a pair of lists of [D, I]",
    },
)


def fused_moe(
    x: Tensor,
    w1: Tensor | Shuffled | Sequence[Sequence[Tensor]],
    w2: Tensor | Shuffled | Sequence[Tensor],
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    num_shared: int = 0,
    quant: str | None = None,
    w1_scale: Any = None,
    w2_scale: Any = None,
    rounding: str | None = None,
    expert_map: Tensor | None = None,
    apply_router_weight_on_input: bool = False,
    combine: bool = True,
    activation: str = "silu",
    interleaved: bool = False,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    beta: float = BETA,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    out: Tensor | None = None,
    config: Any = None,
) -> Tensor:
    """out[t] = sum over j of topk_weights[t, j] * expert topk_ids[t, j] of x[t], [M, D].

    Parameters
    ----------
    x : [M, D] float16 or bfloat16, any strides; contiguous for "fp8_blockscale".
    w1 : [E, 2I, D] of the same dtype, of each expert gate's rows and then up's, or what
        shuffle_weight made of it; or a pair (gates, ups) of lists of E contiguous tensors [D, I].
    w2 : [E, D, I] of the same dtype, shuffled if w1 is; or, with such a pair, a list of E
        contiguous tensors [I, D].
    topk_weights, topk_ids : [M, K] float32, and int32 or int64. An id outside adds nothing.
    num_shared : the last so many of the E experts are shared: every token takes them with weight 1,
        beside its own, whose ids are below E - num_shared.
    quant : of quantised weights their format, as which x and h are quantised too. "mxfp4": e2m1,
        two a byte, [E, 2I, D/2] and [E, D, I/2]; "mxfp8": e4m3; "fp8_blockscale": e4m3, on gfx942
        e4m3fnuz. Raw, or as shuffle_weight leaves them. "mxfp4_weights": weights as of "mxfp4",
        and x and h stay as they are; x is bfloat16.
    w1_scale, w2_scale : their e8m0 scales [E, 2I, D/32] and [E, D, I/32], or [E * rows, ...]; raw,
        or as shuffle_scale leaves those of all experts. Of "fp8_blockscale" fp32, one for 128 x
        128: [E, 2I/128, D/128] and [E, D/128, I/128].
    rounding : how scales of x and h are rounded, as of quant_mxfp4 and quant_mxfp8; None: as there.
    expert_map : [all experts] int32, of expert parallelism: topk_ids number all experts, and this
        gives the number of each in w1, -1 for one that is elsewhere, which adds nothing. In torch,
        before the op.
    apply_router_weight_on_input : x[t] is multiplied by topk_weights[t, j] before expert e_j, whose
        result is not. Each choice is then a token of its own: x is copied K times.
    combine : False returns topk_weights[t, j] * expert e_j of x[t] as [M, K, D], zeros for an id
        outside; x is copied K times.
    activation, interleaved, alpha, limit, beta : of gate and up, as of rfops.act_mul: silu, gelu,
        gelu_tanh or swiglu; interleaved: rows of w1 are pairs of gate and up.
    bias1, bias2 : [E, 2I] and [E, D] bfloat16, float16 or float32, added in fp32. These, other
        activations and "mxfp4_weights" are computed by Triton; where it is missing by torch, expert
        by expert, which waits for the device.
    out : as returned, of x's dtype, written in place where given.
    config : takes that kernel in that variant, whatever the tuned table says; with biases, another
        activation or "mxfp4_weights" a GatedMoeTritonConfig.

    Products are summed in fp32; h and each expert's result are rounded to x's dtype, their weighted
    sum is fp32 in a fixed order: deterministic. A row that is NaN or infinite makes its own result
    so, and no other. Raises ValueError for what does not fit, and what building a kernel raises.

    Source: SwiGLU, GLU Variants Improve Transformer (arXiv:2002.05202); shared experts, DeepSeekMoE
    (arXiv:2401.06066); arguments of vLLM's fused_experts.
    """
    if not isinstance(topk_ids, Tensor) or topk_ids.dim() != 2:
        OP.fail("topk_ids", "a [M, K] tensor", describe(topk_ids), OP.hints["topk_ids"])
    if expert_map is not None:
        topk_ids = local_experts.local_ids(topk_ids, expert_map)
    if apply_router_weight_on_input is not False or combine is not True:

        def of_tokens(x: Tensor, weights: Tensor, ids: Tensor, out: Tensor | None) -> Tensor:
            return fused_moe(
                x,
                w1,
                w2,
                weights,
                ids,
                quant=quant,
                w1_scale=w1_scale,
                w2_scale=w2_scale,
                rounding=rounding,
                activation=activation,
                interleaved=interleaved,
                alpha=alpha,
                limit=limit,
                beta=beta,
                bias1=bias1,
                bias2=bias2,
                out=out,
                config=config,
            )

        choices = x, topk_weights, topk_ids, apply_router_weight_on_input, combine, num_shared
        return local_experts.by_choices(of_tokens, *choices, out)
    choice = topk_weights, topk_ids, None, topk_ids.shape[1]
    is_gated = activation != "silu" or interleaved or bias1 is not None or bias2 is not None
    if is_gated or quant == MXFP4_WEIGHTS:
        gating = Gating(activation, interleaved, alpha, limit, beta, bias1, bias2)
        scales = w1_scale, w2_scale
        return _gated(x, w1, w2, choice, num_shared, quant, scales, rounding, gating, out, config)
    if quant is not None or w1_scale is not None or w2_scale is not None:
        scales = w1_scale, w2_scale
        call, router_flags = _of_quant(quant, _QUANTS), (False, False)
        return call(x, w1, w2, *scales, choice, num_shared, router_flags, rounding, out, config)
    return _call(x, w1, w2, choice, num_shared, (False, False), out, config)


# What `quant` may be: each word's function takes x, w1, w2, their scales, and as _call from choice.
_QUANTS: dict[str, Callable[..., Tensor]] = {
    "fp8_blockscale": fused_moe_fp8.call,
    "mxfp4": fused_moe_mxfp4.call,
    "mxfp8": fused_moe_mxfp8.call,
}


_WEIGHTS: dict[str, Callable[..., ExpertWeights]] = {
    "fp8_blockscale": fused_moe_fp8.weights_of,
    "mxfp4": fused_moe_mxfp4.OP.weights_of,
    MXFP4_WEIGHTS: fused_moe_mxfp4.OP.weights_alone,
    "mxfp8": fused_moe_mxfp8.OP.weights_of,
}


def _of_quant(quant: Any, table: Mapping[str, _Of]) -> _Of:
    if isinstance(quant, str) and quant in table:
        return table[quant]
    known_quants = ", ".join(repr(name) for name in table)
    OP.fail(
        "quant",
        f"one of {known_quants or 'none yet'}, or None without scales",
        show(quant),
        "pass the format that the weights have",
    )
    raise AssertionError


def _call(
    x: Tensor,
    w1: Any,
    w2: Any,
    choice: tuple[Any, ...],
    num_shared: int,
    router_flags: tuple[bool, bool],
    out: Tensor | None,
    config: Any,
) -> Tensor:
    """The op of the weights' layout."""
    dtype = x.dtype if isinstance(x, Tensor) else torch.bfloat16
    dtype = dtype if dtype in (torch.bfloat16, torch.float16) else torch.bfloat16  # x is refused
    op: Op = OP
    (w1, layout), (w2, layout_2) = unwrap(w1), unwrap(w2)
    if layout != layout_2:
        OP.fail("w2", f"{layout} as w1 is", layout_2, "shuffle both or neither")
    weights: tuple[Any, ...] = w1, w2
    layout_args: tuple[str, ...] = (layout,)
    if isinstance(w1, _LISTS) or isinstance(w2, _LISTS):
        _check_lists(w1, w2)
        op, weights, layout_args = fused_moe_tables.OP, (*w1, w2), ()
        experts = len(w2)
    else:
        for name, w in (("w1", w1), ("w2", w2)):
            if not isinstance(w, Tensor) or w.dim() != 3:
                OP.fail(name, "a [E, rows, columns] tensor", describe(w), OP.hints[name])
        experts = w2.shape[0]
    shared_count = check_int(op.name, "num_shared", num_shared, 0, experts)
    call: Callable[..., Tensor] = op.traced if is_dynamo_compiling() else op.call
    return call(
        x,
        *weights,
        *choice,
        experts - shared_count,
        *router_flags,
        dtype,
        *layout_args,
        out,
        config,
    )


def _gated(
    x: Tensor,
    w1: Any,
    w2: Any,
    choice: tuple[Any, ...],
    num_shared: int,
    quant: Any,
    scales: tuple[Any, Any],
    rounding: str | None,
    gating: Gating,
    out: Tensor | None,
    config: Any,
) -> Tensor:
    """By gated_experts.py, after the checks of the format's op."""
    if isinstance(w1, _LISTS) or isinstance(w2, _LISTS):
        OP.fail("w1", "stacked with biases or another activation", describe(w1), "stack them")
    if quant is None and scales == (None, None):
        weights = _weights_of(x, w1, w2, choice, num_shared, out)
    else:
        weights_of = _of_quant(quant, _WEIGHTS)
        weights = weights_of(x, w1, w2, *scales, choice, num_shared, rounding, out)
    gating.check(weights.experts, weights.rows, x.shape[1], x.device)
    p, ids, *_ = choice
    result = gated_experts.run(x, weights, p, ids, num_shared, gating, config).to(x.dtype)
    return result if out is None else out.copy_(result)


def _weights_of(
    x: Tensor, w1: Any, w2: Any, choice: tuple[Any, ...], num_shared: int, out: Tensor | None
) -> ExpertWeights:
    """Of 16-bit weights. Raises ValueError as the op does."""
    (w1, layout), (w2, layout_2) = unwrap(w1), unwrap(w2)
    if layout != layout_2:
        OP.fail("w2", f"{layout} as w1 is", layout_2, "shuffle both or neither")
    for name, w in (("w1", w1), ("w2", w2)):
        if not isinstance(w, Tensor) or w.dim() != 3:
            OP.fail(name, "a [E, rows, columns] tensor", describe(w), OP.hints[name])
    routed = w2.shape[0] - check_int(OP.name, "num_shared", num_shared, 0, w2.shape[0])
    c, _ = OP.check((x, w1, w2, *choice, routed, False, False, x.dtype, layout, out, None))
    plain = (w1, w2) if layout == "raw" else (unshuffle_weight(w1), unshuffle_weight(w2))
    first_weights, second_weights = plain
    stored = StoredWeights("16-bit", c, w1, w2, None, None, lambda rows: (rows, None))
    return ExpertWeights(
        len(w2),
        w1.shape[1],
        lambda e: first_weights[e].float(),
        lambda e: second_weights[e].float(),
        Tensor.float,
        stored,
    )


_LISTS = (tuple, list)


def _check_routed(router_weight: Any, w2: Any, num_shared: Any) -> None:
    """A router of as many experts as are not shared."""
    down = unwrap(w2)[0]
    experts = len(down) if isinstance(down, _LISTS) else down.shape[0]
    routed = experts - check_int(OP.name, "num_shared", num_shared, 0, experts)
    if not isinstance(router_weight, Tensor) or router_weight.shape[:1] != (routed,):
        fix = "pass a row for each expert that is not shared"
        OP.fail("router_weight", f"a [R={routed}, D] tensor", describe(router_weight), fix)


def _check_lists(w1: Any, w2: Any) -> None:
    """Weights in lists: (gates, ups), downs. Their tensors are checked by the op."""
    if not isinstance(w2, _LISTS):
        expected = "a list of [I, D] tensors where w1 is a pair of lists"
        OP.fail("w2", expected, describe(w2), OP.hints["w2"])
    if not isinstance(w1, _LISTS) or len(w1) != 2 or not all(isinstance(w, _LISTS) for w in w1):
        shown = f"{len(w1)} of them" if isinstance(w1, _LISTS) and len(w1) != 2 else describe(w1)
        OP.fail("w1", "a pair of lists, gates and ups, where w2 is a list", shown, OP.hints["w1"])


def moe_layer(
    x: Tensor,
    router_weight: Tensor,
    w1: Tensor | Shuffled | Sequence[Sequence[Tensor]],
    w2: Tensor | Shuffled | Sequence[Tensor],
    top_k: int,
    *,
    num_shared: int = 0,
    renormalize: bool = False,
    round_scores: bool = True,
    quant: str | None = None,
    w1_scale: Any = None,
    w2_scale: Any = None,
    rounding: str | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    bias: Tensor | None = None,
    score: str = "softmax",
    scale: float = 1.0,
    out: Tensor | None = None,
    config: Any = None,
) -> Tensor:
    """A whole mixture: `moe_router` chooses, `fused_moe` computes, [M, D] of x [M, D].

    router_weight : [E - num_shared, D] of x's dtype, bfloat16 or float16.
    top_k, renormalize, round_scores : as of `moe_router`.
    num_groups, topk_groups, bias, score, scale : as of `moe_router`, which then runs first.
    All others : as of `fused_moe`.

    By HIP four to six launches, two more with what runs `moe_router` first; without a copy to the
    host. Raises as these two.

    Source: as of `moe_router` and `fused_moe`.
    """
    choice: tuple[Any, ...] = None, None, router_weight, top_k
    router_flags = renormalize, round_scores
    if bias is not None or (num_groups, topk_groups, score, scale) != (1, 1, "softmax", 1.0):
        _check_routed(router_weight, w2, num_shared)
        chosen = moe_router(
            x,
            router_weight,
            top_k,
            renormalize,
            round_scores=round_scores,
            num_groups=num_groups,
            topk_groups=topk_groups,
            bias=bias,
            score=score,
            scale=scale,
        )
        choice, router_flags = (*chosen, None, top_k), (False, False)
    if quant is not None or w1_scale is not None or w2_scale is not None:
        call = _of_quant(quant, _QUANTS)
        return call(
            x, w1, w2, w1_scale, w2_scale, choice, num_shared, router_flags, rounding, out, config
        )
    return _call(x, w1, w2, choice, num_shared, router_flags, out, config)


fused_moe.supports = OP.supports  # type: ignore[attr-defined]


def fused_moe_ref(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_shared: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The formula of `fused_moe` in plain fp32 torch, or fp64 where x is float64.

    Takes x [M, D], stacked w1 [E, 2I, D] and w2 [E, D, I], topk_weights and topk_ids [M, K] as the
    op does, without a format of quantised weights; on any device. dtype : of the result [M, D],
    which is float64 where x is. Raises torch's RuntimeError for sizes that do not fit each other.

    Source: as of `fused_moe`.
    """
    result = experts_ref(x, Weights.stacked(w1, w2), topk_weights, topk_ids, num_shared)
    return result if result.dtype == torch.float64 else result.to(dtype)


def _reference(x: Tensor, w1: Tensor, w2: Tensor, *args: Any) -> Tensor:
    return reference_of(_stacked(w1, w2, args[-1]), x, *args[:-1])


OP.reference = _reference
