"""When nothing may be built: RFOPS_JIT=0 for a process, `freeze` for what comes after warm-up.

RFOPS_JIT=0 is about the kernels of rfops, of HIP and of Triton; frozen is every Triton kernel, also
those that torch.compile makes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
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


def check_build(missing: str, command: str, ours: bool = True) -> None:
    """Called before every build; RFOPS_JIT is about `ours`. Raises JitDisabled."""
    if ours and not may_build():
        raise JitDisabled("RFOPS_JIT=0 forbids building", missing, command)
    if _wanted or _mode == "off":
        return
    if _mode == "error":
        raise JitDisabled('rfops.freeze("error") forbids building', missing, command)
    log.get().warning("built after rfops.freeze(): %s; prebuild: %s", missing, command)


# ---------------------------------------------------------------- Triton

_TRITON = "triton.compiler.compiler"


def watch_triton() -> None:
    """Ask check_build before Triton compiles: from now on if it is imported, else from then on."""
    if _TRITON in sys.modules:
        _watch(sys.modules[_TRITON])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing but Triton's compiler, and watches it as soon as it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _TRITON:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch(compiler: ModuleType) -> None:
    # Triton's hooks run on hits of its disk cache too; IR is made for a compile only.
    for source in (compiler.ASTSource, compiler.IRSource):
        if not hasattr(source.make_ir, "__wrapped__"):
            source.make_ir = _checked(source.make_ir)


def _checked(make_ir: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make_ir)
    def checked(source: Any, target: Any, *rest: Any, **more: Any) -> Any:
        kernel = getattr(getattr(source, "fn", None), "fn", None)
        check_build(
            f"Triton's kernel {source.name} for {getattr(target, 'arch', target)}",
            "a run that uses it without RFOPS_JIT=0 and before rfops.freeze()",
            ours=getattr(kernel, "__module__", "").startswith("rfops."),
        )
        return make_ir(source, target, *rest, **more)

    return checked


if settings.raw("RFOPS_JIT") == "0":
    watch_triton()
