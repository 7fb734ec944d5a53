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
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import tuned_table
from .jit import ConfigError, hip, log, settings
from .tuned_table import KEY_COLUMNS, Query, Row

VIRTUAL_CUS = {"gfx942": 304, "gfx950": 256}  # MI300X, MI355X


@dataclass(frozen=True)
class Route:
    """A decision: `backend` in `config` (empty: its own heuristic), by `rule`, because of `why`."""

    backend: str
    rule: str
    why: str
    config: str = ""
    row: Row | None = None
    refused: Mapping[str, str] = field(default_factory=dict)  # the others: reason

    @property
    def is_hip(self) -> bool:
        return self.backend not in ("triton", "torch")


def choose(
    query: Query,
    hip_kernels: Mapping[str, str | None],
    untuned: str | None,
    triton: Callable[[], str | None],
) -> Route:
    """The route of a shape.

    Parameters
    ----------
    hip_kernels : each HIP kernel with the reason why it does not take the shape, None if it does;
        the one to take without a row first.
    untuned : why no HIP kernel is taken without a row; None if one is.
    triton : says why Triton does not take it, None if it does; asked only where it matters, as
        Triton takes long to import.
    """
    match = tuned_table.load(tuned_table.FAMILY_OF[query.op]).find(query)
    row = match.row if match else None
    takers = [name for name, reason in hip_kernels.items() if reason is None]
    refused = {name: reason for name, reason in hip_kernels.items() if reason is not None}
    if takers and (match is None or match.rule == "nearest cu_num"):
        record_miss(query)

    if takers and match and match.row.use_hip:
        chosen = match.row.backend if match.row.backend in takers else takers[0]
        others = {name: f"the row names {match.row.backend}" for name in takers if name != chosen}
        why = _says(match.row, f"take {match.row.backend}")
        if chosen != match.row.backend:
            why += f", which does not take the shape: {refused[match.row.backend]}"
        others["triton"] = "the row says HIP"
        config = match.row.config if chosen == match.row.backend else ""
        return Route(chosen, match.rule, why, config, row, {**refused, **others})
    if takers and match is None and untuned is None:
        others = dict.fromkeys(takers[1:], f"{takers[0]} comes first without a row")
        others["triton"] = "comes after the HIP kernels"
        why = f"no row; the shape is in the envelope of {takers[0]}"
        return Route(takers[0], "envelope default", why, refused={**refused, **others})

    rule = "Triton"
    why = untuned if takers else "no HIP kernel takes the shape"
    if takers and match:
        rule, why = match.rule, _says(match.row, "take Triton")
    refused |= dict.fromkeys(takers, str(why))
    reason = triton()
    if reason is None:
        config = row.config if row and row.backend == "triton" else ""
        return Route("triton", rule, str(why), config, row, refused)
    refused["triton"] = reason
    return Route("torch", "torch", f"{why}; Triton: {reason}", row=row, refused=refused)


def _says(row: Row, what: str) -> str:
    return f"{row.place} ({row.origin}) says: {what}"


@functools.lru_cache(maxsize=4096)
def say(call: str, backend: str, rule: str, why: str) -> None:
    """Log a call's route, each once: RFOPS_LOG=dispatch prints them."""
    log.dispatch().debug("%s: %s, by the rule '%s': %s", call, backend, rule, why)


def chip(device: torch.device) -> tuple[str, int]:
    """Architecture and number of compute units: gfx950, 256; sm_90, 132. Asks the device lazily."""
    if device.type == "cpu" or torch.version.hip:
        arch = hip.device_arch(device)
        if device.type == "cpu":
            return arch, VIRTUAL_CUS[arch]
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
        words = [word.partition("=") for word in text.split()]
        return kind(**{name: int(v) if v.isdecimal() else v for name, _, v in words})
    except (TypeError, ValueError) as error:
        where = f"{row.file}, line {row.line}, column config" if row else "config"
        fields = " ".join(f"{name}=..." for name in _fields(kind))
        raise ConfigError(f"{where}: expected {fields}, got {text!r}: {error}") from error


def _fields(kind: type) -> list[str]:
    # Not dataclasses.fields, which torch.compile cannot trace. Those not compared are no choice.
    return [name for name, f in kind.__dataclass_fields__.items() if f.compare]


# ---------------------------------------------------------------- misses

_misses: Counter[Query] = Counter()
_MOST_MISSES = 1 << 16  # different shapes: of what a long-lived server sees, the first
_recording = threading.Lock()


def misses() -> dict[Query, int]:
    """Shapes of this process for which no row of this chip held: how many plans each made."""
    return dict(_misses)


def record_miss(query: Query) -> None:
    """Count a miss; write it to RFOPS_RECORD_UNTUNED, once whatever processes write there."""
    with _recording:
        if query not in _misses and len(_misses) >= _MOST_MISSES:
            return
        _misses[query] += 1
        path = settings.path("RFOPS_RECORD_UNTUNED")
        if path is None:
            return
        try:
            _append_once(path, query)
        except OSError as error:  # the record is a help: no call fails for it
            log.get().warning("RFOPS_RECORD_UNTUNED=%s cannot be written: %s", path, error)


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
