"""Run an entry on cases and judge what it returns: the official check, ours, and what it did wrong.

Each case is two calls: the second finds other values in the same tensors, so that results kept by
address or shape are seen. Probes (inputs whose result is known) follow. A process that ends, hangs
or grows is ended, what is left of the cases goes to another one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from rfops.challenge.data import to_device
from rfops.challenge.problem import Case, Problem, Result, error_of, spec_of
from rfops.challenge.sandbox import Sandbox

FORBIDDEN_WORD = "stream"  # in any case, comments too
SEED_STEP = 13  # between the calls of a case, as the harness's leaderboard mode has it
IMPORT_SECONDS = 600.0  # builds included
TWICE = "two processes answered: it forked and both went on"
END_SECONDS = 10.0  # from the last answer to the process's end


class Limits(NamedTuple):
    seconds: float = 60.0  # a call
    memory: int = 16 << 30
    on_gpu: bool = False  # torch's, with times measured; else the virtual one


class Verdict(msgspec.Struct):
    """Of one case: why the checks refuse it (empty: they pass), and findings in words."""

    spec: str
    official: str = ""
    strict: str = ""
    us: list[float] = msgspec.field(default_factory=list)  # a call
    measured: bool = False  # us; else they are estimated
    named: list[str] = msgspec.field(default_factory=list)
    error: str = ""  # of the entry, as it raised it

    @property
    def passes(self) -> bool:
        return not (self.official or self.error)


class Call(msgspec.Struct):
    """What the process is asked for; `probe` is None for a case's own two calls."""

    at: int
    verdict: Verdict
    case: Case
    probe: int | None = None

    @property
    def inputs(self) -> list[dict[str, Any]]:
        if self.probe is not None:
            return [{"case": self.case, "probe": self.probe}]
        next_case = {**self.case, "seed": self.case["seed"] + SEED_STEP}
        return [{"case": self.case}, {"case": next_case}]


def evaluate(
    problem: Problem,
    submission: Path,
    cases: list[Case],
    limits: Limits,
    env: dict[str, str],
    root: Path | None = None,
) -> Iterator[Verdict]:
    """A verdict a case, as they come. `env`: of the entry's process; `root`: a folder whose own
    problem it is."""
    calls: list[Call] = []
    refusal = refusal_of(submission.read_text(encoding="utf-8", errors="replace"))
    for case in cases:
        defects = [refusal] if refusal else []
        verdict = Verdict(spec_of(case), named=defects, measured=limits.on_gpu)
        probes = range(len(problem.probes(case)))
        for probe in (None, *probes):
            calls.append(Call(len(calls), verdict, case, probe))
    with tempfile.TemporaryDirectory(prefix="rfops-eval-") as name:
        runner = _Runner(problem, submission, limits, env, Path(name), root)
        try:
            for index, call in enumerate(calls):
                if not call.verdict.error:
                    runner.result_of(calls, index)
                if index + 1 == len(calls) or calls[index + 1].verdict is not call.verdict:
                    runner.finish(call.verdict, is_last=index + 1 == len(calls))
                    yield call.verdict
        finally:  # of an interrupted evaluation no process stays
            runner.stop("")


def refusal_of(text: str) -> str:
    """What the competition's bot refuses a file for, or nothing."""
    for number, line in enumerate(text.splitlines(), 1):
        if FORBIDDEN_WORD in line.lower():
            return f'the bot refuses the file: line {number} has the word "{FORBIDDEN_WORD}"'
    return ""


class _Runner:
    """The entry's process, started when a call needs one, and the judging of its replies."""

    def __init__(
        self,
        problem: Problem,
        submission: Path,
        limits: Limits,
        env: dict[str, str],
        folder: Path,
        root: Path | None,
    ) -> None:
        self.root = None if root is None else str(root.absolute())
        self.problem, self.submission, self.limits, self.env = problem, submission, limits, env
        self.folder = folder
        self.sandbox: Sandbox | None = None
        self.lines: Iterator[dict[str, Any]] = iter(())
        self.broken = ""  # the import's error: no call can be made
        self.named = ""  # what a process left

    # ------------------------------------------------------------ the process

    def start(self, calls: list[Call]) -> None:
        job = {
            "problem": self.problem.name,
            "root": self.root,
            "submission": str(self.submission.absolute()),
            "folder": str(self.folder),
            "on_gpu": self.limits.on_gpu,
            "evaluator": os.getpid(),
            "calls": [{"at": call.at, "inputs": call.inputs} for call in calls],
        }
        file = self.folder / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "rfops.challenge.child", str(file), str(writing)]
        output = self.folder / "output"
        self.sandbox = Sandbox(command, self.env, output, self.limits.memory, (writing,))
        os.close(writing)
        self.lines = self.replies(reading)
        first_reply = next(self.lines)
        self.broken = str(first_reply.get("error", ""))

    def replies(self, descriptor: int) -> Iterator[dict[str, Any]]:
        """A line at a time; when there is no more to come, one that says why."""
        buffered, limit = b"", IMPORT_SECONDS
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while True:
                line, newline, remainder = buffered.partition(b"\n")
                if newline:
                    buffered, limit = remainder, self.limits.seconds
                    yield _decoded(line)
                    continue
                chunk = self.read_chunk(stream, time.monotonic() + limit)
                if isinstance(chunk, str):
                    yield {"step": "end", "error": chunk}
                    return
                buffered += chunk

    def read_chunk(self, stream: Any, deadline: float) -> bytes | str:
        """Bytes, or why none come any more."""
        while time.monotonic() < deadline:
            runs = self.sandbox is not None and self.sandbox.poll()
            readable = select.select([stream], [], [], 0.05)[0]
            if readable and (data := stream.read(65536)):
                return bytes(data)
            if readable or not runs:
                return self.stop("")
        return self.stop(f"no answer within {self.limits.seconds:g} s: it hangs")

    def stop(self, reason: str) -> str:
        """End the process; why there is no answer, in words."""
        if self.sandbox is None:
            return reason
        outcome = self.sandbox.end()
        self.sandbox = None
        if outcome.left:
            self.named = f"left {outcome.left} processes running"
        if reason or outcome.why:
            return reason or outcome.why
        if outcome.status < 0:
            return f"its process was ended by {_signal(-outcome.status)}"
        return f"its process ended with status {outcome.status} before it answered"

    # ------------------------------------------------------------ a call and its verdict

    def result_of(self, calls: list[Call], index: int) -> None:
        call = calls[index]
        if not self.broken and self.sandbox is None:
            self.start([c for c in calls[index:] if not c.verdict.error])
        if self.broken:
            call.verdict.error = f"at import: {self.broken}"
            self.broken = self.broken.split("\n", 1)[0]  # once with its frames
            return
        results: list[Result | None] = []
        for input_idx in range(len(call.inputs)):
            line = next(self.lines)
            if "error" in line:
                call.verdict.error = line["error"].split("\n", 1)[0]
                if line.get("step") != "call":
                    self.stop("")
                return
            if (line.get("at"), line.get("turn")) != (call.at, input_idx):
                call.verdict.error = TWICE
                self.stop("")
                return
            results.append(self.loaded(line))
            call.verdict.us += [line["us"]] if call.probe is None else []
        self.judge(call, results)

    def loaded(self, line: dict[str, Any]) -> Any:
        """What the call returned; None where it is no tensor."""
        file = self.folder / f"{line['at']}-{line['turn']}.pt"
        try:
            tensors = torch.load(file, weights_only=True)
        except Exception:
            return None
        finally:
            file.unlink(missing_ok=True)
        if line["kind"] == "tensor" and len(tensors) == 1:
            return tensors[0]
        return tuple(tensors) if tensors else None

    def judge(self, call: Call, results: list[Any]) -> None:
        verdict = call.verdict
        if any(result is None for result in results):
            verdict.official = verdict.official or "custom_kernel returned no tensor"
            return
        if call.probe is not None:
            self.judge_probe(call, results[0])
            return
        officials = []
        for input_spec, got in zip(call.inputs, results, strict=True):
            data = self.problem.generate(input_spec["case"])
            if self.root:  # its own check makes what it expects, where its data lies
                result_on_device = to_device(got, "cuda") if self.limits.on_gpu else got
                officials.append(self.problem.official((), result_on_device, data))
                continue
            expected = self.problem.reference(data)
            officials.append(self.problem.official(expected, got))
            verdict.strict = verdict.strict or self.problem.strict(data, got, expected)
        verdict.official = next(filter(None, officials), "")
        if verdict.official:
            self.name_failure(verdict, not officials[0], results)
        elif verdict.strict:
            verdict.named.append(f"passes the official check, but by luck: {verdict.strict}")

    def name_failure(self, verdict: Verdict, is_first_right: bool, results: list[Any]) -> None:
        first_result, second_result = (r if isinstance(r, torch.Tensor) else r[0] for r in results)
        if not (first_result.any() or second_result.any()):
            verdict.named.append("returns zeros")
        elif (
            is_first_right
            and first_result.shape == second_result.shape
            and torch.equal(first_result, second_result)
        ):
            verdict.named.append("returned the first call's output again: it keeps outputs")

    def judge_probe(self, call: Call, result_: Any) -> None:
        probe = self.problem.probes(call.case)[call.probe or 0]
        result = result_ if isinstance(result_, torch.Tensor) else result_[0]
        error = error_of(probe.expected, result)
        if error > probe.bound:
            defect = f"misses {probe.label} (relative L2 {error:.2g}, bound {probe.bound:g})"
            call.verdict.strict = call.verdict.strict or defect
            call.verdict.named.append(defect)

    def finish(self, verdict: Verdict, is_last: bool) -> None:
        if is_last and self.sandbox is not None:
            if next(self.lines).get("step") == "done":
                self.sandbox.wait(END_SECONDS)
            self.stop("")
            if any(line.get("step") == "call" for line in self.lines):
                verdict.error = verdict.error or TWICE
        if self.named:
            verdict.named.append(self.named)
            self.named = ""
        verdict.named = list(dict.fromkeys(verdict.named))


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except ValueError:
        return {"step": "end", "error": "its process wrote over the evaluator's replies"}
    return reply if isinstance(reply, dict) else {"step": "end", "error": "a reply of no meaning"}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
