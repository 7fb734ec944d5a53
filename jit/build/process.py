"""Compilers as processes that can be ended: with all that they have started, after a limit, and
when this process is told to stop.

Each runs in a session of its own. Ctrl-C of a terminal does not reach it, so that no build fails of
it for others who wait; who is interrupted ends it (`end_all`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

_LOOK = 0.2  # seconds between looks at whether a process has ended that others keep a pipe of
_sessions: set[int] = set()  # sessions
_ended_sessions: set[int] = set()  # of them, those that end_all() has ended
os.register_at_fork(after_in_child=_sessions.clear)


class TimedOut(Exception):
    """Nothing came from the process for that many seconds; it is ended."""

    def __init__(self, seconds: float, commands: Sequence[Sequence[str]]) -> None:
        super().__init__(seconds, commands)
        self.seconds, self.commands = seconds, commands  # commands that ran then


class Command:
    """A command that runs inside the block; its lines as they come, then its exit status.

    `limit`: the longest time without a line, in seconds; 0: any. Raises TimedOut, OSError. However
    the block is left, nothing of the command runs on.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], limit: float, **options: Any
    ) -> None:
        self.limit, self.status = limit, 0
        arguments: dict[str, Any] = {"stderr": subprocess.STDOUT} | options
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            **arguments,
        )
        _sessions.add(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        session = self._process.pid
        _end(session)
        self._process.wait()
        _sessions.discard(session)
        _ended_sessions.discard(session)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __iter__(self) -> Iterator[str]:
        pending = b""
        for data in self._output():
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace") + "\n"
        if pending:
            yield pending.decode(errors="replace")
        self.status = self._process.wait()
        if self._process.pid in _ended_sessions:
            raise KeyboardInterrupt  # in a thread, which end_all() has told so

    def _output(self) -> Iterator[bytes]:
        """What comes, until the process has ended: one that it leaves behind may keep the pipe."""
        pipe = self._process.stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        since = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                has_ended = self._process.poll() is not None  # first: then all is in the pipe
                if selector.select(0 if has_ended else _LOOK):
                    data = pipe.read()
                    if not data:
                        return
                    yield data
                    since = time.monotonic()
                elif has_ended:
                    return
                elif self.limit and time.monotonic() - since > self.limit:
                    raise TimedOut(self.limit, _commands(self._process.pid))


def output_of(
    argv: Sequence[str], env: Mapping[str, str], limit: float, **options: Any
) -> tuple[int, str]:
    """Exit status of a short command, and its output, that of errors last: it is part of keys, and
    must not depend on which was quicker. Raises TimedOut, OSError."""
    with os.fdopen(os.memfd_create("errors"), "w+b") as errors:  # where no disk has room, too
        with Command(argv, env, limit, stderr=errors, **options) as command:
            output = "".join(command)
        errors.seek(0)
        return command.status, output + errors.read().decode(errors="replace")


def end_all() -> None:
    """End what other threads run. It raises KeyboardInterrupt there."""
    for session in list(_sessions):
        _ended_sessions.add(session)
        _end(session)


def _end(session: int) -> None:
    """Kill all of a session: ninja gives each command a process group of its own."""
    for _ in range(100):  # what is started meanwhile is found the next time
        pids = _members(session)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.01)


def _members(session: int) -> list[int]:
    """Processes of a session that run."""
    pids = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
                state, _, _, process_session = text.rpartition(")")[2].split()[:4]
                if int(process_session) == session and state not in "ZX":
                    pids.append(int(entry.name))
    return pids


def _commands(session: int) -> list[Sequence[str]]:
    """What the processes of a session run, the first to start first."""
    commands: list[Sequence[str]] = []
    for pid in sorted(_members(session)):
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            commands.append([os.fsdecode(argument) for argument in arguments])
    return commands
