"""The op class of fused_moe with weights of any kind: arguments, checks and inputs, the torch
kernel and the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.checks import flat
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator
from rfops.dispatch.routing import Decision

from . import gated_experts
from .experts import Weights, experts_ref, run_experts
from .kernels.gated import triton as gated_triton
from .router import moe_router, moe_router_ref

NO_WEIGHTS = ("x", "topk_weights", "topk_ids", "router_weight")
LIST_TOKENS = 128  # that the first workgroup of any kernel here lists at least
HINTS = {
    "x": "convert it first",
    "topk_weights": "convert them with .float()",
    "topk_ids": "convert them with .to(torch.int32)",
}


def declared(
    *weights: str, x: str = "x: bf16|f16[M, D] strided", more_args: Sequence[str] = ()
) -> str:
    """The arguments of an op whose weights are declared so, and what more it has."""
    lines = (
        x,
        *weights,
        "topk_weights: f32[M, K]?",
        "topk_ids: i32|i64[M, K]?",
        "router_weight: bf16|f16[R, D]? strided",
        "top_k: K >= 1",
        "routed: R >= 0",
        "renormalize: bool",
        "round_scores: bool",
        "dtype: bf16|f16",
        *more_args,
        "-> out: dtype[M, D]",
    )
    return "\n".join(lines)


class Torch(Kernel):
    """Expert by expert. weights_of(c, tensors): those of a call."""

    name = "torch"
    is_capturable = False

    def __init__(self, weights_of: Callable[[Call, Sequence[Any]], Weights]) -> None:
        self.weights_of = weights_of

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, x: Tensor, *operands: Any) -> None:
            *weights, p, ids, router = operands
            experts = self.weights_of(c, weights)
            run_experts(out, x, experts, *chosen(c, x, p, ids, router), c.E - c.R)

        return lambda *_sizes: run


def moved(names: Sequence[str], name: str, is_first: bool) -> list[str]:
    """The kernels with that one first, or last."""
    others = [other for other in names if other != name]
    return [name, *others] if is_first else [*others, name]


def chosen(
    c: Call, x: Tensor, p: Tensor | None, ids: Tensor | None, router: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weights and ids of experts: the caller's, or the router's."""
    if router is None:
        assert p is not None and ids is not None, "the checks have looked"
        return p, ids
    return moe_router(x, router, c.K, c.renormalize, round_scores=c.round_scores)


class Moe(Op):
    """An op of a mixture's experts."""

    more_sizes: ClassVar[Mapping[str, str]] = {
        "R": "experts that are routed, the first ones; those behind are shared; default: E"
    }
    # Of the tensors, those whose type is not x's.
    own_types: ClassVar[frozenset[str]] = frozenset(("topk_weights", "topk_ids"))
    form = ""  # of weights, in kernels/gated/triton.py's words; empty: it does not take them

    @property
    def route_words(self) -> Mapping[str, Sequence[str]]:
        return gated_experts.WORDS if self.form else {}

    def route_of_words(self, c: Call, words: Mapping[str, Any]) -> tuple[Decision, Any] | None:
        hip = tuple([name for name, kernel in self.kernels.items() if kernel.is_hip])
        decision = gated_experts.route(self.form, c, words, hip) if self.form else None
        if decision is None or decision.backend != "triton":
            return None if decision is None else (decision, None)
        return decision, gated_triton.default(self.form, c)

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        return self.refuses_choice(c, *sizes[3:6])

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        sizes.setdefault("R", sizes["E"])

    def refuses_choice(
        self, c: Call, experts: int, k: int, routed: int
    ) -> tuple[str, str, str, str] | None:
        """Check top_k, routed and num_shared against the experts, and that tensors go together."""
        if routed > experts:
            return "routed", f"at most E={experts}", str(routed), "pass num_shared of 0 or more"
        if c.has("router_weight") and k > routed:
            return (
                "top_k",
                f"at most {routed}, the experts that are not shared",
                str(k),
                "pass fewer",
            )
        has_tensors = [c.has(name) for name in ("topk_weights", "topk_ids", "router_weight")]
        if c.tensors and has_tensors not in ([True, True, False], [False, False, True]):
            expected = "tensors, both of them, or a router_weight in their place"
            return "topk_weights and topk_ids", expected, "not so", "pass these two"
        for arg in self.declaration.tensors:
            if arg.name in self.own_types or not c.has(arg.name):
                continue
            dtype = c.values.get(f"{arg.name}_dtype", c.x_dtype)
            if dtype != c.x_dtype:
                return arg.name, f"{c.x_dtype} as x is", str(dtype), "convert it first"
        return None

    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        dtype = arguments.get("x_dtype", arguments.get("dtype", torch.bfloat16))
        names = [arg.name for arg in self.declaration.tensors if arg.name not in self.own_types]
        alike: dict[str, Any] = {f"{name}_dtype": dtype for name in names}
        alike["topk_ids_dtype"] = torch.int32
        return super().call_of(arch, cu_num, **{**alike, "dtype": dtype, **arguments})

    def is_empty(self, c: Call) -> bool:
        return bool(c.M == 0 or c.D == 0)

    def weights(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Return the experts' weights by argument, such that results are about 1."""
        raise NotImplementedError

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Different experts per token; the weights of a call that is only timed are zeros."""
        ids = draw.picks(c.M, c.K, c.R).to(c.topk_ids_dtype)
        router = draw.floats((c.R, c.D), c.x_dtype) / c.D**0.5 if c.has("router_weight") else None
        chosen = {"topk_ids": ids, "topk_weights": draw.floats((c.M, c.K)).softmax(1)}
        weight_inputs = {} if draw.is_light else self.weights(c, draw)
        return {
            **weight_inputs,
            "router_weight": router,
            **(dict.fromkeys(chosen) if router is not None else chosen),
        }

    def is_chained(self, c: Call) -> bool:
        """A router's choice, and the lists of tokens that several workgroups write, say what rows
        the products have."""
        return bool(c.has("router_weight") or c.M > LIST_TOKENS)

    def flops(self, c: Call) -> int:
        return int(6 * c.M * (c.K + c.E - c.R) * c.D * c.I)

    def traffic(self, c: Call) -> int:
        """Return the bytes moved; of the weights, the expected share of experts that some token
        chooses, under uniform routing."""
        weight_tensors = {
            name: value for name, value in c.tensors.items() if name not in NO_WEIGHTS
        }
        weights = sum(t.nbytes for _, t in flat(weight_tensors))
        missed = max(1 - c.K / c.R, 0) ** c.M * c.R if c.R else 0
        return int(super().traffic(c) - weights * missed / max(c.E, 1))

    def table_sizes(self, c: Call) -> tuple[int, ...]:
        """K with the shared experts. The number of routed experts, R, is a size of its own: how
        many rows experts have depends on it."""
        return tuple(
            [
                n + c.E - c.R if name == "K" else n
                for name, n in zip(self.table, super().table_sizes(c), strict=True)
            ]
        )

    def sizes_of_row(self, row_sizes: Mapping[str, int]) -> Mapping[str, int]:
        num_shared = row_sizes["E"] - row_sizes.get("R", row_sizes["E"])
        return {**row_sizes, "K": row_sizes["K"] - num_shared}

    def table_getter(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        sizes_of, names = super().table_getter(), self.declaration.sizes
        k, (e, r) = self.table.index("K"), map(names.index, "ER")

        def table_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
            plain = sizes_of(sizes)
            return *plain[:k], plain[k] + sizes[e] - sizes[r], *plain[k + 1 :]

        return table_sizes

    def roundings(self, c: Call) -> int:
        """Count roundings: of fp32 sums along both K, and of h and the experts' results to x's
        dtype, whose unit is 2^13 or 2^16 of fp32's: of the sum of products of |h|, which is less
        than a sixteenth of what all operands' absolute values give."""
        rounded = 2**13 if c.dtype == torch.float16 else 2**16
        return int(2 * (c.D + c.I + c.K) + 64 + 2 * rounded / 16)


def reference_of(weights: Weights, x: Tensor, *arguments: Any) -> Tensor:
    """Return the reference for the arguments as ops declare them, from topk_weights on."""
    p, ids, router, top_k, routed, renormalize, round_scores, dtype = arguments
    if router is not None:
        p, ids = moe_router_ref(x, router, top_k, renormalize, round_scores)
    result = experts_ref(x, weights, p, ids, weights.experts - routed)
    return result if result.dtype == torch.float64 else result.to(dtype)
