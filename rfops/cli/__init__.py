"""The command `rfops`: demo, build, cache, debug, doctor, hipcc, ls, profile, bench, tune, run,
eval, selftest, submit, trace, why and vgpu."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import rfops
from rfops.cli import build as cli_build
from rfops.cli import cache as cli_cache
from rfops.cli import debug as cli_debug
from rfops.cli import doctor as cli_doctor
from rfops.cli import evaluate as cli_evaluate
from rfops.cli import hipcc as cli_hipcc
from rfops.cli import new as cli_new
from rfops.cli import ops as cli_ops
from rfops.cli import run as cli_run
from rfops.cli import selftest as cli_selftest
from rfops.cli import submit as cli_submit
from rfops.cli import trace as cli_trace
from rfops.cli.common import add_op, declared, elsewhere, help_of, load_ops, with_ops
from rfops.jit import (
    BuildError,
    settings,
    vgpu_hsa_folder,
    vgpu_library,
    vgpu_library_folder,
)
from rfops.jit.build.spec import ModuleSpec, load_config, module_spec
from rfops.jit.cache.files import cache_roots


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 an error that is printed, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        while (
            len(arguments) > 1 and arguments[0] == "--ops"
        ):  # before the parser, which knows all ops
            load_ops(Path(arguments[1]))
            del arguments[:2]
        options = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)
    except BrokenPipeError:  # the reader has seen enough, as in `rfops ls | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("rfops: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        _report(error)
        return 1


def _report(error: Exception) -> None:
    """What went wrong, for people; with RFOPS_LOG=debug all of it."""
    debug = settings.raw("RFOPS_LOG") == "debug"
    text = error.brief if isinstance(error, BuildError) and not debug else error
    if debug:
        traceback.print_exception(error)
    print(f"rfops: {type(error).__name__}: {text}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rfops", description=(rfops.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"rfops {rfops.__version__}")
    parser.add_argument("--ops", metavar="FILE", help="first of all: a file that declares ops too")
    parser.set_defaults(command=help_of(parser))
    commands = parser.add_subparsers(metavar="command")

    demo = commands.add_parser("demo", help="build and run the first op, and say what was done")
    demo.add_argument("--cold", action="store_true", help="use an empty cache, for cold times")
    demo.set_defaults(command=_demo)

    cli_build.add(commands)
    cli_hipcc.add(commands)
    cli_cache.add(commands)

    ls = commands.add_parser("ls", help="ops, modules, architectures, and what is cached")
    ls.set_defaults(command=_ls)

    cli_doctor.add(commands)
    cli_selftest.add(commands)

    cli_new.add(commands)
    cli_ops.add(commands)
    cli_run.add(commands)
    cli_debug.add(commands)
    cli_evaluate.add(commands)
    cli_submit.add(commands)
    cli_trace.add(commands)

    reason = commands.add_parser("why", help="which kernel a call takes, why one is not cached")
    add_op(reason, "module")
    reason.set_defaults(
        command=lambda options: _why_command(options) if options.op else help_of(reason)(options)
    )

    vgpu = commands.add_parser("vgpu", help="the virtual GPU, for use as a HIP runtime")
    actions = vgpu.add_mutually_exclusive_group(required=True)
    actions.add_argument("--path", action="store_true", help="print its library's path")
    actions.add_argument(
        "--lib-dir",
        action="store_true",
        help="print a folder for LD_LIBRARY_PATH with all its names",
    )
    actions.add_argument(
        "--hsa-dir",
        action="store_true",
        help="print a folder for LD_LIBRARY_PATH with its HSA runtime, for AMD's own HIP runtime",
    )
    vgpu.set_defaults(command=_vgpu)
    return parser


def _demo(options: argparse.Namespace) -> int:
    with_ops()
    from rfops.cli import demo

    return demo.run(cold=options.cold)


def _why_command(options: argparse.Namespace) -> int:
    if options.op == "module":
        parser = argparse.ArgumentParser(prog="rfops why module")
        cli_cache.add_why(parser)
        options_ = parser.parse_args(options.arguments)
        status: int = options_.command(options_)
        return status
    with_ops()
    from rfops.cli import why

    return why.main(options.op, options.arguments)


def _vgpu(options: argparse.Namespace) -> int:
    if options.hsa_dir:
        print(vgpu_hsa_folder())
    else:
        print(vgpu_library_folder() if options.lib_dir else vgpu_library())
    return 0


# ---------------------------------------------------------------- ls


def _cached(spec: ModuleSpec, arch: str) -> int:
    """Entries of all caches, also of those that are only read."""
    cached_entries = {
        f.parent.name for r in cache_roots() for f in r.glob(f"{arch}/{spec.name}/*/meta.json")
    }
    return len(cached_entries)


def _ls(_options: argparse.Namespace) -> int:
    ops = declared()
    kernels_by_module = {
        name: ",".join(kernels) for op in ops.values() for name, kernels in op.items()
    }
    rows = [("module", "kernel", "architecture", "cached variants", "op")]
    elsewhere_specs = {name: module_spec(name, file) for name, file in elsewhere().items()}
    specs = load_config() | elsewhere_specs
    for name, spec in specs.items():
        archs = spec.archs if spec.kind == "device" else ("host",)
        op = ",".join(op for op, modules in ops.items() if name in modules) or "-"
        kernel = kernels_by_module.get(name, "-")
        rows += [(name, kernel, arch, str(_cached(spec, arch)), op) for arch in archs]
    rows += [("-", "-", "any", "-", op) for op, modules in ops.items() if not modules]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return 0
