"""An entry's process, as the evaluator has it: started when a call needs one, asked, and ended.

Nothing that comes from it is believed: replies are of types (channel.py) and of sizes that were
asked for, and its words are shown as text, not obeyed by a terminal.
"""

from __future__ import annotations

import math
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rfops.challenge import retime, sandbox
from rfops.challenge.channel import Ended, Findings, Late, Ready, Reply, Untrue
from rfops.challenge.folder import sources
from rfops.challenge.inline import uses_hsa
from rfops.challenge.problem import Problem
from rfops.challenge.sandbox import Sandbox
from rfops.challenge.transport import Packed, bytes_of, new_storage, tensor_of
from rfops.challenge.verdict import Limits, Verdict

END_SECONDS = 10.0  # from the last answer to the process's end
GRACE_SECONDS = 2.0  # from a hang-up of its own to its end
MOST_FINDINGS = 64 << 20  # bytes
_MAX_TEXT, _MAX_LINES = 1000, 12  # of an entry's words
OVERWRITTEN = "its process, or a fork of it, wrote over the evaluator's replies"
TWICE = "two processes answered: it forked and both went on"


class Failed(Exception):
    """A call without a result, and why."""


def plain(text: str) -> str:
    """A text of an entry's as a line that a terminal shows and does not obey."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MAX_TEXT])


class Entry:
    """The entry's process, started when a call needs one."""

    def __init__(
        self, problem: Problem, submission: Path, limits: Limits, root: Path | None, walls: bool
    ) -> None:
        self.problem, self.limits, self.root, self.walls = problem, limits, root, walls
        self._submission = submission
        self._process: Sandbox | None = None
        self._broken = ""  # the import's error: no call can be made
        self._named: list[str] = []

    # ------------------------------------------------------------ the process

    def _start(self) -> Sandbox:
        settings = {"RFOPS_VGPU_CHECK": "1", "RFOPS_VGPU_REPORT": "{folder}/home"}
        text = self._submission.read_text(encoding="utf-8", errors="replace")
        env = sandbox.environment(
            self.problem.arch, settings if self.limits.check else {}, hsa=uses_hsa(text)
        )
        if self.limits.on_gpu:
            env = sandbox.gpu_environment()
        folders = [] if self.root is None else [str(file) for file in sources(self.root)]
        process = Sandbox(
            [sys.executable, "-m", "rfops.challenge.child", "{channel}"],
            env,
            self.limits.memory,
            walls=self.walls,
            folders=folders,
            is_gpu=self.limits.on_gpu,
        )
        job = {
            "problem": self.problem.name,
            "root": None if self.root is None else str(self.root.resolve()),
            "name": self._submission.name,
            "text": text,
            "on_gpu": self.limits.on_gpu,
        }
        self._process = process
        limit = self.limits.import_seconds
        try:
            process.channel.deadline = time.monotonic() + limit
            process.channel.send(job)
            error_text = process.channel.receive(Ready).error
            self._broken = "\n".join(map(plain, error_text.splitlines()[:_MAX_LINES]))
        except Late:
            self._broken = self.stop(f"no answer within {limit:g} s: it hangs")
        except Untrue:
            self._broken = self.stop(OVERWRITTEN)
        except Ended:
            self._broken = self.stop()
        return process

    def stop(self, reason: str = "") -> str:
        """End the process and return why there is no answer: `reason`, or how the process ended."""
        if self._process is None:
            return reason
        process, self._process = self._process, None
        outcome = process.end() if reason else process.wait_and_end(GRACE_SECONDS)
        self._name(outcome)
        if reason or outcome.reason:
            return outcome.reason or reason
        if outcome.status is not None and outcome.status < 0:
            return f"its process was ended by {_signal(-outcome.status)}"
        return f"its process ended with status {outcome.status} before it answered"

    def _name(self, outcome: sandbox.Outcome) -> None:
        if outcome.num_remaining:
            self._named.append(f"left {outcome.num_remaining} processes running")
        if outcome.shm_bytes >= 1 << 20:
            self._named.append(f"left {outcome.shm_bytes >> 20} MiB in /dev/shm")

    def take_named(self) -> list[str]:
        """Return, and forget, what processes that have ended left behind, in words."""
        named, self._named = self._named, []
        return named

    def finish(self, verdict: Verdict, findings: list[bytes] | None) -> None:
        """Let the process end by itself, and look whether it answers again."""
        process, self._process = self._process, None
        if process is None:
            return
        process.channel.deadline = time.monotonic() + END_SECONDS
        try:
            process.channel.send({"findings": True})
            size = process.channel.receive(Findings).size
            if size > MOST_FINDINGS:
                raise Untrue
            data = process.channel.read(size)
            if findings is not None:
                findings.append(bytes(data))
        except Untrue:
            verdict.error = verdict.error or TWICE
        except (Late, Ended):  # it need not answer what is no call
            pass
        self._name(process.wait_and_end(END_SECONDS))
        if process.has_unread:  # of a process slower than the one that answered
            verdict.error = verdict.error or TWICE

    # ------------------------------------------------------------ a call

    def call(
        self, packed_: Packed, max_bytes: int, *, in_place: bool, timed: bool
    ) -> tuple[Reply, list[bytearray], list[Any]]:
        """Call the entry; return the reply, the blobs of its record and its results, of at most
        `max_bytes` in all. Raises Failed."""
        process = self._process or (None if self._broken else self._start())
        if self._broken or process is None:
            error = f"at import: {self._broken}"
            self._broken = self._broken.split("\n", 1)[0]  # once with its frames
            raise Failed(error)
        nonce = secrets.randbits(53)
        order = {
            "nonce": nonce,
            "skeleton": packed_.skeleton.decode("latin-1"),
            "sizes": packed_.sizes,
            "max_bytes": max_bytes,
            "in_place": in_place,
            "timed": timed,
        }
        channel = process.channel
        try:
            channel.deadline = time.monotonic() + self.limits.seconds
            channel.send(order, packed_.storages)
            reply = channel.receive(Reply)
            if reply.nonce != nonce:
                raise Failed(self.stop(TWICE))
            if reply.error:
                raise Failed(plain(reply.error.split("\n", 1)[0]))
            return reply, *self._blobs_of(reply, max_bytes)
        except Late:
            reason = f"no answer within {self.limits.seconds:g} s: it hangs"
        except Untrue as error:
            reason = f"{OVERWRITTEN}: {plain(str(error))}"
        except Ended:
            reason = ""
        raise Failed(self.stop(reason))

    def _blobs_of(self, reply: Reply, max_bytes: int) -> tuple[list[bytearray], list[Any]]:
        """Receive the blobs of the record and the results that follow a reply. Raises Untrue for
        results of more than `max_bytes` or a record larger than the limit of memory."""
        assert self._process is not None
        channel, results = self._process.channel, []
        for region in reply.results:
            dtype = retime.dtype_of(region)
            size = math.prod(region.shape) * dtype.itemsize
            max_bytes -= size
            if max_bytes < 0:
                raise Untrue(f"a result of shape {region.shape}")
            storage = new_storage(size)
            channel.read_into(bytes_of(storage))
            try:
                results.append(tensor_of(storage, dtype, region.shape))
            except RuntimeError as error:  # no elements, and sizes that overflow
                raise Untrue(f"a result of shape {region.shape}") from error
        record = reply.record
        sizes = [*record.codes, *(w.blob for w in record.writes if w.blob)] if record else []
        if sum(sizes) > self.limits.memory:
            raise Untrue(f"a record of {sum(sizes)} bytes")
        if record and any(write.blob not in (0, write.size) for write in record.writes):
            raise Untrue("a record of memory that has another size")
        return [channel.read(size) for size in sizes], results


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
