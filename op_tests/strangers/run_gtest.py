"""AMD's test programs on the virtual GPU: those of rocBLAS, hipBLASLt, rocRAND, rocPRIM, hipCUB and
rocThrust as Debian ships them.

    python op_tests/strangers/debian.py FOLDER librocrand1-tests
    python op_tests/strangers/run_gtest.py FOLDER/root rocrand --cases 1 --minutes 10

A sample is drawn by a seed: at most N cases of each test function. `gtest_suites.json` names each
suite's programs, the cases that are left out and the failures that are expected, with reasons. The
exit status is 1 where a case fails that is not expected, or an expected failure passes. What ran
is in the file of --results; a later run with this file goes on where that one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "op_tests"))

from support import strangers  # noqa: E402 - found by the path above

SUITES = Path(__file__).with_name("gtest_suites.json")
LIBRARIES = "usr/lib/x86_64-linux-gnu"

_SUITE = re.compile(r"(\S+\.)(?:\s+# .*)?")
_CASE = re.compile(r"  (\S+)(?:\s+# .*)?")


@dataclass(frozen=True)
class Suite:
    """A project's test programs, relative to the folder of Debian's packages.

    filter : of googletest; what it does not match is no case of the suite.
    batch : cases of one process.
    shards : of a program that takes minutes to list its cases; the seed chooses the one to run.
    is_googletest : else `PROGRAM --list` prints the cases, and `PROGRAM CASE` runs one.
    left_out, expected : reasons, by a shell's pattern that matches `program:Suite.Case`. Of a
        program with shards, left_out has googletest's patterns, with `*` and `?` alone.
    """

    package: str
    programs: str
    arguments: tuple[str, ...] = ()
    filter: str = "*"
    batch: int = 500
    shards: int = 0
    is_googletest: bool = True
    left_out: dict[str, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)


def suites() -> dict[str, Suite]:
    """Return the recorded table."""
    table = json.loads(SUITES.read_text(encoding="utf-8"))
    return {
        name: Suite(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        for name, row in table.items()
    }


def parse_list(text: str) -> list[str]:
    """Return the cases that --gtest_list_tests printed."""
    cases, suite = list[str](), ""
    for line in text.splitlines():
        if match := _SUITE.fullmatch(line):
            suite = match[1]
        elif suite and (match := _CASE.fullmatch(line)):
            cases.append(suite + match[1])
    return [case for case in cases if "DISABLED_" not in case]


def function_name(case: str) -> str:
    """Return the case's name without its parameters: `Suite/3.Test/7` is one of `Suite.Test`."""
    suite, _, test = case.partition(".")
    return f"{re.sub(r'/[0-9]+$', '', suite)}.{test.partition('/')[0]}"


class CannotList(Exception):
    """A program does not start."""


@dataclass(frozen=True)
class Program:
    """A test program, the words that start it and its environment."""

    name: str
    words: tuple[str, ...]
    env: dict[str, str]

    def list_cases(self, pattern: str) -> list[str]:
        """Return the cases that googletest's pattern matches. Raises CannotList."""
        return parse_list(self._output(f"--gtest_filter={pattern}", "--gtest_list_tests"))

    def list_names(self) -> list[str]:
        """Return the cases of a program that is none of googletest. Raises CannotList."""
        return self._output("--list").split()

    def _output(self, *words: str) -> str:
        listed = subprocess.run(
            [*self.words, *words], env=self.env, capture_output=True, check=False
        )
        if listed.returncode:
            raise CannotList(listed.stderr.decode(errors="replace")[-500:])
        return listed.stdout.decode(errors="replace")

    def run(
        self, cases: list[str], until: float, case_seconds: float
    ) -> Iterator[strangers.Result]:
        """Run cases in one process, and those that are left after a crash in the next one."""
        left = dict.fromkeys(cases)
        while left and time.monotonic() < until:
            with tempfile.NamedTemporaryFile("w", suffix=".flags", encoding="utf-8") as flags:
                # A name may have a dash or a colon, which end a pattern.
                names = (re.sub("[-:]", "?", case) for case in left)
                flags.write(f"--gtest_filter={':'.join(names)}\n")
                flags.flush()
                # Programs that choose a filter of their own look for the first of these words.
                words = [*self.words, "--gtest_filter=none", f"--gtest_flagfile={flags.name}"]
                number = len(left)
                for result in strangers.watch(self.name, words, self.env, until, case_seconds):
                    left.pop(result.case, None)
                    yield result
            if len(left) == number:  # the process ran nothing, and would not the next time
                return

    def run_each(
        self, cases: list[str], until: float, case_seconds: float
    ) -> Iterator[strangers.Result]:
        """Run each case in a process of its own, whose exit status says whether it passed."""
        for case in cases:
            if time.monotonic() >= until:
                return
            words = [*self.words, case]
            yield from strangers.watch(self.name, words, self.env, until, case_seconds, case)

    def run_shard(
        self, suite: Suite, seed: int, until: float, case_seconds: float
    ) -> Iterator[strangers.Result]:
        """Run one of every `suite.shards` cases, in an order by the seed. A crash ends it."""
        shard = {"GTEST_TOTAL_SHARDS": suite.shards, "GTEST_SHARD_INDEX": seed % suite.shards}
        env = self.env | {name: str(value) for name, value in shard.items()}
        order = ("--gtest_shuffle", f"--gtest_random_seed={1 + seed % 99999}")
        names = (pattern.partition(":") for pattern in suite.left_out)
        left_out = ":".join(case for program, _, case in names if fnmatchcase(self.name, program))
        words = [*self.words, f"--gtest_filter={suite.filter}-{left_out}", *order]
        return strangers.watch(self.name, words, env, until, case_seconds)


def find_programs(root: Path, suite: Suite, arch: str, amd: bool) -> list[Program]:
    """Return the suite's programs, which find the virtual GPU before any other runtime."""
    from rfops.jit import vgpu_hsa_folder, vgpu_library_folder

    own = root / LIBRARIES
    loader = own / "ld-linux-x86-64.so.2"
    files = sorted(root.glob(suite.programs))
    runtime = vgpu_hsa_folder() if amd else vgpu_library_folder()
    folders = [runtime, own, own / "blas", *{file.parent: None for file in files}]
    path = ":".join(map(str, folders))
    env = os.environ | {"RFOPS_VGPU_ARCH": arch, "GTEST_LISTENER": "PASS_LINE_IN_LOG"}
    start = (str(loader), "--library-path", path) if loader.exists() else ()
    if not start:
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, [path, env.get("LD_LIBRARY_PATH")]))
    words = tuple(word.replace("{root}", str(root)) for word in suite.arguments)
    return [Program(file.name, (*start, str(file), *words), env) for file in files]


def run_suite(
    suite: Suite, programs: list[Program], tally: strangers.Tally, options: argparse.Namespace
) -> None:
    """Run the programs, each for its part of the time that is left."""
    end = time.monotonic() + 60 * options.minutes
    for index, program in enumerate(programs):
        if (now := time.monotonic()) >= end:
            return
        until = now + (end - now) / (len(programs) - index)
        for result in run_program(suite, program, tally.done(program.name), options, until):
            tally.add(result)


def run_program(
    suite: Suite, program: Program, done: set[str], options: argparse.Namespace, until: float
) -> Iterator[strangers.Result]:
    """Run a program's sample but for what is done."""
    if suite.shards:
        yield from program.run_shard(suite, options.seed, until, options.case_seconds)
        return
    try:
        cases = program.list_cases(suite.filter) if suite.is_googletest else program.list_names()
    except CannotList as error:
        yield strangers.Result(program.name, strangers.BETWEEN_CASES, "failed", why=str(error))
        return
    cases = [c for c in cases if not strangers.reason(suite.left_out, f"{program.name}:{c}")]
    cases = strangers.draw(cases, function_name, options.cases, options.seed)
    cases = [case for case in cases if case not in done]
    if not suite.is_googletest:
        yield from program.run_each(cases, until, options.case_seconds)
        return
    for begin in range(0, len(cases), suite.batch):
        batch = cases[begin : begin + suite.batch]
        yield from program.run(batch, until, options.case_seconds)


def main() -> int:
    """Run a suite; return 1 where something is not as recorded."""
    table = suites()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("root", type=Path, help="with the packages' usr")
    parser.add_argument("suite", choices=sorted(table))
    parser.add_argument("--arch", default="gfx942", help="Debian's libraries have code for gfx942")
    parser.add_argument("--amd", action="store_true", help="on AMD's libamdhip64 of the root")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="programs that it matches")
    parser.add_argument("--cases", type=int, metavar="N", help="at most N of each test function")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--case-seconds", type=float, default=300, help="then a case has failed")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append results; go on")
    options = parser.parse_args()
    suite = table[options.suite]
    programs = find_programs(options.root.resolve(), suite, options.arch, options.amd)
    programs = [program for program in programs if fnmatchcase(program.name, options.only)]
    if not programs:
        parser.error(f"{options.root} has no {suite.programs}: unpack {suite.package} there")
    tally = strangers.Tally(suite.expected, options.results)
    run_suite(suite, programs, tally, options)
    print(*tally.table(lambda result: result.program), sep="\n")
    return tally.close(options.suite, options.arch, f"seed {options.seed}")


if __name__ == "__main__":
    sys.exit(main())
