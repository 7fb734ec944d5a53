"""`rfops run ... -- COMMAND`: a program as it is, its kernels on the virtual GPU, and at its end
what they did, how long each would take on hardware, and why.

A Python script with kernels of Triton or FlyDSL (`device="cuda"` too), or an executable that hipcc
built; its child processes as well. The report goes to stderr, the exit status is the command's."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rfops.cli.common import virtual_arch
from rfops.engines import RELEASES
from rfops.jit import settings

ISSUES = 20_000  # of a launch, for --trace and --html
MAX_LAUNCHES = 20  # different launches, by kernel and size, of which that much is told
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE, EXIT_SIGNALLED = 127, 126, 128  # as a shell has them


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops run` to the command line."""
    parser = commands.add_parser(
        "run",
        help="a program on the virtual GPU, and what its kernels did",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="rfops run [--arch ARCH] [--part PART] [--engine ENGINE] [--aiter] [--check] "
        "[--timing] [--trace FILE] [--html FILE] -- COMMAND ...",
    )
    option = parser.add_argument
    option("--arch", help="gfx942 or gfx950; default: RFOPS_VGPU_ARCH's")
    option("--part", help=f"{', '.join(settings.PARTS)}; default: by architecture")
    option("--aiter", action="store_true", help="make `import aiter` give rfops' ops by its names")
    option("--check", action="store_true", help="find what kernels do wrong (slower)")
    option("--timing", action="store_true", help="also why each kernel takes its time")
    option("--trace", metavar="FILE", type=Path, help="a timeline for Perfetto or chrome://tracing")
    option("--html", metavar="FILE", type=Path, help="a page: code with stalls, timeline, roofline")
    option("--engine", choices=sorted(RELEASES), help="the program uses this engine")
    option(
        "--engine-any-release",
        action="store_true",
        help="try a release of the engine that rfops does not know",
    )
    option("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program, its arguments")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run a program on the virtual GPU and report its launches; return its exit status."""
    command = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not command:
        raise ValueError("rfops run: expected a command behind --, as in rfops run -- ./program")
    arch = virtual_arch(options.arch, options.part)
    for file in (options.trace, options.html):
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"rfops run: {file}: there is no folder {file.absolute().parent}")
    with tempfile.TemporaryDirectory(prefix="rfops-run-") as name:
        folder = Path(name)
        try:
            status = _status(command, _environment(options, arch, folder))
        except OSError as error:
            script = f"; a script: rfops run -- python {command[0]}" * command[0].endswith(".py")
            print(f"rfops run: {command[0]}: {error.strerror or error}{script}", file=sys.stderr)
            return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        _print_report(options, folder, command, status)
    return status if status >= 0 else EXIT_SIGNALLED - status


def _environment(options: argparse.Namespace, arch: str, folder: Path) -> dict[str, str]:
    from rfops.vgpu.program import environment, timing_set

    env = environment(
        arch,
        folder,
        options.part,
        options.engine or "",
        any_release=options.engine_any_release,
        aiter=options.aiter,
    )
    wants_timeline = options.trace or options.html
    detail = bool(wants_timeline or options.timing)
    timing_set(
        env, f"different={MAX_LAUNCHES} detail={detail:d} events={ISSUES if wants_timeline else 0}"
    )
    if options.check and settings.raw("RFOPS_VGPU_CHECK") != "error":
        env["RFOPS_VGPU_CHECK"] = "1"
    return env


def _status(command: list[str], env: dict[str, str]) -> int:
    """The command's; of what ends this process too, the command hears, and then it is told of."""
    process = subprocess.Popen(command, env=env)
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both
    terminated = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
        signal.signal(signal.SIGTERM, terminated)


def _print_report(
    options: argparse.Namespace, folder: Path, command: list[str], status: int
) -> None:
    from rfops.engines import steps, tally
    from rfops.vgpu import page, report, timeline

    launches = report.read(folder)
    end = f"exit status {status}" if status >= 0 else f"ended by {_signal(-status)}"
    print(f"rfops run: {shlex.join(command)}: {end}", file=sys.stderr)
    if -status in _CRASHES and launches.kernels and not options.check:
        print(
            "rfops run: a kernel that writes outside its memory can end a program so: "
            "rfops run --check names the instruction",
            file=sys.stderr,
        )
    print(
        report.text(launches, show_reasons=options.timing, show_findings=options.check),
        file=sys.stderr,
    )
    if options.engine:
        print(tally.report(folder) or f"no process imported {options.engine}", file=sys.stderr)
        if options.timing:
            print(steps.text(steps.read(folder)), file=sys.stderr)
    if launches.left_out and (options.trace or options.html):
        print(
            f"rfops run: of {len(launches.different)} different launches {len(launches.followed)} "
            "are followed",
            file=sys.stderr,
        )
    if options.trace:
        trace = timeline.trace([followed.time for followed in launches.followed], ISSUES)
        options.trace.write_text(json.dumps(trace), encoding="utf-8")
    if options.html:
        text = page.page(launches, f"rfops run: {shlex.join(command)}")
        options.html.write_text(text, encoding="utf-8")
    for file in filter(None, (options.trace, options.html)):
        print(f"rfops run: wrote {file}", file=sys.stderr)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
