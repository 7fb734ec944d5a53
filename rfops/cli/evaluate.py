"""`rfops eval PROBLEM --submission FILE`: judge an entry to a GPU competition, without its GPU.

gpu-mode's protocol: `custom_kernel(data)`, the keys of its evaluator on POPCORN_FD if that is set,
exit status 0, 112 (wrong), 113 (a case that is none). Times are of the model, and called estimated;
with --gpu they are measured, on torch's GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfops.challenge.evaluate import Verdict
    from rfops.challenge.problem import Case, Problem

EXIT_WRONG, EXIT_BAD_CASE = 112, 113


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops eval` to the command line."""
    parser = commands.add_parser("eval", help="judge an entry to a GPU competition")
    add = parser.add_argument
    add(
        "problem",
        help="amd-fp8-mm and so on, or a folder in gpu-mode's form: task.yml, reference.py",
    )
    add("--arch", choices=("gfx942", "gfx950"), help="of a folder's own problem (RFOPS_VGPU_ARCH)")
    add("--submission", type=Path, required=True, metavar="FILE", help="with custom_kernel(data)")
    add("--mode", choices=("test", "benchmark", "leaderboard"), default="test")
    add("--shrink", action="store_true", help="sizes that simulate in seconds")
    add("--case", action="append", help="'m: 64; n: 64; k: 128; seed: 1' instead of the official")
    add("--seconds", type=float, default=60.0, help="limit of a call (60)")
    add("--memory", type=float, default=16.0, help="limit in GiB (16)")
    add("--gpu", action="store_true", help="on torch's GPU, times measured; not the virtual one")
    add("--check", action="store_true", help="also what its kernels do wrong, on stderr (slower)")
    add("--json", action="store_true", help="a record of JSON a case")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate the submission on its cases and print the verdicts; return the exit status."""
    if not options.submission.is_file():
        raise ValueError(f"--submission {options.submission}: there is no such file")
    from rfops.challenge.evaluate import Limits, evaluate
    from rfops.vgpu.program import environment

    if options.gpu:
        _require_gpu(options)
    problem, root = _problem(options)
    try:
        cases = _cases(problem, options)
    except ValueError as error:
        print(f"rfops eval: {error}", file=sys.stderr)
        return EXIT_BAD_CASE
    limits = Limits(options.seconds, int(options.memory * (1 << 30)), options.gpu)
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="rfops-eval-") as folder:
        env = dict(os.environ) if options.gpu else environment(problem.arch, Path(folder))
        if options.check:
            env["RFOPS_VGPU_CHECK"] = "1"
        for verdict in evaluate(problem, options.submission, cases, limits, env, root):
            verdicts.append(verdict)
            print(_json(verdict) if options.json else _text(verdict), flush=True)
        if options.check:
            from rfops.vgpu import report

            print("\n".join(report.findings(report.read(Path(folder)))), file=sys.stderr)
    if "POPCORN_FD" in os.environ:
        _report(int(os.environ["POPCORN_FD"]), options.mode, verdicts)
    if not options.json:
        print(_summary(problem, verdicts))
        if options.gpu:
            import torch

            print(f"measured on {torch.cuda.get_device_name()}")
    return 0 if all(verdict.passes for verdict in verdicts) else EXIT_WRONG


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


def _text(verdict: Verdict) -> str:
    state = "pass" if verdict.passes else "FAIL"
    origin = "measured" if verdict.measured else "estimated"
    time = f", {origin} {statistics.mean(verdict.us):.2f} us" if verdict.us else ""
    if verdict.us and not verdict.measured and not any(verdict.us):
        time = ", no kernel was launched on the virtual GPU: torch's operators have no time here"
    lines = [f"{state}  {verdict.spec}{time}"]
    lines += [f"      {verdict.error}"] if verdict.error else []
    lines += [f"      official: {verdict.official}"] if verdict.official else []
    lines += [f"      strict: {verdict.strict}"] if verdict.strict else []
    lines += [f"      {defect}" for defect in verdict.named if defect != verdict.error]
    return "\n".join(lines)


def _json(verdict: Verdict) -> str:
    import msgspec

    return json.dumps({**msgspec.to_builtins(verdict), "passes": verdict.passes})


def _summary(problem: Problem, verdicts: list[Verdict]) -> str:
    num_passed = sum(verdict.passes for verdict in verdicts)
    strict = sum(verdict.passes and not verdict.strict for verdict in verdicts)
    text = f"{num_passed} of {len(verdicts)} cases pass the official check, {strict} the strict one"
    if not problem.bound:
        text = f"{num_passed} of {len(verdicts)} cases pass its own check; there is no strict one"
    return f"{problem.name}: {text}"


def _report(descriptor: int, mode: str, verdicts: list[Verdict]) -> None:
    """The keys of gpu-mode's evaluator; times in ns."""
    kind = "test" if mode == "test" else "benchmark"
    lines = [f"{kind}-count: {len(verdicts)}"]
    for index, verdict in enumerate(verdicts):
        lines.append(f"{kind}.{index}.spec: {verdict.spec}")
        reason = verdict.error or verdict.official
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
    lines.append(f"check: {'pass' if all(v.passes for v in verdicts) else 'fail'}")
    os.write(descriptor, ("\n".join(lines) + "\n").encode())
