"""Who else could have put code into a cache: owner and mode are looked at before it is used.

What a cache holds is run as its user. So the cache, all in it that is used, and the folders above
must be the user's or root's, and nobody else may write to them. The cache's folder and those above
may be sticky, as /tmp is: what lies in them is then its owner's all the same. The group of a user
alone, as distributions make them, is nobody else. RFOPS_CACHE_TRUST names caches that are shared
on purpose; they are taken as they are, and what is new in them gets its mode from the umask.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import stat
from pathlib import Path

from .. import paths, settings
from ..errors import ConfigError

_MOST_LINKS = 40  # as the kernel has it

# Folder of a cache -> device and inode, once the way to it has been checked.
_reached: dict[str, tuple[int, int]] = {}


def is_shared(path: Path) -> bool:
    """Whether RFOPS_CACHE_TRUST names the cache of this place, or the cache is the package's own:
    whoever can write that one can also change the package's Python code."""
    if path.is_relative_to(paths.PREBUILT):
        return True
    if not settings.raw("RFOPS_CACHE_TRUST"):
        return False
    return any(path.is_relative_to(f) for f in settings.path_list("RFOPS_CACHE_TRUST"))


def check(root: Path, *components: str) -> None:
    """The cache whose versioned folder is `root`, and each folder on the way from there: what is
    not there is as good as any. Raises ConfigError that says how to mend it."""
    cache = root.parent
    if is_shared(cache):
        return
    try:
        cache_stat = os.stat(cache)  # noqa: PTH116
        if _reached.get(str(cache)) != (cache_stat.st_dev, cache_stat.st_ino):
            _check_way(cache)
            _reached[str(cache)] = cache_stat.st_dev, cache_stat.st_ino
        path = str(cache)
        _refuse(cache, path, _foreign(cache_stat) or _writable(cache_stat, path, sticky=True))
        for component in (root.name, *components):
            path = f"{path}/{component}"
            _refuse(cache, path, _complaint(os.lstat(path), path))
    except OSError:  # not there, or not for us: nothing can be loaded from it
        return


def check_file(root: Path, file: Path) -> None:
    """A file of the cache that is loaded by its name; its folder has been checked. Raises OSError,
    ConfigError."""
    if not is_shared(file):
        _refuse(root.parent, str(file), _complaint(os.lstat(file), str(file)))


def read(root: Path, file: Path) -> bytes:
    """A file of the cache, whose folder has been checked. Raises OSError, ConfigError."""
    if is_shared(file):
        return file.read_bytes()
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        _refuse(root.parent, str(file), "is a link" if error.errno == errno.ELOOP else "")
        raise
    with os.fdopen(handle, "rb") as stream:  # what is open is looked at: nothing takes its place
        _refuse(root.parent, str(file), _complaint(os.fstat(handle), handle))
        return stream.read()


def check_entry(root: Path, folder: Path) -> None:
    """An entry and all its files. Raises OSError, ConfigError."""
    check(root, *folder.relative_to(root).parts)
    for file in folder.iterdir():
        check_file(root, file)


def describe(root: Path) -> dict[str, str]:
    """Owner and mode of a cache, whether it and all in it is `trusted`, and why not."""
    owner = mode = ""
    with contextlib.suppress(OSError):
        info = root.parent.stat()
        owner, mode = user_name(info.st_uid), f"{stat.S_IMODE(info.st_mode):04o}"
    description = {"path": str(root), "owner": owner, "mode": mode, "trusted": "yes", "why": ""}
    if is_shared(root):
        packaged = root.is_relative_to(paths.PREBUILT)
        return {**description, "trusted": "as the package" if packaged else "by RFOPS_CACHE_TRUST"}
    try:
        check(root)
        for folder, names, files in os.walk(root):  # passes by folders that are gone meanwhile
            for path in (f"{folder}/{name}" for name in (*names, *files)):
                with contextlib.suppress(OSError):  # gone meanwhile
                    info = os.lstat(path)
                    if not stat.S_ISLNK(info.st_mode):  # of a build that is running
                        _refuse(root.parent, path, _complaint(info, path))
            if folder.count("/") == str(root).count("/") + 3:  # an entry
                names.clear()
    except ConfigError as error:
        return {**description, "trusted": "no", "why": str(error)}
    return description


def _check_way(cache: Path) -> None:
    """Each folder above the cache, and each link on the way: who owns a link leads it elsewhere."""
    path, components, links = "/", [*reversed(cache.parts[1:])], 0
    while components:
        info = os.lstat(path)
        complaint = _foreign(info, is_above=True) or _writable(info, path, sticky=True)
        _refuse(cache, path, complaint, is_above=True)
        name = components.pop()
        component_path = os.path.dirname(path) if name == ".." else os.path.join(path, name)  # noqa: PTH118, PTH120
        info = os.lstat(component_path)
        if not stat.S_ISLNK(info.st_mode):
            path = component_path
            continue
        _refuse(cache, component_path, _foreign(info, is_above=True), is_above=True)
        links += 1
        if links > _MOST_LINKS:
            raise ConfigError(f"the cache {cache}: too many links lead to it")
        target = Path(os.readlink(component_path))  # noqa: PTH115
        path = "/" if target.is_absolute() else path
        components += reversed(target.parts[1:] if target.is_absolute() else target.parts)


# ---------------------------------------------------------------- what is wrong


def _complaint(info: os.stat_result, path: str | int) -> str:
    """Who else could change what lies in a cache, or nothing."""
    link = "is a link" if stat.S_ISLNK(info.st_mode) else ""
    return link or _foreign(info) or _writable(info, path)


def _writable(info: os.stat_result, path: str | int, sticky: bool = False) -> str:
    if sticky and info.st_mode & stat.S_ISVTX:  # what lies in it is looked at by itself
        return ""
    mode = f"(mode {stat.S_IMODE(info.st_mode):04o})"
    if info.st_mode & stat.S_IWOTH:
        return f"can be written by everybody {mode}"
    if info.st_mode & stat.S_IWGRP:
        if info.st_gid != _own_group():
            return f"can be written by the group {info.st_gid} {mode}"
        if _has_acl(path):  # the group's bits are then the most that anybody in it may
            return f"can be written by those whom its ACL names {mode}"
    return ""


def _foreign(info: os.stat_result, is_above: bool = False) -> str:
    if info.st_uid in (0, os.geteuid()) or (is_above and info.st_uid == _unmapped_owner()):
        return ""
    return f"belongs to {user_name(info.st_uid)}"


def user_name(uid: int) -> str:
    """As "alice (uid 1000)"."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


@functools.cache
def _own_group() -> int:
    """The group of the user's name that nobody else is in, as distributions make them; or -1."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return -1
    is_own = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return group.gr_gid if is_own else -1


def _has_acl(path: str | int) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:  # a filesystem without
        return False


@functools.cache
def _unmapped_owner() -> int:
    """Where a container maps few users, the number that stands for all others, root among them:
    what lies above a cache mostly is root's. -1 where there is none."""
    try:
        numbers = [int(text) for text in Path("/proc/self/uid_map").read_text().split()]
        overflow_uid = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return -1
    mapped = zip(numbers[0::3], numbers[2::3], strict=True)
    return (
        -1
        if any(begin <= overflow_uid < begin + count for begin, count in mapped)
        else overflow_uid
    )


def _refuse(cache: Path, path: str, complaint: str, is_above: bool = False) -> None:
    if not complaint:
        return
    name = shlex.quote(str(cache))
    if complaint == "is a link":
        mend = f"put a folder in its place (all of {name} can be a link), "
    elif "belongs to" not in complaint:
        change = f"go-w {shlex.quote(path)}" if is_above else f"-R go-w {name}"
        mend = f"`chmod {change}` if nobody has put anything there, "
    elif is_above:
        mend = ""
    else:
        mend = f"run as its owner, `chown -R {os.geteuid()} {name}` if you know what is in it, "
    raise ConfigError(
        f"the cache {cache} is not trusted: {path} {complaint}, and what is in a cache is run as "
        f"{user_name(os.geteuid())}. Ways out: {mend}a folder of your own as RFOPS_CACHE_DIR or "
        f"RFOPS_CACHE_READ, or, if it is shared on purpose, RFOPS_CACHE_TRUST={name}"
    )


# ---------------------------------------------------------------- what is new


def make_folder(folder: Path) -> None:
    """With those above it, private to the user; what is there stays as it is. Raises OSError."""
    try:
        folder.mkdir(0o777 if is_shared(folder) else 0o700)
    except FileNotFoundError:
        if folder.parent.is_dir():
            raise  # as in /proc
        make_folder(folder.parent)
        make_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise


def create(file: Path, flags: int) -> int:
    """Open, and create if it is not there; only the owner may write to it. Raises OSError."""
    return os.open(file, flags | os.O_CREAT | os.O_CLOEXEC, 0o666 if is_shared(file) else 0o644)


def keep_others_out(file: Path, handle: int) -> None:
    """Of writing to it, whatever the umask was when it was made. Raises OSError."""
    if not is_shared(file):
        os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) & ~0o022)


def umask(folder: Path) -> int:
    """For compilers, as subprocess takes it: what they write is the user's alone."""
    return -1 if is_shared(folder) else 0o077
