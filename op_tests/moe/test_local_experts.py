"""fused_moe's arguments of expert parallelism and of single choices: expert_map, the router's
weight on the input, rows that are not combined, and their pairs; against the formula in fp32."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rfops
from rfops.moe.local_experts import local_ids
from rfops.quantization.fp8_blockscale import fp8_of_device
from rfops.quantization.mxfp4 import dequant_mxfp4
from rfops.rowwise.act_mul import act_mul_ref

BF16, I32 = torch.bfloat16, torch.int32
E, D, I, M, K = 4, 256, 256, 5, 3  # noqa: E741 - the formula's own letters
ALL = 7  # experts of all ranks
MAP = torch.tensor([-1, 2, 0, -1, 3, 1, -1], dtype=I32)
FORMATS = ("bf16", "fp8_blockscale", "mxfp4")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["gfx950", pytest.param("gfx942", marks=pytest.mark.sweep)], autouse=True)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def quantised(
    x: torch.Tensor, format: str, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Payload, scale and values of x, in FP8 by blocks of `rows` x 128."""
    if format == "mxfp4":
        payload, scale = rfops.quant_mxfp4(x)
        return payload, scale, dequant_mxfp4(payload, scale, torch.float32)
    payload, scale = rfops.quant_fp8_blockscale(x, (rows, 128), dtype=fp8_of_device(x.device))
    wide = scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return payload, scale, payload.float() * wide


class Problem:
    """Weights of a format, the values that they stand for, and choices of M tokens."""

    def __init__(self, format: str, ids_dtype: torch.dtype = I32) -> None:
        self.x = random(M, D).to(BF16)
        self.weights = torch.rand(M, K, generator=torch.Generator().manual_seed(1))
        self.ids = torch.stack([torch.randperm(ALL)[:K] for _ in range(M)]).to(ids_dtype)
        self.ids[0, 0], self.ids[1, 1] = -1, ALL  # of nobody
        values = random(E, 2 * I, D, seed=2) / D**0.5, random(E, D, I, seed=3) / I**0.5
        self.words: dict[str, Any] = {}
        self.bound = 8e-3  # of a row's norm: its rounding, h's and an expert row's to bf16
        self.rounded: Callable[[torch.Tensor], torch.Tensor] = lambda row: row
        if format == "bf16":
            self.given = tuple(w.to(BF16) for w in values)
            self.exact = tuple(w.float() for w in self.given)
            return
        self.bound = 3e-2  # a code of h that falls the other way: 2^-2 of some element at most
        self.rounded = lambda row: quantised(row.to(BF16)[None], format, 1)[2][0]
        pairs = []
        for w in values:
            pairs.append(quantised(w.flatten(0, 1).to(BF16), format, 128))
        self.given = tuple(
            p.view(E, w.shape[1], -1) for (p, _, _), w in zip(pairs, values, strict=True)
        )
        self.exact = tuple(v.view(w.shape) for (_, _, v), w in zip(pairs, values, strict=True))
        scales = [s.view(E, -1, s.shape[1]) for _, s, _ in pairs]
        self.words = {"quant": format, "w1_scale": scales[0], "w2_scale": scales[1]}

    def run(self, **words: Any) -> torch.Tensor:
        choice = self.weights, self.ids
        return rfops.fused_moe(self.x, *self.given, *choice, **self.words, **words)

    def expected(
        self,
        expert_map: torch.Tensor | None = None,
        apply_router_weight_on_input: bool = False,
        combine: bool = True,
        bias1: torch.Tensor | None = None,
        bias2: torch.Tensor | None = None,
        **gating: Any,
    ) -> torch.Tensor:
        """The formula, choice by choice."""
        w1, w2 = self.exact
        rows = torch.zeros(M, K, D)
        for t, j in itertools.product(range(M), range(self.ids.shape[1])):
            e = int(self.ids[t, j])
            if expert_map is not None:
                e = int(expert_map[e]) if 0 <= e < len(expert_map) else -1
            if not 0 <= e < E:
                continue
            weight, x = self.weights[t, j], self.x[t].float()
            x = self.rounded(x * weight if apply_router_weight_on_input else x)
            g = w1[e] @ x if bias1 is None else w1[e] @ x + bias1[e]
            row = w2[e] @ self.rounded(act_mul_ref(g, **{"activation": "silu", **gating}))
            row = row if bias2 is None else row + bias2[e]
            rows[t, j] = row if apply_router_weight_on_input else row * weight
        return rows.sum(1) if combine else rows

    def check(self, actual: torch.Tensor, **words: Any) -> None:
        expected = self.expected(**words)
        assert actual.shape == expected.shape and actual.dtype == BF16
        error = (actual.float() - expected).norm(dim=-1)
        share = torch.where(error.isnan(), math.inf, error / expected.norm(dim=-1).clamp(min=1e-6))
        worst = tuple(int(n) for n in torch.unravel_index(share.argmax(), share.shape))
        assert share[worst] <= self.bound, f"row {worst}: {share[worst]:.2e} of its norm"


CASES: dict[str, dict[str, Any]] = {
    "map": {"expert_map": MAP},
    "input": {"apply_router_weight_on_input": True},
    "rows": {"combine": False},
    "map, input": {"expert_map": MAP, "apply_router_weight_on_input": True},
    "map, rows": {"expert_map": MAP, "combine": False},
    "input, rows": {"apply_router_weight_on_input": True, "combine": False},
    "all": {"expert_map": MAP, "apply_router_weight_on_input": True, "combine": False},
}


WITHOUT_GATING = set(CASES)
BIASES = {"bias1": random(E, 2 * I, seed=4), "bias2": random(E, D, seed=5)}
CASES |= {
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "swiglu": {"activation": "swiglu"},
    "clamped silu": {"activation": "swiglu", "alpha": 1.0, "limit": 0.5, "beta": 0.0},
    "bias1": {"bias1": BIASES["bias1"]},
    "bias2": {"bias2": BIASES["bias2"]},
    "pairs of gate and up": {"interleaved": True},
    "GPT-OSS": {"activation": "swiglu", "interleaved": True, **BIASES},
    "map, biases": {"expert_map": MAP, **BIASES},
    "input, biases": {"apply_router_weight_on_input": True, **BIASES},
    "rows, biases": {"combine": False, **BIASES},
    "map, gelu": {"expert_map": MAP, "activation": "gelu"},
    "input, swiglu": {"apply_router_weight_on_input": True, "activation": "swiglu"},
    "rows, gelu": {"combine": False, "activation": "gelu"},
}


GATINGS = set(CASES) - WITHOUT_GATING
ALWAYS = {"GPT-OSS", "gelu"}  # of gatings of quantised weights, each of which builds two kernels
PAIRS = [
    pytest.param(
        format,
        case,
        marks=pytest.mark.sweep if format != "bf16" and case in GATINGS - ALWAYS else (),
    )
    for format in FORMATS
    for case in CASES
]


@pytest.mark.parametrize(("format", "case"), PAIRS)
def test_arguments_and_their_pairs(format: str, case: str) -> None:
    p, words = Problem(format), CASES[case]
    p.check(p.run(**words), **words)


@pytest.mark.parametrize(
    "format",
    ["bf16", "mxfp4", pytest.param("fp8_blockscale", marks=pytest.mark.sweep)],
)
def test_biases_of_shuffled_weights(format: str) -> None:
    """The layouts that engines have: the same values, so the same result."""
    p = Problem(format)
    expected = p.run(**BIASES, activation="swiglu")
    p.given = tuple(map(rfops.shuffle_weight, p.given))  # type: ignore[assignment,arg-type]
    if format == "mxfp4":
        for name in ("w1_scale", "w2_scale"):
            p.words[name] = rfops.shuffle_scale(p.words[name].flatten(0, 1))
    assert torch.equal(p.run(**BIASES, activation="swiglu"), expected)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_shared_experts_with_biases(dtype: torch.dtype) -> None:
    """The last expert is everybody's, with weight 1, and ids of it add nothing."""
    p, biases = Problem("bf16"), {name: bias.to(dtype) for name, bias in BIASES.items()}
    made = p.run(**biases, num_shared=1)
    p.ids = torch.cat([torch.where(p.ids < E - 1, p.ids, -1), torch.full((M, 1), E - 1)], 1).to(I32)
    p.weights = torch.cat([p.weights, torch.ones(M, 1)], 1)
    assert torch.equal(made, p.run(**biases))


@pytest.mark.parametrize("case", ["input", "rows", "all", "GPT-OSS"])
def test_results_in_out(case: str) -> None:
    p, words = Problem("bf16"), CASES[case]
    plain = p.run(**words)
    for out in (torch.full_like(plain, math.nan), torch.full_like(plain.mT, math.nan).mT):
        assert (
            p.run(**words, out=out) is out or out.data_ptr() == p.run(**words, out=out).data_ptr()
        )
        assert torch.equal(out, plain)


def test_one_choice_a_token_and_none() -> None:
    p = Problem("bf16", torch.int64)
    p.weights, p.ids = p.weights[:, :1].contiguous(), p.ids[:, :1].contiguous()
    one = p.run(apply_router_weight_on_input=True)
    own = rfops.fused_moe((p.x * p.weights).to(BF16), *p.given, torch.ones_like(p.weights), p.ids)
    assert torch.equal(one, own)
    p.x, p.weights, p.ids = p.x[:0], p.weights[:0], p.ids[:0]
    assert p.run(combine=False).shape == (0, 1, D)
    assert p.run(apply_router_weight_on_input=True, expert_map=MAP).shape == (0, D)


@pytest.mark.parametrize("dtype", [I32, torch.int64])
def test_local_ids(dtype: torch.dtype) -> None:
    ids = torch.tensor([[1, 4], [6, 0], [-1, 7], [2**31 - 1, 5]], dtype=dtype)
    assert local_ids(ids, MAP).tolist() == [[2, 3], [-1, -1], [-1, -1], [-1, 1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"expert_map": MAP.long()}, r"expert_map must be int32 \[all experts\]"),
        ({"expert_map": MAP[None]}, "expert_map must be int32"),
        ({"expert_map": MAP[:0]}, "expert_map must be int32"),
        ({"expert_map": [0, 1]}, "expert_map must be int32"),
        ({"combine": "no"}, "combine must be"),
        ({"activation": "relu"}, "activation must be silu, gelu, gelu_tanh, swiglu, got 'relu'"),
        ({"bias1": torch.ones(E, I)}, r"bias1 must be \[E=4, 512\] bfloat16"),
        ({"bias2": torch.ones(E, D).long()}, r"bias2 must be \[E=4, 256\] bfloat16"),
        ({"bias2": 3}, r"bias2 must be \[E=4, 256\] bfloat16"),
        ({"apply_router_weight_on_input": 2}, "apply_router_weight_on_input must be"),
        ({"combine": False, "num_shared": 1}, "combine must be True with shared experts"),
        (
            {"apply_router_weight_on_input": True, "num_shared": 1},
            "apply_router_weight_on_input must be False with shared experts",
        ),
        ({"combine": False, "out": torch.empty(M, D, dtype=BF16)}, r"out must be \[5, 3, 256\]"),
        (
            {"apply_router_weight_on_input": True, "out": torch.empty(M, K, D, dtype=BF16)},
            r"out must be \[5, 256\] of x's dtype",
        ),
    ],
)
def test_refusals(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^fused_moe: {message}"):
        Problem("bf16").run(**words)
