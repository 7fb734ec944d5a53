"""A program for `rfops run`: what programs do with torch.cuda around their kernels.

test_run.py runs it once. Each case raises if something is wrong; the result of each case, "" or its
error, is printed as JSON.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN205

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import sys
import threading
import traceback
import warnings

importlib.util.find_spec("torch")  # programs look whether it is there before they import it
import torch  # noqa: E402

CASES = []


def case(function):
    CASES.append(function)
    return function


def ones(*sizes, **options):
    return torch.ones(*sizes, device="cuda", **options)


@case
def each_name_works_or_is_refused():
    """Of torch.cuda.__all__, called with arguments that it takes."""
    arguments = {
        "can_device_access_peer": (0, 0), "caching_allocator_alloc": (4,),
        "caching_allocator_delete": (0,), "change_current_allocator": (None,), "check_error": (0,),
        "get_stream_from_external": (0,), "make_graphed_callables": (abs, ()), "manual_seed": (1,),
        "manual_seed_all": (1,), "set_device": (0,), "set_per_process_memory_fraction": (0.5,),
        "set_rng_state": (torch.get_rng_state(),), "set_rng_state_all": ([torch.get_rng_state()],),
        "set_stream": (None,), "set_sync_debug_mode": (0,), "use_mem_pool": (None,),
        "ExternalStream": (0,), "StreamContext": (None,), "stream": (None,), "device": (0,),
        "device_of": (torch.zeros(1),), "graph": (None,), "caching_allocator_enable": (True,),
        "CUDAPluggableAllocator": ("a", "b", "c"), "DeferredCudaCallError": ("x",),
        "export_dot": ("graph.dot",), "export_graph_data": ("graph.json",),
    }  # fmt: skip
    mismatches = []
    for name in torch.cuda.__all__:
        function = getattr(torch.cuda, name)
        if not callable(function) or name == "CudaError":  # raised by check_error alone
            continue
        try:
            function(*arguments.get(name, ()))
        except Exception as error:
            if not str(error).startswith("rfops run: torch.cuda."):
                mismatches.append(f"{name}: {error!r}")
    assert not mismatches, mismatches


@case
def what_torch_lacks_is_absent_and_says_why():
    assert not hasattr(torch._C, "_cuda_no_such_thing") and not hasattr(torch._C, "nothing")
    if torch.version.cuda:
        return  # a build for CUDA lacks nothing
    try:
        torch._C._cuda_getCurrentBlasHandle()
    except AttributeError as error:
        assert str(error).startswith("rfops run: torch._C._cuda_getCurrentBlasHandle needs")


@case
def a_seed_of_the_gpu_is_heeded():
    for seed in (torch.cuda.manual_seed, torch.cuda.manual_seed_all, torch.manual_seed):
        seed(3)
        sample = torch.rand(3, device="cuda")
        seed(3)
        assert torch.equal(sample, torch.rand(3, device="cuda")), seed


@case
def the_state_of_random_numbers():
    for get, set_state in (
        (torch.cuda.get_rng_state, lambda state: torch.cuda.set_rng_state(state, "cuda:0")),
        (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),
    ):
        state = get()
        sample = torch.rand(3, device="cuda")
        set_state(state)
        with torch.random.fork_rng():
            torch.rand(9, device="cuda")
        assert torch.equal(sample, torch.rand(3, device="cuda"))


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * ones(x.shape)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.full(grad.shape, 2.0, device="cuda")


@case
def backward_calls_python():
    """A function, a hook, a checkpoint, in another thread, in torch.func."""
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(4, device="cuda", requires_grad=True)
    Function.apply(x).sum().backward()
    assert x.grad.tolist() == [2] * 4
    y = x * 3
    y.register_hook(lambda grad: grad * torch.full((4,), 2.0, device="cuda"))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [6] * 4
    for reentrant in (False, True):
        x.grad = None
        checkpoint(lambda x: x * ones(4), x, use_reentrant=reentrant).sum().backward()
        assert x.grad.tolist() == [1] * 4
    x.grad = None
    thread = threading.Thread(target=lambda: Function.apply(x).sum().backward())
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2] * 4
    assert torch.func.grad(lambda x: (x * ones(())).sum())(ones(2)).tolist() == [1] * 2


@case
def torch_load_to_the_gpu():
    file = io.BytesIO()
    torch.save(ones(3), file)
    positions = ("cuda", torch.device("cuda", 0), {"cpu": "cuda:0"}, lambda data, _: data.cuda())
    for location in positions:
        file.seek(0)
        assert torch.load(file, map_location=location).tolist() == [1] * 3
    stored = torch.zeros(3)
    stored.untyped_storage().cuda().fill_(1)
    assert stored.tolist() == [0] * 3, "a move copies"


@case
def a_refused_function_still_wraps_what_torch_has():
    """torch._dynamo of 2.14 asks as it is imported, which every optimizer does."""
    assert inspect.isgeneratorfunction(torch.cuda.use_mem_pool.__wrapped__)


@case
def autocast_of_the_gpu():
    a = ones(4, 4)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (a @ a).dtype is torch.bfloat16
    with torch.autocast(device_type="cuda"):
        assert (a @ a).dtype is torch.float16, "a GPU's default"
    with torch.autocast("cuda", enabled=False):
        assert (a @ a).dtype is torch.float32
    compiled = torch.compile(in_bf16, backend="eager", fullgraph=True)
    assert compiled(a).dtype is torch.bfloat16


def in_bf16(a):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return a @ a


@case
def training_with_a_scaler():
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(ones(2, 4)).sum()).backward()
    scaler.unscale_(optimizer)
    assert model.bias.grad.tolist() == [2] * 4
    scaler.step(optimizer)
    scaler.update()


@case
def streams_differ():
    default = torch.cuda.default_stream()
    a, b = torch.cuda.Stream(), torch.cuda.Stream(device="cuda", priority=-1)
    assert torch.cuda.current_stream() == default and default.cuda_stream == 0
    assert len({default, a, b}) == len({0, a.cuda_stream, b.cuda_stream}) == 3
    with torch.cuda.stream(a):
        assert torch.cuda.current_stream() is a
        with torch.cuda.stream(b), torch.cuda.stream(None):
            assert torch.cuda.current_stream() == torch.cuda.ExternalStream(b.cuda_stream)
        assert torch.cuda.current_stream() == a != b
    recorded_calls = []
    torch.cuda.set_stream(a)
    thread = threading.Thread(target=lambda: recorded_calls.append(torch.cuda.current_stream()))
    thread.start()
    thread.join()
    assert torch.cuda.current_stream() == a and recorded_calls == [default]
    torch.cuda.set_stream(default)
    ones(2).record_stream(a)
    a.wait_event(b.record_event())


@case
def an_event_of_any_device():
    events = torch.Event(), torch.Event("cuda", enable_timing=True), torch.Event(enable_timing=True)
    for event in events:
        event.record()
        event.synchronize()
        assert event.query()
    assert events[1].elapsed_time(events[2]) >= 0


@case
def memory_is_stable():
    previous = torch.cuda.mem_get_info()
    block = ones(1 << 26)
    assert torch.cuda.mem_get_info() == torch.cuda.mem_get_info(0) == previous and block.is_cuda
    free, total = previous
    assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
    assert free >= 0.92 * total, "engines want that share at their start"
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0


@case
def a_dtype_may_be_a_type_of_python():
    for kind, dtype in ((bool, torch.bool), (int, torch.int64), (float, torch.float64)):
        assert ones(2, dtype=kind).dtype is dtype
        assert torch.zeros((2, 3), device="cuda", dtype=kind).dtype is dtype


@case
def ops_of_rfops_run():
    import rfops

    weights, ids = rfops.topk_softmax(torch.randn(3, 8, device="cuda"), 2, True)
    assert weights.shape == ids.shape == (3, 2)
    assert torch.allclose(weights.sum(1), ones(3), atol=1e-5)


@case
def names_of_types_and_devices():
    half = torch.zeros(2).type("torch.cuda.HalfTensor")
    assert half.dtype is torch.float16 and half.get_device() == 0
    assert isinstance(torch.cuda.FloatTensor([1, 2]), torch.cuda.FloatTensor)
    for device in (0, "cuda:0", torch.device(0), torch.accelerator.current_accelerator()):
        assert torch.zeros(1, device=device).is_cuda and torch.zeros(1).to(device).is_cuda
    assert str(torch.device(0)) == "cuda:0" and torch.accelerator.device_count() == 1


@case
def graphs_are_classes():
    def annotated(graph: torch.cuda.CUDAGraph | None) -> torch.cuda.graph | None: ...

    class Subclass(torch.cuda.CUDAGraph): ...

    assert not isinstance(0, torch.cuda.CUDAGraph) and issubclass(Subclass, torch.cuda.CUDAGraph)
    assert torch.cuda.graphs.CUDAGraph is torch.cuda.CUDAGraph
    for make in (Subclass, torch.cuda.CUDAGraph, lambda: torch.cuda.graph(None)):
        try:
            make()
        except RuntimeError as error:
            assert str(error).startswith("rfops run: torch.cuda."), error
            assert "one launch the kernels without a graph" in str(error)
        else:
            raise AssertionError("made")


@case
def operators_for_cuda_alone():
    """By a library, a function's name and custom_op; torch leaves our mode while it runs them."""
    library = torch.library.Library("cases", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x + ones(2), "CUDA")
    torch.library.define("cases::g", "(Tensor x) -> Tensor")
    torch.library.impl("cases::g", "cuda", lambda x: x + ones(2))
    library.define("h(Tensor x) -> Tensor")
    kernels = torch.library.Library("cases", "IMPL", "CUDA")
    torch.library.impl(kernels, "h")(lambda x: x + ones(2))
    for name in "fgh":
        assert getattr(torch.ops.cases, name)(ones(2)).tolist() == [2, 2], name


@case
def operators_with_two_kernels():
    """The GPU's is the one that a program on a GPU runs, whichever is registered first."""
    for first_device in ("cpu", "cuda"):
        name = f"cases::{first_device}_first"
        for device in (first_device, "cuda" if first_device == "cpu" else "cpu"):
            step = {"cpu": 1, "cuda": 2}[device]
            if device == first_device:
                op = custom_op(name, device, step)
            else:
                op.register_kernel(device)(lambda x, step=step: x + step)
        op.register_autograd(lambda ctx, grad: grad * torch.full((), 5.0, device="cuda"))
        x = torch.zeros(2, device="cuda", requires_grad=True)
        y = op(x)
        y.sum().backward()
        assert (y.tolist(), x.grad.tolist()) == ([2, 2], [5, 5]), first_device
        compiled = torch.compile(lambda x, op=op: op(x) * 2, backend="eager", fullgraph=True)
        assert compiled(torch.zeros(2, device="cuda")).tolist() == [4, 4]


def custom_op(name, device, step):
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + step

    function.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    result = torch.library.custom_op(name, function, mutates_args=(), device_types=device)
    result.register_fake(torch.empty_like)
    return result


@case
def torch_compile():
    """Devices inside a graph, and what is_cuda is in one."""
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(in_a_graph, backend=backend, fullgraph=True, dynamic=True)
        for n in (4, 6):
            x = torch.zeros(n, device="cuda", requires_grad=True)
            y = compiled(x)
            y.backward()
            assert (y.item(), x.grad.tolist()) == (2 * n, [1] * n), backend


def in_a_graph(x):
    y = ones(x.shape[0]) + x.to("cuda") + torch.zeros(x.shape[0]).cuda()
    if x.is_cuda:
        y = y + 1
    return y.sum()


@case
def loads_by_pinned_memory():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    batches = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
    assert sum(x.cuda(non_blocking=True).sum().item() for (x,) in batches) == 28


@case
def ranges_for_a_profiler():
    with torch.cuda.nvtx.range("range"):
        torch.cuda.nvtx.mark("mark")
    torch.cuda.nvtx.range_push("pushed")
    torch.cuda.nvtx.range_pop()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    results = {}
    for function in CASES:
        try:
            function()
            results[function.__name__] = ""
        except BaseException as error:
            traceback.print_exc()
            results[function.__name__] = f"{type(error).__name__}: {error}"
    json.dump(results, sys.stdout)
