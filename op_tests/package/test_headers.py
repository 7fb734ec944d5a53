"""Each header of csrc says first what it is."""

from __future__ import annotations

import re
from pathlib import Path

from rfops.jit import paths

# The shim has headers named as AMD's are, most of which only include others.
SHIM = "hip_shim"
FEWEST_WORDS = 4
OPENING = re.compile(r"(?://[^\n]*\n)+|/\*.*?\*/", re.S)


def head(text: str) -> str:
    """The comment that a source opens with."""
    match = OPENING.match(text)
    return "" if match is None else match[0]


def unexplained(csrc: Path) -> list[str]:
    headers = [file.relative_to(csrc) for file in sorted(csrc.rglob("*.h"))]
    return [
        str(header)
        for header in headers
        if header.parts[0] != SHIM
        and len(re.findall(r"\w+", head((csrc / header).read_text(encoding="utf-8"))))
        < FEWEST_WORDS
    ]


def test_a_header_says_what_it_is() -> None:
    assert sum(1 for _ in paths.CSRC.rglob("*.h")) > 100
    assert unexplained(paths.CSRC) == []


def test_what_is_no_comment(tmp_path: Path) -> None:
    """The check can fail: an empty file, code, a comment after code, a title of two words."""
    (tmp_path / SHIM).mkdir()
    for name, text in (
        ("empty.h", ""),
        ("code.h", "#pragma once\n// Loads one tile per wave into LDS.\n"),
        ("blank.h", "\n// Loads one tile per wave into LDS.\n"),
        ("title.h", "// Tile loader.\n#pragma once\n"),
        ("good.h", "// Loads one tile per wave\n// into LDS.\n#pragma once\n"),
        ("script.h", "/* Versions of the symbols,\n   for the linker. */\n"),
        (f"{SHIM}/code.h", "#pragma once\n"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert unexplained(tmp_path) == ["blank.h", "code.h", "empty.h", "title.h"]
