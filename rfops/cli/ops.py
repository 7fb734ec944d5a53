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
OTHERS = {
    "bench": {"timing": ("timing.command", "the model of time against published times")},
    "tune": {
        "blaslt": ("tune_blaslt", "hipBLASLt's algorithms"),
        "merge": ("tune_merge", "merge tuned tables of two machines"),
    },
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, text in COMMANDS.items():
        # No word begins with \0: all that follows, --help too, goes on to the op's own parser.
        one = commands.add_parser(name, help=text, add_help=False, prefix_chars="\0")
        one.add_argument("words", nargs="*")
        one.set_defaults(command=run, name=name)


def run(given: argparse.Namespace) -> int:
    others = OTHERS.get(given.name, {})
    if given.words and given.words[0] in others:
        module, _ = others[given.words[0]]
        code: int = importlib.import_module(f"rfops.cli.{module}").main(given.words[1:])
        return code
    if given.words in ([], ["-h"], ["--help"]):
        print(f"usage: rfops {given.name} OP ...\n\n{COMMANDS[given.name]}\n\nOP, --help after it:")
        print("\n".join(f"  {name}" for name in op_names(given.name == "tune")))
        for word, (_, text) in others.items():
            print(f"\nor {word}: {text}")
        return 0
    with_ops()
    from rfops.dispatch.op import ops

    asked = ops().get(given.words[0])
    if given.name == "tune" and asked is not None and not asked.table:
        raise ValueError(
            f"tune: {asked.name} must have a tuned table, got none. Give its Op a `table`, and a "
            "kernel a Config."
        )
    command = importlib.import_module(f"rfops.cli.{given.name}")
    parser = argparse.ArgumentParser(prog=f"rfops {given.name}", description=command.__doc__)
    names = parser.add_subparsers(required=True, metavar="op", dest="op")
    for op in ops().values():
        if given.name != "tune" or op.table:
            one = names.add_parser(op.name, help=", ".join(op.kernels))
            command.add_arguments(one, op)
    options = parser.parse_args(given.words)
    status: int = command.run(ops()[options.op], options)
    return status
