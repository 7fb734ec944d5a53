"""Python in a process of its own, forked from one that has imported torch.

It has its own environment, folder, `__main__` and standard streams, and imports rfops itself; what
it does not have is a start of the interpreter. Tests of that start, of what is imported when and of
its time use `subprocess`.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SERVER = Path(__file__).with_name("python_server.py")
# Read when the interpreter or a library starts, so a fork would not see them.
AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_", "TORCH_")

_sending = threading.Lock()  # the server reads one request after another
seconds_of_forks = 0.0  # the CPU time of those that have ended, and of what they waited for


@cache
def _server() -> tuple[socket.socket, dict[str, str]]:
    """The connection, and the environment that the server has."""
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), str(its.fileno())],
            pass_fds=[its.fileno()],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours, dict(os.environ)


def _at_start(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START)}


def python(
    code: str,
    *arguments: object,
    cwd: str | Path | None = None,
    check: bool = False,
    timeout: float = 600,
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """`python -c code arguments`, with variables beside those of this process."""
    return run(code, ["-c", *map(str, arguments)], {**os.environ, **env}, cwd, check, timeout)


def run(
    code: str,
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str | Path | None = None,
    check: bool = False,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """The code as `__main__` of a process with that environment; raises as subprocess.run does."""
    with _sending:
        server, its_env = _server()
    if _at_start(env) != _at_start(its_env):
        arguments = [sys.executable, *(["-c", code, *argv[1:]] if argv[0] == "-c" else argv)]
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            check=check,
            cwd=cwd,
            env=env,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    folder = str(cwd if cwd is not None else Path.cwd())
    request = json.dumps({"code": code, "argv": list(argv), "cwd": folder, "env": env}).encode()
    ours, its = socket.socketpair()
    with ours, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with its, Path(os.devnull).open() as nothing:
            files = [nothing.fileno(), out.fileno(), err.fileno(), its.fileno()]
            with _sending:
                socket.send_fds(server, [b"%16d" % len(request)], files)
                server.sendall(request)
        status = _wait(ours, argv, timeout)
        message = []
        for file in (out, err):
            file.seek(0)
            message.append(file.read().decode(errors="replace"))
    completed = subprocess.CompletedProcess(list(argv), status, *message)
    if check:
        completed.check_returncode()
    return completed


def _wait(ours: socket.socket, argv: Sequence[str], timeout: float) -> int:
    """The status of the process at the other end, by subprocess's convention."""
    global seconds_of_forks
    (process,) = _numbers(ours, 1)
    ours.settimeout(timeout)
    try:
        status, milliseconds = _numbers(ours, 2)
    except TimeoutError:
        os.kill(process, signal.SIGKILL)
        raise subprocess.TimeoutExpired(argv, timeout) from None
    seconds_of_forks += milliseconds / 1e3
    return os.waitstatus_to_exitcode(status)


def _numbers(ours: socket.socket, count: int) -> list[int]:
    numbers = array.array("i", ours.recv(4 * count))
    assert len(numbers) == count, "the server of Python processes has ended"
    return numbers.tolist()
