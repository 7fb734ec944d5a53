"""`rfops trace FILE`: what a trace of a run says of its kernels and of the time between them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec

from rfops.cli import drawing
from rfops.cli.trace import gaps, picture, read, text


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops trace` to the command line."""
    parser = commands.add_parser("trace", help="kernels and launch gaps in a profiler's trace")
    parser.add_argument(
        "file",
        type=Path,
        help="torch.profiler's export_chrome_trace, or rocprofv3 --output-format json; .gz too",
    )
    parser.add_argument("--top", type=int, default=15, help="rows a table (15)")
    parser.add_argument(
        "--range",
        type=float,
        nargs=2,
        metavar=("FROM", "TO"),
        help="only what starts between these milliseconds of the trace",
    )
    parser.add_argument("--json", action="store_true", help="one record of JSON a GPU")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it (needs matplotlib)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Report the gaps of a trace; return the exit status."""
    if options.plot:
        drawing.check()
    trace = read.trace(options.file)
    if options.range:
        trace = trace.window(*(1e3 * ms for ms in options.range))
    reports = gaps.reports(trace)
    for report in reports:
        if options.json:
            print(json.dumps(msgspec.to_builtins(report)))
        else:
            print(text.table(report, options.top))
    if options.plot:
        drawing.save(options.plot, lambda: picture.draw(trace, reports))
    return 0
