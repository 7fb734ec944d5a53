"""What another project takes for a call: its launches, each with its estimated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rfops import vgpu

Launches = tuple[tuple[str, float], ...]  # what each is called, and its microseconds


class Missing(Exception):
    """Why a launch of another project's cannot be had here."""


class PeerCall(NamedTuple):
    """A call of another project's, on the virtual GPU."""

    name: str
    launches: Launches
    uncounted: tuple[str, ...] = ()  # further launches of it that are not timed, and why

    @property
    def us(self) -> float:
        """Of all launches that are counted."""
        return sum(us for _, us in self.launches)

    def with_launches(self, begin: PeerCall) -> PeerCall:
        """The same behind the launches of another."""
        both = begin.launches + self.launches, begin.uncounted + self.uncounted
        return PeerCall(self.name, *both)


def time_launches(label: str, start: Callable[[], object], results: bool = True) -> Launches:
    """Each launch of `start`, from cold caches. Without `results` only those workgroups run that
    the time is taken from."""
    with vgpu.timing(results=results, detail=False) as t:
        start()
    return tuple((label, float(launch.us)) for launch in t.launches)


class Counted:
    """Collects the launches of a call, and the reasons of those that cannot be had."""

    def __init__(self) -> None:
        self.launches, self.uncounted = list[tuple[str, float]](), list[str]()

    @contextmanager
    def launch(self, label: str) -> Iterator[None]:
        """A step that may be missing."""
        try:
            yield
        except Missing as error:
            self.uncounted.append(f"{label}: {error}")

    def add(self, launches: Sequence[tuple[str, float]]) -> None:
        """Count these too."""
        self.launches += launches

    def call(self, name: str) -> PeerCall:
        """All of it."""
        return PeerCall(name, tuple(self.launches), tuple(self.uncounted))
