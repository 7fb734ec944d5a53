"""Compilers that have built into a cache, recorded in it (`compilers/`): a compiler's version is
part of every key, and where none is installed those recorded stand in."""

from __future__ import annotations

import contextlib
import json

from . import records, trust
from .files import DAMAGE, cache_root, cache_roots, digest, write_atomic


class Builder(records.Record, frozen=True):
    """A compiler's kind and version, without paths."""

    name: str
    version: str


def note(kind: str, builder: Builder) -> None:
    """Record what has built. Failing is no error: a hit then needs the compiler to be there."""
    body = builder.as_dict()
    file = cache_root() / "compilers" / f"{kind}-{digest(body)[:16]}.json"
    with contextlib.suppress(OSError):
        if file.exists():
            file.touch()
        else:
            write_atomic(file, json.dumps(body, indent=1))


def recorded_builders(kind: str) -> list[Builder]:
    """What has built into these caches, newest first."""
    last_used: dict[Builder, float] = {}
    for root in cache_roots():
        trust.check(root, "compilers")
        for file in (root / "compilers").glob(f"{kind}-*.json"):
            with contextlib.suppress(*DAMAGE):
                builder = records.decode(trust.read(root, file), Builder, sealed=False)
                last_used[builder] = max(last_used.get(builder, 0.0), file.stat().st_mtime)
    return sorted(last_used, key=lambda builder: -last_used[builder])
