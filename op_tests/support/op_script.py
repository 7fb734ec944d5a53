"""What the scripts bench_*.py and tune_*.py are: a command of `rfops` for one op, or several."""

from __future__ import annotations

import sys

from rfops import cli


def main(command: str, ops: tuple[str, ...], argv: list[str] | None, *extra_arguments: str) -> int:
    """`rfops <command> OP [options]` for the op that the first word names, the first by default."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    op = arguments.pop(0) if arguments and arguments[0] in ops else ops[0]
    return cli.main([command, op, *arguments, *extra_arguments])
