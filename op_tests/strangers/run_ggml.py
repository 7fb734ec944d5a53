"""llama.cpp's test-backend-ops on the virtual GPU: a build of yours of ggml's HIP backend.

    python op_tests/strangers/debian.py FOLDER hipcc librocblas-dev libhipblas-dev
    python op_tests/strangers/run_ggml.py FOLDER/root BUILD --minutes 15

BUILD has test-backend-ops and libggml-hip.so for gfx942, built as a loadable backend by Debian's
clang, and ggml's own libraries. Each operation's cases are compared with ggml's CPU backend by the
program itself. The exit status is 1 where a case fails, or none ran. A case that ends the process
has failed, and those of its operation behind it do not run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "op_tests"))

from support import strangers  # noqa: E402 - found by the path above

LIBRARIES = "usr/lib/x86_64-linux-gnu"
# The cases of each operation, as the program's own regular expression.
OPERATIONS = {
    "MUL_MAT": r"type_a=(f16|q4_0|q8_0),type_b=f32",
    "FLASH_ATTN_EXT": r"hsk=(64|128),.*type_K=(f16|q4_0|q8_0)",
}
_CASE = re.compile(r"  (\w+)\((.*)\): (.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HOW = {"OK": "passed", "FAIL": "failed"}


def results(operation: str, lines: Iterable[str]) -> Iterator[strangers.Result]:
    """Yield what each line says of a case: OK, FAIL, or that the backend does not support it. A
    case whose line has no word ended the process."""
    for line in lines:
        if not (match := _CASE.match(_COLOUR.sub("", line))):
            continue
        words = match[3].strip()
        how = "skipped" if words.startswith("not supported") else "failed"
        how = _HOW.get(words.split(" ")[-1], how)
        why = "" if how == "passed" else words or "the process ended"
        yield strangers.Result(operation, match[2], how, why=why)


def output(words: list[str], env: dict[str, str], folder: Path, seconds: float) -> Iterator[str]:
    """Yield a program's lines until it ends, or for so many seconds, but for the line in which the
    time cut it off."""
    with subprocess.Popen(
        ["timeout", str(seconds), *words],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            if last:
                yield last
            last = line
        if process.wait() != 124:  # timeout's
            yield last


def main() -> int:
    """Run the operations; return 1 where a case fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="with Debian's usr")
    parser.add_argument("build", type=Path, help="with test-backend-ops and libggml-hip.so")
    parser.add_argument("--arch", default="gfx942", help="that the backend is built for")
    parser.add_argument("--only", choices=OPERATIONS, action="append", metavar="OPERATION")
    parser.add_argument("--minutes", type=float, default=15)
    options = parser.parse_args()
    from rfops.jit import vgpu_library_folder

    own, build = options.root.resolve() / LIBRARIES, options.build.resolve()
    path = ":".join(map(str, (vgpu_library_folder(), own, own / "blas", build)))
    backend = {"GGML_BACKEND_PATH": str(build / "libggml-hip.so"), "RFOPS_VGPU_ARCH": options.arch}
    program = [str(own / "ld-linux-x86-64.so.2"), "--library-path", path]
    program += [str(build / "test-backend-ops"), "test", "-b", "ROCm0"]
    tally, until = strangers.Tally({}), time.monotonic() + 60 * options.minutes
    for operation in options.only or OPERATIONS:
        words = [*program, "-o", operation, "-p", OPERATIONS[operation]]
        seconds = max(0.1, until - time.monotonic())
        for result in results(operation, output(words, os.environ | backend, build, seconds)):
            tally.add(result)
    print(*tally.table(lambda result: result.program), sep="\n")
    status = tally.close("test-backend-ops", options.arch)
    return status if tally.results else 1


if __name__ == "__main__":
    sys.exit(main())
