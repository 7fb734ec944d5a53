"""Times of rfops' own kernels, as `rfops selftest --report FILE.csv` measured them on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rfops.cli.timing.rows import Row, number, part_of, us_of
from rfops.jit import settings

OP = "rfops"
COLUMNS = ("rfops_op", "kernel", "config", "gpu", "cu", "call", "us")


def parse(line: Mapping[str, str]) -> Row:
    """One line. Raises ValueError."""
    empty = [name for name in COLUMNS if name != "config" and not line.get(name)]
    if empty:
        raise ValueError(f"{', '.join(empty)}: empty")
    cu_num = number("cu", line["cu"])
    part_of(line["gpu"], cu_num)
    kernel = f"{line['rfops_op']} {line['kernel']} {line['config']}".rstrip()
    return Row(OP, line["gpu"], cu_num, kernel, "", line["call"], 1, us_of(line["us"]), "selftest")


def predicted(row: Row) -> dict[str, Any]:
    """The model's time of all launches of the call. Raises ValueError, and as building does."""
    from rfops.cli.common import with_ops
    from rfops.cli.model_timings import given_of
    from rfops.cli.timing.predict import modelled
    from rfops.dispatch.op import ops
    from rfops.dispatch.problem import Problem, call_on

    with_ops()
    name, kernel, config = (*row.kernel.split(" ", 2), "")[:3]
    op = ops()[name]
    with settings.put("RFOPS_VGPU_ARCH", row.gpu):
        problem = Problem(op, call_on(op, given_of(row.shape), torch.device("cpu")))
        parsed = op.parse_config(op.kernels[kernel], config)
        launch = problem.launch_by(problem.prepare(kernel, parsed))
        launches = modelled(launch, row.gpu_model, True, "profiler")
    sums = {key: sum(launch[key] for launch in launches) for key in ("us", "low", "high")}
    return {**sums, "bound": launches[0]["bound"], "clock_ghz": launches[0]["clock_ghz"]}
