"""`rfops cache`: moved as one file, kept below a size, explained."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rfops.cli import build as cli_build
from rfops.cli.common import help_of
from rfops.jit import paths
from rfops.jit.build import explain, resources
from rfops.jit.build.spec import module_spec
from rfops.jit.cache import archive, collect, transfer
from rfops.jit.cache.files import cache_root
from rfops.jit.policy import manifest

_EXPLAINED = 3  # variants; the rest is a number
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    cache = commands.add_parser("cache", help="export, import, clean up or explain the cache")
    cache.set_defaults(command=help_of(cache))
    actions = cache.add_subparsers(metavar="action")

    export = actions.add_parser("export", help="write the cache to one file for other machines")
    export.add_argument("file", type=Path)
    export.add_argument("--arch", default="", help="only these, as gfx942,gfx950; default: all")
    export.add_argument("modules", nargs="*", help="only these modules; none: all")
    export.set_defaults(command=_export)

    import_ = actions.add_parser("import", help="add an exported file's entries; trust its source")
    import_.add_argument("file", type=Path)
    import_.add_argument(
        "--max-size",
        type=_size,
        default=archive.MAX_BYTES,
        help="most bytes that it may unpack to, or as 500M, 10G; default: 1G",
    )
    import_.set_defaults(command=_import)

    gc = actions.add_parser("gc", help="remove what is damaged, then what was used longest ago")
    gc.add_argument("--max-size", required=True, type=_size, help="bytes, or as 500M, 10G")
    gc.set_defaults(command=_gc)

    add_why(actions.add_parser("why", help="why a variant is cached or not: its key"))


def add_why(reason: argparse.ArgumentParser) -> None:
    """The options of `rfops cache why` and `rfops why module`."""
    reason.add_argument("module")
    reason.add_argument("--arch", default="", help="default: all of the module's")
    reason.add_argument("--config", type=Path, help="another compiler_config.json")
    reason.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME=VALUE")
    reason.set_defaults(command=_explain_misses)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size as 500M or 10G")
    return int(float(match[1]) * _UNITS[match[2]])


def _export(options: argparse.Namespace) -> int:
    archs = [arch for arch in options.arch.split(",") if arch]
    count = transfer.export(options.file, archs, options.modules)
    size = resources.megabytes(options.file.stat().st_size)
    print(f"{count} entries of {cache_root()} in {options.file} ({size})")
    return 0


def _import(options: argparse.Namespace) -> int:
    new, num_known = transfer.import_(options.file, options.max_size)
    print(f"{new} entries added to {cache_root()}, {num_known} were there")
    return 0


def _gc(options: argparse.Namespace) -> int:
    collected = collect.collect(options.max_size)
    in_use = f", {collected.in_use} in use" if collected.in_use else ""
    print(
        f"{collected.removed} entries removed ({resources.megabytes(collected.freed)}), "
        f"{resources.megabytes(collected.kept_bytes)} left{in_use} in {cache_root()}"
    )
    return 0


def _explain_misses(options: argparse.Namespace) -> int:
    """Exit status 0 if all that was asked for is cached."""
    config = options.config.absolute() if options.config else paths.COMPILER_CONFIG
    spec = module_spec(options.module, config)
    archs = options.arch.split(",") if options.arch else spec.archs
    for arch in archs if spec.kind == "device" else ():
        spec.require_arch(arch)
    defines = manifest.defines_of(dict(map(cli_build.define, options.defines)))
    explanations = list(map(explain.explain, cli_build.variants(spec, archs, defines)))
    missing = [explanation for explanation in explanations if explanation.artifact is None]
    for explanation in (missing or explanations)[:_EXPLAINED]:
        print(explanation)
    if len(explanations) > 1:
        print(f"{len(explanations) - len(missing)} of {len(explanations)} variants are cached")
    return 1 if missing else 0
