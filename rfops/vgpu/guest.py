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


def _engine(name: str, any_release: bool) -> Callable[[], None]:
    """Whatever an engine lacks ends the program: without it, it would run on another platform."""
    return lambda: importlib.import_module("rfops.engines").activate(name, any_release)


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
ENGINES: dict[str, Callable[[], None]] = {}  # called before the package's own code runs


class Loader(importlib.abc.Loader):
    """The module's own, and then the hook, once."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        ENGINES.pop(module.__name__, lambda: None)()
        self._loader.exec_module(module)
        hook = HOOKS.pop(module.__name__, None)
        if hook is not None:
            hook(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


class Finder(importlib.abc.MetaPathFinder):
    """What the others find, with the hook behind its load; a program may look for a module before
    it imports it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in HOOKS and name not in ENGINES:
            return None
        # Those behind this one: one before it (rfops.later's) asks all others, and thus this one.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                spec.loader = Loader(spec.loader) if spec.loader else None
                return spec
        return None


def start(folder: str, engine: str = "", any_release: bool = False) -> None:
    """Called by the `sitecustomize` in this folder, which hides another one: that one runs too."""
    if engine:
        ENGINES[engine] = _engine(engine, any_release)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.meta_path.insert(0, Finder())
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
