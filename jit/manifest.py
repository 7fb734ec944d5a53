"""What a run used: recorded with RFOPS_RECORD_MANIFEST=file, built by `rfops build --manifest`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import lock, log, paths, settings
from .arch import ARCHS
from .errors import ConfigError, LockTimeout
from .files import write_atomic
from .spec import define_text, is_text

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


def load(file: Path) -> list[Wanted | TritonWanted]:
    """The entries of a manifest. Raises ConfigError naming the file and the place."""
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if not isinstance(body, dict) or body.get("rfops_manifest") != _VERSION:
        raise ConfigError(f'{file}: expected an object with "rfops_manifest": {_VERSION}')
    entries = body.get("entries")
    if not isinstance(entries, list):
        raise ConfigError(f"{file}: entries: expected a list")
    return [_entry(f"{file}: entries[{at}]", entry) for at, entry in enumerate(entries)]


def _entry(where: str, entry: object) -> Wanted | TritonWanted:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected an object, got {entry!r:.60}")
    if "triton" in entry:
        return _triton_entry(where, entry)
    module, arch = entry.get("module"), entry.get("arch")
    defines, config = entry.get("defines", {}), entry.get("config")
    if not is_text(module) or not module:
        raise ConfigError(f"{where}.module: expected a name, got {module!r:.60}")
    if arch not in (*ARCHS, "host"):
        raise ConfigError(f"{where}.arch: expected one of {', '.join((*ARCHS, 'host'))}")
    if not isinstance(defines, dict):
        raise ConfigError(f"{where}.defines: expected an object of texts and numbers")
    for name, value in defines.items():
        define_text(f"{where}.defines: {module:.80}", name, value)
    if config is not None and not is_text(config):
        raise ConfigError(f"{where}.config: expected a path, got {config!r:.60}")
    place = paths.COMPILER_CONFIG if config is None else Path(config)
    return Wanted(module, arch, defines_of(defines), place)


def _triton_entry(where: str, entry: dict[str, Any]) -> TritonWanted:
    kernel, arch, data = entry["triton"], entry.get("arch"), entry.get("data")
    if not isinstance(kernel, str) or not _KERNEL.fullmatch(kernel):
        raise ConfigError(f"{where}.triton: expected rfops.module:name, got {kernel!r:.60}")
    if arch not in ARCHS:
        raise ConfigError(f"{where}.arch: expected one of {', '.join(ARCHS)}")
    if not isinstance(data, dict):
        raise ConfigError(f"{where}.data: expected an object, got {data!r:.60}")
    return TritonWanted(kernel, arch, json.dumps(data, sort_keys=True))
