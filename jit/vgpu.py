"""The virtual GPU's library."""

from __future__ import annotations

from pathlib import Path


def vgpu_library() -> Path:
    """The virtual GPU's libamdhip64.so, built on first use. Raises as build_host."""
    from .host import build_host
    from .spec import module_spec

    return build_host(module_spec("vgpu")).file
