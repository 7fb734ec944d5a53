"""Which kernel a call takes, and why.

    a row of the tuned table holds, and its kernel takes the call -> that kernel, in its config
    no row -> the first kernel of the op's order that takes it
    else -> what is left: Triton, or torch where Triton does not take it

Rows are looked up by `exact row`, then `nearest row`, then `nearest cu_num` (tuned_table.py). Then
come `envelope default`, `Triton`, `torch`. Each Route carries its rule and the reason in words;
`rfops why` prints them. A shape for which no row of this chip holds is a miss: counted, and written
to RFOPS_RECORD_UNTUNED where that is set.
"""

from __future__ import annotations

import csv
import fcntl
import functools
import io
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from rfops.dispatch.guards import Guard
from rfops.dispatch.tuned_table import Match, Query, Row, Table, Tuned, getter
from rfops.jit import ConfigError, log, settings
from rfops.jit.launch import hip

Passed = tuple[Row, str]  # a row that holds, and why its kernel does not take the call
# Of a kernel, and of a row's config of it: why it does not take the call; None if it does.
UnsupportedReason = Callable[[str, Row | None], str | None]


def _no_words() -> tuple[str, Mapping[str, str]]:
    return "", {}


@dataclass(slots=True)
class Decision:
    """A decision: `backend` in `config` (empty: its own choice), by `rule`. Words are made when
    they are asked for: a shape that changes every call has no use for them."""

    backend: str
    rule: str
    config: str = ""
    row: Row | None = None
    # Why, and why not another; they follow from the decision and the shape.
    words: Callable[[], tuple[str, Mapping[str, str]]] = field(
        default=_no_words, compare=False, repr=False
    )

    @property
    def is_hip(self) -> bool:
        """Whether a HIP kernel takes the call."""
        return self.backend not in ("triton", "torch")

    @property
    def why(self) -> str:
        """The reason of the decision, in words."""
        return self.words()[0]

    @property
    def refused(self) -> Mapping[str, str]:
        """The others: the reason."""
        return self.words()[1]


class KernelSelector:
    """The routes of an op on one chip, by its table or by another of its rows. Settings are read
    once, here: 1 us each."""

    def __init__(self, tuned: Tuned, arch: str, cu_num: int, table: Table | None = None) -> None:
        self.arch, self.cu_num = arch, cu_num
        self.op, self.names = tuned.name, tuned.sizes
        self.table = tuned.load() if table is None else table
        rule_idx = [row_idx for row_idx, rule in enumerate(tuned.rules) if not rule]
        self._exact = getter(rule_idx)
        self._tuned = self.table.exact_sizes(arch)
        self._misses = _misses.setdefault((self.op, arch, cu_num, self.names), Counter())
        self._record = settings.path("RFOPS_RECORD_UNTUNED")
        self._says = log.dispatch().isEnabledFor(logging.DEBUG)  # each shape's route

    def choose(
        self,
        sizes: tuple[int, ...],
        order: Sequence[str],
        fallbacks: Sequence[str],
        unsupported_reason: UnsupportedReason,
    ) -> Decision:
        """The route of a shape.

        Parameters
        ----------
        sizes : those of `names`.
        order : kernels that are taken without a row, the first one first.
        fallbacks : those left.
        unsupported_reason : asked of Triton only where it matters, as that takes long to import.
        """
        match, passed = None, list[Passed]()
        if self._exact(sizes) in self._tuned:

            def takes(row: Row) -> bool:
                reason = unsupported_reason(row.kernel, row)
                if reason is not None:
                    passed.append((row, reason))
                return reason is None

            match = self.table.find(self.arch, self.cu_num, sizes, takes)
            for row, reason in passed:
                if row.is_own:
                    warn_unfit(self.op, row, sizes, self.arch, reason)
        selected = None
        for name in order:
            if unsupported_reason(name, None) is None:
                selected = name
                break
        if selected and (match is None or match.rule == "nearest cu_num"):
            self._miss(sizes)
        words = functools.partial(_words, match, passed, order, fallbacks, unsupported_reason)
        if match:
            row = match.row
            return Decision(
                row.kernel, match.rule, row.config, row, functools.partial(words, row.kernel)
            )
        rule = "envelope default"
        if selected is None:
            selected = next(
                (name for name in fallbacks if unsupported_reason(name, None) is None), "none"
            )
            rule = selected.replace("triton", "Triton")
        return Decision(selected, rule, words=functools.partial(words, selected))

    def is_untuned(self, sizes: tuple[int, ...]) -> bool:
        """Whether no row can hold for a shape and nothing is to be said; counts it as a miss."""
        if self._says or self._exact(sizes) in self._tuned:
            return False
        self._miss(sizes)
        return True

    def _miss(self, sizes: tuple[int, ...]) -> None:
        """Count a miss; write it to RFOPS_RECORD_UNTUNED, once whatever processes write there."""
        with _recording:
            counts = self._misses
            num_seen = counts.get(sizes, 0)
            if not num_seen and len(counts) >= _MOST_MISSES:
                return
            counts[sizes] = num_seen + 1
            if self._record is None:
                return
            pairs = tuple(zip(self.names, sizes, strict=True))
            try:
                _append_once(self._record, Query(self.op, self.arch, self.cu_num, pairs))
            # The record is a help: no call fails for it.
            except (OSError, UnicodeDecodeError) as error:
                setting_text = f"RFOPS_RECORD_UNTUNED={self._record}"
                log.get().warning("%s cannot be written: %s", setting_text, error)


def warn_unfit(op: str, row: Row, sizes: Sequence[int], arch: str, reason: str) -> None:
    """Warn once per row of the user's own that it holds for a shape which its kernel does not
    take."""
    if (row.file, row.line) not in _unfit:
        _unfit.add((row.file, row.line))
        shape = " ".join(f"{n}={s}" for n, s in zip(row.names, sizes, strict=True))
        log.get().warning(
            "tuned table: %s, line %d: %s does not take %s on %s: %s. The row is passed over; "
            "remove it, or time the shape anew with `rfops tune %s`",
            row.file,
            row.line,
            row.setting,
            shape,
            arch,
            reason,
            op,
        )


def _words(
    match: Match | None,
    passed: Sequence[Passed],
    order: Sequence[str],
    fallbacks: Sequence[str],
    unsupported_reason: UnsupportedReason,
    backend: str,
) -> tuple[str, Mapping[str, str]]:
    """Why the route is what it is, and why it is not another; which rows were passed over."""
    # The nearest row, and those of the user's own: a shape may have many of others.
    shown = [p for index, p in enumerate(passed) if index == 0 or p[0].is_own]
    explanation, refused = _decision(match, order, fallbacks, unsupported_reason, backend)
    for row, reason in shown:
        match_text = "is nearer" if match else "is for the shape"
        explanation += f"; {row.place} {match_text}, but {row.setting}: {reason}"
    return explanation, refused


def _decision(
    match: Match | None,
    order: Sequence[str],
    fallbacks: Sequence[str],
    unsupported_reason: UnsupportedReason,
    backend: str,
) -> tuple[str, Mapping[str, str]]:
    reasons = {
        name: unsupported_reason(name, None) for name in (*order, *fallbacks) if name != backend
    }
    if match:
        explanation, other_reason = (
            f"{match.row.place} ({match.row.origin}) says: take {backend}",
            f"the row names {backend}",
        )
        return explanation, {name: reason or other_reason for name, reason in reasons.items()}
    if backend in order:
        explanation, other_reason = (
            f"no row decides; the shape is in the envelope of {backend}",
            f"{backend} comes first without a row",
        )
        return explanation, {name: reason or other_reason for name, reason in reasons.items()}
    explanation = f"{', '.join(order)} refuse the shape"
    refused = {
        name: reason or explanation for name, reason in reasons.items() if name in order or reason
    }
    for name, reason in reasons.items():
        if name in fallbacks and reason:
            explanation += f"; {name}: {reason}"
    return explanation, refused


def say(call: Callable[[], str], decision: Decision) -> None:
    """Log a call's route, each once: RFOPS_LOG=dispatch prints them."""
    if log.dispatch().isEnabledFor(logging.DEBUG):
        _say(call(), decision.backend, decision.rule, decision.why)


@functools.lru_cache(maxsize=4096)
def _say(call: str, backend: str, rule: str, reason: str) -> None:
    log.dispatch().debug("%s: %s, by the rule '%s': %s", call, backend, rule, reason)


def chip(device: torch.device) -> tuple[str, int]:
    """Architecture and number of compute units: gfx950, 256; sm_90, 132. Asks the device lazily."""
    if device.type == "cpu" or torch.version.hip:
        arch = hip.device_arch(device)
        if device.type == "cpu":
            return arch, settings.compute_units(arch)
    else:
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    return arch, torch.cuda.get_device_properties(device).multi_processor_count


# ---------------------------------------------------------------- configs as text


def config_text(config: Any) -> str:
    """A config dataclass as a table's cell: `lanes=64 rows=2 steps=1 waves=3`; empty for None."""
    if config is None:
        return ""
    return " ".join(f"{name}={getattr(config, name)}" for name in _fields(type(config)))


def config_values(config: Any) -> list[Any]:
    """Of its fields that a table has, in their order; none of None."""
    return [] if config is None else [getattr(config, name) for name in _fields(type(config))]


def parse_config(kind: type, text: str, row: Row | None = None) -> Any:
    """The config of class `kind` that `text` describes; of a `row`, errors name its place. Raises
    ConfigError."""
    try:
        return _parse_config(kind, text)
    except (TypeError, ValueError) as error:
        location = _config_location(row)
        fields = " ".join(f"{name}=..." for name in _fields(kind))
        raise ConfigError(
            f"{location}: expected {fields}, got {text!r:.200}: {error!s:.200}"
        ) from error


def refuse_config(kernel: str, text: str, row: Row | None = None) -> NoReturn:
    """Raise the ConfigError of a config that is given for a kernel without variants."""
    location = _config_location(row)
    raise ConfigError(
        f"{location}: expected nothing, as {kernel} has no variants, got {text!r:.200}"
    )


def _config_location(row: Row | None) -> str:
    return f"{row.file}, line {row.line}, column config" if row else "config"


@functools.lru_cache(maxsize=1024)
def _parse_config(kind: type, text: str) -> Any:
    words = [word.partition("=") for word in text.split()]
    if len({name for name, _, _ in words}) < len(words):
        raise ValueError("a value is given twice")
    return kind(**{name: int(v) if v.isdecimal() else v for name, _, v in words})


@functools.lru_cache(maxsize=1024)
def given_config(op: str, kinds: tuple[tuple[str, type], ...], text: str) -> Any:
    """What `torch.ops.rfops.<op>` takes as its config: "" for None, or one of `kinds` by its name
    and values. Raises ValueError."""
    if not text:
        return None
    name, _, values = text.partition(" ")
    reason = "no such kernel"
    if name in dict(kinds):
        try:
            return _parse_config(dict(kinds)[name], values)
        except (TypeError, ValueError) as error:
            reason = f"{error!s:.200}"
    notation = (" ".join([n, *(f"{field}=..." for field in _fields(kind))]) for n, kind in kinds)
    expected = f"'' for the route's choice, or one of {', '.join(map(repr, notation))}"
    way_out = "write a kernel's name and its values, or nothing"
    return Guard(op).fail("config", expected, f"{text!r:.80} ({reason})", way_out)


def _fields(kind: Any) -> list[str]:
    # Not dataclasses.fields, which torch.compile cannot trace. Those not compared are no choice,
    # and what all variants share is no field, but among __dataclass_fields__.
    return [name for name in kind.__match_args__ if kind.__dataclass_fields__[name].compare]


# ---------------------------------------------------------------- misses

# By op, architecture, compute units and the names of the sizes.
_misses: dict[tuple[str, str, int, tuple[str, ...]], Counter[tuple[int, ...]]] = {}
_unfit: set[tuple[Path, int]] = set()  # rows that were warned of: file and line
_MOST_MISSES = 1 << 16  # different shapes: of what a long-lived server sees, the first
_recording = threading.Lock()


def misses() -> dict[Query, int]:
    """Shapes of this process for which no row of this chip held: how many plans each made."""
    return {
        Query(op, arch, cu_num, tuple(zip(names, sizes, strict=True))): count
        for (op, arch, cu_num, names), counts in _misses.items()
        for sizes, count in counts.items()
    }


_RECORD = ("op", "arch", "cu_num", "sizes")


def _append_once(path: Path, query: Query) -> None:
    sizes = " ".join(f"{name}={size}" for name, size in query.sizes)
    line, header = _csv_line([*query[:3], sizes]), _csv_line(_RECORD)
    with path.open("a+", encoding="utf-8", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        file.seek(0)
        recorded = file.read()
        if line not in recorded.splitlines(keepends=True):
            file.write(line if recorded else header + line)


def _csv_line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def read_untuned(path: Path) -> list[Query]:
    """The shapes that RFOPS_RECORD_UNTUNED wrote. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        queries = []
        for row in rows:
            pairs = [word.partition("=") for word in row["sizes"].split()]
            sizes = tuple((name, int(size)) for name, _, size in pairs)
            queries.append(Query(row["op"], row["arch"], int(row["cu_num"]), sizes))
        return queries
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a record of untuned shapes: {error!r}") from error
