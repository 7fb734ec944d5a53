"""hipBLASLt's algorithms for a linear layer, or for a group of them (the experts of a MoE): which
there are, which take the problem, how long each runs; and the one that was chosen, found again.

An algorithm's number belongs to one build of the library, so what is kept is its solution's name
beside the library's version and revision and the architecture: in another library it is not taken
for the same. Nothing of rfops calls this by default: `rfops tune blaslt` fills a table, and
`Library.pinned` takes what stands there. It has run on no AMD GPU yet. On the virtual GPU, with the
library of ROCm 7, a time is that of the kernels, by timing mode.
"""

from __future__ import annotations

import csv
import ctypes
import hashlib
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rfops.jit import ConfigError, HipError, paths
from rfops.jit.build import toolchain
from rfops.jit.cache import kept, lock

SHIM = paths.CSRC / "blaslt" / "blaslt_shim.cpp"
WORKSPACE = 128 << 20  # bytes that an algorithm may want
_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # hipDataType
_COMPUTE_32F, _R_32F, _OP_N, _OP_T = 2, 0, 111, 112
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_COLUMNS = ("kind", "sizes", "dtype", "version", "gfx", "solution", "us", "source")


@dataclass(frozen=True)
class Linear:
    """y = x @ w^T of x [M, K] and w [N, K]; of a group so many, each with tensors of its own."""

    sizes: tuple[tuple[int, int, int], ...]  # M, N, K of each
    dtype: torch.dtype = torch.bfloat16
    is_grouped: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            dtypes = ", ".join(_NAMES.values())
            raise ValueError(f"blaslt: dtype must be one of {dtypes}, got {self.dtype}")
        if not self.sizes or any(len(size) != 3 or min(size) < 1 for size in self.sizes):
            raise ValueError(f"blaslt: sizes must be M N K of 1 or more each, got {self.sizes}")
        if not self.is_grouped and len(self.sizes) != 1:
            raise ValueError(f"blaslt: {len(self.sizes)} problems are a group: is_grouped=True")

    @property
    def key(self) -> tuple[str, str, str]:
        """As a table's row has it."""
        texts = ("x".join(map(str, size)) for size in self.sizes)
        return "grouped" if self.is_grouped else "dense", " ".join(texts), _NAMES[self.dtype]


class Timed(NamedTuple):
    """The time in us of one algorithm."""

    solution: str
    us: float


class Tuned(NamedTuple):
    """Best first; and why the others are not among them."""

    timed: tuple[Timed, ...]
    refused: dict[str, str]


class _Description(ctypes.Structure):
    """As csrc/blaslt/blaslt_shim.cpp has it."""

    _fields_ = (
        *(
            (name, c_int32)
            for name in (
                "count",
                "trans_a",
                "trans_b",
                "type_a",
                "type_b",
                "type_c",
                "type_d",
                "compute",
                "scale",
            )
        ),
        *((name, c_void_p) for name in ("m", "n", "k", "a", "b", "c", "d", "alpha", "beta")),
    )


# ---------------------------------------------------------------- the library


class Library:
    """hipBLASLt, opened. `clock(run, runs)` gives the times of so many runs in us."""

    def __init__(
        self,
        library: Path,
        include: Sequence[Path],
        gfx: str,
        clock: Callable[[Callable[[], None], int], list[float]] | None = None,
    ) -> None:
        try:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            self._shim = ctypes.CDLL(str(_built(include)))
        except OSError as error:
            raise ConfigError(f"{library} is no hipBLASLt: {error}") from error
        self._shim.rfops_blaslt_name.restype = c_char_p
        self.gfx, self.clock = gfx, clock or _by_events
        self._handle, version, headers = c_void_p(), c_int32(), c_int32()
        self.call("rfops_blaslt_open", byref(self._handle), byref(version), byref(headers))
        if version.value // 100 != headers.value // 100:
            raise ConfigError(
                f"{library} is hipBLASLt {_dotted(version.value)}, the headers in {include[0]} are "
                f"of {_dotted(headers.value)}: say --library and --include of one ROCm"
            )
        revision = ctypes.create_string_buffer(256)
        self.call("rfops_blaslt_revision", self._handle, revision)
        self.version = f"{version.value}-{revision.value.decode(errors='replace')}"

    def call(self, name: str, *args: Any) -> None:
        """Raises HipError with hipBLASLt's status."""
        status = getattr(self._shim, name)(*args)
        if status != 0:
            raise HipError(name.replace("rfops_", "hip"), status, f"hipBLASLt's status {status}")

    def problem(self, linear: Linear, *operands: Sequence[torch.Tensor]) -> Problem:
        """Bind x, w and out."""
        return Problem(self, linear, *operands)

    def tune(self, linear: Linear, runs: int = 20, device: str = "cuda") -> Tuned:
        """Each algorithm that takes the problem and gives its result, by its median time."""
        x, w, out = _tensors(linear, device)
        expected = [(a.double() @ b.double().T).to(linear.dtype) for a, b in zip(x, w, strict=True)]
        problem = self.problem(linear, x, w, out)
        timed, refused = [], {}
        for name in problem.names:
            for result in out:
                result.fill_(float("nan"))
            try:
                problem.select(name)
                problem.run()
                wrong = _wrong(linear, out, expected)
                if wrong:
                    raise ValueError(wrong)
                times = self.clock(problem.run, runs)
                timed.append(Timed(name, statistics.median(times)))
            except (HipError, ValueError) as error:
                refused[name] = str(error)
        return Tuned(tuple(sorted(timed, key=lambda timed_: (timed_.us, timed_.solution))), refused)

    def pinned(self, linear: Linear, table: Path, *operands: Sequence[torch.Tensor]) -> Problem:
        """Bind x, w and out to the algorithm that the table has for the problem. Raises ConfigError
        if it has none for this library and architecture, or if the library has it no more."""
        name = self.pin_of(linear, table)
        problem = self.problem(linear, *operands)
        if name not in problem.names:
            raise ConfigError(f"{table}: hipBLASLt {self.version} has no solution {name}")
        problem.select(name)
        return problem

    def pin_of(self, linear: Linear, table: Path) -> str:
        """The solution's name. Raises ConfigError that says what the table has instead."""
        rows = [row for row in read(table) if tuple(row[c] for c in _COLUMNS[:3]) == linear.key]
        for row in rows:
            if (row["version"], row["gfx"]) == (self.version, self.gfx):
                return row["solution"]
        versions = (
            ", ".join(sorted({f"{row['version']} on {row['gfx']}" for row in rows})) or "none"
        )
        kind, sizes, dtype = linear.key
        raise ConfigError(
            f"{table}: no solution for {kind} {sizes} {dtype} by hipBLASLt {self.version} on "
            f"{self.gfx}; it has those of: {versions}. `rfops tune blaslt` finds one"
        )


def _dotted(version: int) -> str:
    return f"{version // 100000}.{version // 100 % 1000}.{version % 100}"


class Problem:
    """Tensors bound to hipBLASLt's algorithms; `select` one, then `run`."""

    def __init__(
        self,
        library: Library,
        linear: Linear,
        x: Sequence[torch.Tensor],
        w: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor],
    ) -> None:
        for tensors, axes in ((x, (0, 2)), (w, (1, 2)), (out, (0, 1))):
            shapes = [tuple(size[i] for i in axes) for size in linear.sizes]
            if [tuple(t.shape) for t in tensors] != shapes or not all(
                t.is_contiguous() and t.dtype == linear.dtype for t in tensors
            ):
                raise ValueError(f"blaslt: expected contiguous {_NAMES[linear.dtype]} of {shapes}")
        self.library, self.linear, self._tensors = library, linear, (x, w, out)
        self._out, self._device = c_void_p(), out[0].device
        self._numbers = _description(linear, x, w, out)
        count = c_int32()
        described = byref(self._numbers[0])
        library.call(
            "rfops_blaslt_problem", library._handle, described, byref(self._out), byref(count)
        )
        shim = library._shim
        names = [shim.rfops_blaslt_name(self._out, index).decode() for index in range(count.value)]
        self._index_of = {name: index for index, name in reversed(list(enumerate(names)))}
        self._workspace = torch.empty(0, dtype=torch.uint8, device=self._device)

    @property
    def names(self) -> list[str]:
        """The algorithms that hipBLASLt offers for the problem, in its order."""
        return sorted(self._index_of, key=self._index_of.__getitem__)

    def select(self, name: str) -> None:
        """Raises HipError where the algorithm does not take the problem."""
        required_bytes, index = c_size_t(), self._index_of[name]
        self.library.call("rfops_blaslt_supported", self._out, index, byref(required_bytes))
        if required_bytes.value > WORKSPACE:
            raise ValueError(
                f"wants {required_bytes.value >> 20} MiB of workspace, "
                f"at most {WORKSPACE >> 20} are given"
            )
        if self._workspace.numel() < required_bytes.value:
            self._workspace = torch.empty(
                required_bytes.value, dtype=torch.uint8, device=self._device
            )
        memory = c_void_p(self._workspace.data_ptr())
        self.library.call("rfops_blaslt_select", self._out, index, memory, self._queue())

    def run(self) -> None:
        """Launch the selected algorithm. Raises HipError."""
        self.library.call("rfops_blaslt_run", self._out, self._queue(), None, None)

    def run_device(self, arguments: torch.Tensor) -> None:
        """Launch a group whose sizes and addresses are on the device, in the layout of
        `arguments`."""
        memory = c_void_p(arguments.data_ptr())
        self.library.call("rfops_blaslt_run_device", self._out, memory, self._queue())

    def arguments(self) -> torch.Tensor:
        """Return the argument of run_device on the host: one row of bytes per GEMM of the group,
        whose first four int32 are its rows of w, rows of x, batch and K."""
        item_bytes = c_size_t()
        self.library.call("rfops_blaslt_arguments", self._out, None, byref(item_bytes))
        records = torch.empty(len(self.linear.sizes), item_bytes.value, dtype=torch.uint8)
        memory = c_void_p(records.data_ptr())
        self.library.call("rfops_blaslt_arguments", self._out, memory, byref(item_bytes))
        return records

    def _queue(self) -> c_void_p:
        if self._device.type == "cpu":
            return c_void_p()
        return c_void_p(torch.cuda.current_stream(self._device).cuda_stream)

    def __del__(self) -> None:
        if getattr(self, "_out", None):
            self.library._shim.rfops_blaslt_drop(self._out)


def _description(
    linear: Linear,
    x: Sequence[torch.Tensor],
    w: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
) -> tuple[Any, ...]:
    """And what it points at. Column-major, y^T = w x^T: M and N change places."""
    count = len(linear.sizes)
    sizes = [
        (c_int64 * count)(*(size[size_idx] for size in linear.sizes)) for size_idx in (1, 0, 2)
    ]
    pointers: list[Any] = [(c_void_p * count)(*(t.data_ptr() for t in ts)) for ts in (w, x, out)]
    alpha, beta = ctypes.c_float(1.0), ctypes.c_float(0.0)
    kind = _TYPES[linear.dtype]
    arrays: list[Any] = [*sizes, *pointers, pointers[2]]
    addresses = [ctypes.cast(array, c_void_p) for array in arrays]
    numbers = (count if linear.is_grouped else 0, _OP_T, _OP_N, kind, kind, kind, kind)
    description = _Description(
        *numbers, _COMPUTE_32F, _R_32F, *addresses, ctypes.addressof(alpha), ctypes.addressof(beta)
    )
    return description, sizes, pointers, alpha, beta


def _tensors(linear: Linear, device: str) -> tuple[list[torch.Tensor], ...]:
    gen = torch.Generator().manual_seed(0)

    def make_operand(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=gen).to(linear.dtype).to(device)

    x, w = (
        [make_operand(m, k) for m, _, k in linear.sizes],
        [make_operand(n, k) for _, n, k in linear.sizes],
    )
    return x, w, [torch.empty(m, n, dtype=linear.dtype, device=device) for m, n, _ in linear.sizes]


def _wrong(
    linear: Linear, tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> str:
    """fp32 sums of K products, rounded once: a matrix' relative L2 error is below the dtype's
    unit."""
    for index, (g, e) in enumerate(zip(tensors, expected, strict=True)):
        error = ((g.double() - e.double()).norm() / e.double().norm()).item()
        bound = max(torch.finfo(linear.dtype).eps, linear.sizes[index][2] ** 0.5 * 2.0**-23)
        if not error <= bound:
            return f"gives a wrong result: relative L2 error {error:.2g}, bound {bound:.2g}"
    return ""


def _by_events(run: Callable[[], None], runs: int) -> list[float]:
    """Each between events of torch's current queue; the first two are warm-up."""
    times = []
    for _ in range(runs + 2):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(1e3 * start.elapsed_time(stop))
    return times[2:]


def by_estimates(run: Callable[[], None], runs: int) -> list[float]:
    """The virtual GPU's clock: estimates of what a run launches, which are the same each time.
    Raises ValueError where it launches nothing."""
    from rfops import vgpu

    with vgpu.timing(detail=False) as timed:
        run()
    if not timed.launches:
        raise ValueError("launches no kernel on the virtual GPU")
    return [sum(launch.us for launch in timed.launches)] * runs


# ---------------------------------------------------------------- the table


def read(table: Path) -> list[dict[str, str]]:
    """Raises ConfigError."""
    if not table.is_file():
        return []
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for number, row in enumerate(rows, 2):
        if set(row) != set(_COLUMNS) or None in row.values():
            raise ConfigError(f"{table}, line {number}: expected the columns {','.join(_COLUMNS)}")
    return rows


def pin(table: Path, linear: Linear, library: Library, best: Timed, source: str) -> None:
    """Write the row of this problem, library and architecture in the place of an older one."""
    key = dict(
        zip(
            _COLUMNS,
            (*linear.key, library.version, library.gfx, best.solution, f"{best.us:.2f}", source),
            strict=True,
        )
    )
    table.parent.mkdir(parents=True, exist_ok=True)
    with lock.folder(table.parent):  # another process may pin a row meanwhile
        rows = [r for r in read(table) if any(r[c] != key[c] for c in _COLUMNS[:5])]
        rows = sorted([*rows, key], key=lambda row: [row[c] for c in _COLUMNS[:5]])
        with tempfile.NamedTemporaryFile(
            "w", dir=table.parent, newline="", encoding="utf-8", delete=False
        ) as stream:
            writer = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        Path(stream.name).replace(table)


# ---------------------------------------------------------------- the shim


def _built(include: Iterable[Path]) -> Path:
    """The shim's library, from the cache or built now. Raises ConfigError."""
    compiler = toolchain.host_toolchain()
    folders = [str(folder) for folder in include]
    key_parts = [SHIM.read_text(encoding="utf-8"), compiler.version, *folders]
    for include_dir in include:
        for file in sorted((include_dir / "hipblaslt").glob("*.h*")):
            key_parts.append(file.read_text(encoding="utf-8", errors="replace"))
    key = hashlib.sha256("\0".join(key_parts).encode()).hexdigest()[:40]

    def build(folder: Path) -> Path:
        library = folder / "blaslt_shim.so"
        words = [
            *compiler.argv,
            "-std=c++17",
            "-O1",
            "-w",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-D__HIP_PLATFORM_AMD__=1",
            *(f"-I{f}" for f in folders),
            str(SHIM),
            "-o",
            str(library),
        ]
        result = subprocess.run(
            words, capture_output=True, text=True, check=False, env=toolchain.environment()
        )
        if result.returncode != 0:
            errors = [line for line in result.stderr.splitlines() if "error" in line]
            messages = "; ".join(errors[:3]) or result.stderr[-300:]
            raise ConfigError(
                f"hipBLASLt's headers in {', '.join(folders)} (of ROCm 6.2 or newer): {messages}"
            )
        return library

    return kept.library(key, "blaslt_shim.so", build)
