"""Where the tests run: a real gfx942 or gfx950 where there is one, the virtual GPU otherwise."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# The tests are as many processes as there are cores. Threads of OpenMP spin while they wait for one
# that has no core: two in each of two processes take up to forty times the CPU time of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from rfops.jit import vgpu_library
from rfops.later import import_ops

_BEGIN = time.monotonic()
import_ops()  # tests have cases by op and by table, whatever file is run
pytest.register_assert_rewrite("support")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would each process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
from support.devices import ARCHS, device_of, real_gpu  # noqa: E402 - with its asserts rewritten
from support.quick import thin  # noqa: E402

pytest_plugins = [  # their fixtures
    "support.costs",  # the option --costs
    "support.engine_project",
    "support.launchers",
    "support.moe_mx_problems",
    "support.plugin_calls",
    "support.tables",
    "support.vgpu.graphs",
    "support.vgpu.hip",
    "support.vgpu.kernel_builds",
    "support.within",  # the option --within
]


def pytest_report_header() -> list[str]:
    lines = []
    for arch in ARCHS:
        gpu = real_gpu(arch)
        lines.append(f"rfops: {arch} tests run on {gpu if gpu else 'the virtual GPU'}")
    return lines


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sweeps take minutes: they run when asked for (`-m sweep`)."""
    thin(items, whole=not any("::" in arg for arg in config.args))
    if "sweep" in config.option.markexpr:
        return
    sweeps = {item for item in items if item.get_closest_marker("sweep")}
    config.hook.pytest_deselected(items=[*sweeps])
    items[:] = [item for item in items if item not in sweeps]


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
    used = os.times()  # of the workers too, which have ended
    seconds = used.user + used.system + used.children_user + used.children_system
    terminalreporter.line(
        f"CPU time of all processes {seconds:.0f} s, wall time {time.monotonic() - _BEGIN:.0f} s"
    )


@pytest.fixture(scope="session")
def vgpu_path() -> Path:
    """The virtual GPU's library, from the user's own cache: built once, not once a test."""
    return vgpu_library()


@pytest.fixture
def gfx942(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that runs gfx942 code objects."""
    return device_of("gfx942", monkeypatch)


@pytest.fixture
def gfx950(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that runs gfx950 code objects."""
    return device_of("gfx950", monkeypatch)


@pytest.fixture(autouse=True)
def _marked_arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`requires_<arch>` makes that the virtual GPU's architecture."""
    for arch in ARCHS:
        if request.node.get_closest_marker(f"requires_{arch}"):
            device_of(arch, monkeypatch)
    yield
