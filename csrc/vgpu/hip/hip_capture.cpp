#include "vgpu/hip/hip_capture.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "vgpu/machine/allocations.h"

namespace vgpu {

std::atomic<u32> g_capturing{0};

namespace {

using Key = const void*;  // a stream handle, or the stand-in of hipStreamPerThread

struct Capture {
  u64 id = 0;
  std::shared_ptr<Graph> graph;
  bool is_borrowed = false;  // the graph existed before the capture
  Key origin = nullptr;
  int mode = hipStreamCaptureModeGlobal;
  std::thread::id thread;
  std::string broken;  // the reason why it is invalid; empty if valid
  struct Branch {
    std::vector<Node*> needs;  // dependencies of the next node
    bool is_blocking = true;   // synchronises with the null stream: not hipStreamNonBlocking
  };
  std::unordered_map<Key, Branch> streams;
  std::unordered_map<hipEvent_t, std::vector<Node*>> events;
};

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const captures = new std::vector<std::shared_ptr<Capture>>;
  return *captures;
}

thread_local int t_mode = hipStreamCaptureModeGlobal;
thread_local hipStream_t t_null_stream = nullptr;
thread_local char t_per_thread;

hipStream_t resolve_stream(hipStream_t stream) { return stream ? stream : t_null_stream; }

bool is_null_stream(hipStream_t stream) { return reinterpret_cast<u64>(stream) <= 1; }

Key key_of(hipStream_t stream) {
  return reinterpret_cast<u64>(stream) == 2 ? static_cast<Key>(&t_per_thread) : stream;
}

std::shared_ptr<Capture> capture_of(Key key) {
  for (const auto& capture : captures()) {
    if (capture->streams.contains(key)) return capture;
  }
  return nullptr;
}

std::shared_ptr<Capture> capture_with(hipEvent_t event) {
  for (const auto& capture : captures()) {
    if (capture->events.contains(event)) return capture;
  }
  return nullptr;
}

// Invalidates the capture; the first reason is kept.
hipError_t break_capture(Capture& capture, hipError_t code, const std::string& reason) {
  if (capture.broken.empty()) capture.broken = reason;
  return fail(code, reason, kLogAlways);
}

hipError_t is_broken(const Capture& capture) {
  return fail(hipErrorStreamCaptureInvalidated, "the capture is invalid: " + capture.broken);
}

void join_stream(Capture& capture, hipStream_t stream, std::vector<Node*> needs) {
  constexpr unsigned kNonBlocking = 1;  // hipStreamNonBlocking
  const bool is_blocking = !(stream_flags(stream) & kNonBlocking);
  capture.streams[key_of(stream)] = {std::move(needs), is_blocking};
  ++g_capturing;
}

void remove_capture(const std::shared_ptr<Capture>& capture) {
  g_capturing -= static_cast<u32>(capture->streams.size());
  std::erase(captures(), capture);
}

hipError_t check_null_stream(const std::string& call) {
  for (const auto& capture : captures()) {
    for (const auto& [key, branch] : capture->streams) {
      if (!branch.is_blocking) continue;
      return break_capture(*capture, hipErrorStreamCaptureImplicit,
                           call + " on the null stream, while a stream that waits for it is " +
                               "captured: use the captured stream, or hipStreamNonBlocking");
    }
  }
  return hipSuccess;
}

void merge(std::vector<Node*>& dst, const std::vector<Node*>& src) {
  for (Node* node : src) {
    if (!std::ranges::count(dst, node)) dst.push_back(node);
  }
}

// Returns whether all work of forked streams has been joined to the origin stream.
bool is_joined(const Capture& capture) {
  const auto& home = capture.streams.at(capture.origin).needs;
  for (const auto& [key, branch] : capture.streams) {
    for (const Node* tail : branch.needs) {
      const bool joined =
          std::ranges::any_of(home, [tail](const Node* node) { return depends_on(node, tail); });
      if (!joined) return false;
    }
  }
  return true;
}

}  // namespace

hipError_t enter_stream(hipStream_t stream, bool& captured) {
  captured = false;
  stream = resolve_stream(stream);
  const hipError_t code = check_stream(stream);
  if (code != hipSuccess || !any_capture()) return code;
  std::lock_guard lock(graph_mutex());
  if (is_null_stream(stream)) return check_null_stream("work");
  const auto capture = capture_of(key_of(stream));
  if (!capture) return hipSuccess;
  if (!capture->broken.empty()) return is_broken(*capture);
  captured = true;
  return hipSuccess;
}

hipError_t capture(hipStream_t stream, Work work) {
  std::lock_guard lock(graph_mutex());
  const Key key = key_of(resolve_stream(stream));
  const auto capture = capture_of(key);
  if (!capture) return fail(hipErrorIllegalState, "the stream's capture has ended");
  auto& needs = capture->streams[key].needs;
  needs = {capture->graph->add(std::move(work), needs)};
  return hipSuccess;
}

hipError_t submit(hipStream_t stream, Work work) {
  bool captured = false;
  const hipError_t code = enter_stream(stream, captured);
  if (code != hipSuccess) return code;
  return captured ? capture(stream, std::move(work)) : run_work(work);
}

// ------------------------------------------------------------------------------ events

hipError_t record_on(hipEvent_t event, hipStream_t stream, unsigned flags) {
  bool captured = false;
  hipError_t code = enter_stream(stream, captured);
  if (code == hipSuccess) code = check_event(event);
  if (code != hipSuccess) return code;
  if (captured && flags & hipEventRecordExternal) return capture(stream, RecordWork{event});
  forget_event(event);
  if (!captured) return record_event(event);
  std::lock_guard lock(graph_mutex());
  const Key key = key_of(resolve_stream(stream));
  const auto capture = capture_of(key);
  if (!capture) return record_event(event);  // another thread has ended the capture
  capture->events[event] = capture->streams[key].needs;
  return hipSuccess;
}

hipError_t wait_on(hipStream_t stream, hipEvent_t event, unsigned flags) {
  std::lock_guard lock(graph_mutex());
  const auto event_capture = any_capture() ? capture_with(event) : nullptr;
  bool captured = false;
  hipError_t code = enter_stream(stream, captured);
  if (code == hipSuccess) code = check_event(event);
  if (code != hipSuccess) return code;
  stream = resolve_stream(stream);
  if (event_capture && !event_capture->broken.empty()) return is_broken(*event_capture);
  if (!captured && !event_capture) return hipSuccess;
  const Key key = key_of(stream);
  if (!captured) {
    if (is_null_stream(stream)) {
      return break_capture(*event_capture, hipErrorStreamCaptureImplicit,
                           "the null stream waits for an event of a capture, and cannot join it");
    }
    join_stream(*event_capture, stream, event_capture->events[event]);
    return hipSuccess;
  }
  const auto own_capture = capture_of(key);
  if (event_capture == own_capture) {
    merge(own_capture->streams[key].needs, own_capture->events[event]);
  } else if (event_capture) {
    break_capture(*event_capture, hipErrorStreamCaptureMerge,
                  "another capture waits for its event");
    return break_capture(*own_capture, hipErrorStreamCaptureMerge,
                         "the stream waits for an event of another capture");
  } else if (flags & hipEventWaitExternal) {
    return capture(stream, WaitWork{event});
  } else if (is_recorded(event)) {
    return break_capture(*own_capture, hipErrorStreamCaptureIsolation,
                         "the captured stream waits for an event that was recorded outside of the "
                         "capture");
  }
  return hipSuccess;
}

// ------------------------------------------------------------------------------ memory

hipError_t capture_malloc(void** pointer, size_t size, hipStream_t stream) {
  if (!*pointer) return hipSuccess;  // size 0
  const auto block = Allocations::instance().find(reinterpret_cast<u64>(*pointer));
  if (!block) return fail(hipErrorInvalidValue, "hipMallocAsync: " + std::to_string(size));
  return capture(stream, AllocWork{std::make_shared<GraphBlock>(*pointer, block->id)});
}

hipError_t capture_free(void* pointer, hipStream_t stream) {
  std::lock_guard lock(graph_mutex());
  const auto own_capture = capture_of(key_of(resolve_stream(stream)));
  if (!own_capture) return fail(hipErrorIllegalState, "the stream's capture has ended");
  for (const auto& node : own_capture->graph->nodes) {
    const auto* allocation = std::get_if<AllocWork>(&node->work);
    if (allocation && allocation->block->base == pointer) return capture(stream, FreeWork{pointer});
  }
  return break_capture(*own_capture, hipErrorInvalidValue,
                       "hipFreeAsync in a capture of memory that was not allocated in it");
}

// ------------------------------------------------------------------------------ forbidden calls

// Fails and invalidates all captures, if there are any.
static hipError_t break_all_captures(const char* call, hipError_t code, const char* reason) {
  if (!any_capture()) return hipSuccess;
  std::lock_guard lock(graph_mutex());
  for (const auto& capture : captures()) {
    break_capture(*capture, code, std::string(call) + " while a stream is captured: " + reason);
  }
  return code;
}

hipError_t refuse_unsafe(const char* call) {
  if (!any_capture() || t_mode == hipStreamCaptureModeRelaxed) return hipSuccess;
  std::lock_guard lock(graph_mutex());
  hipError_t code = hipSuccess;
  for (const auto& capture : captures()) {
    const bool is_of_this_thread = capture->thread == std::this_thread::get_id() &&
                                   capture->mode != hipStreamCaptureModeRelaxed;
    const bool is_global =
        t_mode == hipStreamCaptureModeGlobal && capture->mode == hipStreamCaptureModeGlobal;
    if (!is_of_this_thread && !is_global) continue;
    code = break_capture(*capture, hipErrorStreamCaptureUnsupported,
                         std::string(call) +
                             " while a stream is captured: call it before, or begin the capture "
                             "with hipStreamCaptureModeRelaxed");
  }
  return code;
}

hipError_t refuse_implicit(const char* call) {
  return break_all_captures(call, hipErrorStreamCaptureImplicit,
                            "it works on the null stream; use its asynchronous form on the "
                            "captured stream");
}

hipError_t refuse_device_wait(const char* call) {
  return break_all_captures(call, hipErrorStreamCaptureUnsupported, "its work has not run");
}

hipError_t refuse_stream_wait(const char* call, hipStream_t stream) {
  bool captured = false;
  const hipError_t code = enter_stream(stream, captured);
  if (code != hipSuccess || !captured) return code;
  std::lock_guard lock(graph_mutex());
  const auto capture = capture_of(key_of(resolve_stream(stream)));
  if (!capture) return hipSuccess;
  return break_capture(*capture, hipErrorStreamCaptureUnsupported,
                       std::string(call) + " of a stream that is captured: its work has not run");
}

hipError_t refuse_event_wait(const char* call, hipEvent_t event) {
  const hipError_t code = check_event(event);
  if (code != hipSuccess || !any_capture()) return code;
  std::lock_guard lock(graph_mutex());
  const auto capture = capture_with(event);
  if (!capture) return hipSuccess;
  return break_capture(*capture, hipErrorCapturedEvent,
                       std::string(call) + " of an event that was recorded in a capture");
}

// ------------------------------------------------------------------------------ destroyed objects

void forget_stream(hipStream_t stream) {
  if (t_null_stream == stream) t_null_stream = nullptr;
  if (!any_capture()) return;
  std::lock_guard lock(graph_mutex());
  const Key key = key_of(stream);
  const auto capture = capture_of(key);
  if (!capture) return;
  if (key == capture->origin) {
    remove_capture(capture);
    if (!capture->is_borrowed) graphs().remove(capture->graph.get());
    return;
  }
  break_capture(*capture, hipErrorStreamCaptureUnjoined, "a stream under capture was destroyed");
  capture->streams.erase(key);
  --g_capturing;
}

void forget_event(hipEvent_t event) {
  if (!any_capture()) return;
  std::lock_guard lock(graph_mutex());
  for (const auto& capture : captures()) capture->events.erase(event);
}

void forget_node(const Node* node) {
  const auto matches = [node](const Node* candidate) { return candidate == node; };
  for (const auto& capture : captures()) {
    for (auto& [key, branch] : capture->streams) std::erase_if(branch.needs, matches);
    for (auto& [event, needs] : capture->events) std::erase_if(needs, matches);
  }
}

bool is_capturing_into(const Graph* graph) {
  return std::ranges::any_of(
      captures(), [graph](const auto& capture) { return capture->graph.get() == graph; });
}

// ------------------------------------------------------------------------------ begin and end

hipError_t begin_capture(hipStream_t stream, int mode, std::shared_ptr<Graph> graph,
                         std::vector<Node*> needs) {
  static std::atomic<u64> next_id{1};
  std::lock_guard lock(graph_mutex());
  const hipError_t code = check_stream(stream);
  if (code != hipSuccess) return code;
  if (is_null_stream(stream)) {
    return fail(hipErrorStreamCaptureUnsupported,
                "the null stream cannot be captured: create a stream", kLogAlways);
  }
  if (mode < hipStreamCaptureModeGlobal || mode > hipStreamCaptureModeRelaxed) {
    return fail(hipErrorInvalidValue, "capture mode " + std::to_string(mode) + ", expected 0 to 2");
  }
  if (capture_of(key_of(stream))) {
    return fail(hipErrorIllegalState, "hipStreamBeginCapture: the stream is being captured");
  }
  auto capture = std::make_shared<Capture>();
  capture->id = next_id++;
  capture->is_borrowed = graph != nullptr;
  capture->graph = graph ? std::move(graph) : std::make_shared<Graph>();
  if (!capture->is_borrowed) graphs().add(capture->graph);
  capture->origin = key_of(stream);
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  captures().push_back(capture);
  join_stream(*capture, stream, std::move(needs));
  return hipSuccess;
}

hipError_t end_capture(hipStream_t stream, hipGraph_t* graph) {
  if (!graph) return fail(hipErrorInvalidValue, "hipStreamEndCapture: null pointer");
  std::lock_guard lock(graph_mutex());
  *graph = nullptr;
  const hipError_t code = check_stream(stream);
  if (code != hipSuccess) return code;
  const auto capture = capture_of(key_of(stream));
  if (!capture) return fail(hipErrorIllegalState, "hipStreamEndCapture: no capture is under way");
  if (capture->origin != key_of(stream)) {
    return fail(hipErrorStreamCaptureUnmatched,
                "hipStreamEndCapture: the stream joined the capture, and did not begin it");
  }
  if (capture->mode != hipStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return fail(hipErrorStreamCaptureWrongThread,
                "hipStreamEndCapture: another thread began the capture");
  }
  remove_capture(capture);
  if (capture->broken.empty() && is_joined(*capture)) {
    *graph = reinterpret_cast<hipGraph_t>(capture->graph.get());
    return hipSuccess;
  }
  if (!capture->is_borrowed) graphs().remove(capture->graph.get());
  if (!capture->broken.empty()) return is_broken(*capture);
  return fail(hipErrorStreamCaptureUnjoined,
              "hipStreamEndCapture: a stream that joined the capture has work that the first one "
              "does not wait for: record an event behind it, and wait for that",
              kLogAlways);
}

hipError_t capture_info(hipStream_t stream, CaptureInfo& info) {
  const hipError_t code = check_stream(stream);
  if (code != hipSuccess || !any_capture()) return code;
  std::lock_guard lock(graph_mutex());
  if (is_null_stream(stream)) {  // a query invalidates no capture
    const bool waits = std::ranges::any_of(captures(), [](const auto& capture) {
      return std::ranges::any_of(capture->streams,
                                 [](const auto& entry) { return entry.second.is_blocking; });
    });
    return waits ? fail(hipErrorStreamCaptureImplicit,
                        "a stream that waits for the null stream is "
                        "captured")
                 : hipSuccess;
  }
  const auto capture = capture_of(key_of(stream));
  if (!capture) return hipSuccess;
  info.status =
      capture->broken.empty() ? hipStreamCaptureStatusActive : hipStreamCaptureStatusInvalidated;
  if (!capture->broken.empty()) return hipSuccess;
  info.id = capture->id;
  info.graph = capture->graph.get();
  info.needs = &capture->streams[key_of(stream)].needs;
  return hipSuccess;
}

hipError_t update_capture(hipStream_t stream, const hipGraphNode_t* handles, size_t count,
                          unsigned flags) {
  std::lock_guard lock(graph_mutex());
  const hipError_t code = check_stream(stream);
  if (code != hipSuccess) return code;
  const auto capture = capture_of(key_of(stream));
  if (!capture) return fail(hipErrorIllegalState, "capture dependencies: no capture is under way");
  if (!capture->broken.empty()) return is_broken(*capture);
  if (flags > hipStreamSetCaptureDependencies) {
    return fail(hipErrorInvalidValue, "capture dependencies: flags " + std::to_string(flags));
  }
  std::vector<Node*> chosen;
  const hipError_t read = read_nodes(*capture->graph, handles, count, chosen);
  if (read != hipSuccess) return read;
  auto& needs = capture->streams[key_of(stream)].needs;
  if (flags == hipStreamSetCaptureDependencies) needs.clear();
  merge(needs, chosen);
  return hipSuccess;
}

int exchange_capture_mode(int mode) { return std::exchange(t_mode, mode); }

}  // namespace vgpu

// Replaces the null stream of the calling thread by `stream`; null restores it. For capturing work
// launched on the null stream, as all work of CPU tensors is.
VGPU_API hipError_t rfops_vgpu_set_null_stream(hipStream_t stream) {
  return vgpu::with_error_handling(__func__, [&] {
    const hipError_t code = vgpu::check_stream(stream);
    if (code == hipSuccess) vgpu::t_null_stream = stream;
    return code;
  });
}
