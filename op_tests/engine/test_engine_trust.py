"""Code that somebody else could have put into a cache is not loaded: owner and mode of all that is
used, the ways out that the refusal names, and what rfops itself makes."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import rfops
from rfops import cli
from rfops.jit.build import host, toolchain
from rfops.jit.build.spec import load_config
from rfops.jit.cache import shelf, transfer, trust
from rfops.jit.launch import launcher
from support.engine_project import Project

OTHER = 4242  # a user
DOUBLED = 2.0 * torch.arange(100, dtype=torch.float32)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a place another user's; without root's rights it only looks so."""

    def change(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, OTHER, -1, follow_symlinks=False)
            return
        same = path.lstat().st_ino
        for name in ("stat", "lstat", "fstat"):
            real = getattr(os, name)

            def seen(*args: object, real: Callable[..., os.stat_result] = real, **kwargs: object):  # noqa: ANN202
                info = real(*args, **kwargs)
                return os.stat_result([*info[:4], OTHER, *info[5:]]) if info[1] == same else info

            monkeypatch.setattr(os, name, seen)

    return change


PLACES = {
    "cache": "",
    "layout": "v1",
    "arch": "v1/gfx950",
    "module": "v1/gfx950/axpy",
    "index": "v1/gfx950/axpy/index",
    "record": "v1/gfx950/axpy/index/*.json",
    "entry": "v1/gfx950/axpy/*[0-9a-f]",
    "meta": "v1/gfx950/axpy/*/meta.json",
    "artifact": "v1/gfx950/axpy/*/module.hsaco",
    "compilers": "v1/toolchains",
    "compiler": "v1/toolchains/*.json",
}


def place_of(project: Project, name: str) -> Path:
    if not PLACES[name]:
        return project.cache
    results = [p for p in project.cache.glob(PLACES[name]) if name != "entry" or len(p.name) == 40]
    assert len(results) == 1, results
    return results[0]


def refused(project: Project, *words: str) -> str:
    """The error of a build, and of a process that starts afresh; nothing is loaded or compiled."""
    calls = project.calls()
    toolchain._choose.cache_clear()
    with pytest.raises(rfops.ConfigError) as caught:
        project.op().build("gfx950")
    text = str(caught.value)
    assert text.startswith(f"the cache {project.cache} is not trusted: ") and "\n" not in text
    assert f"RFOPS_CACHE_TRUST={project.cache}" in text
    assert all(word in text for word in words), text
    assert project.calls() == calls, "a compiler was started"
    return text


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("bits", [0o002, 0o020, 0o022])
def test_what_others_may_write(
    project: Project, name: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_own_group", lambda: -1)
    project.build()
    path = place_of(project, name)
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | bits)
    who = "everybody" if bits & 0o002 else f"the group {path.stat().st_gid}"
    words = f"{path} can be written by {who} (mode {mode | bits:04o})"
    refused(project, words, f"`chmod -R go-w {project.cache}` if nobody has put anything there")
    monkeypatch.setenv("RFOPS_CACHE_TRUST", f"/elsewhere:{project.cache}")
    assert project.build() == "found", "who means it can have it"
    monkeypatch.delenv("RFOPS_CACHE_TRUST")
    os.system(f"chmod -R go-w {project.cache}")
    assert project.build() == "found", "mended as the error says"


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", PLACES)
def test_what_others_own(
    project: Project, name: str, foreign: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build()
    path = place_of(project, name)
    foreign(path)
    mend = f"run as its owner, `chown -R {os.geteuid()} {project.cache}`"
    refused(project, f"{path} belongs to uid {OTHER}, and what is in a cache is run as ", mend)
    monkeypatch.setenv("RFOPS_CACHE_TRUST", str(project.cache.parent))
    assert project.build() == "found"


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", [name for name in PLACES if name != "cache"])
def test_links_lead_elsewhere(project: Project, name: str, tmp_path: Path) -> None:
    project.build()
    path = place_of(project, name)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    refused(project, f"{path} is a link", "put a folder in its place")


def test_the_cache_can_be_a_link(project: Project, tmp_path: Path) -> None:
    project.build()
    project.cache.rename(tmp_path / "moved")
    project.cache.symlink_to("../moved")
    assert project.build() == "found"
    (tmp_path / "moved").chmod(0o777)
    refused(project, f"{project.cache} can be written by everybody")


# ---------------------------------------------------------------- above it


@pytest.mark.parametrize(
    ("mode", "word"), [(0o777, "everybody"), (0o775, "the group"), (0o773, "everybody")]
)
def test_a_folder_above_in_which_others_may_rename(
    project: Project, mode: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_own_group", lambda: -1)
    project.build()
    trust._reached.clear()  # as in a new process
    project.root.chmod(mode)
    text = refused(project, f"{project.root} can be written by {word}")
    assert f"`chmod go-w {project.root}`" in text and "-R" not in text
    project.root.chmod(mode | stat.S_ISVTX)
    assert project.build() == "found", "sticky, as /tmp is"


def test_a_folder_above_of_somebody_else(
    project: Project, foreign: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner can rename, sticky or not. Who is not mapped mostly is root."""
    project.build()
    trust._reached.clear()
    project.root.chmod(0o1777)
    foreign(project.root)
    text = refused(project, f"{project.root} belongs to uid {OTHER}")
    assert "chown" not in text and "chmod" not in text
    monkeypatch.setattr(trust, "_unmapped_owner", lambda: OTHER)
    assert project.build() == "found"
    foreign(project.cache)
    refused(project, f"{project.cache} belongs to uid {OTHER}")


def test_a_link_of_somebody_else(
    project: Project, foreign: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all may make links, as in /tmp, its owner leads it elsewhere whenever he likes."""
    project.build()
    path = project.root / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    (path / "link").symlink_to("../cache")
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(path / "link"))
    assert project.build() == "found"
    trust._reached.clear()
    foreign(path / "link")
    with pytest.raises(rfops.ConfigError, match=f"{path}/link belongs to uid {OTHER}"):
        project.build()


def test_a_cache_that_was_replaced(
    project: Project, foreign: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner of /tmp removes it under a process that has checked it; somebody else makes it."""
    project.build()
    project.cache.rename(project.root / "before")
    os.system(f"cp -r {project.root}/before {project.cache}")
    foreign(project.cache)
    refused(project, f"{project.cache} belongs to uid {OTHER}")


def test_what_is_mapped() -> None:
    assert trust._unmapped_owner() == -1 or trust._unmapped_owner() == 65534


# ---------------------------------------------------------------- who is nobody else


@pytest.mark.parametrize(
    ("name", "members", "own"),
    [("me", [], True), ("me", ["me"], True), ("me", ["me", "you"], False), ("users", [], False)],
)
def test_a_private_group(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], own: bool
) -> None:
    """As distributions with umask 002 make them: the user's primary group, of the same name."""
    import grp
    import pwd

    project.build()
    gid = project.cache.stat().st_gid
    user = pwd.struct_passwd(("me", "x", os.geteuid(), gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((name, "x", gid, members)))
    trust._own_group.cache_clear()
    try:
        for path in (project.cache, *project.cache.rglob("*")):
            path.chmod(path.stat().st_mode | 0o020)
        assert (trust._own_group() == gid) == own
        if own:
            assert project.build() == "found"
        else:
            refused(project, "can be written by the group")
    finally:
        trust._own_group.cache_clear()


def test_a_user_without_a_name_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 123456789)
    trust._own_group.cache_clear()
    assert trust._own_group() == -1
    trust._own_group.cache_clear()


def test_an_acl_lets_others_write(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mask stands where the group's bits are: a private group may hide a stranger."""
    project.build()
    monkeypatch.setattr(trust, "_own_group", lambda: project.cache.stat().st_gid)
    path = place_of(project, "entry")
    path.chmod(0o770)
    assert project.build() == "found"
    entries = (
        (1, 7, 0xFFFFFFFF),
        (2, 7, OTHER),
        (4, 7, 0xFFFFFFFF),
        (16, 7, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    )
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError:  # a filesystem without
        monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
    refused(project, f"{place_of(project, 'entry')} can be written by those whom its ACL names")


# ---------------------------------------------------------------- libraries, other caches


CONSTRUCTOR = """
#include <stdio.h>
__attribute__((constructor)) static void run() { fclose(fopen("%s", "w")); }
"""


@pytest.mark.parametrize("name", ["libx.so", "meta.json", ""])
def test_no_constructor_runs(project: Project, name: str, tmp_path: Path) -> None:
    """A library of the host in a folder that others may write."""
    (project.root / "x.cpp").write_text(CONSTRUCTOR % (tmp_path / "ran"))
    entry = {"srcs": ["x.cpp"], "kind": "host", "output": "libx.so"}
    entry |= {"flags": ["-fPIC"], "link_flags": ["-shared"]}
    project.config.write_text(json.dumps({"x": entry}))
    spec = load_config(project.config)["x"]
    path = host.build_host(spec).folder / name
    path.chmod(0o777)
    with pytest.raises(rfops.ConfigError, match=f"{path} can be written by everybody"):
        launcher._load(str(host.build_host(spec).file))
    assert not (tmp_path / "ran").exists()


def test_an_object_that_others_may_write_is_not_linked(project: Project) -> None:
    (project.root / "x.cpp").write_text("int x;")
    (project.root / "y.cpp").write_text("int y;")
    entry = {"srcs": ["[xy].cpp"], "kind": "host", "output": "libx.so", "link_flags": ["-shared"]}
    entry |= {"srcs": ["*.cpp"], "flags": ["-fPIC"]}
    project.config.write_text(json.dumps({"x": entry}))
    host.build_host(load_config(project.config)["x"])
    (object_, *_) = project.cache.glob("v1/host/x.objects/*/x.o")
    object_.chmod(0o666)
    (project.root / "y.cpp").write_text("int z;")
    with pytest.raises(rfops.ConfigError, match=f"{object_} can be written by everybody"):
        host.build_host(load_config(project.config)["x"])


def test_what_zig_links(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its C++ runtime lies in a folder of the cache."""
    project.build()
    path = project.cache / "v1" / "zig" / "o"
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    with pytest.raises(rfops.ConfigError, match=f"{path} can be written by everybody"):
        project.build(BIAS=1)


def test_caches_behind(
    project: Project, monkeypatch: pytest.MonkeyPatch, foreign: Callable[[Path], None]
) -> None:
    project.build()
    behind = project.cache.rename(project.root / "behind")
    monkeypatch.setenv("RFOPS_CACHE_READ", str(behind))
    assert project.build() == "found"
    (artifact,) = behind.glob("v1/gfx950/axpy/*/module.hsaco")
    foreign(artifact)
    with pytest.raises(rfops.ConfigError, match=f"the cache {behind} is not .*{artifact} belongs"):
        project.build()
    monkeypatch.setenv("RFOPS_CACHE_TRUST", str(behind))
    assert project.build() == "found"
    assert torch.equal(project.run(project.op()), DOUBLED)


def test_what_is_loaded_is_what_was_checked(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes hands between the check and the load: what was opened is looked at."""
    find = shelf.ArtifactCache.find

    def find_and_open(
        self: shelf.ArtifactCache, *args: object, **kwargs: object
    ) -> shelf.Artifact | None:
        result = find(self, *args, **kwargs)  # type: ignore[arg-type]
        if result is not None:
            result.file.chmod(0o666)
        return result

    project.build()
    monkeypatch.setattr(shelf.ArtifactCache, "find", find_and_open)
    with pytest.raises(rfops.ConfigError, match=r"module\.hsaco can be written by everybody"):
        project.op().bind("cpu")


def test_an_entry_that_no_index_names(project: Project) -> None:
    """A build finds it where it wants to put its own."""
    project.build()
    entry, record = place_of(project, "entry"), place_of(project, "record")
    record.unlink()
    entry.chmod(0o777)
    with pytest.raises(rfops.ConfigError, match=f"{entry} can be written by everybody"):
        project.build()


@pytest.mark.parametrize("path", ["cache", "entry"])
def test_commands_refuse_it_too(
    project: Project, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.build()
    transfer.export(tmp_path / "good")
    place_of(project, path).chmod(0o777)
    commands = [["cache", "export", str(tmp_path / "x")]]
    commands += [["why", "module", "axpy", "--config", str(project.config)]]
    if path == "cache":
        commands += [
            ["cache", "gc", "--max-size", "0"],
            ["cache", "import", str(tmp_path / "good")],
        ]
    for command in commands:
        assert cli.main(command) == 1, command
        assert "is not trusted" in capsys.readouterr().err
    assert not (tmp_path / "x").exists() and place_of(project, "artifact").exists()


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str], list[str]]:
    status = cli.main(["doctor", "--json"])
    record = json.loads(capsys.readouterr().out)
    return status, record["cache"]["trust"][0], record["problems"]


def test_doctor_shows_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.build()
    status, root, problems = doctor(capsys)
    assert (root["mode"], root["trusted"], root["why"]) == ("0700", "yes", "")
    assert f"(uid {os.geteuid()})" in root["owner"] and not problems
    calls = project.calls()
    for name in ("artifact", "module", "cache"):
        path = place_of(project, name)
        path.chmod(0o777)
        status, root, problems = doctor(capsys)
        assert status == 1 and root["trusted"] == "no", name
        assert any(f"{path} can be written by everybody" in problem for problem in problems)
        assert cli.main(["doctor"]) == 1
        out = capsys.readouterr().out
        assert "trusted: no" in out and "problem: the cache" in out
        path.chmod(0o700)
    project.cache.chmod(0o777)
    assert project.calls() == calls, "a compiler was started"
    monkeypatch.setenv("RFOPS_CACHE_TRUST", str(project.cache))
    status, root, problems = doctor(capsys)
    assert root["trusted"] == "by RFOPS_CACHE_TRUST" and root["mode"] == "0777" and not problems


# ---------------------------------------------------------------- what is new


@pytest.fixture
def no_umask() -> Iterator[None]:
    previous = os.umask(0)
    yield
    os.umask(previous)


def build_all_kinds(project: Project) -> None:
    """Entries, failures, locks, compilers' records, what was imported."""
    assert torch.equal(project.run(project.op()), DOUBLED)
    transfer.export(project.root / "exported")
    text = project.source.read_text()
    project.source.write_text("broken")
    with pytest.raises(rfops.BuildError):
        project.build()
    project.source.write_text(text)
    for left in project.shelf.glob("*/meta.json"):
        left.unlink()
    assert transfer.import_(project.root / "exported") == (1, 0)


def modes(project: Project) -> dict[str, int]:
    positions = [project.cache, *project.cache.rglob("*")]
    return {str(p.relative_to(project.root)): p.lstat().st_mode & 0o7777 for p in positions}


def test_what_is_new_is_private(project: Project, no_umask: None) -> None:
    build_all_kinds(project)
    result = modes(project)
    assert len(result) > 15
    for path, mode in result.items():
        if (project.root / path).is_dir():
            assert mode == 0o700, path
        else:
            assert not mode & 0o022, path
    assert project.build() == "found"


def test_a_umask_that_forbids_more_counts(project: Project) -> None:
    previous = os.umask(0o077)
    try:
        build_all_kinds(project)
    finally:
        os.umask(previous)
    assert not [path for path, mode in modes(project).items() if mode & 0o077]


def test_a_shared_cache_is_the_umasks(
    project: Project, no_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the others of a group can add to it, and wait for each other's locks."""
    monkeypatch.setenv("RFOPS_CACHE_TRUST", str(project.cache))
    build_all_kinds(project)
    result = modes(project)
    for path, mode in result.items():
        assert mode & 0o666 == 0o666, path
    os.umask(0o027)
    project.build(BIAS=1)
    for path in modes(project).keys() - result.keys():
        assert not modes(project)[path] & 0o027, path
