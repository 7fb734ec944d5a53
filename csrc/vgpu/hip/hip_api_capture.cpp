// HIP's stream capture functions; the rules are in hip_capture.cpp.
#include "vgpu/hip/hip_capture.h"

using namespace vgpu;

VGPU_API hipError_t hipStreamBeginCapture(hipStream_t stream, int mode) {
  return with_error_handling(__func__, [&] { return begin_capture(stream, mode, nullptr, {}); });
}

VGPU_API hipError_t hipStreamBeginCaptureToGraph(hipStream_t stream, hipGraph_t handle,
                                                 const hipGraphNode_t* dependencies,
                                                 const void* edge_data, size_t count, int mode) {
  return with_error_handling(__func__, [&] {
    std::lock_guard lock(graph_mutex());
    if (edge_data) {
      return fail(hipErrorNotSupported, "hipStreamBeginCaptureToGraph: edges have no data");
    }
    auto graph = graph_or_fail(handle);
    if (!graph) return hipErrorInvalidValue;
    if (is_capturing_into(graph.get())) {
      return fail(hipErrorIllegalState, "hipStreamBeginCaptureToGraph: the graph is under capture");
    }
    std::vector<Node*> needs;
    const hipError_t code = read_nodes(*graph, dependencies, count, needs);
    if (code != hipSuccess) return code;
    return begin_capture(stream, mode, std::move(graph), std::move(needs));
  });
}

VGPU_API hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  return with_error_handling(__func__, [&] { return end_capture(stream, graph); });
}

VGPU_API hipError_t hipStreamIsCapturing(hipStream_t stream, int* status) {
  return with_error_handling(__func__, [&] {
    if (!status) return fail(hipErrorInvalidValue, "hipStreamIsCapturing: status is null");
    CaptureInfo info;
    const hipError_t code = capture_info(stream, info);
    *status = info.status;
    return code;
  });
}

// The returned list of dependencies belongs to the calling thread and is valid until its next
// query.
VGPU_API hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, int* status,
                                               unsigned long long* id, hipGraph_t* graph,
                                               const hipGraphNode_t** dependencies, size_t* count) {
  return with_error_handling(__func__, [&] {
    static thread_local std::vector<hipGraphNode_t> answer;
    if (!status) return fail(hipErrorInvalidValue, "hipStreamGetCaptureInfo: status is null");
    std::lock_guard lock(graph_mutex());
    CaptureInfo info;
    const hipError_t code = capture_info(stream, info);
    answer.clear();
    if (info.needs) {
      for (Node* node : *info.needs) answer.push_back(handle_of(node));
    }
    *status = info.status;
    if (id) *id = info.id;
    if (graph) *graph = reinterpret_cast<hipGraph_t>(info.graph);
    if (dependencies) *dependencies = answer.empty() ? nullptr : answer.data();
    if (count) *count = answer.size();
    return code;
  });
}

VGPU_API hipError_t hipStreamGetCaptureInfo(hipStream_t stream, int* status,
                                            unsigned long long* id) {
  return hipStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}

VGPU_API hipError_t hipStreamUpdateCaptureDependencies(hipStream_t stream,
                                                       const hipGraphNode_t* dependencies,
                                                       size_t count, unsigned flags) {
  return with_error_handling(__func__,
                             [&] { return update_capture(stream, dependencies, count, flags); });
}

VGPU_API hipError_t hipThreadExchangeStreamCaptureMode(int* mode) {
  if (!mode || *mode < hipStreamCaptureModeGlobal || *mode > hipStreamCaptureModeRelaxed) {
    return fail(hipErrorInvalidValue, "capture mode: null, or not of 0 to 2");
  }
  *mode = exchange_capture_mode(*mode);
  return hipSuccess;
}
