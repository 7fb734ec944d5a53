"""What test_vgpu_graphs.py and test_vgpu_capture.py share: HIP's structs, streams, kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_void_p

import numpy as np
import pytest

from support.vgpu.hip import SUCCESS, Hip, compile_hip

KERNEL, MEMCPY, MEMSET, HOST, CHILD, EMPTY, EVENT_WAIT, EVENT_RECORD = range(8)
ILLEGAL_STATE, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_MERGE = 401, 900, 901, 902
CAPTURE_UNMATCHED, CAPTURE_UNJOINED, CAPTURE_ISOLATION, CAPTURE_IMPLICIT = 903, 904, 905, 906
CAPTURED_EVENT, CAPTURE_WRONG_THREAD, UPDATE_FAILURE = 907, 908, 910
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
NON_BLOCKING = 1
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)

# add: out[i] += in[i] + c; every node of an order shows in what is left in out.
SOURCE = r"""
#define __global__ __attribute__((global))
extern "C" __global__ void add(int* out, const int* in, int c) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  out[i] += in[i] + c;
}
extern "C" __global__ void twice(int* out) { out[__builtin_amdgcn_workitem_id_x()] *= 2; }
extern "C" __global__ void wild(int** at) { **at = 1; }
"""


@pytest.fixture(scope="session")
def graph_image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_hip(SOURCE, "gfx950", tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def kernels(hip: Hip, graph_image: bytes) -> Iterator[c_void_p]:
    """The module of SOURCE."""
    module = hip.load(graph_image)
    yield module
    hip.call("hipModuleUnload", module)


class Dim3(ctypes.Structure):
    _fields_ = [(name, c_uint) for name in "xyz"]


class KernelParams(ctypes.Structure):
    _fields_ = [
        ("block", Dim3),
        ("extra", POINTER(c_void_p)),
        ("func", c_void_p),
        ("grid", Dim3),
        ("params", POINTER(c_void_p)),
        ("lds", c_uint),
    ]


class MemsetParams(ctypes.Structure):
    _fields_ = [
        ("dst", c_void_p),
        ("element", c_uint),
        ("height", c_size_t),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("width", c_size_t),
    ]


class HostParams(ctypes.Structure):
    _fields_ = [("fn", HOST_FUNCTION), ("data", c_void_p)]


class Volume(ctypes.Structure):
    _fields_ = [("ptr", c_void_p), ("pitch", c_size_t), ("xsize", c_size_t), ("ysize", c_size_t)]


class Extent(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in "xyz"]


class CopyParams(ctypes.Structure):
    _fields_ = [
        ("src_array", c_void_p),
        ("src_pos", Extent),
        ("src", Volume),
        ("dst_array", c_void_p),
        ("dst_pos", Extent),
        ("dst", Volume),
        ("extent", Extent),
        ("kind", c_int),
    ]


class Arguments:
    """kernelParams of some values, kept while they are needed."""

    def __init__(self, *values: object) -> None:
        self.values = values
        self.array = (c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))


def kernel_params(function: c_void_p, arguments: Arguments, lanes: int = 64) -> KernelParams:
    params = ctypes.cast(arguments.array, POINTER(c_void_p))
    result = KernelParams(Dim3(lanes, 1, 1), None, function, Dim3(1, 1, 1), params, 0)
    result.keep = arguments  # the values that it points to
    return result


def data(count: int = 64, value: int = 0) -> np.ndarray:
    return np.full(count, value, np.int32)


def stream(hip: Hip, flags: int = NON_BLOCKING) -> c_void_p:
    result = c_void_p()
    hip.call("hipStreamCreateWithFlags", byref(result), flags)
    return result


def event(hip: Hip) -> c_void_p:
    result = c_void_p()
    hip.call("hipEventCreate", byref(result))
    return result


def begin(hip: Hip, stream: c_void_p, mode: int = GLOBAL) -> None:
    hip.call("hipStreamBeginCapture", stream, mode)


def end(hip: Hip, stream: c_void_p) -> c_void_p:
    graph = c_void_p()
    hip.call("hipStreamEndCapture", stream, byref(graph))
    return graph


def end_status(hip: Hip, stream: c_void_p) -> int:
    """Of an end that gives no graph."""
    graph = c_void_p(1)
    status = hip.hipStreamEndCapture(stream, byref(graph))
    assert status != SUCCESS and not graph.value
    return status


def capture_status(hip: Hip, stream: c_void_p) -> int:
    status = c_int(-1)
    hip.call("hipStreamIsCapturing", stream, byref(status))
    return status.value


def instantiate(hip: Hip, graph: c_void_p) -> c_void_p:
    result, wrong = c_void_p(), c_void_p()
    log = ctypes.create_string_buffer(8)
    hip.call("hipGraphInstantiate", byref(result), graph, byref(wrong), log, c_size_t(8))
    return result


def new_graph(hip: Hip) -> c_void_p:
    graph = c_void_p()
    hip.call("hipGraphCreate", byref(graph), 0)
    return graph


def nodes(hip: Hip, entry: str, handle: c_void_p) -> list[int]:
    """What one of HIP's list queries gives."""
    count = c_size_t()
    hip.call(entry, handle, None, byref(count))
    result = (c_void_p * max(1, count.value))()
    hip.call(entry, handle, result, byref(count))
    return list(result)[: count.value]


def node_types(hip: Hip, graph: c_void_p) -> list[int]:
    kinds = []
    for node in nodes(hip, "hipGraphGetNodes", graph):
        kind = c_int(-1)
        hip.call("hipGraphNodeGetType", c_void_p(node), byref(kind))
        kinds.append(kind.value)
    return kinds


def edges(hip: Hip, graph: c_void_p) -> set[tuple[int, int]]:
    """By the nodes' places in the graph."""
    all_nodes = nodes(hip, "hipGraphGetNodes", graph)
    count = c_size_t()
    hip.call("hipGraphGetEdges", graph, None, None, byref(count))
    lists = [(c_void_p * max(1, count.value))() for _ in range(2)]
    hip.call("hipGraphGetEdges", graph, *lists, byref(count))
    pairs = zip(*(list(result)[: count.value] for result in lists), strict=True)
    return {(all_nodes.index(a), all_nodes.index(b)) for a, b in pairs}


def add(hip: Hip, graph: c_void_p, kind: str, needs: list[c_void_p], *params: object) -> c_void_p:
    """A node of hipGraphAdd<kind>."""
    node, list_ = c_void_p(), (c_void_p * max(1, len(needs)))(*needs)
    hip.call(f"hipGraphAdd{kind}", byref(node), graph, list_, c_size_t(len(needs)), *params)
    return node


@contextmanager
def null_stream(hip: Hip, stream: c_void_p) -> Iterator[None]:
    """What works on the null stream works on this one."""
    hip.call("rfops_vgpu_set_null_stream", stream)
    try:
        yield
    finally:
        hip.call("rfops_vgpu_set_null_stream", None)
