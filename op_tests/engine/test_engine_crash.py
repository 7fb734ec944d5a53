"""Killed, or out of room, at every single file operation of a build, and without the filesystem's
locks: faults of the operating system under a whole process (faulty_io.py), so that no place was
chosen by us and none is left out."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rfops
from rfops.jit.cache import collect, shelf, transfer
from support import faulty_io
from support.engine_project import Child, Project, wait_for, write_copying_hipcc


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_io.build(tmp_path_factory.mktemp("faulty"))


def faulty(project: Project, library: Path, function: str, *args: object) -> Any:
    """What the function of this file returns in a process that has the library."""
    code = f"import engine.test_engine_crash as t; t.say(t.{function}(project, *{args!r}))"
    return json.loads(project.python(code, LD_PRELOAD=str(library)).splitlines()[-1])


def say(result: object) -> None:
    print(json.dumps(result))


def fresh_cache(project: Project) -> None:
    shutil.rmtree(project.cache, ignore_errors=True)


def found(project: Project) -> str:
    """What somebody who may not compile gets: "found" or "nothing"."""
    os.environ["RFOPS_JIT"] = "0"
    try:
        return project.build()
    except rfops.JitDisabled:
        return "nothing"
    finally:
        del os.environ["RFOPS_JIT"]


def check(project: Project) -> None:
    """The cache is right as it is, and after a build has nothing half."""
    entries = [folder for folder in project.shelf.glob("[0-9a-f]*") if folder.is_dir()]
    for folder in entries:
        shelf.read_entry(folder, (folder / "meta.json").read_bytes())
    previous = found(project)
    assert previous == "nothing" or entries
    assert Child.run(project.build).result() in ("built", "found")
    artifact = project.op().build("gfx950")
    assert not artifact.is_new
    assert artifact.file.read_bytes() == (project.root / "ready").read_bytes()
    left = [file.name for file in project.shelf.iterdir() if file.name.startswith(".stage")]
    assert not left, left


# ---------------------------------------------------------------- killed


def kill_everywhere(project: Project, first: int, step: int, act: str = "build") -> list[int]:
    """Kill it before its first operation, its second, ... and in the middle of each write, until it
    lives to its end; how many were killed, and the operations of a whole one."""
    operate = {"build": project.build, "import": lambda: import_(project), "gc": gc}[act]

    def run(offset: int) -> int:
        faulty_io.arm(kill_at=offset)
        operate()
        return faulty_io.count()

    killed, offset = 0, first
    while True:
        fresh_cache(project)
        if act == "gc":
            Child.run(lambda: project.build(BIAS=1)).result()  # used by nobody then
        completed = Child.run(lambda offset=offset: run(offset)).result()
        if isinstance(completed, Exception):
            raise completed
        check(project)
        if completed is not None:
            return [killed, completed]
        killed, offset = killed + 1, offset + step


def import_(project: Project) -> None:
    transfer.import_(project.root / "exported")


def gc() -> None:
    collect.collect(0)


def test_killed_at_every_operation_of_a_build(quick: Project, library: Path) -> None:
    """Each third here, all by `-m sweep`."""
    killed, operations = faulty(quick, library, "kill_everywhere", 1, 3)
    assert operations > 30 and killed == -(-operations // 3)


@pytest.mark.sweep
@pytest.mark.parametrize("act", ["build", "import", "gc"])
def test_killed_at_every_operation(quick: Project, library: Path, act: str) -> None:
    quick.build()
    transfer.export(quick.root / "exported")
    killed, operations = faulty(quick, library, "kill_everywhere", 1, 1, act)
    assert operations > 10 and killed == operations


# ---------------------------------------------------------------- full


def fail_everywhere(project: Project, error: int, first: int, step: int) -> dict[str, int]:
    """From an operation on all that need room fail: how often that was which error, or none."""

    def run(offset: int) -> tuple[str, int]:
        faulty_io.arm(fail_from=offset, error=error)
        try:
            return project.build(), faulty_io.count()
        except rfops.RfopsError as refusal:
            name, text = type(refusal).__name__, str(refusal)
        if name == "BuildError":
            full = "the disk is full: " in text and " MB free in " in text
            assert full == (error in (errno.ENOSPC, errno.EDQUOT)) and os.strerror(error) in text, (
                text
            )
        elif name == "ToolchainNotFound":
            assert re.search(r"no room for temporary files, .* MB free in /tmp", text), text
        else:
            assert name == "ConfigError", text
            assert os.strerror(error) in text and str(project.cache) in text, text
        return name, faulty_io.count()

    ends: Counter[str] = Counter()
    for index in range(first, 1000, step):
        fresh_cache(project)
        end = Child.run(lambda index=index: run(index)).result()
        if isinstance(end, Exception):
            raise end
        ends[end[0]] += 1
        check(project)
        if end[1] < index:
            return ends
    raise AssertionError("it never ended")


def test_no_room_from_an_operation_on(quick: Project, library: Path) -> None:
    """Each fourth here, all by `-m sweep`."""
    ends = faulty(quick, library, "fail_everywhere", errno.ENOSPC, 1, 4)
    assert ends["BuildError"] > 3 and ends["built"] > 1, ends


@pytest.mark.sweep
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO", "EROFS"])
def test_no_room_from_any_operation_on(quick: Project, library: Path, error: str) -> None:
    ends = faulty(quick, library, "fail_everywhere", getattr(errno, error), 1, 1)
    assert ends["BuildError"] > 15 and ends["built"] > 5, ends


def test_a_lack_of_room_is_told_to_all_who_wait(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Met by us and not by the compiler, with room left for telling it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def outcome() -> str:
        with pytest.raises(rfops.BuildError, match=r"the disk is full: .* MB free in") as caught:
            project.build()
        return str(caught.value)

    monkeypatch.setattr(shelf, "fsync_folder", full)
    project.write_hipcc(prologue=wait_for(project.note_arrivals(monkeypatch), 4))
    texts = [child.result() for child in [Child.run(outcome) for _ in range(4)]]
    assert len(set(texts)) == 1 and len(project.compiles()) == 1, texts


def test_a_limit_on_the_size_of_files(project: Project) -> None:
    """`ulimit -f`: the kernel refuses it to the compiler, on any filesystem."""

    def limited() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(rfops.BuildError) as caught:
            project.build()
        return str(caught.value)

    text = Child.run(limited).result()
    assert "the compiler died of SIGXFSZ" in text or "File too large" in text, text
    assert project.build() == "built"


# ---------------------------------------------------------------- read-only


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)


def as_nobody_special(function: Callable[[], Any]) -> Any:
    """The result of a process without root's rights on files: permissions hold for it."""

    def run() -> Any:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
        nothing = (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(header, nothing) == 0
        return function()

    result = Child.run(run).result()
    if isinstance(result, Exception):
        raise result
    return result


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Every name with what a change of it or in it would change."""
    positions = sorted(folder.rglob("*"))
    return [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in positions]


def test_a_read_only_cache_is_used_as_such(project: Project) -> None:
    """By its permissions, which count for root too here: it serves, and what it has not got is an
    error that says what to do."""
    project.build()
    previous = contents(project.cache)
    with read_only(project.cache):
        result = as_nobody_special(lambda: [project.run(project.op()).tolist(), project.build()])
        assert result == [[2.0 * i for i in range(100)], "found"]

        def refusal() -> str:
            with pytest.raises(rfops.ConfigError) as caught:
                project.build(BIAS=1)
            return str(caught.value)

        text = as_nobody_special(refusal)
    assert f"cannot write to the cache folder {project.shelf}" in text
    assert "Permission denied" in text and "RFOPS_CACHE_READ" in text
    assert contents(project.cache) == previous


def test_a_read_only_cache_with_a_writable_one_in_front(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it changes, nor would if we were let: not even the time of its last use."""
    project.build()
    behind = project.cache.rename(project.root / "system")
    monkeypatch.setenv("RFOPS_CACHE_READ", str(behind))
    previous = listing(behind)

    def use() -> list[str]:
        return [project.build(), project.build(BIAS=1), project.build(BIAS=1)]

    with read_only(behind):
        assert as_nobody_special(use) == ["found", "built", "found"]
    assert Child.run(use).result() == ["found", "found", "found"]
    assert listing(behind) == previous


# ---------------------------------------------------------------- locks


def build_without_locks(project: Project, error: int, count: int) -> list[str]:
    def run() -> str:
        faulty_io.arm(no_locks=error)
        return project.build()

    return [child.result() for child in [Child.run(run) for _ in range(count)]]


def test_a_filesystem_without_locks(quick: Project, library: Path) -> None:
    """The system call itself fails: all compile, the first rename wins, the rest take its."""
    begun = quick.root / "begun"
    wait = f"while [ $(wc -l <{begun}) -lt 3 ]; do sleep 0.01; done"
    write_copying_hipcc(quick, f"echo >>{begun}; {wait}")
    results = faulty(quick, library, "build_without_locks", errno.ENOLCK, 3)
    assert results == ["built"] * 3
    assert (quick.root / "calls").read_text().count("compile") == 3
    assert len(list(quick.shelf.glob("*/meta.json"))) == 1
    check(quick)


def collect_without_locks(project: Project, error: int) -> list[list[int]]:
    faulty_io.arm(no_locks=error)
    user = Child.run(lambda: (project.build(), time.sleep(60)))
    while not list(project.shelf.glob("[0-9a-f]*/meta.json")):  # no stage, whose name has a dot
        time.sleep(0.005)
    try:
        first = collect.collect(0)
        (meta,) = project.shelf.glob("*/meta.json")
        os.utime(meta, (time.time() - 90_000, time.time() - 90_000))
        second = collect.collect(0)
    finally:
        user.kill()
        user.result()
    return [[completed.in_use, completed.removed] for completed in (first, second)]


def test_what_was_used_today_stays_where_there_are_no_locks(quick: Project, library: Path) -> None:
    """Nobody can tell then who uses it."""
    assert faulty(quick, library, "collect_without_locks", errno.ENOLCK) == [[1, 0], [0, 1]]


def test_a_killed_builder_frees_those_who_wait(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them builds, the others take what it made, while the compiler that it has left behind
    is still there."""
    monkeypatch.setenv("RFOPS_LOCK_TIMEOUT", "50")
    arrived, gate, began = (project.root / name for name in ("arrived", "gate", "began"))
    project.note_arrivals(monkeypatch)
    first = f"if not os.path.exists({str(began)!r}):\n    open({str(began)!r}, 'w')\n"
    project.write_hipcc(prologue=first + textwrap.indent(wait_for(gate), "    "))
    builder = Child.run(project.build)
    while not began.exists():
        time.sleep(0.005)
    waiters = [Child.run(project.build) for _ in range(4)]
    while arrived.stat().st_size < 5:
        time.sleep(0.005)
    builder.kill()
    assert builder.result() is None
    assert sorted(waiter.result() for waiter in waiters) == ["built", "found", "found", "found"]
    assert len(project.compiles()) == 2
    gate.touch()


def test_use_is_known_after_the_cache_was_removed(project: Project) -> None:
    """What a process built after somebody's `rm -r` of the cache is in use all the same."""
    project.build()
    shutil.rmtree(project.cache)
    assert project.build() == "built"
    completed = Child.run(lambda: collect.collect(0)).result()
    assert (completed.in_use, completed.removed) == (1, 0) and project.build() == "found"
