/// @file plans.cpp
/// @brief `plans(*args) -> plan or None`: the cached decision of an op for similar arguments.
///
/// A plan is found by its key (keys.h). If there is none, but a family matches the arguments, the
/// family's function makes a plan from the sizes, and it is cached: an op's checks hold for a
/// family once they have held for one of its calls. Arguments that cannot be a key give None:
/// subclasses of Tensor, tensors that torch does not export, an `out` that overlaps an input. So do
/// calls that torch has to see: a mode or a transform is active, or a gradient is required. The
/// least recently used entries are dropped first.
///
/// Objects in a key are compared by identity. If that finds no plan, they are compared by equality:
/// the first of several equal objects represents the others (`representatives`).

#include <algorithm>
#include <list>
#include <unordered_map>
#include <vector>

#include "keys.h"
#include "tensors.h"
// After Python.h, which it requires.
#include <structmember.h>

namespace rfops {
namespace {

constexpr Py_ssize_t kFamilies = 256;
constexpr Py_ssize_t kMaxRepresentatives = 1024;  // objects

/// Returns whether the object contributes its address to a key. Tables do not; their items do.
bool is_by_address(PyObject* object) {
  return !PyLong_CheckExact(object) && !PyFloat_CheckExact(object) && !is_tensor(object) &&
         !PyTuple_CheckExact(object) && !PyList_CheckExact(object);
}

struct Entry {
  uint64_t hash;
  std::vector<int64_t> words;
  std::vector<PyObject*> objects;
  PyObject* plan;
};

/// Entries by key, most recently used first.
class Table {
 public:
  /// Returns a borrowed reference, or null.
  PyObject* find(const Key& key) {
    auto it = by_hash_.find(key.hash());
    if (it == by_hash_.end()) return nullptr;
    const auto& words = it->second->words;
    const bool is_equal = words.size() == static_cast<size_t>(key.count) &&
                          std::memcmp(words.data(), key.words, words.size() * sizeof(int64_t)) == 0;
    if (!is_equal) return nullptr;
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->plan;
  }

  /// Keeps the objects in `args` alive whose addresses are in the key; no tensor is.
  void add(const Key& key, PyObject* plan, PyObject* const* args, Py_ssize_t num_args,
           Py_ssize_t capacity) {
    const uint64_t hash = key.hash();
    std::vector<PyObject*> objects;
    for (Py_ssize_t i = 0; i < num_args; ++i) {
      if (is_by_address(args[i])) objects.push_back(Py_NewRef(args[i]));
    }
    std::vector<int64_t> words(key.words, key.words + key.count);
    Entry entry = {hash, std::move(words), std::move(objects), Py_NewRef(plan)};
    auto it = by_hash_.find(hash);
    if (it != by_hash_.end()) erase(it->second);
    entries_.push_front(std::move(entry));
    by_hash_[hash] = entries_.begin();
    while (size() > capacity) erase(std::prev(entries_.end()));
  }

  void clear() {
    while (!entries_.empty()) erase(entries_.begin());
  }

  Py_ssize_t size() const { return static_cast<Py_ssize_t>(entries_.size()); }

  int visit(visitproc visit, void* arg) const {
    for (const Entry& entry : entries_) {
      Py_VISIT(entry.plan);
      for (PyObject* object : entry.objects) Py_VISIT(object);
    }
    return 0;
  }

 private:
  using Entries = std::list<Entry>;

  void erase(Entries::iterator entry) {
    Entry erased = std::move(*entry);
    by_hash_.erase(erased.hash);
    entries_.erase(entry);
    Py_DECREF(erased.plan);  // after the table is consistent again, because this may run any code
    for (PyObject* object : erased.objects) Py_DECREF(object);
  }

  Entries entries_;
  std::unordered_map<uint64_t, Entries::iterator> by_hash_;
};

struct Plans {
  PyObject_HEAD;
  vectorcallfunc call;
  Py_ssize_t capacity;
  unsigned long long written;  // bit per position of a tensor that the op writes
  unsigned long long hits, misses;
  Shapes* shapes;
  Table *plans, *families;
  PyObject* representatives;  // a dict: object -> the first equal object
};

Plans* as_plans(PyObject* object) { return reinterpret_cast<Plans*>(object); }

/// Returns whether another object may equal this one. Tensors have no equals and are not kept; a
/// subclass of Tensor cannot be part of a key.
bool has_equals(PyObject* object) {
  return object != Py_None && is_by_address(object) &&
         !PyType_IsSubtype(Py_TYPE(object), torch.tensor) &&
         Py_TYPE(object)->tp_richcompare != PyBaseObject_Type.tp_richcompare;
}

/// Returns whether equal objects of one type have the same bits: NumPy's 0.0 equals -0.0.
bool has_same_bits(PyObject* a, PyObject* b) {
  if (!PyNumber_Check(a) || PyIndex_Check(a)) return true;
  const double values[] = {PyFloat_AsDouble(a), PyFloat_AsDouble(b)};
  if (PyErr_Occurred()) return false;  // a complex number: compared by identity
  return std::memcmp(&values[0], &values[1], sizeof values[0]) == 0;
}

/// Returns the representative of an object (borrowed), itself if there is none.
PyObject* representative(Plans* self, PyObject* object, bool remember) {
  if (!has_equals(object)) return object;
  PyObject* first = PyDict_GetItemWithError(self->representatives, object);
  if (first == nullptr && remember && !PyErr_Occurred()) {
    if (PyDict_GET_SIZE(self->representatives) >= kMaxRepresentatives)
      PyDict_Clear(self->representatives);
    PyDict_SetItem(self->representatives, object, object);
  }
  PyErr_Clear();  // unhashable: compared by identity
  const bool is_same = first != nullptr && Py_TYPE(first) == Py_TYPE(object) &&
                       (first == object || has_same_bits(first, object));
  PyErr_Clear();
  return is_same ? first : object;
}

/// A call's arguments, each replaced by its representative.
struct RepresentativeArgs {
  PyObject* items[kMaxArgs];
  Py_ssize_t count;
  bool differs = false;  // some argument is not its own representative

  RepresentativeArgs(Plans* self, PyObject* const* args, Py_ssize_t count, bool remember)
      : count(count) {
    for (Py_ssize_t i = 0; i < count; ++i) {
      items[i] = Py_NewRef(representative(self, args[i], remember));
      differs = differs || items[i] != args[i];
    }
  }
  RepresentativeArgs(const RepresentativeArgs&) = delete;
  ~RepresentativeArgs() {
    for (Py_ssize_t i = 0; i < count; ++i) Py_DECREF(items[i]);
  }
};

/// Makes a plan with the arguments' family. Returns a new reference, None if there is no family or
/// it has no plan, or null with an exception.
PyObject* make_family_plan(Plans* self, const RepresentativeArgs& args, Views& views) {
  Key key;
  int64_t sizes[kMaxSizes];
  if (self->shapes->patterns.empty() ||
      !key.build_open(args.items, args.count, self->written, views, *self->shapes, sizes)) {
    Py_RETURN_NONE;
  }
  PyObject* family = self->families->find(key);
  if (family == nullptr) Py_RETURN_NONE;
  PyObject* numbers[kMaxSizes] = {};
  const int num_sizes = self->shapes->num_sizes;
  bool is_complete = true;
  for (int i = 0; i < num_sizes && is_complete; ++i) {
    numbers[i] = PyLong_FromLongLong(sizes[i]);
    is_complete = numbers[i] != nullptr;
  }
  Py_INCREF(family);  // the call may drop it from the table
  PyObject* plan = is_complete ? PyObject_Vectorcall(family, numbers, num_sizes, nullptr) : nullptr;
  Py_DECREF(family);
  for (PyObject* number : numbers) Py_XDECREF(number);
  return plan;
}

PyObject* record_hit(Plans* self, PyObject* plan) {
  ++self->hits;
  return Py_NewRef(plan);
}

/// Returns the plan (a new reference), None, or null with an exception.
PyObject* lookup(Plans* self, PyObject* const* args, Py_ssize_t count) {
  Key key;
  Views views;
  if (!key.build(args, count, self->written, views) || must_dispatch() ||
      wants_gradient(args, count)) {
    ++self->misses;
    Py_RETURN_NONE;
  }
  PyObject* plan = self->plans->find(key);
  if (plan != nullptr) return record_hit(self, plan);
  const RepresentativeArgs representatives(self, args, count, false);
  if (representatives.differs && key.build(representatives.items, count, self->written, views)) {
    plan = self->plans->find(key);
    if (plan != nullptr) return record_hit(self, plan);
  }
  ++self->misses;
  plan = make_family_plan(self, representatives, views);
  if (plan != nullptr && plan != Py_None) {
    self->plans->add(key, plan, representatives.items, count, self->capacity);
  }
  return plan;
}

PyObject* call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (names != nullptr || count > kMaxArgs) {
    PyErr_SetString(PyExc_TypeError, "plans take arguments by position, at most 64");
    return nullptr;
  }
  return lookup(as_plans(object), args, count);
}

/// add(plan, *args): False if the arguments cannot be a key.
PyObject* add(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  Plans* self = as_plans(object);
  if (count < 1 || count - 1 > kMaxArgs) {
    PyErr_SetString(PyExc_TypeError, "add(plan, *args): a plan and at most 64 arguments");
    return nullptr;
  }
  const RepresentativeArgs representatives(self, args + 1, count - 1, true);
  Key key;
  Views views;
  if (!key.build(representatives.items, representatives.count, self->written, views))
    Py_RETURN_FALSE;
  self->plans->add(key, args[0], representatives.items, representatives.count, self->capacity);
  Py_RETURN_TRUE;
}

/// add_family(decide, *args): False if the arguments do not have the declared shapes.
PyObject* add_family(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  Plans* self = as_plans(object);
  if (count < 1 || count - 1 > kMaxArgs) {
    PyErr_SetString(PyExc_TypeError, "add_family(decide, *args): at most 64 arguments");
    return nullptr;
  }
  const RepresentativeArgs representatives(self, args + 1, count - 1, true);
  Key key;
  Views views;
  int64_t sizes[kMaxSizes];
  if (self->shapes->patterns.empty() ||
      !key.build_open(representatives.items, representatives.count, self->written, views,
                      *self->shapes, sizes)) {
    Py_RETURN_FALSE;
  }
  self->families->add(key, args[0], representatives.items, representatives.count, kFamilies);
  Py_RETURN_TRUE;
}

int clear(PyObject* object) {
  Plans* self = as_plans(object);
  self->plans->clear();
  self->families->clear();
  if (self->representatives != nullptr) PyDict_Clear(self->representatives);
  return 0;
}

PyObject* clear_all(PyObject* object, PyObject*) {
  clear(object);
  Py_RETURN_NONE;
}

Py_ssize_t length(PyObject* object) { return as_plans(object)->plans->size(); }

/// Reads one pattern: (kind, ((symbol, factor), ...)).
bool read_pattern(PyObject* object, int num_sizes, Pattern* pattern) {
  int kind;
  PyObject* extents;
  if (!PyArg_ParseTuple(object, "iO!", &kind, &PyTuple_Type, &extents)) return false;
  pattern->kind = static_cast<Pattern::Kind>(kind);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(extents); ++i) {
    int symbol;
    long long factor;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(extents, i), "iL", &symbol, &factor)) return false;
    if (symbol >= num_sizes || factor == 0 || (symbol < 0 && factor < 1)) {
      PyErr_SetString(PyExc_ValueError, "an extent of a size that is none");
      return false;
    }
    pattern->extents.push_back({symbol, factor});
  }
  return true;
}

bool read_shapes(int num_sizes, PyObject* patterns, Shapes* shapes) {
  if (num_sizes < 0 || num_sizes > kMaxSizes || PyTuple_GET_SIZE(patterns) > kMaxArgs) {
    PyErr_SetString(PyExc_ValueError, "too many sizes or arguments");
    return false;
  }
  shapes->num_sizes = num_sizes;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(patterns); ++i) {
    Pattern pattern;
    if (!read_pattern(PyTuple_GET_ITEM(patterns, i), num_sizes, &pattern)) return false;
    shapes->patterns.push_back(std::move(pattern));
  }
  return true;
}

/// Plans(capacity, written, num_sizes, patterns)
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t capacity;
  unsigned long long written;
  int num_sizes;
  PyObject* patterns;
  Shapes shapes;
  if (!PyArg_ParseTuple(args, "nKiO!", &capacity, &written, &num_sizes, &PyTuple_Type, &patterns) ||
      !read_shapes(num_sizes, patterns, &shapes)) {
    return nullptr;
  }
  PyObject* representatives = PyDict_New();
  auto* self = representatives == nullptr ? nullptr : PyObject_GC_New(Plans, type);
  if (self == nullptr) {
    Py_XDECREF(representatives);
    return nullptr;
  }
  self->call = call;
  self->capacity = capacity;
  self->written = written;
  self->hits = self->misses = 0;
  self->shapes = new Shapes(std::move(shapes));
  self->plans = new Table;
  self->families = new Table;
  self->representatives = representatives;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  const Plans* self = as_plans(object);
  Py_VISIT(self->representatives);
  const int stop = self->plans->visit(visit, arg);
  return stop != 0 ? stop : self->families->visit(visit, arg);
}

void drop(PyObject* object) {
  PyObject_GC_UnTrack(object);
  Plans* self = as_plans(object);
  clear(object);
  Py_CLEAR(self->representatives);
  delete self->shapes;
  delete self->plans;
  delete self->families;
  PyObject_GC_Del(object);
}

// ------------------------------------------------------------ an op's call

/// `caller(*parameters) -> result`: looks up the plan, allocates results passed as None, and
/// launches. A plan is (run, make), with make(*results) returning what the op returns, or for one
/// result (run, dtype, device, *sizes); run(result, *input tensors) launches. Without a plan:
/// `miss(*parameters)`.
struct Caller {
  PyObject_HEAD;
  vectorcallfunc call;
  Plans* plans;
  PyObject *miss, *empty, *names;  // torch.empty, and ("dtype", "device")
  Py_ssize_t first_result, num_results;
  std::vector<Py_ssize_t>* tensors;  // positions
};

Caller* as_caller(PyObject* object) { return reinterpret_cast<Caller*>(object); }

/// Calls torch.empty(*sizes, dtype=, device=) as the plan says; passing the sizes as a tuple takes
/// 0.5 us more.
PyObject* make_one(const Caller* self, PyObject* plan) {
  PyObject* args[kMaxSizes + 2];
  const Py_ssize_t num_sizes = PyTuple_GET_SIZE(plan) - 3;
  if (num_sizes > kMaxSizes) {
    PyErr_SetString(PyExc_ValueError, "a result of too many dimensions");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < num_sizes; ++i) args[i] = PyTuple_GET_ITEM(plan, i + 3);
  args[num_sizes] = PyTuple_GET_ITEM(plan, 1);
  args[num_sizes + 1] = PyTuple_GET_ITEM(plan, 2);
  return PyObject_Vectorcall(self->empty, args, num_sizes, self->names);
}

PyObject* result_of(const Caller* self, PyObject* plan, PyObject* const* args) {
  PyObject* const* results = args + self->first_result;
  if (PyTuple_GET_SIZE(plan) == 2) {
    return PyObject_Vectorcall(PyTuple_GET_ITEM(plan, 1), results, self->num_results, nullptr);
  }
  const bool is_provided = self->num_results > 0 && results[0] != Py_None;
  return is_provided ? Py_NewRef(results[0]) : make_one(self, plan);
}

PyObject* call_op(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  Caller* self = as_caller(object);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (names != nullptr || count > kMaxArgs || count < self->first_result + self->num_results) {
    PyErr_SetString(PyExc_TypeError, "an op takes its parameters by position");
    return nullptr;
  }
  PyObject* plan = lookup(self->plans, args, count);
  if (plan == nullptr) return nullptr;
  if (!PyTuple_CheckExact(plan) || PyTuple_GET_SIZE(plan) < 2) {
    Py_DECREF(plan);
    return PyObject_Vectorcall(self->miss, args, count, nullptr);
  }
  PyObject* items[kMaxArgs + 1];
  items[0] = result_of(self, plan, args);
  if (items[0] != nullptr) {
    Py_ssize_t num_items = 1;
    for (const Py_ssize_t index : *self->tensors) items[num_items++] = args[index];
    PyObject* done = PyObject_Vectorcall(PyTuple_GET_ITEM(plan, 0), items, num_items, nullptr);
    if (done == nullptr) Py_CLEAR(items[0]);
    Py_XDECREF(done);
  }
  Py_DECREF(plan);
  return items[0];
}

/// caller(miss, empty, positions of tensors, position of the first result, number of results)
PyObject* make_caller(PyObject* object, PyObject* args) {
  PyObject *miss, *empty, *positions;
  Py_ssize_t first_result, num_results;
  if (!PyArg_ParseTuple(args, "OOO!nn", &miss, &empty, &PyTuple_Type, &positions, &first_result,
                        &num_results)) {
    return nullptr;
  }
  std::vector<Py_ssize_t> tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); ++i) {
    const Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i));
    if (index < 0 || index >= first_result) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no position of an input");
      return nullptr;
    }
    tensors.push_back(index);
  }
  PyObject* names = Py_BuildValue("(ss)", "dtype", "device");
  auto* self = names == nullptr ? nullptr : PyObject_GC_New(Caller, &caller_type);
  if (self == nullptr) {
    Py_XDECREF(names);
    return nullptr;
  }
  self->call = call_op;
  self->plans = reinterpret_cast<Plans*>(Py_NewRef(object));
  self->miss = Py_NewRef(miss);
  self->empty = Py_NewRef(empty);
  self->names = names;
  self->first_result = first_result;
  self->num_results = num_results;
  self->tensors = new std::vector<Py_ssize_t>(std::move(tensors));
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

int traverse_caller(PyObject* object, visitproc visit, void* arg) {
  const Caller* self = as_caller(object);
  Py_VISIT(self->plans);
  Py_VISIT(self->miss);
  Py_VISIT(self->empty);
  return 0;
}

int clear_caller(PyObject* object) {
  Py_CLEAR(as_caller(object)->miss);
  return 0;
}

void drop_caller(PyObject* object) {
  PyObject_GC_UnTrack(object);
  Caller* self = as_caller(object);
  Py_CLEAR(self->miss);
  Py_DECREF(self->plans);
  Py_DECREF(self->empty);
  Py_DECREF(self->names);
  delete self->tensors;
  PyObject_GC_Del(object);
}

PyTypeObject describe_caller() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "rfops_launcher.Caller";
  type.tp_basicsize = sizeof(Caller);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Caller, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_traverse = traverse_caller;
  type.tp_clear = clear_caller;
  type.tp_dealloc = drop_caller;
  return type;
}

PyMethodDef methods[] = {
    {"caller", make_caller, METH_VARARGS, "an op's call on these plans"},
    {"add", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(add)), METH_FASTCALL,
     "add(plan, *args): remember the plan for arguments like these"},
    {"add_family", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(add_family)),
     METH_FASTCALL, "add_family(decide, *args): decide(*sizes) makes plans of other sizes"},
    {"clear", clear_all, METH_NOARGS, "forget all plans"},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"hits", T_ULONGLONG, offsetof(Plans, hits), READONLY, "calls that found a plan"},
    {"misses", T_ULONGLONG, offsetof(Plans, misses), READONLY, "calls that found none"},
    {nullptr, 0, 0, 0, nullptr},
};

PySequenceMethods sequence = {length};

PyTypeObject describe() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "rfops_launcher.Plans";
  type.tp_basicsize = sizeof(Plans);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Plans, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_as_sequence = &sequence;
  type.tp_methods = methods;
  type.tp_members = members;
  type.tp_new = make;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_dealloc = drop;
  return type;
}

}  // namespace

PyTypeObject plans_type = describe();
PyTypeObject caller_type = describe_caller();

}  // namespace rfops
