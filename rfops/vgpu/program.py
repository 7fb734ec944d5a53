"""The environment in which a program, of Python or not, runs on the virtual GPU as it is."""

from __future__ import annotations

import os
from pathlib import Path

from rfops.jit import settings, vgpu_library_folder

# Python runs a module of this name when it starts; this one makes way for another.
_SITE = """\
import importlib.util

spec = importlib.util.spec_from_file_location("_rfops_guest", {guest!r})
guest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guest)
guest.start({folder!r})
"""


def environment(arch: str, folder: Path, part: str | None = None) -> dict[str, str]:
    """This process's, changed. The folder, an empty one that is there while the program runs, gets
    what Python reads when it starts, and the report of launches."""
    site = folder / "site"
    site.mkdir()
    text = _SITE.format(guest=str(Path(__file__).with_name("guest.py")), folder=str(site))
    (site / "sitecustomize.py").write_text(text, encoding="utf-8")
    env = {
        **os.environ,
        "RFOPS_VGPU_ARCH": arch,
        "RFOPS_VGPU_REPORT": str(folder),
        "RFOPS_VGPU_TIMING": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    env.pop("RFOPS_HIP_LIBRARY", None)
    if part:
        env["RFOPS_VGPU_PART"] = part
    _put_first(env, "LD_LIBRARY_PATH", str(vgpu_library_folder()))
    _put_first(env, "PYTHONPATH", str(site))
    return env


def timing_set(env: dict[str, str], options: str) -> None:
    """Add to what the timing mode is told, behind the user's own words."""
    env["RFOPS_VGPU_TIMING_SET"] = f"{settings.raw('RFOPS_VGPU_TIMING_SET')} {options}".strip()


def _put_first(env: dict[str, str], name: str, folder: str) -> None:
    env[name] = os.pathsep.join([folder, *filter(None, [env.get(name)])])
