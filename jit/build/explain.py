"""Why a variant is in the cache or not: its key against those that the cache has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..cache import records
from ..cache.files import DAMAGE
from ..cache.shelf import ENGINE_VERSION, Artifact, read_entry
from ..policy.manifest import Wanted
from . import toolchain
from .host import host_unit
from .recipe import Unit, device_unit
from .spec import module_spec


class _Then(records.Record, frozen=True):
    """What is compared of an entry, of another engine's too."""

    key: str
    created: str
    engine: int
    compiler: str
    commands: list[list[str]]
    deps: dict[str, str]


@dataclass(frozen=True)
class Explanation:
    """`found`, or in what the entry that is `nearest` differs from what is wanted."""

    wanted: Wanted
    found: Artifact | None
    nearest: _Then | None
    differences: tuple[str, ...]

    def __str__(self) -> str:
        if self.found is not None:
            meta = self.found.meta
            lines = [f"{self.wanted}: cached in {self.found.folder}", f"  built {meta.created}"]
            count = sum(1 for sha in meta.deps.values() if sha)
            return "\n".join([*lines, f"  from {count} files, all as they were"])
        if self.nearest is None:
            return f"{self.wanted}: not cached, and nothing of this module is"
        head = f"{self.wanted}: not cached; the nearest entry, {self.nearest.key[:12]} of "
        return "\n  ".join([f"{head}{self.nearest.created}, differs in", *self.differences])


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
    compared = [(tuple(lines), then) for unit in units for lines, then in _compare(unit)]
    if not compared:
        return Explanation(wanted, None, None, ())
    differences, nearest = min(compared, key=lambda pair: len(pair[0]))
    return Explanation(wanted, None, nearest, differences)


def _compilers(arch: str) -> list[toolchain.Toolchain]:
    if arch == "host":
        return [*toolchain.usable("host", toolchain.HOST_TARGET)]
    return [*toolchain.usable("device", arch)]


def _compare(unit: Unit) -> Iterator[tuple[Iterator[str], _Then]]:
    for folder in unit.shelf.folders:
        for file in sorted(folder.glob("*/meta.json")):
            with contextlib.suppress(*DAMAGE):
                then = records.decode(file.read_bytes(), _Then, sealed=False)
                yield _differences(unit, then, file), then


def _differences(unit: Unit, then: _Then, file: Path) -> Iterator[str]:
    """A line for each part of the key that is another one now."""
    if then.engine != ENGINE_VERSION:
        yield f"engine: {then.engine} then, {ENGINE_VERSION} now"
    if then.compiler != unit.toolchain.version:
        old = toolchain.Toolchain("", (), then.compiler).headline
        yield f"compiler: {old} then, {unit.toolchain.headline} now"
    old_flags = [word for argv in then.commands for word in argv]
    now_flags = [word for command in unit.commands for word in command.argv]
    for title, one, other in (("gone", old_flags, now_flags), ("new", now_flags, old_flags)):
        yield from (f"command, {title}: {word}" for word in dict.fromkeys(one) if word not in other)
    if sorted(old_flags) == sorted(now_flags) and old_flags != now_flags:
        yield "command: the order of its flags"
    now = unit.shelf.roots.contents(then.deps)
    for name, sha in then.deps.items():
        if now[name][0] != sha:
            there = "its content" if sha else "is there, and found before another"
            yield f"{name}: {there if now[name][0] else 'is not there'}"
    if then.engine == ENGINE_VERSION:  # others have other checks
        try:
            read_entry(file.parent, file.read_bytes())
        except DAMAGE as error:
            yield f"damaged: {error}"
