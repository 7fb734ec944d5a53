/// @file launcher.cpp
/// @brief `launcher(grid, block, args, lds=0, stream=None)`: fills a kernel's arguments and
/// launches.
///
/// Handles only the fast path: exact ints and floats in range, plain tensors, None. Everything else
/// goes to `slow`, the same function in Python, which handles it or raises. So error messages exist
/// once, and the two paths cannot disagree.

#include "launcher.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace rfops {

bool read_int(PyObject* object, int64_t min, int64_t max, int64_t* out) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && *out >= min && *out <= max;
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
bool store_int(PyObject* object, char* dst) {
  int64_t value;
  const int64_t min = std::numeric_limits<T>::min();
  const int64_t max = static_cast<int64_t>(std::numeric_limits<T>::max());
  if (!read_int(object, min, max, &value)) return false;
  const T exact = static_cast<T>(value);
  std::memcpy(dst, &exact, sizeof exact);
  return true;
}

template <typename T>
bool store_float(PyObject* object, char* dst) {
  if (!PyFloat_CheckExact(object)) return false;
  const double value = PyFloat_AS_DOUBLE(object);
  const T rounded = static_cast<T>(value);
  if (std::isinf(rounded) && !std::isinf(value)) return false;
  std::memcpy(dst, &rounded, sizeof rounded);
  return true;
}

bool store_tensor(PyObject* object, char* dst) {
  uint64_t address = 0;
  if (object != Py_None) {
    if (!is_tensor(object) || !read_address(object, &address)) return false;
    if (address == 0) return false;  // empty, or without memory: decided in Python
  }
  std::memcpy(dst, &address, sizeof address);
  return true;
}

bool store_table(PyObject* object, unsigned count, char* dst) {
  if (!PyTuple_CheckExact(object) && !PyList_CheckExact(object)) return false;
  if (PySequence_Fast_GET_SIZE(object) != count) return false;
  for (unsigned i = 0; i < count; ++i) {
    if (!store_tensor(PySequence_Fast_ITEMS(object)[i], dst + 8 * i)) return false;
  }
  return true;
}

}  // namespace

bool store_argument(const Argument& argument, PyObject* object, char* kernarg) {
  char* dst = kernarg + argument.offset;
  switch (argument.code) {
    case 'P':
      return store_table(object, argument.count, dst);
    case 'T':
      return store_tensor(object, dst);
    case 'b':
      return store_int<int8_t>(object, dst);
    case 'B':
      return store_int<uint8_t>(object, dst);
    case 'h':
      return store_int<int16_t>(object, dst);
    case 'H':
      return store_int<uint16_t>(object, dst);
    case 'i':
      return store_int<int32_t>(object, dst);
    case 'I':
      return store_int<uint32_t>(object, dst);
    case 'q':
      return store_int<int64_t>(object, dst);
    case 'f':
      return store_float<float>(object, dst);
    case 'd':
      return store_float<double>(object, dst);
    default:
      return false;  // for 'Q', 2^63 and more
  }
}

bool select_stream(const Launcher* self, PyObject* chosen, void** stream) {
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
  const bool good = exact && !PyErr_Occurred();  // not negative and within 64 bits
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
  const bool switches_device = current != self->device;
  if (code == 0 && switches_device) code = self->set_device(self->device);
  if (code == 0) {
    code = self->launch(self->function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                        lds, stream, nullptr, extra);
  }
  if (switches_device) self->set_device(current);
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
    if (!store_argument(arguments[i], items[i], buffer)) return false;
  }
  return true;
}

/// Orders positional and named arguments by position; returns false if they do not fit.
bool order_arguments(PyObject* const* args, Py_ssize_t count, PyObject* names, PyObject** values) {
  constexpr const char* kNames[] = {"grid", "block", "args", "lds", "stream"};
  if (count > 5) return false;
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = args[i];
  const Py_ssize_t num_named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < num_named; ++i) {
    int position = 0;
    while (position < 5 &&
           PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), kNames[position]))
      ++position;
    if (position == 5 || values[position] != nullptr) return false;
    values[position] = args[count + i];
  }
  return values[0] != nullptr && values[1] != nullptr && values[2] != nullptr;
}

PyObject* call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<Launcher*>(object);
  PyObject* values[5] = {};
  unsigned grid[3], block[3];
  int64_t lds = 0;
  void* stream = nullptr;
  alignas(16) char buffer[kMaxKernarg];
  std::memset(buffer, 0, self->size);
  const bool plain = slow_launches == 0 &&
                     order_arguments(args, PyVectorcall_NARGS(flags), names, values) &&
                     read_dim3(values[0], grid) && read_dim3(values[1], block) &&
                     (values[3] == nullptr || read_int(values[3], 0, UINT32_MAX, &lds)) &&
                     fill(self, values[2], buffer) && select_stream(self, values[4], &stream);
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
