"""`rfops profile OP`: what the kernels of a call do on the virtual GPU."""

from __future__ import annotations

import argparse
import json
import sys

import torch

from rfops import vgpu
from rfops.cli import why
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.problem import Problem, on_device
from rfops.jit import settings
from rfops.jit.arch import ARCHS
from rfops.vgpu.counting import table


def add_arguments(parser: argparse.ArgumentParser, op: Op) -> None:
    why.add_call(parser, op)
    parser.set_defaults(arch=settings.text("RFOPS_VGPU_ARCH"))
    parser.add_argument("--json", action="store_true", help="a record of JSON a launch")


def run(op: Op, options: argparse.Namespace) -> int:
    if options.arch not in ARCHS:
        raise ValueError(f"--arch {options.arch}: the virtual GPU is {' or '.join(ARCHS)}")
    with settings.put("RFOPS_VGPU_ARCH", options.arch):
        _profile(op, why.call_of(op, options, any_size=True), options.json)
    return 0


def _profile(op: Op, sizes: Call, as_json: bool) -> None:
    c = on_device(sizes, torch.device("cpu"))
    problem = Problem(op, c)
    with vgpu.profile() as profile:
        problem.launch()
    what = "the result is empty, nothing is launched"
    if not op.is_empty(problem.call):
        what = f"{op.route(problem.call).backend}, launches: {len(profile.launches)}"
    print(f"{op.name} {c} on {c.arch}: {what}", file=sys.stderr if as_json else sys.stdout)
    for record in profile.launches:
        print(json.dumps(record.as_dict()) if as_json else table(record))
