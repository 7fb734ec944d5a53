"""Inside a Python program that `rfops run` runs: Triton, FlyDSL and `device="cuda"` on the virtual
GPU. Run by its path when Python starts, before anything is imported: it takes nothing but the
standard library, and rfops when the program imports one of them."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def _torch(module: ModuleType) -> None:
    version = module.version.hip
    if version is not None:
        raise RuntimeError(
            f"rfops run: this torch is built for ROCm {version} and brings its own HIP runtime; "
            "the virtual GPU needs a build of torch without it"
        )
    _try('device="cuda"', lambda: importlib.import_module("rfops.vgpu.torch_cuda").activate(module))


def _triton(_module: ModuleType) -> None:
    _try("Triton's kernels", lambda: importlib.import_module("rfops.vgpu").activate_triton())


def _flydsl(_module: ModuleType) -> None:
    _try("FlyDSL's kernels", lambda: importlib.import_module("rfops.vgpu").activate_flydsl())


def _try(feature: str, activate: Callable[[], object]) -> None:
    """A program may import Triton and use none of it: then what is missing does no harm."""
    try:
        activate()
    except Exception as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("rfops"):
            advice = f"; install rfops into {sys.prefix}"
        text = f"rfops run: {feature} cannot run here: {type(error).__name__}: {error}{advice}"
        print(text, file=sys.stderr)


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "torch": _torch,
    "triton": _triton,
    "flydsl": _flydsl,
}


class Loader(importlib.abc.Loader):
    """The module's own, and then the hook."""

    def __init__(self, loader: importlib.abc.Loader, hook: Callable[[ModuleType], None]) -> None:
        self._own, self._hook = loader, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        self._hook(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)


class Finder(importlib.abc.MetaPathFinder):
    """Each hook once, when its module is first looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hook = HOOKS.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = Loader(spec.loader, hook)
        return spec


def start(folder: str) -> None:
    """Called by the `sitecustomize` in this folder, which hides another one: that one runs too."""
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.meta_path.insert(0, Finder())
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
