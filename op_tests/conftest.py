"""Where the tests run: a real gfx942 or gfx950 where there is one, the virtual GPU otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from rfops.jit import vgpu_library

ARCHS = ("gfx942", "gfx950")


@cache
def real_gpu(arch: str) -> torch.device | None:
    """The first GPU of that architecture."""
    if torch.version.hip and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_properties(index).gcnArchName
            if name.split(":")[0] == arch:
                return torch.device("cuda", index)
    return None


def pytest_report_header() -> list[str]:
    lines = []
    for arch in ARCHS:
        gpu = real_gpu(arch)
        lines.append(f"rfops: {arch} tests run on {gpu if gpu else 'the virtual GPU'}")
    return lines


def _thin(items: list[pytest.Item]) -> None:
    """Of the cases of a test with `thin(n)` each n-th stays, the rest are sweeps."""
    seen: Counter[str] = Counter()
    for item in items:
        thin = item.get_closest_marker("thin")
        if thin is not None:
            name = item.nodeid.split("[")[0]
            if seen[name] % thin.args[0]:
                item.add_marker(pytest.mark.sweep)
            seen[name] += 1


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sweeps take minutes: they run when asked for (`-m sweep`)."""
    _thin(items)
    if "sweep" in config.option.markexpr:
        return
    sweeps = [item for item in items if item.get_closest_marker("sweep")]
    config.hook.pytest_deselected(items=sweeps)
    items[:] = [item for item in items if item not in set(sweeps)]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build the virtual GPU before the first test, with its progress shown."""
    if session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        vgpu_library()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Shows a line at the end of the run, from worker processes too: a figure that has a bar."""
    return lambda line: request.node.user_properties.append(("figure", line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    lines = [line for r in reports for name, line in r.user_properties if name == "figure"]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(set(lines)):
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def vgpu_path() -> Path:
    """The virtual GPU's library, from the user's own cache: built once, not once a test."""
    return vgpu_library()


def _device(arch: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    gpu = real_gpu(arch)
    if gpu is None:
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    return gpu or torch.device("cpu")


@pytest.fixture
def gfx942(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that runs gfx942 code objects."""
    return _device("gfx942", monkeypatch)


@pytest.fixture
def gfx950(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that runs gfx950 code objects."""
    return _device("gfx950", monkeypatch)


@pytest.fixture(autouse=True)
def _marked_arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`requires_<arch>` makes that the virtual GPU's architecture."""
    for arch in ARCHS:
        if request.node.get_closest_marker(f"requires_{arch}"):
            _device(arch, monkeypatch)
    yield
