"""The command `rfops`: demo, build, cache, doctor, ls, profile, why, tune, vgpu."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

import rfops
from rfops import cli_build, cli_cache, cli_doctor
from rfops import why as why_command
from rfops.cli_common import help_of, with_ops
from rfops.jit import BuildError, paths, settings, vgpu_library, vgpu_library_folder
from rfops.jit.files import cache_roots
from rfops.jit.spec import ModuleSpec, load_config


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 an error that is printed, 2 wrong usage."""
    options = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BrokenPipeError:  # the reader has seen enough, as in `rfops ls | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
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
    parser.set_defaults(command=help_of(parser))
    commands = parser.add_subparsers(metavar="command")

    demo = commands.add_parser("demo", help="build and run the first op, and say what was done")
    demo.add_argument("--cold", action="store_true", help="use an empty cache, for cold times")
    demo.set_defaults(command=_demo)

    cli_build.add(commands)
    cli_cache.add(commands)

    ls = commands.add_parser("ls", help="ops, modules, architectures, and what is cached")
    ls.set_defaults(command=_ls)

    cli_doctor.add(commands)

    profile = commands.add_parser("profile", help="what an op's kernel does on the virtual GPU")
    profile.add_argument("op", choices=("gemm_mxfp8",), help="the op")
    for size, help_text in (("m", "rows of x"), ("n", "rows of w"), ("k", "the summed dimension")):
        profile.add_argument(f"--{size}", type=int, required=True, help=help_text)
    profile.add_argument("--json", action="store_true", help="the record as JSON")
    profile.set_defaults(command=_profile)

    reason = commands.add_parser("why", help="which kernel a call takes, why one is not cached")
    reason.set_defaults(command=help_of(reason))
    why_command.add_arguments(reason)

    tune = commands.add_parser("tune", help="fill a tuned table (needs a checkout)")
    tune.add_argument("family", nargs="?", choices=("mxfp8",), help="whose table; --help after it")
    tune.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script that does it")
    tune.set_defaults(command=lambda given: _tune(given) if given.family else help_of(tune)(given))

    vgpu = commands.add_parser("vgpu", help="the virtual GPU, for use as a HIP runtime")
    which = vgpu.add_mutually_exclusive_group(required=True)
    which.add_argument("--path", action="store_true", help="print its library's path")
    which.add_argument(
        "--lib-dir",
        action="store_true",
        help="print a folder for LD_LIBRARY_PATH with all its names",
    )
    vgpu.set_defaults(command=_vgpu)
    return parser


def _demo(options: argparse.Namespace) -> int:
    with_ops()
    from rfops import demo

    return demo.run(cold=options.cold)


def _profile(options: argparse.Namespace) -> int:
    for size in ("m", "n", "k"):
        if getattr(options, size) < 0:
            raise ValueError(f"--{size} {getattr(options, size)}: expected 0 or more")
    with_ops()
    import torch

    from rfops.vgpu_profile import table

    generator = torch.Generator().manual_seed(0)
    shapes = ((options.m, options.k), (options.n, options.k))
    x, w = (rfops.quant_mxfp8(torch.randn(shape, generator=generator)) for shape in shapes)
    with rfops.vgpu.profile() as profile:
        rfops.gemm_mxfp8(x[0], w[0], x[1], w[1])
    if not profile.launches and not options.json:
        print(
            f"gemm_mxfp8 M={options.m} N={options.n} K={options.k}: nothing to compute, no launch"
        )
    for record in profile.launches:
        print(json.dumps(record.as_dict()) if options.json else table(record))
    return 0


def _tune(options: argparse.Namespace) -> int:
    script = paths.ROOT / "op_tests" / f"tune_{options.family}.py"
    if not script.is_file():
        raise ValueError(f"tune: {script} is not there; run it in a checkout of rfops")
    return subprocess.run([sys.executable, str(script), *options.arguments], check=False).returncode


def _vgpu(options: argparse.Namespace) -> int:
    print(vgpu_library_folder() if options.lib_dir else vgpu_library())
    return 0


# ---------------------------------------------------------------- ls


# The modules of each op with their kernels; what an op runs by Triton or torch alone has none.
OPS: dict[str, dict[str, tuple[str, ...]]] = {
    "batched_gemm_a16w8_blockscale": {},
    "gemm_mxfp8": {
        "mxfp8_gemv": ("mxfp8_gemv",),
        "mxfp8_mfma": ("mxfp8_mfma_reduce", "mxfp8_mfma"),
    },
    "grouped_gemm_mxfp8": {"mxfp8_moe": ("mxfp8_moe",)},
    "moe_align_block_size": {"moe_align_block_size": ("moe_align_count", "moe_align_place")},
    "quant_mxfp8": {},
}


def _cached(spec: ModuleSpec, arch: str) -> int:
    """Entries of all caches, also of those that are only read."""
    found = {
        f.parent.name for r in cache_roots() for f in r.glob(f"{arch}/{spec.name}/*/meta.json")
    }
    return len(found)


def _ls(_options: argparse.Namespace) -> int:
    used = {
        name: ",".join(kernels) for modules in OPS.values() for name, kernels in modules.items()
    }
    rows = [("module", "kernel", "architecture", "cached variants", "op")]
    for name, spec in load_config().items():
        archs = spec.archs if spec.kind == "device" else ("host",)
        op = ",".join(op for op, modules in OPS.items() if name in modules) or "-"
        kernel = used.get(name, "-")
        rows += [(name, kernel, arch, str(_cached(spec, arch)), op) for arch in archs]
    rows += [("-", "-", "any", "-", op) for op, modules in OPS.items() if not modules]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
