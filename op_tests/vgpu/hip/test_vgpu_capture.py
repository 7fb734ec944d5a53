"""Stream capture on the virtual GPU: what is recorded, and what breaks a capture."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest
import torch

import rfops
from rfops.jit import compile_ops, f32
from support.vgpu import graphs as g
from support.vgpu.hip import (
    DEFAULT,
    HOST_TO_DEVICE,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    SUCCESS,
    Hip,
    pointer,
)


@pytest.fixture(name="stream")
def stream_fixture(hip: Hip) -> Iterator[c_void_p]:
    """Destroying a stream ends its capture, so no test leaves one to the next."""
    stream = g.stream(hip)
    yield stream
    hip.call("hipStreamDestroy", stream)


def replay(hip: Hip, graph: c_void_p, stream: c_void_p | None = None) -> int:
    exec_ = g.instantiate(hip, graph)
    status = hip.hipGraphLaunch(exec_, stream)
    hip.call("hipGraphExecDestroy", exec_)
    return status


# ------------------------------------------------------------------------------ what is recorded


def test_nothing_runs_while_it_is_recorded(hip: Hip, kernels: c_void_p, stream: c_void_p) -> None:
    out, source, recorded_calls = g.data(), g.data(value=3), []
    note = g.HOST_FUNCTION(lambda _: recorded_calls.append(out[0]))
    g.begin(hip, stream)
    assert g.capture_status(hip, stream) == 1
    arguments = (pointer(out), pointer(source), c_int(10))
    assert hip.launch(hip.function(kernels, "add"), *arguments, block=(64,), stream=stream) == 0
    hip.call("hipMemsetAsync", pointer(out), 1, c_size_t(4), stream)
    hip.call("hipMemcpyAsync", pointer(source), pointer(out), c_size_t(8), DEFAULT, stream)
    hip.call("hipLaunchHostFunc", stream, note, None)
    assert (out == 0).all() and (source == 3).all() and not recorded_calls
    graph = g.end(hip, stream)
    assert g.capture_status(hip, stream) == 0
    assert g.node_types(hip, graph) == [g.KERNEL, g.MEMSET, g.MEMCPY, g.HOST]
    assert g.edges(hip, graph) == {(0, 1), (1, 2), (2, 3)}
    assert (out == 0).all() and not recorded_calls
    assert replay(hip, graph, stream) == SUCCESS
    assert out[0] == 0x01010101 and (out[1:] == 13).all() and recorded_calls == [0x01010101]
    assert source[0] == 0x01010101 and source[1] == 13
    hip.call("hipGraphDestroy", graph)


def test_arguments_are_those_of_the_capture_and_data_that_of_the_replay(
    hip: Hip, kernels: c_void_p, stream: c_void_p
) -> None:
    out, source, c = g.data(), g.data(value=1), c_int(5)
    g.begin(hip, stream)
    function = hip.function(kernels, "add")
    assert hip.launch(function, pointer(out), pointer(source), c, block=(64,), stream=stream) == 0
    graph = g.end(hip, stream)
    c.value = 1000
    exec_ = g.instantiate(hip, graph)
    hip.call("hipGraphDestroy", graph)  # the executable one is on its own
    for value in (1, 7):
        source[:] = value
        previous = out.copy()
        hip.call("hipGraphLaunch", exec_, None)
        np.testing.assert_array_equal(out, previous + value + 5)
    hip.call("hipGraphExecDestroy", exec_)
    assert hip.hipGraphLaunch(exec_, None) == INVALID_VALUE


def test_events_fork_and_join(hip: Hip, kernels: c_void_p, stream: c_void_p) -> None:
    """A diamond: the middle two know nothing of each other, the last waits for both."""
    other, fork, join = g.stream(hip), g.event(hip), g.event(hip)
    out, source = g.data(), g.data()
    function = hip.function(kernels, "add")

    def launch(on: c_void_p, c: int) -> None:
        arguments = (pointer(out), pointer(source), c_int(c))
        assert hip.launch(function, *arguments, block=(64,), stream=on) == 0, hip.error()

    g.begin(hip, stream)
    launch(stream, 1)
    hip.call("hipEventRecord", fork, stream)
    hip.call("hipStreamWaitEvent", other, fork, 0)
    assert g.capture_status(hip, other) == 1
    launch(other, 2)
    launch(stream, 4)
    hip.call("hipEventRecord", join, other)
    hip.call("hipStreamWaitEvent", stream, join, 0)
    launch(stream, 8)
    graph = g.end(hip, stream)
    assert g.capture_status(hip, other) == 0
    assert g.edges(hip, graph) == {(0, 1), (0, 2), (1, 3), (2, 3)}
    assert len(g.nodes(hip, "hipGraphGetRootNodes", graph)) == 1
    assert replay(hip, graph) == SUCCESS and (out == 15).all()
    launch(other, 100)
    assert (out == 115).all(), "the stream is an ordinary one again"
    hip.call("hipStreamDestroy", other)


def test_a_captured_stream_may_be_asked_and_led(
    hip: Hip, kernels: c_void_p, stream: c_void_p
) -> None:
    status, number, graph, needs, count = (
        c_int(),
        ctypes.c_ulonglong(),
        *[c_void_p()] * 2,
        c_size_t(),
    )
    graph, needs = c_void_p(), c_void_p()

    def ask() -> list[int]:
        hip.call(
            "hipStreamGetCaptureInfo_v2",
            stream,
            byref(status),
            byref(number),
            byref(graph),
            byref(needs),
            byref(count),
        )
        return list((c_void_p * count.value).from_address(needs.value)) if count.value else []

    assert ask() == [] and (status.value, number.value, graph.value) == (0, 0, None)
    g.begin(hip, stream)
    assert ask() == [] and status.value == 1 and number.value and graph.value
    out = g.data()
    twice = hip.function(kernels, "twice")
    for _ in range(2):
        assert hip.launch(twice, pointer(out), block=(64,), stream=stream) == 0
    (last,) = ask()
    first = g.nodes(hip, "hipGraphGetNodes", graph)[0]
    by_hand = g.add(hip, graph, "EmptyNode", [c_void_p(first)])
    update = hip.hipStreamUpdateCaptureDependencies
    assert update(stream, byref(by_hand), c_size_t(1), 0) == SUCCESS
    assert ask() == [last, by_hand.value]
    assert update(stream, byref(by_hand), c_size_t(1), 1) == SUCCESS
    assert ask() == [by_hand.value]
    assert update(stream, byref(c_void_p(77)), c_size_t(1), 0) == INVALID_VALUE
    assert update(stream, byref(by_hand), c_size_t(1), 2) == INVALID_VALUE
    assert hip.launch(twice, pointer(out), block=(64,), stream=stream) == 0
    completed = g.end(hip, stream)
    assert completed.value == graph.value and g.edges(hip, completed) == {(0, 1), (0, 2), (2, 3)}
    assert update(stream, None, c_size_t(0), 0) == g.ILLEGAL_STATE


def test_a_capture_can_go_into_a_graph_that_is_there(
    hip: Hip, kernels: c_void_p, stream: c_void_p
) -> None:
    graph, out = g.new_graph(hip), g.data(value=3)
    first = g.add(hip, graph, "EmptyNode", [])
    g.add(hip, graph, "EmptyNode", [])
    to_graph = hip.hipStreamBeginCaptureToGraph
    assert to_graph(stream, graph, byref(first), None, c_size_t(1), g.GLOBAL) == SUCCESS
    assert hip.launch(hip.function(kernels, "twice"), pointer(out), block=(64,), stream=stream) == 0
    assert hip.hipGraphDestroy(graph) == INVALID_VALUE, "not while it is captured into"
    assert g.end(hip, stream).value == graph.value
    assert g.edges(hip, graph) == {(0, 2)}
    assert replay(hip, graph) == SUCCESS and (out == 6).all()


def test_memory_of_a_capture_lives_with_its_graph(hip: Hip, stream: c_void_p) -> None:
    memory, out = c_void_p(), g.data(4)
    g.begin(hip, stream)
    hip.call("hipMallocAsync", byref(memory), c_size_t(16), stream)
    hip.call("hipMemsetAsync", memory, 5, c_size_t(16), stream)
    hip.call("hipMemcpyAsync", pointer(out), memory, c_size_t(16), DEFAULT, stream)
    hip.call("hipFreeAsync", memory, stream)
    graph = g.end(hip, stream)
    assert g.node_types(hip, graph) == [10, g.MEMSET, g.MEMCPY, 11]
    exec_ = g.instantiate(hip, graph)
    hip.call("hipGraphDestroy", graph)
    hip.call("hipGraphLaunch", exec_, stream)
    assert (out == 0x05050505).all()
    hip.call("hipGraphExecDestroy", exec_)
    size = c_size_t()
    assert hip.hipMemPtrGetInfo(memory, byref(size)) == INVALID_VALUE, "freed with the last graph"


def test_a_graph_launched_into_a_capture_is_a_child(
    hip: Hip, kernels: c_void_p, stream: c_void_p
) -> None:
    out = g.data(value=1)
    twice = hip.function(kernels, "twice")
    g.begin(hip, stream)
    for _ in range(2):
        assert hip.launch(twice, pointer(out), block=(64,), stream=stream) == 0
    inner = g.instantiate(hip, g.end(hip, stream))
    g.begin(hip, stream)
    hip.call("hipGraphLaunch", inner, stream)
    assert hip.launch(twice, pointer(out), block=(64,), stream=stream) == 0
    graph = g.end(hip, stream)
    hip.call("hipGraphExecDestroy", inner)
    assert g.node_types(hip, graph) == [g.CHILD, g.KERNEL] and (out == 1).all()
    assert replay(hip, graph) == SUCCESS and (out == 8).all()


def test_a_fault_in_a_replay_is_reported_as_a_launchs(
    hip: Hip, kernels: c_void_p, stream: c_void_p
) -> None:
    offset, out = np.array([8], np.uint64), g.data(value=1)
    g.begin(hip, stream)
    for name, argument in (("twice", out), ("wild", offset), ("twice", out)):
        function = hip.function(kernels, name)
        assert hip.launch(function, pointer(argument), block=(64,), stream=stream) == 0
    assert replay(hip, g.end(hip, stream), stream) == ILLEGAL_ADDRESS
    assert "wild" in hip.error() and "0x8" in hip.error()
    assert (out == 2).all(), "what stood behind the fault did not run"


# ------------------------------------------------------------------------------ what breaks it


def captured_event(hip: Hip, stream: c_void_p) -> c_void_p:
    event = g.event(hip)
    hip.call("hipEventRecord", event, stream)
    return event


def device_memory(hip: Hip) -> c_void_p:
    memory = c_void_p()
    hip.call("hipMalloc", byref(memory), c_size_t(64))
    return memory


BREAKS = {
    "stream sync": (lambda h, s, m: h.hipStreamSynchronize(s), g.CAPTURE_UNSUPPORTED),
    "stream query": (lambda h, s, m: h.hipStreamQuery(s), g.CAPTURE_UNSUPPORTED),
    "device sync": (lambda h, s, m: h.hipDeviceSynchronize(), g.CAPTURE_UNSUPPORTED),
    "event sync": (
        lambda h, s, m: h.hipEventSynchronize(captured_event(h, s)),
        g.CAPTURED_EVENT,
    ),
    "event query": (lambda h, s, m: h.hipEventQuery(captured_event(h, s)), g.CAPTURED_EVENT),
    "malloc": (lambda h, s, m: h.hipMalloc(byref(c_void_p()), c_size_t(64)), g.CAPTURE_UNSUPPORTED),
    "free": (lambda h, s, m: h.hipFree(m), g.CAPTURE_UNSUPPORTED),
    "memcpy": (lambda h, s, m: h.hipMemcpy(m, m, c_size_t(4), HOST_TO_DEVICE), g.CAPTURE_IMPLICIT),
    "memset": (lambda h, s, m: h.hipMemset(m, 0, c_size_t(4)), g.CAPTURE_IMPLICIT),
    "free of other memory": (lambda h, s, m: h.hipFreeAsync(m, s), INVALID_VALUE),
    "null stream waits": (
        lambda h, s, m: h.hipStreamWaitEvent(None, captured_event(h, s), 0),
        g.CAPTURE_IMPLICIT,
    ),
}


@pytest.mark.parametrize("label", BREAKS)
def test_what_may_not_be_called_breaks_the_capture(hip: Hip, stream: c_void_p, label: str) -> None:
    call, status = BREAKS[label]
    memory = device_memory(hip)
    g.begin(hip, stream)
    assert call(hip, stream, memory) == status
    assert hip.hipGetLastError() == status
    assert g.capture_status(hip, stream) == 2
    reason = hip.error()
    count = c_size_t(4)
    assert hip.hipMemsetAsync(memory, 0, count, stream) == g.CAPTURE_INVALIDATED
    assert reason in hip.error()
    assert g.end_status(hip, stream) == g.CAPTURE_INVALIDATED
    assert reason in hip.error(), "the first reason is the one that is told"
    assert g.capture_status(hip, stream) == 0
    hip.call("hipFree", memory)


def test_another_captures_event_and_an_uncaptured_one_break_it(hip: Hip, stream: c_void_p) -> None:
    other = g.stream(hip)
    for on in (stream, other):
        g.begin(hip, on)
    assert hip.hipStreamWaitEvent(stream, captured_event(hip, other), 0) == g.CAPTURE_MERGE
    assert g.end_status(hip, stream) == g.end_status(hip, other) == g.CAPTURE_INVALIDATED
    recorded = captured_event(hip, other)
    g.begin(hip, stream)
    hip.call("hipStreamWaitEvent", stream, g.event(hip), 0)  # never recorded: nothing to wait for
    hip.call("hipStreamWaitEvent", stream, recorded, 1)  # hipEventWaitExternal
    hip.call("hipEventRecordWithFlags", recorded, stream, 1)
    assert hip.hipStreamWaitEvent(stream, recorded, 0) == g.CAPTURE_ISOLATION
    assert g.end_status(hip, stream) == g.CAPTURE_INVALIDATED
    hip.call("hipStreamDestroy", other)


def test_external_events_are_nodes(hip: Hip, stream: c_void_p) -> None:
    event = captured_event(hip, stream)
    g.begin(hip, stream)
    hip.call("hipStreamWaitEvent", stream, event, 1)
    hip.call("hipEventRecordWithFlags", event, stream, 1)
    graph = g.end(hip, stream)
    assert g.node_types(hip, graph) == [g.EVENT_WAIT, g.EVENT_RECORD]
    assert replay(hip, graph) == SUCCESS


@pytest.mark.parametrize("joined", [False, True])
def test_work_that_is_not_joined_is_an_error(
    hip: Hip, kernels: c_void_p, stream: c_void_p, joined: bool
) -> None:
    other, out = g.stream(hip), g.data()
    g.begin(hip, stream)
    hip.call("hipStreamWaitEvent", other, captured_event(hip, stream), 0)
    assert hip.launch(hip.function(kernels, "twice"), pointer(out), block=(64,), stream=other) == 0
    assert hip.hipStreamEndCapture(other, byref(c_void_p())) == g.CAPTURE_UNMATCHED
    if joined:
        hip.call("hipStreamWaitEvent", stream, captured_event(hip, other), 0)
        hip.call("hipGraphDestroy", g.end(hip, stream))
    else:
        assert g.end_status(hip, stream) == g.CAPTURE_UNJOINED
        assert "record an event behind it" in hip.error()
    assert g.capture_status(hip, stream) == g.capture_status(hip, other) == 0
    hip.call("hipStreamDestroy", other)


def test_the_null_stream_beside_a_stream_that_waits_for_it(hip: Hip, kernels: c_void_p) -> None:
    out, twice = g.data(value=1), hip.function(kernels, "twice")
    for flags, status in ((g.NON_BLOCKING, SUCCESS), (0, g.CAPTURE_IMPLICIT)):
        stream = g.stream(hip, flags)
        g.begin(hip, stream)
        assert hip.launch(twice, pointer(out), block=(64,)) == status
        assert hip.hipStreamIsCapturing(None, byref(c_int())) == status
        graph = c_void_p()
        ended = hip.hipStreamEndCapture(stream, byref(graph))
        assert ended == (g.CAPTURE_INVALIDATED if status else SUCCESS)
        hip.call("hipStreamDestroy", stream)
    assert (out == 2).all(), "run once, at once"


def test_captures_that_cannot_begin_or_end(hip: Hip, stream: c_void_p) -> None:
    assert hip.hipStreamBeginCapture(None, g.GLOBAL) == g.CAPTURE_UNSUPPORTED
    assert "create a stream" in hip.error()
    assert hip.hipStreamBeginCapture(stream, 3) == INVALID_VALUE
    assert hip.hipStreamEndCapture(stream, byref(c_void_p())) == g.ILLEGAL_STATE
    g.begin(hip, stream)
    assert hip.hipStreamBeginCapture(stream, g.GLOBAL) == g.ILLEGAL_STATE
    assert hip.hipStreamEndCapture(stream, None) == INVALID_VALUE
    statuses: list[int] = []
    thread = threading.Thread(
        target=lambda: statuses.append(hip.hipStreamEndCapture(stream, byref(c_void_p())))
    )
    thread.start()
    thread.join()
    assert statuses == [g.CAPTURE_WRONG_THREAD]
    g.end(hip, stream)


@pytest.mark.parametrize("mode", [g.GLOBAL, g.THREAD_LOCAL, g.RELAXED])
def test_modes_decide_whose_allocations_break_it(hip: Hip, stream: c_void_p, mode: int) -> None:
    memory, statuses = c_void_p(), []

    def allocate() -> int:
        return hip.hipMalloc(byref(memory), c_size_t(64))

    def elsewhere() -> None:
        statuses.append(allocate())
        own = c_int(g.RELAXED)
        hip.call("hipThreadExchangeStreamCaptureMode", byref(own))
        statuses.extend((own.value, allocate()))

    g.begin(hip, stream, mode)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    refused = g.CAPTURE_UNSUPPORTED
    assert statuses == [refused if mode == g.GLOBAL else SUCCESS, g.GLOBAL, SUCCESS]
    own = c_int(g.RELAXED)
    hip.call("hipThreadExchangeStreamCaptureMode", byref(own))
    assert allocate() == SUCCESS, "a relaxed thread answers for itself"
    hip.call("hipThreadExchangeStreamCaptureMode", byref(own))
    assert own.value == g.RELAXED
    assert allocate() == (SUCCESS if mode == g.RELAXED else refused)
    assert g.capture_status(hip, stream) == (1 if mode == g.RELAXED else 2)


def test_a_stream_destroyed_under_capture_ends_or_breaks_it(hip: Hip, stream: c_void_p) -> None:
    for first in (True, False):
        origin, other = g.stream(hip), g.stream(hip)
        g.begin(hip, origin)
        hip.call("hipStreamWaitEvent", other, captured_event(hip, origin), 0)
        hip.call("hipStreamDestroy", origin if first else other)
        if first:
            assert g.capture_status(hip, other) == 0
        else:
            assert g.end_status(hip, origin) == g.CAPTURE_INVALIDATED
        hip.call("hipStreamDestroy", other if first else origin)
    hip.call("hipMalloc", byref(c_void_p()), c_size_t(64))


# ------------------------------------------------------------------------------ rfops's own ops


@pytest.mark.parametrize("launcher", ["auto", "ctypes"])
def test_an_op_is_captured_and_replayed_with_new_data(
    hip: Hip, stream: c_void_p, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFOPS_LAUNCHER", launcher)
    generator = torch.Generator().manual_seed(4)

    def problem() -> list[torch.Tensor]:
        x = rfops.quant_mxfp8(torch.randn(2, 512, generator=generator))
        w = rfops.quant_mxfp8(torch.randn(64, 512, generator=generator))
        return [x[0], w[0], x[1], w[1]]

    static, out = problem(), torch.full((2, 64), float("nan"), dtype=torch.bfloat16)
    rfops.gemm_mxfp8(*static, out=out)  # builds and binds
    g.begin(hip, stream)
    out.fill_(float("nan"))
    with g.null_stream(hip, stream):
        rfops.gemm_mxfp8(*static, out=out)
    assert out.isnan().all()
    graph = g.end(hip, stream)
    assert set(g.node_types(hip, graph)) == {g.KERNEL}
    exec_ = g.instantiate(hip, graph)
    for _ in range(2):
        for old, new in zip(static, problem(), strict=True):
            old.copy_(new)
        hip.call("hipGraphLaunch", exec_, None)
        assert torch.equal(out, rfops.gemm_mxfp8(*static))


def test_a_bound_kernel_takes_the_captured_stream(
    hip: Hip, stream: c_void_p, tmp_path: Path
) -> None:
    (tmp_path / "fill.hip").write_text(
        'extern "C" __attribute__((global)) void fill(float* out, float value) {\n'
        "  out[__builtin_amdgcn_workitem_id_x()] = value;\n}\n"
    )
    config = tmp_path / "config.json"
    config.write_text('{"fill": {"srcs": ["fill.hip"]}}')

    @compile_ops("fill", config=config)
    def fill(out: torch.Tensor, value: f32) -> None: ...

    out = torch.zeros(64)
    bound = fill.bind("cpu")
    g.begin(hip, stream)
    bound.launch(grid=(1, 1, 1), block=(64, 1, 1), args=(out, 2.5), stream=stream.value)
    assert (out == 0).all()
    assert replay(hip, g.end(hip, stream)) == SUCCESS and (out == 2.5).all()
