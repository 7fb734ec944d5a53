"""`rfops bench OP --regret N`: what calls lose that no tuned row decides. Draws N calls as models
have them, times what the op would choose and all variants that it chooses among, and prints the
ratio of the choice to the best. Results are not checked; `rfops bench` does."""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

import torch

from rfops.cli import model_fit, model_timings, tune_model
from rfops.dispatch import routing
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.problem import call_on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--regret", type=int, metavar="N", help="of N random calls: the choice against the best"
    )
    parser.add_argument("--seed", type=int, help="of those calls; default: another each time")


def run(op: Op, device: torch.device, options: argparse.Namespace) -> int:
    """1 where nothing could be timed. Raises ValueError."""
    model_fit.model_of(op)
    if options.regret < 1:
        raise ValueError(f"--regret {options.regret}: expected 1 or more")
    seed = random.randrange(1 << 20) if options.seed is None else options.seed
    print(f"# {options.regret} calls of seed {seed}")
    ratios = []
    for arguments in tune_model.calls(op, options.regret, seed):
        regret = regret_of(op, arguments, device)
        if regret is None:
            print(f"{model_timings.call_text(arguments)}: nothing could be timed", file=sys.stderr)
            continue
        (name, config, us), best, count = regret
        ratios.append(us / best[2])
        chosen_text = f"{name} {routing.config_text(config)}".rstrip()
        line = (
            f"{ratios[-1]:.3f}  {model_timings.call_text(arguments)}: {us:.2f} us by {chosen_text}"
        )
        if ratios[-1] > 1:
            best_text = f"{best[0]} {routing.config_text(best[1])}".rstrip()
            line += f"; best of {count} {best[2]:.2f} us by {best_text}"
        print(line.rstrip(), flush=True)
    if not ratios:
        return 1
    summary = model_fit.Regret.from_ratios(ratios)
    print(f"{summary}, geometric mean {summary.mean:.3f}")
    return 0


def choice_of(op: Op, c: Call) -> tune_model.Variant | None:
    """The kernel and the variant that a call takes without a tuned row."""
    supported = (n for n in op.order(c) if op.kernels[n].unsupported_reason(c) is None)
    name = next(supported, None)
    return None if name is None else (name, op.kernels[name].default(c))


def regret_of(
    op: Op, arguments: dict[str, Any], device: torch.device, count: int = 1000
) -> tuple[tune_model.Time, tune_model.Time, int] | None:
    """The choice without a tuned row, the best of its variants, both timed, and how many were."""
    c = call_on(op, arguments, device)
    choice = choice_of(op, c)
    if choice is None:
        return None
    variants = dict.fromkeys([choice, *tune_model.pool(op, c, count, random.Random(0))])
    times = [t for t in tune_model.times_of(op, c, list(variants)) if not isinstance(t, str)]
    choice_times = [t for t in times if t[:2] == choice]
    return (choice_times[0], min(times, key=lambda t: t[2]), len(times)) if choice_times else None
