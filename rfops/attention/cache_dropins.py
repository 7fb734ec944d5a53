"""Drop-ins with the names, signatures and meaning of vLLM's, SGLang's and aiter's RoPE and writes
of paged caches.

vLLM's and SGLang's are of 0.33 and 0.5.23 and work in place, aiter's of commit 0590d9a. Results are
computed in fp32 and rounded once, where theirs may round between; FP8 of gfx942 saturates at its
largest number, 240, where vLLM takes 224. What rfops computes nothing for is refused by name
(ValueError), so that a caller can keep the original.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard
from rfops.jit.errors import show
from rfops.quantization.fp8_blockscale import BLOCK, fp8_of_device

from .kv_cache_write import kv_cache_write
from .mla_absorb_cache_write import mla_absorb_cache_write
from .mla_cache_write import mla_cache_write, mla_rope_cache_write, mla_rope_concat_cache_write
from .rope import rope

NAMES = (
    "apply_rope_with_cos_sin_cache_inplace",
    "concat_and_cache_mla",
    "concat_and_cache_mla_rope_fused",
    "fused_fp8_bmm_rope_cat_and_cache_mla",
    "fused_qk_rope_cat_and_cache_mla",
    "fused_qk_rope_concat_and_cache_mla",
    "reshape_and_cache_flash",
    "rope_cached_positions_2c_fwd_impl",
    "rope_cached_positions_2c_fwd_inplace",
    "rope_cached_2c_fwd_inplace",
    "rope_cached_thd_positions_2c_fwd_inplace",
    "rotary_embedding",
)
_FP8_WORDS = ("fp8", "fp8_e4m3")
_PLAIN_WORDS = ("auto", "bfloat16", "float16", "half")


def _refuse(name: str, **values: Any) -> None:
    """Raise ValueError for the first argument that differs from its neutral value; `values` maps
    an argument to (value, neutral)."""
    for argument, (value, neutral) in values.items():
        if value is not neutral and value != neutral:
            Guard(name).fail(argument, show(neutral), show(value), "call the original")


def _heads(name: str, argument: str, tensor: Tensor, tokens: int, head_size: int) -> Tensor:
    """Return `tensor` as a view [tokens, heads, head_size]. Raises ValueError where its strides
    allow none."""
    try:
        return tensor.view(tokens, -1, head_size)
    except RuntimeError:
        expected = f"of {tokens} tokens and heads of {head_size}, whose rows have one stride"
        layout = f"{list(tensor.shape)} of strides {list(tensor.stride())}"
        Guard(name).fail(argument, expected, layout, "make it contiguous")
        raise


def _cache(name: str, cache: Tensor, kv_cache_dtype: str) -> Tensor:
    """Return the cache, a cache of bytes viewed as the device's FP8. Raises ValueError for other
    words of kv_cache_dtype than those of vLLM for 16 bits and e4m3."""
    if kv_cache_dtype not in (*_FP8_WORDS, *_PLAIN_WORDS):
        expected = ", ".join((*_PLAIN_WORDS, *_FP8_WORDS))
        Guard(name).fail(
            "kv_cache_dtype", f"one of {expected}", show(kv_cache_dtype), "call the original"
        )
    return cache.view(fp8_of_device(cache.device)) if cache.dtype == torch.uint8 else cache


def _latent_cache(cache: Tensor) -> Tensor:
    """[pages, page, width] of a cache that may have a dimension of one head."""
    return cache.squeeze(-2) if cache.dim() == 4 else cache


def _row(k: Tensor) -> Tensor:
    """[tokens, width] of a key that may have a dimension of one head."""
    return k.squeeze(1) if k.dim() == 3 else k


_ONES: dict[torch.device, Tensor] = {}


def _one(device: torch.device) -> Tensor:
    """Return a float32 scale [1] of 1.0 on `device`, allocated once per device."""
    if device not in _ONES:
        _ONES[device] = torch.ones(1, device=device)
    return _ONES[device]


# ---------------------------------------------------------------- RoPE


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """vLLM's, which SGLang's of sgl_kernel is too: query and key [..., heads * head_size], or with
    the heads a dimension, rotated in place from rope_dim_offset on."""
    name, tokens = "rotary_embedding", positions.numel()
    q = _heads(name, "query", query, tokens, head_size)
    k = q[:, :0] if key is None else _heads(name, "key", key, tokens, head_size)
    rope(positions, q, k, cos_sin_cache, None, not is_neox, rope_dim_offset, inverse)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
    fused_set_kv_buffer_arg: Any = None,
    enable_pdl: bool | None = None,
) -> None:
    """SGLang's and FlashInfer's: the same; enable_pdl is ignored."""
    _refuse(
        "apply_rope_with_cos_sin_cache_inplace",
        fused_set_kv_buffer_arg=(fused_set_kv_buffer_arg, None),
    )
    rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)


def rope_cached_positions_2c_fwd_impl(
    output_x: Tensor,
    output_y: Tensor,
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """aiter's: outputs [s, b, heads, d] are inputs, which they may be, rotated by positions [s, b]
    of cos and sin [max, 1, 1, R / 2]; nope_first: the last R elements rotate."""
    for out, x in ((output_x, input_x), (output_y, input_y)):
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
    values = cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first
    rope_cached_positions_2c_fwd_inplace(output_x, output_y, *values)


def rope_cached_positions_2c_fwd_inplace(
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """aiter's: the same in place."""
    name, (s, b) = "rope_cached_positions_2c_fwd_inplace", input_x.shape[:2]
    rows = []
    for argument, x in (("input_x", input_x), ("input_y", input_y)):
        view = x[0] if s == 1 else x[:, 0] if b == 1 else None
        rows.append(x.view(s * b, *x.shape[2:]) if view is None else view)
        if x.shape[:2] != positions.shape:
            Guard(name).fail(
                argument,
                f"of {list(positions.shape)} positions",
                f"{list(x.shape)}",
                "pass as many tokens",
            )
    values = cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first
    rope_cached_thd_positions_2c_fwd_inplace(rows[0], rows[1], *values)


def rope_cached_2c_fwd_inplace(
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """aiter's: the same where row s of the tables is that of the tokens [s, :]."""
    s, b = input_x.shape[:2]
    if cos.shape[0] < s:
        rows, cos_shape = f"of {s} rows or more", f"{list(cos.shape)}"
        Guard("rope_cached_2c_fwd_inplace").fail(
            "cos", rows, cos_shape, "pass a row for each token"
        )
    positions = torch.arange(s, device=input_x.device)[:, None].repeat(1, b)
    values = rotate_style, reuse_freqs_front_part, nope_first
    rope_cached_positions_2c_fwd_inplace(input_x, input_y, cos, sin, positions, *values)


def rope_cached_thd_positions_2c_fwd_inplace(
    x: Tensor,
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
    transpose_output: bool = False,
) -> None:
    """aiter's Triton function: x and y [tokens, heads, d] rotated in place by tables [max, R / 2],
    or with dimensions of 1 between. Tables of all R elements are refused."""
    name = "rope_cached_thd_positions_2c_fwd_inplace"
    _refuse(
        name,
        reuse_freqs_front_part=(bool(reuse_freqs_front_part), True),
        transpose_output=(transpose_output, False),
    )
    rotary_begin = x.shape[-1] - 2 * cos.shape[-1] if nope_first else 0
    cos, sin = (table if table.dim() == 2 else table.flatten(1) for table in (cos, sin))
    rope(positions, x, y, cos, sin, _style(name, rotate_style), rotary_begin)


def _style(name: str, rotate_style: int) -> bool:
    """Return whether pairs are interleaved: aiter's rotate_style 1 (GPT-J), not 0 (NeoX). Raises
    ValueError for other numbers."""
    if rotate_style not in (0, 1):
        Guard(name).fail("rotate_style", "0 or 1", show(rotate_style), "call the original")
    return rotate_style == 1


# ---------------------------------------------------------------- caches


def concat_and_cache_mla(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    scale: Tensor,
    skip_scale: bool = False,
) -> None:
    """vLLM's and aiter's: kv_c | k_pe written to the slots, if not negative, of kv_cache
    [pages, page, width]; in FP8 over scale, or
    with skip_scale as it is."""
    cache = _latent_cache(_cache("concat_and_cache_mla", kv_cache, kv_cache_dtype))
    factor = _one(kv_c.device) if skip_scale else scale
    mla_cache_write(kv_c, _row(k_pe), cache, slot_mapping, factor)


def concat_and_cache_mla_rope_fused(
    positions: Tensor,
    q_pe: Tensor,
    k_pe: Tensor,
    kv_c: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    kv_cache_dtype: str,
    kv_cache_scale: Tensor,
) -> None:
    """vLLM's: the same after q_pe and k_pe are rotated in place."""
    cache = _latent_cache(_cache("concat_and_cache_mla_rope_fused", kv_cache, kv_cache_dtype))
    values = kv_c, cache, slot_mapping, cos_sin_cache, None, kv_cache_scale, not is_neox
    mla_rope_cache_write(positions, q_pe, _row(k_pe), *values)


def fused_qk_rope_concat_and_cache_mla(
    q_nope: Tensor,
    q_pe: Tensor,
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    q_out: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor,
    q_scale: Tensor,
    positions: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    is_neox: bool,
    is_nope_first: bool,
) -> None:
    """aiter's: q_out = q_nope | rope(q_pe), in FP8 over q_scale, and kv_c | rope(k_pe) written to
    the cache. Rows that begin with the rotated part (is_nope_first False) are refused."""
    name = "fused_qk_rope_concat_and_cache_mla"
    _refuse(name, is_nope_first=(bool(is_nope_first), True))
    cache = _latent_cache(_cache(name, kv_cache, "auto"))
    cos, sin = cos_cache.flatten(1), sin_cache.flatten(1)
    values = cos, sin, k_scale, q_scale, None, not is_neox
    mla_rope_concat_cache_write(
        positions, q_nope, q_pe, _row(k_pe), _row(kv_c), cache, slot_mapping, *values, q=q_out
    )


def fused_qk_rope_cat_and_cache_mla(
    q_nope: Tensor,
    q_pe: Tensor,
    k_nope: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    pos: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_scale: Tensor | float | None,
    is_neox: bool,
    num_decode_toks_for_zeros: int = 0,
    apply_scale: bool = True,
    q_out: Tensor | None = None,
    decode_q_pe_out: Tensor | None = None,
    k_pe_out: Tensor | None = None,
    q_out_dtype: torch.dtype | None = None,
    shuffled_kv_cache: bool = False,
    upcast_operand: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aiter's Triton function, as SGLang calls it: q_out, an empty decode_q_pe_out, the rotated
    k_pe, and empty zeros. kv_cache [slots, 1, width], k_nope and k_pe [tokens, 1, ...]; q_out in
    FP8 has no scale, and k_scale None is 1. Computed in fp32, as upcast_operand asks."""
    name = "fused_qk_rope_cat_and_cache_mla"
    _refuse(
        name,
        num_decode_toks_for_zeros=(num_decode_toks_for_zeros, 0),
        apply_scale=(bool(apply_scale), True),
        decode_q_pe_out=(decode_q_pe_out, None),
        shuffled_kv_cache=(shuffled_kv_cache, False),
    )
    cache = _latent_cache(_cache(name, kv_cache, "auto"))
    key = torch.empty_like(k_pe) if k_pe_out is None else k_pe_out
    dtype = q_out_dtype if q_out is None else q_out.dtype
    scales = _scale(k_scale, q_nope.device), _query_scale(dtype, q_nope.device)
    values = cos.flatten(1), sin.flatten(1), *scales, _row(key), not is_neox, dtype, q_out
    q = mla_rope_concat_cache_write(
        pos, q_nope, q_pe, _row(k_pe), _row(k_nope), cache, slot_mapping, *values
    )
    nothing = q_nope.new_empty(0, *q_pe.shape[1:])
    return q, nothing, key, q_nope.new_empty(0, q_nope.shape[1], k_nope.shape[-1])


def fused_fp8_bmm_rope_cat_and_cache_mla(
    q_nope: Tensor,
    w_k: Tensor,
    w_k_scale: Tensor,
    q_pe: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    group_size: int = 128,
    transpose_bm: bool = True,
    config: Any = None,
    k_scale: Tensor | float | None = None,
    is_neox: bool = False,
    q_out_dtype: torch.dtype | None = torch.bfloat16,
    num_decode_toks_for_zeros: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aiter's Triton function: the same with q_nope [heads, tokens, D], which is multiplied by w_k
    [heads, L, D] in FP8 with one scale. Rows of q_nope are not quantised, which group_size asks
    for; config is aiter's own."""
    name = "fused_fp8_bmm_rope_cat_and_cache_mla"
    zeros = num_decode_toks_for_zeros
    _refuse(name, num_decode_toks_for_zeros=(zeros, 0), transpose_bm=(bool(transpose_bm), True))
    heads, latent, width = w_k.shape
    blocks = heads, -(-latent // BLOCK), -(-width // BLOCK)
    w_scale = w_k_scale.reshape(1, 1, 1).float().expand(blocks)
    cache, key = _latent_cache(_cache(name, kv_cache, "auto")), torch.empty_like(k_rope)
    dtype = torch.bfloat16 if q_out_dtype is None else q_out_dtype
    q = mla_absorb_cache_write(
        positions,
        q_nope.transpose(0, 1),
        q_pe,
        _row(k_rope),
        _row(k_nope),
        w_k,
        cache,
        slot_mapping,
        cos.flatten(1),
        sin.flatten(1),
        _scale(k_scale, q_nope.device),
        w_scale,
        q_scale=_query_scale(dtype, q_nope.device),
        interleaved=not is_neox,
        dtype=dtype,
        k_pe_out=_row(key),
    )
    nothing = q_nope.new_empty(0, *q_pe.shape[1:])
    return q, nothing, key, q_nope.new_empty(0, heads, latent)


def _scale(scale: Tensor | float | None, device: torch.device) -> Tensor:
    """Return aiter's scale of a cache, which may be a number or None for 1, as a float32 tensor."""
    if scale is None or (isinstance(scale, float | int) and scale == 1):
        return _one(device)
    return scale if isinstance(scale, Tensor) else torch.tensor([float(scale)], device=device)


def _query_scale(dtype: torch.dtype | None, device: torch.device) -> Tensor | None:
    """Return the scale of queries of `dtype`, that of FP8 being 1."""
    return _one(device) if dtype is not None and dtype.itemsize == 1 else None


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """vLLM's and aiter's: key and value [tokens, heads, d] written to the slots of caches
    [pages, page, heads, d] that are not negative; in FP8 over their scales."""
    name = "reshape_and_cache_flash"
    caches = [_cache(name, cache, kv_cache_dtype) for cache in (key_cache, value_cache)]
    kv_cache_write(key, value, caches[0], caches[1], slot_mapping, k_scale, v_scale)
