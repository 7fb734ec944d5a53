"""Fixtures of the tests of `rfops bench` and `rfops tune`."""

from __future__ import annotations

import pytest
import torch

from rfops.dispatch import cost


@pytest.fixture
def shipped_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped tables alone, and the virtual GPU where no device is named."""
    monkeypatch.delenv("RFOPS_CONFIGS", raising=False)
    monkeypatch.setattr(cost, "default_device", lambda: torch.device("cpu"))
