/// @file prepared.cpp
/// @brief `run(*arguments)`: a launch whose grid and scalars are known, and only tensors come.
///
/// launcher.prepare(block, tensors, lds, names, slow) -> run_of. `tensors` has, for each tensor
/// parameter of the kernel in order, its position among run's arguments, or None for a null
/// pointer; `names` are those of the other parameters, the scalars. run_of(grid, m=..., n=...) ->
/// run, or run_of(grid, scalars) with a tuple in the parameters' order: scalars are written once,
/// and a call copies them and fills in the addresses. A run_of that is not plain goes to `slow`,
/// which makes the same in Python, and a run that is not to the launcher's, with all its arguments.

#include <cstddef>
#include <cstring>

#include "launcher.h"

namespace rfops {
namespace {

struct RunOf {
  PyObject_HEAD;
  vectorcallfunc call;
  Launcher* launcher;
  PyObject *block_object, *lds_object;
  PyObject *names, *slow;
  unsigned block[3], lds;
  Py_ssize_t least;                    // arguments that run needs
  std::vector<Py_ssize_t>* positions;  // by parameter: run's argument, kScalar or kNull
};

constexpr Py_ssize_t kScalar = -1, kNull = -2;

struct Run {
  PyObject_HEAD;
  vectorcallfunc call;
  RunOf* made_by;
  PyObject *grid_object, *scalars;
  unsigned grid[3];
  char kernarg[1];  // launcher->size bytes
};

RunOf* as_run_of(PyObject* object) { return reinterpret_cast<RunOf*>(object); }
Run* as_run(PyObject* object) { return reinterpret_cast<Run*>(object); }

PyObject* run_slowly(const Run* self, PyObject* const* args) {
  const RunOf* like = self->made_by;
  const auto count = static_cast<Py_ssize_t>(like->positions->size());
  PyObject* full = PyTuple_New(count);
  if (full == nullptr) return nullptr;
  for (Py_ssize_t i = 0, scalar = 0; i < count; ++i) {
    const Py_ssize_t at = (*like->positions)[i];
    PyObject* item = at == kScalar ? PyTuple_GET_ITEM(self->scalars, scalar++)
                     : at == kNull ? Py_None
                                   : args[at];
    PyTuple_SET_ITEM(full, i, Py_NewRef(item));
  }
  PyObject* call[] = {self->grid_object, like->block_object, full, like->lds_object};
  PyObject* done = PyObject_Vectorcall(like->launcher->slow, call, 4, nullptr);
  Py_DECREF(full);
  return done;
}

/// The exception of the same run made in Python, which names the kernel and its tensors.
PyObject* explain(const Run* self, PyObject* const* args, size_t flags, PyObject* names) {
  PyObject* slow_run =
      PyObject_CallFunctionObjArgs(self->made_by->slow, self->grid_object, self->scalars, nullptr);
  if (slow_run == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(slow_run, args, flags, names);
  Py_DECREF(slow_run);
  return result;
}

PyObject* run(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  const Run* self = as_run(object);
  const RunOf* like = self->made_by;
  const Launcher* launcher = like->launcher;
  if (names != nullptr || PyVectorcall_NARGS(flags) < like->least) {
    return explain(self, args, flags, names);
  }
  alignas(16) char buffer[kMaxKernarg];
  std::memcpy(buffer, self->kernarg, launcher->size);
  bool plain = slow_launches == 0;
  for (size_t i = 0; i < like->positions->size() && plain; ++i) {
    const Py_ssize_t at = (*like->positions)[i];
    if (at >= 0) plain = put((*launcher->arguments)[i], args[at], buffer);
  }
  void* stream = nullptr;
  plain = plain && choose_stream(launcher, nullptr, &stream);
  if (!plain) return PyErr_Occurred() ? nullptr : run_slowly(self, args);
  return send(launcher, self->grid, like->block, like->lds, stream, buffer);
}

int traverse_run(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(as_run(object)->made_by);
  return 0;
}

void drop_run(PyObject* object) {
  PyObject_GC_UnTrack(object);
  Run* self = as_run(object);
  Py_DECREF(self->made_by);
  Py_DECREF(self->grid_object);
  Py_DECREF(self->scalars);
  PyObject_GC_Del(object);
}

bool put_scalars(const RunOf* like, PyObject* scalars, char* kernarg) {
  const auto& arguments = *like->launcher->arguments;
  Py_ssize_t next = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if ((*like->positions)[i] != kScalar) continue;
    PyObject* item = PyTuple_GET_ITEM(scalars, next++);
    if (!put(arguments[i], item, kernarg)) return false;
  }
  return true;
}

/// The position of a name among those of a call, whose order is most often `names`' own.
Py_ssize_t find_name(PyObject* name, PyObject* call, Py_ssize_t likely) {
  if (PyTuple_GET_ITEM(call, likely) == name) return likely;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call); ++i) {
    if (PyUnicode_Compare(PyTuple_GET_ITEM(call, i), name) == 0) return i;
  }
  return -1;
}

/// A new tuple of run_of's scalars in the parameters' order; null without an exception.
PyObject* read_scalars(const RunOf* like, PyObject* const* args, Py_ssize_t count,
                       PyObject* names) {
  const Py_ssize_t num_scalars = PyTuple_GET_SIZE(like->names);
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (count == 2 && named == 0) {
    const bool fits = PyTuple_CheckExact(args[1]) && PyTuple_GET_SIZE(args[1]) == num_scalars;
    return fits ? Py_NewRef(args[1]) : nullptr;
  }
  if (count != 1 || named != num_scalars) return nullptr;
  PyObject* scalars = PyTuple_New(num_scalars);
  for (Py_ssize_t i = 0; i < num_scalars && scalars != nullptr; ++i) {
    const Py_ssize_t at = find_name(PyTuple_GET_ITEM(like->names, i), names, i);
    if (at < 0) {
      Py_CLEAR(scalars);
    } else {
      PyTuple_SET_ITEM(scalars, i, Py_NewRef(args[1 + at]));
    }
  }
  return scalars;
}

PyObject* make_run(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  RunOf* like = as_run_of(object);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  unsigned grid[3];
  PyObject* scalars = nullptr;
  if (count > 0 && read_dim3(args[0], grid)) scalars = read_scalars(like, args, count, names);
  if (scalars == nullptr) {
    return PyErr_Occurred() ? nullptr : PyObject_Vectorcall(like->slow, args, flags, names);
  }
  const auto size = static_cast<Py_ssize_t>(like->launcher->size);
  auto* self = PyObject_GC_NewVar(Run, &run_type, size);
  if (self == nullptr) {
    Py_DECREF(scalars);
    return nullptr;
  }
  self->call = run;
  self->made_by = reinterpret_cast<RunOf*>(Py_NewRef(object));
  self->grid_object = Py_NewRef(args[0]);
  self->scalars = scalars;
  std::memcpy(self->grid, grid, sizeof grid);
  std::memset(self->kernarg, 0, like->launcher->size);
  PyObject_GC_Track(self);
  if (put_scalars(like, scalars, self->kernarg)) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  return PyErr_Occurred() ? nullptr : PyObject_Vectorcall(like->slow, args, flags, names);
}

int traverse_run_of(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(as_run_of(object)->launcher);
  Py_VISIT(as_run_of(object)->slow);
  return 0;
}

void drop_run_of(PyObject* object) {
  PyObject_GC_UnTrack(object);
  RunOf* self = as_run_of(object);
  Py_DECREF(self->launcher);
  Py_DECREF(self->block_object);
  Py_DECREF(self->lds_object);
  Py_DECREF(self->names);
  Py_DECREF(self->slow);
  delete self->positions;
  PyObject_GC_Del(object);
}

/// Where each parameter comes from; false without an exception.
bool lay_out(RunOf* self, PyObject* tensors) {
  Py_ssize_t next = 0, num_scalars = 0;
  for (const Argument& argument : *self->launcher->arguments) {
    int64_t at = kScalar;
    if (argument.is_tensor()) {
      if (next == PyTuple_GET_SIZE(tensors)) return false;
      PyObject* position = PyTuple_GET_ITEM(tensors, next++);
      if (position == Py_None) {
        at = kNull;
      } else if (!read_int(position, 0, 63, &at)) {
        return false;
      }
      if (at >= self->least) self->least = at + 1;
    } else {
      ++num_scalars;
    }
    self->positions->push_back(at);
  }
  return next == PyTuple_GET_SIZE(tensors) && num_scalars == PyTuple_GET_SIZE(self->names);
}

template <typename Object>
PyTypeObject describe(const char* name, traverseproc traverse, destructor drop) {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = name;
  type.tp_basicsize = sizeof(Object);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Object, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_traverse = traverse;
  type.tp_dealloc = drop;
  return type;
}

PyObject* num_arguments(PyObject* object, void*) {
  return PyLong_FromSsize_t(as_run(object)->made_by->least);
}

PyGetSetDef run_attributes[] = {
    {"num_arguments", num_arguments, nullptr, "how many arguments a call needs", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject describe_run() {
  PyTypeObject type = describe<Run>("rfops_launcher.Run", traverse_run, drop_run);
  type.tp_getset = run_attributes;
  type.tp_itemsize = 1;
  return type;
}

}  // namespace

PyTypeObject run_of_type = describe<RunOf>("rfops_launcher.RunOf", traverse_run_of, drop_run_of);
PyTypeObject run_type = describe_run();

PyObject* prepare(PyObject* object, PyObject* args) {
  PyObject *block, *tensors, *lds, *names, *slow;
  int64_t lds_bytes = 0;
  if (!PyArg_ParseTuple(args, "OO!OO!O", &block, &PyTuple_Type, &tensors, &lds, &PyTuple_Type,
                        &names, &slow)) {
    return nullptr;
  }
  auto* self = PyObject_GC_New(RunOf, &run_of_type);
  if (self == nullptr) return nullptr;
  self->call = make_run;
  self->launcher = reinterpret_cast<Launcher*>(Py_NewRef(object));
  self->block_object = Py_NewRef(block);
  self->lds_object = Py_NewRef(lds);
  self->names = Py_NewRef(names);
  self->slow = Py_NewRef(slow);
  self->least = 0;
  self->positions = new std::vector<Py_ssize_t>;
  PyObject_GC_Track(self);
  const bool plain = read_dim3(block, self->block) && read_int(lds, 0, UINT32_MAX, &lds_bytes) &&
                     lay_out(self, tensors);
  self->lds = static_cast<unsigned>(lds_bytes);
  if (plain) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  Py_RETURN_NONE;
}

}  // namespace rfops
