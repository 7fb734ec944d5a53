"""Files of times that a time model is fitted to: <op>_timings.csv.

    arch, cu_num, call, kernel, times, origin

`call` has the sizes and values as `M=4 N=64 K=256 dtype=bf16`; `times` each variant as its values
in their order and its microseconds, `64.128.2.4=16.78`.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rfops.cli.model_fit import Timed
from rfops.dispatch.declare import DTYPES
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.routing import config_values
from rfops.jit import ConfigError

COLUMNS = "arch", "cu_num", "call", "kernel", "times", "origin"
_NAMES = {dtypes[0]: name for name, dtypes in DTYPES.items() if len(dtypes) == 1}


def path_of(op: Op, folder: Path) -> Path:
    return folder / f"{op.name}_timings.csv"


def call_text(arguments: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_NAMES.get(value, value)}" for name, value in arguments.items())


def given_of(text: str) -> dict[str, Any]:
    """The sizes and values of a call's text."""
    pairs = (word.partition("=")[::2] for word in text.split())
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    if text in DTYPES:
        return DTYPES[text][0]
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def read(op: Op, file: Path, arch: str = "", cu_num: int = 0, origin: str = "") -> list[Timed]:
    """The calls of a file with their times; of one chip and of one origin (`device_name`), where
    they are named. Raises ConfigError."""
    return list(by_call(op, file, arch, cu_num, origin).values())


def by_call(
    op: Op, file: Path, arch: str = "", cu_num: int = 0, origin: str = ""
) -> dict[tuple[str, int, str], Timed]:
    """The same by architecture, compute units and text of the call."""
    timings: dict[tuple[str, int, str], list[tuple[str, Any, float]]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            for cells in csv.DictReader(stream, strict=True):
                key = cells["arch"], int(cells["cu_num"]), cells["call"]
                is_chip = arch in ("", key[0]) and cu_num in (0, key[1])
                if is_chip and origin in ("", cells["origin"]):
                    timings.setdefault(key, []).extend(_times(op, cells))
        return {
            (name, cus, text): timed(op.call_of(name, cus, **given_of(text)), rows)
            for (name, cus, text), rows in timings.items()
        }
    except (OSError, UnicodeDecodeError, csv.Error, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: not a file of {op.name}'s times: {error}") from error


def timed(c: Call, rows: Iterable[tuple[str, Any, float]]) -> Timed:
    kernels, configs, us = zip(*rows, strict=True)
    return Timed(c, tuple(zip(kernels, configs, strict=True)), us)


def _times(op: Op, cells: Mapping[str, str]) -> Iterator[tuple[str, Any, float]]:
    kind = op.kernels[cells["kernel"]].Config
    for word in cells["times"].split():
        values, _, us = word.partition("=")
        config = kind(*map(_value, values.split("."))) if kind and values else None
        yield cells["kernel"], config, float(us)


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows, with the header where the file is new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.is_file() or file.stat().st_size == 0
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def rows_of(
    arch: str, cu_num: int, call: str, times: Iterable[tuple[str, Any, float]], origin: str
) -> list[dict[str, Any]]:
    """Of one call, a row for each kernel."""
    by_kernel: dict[str, list[str]] = {}
    for kernel, config, us in times:
        values = ".".join(map(str, config_values(config)))
        by_kernel.setdefault(kernel, []).append(f"{values}={us:.5g}")
    return [
        dict(zip(COLUMNS, (arch, cu_num, call, name, " ".join(words), origin), strict=True))
        for name, words in by_kernel.items()
    ]


def device_name(device: torch.device) -> str:
    return "estimated" if device.type == "cpu" else "measured"
