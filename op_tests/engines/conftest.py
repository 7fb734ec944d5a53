"""What tests of engines share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for tiny models, each made once, and for the engines' caches."""
    return tmp_path_factory.mktemp("models")
