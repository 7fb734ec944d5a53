"""`rfops build`: all that ops declare, a manifest, or one variant, ahead of the first call."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rfops.cli import executor
from rfops.cli.common import declared_ops, elsewhere, with_ops
from rfops.cli.executor.driver import Outcome, Run, Task
from rfops.jit import BuildError, RfopsError, ToolchainNotFound, paths
from rfops.jit.arch import ARCHS
from rfops.jit.build import resources, toolchain
from rfops.jit.build.device import build_device
from rfops.jit.build.host import build_host
from rfops.jit.build.spec import ModuleSpec, load_config, module_spec
from rfops.jit.cache import transfer
from rfops.jit.policy import manifest, strict
from rfops.jit.policy.manifest import BuildRequest, TritonBuildRequest

Entry = BuildRequest | TritonBuildRequest


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    build = commands.add_parser("build", help="build modules ahead of their first call; no GPU")
    build.add_argument("modules", nargs="*", help="modules, or ops; none: all that ops declare")
    build.add_argument("--arch", default=",".join(ARCHS), help="default: %(default)s")
    build.add_argument("--manifest", type=Path, help="build what a run used, as it was recorded")
    build.add_argument("--config", type=Path, help="another compiler_config.json")
    build.add_argument(
        "-D",
        dest="defines",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="build this variant and not those that the op declares",
    )
    build.add_argument("-j", dest="jobs", type=int, default=0, help="compilers at once, at most")
    executor.add_arguments(build)
    build.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Goes on after a failure and reports it at the end; status 1 if there was one."""
    requests = list(dict.fromkeys(_requests(options)))
    if options.executor:
        return _build_on_executor(requests, options)
    begin, failed = time.monotonic(), 0
    reasons: dict[object, str] = {}
    progress = _Bar(len(requests))
    gate = _MemoryGate()
    workers = resources.jobs(options.jobs)
    if options.jobs < 0:
        raise ValueError(f"-j {options.jobs}: expected 1 or more, or 0 for as many as fit")

    longest = 0.0, ""

    def job(entry: Entry) -> tuple[Entry, float, str, RfopsError | None]:
        with gate:
            start = time.monotonic()
            state, error = _build(entry)
            return entry, time.monotonic() - start, state, error

    with strict.allowed(), progress, ThreadPoolExecutor(max_workers=workers) as pool:
        # Host libraries are parallel in themselves, Triton has one driver for the process.
        in_turn = [e for e in requests if e.arch == "host" or isinstance(e, TritonBuildRequest)]
        devices = [entry for entry in requests if entry not in in_turn]
        results = itertools.chain(pool.map(job, devices), map(job, in_turn))
        with _stopping(pool):
            for entry, seconds, state, error in results:
                if state == "built":
                    longest = max(longest, (seconds, str(entry)))
                progress.show(str(entry), state, line=not isinstance(error, ToolchainNotFound))
                if error is not None:
                    failed += 1
                    reasons.setdefault(*_reason(error))
    for reason in reasons.values():
        print(f"rfops: {reason}", file=sys.stderr)
    text = f"{len(requests) - failed} of {len(requests)} in {time.monotonic() - begin:.1f} s"
    print(f"{text}; the longest {longest[0]:.1f} s: {longest[1]}" if longest[1] else text)
    return 1 if failed else 0


@contextlib.contextmanager
def _stopping(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Whatever ends this early (Ctrl-C) begins no further build, and ends the compilers."""
    try:
        yield
    except BaseException:
        from rfops.jit.build import process

        pool.shutdown(wait=False, cancel_futures=True)
        process.end_all()
        raise


def _build_on_executor(requests: list[Entry], options: argparse.Namespace) -> int:
    """By the workers of an executor, whose builds come into this cache."""
    if options.executor == "ray" and any(
        e.config != paths.COMPILER_CONFIG for e in _module_requests(requests)
    ):
        raise ValueError("--executor ray: the nodes have rfops' own modules, not those of --config")
    begin, progress, failed = time.monotonic(), _Bar(len(requests)), list[str]()
    tasks = [
        Task(str(entry), "rfops.cli.build:build_task", (entry, options.executor == "ray"))
        for entry in requests
    ]

    def on_outcome(number: int, outcome: Outcome, _progress: str) -> None:
        state, error, data = outcome.result or ("failed", outcome.error, b"")
        if data:
            _import_archive(data)
        if error:
            failed.append(error)
        progress.show(str(requests[number]), state)

    with progress:
        pool = executor.pool(options, False)
        Run(pool, tasks, on_outcome, options.limit, lambda text: print(text, file=sys.stderr))()
    for error in dict.fromkeys(failed):
        print(f"rfops: {error}", file=sys.stderr)
    print(f"{len(requests) - len(failed)} of {len(requests)} in {time.monotonic() - begin:.1f} s")
    return 1 if failed else 0


def _module_requests(requests: list[Entry]) -> list[BuildRequest]:
    return [entry for entry in requests if isinstance(entry, BuildRequest)]


def build_task(entry: Entry, is_far: bool) -> tuple[str, str, bytes]:
    """In a worker: how it went, and the module's builds where another cache is to have them."""
    if is_far and isinstance(entry, BuildRequest):  # this node's own sources
        entry = replace(entry, config=paths.COMPILER_CONFIG)
    with strict.allowed():
        state, error = _build(entry)
    data = b""
    if error is None and is_far and isinstance(entry, BuildRequest):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "builds"
            transfer.export(file, (entry.arch,), (entry.module,))
            data = file.read_bytes()
    return state, _reason(error)[1] if error else "", data


def _import_archive(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "builds"
        file.write_bytes(data)
        transfer.import_(file)


def _reason(error: RfopsError) -> tuple[object, str]:
    """What it says, and by what it is said once: a compiler that is missing, for all variants of
    all architectures; what one says, for all variants of a module."""
    if isinstance(error, ToolchainNotFound):
        return error.rejected, str(error)
    if isinstance(error, BuildError):
        return (error.module, error.cause, error.output), error.brief
    return str(error), str(error)


def _build(entry: Entry) -> tuple[str, RfopsError | None]:
    try:
        if isinstance(entry, TritonBuildRequest):
            return "built" if _build_triton(entry) else "cached", None
        spec = module_spec(entry.module, entry.config)
        if entry.arch == "host":
            artifact = build_host(spec)
        else:
            artifact = build_device(spec, entry.arch, dict(entry.defines))
    except RfopsError as error:
        return "failed", error
    return "built" if artifact.is_new else "cached", None


def _build_triton(entry: TritonBuildRequest) -> bool:
    """Through the virtual GPU's driver: no GPU is needed, and the cache's keys are the same."""
    with_ops()
    from rfops import vgpu
    from rfops.jit.policy import triton_builds

    try:
        vgpu.activate_triton(entry.arch)
    except ImportError as error:
        raise BuildError(entry.kernel, "Triton", str(error), None) from error
    try:
        return triton_builds.preload(entry)
    finally:
        vgpu.deactivate_triton()


# ---------------------------------------------------------------- what


def _requests(options: argparse.Namespace) -> Iterator[Entry]:
    archs = options.arch.split(",")
    for arch in archs:
        if arch not in ARCHS:
            raise ValueError(f"--arch {arch}: expected some of {','.join(ARCHS)}")
    if options.manifest is not None:
        selected = options.modules
        for entry in manifest.load(options.manifest):
            name = entry.kernel if isinstance(entry, TritonBuildRequest) else entry.module
            if (not selected or name in selected) and entry.arch in (*archs, "host"):
                yield entry
        return
    defines = manifest.defines_of(dict(map(define, options.defines)))
    if defines and not options.modules:
        raise ValueError("-D: expected a module to build with it, got none")
    config = options.config.absolute() if options.config else paths.COMPILER_CONFIG
    ops = dict.fromkeys(op.module for op in declared_ops())
    is_default_config = config == paths.COMPILER_CONFIG
    modules_known = [
        *ops,
        *(n for n, s in load_config(config).items() if not is_default_config or s.kind == "host"),
    ]
    other_modules = elsewhere() if is_default_config else {}
    modules_known += other_modules
    default = [*ops, *other_modules, *_launcher()] if is_default_config else modules_known
    for name in (
        _resolve_names(options.modules, modules_known, is_default_config)
        if options.modules
        else default
    ):
        spec = module_spec(name, other_modules.get(name, config))
        if options.modules and spec.kind == "device" and not set(archs) & set(spec.archs):
            spec.require_arch(archs[0])
        yield from variants(spec, archs, defines)


def _resolve_names(
    names: list[str], modules_known: list[str], is_default_config: bool
) -> list[str]:
    """Modules by their names or by that of their op. Raises ValueError."""
    from rfops.dispatch.op import ops

    names_found: list[str] = []
    for name in names:
        if name not in modules_known and not (is_default_config and name in ops()):
            raise ValueError(f"no op uses a module {name!r}; modules: {', '.join(modules_known)}")
        names_found += [name] if name in modules_known else ops()[name].modules
        if name not in modules_known and not ops()[name].modules:
            print(f"{name}: nothing to build, its kernels are {', '.join(ops()[name].kernels)}")
    return list(dict.fromkeys(names_found))


def _launcher() -> list[str]:
    """The native launcher's module, where it can be built at all."""
    from rfops.jit.launch import launcher

    try:
        toolchain.python_headers(launcher.MODULE)
        toolchain.host_toolchain()
    except RfopsError:
        return []
    return [launcher.MODULE]


def variants(
    spec: ModuleSpec, archs: Collection[str], defines: tuple[tuple[str, Any], ...]
) -> Iterator[BuildRequest]:
    """The variant of these defines, or all that the module's op declares, for each architecture."""
    if spec.kind == "host":
        yield BuildRequest(spec.name, "host", (), spec.config)
        return
    candidates = () if defines else declared_ops(spec.config)
    ops = [op for op in candidates if op.module == spec.name and op.variants]
    for arch in (arch for arch in archs if arch in spec.archs):
        declared = [d for op in ops for d in (op.variants(arch) if op.variants else ())]
        for variant in declared if ops else [dict(defines)]:  # two kernels may declare the same
            yield BuildRequest(spec.name, arch, manifest.defines_of(variant), spec.config)


def define(text: str) -> tuple[str, str]:
    """NAME=VALUE of the command line. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"-D {text}: expected NAME=VALUE")
    return name, value


# ---------------------------------------------------------------- how


class _MemoryGate:
    """Lets a job begin when there is memory for a compiler, or when none is running."""

    def __init__(self) -> None:
        self.running = 0
        self.changed = threading.Condition()

    def __enter__(self) -> None:
        with self.changed:
            while self.running and resources.free_memory() < resources.JOB_BYTES:
                self.changed.wait(0.2)
            self.running += 1

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.running -= 1
            self.changed.notify()


class _Bar:
    """A bar where somebody watches, else a line a module."""

    def __init__(self, total: int) -> None:
        self.total, self.begin = total, time.monotonic()
        self.counts = {"built": 0, "cached": 0, "failed": 0}
        self.tty = sys.stdout.isatty()

    def __enter__(self) -> None:
        if self.tty:
            logging.getLogger("rfops").setLevel(logging.WARNING)  # the bar says what is built

    def __exit__(self, *_: object) -> None:
        if self.tty:
            sys.stdout.write("\r\033[K")

    def show(self, name: str, state: str, line: bool = True) -> None:
        self.counts[state] += 1
        num_done = sum(self.counts.values())
        if not self.tty:
            if not line:
                return
            print(f"[{num_done}/{self.total}] {name}: {state}", flush=True)
            return
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        bar = ("#" * (20 * num_done // self.total)).ljust(20, ".")
        text = f"[{bar}] {num_done}/{self.total}, {counts}, {time.monotonic() - self.begin:.0f} s  "
        width = shutil.get_terminal_size().columns - len(text) - 1
        sys.stdout.write(f"\r{text}{name[: max(0, width)]}\033[K")
        sys.stdout.flush()
