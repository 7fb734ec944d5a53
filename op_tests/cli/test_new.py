"""`rfops new` writes an op that runs, passes its test and benches as it is, with each option."""

from __future__ import annotations

import ast
import csv
import itertools
import re
from pathlib import Path

import pytest

from rfops import cli
from rfops.cli import new
from support.process import python

OPTIONS = ("--results 2", "--fp8", "--leading")
ALL = [" ".join(itertools.compress(OPTIONS, bits)) for bits in itertools.product((0, 1), repeat=3)]
# The cases that always run, each option on each architecture.
DEFAULT = {
    ("", "gfx950"),
    ("--fp8", "gfx942"),
    ("--results 2 --leading", "gfx942"),
    ("--results 2 --fp8 --leading", "gfx950"),
}
WORKS = """
import sys, pytest
from rfops import cli
assert cli.main(["new", "mix", *sys.argv[1:]]) == 0
assert pytest.main(["-q", "-p", "no:cacheprovider", "mix"]) == 0
assert cli.main(["--ops", "mix/mix.py", "bench", "mix"]) == 0
"""


@pytest.mark.parametrize(
    ("options", "arch"),
    [
        pytest.param(*case, marks=[pytest.mark.sweep] * (case not in DEFAULT))
        for case in itertools.product(ALL, ("gfx950", "gfx942"))
    ],
)
def test_a_new_op_works(options: str, arch: str, tmp_path: Path) -> None:
    completed = python(WORKS, *options.split(), cwd=tmp_path, RFOPS_VGPU_ARCH=arch)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert f"virtual GPU {arch}" in completed.stdout and "geometric mean" in completed.stdout
    count = re.search(r"(\d+) passed", completed.stdout)
    assert count is not None and int(count[1]) == (10 if "leading" in options else 9)


def text_of(tmp_path: Path, options: str) -> dict[str, str]:
    assert cli.main(["new", "mix", "--out", str(tmp_path / "mix"), *options.split()]) == 0
    files = (tmp_path / "mix").iterdir()
    return {file.name: file.read_text(encoding="utf-8") for file in files}


@pytest.mark.parametrize("options", ALL)
def test_nothing_of_a_template_is_left(options: str, tmp_path: Path) -> None:
    files = text_of(tmp_path, options)
    assert sorted(files) == ["config.json", "mix.hip", "mix.py", "test_mix.py"]
    for name, text in files.items():
        assert not re.search(r"//@|#@|\b[A-Z_]*(NAME|SHAPE|RETURNS|FAMILY)\b", text), text
        assert max(map(len, text.splitlines())) <= 100 and "\n\n\n\n" not in text
        if name.endswith(".py"):
            ast.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "new: NAME must be given, as in `rfops new my_op`"),
        ("My-op", "new: NAME must be lower-case letters, digits and _, got 'My-op'"),
        ("lambda", "new: NAME must be lower-case letters, digits and _, got 'lambda'"),
        ("gemm_mxfp8", "new: NAME must be new, got gemm_mxfp8, an op of rfops. Take another."),
        ("random", "new: NAME must be new to Python, got random, which is a module"),
        ("mix --family gemm --out mix", "new: --family and --out must not both be given"),
        ("mix", "new: the files must not exist, got mix/mix.py. Move them."),
    ],
)
def test_what_cannot_be_written_is_refused(
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mix").mkdir()
    (tmp_path / "mix" / "mix.py").write_text("kept\n")
    assert cli.main(["new", *text.split()]) == 1
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.rglob("*")] == ["mix", "mix.py"]
    assert (tmp_path / "mix" / "mix.py").read_text() == "kept\n"


def test_an_installed_rfops_has_no_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(new.paths, "ROOT", tmp_path)
    for words in (["mix", "--family", "gemm"], ["--names"]):
        assert cli.main(["new", *words]) == 1
        assert "must be used in a checkout" in capsys.readouterr().err


# ---------------------------------------------------------------- a tuned table

TUNED = """
from dataclasses import dataclass

from mix import CONFIG, Hip, mix_kernel, mix_ref
from rfops.dispatch.op import Op


@dataclass(frozen=True)
class Threads:
    threads: int = 64


class Tuned(Hip):
    name, Config = "tuned", Threads

    def default(self, c):
        return Threads()

    def candidates(self, c):
        return [Threads(64), Threads(512)]

    def defines(self, c, config):
        return {"THREADS": config.threads}

    def variant(self, c, config):
        bound = mix_kernel.bind(c.device, self.defines(c, config), c.arch)
        launch = bound.prepare((config.threads, 1, 1), self.arguments)
        return lambda m, k: launch((m, 1, 1), a=float(c.a), k=k)


OP = Op(
    "tuned_mix",
    "x: f32[M, K]\\ny: f32[M, K]\\na: float\\n-> out: f32[M, K]",
    kernels=(Tuned(),),
    reference=mix_ref,
    table="M K",
    shapes={"own": [{"M": 2, "K": 4096, "a": 2.0}, {"M": 3, "K": 50, "a": 2.0}]},
)
"""


@pytest.mark.parametrize(
    "executor", ["", pytest.param("--executor local", marks=pytest.mark.sweep)]
)
def test_tune_knows_an_op_of_ones_own_file(executor: str, tmp_path: Path) -> None:
    """Its table is filled, and read by what serves the op; an op without one is told so."""
    text_of(tmp_path, "")
    (tmp_path / "mix" / "tuned.py").write_text(TUNED)
    script = f"""
import os
from rfops import cli
own = ["--ops", "tuned.py"]
assert cli.main([*own, "tune", "tuned_mix", "--out", "tables", *{executor.split()}]) == 0
os.environ["RFOPS_CONFIGS"] = "tables"
assert cli.main(["why", "tuned_mix", "--m", "2", "--k", "4096", "--a", "2"]) == 0
assert cli.main(["bench", "tuned_mix"]) == 0
assert cli.main(["tune", "--help"]) == 0
assert cli.main(["tune", "mix"]) == 1
"""
    completed = python(script, cwd=tmp_path / "mix", RFOPS_VGPU_ARCH="gfx950")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    with (tmp_path / "mix" / "tables" / "tuned_mix.csv").open(newline="") as stream:
        rows = {(row["m"], row["k"]): row for row in csv.DictReader(stream)}
    assert rows.keys() == {("2", "4096"), ("3", "50")}
    assert rows["2", "4096"]["config"] == "threads=512" and float(rows["2", "4096"]["us"]) > 0
    assert re.search(r"config +threads=512\n +rule +exact row", completed.stdout), completed.stdout
    assert "mix gfx950 THREADS=512" in completed.stdout
    assert re.search(r"^  tuned_mix$", completed.stdout, re.M), "tune --help lists it"
    assert "tune: mix must have a tuned table, got none" in completed.stderr
