"""grouped_gemm_mxfp8: the grouped GEMM of a mixture of experts for OCP MX-FP8.

Guards, plans, the torch ops and the reference; grouped_gemm_mxfp8_route.py has the kernels and the
choice.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from . import routing
from .gemm_mxfp8 import ALIGN, SCALE_DTYPES, as_fp8, gemm_mxfp8_ref
from .gemm_mxfp8_route import scale_align
from .grouped_gemm_mxfp8_route import (
    CONFIG_KINDS,
    LAYOUT,
    OP,
    OUT_DTYPES,
    Family,
    Launch,
    Shape,
    backend_of,
    refuses_sizes,
    supports,
)
from .guards import Guard, check_dtype, check_int, check_layout, check_no_overlap
from .jit import Plans
from .quant_mxfp8 import BLOCK, FP8
from .registration import must_dispatch, register

_Plan = tuple[int, int, Launch]  # the sizes of out, and what fills it
_PLANS = Plans(
    out=0,
    sizes="rows N K E A ids blocks",
    shapes=("rows,N", "A,K", "A,K/32", "E,N,K", "E,N,K/32", "ids", "blocks", "1", "*rows", "?",
            "rows"),
)  # fmt: skip


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
    the call can be captured. There is a result for every size, by the route that `route` says;
    deterministic for one config. Raises ValueError for what does not fit, ConfigError for a tuned
    table that cannot be read, and what building a kernel raises.
    """
    plan = None
    if not is_dynamo_compiling():  # which traces Python, and cannot trace `find`
        plan = _PLANS.find(
            out, a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids, num_tokens_post_padded,
            mul_weight_by, topk_ids, num_valid_tokens, top_k, block_m, a_div, out_dtype, config,
        )  # fmt: skip
    if plan is None:
        tensors = (a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids, num_tokens_post_padded,
                   mul_weight_by)  # fmt: skip
        sizes = check_sizes(OP, num_valid_tokens, top_k, block_m, a_div)
        check_dtype(OP, "out_dtype", out_dtype, OUT_DTYPES)
        if must_dispatch(*tensors, topk_ids, out):
            done = _dispatch(tensors, sizes, out_dtype, topk_ids, out, config)
            if done is not None:
                return done
        plan = _add_plan(tensors, sizes, out_dtype, topk_ids, out, config)
    rows, columns, run = plan
    if out is None:
        # A tuple of sizes takes 0.5 us more.
        out = torch.empty(rows, columns, dtype=out_dtype, device=a_q.device)
    run(out, a_q, a_scale, w, w_scale, sorted_token_ids, expert_ids, num_tokens_post_padded,
        mul_weight_by)  # fmt: skip
    return out


def _add_plan(
    tensors: tuple[Any, ...],
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    topk_ids: torch.Tensor | None,
    out: torch.Tensor | None,
    config: Any,
) -> _Plan:
    shape = _check(tensors, sizes, dtype, topk_ids, out, config)
    num_ids = tensors[4].shape[0]
    args = out, *tensors, topk_ids, *sizes, dtype, config
    if not (shape.num_valid_tokens and shape.n and num_ids):
        plan: _Plan | None = shape.num_valid_tokens, shape.n, _nothing
    else:
        align = scale_align(tensors[1], tensors[3])
        family = Family(tensors[0].device, dtype, config, shape, align)
        sizes_of = shape.num_valid_tokens, shape.n, shape.k, shape.e, shape.a_rows
        plan = family(*sizes_of, num_ids, tensors[5].shape[0])
        assert plan is not None, "the guards have looked at the sizes"
        _PLANS.add_family(family, *args)
    _PLANS.add(plan, *args)
    return plan


def _nothing(*_args: torch.Tensor | None) -> None:
    """The launch where nothing is to be written."""


grouped_gemm_mxfp8.supports = supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- guards

_NAMES = ("a_q", "a_scale", "w", "w_scale", "sorted_token_ids", "expert_ids",
          "num_tokens_post_padded", "mul_weight_by")  # fmt: skip
_ALIGNS = (ALIGN, 1, ALIGN, 1, 4, 4, 4, 4)


def _check(
    tensors: tuple[Any, ...],
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    topk_ids: torch.Tensor | None,
    out: torch.Tensor | None,
    config: Any,
) -> Shape:
    a_q, a_scale, w, w_scale, sorted_ids, expert_ids, num_padded, weights = tensors
    guard = Guard(OP, max_bytes=None)
    num_valid, top_k, block_m, a_div = sizes
    guard.sizes["num_valid_tokens"] = num_valid
    fp8 = "quantise it with rfops.quant_mxfp8 (float8_e4m3fnuz and e5m2 have other values)"
    guard.tensor("a_q", a_q, ("A", "K"), (FP8,), fp8)
    guard.tensor("w", w, ("E", "N", "K"), (FP8,), fp8)
    (e, n, k), a_rows = w.shape, a_q.shape[0]
    if k == 0 or k % BLOCK:
        guard.fail("K", f"a positive multiple of {BLOCK}", f"K={k}", "pad a_q and w with zeros")
    guard.sizes["K/32"] = k // BLOCK
    raw = "pass the e8m0 bytes, one per 32 elements of K"
    guard.tensor("a_scale", a_scale, ("A", "K/32"), SCALE_DTYPES, raw)
    guard.tensor("w_scale", w_scale, ("E", "N", "K/32"), SCALE_DTYPES, raw)
    guard.tensor("sorted_token_ids", sorted_ids, ("S",), (torch.int32,), LAYOUT)
    guard.tensor("expert_ids", expert_ids, ("blocks",), (torch.int32,), LAYOUT)
    guard.sizes["1"] = 1
    guard.tensor("num_tokens_post_padded", num_padded, ("1",), (torch.int32,), LAYOUT)
    num_ids, blocks = sorted_ids.shape[0], expert_ids.shape[0]
    refusal = refuses_sizes(num_valid, a_rows, a_div, num_ids, block_m, blocks)
    if refusal is not None:
        guard.fail(*refusal)
    if weights is not None:
        _check_weights(guard, weights, num_valid)
    if topk_ids is not None and not isinstance(topk_ids, torch.Tensor):
        guard.fail("topk_ids", "a tensor or None", type(topk_ids).__name__, "leave it out")
    if out is not None:
        way = "pass one of that dtype, or none"
        guard.tensor("out", out, ("num_valid_tokens", "N"), (dtype,), way)
    if config is not None:
        backend_of(config)
    _check_pointers(tensors, out)
    weighted = weights is not None
    return Shape(num_valid, top_k, block_m, a_div, n, k, e, a_rows, weighted)


def check_sizes(op: str, num_valid_tokens: Any, *others: Any) -> tuple[int, ...]:
    """num_valid_tokens, top_k, block_m and a_div as ints."""
    pairs = zip(("top_k", "block_m", "a_div"), others, strict=True)
    first = check_int(op, "num_valid_tokens", num_valid_tokens, least=0)
    return (first, *(check_int(op, name, size) for name, size in pairs))


def _check_weights(guard: Guard, weights: Any, num_valid: int) -> None:
    way = "pass the routed weights in float32, one for each routed row, or None"
    if not isinstance(weights, torch.Tensor):
        guard.fail("mul_weight_by", "a tensor or None", type(weights).__name__, way)
    dims = tuple(f"weights.shape[{i}]" for i in range(weights.dim()))
    guard.tensor("mul_weight_by", weights, dims, (torch.float32,), way)
    if weights.numel() != num_valid:
        wanted = f"of num_valid_tokens = {num_valid} elements"
        guard.fail("mul_weight_by", wanted, f"{list(weights.shape)}", way)


def _check_pointers(tensors: tuple[Any, ...], out: torch.Tensor | None) -> None:
    inputs = {name: t for name, t in zip(_NAMES, tensors, strict=True) if t is not None}
    for name, tensor in inputs.items():
        check_layout(OP, name, tensor, _ALIGNS[_NAMES.index(name)])
    if out is not None:
        check_layout(OP, "out", out, out.element_size())
        check_no_overlap(OP, out, inputs)


# ---------------------------------------------------------------- torch.ops.rfops


def _config_text(config: Any) -> str:
    return "" if config is None else f"{backend_of(config)} {routing.config_text(config)}"


_config_of = functools.partial(routing.given_config, OP, CONFIG_KINDS)


def _functional(*args: Any) -> torch.Tensor:
    """Payloads may come as bytes: torch's tools do not know float8 everywhere."""
    a_q, a_scale, w, *call, config = args
    return grouped_gemm_mxfp8(as_fp8(a_q), a_scale, as_fp8(w), *call, config=_config_of(config))


def _mutating(*args: Any) -> None:
    a_q, a_scale, w, *call, config, out = args
    config = _config_of(config)
    grouped_gemm_mxfp8(as_fp8(a_q), a_scale, as_fp8(w), *call, out=out, config=config)


def _fake(
    a_q: torch.Tensor,
    _a_scale: torch.Tensor,
    w: torch.Tensor,
    _w_scale: torch.Tensor,
    _sorted_token_ids: torch.Tensor,
    _expert_ids: torch.Tensor,
    _num_tokens_post_padded: torch.Tensor,
    num_valid_tokens: int,
    _top_k: int,
    _block_m: int,
    out_dtype: torch.dtype,
    *_rest: Any,
) -> torch.Tensor:
    return a_q.new_empty((num_valid_tokens, w.shape[1]), dtype=out_dtype)


_INPUTS = (
    "Tensor a_q, Tensor a_scale, Tensor w, Tensor w_scale, Tensor sorted_token_ids, "
    "Tensor expert_ids, Tensor num_tokens_post_padded, SymInt num_valid_tokens, int top_k, "
    "int block_m, ScalarType out_dtype, int a_div, Tensor? mul_weight_by, Tensor? topk_ids, "
    "str config"
)
_op = register(f"{OP}({_INPUTS}) -> Tensor", _functional, _fake)
_op_out = register(f"{OP}_out({_INPUTS}, Tensor(a!) out) -> ()", _mutating, lambda *_args: None)


def _dispatch(
    tensors: tuple[Any, ...],
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    topk_ids: torch.Tensor | None,
    out: torch.Tensor | None,
    config: Any,
) -> torch.Tensor | None:
    """The call as torch's op; None if an argument is none of a tensor, which the guards refuse."""
    needed, optional = tensors[:7], (tensors[7], topk_ids, out)
    if not all(isinstance(t, torch.Tensor) for t in (*needed, *filter(_given, optional))):
        return None
    call = (*needed, *sizes[:3], dtype, sizes[3], tensors[7], topk_ids, _config_text(config))
    if out is None:
        result: torch.Tensor = _op(*call)
        return result
    _op_out(*call, out)
    return out


def _given(value: object) -> bool:
    return value is not None


# ---------------------------------------------------------------- reference


def grouped_gemm_mxfp8_ref(
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
) -> torch.Tensor:
    """The formula of `grouped_gemm_mxfp8` in plain fp32 torch, row by row, on any device; rows that
    no block names are zero."""
    ref = f"{OP}_ref"
    sizes = check_sizes(ref, num_valid_tokens, top_k, block_m, a_div)
    num_valid_tokens, top_k, block_m, a_div = sizes
    check_dtype(ref, "out_dtype", out_dtype, (*OUT_DTYPES, torch.float64))
    out = torch.zeros((num_valid_tokens, w.shape[1]), dtype=out_dtype, device=a_q.device)
    in_use = max(0, int(num_tokens_post_padded))
    for place, id in enumerate(sorted_token_ids[:in_use].tolist()):
        expert = int(expert_ids[place // block_m])
        if not 0 <= id < num_valid_tokens or not 0 <= expert < w.shape[0]:
            continue
        row = slice(id // a_div, id // a_div + 1)
        product = gemm_mxfp8_ref(a_q[row], w[expert], a_scale[row], w_scale[expert], torch.float32)[
            0
        ]
        if mul_weight_by is not None:
            product *= mul_weight_by.view(-1)[id]
        out[id] = product.to(out_dtype)
    return out
