"""`compiler_config.json`: data, checked, never evaluated. One entry a module, only what differs
from the defaults below is written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from msgspec import structs

from .. import paths
from ..arch import ARCHS
from ..cache import records
from ..errors import ConfigError, UnsupportedArch
from ..texts import check_line, is_text

# A kernel's first arguments can come in scalar registers before its waves begin: those that fit
# into 14 dwords, the 16 user registers of gfx9 less the two of the argument pointer. The compiler
# stops at the first argument that does not fit, so 16 means all that fit; less, where registers are
# better used otherwise.
MAX_PRELOAD = 16


class Entry(records.WrittenRecord, frozen=True):
    """What a module is built from, as the file has it. Device modules have one source; host ones
    may use globs."""

    srcs: tuple[str, ...] = ()  # relative to `root`
    kind: str = "device"  # "device": a code object; "host": a shared library
    archs: tuple[str, ...] = ARCHS
    flags: tuple[str, ...] = ()  # in order, after the engine's own
    link_flags: tuple[str, ...] = ()  # host only
    # Host only: how many sources of one folder are compiled as one at most, because most of a small
    # source's time goes to headers. Their anonymous namespaces then are one.
    unity_batch: int = 1
    # Host only: the module whose objects are taken where they are the same; empty: its own.
    objects_of: str = ""
    output: str = "module.hsaco"
    title: str = ""  # what progress calls it; empty: the name
    # Device only: names that each build must define, without RFOPS_ (null: any); how many of a
    # kernel's first arguments come in scalar registers at most, 16 for all that fit.
    defines: tuple[str, ...] | None = None
    preload_arguments: int = 0


class ModuleSpec(Entry, frozen=True, kw_only=True):
    """An entry with its place."""

    name: str
    root: Path = paths.CSRC
    config: Path = paths.COMPILER_CONFIG  # the file that has the entry

    @property
    def device_flags(self) -> tuple[str, ...]:
        """The compiler's flags for the module, after the engine's own."""
        count = self.preload_arguments
        preload = ("-mllvm", f"-amdgpu-kernarg-preload-count={count}") if count else ()
        return (*self.flags, *preload)

    def require_arch(self, arch: str) -> None:
        """Refuse before compiling. Raises UnsupportedArch."""
        if arch not in self.archs:
            raise UnsupportedArch(self.name, arch, self.archs)

    def require_defines(self, names: Collection[str]) -> None:
        """Refuse before compiling. Raises ConfigError that names what is missing or unknown."""
        if self.defines is None:
            return
        missing = [name for name in self.defines if name not in names]
        unknown = [name for name in names if name not in self.defines]
        if not missing and not unknown:
            return
        complaints = [f"missing: {', '.join(missing)}"] * bool(missing)
        complaints += [f"unknown: {', '.join(map(str, unknown)):.200}"] * bool(unknown)
        needed = ", ".join(self.defines) or "none"
        raise ConfigError(
            f"{self.name}: defines must be exactly those of {self.config.name} ({needed}), got "
            f"{'; '.join(complaints)}. Pass a value for each, or change the entry's `defines`."
        )

    def sources(self) -> list[Path]:
        """The source files; a glob's are sorted. Raises ConfigError if one is missing."""
        files: list[Path] = []
        for pattern in self.srcs:
            matches = sorted(self.root.glob(pattern)) if "*" in pattern else [self.root / pattern]
            if not matches or not all(match.is_file() for match in matches):
                prefix = f"{self.config.name}: {self.name}"
                raise ConfigError(f"{prefix}: no source {pattern!r} in {self.root}")
            files += matches
        return files


# Of an entry's folder and of its artifact. The engine has files of its own beside the artifact.
_FILE_NAME = re.compile(r"\w[\w.-]{0,99}")
_OWN_FILES = ("meta.json", "build.log", "build.ninja", "deps.d", "module.s", "module.o")


def _make_spec(location: str, name: str, entry: object, root: Path, config: Path) -> ModuleSpec:
    entry_checked = records.check(location, entry, Entry)
    values = structs.asdict(entry_checked)
    for key, value in values.items():
        if value is None or isinstance(value, int):
            continue
        if not (is_text(value) if isinstance(value, str) else all(t and is_text(t) for t in value)):
            raise ConfigError(f"{location}.{key}: expected texts of one line, got {value!r:.200}")
    spec = ModuleSpec(name=name, root=root, config=config, **values)
    if not spec.srcs:
        raise ConfigError(f"{location}.srcs: at least one source is needed")
    if not 0 <= spec.preload_arguments <= MAX_PRELOAD:
        count = spec.preload_arguments
        raise ConfigError(f"{location}.preload_arguments: expected 0 to {MAX_PRELOAD}, got {count}")
    if spec.unity_batch < 1:
        raise ConfigError(f"{location}.unity_batch: expected 1 or more, got {spec.unity_batch}")
    if spec.kind not in ("device", "host"):
        raise ConfigError(f"{location}.kind: expected device or host, got {spec.kind!r}")
    if spec.kind == "device" and (len(spec.srcs) != 1 or "*" in spec.srcs[0]):
        raise ConfigError(
            f"{location}.srcs: a device module has exactly one source, got {spec.srcs}"
        )
    for arch in spec.archs:
        if arch not in ARCHS:
            raise ConfigError(f"{location}.archs: unknown {arch!r}; known: {', '.join(ARCHS)}")
    for source in spec.srcs:
        components = Path(source).parts
        if (
            source.startswith("/")
            or ".." in components
            or any("**" in p and p != "**" for p in components)
        ):
            raise ConfigError(f"{location}.srcs: {source!r:.80} is no path below {root}")
    for text in (name, spec.output):
        if not _FILE_NAME.fullmatch(text) or text in _OWN_FILES:
            raise ConfigError(f"{location}: {text!r:.120} cannot be a file name here")
    return spec


def load_config(config: Path = paths.COMPILER_CONFIG) -> dict[str, ModuleSpec]:
    """All modules of a config file as it is now. Sources of rfops's own lie in csrc/, else beside
    the file."""
    check_line("path of a compiler_config.json", str(config))
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config}: {error}") from error
    return _parse_config(config, text)


@lru_cache(maxsize=16)
def _parse_config(config: Path, text: str) -> dict[str, ModuleSpec]:
    """Kept by the text, because a module that is reloaded may come with another config file."""
    root = paths.CSRC if config == paths.COMPILER_CONFIG else config.parent
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{config}: {error}") from error
    if not isinstance(entries, dict):
        raise ConfigError(f"{config}: expected an object of modules")
    location = config.name
    return {n: _make_spec(f"{location}: {n:.120}", n, e, root, config) for n, e in entries.items()}


def module_spec(name: str, config: Path = paths.COMPILER_CONFIG) -> ModuleSpec:
    """The module's spec. Raises ConfigError naming the modules there are."""
    modules = load_config(config)
    if name not in modules:
        raise ConfigError(f"{config}: no module {name!r}; known modules: {', '.join(modules)}")
    return modules[name]
