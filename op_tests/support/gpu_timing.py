"""Times on a GPU: the package's own, and a call's time from Python."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rfops.dispatch.timing import Call, Timing, cache_bytes, sets_past_cache, time_graph

__all__ = ["Call", "Timing", "cache_bytes", "sets_past_cache", "time_eager", "time_graph"]
_GRAPH_CALLS, _SAMPLES = 64, 25


def time_eager(calls: Sequence[Call], samples: int = _SAMPLES) -> Timing:
    """A call's time as Python makes it: host clock over some calls, synchronised at their end."""
    rounds = max(1, _GRAPH_CALLS // len(calls))
    times = []
    for _ in range(samples + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            for call in calls:
                call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / (rounds * len(calls)) * 1e6)
    return Timing.of(times[1:])
