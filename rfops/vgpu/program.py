"""The environment in which a program, of Python or not, runs on the virtual GPU as it is."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from rfops.jit import settings, vgpu_library_folder
from rfops.jit.build import toolchain

AITER = Path(__file__).parents[1] / "compat" / "path"  # rfops.compat.aiter.FOLDER, no import of it
# Python runs a module of this name when it starts; this one makes way for another.
_SITE = """\
import importlib.util

spec = importlib.util.spec_from_file_location("_rfops_guest", {guest!r})
guest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guest)
guest.start({folder!r}, {engine!r}, {any_release!r})
"""


def environment(
    arch: str,
    folder: Path,
    gpu_model: str | None = None,
    engine: str = "",
    *,
    any_release: bool = False,
    aiter: bool = False,
) -> dict[str, str]:
    """This process's, changed. The folder, an empty one that is there while the program runs, gets
    what Python reads when it starts, and the report of launches; `engine` is one of rfops.engines.
    With `aiter`, rfops' importable one is on Python's path. Where no hipcc is, ours is."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        site_text(str(site), engine, any_release), encoding="utf-8"
    )
    env = {
        **os.environ,
        "RFOPS_VGPU_ARCH": arch,
        "RFOPS_VGPU_REPORT": str(folder),
        "RFOPS_VGPU_TIMING": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    env.pop("RFOPS_HIP_LIBRARY", None)
    if gpu_model:
        env["RFOPS_VGPU_PART"] = gpu_model
    _put_first(env, "LD_LIBRARY_PATH", str(vgpu_library_folder()))
    if shutil.which("hipcc") is None:
        _put_first(env, "PATH", str(_hipcc(folder / toolchain.HIPCC_FOLDER).parent))
    if aiter:
        _put_first(env, "PYTHONPATH", str(AITER))
    _put_first(env, "PYTHONPATH", str(site))
    return env


def _hipcc(folder: Path) -> Path:
    """`rfops hipcc` by its usual name, for a program that compiles kernels when it runs."""
    folder.mkdir(exist_ok=True)  # a debugger starts its program again
    front = folder / "hipcc"
    front.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -E -m rfops.cli hipcc "$@"\n')
    front.chmod(0o755)
    return front


def site_text(folder: str, engine: str = "", any_release: bool = False) -> str:
    """The `sitecustomize.py` of this folder."""
    guest = str(Path(__file__).with_name("guest.py"))
    return _SITE.format(guest=guest, folder=folder, engine=engine, any_release=any_release)


def timing_set(env: dict[str, str], options: str) -> None:
    """Add to what the timing mode is told, behind the user's own words."""
    env["RFOPS_VGPU_TIMING_SET"] = f"{settings.raw('RFOPS_VGPU_TIMING_SET')} {options}".strip()


def _put_first(env: dict[str, str], name: str, folder: str) -> None:
    env[name] = os.pathsep.join([folder, *filter(None, [env.get(name)])])
