"""From a module's spec to a published artifact: recipe, key, compile, metadata."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import code_object, log, manifest, paths, strict, toolchain
from .cache import Artifact, Contents, Roots, Shelf
from .code_object import CodeObjectError
from .errors import BuildError, ConfigError
from .files import digest
from .manifest import Wanted
from .spec import ModuleSpec, define_text
from .toolchain import HIPCC_FLAGS, ZIG_FLAGS, Toolchain

ENGINE_VERSION = 3  # part of every key: raise it when the meaning of a recipe changes
Define = str | int | float | bool
Defines = Mapping[str, Define]

_DEFINE = "-DRFOPS_"
_DEVICE_FLAGS = ("-std=c++20", "-O3", "-Wall", "-Wextra")
ATTEMPTS = 3  # builds of sources that change while they are being built


@dataclasses.dataclass(frozen=True)
class Command:
    """One step of a recipe; {cc}, {zig} and the roots' names stand for paths: keys do not move."""

    argv: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one key stands for: commands whose last output is the artifact."""

    shelf: Shelf
    toolchain: Toolchain
    commands: tuple[Command, ...]
    depfile: str

    @property
    def output(self) -> str:
        return self.commands[-1].output

    @property
    def build_key(self) -> str:
        commands = [dataclasses.astuple(command) for command in self.commands]
        return digest([ENGINE_VERSION, commands, self.toolchain.version])[:40]

    def expand(self, text: str) -> str:
        folders = {f"{{{name}}}": str(folder) for name, folder in self.shelf.roots.folders}
        return re.sub(r"\{\w+\}", lambda name: folders.get(name[0], name[0]), text)

    def argv(self, command: Command) -> tuple[str, ...]:
        """The command as it is run."""
        tool, *rest = command.argv
        front = self.toolchain.argv if tool == "{cc}" else self.toolchain.argv[:1]
        # What a define says is the caller's: a {root} in it is no path of ours.
        words = (word if word.startswith(_DEFINE) else self.expand(word) for word in rest)
        return (*front, *words)


def roots_of(spec: ModuleSpec) -> Roots:
    """{root} and {rfops} are folders of sources, {python} that of Python's headers, if used."""
    roots = [] if spec.root == paths.CSRC else [("root", spec.root)]
    roots.append(("rfops", paths.CSRC))
    if any("{python}" in flag for flag in spec.flags):
        roots.append(("python", toolchain.python_headers(spec.title or spec.name)))
    return Roots(tuple(roots))


def template(roots: Roots, path: Path) -> str:
    """The path as {root}/..., for a command."""
    name = roots.name_of(path)
    root, _, rest = name.partition("/")
    return f"{{{root}}}/{rest}" if root else name


def include_flags(roots: Roots) -> tuple[str, ...]:
    """Where headers are looked for; and no path of this machine in `__FILE__`."""
    folders = [f"-I{{{name}}}" for name, _ in roots.folders]
    maps = [f"-ffile-prefix-map={{{name}}}={name}" for name, _ in roots.folders]
    return ("-I{rfops}/include", *folders, *maps)


def define_flags(module: str, defines: Defines) -> tuple[str, ...]:
    """{"M": 4} -> -DRFOPS_M=4, sorted by name. Raises ConfigError that names the module."""
    texts = {name: define_text(module, name, value) for name, value in defines.items()}
    return tuple(f"{_DEFINE}{name}={text}" for name, text in sorted(texts.items()))


def device_unit(spec: ModuleSpec, arch: str, defines: Defines, toolchain: Toolchain) -> Unit:
    """The recipe of a code object by that compiler. Raises ConfigError."""
    roots = roots_of(spec)
    source = template(roots, spec.sources()[0])
    # A device compile ignores -MD in hipcc 7.0 and clang 22; the frontend's own flags do work.
    depfile = ("-Xclang", "-dependency-file", "-Xclang", "deps.d", "-Xclang", "-MT")
    chosen = define_flags(spec.name, defines)
    flags = (f"--offload-arch={arch}", *_DEVICE_FLAGS, *spec.flags, *chosen)
    flags += (*include_flags(roots), *depfile, "-Xclang", spec.output)
    if toolchain.name == "hipcc":
        compile_ = ("{cc}", *HIPCC_FLAGS, *flags, source, "-o", spec.output)
        commands: tuple[Command, ...] = (Command(compile_, (source,), spec.output),)
    else:  # clang of ziglang: it cannot link by itself, so text, object and link are three steps
        assemble = ("--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", "module.s")
        compile_ = ("{cc}", *ZIG_FLAGS, *flags, "-S", source, "-o", "module.s")
        link = ("{zig}", "ld.lld", "-shared", "module.o", "-o", spec.output)
        commands = (
            Command(compile_, (source,), "module.s"),
            Command(("{cc}", *assemble, "-o", "module.o"), ("module.s",), "module.o"),
            Command(link, ("module.o",), spec.output),
        )
    return Unit(Shelf(arch, spec.name, roots), toolchain, commands, "deps.d")


def build_device(spec: ModuleSpec, arch: str, defines: Defines) -> Artifact:
    """The code object from the cache, or built now.

    Raises UnsupportedArch, ToolchainNotFound, BuildError, LockTimeout, JitDisabled, ConfigError.
    """
    spec.require_arch(arch)
    if spec.kind != "device":
        raise ConfigError(f"{spec.name}: a {spec.kind} module has no code object")
    define_flags(spec.name, defines)  # before they are sorted, hashed or recorded
    title = f"{spec.title or spec.name} for {arch}"
    about = {"arch": arch, "defines": dict(defines)}

    def make(unit: Unit, before: Contents) -> Artifact | None:
        return _compile_device(unit, title, about, before)

    return obtain(
        Wanted(spec.name, arch, manifest.defines_of(defines), spec.config),
        ("device", arch),
        lambda chosen: device_unit(spec, arch, defines, chosen),
        make,
    )


def obtain(
    wanted: Wanted,
    target: tuple[str, str],
    unit_by: Callable[[Toolchain], Unit],
    make: Callable[[Unit, Contents], Artifact | None],
) -> Artifact:
    """The artifact from the cache, or made now, by one process for all that want it.

    `make` gets what it read in an earlier attempt, updates it, and returns None if a source changed
    meanwhile: what was compiled is then not known.
    """
    for chosen in toolchain.usable(*target):
        unit = unit_by(chosen)
        found = unit.shelf.find(unit.build_key)
        if found is not None:
            manifest.record(wanted)
            return found
    from . import failures  # what only a cold start needs is imported by it

    strict.check_build(str(wanted), wanted.command)
    unit = unit_by(toolchain.choose(*target, again=True))
    before = failures.last(unit.shelf, unit.build_key)
    try:
        with unit.shelf.lock(unit.build_key):
            built = unit.shelf.find(unit.build_key, report=True)
            if built is None:
                failures.raise_again(unit.shelf, unit.build_key, before)
                built = _attempts(unit, make)
                toolchain.note_built(target[0], unit.toolchain)
    except OSError as error:
        raise failures.from_os(unit.shelf, error) from error
    manifest.record(wanted)
    return built


def _attempts(unit: Unit, make: Callable[[Unit, Contents], Artifact | None]) -> Artifact:
    from . import failures

    read: Contents = {}
    try:
        for _ in range(ATTEMPTS):
            built = make(unit, read)
            if built is not None:
                return built
        raise BuildError(unit.shelf.module, "", "the sources kept changing during the build", None)
    except BuildError as error:
        if error.log_path is not None:
            raise
        raise failures.record(unit.shelf, unit.build_key, error, {}) from error
    except OSError as error:  # those who wait need not run into it too
        told = failures.from_os(unit.shelf, error)
        raise failures.record(unit.shelf, unit.build_key, told, {}) from error


def _compile_device(
    unit: Unit, title: str, about: dict[str, Any], before: Contents
) -> Artifact | None:
    """Build once; None if a source changed meanwhile."""
    from .compile import files_read, run_units

    with unit.shelf.stage(unit.build_key) as stage:
        seconds = run_units([unit], title, stage)
        read, sure = files_read(unit, stage, before)
        before.clear()
        before.update(read)
        if not sure:
            return None
        about = {**about, **_kernels(unit, stage / unit.output, about["arch"])}
        meta = make_meta(unit, seconds, about)
        built = unit.shelf.publish(stage, unit.build_key, read, meta)
    log.get().info("built %s in %.2f s", title, seconds)
    return built


def make_meta(unit: Unit, seconds: float, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "module": unit.shelf.module,
        "output": unit.output,
        "engine": ENGINE_VERSION,
        "toolchain": unit.toolchain.name,
        "compiler": unit.toolchain.version,
        "commands": [list(command.argv) for command in unit.commands],
        "seconds": round(seconds, 3),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **about,
    }


def _kernels(unit: Unit, file: Path, arch: str) -> dict[str, Any]:
    """The code object's kernels; a compiler that wrote anything else has failed."""
    try:
        metadata = code_object.read_metadata(code_object.unbundle(file.read_bytes(), arch))
        if metadata.arch != arch:
            raise CodeObjectError(f"asked for {arch}, the compiler wrote {metadata.arch}")
    except CodeObjectError as error:
        command = unit.argv(unit.commands[-1])
        raise BuildError(unit.shelf.module, command, str(error), None) from error
    return {"target": metadata.target, "kernels": metadata.kernels}
