"""`pytest --costs FILE`: the CPU time of each test, its processes' and builds' included.

`choose_quick.py` reads the file and says which cases run by default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", metavar="FILE", help="write each test's seconds of CPU to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.costs is not None:
        config.pluginmanager.register(_Costs(Path(config.option.costs).resolve()))


def _seconds() -> float:
    """The CPU time of this process so far, of its children and of the forks it has asked for."""
    return sum(os.times()[:4]) + process.seconds_of_forks


class _Costs:
    """The hooks that measure, in each process; lines of several processes are appended whole."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.begin = _seconds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield
        seconds = _seconds() - self.begin
        with self.file.open("a") as lines:
            lines.write(json.dumps([item.nodeid, round(seconds, 3)]) + "\n")
