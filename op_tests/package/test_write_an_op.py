"""The page "Write an op", followed literally: three files in a folder of their own."""

from __future__ import annotations

import importlib.util
import re
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

PAGE = ROOT / "rfops" / "dispatch" / "README.md"
FILES = {"cpp": "axpy.hip", "json": "config.json", "python": "axpy.py"}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("readme")
    section = PAGE.read_text(encoding="utf-8").split("\n# ")[0]
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


def test_it_computes(example: ModuleType) -> None:
    for n in (1, 256, 1000, 1001):
        x, y = torch.randn(n), torch.randn(n)
        out = torch.full((n,), float("nan"))
        assert example.axpy(x, y, 2.0, out) is out
        torch.testing.assert_close(out, example.reference(x, y, 2.0))
        assert torch.equal(example.axpy(x, y, 2.0), out)
    with pytest.raises(ValueError, match=r"^axpy: y must be a \[N=4\] tensor, got \[3\]"):
        example.axpy(torch.randn(4), torch.randn(3), 1.0)
    compiled = torch.compile(lambda x, y: example.axpy(x, y, 3.0) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), 3 * x + y + 1)
    torch.library.opcheck(torch.ops.rfops.axpy.default, (x, y, 2.0))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls", "axpy"),
        ("why axpy --n 1000 --a 2", "hip, a HIP kernel"),
        ("profile axpy --n 1000 --a 2", "on gfx950"),
        ("bench axpy", "geometric mean"),
        ("build axpy --arch gfx950", "1 of 1"),
    ],
)
def test_each_command_knows_it(
    example: ModuleType, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 0, capsys.readouterr().err
    assert said in capsys.readouterr().out


def test_the_command_takes_its_file(example: ModuleType, tmp_path: Path) -> None:
    """In a process of its own, as the page has it."""
    words = re.search(r"`rfops (--ops axpy.py .*?)`", PAGE.read_text(encoding="utf-8"))
    assert words is not None and example.__file__ is not None
    folder = Path(example.__file__).parent
    for given, at, status, said in (
        (words[1], folder, 0, "geometric mean"),
        (f"--ops {folder}/axpy.py ls", tmp_path, 0, "axpy"),
        ("--ops missing.py ls", folder, 1, "--ops missing.py: expected a file of Python"),
        ("--ops config.json ls", folder, 1, "--ops config.json: expected a file of Python"),
    ):
        done = rfops(*given.split(), cwd=at)
        assert done.returncode == status and said in done.stdout + done.stderr, done
