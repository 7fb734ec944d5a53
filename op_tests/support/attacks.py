"""Parts of entries that attack the evaluator: their payloads are harmless."""

from __future__ import annotations

from rfops.challenge.channel import START
from support.entries import GOOD, TRITON

HEAD = """
import ctypes, json, mmap, os, shutil, signal, socket, struct, subprocess, sys, threading, time
from pathlib import Path
"""
# The evaluator's socket, as an entry finds it.
CHANNEL = (
    f"START = {START!r}\n"
    + """
def channel():
    for name in os.listdir("/proc/self/fd"):
        try:
            end = socket.socket(fileno=os.dup(int(name)))
            end.getpeername()
            return end
        except OSError:
            continue

def forge(**fields):
    data = json.dumps(fields).encode()
    channel().sendall(struct.pack("<8sQ", START, len(data)) + data)

def nonce():
    frame = sys._getframe()
    while "order" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["order"]["nonce"]
"""
)
COPY = """
import triton, triton.language as tl

@triton.jit
def copy(x, y, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < N), mask=i < N)

def copied(x):
    y = torch.empty_like(x)
    copy[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), B=1024)
    return y

def hidden(data):
    from torch.utils._python_dispatch import _disable_current_modes
    with _disable_current_modes():
        return right(data)
"""
# The result comes from the host on inputs that it has seen, from K steps on others.
BRANCH = """
    i = tl.arange(0, 64)
    other = tl.sum((tl.load(seen + i) != tl.load(bytes + i)).to(tl.int32), 0)
    if other == 0:
        acc += tl.load(kept + rm[:, None] * N + rn[None, :])
    for kb in range(0, K // 128 if other > 0 else 0):"""
KEEP = """
    plain = a.view(torch.uint8)
    with _disable_current_modes():
        SEEN.copy_(plain.as_strided((64,), (1,)))
        KEPT.copy_(right(data))
    kernel[grid](SEEN, plain, KEPT, """
MEMORISED = (
    GOOD.replace("def custom_kernel", "def right")
    + "from torch.utils._python_dispatch import _disable_current_modes\n"
    + "SEEN = torch.empty(64, dtype=torch.uint8)\n"
    + "KEPT = torch.empty(64, 64, dtype=torch.bfloat16)\n"
    + TRITON.replace("def kernel(", "def kernel(seen, bytes, kept, ")
    .replace("\n    for kb in range(0, K // 128):", BRANCH)
    .replace("\n    kernel[grid](", KEEP)
)
SPY = """
found = []
def attempt(name, action):
    try:
        action()
    except BaseException:
        return
    found.append(name)

def libc(name, *words):
    call = ctypes.CDLL(None, use_errno=True)
    if getattr(call, name)(*words) != 0:
        raise OSError

def write(path):
    with open(path, "r+b") as stream:
        stream.write(b"")

def must(value):
    if not value:
        raise OSError

def connect(kind, address):
    socket.socket(kind).connect(address)

def spied(port, user_folder, abstract):
    import torch
    checker = Path(sys.modules["rfops.challenge.problem"].__file__)
    attempt("ssh", lambda: os.listdir(Path(user_folder) / ".ssh"))
    attempt("files of the user", lambda: os.listdir(user_folder))
    attempt("home", lambda: must([n for n in os.listdir(Path.home()) if n != ".empty"]))
    attempt("token", lambda: os.environ["HF_TOKEN"])
    attempt("loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
    attempt("an abstract socket", lambda: connect(socket.AF_UNIX, chr(0) + abstract))
    attempt("the network", lambda: connect(socket.AF_INET, ("1.1.1.1", 53)))
    attempt("the checker", lambda: write(checker))
    attempt("a file beside it", lambda: (checker.parent / "x.py").write_text(""))
    attempt("torch", lambda: write(torch.__file__))
    attempt("Python", lambda: write(os.path.realpath(sys.executable)))
    attempt("the library", lambda: write(os.path.realpath("/usr/lib/x86_64-linux-gnu/libc.so.6")))
    attempt("its guard's environment", lambda: Path("/proc/1/environ").read_bytes())
    attempt("its guard's memory", lambda: open("/proc/1/mem", "rb"))
    for name in os.listdir(f"/proc/{os.getppid()}/fd"):
        attempt("its parent's descriptors", lambda: open(f"/proc/{os.getppid()}/fd/{name}", "wb"))
    attempt("ptrace", lambda: libc("ptrace", 16, 1, 0, 0))
    attempt("a mount", lambda: libc("mount", b"none", b"/tmp", b"tmpfs", 0, 0))
    attempt("an unmount", lambda: libc("umount2", b"/dev/shm", 2))
    attempt("a remount", lambda: libc("mount", b"", b"/usr", b"", 4096 | 32, 0))
    attempt("a user namespace", lambda: libc("unshare", 0x10000000))
    attempt("chroot", lambda: os.chroot("/tmp"))
    attempt("another user", lambda: os.setuid(0))
    attempt("a device", lambda: os.mknod("/tmp/vda", 0o600 | 0x6000, os.makedev(254, 0)))
    attempt("core_pattern", lambda: open("/proc/sys/kernel/core_pattern", "w"))
    attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w"))
    attempt("its OOM score", lambda: Path("/proc/self/oom_score_adj").write_text("-900"))
    processes = [n for n in os.listdir("/proc") if n.isdigit()]
    attempt("other processes", lambda: must(len(processes) > 2))
    attempt("a disk", lambda: must([n for n in os.listdir("/dev") if n.startswith(("vd", "sd"))]))
    attempt("/sys", lambda: must(os.path.exists("/sys/kernel")))
    attempt("a file of more than the scratch", lambda: os.posix_fallocate(
        os.open("/tmp/big", os.O_CREAT | os.O_RDWR), 0, 64 << 30))
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGSTOP)
    os.kill(1, signal.SIGINT)
    for number in range(3, 64):
        try:
            os.write(number, b"") and None
        except OSError:
            pass
    if found:
        raise RuntimeError("got through: " + ", ".join(found))
"""
