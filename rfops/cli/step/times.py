"""Times of a step's parts, and their picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from rfops import vgpu
from rfops.cli.step import Time, all_reduce_us
from rfops.cli.step.models import ALL_REDUCE, Component
from rfops.dispatch import cost
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import Problem, call_on
from rfops.jit.arch import ARCH_SPECS

_LAUNCH_US = 2.0  # what timing mode takes for a launch that does nothing
# Inputs that no launch of the step writes before: weights, and the cache where it is read.
_COLD = frozenset(
    ("w", "w_scale", "w1", "w2", "w1_scale", "w2_scale", "kv", "router_weight", "k_up")
)


def estimates(
    components: Sequence[Component], arch: str, gpu: str | None, tp: int
) -> Iterator[Time]:
    """Each part's time; equal calls are timed once."""
    time_of: dict[str, Time] = {}
    for component in components:
        if not component.op:
            yield _of_bytes(component, arch, tp)
            continue
        key = f"{component.op} {component.shape}"
        time_of[key] = time_of.get(key) or _of_op(component, gpu)
        yield dataclasses.replace(time_of[key], component=component)


def _of_bytes(component: Component, arch: str, tp: int) -> Time:
    if component.name == ALL_REDUCE:
        us = all_reduce_us(component.size, tp)
        return Time(component, us, us, "", "published", component.size, 0.0)
    spec = ARCH_SPECS[arch]
    us = _LAUNCH_US + component.size / spec.hbm_tb_s / 1e6
    floor_us = component.size / spec.hbm_peak_tb_s / 1e6
    return Time(component, us, us, "no op", "bytes", component.size, floor_us)


def _of_op(component: Component, gpu: str | None) -> Time:
    op = ops()[component.op]
    problem = Problem(op, call_on(op, component.shape, torch.device("cpu")), is_light=True)
    c = problem.call
    kernel = op.decide(c, None, None)[0].name
    written = {arg.name for arg in op.declaration.tensors if arg.written}
    cold = sum(t.nbytes for name in (_COLD - written) & {*c.inputs} for t in c.given(name))
    cold_fraction = min(1.0, cold / op.traffic(c))
    alone_us = _timed(op, problem, gpu, is_cold=True)
    warm_us = _timed(op, problem, gpu, is_cold=False) if cold_fraction < 1 else alone_us
    roofline = cost.floor(op, c)
    us = min(alone_us, warm_us + cold_fraction * (alone_us - warm_us))
    return Time(component, us, alone_us, kernel, "estimated", roofline.bytes, roofline.us)


def _timed(op: Op, problem: Problem, gpu: str | None, *, is_cold: bool) -> float:
    """us of all launches of the call, as a graph runs them."""
    results = op.is_chained(problem.call)
    with vgpu.timing(gpu, is_cold, "graph", results=results, detail=False) as timing:
        problem.launch()
    return float(sum(launch.us for launch in timing.launches))


def draw(title: str, times: Sequence[Time], layers: Mapping[str, int]) -> Any:
    """A figure: a bar a launch, from zero on, by block."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.28 * len(times)), layout="constrained")
    colors = {block: f"C{number}" for number, block in enumerate(layers)}
    for bar_idx, time in enumerate(times):
        color = colors[time.component.block]
        hatch = "" if time.kind == "estimated" else "//"
        axes.barh(bar_idx, time.us, color=color, hatch=hatch, edgecolor="white", height=0.8)
        axes.text(time.us, bar_idx, f" {time.us:.3g}", va="center", fontsize=8)
    for block, count in layers.items():
        axes.barh(0, 0, color=colors[block], label=f"{count} x {block}")
    axes.barh(0, 0, color="0.8", hatch="//", edgecolor="white", label="no kernel of rfops")
    axes.set_yticks(range(len(times)), [time.component.name for time in times], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.margins(x=0.1)
    axes.set(xlabel="us, estimated", title=title)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return figure
