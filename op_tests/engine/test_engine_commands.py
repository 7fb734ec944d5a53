"""What a caller, a setting, a manifest or a file's name says is data, whatever it looks like: it
reaches the compiler as it is, or is refused by an error of ours that names it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ninja import ninja_syntax

import rfops
from rfops import cli
from rfops.jit import settings
from rfops.jit.build import ninja
from rfops.jit.build.spec import load_config
from rfops.jit.policy import manifest
from support.engine_project import Project

EVIL = "1\n\nrule evil\n  command = touch {mark}\nbuild module.hsaco: evil\n\nrule x\n  a = b"
VALUES = [
    EVIL, "1\n", "\n", "1\r2", "a\0b", "\x1b[31m", "\x7f", "\t", "\u2028", "\x85", "\udc80",
    "\ud800", 1001 * "x", 10**5000, -(10**5000), 2**64, -(2**63) - 1, None, [1], {"a": 1}, b"1", 1j,
]  # fmt: skip
NAMES = ["a b", "", "1A", "A-B", "A(x)", "A\n", "A=1 -o", "é", "$A", 7, None, ("A",)]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_that_no_define_can_have(project: Project, value: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    if isinstance(value, str):
        value = value.replace("{mark}", str(mark))
    op = project.op()
    for use in (op.bind, lambda _, defines: op.build("gfx950", defines)):
        with pytest.raises(rfops.ConfigError, match=r"^axpy: define VEC must be .*, got ") as e:
            use("cpu", {"VEC": value})
        assert len(str(e.value)) < 300 and "\n" not in str(e.value)
    assert not mark.exists() and not project.compiles() and not list(project.cache.rglob("build.*"))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_no_define_can_have(project: Project, name: Any) -> None:
    for defines in ({name: 1}, {name: 1, "A": 2}, {name: [1]}):
        with pytest.raises(rfops.ConfigError, match=r"^axpy: define .*its name must be a C ident"):
            project.op().bind("cpu", defines)
    assert not project.compiles()


def test_manifests_are_checked_alike(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.json"
    cases = [({"VEC": value}, "VEC") for value in VALUES if not isinstance(value, bytes | complex)]
    cases += [({name: 1}, "its name") for name in NAMES if isinstance(name, str)]
    for defines, message in cases:
        entry = {"module": "axpy", "arch": "gfx950", "config": str(project.config)}
        try:
            text = json.dumps({"rfops_manifest": 1, "entries": [{**entry, "defines": defines}]})
        except ValueError:  # Python writes no int so long
            continue
        file.write_text(text)
        with pytest.raises(rfops.ConfigError, match=r"entries\[0\].defines: axpy: define ") as e:
            manifest.load(file)
        assert message in str(e.value)
        assert cli.main(["build", "--manifest", str(file)]) == 1
        assert "axpy: define" in capsys.readouterr().err
    assert not project.compiles()


@pytest.mark.parametrize("kernel", ["os:system", "this:x", "rfops:x", "rfopsx.y:z", "rfops.a:b\n"])
def test_a_manifest_imports_nothing_of_others(tmp_path: Path, kernel: str) -> None:
    file = tmp_path / "m.json"
    entry = {"triton": kernel, "arch": "gfx950", "data": {}}
    file.write_text(json.dumps({"rfops_manifest": 1, "entries": [entry]}))
    with pytest.raises(rfops.ConfigError, match=r"entries\[0\].triton: expected rfops.module:name"):
        manifest.load(file)


def test_commands_are_checked_alike(
    project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    remaining = ["--config", str(project.config), "-D", f"VEC={EVIL.format(mark=mark)}"]
    for command in (["build", "axpy"], ["why", "module", "axpy"], ["cache", "why", "axpy"]):
        assert cli.main([*command, *remaining]) == 1
        assert "axpy: define VEC must be" in capsys.readouterr().err
    assert not mark.exists() and not project.compiles()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a  b   'c' \"d\" $out ${x} $$ `id` $(id) ; | & > x # \\ é", None),
        ("", None),
        ("{root}{rfops}{cc}", None),
        (True, "1"),
        (-(2**63), str(-(2**63))),
        (2**64 - 1, str(2**64 - 1)),
        (0.5, "0.5"),
        (math.inf, "inf"),
        ("x" + 100 * "  y", None),
    ],
)
def test_what_the_compiler_gets(project: Project, value: Any, text: str | None) -> None:
    """To the letter, through ninja and its shell."""
    project.op().build("gfx950", {"VEC": value})
    (call,) = project.compiles()
    assert f"-DRFOPS_VEC={value if text is None else text}" in call


# ---------------------------------------------------------------- paths and settings


@pytest.mark.parametrize("name", ["RFOPS_CACHE_DIR", "RFOPS_CACHE_READ", "RFOPS_HIPCC", "CXX"])
def test_settings_of_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, f"{tmp_path}/a\n  command = touch {tmp_path}/mark")
    read: Callable[[str], object] = settings.path
    read = {"CXX": settings.word_list, "RFOPS_CACHE_READ": settings.path_list}.get(name, read)
    for use in (read, settings.text):
        with pytest.raises(rfops.ConfigError, match=rf"^{name}: .*\\n.* has a line end"):
            use(name)
    if name != "CXX":
        with pytest.raises(rfops.ConfigError, match=rf"^{name}: "):
            project.build()
    assert not list(tmp_path.glob("*mark*"))


def test_a_home_of_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/a\nb")
    monkeypatch.setenv("RFOPS_CACHE_DIR", "~/x")
    with pytest.raises(rfops.ConfigError, match=r"^RFOPS_CACHE_DIR: '/a\\nb/x' has a line end"):
        settings.path("RFOPS_CACHE_DIR")


@pytest.mark.parametrize("name", ["new\nline", "a\rb", "a\tb", "a\x1bb"])
def test_a_folder_of_sources_of_two_lines(project: Project, name: str) -> None:
    odd = Project(project.root.parent / name)
    shutil.copytree(project.root, odd.root)
    with pytest.raises(rfops.ConfigError, match=r"compiler_config.json.* has a line end"):
        odd.build()


def test_a_source_of_two_lines(project: Project) -> None:
    """A glob finds it, whatever the config says."""
    (project.root / "lib").mkdir()
    (project.root / "lib" / "a\n  command = false\n.cpp").touch()
    entry = {"srcs": ["lib/*.cpp"], "kind": "host", "output": "libx.so"}
    project.config.write_text(json.dumps({"x": entry}))
    from rfops.jit.build.host import build_host

    with pytest.raises(rfops.ConfigError, match=r"command for 'lib_a\\n.* has a line end"):
        build_host(load_config(project.config)["x"])


def test_a_compiler_in_a_folder_of_two_lines(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = project.root / "bin\nbin"
    project.hipcc.parent.rename(odd)
    monkeypatch.delenv("RFOPS_HIPCC")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setenv("PATH", f"{odd}:/usr/bin:/bin")
    with pytest.raises(rfops.ConfigError, match=r"command for 'module.hsaco': .*bin\\nbin"):
        project.build()
    assert not list(project.shelf.glob(".stage*"))


@pytest.mark.parametrize("folder", ["{rfops}", "a  b", "a|b", "$in", "$ x", "it's", "a;touch mark"])
def test_folders_that_look_like_something_else(project: Project, folder: str) -> None:
    odd = Project(project.root.parent / folder)
    shutil.copytree(project.root, odd.root)
    doubled = 2.0 * torch.arange(100, dtype=torch.float32)
    assert torch.equal(odd.run(odd.op(), BIAS=1), doubled + 1)


def test_ninja_reads_what_was_meant() -> None:
    """ninja's own reader of its syntax, on all that has a meaning there."""
    odd = "a  b$ c:d|e$out ${x} #"
    text = ninja.ninja_text([ninja.Step(("cc", odd), (odd,), "out"), ninja.Step(("ld",), (), odd)])
    values = dict(line.strip().split(" = ", 1) for line in text.splitlines() if " = " in line)
    assert [ninja_syntax.expand(values[f"path{i}"], {}) for i in (0, 1)] == [odd, "out"]
    assert text.count("rule ") == 1 and text.count("\nbuild ") == 2
    for step in (ninja.Step(("a\nb",), (), "o"), ninja.Step(("a",), ("a\0b",), "o")):
        with pytest.raises(rfops.ConfigError, match="has a line end or another control character"):
            ninja.ninja_text([step])
