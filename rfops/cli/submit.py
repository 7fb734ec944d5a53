"""`rfops submit PROBLEM -o FILE`: write an entry to a GPU competition, one file that takes nothing
of rfops."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfops.challenge.problem import Case, Problem

FORMS = ("load_inline", "module", "packets")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops submit` to the command line."""
    parser = commands.add_parser("submit", help="write an entry to a GPU competition")
    add = parser.add_argument
    add("problem", help="amd-fp8-mm and so on")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    add(
        "--form",
        choices=FORMS,
        default=FORMS[0],
        help="kernels: sources for load_inline (default), code objects too for HIP, or for packets "
        "that the entry writes to a queue",
    )
    add(
        "--case",
        action="append",
        default=[],
        help="'m: 64; n: 64; k: 128; seed: 1', besides the official ones and the reduced ones of "
        "`rfops eval --shrink`",
    )
    add("--official", action="store_true", help="without the reduced cases: a smaller file")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Write a competition entry of one file; return the exit status."""
    from rfops.challenge import problem
    from rfops.challenge.submit import generate
    from rfops.cli.common import with_ops

    with_ops()
    problem_ = problem(options.problem)
    command = ["rfops", "submit", problem_.name, "--form", options.form]
    command += ["--official"] * options.official
    command += [argument for case in options.case for argument in ("--case", case)]
    text = generate(problem_, options.form, _cases(problem_, options), shlex.join(command))
    options.output.write_text(text, encoding="utf-8")
    print(f"{options.output}: {len(text) / 1000:.0f} KB, {options.form}, for {problem_.arch}")
    return 0


def _cases(problem_: Problem, options: argparse.Namespace) -> list[Case]:
    from rfops.challenge.problem import case_of

    official = [*problem_.tests, *problem_.benchmarks]
    cases = [*official, *([] if options.official else map(problem_.shrink, official))]
    for case in map(case_of, options.case):
        if missing := set(official[0]) - set(case):
            raise ValueError(f"case {case}: without {', '.join(sorted(missing))}")
        cases.append(case)
    return cases
