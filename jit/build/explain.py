"""Why a variant is in the cache or not: its key against those that the cache has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..cache import records
from ..cache.files import DAMAGE
from ..cache.shelf import ENGINE_VERSION, Artifact, read_entry
from ..policy.manifest import BuildRequest
from . import toolchain
from .host import host_unit
from .recipe import Unit, device_unit
from .spec import module_spec


class _OldEntry(records.Record, frozen=True):
    """What is compared of an entry, of another engine's too."""

    key: str
    created: str
    engine: int
    compiler: str
    commands: list[list[str]]
    deps: dict[str, str]


@dataclass(frozen=True)
class Explanation:
    """`artifact`, or in what the entry that is `nearest` differs from what is wanted."""

    request: BuildRequest
    artifact: Artifact | None
    nearest: _OldEntry | None
    differences: tuple[str, ...]

    def __str__(self) -> str:
        if self.artifact is not None:
            meta = self.artifact.meta
            lines = [f"{self.request}: cached in {self.artifact.folder}", f"  built {meta.created}"]
            count = sum(1 for sha in meta.deps.values() if sha)
            return "\n".join([*lines, f"  from {count} files, all as they were"])
        if self.nearest is None:
            return f"{self.request}: not cached, and nothing of this module is"
        head = f"{self.request}: not cached; the nearest entry, {self.nearest.key[:12]} of "
        return "\n  ".join([f"{head}{self.nearest.created}, differs in", *self.differences])


def explain(build_request: BuildRequest) -> Explanation:
    """Builds nothing. Raises ConfigError, UnsupportedArch."""
    spec = module_spec(build_request.module, build_request.config)
    if build_request.arch != "host":
        spec.require_arch(build_request.arch)
    units = [
        host_unit(spec, compiler)
        if build_request.arch == "host"
        else device_unit(spec, build_request.arch, dict(build_request.defines), compiler)
        for compiler in _compilers(build_request.arch)
    ]
    for unit in units:
        artifact = unit.shelf.find(unit.build_key)
        if artifact is not None:
            return Explanation(build_request, artifact, None, ())
    comparisons = [
        (tuple(lines), old_entry) for unit in units for lines, old_entry in _compare(unit)
    ]
    if not comparisons:
        return Explanation(build_request, None, None, ())
    differences, nearest = min(comparisons, key=lambda pair: len(pair[0]))
    return Explanation(build_request, None, nearest, differences)


def _compilers(arch: str) -> list[toolchain.Toolchain]:
    if arch == "host":
        return [*toolchain.usable("host", toolchain.HOST_TARGET)]
    return [*toolchain.usable("device", arch)]


def _compare(unit: Unit) -> Iterator[tuple[Iterator[str], _OldEntry]]:
    for folder in unit.shelf.folders:
        for file in sorted(folder.glob("*/meta.json")):
            with contextlib.suppress(*DAMAGE):
                old_entry = records.decode(file.read_bytes(), _OldEntry, sealed=False)
                yield _differences(unit, old_entry, file), old_entry


def _differences(unit: Unit, old_entry: _OldEntry, file: Path) -> Iterator[str]:
    """A line for each part of the key that is another one now."""
    if old_entry.engine != ENGINE_VERSION:
        yield f"engine: {old_entry.engine} then, {ENGINE_VERSION} now"
    if old_entry.compiler != unit.toolchain.version:
        old = toolchain.Toolchain("", (), old_entry.compiler).headline
        yield f"compiler: {old} then, {unit.toolchain.headline} now"
    old_flags = [argument for argv in old_entry.commands for argument in argv]
    now_flags = [argument for command in unit.commands for argument in command.argv]
    for title, flags, other_flags in (
        ("gone", old_flags, now_flags),
        ("new", now_flags, old_flags),
    ):
        yield from (
            f"command, {title}: {argument}"
            for argument in dict.fromkeys(flags)
            if argument not in other_flags
        )
    if sorted(old_flags) == sorted(now_flags) and old_flags != now_flags:
        yield "command: the order of its flags"
    contents = unit.shelf.roots.contents(old_entry.deps)
    for name, sha in old_entry.deps.items():
        if contents[name][0] != sha:
            difference = "its content" if sha else "is there, and found before another"
            yield f"{name}: {difference if contents[name][0] else 'is not there'}"
    if old_entry.engine == ENGINE_VERSION:  # others have other checks
        try:
            read_entry(file.parent, file.read_bytes())
        except DAMAGE as error:
            yield f"damaged: {error}"
