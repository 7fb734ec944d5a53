"""Run as a script: a process that has imported torch forks one for each request of
`support.process`, and nothing else. Importing torch takes two seconds, a fork some milliseconds."""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - what this server is for


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Forks for each request until the client closes its end; returns in a fork that has one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's
    while True:
        message, files, _, _ = socket.recv_fds(control, 16, 4)
        _reap()
        if not message:
            return None
        text = b""
        while len(text) < int(message):
            text += control.recv(int(message) - len(text))
        if os.fork() == 0:
            control.close()
            return _wait_for_fork(json.loads(text), files)
        for file in files:
            os.close(file)


def _reap() -> None:
    """Wait for the forks that have ended: their CPU time is part of this process's from then on."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait_for_fork(request: dict[str, Any], files: list[int]) -> dict[str, Any]:
    """In a fork of the server: forks the process, says its id, how it ends and its CPU time."""
    *standard, reply = files
    process = os.fork()
    if process:
        with contextlib.suppress(BrokenPipeError):  # the client no longer waits
            os.write(reply, array.array("i", [process]).tobytes())
            _, status, used = os.wait4(process, 0)
            milliseconds = round((used.ru_utime + used.ru_stime) * 1e3)
            os.write(reply, array.array("i", [status, milliseconds]).tobytes())
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(reply)
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    return request


def main(code: str, argv: list[str], cwd: str, env: dict[str, str]) -> int:
    """The code as __main__ of a new process; its exit status."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None  # may have been asked for, with the server's environment
    module = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv, sys.path[0] = module, argv, ""
    if argv[0] != "-c":
        module.__file__ = argv[0]
        sys.path[0] = str(Path(argv[0]).resolve().parent)
    try:
        exec(compile(code, "<string>" if argv[0] == "-c" else argv[0], "exec"), module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:  # as the interpreter ends one
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this line
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        sys.exit()
    status = main(**request)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    # The C library's exit: handlers and buffers of libraries, and not the half second in which the
    # interpreter takes torch apart.
    ctypes.PyDLL(None).exit(status & 0xFF)
