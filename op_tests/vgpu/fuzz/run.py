"""Coverage-guided fuzzing of the virtual GPU with libFuzzer, under the address and undefined
behaviour sanitizers:

    python op_tests/vgpu/fuzz/run.py --seconds 300           all targets, one after the other
    python op_tests/vgpu/fuzz/run.py loader --seconds 60     one of them
    python op_tests/vgpu/fuzz/run.py --seconds 300 --keep    and keep what reached new code

It needs clang 14 or newer with its fuzzer runtime (on Debian: clang and libclang-rt-dev of one
version). A finding is left in build/fuzz/<target>/findings and makes the exit status 1; run
build/fuzz/fuzz_<target> with the file's name to see it again. The corpus is kept in
op_tests/vgpu/fuzz/<target>.tar.xz, minimised; test_vgpu_fuzz.py replays it, with mutations of
its own, on the virtual GPU as it is built for everybody.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rfops.jit.build.cpu import level_flags
from rfops.jit.build.spec import module_spec

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "fuzz"
TARGETS = {"loader": 8_000, "decoder": 256, "run": 512}  # and the longest input, in bytes
FLAGS = (
    "-std=c++20",
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-pthread",
    "-ffp-contract=off",
    "-fsanitize=fuzzer-no-link,address,undefined",
    "-fsanitize-recover=undefined",
    "-fno-sanitize=function,vptr",
)
CORPUS_BYTES = 60_000  # of a target's corpus, packed


def compiler() -> str:
    names = [os.environ.get("CXX", ""), "clang++", *(f"clang++-{v}" for v in range(22, 13, -1))]
    for name in names:
        if "clang" in name and shutil.which(name):
            return name
    sys.exit("no clang++ 14 or newer found (CXX may name one)")


def run(*command: str | Path) -> None:
    completed = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{completed.stderr[-4000:]}")


def build() -> None:
    """Objects of the virtual GPU that are older than any source, then the targets."""
    cxx, flags = compiler(), (*FLAGS, *level_flags(zig=False), f"-I{ROOT / 'csrc'}")
    BUILD.mkdir(parents=True, exist_ok=True)
    sources = module_spec("vgpu").sources()
    newest = max(file.stat().st_mtime for file in (ROOT / "csrc" / "vgpu").glob("*/*.h"))

    def compile_one(source: Path) -> Path:
        built = BUILD / f"{source.stem}.o"
        since = max(newest, source.stat().st_mtime)
        if not built.exists() or built.stat().st_mtime < since:
            run(cxx, *flags, "-c", source, "-o", built)
        return built

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    for target in TARGETS:
        own = compile_one(HERE / f"fuzz_{target}.cpp")
        libraries = ("-fsanitize=fuzzer,address,undefined", "-pthread", "-ldl")
        run(cxx, own, *objects, *libraries, "-o", BUILD / f"fuzz_{target}")


def unpack(target: str) -> Path:
    corpus = BUILD / target / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    (BUILD / target / "findings").mkdir(exist_ok=True)
    if (HERE / f"{target}.tar.xz").exists():
        with tarfile.open(HERE / f"{target}.tar.xz") as packed:
            packed.extractall(corpus, filter="data")
    return corpus


def fuzz(target: str, seconds: int) -> bool:
    """Whether nothing was found."""
    corpus, findings = unpack(target), BUILD / target / "findings"
    previous = set(findings.iterdir())
    command = [
        str(BUILD / f"fuzz_{target}"),
        str(corpus),
        f"-max_total_time={seconds}",
        f"-max_len={TARGETS[target]}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-malloc_limit_mb=2048",
    ]
    environment = {"UBSAN_OPTIONS": "halt_on_error=1", **os.environ}
    completed = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    runs = re.search(r"number_of_executed_units: (\d+)", completed.stderr)
    reached = re.findall(r"cov: (\d+) ft: (\d+)", completed.stderr)
    print(
        f"{target}: {runs[1] if runs else 'unknown'} executions in {seconds} s, coverage "
        f"{'edges {} features {}'.format(*reached[-1]) if reached else 'unknown'}, "
        f"exit status {completed.returncode}",
        flush=True,
    )
    for file in sorted(set(findings.iterdir()) - previous):
        print(f"  finding: {file}")
    if completed.returncode:
        print(completed.stderr[-6000:])
    return completed.returncode == 0


def pack(files: list[Path]) -> bytes:
    """The same bytes for the same contents; similar files cost little beside each other."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as packed:
        for number, file in enumerate(files):
            entry = tarfile.TarInfo(f"{number:04}")
            entry.size = file.stat().st_size
            packed.addfile(entry, io.BytesIO(file.read_bytes()))
    return stream.getvalue()


def keep(target: str) -> None:
    """The smallest part of the corpus that reaches all that the whole reaches, or as much of it as
    there is room for."""
    small = BUILD / target / "minimised"
    shutil.rmtree(small, ignore_errors=True)
    small.mkdir()
    run(BUILD / f"fuzz_{target}", "-merge=1", small, BUILD / target / "corpus")
    files = sorted(small.iterdir(), key=lambda file: (file.stat().st_size, file.name))
    while len(packed := pack(files)) > CORPUS_BYTES:
        files = files[: int(len(files) * CORPUS_BYTES / len(packed)) - 1]
    (HERE / f"{target}.tar.xz").write_bytes(packed)
    print(f"{target}: {len(files)} inputs in {len(packed)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], default=[])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="put what was reached into the corpus")
    options = parser.parse_args()
    build()
    clean = True
    for target in options.targets or TARGETS:
        clean &= fuzz(target, options.seconds)
        if options.keep:
            keep(target)
    sys.exit(not clean)


if __name__ == "__main__":
    main()
