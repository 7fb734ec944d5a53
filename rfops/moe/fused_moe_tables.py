"""fused_moe of weights in tables: of each expert a gate and an up [D, I] and a down [I, D], tensors
of their own, as the challenge of 2025 and plain modules hold them. No copy is made of them.

| kernel | what it takes |
|---|---|
| hip (fused_moe_hip.py) | gfx942 and gfx950: D and I multiples of 8, up to 64 experts |
| triton (fused_moe_triton.py) | every architecture that Triton knows |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import Draw, grid

from .experts import Weights, experts_ref, run_experts
from .fused_moe_hip import HipMoe
from .fused_moe_triton import TritonMoe
from .router import moe_router, moe_router_ref


class Torch(Kernel):
    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, x: Tensor, gate: Any, up: Any, down: Any, *choice: Any) -> None:
            run_experts(out, x, Weights(gate, up, down), *chosen(c, x, *choice), c.E - c.R)

        return lambda *_sizes: run


def chosen(
    c: Call, x: Tensor, p: Tensor | None, ids: Tensor | None, router: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the caller has chosen, or the router does."""
    if router is None:
        assert p is not None and ids is not None, "the checks have looked"
        return p, ids
    return moe_router(x, router, c.K, c.renormalize, round_scores=c.round_scores)


class Moe(Op):
    """What both layouts of weights share."""

    # Of the tensors, those whose type is not x's.
    own_types: ClassVar[frozenset[str]] = frozenset(("topk_weights", "topk_ids"))

    def refuses(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        return self.refuses_choice(c, *sizes[3:6])

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        sizes.setdefault("R", sizes["E"])

    def refuses_choice(
        self, c: Call, experts: int, k: int, routed: int
    ) -> tuple[str, str, str, str] | None:
        """What the values are to the experts there are; that of all tensors there are those."""
        if routed > experts:
            return "routed", f"at most E={experts}", str(routed), "pass num_shared of 0 or more"
        if c.has("router_weight") and k > routed:
            return (
                "top_k",
                f"at most {routed}, the experts that are not shared",
                str(k),
                "pass fewer",
            )
        given = [c.has(name) for name in ("topk_weights", "topk_ids", "router_weight")]
        if c.tensors and given not in ([True, True, False], [False, False, True]):
            wanted = "tensors, both of them, or a router_weight in their place"
            return "topk_weights and topk_ids", wanted, "not so", "pass these two"
        for arg in self.declaration.tensors:
            if arg.name in self.own_types or not c.has(arg.name):
                continue
            dtype = c.values.get(f"{arg.name}_dtype", c.x_dtype)
            if dtype != c.x_dtype:
                return arg.name, f"{c.x_dtype} as x is", str(dtype), "convert it first"
        return None

    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **given: Any) -> Call:
        dtype = given.get("x_dtype", given.get("dtype", torch.bfloat16))
        names = [arg.name for arg in self.declaration.tensors if arg.name not in self.own_types]
        alike: dict[str, Any] = {f"{name}_dtype": dtype for name in names}
        alike["topk_ids_dtype"] = torch.int32
        return super().call_of(arch, cu_num, **{**alike, "dtype": dtype, **given})

    def is_empty(self, c: Call) -> bool:
        return bool(c.M == 0 or c.D == 0)

    def fit(self, c: Call, draw: Draw) -> Mapping[str, Any]:
        """Different experts of a token; weights of subclasses are such that results are about 1."""
        ids = draw.picks(c.M, c.K, c.R).to(c.topk_ids_dtype)
        router = draw.floats((c.R, c.D), c.x_dtype) / c.D**0.5 if c.has("router_weight") else None
        chosen = {"topk_ids": ids, "topk_weights": draw.floats((c.M, c.K)).softmax(1)}
        return {
            "router_weight": router,
            **(dict.fromkeys(chosen) if router is not None else chosen),
        }

    def flops(self, c: Call) -> int:
        return int(6 * c.M * (c.K + c.E - c.R) * c.D * c.I)

    def roundings(self, c: Call) -> int:
        """Of fp32 sums along both K; and h and the experts' results are rounded to x's dtype, whose
        unit is 2^13 or 2^16 of fp32's: of the sum of products of |h|, which is less than a
        sixteenth of what all operands' absolute values give."""
        rounded = 2**13 if c.dtype == torch.float16 else 2**16
        return int(2 * (c.D + c.I + c.K) + 64 + 2 * rounded / 16)


class _Tables(Moe):
    def fit(self, c: Call, draw: Draw) -> Mapping[str, Any]:
        def matrices(rows: int, columns: int) -> tuple[Tensor, ...]:
            made = [draw.floats((rows, columns), c.x_dtype) / rows**0.5 for _ in range(c.E)]
            return tuple(made)

        own = {"gate": matrices(c.D, c.I), "up": matrices(c.D, c.I), "down": matrices(c.I, c.D)}
        return {**super().fit(c, draw), **own}


OP = _Tables(
    "fused_moe_tables",
    """
    x: bf16|f16[M, D] strided
    gate: bf16|f16[D, I] @16 x E
    up: bf16|f16[D, I] @16 x E
    down: bf16|f16[I, D] @16 x E
    topk_weights: f32[M, K]?
    topk_ids: i32|i64[M, K]?
    router_weight: bf16|f16[R, D]? strided
    top_k: K >= 1
    routed: R >= 0
    renormalize: bool
    round_scores: bool
    dtype: bf16|f16
    -> out: dtype[M, D]
    """,
    sizes="M D I E K R",
    positive="E",
    kernels=(HipMoe(is_table=True), TritonMoe(is_table=True), Torch()),
    max_bytes=None,
    shapes={
        # The challenge of 2025: 32 experts and a shared one
        "published": grid("D I E K R", [(7168, 2048, 33, 4, 32)], M=(512, 2048, 8192),
                          x_dtype=(torch.float16,)),
    },
    hints={
        "x": "convert it first",
        "topk_weights": "convert them with .float()",
        "topk_ids": "convert them with .to(torch.int32)",
    },
)  # fmt: skip


def fused_moe_tables_ref(
    x: Tensor, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor],
    topk_weights: Tensor, topk_ids: Tensor, num_shared: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """The formula in plain fp32 torch, or fp64 where x is, on any device."""
    made = experts_ref(x, Weights(gate, up, down), topk_weights, topk_ids, num_shared)
    return made if made.dtype == torch.float64 else made.to(dtype)


def reference_of(weights: Weights, x: Tensor, *rest: Any) -> Tensor:
    """As the ops declare their arguments, from topk_weights on."""
    p, ids, router, top_k, routed, renormalize, round_scores, dtype = rest
    if router is not None:
        p, ids = moe_router_ref(x, router, top_k, renormalize, round_scores)
    made = experts_ref(x, weights, p, ids, weights.experts - routed)
    return made if made.dtype == torch.float64 else made.to(dtype)


def _reference(x: Tensor, gate: Any, up: Any, down: Any, *rest: Any) -> Tensor:
    return reference_of(Weights(gate, up, down), x, *rest)


OP.reference = _reference
