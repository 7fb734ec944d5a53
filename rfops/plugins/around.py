"""A call of theirs, by rfops where it has a HIP kernel for it, else by the original.

A call has a key: shapes, dtypes and what else may change the answer. Of a new key the op's route is
asked, which knows envelope and tuned table, and the answer is kept, so that a call that is left to
the original costs a key and a look. A call that the drop-in refuses is left as well, and so are all
of its key from then on.
"""

from __future__ import annotations

import atexit
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rfops.jit import ConfigError, RfopsError, log, settings

Args = tuple[Any, ...]  # of a call, by position
Words = dict[str, Any]  # and by name
Key = tuple[Any, ...]
Given = tuple[Any, str, Mapping[str, Any]]  # device, op, sizes and values
MOST_KEYS = 4096  # then they are forgotten
_LATER = ""
_CALLEES: list[Callee] = []


def compat(name: str) -> Callable[..., Any]:
    """rfops.compat's function, imported by the first call."""

    @functools.cache
    def find() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(importlib.import_module("rfops.compat"), name)
        return found

    def dropin(*args: Any, **kwargs: Any) -> Any:
        return find()(*args, **kwargs)

    dropin.find = find  # type: ignore[attr-defined]
    return dropin


@dataclass(eq=False)
class Callee:
    """A function of others that rfops has an op for.

    target : its name, "aiter.mla.mla_decode_fwd".
    group : its word in RFOPS_PLUGIN.
    key : of a call's arguments.
    route : called with them, what the op is asked; a ValueError says what it is not asked.
    dropin : without it that of rfops.compat of the target's name.
    """

    target: str
    group: str
    key: Callable[[Args, Words], Key]
    route: Callable[..., Given]
    dropin: Callable[..., Any] | None = None
    engaged: int = 0
    left: Counter[str] = field(default_factory=Counter)
    answers: dict[Key, str | None] = field(default_factory=dict)
    _arounds: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _CALLEES.append(self)

    @functools.cached_property
    def own(self) -> Callable[..., Any]:
        return self.dropin or compat(self.target.rpartition(".")[2])

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call by rfops, or by the original."""
        return self._around(original)(*args, **kwargs)

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The function to put in its place."""
        wrapped = functools.wraps(original)(self._around(original))
        wrapped.rfops = self  # type: ignore[attr-defined]
        return wrapped

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        made = self._arounds.get(original)
        if made is not None:
            return made
        key_of, known, left = self.key, self.answers.get, self.left

        def around(*args: Any, **kwargs: Any) -> Any:
            try:
                key = key_of(args, kwargs)
                why = known(key, _LATER)
            except (TypeError, AttributeError, LookupError) as error:
                key, why = (), f"arguments not known: {_short(error)}"
            if why is _LATER:
                why = self._ask(key, args, kwargs)
            if why is not None:
                left[why] += 1
                return original(*args, **kwargs)
            return self._engage(key, original, args, kwargs)

        self._arounds[original] = around
        return around

    def _engage(self, key: Key, original: Callable[..., Any], args: Args, kwargs: Words) -> Any:
        """The op's result; where its checks refuse, before anything is written, the original's."""
        try:
            result = self.own(*args, **kwargs)
        except (ValueError, TypeError) as error:
            why = _short(error)
        except RfopsError as error:
            why = _short(error)
            log.get().warning("%s goes to the original: %s", self.target, why)
        else:
            self.engaged += 1
            return result
        self.answers[key] = why
        self.left[why] += 1
        return original(*args, **kwargs)

    def _ask(self, key: Key, args: Args, kwargs: Words) -> str | None:
        """Why rfops does not take calls of this key; None if it does."""
        if len(self.answers) >= MOST_KEYS:
            self.answers.clear()
        from rfops.dispatch import routing
        from rfops.dispatch.op import ops

        try:
            device, name, given = self.route(*args, **kwargs)
            op = ops()[name]
            route = op.route(op.call_of(*routing.chip(device), **given))
            why = None if route.is_hip else f"{name} goes to {route.backend} ({route.rule})"
        except (ValueError, TypeError, KeyError, ZeroDivisionError, RfopsError) as error:
            why = _short(error)
        self.answers[key] = why
        return why


class Maker(Callee):
    """Of a function that makes what is called, by a word of QuantType."""

    word = "per_1x128"

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.wrap(original)(*args, **kwargs)

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(kind: Any) -> Any:
            made = original(kind)
            return self._around(made) if getattr(kind, "name", "") == self.word else made

        make.rfops = self  # type: ignore[attr-defined]
        return make


def _short(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:160] or type(error).__name__


# ---------------------------------------------------------------- which, and how often


def wanted(groups: tuple[str, ...]) -> tuple[str, ...]:
    """Those of RFOPS_PLUGIN: all where it is empty, none where it is off. Raises ConfigError."""
    text = settings.text("RFOPS_PLUGIN")
    if text == "off":
        return ()
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in groups:
            raise ConfigError(f"RFOPS_PLUGIN={text}: expected off, or some of {','.join(groups)}")
    return tuple(words) or groups


def put(callee: Callee, module: Any) -> None:
    """The wrapper in the function's place, once."""
    name = callee.target.rpartition(".")[2]
    original = getattr(module, name, None)
    if callable(original) and not hasattr(original, "rfops"):
        setattr(module, name, callee.wrap(original))


def summary() -> list[str]:
    """Of each that was called: how many calls engaged, how many did not, by reason."""
    lines = []
    for callee in _CALLEES:
        if callee.engaged or callee.left:
            left = callee.left.most_common()
            reasons = [f"{count} by the original: {why}" for why, count in left]
            lines.append("; ".join([f"{callee.target}: {callee.engaged} calls by rfops", *reasons]))
    return lines


@functools.cache
def tell_at_exit() -> None:
    """The summary, once, when the process ends."""

    def tell() -> None:
        for line in summary():
            log.get().info("%s", line)

    atexit.register(tell)
