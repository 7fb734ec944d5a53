"""`rfops trace` on traces whose every gap is known, in both formats, and on files that are none."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rfops.cli.trace import gaps, read
from support.command import good, rfops

Events = list[dict[str, Any]]


def call(name: str, ts: float, dur: float, correlation: int = 0, tid: int = 1) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": 9,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"correlation": correlation},
    }


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7) -> Any:
    arguments = {"correlation": correlation, "device": 0, "stream": stream}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": arguments,
    }


# Each gap has another cause: the host is late by 20 us (12 of it in aten::cat); 2 us in the queue;
# the host waits for a copy; 1 us within a graph launch; no launch.
EVENTS: Events = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::cat", "pid": 9, "tid": 1, "ts": 115.0, "dur": 12.0},
    call("hipLaunchKernel", 90.0, 5.0, 1),
    call("hipLaunchKernel", 127.0, 3.0, 2),
    call("hipLaunchKernel", 131.0, 3.0, 3),
    call("hipStreamSynchronize", 135.0, 30.0),
    call("hipGraphLaunch", 166.0, 4.0, 4),
    kernel("gemm", 100.0, 10.0, 1),
    kernel("cat", 130.0, 8.0, 2),
    kernel("gemm", 140.0, 20.0, 3),
    kernel("gemm", 170.0, 10.0, 4),
    kernel("norm", 181.0, 5.0, 4),
    kernel("lost", 190.0, 2.0, 77),
]
TRACE = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}], "traceEvents": EVENTS}


def written(folder: Path, content: Any, name: str = "trace.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def report_of(folder: Path, events: Events) -> gaps.Report:
    trace = read.trace(written(folder, {"traceEvents": events}))
    (report,) = gaps.reports(trace)
    return report


def test_every_gap_has_its_cause(tmp_path: Path) -> None:
    report = report_of(tmp_path, EVENTS)
    assert {n: (c.gaps, c.us) for n, c in report.causes.items()} == {
        "host": (2, 30.0),
        "queue": (1, 2.0),
        "graph": (1, 1.0),
        "unknown": (1, 4.0),
    }
    assert (report.span, report.busy, report.idle) == (92.0, 55.0, 37.0)


def test_what_the_host_did_while_the_gpu_waited(tmp_path: Path) -> None:
    """110 to 130: 5 us nothing, 12 in aten::cat, 3 in the launch; 160 to 170: 5 in the wait, 1
    nothing, 4 in the launch."""
    assert report_of(tmp_path, EVENTS).host == {
        "aten::cat": 12.0,
        gaps.NO_CALL: 6.0,
        "hipStreamSynchronize": 5.0,
        "hipGraphLaunch": 4.0,
        "hipLaunchKernel": 3.0,
    }


def test_what_a_graph_would_close(tmp_path: Path) -> None:
    """The first two gaps; not the one over a synchronisation, nor what nobody launched."""
    graph = report_of(tmp_path, EVENTS).graph
    assert (graph.closable.gaps, graph.closable.us, graph.stretches) == (2, 22.0, 1)
    assert (graph.inside, graph.saved) == (1.0, 20.0)
    blocked = {name: cause.us for name, cause in graph.blocked.items()}
    assert blocked == {"hipStreamSynchronize": 10.0, "(no launch in the trace)": 4.0}


@pytest.mark.parametrize(
    ("name", "captured"),
    [
        ("hipMemcpyAsync", True),
        ("hipMemcpy", False),
        ("cudaMallocAsync", True),
        ("cudaMalloc", False),
        ("hipFree", False),
        ("cuMemAlloc_v2", False),
        ("hipDeviceSynchronize", False),
        ("cudaEventRecord", True),
        ("cudaEventSynchronize", False),
        ("cudaEventQuery", False),
        ("hipMemsetAsync", True),
        ("cuModuleLoadData", False),
        ("cudaStreamIsCapturing", True),
        ("hipStreamWaitEvent", True),
        ("cudaMemset", False),
    ],
)
def test_calls_that_a_capture_refuses(tmp_path: Path, name: str, captured: bool) -> None:
    events = [
        call("hipLaunchKernel", 0, 1, 1),
        call(name, 2, 1),
        call("hipLaunchKernel", 4, 1, 2),
        kernel("a", 1, 1, 1),
        kernel("b", 6, 1, 2),
    ]
    graph = report_of(tmp_path, events).graph
    assert graph.closable.gaps == captured and list(graph.blocked) == [name] * (not captured)


def test_streams_that_overlap_leave_no_gap(tmp_path: Path) -> None:
    events = [kernel("long", 0, 100, 1), kernel("a", 10, 5, 2, 8), kernel("b", 50, 60, 3, 8)]
    report = report_of(tmp_path, events)
    assert report.idle == 0 and report.span == 110 and not report.causes
    assert [(row.name, row.us) for row in report.kernels] == [("long", 100), ("b", 60), ("a", 5)]
    assert sum(row.share for row in report.kernels) == pytest.approx(1)


def test_launches_of_two_threads_are_no_stretch(tmp_path: Path) -> None:
    events = [call("hipLaunchKernel", 0, 1, 1), call("hipLaunchKernel", 3, 1, 2, tid=2)]
    report = report_of(tmp_path, [*events, kernel("a", 1, 1, 1), kernel("b", 5, 1, 2)])
    assert list(report.graph.blocked) == ["(launched by two threads)"]


def test_two_gpus_are_two_reports(tmp_path: Path) -> None:
    other = kernel("b", 500, 1, 2)
    other["args"]["device"] = 1
    trace = read.trace(written(tmp_path, {"traceEvents": [kernel("a", 1, 1, 1), other]}))
    assert [(r.device, r.span, r.idle) for r in gaps.reports(trace)] == [("0", 1, 0), ("1", 1, 0)]


def rocprofv3() -> dict[str, Any]:
    """The first three launches of EVENTS as rocprofv3 writes them, and a copy."""

    def stamps(start: float, end: float, correlation: int) -> dict[str, Any]:
        return {
            "start_timestamp": int(start * 1000),
            "end_timestamp": int(end * 1000),
            "thread_id": 4,
            "correlation_id": {"internal": correlation, "external": 0},
        }

    def dispatch(start: float, end: float, correlation: int, kernel_id: int) -> dict[str, Any]:
        info = {"agent_id": {"handle": 11}, "queue_id": {"handle": 3}, "kernel_id": kernel_id}
        return {**stamps(start, end, correlation), "dispatch_info": info}

    def hip(start: float, end: float, correlation: int, operation: int) -> dict[str, Any]:
        return {**stamps(start, end, correlation), "kind": 1, "operation": operation}

    copy = {
        **stamps(165, 169, 4),
        "kind": 0,
        "operation": 1,
        "dst_agent_id": {"handle": 10},
        "src_agent_id": {"handle": 11},
    }
    process = {
        "metadata": {"pid": 5},
        "agents": [
            {"id": {"handle": 10}, "type": 1, "node_id": 0, "product_name": "AMD EPYC"},
            {"id": {"handle": 11}, "type": 2, "node_id": 2, "product_name": "AMD Instinct MI300X"},
        ],
        "kernel_symbols": [
            {"kernel_id": 6, "kernel_name": "_Z4gemm", "formatted_kernel_name": "gemm()"},
        ],
        "strings": {
            "buffer_records": [
                {"kind": "MEMORY_COPY", "operations": ["NONE", "DEVICE_TO_HOST"]},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpy"]},
            ]
        },
        "buffer_records": {
            "kernel_dispatch": [dispatch(100, 110, 1, 6), dispatch(130, 160, 2, 8)],
            "memory_copy": [copy],
            "hip_api": [hip(90, 95, 1, 0), hip(127, 130, 2, 0), hip(130, 170, 4, 1)],
        },
    }
    return {"rocprofiler-sdk-tool": [process]}


def test_rocprofv3(tmp_path: Path) -> None:
    (report,) = gaps.reports(read.trace(written(tmp_path, rocprofv3())))
    assert (report.device, report.name, report.source) == ("2", "AMD Instinct MI300X", "rocprofv3")
    rows = [(row.name, row.kind, row.us) for row in report.kernels]
    assert rows == [
        ("kernel 8", "kernel", 30),
        ("gemm()", "kernel", 10),
        ("DEVICE_TO_HOST", "memcpy", 4),
    ]
    assert {name: cause.us for name, cause in report.causes.items()} == {"host": 25}
    assert list(report.graph.blocked) == ["hipMemcpy"] and report.graph.closable.us == 20


def test_a_decode_step_on_an_h200() -> None:
    """Cut from traces of torch.profiler (torch 2.11): a step of gemm_mxfp8 and quant_mxfp8, M = 4,
    eager and as a graph. Eagerly quant_mxfp8 is 21 kernels: the GPU waits for the host."""
    (eager,) = gaps.reports(read.trace(Path(__file__).with_name("h200_eager.json.gz")))
    assert (eager.name, len(eager.kernels)) == ("NVIDIA H200", 21)
    assert eager.causes["host"].gaps == 43 and eager.idle / eager.span > 0.96
    assert eager.graph.closable.gaps == 43 and not eager.graph.blocked
    assert "cudaLaunchKernel" in eager.host
    (graph,) = gaps.reports(read.trace(Path(__file__).with_name("h200_graph.json.gz")))
    assert {name: cause.gaps for name, cause in graph.causes.items()} == {"graph": 102, "queue": 1}
    assert graph.busy / graph.span > 0.92 and graph.graph.inside < 0.2


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    text = good("trace", str(file), "--top", "2")
    assert "GPU 0 AMD Instinct MI300X (torch.profiler): 6 activities of 4 names" in text
    assert "... and 2 more names (--top)" in text and "lost" not in text
    assert "aten::cat" in text and "A graph would close 2 gaps of 22.0 us in 1 stretches" in text
    record = json.loads(good("trace", str(file), "--json"))
    assert record["idle"] == 37 and record["kernels"][0]["name"] == "gemm"
    part = json.loads(good("trace", str(file), "--json", "--range", "0.025", "0.075"))
    assert part["span"] == 50 and part["causes"]["host"]["us"] == 10
    assert "no GPU activity" in rfops("trace", str(file), "--range", "5", "6").stderr


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "trace.png"
    good("trace", str(written(tmp_path, TRACE)), "--plot", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"SQLite format 3\0 and more", "a database (rocpd)"),
        (b"\x1f\x8bnot gzip", "damaged gzip"),
        (b'{"traceEvents": [', "no JSON"),
        (b"{}", "an object of nothing"),
        (b"7", "records of another form"),
        (b'{"schemaVersion": 1}', "an object of schemaVersion"),
        (b'{"traceEvents": []}', "nothing that a GPU did"),
        (b'{"traceEvents": [7, {"ph": "X"}, {"cat": "kernel", "ph": "X"}]}', "nothing that a GPU"),
        (b'{"traceEvents": 7}', "records of another form"),
        (b'{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{}]}}]}', "KeyError"),
        (b'{"rocprofiler-sdk-tool": 3}', "records of another form"),
    ],
)
def test_no_trace(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(read.TraceError, match="file: ") as raised:
        read.trace(file)
    assert says in str(raised.value)


def test_times_that_are_none_are_counted(tmp_path: Path) -> None:
    bad = [{**kernel("a", 1, 1, 1), "dur": value} for value in (None, "x", -3)]
    assert report_of(tmp_path, [*bad, kernel("b", 1, 1, 2)]).left_out == 3


def test_many_events_take_time_in_proportion(tmp_path: Path) -> None:
    """100,000 in about a second (bar 5 s): look-ups go by bisection. The time is printed."""
    count = 33_333
    events: Events = []
    for i in range(1, count + 1):
        op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 1, "dur": 8}
        events += [{**op, "ts": 10.0 * i - 1}, call("hipLaunchKernel", 10.0 * i, 3, i)]
        events.append(kernel("k", 10.0 * i + 4, 4, i))
    file = written(tmp_path, {"traceEvents": events})
    start = time.process_time()
    (report,) = gaps.reports(read.trace(file))
    print(f"{3 * count} events: {time.process_time() - start:.2f} s")
    assert report.causes["host"].gaps == count - 1
    each = {"hipLaunchKernel": 3.0, "aten::mm": 1.0, gaps.NO_CALL: 1.0}
    assert report.host == pytest.approx({name: us * (count - 1) for name, us in each.items()})
