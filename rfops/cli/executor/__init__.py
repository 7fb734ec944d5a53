"""`--executor local|ray` of tune, bench and build: the same tasks on the devices of this machine,
or of a cluster.

driver.py hands tasks out, longest first, and keeps count of what is lost; local.py has a process a
device, cluster.py an actor of Ray's. A task is a function by its name and arguments that pickle, so
that a worker needs nothing but rfops.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import Pool

NAMES = ("local", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose an executor and its workers."""
    parser.add_argument(
        "--executor",
        choices=NAMES,
        help="a process a device of this machine, or "
        "actors of Ray (extra `ray`); default: this process",
    )
    parser.add_argument("--workers", type=int, help="how many; default: one a GPU, or a core")
    parser.add_argument(
        "--address",
        default="",
        help="of Ray's cluster; default: RAY_ADDRESS, or one of this machine's own",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=600,
        metavar="SECONDS",
        help="longest time of a shape or a module; default 600",
    )


def pool(options: argparse.Namespace, on_gpus: bool, modules: tuple[str, ...] = ()) -> Pool:
    """The workers that the options ask for; `modules`: whose builds they get from this cache.
    Raises ValueError."""
    if options.workers is not None and options.workers < 1:
        raise ValueError(f"--workers {options.workers}: expected 1 or more")
    if options.executor == "local":
        from .local import LocalPool

        return LocalPool(options.workers, on_gpus)
    from .cluster import RayPool

    return RayPool(options.address, options.workers, on_gpus, modules)
