"""What is no argument at all, to each public function of the experts: a ValueError that names op
and argument, whatever came in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import rfops

BF16 = torch.bfloat16
JUNK: tuple[Any, ...] = (
    None,
    3,
    -1,
    2.5,
    "a",
    True,
    {},
    object(),
    b"x",
    float("nan"),
    2**70,
    torch.float16,
    torch.tensor(3),
    [1, 2],
    [None],
    (None, None),
    ([], []),
)
E, D, I, M, K = 3, 128, 128, 4, 2  # noqa: E741 - the formula's own letters


def _weights(fmt: str) -> dict[str, Any]:
    w1, w2 = torch.randn(E, 2 * I, D, dtype=BF16), torch.randn(E, D, I, dtype=BF16)
    if fmt == "lists":
        pair = [w.contiguous() for w in w1[:, :I].mT], [w.contiguous() for w in w1[:, I:].mT]
        return {"w1": pair, "w2": [w.contiguous() for w in w2.mT]}
    if fmt in ("mxfp4", "mxfp8"):
        quant = rfops.quant_mxfp4 if fmt == "mxfp4" else rfops.quant_mxfp8
        (q1, s1), (q2, s2) = (quant(w.float().flatten(0, 1)) for w in (w1, w2))
        return {
            "w1": q1.view(E, 2 * I, -1),
            "w2": q2.view(E, D, -1),
            "quant": fmt,
            "w1_scale": s1.view(E, 2 * I, -1),
            "w2_scale": s2.view(E, D, -1),
        }
    if fmt == "fp8_blockscale":
        return {
            "w1": w1.to(torch.float8_e4m3fn),
            "w2": w2.to(torch.float8_e4m3fn),
            "quant": fmt,
            "w1_scale": torch.ones(E, 2, 1),
            "w2_scale": torch.ones(E, 1, 1),
        }
    return {"w1": w1, "w2": w2}


def _cases() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    x, ids = torch.randn(M, D, dtype=BF16), torch.zeros(M, K, dtype=torch.int32)
    router = torch.randn(E, D, dtype=BF16)
    cases: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
    for fmt in ("", "lists", "mxfp4", "mxfp8", "fp8_blockscale"):
        weights = {"x": x, **_weights(fmt)}
        selected = {"topk_weights": torch.rand(M, K), "topk_ids": ids}
        cases[f"fused_moe {fmt}"] = rfops.fused_moe, weights | selected
        cases[f"moe_layer {fmt}"] = rfops.moe_layer, weights | {"router_weight": router, "top_k": K}
    cases["moe_router"] = rfops.moe_router, {"x": x, "router_weight": router, "top_k": K}
    cases["topk_softmax"] = rfops.topk_softmax, {"logits": router, "top_k": K}
    align = {"topk_ids": ids, "block_size": 16, "num_experts": E}
    cases["moe_align_block_size"] = rfops.moe_align_block_size, align
    layout = rfops.moe_align_block_size(ids, 16, E)
    (a, a_scale), w = rfops.quant_mxfp8(torch.randn(M, D)), _weights("mxfp8")
    names = "a_q", "a_scale", "w", "w_scale", "sorted_token_ids", "expert_ids"
    given = a, a_scale, w["w1"], w["w1_scale"], *layout[:2]
    cases["grouped_gemm_mxfp8"] = (
        rfops.grouped_gemm_mxfp8,
        {
            **dict(zip(names, given, strict=True)),
            "num_tokens_post_padded": layout[2],
            "num_valid_tokens": M * K,
            "top_k": K,
            "block_m": 16,
            "out_dtype": BF16,
            "a_div": K,
        },
    )
    return cases


# Values that are good ones, or of which another argument is what is wrong.
GOOD: Mapping[str, Callable[[Any], bool]] = {
    "quant": lambda v: v is None,  # with scales they are refused
    "num_shared": lambda v: v in (0, 3),
    "top_k": lambda v: v == 3,
    "block_size": lambda v: v == 3,
    "num_experts": lambda v: v == 3,
    "num_valid_tokens": lambda v: v == 3,
    "block_m": lambda v: v == 3,
    "a_div": lambda v: v == 3,
    "out_dtype": lambda v: v == torch.float16,
    "out": lambda v: v is None or isinstance(v, (list, tuple)),
}
MORE = {"rfops.moe.fused_moe": ("out", "num_shared")}
CASES = _cases()


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("case", CASES)
def test_junk_is_refused_by_name(case: str) -> None:
    function, kwargs = CASES[case]
    function(**kwargs)
    for name in (*kwargs, *MORE.get(function.__module__, ())):
        for junk in JUNK:
            if name in GOOD and not isinstance(junk, (bool, torch.Tensor)) and GOOD[name](junk):
                continue
            if case == "moe_align_block_size" and isinstance(junk, torch.Tensor):
                continue  # ids of any shape
            with pytest.raises(ValueError, match=r"^\w+: .* must be ") as raised:
                function(**{**kwargs, name: junk})
            said = str(raised.value)
            op, _, remaining = said.partition(":")
            assert op.split(".")[0] in (function.__name__, *_ops(case)), f"{name}={junk!r}: {said}"
            assert _names(remaining, name), f"{name}={junk!r}: {said}"


def _ops(case: str) -> tuple[str, ...]:
    fmt = {"lists": "tables", "fp8_blockscale": "fp8"}.get(case.split(" ")[-1], case.split(" ")[-1])
    return "fused_moe", f"fused_moe_{fmt}"


def _names(text: str, name: str) -> bool:
    """Lists' tensors are gate, up and down, and down is what does not agree with few gates."""
    also = {"w1": ("gate", "up", "down"), "w2": ("down",)}.get(name, ())
    return any(word in text for word in (name, *also))
