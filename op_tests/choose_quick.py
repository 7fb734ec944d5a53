"""Which cases of the expensive tests run by default: writes quick.jsonl from measured CPU times.

    RFOPS_CACHE_DIR=$(mktemp -d) pytest op_tests --costs costs.jsonl
    python op_tests/choose_quick.py costs.jsonl

A function whose cases take more than `--seconds` together keeps its cheapest cases up to that time
(at least one, and one of each architecture where both fit), and none that takes more than `--most`;
its other cases are sweeps, and where none is kept they are the sweeps that CI begins with. A file
of which nothing would be kept keeps its cheapest case. A function that is not measured keeps its
line. A case that is left out may have paid for a build that others use: measure again until the
list stays. Of several files the largest time of a case counts, so it pays for what it once built.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from support.devices import ARCHS
from support.quick import QUICK, quick_cases

# What needs the engines' wheels runs whole where they are; elsewhere skips would be measured.
_WHOLE = ("op_tests/engines/", "op_tests/plugins/conformance/", "op_tests/plugins/test_engines.py")
_HEAD = """\
# Functions of which only some cases run by default, and which: written by choose_quick.py.
# The other cases are sweeps.
"""


def chosen(cases: dict[str, float], seconds: float, most: float) -> list[str]:
    """The cases of one function that run by default, of `{case: seconds}`, in their order."""
    if sum(cases.values()) <= seconds:
        return [*cases]
    cheapest = sorted(cases, key=lambda case: cases[case])
    # The first of each architecture before the rest, so that the time is not spent on one.
    firsts = {next((c for c in cheapest if arch in c), cheapest[0]): None for arch in ARCHS}
    kept: list[str] = []
    for case in [*firsts, *(c for c in cheapest if c not in firsts)]:
        if not kept or sum(cases[c] for c in kept) + cases[case] <= seconds:
            kept.append(case)
    return [case for case in cases if case in kept and cases[case] <= most]


def chosen_of_all(
    functions: dict[str, dict[str, float]], seconds: float, most: float
) -> dict[str, list[str]]:
    """`chosen` of each function of `{function: {case: seconds}}`; at least one case of a file."""
    kept = {function: chosen(cases, seconds, most) for function, cases in functions.items()}
    files: dict[str, list[str]] = defaultdict(list)
    for function in functions:
        files[function.partition("::")[0]].append(function)
    for names in files.values():
        if not any(kept[name] for name in names):
            pairs = ((name, case) for name in names for case in functions[name])
            name, case = min(pairs, key=lambda pair: functions[pair[0]][pair[1]])
            kept[name] = [case]
    return kept


def read_costs(files: list[Path]) -> dict[str, dict[str, float]]:
    """`{function: {case: seconds}}`, the largest of the files that have the case."""
    functions: dict[str, dict[str, float]] = defaultdict(dict)
    for file in files:
        for line in file.read_text().splitlines():
            test, seconds = json.loads(line)
            function, _, case = test.partition("[")
            cases, name = functions[function], case.removesuffix("]")
            cases[name] = max(seconds, cases.get(name, 0.0))
    return functions


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("costs", type=Path, nargs="+", help="what `pytest --costs` wrote")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a function (%(default)s)")
    parser.add_argument("--most", type=float, default=1.2, help="of a case (%(default)s)")
    args = parser.parse_args()
    costs = read_costs(args.costs)
    measured = {name: cases for name, cases in costs.items() if not name.startswith(_WHOLE)}
    quick = quick_cases()
    for function, kept in chosen_of_all(measured, args.seconds, args.most).items():
        if len(kept) < len(measured[function]):
            quick[function] = kept
    lines = [json.dumps([function, *kept]) for function, kept in sorted(quick.items())]
    QUICK.write_text(_HEAD + "\n".join(lines) + "\n")
    print(
        f"{len(quick)} functions, {sum(len(k) for k in quick.values())} of their cases by default"
    )


if __name__ == "__main__":
    main()
