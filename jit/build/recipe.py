"""The recipe of a module, in words that no path of this machine is in, and its key."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import paths
from ..cache.files import digest
from ..cache.shelf import ENGINE_VERSION, ArtifactCache, Roots
from ..texts import define_text
from . import toolchain
from .spec import ModuleSpec
from .toolchain import HIPCC_FLAGS, ZIG_FLAGS, Toolchain

Define = str | int | float | bool
Defines = Mapping[str, Define]

_DEFINE = "-DRFOPS_"
# Line tables cost no instruction (op_tests/compare_code.py) and tell the profiler, the checks and
# the debugger each instruction's source line; the folder of the build is not named in them.
_LINES = ("-gline-tables-only", "-fdebug-compilation-dir=.")
_DEVICE_FLAGS = ("-std=c++20", "-O3", *_LINES, "-Wall", "-Wextra")


@dataclasses.dataclass(frozen=True)
class Command:
    """One step of a recipe; {cc}, {zig} and the roots' names stand for paths: keys do not move."""

    argv: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one key stands for: commands whose last output is the artifact."""

    shelf: ArtifactCache
    toolchain: Toolchain
    commands: tuple[Command, ...]
    depfile: str

    @property
    def output(self) -> str:
        """The name of the artifact's file in the build folder."""
        return self.commands[-1].output

    @property
    def build_key(self) -> str:
        """The hash of engine, commands and compiler version, without what the compiler read."""
        commands = [dataclasses.astuple(command) for command in self.commands]
        return digest([ENGINE_VERSION, commands, self.toolchain.version])[:40]

    def expand(self, text: str) -> str:
        """Return `text` with the placeholders of the cache's roots replaced by their folders."""
        folders = {f"{{{name}}}": str(folder) for name, folder in self.shelf.roots.folders}
        return re.sub(r"\{\w+\}", lambda name: folders.get(name[0], name[0]), text)

    def argv(self, command: Command) -> tuple[str, ...]:
        """The command as it is run."""
        tool, *arguments = command.argv
        front = self.toolchain.argv if tool == "{cc}" else self.toolchain.argv[:1]
        # What a define says is the caller's: a {root} in it is no path of ours.
        expanded = (
            argument if argument.startswith(_DEFINE) else self.expand(argument)
            for argument in arguments
        )
        return (*front, *expanded)


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
    root, _, relative = name.partition("/")
    return f"{{{root}}}/{relative}" if root else name


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
    define_arguments = define_flags(spec.name, defines)
    flags = (f"--offload-arch={arch}", *_DEVICE_FLAGS, *spec.device_flags, *define_arguments)
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
    return Unit(ArtifactCache(arch, spec.name, roots), toolchain, commands, "deps.d")


def make_meta(unit: Unit, seconds: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of meta.json for a build of the unit that took `seconds`; `facts` are the
    kind's own fields."""
    return {
        "module": unit.shelf.module,
        "output": unit.output,
        "engine": ENGINE_VERSION,
        "toolchain": unit.toolchain.name,
        "compiler": unit.toolchain.version,
        "commands": [list(command.argv) for command in unit.commands],
        "seconds": round(seconds, 3),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **facts,
    }
