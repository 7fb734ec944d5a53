"""`rfops profile OP`: what the kernels of a call do on the virtual GPU, or how long they would take
on hardware and why."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rfops import vgpu
from rfops.cli import why
from rfops.cli.common import virtual_arch
from rfops.dispatch.op import Op
from rfops.dispatch.problem import Launch, Problem, on_device
from rfops.jit import settings
from rfops.vgpu import advice, compare, counting, page, report, timed_text, timeline

Report = tuple[dict[str, Any], str]  # of a launch: for --json, and as text


def add_arguments(parser: argparse.ArgumentParser, op: Op) -> None:
    """Add the options of `rfops profile` for an op."""
    why.add_call(parser, op)
    parser.set_defaults(arch=None)
    parser.add_argument("--json", action="store_true", help="a record of JSON a launch")
    add = parser.add_argument_group("time, estimated by the cycle model").add_argument
    add("--timing", action="store_true", help="time, its bound and stalls; not the counters")
    add(
        "--sample",
        action="store_true",
        help="time, running only the workgroups that it is estimated from: faster, for large "
        "calls; the result is wrong, and what would need all workgroups is left out",
    )
    add("--part", help=f"time on it: {', '.join(settings.PARTS)}; default: RFOPS_VGPU_PART's")
    add("--annotate", action="store_true", help="time, and stalls beside each instruction")
    add(
        "--trace",
        metavar="FILE",
        type=Path,
        help="time, and a timeline of one compute unit, for Perfetto or chrome://tracing",
    )
    add(
        "--html",
        metavar="FILE",
        type=Path,
        help="time, and a page: advice, memory, timeline, source beside code, roofline",
    )
    add(
        "--by",
        metavar="'KERNEL CONFIG'",
        action="append",
        default=[],
        help="by this kernel, with its config as a tuned table has it or its default; twice: both, "
        "and what differs",
    )
    add(
        "--baseline",
        metavar="FILE",
        type=Path,
        help="time, and what differs from an earlier `--timing --json`",
    )


def run(op: Op, options: argparse.Namespace) -> int:
    """Print the counters and the estimated time of one call; return the exit status."""
    options.arch = virtual_arch(options.arch, options.part)
    if len(options.by) > 2 or (len(options.by) == 2 and options.baseline):
        raise ValueError("rfops profile: two profiles are compared: --by twice, or --baseline")
    if options.sample and options.html:
        raise ValueError("rfops profile: --html must have all workgroups; omit --sample")
    baseline = compare.read(options.baseline) if options.baseline else None
    is_compared = baseline is not None or len(options.by) == 2
    files = options.trace or options.html
    is_timed = options.timing or options.part or options.annotate or files or is_compared
    is_timed = is_timed or options.sample
    with contextlib.ExitStack() as stack:  # what routing looks at too
        stack.enter_context(settings.put("RFOPS_VGPU_ARCH", options.arch))
        if options.part:
            stack.enter_context(settings.put("RFOPS_VGPU_PART", options.part))
        c = on_device(why.call_of(op, options, any_size=True), torch.device("cpu"))
        problem = Problem(op, c, is_light=options.sample)
        profiles = [
            (name, _time(problem, launch, options) if is_timed else _count(launch))
            for name, launch in _launches(problem, options.by)
        ]
    stream = sys.stderr if options.json else sys.stdout
    for name, reports in profiles:
        outcome = "the result is empty, nothing is launched"
        if not op.is_empty(problem.call):
            backend = name or op.route(problem.call).backend
            outcome = f"{backend}, launches: {len(reports)}"
        print(f"{op.name} {c} on {c.arch}, {c.cu_num} CUs: {outcome}", file=stream)
        for record, text in reports:
            print(json.dumps(record) if options.json else text)
    if is_compared:
        names = (str(options.baseline) if baseline else options.by[0], profiles[-1][0] or "now")
        baseline_records = baseline or [record for record, _ in profiles[0][1]]
        print(
            compare.text(baseline_records, [record for record, _ in profiles[-1][1]], names),
            file=stream,
        )
    return 0


def _launches(problem: Problem, kernels: Sequence[str]) -> list[tuple[str, Launch]]:
    """The call by each of these kernels, `NAME CONFIG`; without one as it is routed. Raises
    ValueError."""
    if not kernels:
        return [("", problem.launch)]
    op, launches = problem.op, []
    for text in kernels:
        name, _, config = text.partition(" ")
        if name not in op.kernels:
            raise ValueError(
                f"rfops profile: --by {text!r}: expected a kernel of {op.name}: "
                f"{', '.join(op.kernels)}; its config behind a space"
            )
        run_of = problem.prepare(name, op.parse_config(op.kernels[name], config))
        launches.append((text, problem.launch_by(run_of)))
    return launches


def _count(launch: Launch) -> list[Report]:
    with vgpu.profile() as profile:
        launch()
    return [(record.as_dict(), counting.table(record)) for record in profile.launches]


def _time(problem: Problem, launch: Launch, options: argparse.Namespace) -> list[Report]:
    """Timed and counted; the files that are asked for are of the last of several."""
    is_followed = options.trace or options.html
    max_issues = timeline.MOST_ISSUES if is_followed else 0
    timing = vgpu.timing(options.part, results=not options.sample, events=max_issues)
    with timing, vgpu.profile() as profile:
        launch()
    if options.sample:
        profile.launches = list(map(counting.of_sample, profile.launches))
    if options.html:
        launches = report.from_launches(profile.launches)
        text = page.page(launches, f"{problem.op.name} {problem.call}")
        options.html.write_text(text, encoding="utf-8")
    if options.trace:
        trace = timeline.trace([record.time for record in profile.launches])
        options.trace.write_text(json.dumps(trace), encoding="utf-8")
    for file in filter(None, (options.trace, options.html)):
        print(f"rfops: wrote {file}", file=sys.stderr)
    reports = []
    for record in profile.launches:
        text = "\n".join([timed_text.table(record.time), *advice.lines(record)])
        if options.annotate:
            text += f"\n{timed_text.annotate(record.time)}"
        reports.append((compare.record_of(record), text))
    return reports
