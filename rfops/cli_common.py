"""What the parts of the command share; the ops among it: it begins without (rfops_command.py)."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import rfops

if TYPE_CHECKING:
    from rfops.jit import CompiledOp


def with_ops() -> None:
    """Import all that `import rfops` brings, torch with it."""
    if vars(rfops).pop("WITHOUT_OPS", False):
        importlib.reload(rfops)


def declared_ops() -> tuple[CompiledOp, ...]:
    """Every kernel that rfops' ops have declared."""
    with_ops()
    from rfops.jit import compiled_ops

    return compiled_ops()


def help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """What a command does that wants another word."""

    def show(_options: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return show
