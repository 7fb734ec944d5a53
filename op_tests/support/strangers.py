"""Samples and results of other projects' tests, for the runners in op_tests/strangers.

A runner's process writes a line when a case begins and one when it ends, in googletest's form
(`[ RUN      ] name`, `[       OK ] name`). `watch` turns these lines into results.
"""

from __future__ import annotations

import json
import os
import random
import re
import selectors
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

_BEGIN = re.compile(r"\[ RUN      \] (\S+)")
_END = re.compile(r"\[ {2,}(OK|FAILED|SKIPPED) +\] ([^\s,]+)")
_HOW = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
MARKS = {"passed": "      OK", "failed": " FAILED ", "skipped": " SKIPPED"}
BETWEEN_CASES = "between cases"


@dataclass(frozen=True)
class Result:
    """What a case did: passed, failed or skipped.

    why : the end of what a case wrote that did not pass.
    was_last : the case ended its process, by a crash or by taking too long.
    """

    program: str
    case: str
    how: str
    seconds: float = 0.0
    why: str = ""
    was_last: bool = False

    @property
    def name(self) -> str:
        return f"{self.program}:{self.case}"


def reason(patterns: dict[str, str], name: str) -> str | None:
    """Return the reason of the first pattern that matches `program:case`, as a shell matches."""
    return next((why for pattern, why in patterns.items() if fnmatchcase(name, pattern)), None)


def draw(
    cases: Iterable[str], function_name: Callable[[str], str], per_function: int | None, seed: int
) -> list[str]:
    """Return a sample of at most so many cases of each function, in an order by the seed."""
    functions = defaultdict[str, list[str]](list)
    for case in cases:
        functions[function_name(case)].append(case)
    chosen = []
    for name, own in functions.items():
        count = len(own) if per_function is None else min(per_function, len(own))
        chosen += random.Random(f"{seed} {name}").sample(own, count)
    random.Random(seed).shuffle(chosen)
    return chosen


def watch(
    program: str,
    words: list[str],
    env: dict[str, str],
    until: float,
    case_seconds: float,
    only_case: str = "",
) -> Iterator[Result]:
    """Run one process until `until`, a time of the monotonic clock, and yield its results.

    A case that ends the process, or takes longer than case_seconds, has failed; one that the
    time's end cuts off has no result. A process that runs only_case writes no lines of cases: its
    exit status says whether it passed.
    """
    with subprocess.Popen(
        words,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            yield from _Reader(program, process, until, case_seconds, only_case).results()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


class _Reader:
    """Turns what a process writes into results."""

    def __init__(
        self,
        program: str,
        process: subprocess.Popen[bytes],
        until: float,
        case_seconds: float,
        only_case: str,
    ) -> None:
        self.program, self.process = program, process
        self.until, self.case_seconds = until, case_seconds
        self.only_case = only_case
        self.case = only_case  # that runs
        self.begin = time.monotonic()
        self.lines: list[str] = []

    def results(self) -> Iterator[Result]:
        for line in self._lines():
            if match := _BEGIN.search(line):
                self.case, self.begin, self.lines = match[1], time.monotonic(), []
            elif self.case and (match := _END.search(line)) and match[2] == self.case:
                yield self._result(_HOW[match[1]])
                self.case, self.lines = "", []
            else:
                self.lines.append(line)
        status = self.process.poll()
        if status is None:
            if time.monotonic() < self.until:
                yield self._result("failed", f"no end within {self.case_seconds:g} s")
        elif self.only_case and status == 0:
            yield self._result("passed")
        elif self.case or status not in (0, 1):  # 1: a case failed
            how = f"status {status}" if status >= 0 else f"signal {-status}"
            yield self._result("failed", f"the process ended: {how}")

    def _result(self, how: str, what: str = "") -> Result:
        seconds = round(time.monotonic() - self.begin, 2)
        why = "" if how == "passed" else "\n".join([*self.lines[-30:], what])[-3000:].strip()
        name = self.case or BETWEEN_CASES
        return Result(self.program, name, how, seconds, why, was_last=bool(what))

    def _lines(self) -> Iterator[str]:
        """Lines, until the process ends or one of the limits is reached."""
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                end = min(self.until, self.begin + self.case_seconds if self.case else self.until)
                if (now := time.monotonic()) >= end or not selector.select(end - now):
                    return
                if not (chunk := os.read(pipe, 1 << 16)):
                    break
                *lines, text = (text + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        if text:
            yield text.decode(errors="replace")
        self.process.wait()


@dataclass
class Tally:
    """The results of a suite, kept in a file where there is one, and what is not as recorded."""

    expected: dict[str, str]
    file: Path | None = None
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.file and self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines()
            self.results += [Result(**json.loads(line)) for line in lines]

    def done(self, program: str) -> set[str]:
        """Return the program's cases that have a result."""
        return {result.case for result in self.results if result.program == program}

    def add(self, result: Result) -> None:
        self.results.append(result)
        if self.file:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    def surprises(self) -> list[str]:
        found = []
        for result in self.results:
            why = reason(self.expected, result.name)
            if result.how == "failed" and why is None:
                found.append(f"{result.name} fails: {result.why}")
            elif result.how == "passed" and why is not None:
                found.append(f"{result.name} passes, expected to fail: {why}")
        return found

    def table(self, group: Callable[[Result], str]) -> Iterator[str]:
        """Rows of a table: cases that passed, were skipped, failed as expected, failed."""
        counts = defaultdict[str, Counter[str]](Counter)
        for result in self.results:
            is_expected = result.how == "failed" and reason(self.expected, result.name)
            counts[group(result)]["expected" if is_expected else result.how] += 1
        for name, count in sorted(counts.items()):
            numbers = (str(count[how]) for how in ("passed", "skipped", "expected", "failed"))
            yield f"| `{name}` | {' | '.join(numbers)} |"

    def close(self, *about: object) -> int:
        """Print the sums and the surprises; return the exit status."""
        count = Counter(result.how for result in self.results)
        surprises = self.surprises()
        print(*about, dict(sorted(count.items())))
        print("\n".join(surprises), flush=True)
        return int(bool(surprises))
