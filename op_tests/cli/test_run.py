"""`rfops run`: programs as they are, on the virtual GPU, and what is told of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rfops.vgpu import torch_cuda
from support import hip_program, torch_cuda_cases
from support.command import rfops

HIP = """
__global__ void twice(float* x, int n) {
  if (index() < n) x[index()] *= 2;
}
__global__ void broken(float* x) {  // a barrier is missing
  __shared__ float room[128];
  const int i = __builtin_amdgcn_workitem_id_x();
  room[i] = x[i];
  x[i] = room[(i + 64) % 128];
}
int main(int count, char** words) {
  const char how = count > 1 ? words[1][0] : ' ';
  float host[128], ms = -1;
  for (int i = 0; i < 128; ++i) host[i] = i;
  void* x = 0;
  hipEvent_t from, to;
  hipMalloc(&x, sizeof host);
  hipEventCreate(&from);
  hipEventCreate(&to);
  hipMemcpy(x, host, sizeof host, 1);
  hipEventRecord(from);
  for (int i = 0; i < 3; ++i) twice<<<2, 64>>>((float*)x, 128);
  hipEventRecord(to);
  hipEventElapsedTime(&ms, from, to);
  hipMemcpy(host, x, sizeof host, 2);
  printf("%g %.2f\\n", host[127], 1e3 * ms);
  if (how == 'b') broken<<<1, 128>>>((float*)x);
  if (how == 'f') twice<<<1, 64>>>((float*)8, 64);
  if (how == 'c' && !fork()) {
    twice<<<4, 64>>>((float*)x, 128);
    return 0;
  }
  if (how == 'c') wait(0);
  if (how == 'a') abort();
  return how == 's' ? 7 : hipGetLastError() ? 9 : 0;
}
"""
SCRIPT = """
import sys
import threading
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)

def call(x, y):
    out = torch.empty_like(x)
    assert x.is_cuda and out.is_cuda
    add[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
    return out

torch.set_default_device("cuda")
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
x, y = torch.rand(1000), torch.rand(1000, device="cuda:0")
before = x.cpu()
z = torch.ones(1000).cuda()
z2 = z.to("cuda", torch.float32)
z2 += 1
assert z.sum() == 1000, "a move copies"
x += 1
assert torch.equal(call(before.to("cuda"), z), before + 1) and not torch.equal(before, x)
first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.current_stream()):
    first.record()
    assert torch.equal(call(x, y), x + y)
    last.record()
torch.cuda.synchronize()
made = []
thread = threading.Thread(target=lambda: made.append(torch.rand(3, device="cuda")))
thread.start()
thread.join()
generator = torch.Generator(device="cuda")
assert made[0].is_cuda and isinstance(generator, torch.Generator)
assert torch.rand(2, generator=generator.manual_seed(1), device="cuda").shape == (2,)
layer = torch.nn.Linear(8, 4, device="cpu").cuda().to("cuda", dtype=torch.bfloat16)
layer(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()
assert layer.weight.grad.is_cuda
driver = triton.runtime.driver.active
device = driver.get_active_torch_device()
getattr(torch, device.type).set_stream(getattr(torch, device.type).Stream())
assert driver.utils.get_device_properties(device.index)["multiprocessor_count"] == 80
assert driver.get_current_device() == torch.cuda.current_device() == 0
assert len(add.device_caches[0][0]) == 1, "kernels of torch's device"
properties = torch.cuda.get_device_properties(torch.device("cuda", 0))
ratio = first.elapsed_time(last) / triton.testing.do_bench(lambda: call(x, y))
print(0.95 < ratio < 1.05 or ratio, properties.gcnArchName, properties.multi_processor_count,
      *sys.argv[1:])
try:
    torch.cuda.CUDAGraph()
except RuntimeError as error:
    print(error)
"""
OTHER_ARCHITECTURE = """
import torch, triton, rfops.vgpu

def found():
    driver = triton.runtime.driver.active
    number = driver.get_current_device()
    of_number = (driver.utils.get_device_properties(n)["arch"][:6] for n in (number, 0, None))
    return number, driver.get_current_target().arch, *of_number

print(*found())
rfops.vgpu.activate_triton("gfx950")
print(*found())
triton.runtime.driver.active.set_current_device(0)
print(*found())
"""


FLYDSL = """
import torch
import flydsl.compiler as flyc
import flydsl.expr as fx

@flyc.kernel
def scale_kernel(x: fx.Tensor, y: fx.Tensor, a: fx.Float32, n: fx.Int32) -> None:
    i = fx.block_idx.x * 64 + fx.thread_idx.x
    if i < n:
        y[i] = x[i] * a

@flyc.jit
def scale(x: fx.Tensor, y: fx.Tensor, a: fx.Float32, n: fx.Int32,
          stream: fx.Stream = fx.Stream(None)) -> None:
    scale_kernel(x, y, a, n).launch(grid=((n + 63) // 64, 1, 1), block=[64, 1, 1], stream=stream)

x = torch.arange(100, dtype=torch.float32, device="cuda")
y = torch.full((100,), torch.nan, device="cuda")
scale(x, y, 2.0, 100)
print(torch.equal(y, 2 * x))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hip_program.build(HIP, ["gfx942", "gfx950"], tmp_path_factory.mktemp("program"))


def run(*text: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return rfops("run", *map(str, text), **env)


def row(text: str, kernel: str) -> list[str]:
    """The kernel's row of the first table."""
    return next(
        line
        for line in text.splitlines()
        if f"{kernel}(" in line or line.strip().endswith(kernel) or f" {kernel};" in line
    ).split()


def test_a_program_of_hipcc(program: Path) -> None:
    """As it is; its events measure the time that the report has."""
    completed = run("--part", "MI308X", "--", program)
    assert completed.returncode == 0, completed.stderr
    value, us = completed.stdout.split()
    assert value == str(127 * 8)
    total, low, high, share, launches, bound, *_ = row(completed.stderr, "twice")
    assert float(total) == pytest.approx(float(us), abs=0.011)
    assert float(low) < float(total) < float(high)
    assert (share, launches, bound) == ("100.0%", "3", "launch")
    assert "on MI308X, estimated, not measured" in completed.stderr
    assert "twice(float*, int); vmcnt" in completed.stderr
    _, work = (line for line in completed.stderr.splitlines() if "twice(float*, int)" in line)
    assert work.split()[:4] == ["6", "90", str(3 * 512), str(3 * 512)]
    repeated = run("--part", "MI300X", "--", program)
    assert "on MI300X" in repeated.stderr
    assert float(row(repeated.stderr, "twice")[0]) < float(total), "a faster clock"


def test_why(program: Path) -> None:
    completed = run("--timing", "--arch", "gfx950", "--", program)
    assert "twice(float*, int): its longest launch" in completed.stderr
    assert re.search(r"^ +\d+\.\d% +0x[\da-f]+  s_waitcnt vmcnt\(0\)", completed.stderr, re.M)
    assert "its longest launch" not in run("--arch", "gfx950", "--", program).stderr


def test_findings(program: Path) -> None:
    completed = run("--check", "--arch", "gfx942", "--", program, "b")
    assert completed.returncode == 0
    assert re.search(r"check: \d findings?\n  LDS race: broken\(float\*\) at 0x", completed.stderr)
    clean = run("--check", "--arch", "gfx942", "--", program)
    assert "check: nothing found" in clean.stderr
    assert "check:" not in run("--arch", "gfx942", "--", program).stderr
    failed = run("--check", "--arch", "gfx942", "--", program, "b", RFOPS_VGPU_CHECK="error")
    assert failed.returncode == 9 and "failed:\n  kernel _Z6broken" in failed.stderr


@pytest.mark.parametrize(
    "options, status, message",
    [("s", 7, "exit status 7"), ("a", 134, "ended by SIGABRT"), ("f", 9, "failed:\n  kernel _Z5")],
)
def test_the_exit_status_is_the_programs(
    program: Path, options: str, status: int, message: str
) -> None:
    """And what was launched until then is told."""
    completed = run("--arch", "gfx950", "--", program, options)
    assert completed.returncode == status and message in completed.stderr
    assert row(completed.stderr, "twice")[4] in ("3", "4")
    assert completed.stdout or options == "a"
    assert ("rfops run --check names the instruction" in completed.stderr) == (options == "a")


def test_children(program: Path) -> None:
    """That were forked, or started by a shell; with options that look like ours."""
    completed = run("--arch", "gfx950", "--", program, "c")
    assert "4 launches in 2 processes" in completed.stderr
    completed = run(
        "--arch", "gfx950", "--", "sh", "-c", f"{program} && {program} --timing; exit 5"
    )
    assert "6 launches in 2 processes" in completed.stderr and completed.returncode == 5


def test_a_launch_that_never_ended(tmp_path: Path) -> None:
    source = """
__global__ void endless(int* at) {
  while (__atomic_load_n(at, 0) == 0) __builtin_amdgcn_s_sleep(1);
}
extern "C" unsigned alarm(unsigned);
int main() {
  void* x = 0;
  int zero = 0;
  hipMalloc(&x, 4);
  hipMemcpy(x, &zero, 4, 1);
  alarm(1);
  endless<<<1, 64>>>((int*)x);
}
"""
    program = hip_program.build(source, ["gfx950"], tmp_path)
    completed = run("--arch", "gfx950", "--", program)
    assert completed.returncode == 128 + 14 and "ended by SIGALRM" in completed.stderr
    assert re.search(
        r"_Z7endlessPi: not done when process \d+ \(.*program\) ended", completed.stderr
    )


def test_a_script_with_triton(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ("--part", "MI308X", "--timing", "--", sys.executable, script, "--arch", "x")
    completed = run(*words, TRITON_CACHE_DIR=str(tmp_path))
    assert completed.returncode == 0, completed.stderr
    first, refused = completed.stdout.splitlines()
    assert first == "True gfx942 80 --arch x"
    assert "torch.cuda.CUDAGraph needs a GPU of torch's own" in refused
    assert "1 kernel, 4 launches in 1 process" in completed.stderr
    assert "on MI308X" in completed.stderr
    assert f"{script}:" in completed.stderr, "Triton's debug lines"


def test_triton_device_is_torch_device() -> None:
    """Of the architecture that torch.cuda has; another one has a number of its own."""
    completed = run("--arch", "gfx942", "--", sys.executable, "-c", OTHER_ARCHITECTURE)
    assert completed.returncode == 0, completed.stderr
    of_torch = "0 gfx942 gfx942 gfx942 gfx942"
    assert completed.stdout.splitlines() == [of_torch, "950 gfx950 gfx950 gfx942 gfx950", of_torch]


@pytest.fixture(scope="module")
def torch_cuda_results() -> dict[str, str]:
    completed = run("--arch", "gfx950", "--", sys.executable, torch_cuda_cases.__file__)
    print(completed.stderr)
    results: dict[str, str] = json.loads(completed.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("name", [case.__name__ for case in torch_cuda_cases.CASES])
def test_torch_cuda(name: str, torch_cuda_results: dict[str, str]) -> None:
    assert torch_cuda_results[name] == ""


def test_memory_of_a_gpus_size() -> None:
    """An entry to a competition lays out caches for all of a GPU, and uses a part of them."""
    tensor = torch_cuda._vast(1 << 20, 1 << 16, dtype=torch.float16)  # 128 GiB
    assert tensor is not None and tensor.shape == (1 << 20, 1 << 16)
    tensor[-1, -1], tensor[7, 7] = 3, 2
    assert (tensor[-1, -1], tensor[7, 7], tensor[5, 5]) == (3, 2, 0)
    assert torch_cuda._vast((1 << 20, 1 << 16), dtype=torch.float16) is not None
    for sizes in ((1 << 20,), (), (-(1 << 40),), (0, 1 << 40)):
        assert torch_cuda._vast(*sizes) is None


def test_a_script_with_flydsl(tmp_path: Path) -> None:
    pytest.importorskip("flydsl", reason="no FlyDSL (extra flydsl, Linux on x86-64)")
    script = tmp_path / "script.py"
    script.write_text(FLYDSL)
    cache = str(tmp_path / "flydsl")
    completed = run(
        "--arch", "gfx942", "--", sys.executable, script, FLYDSL_RUNTIME_CACHE_DIR=cache
    )
    assert (completed.returncode, completed.stdout) == (0, "True\n"), completed.stderr
    assert "1 kernel, 1 launch in 1 process" in completed.stderr and "MI300X" in completed.stderr


def test_a_python_that_uses_none_of_it(tmp_path: Path) -> None:
    """Nothing is imported for it, and its own sitecustomize runs."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = 5\n")
    code = "import sys; print(sys.mine, 'torch' in sys.modules, 'rfops' in sys.modules)"
    completed = run("--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert (completed.returncode, completed.stdout) == (0, "5 False False\n")
    assert "no kernel was launched on the virtual GPU" in completed.stderr


def run_beside(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Python with more modules than the command itself has."""
    script = 'PYTHONPATH="$PYTHONPATH:$0" exec "$1" -c "$2"'
    return run("--", "sh", "-c", script, folder, sys.executable, code)


def test_a_python_without_rfops(tmp_path: Path) -> None:
    """It runs, and hears why its kernels would not."""
    package = tmp_path / "rfops"
    package.mkdir()
    error = "raise ModuleNotFoundError(\"No module named 'rfops'\", name='rfops')\n"
    (package / "__init__.py").write_text(error)
    code = "import torch, triton; print(torch.ones(2).sum().item(), torch.cuda.is_available())"
    completed = run_beside(tmp_path, code)
    assert (completed.returncode, completed.stdout) == (0, "2.0 False\n"), completed.stderr
    for label in ('device="cuda"', "Triton's kernels"):
        assert f"rfops run: {label} cannot run here: ModuleNotFoundError" in completed.stderr
    assert f"; install rfops into {sys.prefix}\n" in completed.stderr


def test_a_torch_for_rocm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class version:\n    hip = '7.1'\n")
    completed = run_beside(tmp_path, "import torch")
    assert completed.returncode == 1
    assert "this torch is built for ROCm 7.1 and brings its own HIP runtime" in completed.stderr


def test_a_timeline_and_a_page(program: Path, tmp_path: Path) -> None:
    trace, html = tmp_path / "trace.json", tmp_path / "page.html"
    completed = run("--arch", "gfx950", "--trace", trace, "--html", html, "--", program)
    assert f"rfops run: wrote {trace}\nrfops run: wrote {html}" in completed.stderr
    page = html.read_text(encoding="utf-8")
    assert "1. twice(float*, int)</h2>" in page and page.count("<canvas") == 1
    assert "3 launches" in page
    message = json.loads(trace.read_text())
    # Of three launches alike the first is followed.
    assert [launch["kernel"] for launch in message["otherData"]["launches"]] == ["_Z5twicePfi"]
    assert any(s["ph"] == "X" and s["cat"] == "wave" for s in message["traceEvents"])


def test_many_different_launches(tmp_path: Path) -> None:
    """All are in the table; the first twenty are followed."""
    source = """
__global__ void fill(int* at) { at[index()] = index(); }
int main() {
  void* x = 0;
  hipMalloc(&x, 1 << 20);
  for (int turn = 0; turn < 2; ++turn)
    for (int i = 1; i <= 25; ++i) fill<<<i, 64>>>((int*)x);
}
"""
    program = hip_program.build(source, ["gfx942"], tmp_path)
    html = tmp_path / "page.html"
    completed = run("--arch", "gfx942", "--html", html, "--", program)
    assert "1 kernel, 50 launches in 1 process" in completed.stderr
    assert "of 25 different launches 20 are followed" in completed.stderr
    page = html.read_text(encoding="utf-8")
    assert "Below are 20 launches; 5 different ones are left out" in page
    assert page.count('<details class="launch"') == 20


@pytest.mark.parametrize(
    "words, status, message",
    [
        ((), 1, "expected a command behind --"),
        (("--", "/no/such/program"), 127, "rfops run: /no/such/program: No such file"),
        (("--", __file__), 126, "Permission denied; a script: rfops run -- python "),
        (("--part", "MI1", "--", "true"), 1, "--part MI1: expected one of MI300X"),
        (("--part", "MI300X", "--arch", "gfx950", "--", "true"), 1, "got --arch gfx950; omit it"),
        (("--trace", "/no/such/folder/t.json", "--", "true"), 1, "there is no folder /no/such"),
        (("--", "true"), 0, "no kernel was launched"),
    ],
)
def test_refusals(words: tuple[str, ...], status: int, message: str) -> None:
    completed = run(*words)
    assert completed.returncode == status and message in completed.stderr, completed.stderr
    assert not completed.stdout
