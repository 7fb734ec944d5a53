"""JSON that is read back, as typed records: checked against their class when they are read.

What people write (a config, a manifest) is refused with the place, what was expected there and
what is there. What the engine has written (the cache) is damaged then, and made anew.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import ConfigError
from . import trust
from .files import write_atomic


class Record(msgspec.Struct, frozen=True):
    """What the engine writes. A field more is no damage: a later version may have one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready builtins, nested records included."""
        return dict(msgspec.to_builtins(self))


class WrittenRecord(Record, frozen=True, forbid_unknown_fields=True):
    """What people write: a key that is not known is a mistake of theirs."""


R = TypeVar("R", bound=Record)


def check(location: str, value: object, kind: type[R]) -> R:
    """A record that people wrote. Raises ConfigError that begins with its place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{location}{_explain(str(error), value, kind)}") from None
    except UnicodeEncodeError as error:  # half a character as a key
        raise ConfigError(f"{location}: {error}") from None


_KIND_NAMES = {
    "array": "a list",
    "object": "an object",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def _explain(error: str, value: Any, kind: type[Record]) -> str:
    """As ".srcs[0]: expected a text, got 3", of "Expected `str`, got `int` - at `$.srcs[0]`"."""
    text, _, path = error.rpartition(" - at `$") if " - at `$" in error else (error, "", "")
    path = path.removesuffix("`")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text, re.S)
    if unknown:
        known_keys = ", ".join(kind.__struct_fields__)
        return f"{path}: unknown key {unknown[1]!r:.80}; known keys: {known_keys}"
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing:
        return f"{path}: the key {missing[1]!r} is missing"
    expected = re.match(r"Expected `(.+?)`", text)
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[name or int(index)]
    if expected is None:
        return f"{path}: {text:.200}"
    expected_kinds = " or ".join(
        _KIND_NAMES.get(kind_name, kind_name) for kind_name in expected[1].split(" | ")
    )
    return f"{path}: expected {expected_kinds}, got {value!r:.200}"


# ---------------------------------------------------------------- of the cache


def seal(body: Mapping[str, Any]) -> int:
    """A checksum over a JSON object, kept in it: a changed byte of the file shows."""
    unsealed = {name: value for name, value in body.items() if name != "seal"}
    return zlib.crc32(json.dumps(unsealed, sort_keys=True).encode())


def sealed_text(record: Record) -> str:
    """What `decode` reads."""
    body = record.as_dict()
    return json.dumps({**body, "seal": seal(body)}, indent=1)


def decode(data: bytes, kind: type[R], sealed: bool = True) -> R:
    """A record of the engine's. Raises ValueError that says in what it is another."""
    try:
        body = json.loads(data)
        if sealed and (not isinstance(body, dict) or body.get("seal") != seal(body)):
            raise ValueError("its content has changed")
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return convert(body, kind)


def convert(body: object, kind: type[R]) -> R:
    """The same of what has been read. Raises ValueError."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def read_sealed(root: Path, file: Path, kind: type[R]) -> R | None:
    """A record of the cache, or None if it is not there or damaged. Raises ConfigError where others
    could have written it."""
    trust.check(root, *file.relative_to(root).parts[:-1])
    try:
        return decode(trust.read(root, file), kind)
    except (OSError, ValueError):
        return None


def write_sealed(file: Path, record: Record) -> None:
    """As write_atomic. Raises OSError."""
    write_atomic(file, sealed_text(record))
