"""A cache without its compiler, RFOPS_JIT=0, freeze, and the manifest of what a run used."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops.jit.build import toolchain
from rfops.jit.policy import manifest, strict
from support.engine_project import Child, Project
from support.process import python, run

DOUBLED = 2.0 * torch.arange(100, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _thawed() -> object:
    yield
    rfops.freeze("off")


# ---------------------------------------------------------------- without the compiler


def no_compiler(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.hipcc.unlink()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))


def test_a_warm_start_needs_no_compiler(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.build()
    no_compiler(project, monkeypatch)
    assert torch.equal(project.run(project.op()), DOUBLED)
    with pytest.raises(rfops.ToolchainNotFound, match=r"RFOPS_HIPCC=.*: not found"):
        project.build(BIAS=1)


def test_without_a_compiler_an_edit_still_counts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build()
    no_compiler(project, monkeypatch)
    project.header.write_text(project.header.read_text().replace("1.0f", "2.0f"))
    with pytest.raises(rfops.ToolchainNotFound):
        project.build()


def test_the_newest_compiler_of_the_cache_stands_in(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1.0", "2.0", "1.0"):
        project.set_version(f"stand-in clang version {version}")
        project.hipcc.write_text(project.hipcc.read_text() + "#\n")
        project.header.write_text(project.header.read_text() + "//\n")
        project.build()
        project.build(BIAS=int(float(version)))
    no_compiler(project, monkeypatch)
    versions = [results.headline[-3:] for results in toolchain.recorded_compilers("device")]
    assert versions == ["1.0", "2.0"]
    assert project.op().build("gfx950").meta.compiler.endswith("1.0")
    assert not toolchain.recorded_compilers("host")


def test_an_installed_compiler_is_not_stood_in_for(project: Project) -> None:
    """Another compiler that could build means another result: it builds."""
    project.build()
    project.set_version("stand-in clang version 3.0")
    project.hipcc.write_text(project.hipcc.read_text() + "#\n")
    toolchain._choose.cache_clear()  # as in a new process
    assert project.build() == "built"


def test_a_compiler_that_is_updated_under_a_running_process(project: Project) -> None:
    project.build()
    project.set_version("stand-in clang version 4.0")
    project.hipcc.write_text(project.hipcc.read_text() + "#\n")
    assert project.op().build("gfx950", {"BIAS": 1}).meta.compiler.endswith("4.0")


# ---------------------------------------------------------------- RFOPS_JIT=0


def test_never_compile(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.build()
    calls = len(project.calls())
    monkeypatch.setenv("RFOPS_JIT", "0")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert torch.equal(project.run(project.op()), DOUBLED)
    with pytest.raises(rfops.JitDisabled) as caught:
        project.build(BIAS=3, DEEP=True)
    error = caught.value
    assert error.missing == "axpy gfx950 BIAS=3 DEEP=True" and "RFOPS_JIT=0" in str(error)
    assert error.command == (
        f"rfops build axpy --arch gfx950 --config {project.config} -D BIAS=3 -D DEEP=1"
    )
    assert len(project.calls()) == calls


def test_the_command_that_it_names_builds_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rfops import cli

    monkeypatch.setenv("RFOPS_JIT", "0")
    with pytest.raises(rfops.JitDisabled) as caught:
        project.build(BIAS=3)
    assert cli.main(caught.value.command.split()[1:]) == 0
    assert project.build(BIAS=3) == "found"


def test_never_compile_asks_no_new_compiler(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFOPS_JIT", "0")
    with pytest.raises(rfops.JitDisabled):
        project.build()
    assert not project.calls()


# ---------------------------------------------------------------- freeze


def test_frozen(
    project: Project, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rfops"), "propagate", True)
    project.build()
    rfops.freeze("error")
    assert torch.equal(project.run(project.op()), DOUBLED)
    with pytest.raises(rfops.JitDisabled, match=r'axpy gfx950 BIAS=1 .* rfops\.freeze\("error"\)'):
        project.build(BIAS=1)
    rfops.freeze("warn")
    assert project.build(BIAS=1) == "built"
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "axpy gfx950 BIAS=1" in warning and "rfops build axpy" in warning
    with pytest.raises(ValueError, match="freeze: mode must be one of warn, error, off"):
        rfops.freeze("loud")


def run_triton(add: Any, n: int) -> None:
    x, out = torch.arange(n, dtype=torch.float32), torch.full((n,), torch.nan)
    add[(1,)](x, x, out, n, BLOCK=n)
    assert torch.equal(out, 2 * x)


def test_frozen_triton(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gfx950: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kernel that its disk cache has runs; one that it has not is refused."""
    from support.vgpu_triton_kernels import add

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(logging.getLogger("rfops"), "propagate", True)
    rfops.vgpu.activate_triton("gfx950")
    add.device_caches.clear()  # what another test has built is in memory, not in this folder
    try:
        run_triton(add, 64)
        rfops.freeze("error")
        run_triton(add, 64)
        add.device_caches.clear()
        run_triton(add, 64)
        rfops.freeze("warn")
        run_triton(add, 32)
        (warning,) = [r.getMessage() for r in caplog.records if "freeze" in r.getMessage()]
        assert "built after rfops.freeze(): Triton's kernel add for gfx950" in warning
        rfops.freeze("error")
        with pytest.raises(rfops.JitDisabled, match="Triton's kernel add for gfx950"):
            run_triton(add, 128)
        monkeypatch.setenv("RFOPS_JIT", "0")
        rfops.freeze("off")
        run_triton(add, 128)  # not a kernel of rfops: RFOPS_JIT says nothing of it
        monkeypatch.setattr(add.fn, "__module__", "rfops.triton.add")
        with pytest.raises(rfops.JitDisabled, match="RFOPS_JIT=0"):
            run_triton(add, 256)
        monkeypatch.delenv("RFOPS_JIT")
        run_triton(add, 256)
    finally:
        rfops.vgpu.deactivate_triton()


GLUON = """
import sys, torch
import rfops, rfops.vgpu
rfops.freeze("warn")  # which watches Triton
rfops.vgpu.activate_triton("gfx950")
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def twice(out, x, N: gl.constexpr):
    at = gl.arange(0, N, gl.BlockedLayout([1], [64], [1], [0]))
    gl.store(out + at, 2 * gl.load(x + at))

def run(n):
    x = torch.arange(n, dtype=torch.float32)
    out = torch.empty(n)
    twice[(1,)](out, x, n, num_warps=1)
    assert torch.equal(out, 2 * x)

run(64)
run(64)
rfops.freeze("error")
run(64)
try:
    run(128)
except rfops.JitDisabled as error:
    print(error)
"""


def test_frozen_gluon(tmp_path: Path) -> None:
    """Kernels of Triton's second language, whose compiler is a class of its own."""
    file = tmp_path / "gluon_twice.py"  # Triton reads a kernel's source
    file.write_text(GLUON)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "RFOPS_LOG": ""}
    completed = run(GLUON, [str(file)], env, check=True)
    assert (
        completed.stderr.count("built after rfops.freeze(): Triton's kernel twice for gfx950") == 1
    )
    assert "Triton's kernel twice for gfx950" in completed.stdout


TRITON_LATER = """
import os, sys
import rfops
from rfops.jit.policy import triton_builds
assert "triton.compiler.compiler" not in sys.modules
if not os.environ.get("RFOPS_JIT"):
    rfops.freeze("error")
import triton.compiler
compiler = sys.modules["triton.compiler.compiler"]
assert hasattr(compiler.ASTSource.make_ir, "__wrapped__"), "Triton is not watched"
assert not any(isinstance(finder, triton_builds._Finder) for finder in sys.meta_path)
print("watched")
"""


@pytest.mark.parametrize("jit", ["", "0"])
def test_triton_is_watched_when_it_is_imported_later(jit: str) -> None:
    completed = python(TRITON_LATER, RFOPS_JIT=jit)
    assert completed.stdout == "watched\n", completed.stderr


# ---------------------------------------------------------------- manifest


def test_a_run_is_recorded_and_replayed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rfops import cli

    file = tmp_path / "made" / "m.json"
    monkeypatch.setenv("RFOPS_RECORD_MANIFEST", str(file))
    for child in [Child.run(lambda b=b: project.build(BIAS=b)) for b in (1, 2, 1, 3)]:
        child.result()
    project.op().build("gfx942")
    monkeypatch.delenv("RFOPS_RECORD_MANIFEST")
    labels = sorted(map(str, manifest.load(file)))
    assert labels == ["axpy gfx942", *(f"axpy gfx950 BIAS={b}" for b in (1, 2, 3))]
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path / "another"))
    assert cli.main(["build", "--manifest", str(file)]) == 0
    monkeypatch.setenv("RFOPS_JIT", "0")
    assert {project.build(BIAS=b) for b in (1, 2, 3)} == {"found"}
    assert not project.op().build("gfx942").is_new


TRITON_KERNEL = """
import triton, triton.language as tl
@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)
"""
TRITON_RUN = """
import sys, torch, rfops
rfops.__path__.append(sys.argv[1])
rfops.vgpu.activate_triton("gfx950")
from rfops.manifest_kernel import twice
x, out = torch.arange(8, dtype=torch.float32), torch.empty(8)
twice[(1,)](x, out, 8, BLOCK=16)
assert torch.equal(out, 2 * x)
"""


@pytest.mark.sweep  # 4 processes with Triton
def test_triton_kernels_are_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded by one process, built by a second into an empty cache, run by a third."""
    from rfops import cli

    (tmp_path / "manifest_kernel.py").write_text(TRITON_KERNEL)
    file = tmp_path / "m.json"

    def at_cache(name: str, **env: str) -> subprocess.CompletedProcess[str]:
        return python(TRITON_RUN, tmp_path, TRITON_CACHE_DIR=str(tmp_path / name), **env)

    first = at_cache("first", RFOPS_RECORD_MANIFEST=str(file))
    assert first.returncode == 0, first.stderr
    entries = [str(entry) for entry in manifest.load(file)]
    assert "rfops.manifest_kernel:twice gfx950 (Triton)" in entries
    assert "JitDisabled" in at_cache("second", RFOPS_JIT="0").stderr
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    monkeypatch.setattr(rfops, "__path__", [*rfops.__path__, str(tmp_path)])
    build = ["build", "rfops.manifest_kernel:twice", "--manifest", str(file)]
    assert cli.main(build) == 0
    third = at_cache("second", RFOPS_JIT="0")
    assert third.returncode == 0, third.stderr


def test_a_manifest_that_cannot_be_written_stops_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFOPS_RECORD_MANIFEST", "/proc/none/m.json")
    assert project.build() == "built"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", r"m\.json: expected an object, got \[\]"),
        ('{"entries": []}', "the key 'rfops_manifest' is missing"),
        ('{"rfops_manifest": 2, "entries": []}', r"m\.json\.rfops_manifest: expected 1"),
        ('{"rfops_manifest": 1}', "the key 'entries' is missing"),
        ('{"rfops_manifest": 1, "entries": {}}', r"m\.json\.entries: expected a list, got {}"),
        (
            '{"rfops_manifest": 1, "entries": [{"module": "a", "arch": "gfx950", "defnes": {}}]}',
            r"entries\[0\]: unknown key 'defnes'; known keys: module, arch, defines, config",
        ),
        ('{"rfops_manifest": 1, "entries": [3]}', r"entries\[0\]: expected an object, got 3"),
        ('{"rfops_manifest": 1, "entries": [{"module": 1}]}', r"entries\[0\]\.module: expected"),
        ('{"rfops_manifest": 1, "entries": [{"module": "a", "arch": "x"}]}', r"\.arch: expected"),
        (
            '{"rfops_manifest": 1, "entries": [{"module": "a", "arch": "gfx950", "defines": [1]}]}',
            r"entries\[0\]\.defines: expected",
        ),
        (
            '{"rfops_manifest": 1, "entries": [{"module": "a", "arch": "gfx950", "config": 1}]}',
            r"entries\[0\]\.config: expected a text or null, got 1",
        ),
    ],
)
def test_a_wrong_manifest(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "m.json"
    file.write_text(text)
    with pytest.raises(rfops.ConfigError, match=message) as caught:
        manifest.load(file)
    assert str(file) in str(caught.value)


def test_entries_survive_the_file(tmp_path: Path) -> None:
    expected = manifest.BuildRequest(
        "a", "gfx942", (("B", True), ("T", "u32"), ("X", 0.5)), tmp_path
    )
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"rfops_manifest": 1, "entries": [expected.as_dict()]}))
    assert manifest.load(file) == [expected]
    assert strict.may_build()
