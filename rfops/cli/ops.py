"""`rfops profile | bench | tune OP`: commands that every op has. Options follow from the op's
declaration, so that ops and torch are imported when one of them runs, not for `rfops --help`."""

from __future__ import annotations

import argparse
import importlib

from rfops.cli.common import op_names, with_ops

COMMANDS = {
    "profile": "what an op's kernels do on the virtual GPU",
    "bench": "check and time an op over its published shapes, beside the floor and others",
    "tune": "fill an op's tuned table",
}
# What may stand in an op's place: a module with main(words), and what it does.
PROGRAMS = {
    "bench": {
        "timing": ("timing.command", "the model of time against published times"),
        "step": ("step", "a decode step of a model, launch by launch"),
    },
    "tune": {
        "blaslt": ("tune_blaslt", "hipBLASLt's algorithms"),
        "merge": ("tune_merge", "merge tuned tables of two machines"),
    },
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that take an op first: its options are parsed after it is loaded."""
    for name, text in COMMANDS.items():
        # No word begins with \0: all that follows, --help too, goes on to the op's own parser.
        subparser = commands.add_parser(name, help=text, add_help=False, prefix_chars="\0")
        subparser.add_argument("words", nargs="*")
        subparser.set_defaults(command=run, name=name)


def run(command_line: argparse.Namespace) -> int:
    """Run a command for one op, or print the list of ops; return the exit status."""
    programs = PROGRAMS.get(command_line.name, {})
    if command_line.words and command_line.words[0] in programs:
        module, _ = programs[command_line.words[0]]
        code: int = importlib.import_module(f"rfops.cli.{module}").main(command_line.words[1:])
        return code
    if command_line.words in ([], ["-h"], ["--help"]):
        print(
            f"usage: rfops {command_line.name} OP ...\n\n{COMMANDS[command_line.name]}\n\n"
            "OP, --help after it:"
        )
        print("\n".join(f"  {name}" for name in op_names(command_line.name == "tune")))
        for program, (_, text) in programs.items():
            print(f"\nor {program}: {text}")
        return 0
    with_ops()
    from rfops.dispatch.op import ops

    asked_op = ops().get(command_line.words[0])
    if command_line.name == "tune" and asked_op is not None and not asked_op.table:
        raise ValueError(
            f"tune: {asked_op.name} must have a tuned table, got none. Give its Op a `table`, "
            "and a kernel a Config."
        )
    command = importlib.import_module(f"rfops.cli.{command_line.name}")
    parser = argparse.ArgumentParser(prog=f"rfops {command_line.name}", description=command.__doc__)
    names = parser.add_subparsers(required=True, metavar="op", dest="op")
    for op in ops().values():
        if command_line.name != "tune" or op.table:
            op_parser = names.add_parser(op.name, help=", ".join(op.kernels))
            command.add_arguments(op_parser, op)
    options = parser.parse_args(command_line.words)
    status: int = command.run(ops()[options.op], options)
    return status
