"""Which kernel a call takes, and why: the envelope first, the tuned table second.

    a HIP kernel takes the shape (the envelope)?
      yes, and a row is found    -> what the row says: HIP, or Triton where use_hip is 0
      yes, no row, shape is one that engages untuned -> the first HIP kernel that takes it
      else                       -> Triton, or torch where Triton does not take it

Rows are looked up by `exact row`, then `nearest M bucket`, then `nearest cu_num` of the same arch
(tuned_table.py). Then come `envelope default`, `Triton`, `torch`. Each Route carries its rule and
the reason in words; `rfops why` prints them. A shape for which no row of this chip holds is a miss:
counted, and written to RFOPS_RECORD_UNTUNED where that is set.
"""

from __future__ import annotations

import csv
import fcntl
import functools
import io
import logging
import operator
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rfops.dispatch import tuned_table
from rfops.dispatch.guards import Guard
from rfops.dispatch.tuned_table import KEY_COLUMNS, Match, Query, Row, names_of
from rfops.jit import ConfigError, hip, log, settings
from rfops.jit.arch import ROWS

Refuses = Callable[[str], str | None]


def _no_words() -> tuple[str, Mapping[str, str]]:
    return "", {}


@dataclass(slots=True)
class Route:
    """A decision: `backend` in `config` (empty: its own heuristic), by `rule`. Words are made when
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
        return self.backend not in ("triton", "torch")

    @property
    def why(self) -> str:
        return self.words()[0]

    @property
    def refused(self) -> Mapping[str, str]:
        """The others: the reason."""
        return self.words()[1]


def published(op: str, arch: str, sizes: tuple[int, ...]) -> tuple[Mapping[str, float], str] | None:
    """Figures and source of the shipped row of others for these sizes, any number of experts."""
    names = names_of(op)
    for row in tuned_table.shipped(tuned_table.FAMILY_OF[op]):
        pairs = zip(map(dict(row.sizes).get, names), sizes, names, strict=True)
        same = all(a == b or (a is None or name == "e") for a, b, name in pairs)
        if row.origin == "published" and (row.op, row.arch) == (op, arch) and same and row.figures:
            return dict(row.figures), row.source
    return None


class Router:
    """The routes of an op on one chip. Settings are read once, here: 1 us each."""

    def __init__(self, op: str, arch: str, cu_num: int) -> None:
        self.op, self.arch, self.cu_num = op, arch, cu_num
        family = tuned_table.FAMILY_OF[op]
        self.table = tuned_table.load(family)
        key = tuned_table.FAMILIES[family][op]
        self.names = names_of(op)
        at = [self.names.index(name) for name in key.exact]
        self._exact: Callable[[tuple[int, ...]], tuple[int, ...]] = (
            operator.itemgetter(*at)
            if len(at) > 1
            else lambda sizes: tuple([sizes[place] for place in at])
        )
        self._tuned = self.table.exact_sizes(op, arch)
        self._misses = _misses.setdefault((op, arch, cu_num, self.names), Counter())
        self._record = settings.path("RFOPS_RECORD_UNTUNED")
        if not set(self.names) <= set(KEY_COLUMNS):
            self._record = None  # its one header has no column for these
        self._says = log.dispatch().isEnabledFor(logging.DEBUG)  # each shape's route

    def choose(
        self,
        sizes: tuple[int, ...],
        hip_kernels: tuple[str, ...],
        refuses: Refuses,
        untuned: str | None,
    ) -> Route:
        """The route of a shape.

        Parameters
        ----------
        sizes : those of `names`.
        hip_kernels : the one to take without a row first.
        refuses : says why a backend does not take the shape, None if it does; asked of triton only
            where it matters, as Triton takes long to import.
        untuned : why no HIP kernel is taken without a row; None if one is.
        """
        match = None
        if self._exact(sizes) in self._tuned:
            match = self.table.find(self._query(sizes))
        first = None
        for name in hip_kernels:
            if refuses(name) is None:
                first = name
                break
        if first and (match is None or match.rule == "nearest cu_num"):
            self._miss(sizes)
        backend, rule, config = _decide(match, first, refuses, untuned)
        row = match.row if match else None
        words = functools.partial(_words, backend, rule, row, hip_kernels, refuses, untuned)
        return Route(backend, rule, config, row, words)

    def is_untuned(self, sizes: tuple[int, ...]) -> bool:
        """Whether no row can hold for a shape and nothing is to be said; counts it as a miss."""
        if self._says or self._exact(sizes) in self._tuned:
            return False
        self._miss(sizes)
        return True

    def _query(self, sizes: tuple[int, ...]) -> Query:
        return Query(self.op, self.arch, self.cu_num, tuple(zip(self.names, sizes, strict=True)))

    def _miss(self, sizes: tuple[int, ...]) -> None:
        """Count a miss; write it to RFOPS_RECORD_UNTUNED, once whatever processes write there."""
        with _recording:
            counts = self._misses
            before = counts.get(sizes, 0)
            if not before and len(counts) >= _MOST_MISSES:
                return
            counts[sizes] = before + 1
            if self._record is None:
                return
            try:
                _append_once(self._record, self._query(sizes))
            # The record is a help: no call fails for it.
            except (OSError, UnicodeDecodeError) as error:
                where = f"RFOPS_RECORD_UNTUNED={self._record}"
                log.get().warning("%s cannot be written: %s", where, error)


def _decide(
    match: Match | None, first: str | None, refuses: Refuses, untuned: str | None
) -> tuple[str, str, str]:
    """Backend, rule and config; `first` is the first HIP kernel that takes the shape."""
    backend, rule, config = "triton", "Triton", ""
    if first and match:
        rule = match.rule
        if match.row.use_hip:
            named = match.row.backend
            backend = named if refuses(named) is None else first
        if match.row.backend == backend:
            config = match.row.config
    elif first and untuned is None:
        backend, rule = first, "envelope default"
    elif match and match.row.backend == "triton":
        config = match.row.config
    if backend == "triton" and refuses("triton") is not None:
        backend, rule, config = "torch", "torch", ""
    return backend, rule, config


def _words(
    backend: str,
    rule: str,
    row: Row | None,
    hip_kernels: tuple[str, ...],
    refuses: Refuses,
    untuned: str | None,
) -> tuple[str, Mapping[str, str]]:
    """Why the route is what it is, and why it is not another."""
    reasons = {name: refuses(name) for name in hip_kernels}
    takers = [name for name, reason in reasons.items() if reason is None]
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    others = [name for name in takers if name != backend]
    if rule == "envelope default":
        refused |= dict.fromkeys(others, f"{backend} comes first without a row")
        refused["triton"] = "comes after the HIP kernels"
        return f"no row; the shape is in the envelope of {backend}", refused
    if row and takers and row.use_hip:
        why = _says(row, f"take {row.backend}")
        if backend != row.backend:
            why += f", which does not take the shape: {reasons[row.backend]}"
        refused |= dict.fromkeys(others, f"the row names {row.backend}")
        refused["triton"] = "the row says HIP"
        return why, refused

    why = str(untuned) if takers else "no HIP kernel takes the shape"
    if takers and row:
        why = _says(row, "take Triton")
    refused |= dict.fromkeys(takers, why)
    if backend == "torch":
        refused["triton"] = str(refuses("triton"))
        why += f"; Triton: {refused['triton']}"
    return why, refused


def _says(row: Row, what: str) -> str:
    return f"{row.place} ({row.origin}) says: {what}"


def say(call: Callable[[], str], chosen: Route) -> None:
    """Log a call's route, each once: RFOPS_LOG=dispatch prints them."""
    if log.dispatch().isEnabledFor(logging.DEBUG):
        _say(call(), chosen.backend, chosen.rule, chosen.why)


@functools.lru_cache(maxsize=4096)
def _say(call: str, backend: str, rule: str, why: str) -> None:
    log.dispatch().debug("%s: %s, by the rule '%s': %s", call, backend, rule, why)


def chip(device: torch.device) -> tuple[str, int]:
    """Architecture and number of compute units: gfx950, 256; sm_90, 132. Asks the device lazily."""
    if device.type == "cpu" or torch.version.hip:
        arch = hip.device_arch(device)
        if device.type == "cpu":
            return arch, ROWS[arch].cus
    else:
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    return arch, torch.cuda.get_device_properties(device).multi_processor_count


# ---------------------------------------------------------------- configs as text


def config_text(config: Any) -> str:
    """A config dataclass as a table's cell: `lanes=64 rows=2 steps=1 waves=3`."""
    return " ".join(f"{name}={getattr(config, name)}" for name in _fields(type(config)))


def parse_config(kind: type, text: str, row: Row | None = None) -> Any:
    """The config of class `kind` that `text` describes; of a `row`, errors name its place. Raises
    ConfigError."""
    try:
        return _parse_config(kind, text)
    except (TypeError, ValueError) as error:
        where = f"{row.file}, line {row.line}, column config" if row else "config"
        fields = " ".join(f"{name}=..." for name in _fields(kind))
        raise ConfigError(
            f"{where}: expected {fields}, got {text!r:.200}: {error!s:.200}"
        ) from error


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
    wanted = f"'' for the route's choice, or one of {', '.join(map(repr, notation))}"
    way_out = "write a kernel's name and its values, or nothing"
    return Guard(op).fail("config", wanted, f"{text!r:.80} ({reason})", way_out)


def _fields(kind: type) -> list[str]:
    # Not dataclasses.fields, which torch.compile cannot trace. Those not compared are no choice.
    return [name for name, f in kind.__dataclass_fields__.items() if f.compare]


# ---------------------------------------------------------------- misses

# By op, architecture, compute units and the names of the sizes.
_misses: dict[tuple[str, str, int, tuple[str, ...]], Counter[tuple[int, ...]]] = {}
_MOST_MISSES = 1 << 16  # different shapes: of what a long-lived server sees, the first
_recording = threading.Lock()


def misses() -> dict[Query, int]:
    """Shapes of this process for which no row of this chip held: how many plans each made."""
    return {
        Query(op, arch, cu_num, tuple(zip(names, sizes, strict=True))): count
        for (op, arch, cu_num, names), counts in _misses.items()
        for sizes, count in counts.items()
    }


def _append_once(path: Path, query: Query) -> None:
    cells = {"op": query.op, "arch": query.arch, "cu_num": query.cu_num, **dict(query.sizes)}
    line, header = _csv_line([cells.get(c, "") for c in KEY_COLUMNS]), _csv_line(KEY_COLUMNS)
    with path.open("a+", encoding="utf-8", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        file.seek(0)
        known = file.read()
        if line not in known.splitlines(keepends=True):
            file.write(line if known else header + line)


def _csv_line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def read_untuned(path: Path) -> list[Query]:
    """The shapes that RFOPS_RECORD_UNTUNED wrote. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [
            Query.of(r["op"], r["arch"], int(r["cu_num"]),
                     **{c: int(r[c]) for c in KEY_COLUMNS[3:] if r[c]})
            for r in rows
        ]  # fmt: skip
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a record of untuned shapes: {error!r}") from error
