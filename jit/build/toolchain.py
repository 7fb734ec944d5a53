"""Which compiler builds what, how it is called, and how it is told apart from another one.

Asking a compiler for its version takes a process, so the answer is kept in the cache beside the
`stat` of the files it came from: a warm start runs nothing.

A compiler's version is part of every key. What has built into a cache is therefore recorded in it
(`compilers/`), and where no compiler is installed, or none may be started, those recorded stand in,
the newest first: there is nothing to contradict them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from .. import log, paths, settings
from ..cache import builders, records, trust
from ..cache.files import cache_root, cache_roots, digest
from ..cache.shelf import Contents, Roots
from ..errors import ToolchainNotFound
from ..forks import importing
from ..policy import strict
from . import resources


def install_clang() -> str:
    """The command that brings a clang to where this rfops lies: a checkout or an installation."""
    if (paths.ROOT / "pyproject.toml").is_file():
        return f"pip install -e '.[clang]' in {paths.ROOT}"
    return "pip install ziglang"


# Of the hipcc that `rfops run` puts on PATH: it calls our own compilers, so it is none of them.
HIPCC_FOLDER = "rfops-hipcc"


def _advice(kind: str) -> str:
    if kind == "device":
        return (
            f"Install ROCm's hipcc (or point RFOPS_HIPCC at it), or: {install_clang()}, which "
            "brings a clang that knows AMD GPUs."
        )
    return f"Install g++ 11 or newer or clang++ 14 or newer, or: {install_clang()}."


@dataclass(frozen=True)
class Toolchain:
    """A compiler that was found. `argv` starts every command; `version` names it without paths."""

    name: str  # "hipcc" | "zig" | "c++"
    argv: tuple[str, ...]
    version: str

    @property
    def headline(self) -> str:
        """The version's telling line: that of clang in hipcc's text, the first one otherwise."""
        lines = self.version.splitlines() or [""]
        return next((line for line in lines if "clang version" in line), lines[0])


def device_candidates() -> Iterator[tuple[str, tuple[str, ...] | None, str]]:
    """(name, command or None, where it was looked for), in the order of preference."""
    hipcc = settings.path("RFOPS_HIPCC")
    if hipcc is not None:
        yield "hipcc", _executable(str(hipcc)), f"RFOPS_HIPCC={hipcc}"
        return  # who names a compiler wants that one, not a quiet other
    rocm = settings.path("ROCM_PATH")
    if rocm is not None:
        yield "hipcc", _executable(str(rocm / "bin" / "hipcc")), f"ROCM_PATH={rocm}"
    yield "hipcc", _executable("hipcc"), "hipcc on PATH"
    yield "zig", _zig("clang"), "the ziglang package of this Python"


def host_candidates() -> Iterator[tuple[str, tuple[str, ...] | None, str]]:
    """As device_candidates, for the virtual GPU's C++."""
    command = settings.word_list("CXX")
    if command:
        compiler, *arguments = command
        executable = _executable(compiler)
        name = "zig" if Path(compiler).stem == "zig" or "ziglang" in arguments else "c++"
        yield name, (*executable, *arguments) if executable else None, f"CXX={settings.text('CXX')}"
        return
    yield "c++", _executable("g++"), "g++ on PATH"
    yield "c++", _executable("clang++"), "clang++ on PATH"
    yield "zig", _zig("c++"), "the ziglang package of this Python"


def _executable(name: str) -> tuple[str, ...] | None:
    path = shutil.which(name)
    return (path,) if path and Path(path).parent.name != HIPCC_FOLDER else None


def _zig(tool: str) -> tuple[str, ...] | None:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    executable = _executable(str(Path(spec.origin).parent / "zig"))
    return (*executable, tool) if executable else None


def device_toolchain(arch: str) -> Toolchain:
    """The first compiler that builds for `arch`. Raises ToolchainNotFound."""
    return choose("device", arch)


def host_toolchain() -> Toolchain:
    """The C++20 compiler for the virtual GPU. Raises ToolchainNotFound."""
    return choose("host", HOST_TARGET)


def choose(kind: str, target: str, refresh: bool = False) -> Toolchain:
    """The compiler that builds; `refresh` looks whether it has been updated meanwhile.

    Raises ToolchainNotFound.
    """
    if refresh:
        _choose.cache_clear()
    return _choose(kind, target, _fingerprint())


def usable(kind: str, target: str) -> Iterator[Toolchain]:
    """The compilers whose artifacts may be used: the one that would build, else those recorded.

    A library of the host does the same whatever compiled it, and takes minutes: those recorded may
    be used beside the compiler that would build. Device code is timed and tuned by its compiler.
    Records are read only by who asks for more than the first.
    """
    if not strict.may_build():
        yield from known_compilers(kind, target)
        return
    try:
        compiler = choose(kind, target)
    except ToolchainNotFound:
        log.get().debug("no compiler for %s: using what the cache has for it", target)
        yield from recorded_compilers(kind)
        return
    yield compiler
    if kind == "host":
        yield from recorded_compilers(kind)


def known_compilers(kind: str, target: str) -> list[Toolchain]:
    """The compiler that would build, if it is known already, and those recorded: no process."""
    compilers = [
        compiler for compiler, _ in survey(kind, target, may_run=False) if compiler is not None
    ]
    return [*compilers[:1], *recorded_compilers(kind)]


def recorded_compilers(kind: str) -> list[Toolchain]:
    """What has built into these caches, newest first, of the kinds that the settings allow."""
    names = {name for name, _, _ in _candidates(kind)}
    return [
        Toolchain(b.name, (), b.version)
        for b in builders.recorded_builders(kind)
        if b.name in names
    ]


def python_headers(purpose: str) -> Path:
    """The folder of Python.h. Raises ToolchainNotFound."""
    import sysconfig

    scheme = sysconfig.get_default_scheme()
    # Debian's scheme names a folder that has no headers.
    folder = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    if not (Path(folder) / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ToolchainNotFound(
            purpose,
            [f"{folder}/Python.h: not found"],
            f"Install the headers of this Python (on Debian: apt install python{version}-dev).",
        )
    return Path(folder)


# hipcc takes its clang and its libraries from where these point.
_HIP_VARIABLES = ("HIP_CLANG_PATH", "HIP_PATH", "HIP_DEVICE_LIB_PATH", "ROCM_PATH")


def _fingerprint() -> tuple[str, ...]:
    names = ("RFOPS_HIPCC", "CXX", "RFOPS_CACHE_DIR", "RFOPS_CACHE_READ")
    variables = ("PATH", *_HIP_VARIABLES)
    return (*map(settings.raw, names), *(os.environ.get(name, "") for name in variables))


def _candidates(kind: str) -> Iterator[tuple[str, tuple[str, ...] | None, str]]:
    return device_candidates() if kind == "device" else host_candidates()


@functools.lru_cache(maxsize=64)
def _choose(kind: str, target: str, _settings: tuple[str, ...]) -> Toolchain:
    rejected = []
    for toolchain, reason in survey(kind, target):
        if toolchain is not None:
            return toolchain
        rejected.append(reason)
    raise ToolchainNotFound(f"{kind} code ({target})", rejected, _advice(kind))


def survey(kind: str, target: str, may_run: bool = True) -> Iterator[tuple[Toolchain | None, str]]:
    """Each candidate: the toolchain where it can build for `target`, and where or why not.

    Without `may_run` no process is started: a compiler that is not known is left out.
    """
    for name, argv, origin in _candidates(kind):
        if argv is None:
            yield None, f"{origin}: not found"
            continue
        record, failure = _recall(argv), ""
        if record is None and may_run:
            record, failure = _run_version(argv)
        if record is None or not (may_run or target in record.targets):
            yield None, f"{origin}: {argv[0]} is not known yet"
            continue
        if not failure and target not in record.targets:
            failure, is_certain = _probe(name, argv, target)
            if is_certain:
                record.targets[target] = failure
                _keep(argv, record)
        failure = failure or record.targets.get(target, "")
        if failure:
            yield None, f"{origin}: {argv[0]} cannot build for {target}: {failure}"
        else:
            yield Toolchain(name, argv, record.version), origin


def _probe(name: str, argv: tuple[str, ...], target: str) -> tuple[str, bool]:
    """Compile an empty source: empty or the complaint, and whether that will stay so."""
    if target == HOST_TARGET:
        flags: tuple[str, ...] = ("-std=c++20", "-x", "c++", "-c")
    else:
        front = (*HIPCC_FLAGS, "-x", "hip") if name == "hipcc" else ZIG_FLAGS
        flags = (*front, f"--offload-arch={target}", "-S")
    try:
        with tempfile.TemporaryDirectory(prefix="rfops-probe-") as folder:
            # Not /dev/null as output: run by root, some tools would replace it.
            code, output = run([*argv, *flags, os.devnull, "-o", f"{folder}/probe.o"])
    except OSError as error:
        free = resources.megabytes(resources.free_disk(Path("/tmp")))
        return f"no room for temporary files, {free} free in /tmp: {error}", False
    if code == 0:
        return "", True
    text = output.lower()
    machine = any(phrase in text for phrase in (*resources.DISK_WORDS, *resources.MEMORY_WORDS))
    is_certain = 0 < code < 126 and not machine  # not killed, did start
    return (output.strip() or f"exit status {code}")[:400], is_certain


HOST_TARGET = "c++20"
HIPCC_FLAGS = ("--genco", "--no-gpu-bundle-output", "-nogpuinc")
ZIG_FLAGS = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib")


# Variables that add flags, headers or tools behind the key's back.
_FLAG_VARIABLES = (
    "HIPCC_COMPILE_FLAGS_APPEND",
    "HIPCC_LINK_FLAGS_APPEND",
    "CCC_OVERRIDE_OPTIONS",
    "CCC_ADD_ARGS",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
)


def environment() -> dict[str, str]:
    """The compilers' environment: English messages; zig keeps its files in our cache."""
    names = [name for name in list(os.environ) if name not in _FLAG_VARIABLES]
    variables = {name: os.environ.get(name) for name in names}  # another thread may take one away
    environ = {name: text for name, text in variables.items() if text is not None}
    environ |= {"LC_ALL": "C", "HIP_PLATFORM": "amd"}
    trust.check(cache_root(), "zig", "o")  # its C++ runtime is linked from there
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        environ.setdefault(name, str(cache_root() / "zig"))
    return environ


def run(command: Iterable[str]) -> tuple[int, str]:
    """Exit status and output of a short command; a command that cannot start has status 127."""
    with importing:
        from . import process  # only on a cold start

    arguments = list(command)
    try:
        return process.output_of(arguments, environment(), 120, umask=trust.umask(cache_root()))
    except process.TimedOut as timeout:
        return 127, f"{shlex.join(arguments)}: no answer in {timeout.seconds:.0f} s"
    except OSError as error:
        return 127, str(error)


class _CompilerRecord(records.Record, frozen=True):
    """What `<cache>/v1/toolchains/` has of one compiler: its files, and what it said."""

    deps: dict[str, str]
    stats: dict[str, list[int]]
    version: str
    targets: dict[str, str]  # target -> "" or why it cannot


_FILES = Roots(())  # absolute paths


def _file(argv: tuple[str, ...]) -> Path:
    surroundings = [os.environ.get(name, "") for name in _HIP_VARIABLES]
    # With the record's fields: versions of rfops that share a cache do not replace each other's.
    name = digest([*argv, *surroundings, *_CompilerRecord.__struct_fields__])[:16]
    return cache_root() / "toolchains" / f"{name}.json"


def _keep(argv: tuple[str, ...], record: _CompilerRecord) -> None:
    with contextlib.suppress(OSError):  # a read-only cache: it is asked again next time
        records.write_sealed(_file(argv), record)


def _recall(argv: tuple[str, ...]) -> _CompilerRecord | None:
    """What a cache knows of the compiler."""
    for root in cache_roots():
        record = records.read_sealed(root, root / "toolchains" / _file(argv).name, _CompilerRecord)
        contents: Contents = {}
        if (
            record is not None
            and record.deps
            and _FILES.are_current(record.deps, record.stats, contents)
        ):
            if contents:  # what was too young then is known by its stat from now on
                record = structs.replace(record, stats=_FILES.stats(contents))
                _keep(argv, record)
            return record
    return None


def _run_version(argv: tuple[str, ...]) -> tuple[_CompilerRecord, str]:
    """What `--version` says, or why it is not known; then the compiler has no key, and is asked
    again."""
    code, output = run([*argv, "--version"])
    folder = ""
    lines = []
    for line in output.splitlines():
        if line.startswith("InstalledDir:"):
            folder = line.split(":", 1)[1].strip()  # hipcc is a wrapper: the clang is in there
        else:
            lines.append(line.rstrip())
    version = "\n".join(lines).strip() if code == 0 else ""
    answer = output.strip()[:200] or f"status {code}"
    watched = [w for argument in argv if (w := shutil.which(argument))]
    watched += [str(Path(folder) / tool) for tool in ("clang", "clang++", "ld.lld") if folder]
    read = _FILES.contents(watched)
    deps = {name: sha for name, (sha, _) in read.items()}
    record = _CompilerRecord(deps, _FILES.stats(read), version, {})
    return record, "" if version else f"no answer to --version: {answer}"
