"""`rfops cache import` of files that a stranger has made: refused before anything is written, with
the reason and the file's name, and nothing stays behind."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rfops
from rfops import cli
from rfops.jit.cache import archive, collect, lock, transfer
from rfops.jit.cache.files import content_key, digest
from rfops.jit.cache.records import seal
from support.engine_project import Project

Member = tuple[tarfile.TarInfo, bytes]


def plain(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, "/etc/passwd"
    return info, data


def packed(members: list[Member], **kwargs: Any) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", **kwargs) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def unpacked(data: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [plain(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]


def remade(members: list[Member], data: bytes | None = None, **changes: Any) -> list[Member]:
    """Its first entry with other metadata (and artifact), sealed and keyed as if it were whole."""
    (info, text), (_, previous) = members[:2]
    meta = {**json.loads(text), **changes}
    data = previous if data is None else data
    if not {"size", "sha256"} & changes.keys():
        meta |= {"size": len(data), "sha256": digest(data)}
    meta["key"] = content_key(meta["build_key"], meta["deps"])
    meta["seal"] = seal(meta)
    arch, module, _, _ = info.name.split("/")
    folder = f"{arch}/{module}/{meta['key']}"
    result = [plain(f"{folder}/meta.json", json.dumps(meta).encode())]
    return [*result, plain(f"{folder}/{meta['output']}", data), *members[2:]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two whole entries as they were exported."""
    result = Project(tmp_path_factory.mktemp("good") / "project").write()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFOPS_CACHE_DIR", str(result.cache))
        patch.setenv("RFOPS_HIPCC", str(result.write_hipcc()))
        assert result.build(BIAS=1) == result.build(BIAS=2) == "built"
        assert transfer.export(result.root / "exported") == 2
    return (result.root / "exported").read_bytes()


@pytest.fixture
def exported(good: bytes) -> list[Member]:
    members = unpacked(good)
    assert len(members) == 4
    return members


@pytest.fixture
def refuse(project: Project, good: bytes) -> Callable[..., str]:
    """Imports bytes that must be refused, into no cache and into one that has something."""
    file, full = project.root / "evil", project.root / "full"
    file.write_bytes(good)
    assert transfer.import_(file) == (2, 0)
    project.cache.rename(full)

    def check(data: bytes, limit: int = archive.MAX_BYTES) -> str:
        file.write_bytes(data)
        for existing in (False, True):
            if existing:
                shutil.copytree(full, project.cache)
            previous = {p: p.stat().st_mtime_ns for p in project.root.rglob("*")}
            with pytest.raises(rfops.ConfigError, match=f"^cannot import {file}: ") as caught:
                transfer.import_(file, limit)
            assert {p: p.stat().st_mtime_ns for p in project.root.rglob("*")} == previous
        shutil.rmtree(project.cache)
        lock._forget()
        assert len(str(caught.value)) < 1000
        return str(caught.value)

    return check


def names(members: list[Member]) -> tuple[str, str]:
    """The folder of the first entry, and its key."""
    folder = members[0][0].name.rpartition("/")[0]
    return folder, folder.rpartition("/")[2]


def test_what_is_right_comes_in(
    project: Project, exported: list[Member], capsys: pytest.CaptureFixture[str]
) -> None:
    for data in (packed(exported), gzip.compress(packed(exported)), packed(remade(exported))):
        (project.root / "good").write_bytes(data)
        assert cli.main(["cache", "import", str(project.root / "good")]) == 0
        assert capsys.readouterr().out.startswith("2 entries added to ")
        assert project.build(BIAS=1) == project.build(BIAS=2) == "found"
        assert not list(project.cache.glob("v1/.*"))
        shutil.rmtree(project.cache)
        lock._forget()


# ---------------------------------------------------------------- too much


def test_a_bomb_that_no_manifest_names(
    project: Project, exported: list[Member], refuse: Callable[..., str]
) -> None:
    """As it was: 3.2 GB on the disk of a file of 3.1 MB."""
    folder, _ = names(exported)
    zeros = bytes(50_000_000)
    for members in (
        [plain(f"{folder}/zeros", zeros), *exported],
        [exported[0], plain(f"{folder}/zeros", zeros), *exported[1:]],
        [*exported[:2], plain(f"{folder}/zeros", zeros), *exported[2:]],
        [*exported, plain(f"{folder}/zeros", zeros)],
    ):
        data = gzip.compress(packed(members), 1)
        assert len(data) < 1_000_000
        text = refuse(data)
        assert "does not belong into a cache: no meta.json names it" in text or (
            "module.hsaco does not follow" in text
        )


def test_a_bomb_that_is_named(
    project: Project,
    exported: list[Member],
    refuse: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = gzip.compress(packed(remade(exported, bytes(20_000_000))), 1)
    read: list[int] = []
    chunk = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or chunk(self, size)
    )
    assert "of at most 5000000; if it is meant to, --max-size raises" in refuse(data, 5_000_000)
    assert sum(read) < 200_000, "it was read before its size was looked at"
    assert cli.main(["cache", "import", str(project.root / "evil"), "--max-size", "15M"]) == 1
    assert "--max-size raises that limit" in capsys.readouterr().err
    assert "is damaged: its module.hsaco is another one" in refuse(data), "zeros are no code"


def test_many_that_are_small_each(
    exported: list[Member], refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(info.size for info, _ in exported)
    assert f"of at most {size - 1}" in refuse(packed(exported), size - 1)
    monkeypatch.setattr(archive, "_MAX_MEMBERS", 3)
    assert "it has more than 3 files" in refuse(packed(exported))


def test_a_file_that_is_large_for_its_kind(
    exported: list[Member], refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MAX_META", 100)
    assert "meta.json declares" in refuse(packed(exported))
    monkeypatch.setattr(archive, "_MAX_META", 1 << 20)
    monkeypatch.setattr(archive, "_MAX_FILE", 100)
    assert "module.hsaco declares" in refuse(packed(exported))


def header(size: bytes, kind: bytes, name: bytes = b"x") -> bytes:
    """A tar header with a size that tarfile itself would not write."""
    block = bytearray(512)
    block[: len(name)], block[100:108], block[124:136] = name, b"0000644\0", size
    block[156:157], block[257:265], block[148:156] = kind, b"ustar  \0", 8 * b" "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


GIGABYTES = b"27777777777\0"  # 3.2
NEGATIVE = b"\xff" + 9 * b"\xff" + b"\xfe\x00"


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"X", b"0", b"\0", b"7", b"S"])
@pytest.mark.parametrize("size", [GIGABYTES, NEGATIVE], ids=["huge", "negative"])
def test_headers_that_want_much(
    exported: list[Member], refuse: Callable[..., str], kind: bytes, size: bytes
) -> None:
    """tarfile reads what describes a file into memory, whatever it declares, and seeks back."""
    name = exported[0][0].name.encode()
    for front in (b"", packed(exported[:2])[: -tarfile.RECORDSIZE]):
        refuse(front + header(size, kind, name) + bytes(10240))
        refuse(gzip.compress(front + header(size, kind, name) + bytes(3_000_000)))


def test_headers_of_headers(refuse: Callable[..., str]) -> None:
    refuse(5000 * (header(b"00000000001\0", b"L") + b"x" + bytes(511)) + bytes(10240))


# ---------------------------------------------------------------- what does not belong


KINDS = {
    "hard link": tarfile.LNKTYPE,
    "symlink": tarfile.SYMTYPE,
    "fifo": tarfile.FIFOTYPE,
    "char": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "folder": tarfile.DIRTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE,
    "contiguous": tarfile.CONTTYPE,
    "unknown": b"Z",
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(exported: list[Member], refuse: Callable[..., str], kind: str) -> None:
    (info, _), (second, _) = exported[:2]
    for name, offset in ((info.name, 0), (second.name, 1), (f"{names(exported)[0]}/more", 2)):
        special = [plain(name, b"", KINDS[kind])]
        refuse(packed(exported[:offset] + special + exported[offset:]))
        refuse(packed(exported[:offset] + special + exported[offset + 1 :]))
    refuse(packed([plain("gfx950", b"", KINDS[kind]), *exported]))


def test_sparse_of_pax(exported: list[Member], refuse: Callable[..., str]) -> None:
    """A file of few bytes that reads as many."""
    info, _ = exported[1]
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.numblocks": "1",
        "GNU.sparse.size": "3200000000",
    }
    refuse(packed(exported, format=tarfile.PAX_FORMAT))


@pytest.mark.parametrize(
    "name",
    [
        "/{folder}/meta.json", "./{folder}/meta.json", "../{folder}/meta.json",
        "{folder}/../x/meta.json", "{folder}/./meta.json", "{folder}//meta.json", "meta.json",
        "{folder}/more/meta.json", "{FOLDER}/meta.json", "GFX950/axpy/{key}/meta.json",
        "gfx950/axpy/{KEY}/meta.json", "gfx90a/axpy/{key}/meta.json", "gfx950/AXPY/{key}/meta.json",
        "gfx950/../{key}/meta.json", "gfx950/.axpy/{key}/meta.json", "{folder}/META.JSON",
        "{folder}/Meta.json", "{folder}/meta.json\n", "{folder}/meta.json ", "{folder}\\meta.json",
        "host/axpy/{key}/meta.json", "gfx942/axpy/{key}/meta.json", "gfx950/axpy2/{key}/meta.json",
        "gfx950/axpy/{other}/meta.json", "compilers/meta.json", "gfx950/axpy/index/{key}.json",
        "gfx950/" + 200 * "x" + "/{key}/meta.json", "{folder}/" + 300 * "x",
    ],
)  # fmt: skip
def test_names(exported: list[Member], refuse: Callable[..., str], name: str) -> None:
    folder, key = names(exported)
    result = name.format(
        folder=folder, FOLDER=folder.upper(), key=key, KEY=key.upper(), other=40 * "a"
    )
    if result == f"{folder}/meta.json":
        pytest.fail("that is the right one")
    refuse(packed([plain(result, exported[0][1]), *exported[1:]]))
    refuse(packed([*exported, plain(result, exported[0][1])]))


def test_twice(exported: list[Member], refuse: Callable[..., str]) -> None:
    assert "is in it twice" in refuse(packed([*exported, *exported]))
    upper = [plain(i.name.replace("axpy", "AXPY"), d) for i, d in exported[:2]]
    for members in ([*exported, *upper], [*upper, *exported]):
        refuse(packed(members))
    assert "does not follow" in refuse(packed([exported[0], *exported]))
    refuse(packed([*exported[:2], *exported[1:]]))
    refuse(packed([exported[1], exported[0], *exported[2:]]))


@pytest.mark.parametrize(
    "changes",
    [
        {"output": "META.JSON"}, {"output": "meta.json"}, {"output": "../x"}, {"output": "/x"},
        {"output": "a/b"}, {"output": ".x"}, {"output": ""}, {"output": "x\n"}, {"output": 3},
        {"output": ["x"]}, {"size": 10**9, "sha256": "0"}, {"size": -1, "sha256": "0"},
        {"size": True, "sha256": "0"}, {"size": None, "sha256": "0"}, {"module": "other"},
        {"arch": "gfx942"}, {"arch": "host"}, {"kernels": {}}, {"kernels": None},
        {"commands": [[3]]}, {"deps": {"a": 3}}, {"build_key": "../../../x"}, {"toolchain": 3},
    ],
    ids=str,
)  # fmt: skip
def test_metadata(
    exported: list[Member], refuse: Callable[..., str], changes: dict[str, Any]
) -> None:
    refuse(packed(remade(exported, **changes)))
    refuse(packed([*exported[2:], *remade(exported[:2], **changes)]))


def test_what_is_whole_in_front_of_what_is_not(
    project: Project, exported: list[Member], refuse: Callable[..., str]
) -> None:
    """All or nothing."""
    info, data = exported[3]
    assert "is another one" in refuse(packed([*exported[:3], plain(info.name, data[:-1] + b"x")]))
    assert "declares" in refuse(packed([*exported[:3], plain(info.name, data + b"x")]))
    assert "does not follow" in refuse(packed(exported[:3]))


# ---------------------------------------------------------------- the file itself


def test_what_comes_behind_its_end(exported: list[Member], refuse: Callable[..., str]) -> None:
    whole = packed(exported)
    end = "it does not end as it should"
    assert end in refuse(whole + b"x")
    assert end in refuse(whole + bytes(1 << 17))
    assert end in refuse(whole + whole)
    assert end in refuse(gzip.compress(whole) + gzip.compress(whole))
    refuse(gzip.compress(whole) + b"x")
    used = sum(512 + -(-len(data) // 512) * 512 for _, data in exported)
    assert not whole[used:].strip(b"\0")
    for size in (used, used + 512):
        assert end in refuse(whole[:size])
    refuse(whole[: used - 512])
    packed_ = bytearray(gzip.compress(whole))
    packed_[-6] ^= 1
    assert "CRC" in refuse(bytes(packed_))


def test_other_packers(exported: list[Member], refuse: Callable[..., str]) -> None:
    """Their limits are not ours, and nobody exports so."""
    import bz2
    import lzma

    for packer in (bz2, lzma):
        assert "it is damaged" in refuse(packer.compress(packed(exported)))


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/tmp", "/absent"])
def test_what_is_no_file(project: Project, name: str) -> None:
    with pytest.raises(rfops.ConfigError, match=f"cannot import {name}: there is no such file"):
        transfer.import_(Path(name))
    assert not project.cache.exists()


def test_a_file_that_changes_while_it_is_read(
    project: Project, exported: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write; what is written is what the second look saw."""
    file = project.root / "evil"
    file.write_bytes(packed(exported))
    look, looks = archive.entries, 0

    def changing(stream: Any, limit: int) -> Iterator[archive.Entry]:
        nonlocal looks
        looks += 1
        if looks == 2:
            file.write_bytes(packed([*exported[:3], plain(exported[3][0].name, b"x")]))
        yield from look(stream, limit)

    monkeypatch.setattr(archive, "entries", changing)
    with pytest.raises(rfops.ConfigError, match="declares 1 bytes"):
        transfer.import_(file)
    assert looks == 2 and not [p for p in project.cache.rglob("*") if p.is_file()]
    assert not list(project.cache.glob("v1/.import*"))


def test_gc_removes_what_a_killed_import_left(project: Project) -> None:
    import os

    project.build()
    left = project.cache / "v1" / ".import-x" / "gfx950"
    left.mkdir(parents=True)
    collect.collect(1 << 40)
    assert left.exists(), "it may be running"
    os.utime(left.parent, (0, 0))
    collect.collect(1 << 40)
    assert not left.parent.exists()
