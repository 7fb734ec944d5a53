"""Which compiler is taken, why others are not, and the commands that it gets."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rfops
from rfops.jit.build import cpu, toolchain
from rfops.jit.cache import shelf
from support.engine_project import Project, zig

ZIG = "the ziglang package of this Python"


@pytest.fixture
def bare(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """No compiler is chosen by a setting, and PATH has only the shell's tools."""
    for name in ("RFOPS_HIPCC", "ROCM_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    tools = project.root / "tools"
    tools.mkdir()
    for name in ("sh", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tools))
    return project


def test_command_line_of_hipcc(project: Project) -> None:
    project.op().build("gfx950", {"BIAS": 2})
    version, probe, compile_ = project.calls()
    assert version == ["--version"]
    assert os.devnull in probe and "--offload-arch=gfx950" in probe
    recipe = ["--genco", "--no-gpu-bundle-output", "-nogpuinc", "--offload-arch=gfx950"]
    assert compile_[:4] == recipe
    assert compile_[-3:] == [str(project.source), "-o", "module.hsaco"]
    assert {"-O3", "-DRFOPS_BIAS=2", "-Wall", "-Wextra"} <= set(compile_)
    assert f"-I{rfops.jit.paths.INCLUDE}" in compile_
    depfile = compile_.index("-dependency-file")
    assert compile_[depfile - 1 : depfile + 3] == [
        "-Xclang",
        "-dependency-file",
        "-Xclang",
        "deps.d",
    ]


def test_hipcc_is_preferred_in_order(bare: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting, then ROCM_PATH, then PATH, then ziglang."""
    assert toolchain.device_toolchain("gfx950").argv == (zig(), "clang")
    monkeypatch.setenv("PATH", f"{bare.hipcc.parent}:{os.environ['PATH']}")
    assert toolchain.device_toolchain("gfx950").argv == (str(bare.hipcc),)
    rocm = bare.root / "rocm"
    (rocm / "bin").mkdir(parents=True)
    (rocm / "bin" / "hipcc").symlink_to(bare.hipcc)
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    assert toolchain.device_toolchain("gfx950").argv == (str(rocm / "bin" / "hipcc"),)
    selected = bare.root / "chosen"
    selected.symlink_to(bare.hipcc)
    monkeypatch.setenv("RFOPS_HIPCC", str(selected))
    assert toolchain.device_toolchain("gfx950").argv == (str(selected),)


def test_a_compiler_that_lacks_the_arch(bare: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    bare.write_hipcc(unknown=("gfx950",))
    monkeypatch.setenv("PATH", f"{bare.hipcc.parent}:{os.environ['PATH']}")
    assert toolchain.device_toolchain("gfx942").name == "hipcc"
    assert toolchain.device_toolchain("gfx950").name == "zig"
    reasons = [
        reason for selected, reason in toolchain.survey("device", "gfx950") if selected is None
    ]
    assert any(
        "cannot build for gfx950" in reason and "invalid target ID" in reason for reason in reasons
    )


def test_both_compilers_give_the_same_results(
    bare: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_zig = bare.run(bare.op())
    monkeypatch.setenv("RFOPS_HIPCC", str(bare.hipcc))
    assert torch.equal(bare.run(bare.op()), with_zig)
    keys = {artifact.parent.name for artifact in bare.cache.glob("v1/gfx950/axpy/*/meta.json")}
    assert len(keys) == 2, "two compilers, two keys"


def test_a_chosen_hipcc_that_is_not_there(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names a compiler does not want another one in silence."""
    monkeypatch.setenv("RFOPS_HIPCC", "/absent/hipcc")
    with pytest.raises(rfops.ToolchainNotFound, match="RFOPS_HIPCC=/absent/hipcc: not found"):
        project.op().build("gfx950")


def test_no_compiler_at_all(bare: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_zig", lambda tool: None)
    with pytest.raises(rfops.ToolchainNotFound) as caught:
        bare.op().build("gfx950")
    text = str(caught.value)
    assert "hipcc on PATH: not found" in text and f"{ZIG}: not found" in text
    assert "RFOPS_HIPCC" in text and "which brings a clang that knows AMD GPUs" in text
    with pytest.raises(rfops.ToolchainNotFound, match=r"g\+\+ 11 or newer"):
        toolchain.host_toolchain()


@pytest.mark.parametrize("location", ["a checkout", "an installation"])
def test_the_advice_is_a_command_that_works_there(
    location: str, bare: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index has rfops: its extra can be had from a checkout's folder, ziglang anywhere."""
    monkeypatch.setattr(toolchain, "_zig", lambda tool: None)
    monkeypatch.setattr(toolchain.paths, "ROOT", bare.root)
    advice = "pip install ziglang"
    if location == "a checkout":
        (bare.root / "pyproject.toml").touch()
        advice = f"pip install -e '.[clang]' in {bare.root}"
    for kind, target in (("device", "gfx950"), ("host", toolchain.HOST_TARGET)):
        with pytest.raises(rfops.ToolchainNotFound) as caught:
            toolchain.choose(kind, target, refresh=True)
        assert f"or: {advice}" in str(caught.value).splitlines()[-1]


def test_a_hipcc_that_does_not_start(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = project.root / "broken"
    broken.write_text("#!/absent/interpreter\n")
    broken.chmod(0o755)
    monkeypatch.setenv("RFOPS_HIPCC", str(broken))
    with pytest.raises(rfops.ToolchainNotFound, match=r"cannot build for gfx950: .*No such file"):
        project.op().build("gfx950")
    broken.write_text(project.hipcc.read_text())
    assert project.op().build("gfx950").is_new, "a compiler that failed to start is asked again"


def test_the_compiler_behind_hipcc_is_watched(project: Project) -> None:
    """hipcc is a wrapper: an update of the clang in its InstalledDir must show."""
    clang = project.root / "llvm" / "clang"
    clang.parent.mkdir()
    clang.write_text("1")
    text = project.hipcc.read_text().replace("/nowhere/bin", str(clang.parent))
    project.hipcc.write_text(text)
    project.op().build("gfx950")
    clang.write_text("22")
    project.set_version("clang version 22")
    assert project.python("print(project.op().build('gfx950').is_new)").strip() == "True"


@pytest.mark.parametrize("young", [True, False])
def test_a_compiler_that_keeps_size_and_mtime(
    project: Project, monkeypatch: pytest.MonkeyPatch, young: bool
) -> None:
    """Changed in the moment in which it was asked, or later and with its time put back."""
    if not young:
        monkeypatch.setattr(shelf, "_RECENT_NS", 0)
    text = project.hipcc.read_text() + "# update 1\n"
    project.hipcc.write_text(text)
    assert project.build() == "built" and project.build() == "found"
    stat = project.hipcc.stat()
    if not young:
        time.sleep(0.01)  # beyond the kernel's clock tick
    project.hipcc.write_text(text.replace("update 1", "update 2"))
    os.utime(project.hipcc, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    project.set_version("stand-in clang version 2.0")
    toolchain._choose.cache_clear()  # as in a new process
    assert project.build() == "built"
    (record,) = project.cache.glob("v1/toolchains/*.json")
    assert json.loads(record.read_text())["version"].endswith("2.0")


@pytest.mark.parametrize(
    "fault", ["os.kill(os.getpid(), 9)", "sys.exit('error: No space left on device')"]
)
def test_a_probe_that_fails_for_the_machine_is_asked_again(project: Project, fault: str) -> None:
    """Nothing of the compiler is known by it, and nothing is remembered."""
    text = project.hipcc.read_text()
    mark = project.root / "full"
    mark.touch()
    project.hipcc.write_text(
        text.replace("arch = next", f"if os.path.exists({str(mark)!r}): {fault}\narch = next")
    )
    with pytest.raises(rfops.ToolchainNotFound, match=r"cannot build for gfx950: .*(space|status)"):
        project.build()
    mark.unlink()
    assert project.build() == "built"


def test_a_compiler_that_does_not_say_its_version(project: Project) -> None:
    """It has no key, so it is not taken; and is asked again."""
    text = project.hipcc.read_text()
    project.hipcc.write_text(
        text.replace('    print("HIP', '    os.kill(os.getpid(), 9)\n    print("HIP')
    )
    with pytest.raises(
        rfops.ToolchainNotFound, match="cannot build for gfx950: no answer to --ver"
    ):
        project.build()
    assert not list(project.cache.glob("v1/toolchains/*.json"))
    project.hipcc.write_text(text)
    assert "stand-in clang version 1.0" in project.op().build("gfx950").meta.compiler


def test_a_wrapper_around_another_compiler(project: Project) -> None:
    """The wrapper's own version text counts, and that of what it wraps."""
    assert project.build() == "built"
    real = project.hipcc.rename(project.hipcc.with_name("real"))
    project.hipcc.write_text(f'#!/bin/sh\n[ "$*" = --version ] && echo wrapped\nexec {real} "$@"\n')
    project.hipcc.chmod(0o755)
    toolchain._choose.cache_clear()
    artifact = project.op().build("gfx950")
    assert artifact.is_new and "wrapped" in artifact.meta.compiler
    assert "stand-in clang version 1.0" in artifact.meta.compiler


# ---------------------------------------------------------------- host


def test_cxx_is_obeyed(bare: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.host_toolchain().argv == (zig(), "c++")
    monkeypatch.setenv("CXX", f"{zig()} c++ -Wno-psabi")
    assert toolchain.host_toolchain().argv == (zig(), "c++", "-Wno-psabi")
    assert toolchain.host_toolchain().name == "zig", "its flags are spelt otherwise"
    monkeypatch.setenv("CXX", "/absent/c++")
    with pytest.raises(rfops.ToolchainNotFound, match="CXX=/absent/c"):
        toolchain.host_toolchain()


def test_level_flags_are_accepted(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each level's flags by each host compiler that is here; the CPU need not have the level."""
    source = tmp_path / "empty.cpp"
    source.write_text("int f(int x) { return x + 1; }\n")
    results = [(name, argv) for name, argv, _ in toolchain.host_candidates() if argv]
    assert results
    for level in ("v4", "v3", ""):
        monkeypatch.setattr(cpu, "x86_level", lambda level=level: level)
        for name, argv in results:
            flags = cpu.level_flags(name == "zig")
            assert bool(flags) == bool(level)
            code, output = toolchain.run(
                [*argv, *flags, "-c", str(source), "-o", str(tmp_path / "o.o")]
            )
            assert code == 0, output


def test_level_matches_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks the CPU itself, we read /proc/cpuinfo."""
    capability = torch.backends.cpu.get_cpu_capability()
    if cpu.x86_level() == "v4":
        assert capability == "AVX512"
    else:
        assert (capability in ("AVX2", "AVX512")) == (cpu.x86_level() == "v3")


def test_environment_while_another_thread_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest itself takes a variable away between tests, while modules are built."""

    class Leaving(UserDict[str, str]):
        def __iter__(self) -> Iterator[str]:
            names = list(self.data)
            self.data.pop("LEAVING", None)
            return iter(names)

    monkeypatch.setattr(os, "environ", Leaving({**os.environ, "LEAVING": "1", "STAYS": "2"}))
    result = toolchain.environment()
    assert result["STAYS"] == "2" and "LEAVING" not in result


def test_records_are_read_only_by_who_asks_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warm start finds its library by the compiler that would build, as a rule."""
    asked: list[str] = []

    def recorded(kind: str) -> list[toolchain.Toolchain]:
        asked.append(kind)
        return []

    monkeypatch.setattr(toolchain, "recorded_compilers", recorded)
    result = toolchain.usable("host", toolchain.HOST_TARGET)
    assert next(result) == toolchain.choose("host", toolchain.HOST_TARGET) and not asked
    assert next(result, None) is None and asked == ["host"]
    assert len([*toolchain.usable("device", "gfx950")]) == 1 and asked == ["host"]
