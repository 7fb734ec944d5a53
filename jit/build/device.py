"""Code objects, from a module's spec to a published artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import log
from ..cache import code_object
from ..cache.code_object import CodeObjectError
from ..cache.shelf import Artifact, Contents
from ..errors import BuildError, ConfigError
from ..policy import manifest
from ..policy.manifest import BuildRequest
from .obtain import obtain
from .recipe import Defines, Unit, define_flags, device_unit, make_meta
from .spec import ModuleSpec


def build_device(spec: ModuleSpec, arch: str, defines: Defines) -> Artifact:
    """The code object from the cache, or built now.

    Raises UnsupportedArch, ToolchainNotFound, BuildError, LockTimeout, JitDisabled, ConfigError.
    """
    spec.require_arch(arch)
    if spec.kind != "device":
        raise ConfigError(f"{spec.name}: a {spec.kind} module has no code object")
    define_flags(spec.name, defines)  # before they are sorted, hashed or recorded
    spec.require_defines(defines)
    title = f"{spec.title or spec.name} for {arch}"
    facts = {"arch": arch, "defines": dict(defines)}

    def build_unit(unit: Unit, contents_before: Contents) -> Artifact | None:
        return _compile_device(unit, title, facts, contents_before)

    return obtain(
        BuildRequest(spec.name, arch, manifest.defines_of(defines), spec.config),
        ("device", arch),
        lambda compiler: device_unit(spec, arch, defines, compiler),
        build_unit,
    )


def _compile_device(
    unit: Unit, title: str, facts: dict[str, Any], contents_before: Contents
) -> Artifact | None:
    """Build once; None if a source changed meanwhile."""
    from .compile import files_read, run_units

    with unit.shelf.stage(unit.build_key) as stage:
        seconds = run_units([unit], title, stage)
        read, is_certain = files_read(unit, stage, contents_before)
        contents_before.clear()
        contents_before.update(read)
        if not is_certain:
            return None
        facts = {**facts, **_kernels(unit, stage / unit.output, facts["arch"])}
        meta = make_meta(unit, seconds, facts)
        built = unit.shelf.publish(stage, unit.build_key, read, meta)
    log.get().info("built %s in %.2f s", title, seconds)
    return built


def _kernels(unit: Unit, file: Path, arch: str) -> dict[str, Any]:
    """The code object's kernels; a compiler that wrote anything else has failed."""
    try:
        metadata = code_object.read_metadata(code_object.unbundle(file.read_bytes(), arch))
        if metadata.arch != arch:
            raise CodeObjectError(f"asked for {arch}, the compiler wrote {metadata.arch}")
    except CodeObjectError as error:
        command = unit.argv(unit.commands[-1])
        raise BuildError(unit.shelf.module, command, str(error), None) from error
    return {"target": metadata.target, "kernels": metadata.kernels}
