"""A small project of its own for the engine's tests: a kernel with a header that includes another,
a config file, an empty cache, and a `hipcc` that does hipcc's work and writes down every call."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rfops.jit import CompiledOp, compile_ops, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from rfops.jit.build import failures
from support import OP_TESTS
from support.process import python

TYPES = "#define __global__ __attribute__((global))\n"
SCALE = '#pragma once\n#include "rfops_test/types.h"\nconstexpr float kScale = 1.0f;\n'
KERNEL = """
#include "rfops_test/scale.h"
#ifndef RFOPS_BIAS
#define RFOPS_BIAS 0
#endif
extern "C" __global__ void axpy(float* out, const float* x, float a, int n) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) out[i] = kScale * a * x[i] + RFOPS_BIAS;
}
"""

# hipcc's command line in, a real code object out: the three steps of ziglang's clang.
HIPCC = """\
#!{python}
import json, os, subprocess, sys
args = sys.argv[1:]
with open({log!r}, "a") as log:  # one write: calls of two processes do not mix
    log.write(json.dumps(args) + "\\n")
if args == ["--version"]:
    print("HIP version: 7.0\\n" + open({version!r}).read() + "\\nInstalledDir: /nowhere/bin")
    sys.exit(0)
for flag in ("--genco", "--no-gpu-bundle-output"):
    args.remove(flag)
arch = next(a.split("=")[1] for a in args if a.startswith("--offload-arch="))
if arch in {unknown!r}:
    sys.exit("clang++: error: invalid target ID '" + arch + "'")
at = args.index("-o")
out = args[at + 1]
del args[at:at + 2]
clang = [{zig!r}, "clang"]
front = ["-x", "hip", "--cuda-device-only", "-nogpulib", *args]
if "-S" in args:
    sys.exit(subprocess.call([*clang, *front, "-o", out]))
{before}
def step(*command):
    code = subprocess.call(command)
    if code:
        sys.exit(code if code > 0 else 128 - code)  # of a signal as shells report it
step(*clang, *front, "-S", "-o", out + ".s")
step(*clang, "--target=amdgcn-amd-amdhsa", "-mcpu=" + arch, "-c", out + ".s", "-o", out + ".o")
step({zig!r}, "ld.lld", "-shared", out + ".o", "-o", out)
"""


# For `write_hipcc`: a compile waits until a file is there, or has so many bytes. The minute only
# ends what a test that failed has left behind.
WAIT_FOR = """\
import time
for _ in range(6000):
    if os.path.exists({file!r}) and os.path.getsize({file!r}) >= {size}: break
    time.sleep(0.01)
"""


def wait_for(file: Path, size: int = 0) -> str:
    """Python for `write_hipcc(before=...)`."""
    return WAIT_FOR.format(file=str(file), size=size)


def zig() -> str:
    """ziglang's binary."""
    import ziglang

    return str(Path(ziglang.__file__).parent / "zig")


@dataclass
class Child:
    """A forked process: as good as a new one to the cache, and there in a millisecond."""

    pid: int
    pipe: int

    @classmethod
    def run(cls, function: Callable[[], Any]) -> Child:
        """The function's result or its exception goes through the pipe."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid:
            os.close(theirs)
            return cls(pid, ours)
        try:
            os.close(ours)
            try:
                result = function()
            except Exception as error:
                result = error
            with os.fdopen(theirs, "wb") as stream:
                pickle.dump(result, stream)
            os._exit(0)
        finally:  # never back into pytest
            os._exit(1)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def result(self) -> Any:
        """What the function returned or raised; None if the process was killed."""
        with os.fdopen(self.pipe, "rb") as stream:
            data = stream.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        return pickle.loads(data) if data else None


@dataclass
class Project:
    """The files of one test's project."""

    root: Path

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def config(self) -> Path:
        return self.root / "compiler_config.json"

    @property
    def source(self) -> Path:
        return self.root / "axpy.hip"

    @property
    def header(self) -> Path:
        return self.root / "rfops_test" / "scale.h"

    @property
    def hipcc(self) -> Path:
        return self.root / "bin" / "hipcc"

    def write(self) -> Project:
        """The project's files as a user would have them."""
        (self.root / "rfops_test").mkdir(parents=True)
        (self.root / "rfops_test" / "types.h").write_text(TYPES)
        self.header.write_text(SCALE)
        self.source.write_text(KERNEL)
        self.config.write_text(json.dumps({"axpy": {"srcs": ["axpy.hip"]}}))
        return self

    def write_hipcc(self, prologue: str = "", unknown: tuple[str, ...] = ()) -> Path:
        """The stand-in; `prologue` is Python that runs before each compile."""
        self.hipcc.parent.mkdir(exist_ok=True)
        self.set_version("stand-in clang version 1.0")
        text = HIPCC.format(
            python=sys.executable,
            log=str(self.root / "calls"),
            zig=zig(),
            unknown=unknown,
            version=str(self.root / "version"),
            before=prologue,
        )
        self.hipcc.write_text(text)
        self.hipcc.chmod(0o755)
        return self.hipcc

    def note_arrivals(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A file that from now on grows by a byte whenever a process has found nothing cached, and
        goes on to wait for the build or to do it."""
        file, load_id = self.root / "arrived", failures.last_id

        def arrive(*args: Any) -> str:
            result = load_id(*args)
            with file.open("ab") as stream:
                stream.write(b".")
            return result

        file.touch()
        monkeypatch.setattr(failures, "last_id", arrive)
        return file

    def set_version(self, text: str) -> None:
        (self.root / "version").write_text(text)

    def calls(self) -> list[list[str]]:
        """Command lines that hipcc was called with."""
        log = self.root / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def compiles(self) -> list[list[str]]:
        """Of these, real compiles: neither the version nor the probe of an architecture."""
        return [call for call in self.calls() if "-o" in call and os.devnull not in call]

    @property
    def shelf(self) -> Path:
        """Where the kernel's artifacts for gfx950 lie."""
        return self.cache / "v1" / "gfx950" / "axpy"

    def build(self, **defines: int) -> str:
        """Build for gfx950 in this process: "built" or "found"."""
        return "built" if self.op().build("gfx950", defines).is_new else "found"

    def op(self, **options: object) -> CompiledOp:
        """The kernel's op, new: nothing of it is bound yet."""

        def axpy(out: torch.Tensor, x: torch.Tensor, a: f32, n: i32) -> None:
            """out = scale * a * x + bias"""

        return compile_ops("axpy", config=self.config, **options)(axpy)  # type: ignore[arg-type]

    def run(self, op: CompiledOp, n: int = 100, **defines: int) -> torch.Tensor:
        """2 * (0, 1, 2, ...) through the kernel."""
        x = torch.arange(n, dtype=torch.float32)
        out = torch.full((n,), torch.nan)
        bound = op.bind(x.device, defines)
        bound.launch(((n + 63) // 64, 1, 1), (64, 1, 1), (out, x, 2.0, n))
        return out

    def start(self, code: str, **env: str) -> subprocess.Popen[str]:
        """A new process that has `project` and runs the code."""
        return subprocess.Popen(
            [sys.executable, "-c", self._with_project(code)],
            text=True,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def python(self, code: str, **env: str) -> str:
        """Its output; the test fails with its errors."""
        completed = python(self._with_project(code), **env)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def _with_project(self, code: str) -> str:
        prelude = f"""
            import sys, time
            sys.path.insert(0, {str(OP_TESTS)!r})
            from pathlib import Path
            from support.engine_project import Project
            project = Project(Path({str(self.root)!r}))
        """
        return textwrap.dedent(prelude) + textwrap.dedent(code)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vgpu_path: Path) -> Project:
    """A project with an empty cache and the stand-in hipcc as its compiler."""
    result = Project(tmp_path / "project").write()
    result.write_hipcc()
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(result.cache))
    monkeypatch.setenv("RFOPS_HIPCC", str(result.hipcc))
    monkeypatch.setenv("RFOPS_HIP_LIBRARY", str(vgpu_path))
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")  # test_engine_dispatch.py has the native one
    return result


EVERY_SCALAR = """
#define __global__ __attribute__((global))
extern "C" __global__ void scalars(double* out, signed char a, unsigned char b, short c,
                                   unsigned short d, int e, unsigned f, long g, unsigned long h,
                                   float i, double j, signed char k, const double* last) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f; out[6] = g; out[7] = h;
  out[8] = i; out[9] = j; out[10] = k; out[11] = last ? *last : -1.0;
}
"""
VALUES = (-128, 255, -(2**15), 2**16 - 1, -(2**31), 2**32 - 1, -(2**53), 2**63, 0.1, 0.1, -7)


def scalars(
    out: torch.Tensor,
    a: i8,
    b: u8,
    c: i16,
    d: u16,
    e: i32,
    f: u32,
    g: i64,
    h: u64,
    i: f32,
    j: f64,
    k: i8,
    last: torch.Tensor | None,
) -> None:
    """EVERY_SCALAR's parameters, each of another kind; VALUES are its scalars' extremes."""


# A hipcc that only copies: what is tested is ours, and there are a hundred builds.
COPYING_HIPCC = """\
#!/bin/sh
case "$*" in
--version) echo "stand-in clang version 1.0" ;;
*/dev/null*) ;;
*) {before}
  echo compile >>{root}/calls
  cp {root}/ready module.hsaco
  echo "m: {root}/axpy.hip {root}/rfops_test/scale.h {root}/rfops_test/types.h" >deps.d ;;
esac
"""


@pytest.fixture
def quick(project: Project) -> Project:
    """The project with a compiler that takes milliseconds."""
    ready = project.op().build("gfx950")
    shutil.copy(ready.file, project.root / "ready")
    shutil.rmtree(project.cache)
    (project.root / "calls").unlink()
    write_copying_hipcc(project)
    return project


def write_copying_hipcc(project: Project, prologue: str = "") -> None:
    project.hipcc.write_text(COPYING_HIPCC.format(root=project.root, before=prologue))


def run_in(root: str) -> float:
    """What a worker process of any kind calls."""
    return float(Project(Path(root)).run(Project(Path(root)).op()).sum())
