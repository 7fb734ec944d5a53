"""HIP's graphs on the virtual GPU, built by hand: nodes, edges, executable graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import numpy as np
import pytest

from support.vgpu import graphs as g
from support.vgpu.hip import (
    DEFAULT,
    INVALID_CONFIGURATION,
    INVALID_DIRECTION,
    INVALID_FUNCTION,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    SUCCESS,
    Hip,
    pointer,
)

INVALID_PITCH = 12


@pytest.fixture(name="graph")
def graph_fixture(hip: Hip) -> Iterator[c_void_p]:
    graph = g.new_graph(hip)
    yield graph
    hip.call("hipGraphDestroy", graph)


def note(seen: list[int], label: int) -> ctypes.Structure:
    """Parameters of a host node that notes that it ran."""
    return g.HostParams(g.HOST_FUNCTION(lambda _: seen.append(label)), None)


def add_notes(hip: Hip, graph: c_void_p, seen: list[int], needs: list[list[int]]) -> list[c_void_p]:
    """Host nodes 0, 1, ..., each with the nodes that it needs."""
    result: list[c_void_p] = []
    for i, need in enumerate(needs):
        params = note(seen, i)
        _kept.append(params)
        result.append(g.add(hip, graph, "HostNode", [result[n] for n in need], byref(params)))
    return result


def last_of(hip: Hip, graph: c_void_p) -> c_void_p:
    return c_void_p(g.nodes(hip, "hipGraphGetNodes", graph)[-1])


_kept: list[object] = []  # ctypes callbacks that graphs still call


def run(hip: Hip, graph: c_void_p) -> None:
    exec_ = g.instantiate(hip, graph)
    hip.call("hipGraphLaunch", exec_, None)
    hip.call("hipGraphExecDestroy", exec_)


# ------------------------------------------------------------------------------ structure


def test_nodes_run_in_an_order_that_is_the_graphs(hip: Hip, graph: c_void_p) -> None:
    """Of what is ready, what was added first; edges that came later count as well."""
    seen: list[int] = []
    result = add_notes(hip, graph, seen, [[], [], [0, 1], [0], [], [2]])
    for _ in range(2):
        run(hip, graph)
    assert seen == [0, 1, 2, 3, 4, 5] * 2
    seen.clear()
    pairs = [(result[4], result[0]), (result[5], result[3])]
    lists = [(c_void_p * 2)(*column) for column in zip(*pairs, strict=True)]
    hip.call("hipGraphAddDependencies", graph, *lists, c_size_t(2))
    run(hip, graph)
    assert seen == [1, 4, 0, 2, 5, 3]
    assert g.edges(hip, graph) == {(0, 2), (1, 2), (0, 3), (2, 5), (4, 0), (5, 3)}
    assert g.nodes(hip, "hipGraphGetRootNodes", graph) == [result[1].value, result[4].value]
    assert g.nodes(hip, "hipGraphNodeGetDependencies", result[2]) == [
        result[0].value,
        result[1].value,
    ]
    assert g.nodes(hip, "hipGraphNodeGetDependentNodes", result[0]) == [
        result[2].value,
        result[3].value,
    ]
    hip.call("hipGraphRemoveDependencies", graph, *lists, c_size_t(2))
    hip.call("hipGraphDestroyNode", result[2])
    seen.clear()
    run(hip, graph)
    assert seen == [0, 1, 3, 4, 5] and g.edges(hip, graph) == {(0, 2)}


def test_lists_take_what_fits(hip: Hip, graph: c_void_p) -> None:
    nodes = add_notes(hip, graph, [], [[], [], []])
    listed, count = (c_void_p * 4)(*[1] * 4), c_size_t(2)
    hip.call("hipGraphGetNodes", graph, listed, byref(count))
    assert (list(listed), count.value) == ([nodes[0].value, nodes[1].value, 1, 1], 2)
    count.value = 4
    hip.call("hipGraphGetNodes", graph, listed, byref(count))
    assert (list(listed), count.value) == ([*(node.value for node in nodes), None], 3)
    assert hip.hipGraphGetNodes(graph, listed, None) == INVALID_VALUE


def test_edges_that_cannot_be(hip: Hip, graph: c_void_p) -> None:
    first, second = add_notes(hip, graph, [], [[], [0]])
    elsewhere = g.new_graph(hip)
    (foreign,) = add_notes(hip, elsewhere, [], [[]])

    def change(call: str, start: c_void_p, stop: c_void_p) -> int:
        return getattr(hip, call)(graph, byref(start), byref(stop), c_size_t(1))

    assert change("hipGraphAddDependencies", first, second) == INVALID_VALUE
    assert "there already" in hip.error()
    assert change("hipGraphRemoveDependencies", second, first) == INVALID_VALUE
    assert "is not there" in hip.error()
    for start, stop in ((first, first), (first, foreign), (first, c_void_p(8))):
        assert change("hipGraphAddDependencies", start, stop) == INVALID_VALUE
        assert "does not join two nodes" in hip.error()
    node = c_void_p()
    for needs in ((c_void_p * 2)(first, first), (c_void_p * 2)(first, foreign)):
        status = hip.hipGraphAddEmptyNode(byref(node), graph, needs, c_size_t(2))
        assert status == INVALID_VALUE and "dependency 1" in hip.error()
    hip.call("hipGraphAddDependencies", graph, byref(second), byref(first), c_size_t(1))
    assert hip.hipGraphInstantiateWithFlags(byref(node), graph, c_size_t(0)) == INVALID_VALUE
    assert "circle" in hip.error()
    hip.call("hipGraphDestroy", elsewhere)
    assert hip.hipGraphDestroy(elsewhere) == INVALID_VALUE
    kind = c_int()
    assert hip.hipGraphNodeGetType(foreign, byref(kind)) == INVALID_VALUE


def test_a_clone_and_a_child_are_on_their_own(hip: Hip, graph: c_void_p) -> None:
    seen: list[int] = []
    first, second = add_notes(hip, graph, seen, [[], [0]])
    clone, twin, outer, inner = c_void_p(), c_void_p(), g.new_graph(hip), c_void_p()
    hip.call("hipGraphClone", byref(clone), graph)
    child = g.add(hip, outer, "ChildGraphNode", [], graph)
    add_notes(hip, outer, seen, [[]])
    hip.call("hipGraphDestroyNode", first)
    hip.call("hipGraphNodeFindInClone", byref(twin), second, clone)
    kept = g.nodes(hip, "hipGraphGetNodes", clone)
    assert twin.value == kept[1] != second.value and g.edges(hip, clone) == {(0, 1)}
    assert hip.hipGraphNodeFindInClone(byref(twin), child, clone) == INVALID_VALUE
    run(hip, graph)
    run(hip, clone)
    assert seen == [1, 0, 1]
    hip.call("hipGraphChildGraphNodeGetGraph", child, byref(inner))
    assert len(g.nodes(hip, "hipGraphGetNodes", inner)) == 2
    assert hip.hipGraphDestroy(inner) == INVALID_VALUE, "it is the node's"
    seen.clear()
    run(hip, outer)
    assert seen == [0, 1, 0], "the child's nodes stand where the child does"
    exec_ = g.instantiate(hip, outer)
    (other,) = add_notes(hip, new := g.new_graph(hip), seen, [[]])
    update = hip.hipGraphExecChildGraphNodeSetParams
    assert (
        update(exec_, child, new) == INVALID_VALUE and update(exec_, other, clone) == INVALID_VALUE
    )
    add_notes(hip, new, more := [], [[]])
    hip.call("hipGraphAddDependencies", new, byref(other), byref(last_of(hip, new)), c_size_t(1))
    assert update(exec_, child, new) == SUCCESS, hip.error()
    seen.clear()
    hip.call("hipGraphLaunch", exec_, None)
    assert (seen, more) == ([0, 0], [0])
    hip.call("hipGraphDestroy", outer)
    assert hip.hipGraphGetNodes(inner, None, byref(c_size_t())) == INVALID_VALUE
    hip.call("hipGraphDestroy", clone)


def test_a_graph_can_be_drawn(hip: Hip, graph: c_void_p, kernels: c_void_p, tmp_path: Path) -> None:
    out = g.Arguments(pointer(g.data()))
    kernel = g.kernel_params(hip.function(kernels, "twice"), out)
    first = g.add(hip, graph, "KernelNode", [], byref(kernel))
    g.add(hip, graph, "EmptyNode", [first])
    file = tmp_path / "graph.dot"
    hip.call("hipGraphDebugDotPrint", graph, str(file).encode(), 0)
    text = file.read_text()
    assert text.startswith("digraph {") and "kernel\\ntwice" in text and text.count("->") == 1
    assert hip.hipGraphDebugDotPrint(graph, b"/nowhere/graph.dot", 0) == INVALID_VALUE


# ------------------------------------------------------------------------------ parameters


def test_kernel_nodes_keep_their_arguments(hip: Hip, graph: c_void_p, kernels: c_void_p) -> None:
    out, source, c = g.data(), g.data(value=1), c_int(2)
    function = hip.function(kernels, "add")
    params = g.kernel_params(function, g.Arguments(pointer(out), pointer(source), c))
    node = g.add(hip, graph, "KernelNode", [], byref(params))
    c.value = 1000
    run(hip, graph)
    assert (out == 3).all()
    actual = g.KernelParams()
    hip.call("hipGraphKernelNodeGetParams", node, byref(actual))
    assert (actual.func, actual.grid.x, actual.block.x, actual.lds) == (function.value, 1, 64, 0)
    assert c_int.from_address(actual.params[2]).value == 2
    c_int.from_address(actual.params[2]).value = 7  # what is given back may be changed and set
    hip.call("hipGraphKernelNodeSetParams", node, byref(actual))
    run(hip, graph)
    assert (out == 3 + 8).all()


def test_an_executable_graph_takes_new_arguments(
    hip: Hip, graph: c_void_p, kernels: c_void_p
) -> None:
    out, other, source = g.data(), g.data(), g.data(value=1)
    function = hip.function(kernels, "add")
    params = g.kernel_params(function, g.Arguments(pointer(out), pointer(source), c_int(2)))
    node = g.add(hip, graph, "KernelNode", [], byref(params))
    exec_ = g.instantiate(hip, graph)
    new = g.kernel_params(function, g.Arguments(pointer(other), pointer(source), c_int(5)))
    hip.call("hipGraphExecKernelNodeSetParams", exec_, node, byref(new))
    hip.call("hipGraphUpload", exec_, None)
    hip.call("hipGraphLaunch", exec_, None)
    assert (out == 0).all() and (other == 6).all()
    run(hip, graph)
    assert (out == 3).all(), "the graph itself is as it was"
    enabled = c_uint(9)
    hip.call("hipGraphNodeSetEnabled", exec_, node, 0)
    hip.call("hipGraphNodeGetEnabled", exec_, node, byref(enabled))
    hip.call("hipGraphLaunch", exec_, None)
    assert enabled.value == 0 and (other == 6).all()
    empty = g.add(hip, graph, "EmptyNode", [])
    assert hip.hipGraphExecKernelNodeSetParams(exec_, empty, byref(new)) == INVALID_VALUE
    assert "no such node" in hip.error()
    assert hip.hipGraphKernelNodeSetParams(empty, byref(new)) == INVALID_VALUE
    assert "of another type" in hip.error()
    assert hip.hipGraphKernelNodeGetParams(empty, byref(new)) == INVALID_VALUE
    hip.call("hipGraphExecDestroy", exec_)


def test_copies_fills_and_their_parameters(hip: Hip, graph: c_void_p) -> None:
    source = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
    target = np.full((3, 5, 10), 0xEE, np.uint8)
    box = g.CopyParams(
        None,
        g.Extent(2, 1, 1),
        g.Volume(source.ctypes.data, 8, 8, 6),
        None,
        g.Extent(4, 2, 0),
        g.Volume(target.ctypes.data, 10, 10, 5),
        g.Extent(3, 2, 2),
        DEFAULT,
    )
    wide = np.full((3, 8), 0xEEEE, np.uint16)
    fill = g.MemsetParams(wide.ctypes.data, 2, 3, 16, 0x12345, 5)
    line = np.zeros(8, np.uint8)
    copy = g.add(hip, graph, "MemcpyNode", [], byref(box))
    filled = g.add(hip, graph, "MemsetNode", [copy], byref(fill))
    flat = g.add(
        hip, graph, "MemcpyNode1D", [filled], pointer(line), pointer(source), c_size_t(8), DEFAULT
    )
    run(hip, graph)
    expected = np.full((3, 5, 10), 0xEE, np.uint8)
    expected[0:2, 2:4, 4:7] = source[1:3, 1:3, 2:5]
    np.testing.assert_array_equal(target, expected)
    assert (wide[:, :5] == 0x2345).all() and (wide[:, 5:] == 0xEEEE).all()
    np.testing.assert_array_equal(line, source[0, 0])
    actual, set_ = g.CopyParams(), g.MemsetParams()
    hip.call("hipGraphMemcpyNodeGetParams", copy, byref(actual))
    assert bytes(actual) == bytes(box)
    hip.call("hipGraphMemsetNodeGetParams", filled, byref(set_))
    assert bytes(set_) == bytes(fill)
    set_.value, set_.height = 7, 1
    hip.call("hipGraphMemsetNodeSetParams", filled, byref(set_))
    more = (pointer(line), pointer(source[1]), c_size_t(4), DEFAULT)
    hip.call("hipGraphMemcpyNodeSetParams1D", flat, *more)
    run(hip, graph)
    assert (wide[0, :5] == 7).all() and (wide[1, :5] == 0x2345).all()
    np.testing.assert_array_equal(line, [*source[1, 0, :4], *source[0, 0, 4:]])


def test_volumes_are_copied_outside_of_graphs_too(hip: Hip) -> None:
    source, target = np.arange(60, dtype=np.uint8), np.zeros(60, np.uint8)
    box = g.CopyParams(
        None,
        g.Extent(),
        g.Volume(source.ctypes.data, 5, 5, 4),
        None,
        g.Extent(),
        g.Volume(target.ctypes.data, 5, 5, 4),
        g.Extent(5, 4, 2),
        DEFAULT,
    )
    hip.call("hipMemcpy3D", byref(box))
    assert (target[:40] == source[:40]).all() and not target[40:].any()
    box.extent.z = 3
    hip.call("hipMemcpy3DAsync", byref(box), None)
    np.testing.assert_array_equal(target, source)
    box.src_array = 8
    assert hip.hipMemcpy3D(byref(box)) == NOT_SUPPORTED


def test_what_is_wrong_in_any_case_is_refused_before_it_is_captured(hip: Hip) -> None:
    stream, offset, size = g.stream(hip), pointer(g.data()), c_size_t
    g.begin(hip, stream)
    assert hip.hipMemcpyAsync(offset, offset, size(4), 9, stream) == INVALID_DIRECTION
    one_row = (size(5), size(1), DEFAULT, stream)
    assert hip.hipMemcpy2DAsync(offset, size(4), offset, size(8), *one_row) == INVALID_PITCH
    assert hip.hipMemset2DAsync(offset, size(4), 0, size(5), size(1), stream) == INVALID_PITCH
    assert hip.hipMemset2D(offset, size(4), 0, size(5), size(1)) == g.CAPTURE_IMPLICIT
    hip.call("hipStreamDestroy", stream)
    assert hip.hipMemset2D(offset, size(4), 0, size(5), size(1)) == INVALID_PITCH
    hip.call("hipMemset2D", offset, size(4), 0, size(5), size(0))


def test_event_nodes(hip: Hip, graph: c_void_p) -> None:
    first, second, actual = g.event(hip), g.event(hip), c_void_p()
    record = g.add(hip, graph, "EventRecordNode", [], first)
    wait = g.add(hip, graph, "EventWaitNode", [record], first)
    assert g.node_types(hip, graph) == [g.EVENT_RECORD, g.EVENT_WAIT]
    hip.call("hipGraphEventRecordNodeGetEvent", record, byref(actual))
    assert actual.value == first.value
    hip.call("hipGraphEventRecordNodeSetEvent", record, second)
    exec_ = g.instantiate(hip, graph)
    milliseconds = ctypes.c_float()
    assert hip.hipEventElapsedTime(byref(milliseconds), second, second) == INVALID_HANDLE
    hip.call("hipGraphLaunch", exec_, None)
    hip.call("hipEventElapsedTime", byref(milliseconds), second, second)
    assert hip.hipEventElapsedTime(byref(milliseconds), first, first) == INVALID_HANDLE
    hip.call("hipGraphExecEventRecordNodeSetEvent", exec_, record, first)
    hip.call("hipGraphLaunch", exec_, None)
    hip.call("hipEventElapsedTime", byref(milliseconds), first, first)
    assert hip.hipGraphEventWaitNodeSetEvent(wait, c_void_p(8)) == INVALID_HANDLE


def test_nodes_that_are_refused(hip: Hip, graph: c_void_p, kernels: c_void_p) -> None:
    out = g.data()
    arguments = g.Arguments(pointer(out))
    node = c_void_p()

    def status(kind: str, params: object) -> int:
        call = getattr(hip, f"hipGraphAdd{kind}")
        return call(byref(node), graph, None, c_size_t(0), params)

    twice = hip.function(kernels, "twice")
    for lanes, expected in ((0, INVALID_CONFIGURATION), (2048, INVALID_CONFIGURATION)):
        assert status("KernelNode", byref(g.kernel_params(twice, arguments, lanes))) == expected
    assert status("KernelNode", byref(g.kernel_params(c_void_p(8), arguments))) == INVALID_FUNCTION
    offset = out.ctypes.data
    for bad in (
        (offset, 3, 1, 0, 0, 1),
        (offset, 0, 1, 0, 0, 1),
        (offset, 1, 0, 0, 0, 1),
        (offset, 2, 2, 7, 0, 4),
    ):
        assert status("MemsetNode", byref(g.MemsetParams(*bad))) == INVALID_VALUE, bad
    assert status("MemcpyNode", byref(g.CopyParams(kind=9))) == INVALID_DIRECTION
    assert status("MemcpyNode", byref(g.CopyParams(src_array=8))) == NOT_SUPPORTED
    for kind in ("KernelNode", "MemcpyNode", "MemsetNode", "HostNode"):
        assert status(kind, None) == INVALID_VALUE
    assert status("ChildGraphNode", c_void_p(8)) == INVALID_VALUE
    assert g.nodes(hip, "hipGraphGetNodes", graph) == []
    assert hip.hipGraphCreate(byref(node), 1) == INVALID_VALUE


# ------------------------------------------------------------------------------ update


def test_an_executable_graph_is_updated_by_one_of_the_same_shape(
    hip: Hip, kernels: c_void_p
) -> None:
    function, source = hip.function(kernels, "add"), g.data()
    wrong, result = c_void_p(), c_int(-1)

    def build(out: np.ndarray, values: list[int], kinds: str = "KK") -> c_void_p:
        graph, needs = g.new_graph(hip), []
        for value, kind in zip(values, kinds, strict=True):
            if kind == "E":
                needs = [g.add(hip, graph, "EmptyNode", needs)]
            else:
                given = g.Arguments(pointer(out), pointer(source), c_int(value))
                params = g.kernel_params(function, given)
                node = g.add(hip, graph, "KernelNode", needs, byref(params))
                needs = [] if kind == "F" else [node]
        return graph

    first, second = g.data(), g.data()
    exec_ = g.instantiate(hip, build(first, [1, 2]))
    hip.call("hipGraphExecUpdate", exec_, build(second, [10, 20]), byref(wrong), byref(result))
    assert (wrong.value, result.value) == (None, 0)
    hip.call("hipGraphLaunch", exec_, None)
    assert (first == 0).all() and (second == 30).all()
    for values, kinds, expected in (([1], "K", 2), ([1, 2], "KE", 3), ([1, 2], "FK", 2)):
        other = build(first, values, kinds)
        status = hip.hipGraphExecUpdate(exec_, other, byref(wrong), byref(result))
        assert (status, result.value) == (g.UPDATE_FAILURE, expected), kinds
        if kinds != "K":
            assert wrong.value == g.nodes(hip, "hipGraphGetNodes", other)[1]
    hip.call("hipGraphLaunch", exec_, None)
    assert (first == 0).all() and (second == 60).all(), "a refused update changes nothing"
    flags = ctypes.c_ulonglong(9)
    hip.call("hipGraphExecGetFlags", exec_, byref(flags))
    assert flags.value == 0
    hip.call("hipGraphExecDestroy", exec_)
    assert hip.hipGraphExecDestroy(exec_) == INVALID_VALUE
    assert SUCCESS == hip.hipGetLastError() - INVALID_VALUE
