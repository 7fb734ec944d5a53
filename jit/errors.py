"""Every error of the engine. All derive from RfopsError, so one `except` catches them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


def show(value: object) -> str:
    """What a message says of a value that was refused."""
    try:
        return repr(value)[:80]
    except Exception:  # a caller's own class; an int of thousands of digits
        return f"{type(value).__name__} that cannot be shown"


class RfopsError(Exception):
    """Base of all errors that rfops raises itself (a caller's mistake is a ValueError).

    They can be pickled: an error that cannot be sends a process pool waiting for ever.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (type(self), self.args, vars(self))


def _restore(kind: type[RfopsError], args: tuple[Any, ...], state: dict[str, Any]) -> RfopsError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


class ConfigError(RfopsError):
    """A setting, `compiler_config.json` or the cache folder is wrong; the text says where."""


class ToolchainNotFound(RfopsError):
    """No compiler can build the module; the text lists what was tried and what to install."""

    def __init__(self, purpose: str, rejected: Iterable[str], advice: str) -> None:
        self.rejected = tuple(rejected)
        attempts = "".join(f"\n  - {reason}" for reason in self.rejected)
        super().__init__(f"no compiler found for {purpose}; tried:{attempts}\n{advice}")


class UnsupportedArch(RfopsError):
    """The op has no kernel for this architecture, or the device is not an AMD GPU."""

    def __init__(self, module: str, arch: str, supported: Sequence[str]) -> None:
        self.module, self.arch, self.supported = module, arch, tuple(supported)
        super().__init__(
            f"{module}: no kernel for {arch}; this module has {', '.join(supported) or 'none'}"
        )


class BuildError(RfopsError):
    """A build command failed: module, command, the compiler's own text, the log's path, and the
    cause where it was the machine's (memory, disk) and not the source's."""

    def __init__(
        self,
        module: str,
        command: Sequence[str] | str,
        output: str,
        log_path: Path | None,
        cause: str = "",
    ) -> None:
        self.module = module
        self.command = command if isinstance(command, str) else shlex.join(command)
        self.output = output
        self.log_path = log_path
        self.cause = cause
        super().__init__(
            f"{self._head}\ncommand: {self.command}\nlog: {log_path}\n{output.rstrip()}"
        )

    @property
    def _head(self) -> str:
        return f"{self.module}: build failed{f': {self.cause}' if self.cause else ''}"

    @property
    def brief(self) -> str:
        """Without the command: the module, the log's path, and the compiler's first error with the
        source line that it shows; the end of its output where it names no error."""
        lines = self.output.rstrip().splitlines()
        error_line = next((index for index, line in enumerate(lines) if "error:" in line), None)
        lines_shown = lines[-3:] if error_line is None else lines[error_line : error_line + 3]
        log = [f"log: {self.log_path}"] if self.log_path else []
        return "\n".join([self._head, *log, *lines_shown])


class JitDisabled(RfopsError):
    """Something is not built and must not be: RFOPS_JIT=0, or `rfops.freeze("error")`."""

    def __init__(self, reason: str, missing: str, command: str) -> None:
        self.missing, self.command = missing, command
        super().__init__(f"{missing} is not built and {reason}; build it with: {command}")


class LockTimeout(RfopsError):
    """Another process held a build's lock for longer than RFOPS_LOCK_TIMEOUT."""


class BindError(RfopsError):
    """A kernel's arguments in the code object do not match its Python signature."""


class HipError(RfopsError):
    """A HIP call failed: the call, its code and the runtime's text."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call, self.code, self.text = call, code, text
        super().__init__(f"{call} failed with HIP error {code}: {text}")
