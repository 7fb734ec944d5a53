"""A Python signature against the kernel it claims to describe, and the launch."""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rfops
from rfops.dispatch.compare import assert_within
from rfops.jit import CompiledOp, compile_ops, f32, i16, i32, i64, u32, u64
from rfops.jit.arch import of_code_object
from rfops.jit.cache.code_object import Argument
from rfops.jit.launch import hip, signature
from support.engine_project import EVERY_SCALAR, VALUES, Project, run_in, scalars


def declare(project: Project, function: Callable[..., None]) -> CompiledOp:
    return compile_ops("axpy", config=project.config, kernel="axpy")(function)


# ---------------------------------------------------------------- drift


def missing(out: torch.Tensor, x: torch.Tensor, a: f32) -> None: ...


def extra(out: torch.Tensor, x: torch.Tensor, a: f32, n: i32, k: i32) -> None: ...


def wider(out: torch.Tensor, x: torch.Tensor, a: f32, n: i64) -> None: ...


def narrower(out: torch.Tensor, x: torch.Tensor, a: f32, n: i16) -> None: ...


def value_for_pointer(out: torch.Tensor, x: u64, a: f32, n: i32) -> None: ...


def pointer_for_value(out: torch.Tensor, x: torch.Tensor, a: torch.Tensor, n: i32) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            missing,
            "argument 3: signature has nothing, kernel has 4-byte by_value at offset 20",
        ),
        (extra, "axpy: argument 4: signature has k: 4-byte value, kernel has no more"),
        (wider, "argument 3: signature has n: 8-byte value, kernel has 4-byte by_value"),
        (narrower, "argument 3: signature has n: 2-byte value, kernel has 4-byte by_value"),
        (value_for_pointer, "argument 1: signature has x: 8-byte value, kernel has 8-byte global"),
        (pointer_for_value, "argument 2: signature has a: tensor, kernel has 4-byte by_value"),
    ],
)
def test_drift(project: Project, function: Callable[..., None], message: str) -> None:
    with pytest.raises(rfops.BindError, match=message):
        declare(project, function).bind("cpu")


@pytest.mark.parametrize(
    "parameters, message",
    [
        ("f32* o, f32 eps, const u32 k", ""),
        ("f32* o, /* a, b */ float eps, // c, d\n unsigned k", ""),
        ("f32* o, MyFloat eps, MyInt k", ""),  # not looked at
        (
            "f32* o, f32 eps, f32 k",
            r"spin: argument 2, k, must be annotated as a scalar of kind float, as in the kernel "
            r"\(f32\), got int\. Annotate",
        ),
        (
            "f32* o, uint32_t eps, u32 k",
            r"spin: argument 1, eps, must be .* of kind int, .* float\.",
        ),
    ],
)
def test_a_number_of_another_kind(parameters: str, message: str, tmp_path: Path) -> None:
    """Of the same size, which the code object does not tell apart."""
    source = f'extern "C" __global__ void __attribute__((x)) spin({parameters}) {{ spin_more(k); }}'
    (tmp_path / "m.hip").write_text(source)
    (tmp_path / "config.json").write_text('{"m": {"srcs": ["m.hip"], "archs": ["gfx950"]}}')

    def spin(o: torch.Tensor, eps: f32, k: u32) -> None: ...

    op = compile_ops("m", kernel="spin", config=tmp_path / "config.json")(spin)
    if message:
        with pytest.raises(rfops.BindError, match=message):
            _ = op.parameters
    else:
        assert [p.name for p in op.parameters] == ["o", "eps", "k"]


def test_a_kernel_that_is_not_there(project: Project) -> None:
    op = compile_ops("axpy", config=project.config, kernel="saxpy")(extra)
    with pytest.raises(rfops.BindError, match="axpy: no kernel 'saxpy'; it has axpy"):
        op.bind("cpu")


def test_annotations_that_mean_nothing(project: Project) -> None:
    def plain(out: torch.Tensor, n: int) -> None: ...

    with pytest.raises(rfops.BindError, match=r"parameter n must be annotated torch\.Tensor or a"):
        declare(project, plain).bind("cpu")


def test_an_op_is_not_called(project: Project) -> None:
    with pytest.raises(TypeError, match=r"\.bind\(device, defines\)\.launch"):
        project.op()(torch.empty(1))


# ---------------------------------------------------------------- layout


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_every_scalar(project: Project, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes with padding between them, at their extremes; None is a null pointer."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    project.source.write_text(EVERY_SCALAR)
    bound = compile_ops("axpy", config=project.config)(scalars).bind("cpu")
    assert bound.meta["arch"] == arch
    expected = torch.tensor([*VALUES, 4.5], dtype=torch.float64)
    expected[8] = torch.tensor(0.1, dtype=torch.float32).double()
    for last in (torch.tensor([4.5], dtype=torch.float64), None):
        out = torch.full((12,), torch.nan, dtype=torch.float64)
        bound.launch((1, 1, 1), (1, 1, 1), (out, *VALUES, last))
        expected[11] = -1.0 if last is None else 4.5
        assert_within(out, expected, 0.0)


def test_format_has_the_offsets_of_the_kernel() -> None:
    args = [
        Argument(0, 1, "by_value"),
        Argument(8, 8, "global_buffer"),
        Argument(20, 4, "by_value"),
    ]
    kinds = [signature.Scalar("b", 1), None, signature.Scalar("I", 4)]
    parameters = [signature.Parameter("p", kind) for kind in kinds]
    assert signature.struct_format(args, parameters) == "<0xb7xQ4xI"


# ---------------------------------------------------------------- launch


def test_wrong_arguments(project: Project) -> None:
    bound = project.op().bind("cpu")
    out, one = torch.empty(4), (1, 1, 1)
    for args, message in (
        ((out, out, 1.0), "axpy: 4 arguments expected, got 3"),
        ((out, out, 1.0, 4, 4), "axpy: 4 arguments expected, got 5"),
        ((out, 3, 1.0, 4), "axpy: argument x must be a tensor or None, got 3"),
        ((out, out, "1", 4), "axpy: argument a must be a number that a float of .*, got '1'"),
        (
            (out, out, 1.0, 2**31),
            r"axpy: argument n must be an int .* to \d+7, got 2147483648",
        ),
        ((out, out, 1.0, out), "axpy: argument n must be an int from .*, got tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            bound.launch(one, one, args)


def test_a_failing_launch(project: Project) -> None:
    """The text of the runtime reaches the caller; the next launch is none the worse."""
    op = project.op()
    bound = op.bind("cpu")
    out = torch.empty(4)
    with pytest.raises(rfops.HipError, match=r"hipModuleLaunchKernel\(axpy\) failed") as caught:
        bound.launch((1, 1, 1), (2048, 1, 1), (out, out, 1.0, 4))
    assert caught.value.code != 0 and caught.value.text
    assert project.run(op)[3] == 6.0


def test_an_access_out_of_bounds_names_the_kernel(project: Project) -> None:
    with pytest.raises(rfops.HipError, match="axpy"):
        project.op().bind("cpu").launch((1, 1, 1), (64, 1, 1), (None, None, 1.0, 64))


def test_threads_share_a_kernel(project: Project) -> None:
    """Each launch has its own argument buffer."""
    bound = project.op().bind("cpu")
    mismatches = []

    def work(factor: float) -> None:
        x, out = torch.arange(64, dtype=torch.float32), torch.empty(64)
        for _ in range(50):
            out.fill_(torch.nan)
            bound.launch((1, 1, 1), (64, 1, 1), (out, x, factor, 64))
            if not torch.equal(out, factor * x):
                mismatches.append(factor)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mismatches


def test_both_architectures_in_one_process(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = project.op()
    for arch in ("gfx942", "gfx950", "gfx942"):
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
        assert op.bind("cpu").meta["arch"] == arch
        assert project.run(op)[5] == 10.0


def test_devices_without_a_kernel(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rfops.UnsupportedArch, match="no kernel for device type 'meta'"):
        project.op().bind("meta")
    if not torch.version.hip:
        with pytest.raises(rfops.UnsupportedArch, match="no kernel for an NVIDIA GPU"):
            project.op().bind("cuda:0")
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx90a")
    with pytest.raises(rfops.ConfigError, match="RFOPS_VGPU_ARCH='gfx90a': expected one of gfx942"):
        project.op().bind("cpu")


def test_a_code_object_of_another_arch_is_refused(project: Project) -> None:
    """By the runtime, with both names, should one ever reach it."""
    artifact = project.op().build("gfx942")
    runtime = hip.runtime(torch.device("cpu"))
    runtime.select_arch("gfx950")
    with pytest.raises(rfops.HipError, match=r"(?s)gfx942.*gfx950|gfx950.*gfx942"):
        runtime.load(artifact.file.read_bytes(), "axpy")


def test_a_code_object_of_another_arch_is_refused_by_us(project: Project) -> None:
    """Before a runtime sees it: some crash. Such a file can only come from outside of the cache."""
    runtime = hip.runtime(torch.device("cpu"))
    for arch, other in (("gfx942", "gfx950"), ("gfx950", "gfx942")):
        code = project.op().build(arch).file.read_bytes()
        assert of_code_object(code) == arch
        with pytest.raises(rfops.UnsupportedArch, match=f"no kernel for {other}; .* {arch}"):
            runtime.load(code, "axpy", other)
    for code in (b"", b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__" + bytes(100)):
        assert of_code_object(code) == ""


@pytest.mark.parametrize("library", ["absent.so", "text.so", "libc.so.6"])
def test_a_library_that_is_no_hip_runtime(
    project: Project, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    file = project.root / library
    if library == "text.so":
        file.write_text("text")
    if library == "libc.so.6":  # a library, and without HIP's functions
        maps = Path("/proc/self/maps").read_text()
        file = next(Path(line.split()[-1]) for line in maps.splitlines() if "libc.so" in line)
    monkeypatch.setenv("RFOPS_HIP_LIBRARY", str(file))
    with pytest.raises(rfops.ConfigError, match=f"^{file} is no HIP runtime: "):
        project.op().bind("cpu")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_another_kind(project: Project, method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(run_in, (str(project.root),)) == 2.0 * sum(range(100))


def test_errors_can_be_pickled() -> None:
    """One that cannot be leaves a pool of processes waiting for ever."""
    for error in (
        rfops.BuildError("m", ["cc", "-c"], "text", Path("/log"), "cause"),
        rfops.ToolchainNotFound("x", ["a", "b"], "advice"),
        rfops.UnsupportedArch("m", "gfx90a", ("gfx942",)),
        rfops.HipError("hipInit", 3, "text"),
        rfops.JitDisabled("reason", "m gfx950", "rfops build m"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error) and vars(copy) == vars(error)


# ---------------------------------------------------------------- the path of a ROCm torch


class FakeRocm:
    """torch.cuda of a ROCm build with two GPUs; the HIP runtime behind it is the virtual GPU's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: list[int] = []
        self.stream = ctypes.c_void_p()
        names = ("gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-")
        fakes = {
            "init": lambda: None,
            "current_device": lambda: 0,
            "device": self.device,
            "get_device_properties": lambda i: SimpleNamespace(gcnArchName=names[i]),
            "current_stream": lambda _=None: SimpleNamespace(cuda_stream=self.stream.value or 0),
        }
        monkeypatch.setattr(torch.version, "hip", "7.0")
        monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", False)  # of a build for CUDA
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(hip, "_gpu_arch", hip._gpu_arch.__wrapped__)

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.entered.append(index)
        yield


def test_a_rocm_tensor_goes_to_its_gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its architecture, its device, torch's stream, and the HIP runtime that torch has loaded."""
    runtime = hip.runtime(torch.device("cpu"))
    runtime.select_arch("gfx950")  # it stands for the second GPU here
    loaded = runtime.path
    rocm = FakeRocm(monkeypatch)
    monkeypatch.delenv("RFOPS_HIP_LIBRARY")
    gpu = torch.device("cuda", 1)
    assert hip.device_arch(gpu) == "gfx950" and hip.device_arch(torch.device("cuda")) == "gfx942"
    bound = project.op().bind(gpu)
    assert bound.meta["arch"] == "gfx950" and rocm.entered == [1]
    assert bound.hip.path.name == "libamdhip64.so" and bound.hip.path.samefile(loaded)
    create = ctypes.CDLL(str(loaded)).hipStreamCreate
    assert create(ctypes.byref(rocm.stream)) == 0 and rocm.stream.value
    launched = []
    real = bound.hip.launch_kernel
    monkeypatch.setattr(
        bound.hip, "launch_kernel", lambda *args: (launched.append(args[8]), real(*args))[1]
    )
    x, out = torch.arange(64, dtype=torch.float32), torch.empty(64)
    bound.launch((1, 1, 1), (64, 1, 1), (out, x, 3.0, 64))
    assert torch.equal(out, 3 * x)
    assert launched == [rocm.stream.value] and rocm.entered == [1, 1]
    bound.launch((1, 1, 1), (64, 1, 1), (out, x, 3.0, 64), stream=0)
    assert launched[1] == 0, "a stream that is given is taken"


def test_cuda_without_an_index_is_the_current_gpu(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRocm(monkeypatch)
    hip.runtime(torch.device("cpu")).select_arch("gfx942")  # it stands for the first GPU here
    op = project.op()
    assert op.bind("cuda") is op.bind("cuda:0")
    assert op.bind("cuda").meta["arch"] == "gfx942"
