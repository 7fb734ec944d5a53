"""compiler_config.json: data with a schema, and an error that says where for whatever breaks it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch

import rfops
from rfops.jit import compiled_ops, paths
from rfops.jit.build.recipe import device_unit
from rfops.jit.build.spec import ARCHS, ModuleSpec, load_config, module_spec
from rfops.jit.build.toolchain import Toolchain


def test_every_module_of_ours_has_its_sources() -> None:
    modules = load_config()
    assert "vgpu" in modules and len(modules) > 1
    for spec in modules.values():
        assert spec.sources()


def test_every_op_has_a_module_and_every_device_module_an_op() -> None:
    used = {op.module for op in compiled_ops()}
    device = {name for name, spec in load_config().items() if spec.kind == "device"}
    assert used == device


def test_every_device_source_has_a_module() -> None:
    listed = {source.name for spec in load_config().values() for source in spec.sources()}
    sources = {source.name for source in paths.CSRC.glob("*/*.hip")}
    assert len(sources) > 35 and sources - {"simple.hip"} <= listed  # that of `rfops bench timing`


def test_defines_are_those_that_a_source_reads() -> None:
    """A missing one is an error at bind time instead of one of the compiler."""
    headers = [*paths.INCLUDE.rglob("*.h"), *paths.CSRC.glob("*/*.h")]
    ours = set().union(*(re.findall(r"#define RFOPS_(\w+)", file.read_text()) for file in headers))
    for name, spec in load_config().items():
        if spec.kind == "device":
            text = re.sub(r"//.*", "", spec.sources()[0].read_text(encoding="utf-8"))
            own = set(re.findall(r"#define RFOPS_(\w+)", text))
            reads = set(re.findall(r"\bRFOPS_(\w+)", text)) - own - ours
            assert reads == set(spec.defines or ()), name
            assert spec.defines is not None and len(spec.defines) == len(reads), name


GEMV = {"M": 1, "LANES": 16, "ROWS": 1, "STEPS": 1, "WAVES": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ROWS": None},
            r"mxfp8_gemv: .* \(M, LANES, ROWS, STEPS, WAVES\), got missing: ROWS\.",
        ),
        ({"TAIL": 1, "SPLIT": 2}, r"got unknown: TAIL, SPLIT\. "),
        ({"M": None, "MTILES": 1}, r"got missing: M; unknown: MTILES\. "),
    ],
)
def test_missing_and_unknown_defines_are_refused_at_bind(
    change: dict[str, int | None], message: str
) -> None:
    kernel = next(op for op in compiled_ops() if op.module == "mxfp8_gemv")
    defines = {name: value for name, value in {**GEMV, **change}.items() if value is not None}
    with pytest.raises(rfops.ConfigError, match=message):
        kernel.bind(torch.device("cpu", 0), defines, "gfx950")


def test_a_module_without_the_key_takes_any_defines(tmp_path: Path) -> None:
    config = write(tmp_path, {"m": {"srcs": ["m.hip"]}, "n": {"srcs": ["n.hip"], "defines": []}})
    module_spec("m", config).require_defines(["ANY"])
    module_spec("n", config).require_defines([])
    with pytest.raises(rfops.ConfigError, match=r"n: .*\(none\), got unknown: ANY"):
        module_spec("n", config).require_defines(["ANY"])


def test_arguments_are_preloaded_where_an_entry_says_so() -> None:
    for name, flags in (("mxfp8_gemv", ["-amdgpu-kernarg-preload-count=16"]), ("moe_add", [])):
        unit = device_unit(module_spec(name), "gfx950", {}, Toolchain("hipcc", ("hipcc",), "1"))
        assert [flag for flag in unit.commands[0].argv if "preload" in flag] == flags


def test_defaults(tmp_path: Path) -> None:
    config = write(tmp_path, {"m": {"srcs": ["m.hip"]}})
    expected = ModuleSpec(name="m", srcs=("m.hip",), archs=ARCHS, root=tmp_path, config=config)
    assert load_config(config)["m"] == expected


def test_a_config_file_that_changed_is_read_again(tmp_path: Path) -> None:
    """A module that is reloaded got the flags of its first load."""
    for flag in ("-DA=1", "-DA=2"):
        config = write(tmp_path, {"m": {"srcs": ["m.hip"], "flags": [flag]}})
        assert module_spec("m", config).flags == (flag,)


def write(folder: Path, content: object) -> Path:
    config = folder / "config.json"
    config.write_text(content if isinstance(content, str) else json.dumps(content))
    return config


WRONG = {
    "unknown key": (
        {"m": {"srcs": ["m.hip"], "hip_flag": []}},
        r"config.json: m: unknown key 'hip_flag'; known keys: srcs, kind, archs, flags",
    ),
    "no sources": ({"m": {}}, r"m\.srcs: at least one source"),
    "two sources": ({"m": {"srcs": ["a.hip", "b.hip"]}}, r"m\.srcs: .* exactly one source"),
    "glob": ({"m": {"srcs": ["*.hip"]}}, r"m\.srcs: .* exactly one source"),
    "text for a list": (
        {"m": {"srcs": "m.hip"}},
        r"m\.srcs: expected a list, got 'm.hip'",
    ),
    "number in a list": (
        {"m": {"srcs": ["m.hip"], "flags": [3]}},
        r"m\.flags\[0\]: expected a text, got 3",
    ),
    "list for a text": (
        {"m": {"srcs": ["m.hip"], "title": []}},
        r"m\.title: expected a text, got \[\]",
    ),
    "unknown arch": (
        {"m": {"srcs": ["m.hip"], "archs": ["gfx90a"]}},
        r"m\.archs: unknown 'gfx90a'; known: gfx942, gfx950",
    ),
    "too many arguments": (
        {"m": {"srcs": ["m.hip"], "preload_arguments": 17}},
        r"m\.preload_arguments: expected 0 to 16, got 17",
    ),
    "no batch": (
        {"m": {"srcs": ["m.cpp"], "kind": "host", "unity_batch": 0}},
        r"m\.unity_batch: expected 1 or more, got 0",
    ),
    "unknown kind": ({"m": {"srcs": ["m.hip"], "kind": "torch"}}, r"m\.kind: .* got 'torch'"),
    "path as output": ({"m": {"srcs": ["m.hip"], "output": "../x"}}, r"'\.\./x' cannot be a file"),
    "path as name": ({"../m": {"srcs": ["m.hip"]}}, r"'\.\./m' cannot be a file name"),
    "entry no object": ({"m": []}, r"m: expected an object, got \[\]"),
    "no object": ([], r"expected an object of modules"),
    "no JSON": ("{", r"config\.json: "),
    "line end": ({"m": {"srcs": ["m.hip"], "flags": ["a\nb"]}}, r"m\.flags: .* one line, got \("),
    "empty text": ({"m": {"srcs": ["m.hip"], "flags": [""]}}, r"m\.flags: .* one line, got \("),
    "code": ('{"m": {"srcs": [__import__("os").sep]}}', r"config\.json: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    with pytest.raises(rfops.ConfigError, match=message):
        load_config(write(tmp_path, content))


def test_a_missing_file_a_missing_module_and_a_missing_source(tmp_path: Path) -> None:
    with pytest.raises(rfops.ConfigError, match=r"absent\.json"):
        load_config(tmp_path / "absent.json")
    config = write(tmp_path, {"m": {"srcs": ["m.hip"]}})
    with pytest.raises(rfops.ConfigError, match="no module 'k'; known modules: m"):
        module_spec("k", config)
    with pytest.raises(rfops.ConfigError, match=r"m: no source 'm\.hip' in "):
        load_config(config)["m"].sources()


def test_declaring_an_op_reads_nothing(tmp_path: Path) -> None:
    """An error in one module's entry must not break the import of another op."""
    op = rfops.jit.compile_ops("m", config=tmp_path / "absent.json")(lambda: None)
    with pytest.raises(rfops.ConfigError, match=r"absent\.json"):
        op.bind(torch.device("cpu"))


SPLINTERS = ('"', "{", "]", ",", "\x00", "é", "9", "")
ODD = (None, 3, -1.5, True, "", "x/y", "..", [], [None], {}, {"a": []}, ["a", 3], "*")


def mangled(rng: random.Random) -> str:
    """A real config with a few bytes, or one value somewhere in it, made into something else."""
    text = paths.COMPILER_CONFIG.read_text()
    if rng.random() < 0.5:
        data = list(text)
        for _ in range(rng.randint(1, 4)):
            offset = rng.randrange(len(data))
            data[offset : offset + rng.randint(0, 3)] = rng.choice(SPLINTERS)
        return "".join(data)
    odd = rng.choice(ODD)
    body = json.loads(text)
    entry = body[rng.choice(list(body))]
    entry[rng.choice([*entry, "archs", "flags", "kind", "output", "root", "config", "name"])] = odd
    return json.dumps(body)


def test_mangled_configs_are_refused_with_their_place(tmp_path: Path) -> None:
    """ConfigError or a config: never an error from inside the engine."""
    rng, refused = random.Random(3), 0
    for index in range(1000):
        config = tmp_path / f"{index}.json"
        config.write_text(mangled(rng))
        try:
            load_config(config)
        except rfops.ConfigError as error:
            assert config.name in str(error) and len(str(error)) < 1000
            refused += 1
    assert refused > 300
