"""What test_bench_timing.py gives worker processes to do: they import this and not the tests."""

from __future__ import annotations

import os
from typing import Any


def chore(item: int | str) -> dict[str, Any]:
    if item == "crash":
        os._exit(3)
    if item == "endless":
        while True:
            pass
    if item == "raise":
        raise KeyError("no such thing")
    return {"is": item, "process": os.getpid()}
