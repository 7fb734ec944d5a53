"""The page "Write an op", followed literally: three files in a folder of their own, and an op in a
copy of rfops."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rfops import cli
from rfops.dispatch import op as registry
from support import ROOT
from support.command import rfops
from support.process import python

PAGE = ROOT / "rfops" / "dispatch" / "README.md"
FILES = {"cpp": "axpy.hip", "json": "config.json", "python": "axpy.py"}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("readme")
    section = PAGE.read_text(encoding="utf-8").split("\n# ")[0].partition("```\n")[2]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)
    assert [language for language, _ in blocks] == list(FILES)
    for language, text in blocks:
        (folder / FILES[language]).write_text(text)
    spec = importlib.util.spec_from_file_location("axpy", folder / "axpy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["axpy"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["axpy"], registry._OPS["axpy"]


def test_the_page_shows_what_the_command_writes(
    example: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = re.search(r"^```console\n\$ ([^\n]*)\n(.*?)^\.\.\.$", PAGE.read_text(), re.M | re.S)
    assert shown is not None and example.__file__ is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "axpy")
    monkeypatch.delitem(registry._OPS, "axpy")
    assert cli.main(shown[1].split()[1:]) == 0
    assert capsys.readouterr().out.startswith(shown[2])
    for name in FILES.values():
        text = (tmp_path / "axpy" / name).read_text(encoding="utf-8")
        assert text == (Path(example.__file__).parent / name).read_text(encoding="utf-8"), name


def test_it_computes(example: ModuleType) -> None:
    for m, k in ((1, 1), (2, 256), (3, 1000), (5, 1001)):
        x, y = torch.randn(m, k), torch.randn(m, k)
        out = torch.full((m, k), float("nan"))
        assert example.axpy(x, y, 2.0, out) is out
        torch.testing.assert_close(out, example.axpy_ref(x, y, 2.0))
        assert torch.equal(example.axpy(x, y, 2.0), out)
    with pytest.raises(ValueError, match=r"^axpy: y must be a \[M=4, K=5\] tensor, got \[4, 3\]"):
        example.axpy(torch.randn(4, 5), torch.randn(4, 3), 1.0)
    compiled = torch.compile(lambda x, y: example.axpy(x, y, 3.0) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), 3 * x + y + 1)
    torch.library.opcheck(torch.ops.rfops.axpy.default, (x, y, 2.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ls", "axpy"),
        ("why axpy --m 3 --k 1000 --a 2", "hip, a HIP kernel"),
        ("profile axpy --m 3 --k 1000 --a 2", "on gfx950"),
        ("bench axpy", "geometric mean"),
        ("build axpy --arch gfx950", "1 of 1"),
    ],
)
def test_each_command_knows_it(
    example: ModuleType, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(text.split()) == 0, capsys.readouterr().err
    assert said in capsys.readouterr().out


def test_the_command_takes_its_file(example: ModuleType, tmp_path: Path) -> None:
    """In a process of its own, as the page has it."""
    words = re.search(r"`rfops (--ops axpy.py .*?)`", PAGE.read_text(encoding="utf-8"))
    assert words is not None and example.__file__ is not None
    folder = Path(example.__file__).parent
    for given, offset, status, said in (
        (words[1], folder, 0, "geometric mean"),
        (f"--ops {folder}/axpy.py ls", tmp_path, 0, "axpy"),
        ("--ops missing.py ls", folder, 1, "--ops missing.py: expected a file of Python"),
        ("--ops config.json ls", folder, 1, "--ops config.json: expected a file of Python"),
    ):
        completed = rfops(*given.split(), cwd=offset)
        assert completed.returncode == status and said in completed.stdout + completed.stderr, (
            completed
        )


# ---------------------------------------------------------------- inside rfops

ADD = """
import sys
sys.path.insert(0, sys.argv[1])
from rfops import cli
from rfops.jit import paths
assert str(paths.ROOT) == sys.argv[1], paths.ROOT
assert cli.main(sys.argv[2:]) == 0
"""
USE = """
import sys
sys.path.insert(0, sys.argv[1])
import rfops
assert "axpy" in rfops.__all__ and "axpy_ref" in dir(rfops) and "torch" in sys.modules
import pytest, torch
x, y = torch.randn(3, 100), torch.randn(3, 100)
torch.testing.assert_close(rfops.axpy(x, y, 2.0), 2 * x + y)
assert rfops.axpy.__module__ == "rfops.gemm.axpy" and torch.ops.rfops.axpy.default
from rfops import cli
for command in sys.argv[2:]:
    words = command.split()
    status = pytest.main(words[1:]) if words[0] == "pytest" else cli.main(words[1:])
    assert status == 0, command
"""


def test_the_recipe_inside_rfops(tmp_path: Path, vgpu_path: Path) -> None:
    """Step by step in a copy of the tree, whose files but the config stay as they are."""
    section = PAGE.read_text(encoding="utf-8").split("# An op inside rfops")[1].split("\n# ")[0]
    steps = re.findall(r"^\d\. (.*(?:\n   .*)*)", section, re.M)
    create, config, use = [re.findall(r"`([^`]+)`", step.replace("\n  ", "")) for step in steps]
    tree = copy_of_checkout(tmp_path / "tree")
    previous = {file: file.read_bytes() for file in files_of(tree)}

    env = {"RFOPS_HIP_LIBRARY": str(vgpu_path)}
    completed = python(ADD, tree, *create[0].split()[1:], cwd=tree, **env)
    assert completed.returncode == 0, completed.stderr
    assert set(files_of(tree)) - previous.keys() == {tree / name for name in create[1:]}
    path, entry = tree / config[0], config[1]
    text = path.read_text(encoding="utf-8").rstrip().removesuffix("}").rstrip()
    path.write_text(f"{text},\n  {entry}\n}}\n", encoding="utf-8")
    assert json.loads(path.read_text())["axpy"] and entry in completed.stdout
    changed = {file for file, text in previous.items() if file.read_bytes() != text}
    assert changed == {path, tree / "rfops/public.py"}

    commands = [*use[:2], "rfops ls", "rfops why axpy --m 3 --k 100 --a 2"]
    completed = python(USE, tree, *commands, cwd=tree, **env)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "9 passed" in completed.stdout and "geometric mean" in completed.stdout
    assert re.search(r"^axpy .* gfx950 .* axpy$", completed.stdout, re.M), "rfops ls"
    assert "hip, a HIP kernel" in completed.stdout, "rfops why"


def copy_of_checkout(tree: Path) -> Path:
    """Where `rfops.jit` is found without an installation."""
    for name in ("rfops", "jit", "configs", "csrc/gemm", "csrc/include", "op_tests/gemm"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "vgpu", "launcher", "attention", "moe", "quantization", "rowwise"):
        (tree / "csrc" / name).symlink_to(ROOT / "csrc" / name)
    for name in ("jit", "csrc", "configs"):
        (tree / "rfops" / name).symlink_to(tree / name)
    return tree


def files_of(tree: Path) -> list[Path]:
    """But those that Python writes beside what it imports."""
    return [f for f in tree.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
