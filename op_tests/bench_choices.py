"""CPU time of a new decision: python op_tests/bench_choices.py [OP ...]; default: all with a model

`rank` of a size that is new in a layer that is known, and of the first size of a layer; by the
native launcher and by numpy. Ops and both ways take turns in one process, and a figure is the
median of CPU times, so that others' work on the machine counts little. Exit status 1 where a new
size takes more than 60 us.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rfops.cli import tune_model
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.dispatch.time_model import TimeModel
from rfops.jit.launch import launcher

MAX_US = 60.0  # of a new size
LAYERS, SIZES, ROUNDS = 6, 40, 12
CHANGING = "M", "S"  # the size that changes within a layer, of those that an op has


def layers_of(op: Op, arch: str) -> list[list[Call]]:
    """Of each layer calls of many sizes, which share no decision."""
    layers = []
    for arguments in tune_model.calls(op, LAYERS, seed=3):
        c = op.call_of(arch, **arguments)
        name = next(name for name in CHANGING if name in c.sizes)
        begin = c.sizes[name] if name == "S" else 1
        sized = (
            c.with_sizes(**{name: begin + round(1.22**step * (step + 1))}) for step in range(SIZES)
        )
        layers.append([c for c in sized if _model(op).rank(c)])
    return [layer for layer in layers if layer]


def _model(op: Op) -> TimeModel:
    assert op.time_model is not None
    return op.time_model


@contextmanager
def numpy_alone() -> Iterator[None]:
    native = launcher._native
    launcher._native = None
    try:
        yield
    finally:
        launcher._native = native


def seconds_of(model: TimeModel, layers: list[list[Call]]) -> tuple[list[float], list[float]]:
    """CPU seconds of the first size of each layer, and of each other size."""
    first, other = [], []
    for layer in layers:
        for number, c in enumerate(layer):
            model._ranked.clear()
            begin = time.thread_time()
            model.rank(c)
            (other if number else first).append(time.thread_time() - begin)
    return first, other


def measure(names: list[str], arch: str, rounds: int) -> dict[tuple[str, bool], tuple[float, ...]]:
    """Of an op and way (native or not) the microseconds of a new size and of a layer's first."""
    all_calls = {name: layers_of(ops()[name], arch) for name in names}
    calls = {name: layers for name, layers in all_calls.items() if layers}
    first: dict[tuple[str, bool], list[float]] = {}
    other: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for name, layers in calls.items():
            model = _model(ops()[name])
            for is_native in (True, False):
                for variants in model._variants.values():
                    variants.layers.clear()
                model._predictors.clear()
                if is_native:
                    found = seconds_of(model, layers)
                else:
                    with numpy_alone():
                        found = seconds_of(model, layers)
                for times, result in zip(found, (first, other), strict=True):
                    result.setdefault((name, is_native), []).extend(times)
    return {
        key: tuple(1e6 * statistics.median(times[key]) for times in (other, first)) for key in other
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modeled = sorted(name for name, op in ops().items() if op.time_model)
    parser.add_argument("op", nargs="*", default=modeled)
    parser.add_argument("--arch", default="gfx950", choices=("gfx942", "gfx950"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    os.environ.setdefault("RFOPS_VGPU_ARCH", options.arch)
    if launcher.native() is None and not launcher.build():
        raise SystemExit("the native launcher cannot be built here: RFOPS_LOG=debug says why")
    found = measure(options.op, options.arch, options.rounds)
    print("us of CPU, of a new size and of a layer's first, by the launcher; the same by numpy")
    for name in dict.fromkeys(name for name, _ in found):
        native, numpy = found[name, True], found[name, False]
        print(f"{native[0]:6.1f} {native[1]:6.1f}  {numpy[0]:6.1f} {numpy[1]:6.1f}  {name}")
    worst = max(us for us, _ in found.values())
    return int(worst > MAX_US)


if __name__ == "__main__":
    sys.exit(main())
