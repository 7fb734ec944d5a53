// torch's checks of a HIP call.
#pragma once
#include <c10/util/Exception.h>
#include <hip/hip_runtime.h>

#define C10_HIP_CHECK(call)                                              \
  do {                                                                   \
    const hipError_t error = (call);                                     \
    TORCH_CHECK(error == hipSuccess, "HIP: ", hipGetErrorString(error)); \
  } while (0)
#define C10_HIP_KERNEL_LAUNCH_CHECK() C10_HIP_CHECK(hipGetLastError())
#define AT_HIP_CHECK(call) C10_HIP_CHECK(call)
#if !defined(C10_CUDA_CHECK)
#define C10_CUDA_CHECK(call) C10_HIP_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_HIP_KERNEL_LAUNCH_CHECK()
#define AT_CUDA_CHECK(call) C10_HIP_CHECK(call)
#endif
