"""mla_layer_decode_fp8: by its steps' references, and a sequence of decode steps over a paged cache
against a model in float32 that neither absorbs nor quantises activations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import rfops
from rfops.attention.mla_layer_decode_fp8 import OP, mla_layer_decode_fp8
from rfops.attention.rotary import rope_cos_sin
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.problem import Problem, call_on, poison
from rfops.quantization.fp8_blockscale import reference as quantise

BF16 = torch.bfloat16
D, R, H = 256, 128, 16
NOPE, ROPE, V, LATENT = 128, 64, 128, 512


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def off(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, as a share."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("kv_dtype", [BF16, "fp8"])
def test_by_the_references_of_its_steps(kv_dtype: Any, arch: str) -> None:
    """A row of the cache differs where a sum in another order rounds the other way: by an ulp of
    bfloat16, or of FP8, of few elements. Results differ where a bfloat16 in between rounds
    the other way: of the attention's 2^-9 of its values, of which a share of 2^-9 / 2^-4 flips an
    FP8 by up to 2^-3, so sqrt(2^-5) * 2^-4 = 1.1 % of the norm, once for value and less before."""
    sizes = {"B": 3, "D": D, "R": R, "H": H, "page": 16, "W": 2, "C": 64, "kv_dtype": kv_dtype}
    problem = Problem(OP, call_on(OP, sizes, torch.device("cpu")))
    problem.renew()
    with rfops.vgpu.check() as c:
        (result,) = problem.launch()
    assert not c.findings, "\n".join(map(str, c.findings))
    expected, cache = problem.expected[0]
    assert off(result, expected) < 2.5e-2
    kv = problem.call.inputs["kv"]
    assert off(kv, cache) < 2.0**-8
    assert (kv.float() != cache.float()).float().mean() < 1e-3
    assert OP.route(problem.call).backend == "steps"


@dataclass
class Layer:
    """Random weights: FP8 with scales, and what they stand for in float32."""

    dtype: torch.dtype
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)
    wide: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        shapes = {"qkv_a": (R + 576, D), "q_b": (H * 192, R), "o": (D, H * V)}
        for name, shape in shapes.items():
            self.add(name, random(*shape) * shape[1] ** -0.5)
        for name, shape in (("k_up", (LATENT, NOPE)), ("v_up", (V, LATENT))):
            heads = [self.quantised(random(*shape) * LATENT**-0.5) for _ in range(H)]
            self.arguments[name] = torch.stack([q for q, _, _ in heads])
            self.arguments[f"{name}_scale"] = torch.stack([scale for _, scale, _ in heads])
            self.wide[name] = torch.stack([w for _, _, w in heads])
        for name, size in (("q_norm", R), ("kv_norm", LATENT)):
            self.arguments[name] = self.wide[name] = 1 + 0.1 * random(size)

    def quantised(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        payload, scale = quantise(w, 128, False, self.dtype)
        blocks = scale.repeat_interleave(128, 0)[: w.shape[0]].repeat_interleave(128, 1)
        return payload, scale, payload.float() * blocks[:, : w.shape[1]]

    def add(self, name: str, w: torch.Tensor) -> None:
        payload, scale, self.wide[name] = self.quantised(w)
        self.arguments |= {name: payload, f"{name}_scale": scale}


class Model:
    """One sequence in float32: keys and values of each head as DeepSeek-V3's code has them."""

    def __init__(self, layer: Layer, table: torch.Tensor, sm_scale: float) -> None:
        self.w, self.table, self.sm_scale = layer.wide, table, sm_scale
        self.kv_c: list[torch.Tensor] = []
        self.k_pe: list[torch.Tensor] = []

    def rotated(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Interleaved pairs as complex numbers."""
        cos, sin = self.table[position].chunk(2)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean() + 1e-6) * self.w[name]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        a, position = self.w["qkv_a"] @ x, len(self.kv_c)
        q = (self.w["q_b"] @ self.norm(a[:R], "q_norm")).view(H, NOPE + ROPE)
        q_pe = self.rotated(q[:, NOPE:], position)
        self.kv_c.append(self.norm(a[R : R + LATENT], "kv_norm"))
        self.k_pe.append(self.rotated(a[R + LATENT :], position))
        kv_c, k_pe = torch.stack(self.kv_c), torch.stack(self.k_pe)
        k_nope = torch.einsum("tl,hln->htn", kv_c, self.w["k_up"])
        values = torch.einsum("tl,hvl->htv", kv_c, self.w["v_up"])
        scores = torch.einsum("hn,htn->ht", q[:, :NOPE], k_nope) + q_pe @ k_pe.T
        weights = torch.softmax(scores * self.sm_scale, -1)
        return self.w["o"] @ torch.einsum("ht,htv->hv", weights, values).flatten()


PAGE, STEPS = 4, 7


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
def test_decode_steps_over_a_paged_cache(kv_dtype: str, arch: str) -> None:
    """Three sequences that begin one after the other, pages in any order; YaRN in table and scale.

    Three linears quantise activations to FP8, each within 2^-3 / sqrt(12) = 3.6 % of its input's
    norm, and so does an FP8 cache: sqrt(4) * 3.6 = 7.2 % of the result together. Scores of about 1
    have such an error too, which is one of the softmax's weights: below 10 % in all."""
    layer = Layer(fp8_of(arch))
    scale = 0.1 * math.log(40) + 1
    table = rope_cos_sin(64, ROPE, factor=40.0, mscale=1.0, mscale_all_dim=1.0)
    sm_scale = (NOPE + ROPE) ** -0.5 * scale**2
    models = [Model(layer, table, sm_scale) for _ in range(3)]
    kv = torch.zeros(8, PAGE, 576).to(BF16 if kv_dtype == "bf16" else fp8_of(arch))
    kv_scale = None if kv_dtype == "bf16" else torch.tensor([0.02])
    pages = torch.tensor([[5, 0], [2, 7], [3, 1]], dtype=torch.int32)
    generator, errors = torch.Generator().manual_seed(2), []
    for time in range(STEPS):
        count = min(time + 1, 3)  # so the batch grows
        x = torch.randn(count, D, generator=generator).to(BF16)
        lens = torch.tensor([len(model.kv_c) + 1 for model in models[:count]], dtype=torch.int32)
        at = lens.long() - 1
        slots = pages[torch.arange(count), at // PAGE] * PAGE + at % PAGE
        out = poison(torch.empty(count, D, dtype=BF16))
        made = mla_layer_decode_fp8(
            x,
            kv,
            slots,
            at,
            pages[:count].contiguous(),
            lens,
            **layer.arguments,
            cos_sin=table,
            kv_scale=kv_scale,
            sm_scale=sm_scale,
            out=out,
        )
        assert made is out
        expected = torch.stack([m.step(row.float()) for m, row in zip(models, x, strict=False)])
        errors.append(off(out, expected))
    assert max(errors) < 0.1, errors
    for model, own in zip(models, pages, strict=True):
        rows = kv[own.long()].flatten(0, 1)[: len(model.kv_c)].float()
        rows = rows if kv_scale is None else rows * kv_scale
        exact = torch.cat((torch.stack(model.kv_c), torch.stack(model.k_pe)), -1)
        assert off(rows, exact) < 5e-2
    unused = kv[[4, 6]].float()
    assert (unused == 0).all()


@pytest.mark.requires_gfx950
def test_torch_and_the_bench() -> None:
    sizes = {"B": 2, "D": 128, "R": 128, "H": 16, "page": 16, "W": 2, "C": 64}
    problem = Problem(OP, call_on(OP, sizes, torch.device("cpu")))
    problem.checked(problem.launch_by(problem.prepare("torch")), "torch")
    problem.checked(problem.launch_by(problem.prepare("steps")), "steps")


GIVEN: dict[str, Any] = {"B": 2, "D": 128, "R": 128, "H": 16, "page": 16, "W": 2, "C": 64}


@pytest.mark.requires_gfx950
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("qkv_a", torch.zeros(640, 128).to(torch.float8_e4m3fn), "qkv_a must be of 704 = R . 576"),
        ("q_b", torch.zeros(2944, 128).to(torch.float8_e4m3fn), "q_b must be of 3072 = 192 a head"),
        ("o", torch.zeros(128, 1920).to(torch.float8_e4m3fn), "o must be of 2048 = 128 a head"),
        (
            "o",
            torch.zeros(128, 2048).to(torch.float8_e4m3fnuz),
            "o must be float8_e4m3fn, as qkv_a",
        ),
        ("kv", torch.zeros(4, 16, 576).to(torch.float8_e4m3fn), "kv_scale must be a tensor for a"),
        ("kv_scale", torch.ones(1), "kv_scale must be a tensor for a cache in FP8, and None for"),
        ("x", torch.zeros(2, 128), "x must be bfloat16"),
    ],
)
def test_refusals(name: str, value: torch.Tensor, message: str) -> None:
    problem = Problem(OP, call_on(OP, GIVEN, torch.device("cpu")))
    given = dict(problem.call.inputs)
    if name == "qkv_a":
        given["qkv_a_scale"] = torch.ones(5, 1)
    if name == "q_b":
        given["q_b_scale"] = torch.ones(23, 1)
    if name == "o" and value.shape[1] != 2048:
        given["o_scale"] = torch.ones(1, 15)
    with pytest.raises(ValueError, match=f"^mla_layer_decode_fp8: {message}"):
        mla_layer_decode_fp8(**{**given, name: value})
