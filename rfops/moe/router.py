"""moe_router: the experts of tokens, from their rows to ids and weights.

    logits = dtype(x @ router_weight^T),  p = softmax(logits),  with round_scores p = dtype(p)
    ids[t] = the top_k largest of p[t],  weights[t, j] = p[t, ids[t, j]]

dtype is x's; p may be other scores, with a bias and groups as of grouped_topk. With the rounding
(the default) experts are those of torch.topk(torch.softmax(torch.nn.functional.linear(x,
router_weight), -1), top_k): one logit in hundreds differs in its last bit by the order of the sum,
but what decides is the rounded p.

| kernel | what it takes |
|---|---|
| products (gemm_a16w16's stream, then csrc/moe/moe_topk.hip) | up to 1,024 experts, 16 chosen |
| hip (csrc/moe/moe_router.hip) | up to 512 experts, by softmax alone, in one launch |
| torch | whatever is left |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import MAX_BYTES
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.steps import Bindable, NestedRun, Shaped, Step, run_steps
from rfops.dispatch.strided import matrix_strides
from rfops.gemm.a16w16 import OP as GEMM
from rfops.jit import compile_ops, u32

from .kernels.topk.choosing import IN_TYPES, choice_options, choose, refuses_choosing
from .kernels.topk.kernels import choosing_defines_of, refuses_groups, topk_step

__all__ = ["moe_router", "moe_router_ref"]

TOKENS, THREADS = 16, 512  # of a workgroup
MAX_EXPERTS = 512  # whose sums a wave holds
# Timing mode, MI355X and MI300X, 8 experts, D of 4,096: 1,024 tokens in one launch 9.75, 10.4 us,
# in two 9.72 and 10.3; 2,048 tokens 9.5 and 10.8, in two 11.7 and 14.1.
FEW_EXPERTS, MANY_TOKENS = 16, 1024
MANY_LISTED_TOKENS = 512  # where lists of tokens are wanted, which one launch writes too
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


class Products(Kernel):
    """Logits by gemm_a16w16's kernel, which has K split over all of the chip, then the choice."""

    name = "products"
    module = "moe_topk"
    more_modules = ("a16w16_stream",)

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c) or refuses_choosing(c):
            return reason
        if _is_one_launch_quicker(c, MANY_TOKENS):
            return f"{c.E} experts for {c.M} tokens: one launch is quicker"
        return GEMM.kernels["stream"].unsupported_reason(_product(c))

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        return choosing_defines_of(c, logits_dtype=c.x_dtype)

    def variant(self, c: Call, config: Any) -> RunOf:
        def run_of(m: int, d: int, experts: int, k: int) -> Run:
            steps = self.steps(c.with_sizes(M=m, D=d, E=experts, K=k))
            workspace = {"logits": ((m, experts), c.x_dtype)}
            run = run_steps(
                c.device, self.arguments, steps, arch=c.arch, workspace=workspace, outer=True
            )
            return lambda results, *inputs: run(*results, *inputs)

        return run_of

    def steps(self, c: Call, arguments: Mapping[str, str] | None = None) -> tuple[NestedRun, Step]:
        """The launches on `x`, `router_weight`, `bias`, `logits`, `weights` and `ids`; `arguments`
        has other names of these."""
        return _logits(c), topk_step(self.defines(c, None), c, arguments)


def _is_one_launch_quicker(c: Call, many_tokens: int) -> bool:
    is_short = c.E <= FEW_EXPERTS and c.M > many_tokens
    return is_short and ONE_LAUNCH.unsupported_reason(c) is None


def _takes_products(c: Call, lists: bool) -> bool:
    """Whether the router of an op has two launches; with `lists` the op wants lists of tokens."""
    is_supported = PRODUCTS.unsupported_reason(c) is None
    return is_supported and not (lists and _is_one_launch_quicker(c, MANY_LISTED_TOKENS))


def _product(c: Call) -> Call:
    """The call of gemm_a16w16 that gives the logits."""
    sizes = {"M": c.M, "N": c.E, "K": c.D}
    types = dict.fromkeys(("x_dtype", "w_dtype", "dtype"), c.x_dtype)
    views = {"x": c.tensors.get("x"), "w": c.tensors.get("router_weight")}
    return Call(c.arch, c.cu_num, c.device, sizes, types, views)


def _logits(c: Call) -> NestedRun:
    gemm, call = GEMM.kernels["stream"], _product(c)
    run = gemm.variant(call, gemm.default(call))(c.M, c.E, c.D)
    return NestedRun(run, gemm.arguments, {"out": "logits", "w": "router_weight"})


class Hip(Kernel):
    """The HIP kernel: logits and the choice of experts in one launch."""

    name = "hip"
    module = "moe_router"

    def unsupported_reason(self, c: Call) -> str | None:
        return (
            self.unsupported_arch_reason(c)
            or refuses_choosing(c, MAX_EXPERTS)
            or _refuses_scores(c)
            or refuses_rows(c, c.E)
        )

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


def lists_tokens(c: Call, experts: int) -> bool:
    """Whether the router of an op lists the tokens of each expert, where the op wants lists: the
    kernel of one launch does."""
    return c.has("router_weight") and not _takes_products(c.with_sizes(E=experts), lists=True)


def steps(
    c: Call, experts: int, arguments: Mapping[str, str], lists: bool = False
) -> tuple[Sequence[Bindable], Mapping[str, Shaped]]:
    """The launches that write `weights` and `ids` of an op, none without a router, and their
    workspace; `arguments` has other names. The op's own workspace is `outer` with a router."""
    if not c.has("router_weight"):
        return (), {}
    routed = c.with_sizes(E=experts)
    if _takes_products(routed, lists):
        return PRODUCTS.steps(routed, arguments), {"logits": ((c.M, experts), c.x_dtype)}
    return [step(c, experts, lists, arguments)], {}


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


def _refuses_scores(c: Call) -> str | None:
    """Why the kernel of one launch does not take these scores."""
    values = c.values
    if values.get("score", "softmax") != "softmax" or values.get("num_groups", 1) > 1:
        return "it scores by softmax alone, without groups"
    if c.has("bias") or values.get("scale", 1.0) != 1.0:
        return "it takes no bias and no scale"
    return None


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


PRODUCTS, ONE_LAUNCH = Products(), Hip()


class Torch(Kernel):
    """The reference in plain torch, for every device and call."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        options = choice_options(c.values)

        def run_of(_m: int, _d: int, _experts: int, k: int) -> Run:
            def run(results: Any, x: Any, w: Any, bias: torch.Tensor | None = None) -> None:
                chosen_pair = choose(x @ w.T, bias, k, **options)
                for result, tensor in zip(results, chosen_pair, strict=True):
                    result.copy_(tensor)

            return run

        return run_of


class _Router(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **values: Any) -> Call:
        defaults = {"router_weight_dtype": values.get("x_dtype", torch.bfloat16)}
        return super().call_of(arch, cu_num, **{**defaults, **values})

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        _m, _d, experts, k = sizes
        if refusal := refuses_groups(c, experts, k):
            return refusal
        if c.x_dtype != c.router_weight_dtype:
            shown = str(c.router_weight_dtype)
            return "router_weight", f"{c.x_dtype} as x is", shown, "convert it first"
        return None

    def is_empty(self, c: Call) -> bool:
        return bool(c.M == 0)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Small whole numbers, one of eight of x not 0: logits are whole in any order of the sum,
        so that no rounding decides between experts."""
        x = draw.ints((c.M, c.D), -1, 2) * (draw.ints((c.M, c.D), 0, 8) == 0)
        weight = draw.ints((c.E, c.D), -1, 2)
        return {"x": x.to(c.x_dtype), "router_weight": weight.to(c.router_weight_dtype)}

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
    bias: bf16|f16|f32[E]?
    num_groups: int >= 1
    topk_groups: int >= 1
    score: softmax|sigmoid|sqrtsoftplus
    scale: float
    -> weights: f32[M, K]
    -> ids: i32[M, K]
    """,
    sizes="M D E K",
    positive="D E",
    kernels=(PRODUCTS, ONE_LAUNCH, Torch()),
    coarse={"M": MANY_TOKENS},
    max_bytes=None,
    usual={"round_scores": True, "scale": 1.0},
    shapes={
        "published": grid("D E K", [(7168, 32, 4)], M=(64, 2048, 8192), x_dtype=(torch.float16,)),
        "models": grid("D E K", [(4096, 128, 8), (4096, 8, 2)], M=(1, 64, 2048)),
        "deepseek_v3": grid(
            "D E K num_groups topk_groups",
            [(7168, 256, 8, 8, 4)],
            M=(1, 16, 64),
            bias=(True,),
            renormalize=(True,),
            score=("sigmoid",),
            scale=(2.5,),
            round_scores=(False,),
        ),
    },
    hints={
        "x": "convert it first",
        "router_weight": "convert it first",
        "bias": "pass one number for each expert, or None",
    },
)


def moe_router(
    x: torch.Tensor,
    router_weight: torch.Tensor,
    top_k: int,
    renormalize: bool = False,
    *,
    round_scores: bool = True,
    num_groups: int = 1,
    topk_groups: int = 1,
    bias: torch.Tensor | None = None,
    score: str = "softmax",
    scale: float = 1.0,
    weights: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top_k experts of each token by the scores of x @ router_weight^T, the best first.

    Parameters
    ----------
    x : [M, D] bfloat16 or float16, any strides.
    router_weight : [E, D] of the same dtype.
    top_k : of E.
    renormalize : the weights of a token add up to `scale`.
    round_scores : scores are rounded to x's dtype before they are compared, as torch does when it
        computes them in that dtype; otherwise fp32 scores of logits are, which are rounded to it in
        any case.
    num_groups, topk_groups : E / num_groups neighbouring experts are a group.
    bias : [E] bfloat16, float16 or float32, or None, added to the scores for the choice alone.
    score : "softmax", "sigmoid" or "sqrtsoftplus" of the logits.
    scale : what weights are multiplied by in the end. DeepSeek-V3's router has num_groups=8,
        topk_groups=4, a bias, score="sigmoid", scale=2.5 and round_scores=False.
    weights, ids : [M, top_k] float32 and int32, written in place where given.

    Returns weights and ids; of equal experts the lowest id comes first. A logit of NaN counts as
    the least: ids are always top_k different ints from 0 to E - 1. Deterministic. Raises ValueError
    for what does not fit, and what building the kernel raises.

    Source: top-k gating, Outrageously Large Neural Networks (arXiv:1701.06538), 2.1, without noise,
    the softmax taken first; DeepSeek-V3 (arXiv:2412.19437), 2.1.2: sigmoid, bias and groups.
    """
    call: Callable[..., Any] = OP.traced if is_dynamo_compiling() else OP.call
    results: tuple[torch.Tensor, torch.Tensor] = call(
        x,
        router_weight,
        top_k,
        renormalize,
        round_scores,
        bias,
        num_groups,
        topk_groups,
        score,
        scale,
        weights,
        ids,
    )
    return results


moe_router.supports = OP.supports  # type: ignore[attr-defined]


def moe_router_ref(
    x: torch.Tensor,
    router_weight: torch.Tensor,
    top_k: int,
    renormalize: bool = False,
    round_scores: bool = True,
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    score: str = "softmax",
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`moe_router` in plain fp32 torch, on any device, of x [M, D] and router_weight [E, D].

    Logits are rounded to x's dtype. Returns weights and ids, [M, top_k] float32 and int32. Raises
    torch's RuntimeError for sizes that do not fit each other.

    Source: Outrageously Large Neural Networks (arXiv:1701.06538), 2.1, without noise.
    """
    logits = (x.to(torch.float32) @ router_weight.to(torch.float32).T).to(x.dtype)
    return choose(
        logits,
        bias,
        top_k,
        num_groups=num_groups,
        topk_groups=topk_groups,
        renormalize=renormalize,
        score=score,
        scale=scale,
        round_scores=round_scores,
    )


OP.reference = moe_router_ref
