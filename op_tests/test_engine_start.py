"""What a start costs: nothing but imports, and a first call that finds its kernel in the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

IMPORT_BAR = FIRST_CALL_BAR = 0.060  # seconds
ATTEMPTS = 5  # the machine is shared: the best of them says what the code costs

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
    "initialised": torch.cuda.is_initialized(),
}))
"""

FIRST_CALL = """
import json, sys, time
import torch, rfops
x, x_scale = rfops.quant_mxfp8(torch.ones(1, 32))
w, w_scale = rfops.quant_mxfp8(torch.ones(4, 32))
events = []
sys.addaudithook(lambda name, args: events.append(name))
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
    "processes": events.count("subprocess.Popen") + events.count("os.posix_spawn"),
}))
"""


def run(code: str, **env: str) -> dict[str, object]:
    env.setdefault("PYTHONDONTWRITEBYTECODE", "")  # as users have it: compiled once, by the first
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **env}, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def best(code: str, bar: float) -> dict[str, object]:
    """The quickest of a few runs; stops as soon as one is within the bar."""
    results = []
    for _ in range(ATTEMPTS):
        results.append(run(code))
        if results[-1]["seconds"] < bar:  # type: ignore[operator]
            break
    return min(results, key=lambda result: result["seconds"])  # type: ignore[arg-type,return-value]


def test_import_is_cheap(figure: Callable[[str], None]) -> None:
    result = best(IMPORT, IMPORT_BAR)
    figure(f"import rfops on top of torch: {1e3 * result['seconds']:.0f} ms")  # type: ignore[operator]
    assert result["processes"] == [] and result["devices"] == []
    assert not result["initialised"]
    for heavy in ("pandas", "triton", "ninja", "subprocess", "ziglang", "numpy"):
        assert heavy not in result["modules"], heavy  # type: ignore[operator]
    assert result["seconds"] < IMPORT_BAR  # type: ignore[operator]


def test_import_needs_no_tool_and_no_home(tmp_path: Path) -> None:
    result = run(IMPORT, PATH=str(tmp_path), HOME="/absent", RFOPS_CACHE_DIR="/absent", CXX="/no")
    assert result["processes"] == []


def test_first_call_in_a_new_process(figure: Callable[[str], None]) -> None:
    """With everything cached: the engine's own time, so on the smallest of shapes."""
    run(FIRST_CALL)
    result = best(FIRST_CALL, FIRST_CALL_BAR)
    figure(
        f"first call in a new process, cached: {1e3 * result['seconds']:.1f} ms, "  # type: ignore[operator]
        f"later ones {1e3 * result['later']:.2f} ms"  # type: ignore[operator]
    )
    assert result["processes"] == 0
    assert result["seconds"] < FIRST_CALL_BAR  # type: ignore[operator]


FORK = """
import json, os, torch, rfops
pid = os.fork()
if pid == 0:
    x, scale = rfops.quant_mxfp8(torch.ones(1, 32))
    os._exit(0 if rfops.gemm_mxfp8(x, x, scale, scale).item() == 32.0 else 1)
print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}))
"""


def test_fork_after_import_works() -> None:
    assert run(FORK)["code"] == 0
