/// @file prepared.cpp
/// @brief `run(*arguments)`: a launch with fixed grid and scalars that takes only tensors.
///
/// launcher.prepare(block, tensors, lds, names, slow) -> run_of. `tensors` has, for each tensor
/// parameter of the kernel in order, its position among run's arguments, or None for a null
/// pointer; `names` are those of the other parameters, the scalars. run_of(grid, m=..., n=...) ->
/// run, or run_of(grid, scalars) with a tuple in parameter order: scalars are written once, and a
/// call copies them and fills in the addresses. If run_of's arguments are not plain, `slow` makes
/// the run in Python; if run's are not, it calls the launcher's `slow` with all arguments.

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
  Py_ssize_t min_args;                 // minimum number of arguments of run
  std::vector<Py_ssize_t>* positions;  // per parameter: an argument position, kScalar or kNull
};

constexpr Py_ssize_t kScalar = -1, kNull = -2;

struct Run {
  PyObject_HEAD;
  vectorcallfunc call;
  RunOf* factory;
  PyObject *grid_object, *scalars;
  unsigned grid[3];
  char kernarg[1];  // launcher->size bytes
};

RunOf* as_run_of(PyObject* object) { return reinterpret_cast<RunOf*>(object); }
Run* as_run(PyObject* object) { return reinterpret_cast<Run*>(object); }

PyObject* run_slowly(const Run* self, PyObject* const* args) {
  const RunOf* run_of = self->factory;
  const auto count = static_cast<Py_ssize_t>(run_of->positions->size());
  PyObject* full = PyTuple_New(count);
  if (full == nullptr) return nullptr;
  for (Py_ssize_t i = 0, scalar = 0; i < count; ++i) {
    const Py_ssize_t position = (*run_of->positions)[i];
    PyObject* item = position == kScalar ? PyTuple_GET_ITEM(self->scalars, scalar++)
                     : position == kNull ? Py_None
                                         : args[position];
    PyTuple_SET_ITEM(full, i, Py_NewRef(item));
  }
  PyObject* call[] = {self->grid_object, run_of->block_object, full, run_of->lds_object};
  PyObject* done = PyObject_Vectorcall(run_of->launcher->slow, call, 4, nullptr);
  Py_DECREF(full);
  return done;
}

/// Raises the exception of the same run in Python, which names the kernel and its tensors.
PyObject* explain(const Run* self, PyObject* const* args, size_t flags, PyObject* names) {
  PyObject* slow_run =
      PyObject_CallFunctionObjArgs(self->factory->slow, self->grid_object, self->scalars, nullptr);
  if (slow_run == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(slow_run, args, flags, names);
  Py_DECREF(slow_run);
  return result;
}

PyObject* run(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  const Run* self = as_run(object);
  const RunOf* run_of = self->factory;
  const Launcher* launcher = run_of->launcher;
  if (names != nullptr || PyVectorcall_NARGS(flags) < run_of->min_args) {
    return explain(self, args, flags, names);
  }
  alignas(16) char buffer[kMaxKernarg];
  std::memcpy(buffer, self->kernarg, launcher->size);
  bool plain = slow_launches == 0;
  for (size_t i = 0; i < run_of->positions->size() && plain; ++i) {
    const Py_ssize_t position = (*run_of->positions)[i];
    if (position >= 0) plain = store_argument((*launcher->arguments)[i], args[position], buffer);
  }
  void* stream = nullptr;
  plain = plain && select_stream(launcher, nullptr, &stream);
  if (!plain) return PyErr_Occurred() ? nullptr : run_slowly(self, args);
  return send(launcher, self->grid, run_of->block, run_of->lds, stream, buffer);
}

int traverse_run(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(as_run(object)->factory);
  return 0;
}

void drop_run(PyObject* object) {
  PyObject_GC_UnTrack(object);
  Run* self = as_run(object);
  Py_DECREF(self->factory);
  Py_DECREF(self->grid_object);
  Py_DECREF(self->scalars);
  PyObject_GC_Del(object);
}

bool write_scalars(const RunOf* run_of, PyObject* scalars, char* kernarg) {
  const auto& arguments = *run_of->launcher->arguments;
  Py_ssize_t next = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if ((*run_of->positions)[i] != kScalar) continue;
    PyObject* item = PyTuple_GET_ITEM(scalars, next++);
    if (!store_argument(arguments[i], item, kernarg)) return false;
  }
  return true;
}

/// Returns the position of a name among a call's keyword names, which are usually in declaration
/// order.
Py_ssize_t find_name(PyObject* name, PyObject* call, Py_ssize_t likely) {
  if (PyTuple_GET_ITEM(call, likely) == name) return likely;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call); ++i) {
    if (PyUnicode_Compare(PyTuple_GET_ITEM(call, i), name) == 0) return i;
  }
  return -1;
}

/// Returns a new tuple of run_of's scalars in parameter order; null without an exception.
PyObject* read_scalars(const RunOf* run_of, PyObject* const* args, Py_ssize_t count,
                       PyObject* names) {
  const Py_ssize_t num_scalars = PyTuple_GET_SIZE(run_of->names);
  const Py_ssize_t num_named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (count == 2 && num_named == 0) {
    const bool fits = PyTuple_CheckExact(args[1]) && PyTuple_GET_SIZE(args[1]) == num_scalars;
    return fits ? Py_NewRef(args[1]) : nullptr;
  }
  if (count != 1 || num_named != num_scalars) return nullptr;
  PyObject* scalars = PyTuple_New(num_scalars);
  for (Py_ssize_t i = 0; i < num_scalars && scalars != nullptr; ++i) {
    const Py_ssize_t position = find_name(PyTuple_GET_ITEM(run_of->names, i), names, i);
    if (position < 0) {
      Py_CLEAR(scalars);
    } else {
      PyTuple_SET_ITEM(scalars, i, Py_NewRef(args[1 + position]));
    }
  }
  return scalars;
}

PyObject* make_run(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  RunOf* run_of = as_run_of(object);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  unsigned grid[3];
  PyObject* scalars = nullptr;
  if (count > 0 && read_dim3(args[0], grid)) scalars = read_scalars(run_of, args, count, names);
  if (scalars == nullptr) {
    return PyErr_Occurred() ? nullptr : PyObject_Vectorcall(run_of->slow, args, flags, names);
  }
  const auto size = static_cast<Py_ssize_t>(run_of->launcher->size);
  auto* self = PyObject_GC_NewVar(Run, &run_type, size);
  if (self == nullptr) {
    Py_DECREF(scalars);
    return nullptr;
  }
  self->call = run;
  self->factory = reinterpret_cast<RunOf*>(Py_NewRef(object));
  self->grid_object = Py_NewRef(args[0]);
  self->scalars = scalars;
  std::memcpy(self->grid, grid, sizeof grid);
  std::memset(self->kernarg, 0, run_of->launcher->size);
  PyObject_GC_Track(self);
  if (write_scalars(run_of, scalars, self->kernarg)) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  return PyErr_Occurred() ? nullptr : PyObject_Vectorcall(run_of->slow, args, flags, names);
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

/// Computes the source of each parameter; returns false without an exception.
bool init_layout(RunOf* self, PyObject* tensors) {
  Py_ssize_t next = 0, num_scalars = 0;
  for (const Argument& argument : *self->launcher->arguments) {
    int64_t state = kScalar;
    if (argument.is_tensor()) {
      if (next == PyTuple_GET_SIZE(tensors)) return false;
      PyObject* position = PyTuple_GET_ITEM(tensors, next++);
      if (position == Py_None) {
        state = kNull;
      } else if (!read_int(position, 0, 63, &state)) {
        return false;
      }
      if (state >= self->min_args) self->min_args = state + 1;
    } else {
      ++num_scalars;
    }
    self->positions->push_back(state);
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
  return PyLong_FromSsize_t(as_run(object)->factory->min_args);
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
  self->min_args = 0;
  self->positions = new std::vector<Py_ssize_t>;
  PyObject_GC_Track(self);
  const bool plain = read_dim3(block, self->block) && read_int(lds, 0, UINT32_MAX, &lds_bytes) &&
                     init_layout(self, tensors);
  self->lds = static_cast<unsigned>(lds_bytes);
  if (plain) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  Py_RETURN_NONE;
}

}  // namespace rfops
