"""Times on a GPU: replays of a graph whose calls go through inputs that no cache still holds.

    sets = [make_inputs() for _ in range(sets_past_cache(bytes_of_one_call))]
    timing = time_graph([functools.partial(op, *inputs) for inputs in sets])

One graph holds all calls, so that Python and the driver's launches stay out of the figure, and each
set comes back only after the others have gone through the last-level cache. Each replay gives one
sample, its time over its calls. Check the results before timing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

Call = Callable[[], object]
_PAST_CACHE = 2.5  # times the cache: a set returns after this much of other memory
_MOST_SETS = 400
_AMD_CACHE = 256 << 20  # bytes of Infinity Cache behind the L2 that HIP reports
_GRAPH_CALLS = 64  # at least, so that a replay's start is a small part of it
_SAMPLES = 25
_SAMPLE_BUDGET = 0.25  # seconds of replays


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: median, first and last decile, and how many samples."""

    us: float
    low: float
    high: float
    samples: int

    @property
    def spread(self) -> float:
        """Decile to decile, as a share of the median."""
        return (self.high - self.low) / self.us if self.us else 0.0

    @classmethod
    def of(cls, us: Sequence[float]) -> Timing:
        """Summarise times in us: median, 10th and 90th percentile, count."""
        ordered = sorted(us)
        tenth = len(ordered) // 10
        return cls(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))


@cache
def cache_bytes(device: torch.device) -> int:
    """Last-level cache of a GPU."""
    if torch.version.hip:
        return _AMD_CACHE
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def sets_past_cache(call_bytes: int, device: torch.device, set_bytes: int = 0) -> int:
    """How many sets of inputs to go through, of which a call reads `call_bytes`; all of them, of
    `set_bytes` each, fill half of the free memory at most."""
    num_sets = -(-int(_PAST_CACHE * cache_bytes(device)) // max(call_bytes, 1)) + 1
    if set_bytes:
        num_sets = min(num_sets, torch.cuda.mem_get_info(device)[0] // 2 // set_bytes)
    return max(2, min(num_sets, _MOST_SETS))


def time_graph(calls: Sequence[Call], samples: int = _SAMPLES) -> Timing:
    """A call's time among `calls`, each with inputs of its own, by replays of one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles, and fills torch's allocator, outside the capture
        for call in (calls[0], calls[-1]):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    rounds = -(-_GRAPH_CALLS // len(calls)) if _seconds(calls) * len(calls) < 2e-3 else 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    return _sampled(graph.replay, rounds * len(calls), samples)


def time_calls(calls: Sequence[Call], samples: int = _SAMPLES) -> Timing:
    """As time_graph, of calls that read on the host, which no graph captures: the host's work is
    part of the time."""

    def run() -> None:
        for call in calls:
            call()

    return _sampled(run, len(calls), samples)


def _sampled(run: Call, num_calls: int, samples: int) -> Timing:
    """A call's time, where `run` makes so many; fewer samples where they take long."""
    run()
    first_seconds = _elapsed(run)
    samples = max(5, min(samples, int(_SAMPLE_BUDGET / max(first_seconds, 1e-9))))
    return Timing.of([_elapsed(run) / num_calls * 1e6 for _ in range(samples)])


def _elapsed(run: Call) -> float:
    """Seconds between events around it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def _seconds(calls: Sequence[Call]) -> float:
    """A rough time of one call."""
    calls[0]()
    return _elapsed(calls[-1])
