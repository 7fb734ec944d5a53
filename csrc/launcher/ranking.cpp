/// @file ranking.cpp
/// @brief `rank`: which variant of each kernel a time model predicts to be the quickest, from the
/// factors of a call; what rfops/dispatch/time_model.py does by fifteen calls of numpy.

#include "ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace rfops {

namespace {

/// The numbers of an array of Python's, which lie side by side.
class Numbers {
 public:
  Numbers() = default;
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  ~Numbers() {
    if (is_open_) PyBuffer_Release(&view_);
  }

  /// Returns false with an exception for another number of them, or of other sizes.
  bool open(PyObject* object, const char* name, size_t count, size_t bytes) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_C_CONTIGUOUS) != 0) return false;
    is_open_ = true;
    if (static_cast<size_t>(view_.itemsize) == bytes &&
        static_cast<size_t>(view_.len) == count * bytes) {
      return true;
    }
    PyErr_Format(PyExc_ValueError, "rank: %s must have %zu elements of %zu bytes, got %zd of %zd",
                 name, count, bytes, view_.len / std::max<Py_ssize_t>(view_.itemsize, 1),
                 view_.itemsize);
    return false;
  }

  const double* doubles() const { return static_cast<const double*>(view_.buf); }
  const unsigned char* bytes() const { return static_cast<const unsigned char*>(view_.buf); }

 private:
  Py_buffer view_{};
  bool is_open_ = false;
};

/// Sizes of a ranking.
struct Sizes {
  size_t variants, factors, logs;

  size_t rows() const { return factors + (logs == 0 ? 0 : 1 + logs + logs * (logs + 1) / 2); }
};

/// Adds a row of weights times values to sums.
void add(double* sums, const double* weights, const double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) sums[i] += values[i] * weights[i];
}

/// Multiplies predicted times by 2^correction. `rows` begins at the row of 1 before the logs; the
/// order of sums is that of numpy.
void correct(double* us, const double* rows, const double* weights, const double* low,
             const double* high, const Sizes& sizes, double max_correction) {
  const size_t n = sizes.variants;
  std::vector<double> logs(sizes.logs * n), sums(weights, weights + n), product(n);
  const double* log_rows = rows + n;
  for (size_t i = 0; i < logs.size(); ++i) {
    logs[i] = std::min(std::max(log_rows[i], low[i]), high[i]);
  }
  weights += n;
  for (size_t i = 0; i < sizes.logs; ++i, weights += n) add(sums.data(), weights, &logs[i * n], n);
  for (size_t i = 0; i < sizes.logs; ++i) {
    for (size_t j = i; j < sizes.logs; ++j, weights += n) {
      for (size_t v = 0; v < n; ++v) product[v] = logs[i * n + v] * logs[j * n + v];
      add(sums.data(), weights, product.data(), n);
    }
  }
  for (size_t v = 0; v < n; ++v)
    us[v] *= std::exp2(std::min(std::max(sums[v], -max_correction), max_correction));
}

/// A list of (us, kernel, index of its best variant), the quickest kernel first. `parts` are
/// (kernel, index of its first variant).
PyObject* best_of(const std::vector<double>& us, PyObject* parts) {
  const Py_ssize_t count = PyTuple_GET_SIZE(parts);
  std::vector<size_t> begins;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts, i);
    if (!PyTuple_Check(part) || PyTuple_GET_SIZE(part) != 2) {
      PyErr_SetString(PyExc_ValueError, "rank: parts must be pairs of a kernel and an index");
      return nullptr;
    }
    const size_t begin = PyLong_AsSize_t(PyTuple_GET_ITEM(part, 1));
    if (PyErr_Occurred()) return nullptr;
    if (begin >= us.size() || (!begins.empty() && begin <= begins.back())) {
      PyErr_SetString(PyExc_ValueError, "rank: parts must begin at growing indices of variants");
      return nullptr;
    }
    begins.push_back(begin);
  }
  std::vector<std::pair<size_t, Py_ssize_t>> best;  // a variant and its part
  for (Py_ssize_t i = 0; i < count; ++i) {
    const size_t end = i + 1 < count ? begins[i + 1] : us.size();
    best.emplace_back(std::min_element(us.begin() + begins[i], us.begin() + end) - us.begin(), i);
  }
  std::stable_sort(best.begin(), best.end(),
                   [&us](const auto& a, const auto& b) { return us[a.first] < us[b.first]; });
  PyObject* list = PyList_New(count);
  if (list == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* kernel = PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts, best[i].second), 0);
    PyObject* one =
        Py_BuildValue("dOn", us[best[i].first], kernel, static_cast<Py_ssize_t>(best[i].first));
    if (one == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, i, one);
  }
  return list;
}

}  // namespace

PyObject* rank(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 9 || !PyTuple_Check(args[8])) {
    PyErr_SetString(
        PyExc_TypeError,
        "rank(rows, weights, low, high, excluded, variants, factors, max_correction, parts)");
    return nullptr;
  }
  Sizes sizes{PyLong_AsSize_t(args[5]), PyLong_AsSize_t(args[6]), 0};
  const double max_correction = PyFloat_AsDouble(args[7]);
  if (PyErr_Occurred()) return nullptr;
  const Py_ssize_t length = PyObject_Length(args[2]);
  if (length < 0) return nullptr;
  sizes.logs = static_cast<size_t>(length);
  Numbers rows, weights, low, high, excluded;
  const size_t n = sizes.variants, num_logs = sizes.logs * n;
  if (!rows.open(args[0], "rows", sizes.rows() * n, sizeof(double)) ||
      !weights.open(args[1], "weights", sizes.rows() * n, sizeof(double)) ||
      !low.open(args[2], "low", num_logs, sizeof(double)) ||
      !high.open(args[3], "high", num_logs, sizeof(double)) ||
      (args[4] != Py_None && !excluded.open(args[4], "excluded", n, 1))) {
    return nullptr;
  }
  std::vector<double> us(n, 0.0);
  const double *values = rows.doubles(), *factor = weights.doubles();
  for (size_t i = 0; i < sizes.factors; ++i, values += n, factor += n) {
    add(us.data(), factor, values, n);
  }
  if (sizes.logs != 0) {
    correct(us.data(), values, factor, low.doubles(), high.doubles(), sizes, max_correction);
  }
  for (size_t v = 0; args[4] != Py_None && v < n; ++v) {
    if (excluded.bytes()[v] != 0) us[v] = HUGE_VAL;
  }
  return best_of(us, args[8]);
}

}  // namespace rfops
