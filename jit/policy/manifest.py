"""What a run used: recorded with RFOPS_RECORD_MANIFEST=file, built by `rfops build --manifest`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import field

from .. import log, paths, settings
from ..arch import ARCHS
from ..cache import lock, records
from ..cache.files import write_atomic
from ..errors import ConfigError, LockTimeout
from ..texts import define_text, is_text

_VERSION = 1
_KERNEL = re.compile(r"rfops(\.\w+)+:\w+")  # of Triton: its module is imported


@dataclass(frozen=True)
class Wanted:
    """A variant of a module for an architecture ("host" for what runs on the CPU)."""

    module: str
    arch: str
    defines: tuple[tuple[str, str | int | float | bool], ...] = ()
    config: Path = paths.COMPILER_CONFIG

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.defines]
        return " ".join([self.module, self.arch, *words])

    @property
    def command(self) -> str:
        """The command that builds it."""
        words = ["rfops", "build", self.module]
        words += [] if self.arch == "host" else ["--arch", self.arch]
        words += [] if self.config == paths.COMPILER_CONFIG else ["--config", str(self.config)]
        for name, value in self.defines:
            words += ["-D", f"{name}={int(value) if isinstance(value, bool) else value}"]
        return shlex.join(words)

    def as_dict(self) -> dict[str, Any]:
        ours = self.config == paths.COMPILER_CONFIG
        place = {} if ours else {"config": str(self.config)}
        return {"module": self.module, "arch": self.arch, "defines": dict(self.defines), **place}


@dataclass(frozen=True)
class TritonWanted:
    """A Triton kernel of rfops as Triton itself describes what it compiled."""

    kernel: str  # "module:name"
    arch: str
    data: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.arch} (Triton)"

    def as_dict(self) -> dict[str, Any]:
        return {"triton": self.kernel, "arch": self.arch, "data": json.loads(self.data)}


def defines_of(defines: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(defines.items()))


_recorded: set[tuple[Path, Wanted | TritonWanted]] = set()


def record(wanted: Wanted | TritonWanted) -> None:
    """Add it to the manifest; the processes of a run share one file. A run does not fail of it."""
    file = settings.path("RFOPS_RECORD_MANIFEST")
    if file is None or (file, wanted) in _recorded:
        return
    _recorded.add((file, wanted))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock.hold(file.with_name(f".{file.name}.lock"), "the manifest"):
            known = load(file) if file.exists() else []
            if wanted not in known:
                entries = [entry.as_dict() for entry in sorted([*known, wanted], key=str)]
                body = {"rfops_manifest": _VERSION, "entries": entries}
                write_atomic(file, json.dumps(body, indent=1) + "\n")
    except (OSError, ConfigError, LockTimeout) as error:
        log.get().warning("cannot record into %s: %s", file, error)


class _Manifest(records.Written, frozen=True):
    rfops_manifest: int
    entries: list[dict[str, Any]]


class _Module(records.Written, frozen=True):
    module: str
    arch: str
    defines: dict[str, Any] = field(default_factory=dict)
    config: str | None = None


class _Triton(records.Written, frozen=True):
    triton: str
    arch: str
    data: dict[str, Any]


def load(file: Path) -> list[Wanted | TritonWanted]:
    """The entries of a manifest. Raises ConfigError naming the file and the place."""
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    manifest = records.check(str(file), body, _Manifest)
    if manifest.rfops_manifest != _VERSION:
        raise ConfigError(f"{file}.rfops_manifest: expected {_VERSION}, as this rfops writes it")
    return [_entry(f"{file}: entries[{at}]", entry) for at, entry in enumerate(manifest.entries)]


def _entry(where: str, body: dict[str, Any]) -> Wanted | TritonWanted:
    if "triton" in body:
        return _triton_entry(where, records.check(where, body, _Triton))
    entry = records.check(where, body, _Module)
    _check_arch(where, entry.arch, (*ARCHS, "host"))
    if not is_text(entry.module) or not entry.module:
        raise ConfigError(f"{where}.module: expected a name, got {entry.module!r:.60}")
    for name, value in entry.defines.items():
        define_text(f"{where}.defines: {entry.module:.80}", name, value)
    if entry.config is not None and not is_text(entry.config):
        raise ConfigError(f"{where}.config: expected a path, got {entry.config!r:.60}")
    place = paths.COMPILER_CONFIG if entry.config is None else Path(entry.config)
    return Wanted(entry.module, entry.arch, defines_of(entry.defines), place)


def _triton_entry(where: str, entry: _Triton) -> TritonWanted:
    _check_arch(where, entry.arch, ARCHS)
    if not _KERNEL.fullmatch(entry.triton):
        raise ConfigError(f"{where}.triton: expected rfops.module:name, got {entry.triton!r:.60}")
    return TritonWanted(entry.triton, entry.arch, json.dumps(entry.data, sort_keys=True))


def _check_arch(where: str, arch: str, known: tuple[str, ...]) -> None:
    if arch not in known:
        raise ConfigError(f"{where}.arch: expected {' or '.join(known)}, got {arch!r:.60}")
