"""`rfops debug`: step through kernels on the virtual GPU, at a prompt with gdb's habits.

A Python script with kernels of Triton or FlyDSL, an executable of hipcc, or one call of an op of
rfops. `help` at the prompt lists its commands. Without a terminal they come from standard input."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rfops.cli.common import loaded, op_names, virtual_arch
from rfops.cli.debug import commands
from rfops.cli.debug.program import Program, interrupts
from rfops.cli.debug.session import Session
from rfops.cli.debug.values import CommandError
from rfops.jit import settings, vgpu_library

PROMPT = "(rfops) "
# Repeated by an empty line at a terminal.
_REPEATED = ("continue", "stepi", "step", "next", "until", "x", "list", "finish")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops debug` to the command line."""
    parser = subparsers.add_parser(
        "debug",
        help="step through kernels on the virtual GPU",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="rfops debug [-x FILE] [-ex COMMAND] [--batch] [--arch ARCH] -- COMMAND ...\n"
        "       rfops debug [...] OP --m 4 ...",
    )
    option = parser.add_argument
    option("-x", metavar="FILE", dest="scripts", action="append", type=_script, help="do its lines")
    option("-ex", metavar="COMMAND", dest="scripts", action="append", type=_line, help="do it")
    option("--batch", action="store_true", help="leave after -x and -ex; status 1 if one fails")
    option("--arch", help="gfx942 or gfx950; default: RFOPS_VGPU_ARCH's")
    option("--part", help=f"{', '.join(settings.PARTS)}; default: by architecture")
    option("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="or an op and its options")
    parser.set_defaults(command=run)


def _script(name: str) -> tuple[str, str]:
    return name, Path(name).read_text(encoding="utf-8")


def _line(text: str) -> tuple[str, str]:
    return "-ex", text


def run(options: argparse.Namespace) -> int:
    """Read commands until the user leaves; return the exit status."""
    arch = virtual_arch(options.arch, options.part)
    command, is_program = _command(options.words)
    if not is_program and {"-h", "--help"} & set(command):
        return subprocess.call(command)  # which knows the op's options
    vgpu_library()  # built now, where Ctrl-C ends it
    with tempfile.TemporaryDirectory(prefix="rfops-debug-") as name:
        folder = Path(name)
        has_terminal = sys.stdin.isatty()

        def start(checks: bool) -> Program:
            env = _environment(arch, folder, options.part, is_program)
            if checks and settings.raw("RFOPS_VGPU_CHECK") != "error":
                env["RFOPS_VGPU_CHECK"] = "1"
            return Program(command, env, folder, has_terminal)

        session = Session(start, _output)
        with interrupts(False):
            try:
                return _interact(session, options, has_terminal)
            finally:
                session.kill()


def _command(words: list[str]) -> tuple[list[str], bool]:
    """The program to start, and whether it is the user's own. Raises ValueError."""
    if words[:1] == ["--"]:
        if not words[1:]:
            raise ValueError("rfops debug: expected a command behind --, as -- python script.py")
        return words[1:], True
    available = op_names()
    if not words or words[0] not in available:
        problem = f"got {words[0]}; ops are {', '.join(available)}" if words else "got nothing"
        raise ValueError(f"rfops debug: expected an op, or -- and a command; {problem}")
    files = [word for file in loaded() for word in ("--ops", str(file))]
    return [sys.executable, "-m", "rfops.cli.debug.call", *files, *words], False


def _environment(
    arch: str, folder: Path, gpu_model: str | None, is_program: bool
) -> dict[str, str]:
    if not is_program:
        return {**os.environ, "RFOPS_VGPU_ARCH": arch}
    from rfops.vgpu.program import environment

    with contextlib.suppress(FileNotFoundError):  # of the run before
        (folder / "site" / "sitecustomize.py").unlink()
        (folder / "site").rmdir()
    env = environment(arch, folder, gpu_model)
    for name in ("RFOPS_VGPU_REPORT", "RFOPS_VGPU_TIMING"):  # of `rfops run`
        del env[name]
    return env


def _output(text: str) -> None:
    print(text, flush=True)


# ---------------------------------------------------------------- reading commands


def _interact(session: Session, options: argparse.Namespace, has_terminal: bool) -> int:
    status = 0
    with contextlib.suppress(commands.Quit):
        for name, text in options.scripts or ():
            if not _do_script(session, name, text):
                status = 1
                break
        if not options.batch:
            _do_terminal(session) if has_terminal else _do_lines(session)
    return status


def _do_script(session: Session, name: str, text: str) -> bool:
    """Do all lines; False: one has failed, which ends the script as in gdb."""
    for count, line in enumerate(text.splitlines(), 1):
        _output(f"{PROMPT}{line}")
        if not _do(session, line):
            if name != "-ex":
                _output(f"{name}:{count}: the rest of the file is not done")
            return False
    return True


def _do_lines(session: Session) -> None:
    while line := _read(sys.stdin.readline):
        _output(f"{PROMPT}{line.rstrip()}")
        _do(session, line)


def _do_terminal(session: Session) -> None:
    import readline  # noqa: F401, input() uses it

    _output("`help` lists the commands; `start` starts the program and stops at its first kernel")
    previous = ""
    while line := _read(lambda: f"{input(PROMPT)}\n"):
        line = line.strip() or previous
        _do(session, line)
        previous = line if _is_repeated(line) else ""


def _read(read: Callable[[], str]) -> str:
    """A line with its end; empty at the end of all; for Ctrl-C a comment, which repeats nothing."""
    try:
        with interrupts(True):
            return read()
    except KeyboardInterrupt:
        _output("")
        return "#\n"
    except EOFError:
        _output("")
        return ""


def _is_repeated(line: str) -> bool:
    word = line.split("/")[0].split(" ")[0]
    name = commands.ALIASES.get(word, word)
    return bool(word) and any(repeated.startswith(name) for repeated in _REPEATED)


def _do(session: Session, line: str) -> bool:
    """Do one line; print why it cannot be done."""
    try:
        commands.run_line(session, line)
    except CommandError as error:
        _output(str(error))
        return False
    return True
