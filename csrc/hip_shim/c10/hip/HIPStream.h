// What hipify makes of torch's current CUDA stream: the null stream, as on the virtual GPU each
// launch ends before its call returns.
#pragma once
#include <hip/hip_runtime.h>

namespace c10::hip {

struct HIPStream {
  operator hipStream_t() const { return nullptr; }
  hipStream_t stream() const { return nullptr; }
  void synchronize() const { (void)hipDeviceSynchronize(); }
};
inline HIPStream getCurrentHIPStream(int = -1) { return {}; }
inline HIPStream getDefaultHIPStream(int = -1) { return {}; }
inline HIPStream getCurrentHIPStreamMasqueradingAsCUDA(int = -1) { return {}; }
inline HIPStream getDefaultHIPStreamMasqueradingAsCUDA(int = -1) { return {}; }

// Of one device there is nothing to guard.
struct HIPGuard {
  template <typename... Device>
  explicit HIPGuard(Device&&...) {}
};
using OptionalHIPGuard = HIPGuard;
using HIPGuardMasqueradingAsCUDA = HIPGuard;
using OptionalHIPGuardMasqueradingAsCUDA = HIPGuard;

}  // namespace c10::hip

// Names that newer versions of hipify leave as they are.
namespace c10::cuda {
using CUDAStream = c10::hip::HIPStream;
using CUDAGuard = c10::hip::HIPGuard;
using OptionalCUDAGuard = c10::hip::HIPGuard;
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;
}  // namespace at::cuda

namespace at::hip {
using namespace c10::hip;
}  // namespace at::hip
