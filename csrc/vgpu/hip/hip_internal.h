// Shared by the files of the HIP interface (hip_api_*.cpp): errors, handles, launches.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "vgpu/base/device.h"
#include "vgpu/base/log.h"
#include "vgpu/hip/hip_types.h"
#include "vgpu/object/code_object.h"

namespace vgpu {

inline constexpr int kLogAlways = 1, kLogVerbose = 2;  // levels of log_line

// Records `code` as the thread's last error and `text` as its reason, logs it, and returns `code`.
hipError_t fail(hipError_t code, std::string text, int level = kLogVerbose);

// Runs an entry point's body; converts exceptions to error codes at the C interface.
template <class Body>
hipError_t with_error_handling(const char* function, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(hipErrorOutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return fail(hipErrorUnknown, std::string(function) + ": " + error.what(), kLogAlways);
  } catch (...) {
    return fail(hipErrorUnknown, std::string(function) + ": unknown exception", kLogAlways);
  }
}

// Returns the device, or null after fail() if RFOPS_VGPU_ARCH is invalid.
const DeviceInfo* device_or_fail();

// Checks a device ordinal; there is one device.
hipError_t check_ordinal(int device);

// Live objects by handle address: a stale or foreign handle gives an error text.
template <class T>
class HandleTable {
 public:
  T* add(std::shared_ptr<T> object) {
    T* handle = object.get();
    std::unique_lock lock(mutex_);
    live_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<T> lookup(const void* handle) const {
    std::shared_lock lock(mutex_);
    const auto it = live_.find(handle);
    return it == live_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    std::unique_lock lock(mutex_);
    const auto it = live_.find(handle);
    if (it == live_.end()) return nullptr;
    auto object = std::move(it->second);
    live_.erase(it);
    return object;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> live_;
};

// Never destroyed, because exit handlers may use it.
template <class T>
HandleTable<T>& handle_table() {
  static auto* const table = new HandleTable<T>;
  return *table;
}

// The shape of a launch; hidden arguments are filled from it.
struct LaunchShape {
  u32 grid[3];   // workgroups
  u32 block[3];  // lanes
  u32 dynamic_lds;
  bool cooperative;
};

// The layout of a kernel's arguments, computed once from its metadata.
struct ArgPlan {
  struct Explicit {
    u32 offset, size;
  };
  struct Hidden {
    u64 (*value)(const LaunchShape&);
    u32 offset, size;
  };
  std::vector<Explicit> explicits;
  u64 explicit_end = 0;  // of the last one
  std::vector<Hidden> hiddens;
};
ArgPlan plan_args(const Kernel& kernel);

struct Function {
  const Kernel* kernel = nullptr;
  ArgPlan plan;
  mutable std::atomic<bool> unread_reported{false};  // values that it was given and does not take
};

class Module {
 public:
  explicit Module(std::unique_ptr<CodeObject> object);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();
  const CodeObject& object() const { return *object_; }
  // Returns the handle of a kernel, created at first use; null if the module has none of this name.
  static Function* function(const std::shared_ptr<Module>& self, const std::string& name);
  void retire_functions();  // invalidates their handles

 private:
  std::unique_ptr<CodeObject> object_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Function>> functions_;
};

HandleTable<Module>& modules();
HandleTable<Function>& functions();  // each function keeps its module alive while in use

// Returns whether an address lies in the image of a loaded module, as device variables do.
bool in_module(const void* pointer);

// Loads for the current device; `size` 0: unknown. Null after fail().
std::shared_ptr<Module> load_module(const void* image, u64 size, hipError_t& code);

// Accepts a stub of hipcc's host code (the address of the kernel's host function), or a
// hipFunction_t.
std::shared_ptr<Function> resolve_function(const void* function);

// Accepts null, a built-in handle, or a live stream.
hipError_t check_stream(hipStream_t stream);
unsigned stream_flags(hipStream_t stream);  // 0 for the built-in handles

struct LaunchRequest {
  const Function* function = nullptr;
  u64 grid[3] = {}, block[3] = {};
  u64 dynamic_lds = 0;
  void** params = nullptr;
  void** extra = nullptr;
  bool cooperative = false;
  // Error code of an invalid shape: hipErrorInvalidConfiguration for the runtime's launches
  // (<<<>>>, hipExt), hipErrorInvalidValue for the module interface.
  hipError_t bad_shape = hipErrorInvalidValue;
};
hipError_t launch(const LaunchRequest& request);

// A launch that has passed its checks, with a copy of its arguments.
struct KernelWork {
  std::shared_ptr<Function> function;  // keeps its module alive
  void* handle = nullptr;              // the handle that the caller used
  LaunchShape shape{};
  std::vector<u8> args;
};
hipError_t record_launch(const LaunchRequest& request, KernelWork& work);
hipError_t run_kernel(const KernelWork& work);

// Launches on a stream, or records the launch if the stream is captured.
hipError_t launch_on(hipStream_t stream, const std::shared_ptr<Function>& function, void* handle,
                     LaunchRequest& request);

// hipMemcpy with its checks, in three dimensions, and two-dimensional fills.
hipError_t copy_memory(void* dst, const void* src, size_t size, hipMemcpyKind kind);
hipError_t copy_volume(const hipMemcpy3DParms& params);
hipError_t fill_plane(const hipMemsetParams& params);

// Records the start and stop of a timed launch; null handles are ignored.
hipError_t record_event(hipEvent_t event);
hipError_t check_event(hipEvent_t event);
bool is_recorded(hipEvent_t event);

}  // namespace vgpu
