"""Traces as profilers write them: what GPUs did, and what the host called meanwhile.

torch.profiler (Kineto) writes the Trace Event format, on ROCm and CUDA alike: kernels, copies and
runtime calls, joined by `args.correlation`. rocprofv3's JSON has records of dispatches, copies
and HIP calls, joined by `correlation_id.internal` (its documentation: "JSON output schema").
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from rfops.jit.errors import RfopsError


class TraceError(RfopsError):
    """A file that is no trace that rfops reads; with what to do."""


class Activity(msgspec.Struct):
    """What a GPU did: a kernel, a copy, a fill. Times in us."""

    name: str
    kind: str  # kernel, memcpy, memset
    device: str
    stream: str
    start: float
    end: float
    correlation: int | None


class HostCall(msgspec.Struct):
    """What a thread of the host was in; `runtime`: a call of CUDA's or HIP's runtime or driver."""

    name: str
    thread: str
    start: float
    end: float
    correlation: int | None
    runtime: bool


class Trace(msgspec.Struct):
    """The GPU activities and host calls of a trace file; times in us."""

    source: str
    devices: dict[str, str]  # what each is called
    activities: list[Activity]
    calls: list[HostCall]
    left_out: int = 0  # records without a time

    def window(self, start: float, end: float) -> Trace:
        """What starts in these us, counted from the GPU's first activity. Raises TraceError."""
        zero = min((a.start for a in self.activities), default=0.0)
        selected = [a for a in self.activities if start <= a.start - zero < end]
        if not selected:
            raise TraceError(f"--range {start / 1e3:g} {end / 1e3:g}: no GPU activity in these ms")
        return msgspec.structs.replace(self, activities=selected)


def trace(file: Path) -> Trace:
    """Read it. Raises TraceError."""
    data = _bytes(file)
    # Names of kernels may hold bytes that are no UTF-8.
    try:
        content = msgspec.json.decode(data.decode("utf-8", "replace"))
    except msgspec.DecodeError as error:
        kind = "a database (rocpd)" if data.startswith(b"SQLite format 3") else f"no JSON: {error}"
        raise _no_trace(file, kind) from None
    if isinstance(content, list):
        content = {"traceEvents": content}
    try:
        if "traceEvents" in content:
            result = _kineto(content)
        elif "rocprofiler-sdk-tool" in content:
            result = _rocprofv3(content["rocprofiler-sdk-tool"])
        else:
            raise _no_trace(file, f"an object of {', '.join(list(content)[:5]) or 'nothing'}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _no_trace(file, f"records of another form ({error!r})") from None
    if not result.activities:
        raise TraceError(
            f"{file}: a trace of {result.source} with {len(result.calls)} host calls and nothing "
            "that a GPU did; profile with activities=[CPU, CUDA], or rocprofv3 with --sys-trace"
        )
    result.activities.sort(key=lambda a: (a.start, a.end))
    return result


def _bytes(file: Path) -> bytes:
    data = file.read_bytes()
    try:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise _no_trace(file, f"damaged gzip ({error})") from None


def _no_trace(file: Path, problem: str) -> TraceError:
    return TraceError(
        f"{file}: expected a trace of torch.profiler (export_chrome_trace) or of rocprofv3 "
        f"--output-format json, got {problem}"
    )


# ---------------------------------------------------------------- torch.profiler

_GPU = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_HOST = {"cpu_op", "user_annotation", "python_function"}
_RUNTIME = re.compile(r"(runtime|driver)$")


def _kineto(content: dict[str, Any]) -> Trace:
    names = {str(d.get("id")): str(d.get("name")) for d in content.get("deviceProperties") or ()}
    result = Trace("torch.profiler", {}, [], [])
    for event in content["traceEvents"]:
        if not isinstance(event, dict):
            continue
        category = str(event.get("cat", "")).lower()
        kind, runtime = _GPU.get(category), bool(_RUNTIME.search(category))
        if event.get("ph") != "X" or not (kind or runtime or category in _HOST):
            continue
        times = _times(event)
        if times is None:
            result.left_out += 1
            continue
        arguments = event.get("args") or {}
        name, correlation = str(event.get("name")), _as_int(arguments.get("correlation"))
        if kind:
            device = str(arguments.get("device", event.get("pid")))
            result.devices.setdefault(device, names.get(device, ""))
            stream = str(arguments.get("stream", event.get("tid")))
            result.activities.append(Activity(name, kind, device, stream, *times, correlation))
        else:
            thread = f"{event.get('pid')}/{event.get('tid')}"
            result.calls.append(HostCall(name, thread, *times, correlation, runtime))
    return result


def _times(event: dict[str, Any]) -> tuple[float, float] | None:
    try:
        start, length = float(event["ts"]), float(event["dur"])
    except (KeyError, TypeError, ValueError):
        return None
    return (start, start + length) if length >= 0 else None


def _as_int(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


# ---------------------------------------------------------------- rocprofv3


def _rocprofv3(processes: list[dict[str, Any]]) -> Trace:
    result = Trace("rocprofv3", {}, [], [])
    for process in processes:
        _process(process, result)
    return result


def _process(process: dict[str, Any], result: Trace) -> None:
    records = defaultdict(list, process.get("buffer_records") or {})
    pid = (process.get("metadata") or {}).get("pid", 0)
    agents = {a["id"]["handle"]: a for a in process.get("agents") or ()}
    names = {k["kernel_id"]: _kernel_name(k) for k in process.get("kernel_symbols") or ()}
    operations = (process.get("strings") or {}).get("buffer_records") or []

    def add(record: dict[str, Any], name: str, kind: str, agent: int, queue: Any) -> None:
        device = str(agents.get(agent, {}).get("node_id", agent))
        result.devices[device] = str(agents.get(agent, {}).get("product_name", ""))
        times, correlation = _stamps(record)
        result.activities.append(Activity(name, kind, device, str(queue), *times, correlation))

    for record in records["kernel_dispatch"]:
        info = record["dispatch_info"]
        name = names.get(info["kernel_id"], f"kernel {info['kernel_id']}")
        add(record, name, "kernel", info["agent_id"]["handle"], info["queue_id"]["handle"])
    for record in records["memory_copy"]:
        # The GPU's side of a copy: agents of type 2 are GPUs.
        ends = [record[agent]["handle"] for agent in ("dst_agent_id", "src_agent_id")]
        gpu = next((e for e in ends if agents.get(e, {}).get("type") == 2), ends[0])
        add(record, _operation(operations, record), "memcpy", gpu, "copy")
    for name in ("hip_api", "hsa_api", "marker_api"):
        for record in records[name]:
            times, correlation = _stamps(record)
            thread = f"{pid}/{record.get('thread_id')}"
            call = HostCall(
                _operation(operations, record), thread, *times, correlation, name == "hip_api"
            )
            result.calls.append(call)


def _kernel_name(symbol: dict[str, Any]) -> str:
    return str(symbol.get("formatted_kernel_name") or symbol.get("kernel_name"))


def _stamps(record: dict[str, Any]) -> tuple[tuple[float, float], int | None]:
    """Start and end, of ns in us, and what joins a call and what came of it."""
    correlation = _as_int((record.get("correlation_id") or {}).get("internal"))
    return (record["start_timestamp"] / 1e3, record["end_timestamp"] / 1e3), correlation


def _operation(operations: list[dict[str, Any]], record: dict[str, Any]) -> str:
    """The name of a record's operation: strings are lists by kind and operation."""
    try:
        return str(operations[record["kind"]]["operations"][record["operation"]])
    except (IndexError, KeyError, TypeError):
        return f"operation {record.get('kind')}/{record.get('operation')}"
