"""The command `rfops` as a user runs it: in a process of its own, away from the checkout."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rfops as package
from rfops import cli
from rfops.cli import build as cli_build
from rfops.cli.common import declared
from rfops.dispatch.op import ops
from rfops.jit import compiled_ops
from rfops.jit.settings import SETTINGS
from support import ROOT
from support.command import good, rfops
from support.engine_project import zig
from support.process import python

CaptureFixture = pytest.CaptureFixture[str]


# The bars are for people who run it: on a busy machine a good build misses them.
COLD_DEMO = """
import sys
from rfops.cli import demo
demo.COLD_BAR = demo.COMPILE_BAR = float("inf")
sys.exit(demo.run(cold=True))
"""


def test_demo_cold(figure: Callable[[str], None]) -> None:
    """Every step is said; cold start and compile are compared with their bars."""
    out = subprocess.run(
        [sys.executable, "-c", COLD_DEMO], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    for step in ("toolchain", "device", "route", "module", "key", "build", "launch", "error"):
        assert re.search(rf"^  {step} ", out, re.M), f"{step} is missing from\n{out}"
    assert "virtual GPU, gfx950" in out or "a real one" in out
    assert len(re.findall(r"^  cold start +within inf s", out, re.M)) == 2, "random and real input"
    assert "MiniLM" in out and "all within their bounds" in out
    build, launch = (re.search(rf"^  {step} +(.*)$", out, re.M) for step in ("build", "launch"))
    assert build and launch
    figure(f"cold start: {build[1]}; {launch[1]}")


def test_demo_says_what_is_cached() -> None:
    good("demo")
    assert len(re.findall(r"^  build +cached;", good("demo"), re.M)) == 2


def test_vgpu_path_is_all_that_stdout_gets(vgpu_path: Path) -> None:
    assert good("vgpu", "--path") == f"{vgpu_path}\n"


def test_profile(capsys: CaptureFixture) -> None:
    sizes = ("--m", "3", "--n", "40", "--k", "64", "--by", "mfma")
    table = good("profile", "gemm_mxfp8", *sizes, RFOPS_VGPU_ARCH="gfx950")  # as users run it
    for row in ("kernel", "instructions", "read", "registers", "occupancy", "estimate"):
        assert re.search(rf"^  {row} ", table, re.M), table
    assert "not measured" in table
    assert cli.main(["profile", "gemm_mxfp8", *sizes, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kernel"] == "mxfp8_mfma" and record["global_write"]["bytes"] == 3 * 40 * 2
    assert cli.main(["profile", "gemm_mxfp8", "--m", "3", "--n", "40", "--k", "33"]) == 1
    assert "K" in capsys.readouterr().err


def test_profile_timing(tmp_path: Path, capsys: CaptureFixture) -> None:
    """How long and why; beside each instruction; as JSON; as a timeline."""
    asked = "profile gemm_mxfp8 --m 3 --n 40 --k 64 --by mfma --arch gfx950".split()
    assert cli.main([*asked, "--timing"]) == 0
    table = capsys.readouterr().out
    for row in (
        r"kernel +mxfp8_mfma on MI355X \(gfx950\)",
        r"time .* us \(.* to .*\), estimated",
        r"clock +2\.\d+ GHz",
        "bound +launch",
        "busy .*hbm .*%",
        "L2 .*% hits",
        "HBM .* read",
        "stalls .*vmcnt .*%",
        "taken from .* workgroups",
    ):
        assert re.search(rf"^  {row}", table, re.M), f"{row} is missing from\n{table}"
    trace = tmp_path / "trace.json"
    assert cli.main([*asked, "--part", "MI350X", "--annotate", "--trace", str(trace)]) == 0
    message = capsys.readouterr()
    assert "on MI350X" in message.out and f"wrote {trace}" in message.err
    assert re.search(
        r"^  > +0x\w+ +\d+ +\d+ +[\d.]+%  s_waitcnt vmcnt\(\d+\) .* vmcnt \d+", message.out, re.M
    )
    (launch,) = json.loads(trace.read_text())["otherData"]["launches"]
    assert (launch["kernel"], launch["part"], launch["capped"]) == ("mxfp8_mfma", "MI350X", False)
    assert cli.main([*asked, "--timing", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["low"] < record["us"] < record["high"] and record["pcs"][0]["text"]
    assert "events" not in record


def test_profile_takes_the_parts_architecture(capsys: CaptureFixture) -> None:
    asked = ["profile", "moe_align_block_size", "--rows", "8", "--e", "4", "--part"]
    assert cli.main([*asked, "MI308X"]) == 0
    message = capsys.readouterr().out
    assert "on gfx942, 80 CUs: " in message and "on MI308X (gfx942)" in message
    for words, error in (
        (["MI9"], "--part MI9: expected one of MI300X, MI308X, MI300A, MI325X, MI350X, MI355X"),
        (
            ["MI308X", "--arch", "gfx950"],
            "--part MI308X is gfx942, got --arch gfx950; omit it",
        ),
        (["MI308X", "--arch", "sm_90"], "--arch sm_90: the virtual GPU is gfx942 or gfx950"),
    ):
        assert cli.main([*asked, *words]) == 1
        assert capsys.readouterr().err == f"rfops: ValueError: {error}\n"


def test_profile_of_nothing(capsys: CaptureFixture) -> None:
    asked = ["profile", "gemm_mxfp8", "--n", "40", "--k", "64", "--m"]
    assert cli.main([*asked, "0"]) == 0
    assert capsys.readouterr().out == (
        "gemm_mxfp8 M=0 N=40 K=64 on gfx950, 256 CUs: the result is empty, nothing is launched\n"
    )
    assert cli.main([*asked, "0", "--json"]) == 0 and capsys.readouterr().out == ""
    assert cli.main([*asked, "-1"]) == 1
    assert capsys.readouterr().err == (
        "rfops: ValueError: gemm_mxfp8: M must be 0 or more, got M=-1; pass a size\n"
    )


def test_ls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """Ops, modules, architectures, and what any of the caches has, each entry once."""
    for cache, key in (("front", "a"), ("behind", "a"), ("behind", "b")):
        entry = tmp_path / cache / "v1" / "gfx950" / "mxfp8_gemv" / key
        entry.mkdir(parents=True)
        (entry / "meta.json").touch()
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path / "front"))
    monkeypatch.setenv("RFOPS_CACHE_READ", str(tmp_path / "behind"))
    assert cli.main(["ls"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["mxfp8_gemv", "mxfp8_gemv", "gfx950", "2", "gemm_mxfp8"] in rows
    assert ["vgpu", "-", "host", "0", "-"] in rows
    assert ["-", "-", "any", "-", "batched_gemm_a16w8_blockscale"] in rows
    assert [row[2] for row in rows if row[0] == "quant_mxfp8"] == ["gfx942", "gfx950"]
    archs = [row[2] for row in rows if row[0] == "moe_align_block_size"]
    assert archs == ["gfx942", "gfx950"]


def test_ls_knows_every_op() -> None:
    public = {name for name in package.__all__ if f"{name}_ref" in package.__all__}
    result = declared()
    moe = {f"fused_moe_{kind}" for kind in ("tables", "fp8", "mxfp4", "mxfp8")}
    alone = moe | {"moe_align_block_size", "quant_fp8_blockscale", "quant_mxfp4"}
    assert public | alone | {"quant_mxfp8"} == set(result)
    assert set(ops()) == set(result), "read off the files, and as they declare"
    assert {name: {*modules} for name, modules in result.items()} == {
        name: {*op.modules} for name, op in ops().items()
    }
    listed = {(m, k) for modules in result.values() for m, names in modules.items() for k in names}
    assert listed == {(op.module, op.kernel) for op in compiled_ops()}


CALLS = """
import torch, rfops
x, s = rfops.quant_mxfp8(torch.randn(20, 512))
w, t = rfops.quant_mxfp8(torch.randn(4 * 64, 512))
for m in (3, 12):
    rfops.gemm_mxfp8(x[:m].contiguous(), w, s[:m].contiguous(), t)
layout = rfops.moe_align_block_size(torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), 16, 4)
a, a_scale = x[:2].contiguous(), s[:2].contiguous()
w, w_scale = w.view(4, 64, 512), t.view(4, 64, 16)
rfops.grouped_gemm_mxfp8(a, a_scale, w, w_scale, *layout, 4, 2, 16, torch.bfloat16, a_div=2)
"""


def test_why_tells_of_a_calls_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture, vgpu_path: Path
) -> None:
    """Before a call, after it, and of a call that differs in one define. A row makes up to 3 rows
    take the GEMV."""
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path))
    head = "arch,cu_num,m,n,k,kernel,config,us,figures,origin,source"
    row = "gfx950,256,3,256,512,gemv,,,,estimated,a test"
    (tmp_path / "gemm_mxfp8.csv").write_text(f"{head}\n{row}\n")
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    sizes = ("--n", "256", "--k", "512")
    asked = {
        "mxfp8_gemv": ("gemm_mxfp8", "--m", "3", *sizes),
        "mxfp8_mfma": ("gemm_mxfp8", "--m", "12", *sizes),
        "mxfp8_moe": (
            "grouped_gemm_mxfp8",
            "--m",
            "4",
            "--n",
            "64",
            "--k",
            "512",
            "--e",
            "4",
            "--top-k",
            "2",
            "--a-div",
            "2",
        ),
    }

    def why(*arguments: str) -> str:
        assert cli.main(["why", *arguments]) == 0
        return capsys.readouterr().out

    for module, arguments in asked.items():
        out = why(*arguments)
        assert re.search(rf"^  variant +{module} gfx950 .*: not cached, and nothing", out, re.M)
    python(CALLS, check=True, RFOPS_HIP_LIBRARY=str(vgpu_path))
    for module, arguments in asked.items():
        out = why(*arguments)
        assert f": cached in {tmp_path}/v1/gfx950/{module}/" in out, out
    out = why("gemm_mxfp8", "--m", "2", *sizes)
    assert ": not cached; the nearest entry" in out
    assert "command, gone: -DRFOPS_M=3" in out and "command, new: -DRFOPS_M=2" in out


def test_doctor_of_a_working_machine() -> None:
    out = good("doctor", RFOPS_JOBS="2")
    assert "ops can run" in out and "RFOPS_JOBS=2" in out
    assert "compiler for gfx950:" in out and "compiler for c++20:" in out
    assert "hipcc" in out and re.search(r"^  yes ", out, re.M)


def test_doctor_of_two_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture, tmp_path: Path
) -> None:
    names = ("gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-")
    properties = [SimpleNamespace(gcnArchName=name) for name in names]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    assert cli.main(["doctor"]) == 0
    assert f"devices: 0: {names[0]}; 1: {names[1]}; virtual GPU" in capsys.readouterr().out
    monkeypatch.setenv("RFOPS_HIP_LIBRARY", str(tmp_path / "absent.so"))
    assert cli.main(["doctor"]) == 1
    assert f"RFOPS_HIP_LIBRARY={tmp_path / 'absent.so'}: no such file" in capsys.readouterr().out


@pytest.mark.parametrize("has_triton", [True, False])
def test_doctor_of_an_nvidia_gpu(
    has_triton: bool, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture, tmp_path: Path
) -> None:
    """Without a compiler ops run there by Triton's kernels, and the record says why by no other."""
    gpu = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "triton" and not has_triton else known(name),
    )
    for name in ("RFOPS_HIPCC", "CXX"):
        monkeypatch.setenv(name, "/absent")
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path))
    assert cli.main(["doctor"]) == (0 if has_triton else 1)
    out = capsys.readouterr().out
    assert "devices: 0: NVIDIA H100 80GB HBM3 (sm_90), by Triton; virtual GPU" in out
    missing = "no compiler for AMD GPUs, and nothing is cached"
    if has_triton:
        assert f"no HIP kernels: {missing}" in out and "problem" not in out
        assert out.rstrip().endswith("ops can run; on this GPU by Triton")
    else:
        assert f"problem: {missing}" in out and "ops can NOT run" in out


def test_doctor_and_the_settings_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """Each setting that is in force is shown with its value; each wrong one is a problem."""
    sound, wrong = {}, {}
    for setting in SETTINGS:
        choices = setting.kind.split("|")
        sound[setting.name] = {"path": str(tmp_path), "paths": str(tmp_path), "text": "cc"}.get(
            setting.kind, choices[-1] if len(choices) > 1 else "7"
        )
        if setting.kind not in ("path", "paths", "text"):
            wrong[setting.name] = "of no kind"
    for name in sound:
        monkeypatch.setenv(name, sound[name])
    cli.main(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["settings"] == sound
    for name in wrong:
        monkeypatch.setenv(name, wrong[name])
    assert cli.main(["doctor", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    for name in wrong:
        assert any(problem.startswith(f"{name}='of no kind': ") for problem in problems), name


def test_doctor_of_a_machine_without_compilers(tmp_path: Path) -> None:
    completed = rfops("doctor", RFOPS_HIPCC="/absent", CXX="/absent", RFOPS_CACHE_DIR=str(tmp_path))
    assert completed.returncode == 1 and "ops can NOT run" in completed.stdout
    assert "RFOPS_HIPCC=/absent: not found" in completed.stdout


def test_doctor_as_json(tmp_path: Path) -> None:
    record = json.loads(good("doctor", "--json", RFOPS_JOBS="2"))
    assert record["ready"] and not record["problems"] and record["jobs"] == 2
    assert record["settings"]["RFOPS_JOBS"] == "2"
    assert set(record["compilers"]) == {"gfx942", "gfx950", "c++20"}
    assert record["compilers"]["gfx950"][-1]["version"]
    assert record["cache"]["writable"] and record["cache"]["entries"]["gfx950"] >= 0
    env = {"RFOPS_CACHE_DIR": str(tmp_path), "RFOPS_HIPCC": "/absent", "CXX": "/absent"}
    completed = rfops("doctor", "--json", RFOPS_LOCK_TIMEOUT="soon", **env)
    record = json.loads(completed.stdout)
    assert completed.returncode == 1 and not record["ready"] and len(record["problems"]) == 3
    assert "RFOPS_LOCK_TIMEOUT='soon'" in record["problems"][0]


def test_build_everything_needs_no_gpu(tmp_path: Path, vgpu_path: Path) -> None:
    env = {"RFOPS_CACHE_DIR": str(tmp_path), "RFOPS_HIP_LIBRARY": "/absent"}
    out = good("build", "moe_align_block_size", **env)
    assert "moe_align_block_size gfx942" in out and ": built" in out
    count = len(list(tmp_path.glob("v1/gfx*/moe_align_block_size/*/meta.json")))
    assert f"{count} of {count} in " in out and count > 1
    repeated = good("build", "moe_align_block_size", **env)
    assert ": built" not in repeated and repeated.count(": cached") == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "nothing"), "no op uses a module 'nothing'; modules: "),
        (("build", "--arch", "gfx90a"), "--arch gfx90a: expected some of gfx942,gfx950"),
        (("build", "mxfp8_gemv", "--arch", "gfx942"), "no kernel for gfx942"),
    ],
)
def test_build_refuses(arguments: tuple[str, ...], message: str, capsys: CaptureFixture) -> None:
    assert cli.main(list(arguments)) == 1 and message in capsys.readouterr().err


def test_build_without_names_builds_the_launcher_too(
    monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """And all that ops declare; that it builds is the sweep's, and test_engine_dispatch.py's."""
    monkeypatch.setattr(cli_build, "_build", lambda entry: ("cached", None))
    assert cli.main(["build", "--arch", "gfx950"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^\[\d+/\d+\] launcher host: cached$", out, re.M), out
    for module in ("mxfp8_gemv", "mxfp8_mfma", "mxfp8_moe", "moe_align_block_size"):
        assert f"] {module} gfx950" in out


@pytest.mark.sweep
def test_all_is_built_for_both_architectures_and_serves(tmp_path: Path, vgpu_path: Path) -> None:
    """With no GPU into an empty cache; then nothing more is compiled for shapes that are served."""
    env = {"RFOPS_CACHE_DIR": str(tmp_path)}
    out = good("build", "--arch", "gfx942,gfx950", RFOPS_HIP_LIBRARY="/absent", **env)
    count = len(list(tmp_path.glob("v1/gfx*/*/*/meta.json"))) + 1  # the launcher
    assert f"{count} of {count} in " in out and count > 50
    for module in ("moe_align_block_size", "mxfp8_gemv", "mxfp8_mfma", "mxfp8_moe"):
        good("why", "module", module, **env)
    code = (
        "import torch, rfops\n"
        "for m in (1, 4, 16):\n"
        "    x, s = rfops.quant_mxfp8(torch.randn(m, 6144))\n"
        "    w, t = rfops.quant_mxfp8(torch.randn(2304, 6144))\n"
        "    rfops.gemm_mxfp8(x, w, s, t)\n"
        "rfops.moe_align_block_size(torch.zeros(4, 2, dtype=torch.int32), 16, 8)\n"
    )
    env |= {"RFOPS_JIT": "0", "RFOPS_HIP_LIBRARY": str(vgpu_path), "PATH": ""}
    completed = python(code, **env)
    assert completed.returncode == 0, completed.stderr


def test_build_reports_failures(tmp_path: Path) -> None:
    """A compiler that knows the architecture and then fails."""
    broken = tmp_path / "hipcc"
    broken.write_text(
        f'#!/bin/sh\ncase "$*" in --version) echo clang version 0;; *probe.o*) ;; '
        f"*) echo no room left >&2; exit 1;; esac\n# not {zig()}\n"
    )
    broken.chmod(0o755)
    completed = rfops(
        "build", "mxfp8_gemv", RFOPS_HIPCC=str(broken), RFOPS_CACHE_DIR=str(tmp_path / "cache")
    )
    assert completed.returncode == 1 and "0 of " in completed.stdout
    assert "no room left" in completed.stderr and "build failed" in completed.stderr


def test_the_commands_of_the_readme_are_commands() -> None:
    """With their options: the parser takes each."""
    readme = (ROOT / "rfops" / "cli" / "README.md").read_text()
    rows = re.findall(r"^\| `rfops (.*?)`.*\|$", readme, re.M)
    assert len(rows) > 10
    for row in rows:
        words = shlex.split(row.replace("[modules]", "mxfp8_gemv"))
        if words[0] != "tune":  # the script's options are its own
            assert callable(cli._parser().parse_args(words).command), row


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ((), ("usage: rfops [-h]", "build and run the first op")),
        (("why",), ("usage: rfops why", "grouped_gemm_mxfp8", "module")),
        (("cache",), ("usage: rfops cache", "export", "gc")),
        (("tune",), ("usage: rfops tune", "gemm_mxfp8")),
        (("tune", "--help"), ("usage: rfops tune", "gemm_mxfp8")),
        (("tune", "gemm_mxfp8", "--help"), ("usage: rfops tune gemm_mxfp8", "--untuned")),
    ],
)
def test_help(arguments: tuple[str, ...], shown: tuple[str, ...]) -> None:
    """Also of a command that wants another word, and is not given it."""
    out = good(*arguments)
    for text in shown:
        assert text in out


WITHOUT_TORCH = """
import sys
from rfops.cli import main
try:
    code = main()
except SystemExit as stop:
    code = stop.code
assert "rfops.cli" in sys.modules and "torch" not in sys.modules, sorted(sys.modules)
assert sorted(sys.modules["rfops"].__all__)
sys.exit(code)
"""


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--help",
        "--version",
        "doctor",
        "ls",
        "build --help",
        "vgpu --path",
        "why",
        "tune",
        "cache export {file} mxfp8_gemv",
        "cache import {file}",
        "cache gc --max-size 1T",
        "cache why mxfp8_gemv -D M=1",
        "why module mxfp8_gemv -D M=1",
        "profile",
        "bench --help",
        "build nothing --arch gfx90a",
    ],
)
def test_torch_is_not_imported(arguments: str, tmp_path: Path, vgpu_path: Path) -> None:
    """By what has no need of it: that takes a second, and all the rest of these 0.2."""
    file = tmp_path / "exported"
    words = arguments.format(file=file).split()
    if "import" in words:
        good("cache", "export", str(file), "mxfp8_gemv")
    completed = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in completed.stderr, completed.stderr
    assert completed.returncode == ("-1" in words or "nothing" in words or "why" in words[:-1])


def test_wrong_usage() -> None:
    for arguments in (("nothing",), ("vgpu",), ("why", "nothing"), ("tune", "nothing")):
        completed = rfops(*arguments)
        assert completed.returncode == 2 and "usage: rfops" in completed.stderr
    assert good("--version").startswith("rfops ")


def test_errors_are_one_line() -> None:
    completed = rfops("demo", RFOPS_LOG="loud")
    assert completed.returncode == 1 and "Traceback" not in completed.stderr
    assert (
        "ConfigError: RFOPS_LOG='loud': expected one of debug, dispatch, info" in completed.stderr
    )


BROKEN = """#!/bin/sh
case "$*" in
  --version) echo clang version 0;;
  *probe.o*) ;;
  *) cat >&2 << 'END'
In file included from axpy.hip:1:
rfops_test/scale.h:7:3: error: use of undeclared identifier 'nothing'
    7 |   nothing;
      |   ^~~~~~~
rfops_test/scale.h:9:1: error: another one
END
  exit 1;;
esac
"""


def test_a_failed_build_is_told_in_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture, vgpu_path: Path
) -> None:
    """The message, the log's path, the source line; no frames of ours. All of it for debugging."""
    broken = tmp_path / "hipcc"
    broken.write_text(BROKEN)
    broken.chmod(0o755)
    env = {"RFOPS_HIPCC": str(broken), "RFOPS_CACHE_DIR": str(tmp_path / "cache")}
    env["RFOPS_HIP_LIBRARY"] = str(vgpu_path)
    asked = ("profile", "gemm_mxfp8", "--m", "20", "--n", "32", "--k", "32")  # too many for gemv
    completed = rfops(*asked, **env)
    lines = [line for line in completed.stderr.splitlines() if "virtual GPU" not in line]
    (log,) = (tmp_path / "cache").glob("v1/gfx950/mxfp8_mfma/failed/*.log")
    assert completed.returncode == 1 and lines == [
        "rfops: BuildError: mxfp8_mfma: build failed",
        f"log: {log}",
        "rfops_test/scale.h:7:3: error: use of undeclared identifier 'nothing'",
        "    7 |   nothing;",
        "      |   ^~~~~~~",
    ]
    assert "another one" in log.read_text()
    message = rfops(*asked, **env, RFOPS_LOG="debug").stderr
    for text in ("Traceback", "rfops/cli/__init__.py", "\ncommand: ", "another one"):
        assert text in message


def test_any_other_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(cli, "vgpu_library", fail)
    assert cli.main(["vgpu", "--path"]) == 1
    assert capsys.readouterr().err == "rfops: RuntimeError: out of order\n"


ADVICE = f"pip install -e '.[clang]' in {ROOT}"


def test_a_machine_without_compilers_is_told_once(tmp_path: Path) -> None:
    """`demo` before it builds the virtual GPU, `build` for all variants together."""
    env = {"RFOPS_HIPCC": "/absent", "CXX": "/absent", "RFOPS_CACHE_DIR": str(tmp_path)}
    for arguments in (("demo", "--cold"), ("build",)):
        completed = rfops(*arguments, **env)
        assert completed.returncode == 1 and "Traceback" not in completed.stderr
        assert completed.stderr.count("no compiler found for device code") == 1, completed.stderr
        assert completed.stderr.count("RFOPS_HIPCC=/absent: not found") == 1
        assert completed.stderr.count(ADVICE) == 1 and len(completed.stderr.splitlines()) < 6
    assert re.fullmatch(r"0 of \d\d+ in \d+\.\d s\n", completed.stdout), completed.stdout


HIDE_ZIG = "import sys; sys.modules['ziglang'] = None"


def test_demo_without_a_compiler(tmp_path: Path, vgpu_path: Path) -> None:
    """What is cached needs none."""
    assert "cached" in [good("demo"), good("demo")][1]
    (tmp_path / "sitecustomize.py").write_text(HIDE_ZIG)
    out = good("demo", PATH="/absent", PYTHONPATH=str(tmp_path))
    assert re.search(r"^  toolchain +.*clang version", out, re.M), out
    assert len(re.findall(r"^  build +cached;", out, re.M)) == 2


def test_demo_looks_for_the_device_compiler_first(tmp_path: Path) -> None:
    completed = rfops("demo", RFOPS_HIPCC="/absent", RFOPS_CACHE_DIR=str(tmp_path))
    assert completed.returncode == 1 and "no compiler found for device code" in completed.stderr
    assert (
        "building the virtual GPU" not in completed.stderr and not (tmp_path / "v1/host").exists()
    )
