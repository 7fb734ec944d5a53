"""Runs build steps under ninja: in parallel, with progress, and with the failing command's text."""

from __future__ import annotations

import io
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import settings, texts
from ..cache import trust
from . import resources
from .toolchain import environment

_STATUS = "@@ "  # starts ninja's own status lines, which are progress and not output


class StepFailed(Exception):
    """The first step that failed: its command, what it printed, and 128 + signal or the status."""

    def __init__(self, command: Sequence[str] | str, output: str, status: int) -> None:
        super().__init__(command, output, status)
        self.command, self.output, self.status = command, output, status


@dataclass(frozen=True)
class Step:
    """One command: from inputs (absolute, or earlier outputs) to one file in the build folder."""

    argv: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str


def ninja_text(steps: Sequence[Step]) -> str:
    """The build.ninja of the steps. Raises ConfigError for what it cannot hold: a line end.

    Paths go in as variables: ninja splits a line before it expands them, so nothing in a value has
    a meaning but `$`, which `escape` writes. (The writer's own escaping of paths leaves `$` alone.)
    """
    from ninja import ninja_syntax

    text = io.StringIO()
    # Never wrapped: at the break of a wrapped line ninja drops the blanks of a quoted text.
    writer = ninja_syntax.Writer(text, width=sys.maxsize)  # type: ignore[arg-type]
    names: dict[str, str] = {}

    def variable(path: str) -> str:
        if path not in names:
            names[path] = f"path{len(names)}"
            checked_path = texts.check_line("path of a build", path)
            writer.variable(names[path], ninja_syntax.escape(checked_path))
        return f"${{{names[path]}}}"

    writer.rule("run", "$cmd", description="$out")
    for step in steps:
        arguments = [
            texts.check_line(f"command for {step.output!r}", argument) for argument in step.argv
        ]
        command = ninja_syntax.escape(shlex.join(arguments))
        inputs = [variable(path) for path in step.inputs]
        writer.build([variable(step.output)], "run", inputs, variables={"cmd": command})
    return text.getvalue()


class _StatusLine:
    """One line on stderr for builds that take long enough to be waited for."""

    def __init__(self, title: str) -> None:
        self.title, self.begin = title, time.monotonic()
        self.tty = sys.stderr.isatty()
        self.quiet = settings.text("RFOPS_LOG") == "warning"
        self.shown_at = 0.0 if self.tty else self.begin
        self.is_shown = False

    def show(self, status: str) -> None:
        time_now = time.monotonic()
        patience = 0.1 if self.tty else 5.0  # a log file needs no animation
        if self.quiet or time_now - self.begin < 1.0 or time_now - self.shown_at < patience:
            return
        self.shown_at, self.is_shown = time_now, True
        text = f"rfops: building {self.title}: {status} ({time_now - self.begin:.0f} s)"
        sys.stderr.write(f"\r{text}\033[K" if self.tty else f"{text}\n")
        sys.stderr.flush()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self.tty and self.is_shown:
            sys.stderr.write("\r\033[K")


def run_steps(
    title: str, steps: Sequence[Step], folder: Path, on_output: Callable[[str], None]
) -> str:
    """Run the steps in the folder and return the compilers' output. `on_output` is called with
    the name of each file when it is written, while other steps run. Raises StepFailed, TimedOut."""
    import ninja

    from . import process

    # Paths need not be UTF-8.
    text = ninja_text(steps)
    (folder / "build.ninja").write_text(text, encoding="utf-8", errors="surrogateescape")
    command = [str(Path(ninja.BIN_DIR) / "ninja"), "-j", str(resources.jobs())]
    environ = environment() | {"NINJA_STATUS": f"{_STATUS}[%f/%t] "}
    limit = settings.number("RFOPS_COMPILE_TIMEOUT")
    progress, output, latest = _StatusLine(title), list[str](), ""
    command_process = process.Command(
        command, environ, limit, cwd=folder, umask=trust.umask(folder)
    )
    with command_process, progress:
        for line in command_process:
            if line.startswith(_STATUS):  # of a step that has ended
                if latest:  # it has not failed, because ninja reports a failure at once
                    on_output(latest)
                status = line[len(_STATUS) :].strip()
                latest = status.partition(" ")[2]
                progress.show(status)
                continue
            output.append(line)
            if _FAILED.match(line.rstrip("\n")):
                latest = ""
    if latest:
        on_output(latest)
    (folder / ".ninja_log").unlink(missing_ok=True)
    text = "".join(output)
    if command_process.status != 0:
        raise _failure(steps, output, text, command_process.status)
    return text


_FAILED = re.compile(r"FAILED: (?:\[code=(\d+)\] )?(.*?) ?$")  # the code since ninja 1.13


def _failure(steps: Sequence[Step], lines: list[str], text: str, status: int) -> StepFailed:
    """The first failing step's command and what it printed."""
    for index, line in enumerate(lines):
        match = _FAILED.match(line.rstrip("\n"))
        step = match and next((s for s in steps if match[2] == s.output), None)
        if match and step:
            following = lines[index + 2 :]  # the line between is the command
            ends = [i for i, r in enumerate(following) if r.startswith(("FAILED: ", "ninja: "))]
            output = "".join(following[: ends[0]] if ends else following)
            return StepFailed(step.argv, output, int(match[1] or status))
    return StepFailed("ninja", text, status)
