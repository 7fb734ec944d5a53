"""The cache: what rebuilds, what does not, and what several processes make of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import rfops
from rfops.jit.build import compile, explain, failures, recipe, toolchain
from rfops.jit.cache import code_object, shelf
from rfops.jit.policy.manifest import BuildRequest
from support.engine_project import Project

DOUBLED = 2.0 * torch.arange(100, dtype=torch.float32)


# ---------------------------------------------------------------- cold and warm


def test_cold_build_runs(project: Project) -> None:
    op = project.op()
    assert torch.equal(project.run(op), DOUBLED)
    meta = op.bind("cpu").meta
    assert not meta["cached"] and meta["seconds"] > 0 and meta["arch"] == "gfx950"
    assert "stand-in clang version 1.0" in meta["compiler"]
    assert "InstalledDir" not in meta["compiler"], "a path in the key"
    assert {"rfops_test/scale.h", "rfops_test/types.h", "axpy.hip"} == {
        name.removeprefix("root/") for name, sha in meta["deps"].items() if sha
    }


def test_the_entry_is_whole(project: Project) -> None:
    artifact = project.op().build("gfx950")
    assert artifact.folder.parent == project.cache / "v1" / "gfx950" / "axpy"
    assert artifact.folder.name == artifact.meta.key
    names = {file.name for file in artifact.folder.iterdir()}
    assert {"module.hsaco", "meta.json", "build.log", "build.ninja"} <= names
    assert (
        shelf.read_entry(artifact.folder, (artifact.folder / "meta.json").read_bytes())
        == artifact.meta
    )
    leftovers = [f for f in artifact.folder.parent.iterdir() if f.name.startswith(".stage")]
    assert not leftovers


def test_resources_are_those_of_the_assembler_text(project: Project, tmp_path: Path) -> None:
    """clang prints the metadata as text in the assembler file: an oracle for our reader."""
    artifact = project.op().build("gfx950")
    text = (artifact.folder / "module.hsaco.s").read_text()
    resources = project.op().bind("cpu").resources
    for name, key in code_object.RESOURCES.items():
        line = next(line for line in text.splitlines() if f"{key}:" in line)
        assert resources[name] == int(line.split(":")[1]), name


def test_warm_load_in_a_new_process(project: Project) -> None:
    project.op().build("gfx950")
    previous = project.calls()
    out = project.python("""
        op = project.op()
        print(project.run(op).sum().item(), op.bind("cpu").meta["cached"])
    """)
    assert out.split() == [str(DOUBLED.sum().item()), "True"]
    assert project.calls() == previous, "the compiler was called"


def test_warm_load_without_hashing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files older than the clock's doubt are known by their stat."""
    op = project.op()
    op.build("gfx950")
    monkeypatch.setattr(shelf, "_RECENT_NS", 0)
    op.build("gfx950")  # remembers the stats
    monkeypatch.setattr(shelf, "digest", lambda _: pytest.fail("hashed"))
    unit = recipe.device_unit(op.spec, "gfx950", {}, toolchain.device_toolchain("gfx950"))
    assert unit.shelf.find(unit.build_key) is not None


def test_a_new_artifact_of_old_sources_is_not_hashed_for_ever(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too young to be known by its stat when it is built, and later is."""
    monkeypatch.setattr(shelf, "_RECENT_NS", 300_000_000)
    time.sleep(0.35)
    project.op().build("gfx950")
    time.sleep(0.35)
    project.op().build("gfx950")
    monkeypatch.setattr(shelf, "digest", lambda _: pytest.fail("hashed"))
    assert project.build() == "found"


# ---------------------------------------------------------------- what rebuilds


def rebuilt(project: Project, **defines: int) -> bool:
    previous = len(project.compiles())
    fresh = project.op().build("gfx950", defines).is_new
    assert fresh == (len(project.compiles()) > previous)
    return fresh


def test_edit_of_a_transitive_header(project: Project) -> None:
    assert torch.equal(project.run(project.op()), DOUBLED)
    types = project.root / "rfops_test" / "types.h"
    types.write_text(types.read_text() + "constexpr float kMore = 3.0f;\n")
    project.header.write_text(project.header.read_text().replace("1.0f", "kMore"))
    assert torch.equal(project.run(project.op()), 3 * DOUBLED)


def test_a_header_that_comes_before_another(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file where an include looks first changes the result, though no file has changed."""
    monkeypatch.setattr(shelf, "_RECENT_NS", 0)
    assert torch.equal(project.run(project.op()), DOUBLED) and not rebuilt(project)
    first = project.root / "rfops_test" / "rfops_test" / "types.h"  # beside scale.h, which has it
    first.parent.mkdir()
    first.write_text("#define __global__ __attribute__((global))\n#define RFOPS_BIAS 7\n")
    assert torch.equal(project.run(project.op()), DOUBLED + 7)
    first.unlink()
    assert not rebuilt(project)


def test_edit_that_keeps_size_and_mtime(project: Project) -> None:
    rebuilt(project)
    stat = project.header.stat()
    project.header.write_text(project.header.read_text().replace("1.0f", "5.0f"))
    os.utime(project.header, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert torch.equal(project.run(project.op()), 5 * DOUBLED)


def test_why_flags_in_another_order_are_not_cached(project: Project) -> None:
    """The order is named where it is all that differs of the command; else the flags are."""
    order = "command: the order of its flags"
    for flags, is_order in (
        (["-DA=1", "-DB=2"], None),
        (["-DB=2", "-DA=1"], True),
        (["-DA=1"], False),
    ):
        project.config.write_text(json.dumps({"axpy": {"srcs": ["axpy.hip"], "flags": flags}}))
        reason = explain.explain(BuildRequest("axpy", "gfx950", (), project.config))
        if is_order is None:
            project.op().build("gfx950")
            continue
        assert (order in reason.differences) == is_order
        assert any("-DB=2" in line for line in reason.differences) != is_order


@pytest.mark.parametrize(
    ("free", "status", "is_full"),
    [
        (1000, 1, True),
        ((1 << 20) - 1, -1, True),
        (1 << 20, 1, False),
        (1 << 20, 128 + signal.SIGBUS, True),
        (1 << 24, 128 + signal.SIGBUS, False),
    ],
)
def test_when_a_failure_is_a_full_disk(
    free: int, status: int, is_full: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under 1 MB free, or under 16 MB where the linker died of a bus error, whatever it printed."""
    monkeypatch.setattr(failures.resources, "free_disk", lambda _folder: free)
    assert ("disk is full" in failures.cause("", status, tmp_path, 1 << 30)) == is_full


def test_files_as_old_as_the_build_are_known(project: Project) -> None:
    """A source written in the clock tick in which the build began; a hard link has that time."""
    stage = project.root / "stage"
    stage.mkdir()
    (stage / "build.ninja").touch()
    project.source.unlink()
    project.source.hardlink_to(stage / "build.ninja")
    op = project.op()
    unit = recipe.device_unit(op.spec, "gfx950", {}, toolchain.device_toolchain("gfx950"))
    (stage / unit.depfile).write_text(f"module.hsaco: {project.source}\n")
    read, is_sure = compile.files_read(unit, stage, {})
    assert is_sure and [*read][-1] == "root/axpy.hip"
    time.sleep(0.01)  # beyond the kernel's clock tick
    project.header.write_text("")
    (stage / unit.depfile).write_text(f"module.hsaco: {project.source} {project.header}\n")
    assert not compile.files_read(unit, stage, {})[1]


def test_same_edit_after_the_stats_are_trusted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "_RECENT_NS", 0)
    assert rebuilt(project) and not rebuilt(project)
    stat = project.header.stat()
    time.sleep(0.01)  # beyond the kernel's clock tick
    project.header.write_text(project.header.read_text().replace("1.0f", "5.0f"))
    os.utime(project.header, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert rebuilt(project)


def test_touch_does_not_rebuild(project: Project) -> None:
    rebuilt(project)
    project.header.touch()
    project.source.touch()
    assert not rebuilt(project)


def test_going_back_does_not_rebuild(project: Project) -> None:
    rebuilt(project)
    old = project.header.read_text()
    project.header.write_text(old.replace("1.0f", "7.0f"))
    assert rebuilt(project)
    project.header.write_text(old)
    assert not rebuilt(project)
    assert torch.equal(project.run(project.op()), DOUBLED)


def test_moving_the_checkout_does_not_rebuild(project: Project) -> None:
    rebuilt(project)
    moved = Project(project.root.parent / "elsewhere")
    shutil.copytree(project.root, moved.root)
    assert not moved.op().build("gfx950").is_new


def test_defines_flags_and_arch_are_in_the_key(project: Project) -> None:
    assert rebuilt(project) and rebuilt(project, BIAS=3) and not rebuilt(project, BIAS=3)
    assert torch.equal(project.run(project.op(), BIAS=3), DOUBLED + 3)
    assert project.op().build("gfx942").is_new
    project.config.write_text(json.dumps({"axpy": {"srcs": ["axpy.hip"], "flags": ["-O2"]}}))
    build_config = project.root / "other.json"
    project.config.rename(build_config)
    op = rfops.jit.compile_ops("axpy", config=build_config)(project.op()._function)
    assert op.build("gfx950").is_new


def test_order_of_defines_does_not_matter(project: Project) -> None:
    op = project.op()
    assert op.build("gfx950", {"BIAS": 1, "A": 2}).is_new
    assert not op.build("gfx950", {"A": 2, "BIAS": 1}).is_new
    assert op.bind("cpu", {"BIAS": 1, "A": 2}) is op.bind("cpu", {"A": 2, "BIAS": 1})


def test_another_compiler_version_rebuilds(project: Project) -> None:
    rebuilt(project)
    project.set_version("stand-in clang version 1.1")
    toolchain._choose.cache_clear()  # as in a new process
    assert project.build() == "found", "the compiler's file is as it was"
    project.hipcc.write_text(project.hipcc.read_text() + "# updated\n")
    toolchain._choose.cache_clear()
    assert project.build() == "built"


def test_engine_version_is_in_the_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt(project)
    monkeypatch.setattr(recipe, "ENGINE_VERSION", recipe.ENGINE_VERSION + 1)
    assert rebuilt(project)


def test_flags_from_the_environment_stay_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hipcc would append them, and the key would not know."""
    names = ["HIPCC_COMPILE_FLAGS_APPEND", "CPATH", "CPLUS_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS"]
    project.write_hipcc(prologue=f"assert not set({names}) & set(os.environ)")
    for name in names:
        monkeypatch.setenv(name, "-DRFOPS_BIAS=9")
    assert torch.equal(project.run(project.op()), DOUBLED)


def test_a_source_that_changes_during_the_build(project: Project) -> None:
    """What was compiled is not known then: it is built again, from what is there now."""
    edit = (
        f"path = {str(project.header)!r}\n"
        "text = open(path).read()\n"
        "new = text.replace('1.0f', '4.0f')\n"
        "if new != text: open(path, 'w').write(new)\n"
    )
    project.write_hipcc(prologue=edit)
    assert torch.equal(project.run(project.op()), 4 * DOUBLED)
    assert len(project.compiles()) == 2


def test_a_header_that_comes_before_another_during_the_build(project: Project) -> None:
    first = project.root / "rfops_test" / "rfops_test" / "types.h"
    first.parent.mkdir()
    text = "#define __global__ __attribute__((global))\n#define RFOPS_BIAS 7\n"
    after = f"lambda: open({str(first)!r}, 'w').write({text!r})"
    project.write_hipcc(prologue=f"import atexit; atexit.register({after})")
    assert torch.equal(project.run(project.op()), DOUBLED + 7)


# ---------------------------------------------------------------- failures


def test_broken_kernel(project: Project) -> None:
    project.source.write_text(KERNEL_WITH_ERROR)
    with pytest.raises(rfops.BuildError) as caught:
        project.op().build("gfx950")
    error = caught.value
    assert error.module == "axpy" and "use of undeclared identifier 'nothing'" in error.output
    assert error.command.startswith(str(project.hipcc)) and str(project.source) in error.command
    assert "--offload-arch=gfx950" in error.command and "FAILED" not in error.output
    assert error.log_path is not None and "'nothing'" in error.log_path.read_text()
    assert all(part in str(error) for part in ("axpy", error.command, "'nothing'"))
    project.source.write_text(KERNEL_WITH_ERROR.replace("nothing", "0"))
    assert project.op().build("gfx950").is_new, "a failure stays"


KERNEL_WITH_ERROR = '#include "rfops_test/types.h"\nextern "C" __global__ void axpy() { nothing; }'


def test_a_compiler_that_writes_no_code_object(project: Project) -> None:
    project.write_hipcc(
        prologue="open(out, 'w').write('x'); open('deps.d', 'w').write('m: \\n')\nsys.exit(0)"
    )
    with pytest.raises(rfops.BuildError, match="not a 64-bit little-endian ELF file"):
        project.op().build("gfx950")
    assert not list((project.cache / "v1" / "gfx950" / "axpy").glob("*/meta.json"))


def test_a_compiler_that_writes_for_another_arch(project: Project) -> None:
    project.write_hipcc(
        prologue="arch = 'gfx942'; front = [f.replace('950', '942') for f in front]"
    )
    with pytest.raises(rfops.BuildError, match="asked for gfx950, the compiler wrote gfx942"):
        project.op().build("gfx950")


def test_wrong_arch_is_refused_before_compiling(project: Project) -> None:
    project.config.write_text(json.dumps({"axpy": {"srcs": ["axpy.hip"], "archs": ["gfx942"]}}))
    other = project.config.rename(project.root / "other.json")
    op = rfops.jit.compile_ops("axpy", config=other)(project.op()._function)
    with pytest.raises(rfops.UnsupportedArch, match=r"axpy: no kernel for gfx950; .* gfx942"):
        op.bind("cpu")
    assert not project.calls()


@pytest.mark.parametrize("damage", ["cut", "removed", "meta cut", "meta gone"])
def test_a_damaged_entry_is_built_again(project: Project, damage: str) -> None:
    artifact = project.op().build("gfx950")
    meta = artifact.folder / "meta.json"
    if damage == "cut":
        artifact.file.write_bytes(artifact.file.read_bytes()[:-1])
    elif damage == "removed":
        artifact.file.unlink()
    elif damage == "meta cut":
        meta.write_text(meta.read_text()[:-10])
    else:
        meta.unlink()
    assert rebuilt(project)
    assert torch.equal(project.run(project.op()), DOUBLED)


def test_a_damaged_index_is_built_again(project: Project) -> None:
    project.op().build("gfx950")
    (index,) = (project.cache / "v1" / "gfx950" / "axpy" / "index").iterdir()
    for text in ("", "{", "[]", '{"entries": 1}', '{"entries": [{}]}', '{"entries": [null]}'):
        index.write_text(text)
        assert rebuilt(project), text


def test_a_cache_that_cannot_be_written(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_CACHE_DIR", "/proc/rfops")  # not even root can
    with pytest.raises(rfops.ConfigError, match=r"cannot write .*/proc/rfops.*RFOPS_CACHE_DIR"):
        project.op().build("gfx950")


def test_a_read_only_cache_serves(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.op().build("gfx950")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("mkdir", "write_text", "rename", "replace", "touch"):
        monkeypatch.setattr(Path, name, refuse)
    assert not project.op().build("gfx950").is_new


# ---------------------------------------------------------------- several at once


@pytest.mark.sweep  # by forks, and so in a second: test_eight_processes_compile_once
@pytest.mark.parametrize("count", [2, 4])
def test_processes_at_once_build_once(project: Project, count: int) -> None:
    project.write_hipcc(prologue="import time; time.sleep(0.5)")
    gate = project.root / "gate"
    code = f"""
        op = project.op()
        print("ready", flush=True)
        while not Path({str(gate)!r}).exists():
            time.sleep(0.001)
        print(project.run(op).sum().item())
    """
    processes = [project.start(code) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    gate.touch()
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert float(out) == DOUBLED.sum()
    assert len(project.compiles()) == 1


def test_threads_at_once_build_once(project: Project) -> None:
    op, results = project.op(), []
    threads = [threading.Thread(target=lambda: results.append(project.run(op))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16 and all(torch.equal(result, DOUBLED) for result in results)
    assert len(project.compiles()) == 1


def test_a_waiter_gives_up(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write_hipcc(prologue="import time; time.sleep(30)")
    process = project.start("project.op().build('gfx950')")
    try:
        while not project.compiles():
            time.sleep(0.01)
        monkeypatch.setenv("RFOPS_LOCK_TIMEOUT", "0")
        with pytest.raises(rfops.LockTimeout, match=r"axpy: another process .* 0 s"):
            project.op().build("gfx950")
    finally:
        process.kill()
        process.communicate()


def test_a_killed_builder_frees_the_others(project: Project) -> None:
    project.write_hipcc(prologue="import time; time.sleep(30)")
    process = project.start("project.op().build('gfx950')")
    while not project.compiles():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    previous = (project.root / "version").read_text()
    project.write_hipcc()
    project.set_version(previous)
    assert project.op().build("gfx950").is_new


# ---------------------------------------------------------------- parts


def test_depfile_names() -> None:
    text = "m.hsaco: /a/k.hip \\\n  /a/with\\ blank.h /a/dollar$$.h \\\n ../b/x.h\n"
    names = ["/a/k.hip", "/a/with blank.h", "/a/dollar$.h", "../b/x.h"]
    assert compile._parse_depfile(text) == names


@pytest.mark.parametrize("folder", ["with blank", "dollar$sign", "a:b", "caf\udce9"])
def test_odd_folder_names(project: Project, folder: str) -> None:
    odd = Project(project.root.parent / folder)
    shutil.copytree(project.root, odd.root)
    assert torch.equal(odd.run(odd.op(), BIAS=1), DOUBLED + 1)


@pytest.mark.parametrize(
    ("defines", "flags"),
    [
        ({"M": 4, "A": True}, ("-DRFOPS_A=1", "-DRFOPS_M=4")),
        ({"F": 0.5, "T": "u32"}, ("-DRFOPS_F=0.5", "-DRFOPS_T=u32")),
    ],
)
def test_define_flags(defines: dict[str, recipe.Define], flags: tuple[str, ...]) -> None:
    assert recipe.define_flags("axpy", defines) == flags
