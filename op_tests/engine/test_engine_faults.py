"""What production does to a cache: kills, full disks, flipped bits, dead builders, failing ones.
Each test does the bad thing for real, and ends with a right result from a healthy cache."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import rfops
from rfops.jit.build import failures
from rfops.jit.cache import collect, files, lock, records, shelf
from support.engine_project import Child, Project, wait_for

DOUBLED = 2.0 * torch.arange(100, dtype=torch.float32)


def healthy(project: Project, result: torch.Tensor = DOUBLED) -> None:
    """The kernel is right, its entries are whole, nothing half is left, all is found again."""
    assert torch.equal(project.run(project.op()), result)
    for folder in project.shelf.iterdir():
        if folder.is_dir() and folder.name not in ("index", "failed"):
            assert not folder.name.startswith("."), f"left behind: {folder.name}"
            shelf.read_entry(folder, (folder / "meta.json").read_bytes())
    assert project.build() == "found"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What the engine has logged."""
    monkeypatch.setattr(logging.getLogger("rfops"), "propagate", True)
    caplog.set_level(logging.INFO, "rfops")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


# ---------------------------------------------------------------- killed


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_middle(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(f".{file.name}.half").write_text(text[: len(text) // 2])
    die()


def die_on(name: str) -> Callable[[Path, str], None]:
    """Write every file but those of this name, in whose middle we die."""
    write = files.write_atomic

    def write_or_die(file: Path, text: str) -> None:
        (die_in_the_middle if name in str(file) else write)(file, text)

    return write_or_die


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (shelf.ArtifactCache, "publish", die),  # compiled, nothing more
        (records, "write_atomic", die_on("meta.json")),
        (shelf.ArtifactCache, "rename_in", die),
        (shelf.ArtifactCache, "_remember", die),  # renamed in, not in the index
        (shelf, "write_atomic", die_on("/index/")),
    ],
)
def test_killed_while_publishing(
    project: Project, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, fault: object
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault)
        assert Child.run(project.build).result() is None, "it was to be killed"
    assert project.build() == "built"
    healthy(project)


def test_killed_while_compiling(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write_hipcc(prologue="import time; time.sleep(30)")
    child = Child.run(project.build)
    while not project.compiles():
        time.sleep(0.005)
    child.kill()
    assert child.result() is None
    project.write_hipcc()
    monkeypatch.setenv("RFOPS_LOCK_TIMEOUT", "0")  # an error for who has to wait
    healthy(project)


def test_a_child_of_the_killed_builder_holds_nothing(project: Project) -> None:
    """A data loader that was forked during a build outlives the builder; its lock must not."""
    sleeper = project.root / "sleeper"

    def build_and_fork() -> None:
        with lock.hold(project.root / "lock", "axpy"):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            sleeper.write_text(str(pid))
            signal.pause()

    child = Child.run(build_and_fork)
    while not sleeper.exists() or not sleeper.read_text():
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    try:
        with lock.hold(project.root / "lock", "axpy", timeout=1) as alone:
            assert alone
    finally:
        os.kill(int(sleeper.read_text()), signal.SIGKILL)
        os.close(child.pipe)


def test_a_fork_during_a_build_can_build(project: Project) -> None:
    """What the parent's threads hold at the fork is not held in the child."""
    op = project.op()
    with op._lock, lock.hold(project.root / "lock", "axpy"):
        child = Child.run(lambda: project.run(op).tolist())
        assert child.result() == DOUBLED.tolist()


# ---------------------------------------------------------------- damaged


def flip(file: Path, offset: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(offset * (len(data) - 1))] ^= 0x20
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["module.hsaco", "meta.json"])
@pytest.mark.parametrize("offset", [0.0, 0.3, 0.77, 1.0])
def test_a_flipped_bit(project: Project, name: str, offset: float, log: Callable[[], str]) -> None:
    artifact = project.op().build("gfx950")
    flip(artifact.folder / name, offset)
    assert project.build() == "built"
    assert log().count("damaged") == 1 and str(artifact.folder) in log()
    healthy(project)
    assert log().count("damaged") == 1


def test_a_flipped_bit_is_found_after_the_stat_was_trusted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "_RECENT_NS", 0)
    artifact = project.op().build("gfx950")
    assert project.build() == "found"
    stat = artifact.file.stat()
    time.sleep(0.01)  # beyond the kernel's clock tick
    flip(artifact.file, 0.5)
    os.utime(artifact.file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert project.build() == "built"
    healthy(project)


INDICES: dict[str, Callable[[str], str]] = {
    "nothing": lambda _: "",
    "half": lambda text: text[: len(text) // 2],
    "zeros": lambda text: len(text) * "\0",
    "no object": lambda _: "[]",
    "no entries": lambda _: "{}",
    "entries of no kind": lambda _: '{"entries": 1}',
    "no record": lambda _: '{"entries": [null]}',
    "another key": lambda text: re.sub(r'"key": "..', '"key": "00', text),
    "another content": lambda text: re.sub(r'(scale.h": ")..', r"\g<1>zz", text),
    "a file less": lambda text: re.sub(r'"[^"]*scale.h": "\w+",', "", text),
    "another file": lambda text: text.replace("/scale.h", "/scalf.h"),
    "no stats": lambda text: text.replace('"stats"', '"stat"'),
}


def told(log: str) -> int:
    return sum(line.startswith("damaged ") for line in log.splitlines())


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", INDICES)
def test_a_damaged_index_is_reported_once(
    project: Project, name: str, log: Callable[[], str]
) -> None:
    project.build()
    (index,) = project.shelf.glob("index/*.json")
    text = index.read_text()
    damaged = INDICES[name](text)
    assert damaged != text
    index.write_text(damaged)
    assert project.build() == "built"
    assert told(log()) == 1 and f"damaged {index}: " in log(), log()
    healthy(project)
    index.write_text(damaged + " ")
    assert project.build() == "built"
    assert told(log()) == 2, "the second time it is told again"


def test_a_damaged_record_beside_a_whole_one(project: Project, log: Callable[[], str]) -> None:
    """The whole one is found; the other is told of when the index is written."""
    project.build()
    text = project.header.read_text()
    project.header.write_text(text.replace("1.0f", "2.0f"))
    project.build()
    (index,) = project.shelf.glob("index/*.json")
    body = json.loads(index.read_text())
    assert len(body["entries"]) == 2
    body["entries"][1] = None
    index.write_text(json.dumps(body))
    assert project.build() == "found"
    project.header.write_text(text)
    assert project.build() == "built"
    assert told(log()) == 1 and "1 of its 2 records are not as" in log()
    healthy(project)


def test_an_index_that_is_not_there_is_no_damage(project: Project, log: Callable[[], str]) -> None:
    project.build()
    (index,) = project.shelf.glob("index/*.json")
    index.unlink()
    assert project.build() == "built" and not told(log())


def test_an_entry_under_another_key(project: Project) -> None:
    """A folder copied over another one is whole, and still the wrong one."""
    wrong = project.op().build("gfx950", {"BIAS": 1}).folder
    right = project.op().build("gfx950").folder
    for file in wrong.iterdir():
        (right / file.name).write_bytes(file.read_bytes())
    healthy(project)


# ---------------------------------------------------------------- full, read-only


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    completed = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        pytest.skip(
            f"no right to mount a small disk ({completed.stderr.strip()}); without one: "
            "test_no_room_from_any_operation_on in test_engine_crash.py"
        )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("filled", [0, 1, 5, 9, 16])
def test_a_full_disk(project: Project, monkeypatch: pytest.MonkeyPatch, filled: int) -> None:
    """At different points of a build; with room again, the next one succeeds."""
    project.build()  # the compiler is known, as that must be kept somewhere too
    with small_disk(project.root / "small", "256k"):
        monkeypatch.setenv("RFOPS_CACHE_DIR", str(project.root / "small"))
        path = project.root / "small" / "v1"
        path.mkdir()
        (path / "toolchains").mkdir()
        for record in (project.cache / "v1" / "toolchains").iterdir():
            (path / "toolchains" / record.name).write_bytes(record.read_bytes())
        filler = path / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
            while stream.write(b"x" * 4096):
                pass
        with filler.open("r+b") as stream:
            stream.truncate(max(0, filler.stat().st_size - 4096 * filled))
        try:
            project.build()
        except rfops.BuildError as error:
            assert "the disk is full" in error.cause and " MB free in " in str(error)
        else:
            assert filled > 5, "there was no room for it"
        filler.unlink()
        assert torch.equal(project.run(project.op()), DOUBLED)


def test_a_compiler_without_room(project: Project) -> None:
    project.write_hipcc(prologue="open('/dev/full', 'w').write(10000 * 'x')")
    with pytest.raises(rfops.BuildError, match=r"axpy: build failed: the disk is full: .* MB free"):
        project.build()
    project.write_hipcc()
    healthy(project)


def test_no_room_to_publish(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(rfops.BuildError, match="the disk is full"):
            project.build()
    healthy(project)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_a_read_only_cache_behind_a_writable_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build()
    behind = project.cache.rename(project.root / "system")
    for path in (behind, *behind.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    previous = snapshot(behind)
    monkeypatch.setenv("RFOPS_CACHE_READ", f"/absent:{behind}")
    assert project.build() == "found"
    assert project.build(BIAS=1) == "built"
    assert torch.equal(project.run(project.op(), BIAS=1), DOUBLED + 1)
    assert snapshot(behind) == previous
    monkeypatch.setattr(shelf, "_RECENT_NS", 0)
    project.build()  # stats are remembered in front
    monkeypatch.setattr(shelf, "digest", lambda _: pytest.fail("hashed"))
    assert project.build() == "found"
    for path in (behind, *behind.rglob("*")):
        path.chmod(0o755)


def test_damage_behind_is_built_again_in_front(
    project: Project, monkeypatch: pytest.MonkeyPatch, log: Callable[[], str]
) -> None:
    project.build()
    behind = project.cache.rename(project.root / "system")
    monkeypatch.setenv("RFOPS_CACHE_READ", str(behind))
    (file,) = behind.glob("v1/gfx950/axpy/*/module.hsaco")
    flip(file, 0.5)
    assert project.build() == "built"
    healthy(project)
    assert log().count("damaged") == 1


# ---------------------------------------------------------------- locks


AtOnce = Callable[..., list[object]]


@pytest.fixture
def at_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> AtOnce:
    """Results of a function in so many processes; the compiler does `act`, or else compiles, when
    all of them want its result."""
    arrived = project.note_arrivals(monkeypatch)

    def run(count: int, function: Callable[[], object], act: str = "") -> list[object]:
        project.write_hipcc(prologue=wait_for(arrived, count) + act)
        return [child.result() for child in [Child.run(function) for _ in range(count)]]

    return run


def test_eight_processes_compile_once(project: Project, at_once: AtOnce) -> None:
    results = at_once(8, project.build)
    assert sorted(results) == ["built", *["found"] * 7]  # type: ignore[type-var]
    assert len(project.compiles()) == 1
    healthy(project)


@pytest.mark.parametrize(
    "text",
    [
        '{"pid": 4242, "host": "another-host", "since": 1.0}',
        f'{{"pid": {os.getpid()}, "host": "{os.uname().nodename}", "since": 1.0}}',  # reused
        '{"pid": 1}',
        "4242\nanother-host",
        "[]",
        "\0" * 64,
        "",
    ],
    ids=["another host", "reused pid", "no host", "no json", "a list", "zeros", "nothing"],
)
def test_old_lock_files_mean_nothing(
    project: Project, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build()
    for file in project.shelf.glob(".*.lock"):
        file.write_text(text)
    project.header.write_text(project.header.read_text().replace("1.0f", "2.0f"))
    monkeypatch.setenv("RFOPS_LOCK_TIMEOUT", "0")  # an error for who has to wait
    healthy(project, 2 * DOUBLED)


def test_a_waiter_says_on_whom_it_waits(
    project: Project, monkeypatch: pytest.MonkeyPatch, log: Callable[[], str]
) -> None:
    assert (lock._FIRST_REPORT, lock._REPORT_EVERY) == (1.0, 10.0)
    monkeypatch.setattr(lock, "_FIRST_REPORT", 0.1)
    monkeypatch.setattr(lock, "_REPORT_EVERY", 0.1)
    gate, reports, describe = project.root / "gate", [], lock._describe

    def report(owner: dict[str, object]) -> str:
        reports.append(owner)
        if len(reports) == 3:
            gate.touch()
        return describe(owner)

    project.write_hipcc(prologue=wait_for(gate))
    child = Child.run(project.build)
    while not project.compiles():
        time.sleep(0.005)
    monkeypatch.setattr(lock, "_describe", report)
    assert project.build() == "found"
    assert child.result() == "built"
    owner = f"another process \\(pid {child.pid} on {os.uname().nodename}, \\d+ s\\) to build axpy"
    lines = [line for line in log().splitlines() if line.startswith("waiting")]
    assert len(lines) >= 3
    for line in lines:
        assert re.match(f"waiting \\d+ s for {owner}$", line), line


def test_a_lock_file_that_is_removed_under_a_waiter(project: Project) -> None:
    file, order = project.root / "lock", []
    with lock.hold(file, "axpy"):
        child = Child.run(lambda: _hold_and_say(file))
        time.sleep(0.1)
        file.unlink()
        order.append("first")
    assert child.result() is True and file.exists()


def _hold_and_say(file: Path) -> bool:
    with lock.hold(file, "axpy") as alone:
        return alone


# ---------------------------------------------------------------- failures

BROKEN = '#include "rfops_test/types.h"\nextern "C" __global__ void axpy() { nothing; }'


def outcome(project: Project) -> str:
    try:
        return project.build()
    except rfops.BuildError as error:
        return str(error)


def test_a_failure_reaches_all_who_wait(project: Project, at_once: AtOnce) -> None:
    project.source.write_text(BROKEN)
    texts = at_once(8, lambda: outcome(project))
    assert len(set(texts)) == 1 and "undeclared identifier 'nothing'" in str(texts[0])
    assert len(project.compiles()) == 1, "compiled the same error again"
    project.source.write_text(BROKEN.replace("nothing", "0"))
    assert project.build() == "built", "the failure is not of these sources"


def test_a_failure_is_tried_again_later(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.source.write_text(BROKEN)
    assert outcome(project) == outcome(project)
    assert len(project.compiles()) == 1
    monkeypatch.setattr(failures, "_SHARED_SECONDS", 0.0)
    outcome(project)
    assert len(project.compiles()) == 2


def test_a_killed_compiler(project: Project, at_once: AtOnce) -> None:
    """As the kernel's OOM killer does it; tried again by whoever comes later."""
    texts = at_once(3, lambda: outcome(project), "os.kill(os.getpid(), 9)")
    assert len(set(texts)) == 1 and len(project.compiles()) == 1
    text = str(texts[0])
    assert "killed, most likely for lack of memory" in text and "MB of memory free now" in text
    assert "RFOPS_JOBS=1" in text
    project.write_hipcc()
    healthy(project)


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("sys.exit('LLVM ERROR: out of memory')", "out of memory: "),
        ("sys.exit('cc1plus: virtual memory exhausted')", "out of memory: "),
        ("os.kill(os.getpid(), 11)", "the compiler died of SIGSEGV"),
        ("sys.exit('error: something else')", ""),
    ],
)
def test_causes(project: Project, act: str, cause: str) -> None:
    project.write_hipcc(prologue=act)
    with pytest.raises(rfops.BuildError) as caught:
        project.build()
    assert caught.value.cause.startswith(cause) and bool(caught.value.cause) == bool(cause)


# ---------------------------------------------------------------- all of it


@pytest.mark.sweep
def test_soak(project: Project) -> None:
    """200 rounds of builds, kills and damage, up to four processes each; never a stale result."""
    rng = random.Random(5)
    project.write_hipcc(prologue="import time; time.sleep(0.02)")
    scale = 1.0
    for _ in range(200):
        act = rng.choice(("build", "kill", "damage", "edit", "edit", "clean"))
        if act == "edit":
            scale = float(rng.randint(1, 6))
            project.header.write_text(
                f'#pragma once\n#include "rfops_test/types.h"\nconstexpr float kScale = {scale}f;\n'
            )
        files_now = [file for file in project.shelf.rglob("*") if file.is_file()]
        if act == "damage" and files_now:
            file = rng.choice(files_now)
            if rng.random() < 0.5 and file.stat().st_size:
                flip(file, rng.random())
            else:
                file.write_bytes(file.read_bytes()[: rng.randint(0, file.stat().st_size)])
        if act == "clean" and files_now:
            rng.choice(files_now).unlink()
        children = [Child.run(project.build) for _ in range(rng.randint(1, 4))]
        if act == "kill":
            time.sleep(rng.random() * 0.2)
            children[0].kill()
        results = [child.result() for child in children]
        assert set(results[act == "kill" :]) <= {"built", "found"}, results
        assert torch.equal(project.run(project.op()), scale * DOUBLED), act
    collect.collect(1 << 40)  # what is damaged and was not wanted again
    healthy(project, scale * DOUBLED)
