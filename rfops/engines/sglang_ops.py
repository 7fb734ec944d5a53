"""Functions of compiled packages that SGLang 0.5.23 calls: those of sgl_kernel, which is in no
wheel for ROCm, and those of aiter that rfops' importable one lacks. Other names of these modules
can be imported, and refuse to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rfops.attention.cache_dropins import rotary_embedding
from rfops.compat.aiter import dtypes

from .tally import RFOPS, TORCH, counted
from .torch_ops import rotate, write_rows


def _silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    import rfops

    return rfops.silu_mul(x, out=out)


def _greedy_sample(out: Tensor, logits: Tensor) -> None:
    out.copy_(logits.argmax(-1))


def _get_rope(*args: Any, **options: Any) -> Any:
    """SGLang's own layer, with the tables of aiter's: [positions, 1, 1, rotated / 2]."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    rope = get_rope(*args, **options)
    rope.cos_cache, rope.sin_cache = rope.cos_sin_cache[:, None, None].chunk(2, -1)
    return rope


def _fused_qk_rope_cat_and_cache_mla(
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
    q_out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, None, Tensor, Tensor]:
    """Return q [T, heads, nope + rope], None, k_pe with RoPE, and the rows of k that are written to
    kv_cache [slots, 1, nope + rope] at slot_mapping."""
    cos, sin = (table[pos].float().flatten(1)[:, None] for table in (cos, sin))
    q_pe, k_pe = (rotate(x, cos, sin, is_neox).to(x.dtype) for x in (q_pe, k_pe))
    rows = torch.cat((k_nope, k_pe), -1)
    write_rows(rows, kv_cache[:, None], slot_mapping, 1.0 if k_scale is None else k_scale)
    return torch.cat((q_nope, q_pe), -1).to(q_out_dtype or q_nope.dtype), None, k_pe, rows


def _make_kernel_repr(name: str, _keys: list[str]) -> Callable[[Any], str]:
    """A Triton kernel's name in profiles."""
    return lambda _specialisation: name


Modules = Mapping[str, Mapping[str, Any]]  # what each has beside names that refuse
SGL_KERNEL: Modules = {
    "sgl_kernel": {
        "silu_and_mul": counted(RFOPS, "sgl_kernel.silu_and_mul", _silu_and_mul),
        "rotary_embedding": counted(RFOPS, "sgl_kernel.rotary_embedding", rotary_embedding),
    }
}
AITER_NAMES = {"greedy_sample": counted(TORCH, "aiter.greedy_sample", _greedy_sample)}
_FUSED_ROPE = "fused_qk_rope_cat_and_cache_mla"
AITER_MODULES: Modules = {
    "aiter.ops.triton.fused_kv_cache": {
        _FUSED_ROPE: counted(TORCH, f"aiter: {_FUSED_ROPE}", _fused_qk_rope_cat_and_cache_mla)
    },
    "aiter.rotary_embedding": {"get_rope": _get_rope},
    "aiter.ops.triton.utils._triton.kernel_repr": {"make_kernel_repr": _make_kernel_repr},
    "aiter.ops.triton.utils.types": {"e4m3_dtype": dtypes.fp8},
    # imported with a model of DeepSeek's, and not called for it
    "aiter.ops.triton.attention": {},
    "aiter.ops.triton.batched_gemm_afp4wfp4_pre_quant": {},
    "aiter.ops.triton.fused_mxfp4_quant": {},
    "aiter.ops.triton.fused_qk_concat": {},
    "aiter.ops.triton.fusions.fused_bmm_rope_kv_cache": {},
}
