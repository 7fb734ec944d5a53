// What vLLM's host functions use of torch's stable interface, for tensors that are an address and
// sizes; and CUDA's names as HIP's. Headers of these names that the sources include are empty.
#pragma once
#define USE_ROCM
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#include <torch/headeronly/core/Dispatch.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "attempt.h"

#define CUDA_VERSION 0
#define cudaDevAttrMaxSharedMemoryPerBlockOptin hipDeviceAttributeMaxSharedMemoryPerBlock
#define cudaDeviceGetAttribute hipDeviceGetAttribute
#define cudaDeviceProp hipDeviceProp_t
#define cudaError_t hipError_t
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaGetErrorString hipGetErrorString
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess
#define STD_CUDA_CHECK(call) (void)(call)
#define TORCH_ERROR_CODE_CHECK(call) (void)(call)
using cublasHandle_t = void*;

inline int aoti_torch_get_current_cuda_stream(int, void** stream) { return *stream = nullptr, 0; }
inline int torch_get_current_cuda_blas_handle(void** handle) { return *handle = nullptr, 0; }

namespace torch::stable {

using ScalarType = torch::headeronly::ScalarType;

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, ScalarType type, std::initializer_list<int64_t> sizes)
      : data_(data), type_(type), sizes_(sizes) {}

  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t d) const { return sizes_[d < 0 ? d + dim() : d]; }
  int64_t stride(int64_t d) const {
    int64_t product = 1;
    for (int64_t i = dim() - 1; i > (d < 0 ? d + dim() : d); --i) product *= sizes_[i];
    return product;
  }
  int64_t numel() const { return sizes_.empty() ? 0 : sizes_[0] * stride(0); }
  int64_t element_size() const {
    return type_ == ScalarType::Long || type_ == ScalarType::Double ? 8
           : type_ == ScalarType::Int || type_ == ScalarType::Float ? 4
                                                                    : 2;
  }
  ScalarType scalar_type() const { return type_; }
  bool is_contiguous() const { return true; }
  bool is_cuda() const { return true; }
  int32_t get_device_index() const { return 0; }
  int device() const { return 0; }
  template <typename T = void>
  T* mutable_data_ptr() const {
    return static_cast<T*>(data_);
  }
  template <typename T = void>
  const T* const_data_ptr() const {
    return static_cast<const T*>(data_);
  }
  void take_ownership(void* data) {
    owned_.reset(data, [](void* address) { (void)hipFree(address); });
    data_ = data;
  }

 private:
  void* data_ = nullptr;
  ScalarType type_ = ScalarType::Int;
  std::vector<int64_t> sizes_;
  std::shared_ptr<void> owned_;
};

inline Tensor new_empty(const Tensor&, std::initializer_list<int64_t> sizes, ScalarType type) {
  Tensor result(nullptr, type, sizes);
  void* data = nullptr;
  if (result.numel() && hipMalloc(&data, result.numel() * result.element_size()) == hipSuccess)
    result.take_ownership(data);
  return result;
}

inline Tensor new_zeros(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type) {
  Tensor result = new_empty(like, sizes, type);
  (void)hipMemset(result.mutable_data_ptr(), 0, result.numel() * result.element_size());
  return result;
}

namespace accelerator {
struct DeviceGuard {
  explicit DeviceGuard(int32_t) {}
};
}  // namespace accelerator

}  // namespace torch::stable
