"""fused_moe with FP8 weights and fp32 scales of 128 x 128, DeepSeek-V3's own format.

    q(v) = v in FP8 and back, with a scale for each 1 x 128 (quant_fp8_blockscale)
    h[t, e] = q(silu(g) * u),  g, u = q(x[t]) @ gate[e]^T, q(x[t]) @ up[e]^T,  w1[e] = gate over up
    out[t] = sum over j of topk_weights[t, j] * (h[t, e_j] @ w2[e_j]^T),  e_j = topk_ids[t, j]

silu(g) * u is rounded to x's dtype before it is quantised, as where the two products are two ops.

| kernel | what it takes |
|---|---|
| stream (kernels/fp8/stream.py) | up to 32 tokens; first up to 16 of short experts |
| listed (kernels/listed.py) | up to 512 tokens; beside `hip` by predicted time |
| hip (kernels/fp8/hip.py) | gfx942 (e4m3fnuz) and gfx950 (e4m3), up to 512 experts |
| triton (kernels/fp8/triton.py) | AMD's, and NVIDIA's with FP8 |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import check_int
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.layout import unwrap
from rfops.dispatch.problem import InputGenerator, grid
from rfops.jit.errors import show
from rfops.quantization.fp8_blockscale import BLOCK, quant_fp8_blockscale
from rfops.quantization.fp8_blockscale import reference as quantise
from rfops.quantization.shuffle import unshuffle_weight

from . import layers
from .experts import Weights, run_experts
from .gated_experts import ExpertWeights
from .kernels.fp8.hip import HipFp8
from .kernels.fp8.stream import FEW_BLOCKS, TILE, HipFp8Stream
from .kernels.fp8.triton import TritonFp8
from .kernels.gated.triton import StoredWeights
from .kernels.listed import HipFp8Listed
from .moe_op import HINTS, Moe, chosen, declared, moved
from .router import moe_router_ref
from .terms import ExpertsModel


def and_back(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of x in FP8 with a scale for each 1 x 128, as fp32."""
    payload, scale = quantise(x, 1, False, dtype)
    values: Tensor = (payload.float().unflatten(1, (-1, BLOCK)) * scale[:, :, None]).flatten(1)
    return values


class _Dequantised(Sequence[Tensor]):
    """Experts' weights as [K, N] of fp32, each made where it is asked for."""

    def __init__(self, w: Tensor, scale: Tensor) -> None:
        self.w, self.scale = w, scale

    def __len__(self) -> int:
        return self.w.shape[0]

    def __getitem__(self, e: Any) -> Any:
        n, k = self.w.shape[1:]
        blocks = self.w[e].float().view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
        return (blocks * self.scale[e][:, None, :, None]).view(n, k).T


def run_torch(
    out: Tensor,
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    scales: Sequence[Tensor],
    choice: Sequence[Tensor],
    num_shared: int,
) -> None:
    """The formula in fp32, expert by expert, on any device."""
    i, dtype = w2.shape[2], x.dtype
    w1_scale, w2_scale = scales
    gate = _Dequantised(w1[:, :i], w1_scale[:, : i // BLOCK])
    up = _Dequantised(w1[:, i:], w1_scale[:, i // BLOCK :])
    weights = Weights(gate, up, _Dequantised(w2, w2_scale))
    run_experts(
        out,
        and_back(x, w1.dtype),
        weights,
        choice[0],
        choice[1],
        num_shared,
        torch.float32,
        lambda h: and_back(h.to(dtype), w1.dtype),
    )


class Torch(Kernel):
    name = "torch"
    is_capturable = False

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, x: Tensor, w1: Tensor, w2: Tensor, *operands: Any) -> None:
            if c.w_layout != "raw":
                w1, w2 = unshuffle_weight(w1), unshuffle_weight(w2)
            *scales, p, ids, router = operands
            run_torch(out, x, w1, w2, scales, chosen(c, x, p, ids, router), c.E - c.R)

        return lambda *_sizes: run


# Of experts that `stream` takes first. Its time over that of `listed` in timing mode, raw and
# shuffled, 1 to 12 tokens, where `down` of `listed` does not quantise h: 4096 x 1792, MI355X 0.93
# to 1.03, MI300X 0.89 to 0.97; 6144 x 2048 and 7168 x 2048, 1.05 to 1.25 and 0.99 to 1.16.
STREAMED_I, STREAMED_D = 2048, 4096
_LISTED = HipFp8Listed()


class _Model(ExpertsModel):
    element_bytes, granule = 1.0, 32


class _Fp8Moe(Moe):
    form = "fp8"
    own_types = Moe.own_types | {"w1", "w2", "w1_scale", "w2_scale"}

    def product_type(self, c: Call) -> str:
        return "fp8"

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        _m, d, i, e, k, routed, n = sizes
        if n != 2 * i:
            expected = f"of 2 * I = {2 * i} rows an expert, gate's and then up's"
            return "w1", expected, str(n), "w1 is [E, 2I, D] where w2 is [E, D, I]"
        if d % BLOCK or i % BLOCK:
            return "D and I", f"multiples of {BLOCK}", f"D={d}, I={i}", "pad weights with zeros"
        if c.w1_dtype != c.w2_dtype:
            return "w2", f"{c.w1_dtype} as w1 is", str(c.w2_dtype), "quantise both to the same FP8"
        return self.refuses_choice(c, e, k, routed)

    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        fp8 = fp8_of(arch)
        return super().call_of(arch, cu_num, **{"w1_dtype": fp8, "w2_dtype": fp8, **arguments})

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        super().assume(sizes, values)
        sizes.setdefault("N", 2 * sizes["I"])

    def weights(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """An expert at a time: in fp32 DeepSeek-V3's 256 are 45 GB."""
        tensors: dict[str, Any] = {}
        for name, rows, k in (("w1", c.N, c.D), ("w2", c.D, c.I)):
            w = torch.empty(c.E, rows, k, dtype=c.w1_dtype, device=c.device)
            scale = torch.empty(c.E, rows // BLOCK, k // BLOCK, device=c.device)
            for e in range(c.E):
                values = draw.floats((rows, k)) / k**0.5
                w[e], scale[e] = quantise(values, BLOCK, False, c.w1_dtype)
            tensors |= {name: w, f"{name}_scale": scale}
        return tensors

    def order(self, c: Call) -> Sequence[str]:
        """`stream` first up to 16 tokens of experts so short that it has two launches; then
        `listed` and `hip` by their predicted times. Timing mode, up to 16 tokens, MI355X and
        MI300X: `stream` took 0.86 to 0.98 of `listed`'s time with I of 256, `listed` 0.86 to 0.96
        of `stream`'s with I of 384 to 1536, where its `down` quantises h."""
        if c.I <= FEW_BLOCKS * BLOCK:
            max_tokens = TILE
        elif _LISTED.raw_blocks(c) or c.D > STREAMED_D:
            max_tokens = 0
        else:
            # MI300X, 4 tokens of 4096 x 1536: 165.5 us, by `listed` 163.8; 1 token: 54.0, 58.8.
            max_tokens = 3 if c.arch == "gfx942" else TILE
        return moved(super().order(c), HipFp8Stream.name, c.M <= max_tokens and c.I <= STREAMED_I)

    def draw(self, rng: random.Random) -> dict[str, Any]:
        return layers.draw(rng, BLOCK)

    def roundings(self, c: Call) -> int:
        """Count roundings: of fp32 sums along both K; of h and the experts' results, which are
        rounded to x's dtype; and of h in FP8: an element between two of it may become either, an
        eighth apart, few of a row do, and a block's largest may move the others too: 2^-8 of the
        sum of |h|'s products. What is taken here is D/2 times that sum at least, as gate and up are
        of absolute values, whose sums do not cancel."""
        rounded = 2**13 if c.dtype == torch.float16 else 2**16
        return int(2 * (c.D + c.I + c.K) + 64 + (2 * rounded + 2**16) / (c.D / 2))


OP = _Fp8Moe(
    "fused_moe_fp8",
    declared(
        "w1: e4m3|e4m3fnuz[E, N, D] @16",
        "w2: e4m3|e4m3fnuz[E, D, I] @16",
        "w1_scale: f32[E, N^128, D/128]",
        "w2_scale: f32[E, D^128, I/128]",
        x="x: bf16|f16[M, D] @16",
        more_args=("w_layout: raw|16x16",),
    ),
    sizes="M D I E K R N",
    positive="E D I",
    table="M+ D I E K R?",
    kernels=(HipFp8(), HipFp8Stream(), _LISTED, TritonFp8(), Torch()),
    max_bytes=None,
    time_model=_Model,
    shapes={
        # DeepSeek-V3 of TP8, whole, and Qwen3-235B-A22B
        "models": grid(
            "D I E K",
            [(7168, 256, 256, 8), (7168, 2048, 256, 8), (4096, 1536, 128, 8)],
            M=(1, 16, 64, 2048),
        ),
    },
    hints={
        **HINTS,
        "w1": "quantise it with scales of 128 x 128",
        "w2": "quantise it with scales of 128 x 128",
        "w1_scale": "pass fp32, one for each block of 128 x 128",
        "w2_scale": "pass fp32, one for each block of 128 x 128",
    },
)


def call(x: Tensor, *arguments: Any) -> Tensor:
    """fused_moe's quant="fp8_blockscale", of its w1, w2, scales, choice, num_shared, how, rounding,
    out and config."""
    *weights, out, config = arguments
    run: Callable[..., Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return run(*_arguments(x, *weights), out, config)


def _arguments(
    x: Tensor,
    w1: Any,
    w2: Any,
    w1_scale: Any,
    w2_scale: Any,
    choice: tuple[Any, ...],
    num_shared: int,
    router_flags: tuple[bool, bool],
    rounding: Any,
) -> tuple[Any, ...]:
    """The op's, of those of fused_moe."""
    if rounding is not None:
        OP.fail("rounding", "None", show(rounding), "fp32 scales are not rounded")
    (w1, layout), (w2, layout_2) = unwrap(w1), unwrap(w2)
    if layout != layout_2:
        OP.fail("w2", f"{layout} as w1 is", layout_2, "shuffle both or neither")
    dtype = x.dtype if isinstance(x, Tensor) else torch.bfloat16
    dtype = dtype if dtype in (torch.bfloat16, torch.float16) else torch.bfloat16  # x is refused
    experts = w2.shape[0] if isinstance(w2, Tensor) and w2.dim() else 0
    routed = experts - check_int(OP.name, "num_shared", num_shared, 0, experts)
    return x, w1, w2, w1_scale, w2_scale, *choice, routed, *router_flags, dtype, layout


def weights_of(
    x: Tensor,
    w1: Any,
    w2: Any,
    w1_scale: Any,
    w2_scale: Any,
    choice: tuple[Any, ...],
    num_shared: int,
    rounding: Any,
    out: Tensor | None,
) -> ExpertWeights:
    """What gated_experts.py computes with, of fused_moe's arguments; checked as a call's."""
    scales, flags = (w1_scale, w2_scale), (False, False)
    args = _arguments(x, w1, w2, *scales, choice, num_shared, flags, rounding)
    c, _ = OP.check((*args, out, None))
    w1, w2, w1_scale, w2_scale = args[1:5]
    dtype = w1.dtype

    def values(w: Tensor, scale: Tensor, e: int) -> Tensor:
        expert_w = w[e : e + 1] if args[-1] == "raw" else unshuffle_weight(w[e : e + 1])
        matrix: Tensor = _Dequantised(expert_w, scale[e : e + 1])[0].T
        return matrix

    def operand(rows: Tensor) -> tuple[Tensor, Tensor]:
        payload, scale = quant_fp8_blockscale(rows, dtype=dtype)
        return payload.view(torch.uint8), scale

    return ExpertWeights(
        len(w2),
        w1.shape[1],
        lambda e: values(w1, w1_scale, e),
        lambda e: values(w2, w2_scale, e),
        lambda rows: and_back(rows, dtype),
        StoredWeights("fp8", c, w1, w2, w1_scale, w2_scale, operand),
    )


def _reference(x: Tensor, w1: Tensor, w2: Tensor, *arguments: Any) -> Tensor:
    *scales, p, ids, router, top_k, routed, renormalize, round_scores, dtype, layout = arguments
    if router is not None:
        p, ids = moe_router_ref(x, router, top_k, renormalize, round_scores)
    if layout != "raw":
        w1, w2 = unshuffle_weight(w1), unshuffle_weight(w2)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    run_torch(out, x, w1, w2, scales, (p, ids), w1.shape[0] - routed)
    return out


OP.reference = _reference
