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
from ..policy.manifest import Wanted
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
    names = {place: place.replace("/", "_").removesuffix(".cpp") for place in batches}
    count = Counter(names.values())
    for place, name in names.items():
        if count[name] > 1:  # a/b.cpp and a_b.cpp
            names[place] = f"{name}-{digest(place)[:8]}"
    roots = roots_of(spec)
    flags = (*spec.flags, *cpu.level_flags(toolchain.name == "zig"), "-Wall", "-Wextra")
    flags += include_flags(roots)
    commands: dict[str, Command] = {}
    for place, name in names.items():
        sources = tuple(template(roots, source) for source in batches[place])
        *before, last = sources
        includes = [word for source in before for word in ("-include", source)]
        argv = ("{cc}", *flags, "-MMD", "-MF", f"{name}.d", *includes, "-c", last)
        commands[name] = Command((*argv, "-o", f"{name}.o"), sources, f"{name}.o")
    return commands


def _object_units(spec: ModuleSpec, toolchain: Toolchain) -> list[Unit]:
    shelf = ArtifactCache("host", f"{spec.name}.objects", roots_of(spec))
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
        Wanted(spec.name, "host", config=spec.config),
        ("host", HOST_TARGET),
        lambda toolchain: host_unit(spec, toolchain),
        lambda unit, before: _build_once(spec, unit, before),
    )


def _build_once(spec: ModuleSpec, library: Unit, before: Contents) -> Artifact | None:
    """Compile the objects that are not cached, link; None if a source changed meanwhile."""
    from .compile import files_read, run_units

    title = f"{spec.title or spec.name}, once"
    objects = _object_units(spec, library.toolchain)
    found = {unit.output: unit.shelf.find(unit.build_key, report=True) for unit in objects}
    missing = [unit for unit in objects if found[unit.output] is None]
    # With the library's own key, though it only links: failures are the library's.
    link = _Link(library.shelf, library.toolchain, library.commands[-1:], "", library.build_key)
    with library.shelf.stage(library.build_key) as stage:
        for name, artifact in found.items():
            if artifact is not None:
                (stage / name).symlink_to(artifact.file)
        log.get().info("building %s: %d files to compile", title, len(missing))
        first = []
        if library.toolchain.name == "zig":
            runtime = _runtime_command(spec, library.toolchain)
            first = [Unit(library.shelf, library.toolchain, (runtime,), "")]
        by_output = {unit.output: unit for unit in missing}

        def done(name: str) -> None:
            if name in by_output:
                _keep_object(by_output[name], stage, before)

        seconds = run_units([*first, *missing, link], title, stage, done)
        (stage / "runtime.so").unlink(missing_ok=True)
        read: Contents = {}
        whole = True
        for unit in missing:
            files, sure = files_read(unit, stage, before)
            read.update(files)
            whole &= sure
        for unit in objects:
            artifact = found[unit.output]
            whole &= artifact is None or _still_same(unit, artifact, read)
            (stage / unit.output).unlink(missing_ok=True)
            (stage / unit.depfile).unlink(missing_ok=True)
        before.update(read)
        if not whole:
            return None
        log.get().info("built %s in %.1f s", spec.title or spec.name, seconds)
        meta = make_meta(library, seconds, {"arch": "host"})
        return library.shelf.publish(stage, library.build_key, read, meta)


def _keep_object(unit: Unit, stage: Path, before: Contents) -> None:
    """Publish a copy of an object if its sources are known to be what was compiled.

    Each object is published when it is made, not at the end, so that the next build goes on from
    there even if this process is killed. To fail is no error: the object is then compiled again.
    """
    from .compile import check_outputs, files_read

    with contextlib.suppress(OSError, RfopsError):
        check_outputs(unit, stage)
        files, sure = files_read(unit, stage, before)
        if sure:
            with unit.shelf.stage(unit.build_key) as own:
                shutil.copyfile(stage / unit.output, own / unit.output)
                meta = make_meta(unit, 0.0, {"arch": "host"})
                unit.shelf.publish(own, unit.build_key, files, meta)


def _still_same(unit: Unit, artifact: Artifact, read: Contents) -> bool:
    """Whether the sources of a cached object are what they were when it was found."""
    deps = artifact.meta.deps
    now = unit.shelf.roots.contents(list(deps))
    read.update(now)
    return all(sha == deps[name] for name, (sha, _) in now.items())
