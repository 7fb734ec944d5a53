"""The list of refusals at the end of a run, from worker processes too."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed")
    results = [value for r in reports for name, value in r.user_properties if name == "refusal"]
    engaged = sum(name == "engaged" for r in reports for name, _ in r.user_properties)
    if not results and not engaged:
        return
    terminalreporter.section("call sites of vLLM and SGLang")
    terminalreporter.line(f"{engaged} replays engaged and right, {len(results)} refused:")
    for line, count in sorted(Counter(results).items()):
        terminalreporter.line(f"  {count} x {line}")
