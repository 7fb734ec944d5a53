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
    units: Sequence[Unit], title: str, stage: Path, done: Callable[[str], None] | None = None
) -> float:
    """Run the commands of the units in the stage; seconds. `done` is called with the name of each
    file when it is made, while other commands run. A failure's log outlives the stage."""
    from .ninja import Step, StepFailed, run_steps
    from .process import TimedOut

    made = set[str]()

    def record(name: str) -> None:
        made.add(name)
        if done is not None:
            done(name)

    steps = [
        Step(unit.argv(command), tuple(map(unit.expand, command.inputs)), command.output)
        for unit in units
        for command in unit.commands
    ]
    begin, memory = time.monotonic(), resources.free_memory()
    shelf, build_key = units[-1].shelf, units[-1].build_key
    try:
        output = run_steps(title, steps, stage, record)
    except TimedOut as late:
        left = [step.argv for step in steps if step.output not in made]
        command = next((argv for argv in left if _runs(argv, late.running)), left[0])
        why = f"the compiler was ended after {late.seconds:.0f} s (RFOPS_COMPILE_TIMEOUT)"
        error = BuildError(shelf.module, command, "", None, why)
        raise failures.record(shelf, build_key, error, {}) from None
    except StepFailed as failed:
        why = failures.cause(failed.output, failed.status, stage, memory)
        error = BuildError(shelf.module, failed.command, failed.output, None, why)
        read = contents_read(units[-1], stage) or {}
        raise failures.record(shelf, build_key, error, read) from None
    for unit in units:
        check_outputs(unit, stage)
    (stage / "build.log").write_text(output, encoding="utf-8")
    return time.monotonic() - begin


def check_outputs(unit: Unit, stage: Path) -> None:
    """A compiler has succeeded if it wrote regular files: to open a pipe would wait for ever."""
    command = unit.argv(unit.commands[-1])
    for name in filter(None, (*(c.output for c in unit.commands), unit.depfile)):
        try:
            mode = (stage / name).stat().st_mode
        except OSError as error:
            why = f"the compiler reported success and wrote no {name}: {error.strerror}"
            raise BuildError(unit.shelf.module, command, "", None, why) from error
        if not stat.S_ISREG(mode):
            why = f"the compiler left {name}, which is no regular file ({stat.filemode(mode)})"
            raise BuildError(unit.shelf.module, command, "", None, why)


def _runs(argv: Sequence[str], running: Sequence[Sequence[str]]) -> bool:
    """Whether a command is among those of processes; ninja starts it by a shell."""
    texts = list(argv), ["/bin/sh", "-c", shlex.join(argv)]
    return any(list(words) in texts for words in running)


def _parse_depfile(text: str) -> list[str]:
    """The prerequisites of a make rule: blanks are escaped by backslash, dollars doubled."""
    _, _, names = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|[^\\\s])+", names)
    return [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]


def _files(unit: Unit, stage: Path) -> set[Path]:
    text = (stage / unit.depfile).read_text(encoding="utf-8", errors="surrogateescape")
    listed = _parse_depfile(text)
    return {Path(os.path.normpath(stage / name)) for name in listed}


def _before_others(unit: Unit, files: set[Path]) -> set[Path]:
    """Where an include would find another file before the one that it did find: beside who
    includes, or in an earlier folder."""
    roots = unit.shelf.roots
    folders = [Path(unit.expand(f[2:])) for f in unit.commands[0].argv if f.startswith("-I{")]
    beside = {file.parent for file in files if roots.is_ours(file)}
    found = set()
    for file in filter(roots.is_ours, files):
        for at, folder in enumerate(folders):
            if file.is_relative_to(folder):
                rest = file.relative_to(folder)
                found |= {place / rest for place in (*folders[:at], *beside)} - files
    return found


def contents_read(unit: Unit, stage: Path) -> Contents | None:
    """What the files that the compiler read hold now; None if it left no list of them."""
    if not (stage / unit.depfile).is_file():
        return None
    with suppress(OSError):
        names = {unit.shelf.roots.name_of(file) for file in _files(unit, stage)}
        return unit.shelf.roots.contents(names)
    return None


def files_read(unit: Unit, stage: Path, before: Contents) -> tuple[Contents, bool]:
    """The files that the compiler read, and whether they are known to be what it read: older than
    the build, or, where clocks disagree, with the content that they had `before` it."""
    begin = (stage / "build.ninja").stat().st_ctime_ns
    files = _files(unit, stage)
    first = _before_others(unit, files)
    there = {file for file in first if file.exists()}  # and of no use, unless it is new
    names = map(unit.shelf.roots.name_of, files | first - there)
    read = unit.shelf.roots.contents(set(names))
    sure = bool(before) and all(
        name in before and before[name][0] == sha for name, (sha, _) in read.items()
    )
    with suppress(OSError):
        sure = sure or all(file.stat().st_ctime_ns <= begin for file in files | there)
    return read, sure
