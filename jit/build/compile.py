"""Runs the commands of units in a stage folder, and finds out what they read."""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..cache.shelf import Contents
from ..errors import BuildError
from . import failures, resources
from .recipe import Unit


def run_units(
    units: Sequence[Unit],
    title: str,
    stage: Path,
    on_output: Callable[[str], None] | None = None,
) -> float:
    """Run the commands of the units in the stage and return the seconds they took. `on_output` is
    called with the name of each file when it is written, while other commands run. The log of a
    failure is kept after the stage is removed."""
    from .ninja import Step, StepFailed, run_steps
    from .process import TimedOut

    outputs = set[str]()

    def record(name: str) -> None:
        outputs.add(name)
        if on_output is not None:
            on_output(name)

    steps = [
        Step(unit.argv(command), tuple(map(unit.expand, command.inputs)), command.output)
        for unit in units
        for command in unit.commands
    ]
    begin, memory = time.monotonic(), resources.free_memory()
    shelf, build_key = units[-1].shelf, units[-1].build_key
    try:
        output = run_steps(title, steps, stage, record)
    except TimedOut as timeout:
        pending = [step.argv for step in steps if step.output not in outputs]
        command = next((argv for argv in pending if _runs(argv, timeout.commands)), pending[0])
        cause = f"the compiler was ended after {timeout.seconds:.0f} s (RFOPS_COMPILE_TIMEOUT)"
        error = BuildError(shelf.module, command, "", None, cause)
        raise failures.record(shelf, build_key, error, {}) from None
    except StepFailed as failed:
        cause = failures.cause(failed.output, failed.status, stage, memory)
        error = BuildError(shelf.module, failed.command, failed.output, None, cause)
        read = contents_read(units[-1], stage) or {}
        raise failures.record(shelf, build_key, error, read) from None
    for unit in units:
        check_outputs(unit, stage)
    (stage / "build.log").write_text(output, encoding="utf-8")
    return time.monotonic() - begin


def check_outputs(unit: Unit, stage: Path) -> None:
    """Raise BuildError unless the compiler wrote each output as a regular file, because opening a
    pipe would block."""
    command = unit.argv(unit.commands[-1])
    for name in filter(None, (*(c.output for c in unit.commands), unit.depfile)):
        try:
            mode = (stage / name).stat().st_mode
        except OSError as error:
            cause = f"the compiler reported success and wrote no {name}: {error.strerror}"
            raise BuildError(unit.shelf.module, command, "", None, cause) from error
        if not stat.S_ISREG(mode):
            cause = f"the compiler left {name}, which is no regular file ({stat.filemode(mode)})"
            raise BuildError(unit.shelf.module, command, "", None, cause)


def _runs(argv: Sequence[str], commands: Sequence[Sequence[str]]) -> bool:
    """Return whether `argv` is among the running commands; ninja starts it through a shell."""
    texts = list(argv), ["/bin/sh", "-c", shlex.join(argv)]
    return any(list(command) in texts for command in commands)


def _parse_depfile(text: str) -> list[str]:
    """Return the prerequisites of a make rule; blanks are escaped by backslash, dollars doubled."""
    _, _, names = text.replace("\\\n", " ").partition(": ")
    prerequisites = re.findall(r"(?:\\.|[^\\\s])+", names)
    return [
        re.sub(r"\\(.)", r"\1", prerequisite).replace("$$", "$") for prerequisite in prerequisites
    ]


def _files(unit: Unit, stage: Path) -> set[Path]:
    text = (stage / unit.depfile).read_text(encoding="utf-8", errors="surrogateescape")
    names = _parse_depfile(text)
    return {Path(os.path.normpath(stage / name)) for name in names}


def _preferred_paths(unit: Unit, files: set[Path]) -> set[Path]:
    """Return paths that precede the files in include search order: a file created at one of them
    would be included instead. They are in the including file's folder or an earlier -I folder."""
    roots = unit.shelf.roots
    folders = [Path(unit.expand(f[2:])) for f in unit.commands[0].argv if f.startswith("-I{")]
    including_folders = {file.parent for file in files if roots.is_ours(file)}
    paths = set()
    for file in filter(roots.is_ours, files):
        for index, folder in enumerate(folders):
            if file.is_relative_to(folder):
                relative = file.relative_to(folder)
                paths |= {
                    folder_before / relative
                    for folder_before in (*folders[:index], *including_folders)
                } - files
    return paths


def contents_read(unit: Unit, stage: Path) -> Contents | None:
    """Return the current contents of the files that the compiler read, or None without a
    depfile."""
    if not (stage / unit.depfile).is_file():
        return None
    with suppress(OSError):
        names = {unit.shelf.roots.name_of(file) for file in _files(unit, stage)}
        return unit.shelf.roots.contents(names)
    return None


def files_read(unit: Unit, stage: Path, contents_before: Contents) -> tuple[Contents, bool]:
    """Return the contents of the files that the compiler read, and whether they are certain to be
    what it read: the files are older than the build, or (if clocks disagree) their contents equal
    `contents_before`, read before the build."""
    begin = (stage / "build.ninja").stat().st_ctime_ns
    files = _files(unit, stage)
    preferred = _preferred_paths(unit, files)
    existing = {file for file in preferred if file.exists()}  # and of no use, unless it is new
    names = map(unit.shelf.roots.name_of, files | preferred - existing)
    read = unit.shelf.roots.contents(set(names))
    is_certain = bool(contents_before) and all(
        name in contents_before and contents_before[name][0] == sha
        for name, (sha, _) in read.items()
    )
    with suppress(OSError):
        is_certain = is_certain or all(
            file.stat().st_ctime_ns <= begin for file in files | existing
        )
    return read, is_certain
