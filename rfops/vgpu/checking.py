"""The virtual GPU's checking mode from Python: what kernels do wrong, found while they run.

    with rfops.vgpu.check() as c:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    assert not c.findings

RFOPS_VGPU_CHECK=1 does the same for a whole process, with findings on stderr.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL, c_char_p, c_int
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rfops.jit.launch import bind, tensor_memory
from rfops.vgpu import source
from rfops.vgpu.timed import records_of


@dataclass(frozen=True)
class Finding:
    """One defect, at its first occurrence of `count`. `lane` is None for what a wave does; `file`
    and `line` are None without debug lines (build with -gline-tables-only); `callers` are the lines
    from which they were inlined, the innermost first; `address` is an offset in LDS."""

    # "out of bounds", "use after free", "uninitialised", "missing wait", "LDS race", "MFMA hazard",
    # "hazard", "barrier divergence"
    kind: str
    kernel: str
    instruction: str
    offset: int  # in the code object's text
    workgroup: tuple[int, int, int]
    wave: int
    detail: str
    count: int
    lane: int | None = None
    address: int | None = None
    file: str | None = None
    line: int | None = None
    callers: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The line of the kernel's own file, and the helper's that is inlined there."""
        if not self.file:
            return ""
        row = {"source": f"{self.file}:{self.line}", "callers": self.callers}
        return source.described(row, self.kernel)


def read_finding(record: dict[str, Any]) -> Finding:
    """A finding as the library tells it, with files of this machine."""
    x, y, z = record["workgroup"]
    fields = {**record, "workgroup": (x, y, z)}
    if "file" in record:
        row = {"source": f"{record['file']}:{record['line']}", "callers": record["callers"]}
        innermost, *callers = source.locations(row, record["kernel"])
        fields |= {"file": source.file_of(innermost), "callers": tuple(callers)}
    return Finding(**fields)


@dataclass
class Check:
    """What a `check()` block found, in the order of the launches."""

    findings: list[Finding] = field(default_factory=list)


@contextmanager
def collect(library: Path) -> Iterator[Check]:
    """Check launches of this process, of all its threads, until the block ends."""
    runtime = CDLL(str(library))
    runtime.rfops_vgpu_check.argtypes = [c_int]
    runtime.rfops_vgpu_check_take.restype = c_char_p
    previous = runtime.rfops_vgpu_check(1)
    check = Check()
    try:
        runtime.rfops_vgpu_check_take()  # what came before is not this block's
        with tensor_memory.registering(bind.BoundKernel):
            yield check
    finally:
        runtime.rfops_vgpu_check(previous)
        records = records_of(runtime.rfops_vgpu_check_take())
        check.findings.extend(map(read_finding, records))
