// Stream capture: calls on a stream that is captured are recorded into a graph instead of run.
#pragma once

#include <atomic>

#include "vgpu/hip/hip_graph.h"

namespace vgpu {

// Streams under capture in this process. While there are none, nothing else here is looked at.
extern std::atomic<u32> g_capturing;
inline bool any_capture() { return g_capturing.load(std::memory_order_relaxed) != 0; }

// Before work on a stream: whether it is to be captured. Fails for a stream that is none, whose
// capture was invalidated, and for the null stream beside captured streams that wait for it.
hipError_t enter_stream(hipStream_t stream, bool& captured);

// Adds work to the graph of a captured stream, behind what the stream has so far.
hipError_t capture(hipStream_t stream, Work work);

// Work on a stream: captured, or run now.
hipError_t submit(hipStream_t stream, Work work);

// Events: a record and a wait carry the capture from one stream into another.
hipError_t record_on(hipEvent_t event, hipStream_t stream, unsigned flags);
hipError_t wait_on(hipStream_t stream, hipEvent_t event, unsigned flags);

// Memory of hipMallocAsync and hipFreeAsync on a captured stream.
hipError_t capture_malloc(void** pointer, size_t size, hipStream_t stream);
hipError_t capture_free(void* pointer, hipStream_t stream);

// What may not be called while streams are captured. Each fails, and with it the captures it meets.
hipError_t refuse_unsafe(const char* call);    // hipMalloc and its like, as the thread's mode says
hipError_t refuse_implicit(const char* call);  // on the null stream: hipMemcpy, hipMemset
hipError_t refuse_device_wait(const char* call);
hipError_t refuse_stream_wait(const char* call, hipStream_t stream);
hipError_t refuse_event_wait(const char* call, hipEvent_t event);

// Streams, events and nodes that end.
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
  const std::vector<Node*>* needs = nullptr;  // of the stream's next node
};
hipError_t capture_info(hipStream_t stream, CaptureInfo& info);
hipError_t update_capture(hipStream_t stream, const hipGraphNode_t* handles, size_t count,
                          unsigned flags);
int exchange_capture_mode(int mode);

}  // namespace vgpu
