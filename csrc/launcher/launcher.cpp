/// @file launcher.cpp
/// @brief `launcher(grid, block, args, lds=0, stream=None)`: fill a kernel's arguments and launch.
///
/// Only the plain case is done here: exact ints and floats in range, plain tensors, None. Whatever
/// else comes goes to `slow`, the same function in Python, which does it or says what is wrong. So
/// there is one place for messages, and none where the two can differ.

#include "launcher.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace rfops {

bool read_int(PyObject* object, int64_t lowest, int64_t highest, int64_t* out) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && *out >= lowest && *out <= highest;
}

bool read_dim3(PyObject* object, unsigned* out) {
  if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 3) return false;
  for (int i = 0; i < 3; ++i) {
    int64_t value;
    if (!read_int(PyTuple_GET_ITEM(object, i), 0, UINT32_MAX, &value)) return false;
    out[i] = static_cast<unsigned>(value);
  }
  return true;
}

namespace {

template <typename T>
bool put_int(PyObject* object, char* place) {
  int64_t value;
  const int64_t lowest = std::numeric_limits<T>::min();
  const int64_t highest = static_cast<int64_t>(std::numeric_limits<T>::max());
  if (!read_int(object, lowest, highest, &value)) return false;
  const T exact = static_cast<T>(value);
  std::memcpy(place, &exact, sizeof exact);
  return true;
}

template <typename T>
bool put_float(PyObject* object, char* place) {
  if (!PyFloat_CheckExact(object)) return false;
  const double value = PyFloat_AS_DOUBLE(object);
  const T rounded = static_cast<T>(value);
  if (std::isinf(rounded) && !std::isinf(value)) return false;
  std::memcpy(place, &rounded, sizeof rounded);
  return true;
}

bool put_tensor(PyObject* object, char* place) {
  uint64_t address = 0;
  if (object != Py_None) {
    if (!is_tensor(object) || !read_address(object, &address)) return false;
    if (address == 0) return false;  // nothing in it, or no memory: Python tells which
  }
  std::memcpy(place, &address, sizeof address);
  return true;
}

bool put_table(PyObject* object, unsigned count, char* place) {
  if (!PyTuple_CheckExact(object) && !PyList_CheckExact(object)) return false;
  if (PySequence_Fast_GET_SIZE(object) != count) return false;
  for (unsigned i = 0; i < count; ++i) {
    if (!put_tensor(PySequence_Fast_ITEMS(object)[i], place + 8 * i)) return false;
  }
  return true;
}

}  // namespace

bool put(const Argument& argument, PyObject* object, char* kernarg) {
  char* place = kernarg + argument.offset;
  switch (argument.code) {
    case 'P':
      return put_table(object, argument.count, place);
    case 'T':
      return put_tensor(object, place);
    case 'b':
      return put_int<int8_t>(object, place);
    case 'B':
      return put_int<uint8_t>(object, place);
    case 'h':
      return put_int<int16_t>(object, place);
    case 'H':
      return put_int<uint16_t>(object, place);
    case 'i':
      return put_int<int32_t>(object, place);
    case 'I':
      return put_int<uint32_t>(object, place);
    case 'q':
      return put_int<int64_t>(object, place);
    case 'f':
      return put_float<float>(object, place);
    case 'd':
      return put_float<double>(object, place);
    default:
      return false;  // 'Q' of 2^63 and more among them
  }
}

bool choose_stream(const Launcher* self, PyObject* chosen, void** stream) {
  *stream = nullptr;
  PyObject* number = nullptr;
  if (chosen != nullptr && chosen != Py_None) {
    number = Py_NewRef(chosen);
  } else if (self->device < 0) {
    return true;
  } else {
    PyObject* index = PyLong_FromLong(self->device);
    number = PyObject_CallOneArg(self->stream_of, index);
    Py_DECREF(index);
    if (number == nullptr) return false;
  }
  const bool exact = PyLong_CheckExact(number);
  if (exact) *stream = reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(number));
  Py_DECREF(number);
  const bool good = exact && !PyErr_Occurred();  // not of a negative one or one beyond 64 bits
  PyErr_Clear();
  return good;
}

PyObject* send(const Launcher* self, const unsigned* grid, const unsigned* block, unsigned lds,
               void* stream, char* kernarg) {
  size_t size = self->size;
  // HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
  void* extra[] = {reinterpret_cast<void*>(1), kernarg, reinterpret_cast<void*>(2), &size,
                   reinterpret_cast<void*>(3)};
  int code = 0, current = self->device;
  Py_BEGIN_ALLOW_THREADS;
  if (self->device >= 0) code = self->get_device(&current);
  const bool elsewhere = current != self->device;
  if (code == 0 && elsewhere) code = self->set_device(self->device);
  if (code == 0) {
    code = self->launch(self->function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                        lds, stream, nullptr, extra);
  }
  if (elsewhere) self->set_device(current);
  Py_END_ALLOW_THREADS;
  if (code != 0) return PyObject_CallFunction(self->fail, "i", code);
  Py_RETURN_NONE;
}

namespace {

bool fill(const Launcher* self, PyObject* args, char* buffer) {
  if (!PyTuple_CheckExact(args) && !PyList_CheckExact(args)) return false;
  const auto& arguments = *self->arguments;
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(args)) != arguments.size()) return false;
  PyObject** items = PySequence_Fast_ITEMS(args);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!put(arguments[i], items[i], buffer)) return false;
  }
  return true;
}

/// Positional and named arguments by position; false for what does not fit.
bool by_position(PyObject* const* args, Py_ssize_t count, PyObject* names, PyObject** given) {
  constexpr const char* kNames[] = {"grid", "block", "args", "lds", "stream"};
  if (count > 5) return false;
  for (Py_ssize_t i = 0; i < count; ++i) given[i] = args[i];
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    int at = 0;
    while (at < 5 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), kNames[at])) ++at;
    if (at == 5 || given[at] != nullptr) return false;
    given[at] = args[count + i];
  }
  return given[0] != nullptr && given[1] != nullptr && given[2] != nullptr;
}

PyObject* call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<Launcher*>(object);
  PyObject* given[5] = {};
  unsigned grid[3], block[3];
  int64_t lds = 0;
  void* stream = nullptr;
  alignas(16) char buffer[kMaxKernarg];
  std::memset(buffer, 0, self->size);
  const bool plain = slow_launches == 0 &&
                     by_position(args, PyVectorcall_NARGS(flags), names, given) &&
                     read_dim3(given[0], grid) && read_dim3(given[1], block) &&
                     (given[3] == nullptr || read_int(given[3], 0, UINT32_MAX, &lds)) &&
                     fill(self, given[2], buffer) && choose_stream(self, given[4], &stream);
  if (!plain) {
    return PyErr_Occurred() ? nullptr : PyObject_Vectorcall(self->slow, args, flags, names);
  }
  return send(self, grid, block, static_cast<unsigned>(lds), stream, buffer);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long launch, get_device, set_device, function;
  int device;
  unsigned size;
  PyObject *layout, *stream_of, *slow, *fail;
  if (!PyArg_ParseTuple(args, "KKKKiIO!OOO", &launch, &get_device, &set_device, &function, &device,
                        &size, &PyTuple_Type, &layout, &stream_of, &slow, &fail)) {
    return nullptr;
  }
  std::vector<Argument> arguments;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(layout); ++i) {
    int code;
    unsigned offset, count;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(layout, i), "CII", &code, &offset, &count)) {
      return nullptr;
    }
    arguments.push_back({static_cast<char>(code), offset, count});
    if (size > kMaxKernarg || count > kMaxKernarg || arguments.back().end() > kMaxKernarg) {
      PyErr_SetString(PyExc_ValueError, "the kernel's arguments are too large");
      return nullptr;
    }
  }
  auto* self = PyObject_GC_New(Launcher, type);
  if (self == nullptr) return nullptr;
  self->call = call;
  self->launch = reinterpret_cast<LaunchKernel>(launch);
  self->get_device = reinterpret_cast<GetDevice>(get_device);
  self->set_device = reinterpret_cast<SetDevice>(set_device);
  self->function = reinterpret_cast<void*>(function);
  self->device = device;
  self->size = size;
  self->arguments = new std::vector<Argument>(std::move(arguments));
  self->stream_of = Py_NewRef(stream_of);
  self->slow = Py_NewRef(slow);
  self->fail = Py_NewRef(fail);
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Launcher*>(object);
  Py_VISIT(self->stream_of);
  Py_VISIT(self->slow);
  Py_VISIT(self->fail);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Launcher*>(object);
  Py_CLEAR(self->stream_of);
  Py_CLEAR(self->slow);
  Py_CLEAR(self->fail);
  return 0;
}

void drop(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  delete reinterpret_cast<Launcher*>(object)->arguments;
  PyObject_GC_Del(object);
}

PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS,
     "prepare(block, tensors, lds, names, slow) -> run_of, or None where Python has to look"},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject describe() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "rfops_launcher.Launcher";
  type.tp_basicsize = sizeof(Launcher);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Launcher, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_methods = methods;
  type.tp_new = make;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_dealloc = drop;
  return type;
}

}  // namespace

PyTypeObject launcher_type = describe();

}  // namespace rfops
