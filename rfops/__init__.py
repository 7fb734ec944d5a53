"""rfops: an op library for AMD Instinct gfx942 and gfx950 in which every kernel is a JIT module.

Importing it starts no process, opens no GPU and loads no library but torch; the first call of an op
builds or finds its kernel.
"""

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

# The command alone begins without the ops, and without torch (rfops_command.py); `cli.with_ops`
# imports them then.
if not globals().get("WITHOUT_OPS"):
    from rfops import vgpu
    from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale, gemm_a8w8_blockscale_ref
    from rfops.gemm.a8w8_layout import shuffle_weight
    from rfops.gemm.a16w8_blockscale import (
        batched_gemm_a16w8_blockscale,
        batched_gemm_a16w8_blockscale_ref,
    )
    from rfops.gemm.mxfp8 import gemm_mxfp8, gemm_mxfp8_ref
    from rfops.moe.align_block_size import moe_align_block_size
    from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8, grouped_gemm_mxfp8_ref
    from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
    from rfops.quantization.mxfp8 import quant_mxfp8

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
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_ref",
    "gemm_mxfp8",
    "gemm_mxfp8_ref",
    "grouped_gemm_mxfp8",
    "grouped_gemm_mxfp8_ref",
    "moe_align_block_size",
    "quant_fp8_blockscale",
    "quant_mxfp8",
    "shuffle_weight",
    "vgpu",
]
