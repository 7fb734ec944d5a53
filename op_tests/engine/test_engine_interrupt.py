"""What makes no end: kernels and compilers, ended by Ctrl-C or by a limit; and what a compiler must
not leave where its output should be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rfops import cli
from rfops.cli import bench
from rfops.jit import BuildError
from support.command import COMMAND
from support.engine_project import Project

SPIN = """
#define __global__ __attribute__((global))
extern "C" __global__ void spin(volatile unsigned* out) {
  while (out[0] != 7) {
  }
}
"""
LAUNCH = """
import pathlib, sys, torch
from rfops.jit import compile_ops

@compile_ops("k", kernel="spin", config=pathlib.Path(sys.argv[1]), variants=lambda _arch: [{}])
def spin(out: torch.Tensor) -> None: ...

out = torch.zeros(16, dtype=torch.int32)
kernel = spin.bind(out.device, {}, "gfx950")
print("launching", flush=True)
try:
    kernel.launch((int(sys.argv[2]), 1, 1), (64, 1, 1), (out,))
except KeyboardInterrupt:
    print("interrupted", flush=True)
out[0] = 7
kernel.launch((1, 1, 1), (64, 1, 1), (out,))
print("usable")
"""
# A compiler that hangs in a process that it has started; the file has that one's number.
HANG = """
import time
child = subprocess.Popen(["sleep", "1000"])
with open({file!r}, "w") as stream: stream.write(str(child.pid))
time.sleep(1000)
"""


def _wait_for(file: Path) -> int:
    for _ in range(6000):
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{file} did not come")


def _finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Its output; a process that goes on is killed, or the test would wait for it."""
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def _has_ended(pid: int) -> bool:
    """Within a time that only ends a test that failed."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def spin(tmp_path: Path) -> Path:
    (tmp_path / "spin.hip").write_text(SPIN)
    config = tmp_path / "config.json"
    config.write_text('{"k": {"srcs": ["spin.hip"]}}')
    return config


@pytest.mark.parametrize(
    ("groups", "launcher", "threads"), [(1, "auto", 1), (1, "ctypes", 2), (100, "auto", 2)]
)
def test_ctrl_c_ends_a_kernel_without_end(
    spin: Path, groups: int, launcher: str, threads: int
) -> None:
    """By KeyboardInterrupt; the device is usable after it. Whichever thread has the workgroup."""
    env = os.environ | {"RFOPS_LAUNCHER": launcher, "RFOPS_VGPU_THREADS": str(threads)}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(spin), str(groups)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "launching\n"
        time.sleep(0.3)  # into the launch, most likely: right without, too
        process.send_signal(signal.SIGINT)
        out, err = _finish(process)
    assert (process.returncode, out) == (0, "interrupted\nusable\n"), err


def test_ctrl_c_ends_what_rfops_run_runs(spin: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LAUNCH)
    with subprocess.Popen(
        [*COMMAND, "run", "--", sys.executable, str(script), str(spin), "1"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "launching\n"
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = _finish(process)
    assert (process.returncode, out) == (0, "interrupted\nusable\n"), err
    assert "Traceback" not in err and "exit status 0" in err


def test_ctrl_c_ends_a_build_and_its_compilers(project: Project) -> None:
    file = project.root / "hangs"
    project.write_hipcc(prologue=HANG.format(file=str(file)))
    words = ["build", "--config", str(project.config), "axpy", "--arch", "gfx950"]
    process = subprocess.Popen(
        [*COMMAND, *words, "-D", "BIAS=1"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    child = _wait_for(file)
    os.killpg(process.pid, signal.SIGINT)
    _, err = _finish(process)
    assert process.returncode == 130, err
    assert "rfops: interrupted" in err and "Traceback" not in err, err
    assert _has_ended(child)
    assert not list(project.shelf.glob("failed/*.json"))  # nobody who waits hears of it
    project.write_hipcc()
    assert project.build() == "built"


def test_a_command_that_is_interrupted_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.cost, "measure", interrupted)
    assert cli.main(["bench", "gemm_mxfp8", "--shape", "1", "64", "128"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "rfops: interrupted"


def test_a_compiler_that_hangs_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has started; the error names command and limit."""
    file = project.root / "hangs"
    project.write_hipcc(prologue=HANG.format(file=str(file)))
    monkeypatch.setenv("RFOPS_COMPILE_TIMEOUT", "1")
    with pytest.raises(BuildError, match=r"ended after 1 s \(RFOPS_COMPILE_TIMEOUT\)") as failed:
        project.build()
    assert str(project.hipcc) in failed.value.command and "axpy.hip" in failed.value.command
    assert _has_ended(_wait_for(file))
    monkeypatch.delenv("RFOPS_COMPILE_TIMEOUT")
    project.write_hipcc()
    assert project.build() == "built"


@pytest.mark.parametrize(
    ("previous", "message"),
    [
        ("os.mkfifo(out); sys.exit(0)", "no regular file (p"),
        ("os.mkdir(out); sys.exit(0)", "no regular file (d"),
        ("sys.exit(0)", "reported success and wrote no"),
        ("open(out, 'w'); os.mkfifo('deps.d'); sys.exit(0)", "no regular file (p"),
        ("open(out, 'w'); sys.exit(0)", "reported success and wrote no"),
    ],
)
def test_what_is_no_output(project: Project, previous: str, message: str) -> None:
    project.write_hipcc(prologue=previous)
    with pytest.raises(BuildError) as failed:
        project.build()
    assert message in str(failed.value), failed.value
    project.write_hipcc()
    assert project.build() == "built"
