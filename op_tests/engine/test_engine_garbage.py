"""Whatever is found in the engine's own files, nobody gets a traceback from inside of it, nor a
stale result: what is no longer readable is built again, or an error says which file is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest

import rfops
from rfops import cli
from rfops.jit.build import ninja, toolchain
from rfops.jit.build.host import host_unit
from rfops.jit.build.recipe import device_unit
from rfops.jit.build.spec import ModuleSpec, load_config, module_spec
from rfops.jit.build.toolchain import Toolchain
from rfops.jit.cache import transfer
from rfops.jit.cache.records import seal
from rfops.jit.policy import manifest
from support import mangle
from support.engine_project import SCALE, Project

KINDS = {
    "index": "v1/gfx950/axpy/index/*.json",
    "meta": "v1/gfx950/axpy/*/meta.json",
    "failure": "v1/gfx950/axpy/failed/*.json",
    "compiler": "v1/toolchains/*.json",
    "builder": "v1/compilers/*.json",
    "lock": "v1/gfx950/axpy/.*.lock",
    "in use": "v1/in-use",
}
COMMANDS = (
    ("ls",),
    ("cache", "gc", "--max-size", "1G"),
    ("cache", "export", "exported"),
    ("cache", "why", "axpy", "--config", "{config}"),
    ("cache", "import", "exported"),
)


def fail_once(project: Project) -> None:
    """A record of a failure that those who wait would raise again."""
    text = project.source.read_text()
    project.source.write_text("broken")
    hipcc = project.hipcc.read_text()
    project.hipcc.write_text(hipcc.replace("cp ", "exit 1; cp "))
    with pytest.raises(rfops.BuildError):
        project.build()
    project.source.write_text(text)
    project.hipcc.write_text(hipcc)


@pytest.mark.thin(3)
@pytest.mark.parametrize("rounds", [40, pytest.param(400, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("kind", KINDS)
def test_garbage_in_a_file_of_the_cache(
    quick: Project,
    kind: str,
    rounds: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Found or built again, and never what older sources gave."""
    rng = random.Random(f"{kind} {rounds}")
    monkeypatch.chdir(quick.root)
    assert quick.build() == "built"
    if kind == "failure":
        fail_once(quick)
    files = list(quick.cache.glob(KINDS[kind]))
    assert files, kind
    healthy = {file: file.read_bytes() for file in files}
    right = (quick.root / "ready").read_bytes()
    for index in range(rounds):
        for file, data in healthy.items():
            file.parent.mkdir(parents=True, exist_ok=True)  # an entry that was swept away
            with contextlib.suppress(OSError):
                every = mangle.FILES[index : index + 1]
                file.write_bytes(every[0] if every else mangle.json_file(rng, data))
        toolchain._choose.cache_clear()  # as in a new process
        edited = index % 4 == 0
        if edited:
            quick.header.write_text(f"{SCALE}// {index}")
        if index % 10 == 0:
            for command in COMMANDS:
                assert cli.main([word.format(config=quick.config) for word in command]) in (0, 1)
        result = quick.build()
        assert result == "built" if edited else result in ("built", "found")
        artifact = quick.op().build("gfx950")
        assert artifact.file.read_bytes() == right and artifact.meta.kernels
    assert "Traceback" not in capsys.readouterr().err


def test_an_index_that_has_lost_a_header(quick: Project) -> None:
    """It would call an entry unchanged whatever became of that header."""
    quick.build()
    (index,) = quick.cache.glob(KINDS["index"])
    body = json.loads(index.read_bytes())
    deps = body["entries"][0]["deps"]
    del deps[next(name for name in deps if name.endswith("/scale.h"))]
    index.write_text(json.dumps(body))
    quick.header.write_text(f"{SCALE}// edited")
    assert quick.build() == "built"


def test_a_record_of_a_failure_that_is_not_as_it_was_written(quick: Project) -> None:
    """Any other id would look like the failure that one has waited for."""
    fail_once(quick)
    (record,) = quick.cache.glob(KINDS["failure"])
    body = json.loads(record.read_bytes())
    for change in ({"id": 7}, {"id": ["x"]}, {"id": "x", "command": 3}, {"output": None}):
        record.write_text(json.dumps({**body, **change}))
        quick.header.write_text(f"{SCALE}// {change}")
        assert quick.build() == "built"


def repacked(rng: random.Random, exported: bytes) -> bytes:
    """An exported file whose metadata is mangled, with a seal that is right all the same."""
    sink = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(exported)) as source,
        tarfile.open(fileobj=sink, mode="w") as tar,
    ):
        for member in source:
            data = source.extractfile(member).read()  # type: ignore[union-attr]
            if member.name.endswith("meta.json"):
                with contextlib.suppress(ValueError, TypeError, AttributeError):
                    body = json.loads(mangle.misplaced(rng, data))
                    data = json.dumps({**body, "seal": seal(body)}).encode()
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return sink.getvalue()


def test_importing_garbage(quick: Project, tmp_path: Path) -> None:
    """Whole entries, or a ConfigError that names the file; nothing outside of the cache."""
    quick.build()
    file = tmp_path / "exported"
    transfer.export(file)
    exported, rng, refused = file.read_bytes(), random.Random(7), 0
    shutil.rmtree(quick.cache)
    previous = sorted(tmp_path.rglob("*"))
    for index in range(120):
        damaged = repacked(rng, exported) if index % 2 else mangle.splintered(rng, exported)
        file.write_bytes(damaged)
        try:
            transfer.import_(file)
        except rfops.ConfigError as error:
            assert str(file) in str(error), error
            refused += 1
        if index % 10 == 0:
            assert quick.build() in ("built", "found")
        outside = [f for f in tmp_path.rglob("*") if not f.is_relative_to(quick.cache)]
        assert sorted(outside) == previous
        shutil.rmtree(quick.cache, ignore_errors=True)
    assert 30 < refused < 120


# ---------------------------------------------------------------- what people write

CONFIG = {
    "axpy": {
        "srcs": ["axpy.hip"],
        "kind": "device",
        "archs": ["gfx942", "gfx950"],
        "flags": ["-O2"],
        "output": "module.hsaco",
        "title": "axpy",
    },
    "library": {
        "srcs": ["lib/*.cpp", "lib/more/x.cpp"],
        "kind": "host",
        "flags": ["-fPIC", "-I{root}"],
        "link_flags": ["-shared"],
        "output": "libx.so",
    },
}


def recipe(spec: ModuleSpec) -> bytes:
    """All that is made of a config before a compiler starts."""
    if spec.kind == "host":
        units = [host_unit(spec, Toolchain("c++", ("c++",), "1"))]
    else:
        compilers = [Toolchain(name, ("cc",), "1") for name in ("hipcc", "zig")]
        units = [device_unit(spec, arch, {}, item) for arch in spec.archs for item in compilers]
    steps = [
        ninja.Step(unit.argv(command), tuple(map(unit.expand, command.inputs)), command.output)
        for unit in units
        for command in unit.commands
    ]
    assert all(unit.build_key and not unit.shelf.find(unit.build_key) for unit in units)
    return ninja.ninja_text(steps).encode()


def test_mangled_configs(project: Project, tmp_path: Path) -> None:
    """A recipe or a ConfigError that names file and place."""
    for source in ("axpy.hip", "lib/one.cpp", "lib/more/x.cpp"):
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).touch()
    rng, refused, result = random.Random(4), 0, 0
    healthy = json.dumps(CONFIG).encode()
    for index in range(1500):
        config = tmp_path / f"{index}.json"
        config.write_bytes(mangle.json_file(rng, healthy) if index else healthy)
        try:
            for name in load_config(config):
                spec = module_spec(name, config)
                assert spec.sources() and recipe(spec) is not None
                result += 1
        except rfops.ConfigError as error:
            assert config.name in str(error) and len(str(error)) < 1000, error
            refused += 1
    assert refused > 700 and result > 300


def entries(project: Project) -> bytes:
    """A manifest with an entry of each kind."""
    expected = manifest.BuildRequest("axpy", "gfx950", (("BIAS", 3),), project.config)
    triton = manifest.TritonBuildRequest("rfops.triton.x:kernel", "gfx942", '{"name": "kernel"}')
    known = [expected, triton, manifest.BuildRequest("vgpu", "host")]
    return json.dumps({"rfops_manifest": 1, "entries": [e.as_dict() for e in known]}).encode()


def test_mangled_manifests(project: Project, tmp_path: Path) -> None:
    """Entries that can be asked for, or a ConfigError that names file and place."""
    rng, refused, asked = random.Random(5), 0, 0
    healthy = entries(project)
    file = tmp_path / "m.json"
    for index in range(1500):
        file.write_bytes(mangle.json_file(rng, healthy) if index else healthy)
        try:
            loaded = manifest.load(file)
        except rfops.ConfigError as error:
            assert str(file) in str(error) and len(str(error)) < 1000, error
            refused += 1
            continue
        assert len(set(loaded)) <= len(loaded)
        for entry in loaded:
            str(entry).encode()
            json.dumps(entry.as_dict()).encode()
            if isinstance(entry, manifest.BuildRequest) and entry.arch != "host":
                assert entry.command.encode()
                with contextlib.suppress(rfops.RfopsError):
                    spec = module_spec(entry.module, entry.config)
                    selected = Toolchain("hipcc", ("cc",), "1")
                    unit = device_unit(spec, entry.arch, dict(entry.defines), selected)
                    assert unit.build_key and "\0" not in " ".join(unit.argv(unit.commands[0]))
                    asked += 1
    assert refused > 500 and asked > 100


def test_recording_into_a_mangled_manifest(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there stays as it is, and no call fails for it."""
    rng = random.Random(6)
    healthy = entries(project)
    project.build()
    for index in range(60):
        file = tmp_path / f"{index}.json"
        file.write_bytes(previous := mangle.json_file(rng, healthy))
        monkeypatch.setenv("RFOPS_RECORD_MANIFEST", str(file))
        assert project.build() == "found"
        try:
            assert "axpy gfx950" in map(str, manifest.load(file))
        except rfops.ConfigError:
            assert file.read_bytes() == previous
