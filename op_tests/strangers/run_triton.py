"""Triton's own tests on the virtual GPU: python/test/unit of a checkout of yours.

    python op_tests/strangers/run_triton.py triton --arch gfx950 --cases 2 --minutes 60

The checkout is of the release that is installed, as tests of another release test other rules. A
sample is drawn by a seed: at most N cases of each test function. `triton_tests.json` names the
cases that are left out and the failures that are expected, each with its reason. The exit status
is 1 where a case fails that is not expected, or an expected failure passes. What ran is in the
file of --results; a later run with this file goes on where that one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "op_tests"))

from support import strangers  # noqa: E402 - found by the path above

TABLE = Path(__file__).with_name("triton_tests.json")
FOLDERS = ("language", "runtime")
PROGRAM = "triton"  # in results


def patterns(kind: str, arch: str) -> dict[str, str]:
    """Return the recorded reasons of a kind (`left_out`, `expected`) for an architecture."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))[kind]
    rows = {**table.get("all", {}), **table.get(arch, {})}
    return {f"{PROGRAM}:{pattern}": why for pattern, why in rows.items()}


def function_name(case: str) -> str:
    """Return `f.py::test_add` of `f.py::test_add[float32-4]`."""
    return case.partition("[")[0]


def by_file(sample: list[str], collected: list[str]) -> list[str]:
    """Return the sample by files, in the order in which they come in it, and each file's cases as
    they were collected: test_cache.py's change the source that the next one takes."""
    files = list(dict.fromkeys(case.partition("::")[0] for case in sample))
    place = {case: index for index, case in enumerate(collected)}
    return sorted(sample, key=lambda case: (files.index(case.partition("::")[0]), place[case]))


# ---------------------------------------------------------------- inside `rfops run`


class Sample:
    """pytest's plugin that runs a sample and writes of each case when it begins and ends."""

    def __init__(self, options: dict[str, Any], out: int) -> None:
        self.options, self.out = options, out
        self.outcomes: dict[str, str] = {}

    @staticmethod
    def case(nodeid: str) -> str:
        """Return a name without python/test/unit, and without spaces, at which a result's ends."""
        return re.sub(r"[\s,]", "~", nodeid.removeprefix("unit/"))

    def write(self, text: str) -> None:
        os.write(self.out, f"\n{text}\n".encode())

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        cases = {self.case(item.nodeid): item for item in items}
        left_out = self.options["left_out"]
        kept = [case for case in cases if not strangers.reason(left_out, f"{PROGRAM}:{case}")]
        kept = strangers.draw(kept, function_name, self.options["cases"], self.options["seed"])
        done = set(self.options["done"])
        items[:] = [cases[case] for case in by_file(kept, list(cases)) if case not in done]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            case = self.case(report.nodeid)
            self.write(f"[ RUN      ] {case}\n{report.longrepr}"[-2500:])
            self.write(f"[ {strangers.MARKS['failed']} ] {case}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(f"[ RUN      ] {self.case(nodeid)}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        case = self.case(report.nodeid)
        if report.failed:
            self.write(str(report.longrepr)[-2500:])
            self.outcomes[case] = "failed"
        elif report.skipped:
            why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            self.write(str(why)[:300])
            self.outcomes.setdefault(case, "skipped")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        case = self.case(nodeid)
        how = self.outcomes.get(case, "passed")
        self.write(f"[ {strangers.MARKS[how]} ] {case}")


def inside(tests: Path, options: dict[str, Any]) -> int:
    """Run the files' sample in this process."""
    import pytest

    out = os.dup(1)  # pytest captures the other one
    # conftest.py, which has the fixtures, stands in `tests`.
    common = ["-q", "--no-header", "-p", "no:cacheprovider", "-c", os.devnull]
    places = [f"--rootdir={tests}", f"--confcutdir={tests}", "--continue-on-collection-errors"]
    words = [*options["files"], *common, *places]
    status = pytest.main(words, plugins=[Sample(options, out)])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)  # all are done


# ---------------------------------------------------------------- the runner


def run(
    tests: Path, files: list[Path], tally: strangers.Tally, options: argparse.Namespace
) -> Iterator[strangers.Result]:
    """Run a sample in one process, and what is left after a crash in the next one."""
    until = time.monotonic() + 60 * options.minutes
    about = {
        "files": [*map(str, files)],
        "left_out": patterns("left_out", options.arch),
        "cases": options.cases,
        "seed": options.seed,
    }
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    while time.monotonic() < until:
        done, was_last = tally.done(PROGRAM), False
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as told:
            told.write(json.dumps({**about, "done": sorted(done)}))
            told.flush()
            own = [sys.executable, __file__, str(tests), "--inside", told.name]
            words = [sys.executable, "-m", "rfops.cli", "run", "--arch", options.arch, "--", *own]
            for result in strangers.watch(PROGRAM, words, env, until, options.case_seconds):
                was_last = result.was_last
                yield result
        if not was_last or tally.done(PROGRAM) == done:
            return


def main() -> int:
    """Run the tests; return 1 where something is not as recorded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="of triton-lang/triton")
    parser.add_argument("--arch", choices=("gfx942", "gfx950"), default="gfx942")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="files that it matches")
    parser.add_argument("--cases", type=int, default=2, metavar="N", help="of each test function")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--case-seconds", type=float, default=300, help="then a case has failed")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append results; go on")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.checkout, json.loads(options.inside.read_text(encoding="utf-8")))
    tests = options.checkout.resolve() / "python/test"
    unit = tests / "unit"
    files = sorted(file for folder in FOLDERS for file in (unit / folder).glob("test_*.py"))
    files = [f for f in files if fnmatchcase(f.relative_to(unit).as_posix(), options.only)]
    if not files:
        parser.error(f"{unit} has no such tests")
    tally = strangers.Tally(patterns("expected", options.arch), options.results)
    for result in run(tests, files, tally, options):
        tally.add(result)
    for line in tally.table(lambda result: result.case.partition("::")[0]):
        print(line)
    return tally.close("Triton's tests", options.arch, f"seed {options.seed}")


if __name__ == "__main__":
    sys.exit(main())
