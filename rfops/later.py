"""What waits for others: for a module to be imported by whomever, for an op to be asked for."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rfops.public import MODULES


def import_ops() -> None:
    """Every op, torch with them."""
    for module in MODULES:
        importlib.import_module(f"rfops.{module}")


Then = Callable[[ModuleType], object]
_WANTED: dict[str, list[Then]] = {}


def when_imported(name: str, then: Then) -> None:
    """Call `then` with the module: now, or once somebody has imported it."""
    module = sys.modules.get(name)
    if module is not None:
        if getattr(module.__spec__, "_initializing", False):
            importlib.import_module(name)  # waits while another thread imports it
        then(module)
        return
    _WANTED.setdefault(name, []).append(then)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


_EACH_TIME: dict[str, dict[str, Then]] = {}


def whenever_loaded(name: str, key: str, then: Then) -> None:
    """Call `then` with the module each time that it is loaded from now on, reloads included; one
    function for each key."""
    _EACH_TIME.setdefault(name, {})[key] = then
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(MetaPathFinder):
    """Finds what the others find, with a loader that calls back."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _WANTED and fullname not in _EACH_TIME:
            return None
        for finder in sys.meta_path:
            ask = getattr(finder, "find_spec", None)
            if ask is None or finder is self:
                continue
            spec: ModuleSpec | None = ask(fullname, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader) if spec.loader else None
                return spec
        return None


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:  # a module's source, resources and the like
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        name = module.__name__
        if name not in _EACH_TIME:  # else a load from the same spec is seen too
            module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        for then in (*_WANTED.pop(name, []), *_EACH_TIME.get(name, {}).values()):
            then(module)


_FINDER = _Finder()


class TorchOps(ModuleType):
    """torch.ops.rfops until it is asked for an op that is not imported: then all ops are."""

    registers = False  # torch asks, before it defines an op, whether there is one

    def __init__(self, torch: Any) -> None:
        super().__init__("torch.ops.rfops")
        self._known, self._ops = torch.ops.rfops, torch.ops
        torch.ops.rfops = self

    def __getattr__(self, name: str) -> Any:
        if not (name.startswith("__") or TorchOps.registers or hasattr(self._known, name)):
            self.give_way()
        return getattr(self._known, name)

    def give_way(self) -> None:
        """Import all ops and leave the place to torch's own namespace."""
        self._ops.rfops = self._known
        import_ops()


@contextlib.contextmanager
def registering() -> Iterator[None]:
    """Inside, torch.ops.rfops has what is imported, and imports nothing."""
    TorchOps.registers = True
    try:
        yield
    finally:
        TorchOps.registers = False
