// Tensors of aiter's host functions, which are structs, from an address and sizes.
#pragma once
#include <initializer_list>
#include <optional>

#include "aiter_tensor.h"
#include "attempt.h"

namespace rfops {

inline aiter_tensor_t tensor(void* data, AiterDtype dtype, std::initializer_list<int64_t> sizes) {
  aiter_tensor_t result{};
  result.ptr = data;
  result.ndim = static_cast<int>(sizes.size());
  result.dtype_ = dtype;
  int dim = 0;
  for (int64_t size : sizes) result.shape[dim++] = size;
  int64_t stride = 1;
  for (dim = result.ndim - 1; dim >= 0; --dim) {
    result.strides[dim] = stride;
    stride *= result.shape[dim];
  }
  result.numel_ = static_cast<size_t>(stride);
  return result;
}

}  // namespace rfops
