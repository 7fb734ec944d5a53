"""The command `rfops` in a process of its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [str(Path(sys.executable).parent / "rfops")]


def rfops(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, **env}, stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip


def good(*arguments: str, **env: str) -> str:
    done = rfops(*arguments, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
