"""mla_absorb_cache_write: what stands between q_b and MLA decode, in one launch.

    q        = q_nope[h] k_up[h]^T | rope(q_pe)     of 16 bits, or FP8 over q_scale
    kv[slot] = norm(kv_c) | rope(k_pe)              as of mla_rope_concat_cache_write
    k_pe_out = rope(k_pe)                           where it is given

norm is rms_norm's where kv_norm is given, otherwise kv_c is cached as it is. k_up has q's dtype, or
is FP8 with scales of 128 x 128.

| kernel | what it takes |
|---|---|
| hip (csrc/attention/mla_absorb_cache_write.hip) | few tokens, aligned rows |
| ops | what is left: rms_norm, the batched product and mla_rope_concat_cache_write |
| torch | the reference |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.strided import strides_of
from rfops.gemm.a16w8_blockscale import (
    batched_gemm_a16w8_blockscale,
    batched_gemm_a16w8_blockscale_ref,
)
from rfops.gemm.batched_a16w16 import batched_gemm_a16w16, batched_gemm_a16w16_ref
from rfops.jit import compile_ops, f32, u32
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.rows import IN_TYPES
from rfops.rowwise.rms_norm import EPS, rms_norm, rms_norm_ref

from .mla_cache_write import (
    CACHE_AND_ANGLES,
    NO_ROWS,
    Torch,
    Write,
    cache_rows,
    is_fp8,
    mla_rope_concat_cache_write,
    mla_rope_concat_cache_write_ref,
    unlike_query_reason,
)
from .mla_layer_parts import LATENT, NOPE, ROPE
from .rotary import (
    INDEX_TYPES,
    MAX_UNITS,
    VEC,
    Refusal,
    angle_rows,
    angles_are_aligned,
    define_values,
    head_strides,
    row_stride,
)

__all__ = ["mla_absorb_cache_write", "mla_absorb_cache_write_ref"]
MAX_TOKENS = 64  # with more, each wave of the product goes over too many of them
THREADS, TILE, STEP_K, WAVE = 256, 16, 32, 64
_SCALE_STRIDES = "k_up_scale_head", "k_up_scale_row", "k_up_scale_column"
_ROWS = ("q_nope", "q_pe", "k_pe", "kv_c", "kv_norm", "k_up", "kv", "k_pe_out", "q")


def _variants(_arch: str) -> list[dict[str, Any]]:
    """DeepSeek's at TP 8, with weights and cache in bf16 and in FP8."""
    defines = {"IN": "bf16", "ANGLE": "bf16", "NORM": "bf16", "SLOT": "Index64", "NOPE": NOPE}
    defines |= {"POSITION": "Index64", "ROTARY": ROPE, "LATENT": LATENT, "HEADS": 16}
    defines |= {"INTERLEAVED": 1, "NESTED": 0, "NORMED": 1, "QUERY_FP8": 0, "KEY_OUT": 0}
    return [{**defines, "CACHE_FP8": fp8, "WEIGHT_FP8": fp8} for fp8 in (0, 1)]


@compile_ops("mla_absorb_cache_write", kernel="mla_absorb_cache_write", variants=_variants)
def mla_absorb_cache_write_kernel(
    num_product_groups: u32,
    num_kv_c_groups: u32,
    num_tokens: u32,
    num_slots: u32,
    kv_c: torch.Tensor,
    kv_norm: torch.Tensor | None,
    slot_indices: torch.Tensor,
    kv_scale: torch.Tensor | None,
    kv_c_row: u32,
    num_k_pe_groups: u32,
    kv: torch.Tensor,
    num_cache_slots: u32,
    page: u32,
    page_stride: u32,
    slot_stride: u32,
    eps: f32,
    q_nope: torch.Tensor,
    k_up: torch.Tensor,
    k_up_scale: torch.Tensor | None,
    q: torch.Tensor,
    q_nope_token: u32,
    q_nope_head: u32,
    k_up_head: u32,
    k_up_row: u32,
    q_token: u32,
    q_head: u32,
    k_up_scale_head: u32,
    k_up_scale_row: u32,
    k_up_scale_column: u32,
    q_scale: torch.Tensor | None,
    positions: torch.Tensor,
    k_pe: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe_row: u32,
    q_pe_token: u32,
    q_pe_head: u32,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None,
    angle_row: u32,
    num_positions: u32,
    sin_offset: u32,
    k_pe_out_row: u32,
    k_pe_out: torch.Tensor | None,
) -> None:
    """csrc/attention/mla_absorb_cache_write.hip: the shapes stand there."""


class Hip(Kernel):
    """One launch, whose workgroups multiply, or copy and rotate."""

    name, module = "hip", "mla_absorb_cache_write"

    def numbers(self, c: Call) -> dict[str, int] | None:
        """Where rows begin, in elements; None where elements of a row are not neighbours."""
        kv, angles = cache_rows(c, "kv", c.W), angle_rows(c)
        rows = {f"{name}_row": row_stride(c, name, n) for name, n in (("k_pe", c.R), ("kv_c", c.L))}
        rows["k_pe_out_row"] = row_stride(c, "k_pe_out" if c.has("k_pe_out") else "k_pe", c.R)
        heads = {
            name: head_strides(c, name, c.H, columns)
            for name, columns in (("q_pe", c.R), ("q_nope", c.D), ("q", c.W))
        }
        view = c.tensors.get("k_up")
        k_up = (c.L * c.D, c.D, 1) if view is None else strides_of(view, (c.H, c.L, c.D))
        if kv is None or angles is None or k_up[2] != 1:
            return None
        offsets: dict[str, int] = {"k_up_head": k_up[0], "k_up_row": k_up[1]}
        for name, stride in rows.items():
            if stride is None:
                return None
            offsets[name] = stride
        for name, strides in heads.items():
            if strides is None:
                return None
            offsets[f"{name}_token"], offsets[f"{name}_head"] = strides
        offsets["angle_row"], offsets["sin_offset"] = angles
        offsets |= dict(zip(_SCALE_STRIDES, self._scale_strides(c), strict=True))
        pages = {"page": kv.inner, "page_stride": kv.outer_stride, "slot_stride": kv.inner_stride}
        return offsets | pages

    def _scale_strides(self, c: Call) -> Sequence[int]:
        """Of the scale of each block of k_up; whatever they are where k_up has none."""
        shape = c.H, -(-c.L // BLOCK), -(-c.D // BLOCK)
        view = c.tensors.get("k_up_scale")
        return (shape[1] * shape[2], shape[2], 1) if view is None else strides_of(view, shape)

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        if c.T > MAX_TOKENS:
            return f"{c.T} tokens: it takes up to {MAX_TOKENS}"
        numbers = self.numbers(c)
        if numbers is None:
            return NO_ROWS
        for dtype in (c.kv_dtype, c.dtype, c.k_up_dtype):
            if is_fp8(dtype) and dtype != fp8_of(c.arch):
                return f"{c.arch} converts {fp8_of(c.arch)}, not {dtype}"
        if reason := unlike_query_reason(c):
            return reason
        units = c.L // (2 * VEC)
        if c.L % BLOCK or units & (units - 1) or units > WAVE or c.R % (2 * VEC) or c.D % STEP_K:
            return "rows of another size than a wave or a part of it takes"
        if c.D > 2 * BLOCK:
            return f"D of more than {2 * BLOCK}: k_up's rows stay in registers"
        sizes = {"k_up_head": c.k_up_dtype.itemsize, "k_up_row": c.k_up_dtype.itemsize}
        others = "page", "angle_row", "sin_offset", *_SCALE_STRIDES
        strides = {n: v for n, v in numbers.items() if n not in others}
        size = c.kv_c_dtype.itemsize
        is_aligned = all(v * sizes.get(n, size) % 16 == 0 for n, v in strides.items())
        if not (is_aligned and c.align(*_ROWS) >= 16 and angles_are_aligned(c)):
            return "rows that are not 16-byte aligned"
        num_elements = max(c.N * c.page, c.T * (c.H + 1) * c.W, *numbers.values())
        return "2^31 slots or elements, or more" if num_elements >= MAX_UNITS else None

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        numbers = self.numbers(c)
        assert numbers is not None
        turning = {n: v for n, v in define_values(c).items() if n != "THREADS"}
        norm = IN_TYPES[c.kv_norm_dtype] if c.has("kv_norm") else "f32"
        return {
            **turning,
            "IN": IN_TYPES[c.kv_c_dtype],
            "NORM": norm,
            "NORMED": int(c.has("kv_norm")),
            "SLOT": INDEX_TYPES[c.slots_dtype],
            "HEADS": max(c.H, 1),
            "NOPE": c.D,
            "LATENT": c.L,
            "NESTED": int(numbers["page"] > 1),
            "CACHE_FP8": int(is_fp8(c.kv_dtype)),
            "QUERY_FP8": int(is_fp8(c.dtype)),
            "WEIGHT_FP8": int(is_fp8(c.k_up_dtype)),
            "KEY_OUT": int(c.has("k_pe_out")),
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        bound = mla_absorb_cache_write_kernel.bind(c.device, self.defines(c, config), c.arch)
        sources: dict[str, str | None] = {"slot_indices": "slots"}
        if not c.has("sin"):
            sources["sin"] = "cos_sin"
        launch = bound.prepare((THREADS, 1, 1), self.arguments, sources=sources)

        def run_of(*sizes: int) -> Run:
            sized = c.resized(sizes)
            numbers = self.numbers(sized)
            assert numbers is not None
            unit, heads = 2 * VEC, sized.H
            groups = [
                -(-heads * (sized.L // TILE) * WAVE // THREADS),
                *(-(-sized.T * n // unit // THREADS) for n in (sized.L, sized.R, heads * sized.R)),
            ]
            counts = dict(
                zip(
                    ("num_product_groups", "num_kv_c_groups", "num_k_pe_groups"),
                    groups,
                    strict=False,
                )
            )
            counts |= {"num_tokens": sized.T, "num_slots": sized.S, "num_positions": sized.P}
            counts["num_cache_slots"] = sized.N * sized.page
            return launch((sum(groups), 1, 1), eps=float(c.eps), **counts, **numbers)

        return run_of


class Ops(Kernel):
    """The ops one after the other, each by the kernel that it chooses."""

    name = "ops"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(
            q: torch.Tensor,
            positions: torch.Tensor,
            q_nope: torch.Tensor,
            q_pe: torch.Tensor,
            k_pe: torch.Tensor,
            kv_c: torch.Tensor,
            k_up: torch.Tensor,
            kv: torch.Tensor,
            slots: torch.Tensor,
            cos_sin: torch.Tensor,
            sin: torch.Tensor | None,
            kv_scale: torch.Tensor | None,
            k_up_scale: torch.Tensor | None,
            kv_norm: torch.Tensor | None,
            q_scale: torch.Tensor | None,
            k_pe_out: torch.Tensor | None,
        ) -> None:
            row = kv_c if kv_norm is None else rms_norm(kv_c, kv_norm, None, c.eps)
            by_head = q_nope.transpose(0, 1)
            if k_up_scale is None:
                latent = batched_gemm_a16w16(by_head, k_up, q_nope.dtype)
            else:
                scale = k_up_scale.contiguous()
                latent = batched_gemm_a16w8_blockscale(by_head, k_up, scale, q_nope.dtype)
            values = kv, slots, cos_sin, sin, kv_scale, q_scale, k_pe_out, c.interleaved, c.dtype
            mla_rope_concat_cache_write(
                positions, latent.transpose(0, 1), q_pe, k_pe, row, *values, q
            )

        return lambda *_sizes: run


def mla_absorb_cache_write_ref(
    positions: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    k_up: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    k_up_scale: torch.Tensor | None,
    kv_norm: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    k_pe_out: torch.Tensor | None,
    eps: float,
    interleaved: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """q [T, heads, L + R] of dtype, and the cache written, in plain torch; arguments as of
    mla_absorb_cache_write, the norm and the product rounded to q_nope's dtype.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.2 and 2.1.3.
    """
    by_head = q_nope.transpose(0, 1)
    if k_up_scale is None:
        latent = batched_gemm_a16w16_ref(by_head, k_up, torch.float32)
    else:
        latent = batched_gemm_a16w8_blockscale_ref(by_head, k_up, k_up_scale, torch.float32)
    row = kv_c if kv_norm is None else rms_norm_ref(kv_c, kv_norm, None, eps).to(kv_c.dtype)
    values = kv, slots, cos_sin, sin, kv_scale, q_scale, k_pe_out, interleaved, dtype
    rounded = latent.transpose(0, 1).to(q_nope.dtype)
    return mla_rope_concat_cache_write_ref(positions, rounded, q_pe, k_pe, row, *values)


class _Absorb(Write):
    def unsupported_reason(self, c: Call, *sizes: int) -> Refusal | None:
        if refusal := super().unsupported_reason(c, *sizes):
            return refusal
        dtype, q_dtype = c.k_up_dtype, c.q_nope_dtype
        if not is_fp8(dtype) and dtype != q_dtype:
            expected, actual = (str(d).removeprefix("torch.") for d in (q_dtype, dtype))
            return "k_up", f"{expected}, as q_nope is, or FP8", actual, "convert it first"
        if c.tensors and is_fp8(dtype) != c.has("k_up_scale"):
            kind = f"k_up of {str(dtype).removeprefix('torch.')}"
            return "k_up_scale", "a tensor for k_up in FP8, and None for others", kind, "pass it so"
        return None

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        super().assume(sizes, values)
        sizes.setdefault("D", NOPE)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        fitted = dict(super().fit(c, draw))
        shape = c.H, -(-c.L // BLOCK), -(-c.D // BLOCK)
        fitted["k_up_scale"] = (
            torch.full(shape, 1 / 64, device=c.device) if is_fp8(c.k_up_dtype) else None
        )
        return fitted

    def traffic(self, c: Call) -> int:
        """As of mla_rope_concat_cache_write, with q_nope of D and k_up once."""
        size = c.kv_c_dtype.itemsize
        nope = c.T * c.H * (c.D - c.L) * size
        weights = c.H * c.L * c.D * c.k_up_dtype.itemsize
        return int(super().traffic(c) + nope + weights)

    def flops(self, c: Call) -> int:
        return 2 * int(c.T * c.H * c.L * c.D)

    def roundings(self, c: Call) -> int:
        """Of the product's sums along D, of the norm's square sum, and of both results."""
        return 2 * int(c.D) + int(c.L) // 2 + 64


OP = _Absorb(
    "mla_absorb_cache_write",
    f"""
    positions: i64|i32[*T]
    q_nope: bf16|f16[T, H, D] strided
    q_pe: bf16|f16[T, H, R] strided
    k_pe: bf16|f16[T, R] strided
    kv_c: bf16|f16[T, L] strided
    k_up: bf16|f16|e4m3|e4m3fnuz[H, L, D] strided
    {CACHE_AND_ANGLES}
    k_up_scale: f32[H, L^128, D^128]? strided
    kv_norm: bf16|f16|f32[L]?
    q_scale: f32[*1]?
    k_pe_out: bf16|f16[T, R]? strided inout
    eps: float
    interleaved: bool
    dtype: bf16|f16|e4m3|e4m3fnuz
    -> q: dtype[T, H, W] strided
    """,
    kernels=(Hip(), Ops(), Torch(mla_absorb_cache_write_ref, ("eps", "interleaved", "dtype"))),
    reference=mla_absorb_cache_write_ref,
    coarse={"T": 0, "S": 0, "N": 0, "P": 0},
    max_bytes=None,
    usual={"eps": EPS},
    hints={"kv": "view bytes as float8"},
    shapes={"models": grid("H T", [(16, 1), (16, 16), (16, 64)], kv_dtype=("fp8",))},
)


def mla_absorb_cache_write(
    positions: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    k_up: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    k_up_scale: torch.Tensor | None = None,
    kv_norm: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    eps: float = EPS,
    interleaved: bool = False,
    dtype: torch.dtype | None = None,
    q: torch.Tensor | None = None,
    k_pe_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return q_nope k_up^T | rope(q_pe) as mla_decode takes it, and write norm(kv_c) | rope(k_pe)
    to the paged cache.

    Parameters
    ----------
    positions : T int64 or int32 in any shape: rows of cos_sin; one outside counts as the last. Of
        int64 the lower 32 bits are taken, unsigned.
    q_nope : [T, heads, D] bfloat16 or float16, not absorbed; any strides, as a view of q_b's rows.
    q_pe : [T, heads, R] of the same; any strides. It stays, and so do k_pe and kv_c.
    k_pe : [T, R] of q_nope's dtype; any strides.
    kv_c : [T, L] of q_nope's dtype; any strides.
    k_up : [heads, L, D] of q_nope's dtype or FP8, any strides: kv_b_proj's half of k, transposed.
    kv : [pages, page_size, L + R] of kv_c's dtype or FP8; written. Any strides.
    slots : [S] int64 or int32, S <= T: of a token page * page_size + offset, or any number
        outside of the cache for a token that is not cached.
    cos_sin : [positions, R] bfloat16, float16 or float32, a row's cosines before its sines; with
        `sin` the cosines alone, [positions, R / 2].
    sin : [positions, R / 2] of cos_sin's dtype, or None.
    kv_scale : one float32 for an FP8 cache: what it is to be multiplied by.
    k_up_scale : [heads, L/128, D/128] float32 for k_up in FP8; any strides, 0 for one scale of all.
    kv_norm : [L] bfloat16, float16 or float32, the weight of kv_c's norm; None where kv_c is
        normalised already.
    q_scale : one float32 for q in FP8: what it is to be multiplied by.
    eps : of the norm.
    interleaved : whether a pair is two neighbours, not an element of each half.
    dtype : of q: bfloat16, float16 or FP8; None: that of `q`, else of q_nope.
    q : [T, heads, L + R] of dtype, any strides, written and returned.
    k_pe_out : [T, R] of k_pe's dtype, any strides: the rotated k_pe is written there too.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.2, absorbed weights, and 2.1.3, decoupled RoPE.
    """
    dtype = (q_nope if q is None else q).dtype if dtype is None else dtype
    call = OP.traced if is_dynamo_compiling() else OP.call
    tensors = positions, q_nope, q_pe, k_pe, kv_c, k_up, kv, slots, cos_sin, sin, kv_scale
    scales = k_up_scale, kv_norm, q_scale
    query: torch.Tensor = call(*tensors, *scales, k_pe_out, eps, interleaved, dtype, q)
    return query
