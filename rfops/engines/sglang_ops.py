"""Functions of compiled packages that SGLang 0.5.23 calls: those of sgl_kernel, which is in no
wheel for ROCm, and those of aiter that rfops' importable one lacks. Other names of these modules
can be imported, and refuse to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rfops.attention.cache_dropins import (
    fused_fp8_bmm_rope_cat_and_cache_mla,
    fused_qk_rope_cat_and_cache_mla,
    rotary_embedding,
)
from rfops.compat.aiter import dtypes

from .tally import RFOPS, TORCH, counted


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


def _make_kernel_repr(name: str, _keys: list[str]) -> Callable[[Any], str]:
    """A Triton kernel's name in profiles."""
    return lambda _specialisation: name


def _counted(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A module's function of aiter's that rfops' op computes."""
    name = function.__name__
    return {name: counted(RFOPS, f"aiter: {name}", function)}


Modules = Mapping[str, Mapping[str, Any]]  # what each has beside names that refuse
SGL_KERNEL: Modules = {
    "sgl_kernel": {
        "silu_and_mul": counted(RFOPS, "sgl_kernel.silu_and_mul", _silu_and_mul),
        "rotary_embedding": counted(RFOPS, "sgl_kernel.rotary_embedding", rotary_embedding),
    }
}
AITER_NAMES = {"greedy_sample": counted(TORCH, "aiter.greedy_sample", _greedy_sample)}
AITER_MODULES: Modules = {
    "aiter.ops.triton.fused_kv_cache": _counted(fused_qk_rope_cat_and_cache_mla),
    "aiter.ops.triton.fusions.fused_bmm_rope_kv_cache": _counted(
        fused_fp8_bmm_rope_cat_and_cache_mla
    ),
    "aiter.rotary_embedding": {"get_rope": _get_rope},
    "aiter.ops.triton.utils._triton.kernel_repr": {"make_kernel_repr": _make_kernel_repr},
    "aiter.ops.triton.utils.types": {"e4m3_dtype": dtypes.fp8},
    # imported with a model of DeepSeek's, and not called for it
    "aiter.ops.triton.attention": {},
    "aiter.ops.triton.batched_gemm_afp4wfp4_pre_quant": {},
    "aiter.ops.triton.fused_mxfp4_quant": {},
    "aiter.ops.triton.fused_qk_concat": {},
}
