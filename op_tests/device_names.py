"""List declared names of device code that say nothing, and types that have one name twice.

    python op_tests/device_names.py            a line for each name, then the share per directory

A name is poor when it is one bare preposition, adverb, determiner or participle (`at`, `own_`,
`kMost`): it states neither the value nor its unit. Declarations are found by regular expressions;
op_tests/package/test_device_names.py holds the share of directories that are done.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1] / "csrc"
DIRECTORIES = ("include/rfops", "gemm", "quantization", "rowwise", "moe", "attention")
# Directories whose names are in order; the test holds them.
DONE = ("include/rfops", "gemm", "quantization", "rowwise", "moe", "attention")
# Types of which each architecture has one; a kernel includes the header of its own.
ONE_PER_ARCH = frozenset({"WaveAttention"})
# Words with several senses in this code, each of which has a name of its own (csrc/README.md).
AMBIGUOUS = frozenset("turn turns slot slots part parts share shares place places".split())
POOR = frozenset(
    """
    about above across after again ahead all along already also another any apart around as aside
    asked at away back before behind below beside between beyond both brought by came come counted
    done each either else enough ever every few first for found from further given gone got
    had has have held here how in inside into just kept known last laid later least left less made
    many meant met more most much near never now of off often on once only onto other others out_of
    outside over own put quick rest said same seen several shared since so some soon still such
    taken that the their them then there these this those through till to together told touched
    toward turned under until upon wanted what when where which while who whole whose why wide
    with within without yet
    """.split()
)
# Words of which a name may not consist alone, as kAtOnce does.
PHRASES = frozenset({"at_once", "of_lane", "on_way", "in_row", "of_x", "of_w", "all_first"})
KEYWORDS = frozenset(
    "return else case goto new delete throw using namespace typename class struct enum public "
    "private protected operator sizeof alignas asm volatile if while for switch do break continue "
    "extern const constexpr static inline mutable unsigned".split()
)
STRIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^\s*#[^\n]*(?:\\\n[^\n]*)*', re.M | re.S
)
TYPE = re.compile(
    r"\b(?:struct|class|enum|union|class)\s+(?:__attribute__\(\([^)]*\)\)\s*)?(\w+)(?=[^;()]*?\{)"
)
ALIAS = re.compile(r"\busing\s+(\w+)\s*=")
PARAMETER = re.compile(r"\b(?:class|typename)(?:\.\.\.)?\s+(\w+)\s*(?=[,>=])")
BINDING = re.compile(r"\bauto\s*&?\s*\[([^\]]*)\]\s*=")
# A type, then a name, then what may follow a declarator.
DECLARATOR = re.compile(
    r"(?<![\w.])([A-Za-z_][\w:]*)(\s*<[^;{}()]*>)?((?:::\w+)*)(?:\s+const)?"
    r"(?:\s*(?:[*&]|__restrict__|const\b|\(&)|\s)+([A-Za-z_]\w*)\)?\s*(?=[=;,)\[({:>])"
)
NEXT = re.compile(r"\s*[*&]*\s*([A-Za-z_]\w*)\s*(?=[=;,\[{])")


def declared(text: str) -> Iterator[str]:
    """The names that a source declares; one that it declares several times comes several times."""
    text = STRIPPED.sub(" ", text)
    for pattern in (TYPE, ALIAS, PARAMETER):
        yield from pattern.findall(text)
    for names in BINDING.findall(text):
        yield from re.findall(r"\w+", names)
    for match in DECLARATOR.finditer(text):
        kind, name = match[1], match[4]
        if {kind, name} & KEYWORDS or kind.isdigit():
            continue
        yield name
        yield from _more_declarators(text, match.end())


def _more_declarators(text: str, offset: int) -> Iterator[str]:
    """Names behind the commas of a declaration, up to its semicolon."""
    depth = 0
    for position in range(offset, min(offset + 2000, len(text))):
        letter = text[position]
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0 or letter == ";":
            return
        if letter == "," and depth == 0 and (match := NEXT.match(text, position + 1)):
            yield match[1]


def is_poor(name: str) -> bool:
    word = (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"^k(?=[A-Z])", "", name)).strip("_").lower()
    )
    return word in POOR or word in AMBIGUOUS or word in PHRASES


def sources(directory: str) -> list[Path]:
    return sorted(p for p in (CSRC / directory).rglob("*") if p.suffix in (".h", ".hip"))


def poor_names(directory: str) -> tuple[list[str], int]:
    """`file: name` of each poor name, and how many names the directory declares; a name counts once
    per file."""
    lines, count = [], 0
    for file in sources(directory):
        names = set(declared(file.read_text(encoding="utf-8")))
        count += len(names)
        lines += [f"{file.relative_to(CSRC)}: {name}" for name in sorted(names) if is_poor(name)]
    return lines, count


def types_declared_twice() -> list[str]:
    """Types and aliases of namespace rfops with one name in two headers."""
    homes: dict[str, list[str]] = {}
    for directory in DIRECTORIES:
        for file in sources(directory):
            if file.suffix == ".h":
                for name in _namespace_types(file.read_text(encoding="utf-8")):
                    homes.setdefault(name, []).append(str(file.relative_to(CSRC)))
    twice = {n: files for n, files in homes.items() if len(files) > 1 and n not in ONE_PER_ARCH}
    return [f"{name}: {', '.join(files)}" for name, files in twice.items()]


def _namespace_types(text: str) -> set[str]:
    """Types that stand directly in a namespace: their line begins without an indent."""
    text = STRIPPED.sub(" ", text)
    names = re.findall(r"^(?:struct|class|enum(?: class)?|union)\s+(\w+)(?=[^;()]*?\{)", text, re.M)
    return {*names, *re.findall(r"^using\s+(\w+)\s*=", text, re.M)}


def main() -> int:
    rows = []
    for directory in DIRECTORIES:
        lines, count = poor_names(directory)
        print(*lines, sep="\n")
        rows.append(
            f"{directory:16} {len(lines):4} of {count:5}  {100 * len(lines) / count:5.1f} %"
        )
    print(*types_declared_twice(), *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
