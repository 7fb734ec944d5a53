"""A call of another library's function, by rfops where it has a HIP kernel for it, else by the
original.

A call has a key (binding.py). For a new key the op's route is asked, which knows envelope and tuned
table, and the answer is kept, so that a call that is left to the original costs a key and a
look-up. A call that the drop-in refuses, or in which it fails, is left as well; that is remembered
with all that a check may have looked at, so that another call of the key is tried.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.jit import RfopsError, log

from . import targets
from .binding import Arguments, Form, Key, Neutral, Plan, Values, make_plan

RouteCall = tuple[Any, str, Mapping[str, Any]]  # device, op, sizes and values
MOST_KEYS, MOST_ORIGINALS = 4096, 64  # then they are forgotten
# Answers that are no reason: none yet, one that is by the fine key, taken with other words.
_UNDECIDED, _NEEDS_FINE_KEY, _ADAPTED = "", "\0", "\1"
CALLEES: list[Callee] = []


def compat(name: str, module: str = "") -> Callable[[], Callable[..., Any]]:
    """Return a function that finds `name` in rfops.compat or in a module below it; its first call
    imports the module."""

    @functools.cache
    def find() -> Callable[..., Any]:
        provider = importlib.import_module(f"rfops.compat{module}")
        function: Callable[..., Any] = getattr(provider, name)
        return function

    return find


@dataclass(eq=False)
class Callee:
    """A function of another library that rfops has an op for.

    target : its name, "aiter.mla.mla_decode_fwd".
    shaped : the arguments whose shapes the route depends on.
    route : called with those arguments that it has, what the op is asked; a ValueError says what it
        is not asked.
    find : returns the drop-in; without it that of rfops.compat of the target's name.
    sized, dtyped : those of which it is the number of elements and the dtype, or the dtype alone.
    neutral : arguments that the drop-in does not get, and the values that change nothing.
    marked : expert weights, whose order is part of the key (layouts.py).
    adapt : what the drop-in gets instead of some words that the call has; whether there are such
        is the same for all calls of a key.
    extra_facts : returns what else the key has, from the call's arguments by name.
    aliases : other modules in which the target's function is put.
    takes_triton : rfops' Triton kernels take calls too: the original only emulates the arithmetic,
        or makes more launches of it.
    """

    target: str
    shaped: str
    route: Callable[..., RouteCall]
    find: Callable[[], Callable[..., Any]] | None = None
    sized: str = ""
    dtyped: str = ""
    neutral: Neutral = field(default_factory=dict)
    marked: str = ""
    adapt: Callable[[Arguments], Arguments] | None = None
    extra_facts: Callable[[Arguments], Key] | None = None
    aliases: tuple[str, ...] = ()
    takes_triton: bool = False
    engaged: int = 0
    compiled: int = 0  # calls that torch.compile took into a graph
    left: Counter[str] = field(default_factory=Counter)
    answers: dict[Key, str | None] = field(default_factory=dict)
    is_registered: bool = False
    is_hooked: bool = False  # by an engine's own registry, whose function stands in the place
    missing: str = ""  # what was not where the target says
    function: Callable[..., Any] | None = None  # the drop-in, once it is asked for
    _wrappers: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        CALLEES.append(self)

    @property
    def group(self) -> str:
        """Its word in RFOPS_PLUGIN."""
        return targets.GROUP_OF[self.target]

    @property
    def drop_in(self) -> Callable[..., Any]:
        """The drop-in, which is imported by the first use."""
        if self.function is None:
            self.function = (self.find or compat(self.target.rpartition(".")[2]))()
        return self.function

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make the call by rfops, or by the original."""
        return self._wrap(original)(*args, **kwargs)

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to put in the original's place."""
        wrapped = functools.wraps(original)(self._wrap(original))
        wrapped.rfops = self  # type: ignore[attr-defined]
        return wrapped

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        if getattr(original, "rfops", None) is self:
            return original
        wrapper = self._wrappers.get(original)
        if wrapper is None:
            if len(self._wrappers) >= MOST_ORIGINALS:  # a function that is made for each call
                self._wrappers.clear()
            wrapper = self._wrappers[original] = OriginalWrapper(self, original).function()
        return wrapper

    # ---------------------------------------------------------------- whether, and why not

    def key(self, args: Values, kwargs: Arguments) -> Key:
        """Return the key of a call whose arguments bind by the drop-in's signature."""
        plan, values = self.plan((len(args), *kwargs), self.drop_in), (*args, *kwargs.values())
        return (plan,) if plan.reason else plan.key(values)

    def plan(self, form: Form, original: Callable[..., Any]) -> Plan:
        """Return the plan of calls of this form: which arguments are passed, checked, or must be
        neutral."""
        tensors = [text.split() for text in (self.shaped, self.sized, self.dtyped, self.marked)]
        return make_plan(form, original, self.drop_in, self.neutral, tensors)

    def ask(self, plan: Plan, key: Key, values: Values) -> str | None:
        """Decide whether rfops takes calls of this key, and remember the answer: None if it does,
        _ADAPTED if it does with adapted arguments, otherwise the reason why not."""
        if len(self.answers) >= MOST_KEYS:
            self.answers.clear()
        reason = self.refusal(plan, values)
        if reason is None and self._is_adapted(plan, values):
            reason = _ADAPTED
        self.answers[key] = reason
        return reason

    def refusal(self, plan: Plan, values: Values) -> str | None:
        """Return why rfops does not take this call, or None."""
        try:
            return plan.reason or plan.unfit(values) or self._route_says(plan, values) or None
        except (ValueError, TypeError, KeyError, ZeroDivisionError, RfopsError) as error:
            return short(error)

    def _is_adapted(self, plan: Plan, values: Values) -> bool:
        """Return whether `adapt` changes an argument of such a call."""
        arguments = plan.words(values)
        adapted = arguments if self.adapt is None else self.adapt(dict(arguments))
        return any(adapted[name] is not value for name, value in arguments.items())

    def _route_says(self, plan: Plan, values: Values) -> str:
        """Return to which other backend the op's decision sends the call, "" for HIP."""
        from rfops.dispatch import routing
        from rfops.dispatch.op import ops

        arguments = dict(plan.defaults)
        arguments.update(zip(plan.names, values, strict=True))
        device, name, sizes = self.route(
            **{n: v for n, v in arguments.items() if n in self._route_parameters}
        )
        op = ops()[name]
        words = {word: value for word, value in sizes.items() if word in op.route_words}
        sizes = {size: value for size, value in sizes.items() if size not in words}
        c = op.call_of(*routing.chip(device), **sizes)
        routed = op.route_of_words(c, words) if words else None
        route = op.route(c) if routed is None else routed[0]
        if route.is_hip or (self.takes_triton and route.backend == "triton"):
            return ""
        return f"{name} goes to {route.backend} ({route.rule})"

    @functools.cached_property
    def _route_parameters(self) -> frozenset[str]:
        code = self.route.__code__
        return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    def failed(self, error: Exception, plan: Plan, key: Key, values: Values) -> str:
        """Return why a call that failed in the drop-in goes to the original. The reason is
        remembered for such calls, except where memory ran out."""
        reason = short(error)
        if isinstance(error, torch.OutOfMemoryError):
            _warn(self.target, reason)
        elif isinstance(error, RfopsError):
            self.answers[key] = reason
            _warn(self.target, reason)
        else:
            if not isinstance(error, ValueError | TypeError | NotImplementedError):
                reason = f"{type(error).__name__}: {reason}"
                _warn(self.target, reason)
            self.answers[key] = _NEEDS_FINE_KEY
            self.answers[plan.fine_key(values)] = reason
        return reason


class OriginalWrapper:
    """The wrapper of one original: its plans, and the function that replaces it."""

    def __init__(self, callee: Callee, original: Callable[..., Any]) -> None:
        self.callee, self.original = callee, original
        self.plans: dict[Form, Plan] = {}
        self.number = next(_NUMBERS)
        WRAPPERS[self.number] = self

    def plan(self, form: Form) -> Plan:
        """Return the plan of calls of this form, made on first use."""
        plan = self.plans.get(form)
        if plan is None:
            plan = self.plans[form] = self.callee.plan(form, self.original)
        return plan

    def function(self) -> Callable[..., Any]:
        """Return the function that replaces the original; its warm path is one look-up by key."""
        callee, original, plans, number = self.callee, self.original, self.plans, self.number
        get_answer, declined, more_facts = callee.answers.get, callee.left, callee.extra_facts
        adapt = callee.adapt

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                from . import traced  # torch._dynamo with it

                return traced.call(number, callee, original, args, kwargs)
            reason: str | None
            try:
                form = (len(args), *kwargs)
                plan = plans.get(form) or self.plan(form)
                values = (*args, *kwargs.values())
                key = plan.key(values) if not plan.reason else (plan,)
                if more_facts is not None and not plan.reason:
                    key += more_facts(plan.words(values))
                reason = get_answer(key, _UNDECIDED)
                if reason is _UNDECIDED:
                    reason = callee.ask(plan, key, values)
                elif reason is _NEEDS_FINE_KEY:
                    reason = get_answer(plan.fine_key(values), _ADAPTED if adapt else None)
            except Exception as error:  # whatever it is, the original gets the call
                reason = f"arguments not known: {short(error)}"
            if reason is None or reason is _ADAPTED:
                function = callee.function or callee.drop_in
                try:
                    if adapt is not None and reason is _ADAPTED:
                        result = function(**adapt(plan.words(values)))
                    elif plan.is_direct:
                        result = function(*args, **kwargs)
                    else:
                        result = function(**plan.words(values))
                except Exception as error:
                    reason = callee.failed(error, plan, key, values)
                else:
                    callee.engaged += 1
                    return result
            declined[reason] += 1
            return original(*args, **kwargs)

        return wrapper


_NUMBERS = itertools.count()
WRAPPERS: weakref.WeakValueDictionary[int, OriginalWrapper] = weakref.WeakValueDictionary()


def short(error: Exception) -> str:
    """Return the first line of an error's text, at most 160 characters; without one, its type."""
    return next(iter(str(error).splitlines()), "")[:160] or type(error).__name__


@functools.lru_cache(maxsize=1024)
def _warn(target: str, reason: str) -> None:
    """Log a warning, once for each target and reason."""
    log.get().warning("%s goes to the original: %s", target, reason)


class Maker(Callee):
    """Of a function that makes what is called, by a word of QuantType."""

    word = "per_1x128"

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the engine's function for a kind of quantisation."""
        return self.wrap(original)(*args, **kwargs)

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the engine's factory wrapped so that the functions it makes are wrapped."""

        @functools.wraps(original)
        def wrapped_maker(kind: Any) -> Any:
            result = original(kind)
            if getattr(kind, "name", "") != self.word:
                return result
            return functools.wraps(result)(self._wrap(result))  # callers may ask its signature

        wrapped_maker.rfops = self  # type: ignore[attr-defined]
        return wrapped_maker
