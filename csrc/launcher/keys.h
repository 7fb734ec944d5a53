/// @file keys.h
/// @brief Keys of plans and of families of plans: what two calls must have in common to share one.
///
/// In a plan's key a tensor contributes dtype, device, sizes, strides and its address modulo 16; an
/// int or a float its value; any other object itself. If a tensor is on the host, the virtual GPU's
/// architecture and model are included. In a family's key the sizes are open: tensors must be
/// non-empty and have shapes that the op declares, such as [M, K] and [N, K/32]. A non-contiguous
/// tensor contributes its strides and which of its dimensions have size 1: the stride of such a
/// dimension is arbitrary, and no call with a larger dimension may reuse it.
#pragma once

#include <unistd.h>  // environ

#include <algorithm>
#include <cstring>
#include <vector>

#include "tensors.h"

namespace rfops {

constexpr Py_ssize_t kMaxArgs = 64;
constexpr int kMaxWords = 256;  // per key; larger keys are not cached
constexpr int kMaxSpans = 256;  // tensors per call
constexpr int kMaxSizes = 16;   // open sizes per family
constexpr uint64_t kAlign = 16;
constexpr int64_t kSizeOne = INT64_MIN;  // stands for the stride of a dimension of size 1
constexpr int kCpu = 1, kCudaHost = 3;   // DLPack's device types of host memory

/// An extent: size `symbol` divided by `factor`, or the constant `factor` if there is no symbol.
struct Extent {
  int symbol;      // -1: none
  int64_t factor;  // negative: divided by -factor, rounded up
};

/// The declared shape of an argument in a family: a value, any tensor, a tensor with these extents,
/// or a tensor of any shape with a given number of elements and optionally a given last dimension.
/// An int may replace a tensor of one extent.
struct Pattern {
  enum Kind { kValue, kAnyTensor, kShape, kElements } kind;
  std::vector<Extent> extents;
};

struct Shapes {
  int num_sizes = 0;
  std::vector<Pattern> patterns;
  Pattern value = {Pattern::kValue, {}};  // pattern of arguments beyond `patterns`

  const Pattern& pattern_of(size_t argument) const {
    return argument < patterns.size() ? patterns[argument] : value;
  }
};

struct Span {
  uint64_t begin, end;
};

/// The tensors of one call, each read once, because the keys of plan and family use the same.
class Views {
 public:
  /// Returns null, without an exception, if torch does not export the tensor.
  const DlTensor* view_of(Py_ssize_t index, PyObject* tensor) {
    if (index >= read_) {
      for (Py_ssize_t i = read_; i <= index; ++i) state_[i] = 0;
      read_ = index + 1;
    }
    if (state_[index] == 0) {
      state_[index] = !is_negated(tensor) && read_tensor(tensor, &views_[index]) ? 1 : 2;
    }
    return state_[index] == 1 ? &views_[index] : nullptr;
  }

 private:
  DlTensor views_[kMaxArgs];
  uint8_t state_[kMaxArgs];  // 0: not read; 1: read; 2: rejected
  Py_ssize_t read_ = 0;
};

class Key {
 public:
  int64_t words[kMaxWords];
  int count = 0;

  /// Builds the key of a plan. Returns false if an argument cannot be part of a key, or if a
  /// written tensor (bit of `written` per position) overlaps another one.
  bool build(PyObject* const* args, Py_ssize_t num_args, uint64_t written, Views& views) {
    return build_as(args, num_args, written, views, nullptr, nullptr);
  }

  /// Builds the key of a family and the sizes of this call. Also returns false if sizes contradict
  /// each other.
  bool build_open(PyObject* const* args, Py_ssize_t num_args, uint64_t written, Views& views,
                  const Shapes& shapes, int64_t* sizes) {
    std::fill_n(sizes, shapes.num_sizes, 0);
    if (!build_as(args, num_args, written, views, &shapes, sizes)) return false;
    for (int i = 0; i < shapes.num_sizes; ++i) {
      if (sizes[i] == 0) return false;
    }
    return true;
  }

  /// Two independent chains, because each step waits for a multiplication.
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
  bool build_as(PyObject* const* args, Py_ssize_t num_args, uint64_t written, Views& views,
                const Shapes* shapes, int64_t* sizes) {
    Span write[kMaxSpans], read[kMaxSpans];
    int num_write = 0, num_read = 0;
    bool on_host = false;
    count = 0;
    for (Py_ssize_t i = 0; i < num_args; ++i) {
      const Pattern* pattern = shapes == nullptr ? nullptr : &shapes->pattern_of(i);
      if (count + 4 > kMaxWords) return false;
      if (PyTuple_CheckExact(args[i]) || PyList_CheckExact(args[i])) {
        // Tables of tensors are supported by plans, not by families.
        if (shapes != nullptr || !add_table(args[i], read, &num_read, &on_host)) return false;
        continue;
      }
      if (!is_tensor(args[i])) {
        if (pattern != nullptr && pattern->kind == Pattern::kShape && PyLong_CheckExact(args[i])) {
          words[count++] = 'I';
          if (!bind_int(args[i], *pattern, sizes)) return false;
        } else if (!add_value(args[i])) {
          return false;
        }
        continue;
      }
      const DlTensor* tensor_view = views.view_of(i, args[i]);
      if (tensor_view == nullptr) return false;
      const DlTensor& view = *tensor_view;
      add_kind(view);
      if (!(pattern == nullptr ? add_shape(view) : bind_shape(view, *pattern, sizes))) return false;
      on_host = on_host || view.device_type == kCpu || view.device_type == kCudaHost;
      if (num_read == kMaxSpans || num_write == kMaxSpans) return false;
      (written >> i & 1 ? write[num_write++] : read[num_read++]) = span_of(view);
    }
    for (int i = 0; i < num_write; ++i) {
      for (int j = 0; j < num_read; ++j) {
        if (overlap(write[i], read[j])) return false;
      }
      for (int j = 0; j < i; ++j) {
        if (overlap(write[i], write[j])) return false;
      }
    }
    return !on_host || add_virtual_gpu();
  }

  /// Adds a table of equal-shaped tensors: their number, the first one, and their common alignment.
  bool add_table(PyObject* table, Span* spans, int* num_spans, bool* on_host) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(table);
    words[count++] = 'L' | static_cast<int64_t>(size) << 8;
    if (*num_spans + size >= kMaxSpans) return false;
    int64_t first_length = 0, alignment_bits = 0;
    const int begin = count;
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* item = PySequence_Fast_ITEMS(table)[i];
      DlTensor view;
      if (count + 3 > kMaxWords) return false;  // add_kind does not check the capacity
      if (!is_tensor(item) || is_negated(item) || !read_tensor(item, &view)) return false;
      const uint64_t address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
      alignment_bits |= static_cast<int64_t>(address % kAlign);
      const int item_begin = count;
      add_kind(view);
      words[item_begin + 1] &= 0xffffffff;  // alignment is added once for all, below
      if (!add_shape(view)) return false;
      const int length = count - item_begin;
      if (i == 0) {
        first_length = length;
      } else {
        if (length != first_length ||
            std::memcmp(words + begin, words + item_begin, length * sizeof *words) != 0)
          return false;
        count = item_begin;
      }
      *on_host = *on_host || view.device_type == kCpu || view.device_type == kCudaHost;
      spans[(*num_spans)++] = span_of(view);
    }
    if (count == kMaxWords) return false;
    words[count++] = alignment_bits;
    return true;
  }

  /// Adds the current RFOPS_VGPU_ARCH and RFOPS_VGPU_PART, which os.environ passes on to the C
  /// library. Names have at most 8 characters; longer values are rejected. One pass over the
  /// environment takes 40 ns, as one getenv does; reading os.environ in Python takes 1 us.
  bool add_virtual_gpu() {
    constexpr char kPrefix[] = "RFOPS_VGPU_", kArch[] = "ARCH=", kModel[] = "PART=";
    constexpr size_t kPrefixLength = sizeof kPrefix - 1, kNameLength = sizeof kArch - 1;
    if (count + 2 > kMaxWords || environ == nullptr) return false;
    words[count] = words[count + 1] = 0;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (**entry != kPrefix[0] || std::strncmp(*entry, kPrefix, kPrefixLength) != 0) continue;
      const char* name = *entry + kPrefixLength;
      const bool is_model = std::strncmp(name, kModel, kNameLength) == 0;
      if (!is_model && std::strncmp(name, kArch, kNameLength) != 0) continue;
      const char* text = name + kNameLength;
      const size_t length = std::strlen(text);
      if (length > sizeof *words) return false;
      std::memcpy(&words[count + is_model], text, length);
    }
    count += 2;
    return true;
  }

  /// Adds everything about a tensor except its sizes and strides.
  void add_kind(const DlTensor& view) {
    const uint64_t address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
    words[count++] = 'T' | view.ndim << 8;
    words[count++] = view.type_code | view.type_bits << 8 | int64_t{view.type_lanes} << 16 |
                     static_cast<int64_t>(address % kAlign) << 32;
    words[count++] = view.device_type | int64_t{view.device_id} << 32;
  }

  bool add_shape(const DlTensor& view) {
    if (count + 1 + 2 * view.ndim > kMaxWords) return false;
    for (int i = 0; i < view.ndim; ++i) {
      words[count++] = view.shape[i];
      // Meaningless for a single element.
      words[count++] = view.shape[i] == 1 ? 0 : view.strides[i];
    }
    return true;
  }

  static Span span_of(const DlTensor& view) {
    const uint64_t address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
    int64_t last_element = 0;
    for (int i = 0; i < view.ndim; ++i) {
      if (view.shape[i] == 0) return {address, address};
      last_element += (view.shape[i] - 1) * view.strides[i];
    }
    const uint64_t bytes = (view.type_bits * view.type_lanes + 7) / 8;
    return {address, address + (last_element + 1) * bytes};
  }

  static bool overlap(const Span& a, const Span& b) { return a.begin < b.end && b.begin < a.end; }

  static bool bind(const Extent& extent, int64_t value, int64_t* sizes) {
    if (value <= 0) return false;
    if (extent.symbol < 0) return value == extent.factor;
    int64_t& size = sizes[extent.symbol];
    if (size == 0 && extent.factor > 0) size = value * extent.factor;
    if (extent.factor < 0) return size != 0 && (size - 1) / -extent.factor + 1 == value;
    return size % extent.factor == 0 && size / extent.factor == value;
  }

  static bool bind_int(PyObject* object, const Pattern& pattern, int64_t* sizes) {
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && pattern.extents.size() == 1 && bind(pattern.extents[0], value, sizes);
  }

  static bool is_contiguous(const DlTensor& view) {
    int64_t elements = 1;
    for (int i = view.ndim - 1; i >= 0; --i) {
      if (view.shape[i] != 1 && view.strides[i] != elements) return false;
      elements *= view.shape[i];
    }
    return true;
  }

  bool bind_shape(const DlTensor& view, const Pattern& pattern, int64_t* sizes) {
    if (pattern.kind == Pattern::kAnyTensor) return true;
    if (pattern.kind == Pattern::kValue || count + 1 + view.ndim > kMaxWords) return false;
    const bool contiguous = is_contiguous(view);
    words[count++] = contiguous ? 'C' : 'S';
    if (pattern.kind == Pattern::kElements) {
      int64_t elements = 1;
      for (int i = 0; i < view.ndim; ++i) elements *= view.shape[i];
      const bool has_row = pattern.extents.size() > 1;
      return contiguous && bind(pattern.extents[0], elements, sizes) &&
             (!has_row ||
              (view.ndim > 0 && bind(pattern.extents[1], view.shape[view.ndim - 1], sizes)));
    }
    if (static_cast<size_t>(view.ndim) != pattern.extents.size()) return false;
    for (int i = 0; i < view.ndim; ++i) {
      if (!contiguous) words[count++] = view.shape[i] == 1 ? kSizeOne : view.strides[i];
      if (!bind(pattern.extents[i], view.shape[i], sizes)) return false;
    }
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

}  // namespace rfops
