"""The command `rfops` in a process of its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.process import run

COMMAND = [str(Path(sys.executable).parent / "rfops")]


def rfops(*arguments: str, cwd: str | Path = "/", **env: str) -> subprocess.CompletedProcess[str]:
    code = Path(COMMAND[0]).read_text()
    return run(code, [*COMMAND, *arguments], {**os.environ, **env}, cwd)


def good(*arguments: str, **env: str) -> str:
    completed = rfops(*arguments, **env)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout
