"""An entry's process: limits of time and memory, and nothing of it left when it has ended.

The evaluator is the reaper of all that descends from it (Linux's child subreaper), so what an entry
forks is seen though its parent is gone, and is ended with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
MOST_PROCESSES = 64  # compilers and their children; more is a fork bomb
PAGE = os.sysconf("SC_PAGE_SIZE")


class Outcome(NamedTuple):
    status: int
    why: str  # what ended it, if this process did
    left: int  # processes that were still there


class Sandbox:
    """A process and all that it starts; `poll` looks after it, `end` ends all of it."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        output: Path,
        memory: int,
        pass_fds: Sequence[int] = (),
    ) -> None:
        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed: forked processes would be lost")
        self.memory, self.why = memory, ""
        self._earlier_children = set(_processes().children(os.getpid()))
        with output.open("wb") as stream:
            self.process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                pass_fds=pass_fds,
            )

    def poll(self) -> bool:
        """Whether it runs and keeps its limits; else `why` says what it did."""
        if self.process.poll() is not None:
            return False
        pids = self._all(_processes())
        if len(pids) > MOST_PROCESSES:
            self.why = f"forked {len(pids)} processes, at most {MOST_PROCESSES} are let run"
        elif (used_bytes := sum(map(_memory, pids))) > self.memory:
            self.why = f"took {used_bytes >> 20} MiB of memory, limit {self.memory >> 20} MiB"
        return not self.why

    def wait(self, seconds: float) -> None:
        """For its end, no longer than this."""
        deadline = time.monotonic() + seconds
        while self.poll() and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self) -> Outcome:
        """Kill what there is. What was left by a process that ended by itself is counted."""
        by_itself = self.process.poll() is not None
        num_left = len(self._all(_processes())) if by_itself else 0
        for _ in range(100):
            processes = _processes()
            pids = self._all(processes)
            for pid in pids:
                _kill(pid)
            self._reap(processes)
            if not pids:
                break
            time.sleep(0.02)
        self.process.wait()
        return Outcome(self.process.returncode, self.why, num_left)

    def _all(self, processes: Processes) -> list[int]:
        """Its own, what is below it, and orphans of its: they have become this one's children."""
        return [pid for child in self._own_children(processes) for pid in processes.below(child)]

    def _own_children(self, processes: Processes) -> list[int]:
        return [pid for pid in processes.children(os.getpid()) if pid not in self._earlier_children]

    def _reap(self, processes: Processes) -> None:
        """Orphans that have ended; its own process is Popen's to wait for."""
        for pid in processes.ended:
            if pid not in self._earlier_children and pid != self.process.pid:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue


class Processes(NamedTuple):
    """What runs at a moment, and which children of this one have ended and wait to be reaped."""

    by_parent: dict[int, list[int]]
    ended: list[int]

    def children(self, parent: int) -> list[int]:
        """Return the ids of the direct children of a process."""
        return self.by_parent.get(parent, [])

    def below(self, root: int) -> list[int]:
        """Return the ids of a process and all its descendants."""
        pids, todo = [], [root]
        while todo:
            pids.append(todo.pop())
            todo += self.children(pids[-1])
        return pids


def _processes() -> Processes:
    children_of, ended_pids = dict[int, list[int]](), list[int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # gone meanwhile
            continue
        state, parent = fields.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            children_of.setdefault(int(parent), []).append(int(entry.name))
        elif int(parent) == os.getpid():
            ended_pids.append(int(entry.name))
    return Processes(children_of, ended_pids)


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
