"""When nothing may be built: RFOPS_JIT=0 for a process, `freeze` for what comes after warm-up."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from . import log, settings
from .errors import JitDisabled

_MODES = ("warn", "error", "off")
_mode = "off"
_wanted = 0  # blocks in which a build is what the user asked for


def freeze(mode: str = "error") -> None:
    """From now on a build is a mistake: "warn" logs each, "error" raises JitDisabled instead, "off"
    allows them again. Kernels of HIP and of Triton alike; what a cache has is no build.
    """
    global _mode
    if mode not in _MODES:
        raise ValueError(f"freeze: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    _mode = mode
    if mode != "off":
        watch_triton()


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """`rfops build` builds whatever the settings say."""
    global _wanted
    _wanted += 1
    try:
        yield
    finally:
        _wanted -= 1


def may_build() -> bool:
    """Whether a compiler may be started at all."""
    return bool(_wanted) or settings.text("RFOPS_JIT") != "0"


def is_frozen() -> bool:
    return _mode != "off"


def check_build(missing: str, command: str) -> None:
    """Called before every build. Raises JitDisabled."""
    if not may_build():
        raise JitDisabled("RFOPS_JIT=0 forbids building", missing, command)
    if _wanted or _mode == "off":
        return
    if _mode == "error":
        raise JitDisabled('rfops.freeze("error") forbids building', missing, command)
    log.get().warning("built after rfops.freeze(): %s; prebuild: %s", missing, command)


def watch_triton() -> None:
    """Ask check_build before Triton compiles, if Triton is installed. Imports it."""
    if importlib.util.find_spec("triton") is not None:
        _watch_triton()


@functools.cache
def _watch_triton() -> None:
    # Triton's hooks run on hits of its disk cache too; IR is made for a compile only.
    from triton.compiler import compiler

    for source in (compiler.ASTSource, compiler.IRSource):
        source.make_ir = _checked(source.make_ir)


def _checked(make_ir: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make_ir)
    def checked(source: Any, target: Any, *rest: Any, **more: Any) -> Any:
        arch = getattr(target, "arch", target)
        check_build(
            f"Triton's kernel {source.name} for {arch}",
            "a run that uses it without RFOPS_JIT=0 and before rfops.freeze()",
        )
        return make_ir(source, target, *rest, **more)

    return checked
