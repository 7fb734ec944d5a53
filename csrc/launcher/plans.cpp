/// @file plans.cpp
/// @brief `plans(*args) -> plan or None`: what an op has decided for arguments like these.
///
/// The key of a tensor is dtype, device, sizes, strides and the address modulo 16, of an int or a
/// float its value, of anything else the object itself (which the entry keeps alive). All that is
/// decided once for a key, a plan need not check again; with a tensor on the host the virtual GPU's
/// architecture is part of it. What cannot be a key is None: subclasses of Tensor, tensors that
/// torch does not hand out, an `out` that overlaps an input. None is also found while torch has to
/// see the call: a mode or a transform is active. Least recently used entries go first.

#include <cstdlib>
#include <cstring>
#include <list>
#include <unordered_map>
#include <vector>

#include "tensors.h"
// Needs Python.h before it.
#include <structmember.h>

namespace rfops {
namespace {

constexpr int kMaxWords = 256;  // of a key; larger ones are not cached
constexpr uint64_t kAlign = 16;
constexpr int kCpu = 1, kCudaHost = 3;  // DLPack's device types of host memory

struct Entry {
  uint64_t hash;
  std::vector<int64_t> words;
  std::vector<PyObject*> kept;
  PyObject* plan;
};
using Entries = std::list<Entry>;

struct Plans {
  PyObject_HEAD;
  vectorcallfunc call;
  Py_ssize_t capacity, out;
  unsigned long long hits, misses;
  Entries* entries;  // the last used first
  std::unordered_map<uint64_t, Entries::iterator>* by_hash;
};

struct Span {
  uint64_t begin, end;
};

class Key {
 public:
  int64_t words[kMaxWords];
  int count = 0;

  /// False where an argument cannot be part of a key.
  bool build(PyObject* const* args, Py_ssize_t num_args, Py_ssize_t out) {
    Span written = {0, 0};
    spans_ = 0;
    on_host_ = false;
    for (Py_ssize_t i = 0; i < num_args; ++i) {
      if (count + 3 > kMaxWords) return false;
      if (is_tensor(args[i])) {
        Span span;
        if (!add_tensor(args[i], &span)) return false;
        if (i == out) {
          written = span;
        } else {
          all_[spans_++ % 32] = span;
        }
      } else if (!add_value(args[i])) {
        return false;
      }
    }
    if (on_host_ && !add_virtual_arch()) return false;
    for (int i = 0; i < (spans_ < 32 ? spans_ : 32); ++i) {
      if (written.begin < all_[i].end && all_[i].begin < written.end) return false;
    }
    return spans_ <= 32;
  }

  /// In two chains, as each step waits for a multiplication.
  uint64_t hash() const {
    constexpr uint64_t kFactor = 0xFF51AFD7ED558CCDu;
    uint64_t even = 0x9E3779B97F4A7C15u, odd = 0xC4CEB9FE1A85EC53u;
    for (int i = 0; i + 1 < count; i += 2) {
      even = (even ^ static_cast<uint64_t>(words[i])) * kFactor;
      odd = (odd ^ static_cast<uint64_t>(words[i + 1])) * kFactor;
      even ^= even >> 32;
      odd ^= odd >> 32;
    }
    if (count % 2) even = (even ^ static_cast<uint64_t>(words[count - 1])) * kFactor;
    return (even ^ even >> 29) * kFactor ^ odd;
  }

 private:
  Span all_[32];
  int spans_ = 0;
  bool on_host_ = false;

  /// The setting of the moment, which os.environ passes on to the C library. Texts of more than 8
  /// characters name no architecture. 40 ns; reading os.environ in Python takes 1 us.
  bool add_virtual_arch() {
    const char* text = std::getenv("RFOPS_VGPU_ARCH");
    const size_t length = text == nullptr ? 0 : std::strlen(text);
    if (length > sizeof *words || count == kMaxWords) return false;
    words[count] = 0;
    if (length != 0) std::memcpy(&words[count], text, length);
    ++count;
    return true;
  }

  bool add_tensor(PyObject* object, Span* span) {
    DlTensor view;
    if (!read_tensor(object, &view) || count + 4 + 2 * view.ndim > kMaxWords) return false;
    const uint64_t address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
    words[count++] = 'T' | view.ndim << 8;
    words[count++] = view.type_code | view.type_bits << 8 | int64_t{view.type_lanes} << 16 |
                     static_cast<int64_t>(address % kAlign) << 32;
    words[count++] = view.device_type | int64_t{view.device_id} << 32;
    int64_t last = 0;
    bool empty = false;
    for (int i = 0; i < view.ndim; ++i) {
      words[count++] = view.shape[i];
      words[count++] = view.shape[i] == 1 ? 0 : view.strides[i];  // of one element it says nothing
      last += (view.shape[i] - 1) * view.strides[i];
      empty = empty || view.shape[i] == 0;
    }
    on_host_ = on_host_ || view.device_type == kCpu || view.device_type == kCudaHost;
    const uint64_t bytes = (view.type_bits * view.type_lanes + 7) / 8;
    *span = {address, empty ? address : address + (last + 1) * bytes};
    return true;
  }

  bool add_value(PyObject* object) {
    if (PyLong_CheckExact(object)) {
      int overflow = 0;
      words[count++] = 'i';
      words[count++] = PyLong_AsLongLongAndOverflow(object, &overflow);
      return overflow == 0;
    }
    if (PyFloat_CheckExact(object)) {
      const double value = PyFloat_AS_DOUBLE(object);
      words[count++] = 'f';
      std::memcpy(&words[count++], &value, sizeof value);
      return true;
    }
    if (PyType_IsSubtype(Py_TYPE(object), torch.tensor)) return false;
    words[count++] = 'o';
    words[count++] = reinterpret_cast<int64_t>(object);
    return true;
  }
};

Entries::iterator* lookup(Plans* self, const Key& key, uint64_t hash) {
  auto found = self->by_hash->find(hash);
  if (found == self->by_hash->end()) return nullptr;
  const auto& words = found->second->words;
  const bool same = words.size() == static_cast<size_t>(key.count) &&
                    std::memcmp(words.data(), key.words, words.size() * sizeof(int64_t)) == 0;
  return same ? &found->second : nullptr;
}

PyObject* call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<Plans*>(object);
  if (names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "plans take arguments by position");
    return nullptr;
  }
  Key key;
  if (key.build(args, PyVectorcall_NARGS(flags), self->out) && !must_dispatch()) {
    Entries::iterator* found = lookup(self, key, key.hash());
    if (found != nullptr) {
      ++self->hits;
      self->entries->splice(self->entries->begin(), *self->entries, *found);
      return Py_NewRef((*found)->plan);
    }
  }
  ++self->misses;
  Py_RETURN_NONE;
}

void erase(Plans* self, Entries::iterator entry) {
  Entry gone = std::move(*entry);
  self->by_hash->erase(gone.hash);
  self->entries->erase(entry);
  Py_DECREF(gone.plan);  // after the table is whole again: this may run any code
  for (PyObject* kept : gone.kept) Py_DECREF(kept);
}

/// add(plan, *args): False where the arguments cannot be a key.
PyObject* add(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  auto* self = reinterpret_cast<Plans*>(object);
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "add(plan, *args): a plan is needed");
    return nullptr;
  }
  Key key;
  if (!key.build(args + 1, count - 1, self->out)) Py_RETURN_FALSE;
  const uint64_t hash = key.hash();
  auto known = self->by_hash->find(hash);
  if (known != self->by_hash->end()) erase(self, known->second);
  std::vector<PyObject*> kept;
  for (Py_ssize_t i = 1; i < count; ++i) {
    const bool by_value = PyLong_CheckExact(args[i]) || PyFloat_CheckExact(args[i]);
    if (!by_value && !is_tensor(args[i])) kept.push_back(Py_NewRef(args[i]));
  }
  std::vector<int64_t> words(key.words, key.words + key.count);
  self->entries->push_front({hash, std::move(words), std::move(kept), Py_NewRef(args[0])});
  (*self->by_hash)[hash] = self->entries->begin();
  while (static_cast<Py_ssize_t>(self->entries->size()) > self->capacity) {
    erase(self, std::prev(self->entries->end()));
  }
  Py_RETURN_TRUE;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Plans*>(object);
  while (!self->entries->empty()) erase(self, self->entries->begin());
  return 0;
}

PyObject* clear_all(PyObject* object, PyObject*) {
  clear(object);
  Py_RETURN_NONE;
}

Py_ssize_t length(PyObject* object) {
  return static_cast<Py_ssize_t>(reinterpret_cast<Plans*>(object)->entries->size());
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* names) {
  static const char* keywords[] = {"capacity", "out", nullptr};
  Py_ssize_t capacity = 1024, out = -1;
  if (!PyArg_ParseTupleAndKeywords(args, names, "|nn", const_cast<char**>(keywords), &capacity,
                                   &out)) {
    return nullptr;
  }
  auto* self = PyObject_GC_New(Plans, type);
  if (self == nullptr) return nullptr;
  self->call = call;
  self->capacity = capacity;
  self->out = out;
  self->hits = self->misses = 0;
  self->entries = new Entries;
  self->by_hash = new std::unordered_map<uint64_t, Entries::iterator>;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  for (const Entry& entry : *reinterpret_cast<Plans*>(object)->entries) {
    Py_VISIT(entry.plan);
    for (PyObject* kept : entry.kept) Py_VISIT(kept);
  }
  return 0;
}

void drop(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  delete reinterpret_cast<Plans*>(object)->entries;
  delete reinterpret_cast<Plans*>(object)->by_hash;
  PyObject_GC_Del(object);
}

PyMethodDef methods[] = {
    {"add", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(add)), METH_FASTCALL,
     "add(plan, *args): remember the plan for arguments like these"},
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

}  // namespace rfops
