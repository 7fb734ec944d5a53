"""Tasks for tests of executors, which run in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path


def echo(value: object) -> object:
    return value


def threads(_: object) -> tuple[str, ...]:
    names = ("RFOPS_VGPU_THREADS", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return tuple(os.environ.get(name, "") for name in names)


def fail(text: str) -> None:
    raise ValueError(text)


def die(times: int, folder: str) -> int:
    """Kills its process so many times, then says how often it was begun."""
    begun = Path(folder) / "begun"
    with begun.open("a") as stream:
        stream.write(".")
    count = len(begun.read_text())
    if count <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return count


def beget(_: object) -> int:
    """A process that outlives the task; its number."""
    return subprocess.Popen(["sleep", "600"]).pid


def hang(_: object) -> None:
    time.sleep(600)
