"""The program under the debugger, and its connections: one for each host thread that launches
kernels (csrc/vgpu/debug/channel.h)."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfops.cli.debug.values import CommandError


@contextmanager
def interrupts(enabled: bool) -> Iterator[None]:
    """A block that Ctrl-C can end, or not; then it waits for one that it can. Half an answer of the
    program would be taken for the next one's."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:  # around the change too: it raises what has waited
        change = signal.SIG_UNBLOCK if enabled else signal.SIG_BLOCK
        signal.pthread_sigmask(change, [signal.SIGINT])
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


class Connection:
    """A host thread of the program. It waits for `go` after each event."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lines = end.makefile("r", encoding="utf-8", errors="replace")
        self.launch: Any = None  # what commands.py keeps of the running launch

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> dict[str, Any] | None:
        """The next event; None at the thread's end."""
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        return json.loads(line) if line else None

    def ask(self, request: str) -> Any:
        """The answer to a request of a stopped launch. Raises CommandError."""
        self.send(request)
        answer: Any = self.receive()
        if answer is None:
            raise CommandError("the program has ended")
        if isinstance(answer, dict) and answer.get("event") == "error":
            raise CommandError(answer["error"])
        return answer

    def send(self, line: str) -> None:
        try:
            self._socket.sendall(f"{line}\n".encode())
        except OSError:
            pass  # the program has ended; the next receive() says so

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@dataclass(frozen=True)
class Exit:
    """The end of the program."""

    status: int

    def __str__(self) -> str:
        if self.status >= 0:
            return f"the program exited with status {self.status}"
        return f"the program was ended by {signal.Signals(-self.status).name}"


class Program:
    """A process whose kernels stop at the prompt. Ctrl-C is the prompt's: the process inherits that
    the signal is blocked."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, has_terminal: bool
    ) -> None:
        path = folder / f"socket-{os.getpid()}"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        try:
            self._process = subprocess.Popen(
                command,
                env={**env, "RFOPS_VGPU_DEBUG": str(path)},
                stdin=None if has_terminal else subprocess.DEVNULL,
            )
        except OSError as error:
            self._listener.close()
            raise CommandError(f"cannot run {command[0]}: {error.strerror or error}") from None
        self._exit = os.pidfd_open(self._process.pid)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._exit, selectors.EVENT_READ)
        self.connections: list[Connection] = []

    def wait(self) -> tuple[Connection, dict[str, Any]] | Exit:
        """The next event of a thread, or the program's end. Raises KeyboardInterrupt."""
        while True:
            with interrupts(True):
                ready = [key.fileobj for key, _ in self._selector.select()]
            for end in ready:
                if isinstance(end, Connection):
                    event = end.receive()
                    if event is not None:
                        return end, event
                    self._forget(end)
                elif end is self._listener:
                    self._accept()
            if ready == [self._exit]:
                return self._ended()

    def interrupt(self) -> None:
        """Stop the running launches at their next instructions."""
        for connection in self.connections:
            connection.send("interrupt")

    def kill(self) -> Exit:
        """End the program, and those of its children that launch kernels."""
        for connection in self.connections:
            connection.send("kill")
        self._process.kill()
        return self._ended()

    def _accept(self) -> None:
        connection = Connection(self._listener.accept()[0])
        self.connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _forget(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        self.connections.remove(connection)
        connection.close()

    def _ended(self) -> Exit:
        status = self._process.wait()
        for connection in list(self.connections):
            self._forget(connection)
        self._selector.close()
        self._listener.close()
        os.close(self._exit)
        return Exit(status)
