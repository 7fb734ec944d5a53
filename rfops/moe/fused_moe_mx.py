"""fused_moe with MXFP4 and with MX-FP8 weights: formats, the op class, torch kernel, reference.

    q(v) = v in the format and back, blocks of 32 along the last dimension
    h[t, e] = q(silu(g) * u),  g, u = q(x[t]) @ gate[e]^T, q(x[t]) @ up[e]^T,  w1[e] = gate over up
    out[t] = sum over j of topk_weights[t, j] * (h[t, e_j] @ w2[e_j]^T),  e_j = topk_ids[t, j]

silu(g) * u is rounded to x's dtype before it is quantised, as where the two products are two ops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import check_int, describe
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.layout import unwrap
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator
from rfops.quantization import mxfp4, mxfp8
from rfops.quantization.mxfp8 import BLOCK
from rfops.quantization.shuffle import (
    padded_scale,
    shuffle_scale,
    unshuffle_scale,
    unshuffle_weight,
)

from . import layers
from .experts import with_shared
from .gated_experts import WEIGHT_ONLY, ExpertWeights
from .kernels.gated.triton import StoredWeights
from .moe_op import Moe, chosen
from .router import moe_router_ref

RAW = "raw"
_RAW_CALLS = 0.15  # of calls that are drawn, those whose weights are raw
_MOST_WORK = 1.5e10  # multiplications of a layer that is drawn
_SHUFFLED_MULTIPLE = 256  # of I, where scales are shuffled without padding
Values = Callable[[Tensor, Tensor, torch.dtype], Tensor]


@dataclass(frozen=True)
class Format:
    """One of the two, as torch and csrc/moe/mx_format.h have it."""

    word: str
    name: str  # in csrc/
    bits: int  # of an element
    bumps: Mapping[str, int]  # of the ways to round scales, the default first
    quantise: Callable[[Tensor, str], tuple[Tensor, Tensor]]
    values: Values

    @property
    def step(self) -> int:
        """Elements of 128 bytes."""
        return 1024 // self.bits

    def and_back(self, x: Tensor, rounding: str, dtype: torch.dtype) -> Tensor:
        """Return x quantised to the format and dequantised to `dtype`."""
        return self.values(*self.quantise(x, rounding), dtype)

    def operand(self, x: Tensor, rounding: str) -> Tensor:
        """Return x quantised and back in bf16, as Triton's kernels take it."""
        return self.in_operand_order(self.and_back(x, rounding, torch.bfloat16))

    def in_operand_order(self, rows: Tensor) -> Tensor:
        """Return rows in bf16 as Triton's kernels take them: of MXFP4 even places first."""
        is_fp4 = self.bits == MXFP4.bits
        return torch.cat([rows[:, ::2], rows[:, 1::2]], dim=1) if is_fp4 else rows


MXFP4 = Format("mxfp4", "Mxfp4", 4, mxfp4.ROUNDING, mxfp4.quant_mxfp4, mxfp4.dequant_mxfp4)
MXFP8 = Format("mxfp8", "Mxfp8", 8, mxfp8.ROUNDING, mxfp8.quant_mxfp8, mxfp8.dequant_mxfp8)


def declared(fmt: Format) -> str:
    """The op's arguments."""
    fp4 = fmt is MXFP4
    kind, packing = ("fp4", "/2") if fp4 else ("e4m3", "")
    return f"""
    x: bf16|f16[M, D] strided
    w1: {kind}[E, N, D{packing}] @16
    w2: {kind}[E, D, I{packing}] @16
    w1_scale: e8m0[E, N, SD]
    w2_scale: e8m0[E, D, SI]
    topk_weights: f32[M, K]?
    topk_ids: i32|i64[M, K]?
    router_weight: bf16|f16[R, D]? strided
    top_k: K >= 1
    routed: R >= 0
    renormalize: bool
    round_scores: bool
    rounding: {"|".join(fmt.bumps)}
    w_layout: raw|16x16
    scale_layout: raw|32x8
    dtype: bf16|f16
    -> out: dtype[M, D]
    """


_SCALES = (
    "pass one e8m0 byte per row and 32 elements of {}, or what shuffle_scale makes of the rows of "
    "all experts"
)
HINTS = {
    "x": "convert it first",
    "w1_scale": _SCALES.format("D"),
    "w2_scale": _SCALES.format("I"),
    "topk_weights": "convert them with .float()",
    "topk_ids": "convert them with .to(torch.int32)",
}


def scale_columns(layout: str, k: int) -> int:
    """Columns of e8m0 scales of rows of K elements; shuffled ones are padded to multiples of 8."""
    return k // BLOCK if layout == RAW else padded_scale(1, k // BLOCK)[1]


class MxMoe(Moe):
    """The op of one format."""

    own_types = Moe.own_types | {"w1", "w2", "w1_scale", "w2_scale"}

    def __init__(self, name: str, fmt: Format, **options: Any) -> None:
        self.fmt, self.form = fmt, fmt.word
        super().__init__(
            name,
            declared(fmt),
            sizes="M D I E K R N SD SI",
            positive="E D I",
            table="M+ D I E K R?",
            max_bytes=None,
            hints=HINTS,
            reference=self.refer,
            usual={"rounding": next(iter(fmt.bumps))},
            **options,
        )

    def call_experts(self, x: Tensor, *weights: Any) -> Tensor:
        """Call the op with the arguments of fused_moe: w1, w2, scales, choice, num_shared, how,
        rounding, out, config."""
        *call_args, out, config = weights
        args = arguments(self, x, *call_args)
        run = self.traced if is_dynamo_compiling() else self.call
        result: Tensor = run(*args, out, config)
        return result

    def weights_of(
        self,
        x: Tensor,
        w1: Any,
        w2: Any,
        w1_scale: Any,
        w2_scale: Any,
        choice: Sequence[Any],
        num_shared: int,
        rounding: str | None,
        out: Tensor | None,
    ) -> ExpertWeights:
        """What gated_experts.py computes with, of fused_moe's arguments; checked as a call's."""
        scales, flags = (w1_scale, w2_scale), (False, False)
        args = arguments(self, x, w1, w2, *scales, choice, num_shared, flags, rounding)
        c, _ = self.check((*args, out, None))
        first_w, second_w, first_scale, second_scale = args[1:5]
        *_, bumps, layout, scale_layout, _dtype = args
        scales = first_scale, second_scale
        experts = Experts(self.fmt, bumps, first_w, second_w, *scales, layout, scale_layout)
        return ExpertWeights(
            len(experts.w1),
            experts.w1.shape[1],
            lambda e: experts.weights(e, experts.w1, experts.w1_scale),
            lambda e: experts.weights(e, experts.w2, experts.w2_scale),
            lambda rows: self.fmt.and_back(rows, bumps, torch.float32),
            StoredWeights(
                self.fmt.word,
                c,
                first_w,
                second_w,
                *scales,
                lambda rows: (self.fmt.operand(rows, bumps), None),
            ),
        )

    def weights_alone(self, x: Tensor, *arguments: Any) -> ExpertWeights:
        """The same of weights that alone are quantised: rows of x and h stay in bf16."""
        weights = self.weights_of(x, *arguments)
        if x.dtype is not torch.bfloat16:
            self.fail("x", "bfloat16 where weights alone are quantised", describe(x), HINTS["x"])
        stored = replace(
            weights.stored,
            operand=lambda rows: (self.fmt.in_operand_order(rows), None),
            is_weight_only=True,
        )
        return replace(weights, rounded=Tensor.float, stored=stored)

    @property
    def route_words(self) -> Mapping[str, Sequence[str]]:
        return {**super().route_words, WEIGHT_ONLY: ()}

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Weights shuffled, as they are served, in most calls; scales where they can be."""
        is_raw = rng.random() < _RAW_CALLS
        layer = layers.draw(rng, BLOCK, most_work=_MOST_WORK)
        return layer if is_raw else {**layer, **self.layouts(layer)[0]}

    def layouts(self, sizes: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
        """Shuffled, as weights are served; scales where they can be."""
        scales = {} if sizes["I"] % _SHUFFLED_MULTIPLE else {"scale_layout": "32x8"}
        return ({"w_layout": "16x16", **scales},)

    def product_type(self, c: Call) -> str:
        return "fp4" if self.fmt is MXFP4 else "fp8"

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        _m, d, i, e, k, routed, n, *columns = sizes
        if n != 2 * i:
            expected = f"of 2 * I = {2 * i} rows an expert, gate's and then up's"
            return "w1", expected, str(n), "w1 is [E, 2I, D] where w2 is [E, D, I]"
        if d % BLOCK or i % BLOCK:
            return (
                "w1 and w2",
                f"of D and I multiples of {BLOCK}",
                f"D={d}, I={i}",
                "pad with zeros",
            )
        scales = ("w1_scale", "N", n, d), ("w2_scale", "D", d, i)
        for (name, size, rows, of_row), num_columns in zip(scales, columns, strict=True):
            expected_columns = scale_columns(c.scale_layout, of_row)
            if num_columns != expected_columns:
                shape = f"a [E={e}, {size}={rows}, {expected_columns}] tensor, {c.scale_layout}"
                return name, shape, f"[{e}, {rows}, {num_columns}]", self.hints[name]
        return self.refuses_choice(c, e, k, routed)

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        super().assume(sizes, values)
        sizes.setdefault("N", 2 * sizes["I"])
        sizes.setdefault("SD", scale_columns(values["scale_layout"], sizes["D"]))
        sizes.setdefault("SI", scale_columns(values["scale_layout"], sizes["I"]))

    def _multiple_of(self, size: str) -> int:
        return BLOCK if size in ("D", "I") else super()._multiple_of(size)

    def weights(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Return weights whose results are about 1, as quantising gives them."""
        pairs = [self._weights(c, draw, rows, k) for rows, k in ((c.N, c.D), (c.D, c.I))]
        (w1, s1), (w2, s2) = pairs
        return {"w1": w1, "w2": w2, "w1_scale": s1, "w2_scale": s2}

    def _weights(self, c: Call, draw: InputGenerator, rows: int, k: int) -> tuple[Tensor, Tensor]:
        quantised_pairs = [
            self.fmt.quantise(draw.floats((rows, k)) / k**0.5, self.default_rounding)
            for _ in range(c.E)
        ]
        w, scale = (
            torch.stack([q for q, _ in quantised_pairs]),
            torch.stack([s for _, s in quantised_pairs]),
        )
        if c.scale_layout != RAW:
            flat = shuffle_scale(scale.flatten(0, 1)).data
            scale = flat[: c.E * rows].view(c.E, rows, -1)
        return w, scale

    @property
    def default_rounding(self) -> str:
        """The rounding of scales if the call names none."""
        return next(iter(self.fmt.bumps))

    def roundings(self, c: Call) -> int:
        """An element of h whose value lies between two of the format may become either, so results
        are held to the format's own step, not to fp32's."""
        return int(super().roundings(c) + 2**24 * 2.0**-6)

    def refer(self, x: Tensor, *values: Any) -> Tensor:
        """The op's reference, as its arguments are declared."""
        *weights, p, ids, router, top_k, routed, renormalize, round_scores = values[:11]
        rounding, w_layout, scale_layout, dtype = values[11:]
        if router is not None:
            p, ids = moe_router_ref(x, router, top_k, renormalize, round_scores)
        w1, w2, s1, s2 = weights
        experts = Experts(self.fmt, rounding, w1, w2, s1, s2, w_layout, scale_layout)
        return experts.run(x, p, ids, len(weights[0]) - routed).to(dtype)


@dataclass(frozen=True)
class Experts:
    """The formula in torch on any device, in fp32 between the roundings that it has."""

    fmt: Format
    rounding: str
    w1: Tensor
    w2: Tensor
    w1_scale: Tensor
    w2_scale: Tensor
    w_layout: str = RAW
    scale_layout: str = RAW

    def run(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_shared: int) -> Tensor:
        """[M, D] fp32. It waits for the device once, to know how many rows each expert has."""
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        p, ids = with_shared(topk_weights, topk_ids, len(self.w1), num_shared)
        rows = self.fmt.and_back(x, self.rounding, torch.float32)
        for e in ids[ids >= 0].unique().tolist():
            token, j = (ids == e).nonzero(as_tuple=True)
            y = self.h(e, rows[token], x.dtype) @ self.weights(e, self.w2, self.w2_scale).T
            total.index_add_(0, token, y * p[token, j].float()[:, None])
        return total

    def h(self, e: int, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return h of an expert, rounded to dtype, then to the format."""
        gate, up = (rows @ self.weights(e, self.w1, self.w1_scale).T).chunk(2, 1)
        h = (torch.nn.functional.silu(gate) * up).to(dtype)
        return self.fmt.and_back(h, self.rounding, torch.float32)

    def weights(self, e: int, w: Tensor, scale: Tensor) -> Tensor:
        """Return an expert's weights in fp32, from their stored layout."""
        payload, scales = w[e], scale[e]
        if self.w_layout != RAW:
            payload = unshuffle_weight(payload)
        if self.scale_layout != RAW:
            blocks = payload.shape[1] * 8 // self.fmt.bits // BLOCK
            scales = unshuffle_scale(scales, len(payload), blocks)
        return self.fmt.values(payload, scales, torch.float32)


class Torch(Kernel):
    """Expert by expert."""

    name = "torch"
    is_capturable = False

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def variant(self, c: Call, config: Any) -> RunOf:
        format_args = self.fmt, c.rounding

        def run(
            out: Tensor, x: Tensor, w1: Tensor, w2: Tensor, s1: Tensor, s2: Tensor, *choice: Any
        ) -> None:
            experts = Experts(*format_args, w1, w2, s1, s2, c.w_layout, c.scale_layout)
            out.copy_(experts.run(x, *chosen(c, x, *choice), c.E - c.R))

        return lambda *_sizes: run


# ---------------------------------------------------------------- the call


def arguments(
    op: MxMoe,
    x: Any,
    w1: Any,
    w2: Any,
    w1_scale: Any,
    w2_scale: Any,
    choice: Sequence[Any],
    num_shared: int,
    router_flags: tuple[bool, bool],
    rounding: str | None,
) -> tuple[Any, ...]:
    """The op's, of those of fused_moe: layouts from types, scales by expert."""
    weights, layout = _alike(op, "w1", w1, "w2", w2)
    scale_tensors, scale_layout = _alike(op, "w1_scale", w1_scale, "w2_scale", w2_scale)
    experts = weights[1].shape[0] if isinstance(weights[1], Tensor) and weights[1].dim() else 0
    names = "w1_scale", "w2_scale"
    scales = [
        _by_expert(op, name, scale, w, scale_layout)
        for name, scale, w in zip(names, scale_tensors, weights, strict=True)
    ]
    shared_count = check_int(op.name, "num_shared", num_shared, 0, experts)
    dtype = x.dtype if isinstance(x, Tensor) else torch.bfloat16
    dtype = dtype if dtype in (torch.bfloat16, torch.float16) else torch.bfloat16  # x is refused
    rounding = op.default_rounding if rounding is None else rounding
    return (
        x,
        *weights,
        *scales,
        *choice,
        experts - shared_count,
        *router_flags,
        rounding,
        layout,
        scale_layout,
        dtype,
    )


def _alike(op: Op, name: str, a: Any, other_name: str, b: Any) -> tuple[tuple[Any, Any], str]:
    (data, layout), (other_data, other_layout) = unwrap(a), unwrap(b)
    if layout != other_layout:
        _fail(op, other_name, f"{layout} as {name} is", other_layout, "shuffle both, or none")
    return (data, other_data), layout


def _by_expert(op: MxMoe, name: str, scale: Any, w: Any, layout: str) -> Any:
    """[E * rows, columns] of all experts as [E, rows, columns]. Shuffled ones have rows of padding
    after the last expert's; their tiles are of 32 rows, so each expert's are contiguous."""
    flat = isinstance(scale, Tensor) and isinstance(w, Tensor) and scale.dim() == 2 and w.dim() == 3
    if not flat:
        return scale
    rows, (scale_rows, columns) = w.shape[0] * w.shape[1], scale.shape
    if layout != RAW and scale_rows < rows:
        actual, expected = (
            f"[{scale_rows}, {columns}]",
            f"a [{rows} or more, columns] tensor, {layout}",
        )
        _fail(op, name, expected, actual, op.hints[name])
    if layout != RAW and scale_rows > rows:
        scale = scale[:rows]
    return scale.view(*w.shape[:2], columns) if len(scale) == rows else scale


def _fail(op: Op, *refusal: str) -> NoReturn:
    op.fail(*refusal)
    raise AssertionError
