"""The build backend: setuptools, and with RFOPS_BUILD_VGPU a wheel that carries the built virtual
GPU (jit/build/prebuilt.py) and is for this platform only. In an editable install, scripts beside
the checkout find the package too.

pyproject.toml names this file twice: as the backend, whose hook adds the engine's packages to those
that the build needs, and as the place of two commands. It is imported alone, without `rfops`.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that stay setuptools' own
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

LEVELS = os.environ.get("RFOPS_BUILD_VGPU", "")
ENGINE = ("filelock", "msgspec", "ninja", "pyelftools")  # what the engine needs to build
CHECKOUT = "rfops_checkout.pth"


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Setuptools' answer, and the engine's requirements if the virtual GPU is built."""
    needed = build_meta.get_requires_for_build_wheel(config_settings)
    return [*needed, *engine()] if LEVELS else needed


def engine() -> list[str]:
    """The engine's requirements as pyproject.toml has them; with clang where the host has no C++
    compiler. Hooks run in the folder of pyproject.toml."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [
        dependency
        for dependency in project["dependencies"]
        if re.split(r"[<>=;]", dependency)[0].strip() in ENGINE
    ]
    if not os.environ.get("CXX") and not shutil.which("g++") and not shutil.which("clang++"):
        needed += project["optional-dependencies"]["clang"]
    return needed


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Setuptools' wheel, with the checkout on the path.

    Setuptools' own finder is asked last. A script beside a checkout that is named rfops would find
    that folder before, as a namespace without content; a package on the path wins over a namespace.
    Setuptools' warning of such folders, which pip shows even with -q, is then beside the point.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Editable installation")
        name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory, name)
    with zipfile.ZipFile(wheel) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    path = f"{Path.cwd()}\n".encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(path).digest()).decode().rstrip("=")
    (record,) = (entry for entry in contents if entry.endswith(".dist-info/RECORD"))
    contents[record] += f"{CHECKOUT},sha256={digest},{len(path)}\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in {CHECKOUT: path, **contents}.items():
            archive.writestr(entry, content)
    return name


class BuildPy(build_py):  # type: ignore[misc]
    """Copies the sources, then builds the virtual GPU from the copies."""

    def run(self) -> None:
        """Copy the package's files into the wheel."""
        super().run()
        if LEVELS and not self.editable_mode:
            library = Path(self.build_lib).absolute()
            # In a new process, which imports the package from the copy. An isolated build finds its
            # packages by PYTHONPATH, so the copy is put before what is there.
            search = [str(library), *filter(None, [os.environ.get("PYTHONPATH")])]
            environ = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(search),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            command = [sys.executable, "-m", "rfops.jit.build.prebuilt", LEVELS]
            subprocess.run(command, check=True, cwd=library, env=environ)


class Wheel(bdist_wheel):  # type: ignore[misc]
    """With the virtual GPU: for any Python 3 of this platform."""

    def finalize_options(self) -> None:
        if LEVELS:  # the package is installed as one with compiled parts
            self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return ("py3", "none", tag[2]) if LEVELS else tag
