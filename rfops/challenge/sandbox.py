"""A process behind walls, as the evaluator starts, asks and ends it (walls.py is its guard).

What it finds: Python, torch, compilers and rfops read-only, /tmp and an empty HOME of a size, no
network, no process but its own, and of the environment only names of `_ENV`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rfops.challenge.channel import Channel
from rfops.jit import paths, settings, vgpu_hsa_folder, vgpu_library_folder
from rfops.jit.cache.files import cache_root
from rfops.vgpu.program import AITER, site_text

_GUARD = Path(__file__).with_name("walls.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/rocm")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_GPU = ("/dev/kfd", "/dev/dri", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/sys")
_ENV = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "CC", "CXX", "ROCM_PATH", "LD_LIBRARY_PATH"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
_SETTINGS = ("RFOPS_VGPU_", "RFOPS_HIPCC", "RFOPS_COMPILE_TIMEOUT", "RFOPS_JOBS")
MAX_SCRATCH = 4 << 30  # bytes of /tmp: what a build takes; part of the limit of memory


class WallsMissing(RuntimeError):
    """This machine lets no walls be built; the text says which."""


class Outcome(msgspec.Struct):
    """How a process ended."""

    missing: str = ""  # the wall that could not be built
    reason: str = ""  # the limit that it exceeded, in words
    status: int | None = None  # negative: the signal
    num_remaining: int = 0  # processes that still ran
    shm_bytes: int = 0  # in files of /dev/shm


class Sandbox:
    """`command`, whose word "{channel}" is the number of its socket, with `channel` to it."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        memory: int,
        *,
        walls: bool,
        folders: Sequence[str] = (),
        is_gpu: bool = False,
    ) -> None:
        self._outcome: Outcome | None = None
        self.has_unread = False
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        number = theirs.fileno()
        job = {
            "command": [word.replace("{channel}", str(number)) for word in command],
            "env": dict(env),
            "channel": number,
            "folders": {name: str(Path(name).resolve()) for name in [*_folders(), *folders]},
            "devices": [name for name in _GPU if is_gpu and Path(name).exists()],
            "files": {"site/sitecustomize.py": site_text("{folder}/site"), "home/.empty": ""},
            "walls": walls,
            "temp": tempfile.gettempdir(),
            "memory": memory,
            "scratch": min(memory, MAX_SCRATCH),
        }
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            pass_fds=(number,),
            start_new_session=True,  # a terminal's Ctrl-C is the evaluator's to act on
        )
        theirs.close()
        assert self._guard.stdin is not None
        self._guard.stdin.write(json.dumps(job).encode() + b"\n")
        self._guard.stdin.flush()

    def wait_and_end(self, seconds: float = 10.0) -> Outcome:
        """Let it end by itself, and end what is left after that time. `has_unread` then tells
        whether it has said more than was received."""
        self.channel.hang_up()
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.has_unread = self.channel.has_unread()
        return self.end()

    def end(self) -> Outcome:
        """End it and all that it started; again, the same. Raises WallsMissing."""
        self.channel.close()
        if self._outcome is None:
            text, _ = self._guard.communicate()
            try:
                self._outcome = msgspec.json.decode(text, type=Outcome)
            except msgspec.DecodeError:
                self._outcome = Outcome(reason="its guard was ended")
        if self._outcome.missing:
            raise WallsMissing(self._outcome.missing)
        return self._outcome


def require_walls() -> None:
    """Raises WallsMissing where this machine lets none be built."""
    Sandbox(["/bin/true"], {}, 1 << 30, walls=True).wait_and_end()


def environment(
    arch: str, extra_variables: Mapping[str, str] | None = None, *, hsa: bool = False
) -> dict[str, str]:
    """Return the environment of a process on the virtual GPU: the listed variables of this process,
    and `extra_variables`; "{folder}" in a value stands for the process's own folder. With `hsa` it
    also finds the virtual GPU's HSA runtime."""
    env = {name: os.environ[name] for name in _ENV if name in os.environ}
    env |= {name: v for name, v in os.environ.items() if name.startswith(_SETTINGS)}
    env.pop("RFOPS_VGPU_REPORT", None)
    env |= {
        "HOME": "{folder}/home",
        "TMPDIR": "{folder}",
        "TRITON_CACHE_DIR": "{folder}/triton",
        "RFOPS_CACHE_DIR": "{folder}/cache",
        "RFOPS_CACHE_READ": str(cache_root().parent),
        "RFOPS_CACHE_TRUST": str(cache_root().parent),
        "RFOPS_VGPU_ARCH": arch,
        "PYTHONPATH": _python_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    env["LD_LIBRARY_PATH"] = _joined(str(vgpu_library_folder()), env.get("LD_LIBRARY_PATH"))
    if hsa:
        env["LD_LIBRARY_PATH"] = _joined(str(vgpu_hsa_folder()), env["LD_LIBRARY_PATH"])
    return {**env, **(extra_variables or {})}


def _python_path() -> str:
    """The folder of its sitecustomize, and rfops' importable aiter where no real one is installed:
    entries of 2026 import aiter, and the competition's machine has it."""
    is_installed = importlib.util.find_spec("aiter") is not None
    return _joined("{folder}/site", None if is_installed else str(AITER))


def gpu_environment() -> dict[str, str]:
    """Of a process on torch's GPU: also what `rfops run` has set."""
    env = environment(settings.raw("RFOPS_VGPU_ARCH"))
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        env.pop(name, None)
        env |= {name: os.environ[name]} if name in os.environ else {}
    return env


def _joined(folder: str, search_path: str | None) -> str:
    return os.pathsep.join(filter(None, [folder, search_path]))


def _folders() -> tuple[str, ...]:
    """Return the folders that a process sees, read-only: the system's programs, Python, its
    packages, rfops and its cache. They are found anew for each process, because the first one may
    create the cache's folders."""
    libraries = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    named = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *libraries]
    for package in ("torch", "triton", "ziglang", "msgspec", "numpy"):  # installed as links too
        spec = importlib.util.find_spec(package)
        named += list(spec.submodule_search_locations or ()) if spec else []
    named += [str(paths.ROOT / name) for name in ("rfops", "csrc", "configs", "prebuilt")]
    named += [str(paths.COMPILER_CONFIG.parent), str(Path(__file__).parents[1])]
    root = cache_root()
    named += [str(root), str(root.parent / "lib"), str(root.parent / "hsa")]
    for variable in ("LD_LIBRARY_PATH", "PYTHONPATH", "PATH"):
        named += os.environ.get(variable, "").split(os.pathsep)
    home = Path.home().resolve()
    visible_folders = dict.fromkeys((*_SYSTEM, *_ETC))
    for name in named:
        folder = Path(name)
        if folder.is_absolute() and folder.exists() and not home.is_relative_to(folder.resolve()):
            visible_folders |= dict.fromkeys((str(folder), str(folder.resolve())))
    return tuple(visible_folders)
