"""Why a variant is in the cache or not: its key against those that the cache has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import toolchain
from .build import ENGINE_VERSION, Unit, device_unit
from .cache import Artifact, damage
from .files import DAMAGE
from .host import host_unit
from .manifest import Wanted
from .spec import module_spec

_COMPARED = ("key", "created", "engine", "compiler", "commands", "deps")


@dataclass(frozen=True)
class Explanation:
    """`found`, or in what the entry that is `nearest` differs from what is wanted."""

    wanted: Wanted
    found: Artifact | None
    nearest: Mapping[str, Any] | None
    differences: tuple[str, ...]

    def __str__(self) -> str:
        if self.found is not None:
            meta = self.found.meta
            lines = [f"{self.wanted}: cached in {self.found.folder}", f"  built {meta['created']}"]
            count = sum(1 for sha in meta["deps"].values() if sha)
            return "\n".join([*lines, f"  from {count} files, all as they were"])
        if self.nearest is None:
            return f"{self.wanted}: not cached, and nothing of this module is"
        head = f"{self.wanted}: not cached; the nearest entry, {self.nearest['key'][:12]} of "
        return "\n  ".join([f"{head}{self.nearest['created']}, differs in", *self.differences])


def explain(wanted: Wanted) -> Explanation:
    """Builds nothing. Raises ConfigError, UnsupportedArch."""
    spec = module_spec(wanted.module, wanted.config)
    if wanted.arch != "host":
        spec.require_arch(wanted.arch)
    units = [
        host_unit(spec, chosen)
        if wanted.arch == "host"
        else device_unit(spec, wanted.arch, dict(wanted.defines), chosen)
        for chosen in _compilers(wanted.arch)
    ]
    for unit in units:
        found = unit.shelf.find(unit.build_key)
        if found is not None:
            return Explanation(wanted, found, None, ())
    candidates = [(unit, meta) for unit in units for meta in _entries(unit)]
    if not candidates:
        return Explanation(wanted, None, None, ())
    compared = [(tuple(_differences(unit, meta)), meta) for unit, meta in candidates]
    differences, nearest = min(compared, key=lambda pair: len(pair[0]))
    return Explanation(wanted, None, nearest, differences)


def _compilers(arch: str) -> list[toolchain.Toolchain]:
    if arch == "host":
        return toolchain.usable("host", toolchain.HOST_TARGET)
    return toolchain.usable("device", arch)


def _entries(unit: Unit) -> Iterator[dict[str, Any]]:
    for folder in unit.shelf.folders:
        for file in sorted(folder.glob("*/meta.json")):
            try:
                meta = json.loads(file.read_bytes())
                other = meta["engine"] != ENGINE_VERSION  # its entries have other checks
                known = {name: meta[name] for name in _COMPARED}
                yield {**known, "damage": "" if other else damage(file.parent, meta)}
            except DAMAGE:
                continue


def _differences(unit: Unit, meta: Mapping[str, Any]) -> Iterator[str]:
    """A line for each part of the key that is another one now."""
    if meta["engine"] != ENGINE_VERSION:
        yield f"engine: {meta['engine']} then, {ENGINE_VERSION} now"
    if meta["compiler"] != unit.toolchain.version:
        then = toolchain.Toolchain("", (), str(meta["compiler"])).headline
        yield f"compiler: {then} then, {unit.toolchain.headline} now"
    then_flags = [word for argv in meta["commands"] for word in argv]
    now_flags = [word for command in unit.commands for word in command.argv]
    for title, one, other in (("gone", then_flags, now_flags), ("new", now_flags, then_flags)):
        yield from (f"command, {title}: {word}" for word in dict.fromkeys(one) if word not in other)
    if sorted(then_flags) == sorted(now_flags) and then_flags != now_flags:
        yield "command: the order of its flags"
    now = unit.shelf.contents(meta["deps"])
    for name, sha in meta["deps"].items():
        if now[name][0] != sha:
            there = "its content" if sha else "is there, and found before another"
            yield f"{name}: {there if now[name][0] else 'is not there'}"
    if meta["damage"]:
        yield f"damaged: {meta['damage']}"
