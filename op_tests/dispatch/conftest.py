"""Fixtures of the tests of small ops (support/small_ops.py) and of routing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rfops.dispatch import op as op_module
from rfops.dispatch import routing, tuned_table
from rfops.jit.launch import launcher
from support.small_ops import MODULE, SOURCE


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops and tables that a test declares are forgotten after it."""
    monkeypatch.setattr(op_module, "_OPS", dict(op_module._OPS))
    monkeypatch.setattr(tuned_table, "TABLES", dict(tuned_table.TABLES))


@pytest.fixture(params=["native", "python"])
def launch_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test by the native launcher and by ctypes."""
    if request.param == "native":
        assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    else:
        monkeypatch.setenv("RFOPS_LAUNCHER", "ctypes")
        monkeypatch.setattr(launcher, "_native", None)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.hip").write_text(SOURCE)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({MODULE: {"srcs": ["small.hip"]}}))
    return path


@pytest.fixture
def own_misses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shipped tables alone, and no misses of other tests."""
    monkeypatch.delenv("RFOPS_CONFIGS", raising=False)
    monkeypatch.delenv("RFOPS_RECORD_UNTUNED", raising=False)
    routing._misses.clear()
    routing._unfit.clear()
    tuned_table._load.cache_clear()
    yield
    routing._misses.clear()
    tuned_table._load.cache_clear()
