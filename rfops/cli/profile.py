"""`rfops profile OP`: what the kernels of a call do on the virtual GPU, or how long they would take
on hardware and why."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from rfops import vgpu
from rfops.cli import why
from rfops.cli.common import virtual_arch
from rfops.dispatch.op import Op
from rfops.dispatch.problem import Problem, on_device
from rfops.jit import settings
from rfops.vgpu import counting, page, report, timed_text, timeline

Report = tuple[dict[str, Any], str]  # of a launch: for --json, and as text


def add_arguments(parser: argparse.ArgumentParser, op: Op) -> None:
    """Add the options of `rfops profile` for an op."""
    why.add_call(parser, op)
    parser.set_defaults(arch=None)
    parser.add_argument("--json", action="store_true", help="a record of JSON a launch")
    add = parser.add_argument_group("time, estimated by the cycle model").add_argument
    add("--timing", action="store_true", help="time, its bound and stalls; not the counters")
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
        help="time, and a page: code with stalls, timeline, roofline",
    )


def run(op: Op, options: argparse.Namespace) -> int:
    """Print the counters and the estimated time of one call; return the exit status."""
    options.arch = virtual_arch(options.arch, options.part)
    timed = options.timing or options.part or options.annotate or options.trace or options.html
    with contextlib.ExitStack() as stack:  # what routing looks at too
        stack.enter_context(settings.put("RFOPS_VGPU_ARCH", options.arch))
        if options.part:
            stack.enter_context(settings.put("RFOPS_VGPU_PART", options.part))
        c = on_device(why.call_of(op, options, any_size=True), torch.device("cpu"))
        problem = Problem(op, c)
        reports = _time(problem, options) if timed else _count(problem)
    outcome = "the result is empty, nothing is launched"
    if not op.is_empty(problem.call):
        outcome = f"{op.route(problem.call).backend}, launches: {len(reports)}"
    print(
        f"{op.name} {c} on {c.arch}, {c.cu_num} CUs: {outcome}",
        file=sys.stderr if options.json else sys.stdout,
    )
    for record, text in reports:
        print(json.dumps(record) if options.json else text)
    return 0


def _count(problem: Problem) -> list[Report]:
    with vgpu.profile() as profile:
        problem.launch()
    return [(record.as_dict(), counting.table(record)) for record in profile.launches]


def _time(problem: Problem, options: argparse.Namespace) -> list[Report]:
    followed = options.trace or options.html
    detail = bool(options.annotate or options.json or followed)
    max_issues = timeline.MOST_ISSUES if followed else 0
    count = vgpu.profile() if options.html else contextlib.nullcontext()
    with vgpu.timing(options.part, detail=detail, events=max_issues) as timing, count as profile:
        problem.launch()
    if profile is not None:
        text = page.page(
            report.from_launches(profile.launches), f"{problem.op.name} {problem.call}"
        )
        options.html.write_text(text, encoding="utf-8")
        print(f"rfops: wrote {options.html}", file=sys.stderr)
    if options.trace:
        options.trace.write_text(json.dumps(timeline.trace(timing.launches)), encoding="utf-8")
        print(f"rfops: wrote {options.trace}", file=sys.stderr)
    reports = []
    for launch in timing.launches:
        record = {name: figure for name, figure in launch.figures.items() if name != "events"}
        text = timed_text.table(launch)
        if options.annotate:
            text += f"\n{timed_text.annotate(launch)}"
        reports.append((record, text))
    return reports
