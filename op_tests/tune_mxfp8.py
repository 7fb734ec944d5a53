"""Fills the tuned table of the MX-FP8 family; `rfops tune OP` does the same for one op:

python op_tests/tune_mxfp8.py --out my_tables [--cells published moe] [--untuned FILE]
RFOPS_CONFIGS=my_tables python serve.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rfops import RfopsError
from rfops.cli import tune as cli_tune
from rfops.dispatch import cost
from rfops.jit import settings
from support import mxfp8_shapes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tune_mxfp8", description=(__doc__ or "").splitlines()[0].rstrip(":")
    )
    parser.add_argument("--out", type=Path, help="folder of the table; default: RFOPS_CONFIGS")
    mxfp8_shapes.add(parser, action="append", default=[])
    parser.add_argument("--untuned", type=Path, help="a file that RFOPS_RECORD_UNTUNED wrote")
    parser.add_argument("--top", type=int, help="variants a kernel; default: 24, 4 if virtual")
    parser.add_argument("--force", action="store_true", help="tune again what the file has")
    options = parser.parse_args(argv)
    folder = options.out or settings.path("RFOPS_CONFIGS")
    if folder is None:
        parser.error("--out FOLDER, or set RFOPS_CONFIGS")
    todo = []
    for op in dict.fromkeys(mxfp8_shapes.GROUPS.values()):
        if options.untuned:
            todo += [(op, c) for c in cli_tune.untuned(options.untuned, op.name)]
    groups = options.cells or ([] if options.shape or todo else ["published"])
    pairs = mxfp8_shapes.chosen(options, groups, options.shape)
    todo += [(op, op.call_of(**shape)) for op, shape in pairs]
    return cli_tune.tune_all(todo, folder, cost.default_device(), options.top, options.force)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RfopsError, ValueError) as error:
        sys.exit(f"tune_mxfp8: {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("tune_mxfp8: interrupted; what is done is in the table, run it again to go on")
