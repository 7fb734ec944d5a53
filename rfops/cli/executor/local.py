"""A process a device of this machine: a GPU, or a share of the cores for the virtual GPU."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from rfops.jit import HipError, settings

from .driver import Died, Outcome, Task

_SPAWN = multiprocessing.get_context("spawn")  # a process of its own for HIP and CUDA


class LocalPool:
    """Worker processes of this machine, one per GPU or with a share of the CPU cores; implements
    `driver.Pool`."""

    def __init__(self, workers: int | None, on_gpus: bool) -> None:
        self.on_gpus = on_gpus
        if on_gpus:
            import torch

            count = workers or torch.cuda.device_count()
            self.names = [f"GPU {i % torch.cuda.device_count()}" for i in range(count)]
        else:
            count = workers or len(os.sched_getaffinity(0))
            self.names = [f"worker {i}" for i in range(count)]
        self.cores = split_cores(sorted(os.sched_getaffinity(0)), count)
        self.workers: list[tuple[BaseProcess, Connection] | None] = [None] * count
        for worker in range(count):
            self._begin(worker)

    def _begin(self, worker: int) -> None:
        own_pipe, worker_pipe = _SPAWN.Pipe()
        own_cores = self.cores[worker] if self.on_gpus else []  # it compiles beside others
        with ExitStack() as stack:
            for name, value in self._environment(worker).items():
                stack.enter_context(settings.put(name, value))
            process = _SPAWN.Process(target=_serve, args=(worker_pipe, own_cores), daemon=False)
            process.start()
        worker_pipe.close()
        self.workers[worker] = process, own_pipe

    def _environment(self, worker: int) -> dict[str, str]:
        if not self.on_gpus:
            threads = str(len(self.cores[worker]))
            return {"RFOPS_VGPU_THREADS": threads, "OMP_NUM_THREADS": threads}
        visible = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES")
        number = self.names[worker].split()[1]
        device_id = visible.split(",")[int(number)] if visible else number
        return {"HIP_VISIBLE_DEVICES": device_id, "CUDA_VISIBLE_DEVICES": device_id}

    def start(self, worker: int, task: Task) -> None:
        """Start a task on a worker that is idle; its process starts with its first task."""
        entry = self.workers[worker]
        try:
            if entry is None:
                raise Died
            entry[1].send(task)
        except OSError as error:
            raise Died from error

    def wait(self, seconds: float) -> list[tuple[int, Outcome | None]]:
        """Return (worker, outcome) of the tasks that end within `seconds`; None for a process that
        died."""
        pipes = {entry[1]: i for i, entry in enumerate(self.workers) if entry is not None}
        outcomes: list[tuple[int, Outcome | None]] = []
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            try:
                outcomes.append((pipes[pipe], pipe.recv()))
            except (EOFError, OSError):
                self._stop(pipes[pipe])
                outcomes.append((pipes[pipe], None))
        return outcomes

    def _stop(self, worker: int) -> None:
        entry, self.workers[worker] = self.workers[worker], None
        if entry is not None:
            with contextlib.suppress(ProcessLookupError):  # compilers that it has begun, too
                os.killpg(entry[0].pid or 0, signal.SIGKILL)
            entry[0].kill()  # it may have no group yet
            entry[0].join()
            entry[1].close()

    def restart(self, worker: int) -> None:
        """Kill a worker's process and start a new one."""
        self._stop(worker)
        self._begin(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in range(len(self.workers)):
            self._stop(worker)


def split_cores(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Each worker's cores, neighbours as far as there are enough, one at least."""
    if count >= len(cores):
        return [[cores[i % len(cores)]] for i in range(count)]
    ends = [len(cores) * i // count for i in range(count + 1)]
    return [cores[a:b] for a, b in itertools.pairwise(ends)]


def outcome_of(task: Task) -> Outcome:
    """In a worker."""
    begin = time.monotonic()
    try:
        return Outcome(task.run(), seconds=time.monotonic() - begin)
    except Exception as error:
        lines = traceback.format_exception_only(error)
        text = "".join(lines).strip().splitlines()[0][:400]
        return Outcome(None, text, time.monotonic() - begin, _is_fault(error))


def _is_fault(error: Exception) -> bool:
    """Whether a GPU's context may be lost with it: later calls of the process would fail too."""
    import torch

    accelerator: type[Exception] = getattr(torch, "AcceleratorError", HipError)  # from torch 2.8 on
    is_lost = isinstance(error, (HipError, accelerator))
    return is_lost or any(f"{kind} error:" in str(error) for kind in ("HIP", "CUDA"))


def _serve(pipe: Connection, cores: Sequence[int]) -> None:
    os.setpgid(0, 0)
    if cores:
        os.sched_setaffinity(0, cores)
    while True:
        try:
            task = pipe.recv()
        except (EOFError, KeyboardInterrupt):  # the driver is gone, or stops us
            return
        pipe.send(outcome_of(task))
