"""`rfops hipcc ARGUMENTS`: a HIP compiler where there is no ROCm, called as AMD's hipcc.

Sources (.hip, .cu, .cpp, .cc, .cxx) are compiled for the host and for gfx942 or gfx950, and linked
to the virtual GPU's libamdhip64.so: `rfops hipcc add.cpp -o add && rfops run -- ./add`. Programs of
`rfops run` find it as `hipcc` where none is installed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rfops.jit import settings, vgpu_library_folder
from rfops.jit.arch import ARCHS
from rfops.jit.build import hip_source, toolchain
from rfops.jit.build.hip_source import CannotBuild, CompilerFailed

_SOURCES = (".hip", ".cu", ".cpp", ".cc", ".cxx", ".c", ".C")
# Words after which a word belongs to them. Those of the linker; of the preprocessor and the
# compiler; whose file says what a source includes.
_LINKER_PAIRS = ("-L", "-l", "-Xlinker", "-T", "-z", "-u", "-rpath", "-soname")
_COMPILER_PAIRS = (
    *("-I", "-D", "-U", "-include", "-isystem", "-iquote", "-idirafter", "-imacros"),
    *("-Xclang", "-mllvm", "-Xpreprocessor", "-Xassembler"),
)
_DEPENDENCY_PAIRS = ("-MF", "-MT", "-MQ")
_DEPENDENCIES = ("-MD", "-MMD", "-MP", "-MG")
_OF_HALF = {"-Xarch_device": "device", "-Xarch_host": "host"}
_LINKER = ("-Wl,", "-L", "-l", "-fuse-ld=", "-static", "-rdynamic", "-nostdlib", "-no-pie")
_GENCO = ("--genco", "--cuda-device-only", "--offload-device-only")
# What hipcc takes and nothing here depends on: where ROCm lies, its steps, what it keeps of them.
_DROPPED = re.compile(
    r"--(rocm|hip|rocm-device-lib|hip-device-lib)-path=.*|--hip-(link|version=.*)|--hipstdpar"
    r"|-?-save-temps.*|-parallel-jobs=.*|-fno-gpu-rdc|--(no-)?gpu-bundle-output|--driver-mode=.*"
    r"|-march=.*|-mtune=.*|--rtlib=.*|-rtlib=.*|-pipe|-v|--offload-new-driver|--no-offload-new-driver"
)
_REFUSED = {
    "-fgpu-rdc": "device code of several sources is not linked: include them in one",
    "-E": "sources are not only preprocessed",
    "-M": "use -MD -MF FILE, which writes what a source includes while it is compiled",
    "-MM": "use -MMD -MF FILE, which writes what a source includes while it is compiled",
}


@dataclass
class Command:
    """A command line of hipcc, by what each word is for."""

    sources: list[Path] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)  # of the linker, and its words, in order
    flags: list[str] = field(default_factory=list)  # of both halves
    device: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    archs: list[str] = field(default_factory=list)
    modes: set[str] = field(default_factory=set)
    output: str = ""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops hipcc` to the command line; all words behind it are hipcc's."""
    parser = commands.add_parser(
        "hipcc",
        help="compile HIP programs without ROCm, as hipcc does",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prefix_chars="\0",  # none: -c and --version are hipcc's
        add_help=False,
    )
    parser.add_argument("words", nargs=argparse.REMAINDER)
    parser.set_defaults(command=lambda options: compile_command(options.words))


def compile_command(words: list[str]) -> int:
    """Do what hipcc does with these words; its exit status."""
    if not words or set(words) & {"--help", "-h"}:
        print(__doc__)
        return 0
    if "--version" in words:
        print(_version())
        return 0
    try:
        build(parsed(words))
    except CompilerFailed as error:
        print(error.output, end="", file=sys.stderr)
        return 1
    except (CannotBuild, ValueError, OSError) as error:
        print(f"hipcc (rfops): {error}", file=sys.stderr)
        return 1
    return 0


def _version() -> str:
    header = (hip_source.amd_folder() / "include/hip/hip_version.h").read_text(encoding="utf-8")
    number = [
        re.search(rf"VERSION_{level}\s+(\d+)", header) for level in ("MAJOR", "MINOR", "PATCH")
    ]
    hip = ".".join(match[1] for match in number if match)
    return f"HIP version: {hip} (rfops hipcc)\n{hip_source.zig('clang', '--version').strip()}"


# ---------------------------------------------------------------- the command line


def parsed(words: list[str]) -> Command:
    """The words of a command line, `@FILE`s among them, by what they are for.

    Raises ValueError for what cannot be had here, and says what can.
    """
    found, rest = Command(), _words(words)
    for word in rest:
        if word in _REFUSED:
            raise ValueError(f"{word}: {_REFUSED[word]}")
        if word == "-o":
            found.output = _next(rest, word)
        elif word == "-x":
            _check_language(_next(rest, word))
        elif word in _OF_HALF:
            getattr(found, _OF_HALF[word]).append(_next(rest, word))
        elif word in _COMPILER_PAIRS:
            found.flags += [word, _next(rest, word)]
        elif word in _DEPENDENCY_PAIRS:
            found.host += [word, _next(rest, word)]
        elif word in _LINKER_PAIRS:
            found.inputs += [word, _next(rest, word)]
        else:
            _take(found, word)
    found.archs = _archs(found.archs)
    if not found.sources and not found.inputs:
        raise ValueError("no input files")
    if found.output and len(found.sources) > 1 and not is_linked(found):
        raise ValueError(f"-o {found.output}: of {len(found.sources)} sources each has a file")
    return found


def _take(found: Command, word: str) -> None:
    """A word that stands alone."""
    name, _, value = word.partition("=")
    if name in ("--offload-arch", "--amdgpu-target"):
        found.archs += value.split(",")
    elif word in ("-c", "-S", "-shared", "-fsyntax-only") or word in _GENCO:
        found.modes.add("--genco" if word in _GENCO else word)
    elif word in ("--cuda-host-only", "--offload-host-only"):
        raise ValueError(f"{word}: host code is compiled with its kernels")
    elif word in _DEPENDENCIES:
        found.host.append(word)
    elif _DROPPED.fullmatch(word):
        pass
    elif word.startswith(_LINKER):
        found.inputs.append(word)
    elif word.startswith("-"):
        found.flags.append(word)
        if word == "-pthread":
            found.inputs.append(word)
    elif word.endswith(_SOURCES):
        found.sources.append(Path(word))
    else:
        found.inputs.append(word)


def _words(words: list[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("@") and Path(word[1:]).is_file():
            yield from _words(shlex.split(Path(word[1:]).read_text(encoding="utf-8")))
        else:
            yield word


def _next(words: Iterator[str], name: str) -> str:
    word = next(words, None)
    if word is None:
        raise ValueError(f"{name}: a word must follow it")
    return word


def _check_language(language: str) -> None:
    if language not in ("hip", "c++", "cu", "cuda", "none"):
        raise ValueError(f"-x {language}: sources are HIP or C++")


def _archs(words: list[str]) -> list[str]:
    """Those of the virtual GPU, each once; of others nothing is built if there is one of them."""
    names = [word.partition(":")[0] for word in words]
    own = settings.text("RFOPS_VGPU_ARCH")
    names = [own if name == "native" else name for name in names] or [own]
    found = [name for name in dict.fromkeys(names) if name in ARCHS]
    if not found:
        asked = ", ".join(names)
        raise ValueError(f"--offload-arch={asked}: the virtual GPU is {' or '.join(ARCHS)}")
    return found


def is_linked(command: Command) -> bool:
    """Whether a program or a shared library is made."""
    return not command.modes & {"-c", "-S", "--genco", "-fsyntax-only"}


# ---------------------------------------------------------------- building


def build(command: Command) -> None:
    """Do what a command line asks for. Raises CannotBuild, ValueError, OSError."""
    for source in command.sources:
        if not source.is_file():
            raise FileNotFoundError(f"{source}: no such file")
    with tempfile.TemporaryDirectory(prefix="rfops-hipcc-") as name:
        folder = Path(name)
        if "-fsyntax-only" in command.modes:
            _for_each_source(command, lambda source, _: _check_syntax(command, source))
        elif command.modes & {"-S", "--genco"}:
            _for_each_source(
                command, lambda source, i: _device_file(command, source, folder / f"{i}")
            )
        elif "-c" in command.modes:
            _for_each_source(
                command,
                lambda source, i: _object(
                    command, source, folder / f"{i}", _output(command, source, ".o")
                ),
            )
        else:
            objects = [folder / f"{i}.o" for i in range(len(command.sources))]
            _for_each_source(
                command, lambda source, i: _object(command, source, folder / f"{i}", objects[i])
            )
            _link(command, objects)


def _for_each_source(command: Command, build: Callable[[Path, int], None]) -> None:
    """Sources side by side; the first that fails is told of."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(build, command.sources, range(len(command.sources))))


def _output(command: Command, source: Path, suffix: str) -> Path:
    return Path(command.output or source.with_suffix(suffix).name)


def _check_syntax(command: Command, source: Path) -> None:
    flags = [*command.flags, *command.host]
    clang = hip_source.clang_for(command.archs[0])
    _say(hip_source.zig(*clang, *flags, *hip_source.FOR_HOST, "-fsyntax-only", source))


def _device_file(command: Command, source: Path, stem: Path) -> None:
    """A bundle of code objects, or with -S one architecture's assembly."""
    if "-S" not in command.modes:
        _bundle(command, source, stem, _output(command, source, ".hipfb"))
        return
    if len(command.archs) > 1:
        raise ValueError(f"-S: of {', '.join(command.archs)} name one by --offload-arch")
    flags = [*command.flags, *command.device]
    output = _output(command, source, ".s")
    _say(hip_source.device_assembly(source, flags, command.archs[0], output))


def _bundle(command: Command, source: Path, stem: Path, output: Path) -> None:
    codes = [(arch, stem.with_name(f"{stem.name}-{arch}.hsaco")) for arch in command.archs]
    for arch, file in codes:
        hip_source.code_object(source, [*command.flags, *command.device], arch, file)
    output.write_bytes(hip_source.bundle_of(codes))


def _object(command: Command, source: Path, stem: Path, output: Path) -> None:
    if source.suffix == ".c":
        own = [*command.flags, *command.host, "-c", str(source), "-o", str(output)]
        _say(hip_source.run([*toolchain.host_toolchain().argv, "-x", "c", "-fPIC", *own]))
        return
    fat, flags = stem.with_suffix(".hipfb"), [*command.flags, *command.host]
    if any(word in _DEPENDENCIES for word in flags) and "-MF" not in flags:
        flags += ["-MF", str(output.with_suffix(".d"))]
    _bundle(command, source, stem, fat)
    _say(hip_source.host_object(source, flags, command.archs[0], fat, output))


def _link(command: Command, objects: list[Path]) -> None:
    folder = vgpu_library_folder()
    words = [*toolchain.host_toolchain().argv, "-o", command.output or "a.out"]
    words += ["-shared"] * ("-shared" in command.modes)
    words += [*map(str, objects), *command.inputs, str(folder / "libamdhip64.so")]
    _say(hip_source.run([*words, f"-Wl,-rpath,{folder}"]))


def _say(output: str) -> None:
    print(output, end="", file=sys.stderr)
