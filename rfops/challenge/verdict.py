"""What is said of an entry: a verdict a case, and the limits under which it was come to."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import msgspec


class Limits(NamedTuple):
    seconds: float = 60.0  # a call, and a call's launches when they are timed
    memory: int = 16 << 30
    on_gpu: bool = False  # torch's, with times measured; else the virtual one
    import_seconds: float = 600.0  # builds included
    is_trusted: bool = False  # where walls are missing, go on without
    check: bool = False  # the virtual GPU's checks
    seed: int | None = None  # of the inputs that an entry cannot know; None: a new one each time


class Verdict(msgspec.Struct):
    """Of one case: why the checks refuse it (empty: they pass), and findings in words."""

    spec: str
    official: str = ""
    strict: str = ""
    worst: str = ""  # the element that is furthest off, over all calls
    us: list[float] = msgspec.field(default_factory=list)  # a call
    measured: bool = False  # us; else they are estimated
    untimed: str = ""  # why there are no us
    kernels: dict[str, float] = msgspec.field(default_factory=dict)  # us of a call
    computed: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # torch's operators on its tensors
    beside: dict[str, int] = msgspec.field(default_factory=dict)  # those on nothing of the case
    named: list[str] = msgspec.field(default_factory=list)
    error: str = ""  # of the entry, as it raised it

    @property
    def passes(self) -> bool:
        return not (self.official or self.error)

    @property
    def mean_us(self) -> float | None:
        """None of a case that fails or has no time."""
        return statistics.mean(self.us) if self.us and self.passes else None
