"""`rfops cache`: moved as one file, kept below a size, explained."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rfops.jit import resources, store
from rfops.jit.files import cache_root

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    cache = commands.add_parser("cache", help="export, import, clean up or explain the cache")
    actions = cache.add_subparsers(required=True, metavar="action")

    export = actions.add_parser("export", help="write the cache to one file for other machines")
    export.add_argument("file", type=Path)
    export.add_argument("--arch", default="", help="only these, as gfx942,gfx950; default: all")
    export.add_argument("modules", nargs="*", help="only these modules; none: all")
    export.set_defaults(command=_export)

    import_ = actions.add_parser("import", help="add an exported file's entries; trust its source")
    import_.add_argument("file", type=Path)
    import_.set_defaults(command=_import)

    gc = actions.add_parser("gc", help="remove what is damaged, then what was used longest ago")
    gc.add_argument("--max-size", required=True, type=_size, help="bytes, or as 500M, 10G")
    gc.set_defaults(command=_gc)


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size as 500M or 10G")
    return int(float(found[1]) * _UNITS[found[2]])


def _export(options: argparse.Namespace) -> int:
    archs = [arch for arch in options.arch.split(",") if arch]
    count = store.export(options.file, archs, options.modules)
    size = resources.megabytes(options.file.stat().st_size)
    print(f"{count} entries of {cache_root()} in {options.file} ({size})")
    return 0


def _import(options: argparse.Namespace) -> int:
    new, known = store.import_(options.file)
    print(f"{new} entries added to {cache_root()}, {known} were there")
    return 0


def _gc(options: argparse.Namespace) -> int:
    done = store.collect(options.max_size)
    in_use = f", {done.in_use} in use" if done.in_use else ""
    print(
        f"{done.removed} entries removed ({resources.megabytes(done.freed)}), "
        f"{resources.megabytes(done.kept)} left{in_use} in {cache_root()}"
    )
    return 0
