"""A config's fields have the values that its class allows, and errors name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from rfops.dispatch.config import FLAG, POSITIVE, Allowed, CheckedConfig, powers, up_to


@dataclass(frozen=True)
class Config(CheckedConfig):
    tiles: Any = 1
    block: Any = 16
    rows: Any = 1
    turns: Any = 0
    free: Any = 7

    ALLOWED: ClassVar[Allowed] = {
        "tiles": up_to(4),
        "block": powers(16, 256),
        "rows": POSITIVE,
        "turns": FLAG,
        "absent": FLAG,  # what a base class allows a field that this one has not
    }


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"tiles": 4, "block": 256, "rows": 2**31 - 1, "turns": 1, "free": 0},
        {"tiles": np.int64(4), "block": np.int32(32), "rows": np.int64(2**31 - 1)},
    ],
)
def test_allowed_values(values: dict[str, Any]) -> None:
    made = Config(**values)
    assert {name: getattr(made, name) for name in values} == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tiles": 0}, "tiles must be 1 to 4, got 0"),
        ({"tiles": 5}, "tiles must be 1 to 4, got 5"),
        ({"block": 8}, "block must be a power of two from 16 to 256, got 8"),
        ({"block": 24}, "block must be a power of two from 16 to 256, got 24"),
        ({"rows": 0}, "rows must be 1 or more, got 0"),
        ({"rows": np.int64(0)}, "rows must be 1 or more, got 0"),
        ({"turns": 2}, "turns must be 0 or 1, got 2"),
        ({"tiles": 1.0}, "tiles must be an int"),
        ({"turns": True}, "turns must be an int"),
        ({"free": -1}, "free must be an int"),
    ],
)
def test_other_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**values)
