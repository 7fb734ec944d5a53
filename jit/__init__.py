"""The build engine: config -> toolchain -> cache -> code object -> bound kernel."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import settings
from .build.vgpu_library import vgpu_hsa_folder, vgpu_library, vgpu_library_folder
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
from .policy.strict import freeze, when_frozen

if TYPE_CHECKING:
    from .launch.bind import BoundKernel, CompiledOp, compile_ops, compiled_ops
    from .launch.plans import Plans
    from .launch.signature import f32, f64, i8, i16, i32, i64, tensors, u8, u16, u32, u64

# What needs torch; the rest of the engine, and the command with it, does without.
_WITH_TORCH = {
    "launch.bind": ("BoundKernel", "CompiledOp", "compile_ops", "compiled_ops"),
    "launch.plans": ("Plans",),
    "launch.signature": (
        "f32",
        "f64",
        "i8",
        "i16",
        "i32",
        "i64",
        "tensors",
        "u8",
        "u16",
        "u32",
        "u64",
    ),
}


def __getattr__(name: str) -> Any:
    """Imports a module of `_WITH_TORCH` when the first of its names is asked for."""
    for module, names in _WITH_TORCH.items():
        if name in names:
            submodule = importlib.import_module(f".{module}", __name__)
            globals().update({name: getattr(submodule, name) for name in names})
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
    "vgpu_hsa_folder",
    "vgpu_library",
    "vgpu_library_folder",
]


def _watch_triton() -> None:
    from .policy.triton_builds import watch

    watch()


when_frozen.append(_watch_triton)
if settings.raw("RFOPS_JIT") == "0" or settings.raw("RFOPS_RECORD_MANIFEST"):
    _watch_triton()
