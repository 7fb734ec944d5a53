"""The package as a user gets it: what a wheel holds, that it runs from a folder that cannot be
written, and that the documents say what the machines do."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rfops
from rfops import public
from rfops.cli import new
from rfops.dispatch.op import ops
from rfops.jit import paths
from rfops.jit.build import cpu, prebuilt
from rfops.jit.build.spec import load_config
from support import ROOT
from support.process import python

TEST_COMMAND = "pip install -c .ci/constraints.txt -e '.[dev]' && pytest op_tests"
DEMO_COMMAND = "pip install -c .ci/constraints.txt -e '.[clang]' && rfops demo"


def copy_sources(copy: Path) -> None:
    """Copy what a wheel is built from, so that nothing is written into the checkout."""
    copy.mkdir()
    for name in ("jit", "csrc", "configs", "rfops"):
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)


def build_wheel(sources: Path, folder: Path, **env: str) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder)]
    completed = subprocess.run(
        [*command, str(sources)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (result,) = folder.glob("*.whl")
    return result


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder / "sources")
    return build_wheel(folder / "sources", folder)


def test_wheel_has_every_source(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for part, patterns in (
        ("jit", ("*.py", "*.json")),
        (
            "csrc",
            (
                "*.hip",
                "bench/*",
                "blaslt/*.cpp",
                "hip_shim/**/*.h",
                "include/**/*.h",
                "peers/*",
                "vgpu/**/*.cpp",
                "vgpu/**/*.h",
                "vgpu/timing/*.csv",
            ),
        ),
        ("configs", ("*.md", "*.csv")),
    ):
        for pattern in patterns:
            for file in (ROOT / part).glob(pattern):
                assert f"rfops/{part}/{file.relative_to(ROOT / part)}" in names
    python = {str(file.relative_to(ROOT)) for file in (ROOT / "rfops").rglob("*.py")}
    templates = {str(file.relative_to(ROOT)) for file in (ROOT / "rfops").rglob("*.txt")}
    assert python <= names and len(templates) == 3 and templates <= names
    assert {"rfops/py.typed", f"rfops-{rfops.__version__}.dist-info/licenses/LICENSE"} <= names


def test_wheel_has_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"rfops", f"rfops-{rfops.__version__}.dist-info"}
    endings = {Path(n).suffix for n in zipfile.ZipFile(wheel).namelist() if "dist-info" not in n}
    code = {".py", ".hip", ".h", ".cpp", ".css", ".js"}
    assert endings <= code | {".json", ".md", ".csv", ".typed", ".txt"}
    pages = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("rfops/vgpu/page/page.")}
    assert pages == {"rfops/vgpu/page/page.css", "rfops/vgpu/page/page.js"}


def test_wheel_runs_where_nothing_can_be_written(
    wheel: Path, tmp_path: Path, vgpu_path: Path
) -> None:
    """From any working directory, a checkout of the sources among them."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for path in site.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    previous = sorted(site.rglob("*"))
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import torch, rfops, rfops.jit\n"
        f"assert rfops.__file__.startswith({str(site)!r}), rfops.__file__\n"
        f"assert rfops.jit.__file__.startswith({str(site)!r}), rfops.jit.__file__\n"
        "x, s = rfops.quant_mxfp8(torch.ones(2, 32))\n"
        "print(rfops.gemm_mxfp8(x, x, s, s).tolist())\n"
        "print(len(rfops.jit.build.spec.module_spec('vgpu').sources()))\n"
    )
    env = {
        "RFOPS_CACHE_DIR": str(tmp_path / "cache"),
        "RFOPS_HIP_LIBRARY": str(vgpu_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for cwd in ("/", str(ROOT)):
        out = run_python(code, cwd, **env)
        assert out.splitlines() == [
            "[[32.0, 32.0], [32.0, 32.0]]",
            str(len(load_config()["vgpu"].sources())),
        ]
    assert sorted(site.rglob("*")) == previous


STUB = """
#if defined(__AVX512F__)
#error "the level is not v3"
#endif
extern "C" int hipRuntimeGetVersion(int*) { return 0; }
"""


def test_wheel_carries_the_virtual_gpu(tmp_path: Path) -> None:
    """With RFOPS_BUILD_VGPU, and a stub of one file in place of the virtual GPU's sources. The
    library is found by the content of its sources without a compiler, and it is not found when a
    source has changed."""
    sources, site = tmp_path / "sources", tmp_path / "site"
    copy_sources(sources)
    for file in (sources / "csrc/vgpu").glob("*/*.cpp"):
        file.unlink()
    stub = Path("csrc", "vgpu", "base", "stub.cpp")
    (sources / stub).write_text(STUB)
    (sources / stub.parent.parent / "hip" / "more.cpp").write_text("")
    built = build_wheel(
        sources,
        tmp_path,
        RFOPS_BUILD_VGPU="v3",
        RFOPS_CACHE_DIR=str(tmp_path / "build"),
    )
    assert re.fullmatch(r"rfops-[0-9.]+-py3-none-linux_\w+\.whl", built.name)
    zipfile.ZipFile(built).extractall(site)
    (library,) = site.glob("rfops/prebuilt/v1/host/vgpu/*/libamdhip64.so")
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import rfops\n"
        "from rfops.jit.build import cpu\n"
        "with cpu.as_level('v3'):\n"
        "    print(rfops.jit.vgpu_library())\n"
    )
    env = {"RFOPS_CACHE_DIR": str(tmp_path / "cache"), "RFOPS_JIT": "0"}
    assert run_python(code, "/", **env).strip() == str(library)
    (site / "rfops" / stub).write_text(STUB.replace("return 0", "return 1"))
    with pytest.raises(AssertionError, match="JitDisabled"):
        run_python(code, "/", **env)


@pytest.mark.sweep
def test_wheel_with_the_virtual_gpu_runs_without_a_compiler(tmp_path: Path) -> None:
    """The real library: taken from the cache or built, minutes; loaded from the wheel on a machine
    without a C++ compiler and with an empty cache."""
    sources, site = tmp_path / "sources", tmp_path / "site"
    copy_sources(sources)
    built = build_wheel(sources, tmp_path, RFOPS_BUILD_VGPU="1")
    assert built.stat().st_size < 4 << 20
    zipfile.ZipFile(built).extractall(site)
    (library,) = site.glob("rfops/prebuilt/v1/host/vgpu/*/libamdhip64.so")
    code = (
        f"import ctypes, sys; sys.path.insert(0, {str(site)!r})\n"
        "import rfops\n"
        "path = rfops.jit.vgpu_library()\n"
        "count = ctypes.c_int()\n"
        "assert ctypes.CDLL(str(path)).hipGetDeviceCount(ctypes.byref(count)) == 0 < count.value\n"
        "print(path)\n"
    )
    env = {"RFOPS_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path), "RFOPS_JIT": "0"}
    assert run_python(code, "/", **env).strip() == str(library)


def test_a_plain_wheel_is_for_any_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "/prebuilt/" in name]


def test_a_script_beside_a_checkout_finds_the_package(tmp_path: Path) -> None:
    """The checkout is named as the package, and installed as an editable one."""
    checkout, installed = tmp_path / "rfops", tmp_path / "site"
    copy_sources(checkout)
    code = "import backend, sys; print(backend.build_editable(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": "jit/wheel"}
    build = [sys.executable, "-c", code, str(tmp_path)]
    options = {"check": True, "capture_output": True, "text": True}
    output = subprocess.run(build, cwd=checkout, env=env, **options)
    assert "Editable installation" not in output.stderr  # pip shows it, with -q too
    zipfile.ZipFile(tmp_path / output.stdout.splitlines()[-1]).extractall(installed)
    (record,) = installed.glob("*.dist-info/RECORD")
    for name, digest, _ in (line.rsplit(",", 2) for line in record.read_text().splitlines()):
        found = base64.urlsafe_b64encode(hashlib.sha256((installed / name).read_bytes()).digest())
        assert f"sha256={found.decode().rstrip('=')}" == digest or name.endswith("RECORD")
    script = tmp_path / "script.py"
    script.write_text(
        f"import importlib.util, site; site.addsitedir({str(installed)!r})\n"
        "print(importlib.util.find_spec('rfops').origin)\n"
    )
    command = [sys.executable, "-S", str(script)]  # without the editable install that runs the test
    spec = subprocess.run(command, cwd=tmp_path, **options)
    assert spec.stdout.strip() == str(checkout / "rfops" / "__init__.py")


def test_levels_of_a_wheel_are_known_ones() -> None:
    assert prebuilt.parse_levels("1") == (cpu.x86_level(),)
    assert prebuilt.parse_levels("v4,v3,v4") == ("v4", "v3")
    with pytest.raises(rfops.ConfigError, match="RFOPS_BUILD_VGPU must be 1 or levels of x86-64"):
        prebuilt.parse_levels("v3,v5")


def test_wheel_has_the_commands_of_ops(wheel: Path, tmp_path: Path, vgpu_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "tables"
    zipfile.ZipFile(wheel).extractall(site)
    words = ["gemm_mxfp8", "--shape", "2", "16", "64"]
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from rfops import cli\n"
        f"assert cli.__file__.startswith({str(site)!r}), cli.__file__\n"
        f"assert cli.main(['bench', *{words}]) == 0\n"
        f"assert cli.main(['tune', *{words}, '--top', '1', '--out', {str(out)!r}]) == 0\n"
        f"assert cli.main(['profile', 'moe_align_block_size', '--rows', '9', '--e', '4']) == 0\n"
    )
    said = run_python(code, "/", RFOPS_HIP_LIBRARY=str(vgpu_path), RFOPS_CONFIGS="")
    assert "geometric mean" in said and "moe_align_place" in said
    assert [path.name for path in out.iterdir()] == ["gemm_mxfp8.csv"]


def run_python(code: str, cwd: str, **env: str) -> str:
    completed = python(code, cwd=cwd, **env)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_this_installation_works_from_any_directory(tmp_path: Path) -> None:
    code = "import rfops.jit, rfops.cli; print(rfops.jit.paths.CSRC)"
    for cwd in (str(tmp_path), str(ROOT), str(ROOT / "rfops")):
        assert run_python(code, cwd).strip() == str(paths.CSRC)
    assert paths.COMPILER_CONFIG.is_file() and (paths.INCLUDE / "rfops").is_dir()


def test_a_checkout_is_the_package_that_a_wheel_has() -> None:
    """Of its folders the package has those that a wheel has, under the same names."""
    for name in ("jit", "cli", "gemm"):
        assert importlib.util.find_spec(f"rfops.{name}") is not None
    for name in ("op_tests", "rfops", "build"):
        assert importlib.util.find_spec(f"rfops.{name}") is None


def test_a_checkout_that_is_not_installed_says_so() -> None:
    completed = subprocess.run(
        [sys.executable, "-S", "-c", "import rfops"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1 and "During handling" not in completed.stderr
    assert completed.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: rfops is a checkout that is not installed: "
        "run pip install -e . in its folder"
    )


def test_readme_and_ci_run_the_same_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^(pip install .*)$", readme, re.M)
    assert commands == [DEMO_COMMAND, TEST_COMMAND]
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert TEST_COMMAND in lines
    dry = next(index for index, line in enumerate(lines) if "--dry-run" in line)
    assert lines[dry].endswith(TEST_COMMAND.split(" && ")[0].removeprefix("pip install"))
    assert dry < lines.index(TEST_COMMAND) and "PIP_CONFIG_FILE=/dev/null" in lines[dry - 1]
    assert "pip install -q --no-deps -U triton" in lines[lines.index(TEST_COMMAND) :]
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_constraints_pin_what_is_asked_for() -> None:
    """Every requirement of every extra has one exact version, inside its range."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in extras.values() for text in extra)]
    asked = [r for r in map(Requirement, texts) if r.name != "rfops"]
    lines = [
        line
        for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines)
    assert len(pins) == len(lines)
    for requirement in asked:
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement
    assert pins["torch"] == "2.13.0"
    assert {"clang", "triton", "flydsl", "plot", "demo"} <= set(extras)
    assert "rfops[clang,triton,flydsl,plot,demo,ray]" in extras["dev"]


def test_public_names_are_there() -> None:
    for name in rfops.__all__:
        assert getattr(rfops, name) is not None
    assert callable(rfops.gemm_mxfp8) and callable(rfops.quant_mxfp8), "a module hides its op"


def test_public_names_are_those_of_the_modules() -> None:
    """rfops/public.py is derived, and has each name once for type checkers and once for Python."""
    message = "rfops/public.py is not what the modules' __all__ say: run rfops new --names"
    assert new.PUBLIC.read_text(encoding="utf-8") == new.public_text(), message
    names = [name for names in public.MODULES.values() for name in names]
    assert sorted(names) == sorted({*names}) and len(names) > 30
    assert {*names, "vgpu"} == set(public.__all__) <= set(rfops.__all__) <= set(dir(rfops))
    assert set(ops()) <= {*names, *BY_FORMAT}


# Ops behind fused_moe, one for each format.
BY_FORMAT = {"fused_moe_fp8", "fused_moe_tables", "fused_moe_mxfp4", "fused_moe_mxfp8"}


def test_ops_are_imported_when_they_are_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys, rfops\n"
        "print('torch' in sys.modules)\n"
        "import torch\n"
        "print('rfops.dispatch' in sys.modules, torch.__loader__ is torch.__spec__.loader)\n"
        "rfops.gemm_mxfp8\n"
        "print('rfops.gemm.mxfp8' in sys.modules, 'rfops.moe' in sys.modules)\n"
        "print(torch.ops.rfops.gemm_mxfp8.default.name(), 'rfops.moe' in sys.modules)\n"
        "print(torch.ops.rfops.topk_softmax.default.name(), hasattr(torch.ops.rfops, 'nothing'))\n"
        "print(hasattr(rfops, 'nothing'), type(torch.ops.rfops).__module__)\n"
    )
    completed = subprocess.run(  # a fork of the server has torch
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert completed.stdout.splitlines() == [
        "False",
        "False True",
        "True False",
        "rfops::gemm_mxfp8 False",
        "rfops::topk_softmax False",
        "False torch._ops",
    ]


def test_all_ops_import_no_compiler_of_torchs() -> None:
    """Dynamo takes as long to import as torch itself, Triton as long as all ops."""
    code = (
        "import sys, torch\n"
        "from rfops.later import import_ops\n"
        "import_ops()\n"
        "print([m for m in ('torch._dynamo', 'sympy', 'triton', 'pandas') if m in sys.modules])\n"
    )
    assert python(code, check=True).stdout == "[]\n"


def test_a_module_that_waits_for_another_sees_it_once(tmp_path: Path) -> None:
    (tmp_path / "later_a.py").write_text("value = 1\n")
    code = (
        "import sys\n"
        "from rfops.later import when_imported\n"
        "seen = []\n"
        "for _ in range(2): when_imported('later_a', lambda m: seen.append(m.value))\n"
        "when_imported('json.decoder', seen.append)\n"
        "import later_a, json, importlib\n"
        "importlib.reload(later_a)\n"
        "when_imported('later_a', lambda m: seen.append(m.value + 1))\n"
        "print(seen[0].__name__ if 'json' in sys.modules and len(seen) > 3 else '', seen[-3:])\n"
    )
    assert run_python(code, str(tmp_path)).strip() == "json.decoder [1, 1, 2]"


def test_a_module_that_another_thread_imports_is_waited_for(tmp_path: Path) -> None:
    """The function saw the module without what it defines later."""
    (tmp_path / "later_b.py").write_text("import time\ntime.sleep(1)\nvalue = 1\n")
    code = (
        "import sys, threading, time\n"
        "from rfops.later import when_imported\n"
        "threading.Thread(target=__import__, args=('later_b',)).start()\n"
        "while 'later_b' not in sys.modules: time.sleep(0.001)\n"
        "when_imported('later_b', lambda m: print(m.value))\n"
    )
    assert run_python(code, str(tmp_path)).strip() == "1"


PUBLIC_OPS = [name for name in ops() if name in public.__all__]
_DTYPE = re.compile(r"float\d+|bfloat16|int\d+|e8m0|e4m3|e2m1|fp\d+|bf16|FP8|dtype|of the same")


@pytest.mark.parametrize("name", PUBLIC_OPS)
def test_an_op_says_what_it_takes_and_raises(name: str) -> None:
    """An entry for each argument; of a tensor its shape and dtype; errors and the source."""
    function = getattr(rfops, name)
    text = inspect.getdoc(function) or ""
    head, _, remaining = text.partition("Parameters\n----------\n")
    assert head.split("\n\n")[0].endswith(".") and re.search(r"\bRaises\s", text), text
    assert re.search(r"^Source: .*", text, re.M), "the source of the method"
    entries: dict[str, str] = {}
    for names, entry in re.findall(
        r"^([\w, ]+) : ((?:.*\n)(?:[ ]{4}.*\n)*)", remaining + "\n", re.M
    ):
        entries |= dict.fromkeys(names.split(", "), entry)
    parameters = inspect.signature(function).parameters
    assert not parameters.keys() - entries.keys(), "arguments without an entry"
    for argument in ops()[name].declaration.tensors:
        if argument.name in parameters and not argument.ignored:
            entry = entries[argument.name]
            assert "[" in entry or re.search(r"any shape|any size|one float32", entry), entry
            assert _DTYPE.search(entry), f"{argument.name}: the dtype"
