"""An artifact from the cache, or made now, by one process for all that want it."""

from __future__ import annotations

from collections.abc import Callable

from ..cache import builders
from ..cache.builders import Builder
from ..cache.shelf import Artifact, Contents
from ..errors import BuildError
from ..forks import importing
from ..policy import manifest, strict
from ..policy.manifest import BuildRequest
from . import toolchain
from .recipe import Unit
from .toolchain import Toolchain

ATTEMPTS = 3  # builds of sources that change while they are being built


def obtain(
    build_request: BuildRequest,
    target: tuple[str, str],
    make_unit: Callable[[Toolchain], Unit],
    build: Callable[[Unit, Contents], Artifact | None],
) -> Artifact:
    """Return the artifact from the cache, or build it: one process builds, others wait for it.

    `build(unit, contents)` gets the files read by the previous attempt, updates `contents`, and
    returns None if a source changed during the build, because the artifact's sources are then
    unknown.
    """
    for compiler in toolchain.usable(*target):
        unit = make_unit(compiler)
        artifact = unit.shelf.find(unit.build_key)
        if artifact is not None:
            manifest.record(build_request)
            return artifact
    strict.check_build(str(build_request), build_request.command)
    unit = make_unit(toolchain.choose(*target, refresh=True))
    _import_builders()
    from . import failures

    previous_id = failures.last_id(unit.shelf, unit.build_key)
    try:
        with unit.shelf.lock(unit.build_key):
            built = unit.shelf.find(unit.build_key, report=True)
            if built is None:
                failures.raise_again(unit.shelf, unit.build_key, previous_id)
                built = _attempts(unit, build)
                builders.note(target[0], Builder(unit.toolchain.name, unit.toolchain.version))
    except OSError as error:
        raise failures.from_os(unit.shelf, error) from error
    manifest.record(build_request)
    return built


def _import_builders() -> None:
    """What only a cold start needs, at once: a fork does not fall between."""
    with importing:
        import filelock  # noqa: F401
        from elftools.elf import elffile, notes  # noqa: F401
        from ninja import ninja_syntax  # noqa: F401

        from . import compile, failures, ninja, process  # noqa: F401


def _attempts(unit: Unit, build: Callable[[Unit, Contents], Artifact | None]) -> Artifact:
    from . import failures

    read: Contents = {}
    try:
        for _ in range(ATTEMPTS):
            built = build(unit, read)
            if built is not None:
                return built
        raise BuildError(unit.shelf.module, "", "the sources kept changing during the build", None)
    except BuildError as error:
        if error.log_path is not None:
            raise
        raise failures.record(unit.shelf, unit.build_key, error, {}) from error
    except OSError as error:  # those who wait need not run into it too
        build_error = failures.from_os(unit.shelf, error)
        raise failures.record(unit.shelf, unit.build_key, build_error, {}) from error
