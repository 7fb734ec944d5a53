// Streams and events.
//
// Every call completes before it returns, so a stream is only a validated handle: work is in order
// on any stream and always complete. Event times are the estimates of the launches in between if
// timing mode is on, otherwise the simulation's wall time.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"
#include "vgpu/timing/timing.h"

namespace vgpu {
namespace {

using Clock = std::chrono::steady_clock;

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  u64 id = 0;
};

struct Event {
  unsigned flags = 0;
  std::atomic<bool> recorded{false};
  std::atomic<Clock::time_point> time{};
  std::atomic<u64> modelled_ps{0};  // 0: timing mode was off
};

constexpr int kLowestPriority = 1, kHighestPriority = -1;

HandleTable<Stream>& streams() { return handle_table<Stream>(); }
HandleTable<Event>& events() { return handle_table<Event>(); }

// Returns whether the handle is the null stream, hipStreamLegacy or hipStreamPerThread.
bool is_builtin(hipStream_t stream) { return reinterpret_cast<u64>(stream) <= 2; }

hipError_t create_stream(hipStream_t* stream, unsigned flags, int priority) {
  static std::atomic<u64> next_id{1};
  if (!stream) return fail(hipErrorInvalidValue, "stream creation: null pointer");
  if (flags > 1) {
    return fail(hipErrorInvalidValue,
                "stream flags " + std::to_string(flags) +
                    ", expected hipStreamDefault 0 or hipStreamNonBlocking 1");
  }
  auto new_stream = std::make_shared<Stream>();
  new_stream->flags = flags;
  new_stream->priority = std::clamp(priority, kHighestPriority, kLowestPriority);
  new_stream->id = next_id++;
  *stream = reinterpret_cast<hipStream_t>(streams().add(std::move(new_stream)));
  return hipSuccess;
}

hipError_t create_event(hipEvent_t* event, unsigned flags) {
  if (!event) return fail(hipErrorInvalidValue, "event creation: null pointer");
  auto new_event = std::make_shared<Event>();
  new_event->flags = flags;
  *event = reinterpret_cast<hipEvent_t>(events().add(std::move(new_event)));
  return hipSuccess;
}

std::shared_ptr<Event> event_or_fail(hipEvent_t handle) {
  auto event = events().lookup(handle);
  if (!event) fail(hipErrorInvalidHandle, "unknown or destroyed hipEvent_t");
  return event;
}

// Returns a property of a stream; `builtin` for the built-in handles.
template <class T, class Field>
hipError_t stream_field(hipStream_t handle, T* out, T builtin, Field field) {
  if (!out) return fail(hipErrorInvalidValue, "stream query: null pointer");
  if (is_builtin(handle)) {
    *out = builtin;
    return hipSuccess;
  }
  const auto stream = streams().lookup(handle);
  if (!stream) return check_stream(handle);
  *out = field(*stream);
  return hipSuccess;
}

}  // namespace

hipError_t check_stream(hipStream_t stream) {
  if (is_builtin(stream) || streams().lookup(stream)) return hipSuccess;
  return fail(hipErrorContextIsDestroyed, "unknown or destroyed hipStream_t");
}

hipError_t check_event(hipEvent_t handle) {
  return event_or_fail(handle) ? hipSuccess : hipErrorInvalidHandle;
}

unsigned stream_flags(hipStream_t handle) {
  const auto stream = streams().lookup(handle);
  return stream ? stream->flags : 0;
}

bool is_recorded(hipEvent_t handle) {
  const auto event = events().lookup(handle);
  return event && event->recorded;
}

hipError_t record_event(hipEvent_t handle) {
  const auto event = event_or_fail(handle);
  if (!event) return hipErrorInvalidHandle;
  event->time.store(Clock::now());
  event->modelled_ps.store(timing() ? modelled_ps() + 1 : 0);
  event->recorded.store(true);
  return hipSuccess;
}

}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipStreamCreate(hipStream_t* stream) {
  return with_error_handling(__func__, [&] { return create_stream(stream, 0, 0); });
}

VGPU_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return with_error_handling(__func__, [&] { return create_stream(stream, flags, 0); });
}

VGPU_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
  return with_error_handling(__func__, [&] { return create_stream(stream, flags, priority); });
}

VGPU_API hipError_t hipDeviceGetStreamPriorityRange(int* lowest_priority, int* highest_priority) {
  if (lowest_priority) *lowest_priority = kLowestPriority;
  if (highest_priority) *highest_priority = kHighestPriority;
  return hipSuccess;
}

VGPU_API hipError_t hipStreamDestroy(hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    if (is_builtin(stream)) return fail(hipErrorInvalidHandle, "built-in streams stay");
    forget_stream(stream);
    return streams().remove(stream) ? hipSuccess : check_stream(stream);
  });
}

VGPU_API hipError_t hipStreamSynchronize(hipStream_t stream) {
  return with_error_handling(__func__,
                             [&] { return refuse_stream_wait("hipStreamSynchronize", stream); });
}

VGPU_API hipError_t hipStreamQuery(hipStream_t stream) {
  return with_error_handling(__func__,
                             [&] { return refuse_stream_wait("hipStreamQuery", stream); });
}

VGPU_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
  return with_error_handling(__func__, [&] { return wait_on(stream, event, flags); });
}

VGPU_API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
  return with_error_handling(__func__, [&] {
    return stream_field(stream, flags, 0u, [](const Stream& s) { return s.flags; });
  });
}

VGPU_API hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  return with_error_handling(__func__, [&] {
    return stream_field(stream, priority, 0, [](const Stream& s) { return s.priority; });
  });
}

VGPU_API hipError_t hipStreamGetId(hipStream_t stream, unsigned long long* id) {
  return with_error_handling(__func__, [&] {
    return stream_field(stream, id, 0ull,
                        [](const Stream& s) -> unsigned long long { return s.id; });
  });
}

VGPU_API hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* device) {
  return with_error_handling(
      __func__, [&] { return stream_field(stream, device, 0, [](const Stream&) { return 0; }); });
}

VGPU_API hipError_t hipStreamAttachMemAsync(hipStream_t stream, void*, size_t, unsigned) {
  return with_error_handling(__func__, [&] { return check_stream(stream); });
}

// Used by rocPRIM; returns an id, not an error code.
VGPU_API int hipGetStreamDeviceId(hipStream_t stream) {
  hipDevice_t device = -1;
  hipStreamGetDevice(stream, &device);
  return device;
}

// All earlier work is complete, so the host function runs at once on the calling thread.
VGPU_API hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* user_data) {
  return with_error_handling(__func__, [&] {
    if (!function) return fail(hipErrorInvalidValue, "hipLaunchHostFunc: function is null");
    return submit(stream, HostWork{{function, user_data}});
  });
}

VGPU_API hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback,
                                         void* user_data, unsigned) {
  return with_error_handling(__func__, [&] {
    if (!callback) return fail(hipErrorInvalidValue, "hipStreamAddCallback: callback is null");
    const hipError_t code = refuse_stream_wait("hipStreamAddCallback", stream);
    if (code == hipSuccess) callback(stream, hipSuccess, user_data);
    return code;
  });
}

VGPU_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return with_error_handling(__func__, [&] { return create_event(event, flags); });
}

VGPU_API hipError_t hipEventCreate(hipEvent_t* event) {
  return with_error_handling(__func__, [&] { return create_event(event, 0); });
}

VGPU_API hipError_t hipEventDestroy(hipEvent_t event) {
  return with_error_handling(__func__, [&] {
    forget_event(event);
    return events().remove(event) ? hipSuccess : check_event(event);
  });
}

VGPU_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return with_error_handling(__func__, [&] { return record_on(event, stream, 0); });
}

VGPU_API hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream, unsigned flags) {
  return with_error_handling(__func__, [&] { return record_on(event, stream, flags); });
}

VGPU_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return with_error_handling(__func__,
                             [&] { return refuse_event_wait("hipEventSynchronize", event); });
}

VGPU_API hipError_t hipEventQuery(hipEvent_t event) {
  return with_error_handling(__func__, [&] { return refuse_event_wait("hipEventQuery", event); });
}

VGPU_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return with_error_handling(__func__, [&] {
    if (!milliseconds) return fail(hipErrorInvalidValue, "hipEventElapsedTime: null pointer");
    const auto begin = event_or_fail(start), end = event_or_fail(stop);
    if (!begin || !end) return hipErrorInvalidHandle;
    if (!begin->recorded || !end->recorded || (begin->flags | end->flags) & kEventDisableTiming) {
      return fail(hipErrorInvalidHandle,
                  "hipEventElapsedTime: both events must be recorded and have timing enabled");
    }
    const u64 begin_ps = begin->modelled_ps, end_ps = end->modelled_ps;
    const std::chrono::duration<float, std::milli> span = end->time.load() - begin->time.load();
    *milliseconds = begin_ps && end_ps
                        ? static_cast<float>(
                              (static_cast<double>(end_ps) - static_cast<double>(begin_ps)) / 1e9)
                        : span.count();
    return hipSuccess;
  });
}
