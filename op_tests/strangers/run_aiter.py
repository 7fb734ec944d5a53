"""Runs aiter's own op tests over rfops' importable `aiter`, on the virtual GPU.

    git clone https://github.com/ROCm/aiter            # e404860; nothing of it is kept here
    python op_tests/strangers/run_aiter.py aiter [--arch gfx942] [--only PATTERN] [--markdown FILE]

A case of a HIP test is one call of a function under its `@benchmark()`, a case of a Triton test is
one of pytest's. aiter's test_common is rfops' own, whose checkAllclose raises where aiter's only
logs. aiter_cases.json has per file its arguments (small sizes), the number of cases, and the
failures that are expected, each with its reason. Exit status 1 where a case fails that is not
expected, or an expected failure passes. `--record` prints what came instead of comparing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("aiter_cases.json")
TRITON_CASES = 5  # of a file of Triton tests, the first that are collected
SECONDS = 900


@dataclass(frozen=True)
class Row:
    """A file of aiter's tests, relative to op_tests: its arguments, and what is known of it.

    expected : reasons of failures, by a pattern that finds the case's name or its message.
    cases : number of cases; more or fewer is a failure. None: unknown.
    """

    file: str
    kind: str
    args: tuple[str, ...] = ()
    archs: tuple[str, ...] = ("gfx950",)
    cases: int | None = None
    expected: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a case did: `how` is pass, skip or fail; `why` the first line of its message."""

    name: str
    how: str
    why: str = ""


def rows() -> list[Row]:
    """Return the recorded table."""
    return [
        Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        for row in json.loads(TABLE.read_text(encoding="utf-8"))
    ]


# ---------------------------------------------------------------- inside `rfops run --aiter`


def first_line(error: BaseException) -> str:
    """Return the error's type and the first line of its text that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def recording(results: list[Result]) -> Callable[..., Any]:
    """Return a `benchmark` under which a call that raises is a failed case, and the script goes
    on."""
    from rfops.compat.aiter import test_common

    def benchmark(*_args: Any, **_kwargs: Any) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            inner = test_common.benchmark()(function)

            def run(*args: Any, **kwargs: Any) -> Any:
                shown = ", ".join(map(str, [*args, *(f"{k}={v}" for k, v in kwargs.items())]))
                name = f"{function.__name__}({shown})"[:200]
                try:
                    row = inner(*args, **kwargs)
                except (Exception, SystemExit) as error:
                    results.append(Result(name, "fail", first_line(error)))
                    return {}
                results.append(Result(name, "pass"))
                return row

            return run

        return decorate

    return benchmark


def run_script(file: Path, args: Iterable[str]) -> list[Result]:
    """Run a HIP test's script; an error outside its cases is one more failed case."""
    import aiter.test_common  # type: ignore[import-not-found]

    results: list[Result] = []
    aiter.test_common.benchmark = recording(results)
    sys.argv = [str(file), *args]
    sys.path.insert(0, str(file.parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or error.code:
            results.append(Result("the script", "fail", first_line(error)))
    return results


class Sample:
    """pytest's plugin: the first cases of a file, and what they do."""

    def __init__(self, count: int) -> None:
        self.count, self.results = count, list[Result]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        del items[self.count :]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            lines = str(report.longrepr).splitlines()
            errors = [line for line in lines if line.startswith("E ")] or lines[-1:]
            self.results.append(Result("the file", "fail", errors[-1].removeprefix("E").strip()))

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.skipped:
            why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            self.results.append(Result(name, "skip", str(why)[:200]))
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash else str(report.longrepr)[:200]
            self.results.append(Result(name, "fail", why[:300]))
        elif report.when == "call":
            self.results.append(Result(name, "pass"))


def run_pytest(file: Path, args: Iterable[str]) -> list[Result]:
    """Run the first cases of a file of Triton tests."""
    import aiter  # type: ignore[import-not-found] # noqa: F401 # before the checkout is on the path
    import pytest

    sample = Sample(TRITON_CASES)
    root = file.parents[len(file.parts) - 1 - file.parts.index("op_tests")]
    sys.path.insert(0, str(root))
    common = ["-q", "--no-header", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={root}"]
    pytest.main([str(file), *common, *args], plugins=[sample])
    return sample.results


def inside(file: Path, kind: str, out: Path, args: list[str]) -> None:
    """Run a file in this process and write its results."""
    run = run_pytest if kind == "triton" else run_script
    results = run(file, args)
    out.write_text(json.dumps([vars(result) for result in results]), encoding="utf-8")


# ---------------------------------------------------------------- the runner


def run_row(checkout: Path, row: Row, arch: str) -> list[Result]:
    """Run a file in a process of its own, behind `rfops run --aiter`."""
    with tempfile.TemporaryDirectory(prefix="run-aiter-") as folder:
        out = Path(folder) / "results.json"
        file = checkout.resolve() / "op_tests" / row.file
        own = [sys.executable, __file__, str(checkout), "--inside", row.kind, str(file), str(out)]
        command = [sys.executable, "-m", "rfops.cli", "run", "--arch", arch, "--aiter", "--", *own]
        env = {**os.environ, "RFOPS_AITER_SOURCE": str(checkout.resolve())}
        try:
            done = subprocess.run(
                [*command, *row.args],
                env=env,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [Result("the file", "fail", f"no end within {SECONDS} s")]
        if not out.is_file():
            tail = done.stderr.strip().splitlines()[-12:]
            return [
                Result("the file", "fail", f"status {done.returncode}: {' | '.join(tail)}"[-300:])
            ]
        return [Result(**entry) for entry in json.loads(out.read_text(encoding="utf-8"))]


def reason(row: Row, result: Result) -> str | None:
    """Return why a failure of this case is expected; None where it is not."""
    text = f"{result.name}: {result.why}"
    return next((why for pattern, why in row.expected.items() if re.search(pattern, text)), None)


def verdict(row: Row, results: list[Result]) -> list[str]:
    """Return what is not as recorded."""
    faults = [
        f"{row.file}: {r.name} fails: {r.why}"
        for r in results
        if r.how == "fail" and reason(row, r) is None
    ]
    texts = [f"{r.name}: {r.why}" for r in results if r.how == "fail"]
    for pattern in row.expected:
        if not any(re.search(pattern, text) for text in texts):
            faults.append(f"{row.file}: no failure is {pattern!r} any more: take it off the list")
    if row.cases is not None and len(results) != row.cases:
        faults.append(f"{row.file}: {len(results)} cases, expected {row.cases}")
    return faults


def table_line(row: Row, arch: str, results: list[Result]) -> str:
    """Return a file's row of the page's table."""
    counts = [sum(r.how == how for r in results) for how in ("pass", "fail", "skip")]
    reasons = sorted({reason(row, r) or r.why for r in results if r.how == "fail"})
    passed, failed, skipped = counts
    return f"| `{row.file}` | {arch} | {passed} | {failed} | {skipped} | {'; '.join(reasons)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--arch", choices=("gfx942", "gfx950"), help="only this one")
    parser.add_argument("--only", default="", metavar="PATTERN", help="files that it finds")
    parser.add_argument("--record", action="store_true", help="print results, compare nothing")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="append the rows of a table")
    parser.add_argument(
        "--inside", nargs=3, metavar=("KIND", "FILE", "OUT"), help=argparse.SUPPRESS
    )
    options, more = parser.parse_known_args()
    if options.inside:
        kind, file, out = options.inside
        inside(Path(file), kind, Path(out), more)
        return 0
    if not (options.checkout / "op_tests").is_dir():
        parser.error(f"{options.checkout} is no checkout of ROCm/aiter: it has no op_tests")
    faults: list[str] = []
    for row in rows():
        if not re.search(options.only, row.file):
            continue
        for arch in row.archs:
            if options.arch not in (None, arch):
                continue
            results = run_row(options.checkout, row, arch)
            line = table_line(row, arch, results)
            print(line, flush=True)
            if options.markdown:
                with options.markdown.open("a", encoding="utf-8") as table:
                    table.write(line + "\n")
            if options.record:
                for r in results:
                    print(f"    {r.how}  {r.name}  {r.why}", flush=True)
            else:
                faults += verdict(row, results)
    print("\n".join(faults))
    return 1 if faults and not options.record else 0


if __name__ == "__main__":
    raise SystemExit(main())
