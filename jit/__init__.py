"""The build engine: config -> toolchain -> cache -> code object -> bound kernel."""

from . import settings
from .bind import BoundKernel, CompiledOp, compile_ops, compiled_ops
from .errors import (
    BindError,
    BuildError,
    ConfigError,
    HipError,
    JitDisabled,
    LockTimeout,
    RfopsError,
    ToolchainNotFound,
    UnsupportedArch,
)
from .plans import Plans
from .signature import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from .strict import freeze
from .vgpu import vgpu_library, vgpu_library_folder

__all__ = [
    "BindError",
    "BoundKernel",
    "BuildError",
    "CompiledOp",
    "ConfigError",
    "HipError",
    "JitDisabled",
    "LockTimeout",
    "Plans",
    "RfopsError",
    "ToolchainNotFound",
    "UnsupportedArch",
    "compile_ops",
    "compiled_ops",
    "f32",
    "f64",
    "freeze",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "vgpu_library",
    "vgpu_library_folder",
]

if settings.raw("RFOPS_JIT") == "0" or settings.raw("RFOPS_RECORD_MANIFEST"):
    from .triton_builds import watch

    watch()
