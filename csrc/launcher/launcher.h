/// @file launcher.h
/// @brief A kernel's native launch: shared by launcher.cpp and prepared.cpp.
#pragma once

#include <vector>

#include "tensors.h"

namespace rfops {

constexpr unsigned kMaxKernarg = 4096;  // bytes; larger argument buffers go through Python

using LaunchKernel = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, unsigned lds, void* stream, void** params, void** extra);
using GetDevice = int (*)(int*);
using SetDevice = int (*)(int);

struct Argument {
  char code;  // code of Python's struct module; 'T' is a tensor, 'P' a table of tensors
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
  int device;  // -1: the virtual GPU, which has neither devices nor streams
  unsigned size;
  std::vector<Argument>* arguments;
  PyObject* stream_of;  // device index -> the raw handle of torch's current stream
  PyObject* slow;
  PyObject* fail;  // error code -> raises
};

/// Reads an int in [min, max]; returns false, without an exception, for anything else.
bool read_int(PyObject* object, int64_t min, int64_t max, int64_t* out);
bool read_dim3(PyObject* object, unsigned* out);

/// Writes a plain argument to the kernel's argument buffer; returns false without an exception.
bool store_argument(const Argument& argument, PyObject* object, char* kernarg);

/// Selects the stream to launch on; returns false with or without an exception.
bool select_stream(const Launcher* self, PyObject* chosen, void** stream);

/// Launches on the launcher's device. Returns None, or null with an exception.
PyObject* send(const Launcher* self, const unsigned* grid, const unsigned* block, unsigned lds,
               void* stream, char* kernarg);

/// launcher.prepare(...); see prepared.cpp.
PyObject* prepare(PyObject* object, PyObject* args);

}  // namespace rfops
