// Kernel launches: checks, argument buffer, execution.
//
// A launch runs to its end before the call returns, so a fault is the launch's own result (hardware
// reports it at the next synchronisation), and unlike on hardware the context stays usable.
#include <algorithm>
#include <memory>

#include "vgpu/exec/hostcall.h"
#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"
#include "vgpu/isa/wave.h"
#include "vgpu/run/run.h"

namespace vgpu {
namespace {

// The fields of amd_queue_t that the ABI reads: the apertures' high halves. All others are zero.
struct alignas(64) Queue {
  u8 head[64] = {};
  u32 group_segment_aperture_base_hi = static_cast<u32>(kSharedBaseAddr >> 32);
  u32 private_segment_aperture_base_hi = static_cast<u32>(kPrivateBaseAddr >> 32);
  u8 unused[184] = {};
};
const Queue kQueue;

// What a cooperative launch's workgroups wait for each other by: mg_info_t of ROCm's device
// library, for a launch on one GPU. The library counts arrivals in `arrived`, and a launch begins
// with 0.
struct GridBarrier {
  u64 of_all_gpus = 0;
  u32 gpu = 0, gpus = 1;
  u64 lanes_before = 0, lanes = 0;
  u32 arrived = 0, unused = 0;
  u32 workgroups = 0, padding = 0;
};
static_assert(sizeof(GridBarrier) == kGridBarrierBytes && offsetof(GridBarrier, arrived) == 32 &&
              offsetof(GridBarrier, workgroups) == 40);
thread_local GridBarrier t_barrier;

u64 grid_barrier(const LaunchShape& s) {
  if (!s.cooperative) return 0;
  const u32 workgroups = s.grid[0] * s.grid[1] * s.grid[2];
  t_barrier = {.lanes = u64{workgroups} * s.block[0] * s.block[1] * s.block[2],
               .workgroups = workgroups};
  return reinterpret_cast<u64>(&t_barrier);
}

struct HiddenRow {
  std::string_view value_kind;
  u64 (*value)(const LaunchShape&);
};

// Grids consist of whole workgroups here, so remainders are 0; so are the buffers of services that
// the virtual GPU does not support (device heap, device-side enqueue).
constexpr HiddenRow kHidden[] = {
    {"hidden_block_count_x", [](const LaunchShape& s) { return u64{s.grid[0]}; }},
    {"hidden_block_count_y", [](const LaunchShape& s) { return u64{s.grid[1]}; }},
    {"hidden_block_count_z", [](const LaunchShape& s) { return u64{s.grid[2]}; }},
    {"hidden_group_size_x", [](const LaunchShape& s) { return u64{s.block[0]}; }},
    {"hidden_group_size_y", [](const LaunchShape& s) { return u64{s.block[1]}; }},
    {"hidden_group_size_z", [](const LaunchShape& s) { return u64{s.block[2]}; }},
    {"hidden_grid_dims", [](const LaunchShape&) { return u64{3}; }},
    {"hidden_dynamic_lds_size", [](const LaunchShape& s) { return u64{s.dynamic_lds}; }},
    {"hidden_private_base", [](const LaunchShape&) { return kPrivateBaseAddr >> 32; }},
    {"hidden_shared_base", [](const LaunchShape&) { return kSharedBaseAddr >> 32; }},
    {"hidden_hostcall_buffer", [](const LaunchShape&) { return hostcall_buffer(); }},
    {"hidden_queue_ptr", [](const LaunchShape&) { return reinterpret_cast<u64>(&kQueue); }},
    {"hidden_multigrid_sync_arg", grid_barrier},
};

std::string shape_text(const u64 (&shape)[3]) {
  return std::to_string(shape[0]) + "x" + std::to_string(shape[1]) + "x" + std::to_string(shape[2]);
}

hipError_t refuse(const LaunchRequest& request, hipError_t code, const std::string& reason) {
  return fail(code, "launch of " + request.function->kernel->name + ": " + reason, kLogAlways);
}

hipError_t check_grid(const LaunchRequest& request) {
  const u64(&grid)[3] = request.grid;
  for (u32 d = 0; d < 3; ++d) {
    if (!grid[d] || grid[d] > kMaxGrid[d]) {
      return refuse(request, hipErrorInvalidValue,
                    "grid " + shape_text(grid) +
                        ", expected 1 to 2147483647 workgroups in x and 1 " +
                        "to 65536 in y and z");
    }
    if (grid[d] * request.block[d] > 0xffffffff) {
      return refuse(request, hipErrorInvalidConfiguration,
                    "grid " + shape_text(grid) + " of block " + shape_text(request.block) +
                        " has 2^32 or more lanes in one dimension");
    }
  }
  return hipSuccess;
}

hipError_t check_block(const LaunchRequest& request) {
  const u64(&block)[3] = request.block;
  const Kernel& kernel = *request.function->kernel;
  bool is_valid = true;
  for (const u64 extent : block) is_valid = is_valid && extent && extent <= kMaxBlockThreads;
  if (!is_valid || block[0] * block[1] * block[2] > kMaxBlockThreads) {
    return refuse(request, request.bad_shape,
                  "block " + shape_text(block) + ", expected 1 to 1024 lanes");
  }
  if (block[0] * block[1] * block[2] > kernel.max_workgroup_size) {
    return refuse(request, hipErrorLaunchFailure,
                  "block " + shape_text(block) + " exceeds the " +
                      std::to_string(kernel.max_workgroup_size) +
                      " lanes it was compiled for (__launch_bounds__)");
  }
  return hipSuccess;
}

hipError_t check_resources(const LaunchRequest& request) {
  const Kernel& kernel = *request.function->kernel;
  const DeviceInfo& device = device_info(kernel.object->arch);
  const u64 lds = kernel.group_segment_bytes + request.dynamic_lds;
  if (lds > device.traits().lds_bytes) {
    return refuse(request, hipErrorInvalidValue,
                  "needs " + std::to_string(lds) + " bytes of LDS (" +
                      std::to_string(kernel.group_segment_bytes) + " static, " +
                      std::to_string(request.dynamic_lds) + " dynamic), " + arch_name(device.arch) +
                      " has " + std::to_string(device.traits().lds_bytes));
  }
  if (!request.cooperative) return hipSuccess;
  const u64 lanes = request.block[0] * request.block[1] * request.block[2];
  const u64 resident =
      u64{device.compute_units} *
      workgroups_per_cu(device, kernel.vgpr_rows, static_cast<u32>(lds), static_cast<u32>(lanes));
  if (request.grid[0] * request.grid[1] * request.grid[2] <= resident) return hipSuccess;
  return refuse(request, hipErrorCooperativeLaunchTooLarge,
                "cooperative grid " + shape_text(request.grid) + ", at most " +
                    std::to_string(resident) + " workgroups are resident at once");
}

// The calling thread's argument buffer. It grows, and is freed at thread exit.
class ArgBuffer {
 public:
  u8* zeroed(u32 bytes) {
    if (bytes > capacity_ || !data_) {
      const u32 new_capacity = bytes < 4096 ? 4096 : bytes;
      data_.reset(static_cast<u8*>(::operator new(new_capacity, kAlign)));
      capacity_ = new_capacity;
    }
    std::memset(data_.get(), 0, bytes);
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlign{4096};  // so that timing mode always sees the same lines
  struct Release {
    void operator()(u8* data) const { ::operator delete(data, kAlign); }
  };
  std::unique_ptr<u8, Release> data_;
  u32 capacity_ = 0;
};
thread_local ArgBuffer t_args;

hipError_t copy_params(const LaunchRequest& request, u8* dst) {
  const ArgPlan& plan = request.function->plan;
  for (size_t i = 0; i < plan.explicits.size(); ++i) {
    const ArgPlan::Explicit& arg = plan.explicits[i];
    if (!request.params[i]) {
      return refuse(request, hipErrorInvalidValue,
                    "kernelParams[" + std::to_string(i) + "] of " +
                        std::to_string(plan.explicits.size()) + " is null");
    }
    std::memcpy(dst + arg.offset, request.params[i], arg.size);
  }
  return hipSuccess;
}

// Logs, once per kernel, that a buffer has values after the last argument.
void report_unread(const Function& function, const u8* buffer, u64 bytes) {
  const u64 end = function.plan.explicit_end;
  const bool is_padding =
      end >= bytes || std::all_of(buffer + end, buffer + bytes, [](u8 byte) { return !byte; });
  if (is_padding || function.unread_reported.exchange(true)) return;
  log_line(kLogAlways, "launch of " + function.kernel->name + ": " + std::to_string(bytes) +
                           " bytes of arguments, of which the kernel takes " + std::to_string(end) +
                           "; the rest is not zero and is not read");
}

hipError_t copy_extra(const LaunchRequest& request, u8* dst) {
  const void* buffer = nullptr;
  const size_t* size = nullptr;
  void** extra = request.extra;
  for (u32 i = 0; i < 4 && extra[i] != HIP_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[i + 1];
    } else if (extra[i] == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const size_t*>(extra[i + 1]);
    } else {
      break;
    }
  }
  if (!buffer || !size) {
    return refuse(request, hipErrorInvalidValue,
                  "extra must be {BUFFER_POINTER, p, BUFFER_SIZE, &n, END}");
  }
  // As in ROCm, every argument is read from its own offset, whatever the buffer's size. Callers
  // pass one struct to kernels that take more or fewer of its members: an argument not wholly
  // inside the buffer is zero, and bytes after the last argument are not read. A kernel without
  // arguments that gets some is another kernel than the caller believes.
  const u64 bytes = *size;
  const auto& explicits = request.function->plan.explicits;
  if (!explicits.empty() && !bytes) {
    return refuse(request, hipErrorInvalidValue,
                  "takes " + std::to_string(explicits.size()) +
                      " arguments, but the argument buffer has 0 bytes");
  }
  const Kernel& kernel = *request.function->kernel;
  const bool takes_none = kernel.has_metadata ? explicits.empty() : !kernel.kernarg_bytes;
  if (bytes && takes_none) {
    return refuse(request, hipErrorLaunchOutOfResources,
                  "takes no arguments, but the argument buffer has " + std::to_string(bytes) +
                      " bytes" + (kernel.has_metadata ? "" : "; its code object has no metadata"));
  }
  if (!kernel.has_metadata) {
    std::memcpy(dst, buffer, std::min<u64>(bytes, kernel.kernarg_bytes));
    return hipSuccess;
  }
  for (const ArgPlan::Explicit& arg : explicits) {
    if (u64{arg.offset} + arg.size > bytes) continue;
    std::memcpy(dst + arg.offset, static_cast<const u8*>(buffer) + arg.offset, arg.size);
  }
  report_unread(*request.function, static_cast<const u8*>(buffer), bytes);
  return hipSuccess;
}

hipError_t copy_explicit(const LaunchRequest& request, u8* dst) {
  const Kernel& kernel = *request.function->kernel;
  if (request.params && request.extra) {
    return refuse(request, hipErrorInvalidValue, "both kernelParams and extra are given");
  }
  if (request.extra) return copy_extra(request, dst);
  if (!kernel.has_metadata && (kernel.kernarg_bytes || request.params)) {
    return refuse(request, hipErrorInvalidValue,
                  "the code object has no argument metadata: pass the buffer through extra");
  }
  if (request.function->plan.explicits.empty()) return hipSuccess;
  if (request.params) return copy_params(request, dst);
  return refuse(request, hipErrorInvalidValue,
                "takes " + std::to_string(request.function->plan.explicits.size()) +
                    " arguments, but neither kernelParams nor extra is given");
}

// Returns the HIP error code for a fault; the fault's text has the details. HIP has no code for an
// illegal instruction: an unknown one is a launch failure.
hipError_t fault_code(const std::string& text) {
  switch (fault_kind(text)) {
    case FaultKind::kTimeout:
      return hipErrorLaunchTimeOut;
    case FaultKind::kMemory:
      return hipErrorIllegalAddress;
    default:
      return hipErrorLaunchFailure;
  }
}

}  // namespace

ArgPlan plan_args(const Kernel& kernel) {
  ArgPlan plan;
  for (const KernelArg& arg : kernel.args) {
    if (arg.value_kind.starts_with("hidden_")) {
      for (const HiddenRow& row : kHidden) {
        if (arg.size <= 8 && arg.value_kind == row.value_kind) {
          plan.hiddens.push_back({row.value, arg.offset, arg.size});
        }
      }
    } else {
      plan.explicits.push_back({arg.offset, arg.size});
      plan.explicit_end = std::max(plan.explicit_end, u64{arg.offset} + arg.size);
    }
  }
  return plan;
}

namespace {

// Checks the launch and writes explicit and hidden arguments to the zeroed `args`.
hipError_t prepare(const LaunchRequest& request, LaunchShape& shape, u8* args) {
  hipError_t code = check_grid(request);
  if (code == hipSuccess) code = check_block(request);
  if (code == hipSuccess) code = check_resources(request);
  if (code == hipSuccess) code = copy_explicit(request, args);
  if (code != hipSuccess) return code;
  for (u32 d = 0; d < 3; ++d) {
    shape.grid[d] = static_cast<u32>(request.grid[d]);
    shape.block[d] = static_cast<u32>(request.block[d]);
  }
  shape.dynamic_lds = static_cast<u32>(request.dynamic_lds);
  shape.cooperative = request.cooperative;
  for (const ArgPlan::Hidden& hidden : request.function->plan.hiddens) {
    const u64 value = hidden.value(shape);
    std::memcpy(args + hidden.offset, &value, hidden.size);
  }
  return hipSuccess;
}

hipError_t execute(const Kernel& kernel, const LaunchShape& shape, const u8* args) {
  Launch launch;
  std::copy_n(shape.grid, 3, launch.grid);
  std::copy_n(shape.block, 3, launch.block);
  launch.dynamic_lds = shape.dynamic_lds;
  launch.kernel = &kernel;
  launch.kernarg = args;
  launch.kernarg_bytes = kernel.kernarg_bytes;
  observe_launch(launch);
  const std::string fault = run(launch);
  if (fault.empty()) return hipSuccess;
  // The caller who interrupted it needs no log line.
  const bool is_interrupt = fault.ends_with(kInterrupted);
  return fail(fault_code(fault), fault, is_interrupt ? kLogVerbose : kLogAlways);
}

}  // namespace

hipError_t launch(const LaunchRequest& request) {
  const Kernel& kernel = *request.function->kernel;
  u8* args = t_args.zeroed(kernel.kernarg_bytes);
  LaunchShape shape;
  const hipError_t code = prepare(request, shape, args);
  return code == hipSuccess ? execute(kernel, shape, args) : code;
}

hipError_t record_launch(const LaunchRequest& request, KernelWork& work) {
  work.args.assign(request.function->kernel->kernarg_bytes, 0);
  return prepare(request, work.shape, work.args.data());
}

hipError_t run_kernel(const KernelWork& work) {
  u8* args = t_args.zeroed(static_cast<u32>(work.args.size()));
  if (!work.args.empty()) std::memcpy(args, work.args.data(), work.args.size());
  return execute(*work.function->kernel, work.shape, args);
}

hipError_t launch_on(hipStream_t stream, const std::shared_ptr<Function>& function, void* handle,
                     LaunchRequest& request) {
  request.function = function.get();
  bool captured = false;
  const hipError_t code = enter_stream(stream, captured);
  if (code != hipSuccess) return code;
  if (!captured) return launch(request);
  KernelWork work{.function = function, .handle = handle};
  const hipError_t recorded = record_launch(request, work);
  return recorded == hipSuccess ? capture(stream, std::move(work)) : recorded;
}

namespace {

hipError_t launch_function(hipFunction_t handle, hipStream_t stream, LaunchRequest& request) {
  const std::shared_ptr<Function> function = functions().lookup(handle);
  if (!function) {
    return fail(hipErrorInvalidHandle, "launch of an unknown or unloaded hipFunction_t",
                kLogAlways);
  }
  return launch_on(stream, function, handle, request);
}

LaunchRequest make_request(const dim3& grid, const dim3& block, size_t dynamic_lds, void** params,
                           void** extra) {
  return {.grid = {grid.x, grid.y, grid.z},
          .block = {block.x, block.y, block.z},
          .dynamic_lds = dynamic_lds,
          .params = params,
          .extra = extra};
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

// Calls `observer` before each launch of this process, in the launching thread; null: no more.
VGPU_API void rfops_vgpu_observe_launches(LaunchObserver observer) {
  set_launch_observer(observer);
}

// Calls `observer` for each copy and fill, in the thread that asks for it; null: no more.
VGPU_API void rfops_vgpu_observe_writes(WriteObserver observer) { set_write_observer(observer); }

VGPU_API hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned grid_x, unsigned grid_y,
                                          unsigned grid_z, unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared_bytes,
                                          hipStream_t stream, void** params, void** extra) {
  return with_error_handling(__func__, [&] {
    LaunchRequest request = make_request({grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                         shared_bytes, params, extra);
    return launch_function(f, stream, request);
  });
}

VGPU_API hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned grid_x,
                                                     unsigned grid_y, unsigned grid_z,
                                                     unsigned block_x, unsigned block_y,
                                                     unsigned block_z, unsigned shared_bytes,
                                                     hipStream_t stream, void** params) {
  return with_error_handling(__func__, [&] {
    LaunchRequest request = make_request({grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                         shared_bytes, params, nullptr);
    request.cooperative = true;
    return launch_function(f, stream, request);
  });
}

VGPU_API hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG* config, hipFunction_t f,
                                         void** params, void** extra) {
  if (!config) return fail(hipErrorInvalidValue, "hipDrvLaunchKernelEx: config is null");
  return hipModuleLaunchKernel(f, config->gridDimX, config->gridDimY, config->gridDimZ,
                               config->blockDimX, config->blockDimY, config->blockDimZ,
                               config->sharedMemBytes, config->hStream, params, extra);
}

// Takes the grid in lanes instead of workgroups.
VGPU_API hipError_t hipExtModuleLaunchKernel(hipFunction_t f, uint32_t lanes_x, uint32_t lanes_y,
                                             uint32_t lanes_z, uint32_t block_x, uint32_t block_y,
                                             uint32_t block_z, size_t shared_bytes,
                                             hipStream_t stream, void** params, void** extra,
                                             hipEvent_t start, hipEvent_t stop, uint32_t) {
  return with_error_handling(__func__, [&] {
    const u32 lanes[3] = {lanes_x, lanes_y, lanes_z};
    const u32 block[3] = {block_x, block_y, block_z};
    LaunchRequest request = make_request({lanes_x, lanes_y, lanes_z}, {block_x, block_y, block_z},
                                         shared_bytes, params, extra);
    request.bad_shape = hipErrorInvalidConfiguration;
    for (u32 d = 0; d < 3; ++d) {
      if (block[d] && lanes[d] % block[d]) {
        return fail(hipErrorInvalidConfiguration,
                    "hipExtModuleLaunchKernel: " + std::to_string(lanes[d]) +
                        " lanes are no multiple of the block's " + std::to_string(block[d]) +
                        "; the virtual GPU runs whole workgroups only",
                    kLogAlways);
      }
      request.grid[d] = block[d] ? lanes[d] / block[d] : lanes[d];
    }
    hipError_t code = start ? record_on(start, stream, 0) : hipSuccess;
    if (code == hipSuccess) code = launch_function(f, stream, request);
    if (code == hipSuccess && stop) code = record_on(stop, stream, 0);
    return code;
  });
}

VGPU_API hipError_t hipHccModuleLaunchKernel(hipFunction_t f, uint32_t lanes_x, uint32_t lanes_y,
                                             uint32_t lanes_z, uint32_t block_x, uint32_t block_y,
                                             uint32_t block_z, size_t shared_bytes,
                                             hipStream_t stream, void** params, void** extra,
                                             hipEvent_t start, hipEvent_t stop) {
  return hipExtModuleLaunchKernel(f, lanes_x, lanes_y, lanes_z, block_x, block_y, block_z,
                                  shared_bytes, stream, params, extra, start, stop, 0);
}
