"""Triton's compiles, under the same rules: refused where nothing may be built, recorded in a
manifest and built from one. Triton is watched from its import on; only `preload` imports it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import settings
from ..errors import BuildError
from . import manifest, strict
from .manifest import TritonBuildRequest

_COMPILER = "triton.compiler.compiler"
_compiles = 0


def watch() -> None:
    """From now on if Triton is imported, else from then on."""
    if _COMPILER in sys.modules:
        _watch(sys.modules[_COMPILER])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing but Triton's compiler, and watches it as soon as it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _COMPILER:
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
        _watch_source(source)
        source.__init_subclass__ = classmethod(lambda subclass, **_: _watch_source(subclass))
    runtime = compiler.knobs.runtime
    if not hasattr(runtime.jit_post_compile_hook, "rfops_before"):
        runtime.jit_post_compile_hook = _recording(runtime.jit_post_compile_hook)


def _watch_source(source: Any) -> None:
    """And those derived from it, as Gluon's is, which makes its IR itself."""
    if "make_ir" in vars(source) and not hasattr(source.make_ir, "__wrapped__"):
        source.make_ir = _with_build_check(source.make_ir)
    for derived in source.__subclasses__():
        _watch_source(derived)


def _is_ours(module: object) -> bool:
    return str(module).startswith("rfops.")


def _with_build_check(make_ir: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make_ir)
    def checked(source: Any, target: Any, *arguments: Any, **kwargs: Any) -> Any:
        global _compiles
        kernel = getattr(getattr(source, "fn", None), "fn", None)
        strict.check_build(
            f"Triton's kernel {source.name} for {getattr(target, 'arch', target)}",
            "a run that uses it without RFOPS_JIT=0 and before rfops.freeze(), or "
            "rfops build --manifest of one that did",
            is_own=_is_ours(getattr(kernel, "__module__", "")),
        )
        _compiles += 1
        return make_ir(source, target, *arguments, **kwargs)

    return checked


def _recording(previous_hook: Callable[..., Any] | None) -> Callable[..., Any]:
    """Triton's hook for a kernel that is new to the process: into the manifest if it is rfops's."""

    def hook(*args: Any, **kwargs: Any) -> Any:
        if settings.path("RFOPS_RECORD_MANIFEST") is not None and _is_ours(kwargs["fn"].module):
            specialization = json.loads(kwargs["compile"]["specialization_data"])
            arch, data = (
                specialization["target"]["arch"],
                json.dumps(specialization, sort_keys=True),
            )
            kernel = f"{kwargs['fn'].module}:{kwargs['fn'].name}"
            manifest.record(TritonBuildRequest(kernel, str(arch), data))
        return previous_hook(*args, **kwargs) if previous_hook is not None else None

    hook.rfops_before = previous_hook  # type: ignore[attr-defined]
    return hook


def preload(request: TritonBuildRequest) -> bool:
    """Compile a recorded kernel, or find it in Triton's cache; whether it was compiled. The driver
    that is active must be that of its architecture. Raises BuildError."""
    watch()
    module, _, name = request.kernel.partition(":")
    compiles_before = _compiles
    try:
        kernel = getattr(importlib.import_module(module), name)
        while not hasattr(kernel, "preload"):  # an autotuner or heuristics around it
            kernel = kernel.fn
        kernel.preload(request.data)
    except Exception as error:  # Triton's own errors are of many kinds
        text = f"{type(error).__name__}: {error}"
        raise BuildError(request.kernel, "Triton", text, None) from error
    return _compiles > compiles_before
