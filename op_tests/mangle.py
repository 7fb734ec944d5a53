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
    b'"', b"{", b"]", b",", b"\x00", b"\xc3\xa9", b"\xff", b"9", b"-", b"", b"\xef\xbb\xbf",
)  # fmt: skip


def splintered(rng: random.Random, data: bytes) -> bytes:
    """A few bytes of it made into others, or the end gone."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.randint(0, 3)] = rng.choice(SPLINTERS)
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.2 else changed)


def _places(node: Any) -> list[tuple[Any, Any]]:
    """(container, key) of all values in a document."""
    if isinstance(node, dict | list):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        here = [(node, key) for key in keys]
        return here + [place for container, key in here for place in _places(container[key])]
    return []


def misplaced(rng: random.Random, data: bytes) -> bytes:
    """A JSON document with a value, a name or a whole part of it made into something else."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        places = _places(document)
        if not places:
            break
        container, key = rng.choice(places)
        act = rng.choice(("value", "value", "gone", "name", "copy"))
        if act == "value":
            container[key] = rng.choice(VALUES)
        elif act == "gone":
            del container[key]
        elif act == "copy":
            container[key] = json.loads(json.dumps(rng.choice(places)[0]))
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
