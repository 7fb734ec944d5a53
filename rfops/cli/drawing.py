"""What commands with --plot share: matplotlib is an extra, and draws without a display."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any


def check() -> None:
    """Raises ValueError where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'rfops[plot]'")


def save(file: Path, draw: Callable[[], Any]) -> None:
    """Write the figure that `draw` makes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = draw()
    figure.savefig(file)
    pyplot.close(figure)
