"""What the kernels of mla_layer_decode share: sizes of a head, and its attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rfops.dispatch.kernel import Call, Kernel
from rfops.dispatch.steps import NestedRun
from rfops.dispatch.view import View

from . import mla_decode
from .mla_decode_flow import rotates_keys

CACHE_ROW, LATENT = 576, 512  # of the cache: of a token, and what all heads' k and v come from
NOPE, ROPE, V = 128, 64, 128  # of a head: of its key, of that what is turned; of its value
HALF = ROPE // 2
SM_SCALE = (NOPE + ROPE) ** -0.5
_BF16 = torch.bfloat16


def attention_call(c: Call, page: int) -> Call:
    """That of mla_decode on a layer's cache in pages of `page`, by a block table."""
    pages = c.L // page
    sizes = {
        "B": c.B,
        "T": c.B,
        "H": c.V // V,
        "S": c.B * pages,
        "P": c.B * pages,
        "page": page,
        "ends": c.B,
        "W": pages,
    }
    values: Mapping[str, Any] = {
        "sm_scale": SM_SCALE,
        "qo_len": 1,
        "causal": True,
        "q_dtype": _BF16,
        "kv_dtype": _BF16,
    }
    shapes = {
        "kv_indices": ((c.B, pages), torch.int32),
        "kv_lens": ((c.B,), torch.int32),
        "angles": ((c.A, ROPE), _BF16),
    }
    tensors = {name: View.dense(*shape, c.device) for name, shape in shapes.items()}
    return Call(c.arch, c.cu_num, c.device, sizes, values, tensors)


def attention_kernel(decode_call: Call, *, hip: bool) -> tuple[Kernel | None, str]:
    """The first that turns keys and takes the call, of HIP or of Triton; else why there is none."""
    reasons = []
    order = mla_decode.OP.order(decode_call)
    for name in (*order, *(n for n in mla_decode.OP.kernels if n not in order)):
        kernel = mla_decode.OP.kernels[name]
        if rotates_keys(kernel) and kernel.is_hip == hip:
            reason = kernel.unsupported_reason(decode_call)
            if reason is None:
                return kernel, ""
            reasons.append(f"{kernel.name}: {reason}")
    return None, "; ".join(reasons)


def attention(c: Call, page: int, *, hip: bool) -> NestedRun:
    """The launch of mla_decode's kernel on `q`, `kv`, `kv_indices`, `kv_lens` and `angles`, into
    `out`; a block table needs no kv_indptr, but some lengths in its place."""
    decode_call = attention_call(c, page)
    kernel, reason = attention_kernel(decode_call, hip=hip)
    assert kernel is not None, reason
    run = kernel.variant(decode_call, kernel.default(decode_call))(*decode_call.sizes.values())
    sources = {
        "out": "latent",
        "kv": "cache",
        "kv_indptr": "lens",
        "kv_indices": "table",
        "kv_lens": "lens",
    }
    return NestedRun(run, (*kernel.arguments, "angles"), sources)
