"""`pytest --within SECONDS`: as many tests as the time allows, others at each commit.

CI has one limit of time and machines whose speeds differ by more than two. First come the functions
of which no case runs by default (quick.jsonl). The rest is drawn in blocks of neighbours, which
share their fixtures, in an order that the commit seeds: what one run leaves, a later one has. The
last lines say how many were left.
"""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from .quick import quick_cases

_BLOCK = 8  # tests; a kernel's build serves a few neighbours
_LEFT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--within",
        type=float,
        metavar="SECONDS",
        help="start no test after these seconds; which tests run is drawn, seeded by the commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.within is not None:
        config.stash[_LEFT] = 0
        config.pluginmanager.register(_Within(config, config.option.within))


class _Within:
    """The hooks of a run that has a limit, in each process."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        worker = getattr(config, "workerinput", None)
        # Processes start late on a busy machine: all count from the first one's start.
        self.end = worker["within_end"] if worker else time.time() + seconds
        self.config, self.seconds = config, seconds

    def pytest_configure_node(self, node: object) -> None:
        node.workerinput["within_end"] = self.end  # type: ignore[attr-defined]

    @pytest.hookimpl(trylast=True)  # of the tests that -m and -k leave
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Those first of which no case runs by default: each commit has them."""
        never = {function for function, cases in quick_cases().items() if not cases}
        front = [item for item in items if item.nodeid.partition("[")[0] in never]
        rest = [item for item in items if item.nodeid.partition("[")[0] not in never]
        items[:] = front + drawn(rest, _commit())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        if time.time() < self.end:
            return None
        self.config.stash[_LEFT] += 1
        return True  # done, without a report

    def pytest_sessionfinish(self) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["within_left"] = self.config.stash[_LEFT]

    def pytest_testnodedown(self, node: object) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self.config.stash[_LEFT] += output.get("within_left", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        left = self.config.stash[_LEFT]
        terminalreporter.line(f"not started within {self.seconds:.0f} s: {left} tests")


def drawn(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """The tests in an order by `seed`, blocks of neighbours kept together."""
    blocks = [items[i : i + _BLOCK] for i in range(0, len(items), _BLOCK)]
    random.Random(seed).shuffle(blocks)
    return [item for block in blocks for item in block]


def _commit() -> str:
    """The commit of the tree, or one name for all trees that are no checkout."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
