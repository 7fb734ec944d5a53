// Stream capture: calls on a captured stream are recorded into a graph instead of executed.
#pragma once

#include <atomic>

#include "vgpu/hip/hip_graph.h"

namespace vgpu {

// Number of streams under capture in this process. While it is 0, the capture code is skipped.
extern std::atomic<u32> g_capturing;
inline bool any_capture() { return g_capturing.load(std::memory_order_relaxed) != 0; }

// Called before work on a stream; sets `captured`. Fails for an invalid stream, for a stream whose
// capture was invalidated, and for the null stream while captured streams synchronise with it.
hipError_t enter_stream(hipStream_t stream, bool& captured);

// Adds work to the graph of a captured stream, after the stream's earlier work.
hipError_t capture(hipStream_t stream, Work work);

// Runs work on a stream, or records it if the stream is captured.
hipError_t submit(hipStream_t stream, Work work);

// Records and waits of events; they extend a capture from one stream to another.
hipError_t record_on(hipEvent_t event, hipStream_t stream, unsigned flags);
hipError_t wait_on(hipStream_t stream, hipEvent_t event, unsigned flags);

// hipMallocAsync and hipFreeAsync on a captured stream.
hipError_t capture_malloc(void** pointer, size_t size, hipStream_t stream);
hipError_t capture_free(void* pointer, hipStream_t stream);

// Calls that are forbidden while streams are captured: each fails and invalidates the captures it
// affects.
// HipMalloc and similar, depending on the thread's mode.
hipError_t refuse_unsafe(const char* call);
hipError_t refuse_implicit(const char* call);  // on the null stream: hipMemcpy, hipMemset
hipError_t refuse_device_wait(const char* call);
hipError_t refuse_stream_wait(const char* call, hipStream_t stream);
hipError_t refuse_event_wait(const char* call, hipEvent_t event);

// Called when a stream, event or node is destroyed.
void forget_stream(hipStream_t stream);
void forget_event(hipEvent_t event);
void forget_node(const Node* node);
bool is_capturing_into(const Graph* graph);

hipError_t begin_capture(hipStream_t stream, int mode, std::shared_ptr<Graph> graph,
                         std::vector<Node*> needs);
hipError_t end_capture(hipStream_t stream, hipGraph_t* graph);

struct CaptureInfo {
  int status = hipStreamCaptureStatusNone;
  u64 id = 0;
  Graph* graph = nullptr;
  const std::vector<Node*>* needs = nullptr;  // dependencies of the stream's next node
};
hipError_t capture_info(hipStream_t stream, CaptureInfo& info);
hipError_t update_capture(hipStream_t stream, const hipGraphNode_t* handles, size_t count,
                          unsigned flags);
int exchange_capture_mode(int mode);

}  // namespace vgpu
