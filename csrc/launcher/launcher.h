/// @file launcher.h
/// @brief A kernel's native launch: what launcher.cpp and prepared.cpp share.
#pragma once

#include <vector>

#include "tensors.h"

namespace rfops {

constexpr unsigned kMaxKernarg = 4096;  // bytes; larger ones go through Python

using LaunchKernel = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, unsigned lds, void* stream, void** params, void** extra);
using GetDevice = int (*)(int*);
using SetDevice = int (*)(int);

struct Argument {
  char code;  // of Python's struct module; 'T' is a tensor, 'P' a table of them
  unsigned offset, count;

  bool is_tensor() const { return code == 'T' || code == 'P'; }
  unsigned end() const { return offset + (code == 'P' ? 8 * count : 8); }
};

struct Launcher {
  PyObject_HEAD;
  vectorcallfunc call;
  LaunchKernel launch;
  GetDevice get_device;
  SetDevice set_device;
  void* function;
  int device;  // -1: the virtual GPU of CPU tensors, which has neither devices nor streams
  unsigned size;
  std::vector<Argument>* arguments;
  PyObject* stream_of;  // device index -> the raw handle of torch's current stream
  PyObject* slow;
  PyObject* fail;  // error code -> raises
};

/// An int in [lowest, highest]; false without an exception.
bool read_int(PyObject* object, int64_t lowest, int64_t highest, int64_t* out);
bool read_dim3(PyObject* object, unsigned* out);

/// Write a plain argument into the kernel's, as its code says; false without an exception.
bool put(const Argument& argument, PyObject* object, char* kernarg);

/// The stream to launch on; false with an exception or without one.
bool choose_stream(const Launcher* self, PyObject* chosen, void** stream);

/// Launch on the device of the launcher. None, or null with an exception.
PyObject* send(const Launcher* self, const unsigned* grid, const unsigned* block, unsigned lds,
               void* stream, char* kernarg);

/// launcher.prepare(...), see prepared.cpp.
PyObject* prepare(PyObject* object, PyObject* args);

}  // namespace rfops
