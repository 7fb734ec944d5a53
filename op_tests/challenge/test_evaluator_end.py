"""What an evaluation leaves when it is ended, and how it runs where no walls can be built."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rfops.challenge.walls import fields_of
from support.command import COMMAND
from support.entries import CASE, GOOD, is_walled, marked, processes_of


def _without_namespaces(*words: str) -> list[str]:
    """A command where no user namespace can be made, as in most containers."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    return ["unshare", "-Ur", "sh", "-c", script, "sh", *words]


TWICE = """
import sys
from rfops.cli import main
words = sys.argv[1:]
sys.exit(10 * main(words) + main([*words, "--trust-entry"]))
"""


def test_a_machine_without_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so in a line, and works with the option; the entry's own folder goes with it."""
    entry, temporary = tmp_path / "entry.py", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    entry.write_text(f"import os\nassert os.getcwd().startswith({str(temporary)!r})\n{GOOD}")
    words = ["eval", "fp8-mm", "--submission", str(entry), "--case", CASE]
    command = [sys.executable, "-c", TWICE, *words]
    completed = subprocess.run(
        _without_namespaces(*command) if is_walled() else command,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert completed.returncode == 10, completed.stdout + completed.stderr
    assert "1 of 1 cases pass the official check" in completed.stdout
    assert completed.stderr.startswith("rfops eval: this machine lets no walls be built around an")
    assert "--trust-entry" in completed.stderr and completed.stderr.count("\n") == 1
    assert not list(temporary.iterdir())


# ---------------------------------------------------------------- the evaluator's end

STAYS = """
import os, signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def custom_kernel(data):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(600)
    subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    time.sleep(600)
"""


def runs(pid: int) -> bool:
    fields = fields_of(pid)
    return bool(fields) and fields[0] not in "ZX"


def children_of(parent: int) -> list[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if fields_of(pid)[1:2] == [str(parent)]]


@pytest.mark.sweep
@pytest.mark.parametrize("option", ["", "--trust-entry"])
def test_a_hundred_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """At random moments of an evaluation: no process and no folder stays, of an entry that
    ignores signals and forks."""
    token, draw = marked(monkeypatch), random.Random(40)
    temporary, entry = tmp_path / "temporary", tmp_path / "entry.py"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    entry.write_text(STAYS)
    words = [*COMMAND, "eval", "fp8-mm", "--submission", str(entry), "--case", CASE]
    command = [*_without_namespaces(*words), option] if option else words
    deaths = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    for number in range(100):
        evaluator = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        )
        time.sleep(draw.uniform(0.1, 12))
        guards = children_of(evaluator.pid)
        evaluator.send_signal(deaths[number % len(deaths)])
        evaluator.wait()
        deadline = time.monotonic() + 30
        while (left := [*processes_of(token), *filter(runs, guards), *temporary.iterdir()]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert not left, f"after kill {number}"
