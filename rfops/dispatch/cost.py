"""What a call costs, and what it must cost at least: for `rfops bench` and `rfops tune`.

On a GPU a time is measured: graph replays through inputs that no cache still holds (timing.py). On
the virtual GPU it is timing mode's, from cold caches (rfops/vgpu/timed.py), and called estimated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rfops import vgpu
from rfops.jit.arch import ARCH_SPECS

from .kernel import Call
from .op import Op
from .problem import Launch, Problem, on_device
from .timing import sets_past_cache, time_calls, time_graph

# The matrix units' type of an op whose first tensor is of this dtype.


@dataclass(frozen=True)
class Cost:
    """`us` is measured, estimated, or 0 where nothing was launched."""

    us: float
    kind: str
    low: float = 0.0  # us: first decile of samples; of an estimate, its interval
    high: float = 0.0
    gpu: str = ""  # the GPU's name; of an estimate, the GPU model
    counters: Mapping[str, float] = field(default_factory=dict)
    launches: tuple[tuple[str, float], ...] = ()  # of an estimate: each kernel and its us

    @property
    def spread(self) -> float:
        """Decile to decile, as a share of the median; 0 of an estimate."""
        return (self.high - self.low) / self.us if self.kind == "measured" and self.us else 0.0


@dataclass(frozen=True)
class Roofline:
    """Bytes once over HBM and flops at the matrix units' peak, both the vendor's; `us` is 0 for an
    architecture without a row."""

    bytes: int
    flops: int
    us: float
    bound: str


def problems(op: Op, c: Call, device: torch.device) -> list[Problem]:
    """One on the virtual GPU, which has no cache; on a GPU as many as pass its last level."""
    c = on_device(c, device)
    first_problem = Problem(op, c)
    count = 1
    if device.type != "cpu":
        count = sets_past_cache(op.traffic(first_problem.call), device, first_problem.num_bytes)
    return [first_problem, *(Problem(op, c, seed) for seed in range(1, count))]


def floor(op: Op, c: Call) -> Roofline:
    """Of a call with its tensors."""
    num_bytes, flops, arch = op.traffic(c), op.flops(c), ARCH_SPECS.get(c.arch)
    if arch is None:
        return Roofline(num_bytes, flops, 0.0, "unknown")
    unit = op.product_type(c)
    times = {"bytes": num_bytes / arch.hbm_peak_tb_s / 1e6}
    if unit in arch.matrix_tflops:
        times["flops"] = flops / arch.matrix_tflops[unit] / 1e6
    bound = max(times, key=lambda name: times[name])
    return Roofline(num_bytes, flops, times[bound], bound)


def measure(sets: Sequence[Problem], backend: str, config: Any = None, route: bool = False) -> Cost:
    """Check the first result, then time calls that go through all sets; by one kernel, or with
    `route` through the op itself. Raises AssertionError for a wrong result."""
    if route:
        launches: list[Launch] = [problem.launch for problem in sets]
    else:
        run = sets[0].prepare(backend, config)
        launches = [problem.launch_by(run) for problem in sets]
    if sets[0].call.device.type != "cpu":
        sets[0].checked(launches[0], backend)
        is_capturable = sets[0].op.kernels[backend].is_capturable
        timing = (time_graph if is_capturable else time_calls)(launches)
        gpu = torch.cuda.get_device_name(sets[0].call.device)
        return Cost(timing.us, "measured", timing.low, timing.high, gpu)
    sets[0].renew()
    with vgpu.profile() as profile, vgpu.timing(detail=False) as timed:
        results = launches[0]()
    sets[0].check(results, backend)  # behind it: a reference may launch kernels of its own
    records = profile.launches
    if not records:
        return Cost(0.0, "not launched")
    us, low, high = (
        sum(launch.figures[name] for launch in timed.launches) for name in ("us", "low", "high")
    )
    counters = _counters(records, floor(sets[0].op, sets[0].call))
    by_kernel = tuple((launch.kernel, launch.us) for launch in timed.launches)
    return Cost(us, "estimated", low, high, timed.launches[0].part, counters, by_kernel)


def peer(sets: Sequence[Problem]) -> tuple[str, float] | None:
    """The op's peer and its time, on a GPU."""
    peers = [problem.op.peer(problem.call) for problem in sets if problem.call.device.type != "cpu"]
    calls = [peer_[1] for peer_ in peers if peer_]
    return (peers[0][0], time_graph(calls).us) if peers and peers[0] else None


def _counters(records: Sequence[Any], roofline: Roofline) -> dict[str, float]:
    """Of all launches of a call; ratios are to what the work needs at least."""

    def total(*path: str) -> float:
        values = [functools.reduce(lambda d, key: d.get(key, 0), path, r.figures) for r in records]
        return float(sum(values))

    lines = 64 * (total("global_read", "lines_64B") + total("global_write", "lines_64B"))
    requested = total("global_read", "bytes") + total("global_write", "bytes")
    return {
        "launches": len(records),
        "waves": total("waves"),
        "instructions": total("wave_instructions"),
        "valu": total("classes", "valu") + total("classes", "trans"),
        "mfma": total("classes", "mfma"),
        "mfma_flops_over_least": total("mfma_flops") / roofline.flops if roofline.flops else 0.0,
        "bytes_over_least": lines / roofline.bytes,
        "requested_over_least": requested / roofline.bytes,
        "vgpr": max(r.vgpr for r in records),
        "waves_per_simd": min(r.waves_per_simd for r in records),
        "spills": total("vgpr_spills") + total("sgpr_spills"),
    }


def default_device() -> torch.device:
    """Return torch's GPU if it has one, else the CPU, which is the virtual GPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
