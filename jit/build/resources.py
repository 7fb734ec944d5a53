"""What the machine has left: memory, disk, and so how many compilers may run at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .. import settings

# Peak of one compiler process: clang on a kernel 0.1 to 0.3 GB, g++ -O3 on the virtual GPU 0.4 GB.
JOB_BYTES = 1 << 30
# What compilers print, in lower case, when it is the machine that lacks something.
DISK_WORDS = ("no space left on device", "nospaceleft", "disk quota exceeded")
MEMORY_WORDS = ("out of memory", "bad_alloc", "cannot allocate memory", "virtual memory exhausted")
_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def free_memory() -> int:
    """Bytes that new processes can take: the machine's, or less where a cgroup has a limit."""
    free = _UNLIMITED
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    return min(free, _cgroup_free())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def _cgroup_free() -> int:
    """Of the tightest limit above this process. Page cache that can be dropped counts as free."""
    free = _UNLIMITED
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, kinds, cgroup = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        top = _CGROUP / kinds
        limit, usage = ("memory.max", "memory.current")
        if kinds:
            limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        group = top / cgroup.lstrip("/")
        for folder in (group, *group.parents):
            max_bytes, used_bytes = _read(folder / limit).strip(), _read(folder / usage).strip()
            if max_bytes.isdigit() and used_bytes.isdigit():
                stat = dict(row.split(" ", 1) for row in _read(folder / "memory.stat").splitlines())
                cached = int(stat.get("inactive_file", 0))
                free = min(free, max(0, int(max_bytes) - int(used_bytes) + cached))
            if folder == top:
                break
    return free


def free_disk(folder: Path) -> int:
    """Bytes left where the folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def jobs(requested: int = 0) -> int:
    """Compilers at once: as many as asked for (RFOPS_JOBS by default), else one a core and GiB."""
    count = requested or settings.number("RFOPS_JOBS")
    if count:
        return count
    return max(1, min(len(os.sched_getaffinity(0)), free_memory() // JOB_BYTES))


def megabytes(size: int) -> str:
    """Return a size in bytes as text in MB, with one decimal below 100 MB."""
    return f"{size / 1e6:.1f} MB" if size < 100e6 else f"{size / 1e6:.0f} MB"
