"""The modules of `aiter`: found by name in names.py, their names resolved at first use."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from . import names

TRITON = "aiter.ops.triton"  # whose modules a checkout's take the place of


class NotServed(NotImplementedError, AttributeError):
    """A name of aiter's that rfops lacks; hasattr() is False for it."""


class NotServedModule(NotImplementedError, ModuleNotFoundError):
    """A module, or a name in an import statement, that rfops lacks."""


def refusal(name: str) -> str:
    """Return the message for a dotted name of aiter's that rfops lacks."""
    return f"{name} is not served by rfops. {names.advice(name)}"


def absent(module: str, name: str) -> Callable[..., NoReturn]:
    """Return what stands for a known function that rfops lacks: it can be imported, not called."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(refusal(f"{module}.{name}"))

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__module__ = module
    refuse.__doc__ = refusal(f"{module}.{name}")
    return refuse


class Served(ModuleType):
    """A module of aiter's by the table."""

    MX_DEFAULT_ROUND_MODE: Any  # of aiter.utility.mx_types, where a program may set it

    def __getattr__(self, name: str) -> Any:
        module = self.__name__
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if f"{module}.{name}" in names.MODULES:
            return importlib.import_module(f"{module}.{name}")
        row = names.SERVED.get(module, {}).get(name)
        if row is not None:
            provider, _, own_name = row.partition(":")
            value = getattr(importlib.import_module(provider), own_name or name)
        elif name in names.ABSENT:
            value = absent(module, name)
        else:
            raise NotServed(refusal(f"{module}.{name}"))
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        prefix = f"{self.__name__}."
        inner = {m.removeprefix(prefix) for m in names.MODULES if m.startswith(prefix)}
        submodules = {m for m in inner if "." not in m}
        return sorted({*vars(self), *names.SERVED.get(self.__name__, {}), *submodules})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `aiter` and all below it: in the table, or in a checkout of the user's."""

    def __init__(self, source: Path | None = None) -> None:
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "aiter" and not name.startswith("aiter."):
            return None
        is_served = name in names.MODULES
        if not is_served or f"{name}.".startswith(f"{TRITON}."):
            spec = self._from_source(name)
            if spec is not None:
                return spec
        if is_served:
            return ModuleSpec(name, self, is_package=True)
        raise NotServedModule(refusal(name))  # without `name`: import statements then show the text

    def _from_source(self, name: str) -> ModuleSpec | None:
        if self._source is None:
            return None
        file = self._source.joinpath(*name.split("."))
        if (file / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                name, file / "__init__.py", submodule_search_locations=[str(file)]
            )
        plain = file.with_name(f"{file.name}.py")
        if plain.is_file():
            return importlib.util.spec_from_file_location(name, plain)
        return ModuleSpec(name, None, is_package=True) if file.is_dir() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Served(spec.name)
        module.__doc__ = f"{spec.name}, served by rfops (rfops.compat.aiter)."
        module.__all__ = sorted(names.SERVED.get(spec.name, {}))  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty: its names are resolved when they are asked for."""
