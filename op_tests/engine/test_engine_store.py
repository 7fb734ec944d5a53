"""The cache moved as one file and kept below a size, and the commands for it."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import shutil
import sys
import tarfile
import time
from itertools import accumulate
from pathlib import Path

import pytest
import torch

import rfops
from rfops import cli
from rfops.jit.build import resources, toolchain
from rfops.jit.cache import archive, collect, kept, lock, transfer
from support.engine_project import Child, Project, wait_for

DOUBLED = 2.0 * torch.arange(100, dtype=torch.float32)


# ---------------------------------------------------------------- export, import


def test_a_cache_moves_to_another_checkout_and_user(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another path for the sources, another cache, no compiler, an empty home."""
    for bias in range(3):
        project.build(BIAS=bias)
    project.op().build("gfx942")
    file = tmp_path / "cache.tar.gz"
    assert cli.main(["cache", "export", str(file)]) == 0
    assert capsys.readouterr().out.startswith("4 entries of ")

    other = Project(tmp_path / "home" / "deep" / "er")
    shutil.copytree(project.root, other.root, ignore=shutil.ignore_patterns("cache", "bin"))
    shutil.rmtree(project.root)
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(other.cache))
    monkeypatch.setenv("RFOPS_HIPCC", str(other.hipcc))  # is not there
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for new, known in ((4, 0), (0, 4)):
        assert cli.main(["cache", "import", str(file)]) == 0
        assert f"{new} entries added" in (out := capsys.readouterr().out)
        assert f"{known} were there" in out
    assert torch.equal(other.run(other.op(), BIAS=2), DOUBLED + 2)
    assert not other.op().build("gfx942").is_new
    names = tarfile.open(file).getnames()
    assert not any(name.startswith(("/", "..")) for name in names)
    assert str(project.root) not in gzip.decompress(file.read_bytes()).decode(errors="replace")


def test_export_of_a_part(project: Project, tmp_path: Path) -> None:
    project.build()
    project.op().build("gfx942")
    file = tmp_path / "c"
    assert transfer.export(file, ["gfx942"]) == 1
    assert transfer.export(file, [], ["nothing"]) == 0
    assert transfer.export(file, [], ["axpy"]) == 2
    (damaged,) = project.shelf.glob("*/module.hsaco")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert transfer.export(file) == 1, "a damaged entry travels"
    with pytest.raises(rfops.ConfigError, match=r"cannot write /proc/c"):
        transfer.export(Path("/proc/c"))


def test_export_while_others_import_and_remove(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone when its turn comes is left out; what another process imports is not entered."""
    for bias in range(2):
        project.build(BIAS=bias)
    foreign = project.shelf.parents[1] / ".import-of-another" / "gfx950" / "axpy" / ("0" * 40)
    foreign.mkdir(parents=True)
    scandir = os.scandir

    def gone(path: object = ".") -> object:
        if ".import" in str(path):
            raise FileNotFoundError(path)
        return scandir(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", gone)
    whole, recorded_calls = archive.verified_meta, list[Path]()

    def vanishing(folder: Path) -> object:
        result = whole(folder)
        recorded_calls.append(folder)
        if len(recorded_calls) == 1:
            shutil.rmtree(folder)
        return result

    monkeypatch.setattr(archive, "verified_meta", vanishing)
    assert transfer.export(tmp_path / "cache") == 1 and len(recorded_calls) == 2


def member(tar: tarfile.TarFile, name: str, data: bytes = b"x", kind: bytes = b"") -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    if kind:
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0
    tar.addfile(info, io.BytesIO(data))


KEY = 40 * "a"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", b""),
        ("/etc/evil", b""),
        (f"gfx950/../{KEY}/x", b""),
        ("gfx950/axpy/x", b""),
        (f"gfx950/axpy/{KEY}/../../x", b""),
        (f"gfx950/axpy/{KEY}/.x", b""),
        (f"gfx950/axpy/{KEY}/link", tarfile.SYMTYPE),
        (f"gfx950/.axpy/{KEY}/x", b""),
    ],
)
def test_names_that_do_not_belong_into_a_cache(
    project: Project, tmp_path: Path, name: str, kind: bytes
) -> None:
    with tarfile.open(tmp_path / "t", "w") as tar:
        member(tar, name, kind=kind)
    with pytest.raises(rfops.ConfigError, match="does not belong into a cache"):
        transfer.import_(tmp_path / "t")
    assert not [file for file in tmp_path.rglob("*") if "evil" in file.name]


def test_files_that_are_no_export(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "t"
    with pytest.raises(rfops.ConfigError, match="cannot import"):
        transfer.import_(file)
    project.build()
    transfer.export(file)
    whole = file.read_bytes()
    for size in (0, 10, len(whole) // 2):
        file.write_bytes(whole[:size])
        shutil.rmtree(project.cache)
        with pytest.raises(rfops.ConfigError, match=str(file)):
            transfer.import_(file)
        assert not list(project.cache.glob("v1/.import*"))
        assert project.build() == "built"
    with tarfile.open(file, "w") as tar:
        member(tar, f"gfx950/axpy/{KEY}/meta.json", b"{}")
    with pytest.raises(rfops.ConfigError, match=f"gfx950/axpy/{KEY} is damaged"):
        transfer.import_(file)


def test_import_repairs(project: Project, tmp_path: Path) -> None:
    project.build()
    transfer.export(tmp_path / "t")
    (file,) = project.shelf.glob("*/module.hsaco")
    file.write_bytes(b"")
    assert transfer.import_(tmp_path / "t") == (1, 0)
    assert project.build() == "found"


# ---------------------------------------------------------------- size


def biases(project: Project) -> set[int]:
    metas = [json.loads(file.read_text()) for file in project.shelf.glob("*/meta.json")]
    return {meta["defines"]["BIAS"] for meta in metas}


@pytest.fixture
def four(project: Project) -> Project:
    """Four entries that nobody uses, 0 used longest ago, but for 1, which is used again."""
    for bias in range(4):
        Child.run(lambda bias=bias: project.build(BIAS=bias)).result()
    for file in project.shelf.glob("*/meta.json"):
        age = 1000 - json.loads(file.read_text())["defines"]["BIAS"]
        os.utime(file, (time.time() - age, time.time() - age))
    assert Child.run(lambda: project.build(BIAS=1)).result() == "found"
    return project


def test_what_was_used_longest_ago_goes_first(
    four: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    total = collect.size_of(four.cache / "v1")
    entry = collect.size_of(next(four.shelf.glob("*/meta.json")).parent)
    assert cli.main(["cache", "gc", "--max-size", str(total)]) == 0
    assert biases(four) == {0, 1, 2, 3}
    assert cli.main(["cache", "gc", "--max-size", str(total - entry - entry // 2)]) == 0
    assert biases(four) == {1, 3}
    assert "2 entries removed" in capsys.readouterr().out
    assert four.build(BIAS=1) == "found" and four.build(BIAS=0) == "built"


def test_what_is_in_use_stays(four: Project) -> None:
    user = Child.run(lambda: (four.build(BIAS=2), time.sleep(60)))
    try:
        while lock_is_free(four, 2):
            time.sleep(0.01)
        completed = collect.collect(0)
        assert biases(four) == {2} and (completed.removed, completed.in_use) == (3, 1)
    finally:
        user.kill()
        user.result()
    assert collect.collect(0).removed == 1 and not biases(four)
    assert not list(four.shelf.glob("index/*")) and not list(four.shelf.glob(".*"))


def lock_is_free(project: Project, bias: int) -> bool:
    for file in project.shelf.glob("*/meta.json"):
        meta = json.loads(file.read_text())
        if meta["defines"]["BIAS"] == bias:
            with lock.unused(project.cache / "v1", meta["key"]) as unused:
                return unused
    return True


def test_what_this_process_uses_stays(project: Project) -> None:
    project.build(BIAS=5)
    assert collect.collect(0).in_use == 1 and biases(project) == {5}


def test_a_build_is_not_disturbed(project: Project) -> None:
    gate = project.root / "gate"
    project.write_hipcc(prologue=wait_for(gate))
    child = Child.run(lambda: project.build(BIAS=1))
    while not project.compiles():
        time.sleep(0.005)
    collect.collect(0)
    assert list(project.shelf.glob(".stage-*"))
    gate.touch()
    assert child.result() == "built"
    assert project.build(BIAS=1) == "found" and len(project.compiles()) == 1


def test_leftovers_and_damage_go_at_any_size(four: Project) -> None:
    stage = next(four.shelf.glob(".*.lock")).name[1:17]
    (four.shelf / f".stage-00000000-{stage}-x").mkdir()
    (four.shelf / ".gone-x").mkdir()
    next(four.shelf.glob("*/module.hsaco")).write_bytes(b"")
    completed = collect.collect(1 << 40)
    assert completed.removed == 1 and len(biases(four)) == 3
    assert not list(four.shelf.glob(".stage*")) and not list(four.shelf.glob(".gone*"))


def test_libraries_that_the_engine_did_not_build(four: Project) -> None:
    """Of rfops eval's load_inline and the like: counted, and by their last use among the others."""

    def build(folder: Path) -> Path:
        (folder / "x.so").write_bytes(b"x" * 5000)
        return folder / "x.so"

    old, used, broken, building = (four.cache / "entries" / (c * 40) for c in "abcd")
    for folder in (old, used):
        file = kept.library(folder.name, "x.so", build)
        assert file == folder / "x.so" and [*folder.iterdir()] == [file]
        os.utime(file, (0, 0))
    assert kept.library(used.name, "x.so", lambda _: pytest.fail("built again")).is_file()
    for folder in (broken, building):
        (folder / "build-x").mkdir(parents=True)
    os.utime(broken, (0, 0))
    total = collect.size_of(four.cache / "v1") + 10000
    completed = collect.collect(total)
    assert (
        not broken.exists()
        and building.exists()
        and (completed.removed, completed.in_use) == (1, 1)
    )
    completed = collect.collect(total - 1)
    assert (
        not old.exists()
        and used.exists()
        and completed.kept_bytes == total - 5000
        and completed.freed == 5000
    )
    assert biases(four) == {0, 1, 2, 3}
    assert collect.collect(0).removed == 5 and not used.exists() and building.exists()


def test_entries_of_another_engine_are_not_damaged(project: Project) -> None:
    Child.run(lambda: project.build(BIAS=1)).result()
    (file,) = project.shelf.glob("*/meta.json")
    meta = json.loads(file.read_text())
    del meta["seal"]
    file.write_text(json.dumps({**meta, "engine": 1}))
    assert collect.collect(1 << 40).removed == 0 and collect.collect(0).removed == 1


def test_damage_goes_even_where_it_was_used(project: Project) -> None:
    project.build(BIAS=1)
    next(project.shelf.glob("*/meta.json")).unlink()
    assert collect.collect(1 << 40).removed == 1
    assert project.build(BIAS=1) == "built"


def test_a_cache_that_is_not_there(project: Project) -> None:
    assert collect.collect(0) == collect.Collected()


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("12", 12), ("1.5k", 1500), ("10G", 10**10), ("2tb", 2 * 10**12)]
)
def test_sizes(text: str, size: int, project: Project) -> None:
    from rfops.cli.cache import _size

    assert _size(text) == size
    with pytest.raises(SystemExit):
        cli.main(["cache", "gc", "--max-size", f"{text}X"])


# ---------------------------------------------------------------- why


def test_why(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A hit says where; a miss says in what the nearest entry differs."""
    asked = ["cache", "why", "axpy", "--arch", "gfx950", "--config", str(project.config)]

    def why(status: int, *more: str) -> str:
        assert cli.main([*asked, *more]) == status
        return capsys.readouterr().out

    assert "nothing of this module is" in why(1)
    project.build(BIAS=1)
    assert f"cached in {project.shelf}" in why(0, "-D", "BIAS=1")
    out = why(1, "-D", "BIAS=2")
    assert "command, gone: -DRFOPS_BIAS=1" in out and "command, new: -DRFOPS_BIAS=2" in out
    project.header.write_text(project.header.read_text().replace("1.0f", "2.0f"))
    out = why(1, "-D", "BIAS=1")
    assert "root/rfops_test/scale.h: its content" in out and "types.h" not in out
    project.build(BIAS=1)
    project.set_version("stand-in clang version 9.9")
    project.hipcc.write_text(project.hipcc.read_text() + "#\n")
    toolchain._choose.cache_clear()
    out = why(1, "-D", "BIAS=1")
    assert "compiler: stand-in clang version 1.0 then, stand-in clang version 9.9 now" in out
    project.build(BIAS=1)
    for file in project.shelf.glob("*/module.hsaco"):
        file.write_bytes(b"")
    assert "damaged: module.hsaco has 0 bytes" in why(1, "-D", "BIAS=1")
    assert not [call for call in project.compiles() if "RFOPS_BIAS=2" in str(call)]
    assert cli.main([*asked[:4], "gfx90a", *asked[5:]]) == 1


# ---------------------------------------------------------------- build


@pytest.mark.parametrize(("gigabytes", "most"), [(100, 4), (0.5, 1)])
def test_jobs_are_bounded_by_free_memory(
    project: Project, monkeypatch: pytest.MonkeyPatch, gigabytes: float, most: int
) -> None:
    """Compilers that write down when they begin and end; the first wait for as many as there may
    be, so that these are at once."""
    log = project.root / "running"
    note = f"import atexit\ndef note(word): open({str(log)!r}, 'a').write(word)\n"
    begin = f"note('+')\n{wait_for(log, most)}atexit.register(note, '-')"
    project.write_hipcc(prologue=note + begin)
    monkeypatch.setattr(resources, "free_memory", lambda: int(gigabytes * 2**30))
    manifest = project.root / "m.json"
    entries = [
        {"module": "axpy", "arch": "gfx950", "defines": {"BIAS": b}, "config": str(project.config)}
        for b in range(6)
    ]
    manifest.write_text(json.dumps({"rfops_manifest": 1, "entries": entries}))
    assert cli.main(["build", "--manifest", str(manifest), "-j", "4"]) == 0
    now = [1 if word == "+" else -1 for word in log.read_text()]
    assert sum(now) == 0 and len(now) == 12 and max(accumulate(now)) == most


def test_free_memory_is_that_of_the_machine() -> None:
    free = resources.free_memory()
    text = Path("/proc/meminfo").read_text()
    available = next(x for x in text.splitlines() if x.startswith("MemAvailable"))
    assert 0 < free <= int(available.split()[1]) * 1024 * 1.1
    assert 1 <= resources.jobs() <= len(os.sched_getaffinity(0)) and resources.jobs(7) == 7


def test_a_cgroup_limits_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("3000000\n")
    (tmp_path / "a" / "memory.current").write_text("2900000\n")
    (tmp_path / "a" / "memory.stat").write_text("anon 5\ninactive_file 400000\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    read = resources._read
    monkeypatch.setattr(
        resources, "_read", lambda f: "0::/a/b\n" if str(f) == "/proc/self/cgroup" else read(f)
    )
    assert resources.free_memory() == 500000


def test_a_bar_where_somebody_watches(project: Project) -> None:
    """On a terminal: one line that grows; and the end says how many."""
    ours, theirs = pty.openpty()

    def run() -> int:
        os.dup2(theirs, 1)
        sys.stdout = os.fdopen(os.dup(1), "w")
        code = cli.main(["build", "axpy", "--config", str(project.config), "-D", "BIAS=1"])
        sys.stdout.flush()
        return code

    child = Child.run(run)
    assert child.result() == 0
    text = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    assert "[##########..........] 1/2, 1 built" in text
    assert "[####################] 2/2, 2 built" in text and "2 of 2 in" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-D", "BIAS=1"), "-D: expected a module"),
        (("axpy", "-D", "BIAS"), "-D BIAS: expected NAME=VALUE"),
        (("saxpy",), "no op uses a module 'saxpy'"),
        (("--manifest", "/absent.json"), "/absent.json: "),
    ],
)
def test_build_refuses(
    arguments: tuple[str, ...], message: str, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["build", *arguments]) == 1
    assert message in capsys.readouterr().err
