/// @file tensors.h
/// @brief A torch.Tensor's address, shape and strides without torch's headers (20 s a file).
///
/// torch hands out a table of C functions, the DLPack exchange API (torch 2.10 and newer); one of
/// them fills a DLTensor from a Python tensor in 30 ns, where `tensor.data_ptr()` takes 50 ns and
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

/// What this process's torch offers; set once by `setup`.
struct Torch {
  PyTypeObject* tensor;
  PyTypeObject* parameter;
  int (*read)(void* tensor, DlTensor* out);  // null: an older torch
  PyObject* data_ptr;                        // the name of the method
  PyObject* must_dispatch;     // a tuple of functions; one that is true wants torch to see each op
  PyGetSetDef* requires_grad;  // an attribute of Tensor
  PyObject* is_grad_enabled;
  PyObject *forward_ad, *level;  // a module's names; its level is below 0 outside of forward AD
  unsigned impl, metadata;       // offsets in a Tensor, and in its TensorImpl; 0: not known
  unsigned keys;                 // offset of the dispatch keys in a TensorImpl; 0: not known
  unsigned long long negative;   // the bit of them that tells torch's lazy negation
};

extern Torch torch;

/// Fill in `torch`: setup(Tensor, Parameter, the exchange API's capsule or None, must_dispatch,
/// gradients, negative_bit), the last three from jit/launch/modes.py -> bool.
PyObject* setup(PyObject*, PyObject* args);

/// Whether it is a plain tensor. Subclasses mean something else (a FakeTensor has no memory).
inline bool is_tensor(PyObject* object) {
  return Py_TYPE(object) == torch.tensor || Py_TYPE(object) == torch.parameter;
}

/// Fill `out` from a plain tensor; false, without an exception, where torch refuses.
inline bool read_tensor(PyObject* object, DlTensor* out) {
  if (torch.read == nullptr || torch.read(object, out) != 0) {
    PyErr_Clear();
    return false;
  }
  return true;
}

/// The first element's address; false, without an exception, where torch refuses.
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

/// Whether a dispatch mode, a function mode or a transform is active. 70 ns.
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

/// Whether autograd knows of a plain tensor: requires_grad, a tangent, or just that it is a view.
inline bool has_metadata(PyObject* tensor) {
  if (torch.metadata == 0) return true;
  const char* impl;
  const void* metadata;
  std::memcpy(&impl, reinterpret_cast<const char*>(tensor) + torch.impl, sizeof impl);
  std::memcpy(&metadata, impl + torch.metadata, sizeof metadata);
  return metadata != nullptr;
}

/// Asks torch whether a plain tensor is lazily negated. 40 ns.
bool ask_negated(PyObject* tensor);

/// Whether a plain tensor's elements are the negated values of its memory (torch's negative bit),
/// which the exchange API does not tell. Such a tensor has no plan, so that an op's checks refuse
/// it. One load from the cache line of the tensor's dtype and device.
inline bool is_negated(PyObject* tensor) {
  if (torch.keys == 0 || torch.impl == 0) return ask_negated(tensor);
  const char* impl;
  unsigned long long keys;
  std::memcpy(&impl, reinterpret_cast<const char*>(tensor) + torch.impl, sizeof impl);
  std::memcpy(&keys, impl + torch.keys, sizeof keys);
  return (keys & torch.negative) != 0;
}

/// The same where a tensor has metadata: asks torch, 25 ns a tensor.
bool is_gradient_wanted(PyObject* const* args, Py_ssize_t count);

/// Whether torch has to record the call for one of its tensors. No mode is active, which would see
/// that this is asked. 1 ns a tensor that autograd does not know.
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

/// How many blocks want every launch to go through Python (the virtual GPU's checking mode).
extern int slow_launches;

}  // namespace rfops
