"""The guard of a process that nobody trusts: walls around it, limits, and its end.

Run by its path with `python -I -S`; takes the standard library alone. stdin has a line of JSON, the
keys of `sandbox.Job`, and stays open as long as the evaluator wants the process: when it closes,
also because the evaluator was killed, the guard ends all that it started. stdout gets a line of
JSON, the fields of `sandbox.Outcome`.

    evaluator - guard - init, process 1 of the namespaces - the entry's process, and what it starts

Without walls there is no init, and the guard watches.

unshare(2), mount(2) and pivot_root(2) are called through ctypes: bwrap has to be installed,
util-linux' unshare makes no root of read-only folders, os.unshare needs Python 3.12. cgroups are
left alone: a cgroup outlives a guard that is killed; the guard counts instead.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import stat
import sys
import time
from collections.abc import Callable

NEW_NS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
DETACH = 2
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = 155, 442  # of x86-64, for which the virtual GPU is
AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
USER = 1000  # inside: no root, so that no capability is left after exec
DEVICES = ("null", "zero", "full", "random", "urandom")
MAX_PROCESSES, MAX_THREADS = 64, 4096  # compilers and their children; more is a fork bomb
POLL_SECONDS = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Job = dict[str, Any]

libc = ctypes.CDLL(None, use_errno=True)


class Missing(Exception):
    """A wall that this machine does not let be built."""


def check(step: str, result: int) -> None:
    if result != 0:
        raise Missing(f"{step}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    check(f"mount of {target}", libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None))


def read_only(target: str, flags: int = AT_RECURSIVE) -> None:
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY, 0, 0, 0)
    words = (AT_FDCWD, target.encode(), flags, attributes, ctypes.c_size_t(32))
    check(f"{target} read-only", libc.syscall(SYS_MOUNT_SETATTR, *words))


def write(file: str, text: str) -> None:
    with open(file, "w") as stream:
        stream.write(text)


# ---------------------------------------------------------------- the namespaces


def leave_user() -> None:
    """New user and PID namespaces: this process keeps its place, its children are within."""
    uid, gid = os.geteuid(), os.getegid()
    check("user and PID namespaces", libc.unshare(NEW_USER | NEW_PID))
    try:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{USER} {uid} 1")
        write("/proc/self/gid_map", f"{USER} {gid} 1")
    except OSError as error:
        raise Missing(f"user namespace: {error}") from error


def build_root(job: Job) -> None:
    """A root: the job's folders read-only, /tmp and /dev/shm of a size, the namespace's /proc."""
    kinds = NEW_NS | NEW_NET | NEW_IPC | NEW_UTS
    check("mount, network and IPC namespaces", libc.unshare(kinds))
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for folder in ("/tmp/old", "/tmp/new"):
        os.mkdir(folder)
    check("pivot_root", libc.syscall(SYS_PIVOT_ROOT, b"/tmp", b"/tmp/old"))
    mount("/new", "/new", "", MS_BIND)
    size = f"size={job['scratch']},mode=1777"
    for folder in ("/tmp", "/dev/shm"):  # before folders, which may lie in /tmp
        os.makedirs("/new" + folder)
        mount("tmpfs", "/new" + folder, "tmpfs", MS_NOSUID | MS_NODEV, size)
    show_folders(job["folders"])
    devices = [f"/dev/{name}" for name in DEVICES]
    for source in [*devices, *job["devices"]]:
        show(source, source)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
        os.symlink(target, f"/new/dev/{name}")
    os.mkdir("/new/proc")
    mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    write("/new/proc/sys/user/max_user_namespaces", "0")  # none within, where it would be root
    read_only("/new/proc")  # its sysctls: as user 0 outside, it could write them
    check("pivot_root", libc.syscall(SYS_PIVOT_ROOT, b"/new", b"/new/tmp"))
    os.chdir("/")
    check("umount", libc.umount2(b"/tmp", DETACH))
    read_only("/", 0)


def show_folders(folders: dict[str, str]) -> None:
    """Each at its own path, from where it really lies; one in a folder that is shown is there."""
    shown: list[str] = []
    for path, source in sorted(folders.items(), key=lambda pair: len(pair[0])):
        is_there = any(path.startswith(folder + "/") for folder in shown)
        if not is_there and os.path.exists("/old" + source):
            show(path, source)
            read_only("/new" + path)
            shown.append(path)


def show(path: str, source: str) -> None:
    target = "/new" + path
    if os.path.isdir("/old" + source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write(target, "")
    mount("/old" + source, target, "", MS_BIND | MS_REC)


def init(job: Job, report: int) -> None:
    """Process 1: the kernel ends all others when it ends, and it when the guard has."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 is spared, as of all others
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):  # nobody reads: the guard has ended before
        return
    try:
        build_root(job)
    except (Missing, OSError) as error:
        os.write(report, json.dumps({"missing": str(error)}).encode())
        return
    outcome = run(job, "/tmp", ["/tmp", "/dev/shm"])
    os.write(report, json.dumps(outcome).encode())


def start(job: Job, folder: str) -> int:
    """The entry's process, in its own folder."""
    for name, text in job["files"].items():
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        write(f"{folder}/{name}", text.replace("{folder}", folder))
    env = {name: value.replace("{folder}", folder) for name, value in job["env"].items()}
    pid = os.fork()
    if pid:
        os.close(job["channel"])
        return pid
    try:
        os.chdir(folder)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.set_inheritable(job["channel"], True)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_NOFILE, 4096)
        limit(resource.RLIMIT_FSIZE, job["scratch"])
        os.execve(job["command"][0], job["command"], env)
    finally:
        os._exit(127)


def limit(resource_id: int, max_value: int) -> None:
    """Set a limit of setrlimit(2), hard and soft, to `max_value` or a lower hard limit."""
    hard = resource.getrlimit(resource_id)[1]
    max_value = max_value if hard == resource.RLIM_INFINITY else min(max_value, hard)
    resource.setrlimit(resource_id, (max_value, max_value))


# ---------------------------------------------------------------- the guard's watch


def fields_of(pid: str | int) -> list[str]:
    """Of /proc/PID/stat from the state on; none where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def find_descendants(root: int) -> dict[int, int]:
    """Return the processes that descend from process `root`: id -> number of threads."""
    children: dict[int, list[int]] = {}
    threads: dict[int, int] = {}
    for name in os.listdir("/proc"):
        fields = fields_of(name) if name.isdigit() else []
        if fields and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(name))
            threads[int(name)] = int(fields[17])
    descendants, todo = {}, list(children.get(root, []))
    while todo:
        pid = todo.pop()
        descendants[pid] = threads[pid]
        todo += children.get(pid, [])
    return descendants


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as stream:
        return int(stream.read().split()[1]) * PAGE


def resident_share(pid: int) -> int:
    """Of a page that several processes have, as after a fork, each counts its part: slower."""
    with open(f"/proc/{pid}/smaps_rollup") as stream:
        return next(int(line.split()[1]) << 10 for line in stream if line.startswith("Pss:"))


def memory_of(pids: dict[int, int], folders: list[str], of_process: Callable[[int], int]) -> int:
    """Return the resident bytes of the processes, and the bytes of files in memory: in `folders`,
    and files without a name that the processes have open."""
    total = sum(map(used_bytes, folders))
    nameless: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            total += of_process(pid)
            for name in os.listdir(f"/proc/{pid}/fd"):
                file_status = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(file_status.st_mode) and file_status.st_nlink == 0:
                    nameless[file_status.st_dev, file_status.st_ino] = file_status.st_blocks * 512
        except (OSError, IndexError):  # it has ended
            continue
    return total + sum(nameless.values())


def used_bytes(folder: str) -> int:
    try:
        fs_status = os.statvfs(folder)
    except OSError:
        return 0
    return (fs_status.f_blocks - fs_status.f_bfree) * fs_status.f_frsize


def breach(job: Job, folders: list[str]) -> str:
    """Return which limit the processes exceed, in words, or ""."""
    pids = find_descendants(os.getpid())
    if len(pids) > MAX_PROCESSES:
        return f"forked {len(pids)} processes, at most {MAX_PROCESSES} are let run"
    if sum(pids.values()) > MAX_THREADS:
        return f"started {sum(pids.values())} threads, at most {MAX_THREADS} are let run"
    used = memory_of(pids, folders, resident_bytes)
    if used > job["memory"] and len(pids) > 1:
        used = memory_of(pids, folders, resident_share)
    if used > job["memory"]:
        return f"took {used >> 20} MiB of memory, limit {job['memory'] >> 20} MiB"
    return ""


def watch(job: Job, child: int, folders: list[str]) -> tuple[str, int | None]:
    """Wait until the child ends, a limit is exceeded or the evaluator hangs up; return the exceeded
    limit in words, or "", and the child's exit status if it ended."""
    while True:
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return "", None
            if pid == child:
                return "", os.waitstatus_to_exitcode(code)
            if pid == 0:
                break
        if select.select([0], [], [], POLL_SECONDS)[0]:
            return "", None
        if reason := breach(job, folders):
            return reason, None


def end_all() -> None:
    """Kill what there is below this process, until there is none."""
    for _ in range(500):
        pids = find_descendants(os.getpid())
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return
        time.sleep(0.01)


def run(job: Job, folder: str, scratch: list[str]) -> dict[str, Any]:
    """Start the entry's process and watch it; return how it ended: the fields of
    sandbox.Outcome."""
    entry = start(job, folder)
    reason, status = watch(job, entry, scratch)
    num_remaining = 0 if status is None else len(find_descendants(os.getpid()))
    shm_bytes = sum(map(used_bytes, scratch[1:]))
    return {
        "reason": reason,
        "status": status,
        "num_remaining": num_remaining,
        "shm_bytes": shm_bytes,
    }


def with_walls(job: Job) -> dict[str, Any]:
    reading, report = os.pipe()
    leave_user()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            init(job, report)
        finally:
            os._exit(0)
    os.close(report)
    os.close(job["channel"])
    os.waitpid(child, 0)
    text = os.read(reading, 65536)
    return json.loads(text) if text else {"reason": "its process 1 was ended"}


def without_walls(job: Job) -> dict[str, Any]:
    """Trusted: its own session, folder and environment; what it forks is found and ended, unless
    it ends this guard first."""
    import shutil
    import tempfile

    check("subreaper", libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    folder = tempfile.mkdtemp(prefix="rfops-eval-", dir=job["temp"])
    try:
        outcome = run(job, folder, [])
        end_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def main() -> None:
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(0, 1 << 20)
        if not chunk:
            return
        text += chunk
    job = json.loads(text)
    try:
        outcome = with_walls(job) if job["walls"] else without_walls(job)
    except Missing as error:
        outcome = {"missing": str(error)}
    try:
        os.write(1, json.dumps(outcome).encode())
    except OSError as error:  # the evaluator has ended
        if error.errno != errno.EPIPE:
            raise


if __name__ == "__main__":
    main()
    sys.exit(0)
