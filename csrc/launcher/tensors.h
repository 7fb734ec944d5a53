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
  PyObject* must_dispatch;  // a tuple of functions; one that is true wants torch to see each op
};

extern Torch torch;

/// Fill in `torch`: setup(Tensor, Parameter, the exchange API's capsule or None, must_dispatch) ->
/// bool.
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
    Py_XDECREF(active);
    PyErr_Clear();
    if (is_active != 0) return true;
  }
  return false;
}

extern PyTypeObject launcher_type;
extern PyTypeObject plans_type;

/// How many blocks want every launch to go through Python (the virtual GPU's checking mode).
extern int slow_launches;

}  // namespace rfops
