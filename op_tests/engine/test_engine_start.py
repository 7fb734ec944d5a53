"""What a start costs: nothing but imports, and a first call that finds its kernel in the cache."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rfops
from rfops.jit import log, settings
from rfops.jit.launch import hip
from rfops.jit.settings import SETTINGS
from support.engine_project import Child, Project
from support.process import python

IMPORT = """
import json, sys, time
import torch
events, before = [], set(sys.modules)
watched = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")
sys.addaudithook(lambda name, args: events.append((name, str(args[:1]))))
begin = time.perf_counter()
import rfops
seconds = time.perf_counter() - begin
opened = [what for name, what in events if name in ("open", "ctypes.dlopen")]
print(json.dumps({
    "seconds": seconds,
    "processes": [name for name, _ in events if name in watched],
    "devices": [what for what in opened if what.startswith("('/dev/") or "libamdhip64" in what],
    "modules": sorted(set(sys.modules) - before),
    "opened": [what for what in opened if not what.startswith("(None")],
    "initialised": torch.cuda.is_initialized(),
}))
"""

# Now and then Python's collector goes through all that torch has made, 170,000 objects: 100 ms,
# which would fall into this first call by chance. They are no part of what it costs.
FIRST_CALL = """
import gc, json, sys, time
import torch, rfops
x, x_scale = rfops.quant_mxfp8(torch.ones(1, 32))
w, w_scale = rfops.quant_mxfp8(torch.ones(4, 32))
events, before = [], set(sys.modules)
sys.addaudithook(lambda name, args: events.append(name))
gc.collect()
begin = time.perf_counter()
out = rfops.gemm_mxfp8(x, w, x_scale, w_scale)
seconds = time.perf_counter() - begin
begin = time.perf_counter()
rfops.gemm_mxfp8(x, w, x_scale, w_scale)
later = time.perf_counter() - begin
assert out.tolist() == [[32.0] * 4], out
print(json.dumps({
    "seconds": seconds,
    "later": later,
    "modules": sorted(set(sys.modules) - before),
    "processes": events.count("subprocess.Popen") + events.count("os.posix_spawn"),
}))
"""


def run(code: str, **env: str) -> dict[str, object]:
    env.setdefault("PYTHONDONTWRITEBYTECODE", "")  # as users have it: compiled once, by the first
    completed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
        cwd="/",
    )
    assert completed.returncode == 0, completed.stderr
    return dict(json.loads(completed.stdout))


def run_forked(code: str, **env: str) -> dict[str, object]:
    """As `run`, in a fork of a process that has torch: where its start does not matter."""
    return dict(json.loads(python(code, check=True, cwd="/", **env).stdout))


def test_import_is_cheap(figure: Callable[[str], None]) -> None:
    """By what it does: our own modules, few others beside torch's, nothing else opened or run."""
    run(IMPORT)  # compiles what has been edited
    result = run(IMPORT)
    figure(f"import rfops on top of torch: {1e3 * result['seconds']:.0f} ms")  # type: ignore[operator]
    assert result["processes"] == [] and result["devices"] == []
    assert not result["initialised"]
    for heavy in (
        "pandas",
        "triton",
        "ninja",
        "subprocess",
        "ziglang",
        "numpy",
        "msgspec",
        "filelock",
        "elftools",
    ):
        assert heavy not in result["modules"], heavy  # type: ignore[operator]
    others = [m for m in result["modules"] if m.split(".")[0] != "rfops"]  # type: ignore[attr-defined]
    assert len(others) < 10, others
    assert len(result["opened"]) <= 2 * len(result["modules"]), result["opened"]  # type: ignore[arg-type]


def test_import_needs_no_tool_and_no_home(tmp_path: Path) -> None:
    result = run(IMPORT, PATH=str(tmp_path), HOME="/absent", RFOPS_CACHE_DIR="/absent", CXX="/no")
    assert result["processes"] == []


def test_first_call_in_a_new_process(figure: Callable[[str], None]) -> None:
    """With everything cached: nothing of building is imported, no process is started."""
    run_forked(FIRST_CALL)
    result = run(FIRST_CALL)
    figure(
        f"first call in a new process, cached: {1e3 * result['seconds']:.1f} ms, "  # type: ignore[operator]
        f"later ones {1e3 * result['later']:.2f} ms"  # type: ignore[operator]
    )
    assert result["processes"] == 0
    for heavy in (
        "subprocess",
        "ninja",
        "triton",
        "filelock",
        "elftools",
        "rfops.jit.build.compile",
        "rfops.jit.build.failures",
    ):
        assert heavy not in result["modules"], heavy  # type: ignore[operator]


@pytest.mark.parametrize(
    "name",
    [s.name for s in SETTINGS if s.kind in ("int", "seconds") or "|" in s.kind] + ["CXX"],
)
def test_a_wrong_setting_is_named(
    name: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a cold call that has need of it."""
    monkeypatch.setenv("RFOPS_LAUNCHER", "auto")
    monkeypatch.setenv(name, "it's wrong")
    if name == "CXX":  # which the virtual GPU is built with
        monkeypatch.delenv("RFOPS_HIP_LIBRARY")

    def call() -> None:
        hip._virtual_arch.cache_clear()
        log.get.cache_clear()
        project.run(project.op())

    error = Child.run(call).result()
    assert isinstance(error, rfops.ConfigError) and str(error).startswith(f"{name}="), error


FORK = """
import json, os, torch, rfops
pid = os.fork()
if pid == 0:
    x, scale = rfops.quant_mxfp8(torch.ones(1, 32))
    os._exit(0 if rfops.gemm_mxfp8(x, x, scale, scale).item() == 32.0 else 1)
print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}))
"""


def test_fork_after_import_works() -> None:
    assert run_forked(FORK)["code"] == 0


FORK_LATER = """
import json, os, torch, rfops
rfops.freeze("error")  # what the parent has built, the children have
x, x_scale = rfops.quant_mxfp8(torch.ones(3, 64))
w, w_scale = rfops.quant_mxfp8(torch.ones(300, 64))
rfops.freeze("off")
first = rfops.gemm_mxfp8(x, w, x_scale, w_scale)
rfops.freeze("error")
codes = []
for _ in range(2):  # one after the other, and a child of a child
    pid = os.fork()
    if pid == 0:
        same = torch.equal(rfops.gemm_mxfp8(x, w, x_scale, w_scale), first)
        other = rfops.gemm_mxfp8(x[:3], w[:280], x_scale[:3], w_scale[:280])
        pid = os.fork()
        if pid == 0:
            os._exit(0 if torch.equal(rfops.gemm_mxfp8(x, w, x_scale, w_scale), first) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if same and torch.equal(other, first[:, :280]) else 2)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert torch.equal(rfops.gemm_mxfp8(x, w, x_scale, w_scale), first)
print(json.dumps({"codes": codes}))
"""


def test_fork_after_a_first_call_works() -> None:
    """The virtual GPU's threads, locks, plans and what is bound, in children and theirs."""
    result = run_forked(FORK_LATER, RFOPS_VGPU_THREADS="2")
    assert result["codes"] == [0, 0]


FORK_IN_IMPORT = """
import importlib.machinery, json, os, signal, sys, threading
import torch, rfops
# torch chooses its kernels behind C++ guards, which a fork beside their first use leaves locked.
torch.ones(4, 256).to(torch.float8_e4m3fn).float().sum().item()
there, go_on = threading.Event(), threading.Event()
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == sys.argv[1] and not there.is_set():
            there.set()
            go_on.wait(10)
        return super().find_spec(name, path, target)
sys.meta_path.insert(0, Finder)
def call():
    return rfops.quant_mxfp8(torch.ones(4, 256))[0].float().sum().item()
thread = threading.Thread(target=call)
thread.start()
assert there.wait(60)
threading.Timer(0.5, go_on.set).start()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os._exit(0 if call() > 0 else 1)
thread.join()
print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}))
"""


@pytest.mark.parametrize(
    "module", ["rfops.quantization.mxfp8", "rfops.jit.build.device", "rfops.jit.build.host"]
)
def test_fork_while_another_thread_imports(module: str) -> None:
    """In its first call: the child does not wait for a module's lock, whose owner it has not."""
    result = run_forked(f"import sys; sys.argv[1:] = [{module!r}]" + FORK_IN_IMPORT)
    assert result["code"] == 0


BARE = """
import importlib.machinery, json, os, sys
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.split(".")[0] in ("triton", "pandas", "ziglang", "ninja", "scipy")
        return None if absent else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
import torch, rfops
events = []
sys.addaudithook(lambda name, args: events.append(name))
ends = {}
for m, arch in ((2, "gfx950"), (40, "gfx942")):  # by HIP; for what has no HIP kernel, and no Triton
    x, x_scale = rfops.quant_mxfp8(torch.ones(m, 32))
    w, w_scale = rfops.quant_mxfp8(torch.ones(4, 32))
    os.environ["RFOPS_VGPU_ARCH"] = arch
    ends[m] = rfops.gemm_mxfp8(x, w, x_scale, w_scale).sum().item()
os.environ["RFOPS_VGPU_ARCH"] = "gfx950"
x, w = torch.ones(1, 2, 128, dtype=torch.bfloat16), torch.ones(1, 128, 128)
try:  # an op that is Triton's
    rfops.batched_gemm_a16w8_blockscale(x, w.to(torch.float8_e4m3fn), torch.ones(1, 1, 1))
except ImportError as error:
    refusal = str(error)
from rfops.gemm.mxfp8 import OP
print(json.dumps({
    "ends": ends, "refusal": refusal, "why": OP.route(OP.call_of("gfx942", M=40, N=4, K=32)).why,
    "processes": events.count("subprocess.Popen") + events.count("os.posix_spawn"),
}))
"""


def test_a_machine_with_nothing_but_torch_and_a_cache(tmp_path: Path) -> None:
    """No ROCm, no compiler, no triton, no pandas, no ninja: HIP kernels from the cache, torch for
    the rest."""
    run_forked(FIRST_CALL.replace("ones(1, 32)", "ones(2, 32)").replace("* 4]", "* 4] * 2"))
    env = {"PATH": str(tmp_path), "HOME": "/absent", "RFOPS_HIPCC": "", "ROCM_PATH": "", "CXX": ""}
    env["RFOPS_CACHE_DIR"] = str(settings.path("RFOPS_CACHE_DIR"))  # which may be the home's
    result = run(BARE, **env)
    assert result["ends"] == {"2": 2 * 4 * 32.0, "40": 40 * 4 * 32.0}
    assert result["processes"] == 0
    assert "batched_gemm_a16w8_blockscale: triton is not installed (pip" in str(result["refusal"])
    assert "triton is not installed" in str(result["why"])


THREADS = """
import json, logging, threading
from concurrent.futures import ThreadPoolExecutor
import torch, rfops
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("rfops").addHandler(handler)
x, x_scale = rfops.quant_mxfp8(torch.ones(20, 32))  # rows: more than gemv takes
w, w_scale = rfops.quant_mxfp8(torch.ones(4, 32))
gate = threading.Barrier(16)
def call(_):
    gate.wait()
    return rfops.gemm_mxfp8(x, w, x_scale, w_scale).sum().item()
with ThreadPoolExecutor(16) as pool:
    results = list(pool.map(call, range(16)))
built = [line for line in lines if line.startswith("built mxfp8_mfma ")]
print(json.dumps({"results": results, "built": built}))
"""


def test_it_is_quiet(tmp_path: Path, vgpu_path: Path) -> None:
    """By default one line for the virtual GPU and one for each module built, with its time."""
    code = FIRST_CALL.replace("print(", "rfops.gemm_mxfp8(x, w, x_scale, w_scale); print(")
    code = code.replace("ones(1, 32)", "ones(20, 32)")  # rows: more than gemv takes
    code = code.replace("* 4]", "* 4] * 20")
    env = {"RFOPS_CACHE_DIR": str(tmp_path), "RFOPS_HIP_LIBRARY": str(vgpu_path)}
    announced = "rfops: CPU tensors run on the virtual GPU (gfx950): right results, not GPU speed"
    lines = []
    for _ in range(2):
        completed = python(code, check=True, **env, RFOPS_LOG="")
        lines.append(completed.stderr.splitlines())
    cold, warm = lines
    assert warm == [announced]
    assert cold[0] == announced and len(cold) == 3, cold
    for module, line in zip(("quant_mxfp8", "mxfp8_mfma"), cold[1:], strict=True):
        assert re.fullmatch(rf"rfops: built {module} for gfx950 in \d+\.\d\d s", line)


def test_a_pool_of_threads_on_a_cold_op_builds_once(tmp_path: Path, vgpu_path: Path) -> None:
    """The public op, in a process that has built nothing, with an empty cache."""
    env = {"RFOPS_CACHE_DIR": str(tmp_path), "RFOPS_HIP_LIBRARY": str(vgpu_path)}
    result = run_forked(THREADS, **env)
    assert result["results"] == [20 * 4 * 32.0] * 16
    assert len(result["built"]) == 1, result["built"]  # type: ignore[arg-type]
