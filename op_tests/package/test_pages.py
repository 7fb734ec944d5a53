"""The pages: every code block runs, links lead somewhere, tables name what there is.

A fenced block is one of

    python [FILE]   runs, in a namespace of its own; with FILE it is written for commands below
    output          what the python block before it prints
    console         commands after "$ ", run, and what they print: "..." stands for any lines, and
                    numbers are not compared
    sh              commands that install something or take long: their words are checked
    csv, text FILE  written for commands below
    cpp, json       part of "Write an op" (test_write_an_op.py) or of the tutorial, or rows of the
                    virtual GPU's tables

op_tests/tutorial/test_tutorial.py runs the tutorial's blocks and compares numbers too.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rfops
from rfops import cli, jit
from support import ROOT

LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
PAGES = sorted(LISTED.stdout.split())
FENCE = re.compile(r"^```(\S*) ?(\S*)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"0x[\da-f]+|\d+")
WRITE_AN_OP = "rfops/dispatch/README.md"
TUTORIAL = "op_tests/tutorial/README.md"


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, file name and text of each block."""
    return FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


def test_each_block_is_of_a_kind_that_is_tested() -> None:
    results = {page: [language for language, _, _ in blocks(page)] for page in PAGES}
    kinds = {"python", "output", "console", "sh", "csv", "text", "cpp", "json"}
    wrong = {p: set(languages) - kinds for p, languages in results.items()}
    assert not any(wrong.values()), wrong
    assert {p for p, languages in results.items() if {"cpp", "json"} & set(languages)} == {
        WRITE_AN_OP,
        TUTORIAL,
        "csrc/vgpu/README.md",
    }
    for page in PAGES:  # a block by indentation would be none of these
        text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        assert not re.findall(r"\n\n    \S.*", text), page


def same(shown: str, printed: str) -> bool:
    """Whether lines are as shown; "..." is any number of lines, a number any number, and a file of
    Python is named without its folder."""
    printed = re.sub(r"/\S*/(?=\w+\.py)", "", printed)
    parts = [NUMBER.sub("0", part.strip("\n")) for part in shown.split("...\n")]
    pattern = r"(?s)" + ".*".join(re.escape(part) for part in parts) + r"\s*"
    return re.fullmatch(pattern, NUMBER.sub("0", printed)) is not None


def test_what_is_shown_is_compared() -> None:
    assert same("a 1\n...\nz\n", "a 25\nb\nc\nz\n")
    assert not same("a 1\n...\nz\n", "a 25\nb\nc\n") and not same("a\n", "a\nb\n")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in (WRITE_AN_OP, TUTORIAL) and blocks(p)]
)
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, each python block by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    printed = ""
    for language, name, text in blocks(page):
        if name:
            Path(name).write_text(text)
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page, "exec"), {"__name__": "__main__"})
            printed = out.getvalue()
        elif language == "output":
            assert same(text, printed), printed
        elif language == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                completed = subprocess.run(
                    shlex.split(command),
                    check=False,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                assert completed.returncode == 0 and same(shown, completed.stdout), completed.stdout
        elif language == "sh":
            for line in text.splitlines():
                command_is_known(line)
        elif language == "cpp" and page == "csrc/vgpu/README.md":
            sources = "".join(f.read_text() for f in (ROOT / "csrc/vgpu/exec").iterdir())
            for row in text.splitlines():
                assert re.match(r'\w+\(\d+, "\w+"', row)[0] in sources, row  # type: ignore[index]


def command_is_known(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "rfops" and words[1] != "tune":  # whose options are its own
        assert callable(cli._parser().parse_args(words[1:]).command)
    elif words[0] == "pytest":
        assert all((ROOT / word).exists() for word in words if "/" in word)
    else:  # which test_package.py holds against CI's
        assert words[0] in ("pip", "rfops")


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_headings_of_links_are_there() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            other = (ROOT / page).parent / target if target else ROOT / page
            heads = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page}: {target}#{anchor}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= 10_000


def test_pages_name_every_command_error_and_op() -> None:
    commands = (ROOT / "rfops/cli/README.md").read_text(encoding="utf-8")
    actions = [action for action in cli._parser()._actions if action.choices]
    assert set(re.findall(r"^\| `rfops (\w+)", commands, re.M)) == set(actions[0].choices or ())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("## Commands")[1].split("\n## ")[0]
    assert set(re.findall(r"`(?:rfops )?(\w+)`", table)) == set(actions[0].choices or ())

    errors = (ROOT / "jit/ERRORS.md").read_text(encoding="utf-8")
    ours = {
        name
        for name in jit.__all__
        if isinstance(getattr(jit, name), type) and issubclass(getattr(jit, name), jit.RfopsError)
    }
    assert set(re.findall(r"^\| `(\w+)` \|", errors, re.M)) == ours - {"RfopsError"}
    assert ours <= set(rfops.__all__)

    from rfops.dispatch.op import ops

    table = readme.split("## Ops")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert named - {"fused_moe", "moe_layer"} <= ops().keys() and len(named) >= 17
