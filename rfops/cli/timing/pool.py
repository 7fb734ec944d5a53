"""Worker processes: each predicts one row after the other, and a row that crashes its worker or
takes too long costs that row alone."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from typing import Any

Work = Callable[[Any], dict[str, Any]]
START_S = 600.0  # what a worker may take until it is ready: it may build the virtual GPU first


class Worker:
    """A process that runs `work` on what it is sent; a thread waits for it."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, worker_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(worker_pipe, work), daemon=True)
        self._process.start()
        worker_pipe.close()
        self._is_ready = False

    @property
    def alive(self) -> bool:
        """Whether the worker's process runs."""
        return self._process.is_alive()

    def ask(self, item: object, seconds: float) -> dict[str, Any]:
        """The result; where none comes, the process is ended and `skipped` says why."""
        try:
            if not self._is_ready and not self._pipe.poll(START_S):
                raise TimeoutError
            self._is_ready = self._is_ready or self._pipe.recv()
            self._pipe.send(item)
            if not self._pipe.poll(seconds):
                raise TimeoutError
            result: dict[str, Any] = self._pipe.recv()
            return result
        except TimeoutError:
            self.end()
            return {"skipped": f"took more than {seconds if self._is_ready else START_S:g} s"}
        except (EOFError, OSError):
            self.end()
            return {"skipped": f"its process ended with {self._process.exitcode}"}

    def end(self) -> None:
        """Kill the worker's process and wait for its end."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, work: Work) -> None:
    pipe.send(True)
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        started = time.monotonic()
        try:
            result = work(item)
        except Exception as error:
            result = {"skipped": f"{type(error).__name__}: {error}"}
        pipe.send(result | {"seconds": round(time.monotonic() - started, 2)})


def run(
    work: Work, items: Sequence[object], workers: int, seconds: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, result) of each item as they end. An error of `work`, a crash and more than `seconds`
    are results with the key `skipped`. `work` must be importable."""
    team: list[Worker | None] = [None] * workers  # those that are free, to be started when needed
    started: list[Worker] = []

    def run_item(item: object) -> dict[str, Any]:
        worker = team.pop()
        if worker is None:
            worker = Worker(work)
            started.append(worker)
        result = worker.ask(item, seconds)
        team.append(worker if worker.alive else None)
        return result

    pool = ThreadPoolExecutor(workers)
    try:
        positions = {pool.submit(run_item, item): position for position, item in enumerate(items)}
        for future in as_completed(positions):
            yield positions[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in started:
            worker.end()
