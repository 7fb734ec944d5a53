"""Host libraries, as the virtual GPU is one: objects in parallel, each cached by its content."""

from __future__ import annotations

import ctypes
import json
import logging
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rfops
from rfops.jit.build import cpu, ninja
from rfops.jit.build.host import build_host, host_unit
from rfops.jit.build.spec import load_config, module_spec
from rfops.jit.build.toolchain import Toolchain, host_candidates, host_toolchain
from rfops.jit.cache.files import cache_root
from rfops.jit.cache.shelf import Artifact
from support import process

SOURCES = {
    "lib/one.cpp": '#include "shared.h"\nextern "C" int one() { return kOne; }\n',
    "lib/two.cpp": '#include "shared.h"\nint half();\nextern "C" int two() { return half() * 2; }',
    "lib/half.cpp": "int half();\nint half() { return 1; }\n",
    "lib/shared.h": "#pragma once\nconstexpr int kOne = 1;\n",
}
ENTRY = {
    "kind": "host",
    "srcs": ["lib/*.cpp"],
    "output": "libsmall.so",
    "flags": ["-std=c++20", "-O1", "-fPIC"],
    "link_flags": ["-shared"],
}
Build = Callable[[], Artifact]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "config.json").write_text(json.dumps({"small": ENTRY}))
    # zig builds its C++ runtime once per cache of its own: that one may be shared.
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(cache_root() / "zig"))
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Build; the objects that were compiled for it, by name."""
    steps: list[str] = []
    run_steps = ninja.run_steps

    def watched(title: str, expected: list[ninja.Step], *remaining: Any) -> str:
        steps.extend(step.output for step in expected if step.output.endswith(".o"))
        return run_steps(title, expected, *remaining)

    monkeypatch.setattr(ninja, "run_steps", watched)

    def build() -> list[str]:
        steps.clear()
        built = build_host(module_spec("small", folder / "config.json"))
        library = ctypes.CDLL(str(built.file))
        assert (library.one(), library.two()) in ((1, 2), (11, 2), (1, 20))
        return sorted(name.removeprefix("lib_").removesuffix(".o") for name in steps)

    return build


def test_only_what_changed_is_compiled(folder: Path, compiled: Callable[[], list[str]]) -> None:
    assert compiled() == ["half", "one", "two"]
    assert compiled() == []
    (folder / "lib/half.cpp").write_text(SOURCES["lib/half.cpp"].replace("return 1", "return 10"))
    assert compiled() == ["half"]
    (folder / "lib/half.cpp").write_text(SOURCES["lib/half.cpp"])
    assert compiled() == []
    (folder / "lib/shared.h").write_text(SOURCES["lib/shared.h"].replace("= 1", "= 11"))
    assert compiled() == ["one", "two"]
    (folder / "lib/one.cpp").touch()
    assert compiled() == []
    (folder / "lib/more.cpp").write_text('extern "C" int more() { return 3; }\n')
    assert compiled() == ["more"], "a new source is in the glob, and in the key"


def test_sources_that_are_compiled_as_one(folder: Path, compiled: Callable[[], list[str]]) -> None:
    """An object for at most two sources, named by the last; an edit of either compiles it."""
    (folder / "config.json").write_text(json.dumps({"small": {**ENTRY, "unity_batch": 2}}))
    assert compiled() == ["half", "two"]
    (folder / "lib/one.cpp").write_text(SOURCES["lib/one.cpp"].replace("kOne", "kOne + 10"))
    assert compiled() == ["two"]
    (folder / "lib/one.cpp").write_text(SOURCES["lib/one.cpp"])
    assert compiled() == []
    (folder / "lib/shared.h").write_text(SOURCES["lib/shared.h"].replace("= 1", "= 11"))
    assert compiled() == ["two"]
    (folder / "lib/two.cpp").write_text("int two() { return nothing; }\n")
    with pytest.raises(rfops.BuildError, match=r"lib/two\.cpp"):
        compiled()


@pytest.mark.sweep
@pytest.mark.parametrize("compiler", ["zig", "c++"])
@pytest.mark.parametrize("module", ["vgpu", "vgpu_hsa", "launcher"])
def test_sources_compile(compiler: str, module: str, tmp_path: Path) -> None:
    """By either compiler, of which a machine may have one."""
    found = {name: argv for name, argv, _ in host_candidates() if argv is not None}
    unit = host_unit(module_spec(module), Toolchain(compiler, found[compiler], ""))
    *objects, _ = unit.commands  # the last one links
    for command in objects:
        argv = [*unit.argv(command), "-fsyntax-only"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_sources_of_alike_names(folder: Path, compiled: Callable[[], list[str]]) -> None:
    """`lib/one.cpp` and `lib_one.cpp`, folder or not: two objects."""
    (folder / "lib_one.cpp").write_text('extern "C" int three() { return 3; }\n')
    (folder / "lib/deep").mkdir()
    (folder / "lib/deep/half.cpp").write_text('extern "C" int four() { return 4; }\n')
    config = {"small": {**ENTRY, "srcs": ["lib/*.cpp", "lib/deep/half.cpp", "lib_one.cpp"]}}
    (folder / "config.json").write_text(json.dumps(config))
    compiled()
    library = ctypes.CDLL(str(build_host(module_spec("small", folder / "config.json")).file))
    assert (library.one(), library.two(), library.three(), library.four()) == (1, 2, 3, 4)


def test_a_failure_names_its_file_and_keeps_what_is_done(
    folder: Path, compiled: Callable[[], list[str]]
) -> None:
    (folder / "lib/two.cpp").write_text("int two() { return nothing; }\n")
    with pytest.raises(rfops.BuildError) as caught:
        compiled()
    error = caught.value
    assert error.module == "small" and "lib/two.cpp" in error.command
    assert "nothing" in error.output and "one.cpp" not in error.output
    assert error.log_path is not None and error.log_path.is_file()


def test_what_another_compiler_built_is_taken(
    folder: Path, compiled: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another version, or another kind of compiler that is not there now; an edit is compiled by
    the one that is."""
    real = host_toolchain()
    for name in ("first", "second"):
        argv = shlex.join(real.argv)
        (folder / name).write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} 1.0"\nexec {argv} "$@"\n'
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("CXX", str(folder / "first"))
    first = host_toolchain()
    assert compiled() == ["half", "one", "two"]
    monkeypatch.setenv("CXX", str(folder / "second"))
    assert host_toolchain().version != first.version
    assert compiled() == []
    (folder / "lib/half.cpp").write_text(SOURCES["lib/half.cpp"].replace("return 1", "return 10"))
    assert compiled() == ["half", "one", "two"]
    monkeypatch.setenv("CXX", str(folder / "first"))
    assert compiled() == []


BUILD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from rfops.jit.build import ninja
from rfops.jit.build.host import build_host, host_unit
from rfops.jit.build.spec import module_spec
def show(self, status):
    if status.startswith("[3/"):
        os.kill(os.getpid(), signal.SIGKILL)
ninja._StatusLine.show = show
build_host(module_spec("small", Path(sys.argv[1])))
"""


def test_a_build_that_is_killed_keeps_its_objects(
    folder: Path, compiled: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object is published when it is compiled: SIGKILL leaves no time for it afterwards."""
    monkeypatch.setenv("RFOPS_JOBS", "1")
    assert process.python(BUILD_AND_DIE, folder / "config.json").returncode == -signal.SIGKILL
    assert len(compiled()) == 1


@pytest.mark.parametrize("end", ["failure", "interrupt"])
def test_a_build_goes_on_where_it_ended(
    folder: Path, compiled: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Failed or interrupted: what has been compiled by then is kept."""
    show, expected = ninja._StatusLine.show, (folder / "lib/two.cpp").read_text()

    def interrupt(self: ninja._StatusLine, status: str) -> None:
        show(self, status)
        if status.startswith("[3/"):
            raise KeyboardInterrupt

    monkeypatch.setenv("RFOPS_JOBS", "1")
    if end == "interrupt":
        monkeypatch.setattr(ninja._StatusLine, "show", interrupt)
    else:
        (folder / "lib/two.cpp").write_text("int two() { return nothing; }\n")
    with pytest.raises((rfops.BuildError, KeyboardInterrupt)):
        compiled()
    monkeypatch.setattr(ninja._StatusLine, "show", show)
    (folder / "lib/two.cpp").write_text(expected)
    repeated = compiled()
    assert len(repeated) < 3, repeated
    assert end == "interrupt" or repeated == ["two"]


def test_the_entry_says_how_it_was_built(folder: Path) -> None:
    artifact = build_host(module_spec("small", folder / "config.json"))
    assert artifact.folder.parent == folder / "cache" / "v1" / "host" / "small"
    assert artifact.is_new and artifact.meta.compiler == host_toolchain().version
    read = {name for name, sha in artifact.meta.deps.items() if sha}
    assert read == {f"root/{name}" for name in SOURCES}
    assert {file.name for file in artifact.folder.iterdir()} == {
        "libsmall.so",
        "meta.json",
        "build.log",
        "build.ninja",
    }


def test_the_level_of_the_cpu_is_in_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of different levels share a cache without sharing a library."""
    keys = set()
    for level in dict.fromkeys((cpu.x86_level(), "")):
        monkeypatch.setattr(cpu, "x86_level", lambda level=level: level)
        keys.add(build_host(module_spec("small", folder / "config.json")).meta.key)
    assert len(keys) == (2 if cpu.platform.machine() == "x86_64" else 1)


def test_a_device_module_is_no_library() -> None:
    with pytest.raises(rfops.ConfigError, match="mxfp8_gemv: a device module is not built for"):
        build_host(load_config()["mxfp8_gemv"])


def test_one_line_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rfops"), "propagate", True)
    with caplog.at_level(logging.INFO, "rfops"):
        build_host(module_spec("small", folder / "config.json"))
        first = len(caplog.records)
        build_host(module_spec("small", folder / "config.json"))
    assert first and len(caplog.records) == first, "a warm start is quiet"
    assert caplog.records[-1].getMessage().startswith("built small in ")


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing for quick builds; then a line at most every five seconds where nobody watches."""
    clock = iter((100.0, 100.9, 103.0, 106.0, 107.0, 111.5))
    monkeypatch.setattr(ninja.time, "monotonic", lambda: next(clock))
    progress = ninja._StatusLine("the thing")
    for status in ("[1/6] a.o", "[2/6] b.o", "[3/6] c.o", "[4/6] d.o", "[5/6] e.o"):
        progress.show(status)
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "rfops: building the thing: [3/6] c.o (6 s)",
        "rfops: building the thing: [5/6] e.o (12 s)",
    ]


def test_progress_is_quiet_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFOPS_LOG", "warning")
    clock = iter((0.0, 50.0, 100.0))
    monkeypatch.setattr(ninja.time, "monotonic", lambda: next(clock))
    ninja._StatusLine("the thing").show("[1/2] a.o")
    assert capsys.readouterr().err == ""


def test_ninja_text_escapes() -> None:
    step = ninja.Step(("c c", "-D$x", "it's"), ("/a b/c:d$",), "out")
    text = ninja.ninja_text([step])
    assert "path0 = /a b/c:d$$\npath1 = out\nbuild ${path1}: run ${path0}\n" in text
    assert """  cmd = 'c c' '-D$$x' 'it'"'"'s'\n""" in text
