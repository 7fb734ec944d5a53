"""Fixtures: the native launcher, and a HIP library that writes down what it is asked to do."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rfops.jit.launch import launcher
from support.engine_project import Project
from support.null_hip import NullHip, build


@pytest.fixture(scope="session")
def extension() -> ModuleType:
    """The extension, from the user's own cache; used only by tests that ask for `native`."""
    assert launcher.build(), "no Python headers or no C++ compiler: RFOPS_LOG=debug says which"
    module, launcher._native = launcher.native(), None
    assert module is not None
    return module


@pytest.fixture
def native(extension: ModuleType, project: Project, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("RFOPS_LAUNCHER", "auto")
    monkeypatch.setattr(launcher, "_native", extension)
    monkeypatch.setattr(launcher, "_reads_tensors", True)
    return extension


@pytest.fixture(scope="session")
def null_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("null"))


@pytest.fixture
def null(null_library: Path, monkeypatch: pytest.MonkeyPatch, project: Project) -> NullHip:
    monkeypatch.setenv("RFOPS_HIP_LIBRARY", str(null_library))
    result = NullHip(null_library)
    for name in ("device", "sets", "launches", "fail_with"):
        result.set(name, 0)
    return result


def is_native(bound: Any) -> bool:
    return type(bound.launch).__name__ == "Launcher"
