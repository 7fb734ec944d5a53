"""grouped_gemm_mxfp8: the grouped GEMM of a mixture of experts for OCP MX-FP8.

| kernel | what it takes |
|---|---|
| moe (kernels/grouped/hip.py) | HIP on gfx950, blocks of up to 128 rows |
| triton (kernels/grouped/triton.py) | every architecture that Triton knows |
| torch | whatever is left |
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import MAX_BYTES, OUT_DTYPES, check_dtype, check_int
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.gemm.mxfp8 import QUANTISE, RAW_SCALE, gemm_mxfp8_ref, roundings
from rfops.quantization.mxfp8 import BLOCK, dequant_mxfp8

from . import layers
from .align_block_size import moe_align_block_size_ref
from .experts import layout_sizes
from .grouped_terms import GroupedModel
from .kernels.grouped.hip import Moe
from .kernels.grouped.triton import TritonGrouped

__all__ = ["grouped_gemm_mxfp8", "grouped_gemm_mxfp8_ref"]

LAYOUT = "make the layout with rfops.moe_align_block_size"  # a way out
_MOST_WORK = 2e10  # multiplications of a layer that is drawn


class Torch(Kernel):
    """The reference in plain torch, for every device and call."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        run: Run = functools.partial(run_torch, c.block_m, c.a_div)
        return lambda *_sizes: run


class _GroupedGemm(Op):
    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        rows, _n, _k, _e, a_rows, ids, blocks = sizes
        block_m, a_div = c.block_m, c.a_div
        if 4 * ids >= MAX_BYTES:
            max_len = f"shorter than {MAX_BYTES // 4} (its byte offsets are signed 32-bit)"
            return "sorted_token_ids", max_len, f"{ids}", "split the rows"
        needed = -(-ids // block_m)
        if blocks < needed:
            expected = f"one for each of {needed} blocks of {block_m}"
            return "expert_ids", expected, f"{blocks}", LAYOUT
        if a_rows * a_div < rows:
            expected = f"of at least num_valid_tokens / a_div = {-(-rows // a_div)} rows"
            way = "pass a_div = top_k for rows of tokens, 1 for routed rows"
            return "a_q", expected, f"{a_rows}", way
        return None

    def is_empty(self, c: Call) -> bool:
        return 0 in (c.M, c.N, c.ids)

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """One of a layer's two products, blocks about as high as an expert has rows."""
        layer = layers.draw(rng, BLOCK, most_work=_MOST_WORK)
        d, i, experts, k = layer["D"], layer["I"], layer["R"], layer["K"]
        m = layer["M"] * k
        block_m = next((b for b in (16, 32, 64) if b * experts >= m), 128)
        sizes = {"M": m, "E": experts, "top_k": k, "block_m": block_m}
        if rng.random() < 0.5:
            return {**sizes, "N": 2 * i, "K": d, "a_div": k, "mul_weight_by": False}
        return {**sizes, "N": d, "K": i, "a_div": 1, "mul_weight_by": True}

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        sizes.setdefault("A", -(-sizes["M"] // values["a_div"]))
        layout = layout_sizes(sizes["M"], values["block_m"], sizes["E"], False)
        sizes.setdefault("ids", layout[0])
        sizes.setdefault("blocks", layout[1])

    def flops(self, c: Call) -> int:
        return int(2 * c.M * c.N * c.K)

    def roundings(self, c: Call) -> int:
        return roundings(c.K)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """The layout of tokens that each pick different experts; on the virtual GPU only weights
        that are read are touched, the others cost address space and no memory."""
        picks = max(c.top_k, c.a_div)
        ids = draw.picks(-(-c.M // picks), picks, c.E).flatten()[: c.M]
        layout = moe_align_block_size_ref(ids, c.block_m, c.E)
        inputs = dict(
            zip(("sorted_token_ids", "expert_ids", "num_tokens_post_padded"), layout, strict=True)
        )
        if c.device.type == "cpu":
            for name in ("w", "w_scale"):
                (arg,) = (arg for arg in self.declaration.tensors if arg.name == name)
                shape = [extent.of(c.sizes) for extent in arg.extents]
                inputs[name] = torch.empty(shape, dtype=getattr(c, f"{name}_dtype"))
                for expert in ids.unique().tolist():
                    inputs[name][expert] = draw.like(arg, inputs[name].dtype, shape[1:])
        return inputs

    def traffic(self, c: Call) -> int:
        """Return the bytes moved; of the weights, only those of experts in use."""
        padded, experts = c.given("num_tokens_post_padded", "expert_ids")
        idle = c.E - len(experts[: -(-int(padded) // c.block_m)].unique())
        return int(super().traffic(c) - idle * c.N * (c.K + c.K // 32))


# (N, K, a_div, weighted) of one GPU of a mixture of experts.
_LAYERS = ((1536, 6144, 4, False), (768, 6144, 4, False), (6144, 768, 1, True))

OP = _GroupedGemm(
    "grouped_gemm_mxfp8",
    """
    a_q: e4m3[A, K] @16
    a_scale: e8m0[A, K/32]
    w: e4m3[E, N, K] @16
    w_scale: e8m0[E, N, K/32]
    sorted_token_ids: i32[ids]
    expert_ids: i32[blocks]
    num_tokens_post_padded: i32[1]
    num_valid_tokens: M >= 0
    top_k: int >= 1
    block_m: int >= 1
    out_dtype: bf16|f16|f32
    a_div: int >= 1
    mul_weight_by: f32[*M]?
    topk_ids: any?
    -> out: out_dtype[M, N]
    """,
    sizes="M N K E A ids blocks",
    positive="K",
    table="M+ N K E>= a_div? mul_weight_by?",
    usual={"block_m": 16},
    shapes={
        "moe": grid(
            "N K a_div mul_weight_by top_k E",
            [(*layer, 4, e) for e in (128, 64, 32) for layer in _LAYERS],
            M=(4, 16, 64),
        )
    },
    kernels=(Moe(), TritonGrouped(), Torch()),
    time_model=GroupedModel,
    coarse={"M": 1, "A": 1, "ids": 0, "blocks": 0},
    hints={
        "a_q": QUANTISE,
        "w": QUANTISE,
        "K": "pad a_q and w with zeros",
        "a_scale": RAW_SCALE,
        "w_scale": RAW_SCALE,
        "sorted_token_ids": LAYOUT,
        "expert_ids": LAYOUT,
        "num_tokens_post_padded": LAYOUT,
        "mul_weight_by": "pass the routed weights in float32, one for each routed row, or None",
        "topk_ids": "leave it out",
    },
)


def grouped_gemm_mxfp8(
    a_q: torch.Tensor,
    a_scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    num_valid_tokens: int,
    top_k: int,
    block_m: int,
    out_dtype: torch.dtype = torch.bfloat16,
    a_div: int = 1,
    mul_weight_by: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    config: Any = None,
) -> torch.Tensor:
    """out[id, n] = mul_weight_by[id] * sum_k a[id / a_div, k] * w[expert of id, n, k].

    The layout is that of `moe_align_block_size`, of vLLM's fused_moe: sorted_token_ids holds ids of
    routed rows, token * top_k + i, in blocks of block_m; a block is of one expert, and ids of
    num_valid_tokens or more fill it up. gemm1 has a_div = top_k, gemm2 a_div = 1.

    Parameters
    ----------
    a_q, a_scale : [A, K] float8_e4m3fn and [A, K/32] e8m0 (uint8 or float8_e8m0fnu); K a multiple
        of 32, A at least num_valid_tokens / a_div.
    w, w_scale : [E, N, K] and [E, N, K/32] of the same.
    sorted_token_ids : [S] int32.
    expert_ids : [ceil(S / block_m) or more] int32; outside 0..E-1, as -1, the block has no expert:
        its rows of out become zero.
    num_tokens_post_padded : [1] int32, how much of sorted_token_ids is in use; read on the device,
        where less than 0 counts as 0 and more than S as S.
    num_valid_tokens, top_k, block_m, a_div : ints of 1 or more (num_valid_tokens may be 0).
    out_dtype : of the result; bfloat16, float16 or float32.
    mul_weight_by : num_valid_tokens float32 of any shape, the routed weights by id, or None.
    topk_ids : accepted for callers that pass it; the sorted layout says all that is needed.
    out : [num_valid_tokens, N], written in place where given.
    config : takes that kernel in that variant, whatever the tuned table says: a MoeConfig or
        Triton's config.

    Returns [num_valid_tokens, N]. Rows that no block in use names are not written: without `out`
    their content is undefined. Tensors are contiguous and on one device (a GPU, or the cpu: the
    virtual GPU), a_q and w start at a multiple of 16 bytes. Nothing synchronises on a GPU, where
    the call can be captured. There is a result for every size, by the route that `rfops why`
    prints; deterministic for one config. Raises ValueError for what does not fit, ConfigError for a
    tuned table that cannot be read, and what building a kernel raises.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0; vLLM's fused_moe for the
    layout.
    """
    call: Callable[..., torch.Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return call(
        a_q,
        a_scale,
        w,
        w_scale,
        sorted_token_ids,
        expert_ids,
        num_tokens_post_padded,
        num_valid_tokens,
        top_k,
        block_m,
        out_dtype,
        a_div,
        mul_weight_by,
        topk_ids,
        out,
        config,
    )


grouped_gemm_mxfp8.supports = OP.supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- torch

_CHUNK = 1 << 22  # elements of w in float64 at once: 32 MiB


def run_torch(block_m: int, a_div: int, out: torch.Tensor, *inputs: Any) -> None:
    """Any size and device, one block after the other and a part of its expert's w at a time, in
    float64, where values and products are exact. Does not synchronise with a GPU: blocks beyond
    num_tokens_post_padded are computed there, and dropped."""
    a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids, num_tokens_post_padded, weights = inputs
    num_ids, valid = sorted_token_ids.shape[0], out.shape[0]
    list_idx = torch.arange(num_ids, device=out.device)
    is_routed = list_idx < num_tokens_post_padded
    is_routed &= (sorted_token_ids >= 0) & (sorted_token_ids < valid)
    ids = torch.where(is_routed, sorted_token_ids, valid).long()
    result = torch.cat([out, out.new_empty((1, out.shape[1]))])  # row `valid` takes what is dropped
    end = min(int(num_tokens_post_padded), num_ids) if out.is_cpu else num_ids
    for block in range(-(-end // block_m)):
        rows = ids[block * block_m : (block + 1) * block_m]
        a_row = (rows // a_div).clamp(max=a_q.shape[0] - 1)
        a = dequant_mxfp8(_take_clamped(a_q, a_row), _take_clamped(a_scale, a_row), torch.float64)
        expert = expert_ids[block]
        is_valid = (expert >= 0) & (expert < w.shape[0])
        product = _times_expert(a, w, w_scale, torch.where(is_valid, expert, 0)[None])
        if weights is not None:
            product *= weights.view(-1)[rows.clamp(max=valid - 1)].double()[:, None]
        result[rows] = torch.where(is_valid, product, 0.0).to(out.dtype)
    out.copy_(result[:valid])


def _take_clamped(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """tensor[index]; as bytes, since torch does not index every 8-bit float everywhere."""
    return tensor.view(torch.uint8).index_select(0, index).view(tensor.dtype)


def _times_expert(
    a: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, expert: torch.Tensor
) -> torch.Tensor:
    """a @ w[expert].T in float64, a part of N at a time; `expert` is [1], on the device."""
    if w.shape[0] == 0:
        return a.new_zeros((a.shape[0], w.shape[1]))
    step = max(1, _CHUNK // w.shape[2])
    expert_weights = [
        dequant_mxfp8(
            _take_clamped(w[:, n0 : n0 + step], expert)[0],
            _take_clamped(w_scale[:, n0 : n0 + step], expert)[0],
            torch.float64,
        )
        for n0 in range(0, w.shape[1], step)
    ]
    return torch.cat([a @ expert_weight.T for expert_weight in expert_weights], dim=1)


# ---------------------------------------------------------------- reference


def grouped_gemm_mxfp8_ref(
    a_q: Tensor,
    a_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_post_padded: Tensor,
    num_valid_tokens: int,
    top_k: int,
    block_m: int,
    out_dtype: torch.dtype = torch.bfloat16,
    a_div: int = 1,
    mul_weight_by: Tensor | None = None,
    topk_ids: Tensor | None = None,
) -> Tensor:
    """The formula of `grouped_gemm_mxfp8` in plain fp32 torch, row by row, on any device.

    Takes all arguments as the op does, w [E, N, K] and the ids among them; topk_ids is not read.
    out_dtype : of the result [num_valid_tokens, N]; bfloat16, float16, float32 or float64. Rows
    that no block names are zero. Raises ValueError for another dtype or count, and torch's
    RuntimeError for sizes that do not fit each other.

    Source: as of `grouped_gemm_mxfp8`; the products are those of `gemm_mxfp8_ref`.
    """
    ref = f"{OP.name}_ref"
    num_valid_tokens = check_int(ref, "num_valid_tokens", num_valid_tokens, 0)
    top_k, block_m, a_div = (
        check_int(ref, name, value)
        for name, value in (("top_k", top_k), ("block_m", block_m), ("a_div", a_div))
    )
    check_dtype(ref, "out_dtype", out_dtype, (*OUT_DTYPES, torch.float64))
    out = torch.zeros((num_valid_tokens, w.shape[1]), dtype=out_dtype, device=a_q.device)
    in_use = max(0, int(num_tokens_post_padded))
    for list_idx, id in enumerate(sorted_token_ids[:in_use].tolist()):
        expert = int(expert_ids[list_idx // block_m])
        if not 0 <= id < num_valid_tokens or not 0 <= expert < w.shape[0]:
            continue
        row = slice(id // a_div, id // a_div + 1)
        operands = a_q[row], w[expert], a_scale[row], w_scale[expert]
        (product,) = gemm_mxfp8_ref(*operands, torch.float32)
        if mul_weight_by is not None:
            product *= mul_weight_by.view(-1)[id]
        out[id] = product.to(out_dtype)
    return out


OP.reference = grouped_gemm_mxfp8_ref
