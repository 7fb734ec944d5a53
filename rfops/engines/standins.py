"""The means of stand-ins: torch as a build for ROCm, operators of an engine's compiled extensions
in their namespaces and by their schemas, and the names of packages that are not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from . import tally

HIP = "7.0"  # the ROCm release that torch says it is built for


def pose_as_rocm(environment: Mapping[str, str]) -> None:
    """torch as a build for ROCm, which engines and rfops' plugins ask for, and these variables
    unless the user has set them."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    torch.version.hip = HIP


@dataclass(frozen=True)
class CompiledOp:
    """An operator of an engine's compiled extension.

    schema : as the extension defines it, behind its namespace: "_C::rms_norm(...) -> ()".
    function : what computes it here.
    place : tally.RFOPS where an op of rfops does, else tally.TORCH.
    """

    schema: str
    function: Callable[..., Any]
    place: str = tally.TORCH


_LIBRARIES: dict[str, torch.library.Library] = {}


def define(ops: Iterable[CompiledOp]) -> None:
    """Define those that no extension has defined."""
    for op in ops:
        namespace, schema = op.schema.split("::", 1)
        name = schema.partition("(")[0]
        if hasattr(getattr(torch.ops, namespace), name):
            continue
        library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
        library.define(schema)
        title = f"{namespace}.{name}"
        library.impl(name, tally.counted(op.place, title, op.function), "CompositeExplicitAutograd")


class _Refusing(type):
    """The class of what a missing package's names give: classes that can be imported, named in
    annotations and have attributes, and refuse to be called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refusing(f"{cls.__qualname__}.{name}")

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{cls.__qualname__}: `rfops run --engine` has the names of its package alone. Use an "
            "option of the engine's that needs another one"
        )


def _refusing(name: str) -> type:
    return _Refusing(name, (), {"__qualname__": name})


class _Absent(ModuleType):
    """A module of a package that is not there: its functions, and every other name refuses."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _refusing(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _AbsentFinder(MetaPathFinder, Loader):
    def __init__(self, modules: Mapping[str, Mapping[str, Any]]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_below = any(name == own or name.startswith(f"{own}.") for own in self._modules)
        return ModuleSpec(name, self, is_package=True) if is_below else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._modules.get(module.__name__, {}))


def absent(modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Let these modules and all below them be imported, with these names in them; every other name
    can be imported too, and raises NotImplementedError when it is called."""
    sys.meta_path.insert(0, _AbsentFinder(modules))
