"""The build engine: config -> toolchain -> cache -> code object -> bound kernel."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import settings
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
from .strict import freeze
from .vgpu import vgpu_library, vgpu_library_folder

if TYPE_CHECKING:
    from .bind import BoundKernel, CompiledOp, compile_ops, compiled_ops
    from .plans import Plans
    from .signature import f32, f64, i8, i16, i32, i64, tensors, u8, u16, u32, u64

# What needs torch; the rest of the engine, and the command with it, does without.
_WITH_TORCH = {
    "bind": ("BoundKernel", "CompiledOp", "compile_ops", "compiled_ops"),
    "plans": ("Plans",),
    "signature": ("f32", "f64", "i8", "i16", "i32", "i64", "tensors", "u8", "u16", "u32", "u64"),
}


def __getattr__(name: str) -> Any:
    """Imports a module of `_WITH_TORCH` when the first of its names is asked for."""
    for module, names in _WITH_TORCH.items():
        if name in names:
            found = importlib.import_module(f".{module}", __name__)
            globals().update({name: getattr(found, name) for name in names})
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "tensors",
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
