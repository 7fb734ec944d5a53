"""`rfops eval PROBLEM --submission FILE`: judge an entry to a GPU competition, without its GPU.

gpu-mode's protocol: `custom_kernel(data)`, the keys of its evaluator on POPCORN_FD if that is set,
exit status 0, 112 (wrong), 113 (a case that is none). Times are of the model, and called estimated;
with --gpu they are measured, on torch's GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfops.challenge.problem import Case, Problem
    from rfops.challenge.verdict import Limits, Verdict

EXIT_WRONG, EXIT_BAD_CASE = 112, 113
_NO_WALLS = (
    "this machine lets no walls be built around an entry ({step}): it could read your files, write "
    "them, reach the network and outlive the evaluator; --trust-entry runs it all the same"
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops eval` to the command line."""
    parser = commands.add_parser("eval", help="judge an entry to a GPU competition")
    add = parser.add_argument
    add(
        "problem",
        help="amd-fp8-mm and so on, or a folder in gpu-mode's form: task.yml, reference.py",
    )
    add("--arch", choices=("gfx942", "gfx950"), help="of a folder's own problem (RFOPS_VGPU_ARCH)")
    add(
        "--submission",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="with custom_kernel(data); several are compared",
    )
    add("--mode", choices=("test", "benchmark", "leaderboard"), default="test")
    add("--shrink", action="store_true", help="sizes that simulate in seconds")
    add("--case", action="append", help="'m: 64; n: 64; k: 128; seed: 1' instead of the official")
    add("--seconds", type=float, default=60.0, help="limit of a call (60)")
    add("--import-seconds", type=float, default=600.0, help="of loading it, builds included (600)")
    add("--memory", type=float, default=16.0, help="limit in GiB, files in memory included (16)")
    add("--seed", type=int, help="of the inputs that no entry can know (a new one each time)")
    add("--trust-entry", action="store_true", help="go on where walls are missing")
    add("--gpu", action="store_true", help="on torch's GPU, times measured; not the virtual one")
    add("--check", action="store_true", help="also what its kernels do wrong, on stderr (slower)")
    add("--json", action="store_true", help="a record of JSON a case")
    add("--html", type=Path, metavar="FILE", help="also write a page")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate the submissions on the cases and print the verdicts; return the exit status."""
    for file in options.submission:
        if not file.is_file():
            raise ValueError(f"--submission {file}: there is no such file")
    if len(options.submission) > 1 and "POPCORN_FD" in os.environ:
        raise ValueError("POPCORN_FD: its protocol is of one --submission")
    from rfops.challenge import report
    from rfops.challenge.sandbox import WallsMissing
    from rfops.challenge.verdict import Limits

    if options.gpu:
        _require_gpu(options)
    problem, root = _problem(options)
    try:
        cases = _cases(problem, options)
    except ValueError as error:
        print(f"rfops eval: {error}", file=sys.stderr)
        return EXIT_BAD_CASE
    limits = Limits(
        options.seconds,
        int(options.memory * (1 << 30)),
        options.gpu,
        options.import_seconds,
        options.trust_entry,
        options.check,
        options.seed,
    )
    entries: dict[str, list[Verdict]] = {}
    try:
        for file, name in zip(options.submission, _names(options.submission), strict=True):
            entries[name] = _judged(problem, root, file, name, cases, limits, options)
    except WallsMissing as error:
        print(f"rfops eval: {_NO_WALLS.format(step=error)}", file=sys.stderr)
        return 1
    verdicts = [verdict for judged in entries.values() for verdict in judged]
    if "POPCORN_FD" in os.environ:
        _report(int(os.environ["POPCORN_FD"]), options.mode, verdicts)
    if not options.json and len(entries) > 1:
        print(report.compared(entries))
    if not options.json and options.gpu:
        import torch

        print(f"measured on {torch.cuda.get_device_name()}")
    if options.html:
        options.html.write_text(report.page(problem, entries, problem.arch), encoding="utf-8")
    return 0 if all(verdict.passes for verdict in verdicts) else EXIT_WRONG


def _judged(
    problem: Problem,
    root: Path | None,
    file: Path,
    name: str,
    cases: list[Case],
    limits: Limits,
    options: argparse.Namespace,
) -> list[Verdict]:
    """The verdicts of one entry, told as they come."""
    from rfops.challenge import report
    from rfops.challenge.evaluate import evaluate

    is_one = len(options.submission) == 1
    if not is_one and not options.json:
        print(f"{name}:")
    verdicts: list[Verdict] = []
    findings: list[bytes] = []
    for verdict in evaluate(problem, file, cases, limits, root, findings):
        verdicts.append(verdict)
        line = report.case_json(verdict, "" if is_one else name)
        print(line if options.json else report.case_text(verdict), flush=True)
    if options.check:
        _print_findings(findings)
    if not options.json:
        print(report.summary(problem, verdicts))
    return verdicts


def _print_findings(findings: list[bytes]) -> None:
    from rfops.vgpu import report

    with tempfile.TemporaryDirectory(prefix="rfops-eval-") as folder:
        for number, lines in enumerate(findings):
            (Path(folder) / f"{number}.jsonl").write_bytes(lines)
        print("\n".join(report.findings(report.read(Path(folder)))), file=sys.stderr)


def _names(files: list[Path]) -> list[str]:
    """Of the entries: their files' names where those differ."""
    names = [file.name for file in files]
    names = names if len(set(names)) == len(names) else list(map(str, files))
    return names if len(set(names)) == len(names) else [f"{n} {f}" for n, f in enumerate(names)]


def _require_gpu(options: argparse.Namespace) -> None:
    import torch

    if not torch.cuda.is_available():
        raise ValueError("--gpu: torch sees no GPU here; without it the virtual GPU is taken")
    if options.check:
        raise ValueError("--gpu: --check is for the virtual GPU")


def _problem(options: argparse.Namespace) -> tuple[Problem, Path | None]:
    """By its name, also a folder's, or the folder's own, and that folder."""
    from rfops.challenge import MODULES, problem
    from rfops.challenge.folder import problem_of

    folder = Path(options.problem)
    if not folder.is_dir():
        return problem(options.problem), None
    if folder.absolute().name in MODULES or f"amd-{folder.absolute().name}" in MODULES:
        return problem(folder.absolute().name), None
    import torch

    from rfops.jit import settings
    from rfops.vgpu import torch_cuda

    if not options.gpu:
        torch_cuda.activate(torch)  # its reference names a GPU
    return problem_of(folder, options.arch or settings.text("RFOPS_VGPU_ARCH")), folder


def _cases(problem: Problem, options: argparse.Namespace) -> list[Case]:
    from rfops.challenge.problem import case_of

    official = problem.tests if options.mode == "test" else problem.benchmarks
    requested = [case_of(text) for text in options.case or ()]
    for case in requested:
        if missing := set.intersection(*map(set, official)) - set(case):
            raise ValueError(f"case {case}: without {', '.join(sorted(missing))}")
    cases = requested or list(official)
    if options.shrink:
        cases = list(
            {tuple(problem.shrink(case).items()): problem.shrink(case) for case in cases}.values()
        )
    return cases


def _report(descriptor: int, mode: str, verdicts: list[Verdict]) -> None:
    """The keys of gpu-mode's evaluator; times in ns. A benchmark without a time fails."""
    kind = "test" if mode == "test" else "benchmark"
    lines = [f"{kind}-count: {len(verdicts)}"]
    reasons = [v.error or v.official for v in verdicts]
    if kind == "benchmark":
        reasons = [
            reason or (f"not timed: {v.untimed}" if v.untimed else "")
            for reason, v in zip(reasons, verdicts, strict=True)
        ]
    for index, (verdict, reason) in enumerate(zip(verdicts, reasons, strict=True)):
        lines.append(f"{kind}.{index}.spec: {verdict.spec}")
        if reason or kind == "test":
            lines.append(f"{kind}.{index}.status: {'fail' if reason else 'pass'}")
        if reason:
            lines.append(f"{kind}.{index}.error: {reason}")
        elif kind == "benchmark":
            ns = [us * 1e3 for us in verdict.us]
            deviation = statistics.stdev(ns) if len(ns) > 1 else 0.0
            figures = {"runs": len(ns), "mean": statistics.mean(ns), "std": deviation}
            figures |= {"err": deviation / len(ns) ** 0.5, "best": min(ns), "worst": max(ns)}
            lines += [f"{kind}.{index}.{name}: {value}" for name, value in figures.items()]
    lines.append(f"check: {'fail' if any(reasons) else 'pass'}")
    os.write(descriptor, ("\n".join(lines) + "\n").encode())
