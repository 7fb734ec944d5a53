"""A C library that goes under a process's file operations (LD_PRELOAD) and, when told, kills the
process at the n-th of them, lets all fail from the n-th on, or takes the file locks away: real
faults at every point, on any machine and for root as well."""

from __future__ import annotations

import ctypes
from pathlib import Path

from rfops.jit.build import toolchain

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#define API __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
API int faulty_count = 0;     /* operations that change a file or a folder, so far */
API int faulty_kill_at = 0;   /* 1: the first of them; 0: none */
API int faulty_fail_from = 0; /* and from there on all fail */
API int faulty_error = 0;     /* with this */
API int faulty_no_locks = 0;  /* the error number of F_SETLK, flock */

/* Whether this operation fails. */
static int step(void) {
  ++faulty_count;
  if (faulty_count == faulty_kill_at) kill(getpid(), SIGKILL);
  if (!faulty_fail_from || faulty_count < faulty_fail_from) return 0;
  errno = faulty_error;
  return 1;
}

API ssize_t write(int fd, const void* data, size_t size) {
  struct stat info;
  if (fstat(fd, &info) || !S_ISREG(info.st_mode)) return REAL(write)(fd, data, size);
  /* Half of it is written before the end, as it happens. */
  if (faulty_count + 1 == faulty_kill_at) REAL(write)(fd, data, size / 2);
  return step() ? -1 : REAL(write)(fd, data, size);
}

#define OPEN(name, lead, pass)                                                   \
  API int name(lead const char* path, int flags, ...) {                          \
    va_list rest;                                                                \
    va_start(rest, flags);                                                       \
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;              \
    va_end(rest);                                                                \
    const int made = (flags & O_CREAT) && strncmp(path, "/dev/", 5) != 0;        \
    return made && step() ? -1 : REAL(name)(pass path, flags, mode);             \
  }
#define COMMA ,
OPEN(open, , )
OPEN(open64, , )
OPEN(openat, int folder COMMA, folder COMMA)
OPEN(openat64, int folder COMMA, folder COMMA)

API int mkdir(const char* path, mode_t mode) { return step() ? -1 : REAL(mkdir)(path, mode); }
API int rename(const char* a, const char* b) { return step() ? -1 : REAL(rename)(a, b); }
API int symlink(const char* a, const char* b) { return step() ? -1 : REAL(symlink)(a, b); }
API int fsync(int fd) { return step() ? -1 : REAL(fsync)(fd); }
/* These need no room. */
API int unlink(const char* path) { step(); return REAL(unlink)(path); }
API int unlinkat(int fd, const char* path, int h) { step(); return REAL(unlinkat)(fd, path, h); }
API int rmdir(const char* path) { step(); return REAL(rmdir)(path); }

#define FCNTL(name)                                                              \
  API int name(int fd, int command, ...) {                                       \
    va_list rest;                                                                \
    va_start(rest, command);                                                     \
    void* value = va_arg(rest, void*);                                           \
    va_end(rest);                                                                \
    if (faulty_no_locks && (command == F_SETLK || command == F_SETLKW)) {        \
      errno = faulty_no_locks;                                                   \
      return -1;                                                                 \
    }                                                                            \
    return REAL(name)(fd, command, value);                                       \
  }
FCNTL(fcntl)
FCNTL(fcntl64)
API int flock(int fd, int how) {
  if (faulty_no_locks) errno = faulty_no_locks;
  return faulty_no_locks ? -1 : REAL(flock)(fd, how);
}
"""


def build(folder: Path) -> Path:
    """Compile it into the folder."""
    source, library = folder / "faulty_io.c", folder / "faulty_io.so"
    source.write_text(SOURCE)
    compiler = toolchain.host_toolchain().argv
    code, output = toolchain.run(
        [*compiler, "-O1", "-shared", "-fPIC", "-x", "c", str(source), "-o", str(library), "-ldl"]
    )
    assert code == 0, output
    return library


def arm(kill_at: int = 0, fail_from: int = 0, error: int = 0, no_locks: int = 0) -> None:
    """From now on in this process, which was started with the library; by default, nothing."""
    process = ctypes.CDLL(None)
    values = {
        "count": 0,
        "kill_at": kill_at,
        "fail_from": fail_from,
        "error": error,
        "no_locks": no_locks,
    }
    for name, value in values.items():
        ctypes.c_int.in_dll(process, f"faulty_{name}").value = value


def count() -> int:
    """Operations since `arm`."""
    return ctypes.c_int.in_dll(ctypes.CDLL(None), "faulty_count").value
