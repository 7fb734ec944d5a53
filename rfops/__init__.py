"""rfops: an op library for AMD Instinct gfx942 and gfx950 in which every kernel is a JIT module.

Importing it starts no process, opens no GPU and imports no op: one is imported when its name is
first asked for here, all of them when torch.ops.rfops is. The first call of an op builds or finds
its kernel.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

try:
    from rfops.jit import (
        BindError,
        BuildError,
        ConfigError,
        HipError,
        JitDisabled,
        LockTimeout,
        RfopsError,
        ToolchainNotFound,
        UnsupportedArch,
        freeze,
    )
except ModuleNotFoundError as error:
    if error.name != "rfops.jit":
        raise
    # jit/, csrc/ and configs/ lie beside this folder in a checkout; installing puts them inside.
    message = "rfops is a checkout that is not installed: run pip install -e . in its folder"
    raise ModuleNotFoundError(message, name=error.name) from None

from rfops.jit.forks import importing
from rfops.later import MODULES, TorchOps, when_imported

if TYPE_CHECKING:
    from rfops import vgpu
    from rfops.attention.mla_decode import mla_decode, mla_decode_ref
    from rfops.attention.mla_layer_decode import (
        mla_layer_decode,
        mla_layer_decode_ref,
        rope_angles,
    )
    from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale, gemm_a8w8_blockscale_ref
    from rfops.gemm.a8wfp4 import gemm_a8wfp4, gemm_a8wfp4_ref
    from rfops.gemm.a16w8_blockscale import (
        batched_gemm_a16w8_blockscale,
        batched_gemm_a16w8_blockscale_ref,
    )
    from rfops.gemm.a16wfp4 import gemm_a16wfp4, gemm_a16wfp4_ref
    from rfops.gemm.afp4wfp4 import gemm_afp4wfp4, gemm_afp4wfp4_ref
    from rfops.gemm.mxfp8 import gemm_mxfp8, gemm_mxfp8_ref
    from rfops.moe.align_block_size import moe_align_block_size
    from rfops.moe.fused_moe import fused_moe, fused_moe_ref, moe_layer
    from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8, grouped_gemm_mxfp8_ref
    from rfops.moe.grouped_topk import grouped_topk, grouped_topk_ref
    from rfops.moe.router import moe_router, moe_router_ref
    from rfops.moe.topk_softmax import topk_softmax, topk_softmax_ref
    from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
    from rfops.quantization.mxfp4 import quant_mxfp4
    from rfops.quantization.mxfp8 import quant_mxfp8
    from rfops.quantization.shuffle import (
        shuffle_scale,
        shuffle_weight,
        unshuffle_scale,
        unshuffle_weight,
    )


def __getattr__(name: str) -> Any:
    for module, names in MODULES.items():
        if name in names.split() or name == module:
            with importing:
                found = importlib.import_module(f"rfops.{module}")
            here = {known: getattr(found, known) for known in names.split()}
            globals().update(here or {module: found})
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


when_imported("torch", TorchOps)

__all__ = [
    "BindError",
    "BuildError",
    "ConfigError",
    "HipError",
    "JitDisabled",
    "LockTimeout",
    "RfopsError",
    "ToolchainNotFound",
    "UnsupportedArch",
    "__version__",
    "batched_gemm_a16w8_blockscale",
    "batched_gemm_a16w8_blockscale_ref",
    "freeze",
    "fused_moe",
    "fused_moe_ref",
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_ref",
    "gemm_a8wfp4",
    "gemm_a8wfp4_ref",
    "gemm_a16wfp4",
    "gemm_a16wfp4_ref",
    "gemm_afp4wfp4",
    "gemm_afp4wfp4_ref",
    "gemm_mxfp8",
    "gemm_mxfp8_ref",
    "grouped_gemm_mxfp8",
    "grouped_gemm_mxfp8_ref",
    "grouped_topk",
    "grouped_topk_ref",
    "mla_decode",
    "mla_decode_ref",
    "mla_layer_decode",
    "mla_layer_decode_ref",
    "moe_align_block_size",
    "moe_layer",
    "moe_router",
    "moe_router_ref",
    "quant_fp8_blockscale",
    "quant_mxfp4",
    "quant_mxfp8",
    "rope_angles",
    "shuffle_scale",
    "shuffle_weight",
    "topk_softmax",
    "topk_softmax_ref",
    "unshuffle_scale",
    "unshuffle_weight",
    "vgpu",
]
