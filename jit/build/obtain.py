"""An artifact from the cache, or made now, by one process for all that want it."""

from __future__ import annotations

from collections.abc import Callable

from ..cache import builders
from ..cache.builders import Builder
from ..cache.shelf import Artifact, Contents
from ..errors import BuildError
from ..forks import importing
from ..policy import manifest, strict
from ..policy.manifest import Wanted
from . import toolchain
from .recipe import Unit
from .toolchain import Toolchain

ATTEMPTS = 3  # builds of sources that change while they are being built


def obtain(
    wanted: Wanted,
    target: tuple[str, str],
    unit_by: Callable[[Toolchain], Unit],
    make: Callable[[Unit, Contents], Artifact | None],
) -> Artifact:
    """The artifact from the cache, or made now, by one process for all that want it.

    `make` gets what it read in an earlier attempt, updates it, and returns None if a source changed
    meanwhile: what was compiled is then not known.
    """
    for chosen in toolchain.usable(*target):
        unit = unit_by(chosen)
        found = unit.shelf.find(unit.build_key)
        if found is not None:
            manifest.record(wanted)
            return found
    strict.check_build(str(wanted), wanted.command)
    unit = unit_by(toolchain.choose(*target, again=True))
    _import_builders()
    from . import failures

    before = failures.last(unit.shelf, unit.build_key)
    try:
        with unit.shelf.lock(unit.build_key):
            built = unit.shelf.find(unit.build_key, report=True)
            if built is None:
                failures.raise_again(unit.shelf, unit.build_key, before)
                built = _attempts(unit, make)
                builders.note(target[0], Builder(unit.toolchain.name, unit.toolchain.version))
    except OSError as error:
        raise failures.from_os(unit.shelf, error) from error
    manifest.record(wanted)
    return built


def _import_builders() -> None:
    """What only a cold start needs, at once: a fork does not fall between."""
    with importing:
        import filelock  # noqa: F401
        from elftools.elf import elffile, notes  # noqa: F401
        from ninja import ninja_syntax  # noqa: F401

        from . import compile, failures, ninja, process  # noqa: F401


def _attempts(unit: Unit, make: Callable[[Unit, Contents], Artifact | None]) -> Artifact:
    from . import failures

    read: Contents = {}
    try:
        for _ in range(ATTEMPTS):
            built = make(unit, read)
            if built is not None:
                return built
        raise BuildError(unit.shelf.module, "", "the sources kept changing during the build", None)
    except BuildError as error:
        if error.log_path is not None:
            raise
        raise failures.record(unit.shelf, unit.build_key, error, {}) from error
    except OSError as error:  # those who wait need not run into it too
        told = failures.from_os(unit.shelf, error)
        raise failures.record(unit.shelf, unit.build_key, told, {}) from error
