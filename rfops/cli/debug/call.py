"""The program of `rfops debug OP ...`: one call of the op, built as `rfops profile OP` builds it.

Run as `python -m rfops.cli.debug.call [--ops FILE ...] OP --m 4 ...`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from rfops.cli import why
from rfops.cli.common import load_ops, virtual_arch, with_ops
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Problem, on_device
from rfops.jit import settings


def main(words: list[str]) -> None:
    while words[0] == "--ops":
        load_ops(Path(words[1]))
        words = words[2:]
    with_ops()
    op = ops()[words[0]]
    parser = argparse.ArgumentParser(prog=f"rfops debug {op.name}")
    why.add_call(parser, op)
    parser.set_defaults(arch=None)
    options = parser.parse_args(words[1:])
    options.arch = virtual_arch(options.arch, None)
    with settings.put("RFOPS_VGPU_ARCH", options.arch):
        call = on_device(why.call_of(op, options, any_size=True), torch.device("cpu"))
        Problem(op, call).launch()
    print(f"{op.name} {call} on {call.arch} has returned")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"rfops debug: {error}")
