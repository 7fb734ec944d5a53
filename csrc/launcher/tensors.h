/// @file tensors.h
/// @brief Reads a torch.Tensor's address, shape and strides without torch's headers, which take 20
/// s to compile per file.
///
/// torch exports a table of C functions, the DLPack exchange API (torch 2.10 and newer); one of
/// them fills a DLTensor from a Python tensor in 30 ns; `tensor.data_ptr()` takes 50 ns and
/// `tensor.shape` 100 ns. The structs below are DLPack 1.x's ABI.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>

namespace rfops {

struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

/// Functions and offsets of this process's torch; set once by `setup`.
struct Torch {
  PyTypeObject* tensor;
  PyTypeObject* parameter;
  int (*read)(void* tensor, DlTensor* out);  // null: torch is too old
  PyObject* data_ptr;                        // the name of the method
  PyObject* must_dispatch;     // a tuple of functions; if one returns true, torch must see each op
  PyGetSetDef* requires_grad;  // an attribute of Tensor
  PyObject* is_grad_enabled;
  PyObject *forward_ad,
      *level;                   // a module's namespace; its level is negative outside of forward AD
  unsigned impl, metadata;      // offsets in a Tensor and its TensorImpl; 0: unknown
  unsigned keys;                // offset of the dispatch keys in a TensorImpl; 0: unknown
  unsigned long long negative;  // the dispatch-key bit of torch's lazy negation
};

extern Torch torch;

/// Fills in `torch`: setup(Tensor, Parameter, the exchange API's capsule or None, must_dispatch,
/// gradients, negative_bit), the last three from jit/launch/modes.py -> bool.
PyObject* setup(PyObject*, PyObject* args);

/// Returns whether the object is a plain tensor. Subclasses behave differently (a FakeTensor has no
/// memory).
inline bool is_tensor(PyObject* object) {
  return Py_TYPE(object) == torch.tensor || Py_TYPE(object) == torch.parameter;
}

/// Fills `out` from a plain tensor; returns false, without an exception, if torch does not export
/// it.
inline bool read_tensor(PyObject* object, DlTensor* out) {
  if (torch.read == nullptr || torch.read(object, out) != 0) {
    PyErr_Clear();
    return false;
  }
  return true;
}

/// Reads the address of the first element; returns false, without an exception, if torch does not
/// export the tensor.
inline bool read_address(PyObject* object, uint64_t* address) {
  DlTensor view;
  if (read_tensor(object, &view)) {
    *address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
    return true;
  }
  PyObject* number = PyObject_CallMethodNoArgs(object, torch.data_ptr);
  if (number != nullptr) *address = PyLong_AsUnsignedLongLong(number);
  Py_XDECREF(number);
  const bool good = !PyErr_Occurred();
  PyErr_Clear();
  return good;
}

/// Returns whether a dispatch mode, a function mode or a transform is active. 70 ns.
inline bool must_dispatch() {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.must_dispatch); ++i) {
    PyObject* active = PyObject_CallNoArgs(PyTuple_GET_ITEM(torch.must_dispatch, i));
    const int is_active = active == nullptr ? 1 : PyObject_IsTrue(active);
    if (is_active != 0) PyErr_Clear();
    Py_XDECREF(active);
    if (is_active != 0) return true;
  }
  return false;
}

/// Returns whether a plain tensor has autograd metadata: requires_grad, a tangent, or it is a view.
inline bool has_metadata(PyObject* tensor) {
  if (torch.metadata == 0) return true;
  const char* impl;
  const void* metadata;
  std::memcpy(&impl, reinterpret_cast<const char*>(tensor) + torch.impl, sizeof impl);
  std::memcpy(&metadata, impl + torch.metadata, sizeof metadata);
  return metadata != nullptr;
}

/// Queries torch whether a plain tensor is lazily negated. 40 ns.
bool query_negated(PyObject* tensor);

/// Returns whether a plain tensor's elements are the negated values of its memory (torch's negative
/// bit), which the exchange API does not report. Such a tensor has no plan, so an op's checks
/// reject it. Takes one load from the cache line of the tensor's dtype and device.
inline bool is_negated(PyObject* tensor) {
  if (torch.keys == 0 || torch.impl == 0) return query_negated(tensor);
  const char* impl;
  unsigned long long keys;
  std::memcpy(&impl, reinterpret_cast<const char*>(tensor) + torch.impl, sizeof impl);
  std::memcpy(&keys, impl + torch.keys, sizeof keys);
  return (keys & torch.negative) != 0;
}

/// Returns whether a tensor with autograd metadata requires a gradient. 25 ns per tensor.
bool is_gradient_wanted(PyObject* const* args, Py_ssize_t count);

/// Returns whether torch has to record the call for one of its tensors. No mode is active that
/// would observe this query. 1 ns per tensor without autograd metadata.
inline bool wants_gradient(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (is_tensor(args[i]) && has_metadata(args[i])) return is_gradient_wanted(args + i, count - i);
    if (PyTuple_CheckExact(args[i]) || PyList_CheckExact(args[i])) {  // a table of tensors
      PyObject* const* items = PySequence_Fast_ITEMS(args[i]);
      if (is_gradient_wanted(items, PySequence_Fast_GET_SIZE(args[i]))) return true;
    }
  }
  return false;
}

extern PyTypeObject launcher_type;
extern PyTypeObject plans_type;
extern PyTypeObject run_of_type;
extern PyTypeObject run_type;
extern PyTypeObject caller_type;

/// Number of scopes that route every launch through Python (the virtual GPU's checking mode).
extern int slow_launches;

}  // namespace rfops
