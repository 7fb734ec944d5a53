"""Tasks handed to workers, longest first.

A worker that dies loses its task no more than ATTEMPTS times over; one that is over the limit is
stopped, and its task is not tried again. A worker that cannot begin, or dies DEATHS times without a
result between, is left out: the others go on.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ATTEMPTS = 3  # of a task whose workers die
DEATHS = 3  # of a worker, one after another


@dataclass(frozen=True)
class Task:
    """`function` is "module:name"; `cost` orders tasks and tells the remaining time."""

    label: str
    function: str
    args: tuple[Any, ...]
    cost: float = 1.0

    def run(self) -> Any:
        """Import the function's module, call the function and return its result."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)(*self.args)


@dataclass(frozen=True)
class Outcome:
    """Of a task: its result, or the reason why there is none. `is_spent`: its process can compute
    nothing more, as after a fault of the GPU."""

    result: Any = None
    error: str = ""
    seconds: float = 0.0
    is_spent: bool = False


class Died(Exception):
    """The worker is gone."""


class Pool(Protocol):
    """Workers by number, each with one task at most."""

    names: list[str]

    def start(self, worker: int, task: Task) -> None:
        """Raises Died."""

    def wait(self, seconds: float) -> list[tuple[int, Outcome | None]]:
        """What has come within that time: an outcome, or None of a worker that died."""

    def restart(self, worker: int) -> None:
        """Stop it, whatever it does, and begin anew. Raises Died."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class _Worker:
    task: int | None = None
    begin: float = 0.0
    deaths: int = 0
    is_out: bool = False


@dataclass
class Run:
    """`on_outcome(number, outcome, progress)` is called in this process, once a task."""

    pool: Pool
    tasks: Sequence[Task]
    on_outcome: Callable[[int, Outcome, str], None]
    limit: float
    say: Callable[[str], None]
    attempts: int = ATTEMPTS
    begin: float = field(default_factory=time.monotonic)
    finished: float = 0.0
    count: int = 0

    def __call__(self) -> None:
        order = sorted(range(len(self.tasks)), key=lambda i: -self.tasks[i].cost)
        self.waiting, self._attempts = order[::-1], [0] * len(self.tasks)
        self.workers = [_Worker() for _ in self.pool.names]
        try:
            while self.count < len(self.tasks):
                self._hand_out()
                busy = [w for w in self.workers if w.task is not None]
                if not busy:
                    self._give_up()
                    break
                seconds_left = min(w.begin for w in busy) + self.limit - time.monotonic()
                for number, outcome in self.pool.wait(max(0.0, min(seconds_left, 5.0))):
                    self._record_outcome(number, outcome)
                self._stop_late()
        finally:
            self.pool.close()

    def _hand_out(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.task is None and not worker.is_out and self.waiting:
                worker.task, worker.begin = self.waiting.pop(), time.monotonic()
                self._attempts[worker.task] += 1
                try:
                    self.pool.start(number, self.tasks[worker.task])
                except Died:
                    self._record_outcome(number, None)

    def _record_outcome(self, number: int, outcome: Outcome | None) -> None:
        worker = self.workers[number]
        task, worker.task = worker.task, None
        if task is None:
            return
        if outcome is not None:
            worker.deaths = 0
            if outcome.is_spent:
                self._restart(number)
            self._finish(task, outcome)
            return
        # A worker that dies of its tasks, each tried once, is not to blame.
        worker.deaths += self.attempts > 1
        seconds = time.monotonic() - worker.begin
        name, label = self.pool.names[number], self.tasks[task].label
        self.say(f"{name} died at {label}")
        self._restart(number)
        if self._attempts[task] < self.attempts:
            self.waiting.insert(0, task)  # behind the others: another worker may have it then
        else:
            text = (
                f"its worker died {self.attempts} times"
                if self.attempts > 1
                else "its process died"
            )
            self._finish(task, Outcome(error=text, seconds=seconds))

    def _restart(self, number: int) -> None:
        worker = self.workers[number]
        try:
            if worker.deaths >= DEATHS:
                raise Died
            self.pool.restart(number)
        except Died:
            worker.is_out = True
            self.say(f"{self.pool.names[number]} is left out")

    def _stop_late(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.task is not None and time.monotonic() - worker.begin > self.limit:
                task, worker.task = worker.task, None
                self._restart(number)
                limit = self.limit
                self._finish(task, Outcome(error=f"took more than {limit:g} s", seconds=limit))

    def _finish(self, task: int, outcome: Outcome) -> None:
        self.count += 1
        self.finished += self.tasks[task].cost
        self.on_outcome(task, outcome, self._progress())

    def _progress(self) -> str:
        elapsed = time.monotonic() - self.begin
        total = sum(task.cost for task in self.tasks)
        seconds_left = elapsed * (total - self.finished) / self.finished if self.finished else 0.0
        return f"[{self.count}/{len(self.tasks)}, {elapsed:.0f} s, about {seconds_left:.0f} s left]"

    def _give_up(self) -> None:
        while self.waiting:
            self._finish(self.waiting.pop(), Outcome(error="no worker is left"))
