"""moe_router: the experts of tokens, from their rows to ids and weights in one kernel.

    logits = dtype(x @ router_weight^T),  p = softmax(logits),  with round_scores p = dtype(p)
    ids[t] = the top_k largest of p[t],  weights[t, j] = p[t, ids[t, j]]

dtype is x's. With the rounding (the default) experts are those of
torch.topk(torch.softmax(torch.nn.functional.linear(x, router_weight), -1), top_k): one logit in
hundreds differs in its last bit by the order of the sum, but what decides is the rounded p.

| kernel | what it takes |
|---|---|
| hip (csrc/moe/moe_router.hip) | up to 512 experts, up to 16 of them chosen; K a multiple of 8 |
| torch | whatever is left |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import grid
from rfops.dispatch.steps import Step
from rfops.dispatch.strided import matrix_strides
from rfops.jit import compile_ops, u32

from .kernels.topk.choosing import IN_TYPES, choose, refuses_choosing

__all__ = ["moe_router", "moe_router_ref"]

TOKENS, THREADS = 16, 512  # of a workgroup
VEC = 8  # elements that a lane loads at once


@compile_ops(
    "moe_router",
    kernel="moe_router",
    variants=lambda _arch: [
        {"IN": "f16", "TILES": 2, "TOP_K": 4, "ROUNDS": 1, "RENORMALIZES": 0, "LISTS": lists}
        for lists in (0, 1)
    ],
)
def moe_router_kernel(
    weights: torch.Tensor,
    ids: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    counts: torch.Tensor | None,
    lists: torch.Tensor | None,
    slots: torch.Tensor | None,
    m: u32,
    experts: u32,
    k: u32,
    x_row: u32,
    w_row: u32,
) -> None:
    """csrc/moe/moe_router.hip: the shapes stand there."""


class Hip(Kernel):
    name = "hip"
    module = "moe_router"

    def unsupported_reason(self, c: Call) -> str | None:
        return self.unsupported_arch_reason(c) or refuses_choosing(c) or refuses_rows(c, c.E)

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return defines(c, c.E, False)

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(m: int, d: int, experts: int, k: int) -> Run:
            sized_call = c.with_sizes(M=m, D=d, E=experts, K=k)
            run = step(sized_call, experts, lists=False).bind(c.device, c.arch, self.arguments)
            return lambda results, *inputs: run(*results, *inputs)

        return run_of


def defines(c: Call, experts: int, lists: bool) -> dict[str, Any]:
    """The kernel's constants; with `lists` it makes fused_moe's lists too."""
    return {
        "IN": IN_TYPES[c.x_dtype],
        "TILES": ceil(experts, 16),
        "TOP_K": c.K,
        "ROUNDS": int(c.round_scores),
        "RENORMALIZES": int(c.renormalize),
        "LISTS": int(lists),
    }


def step(c: Call, experts: int, lists: bool, arguments: Mapping[str, str] | None = None) -> Step:
    """The launch on `weights`, `ids`, `x` and `router_weight`; with `lists` it also makes `counts`,
    `lists` and `slots`. `arguments` has other names of these."""
    x_row, w_row = (2 * matrix_strides(c, name, c.D)[0] for name in ("x", "router_weight"))
    sizes = {"m": c.M, "experts": experts, "k": c.D, "x_row": x_row, "w_row": w_row}
    null_lists = {} if lists else dict.fromkeys(("counts", "lists", "slots"))
    return Step(
        moe_router_kernel,
        defines(c, experts, lists),
        THREADS,
        ceil(c.M, TOKENS),
        {"w": "router_weight", **sizes, **null_lists, **(arguments or {})},
    )


def refuses_rows(c: Call, experts: int) -> str | None:
    """Why the kernel does not take rows that lie as these do."""
    if c.D % VEC or c.D == 0:
        return f"{c.D} elements of a row are not a multiple of {VEC}"
    for name, rows in (("x", TOKENS), ("router_weight", experts)):
        row, column = matrix_strides(c, name, c.D)
        if column != 1 or row % VEC or c.align(name) % (2 * VEC):
            return f"{name} does not lie in rows of {2 * VEC} bytes"
        if row < c.D and rows > 1:
            return f"rows of {name} overlap"
        if 2 * rows * row >= MAX_BYTES:
            return f"{rows} rows of {name} are beyond signed 32-bit offsets (2 GiB)"
    return None


class Torch(Kernel):
    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        flags = {"renormalize": c.renormalize, "round_scores": c.round_scores}

        def run_of(_m: int, _d: int, _experts: int, k: int) -> Run:
            def run(results: Any, x: torch.Tensor, w: torch.Tensor) -> None:
                for result, tensor in zip(results, choose(x @ w.T, None, k, **flags), strict=True):
                    result.copy_(tensor)

            return run

        return run_of


class _Router(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **values: Any) -> Call:
        defaults = {"router_weight_dtype": values.get("x_dtype", torch.bfloat16)}
        return super().call_of(arch, cu_num, **{**defaults, **values})

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        _m, _d, experts, k = sizes
        if k > experts:
            return "top_k", f"at most E={experts}", str(k), "pass fewer"
        if c.x_dtype != c.router_weight_dtype:
            shown = str(c.router_weight_dtype)
            return "router_weight", f"{c.x_dtype} as x is", shown, "convert it first"
        return None

    def is_empty(self, c: Call) -> bool:
        return bool(c.M == 0)

    def flops(self, c: Call) -> int:
        return int(2 * c.M * c.E * c.D)

    def roundings(self, c: Call) -> int:
        return 2 * int(c.D) + 2 * int(c.E) + 32


OP = _Router(
    "moe_router",
    """
    x: bf16|f16[M, D] strided
    router_weight: bf16|f16[E, D] strided
    top_k: K >= 1
    renormalize: bool
    round_scores: bool
    -> weights: f32[M, K]
    -> ids: i32[M, K]
    """,
    sizes="M D E K",
    positive="D E",
    kernels=(Hip(), Torch()),
    coarse={"M": 0},
    max_bytes=None,
    usual={"round_scores": True},
    shapes={
        "published": grid("D E K", [(7168, 32, 4)], M=(64, 2048, 8192), x_dtype=(torch.float16,)),
        "models": grid("D E K", [(4096, 128, 8), (4096, 8, 2)], M=(1, 64, 2048)),
    },
    hints={"x": "convert it first", "router_weight": "convert it first"},
)


def moe_router(
    x: torch.Tensor,
    router_weight: torch.Tensor,
    top_k: int,
    renormalize: bool = False,
    *,
    round_scores: bool = True,
    weights: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top_k experts of each token by the softmax of x @ router_weight^T, the best first.

    Parameters
    ----------
    x : [M, D] bfloat16 or float16, any strides.
    router_weight : [E, D] of the same dtype.
    top_k : of E.
    renormalize : the weights of a token add up to 1.
    round_scores : probabilities are rounded to x's dtype before they are compared, as torch does
        when it computes the softmax in that dtype; otherwise logits are compared, which are rounded
        to it in any case.
    weights, ids : [M, top_k] float32 and int32, written in place where given.

    Returns weights and ids; of equal experts the lowest id comes first. A logit of NaN counts as
    the least: ids are always top_k different ints from 0 to E - 1. Deterministic. Raises ValueError
    for what does not fit, and what building the kernel raises.

    Source: top-k gating, Outrageously Large Neural Networks (arXiv:1701.06538), 2.1, without noise,
    the softmax taken first.
    """
    call: Callable[..., Any] = OP.traced if is_dynamo_compiling() else OP.call
    results: tuple[torch.Tensor, torch.Tensor] = call(
        x, router_weight, top_k, renormalize, round_scores, weights, ids
    )
    return results


moe_router.supports = OP.supports  # type: ignore[attr-defined]


def moe_router_ref(
    x: torch.Tensor,
    router_weight: torch.Tensor,
    top_k: int,
    renormalize: bool = False,
    round_scores: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`moe_router` in plain fp32 torch, on any device."""
    logits = (x.to(torch.float32) @ router_weight.to(torch.float32).T).to(x.dtype)
    return choose(logits, None, top_k, renormalize=renormalize, round_scores=round_scores)


OP.reference = moe_router_ref
