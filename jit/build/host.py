"""Libraries of the host, the virtual GPU and the launcher, built by the same engine: objects in
parallel, each cached by content, so that an edit of one file compiles its object and links."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import log
from ..cache.files import digest
from ..cache.shelf import Artifact, ArtifactCache, Contents
from ..errors import ConfigError, RfopsError
from ..policy.manifest import BuildRequest
from . import cpu
from .obtain import obtain
from .recipe import Command, Unit, include_flags, make_meta, roots_of, template
from .spec import ModuleSpec
from .toolchain import HOST_TARGET, Toolchain


def _batches(spec: ModuleSpec) -> Iterator[list[Path]]:
    """The sources that are compiled as one: neighbours of a folder, in parts as equal as can be."""
    for _, group in itertools.groupby(dict.fromkeys(spec.sources()), lambda source: source.parent):
        sources = list(group)
        count = -(-len(sources) // spec.unity_batch)
        ends = [len(sources) * i // count for i in range(count + 1)]
        yield from (sources[begin:end] for begin, end in itertools.pairwise(ends))


def _object_commands(spec: ModuleSpec, toolchain: Toolchain) -> dict[str, Command]:
    """The compile of each batch of sources, by the name of its object without the suffix. A batch
    is its last source, which includes the others before its first line."""
    batches = {batch[-1].relative_to(spec.root).as_posix(): batch for batch in _batches(spec)}
    names = {path: path.replace("/", "_").removesuffix(".cpp") for path in batches}
    count = Counter(names.values())
    for path, name in names.items():
        if count[name] > 1:  # a/b.cpp and a_b.cpp
            names[path] = f"{name}-{digest(path)[:8]}"
    roots = roots_of(spec)
    flags = (*spec.flags, *cpu.level_flags(toolchain.name == "zig"), "-Wall", "-Wextra")
    flags += include_flags(roots)
    commands: dict[str, Command] = {}
    for path, name in names.items():
        sources = tuple(template(roots, source) for source in batches[path])
        *before, last = sources
        includes = [word for source in before for word in ("-include", source)]
        argv = ("{cc}", *flags, "-MMD", "-MF", f"{name}.d", *includes, "-c", last)
        commands[name] = Command((*argv, "-o", f"{name}.o"), sources, f"{name}.o")
    return commands


def _object_units(spec: ModuleSpec, toolchain: Toolchain) -> list[Unit]:
    shelf = ArtifactCache("host", f"{spec.objects_of or spec.name}.objects", roots_of(spec))
    commands = _object_commands(spec, toolchain)
    return [Unit(shelf, toolchain, (c,), f"{name}.d") for name, c in commands.items()]


def _link_flags(spec: ModuleSpec, toolchain: Toolchain) -> tuple[str, ...]:
    """The level too: zig builds its C++ runtime for it, when it links."""
    return (*cpu.level_flags(toolchain.name == "zig"), *spec.link_flags)


def _link_command(spec: ModuleSpec, toolchain: Toolchain, objects: Collection[Command]) -> Command:
    names = tuple(command.output for command in objects)
    argv = ("{cc}", *names, *_link_flags(spec, toolchain), "-o", spec.output)
    return Command(argv, names, spec.output)


def _runtime_command(spec: ModuleSpec, toolchain: Toolchain) -> Command:
    """Link nothing: zig's first link builds its C++ runtime, as long as all objects together."""
    argv = ("{cc}", *_link_flags(spec, toolchain), "-x", "c++", os.devnull, "-o", "runtime.so")
    return Command(argv, (), "runtime.so")


def host_unit(spec: ModuleSpec, toolchain: Toolchain) -> Unit:
    """The recipe of a shared library by that compiler."""
    objects = _object_commands(spec, toolchain).values()
    commands = (*objects, _link_command(spec, toolchain, objects))
    return Unit(ArtifactCache("host", spec.name, roots_of(spec)), toolchain, commands, "")


@dataclass(frozen=True)
class _Link(Unit):
    """The last step of a library, under the library's key."""

    key: str = ""

    @property
    def build_key(self) -> str:
        return self.key


def build_host(spec: ModuleSpec) -> Artifact:
    """The shared library of a host module from the cache, or built now.

    Raises ToolchainNotFound, BuildError, LockTimeout, JitDisabled, ConfigError.
    """
    if spec.kind != "host":
        raise ConfigError(f"{spec.name}: a {spec.kind} module is not built for the host")

    return obtain(
        BuildRequest(spec.name, "host", config=spec.config),
        ("host", HOST_TARGET),
        lambda toolchain: host_unit(spec, toolchain),
        lambda unit, contents_before: _build_once(spec, unit, contents_before),
    )


def _build_once(spec: ModuleSpec, library: Unit, contents_before: Contents) -> Artifact | None:
    """Compile the objects that are not cached, link; None if a source changed meanwhile."""
    from .compile import files_read, run_units

    title = f"{spec.title or spec.name}, once"
    objects = _object_units(spec, library.toolchain)
    cached = {unit.output: unit.shelf.find(unit.build_key, report=True) for unit in objects}
    missing = [unit for unit in objects if cached[unit.output] is None]
    # With the library's own key, though it only links: failures are the library's.
    link = _Link(library.shelf, library.toolchain, library.commands[-1:], "", library.build_key)
    with library.shelf.stage(library.build_key) as stage:
        for name, artifact in cached.items():
            if artifact is not None:
                (stage / name).symlink_to(artifact.file)
        log.get().info("building %s: %d files to compile", title, len(missing))
        runtime_units = []
        if library.toolchain.name == "zig":
            runtime = _runtime_command(spec, library.toolchain)
            runtime_units = [Unit(library.shelf, library.toolchain, (runtime,), "")]
        by_output = {unit.output: unit for unit in missing}

        def on_output(name: str) -> None:
            if name in by_output:
                _keep_object(by_output[name], stage, contents_before)

        seconds = run_units([*runtime_units, *missing, link], title, stage, on_output)
        (stage / "runtime.so").unlink(missing_ok=True)
        read: Contents = {}
        is_unchanged = True
        for unit in missing:
            files, is_certain = files_read(unit, stage, contents_before)
            read.update(files)
            is_unchanged &= is_certain
        for unit in objects:
            artifact = cached[unit.output]
            is_unchanged &= artifact is None or _is_unchanged(unit, artifact, read)
            (stage / unit.output).unlink(missing_ok=True)
            (stage / unit.depfile).unlink(missing_ok=True)
        contents_before.update(read)
        if not is_unchanged:
            return None
        log.get().info("built %s in %.1f s", spec.title or spec.name, seconds)
        meta = make_meta(library, seconds, {"arch": "host"})
        return library.shelf.publish(stage, library.build_key, read, meta)


def _keep_object(unit: Unit, stage: Path, contents_before: Contents) -> None:
    """Publish a copy of an object if its sources are known to be what was compiled.

    Each object is published when it is made, not at the end, so that the next build goes on from
    there even if this process is killed. To fail is no error: the object is then compiled again.
    """
    from .compile import check_outputs, files_read

    with contextlib.suppress(OSError, RfopsError):
        check_outputs(unit, stage)
        files, is_certain = files_read(unit, stage, contents_before)
        if is_certain:
            with unit.shelf.stage(unit.build_key) as own_stage:
                shutil.copyfile(stage / unit.output, own_stage / unit.output)
                meta = make_meta(unit, 0.0, {"arch": "host"})
                unit.shelf.publish(own_stage, unit.build_key, files, meta)


def _is_unchanged(unit: Unit, artifact: Artifact, read: Contents) -> bool:
    """Whether the sources of a cached object are what they were when it was found."""
    deps = artifact.meta.deps
    contents = unit.shelf.roots.contents(list(deps))
    read.update(contents)
    return all(sha == deps[name] for name, (sha, _) in contents.items())
