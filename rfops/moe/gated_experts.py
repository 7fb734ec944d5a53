"""fused_moe with another activation than silu, with biases, or with weights that alone are
quantised: by Triton (kernels/gated), and in torch, expert by expert, where Triton does not take a
call, which is said once with the reason.

    g[t, e] = q(x[t]) @ w1[e]^T + bias1[e],  h[t, e] = activation(g's gate and up)
    out[t]  = sum over j of topk_weights[t, j] * (q(h[t, e_j]) @ w2[e_j]^T + bias2[e_j])

q rounds to the format of quantised weights and back, or not at all where weights alone are
quantised; h is rounded to x's dtype, sums are fp32. Triton rounds an expert's row to x's dtype too,
as the kernels of silu do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch import routing
from rfops.dispatch.guards import Guard, describe
from rfops.dispatch.kernel import Call
from rfops.dispatch.routing import Decision
from rfops.jit import log
from rfops.jit.errors import show
from rfops.rowwise.act_mul import ACTIVATIONS, act_mul_ref

from .experts import with_shared
from .kernels.gated import triton as gated_triton
from .kernels.gated.triton import Epilogue, GatedMoeTritonConfig, StoredWeights

_BIAS_TYPES = (torch.bfloat16, torch.float16, torch.float32)
# Arguments by which a call comes here, with the words of each; a flag and a tensor have none.
WORDS: Mapping[str, tuple[str, ...]] = {
    "activation": tuple(ACTIVATIONS),
    "interleaved": (),
    "bias1": (),
    "bias2": (),
}
WEIGHT_ONLY = "weight_only"  # one more, of ops whose weights may be quantised alone


@dataclass(frozen=True)
class Gating:
    """What becomes of an expert's first product: biases, and act_mul's words."""

    activation: str
    interleaved: bool
    alpha: float
    limit: float
    beta: float
    bias1: Tensor | None  # [E, 2I]
    bias2: Tensor | None  # [E, D]

    def epilogue(self) -> Epilogue:
        """What the kernels compute of it."""
        types = [None if bias is None else bias.dtype for bias in (self.bias1, self.bias2)]
        numbers = self.alpha, self.limit, self.beta
        return Epilogue(self.activation, self.interleaved, *numbers, *types)

    def words(self) -> dict[str, Any]:
        """WORDS of the call."""
        biases = {"bias1": self.bias1 is not None, "bias2": self.bias2 is not None}
        return {"activation": self.activation, "interleaved": self.interleaved, **biases}

    def check(self, experts: int, rows: int, d: int, device: torch.device) -> None:
        """Raise ValueError for an activation that is none, and for biases of another kind."""
        guard = Guard("fused_moe")
        if self.activation not in ACTIVATIONS:
            guard.fail(
                "activation", ", ".join(ACTIVATIONS), show(self.activation), "pass one of these"
            )
        for name, bias, size in (("bias1", self.bias1, rows), ("bias2", self.bias2, d)):
            if bias is None:
                continue
            is_fit = isinstance(bias, Tensor) and bias.dtype in _BIAS_TYPES
            if not is_fit or bias.shape != (experts, size) or bias.device != device:
                expected = f"[E={experts}, {size}] bfloat16, float16 or float32 on {device}"
                guard.fail(name, expected, describe(bias), "pass one for each row of an expert")


@dataclass(frozen=True)
class ExpertWeights:
    """Weights in fp32 by expert, w1 [2I, D] and w2 [D, I], and what x and h are rounded by."""

    experts: int
    rows: int  # 2I
    w1: Callable[[int], Tensor]
    w2: Callable[[int], Tensor]
    rounded: Callable[[Tensor], Tensor]
    stored: StoredWeights


def route(form: str, c: Call, words: Mapping[str, Any], hip: tuple[str, ...]) -> Decision | None:
    """Which kernel takes a call with these WORDS, and why not the op's HIP kernels `hip`; None
    where silu without biases, of rows in the weights' format, leaves it to the op."""
    requests = [f"activation {words['activation']}"] if words["activation"] != "silu" else []
    requests += [name for name in ("interleaved", "bias1", "bias2") if words[name]]
    requests += ["rows in 16 bits"] if words.get(WEIGHT_ONLY) else []
    if not requests:
        return None
    reason = gated_triton.unsupported_reason(form, c)
    backend = "triton" if reason is None else "torch"

    def explain() -> tuple[str, Mapping[str, str]]:
        refused = dict.fromkeys(hip, f"not made for {', '.join(requests)}")
        if reason is not None:
            refused["triton"] = reason
        return f"no HIP kernel is made for {', '.join(requests)}", refused

    return Decision(backend, backend.replace("triton", "Triton"), words=explain)


def check_config(form: str, c: Call, config: Any) -> None:
    """Raise ValueError for a config that is none of the gated kernels', or that does not fit."""
    if config is None:
        return
    fix = "pass one, or none for its default"
    guard, kind = Guard("fused_moe"), GatedMoeTritonConfig.__name__
    if not isinstance(config, GatedMoeTritonConfig):
        expected = f"a {kind} with biases, interleaved rows or another activation than silu"
        guard.fail("config", expected, show(config), fix)
    reason = gated_triton.unsupported_reason(form, c)
    if reason := reason or gated_triton.unsupported_config_reason(form, c, config):
        expected = f"of a kernel that takes {c} on {c.arch}"
        guard.fail("config", expected, f"{config}, and {reason}", "pass another or none")


def run(
    x: Tensor,
    weights: ExpertWeights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_shared: int,
    gating: Gating,
    config: Any = None,
) -> Tensor:
    """[M, D], by Triton of x's dtype, in the variant `config`. Torch gives fp32, and waits for the
    device once, to know which experts have tokens. Raises ValueError for the config."""
    form, c = weights.stored.form, weights.stored.call
    check_config(form, c, config)
    route_words = {**gating.words(), WEIGHT_ONLY: weights.stored.is_weight_only}
    decision = route(form, c, route_words, ())
    assert decision is not None, "the op takes other calls"
    routing.say(lambda: f"fused_moe {c} on {c.arch}", decision)
    if decision.backend == "triton":
        biases = gating.bias1, gating.bias2
        choice = topk_weights, topk_ids, biases, gating.epilogue()
        return gated_triton.run(x, weights.stored, *choice, config)
    _say_torch(decision.refused["triton"])
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    p, ids = with_shared(topk_weights, topk_ids, weights.experts, num_shared)
    rows = weights.rounded(x)
    for e in ids[ids >= 0].unique().tolist():
        token, j = (ids == e).nonzero(as_tuple=True)
        g = rows[token] @ weights.w1(e).T
        g = g if gating.bias1 is None else g + gating.bias1[e].float()
        words = gating.interleaved, gating.alpha, gating.limit, gating.beta
        h = act_mul_ref(g, gating.activation, *words).to(x.dtype)
        y = weights.rounded(h) @ weights.w2(e).T
        y = y if gating.bias2 is None else y + gating.bias2[e].float()
        total.index_add_(0, token, y * p[token, j].float()[:, None])
    return total


@functools.cache
def _say_torch(reason: str) -> None:
    log.get().warning(
        "fused_moe: biases, other activations than silu and weights that alone are quantised are "
        f"computed by torch, expert by expert; Triton does not take them: {reason}"
    )
