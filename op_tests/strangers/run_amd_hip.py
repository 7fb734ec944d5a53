"""The op tests on AMD's own HIP runtime, which runs on the virtual GPU's HSA runtime.

    python op_tests/strangers/run_amd_hip.py /usr/lib/x86_64-linux-gnu/libamdhip64.so op_tests/gemm

AMD's runtime has one architecture from its start, and knows no CPU tensors, which Triton and
FlyDSL want: tests that ask for another or for those are counted apart. The exit status is 1 where
a test fails that `amd_hip_failures.json` does not expect, or one passes that it expects to fail.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

# Why a test cannot run there, by what its failure says.
_REASONS = {
    "the device of AMD's runtime is gfx": "another architecture",
    "is AMD's HIP runtime, which knows no CPU tensors": "Triton or FlyDSL",
}
# Tests whose kernels fault: AMD's runtime then fails each call of the process, as on hardware.
_FAULTING = ("test_triton_kernels.py::test_device_assert",)
_EXPECTED = Path(__file__).with_name("amd_hip_failures.json")


class Tally:
    """A plugin of pytest's that sorts results."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.expected: dict[str, str] = json.loads(_EXPECTED.read_text(encoding="utf-8"))
        self.results = Counter[str]()
        self.surprises: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Faulting tests are the last ones, and of them those of this architecture."""
        items.sort(key=self._place)

    def _place(self, item: pytest.Item) -> int:
        if not any(name in item.nodeid for name in _FAULTING):
            return 0
        return 1 if asks_for_another(item, self.arch) else 2

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report = yield
        if not report.failed:
            return report
        texts = str(report.longrepr), report.capstdout, report.capstderr, report.caplog
        for says, reason in _REASONS.items():
            if any(says in text for text in texts):
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: {reason}")
                self.results[reason] += 1
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_expected = report.nodeid in self.expected
        if report.failed:
            self.results["expected to fail" if is_expected else "failed"] += 1
            if not is_expected:
                self.surprises.append(report.nodeid)
        elif report.passed and report.when == "call":
            self.results["passed"] += 1
            if is_expected:
                self.surprises.append(f"{report.nodeid} passes")


def asks_for_another(item: pytest.Item, arch: str) -> bool:
    """Whether its name, fixtures or marks name another architecture than `arch` alone."""
    names = [item.name, *getattr(item, "fixturenames", ()), *(m.name for m in item.iter_markers())]
    return any(other in name for other in {"gfx942", "gfx950"} - {arch} for name in names)


class Sample:
    """A plugin of pytest's that keeps a few cases of each test function, by a seed."""

    def __init__(self, cases: int, seed: int, arch: str) -> None:
        self.cases, self.seed, self.arch = cases, seed, arch

    @pytest.hookimpl(trylast=True)  # of what other hooks leave
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        functions = defaultdict[str, list[pytest.Item]](list)
        for item in items:
            if not asks_for_another(item, self.arch):
                functions[item.nodeid.partition("[")[0]].append(item)
        kept: set[pytest.Item] = set()
        for name, cases in functions.items():
            source = random.Random(f"{self.seed} {name}")
            kept.update(source.sample(cases, min(self.cases, len(cases))))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def main() -> int:
    """Run pytest here once the loader finds the virtual GPU's HSA runtime."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", type=Path, help="AMD's libamdhip64.so")
    parser.add_argument("words", nargs="*", help="of pytest; put options behind --")
    parser.add_argument("--arch", default="gfx950")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N cases of each function")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    if os.environ.get("RFOPS_HIP_LIBRARY") != str(options.library):
        from rfops.jit import vgpu_hsa_folder

        old = os.environ.get("LD_LIBRARY_PATH")
        env = os.environ | {
            "LD_LIBRARY_PATH": ":".join(filter(None, [str(vgpu_hsa_folder()), old])),
            "RFOPS_HIP_LIBRARY": str(options.library),
            "RFOPS_VGPU_ARCH": options.arch,
        }
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    tally = Tally(options.arch)
    plugins: list[object] = [tally]
    if options.sample:
        plugins.append(Sample(options.sample, options.seed, options.arch))
    words = options.words or ["op_tests/gemm", "op_tests/quantization", "op_tests/rowwise"]
    _start_runtime()
    pytest.main(["-n", "0", "-q", *words], plugins=plugins)
    print(options.arch, dict(sorted(tally.results.items())))
    print(*tally.surprises, sep="\n")
    return bool(tally.surprises)


def _start_runtime() -> None:
    """With the architecture that was asked for, before a test sets another."""
    import torch

    from rfops.jit.launch import hip

    assert hip.runtime(torch.device("cpu")).is_on_hsa, "this is not AMD's runtime"


if __name__ == "__main__":
    sys.exit(main())
