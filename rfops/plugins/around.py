"""Where wrappers (wrapper.py) are put around functions, and what is told of them when a process
ends."""

from __future__ import annotations

import atexit
import functools
import sys
from typing import Any

from rfops.jit import log
from rfops.later import whenever_loaded

from . import symbols
from .wrapper import CALLEES, Callee, Maker

__all__ = ["Callee", "Maker"]

_ENGINES = ("aiter", "vllm", "sglang")


# ---------------------------------------------------------------- putting wrappers


def wrap_when_imported(callee: Any) -> None:
    """Put the wrapper into the target's module, now or once it is imported, and again whenever it
    is loaded anew."""
    module, _, _ = callee.target.rpartition(".")
    if module in sys.modules:
        install_wrapper(callee, sys.modules[module], reaches_copies=True)
    wrap_when_loaded(callee)


def wrap_when_loaded(callee: Any) -> None:
    """Put the wrapper into the target's module and its aliases whenever they are loaded from now
    on; modules that are imported already stay as they are."""
    callee.is_registered = True
    for module in (callee.target.rpartition(".")[0], *callee.aliases):
        whenever_loaded(module, callee.target, functools.partial(install_wrapper, callee))


def install_wrapper(callee: Any, module: Any, reaches_copies: bool = False) -> None:
    """Put the wrapper in the place of the function in `module`, once. With `reaches_copies` also in
    the place of its copies, for a module that was imported before."""
    name = callee.target.rpartition(".")[2]
    original = getattr(module, name, None)
    callee.missing = "" if callable(original) else f"{module.__name__} has no {name}"
    if not callable(original) or getattr(original, "rfops", None) is callee:
        return
    wrapped = callee.wrap(original)
    setattr(module, name, wrapped)
    if reaches_copies:
        _replace_copies(original, wrapped)


def _replace_copies(original: Any, wrapped: Any) -> None:
    """Replace the function in the engines' modules that took it by `from ... import`."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _ENGINES and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, wrapped)


# ---------------------------------------------------------------- what is told


def unwrapped_reason(callee: Any) -> str:
    """Return why calls of a registered target do not reach its wrapper, or ""."""
    module, _, name = callee.target.rpartition(".")
    loaded = sys.modules.get(module)
    if loaded is None:
        return symbols.missing(callee.target) if module.partition(".")[0] in sys.modules else ""
    function = getattr(loaded, name, None)
    if not callable(function):
        return f"{module} has no {name}"
    is_there = callee.is_hooked or getattr(function, "rfops", None) is callee
    return "" if is_there else "it was replaced after rfops"


def summary() -> list[str]:
    """Return a line for each function that was called, with the number of calls by rfops and by the
    original for each reason, and one for each that no call can reach, with the reason."""
    lines = []
    for callee in CALLEES:
        if callee.engaged or callee.compiled or callee.left:
            declined = callee.left.most_common()
            counts = [f"{callee.engaged} calls by rfops"]
            counts += [f"{callee.compiled} traced into graphs"] if callee.compiled else []
            counts += [f"{count} by the original: {reason}" for reason, count in declined]
            lines.append("; ".join([f"{callee.target}: {counts[0]}", *counts[1:]]))
        reason = unwrapped_reason(callee) if callee.is_registered else ""
        if reason:
            lines.append(f"{callee.target} is not wrapped: {reason}")
    return lines


@functools.cache
def tell_at_exit() -> None:
    """Log the summary when the process ends; further calls change nothing."""

    def tell() -> None:
        for line in summary():
            log.get().info("%s", line)

    atexit.register(tell)
