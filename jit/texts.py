"""Texts that a command line, a path or a build file can have."""

from __future__ import annotations

import re

from .errors import ConfigError

_CONTROL = re.compile(r"[\0-\x1f\x7f]")


def check_line(subject: str, text: str) -> str:
    """The text, which a command line or a path may get: any but one with a line end, a NUL or
    another control character, for which no build file has a way of writing. Raises ConfigError."""
    if _CONTROL.search(text):
        raise ConfigError(f"{subject}: {text!r:.200} has a line end or another control character")
    return text


def is_text(value: object) -> bool:
    """Of one line, and one that a command line or a path can have."""
    return isinstance(value, str) and value.isprintable()


_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_DEFINE = 1000  # characters; Linux takes 128 KiB for a whole command


def define_text(subject: str, name: object, value: object) -> str:
    """A define's value as the compiler gets it. Raises ConfigError that begins with `subject`."""
    if not isinstance(name, str) or not _C_NAME.fullmatch(name):
        raise ConfigError(f"{subject}: define {name!r:.80}: its name must be a C identifier")
    shown_value, text = "", ""
    if isinstance(value, int):
        shown_value = hex(value)  # decimal digits of a huge one are an error of Python's
        text = str(int(value)) if -(2**63) <= value < 2**64 else "\0"
    else:
        shown_value = repr(value)
        text = f"{value}" if isinstance(value, str | float) else "\0"
    if len(text) > _LONGEST_DEFINE or not is_text(text):
        raise ConfigError(
            f"{subject}: define {name} must be a 64-bit number or a text of one line, at most "
            f"{_LONGEST_DEFINE} characters without control characters, got {shown_value:.80}"
        )
    return text
