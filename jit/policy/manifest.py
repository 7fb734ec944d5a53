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
class BuildRequest:
    """A variant of a module for an architecture ("host" for what runs on the CPU)."""

    module: str
    arch: str
    defines: tuple[tuple[str, str | int | float | bool], ...] = ()
    config: Path = paths.COMPILER_CONFIG

    def __str__(self) -> str:
        defines = [f"{name}={value}" for name, value in self.defines]
        return " ".join([self.module, self.arch, *defines])

    @property
    def command(self) -> str:
        """The command that builds it."""
        arguments = ["rfops", "build", self.module]
        arguments += [] if self.arch == "host" else ["--arch", self.arch]
        arguments += [] if self.config == paths.COMPILER_CONFIG else ["--config", str(self.config)]
        for name, value in self.defines:
            arguments += ["-D", f"{name}={int(value) if isinstance(value, bool) else value}"]
        return shlex.join(arguments)

    def as_dict(self) -> dict[str, Any]:
        """Return the request as an entry of a manifest file."""
        is_own_config = self.config == paths.COMPILER_CONFIG
        config_entry = {} if is_own_config else {"config": str(self.config)}
        return {
            "module": self.module,
            "arch": self.arch,
            "defines": dict(self.defines),
            **config_entry,
        }


@dataclass(frozen=True)
class TritonBuildRequest:
    """A Triton kernel of rfops as Triton itself describes what it compiled."""

    kernel: str  # "module:name"
    arch: str
    data: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.arch} (Triton)"

    def as_dict(self) -> dict[str, Any]:
        """Return the request as an entry of a manifest file."""
        return {"triton": self.kernel, "arch": self.arch, "data": json.loads(self.data)}


def defines_of(defines: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return defines sorted by name and hashable, as BuildRequest keeps them."""
    return tuple(sorted(defines.items()))


_recorded_requests: set[tuple[Path, BuildRequest | TritonBuildRequest]] = set()


def record(request: BuildRequest | TritonBuildRequest) -> None:
    """Add it to the manifest; the processes of a run share one file. A run does not fail of it."""
    file = settings.path("RFOPS_RECORD_MANIFEST")
    if file is None or (file, request) in _recorded_requests:
        return
    _recorded_requests.add((file, request))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock.hold(file.with_name(f".{file.name}.lock"), "the manifest"):
            requests = load(file) if file.exists() else []
            if request not in requests:
                entries = [entry.as_dict() for entry in sorted([*requests, request], key=str)]
                body = {"rfops_manifest": _VERSION, "entries": entries}
                write_atomic(file, json.dumps(body, indent=1) + "\n")
    except (OSError, ConfigError, LockTimeout) as error:
        log.get().warning("cannot record into %s: %s", file, error)


class _Manifest(records.WrittenRecord, frozen=True):
    rfops_manifest: int
    entries: list[dict[str, Any]]


class _Module(records.WrittenRecord, frozen=True):
    module: str
    arch: str
    defines: dict[str, Any] = field(default_factory=dict)
    config: str | None = None


class _Triton(records.WrittenRecord, frozen=True):
    triton: str
    arch: str
    data: dict[str, Any]


def load(file: Path) -> list[BuildRequest | TritonBuildRequest]:
    """The entries of a manifest. Raises ConfigError naming the file and the place."""
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    manifest = records.check(str(file), body, _Manifest)
    if manifest.rfops_manifest != _VERSION:
        raise ConfigError(f"{file}.rfops_manifest: expected {_VERSION}, as this rfops writes it")
    return [
        _entry(f"{file}: entries[{index}]", entry) for index, entry in enumerate(manifest.entries)
    ]


def _entry(location: str, body: dict[str, Any]) -> BuildRequest | TritonBuildRequest:
    if "triton" in body:
        return _triton_entry(location, records.check(location, body, _Triton))
    entry = records.check(location, body, _Module)
    _check_arch(location, entry.arch, (*ARCHS, "host"))
    if not is_text(entry.module) or not entry.module:
        raise ConfigError(f"{location}.module: expected a name, got {entry.module!r:.60}")
    for name, value in entry.defines.items():
        define_text(f"{location}.defines: {entry.module:.80}", name, value)
    if entry.config is not None and not is_text(entry.config):
        raise ConfigError(f"{location}.config: expected a path, got {entry.config!r:.60}")
    config = paths.COMPILER_CONFIG if entry.config is None else Path(entry.config)
    return BuildRequest(entry.module, entry.arch, defines_of(entry.defines), config)


def _triton_entry(location: str, entry: _Triton) -> TritonBuildRequest:
    _check_arch(location, entry.arch, ARCHS)
    if not _KERNEL.fullmatch(entry.triton):
        raise ConfigError(
            f"{location}.triton: expected rfops.module:name, got {entry.triton!r:.60}"
        )
    return TritonBuildRequest(entry.triton, entry.arch, json.dumps(entry.data, sort_keys=True))


def _check_arch(location: str, arch: str, archs: tuple[str, ...]) -> None:
    if arch not in archs:
        raise ConfigError(f"{location}.arch: expected {' or '.join(archs)}, got {arch!r:.60}")
