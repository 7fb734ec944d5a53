"""Files as damage, other programs and mistaken people leave them, to fuzz whatever reads one."""

from __future__ import annotations

import json
import random
from typing import Any

# Whole files that no reader expects.
FILES = (
    b"", b"{", b"[]", b"{}", b"null", b"3", b'"text"', b"[[], {}]", b"\xff\xfe{\x00}\x00", b"\xc3(",
    bytes(64), b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"-9.5e9999", b"NaN", b"\x80" * 10,
    b"\n" * 1000, b"{}{}", b"\x1f\x8b\x08", b"//\n{}", b"'a'",
)  # fmt: skip
# Values that no reader expects at some place of a JSON document.
VALUES: tuple[Any, ...] = (
    None, 3, -1, -1.5, 1e400, 10**30, True, "", "x/y", "..", "/", "a\0b", "\ud800", "é", "${x}",
    "*", "**/x", "a b", "\n", "{root}", "9" * 300, [], [None], [[]], {}, {"a": []}, {"a\0": "b"},
    ["a", 3], ["\ud800"], ["**x"], ["/a/*"],
)  # fmt: skip
SPLINTERS = (
    b'"',
    b"{",
    b"]",
    b",",
    b"\x00",
    b"\xc3\xa9",
    b"\xff",
    b"9",
    b"-",
    b"",
    b"\xef\xbb\xbf",
)


def splintered(rng: random.Random, data: bytes) -> bytes:
    """A few bytes of it made into others, or the end gone."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        offset = rng.randrange(len(changed) + 1)
        changed[offset : offset + rng.randint(0, 3)] = rng.choice(SPLINTERS)
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.2 else changed)


def _positions(node: Any) -> list[tuple[Any, Any]]:
    """(container, key) of all values in a document."""
    if isinstance(node, dict | list):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        own_positions = [(node, key) for key in keys]
        return own_positions + [
            position for container, key in own_positions for position in _positions(container[key])
        ]
    return []


def misplaced(rng: random.Random, data: bytes) -> bytes:
    """A JSON document with a value, a name or a whole part of it made into something else."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        positions = _positions(document)
        if not positions:
            break
        container, key = rng.choice(positions)
        act = rng.choice(("value", "value", "gone", "name", "copy"))
        if act == "value":
            container[key] = rng.choice(VALUES)
        elif act == "gone":
            del container[key]
        elif act == "copy":
            container[key] = json.loads(json.dumps(rng.choice(positions)[0]))
        elif isinstance(container, dict):
            container[str(rng.choice(VALUES))] = container.pop(key)
    return json.dumps(document).encode()


def json_file(rng: random.Random, data: bytes) -> bytes:
    """One of all of these."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(FILES)
    try:
        return misplaced(rng, data) if kind < 0.7 else splintered(rng, data)
    except ValueError:  # it is no JSON any more
        return rng.choice(FILES)


CELLS = (
    "", " ", "0", "-1", "+1", "1.5", "1e3", "1e999", "nan", "inf", "-inf", "9" * 18, "9" * 400,
    "9" * 5000, "1_0", "٣", "0x10", "x", "None", '"', '"a', "a,b", "a\nb", "\0", "\ud800", "=1+1",
    "gfx90a", "m=1", "=", "a=b=c", "tile_m=0", "waves=-1", "z" * 200_000,
)  # fmt: skip


def _cells(rng: random.Random, text: str) -> str:
    """Lines of a CSV file with cells, rows or columns made into something else."""
    lines = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.randint(1, 3)):
        row = lines[rng.choice((0, rng.randrange(len(lines)), rng.randrange(len(lines))))]
        act = rng.choice(("cell", "cell", "cell", "gone", "more", "swap", "row", "rows"))
        offset = rng.randrange(len(row) + 1) if act == "more" else rng.randrange(max(1, len(row)))
        if act == "cell" and row:
            row[offset] = rng.choice((*CELLS, rng.choice(rng.choice(lines) or [""])))
        elif act == "gone" and row:
            del row[offset]
        elif act == "more":
            row.insert(offset, rng.choice(CELLS))
        elif act == "swap":
            rng.shuffle(row)
        elif act == "row":
            lines.append(list(row))
        elif act == "rows":
            del lines[rng.randrange(len(lines)) :]
            lines.append([])
    return "".join(f"{','.join(line)}\n" for line in lines)


def csv_file(rng: random.Random, data: bytes) -> bytes:
    """A CSV file with one of these, or of those of any file, or in another encoding."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(FILES)
    if kind < 0.3:
        return splintered(rng, data)
    text = _cells(rng, data.decode()) if kind < 0.9 else data.decode()
    if kind < 0.8:
        return text.encode("utf-8", "surrogatepass")
    encoding = rng.choice(("utf-16", "utf-32-le", "utf-8-sig", "latin-1", "utf-7"))
    return text.replace("\n", rng.choice(("\n", "\r\n", "\r"))).encode(encoding, "replace")
